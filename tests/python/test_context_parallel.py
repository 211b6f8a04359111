# SPDX-License-Identifier: MIT
"""sternway.torch.context_parallel over gloo, a process a rank, against PyTorch's own attention in float64."""
from __future__ import annotations

import ctypes
import importlib
import pathlib
import shutil
import subprocess
import sys
import types

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


def torchrun(size, *arguments):
    done = subprocess.run([sys.executable, "-B", "-m", "torch.distributed.run", "--nproc-per-node", str(size), *arguments],
                          capture_output=True, text=True, timeout=200, check=False)
    return done.returncode, done.stdout, done.stderr


def test_conform_under_torchrun():
    code, out, errors = torchrun(2, "-m", "sternway.cp_conform", "-f", "ring f32 b1")
    assert code == 0, out + errors
    assert [line[:20] for line in out.splitlines()[:2]] == ["ok   zigzag ring f32", "ok   contiguous ring"]
    assert "2 ran, 0 failed on 2 ranks over gloo" in out


def test_conform_can_fail(monkeypatch, capsys):
    """On one rank, in this process: what is allowed is a tenth of one device's errors; and no row is no success."""
    from sternway import cp_conform
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "0"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "argv", ["cp_conform", "-f", "zigzag ring bf16"])
    monkeypatch.setattr(cp_conform, "ALLOWED", 0.1)
    assert cp_conform.main() == 1
    assert "FAIL zigzag ring bf16" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["cp_conform", "-f", "no such row"])
    assert cp_conform.main() == 1
    monkeypatch.delenv("RANK")
    with pytest.raises(SystemExit):
        cp_conform.main()
    assert "started by torchrun" in capsys.readouterr().err


def test_megatron_program():
    code, out, errors = torchrun(2, str(pathlib.Path(__file__).resolve().parents[2] / "examples/megatron_context_parallel.py"))
    assert code == 0, out + errors
    assert [line for line in out.splitlines() if line.startswith("cp_comm_type")] == \
        [f"cp_comm_type {name} on 2 ranks" for name in ("None", "p2p", "all_gather", "a2a")]


def test_other_backends_are_refused(monkeypatch):
    from sternway.torch import context_parallel
    for backend in ("mpi", "cpu:mpi,cuda:ucc", "nccl"):  # nccl: where PyTorch sees no GPU
        monkeypatch.setattr(torch.distributed, "get_backend", lambda group, name=backend: name)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        with pytest.raises(NotImplementedError, match=f"a group of backend {backend}: accepted are gloo"):
            context_parallel(object())


class FakeGroup:
    """What is asked of a group of NCCL whose communicator is at address 0x5100."""

    def __init__(self, comm=0x5100):
        self.comm, self.reduced = comm, 0

    def _get_backend(self, device):
        assert self.reduced, "a communicator is made by the first collective"
        assert device == torch.device("cuda", 3)
        return types.SimpleNamespace(**({"_comm_ptr": lambda: self.comm} if self.comm else {}))


def pretend(monkeypatch, group, hip=None):
    """A machine whose PyTorch sees a GPU, of which no tensor is made."""
    def reduce(tensor, group):
        group.reduced += 1
    monkeypatch.setattr(torch.distributed, "get_backend", lambda of: "nccl")
    monkeypatch.setattr(torch.distributed, "all_reduce", reduce)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    monkeypatch.setattr(torch, "zeros", lambda *size, device: None)
    monkeypatch.setattr(torch.version, "hip", hip)


@pytest.mark.parametrize("hip, call, backend", [(None, "stw_cp_transport_nccl", "BACKEND_CUDA"),
                                                ("6.4", "stw_cp_transport_rccl", "BACKEND_HIP")])
def test_a_group_of_nccl_gives_its_own_communicator(monkeypatch, hip, call, backend):
    module = importlib.import_module("sternway.torch.context_parallel")
    group, seen = FakeGroup(), []
    pretend(monkeypatch, group, hip)
    assert module._wire_of(group) == "nccl"
    link = module._Link(group, types.SimpleNamespace(**{call: lambda comm, transport: seen.append(comm.value) or 0}))
    link.transport()
    assert seen == [0x5100]
    assert link.options() == {"backend": getattr(module._native, backend), "memory": module._native.MEMORY_DEVICE,
                              "flags": module._native.CONTEXT_HAS_DEVICE, "device": 3}
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: types.SimpleNamespace(cuda_stream=77 + device.index))
    assert link.stream() == 80


def test_what_nccl_groups_lack_is_told(monkeypatch):
    module = importlib.import_module("sternway.torch.context_parallel")
    group = FakeGroup(comm=0)
    pretend(monkeypatch, group)
    with pytest.raises(NotImplementedError, match="does not tell a group's communicator"):
        module._Link(group, None)
    with pytest.raises(module._native.Error, match="cp_transport_nccl"):  # the library's own words: comm is null, or no NCCL
        group = FakeGroup()
        module._Link(types.SimpleNamespace(reduced=1, _get_backend=lambda device: types.SimpleNamespace(_comm_ptr=lambda: 0)),
                     module._library()).transport()


@pytest.mark.skipif(not torch.distributed.is_nccl_available(), reason="PyTorch without NCCL")
def test_pytorch_tells_the_communicator():
    assert hasattr(torch.distributed.ProcessGroupNCCL, "_comm_ptr")
    assert hasattr(torch.distributed.ProcessGroup, "_get_backend")


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
