# SPDX-License-Identifier: MIT
"""sternway.torch.context_parallel over gloo, a process a rank, against PyTorch's own attention in float64."""
from __future__ import annotations

import ctypes
import importlib
import pathlib
import shutil
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


def test_structs_are_those_of_the_header(tmp_path):
    """A C program prints the place of every field that the module knows by ctypes."""
    module = importlib.import_module("sternway.torch.context_parallel")
    _Desc, _Transport = module._Desc, module._Transport
    include = pathlib.Path(__file__).resolve().parents[2] / "include"
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if not compiler or not include.exists():
        pytest.skip("no C compiler, or the headers are not beside this test")
    lines, known = [], []
    for kind, name in ((_Desc, "stw_cp_desc"), (_Transport, "stw_cp_transport")):
        for field, *_ in kind._fields_:
            lines.append(f'printf("%zu ", offsetof({name}, {field}));')
            known.append(getattr(kind, field).offset)
        lines.append(f'printf("%zu ", sizeof({name}));')
        known.append(ctypes.sizeof(kind))
    source = tmp_path / "offsets.c"
    source.write_text("\n".join(["#include <stdio.h>", "#include <sternway/sternway.h>", "int main(void) {", *lines, "}\n"]))
    subprocess.run([compiler, f"-I{include}", str(source), "-o", str(tmp_path / "offsets")], check=True)
    done = subprocess.run([str(tmp_path / "offsets")], check=True, capture_output=True, text=True)
    assert [int(word) for word in done.stdout.split()] == known
