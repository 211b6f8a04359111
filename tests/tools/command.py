# SPDX-License-Identifier: MIT
"""What the tests of the command share: running it, and safetensors files written by hand.

Used by test_malformed.py, test_run.py and test_cli.py; only the Python standard library. The expected gradients
come from gradients() below, the formula of the header in plain Python floats, never from Sternway.
"""
import json
import math
import os
import pathlib
import random
import shutil
import struct
import subprocess
import tempfile
import unittest

TOOL = os.environ["STERNWAY_TOOL"]
SOURCE = pathlib.Path(__file__).resolve().parents[2]
FORMATS = {"F64": "d", "F32": "f", "F16": "e", "I64": "q", "I32": "i", "U8": "B", "BOOL": "?"}


def sternway(*arguments, env=None, **options):
    """Runs the command with no STERNWAY_* variable but those given."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("STERNWAY_")}
    clean.update(env or {})
    return subprocess.run([TOOL, *map(str, arguments)], env=clean, capture_output=True, text=True, timeout=120, **options)


class CommandTest(unittest.TestCase):
    """A test with a folder of its own and assertions on a finished command."""

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="sternway-test-"))
        self.addCleanup(shutil.rmtree, self.folder)

    def path(self, name):
        return self.folder / name

    def assert_exit(self, done, code):
        self.assertEqual(done.returncode, code, f"\n{done.args}\nstdout: {done.stdout}\nstderr: {done.stderr}")

    def assert_refused(self, done, *parts, code=2):
        """The exit code, and one line on standard error that holds every part."""
        self.assert_exit(done, code)
        lines = done.stderr.splitlines()
        self.assertTrue(any(all(part in line for part in parts) for line in lines), f"{parts} not in: {done.stderr}")


def raw_file(path, header, data=b"", length=None):
    """A file with any header: bytes, a string, or an object that becomes JSON."""
    if not isinstance(header, (bytes, str)):
        header = json.dumps(header)
    if isinstance(header, str):
        header = header.encode()
    path.write_bytes(struct.pack("<Q", len(header) if length is None else length) + header + data)
    return path


def count(shape):
    return math.prod(shape)


def write_file(path, tensors, metadata=None):
    """Writes {name: (dtype, shape, flat values)}."""
    header, data = ({"__metadata__": metadata} if metadata else {}), b""
    for name, (dtype, shape, values) in tensors.items():
        assert len(values) == count(shape), name
        packed = struct.pack(f"<{len(values)}{FORMATS[dtype]}", *values)
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [len(data), len(data) + len(packed)]}
        data += packed
    return raw_file(path, header, data)


def read_file(path):
    """Reads a file back as ({name: (dtype, shape, values)}, metadata)."""
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header, data = json.loads(content[8:8 + length]), content[8 + length:]
    metadata = header.pop("__metadata__", {})
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        elements = count(entry["shape"])
        values = struct.unpack(f"<{elements}{FORMATS[entry['dtype']]}", data[begin:end])
        tensors[name] = (entry["dtype"], tuple(entry["shape"]), list(values))
    return tensors, metadata


def to_f32(value):
    return struct.unpack("f", struct.pack("f", value))[0]


def gradients(q, k, v, dout, scale, causal=False):
    """One head, lists of rows: out, lse, dq, dk, dv by the formula, in float64. causal: bottom-right."""
    rows, keys, dims = len(q), len(k), len(q[0])
    out, lse = [], []
    dq, dk = ([[0.0] * dims for _ in range(n)] for n in (rows, keys))
    dv = [[0.0] * len(v[0]) for _ in range(keys)]
    for i in range(rows):
        seen = [j for j in range(keys) if not causal or j <= i + keys - rows]
        s = {j: scale * sum(a * b for a, b in zip(q[i], k[j])) for j in seen}
        if not seen:
            out.append([0.0] * len(v[0]))
            lse.append(-math.inf)
            continue
        top = max(s.values())
        lse.append(top + math.log(sum(math.exp(x - top) for x in s.values())))
        p = {j: math.exp(s[j] - lse[-1]) for j in seen}
        out.append([sum(p[j] * v[j][c] for j in seen) for c in range(len(v[0]))])
        delta = sum(a * b for a, b in zip(dout[i], out[-1]))
        for j in seen:
            dp = sum(a * b for a, b in zip(dout[i], v[j]))
            ds = p[j] * (dp - delta)
            for c in range(dims):
                dq[i][c] += scale * ds * k[j][c]
                dk[j][c] += scale * ds * q[i][c]
            for c in range(len(v[0])):
                dv[j][c] += p[j] * dout[i][c]
    return out, lse, dq, dk, dv


def flat(rows):
    return [value for row in rows for value in row]


def small_problem(seed=1, rows=5, keys=7, dims=3, causal=False, with_forward=True):
    """Tensors of a problem of one batch and head in f32, with float64 references."""
    generator = random.Random(seed)

    def normal(n):
        return [[to_f32(generator.gauss(0, 1)) for _ in range(dims)] for _ in range(n)]
    q, k, v, dout = normal(rows), normal(keys), normal(keys), normal(rows)
    out, lse, dq, dk, dv = gradients(q, k, v, dout, dims ** -0.5, causal)
    tensors = {"q": ("F32", (1, rows, 1, dims), flat(q)), "k": ("F32", (1, keys, 1, dims), flat(k)),
               "v": ("F32", (1, keys, 1, dims), flat(v)), "dout": ("F32", (1, rows, 1, dims), flat(dout))}
    if with_forward:
        tensors["out"] = ("F32", (1, rows, 1, dims), flat(out))
        tensors["lse"] = ("F32", (1, 1, rows), lse)
    for name, value, n in (("dq", dq, rows), ("dk", dk, keys), ("dv", dv, keys)):
        tensors[f"{name}_ref"] = ("F64", (1, n, 1, dims), flat(value))
    return tensors
