#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Mutation check: plants the bugs of mutants.toml one at a time in a copy of the CPU backend, rebuilds what
depends on the file, links a library with it and runs `sternway conform` on it: it must fail. Without a bug
the same build must pass. A row with `test` names another test that must fail instead (judge.py). Uses the
compile commands and objects of a finished build; changes nothing there."""

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import judge
import planted

HERE = Path(__file__).resolve().parent
TIMEOUT_S, CLEAN_TIMEOUT_S = 300, 900  # what counts as hanging; without a bug nothing does, however slow the machine
USUAL = ["--quick", "--filter", "!jagged"]  # for bugs in attention; the others name their rows


class Build:
    """A finished build: objects of the library and how each was compiled."""

    def __init__(self, source, build, loop, variant):
        self.source, self.build, self.loop, self.variant = source, build, loop, variant
        self.units = []  # library objects: {source, object, command}
        for entry in json.loads((build / "compile_commands.json").read_text()):
            words = shlex.split(entry["command"])
            output = words[words.index("-o") + 1]
            if "sternway_internal.dir" not in output and "sternway_tile_" not in output:
                continue
            self.units.append({
                "source": Path(entry["file"]).resolve(),
                "object": (Path(entry["directory"]) / output).resolve(),
                "command": words,
                "directory": entry["directory"],
            })
        missing = [str(u["object"]) for u in self.units if not u["object"].exists()]
        if not self.units or missing:
            sys.exit(f"mutants: {build} is not a finished build: {missing[:3] or 'no objects of the library'}")
        for unit in self.units:
            unit["includes"] = self.includes(unit)

    def includes(self, unit):
        """Files of the project that the unit is made of."""
        if not self.can_mutate(unit):
            return set()
        words = [w for w in unit["command"]]
        at = words.index("-o")
        del words[at:at + 2]
        words = [w for w in words if w not in ("-c", "-MD") and not w.startswith("-M")]
        drop = set()
        for flag in ("-MT", "-MF", "-MQ"):
            if flag in unit["command"]:
                drop.add(unit["command"][unit["command"].index(flag) + 1])
        words = [w for w in words if w not in drop]
        text = subprocess.run(words + ["-MM"], cwd=unit["directory"], check=True, capture_output=True, text=True).stdout
        files = text.replace("\\\n", " ").split(":", 1)[1].split()
        return {Path(unit["directory"], f).resolve() for f in files}

    def can_mutate(self, unit):
        """The CPU backend's units; of the tiles only those of the instruction set under test."""
        if (self.source / "backends/cpu") not in unit["source"].parents:
            return False
        name = unit["object"].as_posix()
        return "sternway_tile_" not in name or f"sternway_tile_{self.loop}.dir" in name


def compile_unit(build, unit, tree, target):
    """Compiles the unit from the copied tree; its headers win over the originals."""
    copied = tree / unit["source"].relative_to(build.source)
    words = list(unit["command"])
    words[words.index("-o") + 1] = str(target)
    for flag in ("-MF", "-MT", "-MQ"):
        if flag in words:
            words[words.index(flag) + 1] = f"{target}.d"
    words = [str(copied) if Path(unit["directory"], w).resolve() == unit["source"] else w for w in words]
    words[1:1] = [f"-I{tree}", f"-I{tree}/include"]
    words.append("-Wno-error")  # a bug may leave something unused
    done = subprocess.run(words, cwd=unit["directory"], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"does not compile:\n{done.stderr[-2000:]}")


def make_program(build, work, units):
    """work/bin/sternway with work/lib/libsternway.so.0, `units` compiled from work/tree."""
    objects = [str(u["object"]) for u in build.units if u not in units]
    for number, unit in enumerate(units):
        target = work / f"unit{number}.o"
        compile_unit(build, unit, work / "tree", target)
        objects.append(str(target))
    (work / "lib").mkdir()
    (work / "bin").mkdir()
    compiler = build.units[0]["command"][0]
    subprocess.run([compiler, "-shared", "-Wl,-soname,libsternway.so.0",
                    f"-Wl,--version-script={build.source}/dispatch/exports.map",
                    "-o", str(work / "lib/libsternway.so.0"), *objects, "-lm"], check=True)
    shutil.copy2(build.build / "bin/sternway", work / "bin/sternway")


