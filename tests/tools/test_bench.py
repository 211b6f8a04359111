# SPDX-License-Identifier: MIT
"""`sternway bench`: rows, counted work and bytes, nested operations, wrong results, --compare."""
import csv
import io
import json
import os
import re
import unittest

from command import CommandTest, SOURCE, sternway

LINE = "attn_bwd:f32:b1h2s48d16:causal_br"
WRONG = os.environ.get("STERNWAY_WRONG_VARIANT")


def bench(*arguments, **options):
    return sternway("bench", "--backend", "cpu", "--seconds", "0.01", *arguments, **options)


class Bench(CommandTest):
    def document(self, *arguments, code=0, **options):
        done = bench("--json", *arguments, **options)
        self.assert_exit(done, code)
        return json.loads(done.stdout)

    def test_refuses_what_the_plan_refuses(self):
        for line, text in (("attn_bwd:f32:b1h1s8d257", "head_dim_qk 257"), ("attn_fwd:f32:b1h1s8d257", "head_dim_qk 257"),
                           ("attn_bwd:f32:b2h1s5d8:thd:cuq0,9,10", "cuq"), ("nonsense", "not an operation"),
                           ("jagged_softmax:f32:c7l60t200i33", "dim")):
            self.assert_refused(bench(line), text)

    def test_reports(self):
        document = self.document(LINE)
        (row,) = document["problems"]
        self.assertEqual((row["problem"], document["arch"], row["verified"]), (LINE, "cpu", True))
        self.assertNotIn("host_us", row)  # a call of the CPU backend is complete when it returns
        planned = re.search(r"(?m)^workspace: (\d+) bytes$", sternway("explain", "--backend", "cpu", LINE).stdout)
        self.assertEqual(row["workspace_bytes"], int(planned[1]))
        pairs, dim = 2 * 48 * 49 / 2, 16
        self.assertAlmostEqual(row["tflops"], pairs * 10 * dim / row["median_ms"] * 1e-9, delta=1e-6 * row["tflops"])
        self.assertEqual(row["bytes"], 2 * 48 * (8 * dim + 1) * 4)  # q, k, v, out, dout, dq, dk, dv, and lse
        self.assertAlmostEqual(row["gbs"], row["bytes"] / row["median_ms"] * 1e-6, delta=1e-6 * row["gbs"])
        self.assertLessEqual(row["low_ms"], row["median_ms"])
        self.assertLessEqual(row["median_ms"], row["high_ms"])
        self.assertAlmostEqual(row["iqr_ms"], row["high_ms"] - row["low_ms"], delta=1e-9)
        forced = bench(LINE, env={"STERNWAY_VARIANT": "cpu_portable_32x32"})
        self.assertIn("cpu_portable_32x32", forced.stdout)

    def test_forward(self):
        document = self.document(LINE.replace("attn_bwd", "attn_fwd"))
        (row,) = document["problems"]
        pairs, dim = 2 * 48 * 49 / 2, 16
        self.assertAlmostEqual(row["tflops"], pairs * 4 * dim / row["median_ms"] * 1e-9, delta=1e-6 * row["tflops"])
        self.assertEqual(row["bytes"], 2 * 48 * (4 * dim + 1) * 4)  # q, k, v, out, and lse
        self.assertTrue(row["verified"] and 0 < row["max_ratio"] < 1, row)
        lines = ("attn_fwd:bf16:b2h4k2s70x50d40x24:thd:causal_br:used:sink:alibi:softcap20",
                 "attn_fwd:f16:b2h6k3s65x33d64:bias_b1qk:dropout0.2:wl9:htotal8:hoff2:boff1", "attn_fwd:f64:b1h2s33d16")
        for row in self.document(*lines)["problems"]:
            self.assertTrue(row["verified"] and 0 < row["max_ratio"] < 1, row)
        self.assertIn("(not verified: it is empty)", bench("attn_fwd:f32:b0h1s8d64").stdout)
        if WRONG:
            env = {"LD_PRELOAD": WRONG, "WRONG_FORWARD": "1"}
            self.assert_refused(bench("attn_fwd:f32:b1h2s48d16", env=env), "sample: ", "lse", code=1)

    def test_csv(self):
        lines = (LINE, "attn_bwd:f32:b2h1s8d8:thd:cuq0,3,10:cuk0,3,10")
        done = bench("--csv", *lines)
        self.assert_exit(done, 0)
        rows = list(csv.DictReader(io.StringIO(done.stdout)))
        self.assertEqual([row["problem"] for row in rows], list(lines))
        self.assertTrue(all(None not in row and None not in row.values() for row in rows))

    def test_suites(self):
        self.assert_refused(bench("--suite", "most"), "--suite most: usual, fa, classes, jagged or masks")

    def test_every_problem_of_the_suites_can_be_planned(self):
        lines = re.findall(r'"((?:attn_bwd|jagged_\w+):[^"]+)"', (SOURCE / "tools/bench/suites.c").read_text())
        self.assertGreater(len(lines), 60)
        for line in lines:
            self.assert_exit(sternway("explain", "--backend", "cpu", line), 0)

    def test_a_line_of_one_element_is_sampled(self):
        """No `i` in the line: inner is 1. Beyond 2^20 elements, so that dweight is judged by columns."""
        (row,) = self.document("--seconds", "0.01", "jagged_layer_norm:f32:c8l200000t1200000:gamma")["problems"]
        self.assertTrue(row["verified"])

    def test_peak(self):
        (row,) = self.document("--peak", "2", LINE)["problems"]
        self.assertAlmostEqual(row["peak_share"], row["tflops"] / 2, delta=1e-9)
        (row,) = self.document("--peak-bandwidth", "5", "jagged_silu:f32:c7l60t200i33")["problems"]
        self.assertAlmostEqual(row["peak_share"], row["gbs"] / 5, delta=1e-9)
        self.assertNotIn("peak_share", self.document(LINE)["problems"][0])  # nobody's figure for this CPU

    def test_nested_operations_are_verified_and_counted(self):
        dense = 4 * 50 * 6  # c4l50t200 of equal lengths: every position of the buffer
        for line, count, flop in (
                ("jagged_gelu:f32:c4l50t200i6:lens_full", 3 * dense, 0),
                ("jagged_softmax:f32:c4l50t200i6:inner:lens_full", 3 * dense, 0),
                ("jagged_log_softmax:f32:c4l50t200i6:ragged:lens_full", 3 * dense, 0),
                ("jagged_sum:f32:c4l50t200i6:inner:lens_full", 200 + dense, 0),
                ("jagged_sum:f32:c4l50t200i6:ragged:lens_full", 4 * 6 + dense, 0),
                ("jagged_layer_norm:f32:c4l50t200i6:gamma:lens_full", 3 * dense + 2 * 200 + 3 * 6, 0),
                ("jagged_rms_norm:f32:c4l50t200i6:gamma:lens_full", 3 * dense + 200 + 2 * 6, 0),
                ("jagged_layer_norm:f32:c4l50t200i6:ragged:lens_full", 3 * dense + 2 * 4, 0),
                ("jagged_rms_norm:f32:c4l50t200i6:ragged:lens_full", 3 * dense + 4, 0),
                ("jagged_to_padded:f32:c4l50t200i6p60:lens_full", 2 * dense, 0),
                ("jagged_from_padded:f32:c4l50t200i6p60:lens_full", dense + 4 * 60 * 6, 0),
                ("jagged_linear:f32:c4l50t200i6f5:lens_full", 200 * (6 + 5 + 6) + 2 * 30 + 5, 2 * 2 * 200 * 30),
                ("jagged_matmul:f32:c4m50k6n5:tm200:lens_full", 200 * (6 + 5 + 6) + 4 * 2 * 30, 2 * 2 * 200 * 30)):
            with self.subTest(line=line):
                (row,) = self.document(line)["problems"]
                self.assertTrue(row["verified"])
                self.assertEqual(row["bytes"], 4 * count)
                self.assertEqual("tflops" in row, flop > 0)
                if flop:
                    self.assertAlmostEqual(row["tflops"], flop / row["median_ms"] * 1e-9, delta=1e-6 * row["tflops"])

    def test_only_what_takes_part_is_counted(self):
        (all_of_it,) = self.document("jagged_gelu:f32:c7l60t200i4:lens_full")["problems"]
        (row,) = self.document("jagged_gelu:f32:c7l60t200i4:lens_zeros")["problems"]
        self.assertLess(row["bytes"], all_of_it["bytes"])
        (row,) = self.document("jagged_attention:i64:attn_bwd:f32:b2h1s48d16:thd:seqs_full")["problems"]
        self.assertEqual(row["bytes"], 2 * 48 * (8 * 16 + 1) * 4)
        self.assertTrue(row["verified"])

    @unittest.skipUnless(WRONG, "the sanitizers do not take preloaded libraries")
    def test_wrong_results_of_large_nested_operations_are_found(self):
        norm, linear = "jagged_layer_norm:f32:c8l64t400i2048:gamma", "jagged_linear:f32:c8l64t300i256f1024"
        matmul = "jagged_matmul:f32:c9m64k256n256:tm300"
        for line, wrong in ((norm, "dx:819200"), (norm, "dweight:2048"), (norm, "dbias:2048"), (linear, "dx:76800"),
                            (linear, "dweight:262144"), (linear, "dbias:1024"), (matmul, "dother:589824"),
                            ("jagged_softmax:f32:c9l200t900i2048:ragged", "dx:1843200")):
            with self.subTest(line=line, wrong=wrong):
                env = {"LD_PRELOAD": WRONG, "WRONG_JAGGED": wrong}
                self.assert_refused(bench(line, env=env), wrong.split(":")[0] + ": max error", code=1)
        for line in (norm, linear, matmul):
            self.assertNotIn("not verified", bench(line).stdout)

    def test_says_why_it_did_not_verify(self):
        def text(line):
            done = bench(line)
            self.assert_exit(done, 0)
            return done.stdout
        for line in ("attn_bwd:f32:b0h1s8d64", "attn_bwd:f32:b1h1s0x8d64", "attn_bwd:f32:b1h1s8x0d64"):
            self.assertIn("(not verified: it is empty)", text(line))
        self.assertIn("(not verified: its dropout map", text("attn_bwd:f32:b1h1s8d64:dropout0.5:map_mem_eff"))
        self.assertIn("(not verified: its components are interleaved)",
                      text("jagged_softmax:f32:c9l100t900o3i512:inner:jagged"))
        self.assertNotIn("not verified", text("attn_bwd:f32:b1h1s8d64"))


