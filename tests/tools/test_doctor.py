# SPDX-License-Identifier: MIT
"""`doctor`: what it finds, what it advises, what it must not tell; drivers are the fakes of tests/loader."""
import getpass
import json
import os
import re
import socket
import unittest

import test_schema
from command import sternway
from test_schema import FAKES, MACHINES


class DoctorTest(test_schema.SchemaTest):
    def report(self, *options, env=None, code=0):
        """The document; findings and exit status agree."""
        done = sternway("doctor", *options, "--json", env=env)
        self.assert_exit(done, code)
        document = self.assert_valid("doctor", done.stdout)
        self.assertEqual(bool(document["findings"]), bool(code))
        return document

    def text(self, *options, env=None, code=0):
        done = sternway("doctor", *options, env=env)
        self.assert_exit(done, code)
        self.assertEqual([line for line in done.stdout.splitlines() if len(line) > 80], [])
        return re.sub(r"\n +", " ", done.stdout)

    def found(self, document):
        return [row["what"] for row in document["findings"]]


class Doctor(DoctorTest):
    def test_the_cpu_alone(self):
        env = {"STERNWAY_BACKEND": "cpu"}
        document = self.report(env=env)
        self.assertEqual([(row["arch"], row["passed"], row["failed"], row["error"]) for row in document["tests"]],
                         [("cpu", 14, 0, "")])
        self.assertEqual((document["explain"]["chosen"], document["findings"]), ("cpu", []))
        text = self.text(env=env)
        for part in ("sternway ", "build: commit ", "device images:", "system:", "C library", "STERNWAY_BACKEND=cpu", "cpu  chosen",
                     "14 passed, 0 failed"):
            self.assertIn(part, text)
        self.assertTrue(text.endswith("\nnothing wrong found\n"))

    def test_minutes(self):
        """The suite for two seconds, and times that say of themselves that they are no GPU's."""
        document = self.report("--no-test", "--minutes", "0.03", env={"STERNWAY_BACKEND": "cpu"})
        conformance, rates = document["conformance"], document["rates"]
        self.assertEqual((conformance["arch"], conformance["failed"], conformance["error"]), ("cpu", 0, ""))
        self.assertGreater(conformance["passed"], 0)
        self.assertEqual((rates["arch"], rates["measured"], rates["error"]), ("cpu", False, ""))
        self.assertEqual([(row["what"], row["error"]) for row in rates["problems"]],
                         [("memory", ""), ("products", ""), ("attention", "")])
        self.assertTrue(all(row["median_ms"] > 0 and row["gbs"] > 0 for row in rates["problems"]))
        self.assertIn("times (of no GPU: they say nothing): memory", self.text("--no-test", "--minutes", "0.01",
                                                                             env={"STERNWAY_BACKEND": "cpu"}))

    def test_no_test(self):
        env = {"STERNWAY_BACKEND": "cpu"}
        self.assertEqual(self.report("--no-test", env=env)["tests"], [])
        self.assertIn("self test: not run", self.text("--no-test", env=env))

    def test_unknown_variables_are_named_and_not_shown(self):
        env = {"STERNWAY_BACKEND": "cpu", "STERNWAY_VARIENT": "tells-nobody", "STERNWAY_QQQQQQQQQQQQ": "tells-nobody"}
        document = self.report("--no-test", env=env, code=1)
        self.assertEqual(document["unknown_variables"][0].split(";")[0], "STERNWAY_VARIENT is unknown")
        self.assertEqual(len(self.found(document)), 2)
        text = self.text("--no-test", env=env, code=1)
        self.assertIn("1. STERNWAY_VARIENT is unknown; did you mean STERNWAY_VARIANT? -> correct its name or unset it", text)
        self.assertNotIn("tells-nobody", text + json.dumps(document))

    def test_a_refused_environment(self):
        for env, part in (({"STERNWAY_BACKEND": "cpu", "STERNWAY_LOG": "loud"}, "STERNWAY_LOG"),
                          ({"STERNWAY_BACKEND": "cpu", "STERNWAY_TUNING": "/nowhere/x.def"}, "STERNWAY_TUNING")):
            with self.subTest(env=env):
                document = self.report(env=env, code=1)
                self.assertEqual(document["tests"], [])
                self.assertEqual(len(document["findings"]), 1)
                self.assertRegex(document["findings"][0]["what"], f"^the environment is refused: .*{part}")

    def test_it_names_no_host_no_user_and_no_folder(self):
        home = self.path("people") / "alice of wonderland"
        (home / "rules").mkdir(parents=True)
        (home / "rules/mine.def").write_text("")
        for value in (home / "rules/mine.def", "alice/rules/none.def", home / "none.def"):
            env = {"HOME": str(home), "STERNWAY_TUNING": str(value), "STERNWAY_LOG_FILE": str(home / "log.txt"), "SECRET": "xyzzy",
                   "LD_LIBRARY_PATH": str(home), "STERNWAY_BACKEND": "cpu"}
            code = int(not os.path.exists(value))
            for told in (json.dumps(self.report("--no-test", env=env, code=code)), self.text("--no-test", env=env, code=code)):
                people = [name for name in (socket.gethostname(), getpass.getuser()) if len(name) > 4]
                for word in ("alice", "wonderland", "xyzzy", str(self.folder), *people):
                    self.assertNotIn(word, told)
                self.assertIn(os.path.basename(value), told)


