# SPDX-License-Identifier: MIT
"""Rows of mutants.toml that another test than conform judges: `test` names it in CTest. Its program is linked again with
what is made of the planted file, and run as CTest would: it must fail, and say what the row expects. `program` names what is
linked again in the program's stead: the library that it runs on, or what it starts (tests/loader/spawn.c, STW_PLANTED)."""

import json
import os
import re
import shlex
import subprocess
from pathlib import Path

import planted

TIMEOUT_S = 300


def cached(build, name):
    """An entry of CMakeCache.txt."""
    return re.search(rf"^{name}:\w+=(.*)$", (build / "CMakeCache.txt").read_text(), re.M)[1]


class Tests:
    """The tests of a finished build, and how what they run was compiled and linked."""

    def __init__(self, source, build):
        self.source, self.build = source, build
        text = subprocess.run([cached(build, "CMAKE_CTEST_COMMAND"), "--test-dir", str(build), "--show-only=json-v1"],
                              check=True, capture_output=True, text=True).stdout
        self.tests = {test["name"]: test for test in json.loads(text)["tests"]}
        self.units = json.loads((build / "compile_commands.json").read_text())

    def absent(self, mutant):
        """Why the row's test cannot be made anew here, or None: cpu_races needs a thread sanitizer, link commands need Ninja."""
        if cached(self.build, "CMAKE_GENERATOR") != "Ninja":
            return f"{mutant['name']}: skipped: not a build by Ninja"
        if mutant["test"] not in self.tests:
            return f"{mutant['name']}: skipped: this build has no test {mutant['test']}"
        return None

    def environment(self, test):
        rows = [p["value"] for p in test["properties"] if p["name"] == "ENVIRONMENT"]
        return dict(entry.split("=", 1) for entry in (rows[0] if rows else []))

    def link(self, program):
        """The words of the program's link command."""
        lines = subprocess.run([cached(self.build, "CMAKE_MAKE_PROGRAM"), "-C", str(self.build), "-t", "commands", str(program)],
                               capture_output=True, text=True).stdout.splitlines()
        words = shlex.split(lines[-1].replace("\\$", "$")) if lines else []  # "\$ORIGIN"
        return words[words.index("&&") + 1:-2] if "-o" in words else []  # ": && CC ... && :"

    def program(self, test):
        """(path, link command) of what was built for the test: the first such word of its command and environment."""
        for word in [*test.get("command", []), *self.environment(test).values()]:
            path = Path(word)
            if path.is_relative_to(self.build) and path.is_file():
                words = self.link(path.relative_to(self.build))
                if words:
                    return path, words
        raise RuntimeError(f"nothing that {test['name']} runs was linked here")

    def unit(self, path, link):
        """How the file was compiled for the program: as an object of its own, or in an archive."""
        folders = [re.sub(r"^lib|\.a$", "", Path(word).name) + ".dir/" for word in link if word.endswith(".a")]
        commands = [shlex.split(unit["command"]) for unit in self.units if Path(unit["file"]).resolve() == path.resolve()]
        made = {words[words.index("-o") + 1]: words for words in commands}
        for name in [*(name for name in made if name in link), *(name for name in made if any(f in name for f in folders))]:
            return made[name], name
        raise RuntimeError(f"{path.name} is in nothing that is linked there")

    def make(self, mutant, work, tree):
        """The test's command and environment with its program in `work`, the mutant's file in it taken from `tree`."""
        test = self.tests[mutant["test"]]
        path, link = self.program(test)
        if "program" in mutant:
            path = (self.build / mutant["program"]).resolve()
            link = self.link(path.relative_to(self.build))
        words, made = self.unit(self.source / mutant["file"], link)
        for flag in ("-MF", "-MT", "-MQ"):
            if flag in words:
                words[words.index(flag) + 1] = str(work / "unit.d")
        words[words.index("-o") + 1] = str(work / "unit.o")
        words[words.index("-c") + 1] = str(tree / mutant["file"])
        words[1:1] = [f"-I{tree}", f"-I{tree}/include"]
        subprocess.run([*words, "-Wno-error"], cwd=self.build, check=True, capture_output=True, text=True)
        link = [str(work / "unit.o") if word == made else word for word in link]
        planted_at = work / "bin" / path.name
        at = link.index("-o")
        (work / "bin").mkdir()
        link[at:at + 2] = ["-o", str(planted_at)]
        if str(work / "unit.o") not in link:
            link.insert(at, str(work / "unit.o"))  # before the archive that holds the other
        if "-shared" in link:  # the archive is in it as a whole: the first definition counts
            link.append("-Wl,-z,muldefs")
            soname = re.search(r"-soname,(\S+)", " ".join(link))[1]
            (work / "bin" / soname).symlink_to(path.name)
        subprocess.run(link, cwd=self.build, check=True, capture_output=True, text=True)
        (work / "lib").symlink_to(self.build / "lib")
        put = lambda word: str(planted_at) if word == str(path) else word
        environment = {k: put(v) for k, v in self.environment(test).items()}
        if "program" in mutant: # before what the test itself loads, an emulator's driver
            own = environment.get("LD_LIBRARY_PATH")
            environment |= {"STW_PLANTED": str(work / "bin"), "LD_LIBRARY_PATH": ":".join([str(work / "bin"), *([own] if own else [])])}
        return [put(word) for word in test["command"]], environment

    def judge(self, mutant, work, tree, clean):
        """(good, text): with the bug the test fails with the row's words in its output, without it passes."""
        command, own = self.make(mutant, work, tree)
        environment = {k: v for k, v in os.environ.items() if not k.startswith("STERNWAY_")}
        status, output = planted.run(command, {**environment, **own}, TIMEOUT_S)
        if clean:
            how = "passes" if status == 0 else f"status {status}\n{output[-3000:]}"
            return status == 0, f"{mutant['name']}: {mutant['test']}: {how}"
        found = [line for line in output.splitlines() if mutant["says"] in line]
        if status not in (0, None) and found:
            return True, f"{mutant['name']}: found: {mutant['test']}: {found[0].strip()}"
        return False, f"{mutant['name']}: NOT FOUND ({mutant['test']}, status {status}): {mutant['what']}\n{output[-300:]}"
