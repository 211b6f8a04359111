#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Mutation check of the GPU kernels, on a machine with a GPU: plants the bugs of mutants_gpu.toml one at a time in a
copy of the device sources, compiles an image of them with a reduced tuning table (one variant a kind of kernel), links
a library with it from a finished build's objects and runs conform on gpu_cases.txt: it must fail. Without a bug the
same build must pass. Ends with 77 where there is no GPU with kernels of the arch, or no nvcc."""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import planted

HERE = Path(__file__).resolve().parent
TIMEOUT_S = 60
REPLACED = ("images.c.o", "image.c.o", "tables.c.o")  # made anew: they hold the image and the table
SYMBOL = "stw_image_mutant"


def reduce_table(text):
    """Of each kind of kernel the first variant for a head dim of at least 64, and the rules that name one of them."""
    kept = {}
    rows = [(m.group(1), int(m.group(2)), m.group(3)) for m in
            re.finditer(r"^STW_VARIANT\((\w+), (\d+), .*?, (\w+)\)$", text, re.M)]
    for name, head_dim, kind in sorted(rows, key=lambda row: row[1]):
        if head_dim >= 64:
            kept.setdefault(kind, name)
    names = set(kept.values())
    keep = []
    for line in text.splitlines():
        found = re.match(r"STW_VARIANT\((\w+),", line) or re.match(r"STW_RULE\(.*, (\w+)\)$", line)
        if not found or found.group(1) in names:
            keep.append(line)
    return "\n".join(keep) + "\n"


class Check:
    def __init__(self, options):
        self.options = options
        self.gpu = threading.Semaphore(options.runs)
        self.cases = [line for line in (HERE / "gpu_cases.txt").read_text().splitlines() if line and line[0] != "#"]
        self.archive = Path(options.scratch) / "objects.a"
        shutil.copy2(options.build / "lib/libsternway_internal.a", self.archive)
        held = subprocess.run(["ar", "t", str(self.archive)], check=True, capture_output=True, text=True).stdout.split()
        subprocess.run(["ar", "d", str(self.archive), *(name for name in REPLACED if name in held)], check=True)

    def compile(self, work, source, target, *more):
        tree = work / "tree"
        subprocess.run([self.options.cc, "-c", "-std=gnu11", "-O2", "-fPIC", "-fvisibility=hidden", "-D_GNU_SOURCE",
                        "-DSTW_WITH_CUDA", "-DSTW_WITH_HIP", f"-I{tree}", f"-I{tree}/include", f"-I{work}",
                        f"-I{self.options.build}/generated", *more, "-o", str(target), str(source)], check=True,
                       capture_output=True, text=True)

    def make_library(self, work):
        """work/lib/libsternway.so.0 with the image of work/tree."""
        tree, arch = work / "tree", self.options.arch
        image = work / "mutant.fatbin"
        done = subprocess.run([self.options.nvcc, "-fatbin", f"-gencode=arch=compute_80,code={self.options.code}",
                               "-Xfatbin", "-compress-all", "-std=c++17", "-O3", f"-I{tree}", f"-I{tree}/include", "-o",
                               str(image), str(tree / f"backends/cuda/attn_bwd_{arch}.cu")], capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"does not compile:\n{done.stderr[-2000:]}")
        (work / "images.c").write_text(
            f'__asm__(".pushsection .rodata\\n.balign 256\\n.globl {SYMBOL}_begin\\n.hidden {SYMBOL}_begin\\n'
            f'{SYMBOL}_begin:\\n.incbin \\"{image}\\"\\n.globl {SYMBOL}_end\\n.hidden {SYMBOL}_end\\n{SYMBOL}_end:\\n'
            f'.byte 0\\n.popsection\\n");\n')
        value = 0xCBF29CE484222325  # FNV-1a, as common/image.c has it
        for byte in image.read_bytes():
            value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
        (work / "images.def").write_text("".join(f"STW_IMAGE(CUDA, {arch}, {kind}, {SYMBOL}, 0x{value:016x})\n"
                                                 for kind in ("CUBIN", "PTX")))  # whichever the device asks for
        self.compile(work, work / "images.c", work / "images.c.o")
        self.compile(work, tree / "common/image.c", work / "image.c.o", '-DSTW_IMAGE_ROWS="images.def"')
        self.compile(work, tree / "dispatch/tables.c", work / "tables.c.o")
        (work / "lib").mkdir()
        subprocess.run([self.options.cc, "-shared", "-Wl,-soname,libsternway.so.0", "-Wl,--no-undefined",
                        f"-Wl,--version-script={tree}/dispatch/exports.map", "-o", str(work / "lib/libsternway.so.0"),
                        "-Wl,--whole-archive", str(self.archive), "-Wl,--no-whole-archive",
                        *(str(o) for o in work.glob("*.o")), "-lm"], check=True, capture_output=True, text=True)

    def run(self, work, command):
        """Exit status and output; None when it hung."""
        environment = {k: v for k, v in os.environ.items() if not k.startswith("STERNWAY_")}
        environment["LD_LIBRARY_PATH"] = f"{work}/lib:{environment.get('LD_LIBRARY_PATH', '')}"
        return planted.run(command, environment, TIMEOUT_S)

    def conform(self, work, mutant):
        tool = str(work / "bin/sternway")
        lines = (mutant or {}).get("cases", self.cases)
        more = ["--repeat", str(mutant["repeat"])] if mutant and "repeat" in mutant else []
        command = [tool, "conform", "--arch", self.options.arch, "--variant", "auto", *more]
        with self.gpu:
            status, output = self.run(work, [*command, "--jobs", "2", *lines])
            if status == 0 and mutant and "tool" in mutant:  # what happens to go well: the tool sees it
                status, words = self.run(work, ["compute-sanitizer", "--tool", mutant["tool"], "--error-exitcode", "9",
                                                *command, "--jobs", "0", *lines[:6]])
                if status == 9:
                    return 1, f"FAIL {mutant['tool']} {mutant['tool']}: {words.count('Error')} errors"
        return status, output

    def check(self, mutant):
        """(good, text) of one planted bug; mutant None: no bug, must pass."""
        name = mutant["name"] if mutant else "no bug"
        work = Path(tempfile.mkdtemp(prefix="mutant-", dir=self.options.scratch))
        source = self.options.source
        try:
            for folder in ("backends/cuda", "common", "dispatch", "include"):
                shutil.copytree(source / folder, work / "tree" / folder)
            table = work / f"tree/common/tuning/attn_bwd.{self.options.arch}.def"
            if not self.options.whole:
                table.write_text(reduce_table(table.read_text()))
            if mutant:
                wrong = planted.plant(source, work / "tree", mutant)
                if wrong:
                    return False, f"{name}: {wrong}"
            (work / "bin").mkdir()
            shutil.copy2(self.options.build / "bin/sternway", work / "bin/sternway")
            if self.options.stale:
                return True, f"{name}: found once"
            self.make_library(work)
            if self.options.no_run:
                status, output = self.run(work, [str(work / "bin/sternway"), "info", "--verify"])
                if self.options.keep:
                    shutil.copytree(work / "lib", self.options.keep / name.replace(" ", "-"), dirs_exist_ok=True)
                return status == 0, f"{name}: " + ("builds" if status == 0 else f"status {status}\n{output}")
            status, output = self.conform(work, mutant)
            return planted.verdict(mutant, status, output, lambda failures: f"{len(failures)} failures, {failures[0].split()[2]}")
        except (RuntimeError, subprocess.CalledProcessError) as error:
            return False, f"{name}: {error} {getattr(error, 'stderr', '') or ''}"
        finally:
            shutil.rmtree(work)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=Path, required=True, help="a finished build folder")
    parser.add_argument("--source", type=Path, default=HERE.parent.parent)
    parser.add_argument("--arch", default="sm80")
    parser.add_argument("--code", default="sm_90", help="of the GPU at hand")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="compilations at once")
    parser.add_argument("--runs", type=int, default=4, help="runs on the GPU at once")
    parser.add_argument("--cc", default=os.environ.get("CC", "cc"))
    parser.add_argument("--nvcc", default=shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc")
    parser.add_argument("--only", help="names that contain this text")
    parser.add_argument("--stale", action="store_true", help="only look whether each old text is there once")
    parser.add_argument("--no-run", action="store_true", help="only build: needs no GPU")
    parser.add_argument("--whole", action="store_true", help="the whole tuning table: minutes a bug")
    parser.add_argument("--keep", type=Path, help="with --no-run: a folder for the libraries")
    options = parser.parse_args()
    options.build, options.source = options.build.resolve(), options.source.resolve()
    mutants = planted.load(HERE / "mutants_gpu.toml", options.only)
    if not options.stale and not Path(options.nvcc).exists():
        print(f"skip: no nvcc ({options.nvcc})")
        return 77
    if not options.stale and not options.no_run:
        probe = subprocess.run([options.build / "bin/sternway", "conform", "--arch", options.arch, "--variant", "auto",
                                "--jobs", "1", "attn_bwd:bf16:b1h1s16d16"], capture_output=True, text=True)
        absent = re.search(rf"^skip (arch {options.arch}: STW_E_NO_(DRIVER|DEVICE|IMAGE)\b.*)$", probe.stdout, re.M)
        if absent:
            print(f"skip {absent.group(1)}")
            return 77
    with tempfile.TemporaryDirectory(prefix="sternway-mutants-") as options.scratch:
        checker = Check(options) if not options.stale else Check.__new__(Check)
        checker.options = options
        return planted.report(checker.check, mutants, options.jobs)


if __name__ == "__main__":
    sys.exit(main())
