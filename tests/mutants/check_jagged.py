#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Mutation check of the jagged kernels without a GPU: plants the bugs of mutants_jagged.toml one at a time in a copy of
the device sources and runs conform's nested rows, or the test of wrong device data, on what is made of it, which must
fail. Without a bug both must pass.

--arch sm80: the kernels compiled for the host (tests/sm80_emu), a second each, for an unchanged library.
--arch gfx90a, gfx942: a code object without the f16 kernels (half a minute), in a library linked from a finished build's
objects, on tests/cdna_emu."""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import planted

HERE = Path(__file__).resolve().parent
TIMEOUT_S = 300
SYMBOL = "stw_jagged_image_mutant"
FOLDERS = ("backends", "common", "dispatch", "include", "tests/sm80_emu")
CLEAN = {"args": ["--quick", "--filter", "jagged", "--cases", "60"], "clamp": ["full", "parts"]}


class Sm80:
    """work/lib/libcuda.so.1: the emulator with the tree's jagged kernels. Not optimised: compiling is most of the time."""

    def __init__(self, options):
        self.options = options
        self.objects = [o for o in options.objects if "jagged_kernels" not in o]
        self.include = options.build / "tests/sm80_emu/include"

    def environment(self, work):
        return {"FAKE_FAST": "1", "FAKE_CUDA_DEVICES": "Emulator|9.0|2|232448|140000000000", "STERNWAY_BACKEND": "cuda:sm80",
                "LD_LIBRARY_PATH": f"{work}/lib:{self.options.build}/tests/sm80_emu"}

    def commands(self, work, tree):
        source, made = work / "jagged_kernels.cpp", work / "jagged_kernels.o"
        source.write_text('#include "backends/cuda/jagged_sm80.cu"\n')
        yield [self.options.cxx, "-std=gnu++17", "-O0", "-fPIC", "-mfma", "-mavx2", "-mf16c", "-ffp-contract=fast", "-w",
               "-fvisibility=hidden", "-fno-strict-aliasing", f"-I{self.include}", f"-I{tree}", f"-I{tree}/include", "-c",
               str(source), "-o", str(made)]
        yield [self.options.cxx, "-shared", "-o", str(work / "lib/libcuda.so.1"), str(made), *self.objects, "-ldl"]


class Cdna:
    """work/lib/libsternway.so.0 with another jagged image; all else is the build's."""

    def __init__(self, options):
        self.options = options
        self.archive = Path(options.scratch) / "objects.a"
        shutil.copy2(options.build / "lib/libsternway_internal.a", self.archive)
        subprocess.run(["ar", "d", str(self.archive), "image.c.o"], check=True, capture_output=True)

    def environment(self, work):
        return {"LD_LIBRARY_PATH": f"{work}/lib:{self.options.build}/tests/emu", "CDNA_EMU_ARCH": self.options.arch,
                "CDNA_EMU_RACES": "1", "CDNA_EMU_SCHEDULE": "7", "STERNWAY_BACKEND": f"hip:{self.options.arch}"}

    def commands(self, work, tree):
        kernels, image = tree / "common/kernels/jagged.h", work / "mutant.image"
        text, count = re.subn(r"(#define JAG_T +dev_f16\n)#include \"common/jagged_pointwise.def\"\nJAG_FAMILIES\n"
                              r"#include STW_VARIANT_TABLE\n", r"\1", kernels.read_text())
        if count != 1:
            raise RuntimeError(f"{kernels.name}: the f16 kernels are not where they were")
        kernels.write_text(text)
        yield [self.options.hip_compiler, *self.options.hip_flags.split(), f"--offload-arch={self.options.arch}", "-O3",
               "-fno-slp-vectorize", "-w", f'-DSTW_VARIANT_TABLE="common/tuning/jagged.{self.options.arch}.def"', f"-I{tree}",
               f"-I{tree}/include", "-c", str(tree / "backends/hip/jagged_cdna.hip"), "-o", str(image)]
        source, value = planted.embed(image, SYMBOL)
        (work / "images.c").write_text(source)
        (work / "mutant.def").write_text(f"STW_IMAGE(HIP, {self.options.arch}, CODE_OBJECT, {SYMBOL}, {value})\n")
        compile_c = [self.options.cc, "-c", "-std=gnu11", "-O2", "-fPIC", "-fvisibility=hidden", "-D_GNU_SOURCE",
                     *(f"-DSTW_WITH_{name}" for name in self.options.backends.split(",")), f"-I{tree}", f"-I{tree}/include",
                     f"-I{work}", f"-I{self.options.build}/generated"]
        yield [*compile_c, str(work / "images.c"), "-o", str(work / "images.o")]
        yield [*compile_c, '-DSTW_IMAGE_ROWS="images.def"', '-DSTW_JAGGED_IMAGE_ROWS="mutant.def"',
               str(tree / "backends/gpu/image.c"), "-o", str(work / "image.o")]
        yield [self.options.cc, "-shared", "-Wl,-soname,libsternway.so.0", "-Wl,--no-undefined",
               f"-Wl,--version-script={tree}/dispatch/exports.map", "-o", str(work / "lib/libsternway.so.0"), "-Wl,--whole-archive",
               str(self.archive), "-Wl,--no-whole-archive", str(work / "images.o"), str(work / "image.o"), "-lm"]


