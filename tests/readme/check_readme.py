#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Holds README files to what they say.

example SOURCE OUT   writes the README's C program to OUT
environment SOURCE   the README's environment table lists exactly the variables of common/env.def
folders SOURCE       every folder of sources has a README.md of at most 50 lines
"""
import pathlib
import re
import sys


def example(source, out):
    blocks = re.findall(r"^```c\n(.*?)^```", (source / "README.md").read_text(), re.M | re.S)
    if len(blocks) != 1:
        return [f"README.md has {len(blocks)} C programs, one is expected"]
    pathlib.Path(out).write_text(blocks[0])
    return []


def environment(source):
    table = re.findall(r"^\| (STERNWAY_\w+) \| ([^|]*?) ?\|", (source / "README.md").read_text(), re.M)
    rows = re.findall(r'^STW_ENV\(\w+, "(\w+)", "([^"]*)"', (source / "common/env.def").read_text(), re.M)
    return [] if rows and table == rows else [f"README.md has {table}, common/env.def {rows}"]


def folders(source):
    problems = []
    names = ["dispatch", "common", "common/tuning", "tools", "tests", "bench", "examples"]
    names += [str(p.relative_to(source)) for p in source.glob("backends/*") if p.is_dir()]
    names += [str(p.relative_to(source)) for p in source.glob("tests/*") if p.is_dir()]
    for name in names:
        readme = source / name / "README.md"
        if not readme.exists():
            problems.append(f"{name} has no README.md")
        elif len(readme.read_text().splitlines()) > 50:
            problems.append(f"{name}/README.md is longer than 50 lines")
    return problems


def main():
    check, source = sys.argv[1], pathlib.Path(sys.argv[2])
    problems = {"example": example, "environment": environment, "folders": folders}[check](source, *sys.argv[3:])
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
