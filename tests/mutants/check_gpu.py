#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Mutation check of the GPU kernels, on a machine with a GPU or on the emulator of AMD's: plants the bugs of
mutants_gpu.toml one at a time in a copy of the device sources, compiles an image of them with a reduced tuning table
(one variant a kind of kernel), links a library with it from a finished build's objects and runs conform on
gpu_cases.txt: it must fail. Without a bug the same build must pass. Ends with 77 where there is no GPU with kernels of
the arch, or no compiler for it.

With --arch sm90 bugs in Hopper's own loops: an image of some kernels that the bug is in, with the cases that take no
others; more such images until one finds it. The kernels around them are the build's."""

import argparse
import concurrent.futures
import json
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
SYMBOL = "stw_image_mutant"


def reduce_table(text):
    """Of each kind of kernel the first variant for a head dim of at least 64, and the rules that name one of them. Of CDNA's
    own loop also one for a head dim that is no multiple of 64, and one for the widest."""
    kept = {}
    rows = [(m.group(1), int(m.group(2)), m.group(3)) for m in
            re.finditer(r"^STW_VARIANT\((\w+), (\d+), .*?, (\w+)\)$", text, re.M)]
    for name, head_dim, kind in sorted(rows, key=lambda row: row[1]):
        if head_dim >= 64:
            kept.setdefault((kind, kind.startswith("cdna") and (head_dim % 64 != 0, head_dim > 192)), name)
    names = set(kept.values())
    keep = []
    for line in text.splitlines():
        found = re.match(r"STW_VARIANT\((\w+),", line) or re.match(r"STW_RULE\(.*, (\w+)\)$", line)
        if not found or found.group(1) in names:
            keep.append(line)
    return "\n".join(keep) + "\n"


def read_cases(name):
    return [line for line in (HERE / name).read_text().splitlines() if line and line[0] != "#"]


class Cuda:
    """sm80 on an NVIDIA GPU."""
    folder = "backends/cuda"
    timeout_s = 60
    cases = "gpu_cases.txt"
    replaced = ("images.c.o", "image.c.o", "tables.c.o")  # made anew: they hold the image and the table

    def concerns(self, mutant):
        return self.arch in mutant.get("archs", [self.arch])

    def __init__(self, options):
        self.options, self.arch = options, options.arch

    def compiler(self):
        return self.options.nvcc

    def compile(self, tree, image):
        return [self.options.nvcc, "-fatbin", f"-gencode=arch=compute_80,code={self.options.code}", "-Xfatbin",
                "-compress-all", "-std=c++17", "-O3", f"-I{tree}", f"-I{tree}/include", "-o", str(image),
                str(tree / f"backends/cuda/attn_bwd_{self.arch}.cu")]

    def built_image(self):
        return None

    def parts(self, checker, mutant):
        """What is compiled and run in turn until one run finds the bug: (what shrink() is given, cases)."""
        return [(None, None)]

    def shrink(self, tree, mutant, kept):
        """Takes kernels out of the copied sources; the cases for those that stay, or None for the usual ones."""
        return None

    def rows(self, value):
        kinds = ("CUBIN", "PTX")  # whichever the device asks for
        return [f"STW_IMAGE(CUDA, {self.arch}, {kind}, {SYMBOL}, {value})\n" for kind in kinds]

    def environment(self, mutant):
        return {}

    def repeat(self, mutant):
        return mutant.get("repeat")

    def race(self, checker, work, mutant, command, lines):
        """Exit status and output of a run that happened to go well: the tool sees the race."""
        if "tool" not in mutant:
            return 0, ""
        status, words = checker.run(work, ["compute-sanitizer", "--tool", mutant["tool"], "--error-exitcode", "9",
                                           *command, "--jobs", "0", *lines[:6]], mutant)
        if status is None:  # the tool was not done in time, which tells nothing about the bug
            return 0, ""
        return (1, f"FAIL {mutant['tool']} {mutant['tool']}: {words.count('Error')} errors") if status == 9 else (status, "")


