# SPDX-License-Identifier: MIT
"""bench/plot.py on small documents of the CPU backend, which needs matplotlib, and on CSVs of gpu_peers.py, which does not;
bench/record.py on a copy of the documents."""
import importlib.util
import json
import re
import shutil
import subprocess
import sys
import unittest
import xml.etree.ElementTree

from command import CommandTest, SOURCE, sternway

LINES = [f"attn_bwd:f32:b1h2s{length}d{dim}{mask}" for mask in ("", ":causal_br") for dim in (8, 16)
         for length in (8, 16, 32)] + ["jagged_gelu:f32:c4l50t200i6", "jagged_linear:f32:c4l50t200i6f5"]


def plot(*arguments):
    return subprocess.run([sys.executable, "-B", SOURCE / "bench/plot.py", *map(str, arguments)], capture_output=True,
                          text=True, timeout=300)


sys.path.append(str(SOURCE / "bench"))
sys.dont_write_bytecode = True
import gpu_cases  # noqa: E402
import peers_csv  # noqa: E402

ABOUT = {"device": "NVIDIA H200", "driver": "1.2", "date": "2026-01-02", "commit": "abc", "command": "gpu_peers.py --suite all",
         "timing": "3 rounds", "versions": "PyTorch 2", "baseline": "0ld"}


def rows_of(suites, times):
    """Rows as gpu_peers.py writes them, with made-up times: every peer of a case but FlashAttention-3."""
    rows = []
    for suite in suites:
        for n, case in enumerate(gpu_cases.SUITES[suite]()):
            row = dict(suite=suite, group=case.group, case=case.name, variant="v", wrong="", ms_ours=f"{times * (n + 1):.3f}", graph="yes",
                       tflops=f"{100 + n}")
            row["ratio_baseline"] = "1.2500"
            row.update({f"ratio_{peer}": f"{0.9 + 0.01 * n:.4f}" for peer in case.peers if not peer.startswith("fa3")})
            rows.append(row)
    return rows


@unittest.skipUnless(importlib.util.find_spec("matplotlib"), "matplotlib is not there")
class Plot(CommandTest):
    def test_curves(self):
        done = sternway("bench", "--backend", "cpu", "--seconds", "0.002", "--json", *LINES)
        self.assert_exit(done, 0)
        now, old = self.path("now.json"), self.path("old.json")
        now.write_text(done.stdout)
        document = json.loads(done.stdout)
        document["problems"] = document["problems"][:6]
        old.write_text(json.dumps(document))
        for metric, expected in (("tflops", "6 lines in 2 panels, nested operations: bars of 2 problems"), ("gbs", "6 lines in 2 panels, nested operations: bars of 2 problems"),
                                 ("ms", "6 lines in 2 panels, nested operations: bars of 2 problems")):
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

    def test_problems_of_one_length_are_bars(self):
        """What a default bench has: no line would have a second point."""
        done = sternway("bench", "--backend", "cpu", "--seconds", "0.002", "--json", *LINES[:1], *LINES[9:10])
        self.assert_exit(done, 0)
        document, svg = self.path("now.json"), self.path("bars.svg")
        document.write_text(done.stdout)
        done = plot("-o", svg, document)
        self.assert_exit(done, 0)
        self.assertIn("0 lines in 0 panels, attention: bars of 2 problems", done.stdout)
        for text in (LINES[0], LINES[9]):
            self.assertIn(text.partition(":")[2], svg.read_text())

    def test_what_is_no_document(self):
        for text in ("", "{}", '{"problems": [{"problem": "x"}]}', '{"problems": 1}', "[]"):
            path = self.path("bad.json")
            path.write_text(text)
            done = plot("-o", self.path("p.png"), path)
            self.assert_refused(done, str(path), "no document", code=1)
            self.assertFalse(self.path("p.png").exists())
        path.write_text('{"sternway": "1", "device": "d", "problems": []}')
        self.assert_refused(plot("-o", self.path("p.png"), path), "no problem", code=1)


