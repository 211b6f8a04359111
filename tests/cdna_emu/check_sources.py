#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The HIP text of target hip-sources: builds it, and asks every compiler for the arch that is here (clang of any version,
amdclang++, hipcc; from 17 on) whether it takes the sources without warnings, and, unless it is older than the build's compiler, whose
builtins the text counts on, the text. Nothing may be left in the text that needs a file of ROCm's or of ours."""

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

# Common to all of them; the build's further flags choose the output format alone.
FLAGS = ["-x", "hip", "--cuda-device-only", "-nogpulib", "-nogpuinc", "-munsafe-fp-atomics", "-std=c++17", "-Wall", "-Wextra",
         "-Werror", "-Wno-unused-function", "-fsyntax-only"]


OLDEST = 17  # ROCm 6.0's: older ones lack builtins that CDNA's own kernels name


def run(words):
    done = subprocess.run(words, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def version(compiler):
    found = re.search(r"clang version (\d+)", run([compiler, "--version"])[1])
    return int(found.group(1)) if found else 0


def compilers(own):
    """Each once, the build's own first."""
    found = [own]
    names = ["amdclang++", "hipcc", *(f"clang-{n}" for n in range(14, 31))]
    for name in names + os.environ.get("STERNWAY_HIP_COMPILERS", "").split(":"):
        path = name and shutil.which(name)
        if path and os.path.realpath(path) not in map(os.path.realpath, found) and version(path) >= OLDEST:
            found.append(path)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("--compiler", "--arch", "--source", "--build"):
        parser.add_argument(name, required=True)
    options = parser.parse_args()
    source = Path(options.source)
    status, words = run(["cmake", "--build", options.build, "--target", "hip-sources"])
    text = Path(options.build, "hip-sources", f"attn_bwd_cdna.{options.arch}.hip")
    if status or not text.exists():
        sys.exit(f"FAIL target hip-sources: {words[-2000:]}")
    content = text.read_text()
    failures = 0
    for wrong in ("#include", "/opt/rocm", str(source)):
        if wrong in content:
            failures += 1
            print(f"FAIL {text.name} holds {wrong}")
    if "stw_attn_bwd_postprocess" not in content:
        failures += 1
        print(f"FAIL {text.name} holds no kernels")
    empty = Path(options.build, "hip-sources", "empty.hip")
    empty.write_text("")
    table = f'-DSTW_VARIANT_TABLE="common/tuning/attn_bwd.{options.arch}.def"'
    for number, compiler in enumerate(compilers(options.compiler)):
        # the warnings of compilers that nobody built with are shown
        target = [compiler, *(flag for flag in FLAGS if not number or flag != "-Werror"), f"--offload-arch={options.arch}"]
        if number and run([*target, str(empty)])[0]:
            print(f"skip {compiler}: does not know {options.arch}")
            continue
        asked = {"sources": [table, f"-I{source}", f"-I{source}/include", str(source / "backends/hip/attn_bwd_cdna.hip")]}
        if version(compiler) >= version(options.compiler):
            asked["text"] = [str(text)]
        for what, rest in asked.items():
            status, words = run([*target, *rest])
            failures += status != 0
            print("FAIL" if status else "ok  ", compiler, options.arch, what, words[-2000:])
    return failures != 0


if __name__ == "__main__":
    sys.exit(main())