class Hopper(Cuda):
    """Hopper's own loops on a GPU of 9.0: of the sm90 image some kernels are made anew."""
    timeout_s = 200
    cases = "sm90_cases.txt"
    replaced = ("image.c.o",)  # the build's images stay, the sm80 ones in use
    main_kernels = 1           # of an image: 25 seconds of one core
    # The first row that a bug's name or file fits says how the names of the kernels end that the bug is in.
    places = [(r"\ball-|_all\.h|_terms\.h", r"_all"), (r"masks", r"_masks\w*"), (r"dropout|philox|flash2|mem-eff", r"_dropout\w*"),
              (r"bias", r"_bias\w*"), (r"alibi", r"_(alibi\w*|features)"), (r"cap-", r"_(softcap\w*|features)"),
              (r"wide-(drain|unwanted)", r"hd(192|256)_\w+_outputs"), (r"drain|subset|f32-rows", r"_(outputs|general)(_ordered)?"),
              (r"short", r"_short_\w+"), (r"few", r"_few\w+"), (r"sm90-rows-", r"hd\d+_\w+_plain"), (r"wide-(turn|order)", r"hd(192|256)_\w+_ordered"),
              (r"turn|order", r"hd\d+_\w+_ordered"), (r"tall", r"v128_\w+_(plain|ordered)"), (r"wide", r"hd(192|256)_\w+_(plain|ordered)"),
              (r"", r"128_hd\d+_\w+_(plain|ordered)")]

    def __init__(self, options):
        super().__init__(options)
        self.kernels, self.lock = {}, threading.Lock()  # of each case, by `explain`: those of the sm90 image

    def concerns(self, mutant):
        return self.arch in mutant.get("archs", [])

    def built_image(self):
        image = self.options.build / "images/attn_bwd_sm90.cubin.fatbin"
        return image if image.exists() else None

    def explain(self, case):
        done = subprocess.run([self.options.build / "bin/sternway", "explain", "--json", "--arch", self.arch, case], capture_output=True, text=True)
        if done.returncode:
            return []
        plan = json.loads(done.stdout)["plan"]
        return [name.removeprefix("stw_attn_bwd_") for name in plan["note"].split() if name.startswith("stw_attn_bwd_") and "sm90" in name]

    def kernels_of(self, cases):
        with self.lock, concurrent.futures.ThreadPoolExecutor(8) as pool:
            missing = [case for case in cases if case not in self.kernels]
            self.kernels.update(zip(missing, pool.map(self.explain, missing)))
            return {case: set(self.kernels[case]) for case in cases if self.kernels[case]}

    def parts(self, checker, mutant):
        if not mutant or mutant["file"].endswith(".c") or "jagged" in mutant["file"]:
            return [(None, None)]
        if "cases" in mutant:
            return [(set().union(*self.kernels_of(mutant["cases"]).values()), None)]
        end = next(end for place, end in self.places if re.search(place, mutant["name"] + " " + Path(mutant["file"]).name))
        mains = {}  # a main kernel -> cases
        around = re.compile(r"(pre|post)process_sm90|(visible|order)_sm90$")
        kernels = self.kernels_of(checker.cases)
        for case, names in kernels.items():
            for name in names:
                if not around.match(name) and re.search(end + "$", name):
                    mains.setdefault(name, []).append(case)
        if not mains:
            raise RuntimeError(f"no case of {self.cases} takes a kernel *{end}")
        order, made = sorted(mains, key=lambda name: -len(mains[name])), []
        for at in range(0, len(order), self.main_kernels):
            cases = [case for name in order[at:at + self.main_kernels] for case in mains[name]]
            made.append((set().union(*(kernels[case] for case in cases)), cases))
        return made

    def shrink(self, tree, mutant, kept):
        """Of the image's source the kernels `kept`."""
        if kept is None:
            return None
        source = tree / "backends/cuda/attn_bwd_sm90.cu"
        # what KEPT_ stands in front of, pasted to parameters of each macro
        names = {"KERNEL": "id##_##type##_##mode", "WIDE_KERNEL": "id##_##type##_##mode", "SHORT": "id##_##type",
                 "FEW_KERNEL": "id##_##type##_plain", "ROWS": "preprocess_sm90_hd##hd##_##type"}
        made = {re.sub("^postprocess", "preprocess", name) for name in kept}
        head = "".join(f"#define KEPT_{name} ~, EMIT\n" for name in sorted(made))
        head += ("#define EMIT(...) __VA_ARGS__\n#define SKIP(...)\n#define SECOND(a, b, ...) b\n"
                 "#define CHOOSE(...) SECOND(__VA_ARGS__, SKIP, ~)\n")
        text = source.read_text()
        for macro, name in names.items():
            text, count = re.subn(rf"^#define {macro}(\([^)]*\))",
                                  rf"#define {macro}\1 CHOOSE(KEPT_##{name})(MAKE_{macro}\1)\n#define MAKE_{macro}\1", text, flags=re.M)
            if count != 1:
                raise RuntimeError(f"{source.name}: the macro {macro} is not where it was")
        source.write_text(text.replace("#define KERNEL(", head + "#define KERNEL(", 1))
        return None

    def compile(self, tree, image, source="attn_bwd_sm90.cu"):
        return [self.options.nvcc, "-fatbin", "-gencode=arch=compute_90a,code=sm_90a", "-Xfatbin", "-compress-all", "-std=c++17",
                "-O3", f"-I{tree}", f"-I{tree}/include", "-o", str(image), str(tree / "backends/cuda" / source)]

    def built(self, name):
        rows = (self.options.build / "generated" / name).read_text().splitlines(True)
        return [row for row in rows if row.startswith("STW_IMAGE(")]

    def rows(self, value, name="images.def"):
        kept = [row for row in self.built(name) if "(CUDA, sm90," not in row]
        return [*kept, f"STW_IMAGE(CUDA, sm90, CUBIN, {SYMBOL}, {value})\n"]


