#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Holds README files and documents to what they say.

example SOURCE OUT [DOCUMENT]   writes the C program of the README (or another document) to OUT
environment SOURCE   the environment table of docs/command.md lists exactly the variables of common/env.def
folders SOURCE       the folders of sources that it lists have a README.md of at most 50 lines; tests/README.md has a row for each folder of tests
links SOURCE         what the documents link to, and the paths they name, are there
"""
import pathlib
import re
import sys


def example(source, out, document="README.md"):
    blocks = re.findall(r"^```c\n(.*?)^```", (source / document).read_text(), re.M | re.S)
    joined = "\n".join(blocks)  # a program may be told in parts
    if joined.count("int main(void)") != 1:
        return [f"{document} has {joined.count('int main(void)')} C programs, one is expected"]
    pathlib.Path(out).write_text(joined)
    return []


def environment(source):
    table = re.findall(r"^\| (STERNWAY_\w+) \| ([^|]*?) ?\|", (source / "docs/command.md").read_text(), re.M)
    rows = re.findall(r'^STW_ENV\(\w+, "(\w+)", "([^"]*)"', (source / "common/env.def").read_text(), re.M)
    return [] if rows and table == rows else [f"docs/command.md has {table}, common/env.def {rows}"]


def folders(source):
    problems = []
    names = ["dispatch", "common", "common/device", "common/kernels", "common/params", "common/tuning", "tools", "tests", "bench", "examples", "python", "python/native"]
    names += [str(p.relative_to(source)) for p in source.glob("backends/*") if p.is_dir()]
    rows = re.findall(r"^\| (?:\[(\w+)\]\(\1/README\.md\)|(\w+)) \|", (source / "tests/README.md").read_text(), re.M)
    rows = sorted((with_readme or name, bool(with_readme)) for with_readme, name in rows if name != "folder")
    tests = sorted((p.name, (p / "README.md").exists()) for p in source.glob("tests/*") if p.is_dir() and p.name != "__pycache__")
    if rows != tests:
        problems.append(f"tests/README.md: folders and their README.md, here or there alone: {sorted({*rows} ^ {*tests})}")
    names += [f"tests/{name}" for name, readme in tests if readme]
    for name in names:
        readme = source / name / "README.md"
        if not readme.exists():
            problems.append(f"{name} has no README.md")
        elif len(readme.read_text().splitlines()) > 50:
            problems.append(f"{name}/README.md is longer than 50 lines")
    return problems


def anchor(heading):
    """How GitHub names a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


def links(source):
    problems, seen = [], 0
    folders = ("backends", "bench", "cmake", "common", "dispatch", "docs", "examples", "include", "python", "tests", "tools")
    documents = [source / name for name in ("README.md", "CHANGELOG.md", "SECURITY.md", "CONTRIBUTING.md")]
    documents += [path for folder in folders for path in (source / folder).rglob("*.md")]
    for document in documents:
        text, name = document.read_text(), document.relative_to(source)
        prose = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
        for target in re.findall(r"\]\(([^)\s]+)\)", prose):
            if re.match(r"[a-z]+:", target):
                continue
            path, _, part = target.partition("#")
            there = (document.parent / path).resolve() if path else document
            seen += 1
            if not there.exists():
                problems.append(f"{name}: {target} is not there")
            elif part and part not in map(anchor, re.findall(r"^#+ (.*)$", there.read_text(), re.M)):
                problems.append(f"{name}: {target}: no such heading")
        for target in re.findall(r"(?<![\w/.<{$*-])((?:%s)/[\w./-]*\w\.(?:md|h|c|py|def|inl|cu|hip|cmake))\b" % "|".join(folders), prose):
            if re.search("ARCH|sm123", target):  # a placeholder; the arch that docs/extending.md makes up
                continue
            seen += 1
            if not (source / target).exists() and not (document.parent / target).exists():
                problems.append(f"{name} names {target}, which is not there")
    if seen < 50:
        problems.append(f"only {seen} links and paths were found: does this check still see them?")
    return problems


def main():
    check, source = sys.argv[1], pathlib.Path(sys.argv[2])
    problems = {"example": example, "environment": environment, "folders": folders, "links": links}[check](source, *sys.argv[3:])
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
