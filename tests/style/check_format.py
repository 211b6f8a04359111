#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Host and device sources are formatted as .clang-format says: check_format.py SOURCE. Exits with 77 (skipped) without a
clang-format of the major version that the tree follows: others break lines at other places. A line of C, CUDA or HIP has at
most 120 columns, comments too, which clang-format leaves as they are."""
import pathlib
import re
import shutil
import subprocess
import sys

MAJOR = "19"
LIMIT = 120
FOLDERS = ("include", "common", "dispatch", "backends", "tools", "tests", "cmake", "python")
SUFFIXES = (".c", ".h", ".inl", ".cu", ".hip", ".cpp")


def formatter():
    for name in (f"clang-format-{MAJOR}", "clang-format"):
        path = shutil.which(name)
        if path and re.search(rf"version {MAJOR}\.", subprocess.run([path, "--version"], capture_output=True, text=True).stdout):
            return path
    return None


def main():
    source = pathlib.Path(sys.argv[1])
    files = sorted(path for folder in FOLDERS for path in (source / folder).rglob("*") if path.suffix in SUFFIXES)
    if not files:
        sys.exit(f"{source}: no sources there")
    problems = [f"{path.relative_to(source)}:{number}: {len(line)} columns, {LIMIT} are allowed"
                for path in files for number, line in enumerate(path.read_text().split("\n"), 1) if len(line) > LIMIT]
    print("\n".join(problems))
    tool = formatter()
    if tool:
        for first in range(0, len(files), 100):
            done = subprocess.run([tool, "--dry-run", "-Werror", "--ferror-limit=1"] + [str(path) for path in files[first:first + 100]],
                                  capture_output=True, text=True)
            if done.returncode:
                problems.append("format")
                print("".join(line for line in done.stderr.splitlines(True) if "error:" in line))
    if problems:
        sys.exit(1)
    print(f"{len(files)} files, {'formatted' if tool else f'no clang-format {MAJOR}: only the columns were looked at'}")
    sys.exit(0 if tool else 77)


if __name__ == "__main__":
    main()