class Ranks(CommandTest):
    """`--cp`: what a row says follows from its parts; times themselves are a machine's mood."""

    def rows(self, *arguments):
        done = bench("--cp", "--json", *arguments)
        self.assert_exit(done, 0)
        return json.loads(done.stdout)["problems"]

    def test_rows(self):
        lines = ("attn_bwd:f32:b1h4s48d16:causal_br", "attn_fwd:bf16:b2h4s64d32", "attn_bwd:f32:b3h4k2s40d16:thd:sink:grads_qkvs")
        rows = self.rows("-n", "3", *lines)
        for line, row in zip(lines, rows):
            over = row["over_ranks"]
            self.assertEqual((row["problem"], row["verified"], over["ranks"], over["transport"], over["order"]),
                             (line, True, 3, "threads", "zigzag"))
            self.assertLess(row["rms_ratio"], 1)
            for key in ("compute_ms", "communication_ms", "single_ms", "sent_bytes"):
                self.assertGreater(over[key], 0, key)
            self.assertAlmostEqual(over["efficiency"], over["single_ms"] / (3 * row["median_ms"]), delta=1e-6 * over["efficiency"])
            hidden = (over["compute_ms"] + over["communication_ms"] - row["median_ms"]) / over["communication_ms"]
            self.assertAlmostEqual(over["overlap"], min(max(hidden, 0), 1), delta=1e-6)
            self.assertLessEqual(over["sent_bytes"], over["sent_bytes_all"])
        # all see all of two sequences of 64: each rank sends its K and V, and what it gets from one neighbour, to the other
        self.assertEqual(rows[1]["over_ranks"]["sent_bytes_all"], 2 * (2 * 2 * 64 * 4 * 32 * 2))

    def test_schedules(self):
        line = "attn_bwd:f32:b1h4s48d16"
        for schedule in ("ring", "all-gather", "ulysses", "2-D"):
            (row,) = self.rows("-n", "4", "--schedule", schedule, "--order", "contiguous", line)
            self.assertEqual((row["over_ranks"]["schedule"], row["over_ranks"]["order"]), (schedule, "contiguous"))
        (row,) = self.rows("-n", "1", line)
        self.assertEqual((row["over_ranks"]["sent_bytes_all"], row["over_ranks"]["communication_ms"] >= 0), (0, True))

    def test_table(self):
        done = bench("--cp", LINE)
        self.assert_exit(done, 0)
        self.assertRegex(done.stdout, r"(?m)^ *median ms +compute +messages +hidden +one dev +efficiency")
        self.assertIn(f"zigzag auto {LINE} on 2 ranks", done.stdout)

    def test_refusals(self):
        self.assert_refused(bench("--cp", "--csv", LINE), "--cp goes with neither --compare nor --csv")
        self.assert_refused(bench("--cp", "--schedule", "star", LINE), "'star' is none of the names")
        self.assert_refused(bench("--cp", "-n", "0", LINE), "'0' is not a number from 1 to 64")
        self.assert_refused(bench("--cp", "nonsense"), "not an operation")
        self.assert_refused(bench("--cp", "-n", "3", "--schedule", "ulysses", "attn_bwd:f32:b1h4s48d16"),
                            "heads_kv is not a multiple of size", code=1)

    @unittest.skipUnless(WRONG, "the sanitizers do not take preloaded libraries")
    def test_wrong_results_are_found(self):
        env = {"LD_PRELOAD": WRONG, "WRONG_CP": "1"}
        self.assert_refused(bench("--cp", LINE, env=env), "max error", code=1)