class Check:
    def __init__(self, options):
        self.options = options
        self.vendor = (Sm80 if options.arch == "sm80" else Cdna)(options)

    def run(self, work, command, mutant=None):
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("STERNWAY_", "CDNA_EMU_", "FAKE_"))}
        environment.update(self.vendor.environment(work))
        return planted.conform(command, environment, TIMEOUT_S, mutant)

    def judge(self, work, mutant):
        """(good, text). A row has `args` of conform, or `clamp`: tests of test_clamp.c; no bug: both."""
        row = mutant or CLEAN
        if "args" in row:
            f16 = [] if self.options.arch == "sm80" else ["--filter", "!:f16:"]
            command = [str(work / "bin/sternway"), "conform", "--arch", self.options.arch, "--require", self.options.arch,
                       "--variant", "auto", "--jobs", "1", *row["args"], *f16]
            good, text = planted.verdict(mutant, *self.run(work, command, mutant))
            if not good or mutant:
                return good, text
        for name in row["clamp"]:
            status, output = self.run(work, [str(work / "bin/clamp"), name])
            passed = status == 0 and "[       OK ]" in output
            if mutant and (status == 77 or passed):
                return False, f"{mutant['name']}: NOT FOUND (clamp {name}, status {status}): {mutant['what']}"
            if not mutant and not passed:
                return False, f"no bug: clamp {name}: status {status}\n{output[-3000:]}"
        return True, f"{mutant['name']}: found: clamp {', '.join(row['clamp'])}" if mutant else "no bug: passes"

    def check(self, mutant):
        work = Path(tempfile.mkdtemp(prefix="mutant-", dir=self.options.scratch))
        tree = work / "tree"
        try:
            for folder in FOLDERS:
                shutil.copytree(self.options.source / folder, tree / folder)
            wrong = planted.plant(self.options.source, tree, mutant) if mutant else None
            if wrong:
                return False, f"{mutant['name']}: {wrong}"
            for folder in ("bin", "lib"):
                (work / folder).mkdir()
            shutil.copy2(self.options.build / "bin/sternway", work / "bin/sternway")
            shutil.copy2(self.options.build / "tests/test_gpu_jagged_clamp", work / "bin/clamp")
            if self.options.arch == "sm80":
                shutil.copy2(self.options.build / "lib/libsternway.so.0", work / "lib/libsternway.so.0")
            for command in self.vendor.commands(work, tree):
                subprocess.run(command, check=True, capture_output=True, text=True)
            return self.judge(work, mutant)
        except (RuntimeError, subprocess.CalledProcessError) as error:
            return False, f"{mutant['name'] if mutant else 'no bug'}: {error} {getattr(error, 'stderr', '') or ''}"
        finally:
            shutil.rmtree(work)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=Path, required=True, help="a finished build folder")
    parser.add_argument("--source", type=Path, default=HERE.parent.parent)
    parser.add_argument("--arch", default="sm80", choices=("sm80", "gfx90a", "gfx942"))
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--cc", default=os.environ.get("CC", "cc"))
    parser.add_argument("--cxx", default=os.environ.get("CXX", "c++"))
    parser.add_argument("--objects", nargs="*", default=[], help="sm80: those of the emulator")
    parser.add_argument("--hip-compiler", default=shutil.which("clang-19") or "clang-19")
    parser.add_argument("--hip-flags", default="", help="as cmake/image.cmake has them")
    parser.add_argument("--backends", default="CUDA,HIP", help="those of the build")
    parser.add_argument("--only", help="names that contain this text")
    parser.add_argument("--of", type=int, default=1, help="a part of the rows, one of so many (STW_PART)")
    parser.add_argument("--short", action="store_true", help="the rows marked so")
    parser.add_argument("--stale", action="store_true", help="only look whether each old text is there once")
    options = parser.parse_args()
    options.build, options.source = options.build.resolve(), options.source.resolve()
    mutants = [m for m in planted.load(HERE / "mutants_jagged.toml", options.only) if not options.short or m.get("short")]
    if options.stale:
        return planted.report_stale(options.source, mutants)
    with tempfile.TemporaryDirectory(prefix="sternway-mutants-") as options.scratch:
        return planted.report(Check(options).check, planted.part(mutants, options.of), options.jobs)


if __name__ == "__main__":
    sys.exit(main())
