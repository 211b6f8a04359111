#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""docs/extending.md is true.

dry-run  a copy of the tree gets what the document's steps say; with a stub in nvcc's place the build must then know the
         made-up arch and its main loop everywhere: registry, images, tables, rules, loops, and where a device of that capability is routed
op       the files that the document names for a pointwise operation are all that know it, 12 outside tests/ and python/ at most
"""
import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

NVCC = """#!/bin/sh
case "$1" in --version) echo "Cuda compilation tools, release 13.0"; exit ;; esac
while [ $# -gt 0 ]; do
    case "$1" in -o) out=$2 ;; -MF) deps=$2 ;; -gencode=*) code=$1 ;; esac
    shift
done
echo "tiny image $code" >"$out" && echo "$out:" >"$deps"
"""
# The CPU tiles take a minute to compile and know nothing of archs: objects of the build under test are as good.
LAUNCHER = """#!/bin/sh
for word in "$@"; do
    case "$last" in -o) out=$word ;; -MF) deps=$word ;; esac
    last=$word
done
case "$out" in *sternway_tile_*) echo "$out:" >"$deps"; exec cp "OBJECTS/$out" "$out" ;; esac
exec "$@"
"""
DEVICE = "FAKE_CUDA_DEVICES"
NAMES = "{}|{}|100|232448|100000000000"


def run(*command, **environment):
    done = subprocess.run([str(word) for word in command], env={**os.environ, **environment}, capture_output=True, text=True,
                          check=False, timeout=900)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}: exit status {done.returncode}\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    return done.stdout


def apply_steps(text, tree):
    """Does to the tree what the document says; returns the number of changes."""
    steps = re.findall(r"(In|New file) `([^`]+)`(?:, behind the line with `([^`]+)`)?:\n```\w*\n(.*?)^```", text, re.M | re.S)
    for kind, name, line, block in steps:
        path = tree / name
        if kind == "New file":
            path.write_text(block)
            continue
        lines = path.read_text().splitlines(keepends=True)
        places = [i for i, words in enumerate(lines) if line in words]
        if len(places) != 1:
            sys.exit(f"docs/extending.md: {name} has {len(places)} lines with {line}")
        lines.insert(places[0] + 1, block)
        path.write_text("".join(lines))
    return len(steps)


def explain(tool, fakes, capability, problem):
    name = NAMES.format("Made Up", capability)
    words = run(tool, "explain", "--json", "--backend", "cuda", problem, LD_LIBRARY_PATH=str(fakes), **{DEVICE: name})
    lines = [line.split(": ", 1) for line in json.loads(words)["text"] if ": " in line]
    return {line[0]: line[1] for line in reversed(lines)}


def expect(what, seen, wanted):
    if seen != wanted:
        sys.exit(f"{what}: {seen!r}, expected {wanted!r}")


def write_script(path, text):
    path.write_text(text)
    path.chmod(0o755)
    return path


def check_routes(options, tool):
    report = json.loads(run(tool, "info", "--json"))
    archs = {row["name"]: row for row in report["archs"]}
    expect("info: sm123", (archs["sm123"]["backend"], archs["sm123"]["in_this_build"]), ("cuda", True))
    expect("info: images of sm123", [row["kind"] for row in report["images"] if row["arch"] == "sm123"], ["cubin"])
    for capability, problem, arch, variant in (
            ("12.3", "attn_bwd:bf16:b1h2s64d64", "sm123", "sm123_64x64_hd64"), # its own kernel
            ("12.3", "attn_bwd:bf16:b1h2s64d64:dropout0.5", "sm123", "sm80_"), # its main loop refuses that
            ("12.3", "attn_bwd:f32:b1h2s64d64", "sm123", "sm80_"), # a kernel of the shared image
            ("12.3", "attn_bwd:bf16:b1h2s64d96", "sm123", "sm80_"),
            ("12.4", "attn_bwd:bf16:b1h2s64d64", "sm123", "sm123_64x64_hd64"), # newer, of the same major version
            ("12.0", "attn_bwd:bf16:b1h2s64d64", "sm80", "sm80_"), # older
            ("10.3", "attn_bwd:bf16:b1h2s64d64", "sm80", "sm80_"),
            ("8.6", "attn_bwd:bf16:b1h2s64d64", "sm80", "sm80_")):
        text = explain(tool, options.fakes, capability, problem)
        seen = text.get("arch"), text.get("variant", "")[:len(variant)]
        expect(f"{problem} on a device of {capability}", seen, (arch, variant))
    # without the steps the device of 12.3 is one of the many that run the shared image, where this build has one
    if options.before:
        expect("before the steps", explain(options.tool, options.fakes, "12.3", "attn_bwd:bf16:b1h2s64d64").get("arch"),
               options.before)


def dry_run(options):
    with tempfile.TemporaryDirectory(prefix="sternway-extending-") as name:
        folder = pathlib.Path(name)
        tree, build = folder / "tree", folder / "build"
        shutil.copytree(options.source, tree, ignore=shutil.ignore_patterns("build*", ".git", "shared"))
        expect("changes that docs/extending.md makes", apply_steps((options.source / "docs/extending.md").read_text(), tree), 6)
        nvcc = write_script(folder / "nvcc", NVCC)
        launcher = write_script(folder / "launcher", LAUNCHER.replace("OBJECTS", str(options.objects)))
        run(options.cmake, "-S", tree, "-B", build, "-G", "Ninja", f"-DCMAKE_C_COMPILER={options.cc}", f"-DSTERNWAY_NVCC={nvcc}",
            "-DSTERNWAY_HIP=OFF", "-DSTERNWAY_IMAGE_CACHE=OFF", f"-DCMAKE_C_COMPILER_LAUNCHER={launcher}", "-DCMAKE_BUILD_TYPE=Debug")
        run(options.cmake, "--build", build, "-j2", "--target", "sternway_tool", "test_unit_rules", "test_probe")
        check_routes(options, build / "bin/sternway")
        run(build / "tests/test_unit_rules")
        done = subprocess.run([build / "tests/test_probe"], capture_output=True, text=True, check=False, timeout=100)
        passed = re.search(r"OK \] sm123$", done.stdout + done.stderr, re.M)
        expect("test_probe, machine sm123", (done.returncode, bool(passed)), (0, True))


def operation(options):
    text = (options.source / "docs/extending.md").read_text().split("## A pointwise operation")[1]
    named = set(re.findall(r"`([\w/]+/[\w.]+)`", text))
    knows = set()
    for folder in ("include", "common", "dispatch", "backends", "tools", "tests", "bench", "python"):
        for path in (options.source / folder).rglob("*"):
            parts = path.relative_to(options.source).parts
            if path.suffix in (".c", ".h", ".inl", ".def", ".py", ".toml", ".cu", ".hip") and "docs" not in parts and parts[:2] != ("tests", "python") and \
                    re.search(r"silu", path.read_text(errors="replace"), re.I):
                knows.add(str(path.relative_to(options.source)))
    core = [name for name in knows if not name.startswith(("tests/", "python/"))]
    expect("no more than 12 files outside tests/ and python/", len(core) <= 12, True)
    expect("files that know SILU, beyond the document and the other way round", (sorted(knows - named), sorted(named - knows)), ([], []))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("check", choices=("dry-run", "op"))
    parser.add_argument("--source", type=pathlib.Path, required=True)
    for name in ("objects", "fakes", "tool"):
        parser.add_argument(f"--{name}", type=pathlib.Path)
    for name in ("cmake", "cc", "before"):
        parser.add_argument(f"--{name}")
    options = parser.parse_args()
    if options.check == "dry-run":
        dry_run(options)
    else:
        operation(options)


if __name__ == "__main__":
    main()