class Hip:
    """gfx90a, gfx942 and gfx950 on tests/cdna_emu, which watches LDS for races and shuffles the waves."""
    folder = "backends/hip"
    timeout_s = 300
    cases = Cuda.cases
    replaced = Cuda.replaced
    concerns, parts = Cuda.concerns, Cuda.parts

    def __init__(self, options):
        self.options, self.arch = options, options.arch

    def compiler(self):
        return self.options.hip_compiler

    def compile(self, tree, image):
        return [self.options.hip_compiler, *self.options.hip_flags.split(), f"--offload-arch={self.arch}", "-O3", "-fno-slp-vectorize", "-w",
                f'-DSTW_VARIANT_TABLE="common/tuning/attn_bwd.{self.arch}.def"', f"-I{tree}", f"-I{tree}/include", "-c",
                str(tree / "backends/hip/attn_bwd_cdna.hip"), "-o", str(image)]

    def shrink(self, tree, mutant, kept):
        """A bug in CDNA's own kernels needs no others: seconds instead of half a minute. Its cases, which take them alone."""
        if not mutant or "attn_bwd_cdna" not in mutant["file"]:
            return None
        f32 = mutant["file"].endswith("_f32.h") or all(":f32:" in case for case in mutant.get("cases", [""]))
        kinds = "cdna_f32|fwd_f32" if f32 else "cdna|cdna_few|cdna_tall|cdna_exact|cdna_exact_tall|fwd"
        mode = mutant.get("mode")  # of the kernels that the bug is in; without one those that know only masks are left
        image, table = tree / "backends/hip/attn_bwd_cdna.hip", tree / f"common/tuning/attn_bwd.{self.arch}.def"
        modes = tree / "backends/hip/attn_cdna_modes.h"
        text, count = re.subn(r"(?s)(#define CDNA_SHARED\(.*?;) *\\\n +ROW_full\([^)]*\)|^STW_DBIAS_TILES_64\(BIAS_TILE\)$",
                              r"\1", image.read_text(), flags=re.M)
        if mode != "ordered":
            text, more = re.subn(r" *\\\n +CDNA\([^)]*, \w*ordered, [^)]*\)|CDNA\([^)]*, \([^)]*\), ordered, [^)]*\)", "", text)
            count += more
        if mode != "every":
            text, more = re.subn(r" CDNA\([^)]*, every, [^)]*\)|( *\\\n +)CDNA_EXACT\([^)]*, every_exact, [^)]*\)|"
                                 r" CDNA\([^)]*, every_ordered, [^)]*\)|(?: *\\\n)? +CDNA_F32\([^)]*, every\w*, [^)]*\)", "", text)
            count += more
        image.write_text(text)
        if count != 2 + 3 * (mode != "ordered") + 6 * (mode != "every"):
            raise RuntimeError(f"{image.name}: the kernels beside CDNA's own are not where they were: {count}")
        modes.write_text(re.sub(rf"^    MODE\((?!{mode},).*?(\\?)$", r"    \1", modes.read_text(), flags=re.M))
        kept = re.sub(rf"^STW_VARIANT\(.*, (?!({kinds})\))\w+\)\n", "", table.read_text(), flags=re.M)
        names = re.findall(r"^STW_VARIANT\((\w+)", kept, re.M)
        table.write_text("".join(line for line in kept.splitlines(True) if not line.startswith("STW_RULE") or
                                 re.search(r", (\w+)\)$", line)[1] in names))
        return read_cases("cdna_f32_cases.txt" if f32 else "cdna_cases.txt")

    def built_image(self):
        """Without a bug it is the build's, which takes minutes of CPU time."""
        image = self.options.build / f"images/attn_bwd_cdna.{self.arch}.co"
        return image if image.exists() else None

    def rows(self, value):
        return [f"STW_IMAGE(HIP, {self.arch}, CODE_OBJECT, {SYMBOL}, {value})\n"]

    def environment(self, mutant):
        return {"LD_LIBRARY_PATH": str(self.options.build / "tests/emu"), "CDNA_EMU_ARCH": self.arch, "CDNA_EMU_RACES": "1",
                "CDNA_EMU_WAITS": str(int((mutant or {}).get("emulator_waits", False))),
                "CDNA_EMU_SCHEDULE": "7", "CDNA_EMU_CUS": str((mutant or {}).get("emulator_units", 4)),
                "CDNA_EMU_THREADS": str((mutant or {}).get("emulator_threads", 1))}

    def repeat(self, mutant):
        return mutant.get("emulator_repeat")

    def race(self, checker, work, mutant, command, lines):
        return 0, ""  # every run watches


