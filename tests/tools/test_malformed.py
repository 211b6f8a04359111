# SPDX-License-Identifier: MIT
"""Every malformed file, by the text that refuses it: the container, then the attention problem inside."""
import os
import struct
import unittest

from command import CommandTest, SOURCE, raw_file, small_problem, sternway, write_file


def entry(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


class Container(CommandTest):
    def refuse(self, path, *parts, code=2):
        done = sternway("run", path)
        self.assert_refused(done, f"sternway run: {path}: ", *parts, code=code)

    def header(self, header, *parts, data=b"\0" * 8, length=None):
        self.refuse(raw_file(self.path("x.safetensors"), header, data, length), *parts)

    def test_not_files(self):
        self.refuse(self.path("absent"), "No such file")
        self.refuse(self.folder, "directory")
        os.mkfifo(self.path("pipe"))
        self.refuse(self.path("pipe"), "not a regular file")
        self.path("loop").symlink_to(self.path("loop"))
        self.refuse(self.path("loop"), "Too many levels of symbolic links")
        self.path("empty").write_bytes(b"")
        self.refuse(self.path("empty"), "empty")

    @unittest.skipIf(os.geteuid() == 0, "root reads everything")
    def test_unreadable(self):
        path = write_file(self.path("x"), small_problem())
        path.chmod(0)
        self.refuse(path, "Permission denied")

    def test_header_length(self):
        self.path("x").write_bytes(b"\x10\0\0")
        self.refuse(self.path("x"), "3 bytes: too short")
        self.header("{}", "claims 1000 bytes, the file has 10", length=1000)
        self.header("{}", "claims 1099511627776 bytes, at most 100000000", length=2 ** 40)
        self.header("{}", "claims 18446744073709551615 bytes", length=2 ** 64 - 1)
        self.header("", "not a safetensors file", length=0)
        self.header("{}", "claims 1 bytes, the shortest has 2", length=1)
        self.refuse(SOURCE / "README.md", "not a safetensors file")

    def test_truncated_at_every_byte(self):
        whole = write_file(self.path("whole"), small_problem()).read_bytes()
        header = 8 + struct.unpack("<Q", whole[:8])[0]
        for size in (*range(1, 40, 3), header - 1, header, header + 1, len(whole) - 1):
            self.path("cut").write_bytes(whole[:size])
            self.assert_exit(sternway("run", self.path("cut")), 2)

    def test_header_text(self):
        self.header("[1]      ", "not a safetensors file")
        self.header("{\"a\": ", "not JSON")
        self.header("{\"a\": 1} x", "something follows the JSON object")
        self.header("{" + "\"a\":{" * 2000, "not JSON")
        self.header(b"{\"\xff\": 1}", "not UTF-8")
        self.header(b"{\"a\0\": 1}", "not UTF-8")
        self.header("{\"q\\u0000x\": 1}", "\\u0000")
        self.header({"a\nb": entry()}, "control character")
        self.header("{}", "the tensors use 0")
        self.refuse(raw_file(self.path("none"), "{}"), "holds no tensors")

    def test_entries(self):
        self.header({"q": 3}, "'q'", "not an object")
        self.header({"q": {"dtype": "F32", "shape": [2]}}, "data_offsets is missing")
        self.header({"q": {"dtype": "F32", "data_offsets": [0, 8]}}, "shape is missing")
        self.header({"q": {"shape": [2], "data_offsets": [0, 8]}}, "dtype is missing")
        self.header({"q": dict(entry(), extra=1)}, "'extra' is not")
        self.header("{\"q\": {\"dtype\": \"F32\", \"dtype\": \"F32\", \"shape\": [2], \"data_offsets\": [0, 8]}}",
                    "dtype is given twice")
        self.header({"q": entry(dtype=5)}, "dtype is not a string")
        self.header({"q": entry(dtype="F33")}, "dtype 'F33'")
        self.header({"q": dict(entry(), shape=2)}, "shape is not an array")
        self.header({"q": dict(entry(), data_offsets=8)}, "not a pair")
        self.header({"q": entry(offsets=(0, 4, 8))}, "not a pair")
        self.header({"q": entry(offsets=(0,))}, "not a pair")
        self.header({"q": entry(offsets=("0", 8))}, "not a pair")
        self.header({"q": entry(offsets=(-8, 8))}, "not a pair")

    def test_shapes(self):
        self.header({"q": entry(shape=(-2,))}, "whole number")
        self.header({"q": entry(shape=(1.5,))}, "whole number")
        self.header({"q": entry(shape=("2",))}, "whole number")
        self.header({"q": entry(shape=(None,))}, "whole number")
        self.header({"q": entry(shape=(1e300,))}, "whole number")
        self.header({"q": entry(shape=(1,) * 9)}, "more than 8 dimensions")
        self.header({"q": entry(shape=(2 ** 40, 2 ** 40))}, "overflows")
        self.header({"q": entry(dtype="F64", shape=(2 ** 53, 2 ** 8))}, "overflows")

    def test_offsets(self):
        self.header({"q": entry(shape=(2 ** 38,), offsets=(0, 2 ** 40))}, "do not lie in the 8 bytes")
        self.header({"q": entry(offsets=(8, 0))}, "do not lie in")
        self.header({"q": entry(shape=(3,))}, "span 8 bytes, 3 elements of F32 need 12")
        self.header({"q": entry(dtype="F4", shape=(15,))}, "need 8")
        self.header({"a": entry(), "b": entry(offsets=(4, 12))}, "'b'", "overlaps that of 'a'", data=b"\0" * 12)
        self.header({"a": entry(), "b": entry(offsets=(12, 20))}, "'b'", "belong to no tensor", data=b"\0" * 20)
        self.header({"a": entry()}, "9 bytes, the tensors use 8", data=b"\0" * 9)

    def test_duplicates(self):
        one = "{\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [%d, %d]}"
        self.header("{\"q\": %s, \"q\": %s}" % (one % (0, 4), one % (4, 8)), "'q'", "given twice")
        self.header("{\"__metadata__\": {}, \"__metadata__\": {}}", "__metadata__ is given twice", data=b"")
        self.header("{\"__metadata__\": {\"a\": \"1\", \"a\": \"2\"}}", "'a' is given twice", data=b"")

    def test_metadata(self):
        self.header({"__metadata__": []}, "__metadata__ is not an object", data=b"")
        self.header({"__metadata__": {"mask": 1}}, "value of 'mask' is not a string", data=b"")
        self.header({"__metadata__": {"a\tb": "1"}}, "control character", data=b"")

    def test_text_is_shown_without_control_characters(self):
        path = write_file(self.path("x"), small_problem(), {"mask": "\x1b[31mred"})
        done = sternway("run", path)
        self.assert_refused(done, "mask '?[31mred'")
        self.assertNotIn("\x1b", done.stderr)


class Problem(CommandTest):
    def refuse(self, tensors, *parts, metadata=None):
        self.assert_refused(sternway("run", write_file(self.path("x.safetensors"), tensors, metadata)), *parts)

    def change(self, *parts, metadata=None, drop=(), **changes):
        tensors = small_problem()
        for name in drop:
            del tensors[name]
        tensors.update(changes)
        self.refuse(tensors, *parts, metadata=metadata)

    def test_names(self):
        self.change("'que' is not part of an attention problem", que=("F32", (1,), [0.0]))
        self.change("'q_ref' is not part", q_ref=("F32", (1,), [0.0]))
        self.change("metadata key 'maks'", metadata={"maks": "none"})
        self.change("'layer1.mask'", "no problem of that prefix", metadata={"layer1.mask": "none"})
        for name in ("q", "k", "v", "dout"):
            self.change(f"tensor {name} is missing", drop=[name])
        self.change("q is given twice", **{".q": ("F32", (1,), [0.0])})

    def test_which_go_together(self):
        lse = ("F32", (1, 1, 5), [0.0] * 5)
        self.change("out is given without lse", drop=["lse"])
        self.change("lse is given without out", drop=["out"])
        self.change("delta is given without lse", drop=["lse"], delta=lse)
        self.change("delta and dlse are both given", delta=lse, dlse=lse)
        self.change("dbias_ref is given without bias", dbias_ref=("F64", (1,), [0.0]))
        self.change("dbias_ref is given, but a bias of BOOL has no gradient", bias=("BOOL", (1, 1, 1, 7), [1] * 7),
                    dbias_ref=("F64", (1, 1, 1, 7), [0.0] * 7))
        self.change("dsink_ref is given without sink", dsink_ref=("F64", (1,), [0.0]))
        self.change("alibi_column is given without", metadata={"alibi_column": "1"})
        for key, value in (("mask", "causal_br"), ("window_left", "1"), ("window_right", "1"), ("diagonal_shift", "0")):
            self.change("metadata flash_*: they say the whole mask", metadata={"flash_window_left": "2", key: value})

    def test_types(self):
        def as_type(name, dtype):
            _, shape, values = small_problem()[name]
            return {name: (dtype, shape, values if dtype[0] == "F" else [0] * len(values))}
        self.change("q: dtype I32; F32 F16 BF16 F64 is accepted", **as_type("q", "I32"))
        self.change("k: dtype F32, but q is F64", **as_type("q", "F64"))
        self.change("k: dtype F16, but q is F32", **as_type("k", "F16"))
        self.change("dout: dtype I32", **as_type("dout", "I32"))
        self.change("lse: dtype F16; F32 F64 is accepted", **as_type("lse", "F16"))
        self.change("dq_ref: dtype I32", **as_type("dq_ref", "I32"))
        self.change("bias: dtype F16, but q is F32", bias=("F16", (1, 1, 1, 1), [0.0]))
        self.change("bias: dtype I32; F32 F16 BF16 F64 BOOL U8 is accepted", bias=("I32", (1, 1, 1, 1), [0]))
        self.change("sink: dtype F16", sink=("F16", (1,), [0.0]))
        self.change("used_q: dtype I64", used_q=("I64", (1,), [5]))
        self.change("q_offsets: dtype I32", q_offsets=("I32", (1,), [5]))

    def test_shapes(self):
        self.change("q: 3 dimensions; [B,S,H,D]", q=("F32", (5, 1, 3), [0.0] * 15))
        self.change("k: shape [1,7,1,2], expected [B,Sk,Hk,D] = [1,7,1,3]", k=("F32", (1, 7, 1, 2), [0.0] * 14))
        self.change("v: shape [1,6,1,3]", v=("F32", (1, 6, 1, 3), [0.0] * 18))
        self.change("v: shape []", v=("F32", (), [0.0]))
        self.change("out: shape [1,5,1,2], expected [B,Sq,Hq,Dv] = [1,5,1,3]", out=("F32", (1, 5, 1, 2), [0.0] * 10))
        self.change("dout: shape [5,1,1,3]", dout=("F32", (5, 1, 1, 3), [0.0] * 15))
        self.change("lse: shape [1,5,1], expected [B,Hq,Sq] = [1,1,5]", lse=("F32", (1, 5, 1), [0.0] * 5))
        self.change("batch is 1 by q and 7 by k", k=("F32", (7, 1, 1, 3), [0.0] * 21))
        self.change("bias: shape [1,1,5,6], expected [1|B,1|Hq,1|Sq,1|Sk]", bias=("F32", (1, 1, 5, 6), [0.0] * 30))
        self.change("bias: shape [5,7]", bias=("F32", (5, 7), [0.0] * 35))
        self.change("alibi_slopes: shape [2], expected [Hq]", alibi_slopes=("F32", (2,), [0.0] * 2))
        self.change("alibi_slopes: shape [2,1], expected [B,Hq] = [1,1]", alibi_slopes=("F32", (2, 1), [0.0] * 2))
        self.change("sink: shape [2]", sink=("F32", (2,), [0.0] * 2))
        self.change("used_k: shape [2], expected [B] = [1]", used_k=("I32", (2,), [1, 1]))
        self.change("k_offsets: shape [2]", k_offsets=("I64", (2,), [1, 1]))
        self.change("dk_ref: shape [1,1,7,3]", dk_ref=("F64", (1, 1, 7, 3), [0.0] * 21))

    def packed(self, *parts, cu_q=(0, 2, 5), cu_k=(0, 3, 7), cu_type="I32", q=None):
        tensors = {}
        for name, rows in (("q", 5), ("k", 7), ("v", 7), ("dout", 5)):
            tensors[name] = ("F32", (rows, 1, 3), [0.5] * (3 * rows))
        tensors["q"] = q or tensors["q"]
        tensors["cu_seqlens_q"] = (cu_type, (len(cu_q),), list(cu_q))
        tensors["cu_seqlens_k"] = ("I32", (len(cu_k),), list(cu_k))
        self.refuse(tensors, *parts)

    def test_packed(self):
        self.packed("cu_seqlens_q: dtype I64", cu_type="I64")
        self.packed("cu_seqlens_q[2] = 1: 2..5 is accepted", cu_q=(0, 2, 1))
        self.packed("cu_seqlens_q[2] = 6: 2..5", cu_q=(0, 2, 6))
        self.packed("cu_seqlens_k[0] = -1", cu_k=(-1, 3, 7))
        self.packed("cu_seqlens_q: int32 [B+1]", cu_q=())
        self.packed("batch is 2 by cu_seqlens_q and 1 by cu_seqlens_k", cu_k=(0, 7))
        self.packed("q: 4 dimensions; [T,H,D]", q=("F32", (1, 5, 1, 3), [0.0] * 15))

    def test_metadata_values(self):
        bad = {"mask": ("causal", "None", ""), "window_left": ("1.5", "", " 1", "1 ", "0x10", "9" * 30, "-"),
               "window_right": ("x",), "diagonal_shift": ("1e3",), "flash_causal": ("2", "true", ""),
               "flash_window_left": ("None", "1.5"), "flash_window_right": ("",), "scale": ("abc", "", "nan", "inf", "1e999", "0x1p3"),
               "softcap": ("--1",), "dropout_p": ("0,1",), "dropout_seed": ("-1", "18446744073709551616", "1.0"),
               "dropout_offset": ("+1",), "dropout_map": ("flash",), "alibi_column": ("2", "true"),
               "deterministic": ("on",), "grad_dtype": ("f16",), "q_offset": ("",),
               "k_offset": ("one",), "batch_offset": ("1.",), "head_offset": ("h",), "heads_total": (" ",)}
        for key, values in bad.items():
            for value in values:
                self.change(f"metadata {key} '{value[:60]}'", "is accepted", metadata={key: value})

    def test_the_library_refuses(self):
        self.change("window_left -1", metadata={"window_left": "-1"})
        self.change("dropout_p 1.5", metadata={"dropout_p": "1.5"})
        self.change("softcap", metadata={"softcap": "-2"})
        self.change("used", "STW_E_INVALID", used_q=("I32", (1,), [6]))
        zero = ("F32", (1, 5, 1, 0), [])
        self.change("head_dim_qk 0", q=zero, k=("F32", (1, 7, 1, 0), []), drop=["dq_ref", "dk_ref"],
                    metadata={"flash_causal": "1"})
        self.change("head_dim_qk 0", q=zero, k=("F32", (1, 7, 1, 0), []), drop=["dq_ref", "dk_ref"])

    def test_one_bad_problem_does_not_stop_the_others(self):
        tensors = {f"good.{name}": value for name, value in small_problem().items()}
        tensors.update({f"bad.{name}": value for name, value in small_problem().items() if name != "k"})
        done = sternway("run", write_file(self.path("x"), tensors))
        self.assert_refused(done, "bad: tensor k is missing")
        self.assertIn("3 references met, 0 missed, 0 pools missed, 1 problem refused", done.stdout)


if __name__ == "__main__":
    unittest.main()
