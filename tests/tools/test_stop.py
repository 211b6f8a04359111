# SPDX-License-Identifier: MIT
"""Commands that are ended early, by a signal or because nobody reads what they print: what had finished is told and
written, marked as partial, and the exit status is the signal's. Standard streams that are closed or full."""
import json
import os
import signal
import subprocess
import time
import unittest

from command import CommandTest, TOOL, read_file, small_problem, sternway, write_file

LINE = "attn_bwd:f32:b1h2s48d16:causal_br"
MANY = [f"attn_bwd:f32:b1h2s33d16:seed{n}" for n in range(2000)]  # more than any test waits for


class Stop(CommandTest):
    def start(self, *arguments, **options):
        clean = {key: value for key, value in os.environ.items() if not key.startswith("STERNWAY_")}
        child = subprocess.Popen([TOOL, *map(str, arguments)], env=clean, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                 start_new_session=True, cwd=self.folder, **options)
        self.addCleanup(self.end, child)
        return child

    def end(self, child):
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        child.wait()
        child.stdout.close()
        child.stderr.close()

    def read_until(self, child, text):
        seen = ""
        for line in child.stdout:
            seen += line
            if text in line:
                return seen
        self.fail(f"{text} never came: {seen} {child.stderr.read()}")

    def stop(self, child, number, group=False):
        """The rest of its output; its processes are gone, and it ended by that signal."""
        began = time.monotonic()
        (os.killpg if group else os.kill)(child.pid, number)
        out, err = child.stdout.read(), child.stderr.read()
        self.assertEqual(child.wait(timeout=20), -number, out + err)
        self.assertLess(time.monotonic() - began, 20)
        with self.assertRaises(ProcessLookupError):
            os.killpg(child.pid, 0)
        return out, err

    def test_conform(self):
        for number, group, jobs in ((signal.SIGINT, True, 2), (signal.SIGTERM, False, 2), (signal.SIGHUP, False, 1), (signal.SIGINT, False, 0)):
            with self.subTest(signal=number.name, jobs=jobs):
                child = self.start("conform", "--backend", "cpu", "--variant", "auto", "--jobs", jobs, "--report", "r.json", "--junit",
                                   "r.xml", *MANY)
                seen = self.read_until(child, "ok ")
                out, err = self.stop(child, number, group)
                lines = [line for line in (seen + out).splitlines() if line.startswith("ok ")]
                report = json.loads(self.path("r.json").read_text())
                left = len(MANY) - len(lines)
                text = f"stopped by {number.name}: {left} of {len(MANY)} problems did not run"
                self.assertEqual(report["partial"], text)
                self.assertEqual(report["errors"], [text])
                self.assertIn(text, err)
                self.assertTrue(0 < len(lines) < len(MANY))
                self.assertEqual(out.splitlines()[-1], f"{len(lines)} passed, 0 failed, 0 skipped, partial: {text}")
                self.assertEqual((report["passed"], report["failed"], report["exit_status"]), (len(lines), 0, 128 + number))
                self.assertEqual(len(report["cases"]), len(lines))
                self.assertIn(text, self.path("r.xml").read_text())
        self.assertEqual(sorted(path.name for path in self.folder.iterdir()), ["r.json", "r.xml"])
        self.assert_refused(sternway("conform", "--merge", self.path("r.json")), "the run says: stopped by SIGINT", code=1)

    def test_results_behind_one_that_hangs(self):
        """In the order of the list a result waits for those before it; a signal ends the waiting."""
        slow = "attn_bwd:f32:b4h8s768d128"
        child = self.start("conform", "--backend", "cpu", "--variant", "auto", "--jobs", 2, "--progress", "--report", "r.json", slow, *MANY[:3])
        time.sleep(1)
        self.stop(child, signal.SIGTERM)
        report = json.loads(self.path("r.json").read_text())
        self.assertEqual([case["problem"] for case in report["cases"]], MANY[:3])
        self.assertIn("1 of 4 problems", report["partial"])

    def test_a_worker_ends_with_its_parent(self):
        child = self.start("conform", "--backend", "cpu", "--variant", "auto", "--jobs", 2, *MANY)
        self.read_until(child, "ok ")
        child.kill()
        child.stdout.read()  # until nobody has the other end
        child.wait(timeout=20)
        with self.assertRaises(ProcessLookupError):
            for _ in range(100):
                os.killpg(child.pid, 0)
                time.sleep(0.05)

    def test_bench(self):
        for form in ("--json", "--csv", None):
            child = self.start("bench", "--backend", "cpu", "--seconds", 0.05, *([form] if form else []), *MANY)
            if form == "--json":
                time.sleep(1)
            seen = "" if form == "--json" else self.read_until(child, MANY[1])
            out, err = self.stop(child, signal.SIGINT)
            rows = (seen + out).count("attn_bwd:")
            text = f"stopped by SIGINT: {len(MANY) - rows} of {len(MANY)} problems were not timed"
            self.assertIn(text, err)
            if form == "--json":
                document = json.loads(out)
                self.assertEqual((document["partial"], len(document["problems"])), (text, rows))
                self.assertGreater(rows, 0)
            if not form:
                self.assertEqual(out.splitlines()[-1], f"partial: {text}")

    def test_tune(self):
        for form in ("--json", None):
            child = self.start("tune", "--backend", "cpu", "--seconds", 0.01, "-o", "rules.def", *([form] if form else []), *MANY)
            if form:
                time.sleep(2)
            else:
                self.read_until(child, MANY[1])
            out, err = self.stop(child, signal.SIGTERM)
            self.assertRegex(err, rf"stopped by SIGTERM: \d+ of {len(MANY)} problems were not measured")
            self.assertRegex(self.path("rules.def").read_text(), r"partial: stopped by SIGTERM")
            if form:
                document = json.loads(out)
                self.assertIn(f"{len(MANY) - len(document['problems'])} of {len(MANY)}", document["partial"])
            else:
                self.assertRegex(out.splitlines()[-1], "^partial: stopped by SIGTERM")
            self.path("rules.def").unlink()

    def problems(self, count):
        tensors = {f"p{n}.{name}": tensor for n in range(count) for name, tensor in small_problem(seed=n).items()}
        return write_file(self.path("in"), tensors)

    def test_run(self):
        path = self.problems(30)
        for form in ("--json", None):
            child = self.start("run", "--backend", "cpu", "--repeat", 5000, "-o", "out", *([form] if form else []), path, path)
            if form:
                time.sleep(0.7)
            seen = "" if form else self.read_until(child, "p1: ")
            out, err = self.stop(child, signal.SIGINT)
            self.assertRegex(err, r"stopped by SIGINT: \d+ problems of one file and 1 further file did not run")
            tensors, metadata = read_file(self.path("out"))
            self.assertIn("partial", metadata)
            if form:
                document = json.loads(out)
                names = [problem["name"] for problem in document["files"][0]["problems"]]
                self.assertTrue(0 < len(names) < 30 and len(document["files"]) == 1, names)
                self.assertEqual(set(tensors), {f"{name}.{grad}" for name in names for grad in ("dq", "dk", "dv")})
                self.assertIn(f"{30 - len(names)} problems of one file", document["partial"])
                self.assertEqual((document["partial"], document["exit_status"]), (metadata["partial"], 130))
            else:
                self.assertRegex(out.splitlines()[-1], r"^\d+ references met, 0 missed, .*, partial: stopped by SIGINT")
                self.assertIn("p0.dq", tensors)
            self.path("out").unlink()

    def test_a_reader_who_has_gone(self):
        path = self.problems(400)
        for arguments, wanted in ((["conform", "--backend", "cpu", "--variant", "auto", "--report", "r.json", *MANY], "r.json"),
                                  (["bench", "--backend", "cpu", "--seconds", 0.01, *MANY], None),
                                  (["tune", "--backend", "cpu", "--seconds", 0.001, "-o", "rules.def", *MANY], "rules.def"),
                                  (["run", "--backend", "cpu", "-o", "out", "--tolerance", 1, "--repeat", 500, path], "out")):
            with self.subTest(command=arguments[0]):
                child = self.start(*arguments)
                child.stdout.readline()
                child.stdout.close()
                err = child.stderr.read()
                self.assertEqual(child.wait(timeout=60), -signal.SIGPIPE, err)
                self.assertIn("stopped by SIGPIPE", err)
                self.assertNotIn("cannot be written", err)
                if wanted:
                    self.assertIn(b"stopped by SIGPIPE", self.path(wanted).read_bytes())

    def test_a_signal_that_the_caller_ignores(self):
        child = self.start("conform", "--backend", "cpu", "--variant", "auto", *MANY[:50],
                           preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
        self.read_until(child, "ok ")
        os.kill(child.pid, signal.SIGHUP)
        out, err = child.stdout.read(), child.stderr.read()
        self.assertEqual((child.wait(timeout=60), err), (0, ""))
        self.assertRegex(out, r"\n5\d passed, 0 failed, 0 skipped\n$")

    def test_closed_streams(self):
        """A pipe of conform's own must not become its standard output: it would wait for itself with the
        64 KiB of lines that come at once behind a slow problem."""
        tiny = ["attn_bwd:f32:b1h8s256d64", *(f"attn_bwd:f32:b1h1s1d8:seed{n}" for n in range(400))]
        for closed, problems in (((0, 1), tiny), ((0, 1, 2), tiny[-1:])):
            with self.subTest(closed=closed):
                done = subprocess.run([TOOL, "conform", "-v", "--backend", "cpu", "--jobs", "2", "--report", self.path("r.json"), *problems], preexec_fn=lambda: [os.close(fd) for fd in closed],
                                      timeout=60, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL, close_fds=False)
                self.assertEqual(done.returncode, 1)
                report = json.loads(self.path("r.json").read_text())
                self.assertEqual((report["exit_status"], report["failed"]), (0, 0))
                self.assertNotIn("partial", report)

    def test_full_output(self):
        for arguments in (["--help"], ["--version"], ["help"], ["help", "problem"], ["conform", "--help"], ["info", "--usage"], ["info"],
                          ["explain", "--json", LINE], ["conform", "--backend", "cpu", LINE]):
            with self.subTest(arguments=arguments), open("/dev/full", "w", encoding="ascii") as full:
                done = subprocess.run([TOOL, *arguments], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
                self.assertEqual(done.returncode, 1, done.stderr)
                self.assertEqual(done.stderr.count("standard output cannot be written"), 1, done.stderr)


if __name__ == "__main__":
    unittest.main()
