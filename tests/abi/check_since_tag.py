#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""abidiff against the last tag: check_since_tag.py --source DIR --cc COMPILER. The library of the tag and this tree's are built
without GPU backends, whose interface is the same. Fails where abidiff calls the change incompatible, or a member of a public
structure moved; what was added is printed. Skipped (77) without abidiff, git or a tag."""
import argparse
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

INCOMPATIBLE = 8  # of abidiff's exit status
MOVED = re.compile(r"offset changed|type of .* changed|data member deletion", re.I)


def run(*words, **options):
    return subprocess.run([*map(str, words)], capture_output=True, text=True, check=False, **options)


def skip(reason):
    print(f"skip: {reason}")
    sys.exit(77)


def library(source, build, cc):
    """Its library with debug information, which abidiff reads."""
    for words in (("cmake", "-G", "Ninja", "-S", source, "-B", build, f"-DCMAKE_C_COMPILER={cc}", "-DCMAKE_BUILD_TYPE=Debug", "-DSTERNWAY_CUDA=OFF",
                   "-DSTERNWAY_HIP=OFF", "-DSTERNWAY_TESTS=OFF", "-DSTERNWAY_TOOLS=OFF"), ("cmake", "--build", build)):
        done = run(*words)
        if done.returncode:
            sys.exit(f"{' '.join(map(str, words))}: {(done.stdout + done.stderr)[-2000:]}")
    return next(build.rglob("libsternway.so"))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", type=pathlib.Path, required=True)
    parser.add_argument("--cc", required=True)
    options = parser.parse_args()
    for tool in ("git", "abidiff"):
        if not shutil.which(tool):
            skip(f"no {tool}")
    tag = run("git", "describe", "--tags", "--abbrev=0", "--match", "v*", cwd=options.source).stdout.strip()
    if not tag:
        skip("no tag yet")
    with tempfile.TemporaryDirectory(prefix="sternway-abi-") as name:
        folder = pathlib.Path(name)
        (folder / "old").mkdir()
        archive = subprocess.run(["git", "archive", tag], cwd=options.source, capture_output=True, check=True).stdout
        subprocess.run(["tar", "x", "-C", folder / "old"], input=archive, check=True)
        old = library(folder / "old", folder / "build-old", options.cc)
        new = library(options.source, folder / "build-new", options.cc)
        done = run("abidiff", "--headers-dir1", folder / "old/include", "--headers-dir2", options.source / "include", old, new)
    print(f"since {tag}: abidiff's status is {done.returncode}\n{done.stdout}{done.stderr}")
    if done.returncode & 3:  # it failed itself
        sys.exit(1)
    if done.returncode & INCOMPATIBLE or MOVED.search(done.stdout):
        sys.exit(f"the interface is no longer that of {tag}")


if __name__ == "__main__":
    main()
