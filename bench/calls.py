# SPDX-License-Identifier: MIT
"""Planned attention calls on torch tensors for the measurements beside peers: planned once, run many times.

They use the package's view of the C interface (`sternway._native`: descriptors, arguments, plans), because a
measurement of kernels must not contain the search for a plan. Dense tensors are [B,H,S,D] views of any strides, packed
ones [T,H,D] with cu_seqlens; LSE is [B,H,S] or [H,T]. The package is the installed one, else that of build/release."""
from __future__ import annotations

import pathlib
import sys

import torch
from torch import Tensor

BUILT = pathlib.Path(__file__).resolve().parents[1] / "build/release/python"
sys.path.append(str(BUILT))
from sternway import _native as native  # noqa: E402

DTYPES = {torch.float16: native.F16, torch.bfloat16: native.BF16, torch.float32: native.F32, torch.float64: native.F64,
          torch.uint8: native.U8, torch.bool: native.U8, torch.int32: native.I32, torch.int64: native.I64}
BACKENDS = {"cpu": (native.BACKEND_CPU, native.MEMORY_HOST), "cuda": (native.BACKEND_CUDA, native.MEMORY_DEVICE),
            "hip": (native.BACKEND_HIP, native.MEMORY_DEVICE)}
DROPOUT_MAPS = {"philox": native.DROPOUT_PHILOX, "mem_eff": native.DROPOUT_MEM_EFF, "flash2": native.DROPOUT_FLASH2}
DETERMINISTIC = {True: native.DETERMINISTIC_ON, False: native.DETERMINISTIC_OFF}
DEFAULT_STREAM = 0


def bias_strides(tensor: Tensor) -> tuple[int, ...]:
    """A dimension of size 1 is a broadcast."""
    return tuple(0 if size == 1 else stride for size, stride in zip(tensor.shape, tensor.stride()))


class Call:
    """One planned call: run(stream) does it; what it points to stays alive with it."""

    def __init__(self, plan: native.Plan, args: native.AttnArgs, keep: dict, device: torch.device) -> None:
        self.plan, self.args, self.keep = plan, args, keep
        self.size = plan.workspace_size
        self.memory = torch.empty(self.size, dtype=torch.uint8, device=device)
        self.workspace = self.memory.data_ptr()

    def run(self, stream: int = DEFAULT_STREAM) -> None:
        self.plan.run(self.args, self.workspace, self.size, stream)

    def field(self, name: str) -> str:
        """A line of the plan's description, "variant" for one."""
        for line in self.plan.describe().split("\n"):
            if line.startswith(name + ": "):
                return line[len(name) + 2:]
        return ""

    def dropout_mask(self, stream: int = DEFAULT_STREAM) -> Tensor:
        """uint8 [B,H,Sq,Sk], 1 = kept."""
        q, k = self.keep["q"], self.keep["k"]
        mask = torch.empty(q.shape[0], q.shape[1], q.shape[2], k.shape[2], dtype=torch.uint8, device=q.device)
        self.plan.dropout_mask(self.args, mask.data_ptr(), stream)
        return mask


class Machine:
    """One context. The environment (STERNWAY_VARIANT and so on) is read here."""

    def __init__(self, backend: str = "cpu", threads: int = 0, device: int = 0) -> None:
        kind, memory = BACKENDS[backend]
        self.context = native.Context(backend=kind, memory=memory, device=None if backend == "cpu" else device,
                                      cpu_threads=threads)
        self.arch = self.context.arch

    def _call(self, kind: str, tensors: dict, lse: Tensor, causal: bool = False, bias: Tensor | None = None,
              dbias: Tensor | None = None, dropout: tuple | None = None, cu: tuple | None = None,
              deterministic: bool = False) -> Call:
        q, k, v = (tensors[name] for name in ("q", "k", "v"))
        # the same as top-left where both sides are equally long
        mask = native.MASK_CAUSAL_BOTTOM_RIGHT if causal else native.MASK_NONE
        desc = native.AttnDesc(dtype=DTYPES[q.dtype], mask=mask)
        args = native.AttnArgs(lse=lse.data_ptr())
        desc.deterministic = DETERMINISTIC[deterministic]
        if cu:
            starts, longest = cu
            desc.batch, desc.max_seq_q, desc.max_seq_kv = len(starts) - 1, longest, longest
            desc.total_q, desc.heads_q, desc.head_dim_qk = q.shape
            desc.total_kv, desc.heads_kv, desc.head_dim_v = v.shape
            args.cu_seqlens_q = args.cu_seqlens_kv = starts.data_ptr()
            desc.lse = (0, *lse.stride())
        else:
            desc.batch, desc.heads_q, desc.max_seq_q, desc.head_dim_qk = q.shape
            desc.heads_kv, desc.max_seq_kv, desc.head_dim_v = v.shape[1:]
            desc.lse = lse.stride()
        for name, tensor in tensors.items():
            setattr(desc, name, (0, tensor.stride(1), tensor.stride(0)) if cu else tensor.stride()[:3])
            setattr(args, name, tensor.data_ptr())
        if bias is not None:
            desc.bias_dtype, desc.bias, args.bias = DTYPES[bias.dtype], bias_strides(bias), bias.data_ptr()
        if dbias is not None:
            desc.dbias, args.dbias = bias_strides(dbias), dbias.data_ptr()
            desc.outputs = native.OUT_DQ | native.OUT_DK | native.OUT_DV | native.OUT_DBIAS
        if dropout:
            desc.dropout_p, desc.dropout_map = dropout[0], DROPOUT_MAPS[dropout[1]]
            args.dropout_seed, args.dropout_offset = dropout[2:]
        plan = getattr(self.context, f"attn_{kind}_plan")(desc)
        return Call(plan, args, dict(tensors, lse=lse, bias=bias, dbias=dbias, cu=cu), q.device)

    def backward(self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, causal: bool = False,
                 **options) -> tuple[Call, list[Tensor]]:
        """A planned call and its gradients (dq, dk, dv), NaN until it runs. Options: bias, dbias, dropout = (p, map,
        seed, offset), cu = (starts, longest sequence), deterministic."""
        grads = [torch.empty_like(t).fill_(float("nan")) for t in (q, k, v)]
        tensors = dict(zip(("q", "k", "v", "out", "dout", "dq", "dk", "dv"), (q, k, v, out, dout, *grads)))
        return self._call("bwd", tensors, lse, causal, **options), grads

    def forward(self, q: Tensor, k: Tensor, v: Tensor, causal: bool = False,
                dropout: tuple | None = None) -> tuple[Call, Tensor, Tensor]:
        """A planned dense forward and its out and lse."""
        out = torch.empty(*q.shape[:3], v.shape[3], dtype=q.dtype, device=q.device)
        lse_type = torch.float64 if q.dtype == torch.float64 else torch.float32
        lse = torch.empty(q.shape[:3], dtype=lse_type, device=q.device)
        return self._call("fwd", dict(q=q, k=k, v=v, out=out), lse, causal, dropout=dropout), out, lse


def open_or_exit(*arguments, **named) -> Machine:
    try:
        return Machine(*arguments, **named)
    except native.Error as error:
        sys.exit(str(error))
