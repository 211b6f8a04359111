# SPDX-License-Identifier: MIT
"""Planned attention calls on torch tensors for the measurements beside peers: planned once, run many times.

They use the package's view of the C interface (`sternway._native`: descriptors, arguments, plans), because a
measurement of kernels must not contain the search for a plan. Dense tensors are [B,H,S,D] views of any strides, packed
ones [T,H,D] with cu_seqlens; LSE is [B,H,S] or [H,T]. The package is the installed one, else that of build/release; the
library is the package's, or any libsternway.so by its path (`Library`), of which several fit into one process."""
from __future__ import annotations

import ctypes
import os
import pathlib
import struct
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


# ---- another library beside the package's --------------------------------------------------------------------------

FORMATS = {"i32": "i", "u32": "I", "i64": "q", "u64": "Q", "size": "N", "f32": "f", "f64": "d", "pointer": "P"}
COUNTS = {"struct": "q"}  # nested structs of descriptors are strides: 64-bit numbers


def packed(values: native.AttnDesc | native.AttnArgs | native.ContextOpts) -> ctypes.Array:
    """The C struct of one of the package's."""
    memory = ctypes.create_string_buffer(values.struct_size)
    for name, offset, size, kind in values.fields:
        value = getattr(values, name)
        if kind in COUNTS:
            struct.pack_into(f"={size // 8}{COUNTS[kind]}", memory, offset, *value)
        elif kind == "text" and value is not None:
            memory.text = ctypes.create_string_buffer(value.encode())  # lives as long as what points to it
            struct.pack_into("P", memory, offset, ctypes.addressof(memory.text))
        elif value is not None:
            struct.pack_into(FORMATS[kind], memory, offset, value)
    return memory


class LibraryPlan:
    """What calls.Call needs of a plan, from a library loaded by its path."""

    def __init__(self, library: Library, kind: str, desc: native.AttnDesc) -> None:
        self.library, self.kind, self.handle = library, kind, ctypes.c_void_p()
        library.check(getattr(library.c, f"stw_attn_{kind}_plan")(library.context, packed(desc), ctypes.byref(self.handle)))
        self.workspace_size = library.c.stw_plan_workspace_size(self.handle)
        self.function, self.args = getattr(library.c, f"stw_attn_{kind}"), (None, None)

    def run(self, args: native.AttnArgs, workspace: int, size: int, stream: int) -> None:
        if self.args[0] is not args:
            self.args = (args, packed(args))
        self.library.check(self.function(self.handle, self.args[1], workspace, size, stream))

    def dropout_mask(self, args: native.AttnArgs, mask: int, stream: int) -> None:
        self.library.check(self.library.c.stw_dropout_mask(self.handle, packed(args), mask, stream))

    def describe(self) -> str:
        text = ctypes.create_string_buffer(1 << 16)
        self.library.check(self.library.c.stw_plan_describe(self.handle, text, len(text), None))
        return text.value.decode()


class Library:
    """What Machine needs of a context, from a library loaded by its path. It lives as long as the process."""

    def __init__(self, path: str, opts: native.ContextOpts) -> None:
        self.c, self.context = ctypes.CDLL(str(pathlib.Path(path).resolve()), mode=os.RTLD_LOCAL | os.RTLD_NOW), ctypes.c_void_p()
        self.c.stw_last_error.restype = self.c.stw_context_arch.restype = ctypes.c_char_p
        self.c.stw_plan_workspace_size.restype = ctypes.c_size_t
        call = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
        self.c.stw_attn_bwd.argtypes = self.c.stw_attn_fwd.argtypes = call
        self.c.stw_dropout_mask.argtypes = [ctypes.c_void_p] * 4
        self.check(self.c.stw_context_create(packed(opts), ctypes.byref(self.context)))
        self.arch = self.c.stw_context_arch(self.context).decode()

    def check(self, status: int) -> None:
        if status:
            raise native.Error(self.c.stw_last_error().decode())

    def attn_bwd_plan(self, desc: native.AttnDesc) -> LibraryPlan:
        return LibraryPlan(self, "bwd", desc)

    def attn_fwd_plan(self, desc: native.AttnDesc) -> LibraryPlan:
        return LibraryPlan(self, "fwd", desc)


# ---- calls ----------------------------------------------------------------------------------------------------------