def conform(build, work, args, timeout_s, mutant=None):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("STERNWAY_") and k != "LD_LIBRARY_PATH"}
    return planted.conform([str(work / "bin/sternway"), "conform", "--backend", "cpu", "--jobs", "1", "--variant", build.variant,
                            *args], environment, timeout_s, mutant)


def check_test(build, mutant, work):
    """(good, text) of a bug that another test must find; "clean": without the bug."""
    absent = build.tests.absent(mutant)
    if absent:
        return True, absent
    for folder in ("backends", "common", "dispatch", "include", "tools"):
        shutil.copytree(build.source / folder, work / "tree" / folder)
    clean = mutant.get("clean", False)
    wrong = None if clean else planted.plant(build.source, work / "tree", mutant)
    return (False, f"{mutant['name']}: {wrong}") if wrong else build.tests.judge(mutant, work, work / "tree", clean)


def without_bugs(mutants):
    """A row without its bug for each test that rows name, and each file that is made anew for it."""
    rows = {(m["test"], m["file"]): m for m in mutants if "test" in m}
    return [{**m, "name": f"no bug in {m['file']}", "clean": True} for m in rows.values()]


def check(build, mutant, scratch):
    """(good, text) of one planted bug; mutant None: no bug, must pass."""
    name = mutant["name"] if mutant else "no bug"
    if not mutant and not build.clean:
        return True, "no bug: left to the rows' own tests"
    work = Path(tempfile.mkdtemp(prefix="mutant-", dir=scratch))
    try:
        if mutant and "test" in mutant:
            return check_test(build, mutant, work)
        for folder in ("backends", "common", "dispatch", "include"):
            shutil.copytree(build.source / folder, work / "tree" / folder,
                            ignore=shutil.ignore_patterns("README.md"))
        units = []
        if mutant:
            path = build.source / mutant["file"]
            wrong = planted.plant(build.source, work / "tree", mutant)
            if wrong:
                return False, f"{name}: {wrong}"
            units = [u for u in build.units if build.can_mutate(u) and path.resolve() in u["includes"]]
            if not units:
                return False, f"{name}: nothing is made of {mutant['file']}"
        else:
            units = [u for u in build.units if build.can_mutate(u)]
        make_program(build, work, units)
        if mutant:
            status, output = conform(build, work, mutant.get("args", USUAL), TIMEOUT_S, mutant)
        else:
            status, output = conform(build, work, build.clean, CLEAN_TIMEOUT_S)
        return planted.verdict(mutant, status, output)
    except (RuntimeError, subprocess.CalledProcessError) as error:
        return False, f"{name}: {error} {getattr(error, 'stderr', '') or ''}"
    finally:
        shutil.rmtree(work)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=Path, required=True, help="a finished build folder")
    parser.add_argument("--source", type=Path, default=HERE.parent.parent)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--loop", default="portable", help="instruction set whose tiles are rebuilt")
    parser.add_argument("--variant", default="cpu_portable_32x32")
    parser.add_argument("--only", help="names that contain this text")
    parser.add_argument("--stale", action="store_true", help="only look whether each old text is there once")
    parser.add_argument("--of", type=int, default=1, help="a part of the rows, one of so many (STW_PART)")
    parser.add_argument("--short", action="store_true", help="the rows marked so")
    parser.add_argument("--without", help="names that do not contain this text")
    options = parser.parse_args()
    mutants = [m for m in planted.load(HERE / "mutants.toml", options.only)
               if (not options.without or options.without not in m["name"]) and (not options.short or m.get("short"))]
    if options.stale:
        return planted.report_stale(options.source, mutants)
    mutants = planted.part(mutants, options.of)
    build = Build(options.source.resolve(), options.build.resolve(), options.loop, options.variant)
    build.clean = USUAL if options.without else ["--quick"]  # what passes where nothing is planted
    if all("test" in m for m in mutants):
        build.clean = None
    build.tests = judge.Tests(build.source, build.build)
    with tempfile.TemporaryDirectory(prefix="sternway-mutants-") as scratch:
        return planted.report(lambda m: check(build, m, scratch), [*without_bugs(mutants), *mutants], options.jobs)


if __name__ == "__main__":
    sys.exit(main())
