# SPDX-License-Identifier: MIT
"""Threads, fork, memory, the log, the reports and the command."""
from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import threading

import pytest

np = pytest.importorskip("numpy")
sternway = pytest.importorskip("sternway")
from sternway import __main__ as command  # noqa: E402


def problem(rows=33, seed=9):
    random = np.random.default_rng(seed)
    q, dout = (random.standard_normal((2, 4, rows, 16)).astype("f") for _ in range(2))
    k, v = (random.standard_normal((2, 2, rows + 3, 16)).astype("f") for _ in range(2))
    out, lse = sternway.attn_fwd(q, k, v, mask="causal")
    return dout, q, k, v, out, lse


def backward(arrays):
    return sternway.attn_bwd(*arrays, mask="causal")[:3]


def test_threads_get_the_same_bits():
    """8 threads, each its own mix of shapes, 20 calls: every result has the bits of the first."""
    problems = [problem(rows) for rows in (33, 7, 64, 65)]
    expected = [backward(arrays) for arrays in problems]
    failures: list[object] = []
    gate = threading.Barrier(8)

    def work(number: int) -> None:
        try:
            gate.wait()
            for call in range(20):
                at = (number + call) % len(problems)
                for got, wanted in zip(backward(problems[at]), expected[at]):
                    if not np.array_equal(got, wanted):
                        failures.append((number, call))
        except BaseException as error:  # noqa: BLE001
            failures.append(error)
    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_number_of_threads_changes_no_bit():
    arrays = problem(129)
    one = sternway.attn_bwd(*arrays, cpu_threads=1)
    many = sternway.attn_bwd(*arrays, cpu_threads=8)
    for a, b in zip(one[:3], many[:3]):
        np.testing.assert_array_equal(a, b)


