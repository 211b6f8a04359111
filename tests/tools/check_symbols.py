#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The command takes every public call from the shared library: check_symbols.py COMMAND LIBRARY. It also links objects
of the library for what is hidden; one that brought a public name along would answer in the library's place."""
import subprocess
import sys


def defined(path, *options):
    lines = subprocess.run(["nm", "--defined-only", *options, path], capture_output=True, text=True, check=True).stdout
    return {line.split()[-1].split("@")[0] for line in lines.splitlines()}


def main():
    command, library = sys.argv[1:]
    public = {name for name in defined(library, "--dynamic") if name.startswith("stw_")}
    own = defined(command)
    if len(public) < 10 or "stw_problem_parse" not in own:
        sys.exit(f"nothing compared: {len(public)} public names, {len(own)} of the command's own")
    if both := sorted(public & own):
        sys.exit(f"the command defines names of the library's: {' '.join(both)}")
    print(f"{len(public)} public names, none of them among the command's own")


if __name__ == "__main__":
    main()