class Check:
    def __init__(self, options, mutants):
        self.options = options
        self.vendor = options.vendor
        self.gpu = threading.Semaphore(options.runs)
        self.cases = read_cases(self.vendor.cases)
        self.own_cases = [m for m in mutants if "cases" in m]
        self.archive = Path(options.scratch) / "objects.a"
        shutil.copy2(options.build / "lib/libsternway_internal.a", self.archive)
        held = subprocess.run(["ar", "t", str(self.archive)], check=True, capture_output=True, text=True).stdout.split()
        subprocess.run(["ar", "d", str(self.archive), *(name for name in self.vendor.replaced if name in held)], check=True)

    def compile(self, work, source, target, *more):
        tree = work / "tree"
        subprocess.run([self.options.cc, "-c", "-std=gnu11", "-O2", "-fPIC", "-fvisibility=hidden", "-D_GNU_SOURCE",
                        *self.options.with_backends, f"-I{tree}", f"-I{tree}/include", f"-I{work}",
                        f"-I{self.options.build}/generated", *more, "-o", str(target), str(source)], check=True,
                       capture_output=True, text=True)

    def make_library(self, work, mutant):
        """work/lib/libsternway.so.0 with the image of work/tree."""
        tree, image, more = work / "tree", work / "mutant.image", []
        jagged = mutant is not None and mutant["file"].startswith("backends/cuda/jagged")
        host = mutant["file"] if mutant and mutant["file"].endswith(".c") else None
        built = self.vendor.built_image() if host or not mutant else None
        if built:
            shutil.copy2(built, image)
        else:
            command = self.vendor.compile(tree, image, *(["jagged_sm90.cu"] if jagged else []))
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                raise RuntimeError(f"does not compile:\n{done.stderr[-2000:]}")
        source, value = planted.embed(image, SYMBOL)
        (work / "images.c").write_text(source)
        if isinstance(self.vendor, Hopper):
            more.append('-DSTW_JAGGED_IMAGE_ROWS="jagged.def"')
            rows = self.vendor.rows(value, "jagged_images.def") if jagged else self.vendor.built("jagged_images.def")
            (work / "jagged.def").write_text("".join(rows))
        (work / "images.def").write_text("".join(self.vendor.built("images.def") if jagged else self.vendor.rows(value)))
        self.compile(work, work / "images.c", work / "images.c.o")
        self.compile(work, tree / "backends/gpu/image.c", work / "image.c.o", '-DSTW_IMAGE_ROWS="images.def"', *more)
        if "tables.c.o" in self.vendor.replaced:
            self.compile(work, tree / "dispatch/tables.c", work / "tables.c.o")
        archive = self.archive
        if host:
            archive = work / "objects.a"
            shutil.copy2(self.archive, archive)
            subprocess.run(["ar", "d", str(archive), Path(host).name + ".o"], check=True)
            self.compile(work, tree / host, work / (Path(host).name + ".o"))
        (work / "lib").mkdir()
        subprocess.run([self.options.cc, "-shared", "-Wl,-soname,libsternway.so.0", "-Wl,--no-undefined",
                        f"-Wl,--version-script={tree}/dispatch/exports.map", "-o", str(work / "lib/libsternway.so.0"),
                        "-Wl,--whole-archive", str(archive), "-Wl,--no-whole-archive",
                        *(str(o) for o in work.glob("*.o")), "-lm"], check=True, capture_output=True, text=True)

    def run(self, work, command, mutant=None):
        """Exit status and output; None when it hung."""
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("STERNWAY_", "CDNA_EMU_"))}
        environment.update(self.vendor.environment(mutant))
        environment["LD_LIBRARY_PATH"] = f"{work}/lib:{environment.get('LD_LIBRARY_PATH', '')}"
        return planted.conform(command, environment, self.vendor.timeout_s, mutant)

    def conform(self, work, mutant, cases, races=True):
        tool = str(work / "bin/sternway")
        lines = (mutant or {}).get("cases", cases or self.cases)
        repeat = self.vendor.repeat(mutant) if mutant else None
        more = ["--repeat", str(repeat)] if repeat else []
        command = [tool, "conform", "--arch", self.options.arch, "--variant", "auto", *more]
        with self.gpu:
            status, output = self.run(work, [*command, "--jobs", str(self.options.conform_jobs), *lines], mutant)
            if status == 0 and mutant and races:
                status, words = self.vendor.race(self, work, mutant, command, lines)
                output = words or output
        return status, output

    def usual_and_rows(self, work, cases):
        """Without a bug: the usual cases pass, and each row's own in the time that a planted bug has, or "hangs" would tell nothing."""
        status, output = self.conform(work, None, cases)
        for row in {(*m["cases"], self.vendor.repeat(m), m.get("emulator_waits")): m for m in self.own_cases}.values():
            if status != 0:
                break
            status, output = self.conform(work, row, None, races=False)
            if status != 0:
                output = f"the cases of {row['name']}: {'not done in time' if status is None else output}"
        return status, output

    def check(self, mutant):
        """(good, text) of one planted bug; mutant None: no bug, must pass."""
        name = mutant["name"] if mutant else "no bug"
        try:
            for kept, cases in [(None, None)] if self.options.whole else self.vendor.parts(self, mutant):
                good, text = self.check_part(name, mutant, kept, cases)
                if not mutant or ": NOT FOUND" not in text:
                    break
            return good, text
        except (RuntimeError, subprocess.CalledProcessError) as error:
            return False, f"{name}: {error} {getattr(error, 'stderr', '') or ''}"

    def check_part(self, name, mutant, kept, cases):
        clean = not mutant or "old" not in mutant
        work = Path(tempfile.mkdtemp(prefix="mutant-", dir=self.options.scratch))
        source = self.options.source
        try:
            for folder in ("backends", "common", "dispatch", "include"):
                shutil.copytree(source / folder, work / "tree" / folder)
            table = work / f"tree/common/tuning/attn_bwd.{self.vendor.arch}.def"
            if not self.options.whole and "tables.c.o" in self.vendor.replaced:
                table.write_text(reduce_table(table.read_text()))
            if not clean:
                wrong = planted.plant(source, work / "tree", mutant)
                if wrong:
                    return False, f"{name}: {wrong}"
            shrunk = None if self.options.whole else self.vendor.shrink(work / "tree", mutant, kept)
            cases = cases or shrunk
            (work / "bin").mkdir()
            shutil.copy2(self.options.build / "bin/sternway", work / "bin/sternway")
            self.make_library(work, mutant)
            if self.options.no_run:
                status, output = self.run(work, [str(work / "bin/sternway"), "info", "--verify"])
                if self.options.keep:
                    shutil.copytree(work / "lib", self.options.keep / name.replace(" ", "-"), dirs_exist_ok=True)
                return status == 0, f"{name}: " + ("builds" if status == 0 else f"status {status}\n{output}")
            status, output = self.conform(work, mutant, cases) if mutant else self.usual_and_rows(work, cases)
            if "cuModuleGetFunction" in output:
                raise RuntimeError(f"the image lacks a kernel:\n{output[-300:]}")
            return planted.verdict(None if clean else mutant, status, output)
        finally:
            shutil.rmtree(work)