FORK = """
import os, sys, threading
import numpy as np
import sternway
random = np.random.default_rng(4)
q = random.standard_normal((2, 4, 130, 16)).astype("f")
out, lse = sternway.attn_fwd(q, q, q)
call = lambda: sternway.attn_bwd(out, q, q, q, out, lse)[:3]
expected, parents = call(), sternway._context.shared()
def same():
    return all(np.array_equal(a, b) for a, b in zip(call(), expected))
# a thread that is in calls all the time: the fork may happen inside the library
stop = threading.Event()
def busy():
    while not stop.is_set():
        call()
thread = threading.Thread(target=busy)
thread.start()
verdicts = []
for _ in range(5):
    child = os.fork()
    if child == 0:
        right = same() and same() and sternway._context.shared() is not parents
        os._exit(0 if right else 3)
    verdicts.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
stop.set()
thread.join()
sys.exit(0 if verdicts == [0] * 5 and same() else str(verdicts))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_forked_children_call():
    """After calls and threads in the parent, children compute the same bits with contexts of their own."""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", FORK], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr


def resident() -> int:
    pages = pathlib.Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not pathlib.Path("/proc/self/statm").exists(), reason="no /proc")
def test_many_shapes_do_not_grow_memory():
    """600 classes of shapes, twice: the second 600 add less than 4 MiB. Packed totals that differ every step, too."""
    def step(rows: int) -> None:
        q = np.ones((1, 1, rows, 8), "f")
        out, lse = sternway.attn_fwd(q, q, q)
        sternway.attn_bwd(out, q, q, q, out, lse)
        packed = np.ones((rows, 1, 8), "f")
        cu = np.array([0, rows // 2, rows], np.int32)
        sternway.attn_fwd(packed, packed, packed, layout="thd", cu_seqlens_q=cu, cu_seqlens_kv=cu, max_seq_q=rows,
                          max_seq_kv=rows)
        sternway.jagged.silu_backward(packed, packed, cu)
    for rows in range(1, 601):
        step(rows)
    before = resident()
    for rows in range(601, 1201, 1):
        step(rows % 640 + 1)
    assert resident() - before < 4 << 20


def test_results_are_not_held():
    import gc
    import weakref
    arrays = problem(5)
    got = backward(arrays)
    watched = [weakref.ref(array) for array in (*arrays, *got)]
    del arrays, got
    gc.collect()
    assert not any(ref() is not None for ref in watched)


def test_log_function():
    lines: list[tuple[int, str]] = []
    program = ("import numpy as np, sternway\nlines = []\n"
               "sternway.set_log(lambda level, line: lines.append((level, line)))\n"
               "q = np.ones((1, 1, 3, 2), 'f')\nsternway.attn_fwd(q, q, q)\nsternway.set_log(None)\n"
               "import json; print(json.dumps(lines))\n")
    done = subprocess.run([sys.executable, "-c", program], env={**os.environ, "STERNWAY_LOG": "trace"},
                          capture_output=True,
                          text=True, check=True)
    lines = json.loads(done.stdout)
    assert any(level == sternway.LogLevel.TRACE and "plan: attn_fwd:f32" in line for level, line in lines), lines


def test_backend_of_the_environment():
    """STERNWAY_BACKEND=cuda with arrays in host memory is refused in words, and never replaced."""
    program = "import numpy as np, sternway\nq = np.ones((1, 1, 3, 2), 'f')\nsternway.attn_fwd(q, q, q)\n"
    done = subprocess.run([sys.executable, "-c", program], env={**os.environ, "STERNWAY_BACKEND": "cuda"},
                          capture_output=True,
                          text=True)
    assert done.returncode == 1 and "Error: " in done.stderr and "HOST" in done.stderr


def test_import_needs_no_torch_and_starts_no_driver():
    program = "import sys, sternway; sternway.info(); sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_submodules_on_first_use():
    with pytest.raises(AttributeError, match="no attribute 'tensorflow'"):
        sternway.tensorflow
    pytest.importorskip("torch")
    program = "import sternway; print(callable(sternway.torch.enable), callable(sternway.flash_attn.flash_attn_func))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "True True\n", done.stderr


def test_info():
    info = sternway.info()
    assert info["version"] == sternway.__version__
    assert info["devices"][-1]["backend"] == "cpu" and info["devices"][-1]["usable"] == 1
    for image in info["images"]:
        assert image["intact"] == 1 and image["backend"] in ("cuda", "hip") and image["bytes"] > 0


def test_explain():
    q = np.ones((2, 4, 37, 64), np.float16)
    k = np.ones((2, 2, 45, 64), np.float16)
    text = sternway.explain(q, k, k, mask="causal", dropout_p=0.1, window=(9, None))
    assert "cpu: chosen" in text and "problem: attn_bwd:f16:b2h4k2s37x45d64:bhsd:causal_br:wl9:dropout0.1" in text
    text = sternway.explain(batch=2, heads_q=4, heads_kv=2, seq_q=37, seq_kv=45, head_dim=64, dtype="f16",
                            layout="bshd",
                            mask="causal_top_left", deterministic=True)
    assert "problem: attn_bwd:f16:b2h4k2s37x45d64:causal_tl:det" in text
    refusal = sternway.explain(batch=1, heads_q=1, seq_q=3, head_dim=300, dtype="f16")
    assert "head_dim" in refusal
    text = sternway.explain_jagged("silu", dtype="f32", components=3, axis=((5, 9),), inner=4)
    assert "problem: jagged_silu:f32:c3l5t9i4:i64" in text
    bias = np.ones((1, 4, 1, 45), "f")
    text = sternway.explain(q, k, k, bias=bias, alibi_slopes=np.ones(4, "f"), sink=np.ones(4, "f"), softcap=2.0,
                            scale=0.5)
    for word in ("biasf32_1h1k", "alibi", "sink", "softcap2", "scale0.5"):
        assert word in text, text
    cu = np.array([0, 5, 9], np.int32)
    packed = np.ones((9, 4, 8), "f")
    text = sternway.explain(packed, packed, packed, layout="thd", cu_seqlens_q=cu, cu_seqlens_kv=cu, max_seq_q=5,
                            max_seq_kv=5)
    assert ":tq9:tk9" in text and "cpu: chosen" in text


@pytest.mark.skipif(command.command() is None, reason="the sternway command is not built")
def test_command():
    """`python -m sternway` is the command: its output and its exit status."""
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-m", "sternway", *arguments], capture_output=True, text=True)
    info = run("info", "--json")
    assert info.returncode == 0 and json.loads(info.stdout)["version"] == sternway.__version__
    explained = run("explain", "attn_bwd:f32:b1h2s17d32:causal_br")
    assert explained.returncode == 0 and "cpu: chosen" in explained.stdout
    assert run("explain", "nonsense").returncode == 2


def test_command_that_is_not_there(monkeypatch, capsys):
    monkeypatch.setattr(command, "command", lambda: None)
    assert command.main() == 2
    assert "PATH" in capsys.readouterr().err
