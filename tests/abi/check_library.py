#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Checks of the built library and of the tree that need no C: run by CTest, one check a call.

exports   the symbols exported = dispatch/exports.map = the STW_API functions of the headers, all versioned
needed    NEEDED is the C library and its parts; no RPATH, no RUNPATH, no executable stack
calls     nothing that prints, exits, aborts or reads the environment unguarded is even linked
includes  every folder includes only the floors below it: include, common, backends/*, dispatch
"""
import argparse
import pathlib
import re
import subprocess
import sys

FORBIDDEN_CALLS = {"abort", "exit", "_exit", "_Exit", "quick_exit", "printf", "puts", "putchar", "perror",
                   "__assert_fail", "__printf_chk", "getenv", "system", "popen", "execve", "setenv", "putenv"}


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def dynamic_symbols(library, defined):
    lines = run("nm", "-D", "--defined-only" if defined else "--undefined-only", library).splitlines()
    return {line.split()[-1] for line in lines if line.strip()}


def check_exports(library, source):
    exported = {name for name in dynamic_symbols(library, True) if not re.fullmatch(r"STERNWAY_[0-9.]+(@.*)?", name)}
    unversioned = {name for name in exported if "@@STERNWAY_" not in name}
    names = {name.split("@")[0] for name in exported}
    listed = set(re.findall(r"^\s+(stw_\w+);", (source / "dispatch/exports.map").read_text(), re.M))
    headers = "".join(path.read_text() for path in (source / "include/sternway").glob("*.h"))
    declared = set(re.findall(r"^STW_API [^;(]*?\b(stw_\w+)\(", headers, re.M))
    problems = [f"exported without a version: {sorted(unversioned)}"] if unversioned else []
    for left, right, text in ((names, listed, "exported, not in exports.map"), (listed, names, "in exports.map, not exported"),
                              (declared, listed, "declared STW_API, not in exports.map"),
                              (listed, declared, "in exports.map, not declared STW_API")):
        if left - right:
            problems.append(f"{text}: {sorted(left - right)}")
    if not names:
        problems.append("nothing is exported")
    return problems


def check_needed(library, source):
    del source
    dynamic = run("readelf", "-d", library)
    needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic))
    problems = [f"NEEDED {sorted(needed)}"] if needed - {"libpthread.so.0", "libdl.so.2"} != {"libc.so.6", "libm.so.6"} else []
    if re.search(r"\((RPATH|RUNPATH)\)", dynamic):
        problems.append("it has an RPATH or RUNPATH")
    if "RWE" in re.search(r"GNU_STACK.*\n.*", run("readelf", "-lW", library)).group(0):
        problems.append("its stack is executable")
    return problems


def check_calls(library, source):
    del source
    called = {name.split("@")[0] for name in dynamic_symbols(library, False)}
    found = sorted(called & FORBIDDEN_CALLS)
    return [f"it calls {found}"] if found else []


# Rooms from the ground up: a file includes its own room and rooms named here, each of which stands before it. CUDA and HIP
# stand side by side and never include each other; the reference is the tests' oracle and takes nothing from a backend.
ROOMS = {"include": (),
         "common": ("include",),
         "backends": ("include", "common"),
         "backends/gpu": ("include", "common", "backends"),
         "backends/cpu": ("include", "common", "backends"),
         "backends/cuda": ("include", "common", "backends", "backends/gpu"),
         "backends/hip": ("include", "common", "backends", "backends/gpu"),
         "dispatch": ("include", "common", "backends", "backends/gpu")}


def room_of(path):
    """The innermost room of a path that is relative to the tree, or None."""
    parents = [str(parent) for parent in pathlib.PurePosixPath(path).parents]
    return next((parent for parent in parents if parent in ROOMS), None)


def check_includes(library, source):
    del library
    problems, seen, rooms = [], 0, list(ROOMS)
    for room, below in ROOMS.items():
        problems += [f"{room} stands below {other}" for other in below if rooms.index(other) >= rooms.index(room)]
    for path in sorted(path for room in ("include", "common", "backends", "dispatch") for path in (source / room).rglob("*")):
        if path.suffix not in (".c", ".h", ".inl", ".def", ".cu", ".hip"):
            continue
        name = path.relative_to(source)
        for target in re.findall(r'^\s*#\s*include\s+"([^"]+)"', path.read_text(errors="replace"), re.M):
            seen += 1
            places = (path.parent / target, source / target, source / "include" / target)
            found = next((place.resolve().relative_to(source) for place in places if place.exists()), None)
            room, other = room_of(name), found and room_of(found)
            if found and other != room and other not in ROOMS[room]:
                problems.append(f"{name} includes {target}")
            if not found and "/" in target:
                problems.append(f"{name} includes {target}, which is not in the tree")
    if not seen:
        problems.append("no includes were found: is --source right?")
    return problems


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    checks = {name[6:]: function for name, function in globals().items() if name.startswith("check_")}
    parser.add_argument("check", choices=sorted(checks))
    parser.add_argument("--library", required=True)
    parser.add_argument("--source", type=pathlib.Path, required=True)
    options = parser.parse_args()
    problems = checks[options.check](options.library, options.source.resolve())
    for problem in problems:
        print(f"{options.check}: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
