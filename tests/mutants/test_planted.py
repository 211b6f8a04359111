#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Planting a bug does not depend on how the source is formatted, and refuses a row that finds no place, or two."""

import tempfile
import unittest
from pathlib import Path

import planted

OLD = '''sum(int a, x[i]) +
    scale;'''
NEW = "sum(int a, x[j]);"


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
