#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Planting a bug does not depend on how the source is formatted, and refuses a row that finds no place, or two."""

import os
import sys
import tempfile
import time
import unittest
from pathlib import Path

import planted

OLD = '''sum(int a, x[i]) +
    scale;'''
NEW = "sum(int a, x[j]);"


class Running(unittest.TestCase):
    def conform(self, script, timeout_s, mutant):
        start = time.monotonic()
        done = planted.conform([sys.executable, "-uc", f"import os, sys, time\n{script}"], dict(os.environ), timeout_s, mutant)
        self.assertLess(time.monotonic() - start, 60)
        return done

    def test_whole_runs(self):
        script = "print('FAIL a'); print('b'); sys.exit({})"
        self.assertEqual(self.conform(script.format(1), 100, None), (1, "FAIL a\nb\n"))
        self.assertEqual(self.conform(script.format(0), 100, {"name": "no bug of its own"}), (0, "FAIL a\nb\n"))
        self.assertEqual(self.conform("print('no FAIL'); sys.exit(3)", 100, {"old": ""}), (3, "no FAIL\n"))

    def test_the_first_failure_ends_a_run(self):
        self.assertEqual(self.conform("print('ok x\\nFAIL a'); os.fork(); time.sleep(100)", 100, {"old": ""}), (1, "ok x\nFAIL a\n"))

    def test_what_hangs_is_ended(self):
        for script in ("print('ok x'); os.fork(); time.sleep(100)", "sys.stdout.close(); os.close(1); os.close(2); time.sleep(100)"):
            self.assertEqual(self.conform(script, 1, {"old": ""}), (None, ""))

    def test_verdicts(self):
        row = {"name": "n", "what": "w", "old": ""}
        self.assertEqual(planted.verdict(row, 1, "ok a b\nFAIL row problem more\n"), (True, "n: found: row problem"))
        self.assertEqual(planted.verdict(row, None, ""), (True, "n: found: hangs"))
        for status, output in ((0, ""), (1, "ok a b\n"), (2, "FAIL row problem\n"), (-11, "")):
            self.assertFalse(planted.verdict(row, status, output)[0])
        self.assertEqual([planted.verdict(None, status, "")[0] for status in (0, 1, None)], [True, False, False])


class Planting(unittest.TestCase):
    def changed(self, text, old=OLD, new=NEW):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "a.c").write_text(text)
            return planted.changed(Path(folder), {"file": "a.c", "old": old, "new": new})

    def assert_planted(self, text, expected, old=OLD, new=NEW):
        self.assertEqual(self.changed(text, old, new), (expected, None))

    def assert_refused(self, text, words, old=OLD, new=NEW):
        done, reason = self.changed(text, old, new)
        self.assertIsNone(done)
        self.assertIn(words, reason)

    def test_the_text_as_it_is(self):
        self.assert_planted(f"  y = {OLD}\n", f"  y = {NEW}\n")

    def test_other_white_space(self):
        for text in ("sum(int a, x[i]) + scale;", "sum(int\ta,\n        x[i])\n    + scale;", "sum( int a , x[ i ])+scale ;"):
            self.assert_planted(f"y = {text} z", f"y = {NEW} z")

    def test_lines_of_a_macro(self):
        self.assert_planted("#define Y \\\n  sum(int a, \\\n      x[i]) + scale; \\\n  z\n", f"#define Y \\\n  {NEW} \\\n  z\n")
        self.assert_planted("y = sum(int a, x[i]) + scale;", f"y = {NEW}", old="sum(int a, \\\n x[i]) + \\\n scale;")

    def test_words_stay_apart(self):
        self.assert_refused("y = sum(inta, x[i]) + scale;", "found 0 times")
        self.assert_refused("y = sum(int a, x[i]) + s cale;", "found 0 times")

    def test_a_part_of_a_word(self):
        self.assert_planted("maximum = 1;", "maxi = 1;", old="mum =", new=" =")

    def test_white_space_at_an_end_is_the_end_of_a_word(self):
        self.assert_refused("ab = 1;", "found 0 times", old=" b =", new=" c =")
        self.assert_planted("ab = 1; b = 2;", "ab = 1; c = 2;", old=" b =", new=" c =")
        self.assert_refused("a = bc;", "found 0 times", old="a = b ", new="a = c ")

    def test_white_space_at_an_end_stays(self):
        self.assert_planted("#define Y a; \\\n  b; \\\n  d\n", "#define Y a; \\\n  c; \\\n  d\n", old="b; \\\n", new="c; \\\n")

    def test_nothing_is_a_pattern(self):
        self.assert_planted("a.b*c\\n", "\\1", old="a.b*c\\n", new="\\1")

    def test_two_places(self):
        self.assert_refused(f"{OLD}\nsum(int a, x[i]) + scale;", "found 2 times")

    def test_another_format_is_no_bug(self):
        self.assert_refused(OLD, "the same", new="sum(int a,x[i])+scale;")


if __name__ == "__main__":
    unittest.main()