def chosen(options):
    """The rows that concern this arch: all that stand in common, and its backend's own."""
    mutants = []
    for mutant in planted.load(HERE / "mutants_gpu.toml", options.only):
        if mutant["file"].startswith("backends/") and not mutant["file"].startswith(options.vendor.folder):
            continue
        if not options.vendor.concerns(mutant) or (options.short and not mutant.get("short")):
            continue
        if options.leaf and not mutant["file"].startswith("backends/") and "archs" not in mutant:
            continue
        mutants.append(mutant)
    mutants = planted.part(mutants, options.of)
    if options.arch == "sm90" and mutants:
        mutants.insert(0, {"name": "no bug in some kernels alone", "file": "backends/cuda/attn_bwd_sm90.h"})
    if any("attn_bwd_cdna" in mutant["file"] for mutant in mutants) and options.vendor.folder == "backends/hip":
        mutants.insert(0, {"name": "no bug in CDNA's own kernels alone", "file": "backends/hip/attn_bwd_cdna.h"})
    return mutants


def stale_shrinking(options, mutants):
    """What `shrink` no longer finds in the sources, for each of the sets of kernels that the rows ask for."""
    rows = {(m["file"], m.get("mode"), tuple(m.get("cases", ()))): m for m in mutants if not m["file"].endswith(".c")}
    reasons = {}
    for mutant in rows.values():
        with tempfile.TemporaryDirectory() as folder:
            for part in ("backends", "common/tuning"):
                shutil.copytree(options.source / part, Path(folder) / part)
            try:
                options.vendor.shrink(Path(folder), mutant, set())
            except RuntimeError as error:
                reasons.setdefault(str(error), f"{mutant['name']}: {error}")
    return reasons.values()


