#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""check.py on small trees: test_check.py [COMPILER]. Reports made by hand below the limits fail, those at the limits pass; with a
compiler, gcovr itself counts a function that nobody calls."""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

CHECK = pathlib.Path(__file__).resolve().with_name("check.py")
FILE = "dispatch/a.c"
TEXT = "int stw_a(int x) {\n    return x ? 1 : 2;\n}\n"
AT_THE_LIMIT = [1] * 19 + [0]  # 95% of the branches


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.tree = pathlib.Path(folder.name).resolve()
        self.source(FILE, TEXT)
        (self.tree / "tests/coverage").mkdir(parents=True)
        shutil.copy(CHECK, self.tree / "tests/coverage")

    def source(self, name, text):
        path = self.tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def check(self, path):
        command = [sys.executable, "-B", str(self.tree / "tests/coverage/check.py"), str(self.tree)]
        done = subprocess.run(command, env=os.environ | {"PATH": path}, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr


class ByHand(Case):
    """gcovr is a script that prints what a test gives it."""

    def judge(self, lines=(1, 1), branches=AT_THE_LIMIT, status=0):
        rows = [{"line_number": number, "count": count, "gcovr/noncode": False, "branches": []} for number, count in enumerate(lines, 1)]
        if rows:
            rows[-1]["branches"] = [{"count": count} for count in branches]
        report = self.tree / "report.json"
        report.write_text(json.dumps({"files": [{"file": FILE, "lines": rows}]}))
        gcovr = self.tree / "gcovr"
        gcovr.write_text(f"#!/bin/sh\ncat '{report}'\nexit {status}\n")
        gcovr.chmod(0o755)
        return self.check(f"{self.tree}:{os.environ['PATH']}")

    def assert_fails(self, words, **report):
        status, text = self.judge(**report)
        self.assertEqual(status, 1, text)
        self.assertIn(words, text)

    def test_the_limit_passes(self):
        status, text = self.judge()
        self.assertEqual(status, 0, text)
        self.assertIn("0 exclusions; lines 100.00% of 2, branches 95.00% of 20", text)

    def test_a_line_that_never_ran(self):
        self.assert_fails("never ran: 2: return x ? 1 : 2;", lines=[1, 0] + [1] * 9998)

    def test_too_few_branches(self):
        self.assert_fails("branches 94.99% of 399", branches=[1] * 379 + [0] * 20)

    def test_nothing_counted(self):
        self.assert_fails("lines 100.00% of 0", lines=[])

    def test_gcovr_fails(self):
        self.assert_fails("gcovr: ", status=1)

    def test_a_source_that_was_not_counted(self):
        for name in ("common/b.c", "backends/gpu/b.c", "backends/hip/attn_cdna.c", "backends/cuda/attn_sm90_few.c"):
            self.source(name, "")
            self.assert_fails(f"not counted: {name}")
            (self.tree / name).unlink()
        self.source("backends/cuda/module.c", "")
        self.assertEqual(self.judge()[0], 0)

    def test_exclusions(self):
        for marker in ("GCOVR_EXCL_LINE", "GCOVR_EXCL_BR_LINE"):
            self.source(FILE, f"int a; /* {marker}: a race of two */\n")
            status, text = self.judge()
            self.assertEqual(status, 0, text)
            self.assertIn(f"left out: {FILE}:1: a race of two\n1 exclusions", text)
            self.source(FILE, f"int a; /* {marker} */\n")
            self.assert_fails(f"left out: {FILE}:1: NO REASON")

    def test_exclusions_of_regions(self):
        for marker in ("GCOVR_EXCL_START", "GCOVR_EXCL_BR_START", "LCOV_EXCL_LINE"):
            self.source(FILE, f"int a; /* {marker}: all of it */\n")
            self.assert_fails("NO REASON")
        for name in ("common/kernels/a.h", "backends/cuda/attn_sm90.h"):
            self.source(FILE, TEXT)
            self.source(name, "GCOVR_EXCL_LINE\n")
        self.assert_fails("left out: common/kernels/a.h:1: NO REASON")
        (self.tree / "common/kernels/a.h").unlink()
        self.assertEqual(self.judge()[0], 0)


class Counted(Case):
    """gcovr counts a program of two files."""

    def run_program(self, calls, text=TEXT):
        self.source(FILE, text)
        self.source("main.c", f"int stw_a(int);\nint main(void) {{ return {calls}; }}\n")
        for command in (COMPILER + ["--coverage", "-c", FILE, "-o", "a.o"], COMPILER + ["--coverage", "a.o", "main.c", "-o", "run"], ["./run"]):
            subprocess.run(command, cwd=self.tree, check=True)
        done = self.check(os.environ["PATH"])
        for path in self.tree.glob("*.gc*"):
            path.unlink()
        return done

    def test_what_runs(self):
        status, text = self.run_program("stw_a(0) + stw_a(1) - 3")
        self.assertEqual(status, 0, text)
        self.assertIn("0 exclusions; lines 100.00% of 2, branches 100.00% of 2", text)

    def test_half_of_the_branches(self):
        status, text = self.run_program("stw_a(0) - 2")
        self.assertEqual(status, 1, text)
        self.assertIn("lines 100.00% of 2, branches 50.00% of 2", text)

    def test_a_function_that_nobody_calls(self):
        calls, unused = "stw_a(0) + stw_a(1) - 3", "int stw_b(int x) {\n    return x;\n}\n"
        status, text = self.run_program(calls, TEXT + unused)
        self.assertEqual(status, 1, text)
        self.assertIn("never ran: 5: return x;", text)
        status, text = self.run_program(calls, TEXT + unused.replace("\n", " /* GCOVR_EXCL_LINE: none calls it */\n"))
        self.assertEqual(status, 0, text)
        self.assertIn("3 exclusions; lines 100.00% of 2,", text)


if __name__ == "__main__":
    COMPILER = sys.argv[1:]
    if COMPILER and not (shutil.which("gcovr") and shutil.which(COMPILER[0])):
        print("no gcovr")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1], defaultTest="Counted" if COMPILER else "ByHand")
