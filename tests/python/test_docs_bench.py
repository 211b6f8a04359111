# SPDX-License-Identifier: MIT
"""The measurements of bench/ that run on a CPU, and the random problems of tests/gpu/check_jagged.py, in a short form:
each verifies its results before it times them and says so by its exit status."""
from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

pytest.importorskip("torch")
pytest.importorskip("sternway")

ROOT = pathlib.Path(__file__).resolve().parents[2]
ANY_TIME = "1000000"  # microseconds: this machine may be busy, the limit is for a quiet one
RUNS = {
    "cpu_peers": (["bench/cpu_peers.py", "--threads", "1", "--seq", "67", "--dim", "64", "--heads", "2", "--rounds",
                   "1"], ["f32", "bf16", "causal"]),
    "cpu_jagged": (["bench/cpu_jagged.py", "--threads", "1", "--only", "to_padded", "--dtype", "f32", "--components",
                    "64", "--rounds", "1"], ["to_padded"]),
    "python_overhead": (["bench/python_overhead.py", "--calls", "20", "--rounds", "1", "--limit", ANY_TIME],
                        ["numpy, gradients given", "torch.ops.sternway.attn_bwd", "under enable()", "flash_attn_func"]),
    "python_compile": (["bench/python_compile.py", "--rounds", "1", "--backend", "aot_eager", "--rows", "19"],
                       ["compiled, PyTorch alone", "compiled, enable()"]),
    "check_jagged": (["tests/gpu/check_jagged.py", "--backend", "cpu", "--count", "40"],
                     ["40 problems on cpu", "0 wrong"]),
}


@pytest.mark.parametrize("name", RUNS)
def test_it_runs_and_verifies(name: str) -> None:
    command, printed = RUNS[name]
    environment = {**os.environ, "OMP_NUM_THREADS": "1",
                   "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run([sys.executable, "-B", *command], cwd=ROOT, env=environment, check=False, capture_output=True,
                          text=True, timeout=300)
    print(done.stdout, done.stderr)
    assert done.returncode == 0
    assert "WRONG" not in done.stdout
    assert [words for words in printed if words not in done.stdout] == []
