# SPDX-License-Identifier: MIT
"""Help, options, exit codes, `info` and `explain`."""
import json
import os
import pathlib
import re
import shutil
import subprocess
import unittest

from command import CommandTest, SOURCE, TOOL, small_problem, sternway, write_file

IMAGES = pathlib.Path(os.environ["STERNWAY_IMAGES"])

COMMANDS = ("info", "explain", "run", "conform", "cp-conform", "bench", "tune", "doctor")
PROBLEM = "attn_bwd:bf16:b4h32k8s4096d128:causal_br:dropout0.1"


class Cli(CommandTest):
    def test_help(self):
        done = sternway("--help")
        self.assert_exit(done, 0)
        for name in COMMANDS:
            self.assertRegex(done.stdout, rf"(?m)^  {name} +\S")
        for name in COMMANDS:
            done = sternway(name, "--help")
            self.assert_exit(done, 0)
            self.assertIn(f"sternway {name}", done.stdout)
            self.assertIn("--json", done.stdout)

    def test_version(self):
        header = (SOURCE / "include/sternway/base.h").read_text()
        version = ".".join(re.search(rf"STW_VERSION_{part} (\d+)", header)[1] for part in ("MAJOR", "MINOR", "PATCH"))
        done = sternway("--version")
        self.assert_exit(done, 0)
        self.assertEqual(done.stdout, f"sternway {version}\n")

    def test_usage_errors(self):
        path = write_file(self.path("x"), small_problem())
        for arguments, text in (
                ((), "Usage: sternway"), (("runn",), "'runn' is not a command"), (("run",), "a safetensors file is needed"),
                (("run", "--tolerance", "-1", path), "--tolerance -1"), (("run", "--tolerance", "x", path), "--tolerance x"),
                (("run", "--tolerance", "nan", path), "--tolerance nan"),
                (("run", "--repeat", "0", path), "--repeat 0"), (("run", "--threads", "1025", path), "1..1024"),
                (("run", "--backend", "tpu", path), "tpu"), (("run", "--frobnicate", path), "frobnicate"),
                (("run", "--backend", "cuda:sm80", "--arch", "sm90", path), "different archs"),
                (("run", "--backend", "cpu", "--arch", "x" * 40, path), "not the name of an arch"),
                (("run", "--backend", "cpu", "--arch", "sm80", path), "sm80"),
                (("explain",), "a PROBLEM is needed"), (("explain", "a", "b"), "one PROBLEM"),
                (("explain", "--memory", "tape", PROBLEM), "host, device or buffers"),
                (("info", "--nope"), "nope")):
            with self.subTest(arguments=arguments):
                done = sternway(*arguments)
                self.assert_exit(done, 2)
                self.assertIn(text, done.stderr)
                self.assertEqual(done.stdout, "")

    def test_full_output_is_an_error(self):
        with open("/dev/full", "w", encoding="ascii") as full:
            done = subprocess.run([TOOL, "info"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
        self.assertEqual(done.returncode, 1)
        self.assertIn("standard output cannot be written", done.stderr)

    def test_info(self):
        done = sternway("info")
        self.assert_exit(done, 0)
        for part in ("sternway ", "archs:", "sm80", "gfx942", "device images:", "devices:", "cpu instruction sets:",
                     "STERNWAY_BACKEND"):
            self.assertIn(part, done.stdout)
        report = json.loads(sternway("info", "--json", env={"STERNWAY_LOG": "error"}).stdout)
        archs = re.findall(r"(?m)^STW_ARCH\((\w+)", (SOURCE / "common/arch.def").read_text())
        self.assertEqual([row["name"] for row in report["archs"]], archs)
        names = re.findall(r'(?m)^STW_ENV\(\w+, "(\w+)"', (SOURCE / "common/env.def").read_text())
        self.assertEqual([row["name"] for row in report["environment"]], names)
        log = next(row for row in report["environment"] if row["name"] == "STERNWAY_LOG")
        self.assertEqual((log["value"], log["set"]), ("error", True))
        self.assertEqual(report["devices"][-1]["backend"], "cpu")
        self.assertTrue(report["devices"][-1]["usable"])
        flags = re.search(r"(?m)^flags.*", pathlib.Path("/proc/cpuinfo").read_text())
        if flags:  # x86: what the names of the CPU's variants speak of
            for name, flag in (("avx2", "avx2"), ("avx512f", "avx512f"), ("avx512bf16", "avx512_bf16")):
                self.assertEqual(name in report["cpu_instruction_sets"], flag in flags.group().split(), name)

    @unittest.skipUnless((SOURCE / ".git").exists() and shutil.which("cmake"), "no checkout of git, or no cmake")
    def test_an_archive_knows_its_commit(self):
        """An archive that git made, unpacked where there is no git, is built with the same commit and date."""
        archive = self.path("x.tar")
        subprocess.run(["git", "-C", SOURCE, "archive", "-o", archive, "HEAD", "cmake/epoch.cmake"], check=True)
        subprocess.run(["tar", "-xf", archive, "-C", self.folder], check=True)
        script = self.path("told.cmake")
        script.write_text("include(${PROJECT_SOURCE_DIR}/cmake/epoch.cmake)\nmessage(\"${STERNWAY_COMMIT} ${STERNWAY_EPOCH}\")\n")
        clean = {key: value for key, value in os.environ.items() if key != "SOURCE_DATE_EPOCH"}

        def told(env):
            return subprocess.run(["cmake", f"-DPROJECT_SOURCE_DIR={self.folder}", "-P", script], check=True, env=env, text=True,
                                  capture_output=True).stderr.split()
        words = subprocess.run(["git", "-C", SOURCE, "log", "-1", "--format=%H %ct"], check=True, text=True,
                               capture_output=True).stdout.split()
        self.assertEqual(told(clean), [words[0][:12], words[1]])
        self.assertEqual(told({**clean, "SOURCE_DATE_EPOCH": "5"}), [words[0][:12], "5"])

    def test_info_verify(self):
        done = sternway("info", "--verify")
        self.assert_exit(done, 0)
        images = json.loads(sternway("info", "--verify", "--json").stdout)["images"]
        self.assertTrue(all(image["intact"] for image in images))
        if not images:
            self.assertIn("there are none to verify", done.stdout)

    @unittest.skipUnless((IMAGES / "images.c").exists(), "this build has no device images")
    def test_info_verify_finds_a_damaged_byte_in_every_image(self):
        names = re.findall(r'\.incbin \\"(.+?)\\"', (IMAGES / "images.c").read_text())  # what the build embeds
        self.assertTrue(any(name.startswith("jagged") for name in names))
        (self.path("bin")).mkdir()
        tool = pathlib.Path(shutil.copy2(TOOL, self.path("bin")))
        shutil.copytree(pathlib.Path(TOOL).parents[1] / "lib", self.path("lib"), symlinks=True,
                        ignore=lambda folder, files: [name for name in files if not name.startswith("libsternway.so")])
        library = self.path("lib") / "libsternway.so"
        content = library.read_bytes()

        def verify():
            done = subprocess.run([tool, "info", "--verify", "--json"], capture_output=True, text=True, timeout=60,
                                  env={key: value for key, value in os.environ.items() if not key.startswith("STERNWAY_")})
            return done, [image for image in json.loads(done.stdout)["images"] if not image["intact"]]
        done, damaged = verify()
        self.assert_exit(done, 0)
        self.assertEqual(damaged, [])
        self.assertEqual(len(json.loads(done.stdout)["images"]), len(names))
        for name in names:
            with self.subTest(image=name):
                image = (IMAGES / name).read_bytes()
                at = content.index(image) + len(image) // 2
                with library.open("r+b") as file:
                    file.seek(at)
                    file.write(bytes([content[at] ^ 1]))
                done, damaged = verify()
                with library.open("r+b") as file:
                    file.seek(at)
                    file.write(content[at:at + 1])
                self.assertEqual(len(damaged), 1)
                arch, kind, ops = (damaged[0][key] for key in ("arch", "kind", "ops"))
                self.assertEqual(ops, {"jagged": "jagged", "cp": "ranks"}.get(name.partition("_")[0], "attention"))
                self.assertTrue(f".{arch}." in name or name.rpartition(".")[0].endswith(f"{arch}.{kind}"), (name, arch, kind))
                self.assert_refused(done, f"{arch} {kind} of {ops} is damaged", code=1)

    def test_info_reports_a_bad_environment(self):
        done = sternway("info", env={"STERNWAY_DEVICE": "first"})
        self.assert_refused(done, "STERNWAY_DEVICE=first", code=1)
        self.assertIn("STERNWAY_DEVICE", done.stdout)

    def test_info_refuses_the_environment_that_run_refuses(self):
        path, bad = write_file(self.path("x"), small_problem()), self.path("bad.txt")
        bad.write_text('STW_RULE("colour=3", cpu_portable_32x32)\n')
        for env, part in (({"STERNWAY_TUNING": "/nowhere/rules"}, "/nowhere/rules"),
                          ({"STERNWAY_TUNING": str(bad)}, "colour=3"),
                          ({"STERNWAY_VARIANT": "cpu_99x99"}, "STERNWAY_VARIANT=cpu_99x99"),
                          ({"STERNWAY_VARIANT": "sm80_64x128_hd128", "STERNWAY_BACKEND": "cpu"}, "sm80_64x128_hd128"),
                          ({"STERNWAY_CPU_THREADS": "many"}, "STERNWAY_CPU_THREADS=many")):
            with self.subTest(env=env):
                self.assertNotEqual(sternway("run", path, env=env).returncode, 0)
                self.assert_refused(sternway("info", env=env), part, code=1)
                done = sternway("info", "--json", env=env)
                self.assert_exit(done, 1)
                self.assertIn(part, json.loads(done.stdout)["environment_error"])
        good = {"STERNWAY_VARIANT": "cpu_portable_32x32", "STERNWAY_BACKEND": "cpu"}
        self.assert_exit(sternway("info", env=good), 0)
        self.assert_exit(sternway("run", path, env=good), 0)

    def test_a_tuning_file_with_one_wrong_row_is_not_applied_at_all(self):
        path, rules = write_file(self.path("x"), small_problem()), self.path("rules.txt")
        env, good = {"STERNWAY_TUNING": str(rules), "STERNWAY_BACKEND": "cpu"}, 'STW_RULE("", cpu_portable_32x32)\n'
        rules.write_text(good)
        self.assertIn("variant: cpu_portable_32x32", sternway("explain", PROBLEM, env=env).stdout)
        for row in ("STW_RULE(\"head_dim=\", cpu_portable_32x32)", "STW_RULE(\"\", cpu_no_such)", "STW_RULE(\"\")",
                    "STW_RULE(\"head_dim>=9 head_dim<=8\", cpu_portable_32x32)", "/* a */ STW_RULE(\"\", cpu_portable_32x32)"):
            rules.write_text(good + "/* 2 */\n" + row + "\n" + good)
            with self.subTest(row=row):
                for done, code in ((sternway("run", path, env=env), 2), (sternway("info", env=env), 1),
                                   (sternway("bench", "attn_bwd:f32:b1h1s8d8", env=env), 2)):
                    self.assert_refused(done, f"{rules} line 3", code=code)
                done = sternway("explain", PROBLEM, env=env)
                self.assert_exit(done, 2)
                self.assertIn("line 3", done.stdout)
                self.assertNotIn("variant:", done.stdout)

    def test_explain(self):
        done = sternway("explain", "--backend", "cpu", PROBLEM)
        self.assert_exit(done, 0)
        for part in ("cpu: chosen", f"problem: {PROBLEM}", "variant: ", "workspace: "):
            self.assertIn(part, done.stdout)
        document = json.loads(sternway("explain", "--json", "--backend", "cpu", PROBLEM).stdout)
        self.assertEqual((document["chosen"], document["problem"]), ("cpu", PROBLEM))
        self.assertEqual("\n".join(document["text"]) + "\n", done.stdout)
        plan = document["plan"]
        self.assertEqual((plan["backend"], plan["arch"], plan["problem"]), ("cpu", "cpu", PROBLEM))
        self.assertIn(f"variant: {plan['variant']}\n", done.stdout)
        self.assertEqual({row["backend"]: row["chosen"] for row in document["backends"]}, {"cuda": False, "hip": False, "cpu": True})
        self.assertEqual(document["backends"][-1]["backend"], "cpu")  # those that the build leaves out come first
        for row in document["backends"]:
            self.assertEqual(row["chosen"], not row["reason"])
        self.assertEqual([line for line in done.stdout.splitlines() if line.startswith("  ")],
                         ["  " + line for line in document["rules"]])

    def test_explain_names_the_main_loops_tile(self):
        for dtype, tile in (("f64", "32x64"), ("bf16", r"[1-9]\d*x[1-9]\d*")):
            done = sternway("explain", "--backend", "cpu", f"attn_bwd:{dtype}:b1h1s40d64")
            self.assertRegex(done.stdout, rf"(?m)^tile: {tile}, loop ")

    def test_explain_counts_the_tiles_of_masks(self):
        for options, words in (("s1024d8:intervals_from_below:draw_chunk:draw256", "25.00% visible, 0.00% partial"),
                               # of 8 x 8 tiles four documents have three each, two of which the diagonal cuts
                               ("s1024d8:intervals_from:causal_br:draw_chunk:draw256", "18.75% visible, 12.50% partial"),
                               ("s1024d8:intervals_from_below:draw_causal", "56.25% visible, 12.50% partial"),
                               ("s200d8:intervals_range:draw_hidden", "0.00% visible, 0.00% partial"),
                               ("s384d8:blockmask:draw_chunk", "33.33% visible, 0.00% partial")):
            done = sternway("explain", "--backend", "cpu", f"attn_bwd:f32:b1h2{options}")
            self.assertIn(f"tiles of 128x128, masks as drawn: {words}\n", done.stdout)
            tiles = json.loads(sternway("explain", "--json", "--backend", "cpu", f"attn_bwd:f32:b1h2{options}").stdout)["mask_tiles"]
            self.assertEqual("{visible:.2%} visible, {partial:.2%} partial".format(**tiles), words)
        document = json.loads(sternway("explain", "--json", "--backend", "cpu", "attn_bwd:f32:b1h2s384d8:causal_tl").stdout)
        self.assertNotIn("mask_tiles", document)

    def test_explain_names_the_condition_that_fails(self):
        rules = self.path("rules.txt")
        rules.write_text("".join(f'STW_RULE("{text}", cpu_portable_32x32)\n' for text in (
            "op=fwd", "head_dim>=9", "head_dim_v<=7", "dtype=f16|bf16", "seq_q>=100 head_dim<=8", "causal=1", "head_dim=8",
            "causal=1", "op=bwd")))
        done = sternway("explain", "attn_bwd:f32:b1h2s9d8", env={"STERNWAY_TUNING": str(rules), "STERNWAY_BACKEND": "cpu"})
        lines = [line.strip() for line in done.stdout.splitlines() if line.startswith("  ")]
        reasons = [line.rsplit(": ", 1)[1] for line in lines if line.startswith("not cpu_portable_32x32 (")]
        self.assertEqual(reasons, ["head_dim is 8", "head_dim_v is 8", "dtype is f32", "seq_q is 9", "causal is 0"])
        self.assertRegex(lines[5], '^rule "head_dim=8" of ')
        self.assertRegex(lines[6], "^next: cpu_")
        self.assertNotIn("cpu_portable_32x32", lines[6])
        self.assertEqual(len(lines), 7)

    def test_explain_says_why_not(self):
        done = sternway("explain", "--memory", "device", "--backend", "cpu", PROBLEM)
        self.assert_exit(done, 2)
        self.assertIn("no backend", done.stdout)
        document = json.loads(sternway("explain", "--json", "--memory", "device", "--backend", "cpu", PROBLEM).stdout)
        self.assertIn(document["reason"], done.stdout)
        self.assertTrue(document["reason"] and not document["plan"] and not document["backends"] and not document["rules"])
        text = sternway("explain", PROBLEM).stdout
        for backend in ("cpu", "cuda", "hip"):
            self.assertRegex(text, rf"(?m)^{backend}: (chosen|not chosen)")
        refused = sternway("explain", "--backend", "cpu", "attn_bwd:f32:b1h4k3s8d8")
        self.assert_exit(refused, 2)
        self.assert_exit(sternway("explain", "--json", "--backend", "cpu", "attn_bwd:f32:b1h1s8d257"), 2)
        self.assert_exit(sternway("explain", PROBLEM, env={"STERNWAY_DEVICE": "99", "STERNWAY_BACKEND": "hip"}), 1)
        self.assertIn("heads_q 4", refused.stdout)
        self.assertIsNone(json.loads(sternway("explain", "--json", "attn_bwd:f32:b1h4k3s8d8").stdout)["chosen"])

    def test_explain_bad_problems(self):
        for text in ("", "attn", "attn_bwd", "attn_bwd:f80:b1h1s1d1", "attn_bwd:f32:b1h1s1d1:what", "attn_bwd:f32:b1h1s1",
                     "attn_bwd:f32:b99999999999999999999h1s1d1", "attn_bwd:f32:b1h1s1d1:dropout", "\x1b[0m", "é" * 500):
            with self.subTest(text=text):
                done = sternway("explain", text)
                self.assert_exit(done, 2)
                self.assertRegex(done.stderr, r"^sternway explain: \S")
                self.assertNotIn("\x1b", done.stderr)

    def test_explain_takes_the_forward(self):
        line = PROBLEM.replace("attn_bwd", "attn_fwd")
        done = sternway("explain", "--backend", "cpu", line)
        self.assert_exit(done, 0)
        self.assertIn(f"problem: {line}\n", done.stdout)
        rules = self.path("rules.txt")
        rules.write_text('STW_RULE("op=fwd", cpu_portable_32x32)\nSTW_RULE("op=bwd", cpu_avx2_64x64)\n')
        env = {"STERNWAY_TUNING": str(rules), "STERNWAY_BACKEND": "cpu"}
        self.assertIn("variant: cpu_portable_32x32", sternway("explain", line, env=env).stdout)
        self.assertNotIn("variant: cpu_portable_32x32", sternway("explain", PROBLEM, env=env).stdout)
        refused = sternway("explain", "--backend", "cpu", "attn_fwd:f32:b1h4k3s8d8")
        self.assert_exit(refused, 2)
        self.assertIn("heads_q 4", refused.stdout)

    def test_trace_lines_are_replayed(self):
        """What a program traces of its forwards and backwards, given to explain, bench and conform as it is."""
        path = write_file(self.path("x"), small_problem(rows=9, causal=True, with_forward=False), {"mask": "causal_br"})
        done = sternway("run", "--backend", "cpu", path, env={"STERNWAY_LOG": "trace"})
        self.assert_exit(done, 0)
        plans = re.findall(r" trace: plan: (\S+): cpu (\S+), workspace", done.stderr)
        self.assertEqual(sorted(problem.split(":")[0] for problem, _ in plans), ["attn_bwd", "attn_fwd"])
        for problem, variant in plans:
            with self.subTest(problem=problem):
                text = sternway("explain", "--backend", "cpu", problem).stdout
                self.assertIn(f"problem: {problem}\n", text)
                self.assertIn(f"variant: {variant}\n", text)
                row, = json.loads(sternway("bench", "--json", "--backend", "cpu", "--seconds", "0.01", problem).stdout)["problems"]
                self.assertEqual((row["problem"], row["variant"], row["verified"]), (problem, variant, True))
                self.assert_exit(sternway("conform", "--backend", "cpu", problem), 0)

    def test_json_of_errors(self):
        for arguments, text in ((("explain", "attn_bwd:bad"), "bad"), (("bench", "--backend", "tpu"), "tpu"),
                                (("explain", PROBLEM + ":causal"), "did you mean"),
                                (("conform", "attn_bwd:bad"), "bad")):
            with self.subTest(arguments=arguments):
                done = sternway(*arguments, "--json")
                self.assert_exit(done, 2)
                document = json.loads(done.stdout)
                self.assertIn(text, document["error"])
                self.assertEqual(document["exit_status"], 2)


if __name__ == "__main__":
    unittest.main()
