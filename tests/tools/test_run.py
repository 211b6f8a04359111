# SPDX-License-Identifier: MIT
"""`sternway run` on files it accepts: values, comparison, prefixes, -o, --json, tolerance, computed forward."""
import json
import math
import os
import pty
import random
import subprocess
import time
import unittest

from command import CommandTest, SOURCE, TOOL, gradients, flat, read_file, small_problem, sternway, to_f32, write_file


def prefixed(prefix, tensors):
    return {f"{prefix}.{name}": value for name, value in tensors.items()}


def shifted(reference, by, at=0):
    """The same reference with one element moved."""
    dtype, shape, values = reference
    return dtype, shape, [value + (by if n == at else 0.0) for n, value in enumerate(values)]


class Run(CommandTest):
    def write(self, tensors, metadata=None, name="in.safetensors"):
        return write_file(self.path(name), tensors, metadata)

    def run_json(self, *arguments, code=0, **options):
        done = sternway("run", "--json", *arguments, **options)
        self.assert_exit(done, code)
        return json.loads(done.stdout)

    def outputs(self, tensors, metadata=None):
        """The gradients of a problem without its references."""
        bare = {name: value for name, value in tensors.items() if not name.endswith("_ref")}
        done = sternway("run", self.write(bare, metadata), "-o", self.path("out"))
        self.assert_exit(done, 0)
        return read_file(self.path("out"))[0]

    def assert_close(self, result, expected, relative=1e-5):
        top = max(map(abs, expected), default=0.0)
        self.assertEqual(len(result), len(expected))
        for x, y in zip(result, expected):
            self.assertLessEqual(abs(x - y), relative * top + 1e-12)

    def test_gradients_against_plain_python(self):
        for options in ({}, {"rows": 1, "keys": 1}, {"rows": 33, "keys": 17, "dims": 5}, {"causal": True},
                        {"rows": 9, "keys": 4, "causal": True}):
            tensors = small_problem(seed=7, **options)
            metadata = {"mask": "causal_br"} if options.get("causal") else None
            done = sternway("run", self.write(tensors, metadata))
            self.assert_exit(done, 0)
            self.assertIn("3 references met, 0 missed", done.stdout)
            result = self.outputs(tensors, metadata)
            for name in ("dq", "dk", "dv"):
                self.assertEqual(result[name][:2], ("F32", tensors[f"{name}_ref"][1]))
                self.assert_close(result[name][2], tensors[f"{name}_ref"][2])

    def test_flash_windows(self):
        """All windows of 9 queries over 4 keys, FlashAttention's pair against the mask in our words."""
        tensors = small_problem(rows=9, keys=4, with_forward=False)
        for flash, ours in (({"causal": "1"}, {"mask": "causal_br"}), ({"window_right": "0"}, {"mask": "causal_br"}),
                            ({"window_left": "2"}, {"window_left": "2", "window_right": "4"}),
                            ({"window_left": "2", "window_right": "-1"}, {"window_left": "2", "window_right": "4"}),
                            ({"window_left": "2", "window_right": "7"}, {"window_left": "2", "window_right": "4"}),
                            ({"window_left": "4", "window_right": "1"}, {"window_right": "1"}),
                            ({"window_left": "4", "window_right": "4"}, {}), ({"causal": "0"}, {})):
            with self.subTest(flash=flash):
                result = self.outputs(tensors, {f"flash_{key}": value for key, value in flash.items()})
                self.assertEqual(result, self.outputs(tensors, ours))
        self.assertNotEqual(self.outputs(tensors, {"flash_window_left": "2"}), self.outputs(tensors, {"window_left": "2"}))

    def test_a_wrong_reference_is_missed(self):
        good = small_problem()
        for name in ("dq_ref", "dk_ref", "dv_ref"):
            top = max(map(abs, good[name][2]))
            for at, by in ((0, 1e-3 * top), (len(good[name][2]) - 1, -1e-3 * top), (3, math.nan), (2, math.inf)):
                tensors = dict(good, **{name: shifted(good[name], by, at)})
                done = sternway("run", self.write(tensors))
                self.assert_exit(done, 1)
                self.assertIn("2 references met, 1 missed", done.stdout)
                self.assertIn(f"element {at} is", done.stdout)
        document = self.run_json(self.path("in.safetensors"), code=1)
        rows = document["files"][0]["problems"][0]["gradients"]
        self.assertEqual([row["reference"]["pass"] for row in rows], [True, True, False])
        self.assertEqual(document["exit_status"], 1)

    def test_the_mask_matters(self):
        done = sternway("run", self.write(small_problem(causal=True, rows=7)))
        self.assert_exit(done, 1)

    def test_swapped_references_are_missed(self):
        tensors = small_problem(rows=7)
        tensors["dq_ref"], tensors["dk_ref"] = tensors["dk_ref"], tensors["dq_ref"]
        self.assertIn("1 reference met, 2 missed", sternway("run", self.write(tensors)).stdout)

    def test_tolerance(self):
        tensors = small_problem()
        top = max(map(abs, tensors["dq_ref"][2]))
        path = self.write(dict(tensors, dq_ref=shifted(tensors["dq_ref"], 0.01 * top)))
        self.assert_exit(sternway("run", path), 1)
        self.assert_exit(sternway("run", "--tolerance", "0.02", path), 0)
        self.assert_exit(sternway("run", "--tolerance", "0.005", path), 1)

    def test_computed_forward(self):
        tensors = small_problem(with_forward=False, rows=9)
        full = small_problem(rows=9)
        document = self.run_json(self.write(tensors), "-o", self.path("out"))
        self.assertTrue(document["files"][0]["problems"][0]["forward_computed"])
        result = read_file(self.path("out"))[0]
        self.assertEqual(sorted(result), ["dk", "dq", "dv", "lse", "out"])
        self.assert_close(result["out"][2], full["out"][2])
        self.assert_close(result["lse"][2], full["lse"][2])
        tensors["dv_ref"] = shifted(tensors["dv_ref"], 1e-3)
        self.assert_exit(sternway("run", self.write(tensors)), 1)

    def test_out_can_be_fed_back(self):
        """What -o wrote for out and lse, with references from a run, gives the same gradients again."""
        tensors = small_problem(with_forward=False)
        self.assert_exit(sternway("run", self.write(tensors), "-o", self.path("out")), 0)
        first, _ = read_file(self.path("out"))
        again = self.outputs(dict(tensors, out=first["out"], lse=first["lse"]))
        self.assertEqual([again[name] for name in ("dq", "dk", "dv")], [first[name] for name in ("dq", "dk", "dv")])

    def test_given_delta(self):
        tensors = small_problem()
        delta = [sum(a * b for a, b in zip(tensors["out"][2][3 * i:3 * i + 3], tensors["dout"][2][3 * i:3 * i + 3]))
                 for i in range(5)]
        del tensors["out"]
        tensors["delta"] = ("F32", (1, 1, 5), delta)
        self.assert_exit(sternway("run", self.write(tensors)), 0)

    def test_prefixes(self):
        tensors = {**prefixed("layer0", small_problem(1)), **prefixed("layer0.b", small_problem(2, causal=True)),
                   **small_problem(3)}
        path = self.write(tensors, {"layer0.b.mask": "causal_br", "about": "three", "layer0.source": "here"})
        document = self.run_json(path, "-o", self.path("out"))
        self.assertEqual([p["name"] for p in document["files"][0]["problems"]], ["layer0", "layer0.b", ""])
        self.assertEqual(document["references_met"], 9)
        result, metadata = read_file(self.path("out"))
        self.assertEqual(sorted(result), sorted(f"{p}{g}" for p in ("", "layer0.", "layer0.b.") for g in ("dq", "dk", "dv")))
        self.assertIn("about", metadata)
        self.assert_close(result["layer0.b.dk"][2], tensors["layer0.b.dk_ref"][2])

    def test_several_files(self):
        one = self.write(prefixed("a", small_problem(1)), name="one")
        two = self.write(prefixed("b", small_problem(2)), name="two")
        self.assert_exit(sternway("run", one, two, "-o", self.path("out")), 0)
        self.assertEqual(len(read_file(self.path("out"))[0]), 6)
        self.assert_refused(sternway("run", one, one, "-o", self.path("never")), "two inputs hold a problem 'a'")
        self.assertFalse(self.path("never").exists())
        self.assert_exit(sternway("run", one, self.path("absent")), 2)

    def test_output_of_bad_input_is_not_written(self):
        done = sternway("run", self.write({"q": ("F32", (1,), [0.0])}), "-o", self.path("out"))
        self.assert_exit(done, 2)
        self.assertFalse(self.path("out").exists())
        done = sternway("run", self.write(small_problem()), "-o", self.path("no/such/folder"))
        self.assert_refused(done, "cannot be written", "no/such", "No such file")

    def test_output_is_a_regular_file(self):
        path = self.write(small_problem())
        os.mkfifo(self.path("fifo"))
        self.path("folder").mkdir()
        self.path("to_fifo").symlink_to("fifo")
        self.path("dangling").symlink_to("absent")
        before = sorted(self.folder.iterdir())
        for name in ("fifo", "folder", "to_fifo", "dangling"):
            done = sternway("run", path, "-o", self.path(name))
            self.assert_refused(done, name, "not a regular file")
            self.assertEqual(done.stdout, "")  # before anything was computed
        self.assert_refused(sternway("run", path, "-o", f"{self.path('new')}/"), "not the name of a file")
        self.assert_refused(sternway("run", path, "-o", ""), "not the name of a file")
        self.assert_refused(sternway("run", path, "-o", path / "x"), "cannot be written", "Not a directory")
        self.assertEqual(sorted(self.folder.iterdir()), before)
        self.assertTrue(self.path("fifo").is_fifo())
        self.assertTrue(self.path("to_fifo").is_symlink())

    def test_output_through_a_link(self):
        path = self.write(small_problem())
        self.path("folder").mkdir()
        target = self.path("folder") / "target"
        target.write_bytes(b"old")
        self.path("link").symlink_to("folder/target")
        self.assert_exit(sternway("run", path, "-o", self.path("link")), 0)
        self.assertTrue(self.path("link").is_symlink())
        self.assertFalse(target.is_symlink())
        self.assertEqual(sorted(read_file(target)[0]), ["dk", "dq", "dv"])
        self.assert_exit(sternway("run", path, "-o", "plain", cwd=self.folder), 0)
        self.assertEqual(self.path("plain").read_bytes(), target.read_bytes())

    def test_output_is_no_input(self):
        path = self.write(small_problem())
        content = path.read_bytes()
        self.path("link").symlink_to(path.name)
        os.link(path, self.path("hard"))
        second = self.write(small_problem(2), name="second")
        for output in (path, self.path("link"), self.path("hard")):
            self.assert_refused(sternway("run", second, path, "-o", output), "is the input")
            self.assertEqual(path.read_bytes(), content)
        document = self.run_json(path, "-o", path, code=2)
        self.assertIn("is the input", document["error"])

    def test_json_when_nothing_could_run(self):
        path = self.write(small_problem())
        for arguments in (("--backend", "tpu"), ("--backend", "cpu", "--arch", "sm90")):
            document = self.run_json(*arguments, path, code=2)
            self.assertIn(arguments[-1], document["error"])
            self.assertEqual(document["exit_status"], 2)

    def test_bias_sink_and_types(self):
        tensors = small_problem()
        tensors["bias"] = ("F32", (1, 1, 1, 7), [0.0] * 7)
        tensors["sink"] = ("F32", (1,), [-math.inf])
        result = self.outputs(tensors)
        self.assertEqual(result["dbias"][:2], ("F32", (1, 1, 1, 7)))
        self.assertEqual(result["dsink"], ("F32", (1,), [0.0]))
        self.assert_close(result["dv"][2], tensors["dv_ref"][2])
        half = {name: ("F16" if name != "lse" else "F32", shape, values)
                for name, (_, shape, values) in small_problem().items() if not name.endswith("_ref")}
        self.assertEqual({name: self.outputs(half)[name][0] for name in ("dq", "dk", "dv")}, dict.fromkeys(("dq", "dk", "dv"), "F16"))
        self.assertEqual({value[0] for value in self.outputs(half, {"grad_dtype": "f32"}).values()}, {"F32"})

    def test_masks_of_bytes(self):
        """Zeros hide, whatever the type says they are; there is no gradient; a row that sees nothing gives nothing."""
        tensors = {name: value for name, value in small_problem().items() if name not in ("out", "lse") and not name.endswith("_ref")}
        number = dict(tensors, bias=("F32", (1, 1, 5, 7), [-math.inf if n % 3 == 1 or n // 7 == 2 else 0.0 for n in range(35)]))
        expected = self.outputs(number)
        for dtype, seen in (("BOOL", 1), ("U8", 1), ("U8", 200)):
            hidden = [0 if n % 3 == 1 or n // 7 == 2 else seen for n in range(35)]
            for metadata in ({}, {"grad_dtype": "f32"}):
                result = self.outputs(dict(tensors, bias=(dtype, (1, 1, 5, 7), hidden)), metadata)
                self.assertEqual(set(result), set(expected) - {"dbias"})
                for name, value in result.items():
                    self.assertEqual(value, expected[name], name)
                self.assertEqual(result["dq"][2][6:9], [0.0] * 3)
                self.assertEqual(result["lse"][2][2], -math.inf)

    def test_packed_gaps(self):
        """Two sequences with unused rows before and behind; the rows of nobody come back as zeros."""
        generator = random.Random(5)
        parts = [(3, 2), (0, 1), (2, 4)]
        first_q, first_k, spare = 2, 1, 3
        rows_q, rows_k = first_q + 5 + spare, first_k + 7 + spare

        def rows(n):
            return [[to_f32(generator.gauss(0, 1)) for _ in range(3)] for _ in range(n)]
        q, k, v, dout = rows(rows_q), rows(rows_k), rows(rows_k), rows(rows_q)
        zero = [0.0] * 3
        out, lse = [zero] * rows_q, [0.0] * rows_q
        dq, dk, dv = [zero] * rows_q, [zero] * rows_k, [zero] * rows_k
        cu_q, cu_k = [first_q], [first_k]
        for n, m in parts:
            a, b = slice(cu_q[-1], cu_q[-1] + n), slice(cu_k[-1], cu_k[-1] + m)
            if n:
                out[a], lse[a], dq[a], dk[b], dv[b] = gradients(q[a], k[b], v[b], dout[a], 3 ** -0.5)
            cu_q.append(a.stop)
            cu_k.append(b.stop)
        nan = [math.nan] * 3
        for tensor, n in ((q, first_q), (k, first_k)):
            tensor[:n] = [nan] * n
            tensor[-spare:] = [nan] * spare
        tensors = {name: ("F32", (len(value), 1, 3), flat(value)) for name, value in
                   (("q", q), ("k", k), ("v", v), ("dout", dout), ("out", out))}
        tensors.update(lse=("F32", (1, rows_q), lse), cu_seqlens_q=("I32", (4,), cu_q), cu_seqlens_k=("I32", (4,), cu_k))
        for name, value in (("dq_ref", dq), ("dk_ref", dk), ("dv_ref", dv)):
            tensors[name] = ("F64", (len(value), 1, 3), flat(value))
        done = sternway("run", self.write(tensors), "-o", self.path("out"))
        self.assert_exit(done, 0)
        result, _ = read_file(self.path("out"))
        for name in ("dq", "dk", "dv"):
            self.assert_close(result[name][2], tensors[f"{name}_ref"][2])
            self.assertEqual(result[name][2][:3], zero)
            self.assertEqual(result[name][2][-3 * spare:], [0.0] * (3 * spare))

    def test_empty_problems(self):
        for shape_q, shape_k in (((0, 5, 2, 3), (0, 7, 2, 3)), ((1, 0, 2, 3), (1, 7, 2, 3)), ((1, 5, 2, 3), (1, 0, 2, 3))):
            tensors = {}
            for name, shape in (("q", shape_q), ("k", shape_k), ("v", shape_k), ("dout", shape_q)):
                tensors[name] = ("F32", shape, [1.0] * math.prod(shape))
            result = self.outputs(tensors)
            for name, shape in (("dq", shape_q), ("dk", shape_k), ("dv", shape_k)):
                self.assertEqual(result[name], ("F32", shape, [0.0] * math.prod(shape)))
        packed = {name: ("F32", (0, 2, 3), []) for name in ("q", "k", "v", "dout")}
        packed.update(cu_seqlens_q=("I32", (3,), [0, 0, 0]), cu_seqlens_k=("I32", (3,), [0, 0, 0]))
        self.assertEqual(self.outputs(packed)["dq"], ("F32", (0, 2, 3), []))

    def test_unaligned_data(self):
        """The format aligns nothing: a byte tensor's worth of shift in front of everything."""
        tensors = small_problem()
        path = self.write(tensors)
        content = path.read_bytes()
        size = int.from_bytes(content[:8], "little")
        path.write_bytes((size + 1).to_bytes(8, "little") + content[8:8 + size] + b" " + content[8 + size:])
        self.assert_exit(sternway("run", path), 0)

    def test_repeat_and_threads(self):
        tensors = small_problem(rows=40, keys=50)
        one = self.outputs(tensors)
        done = sternway("run", self.path("in.safetensors"), "--threads", "1", "--repeat", "3", "-o", self.path("out"))
        self.assert_exit(done, 0)
        self.assertIn("median of 3", done.stdout)
        self.assertEqual(read_file(self.path("out"))[0], one)

    def test_report(self):
        done = sternway("run", "--backend", "cpu", self.write(small_problem()))
        for part in ("backend  cpu, arch cpu", "variant ", "why: ", "attn_bwd:f32:b1h1s5x7d3", "time ", "norm ",
                     "pass  max 0."):
            self.assertIn(part, done.stdout)
        for part in ("largest ", "max error"):
            self.assertNotIn(part, done.stdout)
            self.assertIn(part, sternway("run", "-v", self.path("in.safetensors")).stdout)
        self.assertEqual(done.stderr, "")
        problem = self.run_json(self.path("in.safetensors"))["files"][0]["problems"][0]
        self.assertEqual((problem["backend"], problem["arch"]), ("cpu", "cpu"))
        norm = math.sqrt(sum(value ** 2 for value in small_problem()["dq_ref"][2]))
        self.assertAlmostEqual(problem["gradients"][0]["norm"], norm, delta=1e-5 * norm)

    def test_progress_is_for_terminals(self):
        path = self.write(small_problem())
        ours, theirs = pty.openpty()
        try:
            done = subprocess.run([TOOL, "run", path], stdout=subprocess.PIPE, stderr=theirs, text=True, timeout=60)
            os.set_blocking(ours, False)
            shown, end = "", time.monotonic() + 20
            while not shown.endswith("\r\033[K") and time.monotonic() < end:
                try:  # a terminal hands over in pieces, maybe later
                    shown += os.read(ours, 4096).decode()
                except BlockingIOError:
                    time.sleep(0.01)
        finally:
            os.close(ours)
            os.close(theirs)
        self.assertEqual(done.returncode, 0)
        self.assertIn("(1 of 1)", shown)
        self.assertTrue(shown.endswith("\r\033[K"), repr(shown))
        self.assertNotIn("\033", done.stdout)

    def nested_softmax(self, lengths=(3, 0, 5, 1), used=None, columns=4, total=12, first=1):
        """Along the last dimension, y from the logits; by the formula, zeros behind what is used."""
        generator = random.Random(4)
        offsets, dx = [first], [0.0] * (total * columns)
        for length in lengths:
            offsets.append(offsets[-1] + length)
        logits = [[generator.gauss(0, 1) for _ in range(columns)] for _ in range(total)]
        y = [[to_f32(math.exp(x) / sum(map(math.exp, row))) for x in row] for row in logits]
        grad = [[to_f32(generator.gauss(0, 1)) for _ in range(columns)] for _ in range(total)]
        for b, start in enumerate(offsets[:-1]):
            for row in range(start, start + (used[b] if used else lengths[b])):
                dot = sum(a * b for a, b in zip(grad[row], y[row]))
                dx[row * columns:(row + 1) * columns] = [y[row][c] * (grad[row][c] - dot) for c in range(columns)]
        tensors = {"grad": ("F32", (total, columns), flat(grad)), "y": ("F32", (total, columns), flat(y)),
                   "offsets": ("I64", (len(offsets),), offsets), "dx_ref": ("F64", (total, columns), dx)}
        if used:
            tensors["used"] = ("I64", (len(used),), list(used))
        line = f"jagged_softmax:f32:c{len(lengths)}l{max(lengths)}t{total}i{columns}:inner:i64{':used' if used else ''}"
        return tensors, {"problem": line}

    def test_nested_problems(self):
        for used in (None, (2, 0, 5, 0)):
            tensors, metadata = self.nested_softmax(used=used)
            done = sternway("run", "--backend", "cpu", "-o", self.path("out"), self.write(tensors, metadata))
            self.assert_exit(done, 0)
            self.assertIn("1 reference met, 0 missed", done.stdout)
            self.assertIn(metadata["problem"].replace(":i64:used", ""), done.stdout)
            result = read_file(self.path("out"))[0]
            self.assertEqual((list(result), result["dx"][:2]), (["dx"], ("F32", (12, 4))))
            self.assert_close(result["dx"][2], tensors["dx_ref"][2])
            for at in (4, 20):
                wrong = dict(tensors, dx_ref=shifted(tensors["dx_ref"], 1e-3, at))
                done = sternway("run", "--backend", "cpu", self.write(wrong, metadata))
                self.assert_exit(done, 1)
                self.assertIn("0 references met, 1 missed", done.stdout)
        row, = self.run_json(self.write(*self.nested_softmax()))["files"][0]["problems"][0]["gradients"]
        self.assertEqual((row["name"], row["shape"], row["reference"]["pass"]), ("dx", [12, 4], True))

    def test_nested_beside_attention(self):
        tensors, metadata = self.nested_softmax()
        both = {**prefixed("a", small_problem()), **prefixed("b", tensors)}
        document = self.run_json(self.write(both, {f"b.{key}": value for key, value in metadata.items()}))
        self.assertEqual([problem["name"] for problem in document["files"][0]["problems"]], ["a", "b"])
        self.assertEqual((document["references_met"], document["references_missed"]), (4, 0))

    def test_nested_linear(self):
        generator = random.Random(5)

        def normal(rows, columns):
            return [[to_f32(generator.gauss(0, 1)) for _ in range(columns)] for _ in range(rows)]
        x, grad, weight = normal(7, 5), normal(7, 3), normal(3, 5)
        dx = [sum(g * w[k] for g, w in zip(row, weight)) for row in grad for k in range(5)]
        dw = [sum(grad[r][n] * x[r][k] for r in range(7)) for n in range(3) for k in range(5)]
        tensors = {"x": ("F32", (7, 5), flat(x)), "grad": ("F32", (7, 3), flat(grad)), "weight": ("F32", (3, 5), flat(weight)),
                   "offsets": ("I32", (4,), [0, 2, 2, 7]), "dx_ref": ("F64", (7, 5), dx), "dweight_ref": ("F64", (3, 5), dw),
                   "dbias_ref": ("F32", (3,), [to_f32(sum(row[n] for row in grad)) for n in range(3)])}
        done = sternway("run", self.write(tensors, {"problem": "jagged_linear:f32:c3l5t7i5f3"}))
        self.assert_exit(done, 0)
        self.assertIn("3 references met, 0 missed", done.stdout)
        swapped = dict(tensors, dweight_ref=("F64", (3, 5), dw[::-1]))
        self.assert_exit(sternway("run", self.write(swapped, {"problem": "jagged_linear:f32:c3l5t7i5f3"})), 1)

    def test_nested_files_are_checked(self):
        tensors, metadata = self.nested_softmax()
        offsets = tensors["offsets"]
        for change, text in (({"y": None}, "tensor y is missing"), ({"x": tensors["y"]}, "x: this operation does not read it"),
                             ({"q": tensors["y"]}, "tensor 'q' is not part of a nested problem"),
                             ({"grad": ("F16", (12, 4), [0.0] * 48)}, "grad: dtype F16; F32 is accepted"),
                             ({"grad": ("F32", (11, 4), [0.0] * 44)}, "grad: 44 elements, the problem has 48"),
                             ({"offsets": ("I32", (5,), offsets[2])}, "offsets: dtype I32; I64 is accepted"),
                             ({"offsets": ("I64", (5,), [1, 4, 3, 9, 10])}, "offsets[2] = 3"),
                             ({"offsets": ("I64", (5,), [1, 4, 4, 9, 13])}, "offsets[4] = 13"),
                             ({"offsets": ("I64", (5,), [-1, 4, 4, 9, 10])}, "offsets[0] = -1"),
                             ({"offsets": ("I64", (5,), [0, 7, 7, 9, 10])}, "offsets[1] = 7"),
                             ({"dx_ref": ("F64", (4,), [0.0] * 4)}, "dx_ref: 4 elements, the gradient has 48")):
            changed = {name: value for name, value in {**tensors, **change}.items() if value}
            with self.subTest(text=text):
                done = sternway("run", self.write(changed, metadata))
                self.assert_refused(done, text)
        for line, text in (("softmax", "a nested operation is accepted"), ("jagged_softmax:f32:c4", "dim"),
                           ("jagged_attention:i32:attn_bwd:f32:b1h1s8d8:thd", "q, k, v, dout with cu_seqlens"),
                           ("jagged_softmax:f64:c4l5t12i4:inner:i64", "f16, bf16, f32 are accepted"),
                           (metadata["problem"] + ":what", "'what' is not an option")):
            self.assert_refused(sternway("run", self.write(tensors, {"problem": line})), text)
        self.assert_refused(sternway("run", self.write(tensors, {**metadata, "mask": "none"})), "metadata key 'mask'")

    def test_environment(self):
        path = self.write(small_problem())
        for backend in ("cuda", "hip", "cuda:sm90", "hip:gfx942"):
            done = sternway("run", path, env={"STERNWAY_BACKEND": backend})
            if done.returncode == 0:
                continue  # a machine with that device
            self.assertIn(backend[:4].rstrip(":"), done.stderr)
            self.assertRegex(done.stderr, "^sternway run: (STERNWAY_BACKEND|cuda|hip)")
            self.assertEqual(done.stdout, "")
        self.assert_refused(sternway("run", path, env={"STERNWAY_BACKEND": "tpu"}), "STERNWAY_BACKEND=tpu")
        self.assert_exit(sternway("run", "--backend", "cpu", path, env={"STERNWAY_BACKEND": "cuda"}), 0)
        self.assert_refused(sternway("run", path, env={"STERNWAY_CPU_THREADS": "-3"}), "STERNWAY_CPU_THREADS=-3")

    def test_examples(self):
        for name in ("minilm", "causal_gqa", "nested"):
            document = self.run_json(SOURCE / "examples" / f"{name}.safetensors")
            self.assertGreater(document["references_met"], 0)


if __name__ == "__main__":
    unittest.main()