class Machine:
    """One context, of the package's library or of that at `library`; `arch` forces its kernels. The environment
    (STERNWAY_VARIANT and so on) is read here."""

    def __init__(self, backend: str = "cpu", threads: int = 0, device: int = 0, library: str | None = None,
                 arch: str | None = None) -> None:
        kind, memory = BACKENDS[backend]
        if library:
            opts = native.ContextOpts(backend=kind, memory=memory, device=device, cpu_threads=threads, arch=arch,
                                      flags=0 if backend == "cpu" else native.CONTEXT_HAS_DEVICE)
            self.context = Library(library, opts)
        else:
            self.context = native.Context(backend=kind, memory=memory, device=None if backend == "cpu" else device,
                                          arch=arch, cpu_threads=threads)
        self.arch = self.context.arch

    def _call(self, kind: str, tensors: dict, lse: Tensor, causal: bool = False, window: int = 0, softcap: float = 0.0,
              slopes: Tensor | None = None, bias: Tensor | None = None, dbias: Tensor | None = None,
              dropout: tuple | None = None, cu: tuple | None = None, deterministic: bool = False,
              accumulate: bool = False, intervals: tuple | None = None) -> Call:
        q, k, v = (tensors[name] for name in ("q", "k", "v"))
        # the same as top-left where both sides are equally long
        mask = native.MASK_CAUSAL_BOTTOM_RIGHT if causal else native.MASK_NONE
        desc = native.AttnDesc(dtype=DTYPES[q.dtype], mask=mask, softcap=softcap)
        args = native.AttnArgs(lse=lse.data_ptr())
        desc.deterministic = DETERMINISTIC[deterministic]
        if window:
            desc.window_left, desc.window_right = window, 0
            desc.flags = native.ATTN_HAS_WINDOW_LEFT | native.ATTN_HAS_WINDOW_RIGHT
        if slopes is not None:
            desc.flags, args.alibi_slopes = desc.flags | native.ATTN_ALIBI, slopes.data_ptr()
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
            if name in ("dq", "dk", "dv") and tensor.dtype != q.dtype:
                setattr(desc, f"{name}_dtype", DTYPES[tensor.dtype])
        # an older library beside the package's may not know the flag
        inputs = [tensors[name] for name in ("q", "k", "v", "out", "dout") if name in tensors]
        if any(tensor.data_ptr() % 16 for tensor in inputs) and isinstance(self.context, native.Context):
            desc.flags |= native.ATTN_ANY_ADDRESS
        if accumulate:
            desc.accumulate = native.OUT_DK | native.OUT_DV
        if bias is not None:
            desc.bias_dtype, desc.bias, args.bias = DTYPES[bias.dtype], bias_strides(bias), bias.data_ptr()
        if dbias is not None:
            desc.dbias, args.dbias = bias_strides(dbias), dbias.data_ptr()
            desc.outputs = native.OUT_DQ | native.OUT_DK | native.OUT_DV | native.OUT_DBIAS
        if intervals:
            form, bounds = intervals
            desc.interval_form, desc.intervals, args.intervals = form, bias_strides(bounds), bounds.data_ptr()
        if dropout:
            desc.dropout_p, desc.dropout_map = dropout[0], DROPOUT_MAPS[dropout[1]]
            args.dropout_seed, args.dropout_offset = dropout[2:]
        plan = getattr(self.context, f"attn_{kind}_plan")(desc)
        return Call(plan, args, dict(tensors, lse=lse, bias=bias, dbias=dbias, cu=cu, slopes=slopes, intervals=intervals), q.device)

    def backward(self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, causal: bool = False,
                 grads: list[Tensor] | None = None, **options) -> tuple[Call, list[Tensor]]:
        """A planned call and its gradients (dq, dk, dv): those given, else NaN until it runs. Options: window, softcap,
        slopes, bias, dbias, dropout = (p, map, seed, offset), cu = (starts, longest sequence), deterministic, accumulate
        (dk and dv), intervals = (form, bounds [B|1,Hk|1,Sk,n])."""
        grads = grads or [torch.empty_like(t).fill_(float("nan")) for t in (q, k, v)]
        tensors = dict(zip(("q", "k", "v", "out", "dout", "dq", "dk", "dv"), (q, k, v, out, dout, *grads)))
        return self._call("bwd", tensors, lse, causal, **options), grads

    def forward(self, q: Tensor, k: Tensor, v: Tensor, causal: bool = False, out: Tensor | None = None,
                **options) -> tuple[Call, Tensor, Tensor]:
        """A planned forward and its out (that given, else a contiguous one) and lse; options as of backward."""
        lse_type = torch.float64 if q.dtype == torch.float64 else torch.float32
        if out is None:
            out = torch.empty(*q.shape[:-1], v.shape[-1], dtype=q.dtype, device=q.device)
        rows = (q.shape[1], q.shape[0]) if options.get("cu") else q.shape[:3]
        lse = torch.empty(rows, dtype=lse_type, device=q.device)
        return self._call("fwd", dict(q=q, k=k, v=v, out=out), lse, causal, **options), out, lse


def open_or_exit(*arguments, **named) -> Machine:
    try:
        return Machine(*arguments, **named)
    except native.Error as error:
        sys.exit(str(error))