def absent(options):
    """Why nothing can run here, or None."""
    if not Path(options.vendor.compiler()).exists():
        return f"no compiler ({options.vendor.compiler()})"
    if options.no_run:
        return None
    environment = {**os.environ, **options.vendor.environment(None)}
    probe = subprocess.run([options.build / "bin/sternway", "conform", "--arch", options.arch, "--variant", "auto", "--jobs",
                            "1", "attn_bwd:bf16:b1h1s16d16"], capture_output=True, text=True, env=environment)
    found = re.search(rf"^skip (arch {options.arch}: STW_E_NO_(DRIVER|DEVICE|IMAGE)\b.*)$", probe.stdout, re.M)
    return found and found.group(1)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=Path, required=True, help="a finished build folder")
    parser.add_argument("--source", type=Path, default=HERE.parent.parent)
    parser.add_argument("--arch", default="sm80", help="sm80, sm90, gfx90a, gfx942, gfx950")
    parser.add_argument("--code", default="sm_90", help="sm80: of the NVIDIA GPU at hand")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="compilations at once")
    parser.add_argument("--runs", type=int, default=4, help="runs on the GPU at once")
    parser.add_argument("--conform-jobs", type=int, default=2, help="processes of a run")
    parser.add_argument("--cc", default=os.environ.get("CC", "cc"))
    parser.add_argument("--nvcc", default=shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc")
    parser.add_argument("--hip-compiler", default=shutil.which("clang-19") or "clang-19")
    parser.add_argument("--hip-flags", default="", help="as cmake/image.cmake has them")
    parser.add_argument("--backends", default="CUDA,HIP", help="those of the build")
    parser.add_argument("--only", help="names that contain this text")
    parser.add_argument("--of", type=int, default=1, help="a part of the rows, one of so many (STW_PART)")
    parser.add_argument("--short", action="store_true", help="the rows marked so")
    parser.add_argument("--leaf", action="store_true", help="the rows in the backend's own files, and those of few archs")
    parser.add_argument("--stale", action="store_true", help="only look whether each old text is there once")
    parser.add_argument("--no-run", action="store_true", help="only build: needs no GPU")
    parser.add_argument("--whole", action="store_true", help="the whole tuning table: minutes a bug")
    parser.add_argument("--keep", type=Path, help="with --no-run: a folder for the libraries")
    options = parser.parse_args()
    options.build, options.source = options.build.resolve(), options.source.resolve()
    options.with_backends = [f"-DSTW_WITH_{name}" for name in options.backends.split(",")]
    options.vendor = (Hip if options.arch.startswith("gfx") else Hopper if options.arch == "sm90" else Cuda)(options)
    mutants = chosen(options)
    if options.stale:
        planted_bugs = [m for m in mutants if "old" in m]
        return planted.report_stale(options.source, planted_bugs, stale_shrinking(options, planted_bugs))
    why = absent(options)
    if why:
        print(f"skip {why}")
        return 77
    with tempfile.TemporaryDirectory(prefix="sternway-mutants-") as options.scratch:
        return planted.report(Check(options, mutants).check, mutants, options.jobs)


if __name__ == "__main__":
    sys.exit(main())
