# SPDX-License-Identifier: MIT
"""bench/plot.py on small documents of the CPU backend. Needs matplotlib; without it the test is skipped (77)."""
import importlib.util
import json
import subprocess
import sys
import unittest

from command import CommandTest, SOURCE, sternway

LINES = [f"attn_bwd:f32:b1h2s{length}d{dim}{mask}" for mask in ("", ":causal_br") for dim in (8, 16)
         for length in (8, 16, 32)] + ["jagged_gelu:f32:c4l50t200i6", "jagged_linear:f32:c4l50t200i6f5"]


def plot(*arguments):
    return subprocess.run([sys.executable, "-B", SOURCE / "bench/plot.py", *map(str, arguments)], capture_output=True,
                          text=True, timeout=300)


class Plot(CommandTest):
    def test_curves(self):
        done = sternway("bench", "--backend", "cpu", "--seconds", "0.002", "--json", *LINES)
        self.assert_exit(done, 0)
        now, old = self.path("now.json"), self.path("old.json")
        now.write_text(done.stdout)
        document = json.loads(done.stdout)
        document["problems"] = document["problems"][:6]
        old.write_text(json.dumps(document))
        for metric, expected in (("tflops", "6 lines in 2 panels, 1 sets"), ("gbs", "6 lines in 2 panels, 1 sets"),
                                 ("ms", "6 lines in 2 panels, 1 sets")):
            picture = self.path(f"{metric}.png")
            done = plot("-o", picture, "--metric", metric, now, f"before={old}")
            self.assert_exit(done, 0)
            self.assertIn(expected, done.stdout)
            self.assertEqual(picture.read_bytes()[:8], b"\x89PNG\r\n\x1a\n")
        svg = self.path("curves.svg")
        self.assert_exit(plot("-o", svg, f"before={old}"), 0)
        for text in ("before, D 8", "before, D 16", "TFLOP/s", "sequence length"):
            self.assertIn(text, svg.read_text())  # matplotlib names every text in a comment
        self.assertNotIn("nested", svg.read_text())

    def test_what_is_no_document(self):
        for text in ("", "{}", '{"problems": [{"problem": "x"}]}', '{"problems": 1}', "[]"):
            path = self.path("bad.json")
            path.write_text(text)
            done = plot("-o", self.path("p.png"), path)
            self.assert_refused(done, str(path), "no document", code=1)
            self.assertFalse(self.path("p.png").exists())
        path.write_text('{"sternway": "1", "device": "d", "problems": []}')
        self.assert_refused(plot("-o", self.path("p.png"), path), "no problem", code=1)


if __name__ == "__main__":
    if not importlib.util.find_spec("matplotlib"):
        print("skipped: matplotlib is not there")
        sys.exit(77)
    unittest.main()