class Compare(CommandTest):
    """The older document is one of this machine with its times multiplied: no verdict hangs on its speed."""

    LINES = (LINE, "jagged_gelu:f32:c4l50t200i6")

    def old(self, factor=1.0, name="old.json", spread=1.0, **changes):
        """Quartiles at factor / spread and factor * spread of what was measured."""
        done = bench("--json", *self.LINES)
        self.assert_exit(done, 0)
        document = json.loads(done.stdout)
        for row in document["problems"]:
            row["low_ms"] *= factor / spread
            row["high_ms"] *= factor * spread
            row["median_ms"] *= factor
        document.update(changes)
        path = self.path(name)
        path.write_text(json.dumps(document))
        return path

    def compare(self, old, code, *arguments):
        done = bench("--json", "--compare", old, *(arguments or self.LINES))
        self.assert_exit(done, code)
        return json.loads(done.stdout)["compare"]

    def test_verdicts(self):
        for factor, verdict, code in ((1e6, "faster", 0), (1e-6, "slower", 1)):
            report = self.compare(self.old(factor), code)
            self.assertEqual([row["verdict"] for row in report["problems"]], [verdict] * 2)
            self.assertEqual(report["verdict"], verdict)
            self.assertEqual((report["missing"], report["added"], report["differences"]), ([], [], []))
        report = self.compare(self.old(1, spread=1e6), 0)  # intervals that hold any machine's mood
        self.assertEqual([row["verdict"] for row in report["problems"]] + [report["verdict"]], ["same"] * 3)

    def test_one_slower_problem_is_enough(self):
        path = self.old(1e6)
        document = json.loads(path.read_text())
        row = document["problems"][0]
        row["low_ms"], row["median_ms"], row["high_ms"] = 1e-7, 2e-7, 3e-7
        path.write_text(json.dumps(document))
        report = self.compare(path, 1)
        self.assertEqual([row["verdict"] for row in report["problems"]], ["slower", "faster"])
        done = bench("--compare", path, *self.LINES)
        self.assert_exit(done, 1)
        for part in ("slower", "faster", "in total", str(path)):
            self.assertIn(part, done.stdout)
        done = bench("--csv", "--compare", path, *self.LINES)
        self.assert_exit(done, 1)
        self.assertEqual([row["verdict"] for row in csv.DictReader(io.StringIO(done.stdout))], ["slower", "faster"])
        self.assertIn("in total", done.stderr)

    def test_other_machines_and_missing_problems_are_named(self):
        path = self.old(1e6, device="another GPU", sternway="0.0.1")
        done = bench("--compare", path, LINE, "attn_bwd:f32:b1h1s8d8")
        self.assert_exit(done, 0)
        for text in ("device: another GPU then", "version: 0.0.1 then", f"missing {self.LINES[1]}",
                     "new     attn_bwd:f32:b1h1s8d8"):
            self.assertIn(text, done.stdout)
        report = self.compare(path, 0, "attn_bwd:f32:b1h1s8d8")
        self.assertEqual((report["missing"], report["problems"]), (list(self.LINES), []))
        self.assertNotIn("verdict", report)

    def test_damaged_documents(self):
        good = self.old().read_text()
        document = json.loads(good)
        first = document["problems"][0]

        def changed(**fields):
            return json.dumps({**document, "problems": [{**first, **fields}]})
        for text, part in ((good[:len(good) // 2], "cut off"), ("", "not a JSON"), ("{}", "is missing"), ("[1]", "is missing"),
                           (good + "x", "not a JSON"), (json.dumps({**document, "problems": 3}), "problems is missing"),
                           (json.dumps({**document, "driver": None}), "driver"), (changed(median_ms="1"), "problems[0]: low_ms"),
                           (changed(median_ms=-1), "no time"), (changed(low_ms=1e9), "not in order"),
                           (changed(problem=7), "problems[0]: problem is missing"), ("\0" + good, "not a JSON")):
            with self.subTest(part=part):
                path = self.path("damaged.json")
                path.write_text(text)
                done = bench("--compare", path, LINE)
                self.assert_refused(done, str(path), part)
                self.assertEqual(done.stdout, "")
        self.assert_refused(bench("--compare", self.path("absent"), LINE), "No such file")
        self.assert_refused(bench("--compare", self.folder, LINE), "Is a directory")


if __name__ == "__main__":
    unittest.main()
