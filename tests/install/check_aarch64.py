#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The library for aarch64 (GH200, Grace), built here as docs/building.md says, with CUDA images, and run by qemu-user.

Needs mmdebstrap, qemu-aarch64, clang 19 and lld, and a Debian archive in reach: a part of `full`. Skipped by name (77)
without them.
"""
import argparse
import pathlib
import shutil
import subprocess
import sys
import tempfile

UNITS = ("common", "rules", "context", "plan", "jagged", "backends", "gpu", "blas_trial")
TOOLS = ("mmdebstrap", "qemu-aarch64", "clang-19", "ld.lld-19")


def run(*command, **more):
    done = subprocess.run([str(word) for word in command], check=False, capture_output=True, text=True, **more)
    if done.returncode:
        words = " ".join(map(str, command))
        sys.exit(f"{words}: status {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    return done.stdout


def check(options, folder):
    build, images = folder / "build", pathlib.Path(options.build, "images")
    run(options.cmake, "--preset", "aarch64", "-S", options.source, "-B", build,
        f"-DSTERNWAY_SYSROOT={folder / 'root'}", f"-DSTERNWAY_IMAGES_FROM={images}",
        f"-DSTERNWAY_NVCC={options.nvcc}", cwd=options.source)
    run(options.cmake, "--build", build, "--target", "sternway_tool", "sternway_static", "test_image",
        *(f"test_unit_{name}" for name in UNITS))
    library = run("readelf", "-hd", build / "lib/libsternway.so.0")
    needed = {line.split("[")[1][:-1] for line in library.splitlines() if "(NEEDED)" in line}
    if "AArch64" not in library or needed - {"libc.so.6", "libm.so.6", "ld-linux-aarch64.so.1"}:
        sys.exit(f"libsternway.so is not what was asked for: {needed}\n{library[:800]}")
    said = run("ctest", "--test-dir", build, "--output-on-failure", "-R", f"^(image|unit_({'|'.join(UNITS)}))$")
    if f"tests passed, 0 tests failed out of {len(UNITS) + 1}" not in said or "Skipped" in said:
        sys.exit(said)
    command = ["qemu-aarch64", "-L", folder / "root", build / "bin/sternway"]
    said = run(*command, "info", "--verify")
    for wanted in ("sm80", "sm90", "instruction sets: portable"):
        if wanted not in said:
            sys.exit(f"info does not say {wanted!r}\n{said}")
    said = run(*command, "conform", "--backend", "cpu", "--variant", "auto", "--cases", "60")
    if " passed, 0 failed" not in said:
        sys.exit(said)
    for example in ("causal_gqa", "nested"):
        file = pathlib.Path(options.source, f"examples/{example}.safetensors")
        if ", 0 missed" not in run(*command, "run", "--backend", "cpu", file):
            sys.exit(f"examples/{example} missed a reference")


def main():
    parser = argparse.ArgumentParser()
    for name in ("source", "build", "cmake", "nvcc"):
        parser.add_argument(f"--{name}", required=True)
    options = parser.parse_args()
    lacking = [tool for tool in TOOLS if not shutil.which(tool)]
    if lacking or not pathlib.Path(options.nvcc).is_file():
        print(f"needs {', '.join(lacking) or 'a build with nvcc'}")
        sys.exit(77)
    with tempfile.TemporaryDirectory(prefix="sternway-aarch64-") as name:
        made = subprocess.run(["sh", pathlib.Path(options.source, "cmake/aarch64_root.sh"), pathlib.Path(name, "root")],
                              check=False, capture_output=True, text=True)
        if made.returncode:
            print(f"no root could be made: {made.stderr[-600:]}")
            sys.exit(77)
        check(options, pathlib.Path(name))


if __name__ == "__main__":
    main()