class Peers(CommandTest):
    """A CSV beside peers; no matplotlib."""

    def csv(self, name="peers.csv", suites=("fa", "few_heads", "grads"), times=1.0, **changes):
        path = self.path(name)
        peers_csv.write(path, {**ABOUT, **changes}, rows_of(suites, times))
        return path

    def test_cases_have_names_of_their_own(self):
        for name, suite in gpu_cases.SUITES.items():
            names = [case.name for case in suite()]
            self.assertEqual(len(names), len(set(names)), name)
        every = [case.name for name, suite in gpu_cases.SUITES.items() if name != "classes" for case in suite()]
        self.assertEqual(len(every), len(set(every)))
        self.assertLessEqual({case.name for case in gpu_cases.classes()}, set(every))

    def test_names_are_problem_lines(self):
        for case in gpu_cases.classes():
            if not case.lengths:
                self.assert_exit(sternway("explain", "--backend", "cpu", "attn_bwd:" + case.name), 0)

    def test_suites_of_the_command(self):
        """What `sternway bench --suite` has of the same name is the same."""
        text = (SOURCE / "tools/bench/suites.c").read_text()
        for suite in ("fa", "classes"):
            body = re.search(rf"{suite}_problems\[\] = \{{(.*?)\}};", text, re.S)[1]
            lines = [line for line in re.findall(r'"attn_bwd:([^"]+)"', body) if ":thd" not in line]
            self.assertEqual(lines, [case.name for case in gpu_cases.SUITES[suite]() if not case.lengths])

    def test_pictures(self):
        path = self.csv()
        for picture, texts in (("lengths", ("D 64 full", "D 128 causal", "cuDNN", "FA2", "peak 989", "16384", "2026-01-02")),
                               ("classes", ("few key heads", "D 64 full", "least"))):
            first, second = self.path("a.svg"), self.path("b.svg")
            for out in (first, second):
                self.assert_exit(plot("-o", out, "--picture", picture, path), 0)
            self.assertEqual(first.read_bytes(), second.read_bytes())
            xml.etree.ElementTree.parse(first)
            for text in texts:
                self.assertIn(text, first.read_text())
            self.assertNotIn("FA3", first.read_text())
            self.assertLess(first.stat().st_size, 40000)

    def test_what_is_no_csv(self):
        path, out = self.path("bad.csv"), self.path("p.svg")
        for text in ("", "# device: x\n", "case,group\na,b\n", "# device: x\nsuite,group,case,wrong,ms_ours\nfa,g,c,,0\n"):
            path.write_text(text)
            self.assert_refused(plot("-o", out, path), str(path), "no CSV", code=1)
        path = self.csv(suites=("grads",))
        self.assert_refused(plot("-o", out, path), "no row of it", code=1)
        self.assert_refused(plot("-o", self.path("p.png"), path), "drawn alone, into an .svg", code=1)
        self.assertFalse(out.exists())

    def test_record(self):
        """Rows of later runs replace those of earlier ones; what is drawn is what --check wants."""
        root = self.path("tree")
        for part in ("bench", "docs/performance", "docs/figures", "tools/bench"):
            shutil.copytree(SOURCE / part, root / part, ignore=shutil.ignore_patterns("*.csv", "__pycache__"))

        def record(*arguments):
            return subprocess.run([sys.executable, "-B", root / "bench/record.py", *map(str, arguments)], capture_output=True, text=True, timeout=300)
        self.assert_exit(record(self.csv(times=1.0)), 0)
        self.assert_exit(record(self.csv("more.csv", suites=("fa", "small"), times=2.0, commit="def")), 0)
        document = (root / "docs/performance/nvidia.md").read_text()
        about, rows = peers_csv.read(root / "docs/performance/h200.csv")
        self.assertEqual((about["device"], len(rows)), ("NVIDIA H200", sum(len(gpu_cases.SUITES[n]()) for n in ("fa", "few_heads", "grads", "small"))))
        self.assertEqual({row["commit"] for row in rows if row["suite"] in ("fa", "small")}, {"def"})
        for text in ("| `bf16:b32h32s512d64` (graph) | 2 | 100 |", f"| few key heads | {len(gpu_cases.SUITES['few_heads']())} |", "## How to run", "## Further", "h200_lengths.svg", "abc", "def", "0ld's time / ours", "0ld 1.250"):
            self.assertIn(text, document)
        self.assert_exit(record("--check"), 0)
        (root / "docs/performance/nvidia.md").write_text(document.replace("| 100 |", "| 101 |"))
        self.assert_refused(record("--check"), "nvidia.md", code=1)
        self.assert_exit(record("--fresh", self.csv(suites=("fa",))), 0)
        self.assertEqual(len(peers_csv.read(root / "docs/performance/h200.csv")[1]), 24)
        wrong = self.path("wrong.csv")
        peers_csv.write(wrong, ABOUT, [{**row, "wrong": "off by 1"} for row in rows_of(("small",), 1.0)])
        self.assertIn("is wrong", record(wrong).stderr)
        self.assertIn("| **wrong** |", (root / "docs/performance/nvidia.md").read_text())


if __name__ == "__main__":
    unittest.main()
