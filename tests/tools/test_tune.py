# SPDX-License-Identifier: MIT
"""`sternway tune` on the CPU backend: the table, the rules and their way back through STERNWAY_TUNING, wrong results,
refusals, the output file. What rules follow from which times is in test_tune_rules.c."""
import csv
import io
import json
import os
import re
import unittest

from command import CommandTest, SOURCE, sternway

SLOW = "cpu_portable_32x32"  # nowhere the fastest where there is a choice
PROBLEM = "attn_bwd:f32:b1h2s300d16"
TABLE = (SOURCE / "common/tuning/attn_bwd.cpu.def").read_text()
VARIANTS = set(re.findall(r"(?m)^STW_VARIANT\((\w+)", TABLE))


def tune(*arguments, **options):
    return sternway("tune", "--arch", "cpu", "--seconds", "0.005", *arguments, **options)


class Tune(CommandTest):
    def slow_rules(self):
        path = self.path("slow.txt")
        path.write_text(f'STW_RULE("", {SLOW})\n')
        return {"STERNWAY_TUNING": str(path)}

    def choice(self, env=None):
        text = sternway("explain", "--backend", "cpu", PROBLEM, env=env).stdout
        return re.search(r"(?m)^variant: (\w+)$", text)[1]

    def json(self, *arguments, code=0, **options):
        done = tune("--json", *arguments, **options)
        self.assert_exit(done, code)
        return json.loads(done.stdout)

    def runnable(self):
        return {row["variant"] for row in self.json(PROBLEM)["problems"][0]["variants"]}

    def test_every_variant_is_timed_and_the_present_one_is_marked(self):
        report = self.json("--all", PROBLEM, env=self.slow_rules())
        (problem,) = report["problems"]
        self.assertEqual((report["arch"], report["estimated"]), ("cpu", False))
        self.assertEqual(problem["problem"], PROBLEM)
        names = [row["variant"] for row in problem["variants"]]
        self.assertIn(SLOW, names)
        self.assertTrue(not any(row["pruned"] for row in problem["variants"]))
        self.assertEqual(len(names), len(set(names)))
        self.assertLessEqual(set(names), VARIANTS)
        for name in VARIANTS - set(names):  # left out only where this processor cannot run it
            self.assertRegex(sternway("explain", "--backend", "cpu", PROBLEM, env={"STERNWAY_VARIANT": name}).stdout,
                             rf"(?m)STERNWAY_VARIANT={name}: ")
        self.assertEqual([row["variant"] for row in problem["variants"] if row["chosen_now"]], [SLOW])
        for row in problem["variants"]:
            self.assertGreater(row["runs"], 0)
            self.assertGreater(row["median_ms"], 0)
            self.assertGreater(row["tflops"], 0)

    def test_what_the_model_rules_out_is_named_and_not_timed(self):
        # on one core: on many, portable's smaller tiles are spread better, and it is no longer far behind
        one = {"preexec_fn": lambda: os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})}
        rows = {row["variant"]: row for row in self.json(PROBLEM, **one)["problems"][0]["variants"]}
        if "cpu_avx512_64x64" not in rows:
            self.skipTest("this processor has no AVX-512: four lanes are not far behind")
        self.assertTrue(rows[SLOW]["pruned"])
        self.assertEqual(rows[SLOW]["runs"], 0)
        self.assertRegex(rows[SLOW]["not_timed"], r"^pruned: \d+\.\d times the work of cpu_avx512")
        self.assertIn("pruned", tune(PROBLEM, **one).stdout)
        forced = {row["variant"]: row for row in self.json("--all", PROBLEM, **one)["problems"][0]["variants"]}
        self.assertGreater(forced[SLOW]["runs"], 0)

    def test_rules_lead_to_another_choice(self):
        if len(self.runnable()) < 2:
            self.skipTest("this processor runs one variant only")
        out, env = self.path("rules.txt"), self.slow_rules()
        done = tune("-o", out, PROBLEM, env=env)
        self.assert_exit(done, 0)
        text = out.read_text()
        (row,) = re.findall(r'(?m)^STW_RULE\("(.*)", (\w+)\)$', text)
        self.assertNotEqual(row[1], SLOW)
        self.assertIn("dtype=f32", row[0])
        for line in text.splitlines():
            self.assertRegex(line, r"^(STW_RULE\(.*\)|/\* .* \*/)$")
        for part in ("Measured by sternway tune", "kernels of cpu", PROBLEM, SLOW, "(now)", "(IQR "):
            self.assertIn(part, text)
        self.assertRegex(text, r"20\d\d-\d\d-\d\d")
        self.assertEqual(self.choice(env), SLOW)
        self.assertEqual(self.choice({"STERNWAY_TUNING": str(out)}), row[1])
        self.assertNotIn("STW_RULE", done.stdout)
        self.assertIn("STW_RULE", tune(PROBLEM, env=env).stdout)

    def test_a_gain_too_small_makes_no_rule(self):
        done = tune("--min-gain", "100000", PROBLEM, env=self.slow_rules())
        self.assert_exit(done, 0)
        self.assertNotIn("STW_RULE", done.stdout)
        self.assertIn("No rule", done.stdout)

    def test_csv(self):
        done = tune("--csv", PROBLEM, env=self.slow_rules())
        self.assert_exit(done, 0)
        rows = list(csv.DictReader(io.StringIO(done.stdout)))
        self.assertEqual([row["variant"] for row in rows if row["chosen_now"] == "yes"], [SLOW])
        self.assertTrue(all(row["problem"] == PROBLEM and float(row["median_ms"]) > 0 for row in rows))

    def test_usual_problems(self):
        report = self.json("--filter", "f32:*s64d64")
        lines = [problem["problem"] for problem in report["problems"]]
        self.assertTrue(lines)
        self.assertTrue(all(":f32:" in line and "s64d64" in line for line in lines))
        self.assert_refused(tune("--filter", "no such"), "keeps no problem")

    @unittest.skipUnless(os.environ.get("STERNWAY_WRONG_VARIANT"), "the sanitizers do not take preloaded libraries")
    def test_a_wrong_variant_is_not_timed_and_gets_no_rule(self):
        if len(self.runnable()) < 2:
            self.skipTest("this processor runs one variant only")
        fastest = re.search(r'", (\w+)\)', tune(PROBLEM, env=self.slow_rules()).stdout)
        self.assertTrue(fastest)
        env = {"LD_PRELOAD": os.environ["STERNWAY_WRONG_VARIANT"], "WRONG_VARIANT": fastest[1], **self.slow_rules()}
        report = self.json(PROBLEM, code=1, env=env)
        (wrong,) = [row for row in report["problems"][0]["variants"] if row["variant"] == fastest[1]]
        self.assertEqual(wrong["runs"], 0)
        self.assertIn("wrong: sample: d", wrong["not_timed"])
        self.assertFalse(any(f", {fastest[1]})" in line for line in report["rules"]))
        self.assertTrue(all(row["runs"] > 0 for row in report["problems"][0]["variants"] if row is not wrong))
        done = sternway("bench", "--backend", "cpu", "--seconds", "0.01", PROBLEM,
                        env={**env, "STERNWAY_VARIANT": fastest[1]})
        self.assert_refused(done, "sample: d", code=1)

    def test_what_cannot_be_verified_is_not_timed(self):
        for line in ("attn_bwd:f32:b0h1s8d8", "attn_bwd:f32:b1h1s64d16:dropout0.5:map_mem_eff"):
            report = self.json(line, code=1)
            self.assertTrue(all(row["not_timed"].startswith("not verified") for row in report["problems"][0]["variants"]))

    def test_refusals(self):
        for arguments, text in ((("attn_bwd:f32:b1h1s8d257",), "head_dim_qk 257"), (("nonsense",), "not an operation"),
                                (("attn_fwd:f32:b1h1s8d8",), "attn_bwd problems"), (("--seconds", "0", PROBLEM), "'0'"),
                                (("--min-gain", "-1", PROBLEM), "'-1'"), (("--seconds", "nan", PROBLEM), "'nan'"),
                                (("--backend", "cuda", PROBLEM), "unknown to backend cuda")):
            with self.subTest(arguments=arguments):
                self.assert_refused(tune(*arguments), text)
        self.assertIn("unknown to backend cuda", self.json("--backend", "cuda", PROBLEM, code=2)["error"])

    def test_a_bad_problem_does_not_stop_the_others(self):
        report = self.json(PROBLEM, "nonsense", code=2)
        self.assertEqual([problem["problem"] for problem in report["problems"]], [PROBLEM])

    def test_the_output_file_is_written_whole_or_not_at_all(self):
        folder = self.path("out")
        folder.mkdir()
        old = folder / "rules.txt"
        old.write_text("old")
        self.assert_exit(tune("-o", old, "nonsense"), 2)
        self.assertEqual(old.read_text(), "old")
        self.assert_exit(tune("-o", old, PROBLEM), 0)
        self.assertIn("kernels of cpu", old.read_text())
        self.assertEqual([path.name for path in folder.iterdir()], ["rules.txt"])
        for path, text in ((folder, "not a regular file"), ("/dev/full", "not a regular file"),
                           (folder / "no" / "rules.txt", "folder")):
            done = tune("-o", path, PROBLEM)
            self.assert_refused(done, str(path), text)
            self.assertEqual(done.stdout, "")  # refused before anything is measured


if __name__ == "__main__":
    unittest.main()
