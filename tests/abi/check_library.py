#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Checks of the built library and of the tree that need no C: run by CTest, one check a call.

exports   the symbols exported = dispatch/exports.map = the STW_API functions of the headers, all versioned
needed    NEEDED is libc and libm; no RPATH, no RUNPATH, no executable stack
calls     nothing that prints, exits, aborts or reads the environment unguarded is even linked
includes  include <- common <- dispatch; backends see dispatch/backend.h only, and never each other
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
    problems = [f"NEEDED {sorted(needed)}"] if needed != {"libc.so.6", "libm.so.6"} else []
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


def check_includes(library, source):
    del library
    problems, seen = [], 0
    # the registry of archs is data: whatever chooses by arch may read it
    allowed = {"common": ("common/", "sternway/", "dispatch/arch.h"), "dispatch": ("common/", "sternway/", "dispatch/"),
               "backends": ("common/", "sternway/", "dispatch/backend.h")}
    vendor_header = "common/device/device.h"  # the one place that names the backends' leaf headers
    shared_backend = "common/gpu.h"  # what the GPU backends share is a part of them
    for folder, prefixes in allowed.items():
        for path in sorted((source / folder).rglob("*")):
            if path.suffix not in (".c", ".h", ".inl", ".def"):
                continue
            for target in re.findall(r'^\s*#\s*include\s+"([^"]+)"', path.read_text(errors="replace"), re.M):
                seen += 1
                inside = (path.parent / target).resolve()
                own = path.relative_to(source).parts[:2] if folder == "backends" else (folder,)
                if inside.exists() and inside.relative_to(source.resolve()).parts[:len(own)] == own:
                    continue
                if target.startswith("backends/") and folder == "backends" and target.split("/")[1] == own[1]:
                    continue
                name = str(path.relative_to(source))
                named = name == vendor_header and re.fullmatch(r"backends/\w+/leaf\.h", target)
                named = named or (name == shared_backend and target == "dispatch/backend.h")
                if not target.startswith(prefixes) and "/" in target and not named:
                    problems.append(f"{path.relative_to(source)} includes {target}")
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
