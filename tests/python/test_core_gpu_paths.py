# SPDX-License-Identifier: MIT
"""What the package does for a GPU, over the fake CUDA driver of the loader's tests, which computes nothing: contexts,
memory, streams, refusals, fork. Needs the library of a build tree (STERNWAY_TEST_FAKES names its folder
tests/fakes)."""
from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

np = pytest.importorskip("numpy")
sternway = pytest.importorskip("sternway")


def fakes() -> pathlib.Path | None:
    """The folder of the fake drivers: of the build that the loaded library is from."""
    named = os.environ.get("STERNWAY_TEST_FAKES")
    if named:
        return pathlib.Path(named)
    maps = pathlib.Path("/proc/self/maps")
    for line in maps.read_text().split("\n") if maps.exists() else ():
        path = pathlib.Path(line.split()[-1]) if "/libsternway.so" in line else None
        if path is not None and (path.parent.parent / "tests/fakes/cuda/libcuda.so.1").exists():
            return path.parent.parent / "tests/fakes"
    return None


SETUP = """
import os, sys
import numpy as np
import sternway
from sternway import Buffer
context = sternway.Context("cuda", memory="device", device=0)
shape = (1, 2, 33, 16)
q, k, v, out, dout, dq = (Buffer(context, shape, "bf16") for _ in range(6))
lse = Buffer(context, shape[:3])
def refused(call, kind, *words):
    try:
        call()
    except kind as error:
        assert all(word in str(error) for word in words), str(error)
    else:
        raise AssertionError("not refused")
"""


def run(program: str, devices: str = "NVIDIA A100|8.0|108|166912|80000000000", folder: str = "cuda") -> str:
    where = fakes()
    if where is None or not (where / folder).exists():
        pytest.skip("no fake drivers beside the library")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("STERNWAY_")}
    environment |= {"LD_LIBRARY_PATH": str(where / folder), "FAKE_CUDA_DEVICES": devices}
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], env=environment, capture_output=True,
                          text=True,
                          timeout=100)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_calls():
    run(SETUP + """
assert (context.arch, context.backend, context.device) == ("sm80", sternway.Backend.CUDA, 0)
got = sternway.attn_bwd(dout, q, k, v, out, lse, mask="causal", dq=dq, outputs=("dk",))
assert got.dq is dq and type(got.dk).__name__ == "_DeviceBuffer" and got.dv is None
stream = context.stream_create()
class Stream:
    cuda_stream = stream
sternway.attn_bwd(dout, q, k, v, out, lse, stream=Stream())
asked = []
def workspace(size):
    asked.append(size)
    return Buffer(context, (size,), "u8")
sternway.attn_bwd(dout, q, k, v, out, lse, workspace=workspace, stream=stream)
assert asked and asked[0] > 0
context.stream_synchronize(stream)
context.stream_destroy(stream)
text = sternway.explain(q, k, v)
assert "cuda: chosen" in text and "arch: sm80" in text
kept = sternway.dropout_mask(q, k, dropout_p=0.5)
assert kept.shape == (1, 2, 33, 33)
offsets = Buffer(context, (4,), "i64")
assert sternway.jagged.silu_backward(Buffer(context, (9, 4)), Buffer(context, (9, 4)), offsets).shape == (9, 4)
host = np.arange(6, dtype="f")
buffer, back = Buffer(context, (6,)), np.zeros(6, "f")
buffer.copy_from(host)
buffer.copy_to(back)
assert (host == back).all()
""")


def test_refusals():
    run(SETUP + """
host = np.zeros(shape, "f")
rest = (v, out, lse)
refused(lambda: sternway.attn_bwd(dout, q, host, *rest, dq=dq), sternway.InvalidError, "k is in host memory", "GPU 0")
refused(lambda: sternway.attn_fwd(host, q, v), sternway.InvalidError, "k is in", "GPU", "host memory")
wide = Buffer(context, (1, 1, 3, 300), "bf16")
refused(lambda: sternway.attn_fwd(wide, wide, wide), sternway.UnsupportedError, "head_dim")
double = Buffer(context, shape, "f64")
refused(lambda: sternway.attn_fwd(double, double, double), sternway.UnsupportedError, "f64")
host, small = np.zeros(1 << 20, "u1"), Buffer(context, (1,), "u8")
refused(lambda: sternway.attn_bwd(dout, q, k, *rest, workspace=host), sternway.InvalidError, "workspace")
refused(lambda: sternway.attn_bwd(dout, q, k, *rest, workspace=small), sternway.WorkspaceError)
refused(lambda: Buffer(context, (1 << 40,)), sternway.NoMemoryError)
refused(lambda: sternway.Context("cuda", memory="device", device=5), sternway.NoDeviceError, "5")
refused(lambda: sternway.Context("cuda", memory="device", arch="sm90"), sternway.Error)
refused(lambda: sternway.Context("hip", memory="device"), sternway.NoDriverError)
""")


def test_no_kernels_for_an_old_device():
    run("""
import sternway
try:
    sternway.Context("cuda", memory="device", device=0)
except (sternway.NoImageError, sternway.NoDeviceError) as error:
    assert "7.0" in str(error) or "sm70" in str(error), error
else:
    raise AssertionError("not refused")
""", devices="NVIDIA V100|7.0|80|98304|16000000000")


def test_a_forked_child_is_told():
    """A GPU context in a child of the process that made it: the library's text, by calls and by the shared context."""
    run(SETUP + """
call = lambda: sternway.attn_bwd(dout, q, k, v, out, lse, dq=dq)
call()
child = os.fork()
if child == 0:
    try:
        refused(call, sternway.ForkedError, "fork")
        refused(lambda: Buffer(context, (3,)), sternway.ForkedError)
        array = np.ones((1, 1, 3, 2), "f")
        sternway.attn_fwd(array, array, array)  # host memory goes on working
        os._exit(0)
    except BaseException as error:
        print(repr(error), file=sys.stderr, flush=True)
        os._exit(1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
call()
""")


def test_two_devices_have_a_context_each():
    run("""
import sternway
from sternway._context import shared
first, second = (shared(sternway.Backend.CUDA, sternway.Memory.DEVICE, device) for device in (0, 1))
assert first is not second and (first.device, second.device) == (0, 1)
assert shared(sternway.Backend.CUDA, sternway.Memory.DEVICE, 1) is second
buffer = sternway.Buffer(second, (1, 1, 3, 16), "bf16")
other = sternway.Buffer(first, (1, 1, 3, 16), "bf16")
try:
    sternway.attn_fwd(buffer, other, buffer)
except sternway.InvalidError as error:
    assert "k is in GPU 0" in str(error) and "GPU 1" in str(error), error
else:
    raise AssertionError("not refused")
""", devices="NVIDIA A100|8.0|108|166912|80000000000;NVIDIA A100|8.0|108|166912|80000000000")