@unittest.skipUnless(FAKES.is_dir() and str(FAKES) != ".", "this build has no fake drivers")
class Drivers(DoctorTest):
    """Recorded machines; the files in /dev are this machine's own."""

    def setUp(self):
        super().setUp()
        if os.path.exists("/dev/nvidiactl") or os.path.exists("/dev/kfd"):
            self.skipTest("this machine has a GPU's driver of its own")

    def environment(self, machine, drivers=(), **more):
        env = test_schema.Machines.environment(self, MACHINES / machine, drivers)
        return {**env, **more}

    def test_no_gpu(self):
        document = self.report(env=self.environment("no-gpu", ("none",)))
        self.assertEqual((document["explain"]["chosen"], len(document["tests"])), ("cpu", 1))
        self.assertEqual({row["backend"] for row in document["explain"]["backends"] if row["reason"]}, {"cuda", "hip"})

    def one(self, **more):
        return self.environment("h100", ("cuda",), FAKE_CUDA_DEVICES="Fake|9.0|132|232448|85520809984", **more)

    def test_one_gpu(self):
        env = self.one()
        document = self.report("--no-test", env=env)
        self.assertEqual(document["explain"]["chosen"], "cuda")
        self.assertEqual([row["uuid"] for row in document["info"]["devices"]], ["", ""])
        self.assertEqual(document["info"]["drivers"][0]["path"], "libcuda.so.1")
        self.assertNotIn("GPU-2f3c", self.text("--no-test", env=env))
        self.assertIn("cuda chosen, variant sm90", self.text("--no-test", env=env))

    def test_a_gpu_that_computes_nothing_fails_the_self_test(self):
        document = self.report(env=self.one(), code=1)
        self.assertEqual([(row["arch"], row["passed"], row["failed"]) for row in document["tests"]], [("sm90", 0, 14), ("cpu", 14, 0)])
        self.assertEqual(document["tests"][0]["failures"][0]["problem"], "attn_bwd:bf16:b2h4k2s192d128:causal_br")
        self.assertEqual(self.found(document), ["14 problems of the self test failed on sm90"])

    def test_broken_drivers(self):
        for fault, what, advice in (
                ("cuInit:999", "cuda has a usable GPU and is not chosen: cuda: cuInit failed: CUDA_ERROR_UNKNOWN (999)", "mend"),
                ("cuDriverGetVersion:1", "the driver library of cuda is not usable: cuDriverGetVersion does not answer", "install")):
            with self.subTest(fault=fault):
                document = self.report("--no-test", env=self.one(FAKE_FAIL=fault), code=1)
                found = [row for row in document["findings"] if row["what"].startswith(what)]
                self.assertEqual(len(found), 1, document["findings"])
                self.assertTrue(found[0]["advice"].startswith(advice))
        folder = self.path("alice")
        folder.mkdir()
        (folder / "libcuda.so.1").write_text("no library\n")
        document = self.report("--no-test", env={**self.one(), "LD_LIBRARY_PATH": f"{folder}:{FAKES / 'nvml'}"}, code=1)
        self.assertIn("there is a GPU of cuda and no driver library: libcuda.so.1: ", json.dumps(document["findings"]))
        self.assertNotIn("alice", json.dumps(document))
        document = self.report("--no-test", env=self.environment("h100", ("none",)), code=1)
        self.assertTrue(any(row["what"].startswith("there is a GPU of cuda and no driver library") for row in document["findings"])
                        or document["info"]["drivers"][0]["library"], document["findings"])

    def test_a_gpu_without_kernels(self):
        document = self.report("--no-test", env=self.environment("mixed", ("cuda",), FAKE_FAIL="cuInit:100"), code=1)
        self.assertTrue(any(row["what"].startswith("cuda ") and " is not usable: sm75 is older" in row["what"]
                            for row in document["findings"]) or not any(row["arch"] == "sm75" for row in document["info"]["devices"]))

    def test_a_named_backend_that_is_not_there(self):
        document = self.report(env=self.environment("no-gpu", ("none",), STERNWAY_BACKEND="cuda"), code=1)
        self.assertIsNone(document["explain"]["chosen"])
        self.assertTrue(any(row["what"].startswith("no backend takes a usual problem") for row in document["findings"]))


if __name__ == "__main__":
    unittest.main()
