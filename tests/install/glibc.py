# SPDX-License-Identifier: MIT
"""Which glibc the programs and libraries of a tree want: not newer than one, and nothing linked that is not everywhere."""
import re
import sys

from consumer import run

SYSTEM = {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "ld-linux-x86-64.so.2"}


def number(text):
    return tuple(int(part) for part in text.split("."))


def wanted(path):
    """The newest version of glibc that a file wants."""
    return max(map(number, re.findall(r"Name: GLIBC_([0-9.]+)", run("readelf", "-VW", path))), default=(0,))


def files(tree):
    for path in sorted(tree.rglob("*")):
        if path.is_file() and not path.is_symlink() and path.open("rb").read(4) == b"\x7fELF":
            yield path


def check(tree, most, beside=(), least=1):
    """beside: libraries of other packages; least: how many files there must be."""
    found, problems = list(files(tree)), []
    inside = {path.name for path in tree.rglob("*.so*")} | SYSTEM | set(beside)
    for path in found:
        name, words = path.relative_to(tree), run("readelf", "-dW", path)
        if wanted(path) > number(most):
            problems.append(f"{name} wants glibc {'.'.join(map(str, wanted(path)))}")
        if "GLIBC_PRIVATE" in run("readelf", "-VW", path):
            problems.append(f"{name} wants what is private to one glibc")
        problems += [f"{name} wants {library}" for library in re.findall(r"\(NEEDED\).*\[(.*)\]", words) if library not in inside]
        problems += [f"{name} searches {part}" for paths in re.findall(r"\(R(?:UN)?PATH\).*\[(.*)\]", words)
                     for part in paths.split(":") if not part.startswith("$ORIGIN")]
    if len(found) < least:
        problems.append(f"{len(found)} programs and libraries, {least} are expected")
    if problems:
        sys.exit("\n".join(problems))
    print(f"{len(found)} programs and libraries run on glibc {most}: {', '.join(path.name for path in found)}")
