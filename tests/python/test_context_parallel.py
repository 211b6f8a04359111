# SPDX-License-Identifier: MIT
"""sternway.torch.context_parallel over gloo, a process a rank, against PyTorch's own attention in float64."""
from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
    pytest.skip("PyTorch without gloo", allow_module_level=True)

RANK = pathlib.Path(__file__).with_name("cp_rank.py")


@pytest.mark.parametrize("size", [2, 3])
def test_ranks(size, tmp_path):
    ranks = [subprocess.Popen([sys.executable, "-B", str(RANK), str(rank), str(size), str(tmp_path / "store")],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for rank in range(size)]
    texts = [rank.communicate(timeout=200)[0] for rank in ranks]
    for rank, text in zip(ranks, texts):
        assert rank.returncode == 0 and text.endswith("fine\n"), text


def test_other_backends_are_refused(monkeypatch):
    from sternway.torch import context_parallel
    monkeypatch.setattr(torch.distributed, "get_backend", lambda group: "nccl")
    with pytest.raises(NotImplementedError, match="a group of backend nccl"):
        context_parallel(object())
