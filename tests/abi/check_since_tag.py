#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""abidiff against the last tag, or where there is none yet against recorded.abi, abidw's account of the interface as it was
recorded: check_since_tag.py --source DIR --cc COMPILER [--record]. The library of the tag and this tree's are built without
GPU backends, whose interface is the same. Fails where abidiff calls the change incompatible, or a member of a public structure
moved; what was added is printed. Changes of the recorded one that must be noticed are tried as well.
--record writes recorded.abi anew: only for a change that the changelog names, and no more once there is a tag. Skipped (77)
without abidiff or git."""
import argparse
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

INCOMPATIBLE = 8  # of abidiff's exit status
RECORDED = pathlib.Path(__file__).resolve().parent / "recorded.abi"
MOVED = re.compile(r"offset changed|type of .* changed|data member deletion", re.I)


def run(*words, **options):
    return subprocess.run([*map(str, words)], capture_output=True, text=True, check=False, **options)


def skip(reason):
    print(f"skip: {reason}")
    sys.exit(77)


def library(source, build, cc):
    """Its library with debug information, which abidiff reads."""
    for words in (("cmake", "-G", "Ninja", "-S", source, "-B", build, f"-DCMAKE_C_COMPILER={cc}", "-DCMAKE_BUILD_TYPE=Debug", "-DSTERNWAY_CUDA=OFF",
                   "-DSTERNWAY_HIP=OFF", "-DSTERNWAY_TESTS=OFF", "-DSTERNWAY_TOOLS=OFF", "-DSTERNWAY_PYTHON=OFF"), ("cmake", "--build", build)):
        done = run(*words)
        if done.returncode:
            sys.exit(f"{' '.join(map(str, words))}: {(done.stdout + done.stderr)[-2000:]}")
    return next(build.rglob("libsternway.so"))


def account(library_file, headers):
    """What abidw says of the interface, without types that the headers hide, and without files and lines: it stays as it is
    when a declaration moves."""
    done = run("abidw", "--headers-dir", headers, "--drop-private-types", "--exported-interfaces-only", "--no-corpus-path", "--no-show-locs",
               "--no-comp-dir-path", "--no-elf-needed", "--no-write-default-sizes", "--no-parameter-names", library_file)
    if done.returncode or "<class-decl name='stw_attn_desc'" not in done.stdout:
        sys.exit(f"abidw: {done.stdout[:200]}{done.stderr}")
    return done.stdout


def compare(old, new, folder):
    """What is wrong with the new account, or None; prints what abidiff says. abidiff told of headers takes every structure
    of an account, which has no lines, for a private one."""
    for name, text in (("old", old), ("new", new)):
        (folder / f"{name}.abi").write_text(text)
    done = run("abidiff", folder / "old.abi", folder / "new.abi")
    print(f"abidiff's status is {done.returncode}\n{done.stdout}{done.stderr}")
    if done.returncode & 3:
        return "abidiff itself failed"
    return "no longer the same interface" if done.returncode & INCOMPATIBLE or MOVED.search(done.stdout) else None


def check(old, new, folder):
    """compare, and that it notices two differences."""
    wrong = compare(old, new, folder)
    at, member = old.index("<class-decl name='stw_attn_desc'"), "layout-offset-in-bits='64'"
    symbol = next(line for line in old.splitlines(True) if "<elf-symbol name='stw_attn_bwd_once'" in line)
    for what, changed in (("a member of stw_attn_desc that moved", old[:at] + old[at:].replace(member, member.replace("64", "96"), 1)),
                          ("a function that is gone", old.replace(symbol, symbol + symbol.replace("attn_bwd_once", "attn_bwd_twice")))):
        if not wrong and not compare(changed, new, folder):
            wrong = f"{what} is not noticed"
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", type=pathlib.Path, required=True)
    parser.add_argument("--cc", required=True)
    parser.add_argument("--record", action="store_true")
    options = parser.parse_args()
    for tool in ("git", "abidiff"):
        if not shutil.which(tool):
            skip(f"no {tool}")
    tag = run("git", "describe", "--tags", "--abbrev=0", "--match", "v*", cwd=options.source).stdout.strip()
    headers = options.source / "include"
    with tempfile.TemporaryDirectory(prefix="sternway-abi-") as name:
        folder = pathlib.Path(name)
        new = account(library(options.source, folder / "build-new", options.cc), headers)
        if options.record:
            RECORDED.write_text(new)
        if tag and not options.record:
            (folder / "old").mkdir()
            archive = subprocess.run(["git", "archive", tag], cwd=options.source, capture_output=True, check=True).stdout
            subprocess.run(["tar", "x", "-C", folder / "old"], input=archive, check=True)
            old = account(library(folder / "old", folder / "build-old", options.cc), folder / "old/include")
        else:
            tag, old = RECORDED.name, RECORDED.read_text()
        wrong = check(old, new, folder)
        if wrong:
            sys.exit(f"since {tag}: {wrong}")


if __name__ == "__main__":
    main()
