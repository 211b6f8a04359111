# SPDX-License-Identifier: MIT
"""What a user sees in a terminal of 80 columns: no line is wider, progress stays where results go to a file, slips are
answered by what was meant, and the command speaks of its own options."""
import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import termios
import threading
import unittest

from command import CommandTest, SOURCE, TOOL, small_problem, sternway, write_file

LINE = "attn_bwd:f32:b1h2s48d16:causal_br"


class Terminal(CommandTest):
    def on_terminal(self, *arguments, out=True, err=True, code=0, columns=80, **environment):
        """What the command writes to a terminal, which is its standard output, its standard error or both."""
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        parts = []

        def read():
            try:
                while data := os.read(ours, 65536):
                    parts.append(data)
            except OSError:  # the other end is closed
                pass
        reader = threading.Thread(target=read)
        clean = {key: value for key, value in os.environ.items() if not key.startswith("STERNWAY_")}
        with open(self.path("out"), "wb") as file:
            child = subprocess.Popen([TOOL, *map(str, arguments)], env={**clean, **environment}, stdout=theirs if out else file,
                                     stderr=theirs if err else subprocess.DEVNULL)
            os.close(theirs)
            reader.start()
            child.wait(timeout=120)
            reader.join()
            os.close(ours)
        text = b"".join(parts).decode()
        self.assertEqual(child.returncode, code, text)
        return text

    def assert_fits(self, text, columns=80):
        """Lines as a terminal shows them: what is behind the last return of the cursor."""
        for line in text.replace("\r\n", "\n").split("\n"):
            for part in line.split("\r\033[K"):
                self.assertLessEqual(len(part), columns, repr(part))

    def test_conform_fits(self):
        text = self.on_terminal("conform", "--backend", "cpu", "--quick", "--cases", "14")
        self.assert_fits(text)
        rows = re.findall(r"(?m)^(\w+) +(\d+) +(\d+) +(\d+)  +([\d.]+|-)", text)
        self.assertGreater(len(rows), 7)
        self.assertNotIn("\r\n\r\n", text)
        self.assertNotRegex(text, r"(?m) +\r?$")

    def test_long_lines_of_conform_are_folded_between_words(self):
        text = self.on_terminal("conform", "--backend", "cpu", "-v", LINE, err=False)
        self.assert_fits(text)
        joined = re.sub(r"\r\n     ", " ", text)
        self.assertRegex(joined, rf"ok given {LINE} cpu_\S+ max=\d+\.\d+:d\w rms=\S+ out=\d+\.\d+ lse=\d+\.\d+ seed=\d+\r\n")

    def test_a_problem_wider_than_the_terminal_is_folded_behind_colons(self):
        line = "attn_bwd:bf16:b1h2k1s33x65d64:causal_br:softcap20:alibi:dlse:delta_out:dq_f32:dk_f32:dv_f32:seed123456789012"
        text = self.on_terminal("conform", "--backend", "cpu", line, err=False)
        self.assert_fits(text)
        self.assertIn(line, re.sub(r"\r\n +", "", text))
        self.assertIn("seed123456789012", text)

    def test_a_problem_begins_on_the_line_of_its_result(self):
        line = "attn_bwd:f16:b1h4k2s31x65d80:bias_bhqk:grads_qkvb:data_row_65504"
        text = self.on_terminal("conform", "--backend", "cpu", "--variant", "auto", line, err=False)
        self.assert_fits(text)
        self.assertRegex(text, r"(?m)^ok +- +- attn_bwd:f16:")

    def test_errors_and_the_log_are_folded_between_words(self):
        long = "/nowhere/" + "a/" * 8 + "x.safetensors: is not there"
        text = self.on_terminal("run", "--backend", "cpu", long, out=False, code=2)
        self.assert_fits(text)
        self.assertIn(f"sternway run: {long}: ", re.sub(r"\r\n +", " ", text))
        path = write_file(self.path("x"), small_problem())
        text = self.on_terminal("run", "--backend", "cpu", path, out=False, STERNWAY_BACKND="cpu", STERNWAY_LOG="trace")
        self.assert_fits(text)
        joined = re.sub(r"\r\n    ", " ", text)
        self.assertRegex(joined, r"(?m)^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z sternway: warn: environment: STERNWAY_BACKND is unknown")
        self.assertRegex(joined, r"(?m)(^|\033\[K)\S+Z sternway: trace: plan: attn_bwd:")

    def test_short_lines_and_long_ones(self):
        short = sternway("conform", "--backend", "cpu", "--variant", "auto", LINE).stdout.splitlines()
        self.assertRegex(short[1], rf"^ok +\d\.\d{{3}} +\d\.\d{{3}} {LINE}$")
        self.assertIn("1 distinct problem on 1 variant of cpu", short)
        long = sternway("conform", "--backend", "cpu", "-v", "--variant", "auto", LINE).stdout.splitlines()
        self.assertRegex(long[0], rf"^ok given {LINE} cpu_\S+ max=\d+\.\d+:d\w rms=")
        self.assertEqual(*(re.findall(r"\d\.\d{3}", line)[:2] for line in (short[1], long[0])))

    def test_progress_stays_while_results_go_to_a_file(self):
        shown = self.on_terminal("conform", "--backend", "cpu", "--quick", "--cases", "25", out=False)
        drawn = shown.split("\r\033[K")
        self.assertGreater(len(drawn), 2)
        self.assertEqual((drawn[0], drawn[-1]), ("", ""))  # erased at the end, and only then
        for line in drawn[1:-1]:
            self.assertRegex(line, r"^conform cpu: \d+ of \d+ results, 0 failed, ")
        self.assertNotIn("\033", self.path("out").read_text())

    def test_run_fits(self):
        path = write_file(self.path("x"), small_problem(rows=40, keys=40, dims=16))
        for options in ((), ("-v",)):
            text = self.on_terminal("run", "--backend", "cpu", *options, path, err=False)
            self.assert_fits(text)
            self.assertRegex(text, r"dq +norm \d\.\d{4}e[-+]\d\d ")
            self.assertEqual("largest" in text, bool(options))
        self.assertRegex(sternway("run", path).stdout, r"(?m)^    dq +norm \S+  pass  max 0\.\d{3}  rms 0\.\d{3} ")
        wide = [line for line in sternway("run", path).stdout.splitlines() if re.match(" +d[qkv] ", line)]
        self.assertLessEqual(max(map(len, wide)), 80)

    def test_bench_fits(self):
        wide = "attn_bwd:bf16:b1h2k1s33x65d64:causal_br:softcap20:alibi:dlse:delta_out:dq_f32:dk_f32:dv_f32:skew1:seed123456"
        text = self.on_terminal("bench", "--backend", "cpu", "--seconds", "0.01", LINE, wide, err=False)
        self.assert_fits(text)
        self.assertRegex(text, rf"(?m)^{LINE}, cpu_\S+\r\n +\d+\.\d{{3}} +\d+\.\d{{3}} ")
        self.assertIn(wide, re.sub(r"\r\n +", "", text))
        text = self.on_terminal("bench", "--backend", "cpu", "--seconds", "0.01", LINE, err=False, columns=160)
        self.assertRegex(text, rf"(?m)^ +\d+\.\d{{3}} .*  cpu_\S+ +{LINE}\r$")

    def test_counted_words(self):
        good = small_problem()
        bad = dict(good, q=good["k"])
        one = {name: value for name, value in good.items() if name not in ("dk_ref", "dv_ref")}
        self.assertIn("1 reference met, 0 missed, 0 pools missed, 0 problems refused",
                      sternway("run", write_file(self.path("one"), one)).stdout)
        self.assertIn("0 references met, 0 missed, 0 pools missed, 1 problem refused",
                      sternway("run", write_file(self.path("bad"), bad)).stdout)

    def test_slips_are_answered_in_a_line(self):
        for word, meant in (("causal", "causal_tl or causal_br"), ("window256", "wl256 or wr256"), ("causal_rb", "causal_br"),
                            ("dropuot0.1", "dropout0.1"), ("determinstic", None), ("alibbi", "alibi")):
            with self.subTest(word=word):
                done = sternway("explain", f"attn_bwd:bf16:b1h1s8d64:{word}")
                self.assert_exit(done, 2)
                self.assertEqual(len(done.stderr.splitlines()), 1)
                self.assertLess(len(done.stderr), 160)
                self.assertIn(f"did you mean {meant}?" if meant else "is not an option; ", done.stderr)
        done = sternway("explain", "attn_bwd:bf16:b1h1s8d64:zebra")
        self.assert_refused(done, "'zebra' is not an option; `sternway help problem` lists them")
        listed = sternway("help", "problem")
        self.assert_exit(listed, 0)
        for word in ("causal_br", "wl<N>", "dropout<F>", "cuq<N,N..>", "data_normal", "any_address"):
            self.assertIn(word, listed.stdout)
        self.assertLessEqual(max(map(len, listed.stdout.splitlines())), 80)
        self.assertEqual(sternway("help", "run").stdout, sternway("run", "--help").stdout)

    def test_the_command_speaks_of_its_own_options(self):
        path = write_file(self.path("x"), small_problem())
        for arguments in (("run", path), ("bench", LINE), ("conform", LINE), ("explain", LINE), ("tune", LINE)):
            for option in (("--arch", "gfx942"), ("--backend", "hip"), ("--arch", "sm91")):
                with self.subTest(command=arguments[0], option=option):
                    done = sternway(arguments[0], *option, *arguments[1:])
                    self.assertNotEqual(done.returncode, 0)
                    self.assertNotRegex(done.stdout + done.stderr, r"opts\.|context_create")
        text = sternway("explain", "--backend", "cpu", LINE).stdout
        self.assertRegex(text, r"(?m)^hip: not chosen: (--backend cpu names cpu|this build leaves it out \(STERNWAY_HIP=OFF\))$")
        text = sternway("explain", "--memory", "device", "--backend", "cpu", LINE).stdout
        self.assertIn("--backend cpu names cpu with --memory device", text)

    def test_info_names_the_build(self):
        build = json.loads(sternway("info", "--json").stdout)["build"]
        text = sternway("info").stdout
        self.assertIn(f"{build['date']}, {build['compiler']}", re.sub(r"\n +", " ", text))
        self.assertRegex(build["compiler"], r"^(Clang|GNU|AppleClang) \d+\.")
        self.assertEqual("left out: " in text, bool(build["without"]))
        if (SOURCE / ".git").exists() and not os.environ.get("SOURCE_DATE_EPOCH"):
            def git(*words):
                return subprocess.run(["git", "-C", SOURCE, *words], capture_output=True, text=True, check=False,
                                      env={**os.environ, "TZ": "UTC"})
            shown = git("show", "-s", "--format=%H %cd", "--date=format-local:%Y-%m-%d", build["commit"])
            self.assertEqual(shown.returncode, 0, shown.stderr)
            commit, date = shown.stdout.split()
            self.assertTrue(commit.startswith(build["commit"]) and len(build["commit"]) == 12, build)
            self.assertEqual(build["date"], date)  # not of the day it was built on
            self.assertIn(f"build: commit {build['commit']}, ", text)

    def test_log_lines_carry_a_time(self):
        env = {"STERNWAY_LOG": "trace", "STERNWAY_BAKEND": "1"}
        lines = sternway("bench", "--backend", "cpu", "--seconds", "0.01", LINE, env=env).stderr.splitlines()
        logged = [line for line in lines if " sternway: " in line]
        self.assertTrue(any("warn: environment: STERNWAY_BAKEND is unknown; did you mean STERNWAY_BACKEND?" in line
                            for line in logged), lines)
        for line in logged:
            self.assertRegex(line, r"^20\d\d-[01]\d-[0-3]\dT[0-2]\d:[0-5]\d:[0-6]\d\.\d{3}Z sternway: (warn|info|trace): ")


if __name__ == "__main__":
    unittest.main()
