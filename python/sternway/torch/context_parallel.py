# SPDX-License-Identifier: MIT
"""Attention over the ranks of a process group, with autograd: include/sternway/attn_cp.h over torch.distributed.

    cp = context_parallel(group)              # a group of gloo, or of NCCL; all of its ranks make one
    q, k, v = (cp.shard(t, 2) for t in qkv)   # this rank's rows of [B, H, S, D]
    out = cp.attention(q, k, v, is_causal=True)
    out.backward(...)                         # each rank gets its rows of the gradients

Over gloo tensors are on the CPU. Over NCCL (RCCL in PyTorch for ROCm) they are on the rank's current GPU, the library
sends by the group's own communicator in a stream of the plan's, and calls are queued in torch.cuda.current_stream(). A
group of another backend is refused. The calls are collective: all ranks of a group make them in the same order."""
from __future__ import annotations

import contextlib
import ctypes
import datetime
import struct
from typing import NamedTuple

import torch
import torch.distributed as dist

from .. import _native, masks
from ..enums import IntervalForm
from .flex import mask_of

ORDERS = {"contiguous": 1, "zigzag": 2}
SCHEDULES = {"auto": 0, "ring": 1, "all-gather": 2, "ulysses": 3, "2-D": 4}
_CALLS = {"group_begin": "v", "send": "dbps", "recv": "dbps", "group_end": "s", "wait": "s"}
_WORDS = {"v": [], "d": [ctypes.c_void_p], "b": [ctypes.c_size_t], "p": [ctypes.c_int32], "s": [ctypes.c_void_p]}


def _type_of(words: str):
    return ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, *(word for letter in words for word in _WORDS[letter]))


class _Transport(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("name", ctypes.c_char_p), ("user", ctypes.c_void_p),
                *((name, _type_of(words)) for name, words in _CALLS.items()),
                ("all_gather", ctypes.c_void_p), ("reduce_scatter", ctypes.c_void_p), ("all_to_all", ctypes.c_void_p),
                ("error_text", ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int))]


class _Desc(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("attn", ctypes.c_void_p), ("seq_q", ctypes.c_int64),
                ("seq_kv", ctypes.c_int64), ("cu_seqlens_q", ctypes.c_void_p), ("cu_seqlens_kv", ctypes.c_void_p),
                ("used_q", ctypes.c_void_p), ("used_kv", ctypes.c_void_p), ("q_offset", ctypes.c_int64),
                ("k_offset", ctypes.c_int64), ("order", ctypes.c_int), ("schedule", ctypes.c_int),
                ("ranks_per_node", ctypes.c_int32), ("head_groups", ctypes.c_int32)]


_FORMATS = {"size": "N", "u32": "I", "i32": "i", "i64": "q", "u64": "Q", "f32": "f", "f64": "d", "pointer": "N",
            "text": "N"}


def _fill(kind, **values) -> ctypes.Array:
    """The C struct of a class of _native with these fields: numbers, addresses, or strides as tuples."""
    offsets = {name: (offset, size, form) for name, offset, size, form in kind.fields}
    memory = ctypes.create_string_buffer(max(offset + size for offset, size, _ in offsets.values()) + 7 & ~7)
    for name, value in {"struct_size": len(memory), **values}.items():
        offset, _, form = offsets[name]
        if isinstance(value, tuple):
            struct.pack_into(f"@{len(value)}q", memory, offset, *value)
        else:
            struct.pack_into("@" + _FORMATS[form], memory, offset, value)
    return memory


def _library() -> ctypes.CDLL:
    """The copy that the package's C module is linked with, which is loaded already."""
    library = ctypes.CDLL("libsternway.so.0")
    library.stw_last_error.restype = ctypes.c_char_p
    library.stw_cp_plan_workspace_size.restype = ctypes.c_size_t
    for name in ("stw_cp_plan_destroy", "stw_cp_destroy", "stw_context_destroy", "stw_cp_plan_workspace_size"):
        getattr(library, name).argtypes = [ctypes.c_void_p]
    return library


def _check(library: ctypes.CDLL, status: int) -> None:
    if status:
        words = library.stw_last_error().decode(errors="replace")
        kinds = {1: _native.InvalidError, 2: _native.UnsupportedError, 7: _native.NoMemoryError, 8: _native.DriverError}
        raise kinds.get(status, _native.Error)(words)


def _wire_of(group) -> str:
    """"gloo" or "nccl": what moves the tensors of a group. A group of both ("cpu:gloo,cuda:nccl") is taken for its GPUs."""
    config = str(dist.get_backend_config(group)) if isinstance(group, dist.ProcessGroup) else dist.get_backend(group)
    names = dict(part.split(":") for part in config.split(",")) if ":" in config else {"cpu": config, "cuda": config}
    if names.get("cuda") == "nccl" and torch.cuda.is_available():
        return "nccl"
    if names.get("cpu") == "gloo":
        return "gloo"
    raise NotImplementedError(f"context_parallel: a group of backend {config}: accepted are gloo (tensors on the CPU) and nccl "
                              "(on GPUs, where PyTorch sees one)")


class _Link:
    """A transport over the communicator that a group of NCCL or RCCL has for this rank's current device."""

    def __init__(self, group, library: ctypes.CDLL) -> None:
        device = torch.device("cuda", torch.cuda.current_device())
        dist.all_reduce(torch.zeros(1, device=device), group=group)  # a group makes its communicator when it is first used
        backend = group._get_backend(device)
        read = getattr(backend, "_comm_ptr", None)
        if read is None:
            raise NotImplementedError(f"context_parallel: PyTorch {torch.__version__} does not tell a group's communicator "
                                      "(ProcessGroupNCCL._comm_ptr)")
        self.device, self.left, self.kept, self.library, self.communicator = device, [], [], library, read()

    def transport(self) -> _Transport:
        transport = _Transport(struct_size=ctypes.sizeof(_Transport))
        make = self.library.stw_cp_transport_rccl if torch.version.hip else self.library.stw_cp_transport_nccl
        _check(self.library, make(ctypes.c_void_p(self.communicator), ctypes.byref(transport)))
        return transport

    def options(self) -> dict:
        """Of the context: this GPU and its memory."""
        backend = _native.BACKEND_HIP if torch.version.hip else _native.BACKEND_CUDA
        return {"backend": backend, "memory": _native.MEMORY_DEVICE, "flags": _native.CONTEXT_HAS_DEVICE,
                "device": self.device.index}

    def stream(self) -> int:
        return torch.cuda.current_stream(self.device).cuda_stream

    def guard(self):
        return torch.cuda.device(self.device)


class _Wire:
    """A transport over a process group: sends and receives of bytes, waited for together."""

    device = torch.device("cpu")

    def __init__(self, group, timeout: float) -> None:
        self.group, self.timeout = group, datetime.timedelta(seconds=timeout)
        self.works: list = []
        self.left: list = []  # works that failed, which may be under way still, and the memory of their calls
        self.kept: list = []
        self.text = ctypes.create_string_buffer(512)

    def transport(self) -> _Transport:
        """The callbacks for C. They hold the wire, so the wire must not hold them: a cycle would keep the group, and a
        thread of gloo's that asks for the interpreter while that shuts down aborts the process."""
        transport = _Transport(struct_size=ctypes.sizeof(_Transport), name=b"torch.distributed")
        for name, words in _CALLS.items():
            setattr(transport, name, _type_of(words)(self.guarded(getattr(self, name))))
        transport.error_text = dict(_Transport._fields_)["error_text"](lambda user, error: ctypes.addressof(self.text))
        return transport

    @staticmethod
    def options() -> dict:
        return {"backend": _native.BACKEND_CPU, "memory": _native.MEMORY_HOST, "cpu_threads": torch.get_num_threads()}

    @staticmethod
    def stream() -> int:
        return 0

    @staticmethod
    def guard():
        return contextlib.nullcontext()

    def guarded(self, call):
        """An exception may not leave a callback of C: it becomes an error with its text."""
        def run(user, *words):
            try:
                call(*words)
                return 0
            except Exception as error:  # noqa: BLE001
                self.text.value = str(error).encode()[:500]
                return 1
        return run

    def group_begin(self) -> None:
        pass

    def memory(self, data: int, count: int) -> torch.Tensor:
        return torch.frombuffer((ctypes.c_uint8 * count).from_address(data), dtype=torch.uint8)

    def send(self, data, count, peer, stream) -> None:
        self.works.append(dist.isend(self.memory(data, count), dist.get_global_rank(self.group, peer), group=self.group))

    def recv(self, data, count, peer, stream) -> None:
        self.works.append(dist.irecv(self.memory(data, count), dist.get_global_rank(self.group, peer), group=self.group))

    def group_end(self, stream) -> None:
        pass

    def wait(self, stream) -> None:
        works, self.works, failure = self.works, [], None
        for work in works:  # all of them: what is still under way uses memory of the call
            try:
                if not work.wait(self.timeout):
                    raise RuntimeError(f"the others did not come within {self.timeout}")
            except Exception as error:  # noqa: BLE001
                failure = failure or str(error) or type(error).__name__  # an exception itself would keep this frame
                self.left.append(work)
        if failure:
            raise RuntimeError(failure)


def rows_of(tensor: torch.Tensor) -> torch.Tensor:
    """As it lies, where its last dimension does."""
    return tensor if tensor.stride(-1) == 1 or tensor.shape[-1] == 1 else tensor.contiguous()


_BOUNDS = {IntervalForm.FROM: 1, IntervalForm.RANGE: 2, IntervalForm.FROM_BELOW: 2, IntervalForm.RANGE_BELOW: 3,
           IntervalForm.TWO_RANGES: 4}


class _Mask(NamedTuple):
    """A mask in memory of the whole problem: bounds of the keys, or bytes of the blocks."""
    form: int = 0
    bounds: torch.Tensor | None = None
    blocks: torch.Tensor | None = None

    def given(self) -> dict:
        return {name: t for name, t in (("intervals", self.bounds), ("block_mask", self.blocks)) if t is not None}

    def fields(self) -> dict:
        """Of stw_attn_desc: a dimension of one is a broadcast."""
        return {name: tuple(0 if size == 1 else stride for size, stride in zip(t.shape, t.stride()))
                for name, t in self.given().items()}

    def pointers(self) -> dict:
        return {name: t.data_ptr() for name, t in self.given().items()}


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, cp, options, q, k, v):
        out = torch.empty_like(q) if q.shape[3] == v.shape[3] else q.new_empty(*q.shape[:3], v.shape[3])  # q's layout
        lse = q.new_empty(q.shape[:3], dtype=cp.number(q))
        cp.call("fwd", options, q=q, k=k, v=v, out=out, lse=lse)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.cp, ctx.options = cp, options
        return out

    @staticmethod
    def backward(ctx, dout):
        q, k, v, out, lse = ctx.saved_tensors
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        ctx.cp.call("bwd", ctx.options, q=q, k=k, v=v, out=out, lse=lse, dout=rows_of(dout), dq=dq, dk=dk, dv=dv)
        return None, None, dq, dk, dv


class ContextParallel:
    """This rank of a group. Made by context_parallel()."""

    def __init__(self, group, order: str, schedule: str, ranks_per_node: int, timeout: float) -> None:
        self.group = dist.group.WORLD if group is None else group
        wire = _wire_of(self.group)
        self.rank, self.size = dist.get_rank(self.group), dist.get_world_size(self.group)
        self.order, self.schedule, self.ranks_per_node = ORDERS[order], SCHEDULES[schedule], ranks_per_node
        self.library, self.plans = _library(), {}
        self.wire = _Wire(self.group, timeout) if wire == "gloo" else _Link(self.group, self.library)
        self.transport, self.device = self.wire.transport(), self.wire.device
        self.context, self.cp = ctypes.c_void_p(), ctypes.c_void_p()
        opts = _fill(_native.ContextOpts, **self.wire.options())
        _check(self.library, self.library.stw_context_create(opts, ctypes.byref(self.context)))
        _check(self.library, self.library.stw_cp_create(ctypes.byref(self.transport), self.rank, self.size,
                                                        ctypes.byref(self.cp)))

    def close(self) -> None:
        """Gives plans and memory back and lets go of the group, which is the caller's. Where a failure left messages under
        way, their memory and the group stay with this object."""
        for plan, _ in self.plans.values():
            self.library.stw_cp_plan_destroy(plan)
        self.library.stw_cp_destroy(self.cp)
        self.library.stw_context_destroy(self.context)
        self.plans, self.cp, self.context, self.group = {}, ctypes.c_void_p(), ctypes.c_void_p(), None
        if self.wire and not self.wire.left:
            self.wire = self.transport = None

    def rows(self, total: int, rank: int | None = None) -> torch.Tensor:
        """The rows of a sequence of `total` rows that a rank holds, in its order."""
        first, count = (ctypes.c_int64 * 2)(), (ctypes.c_int64 * 2)()
        _check(self.library, self.library.stw_cp_shard(self.order, ctypes.c_int64(total), self.rank if rank is None else rank,
                                                       self.size, first, count))
        return torch.cat([torch.arange(a, a + n) for a, n in zip(first, count)])

    def shard(self, tensor: torch.Tensor, dim: int) -> torch.Tensor:
        """This rank's rows of a whole tensor."""
        return tensor.index_select(dim, self.rows(tensor.shape[dim]).to(tensor.device))

    @staticmethod
    def number(q: torch.Tensor) -> torch.dtype:
        return torch.float64 if q.dtype == torch.float64 else torch.float32

    def mask(self, block_mask, batch: int, heads: tuple[int, int], totals: tuple[int, int]) -> _Mask:
        """The caller's mask, whose tensors have the whole problem's sizes."""
        found = mask_of(block_mask, heads[1])
        if found is None:
            return _Mask()
        if isinstance(found, masks.BlockMask):
            name, t, of, dtypes = "blocks", torch.as_tensor(found.blocks), heads[0], (torch.uint8, torch.bool)
            wanted = [-(-total // masks.BLOCK) for total in totals]
        else:
            name, t, of, dtypes = "bounds", torch.as_tensor(found.bounds), heads[1], (torch.int32,)
            wanted = [totals[1], _BOUNDS[IntervalForm(found.form)]]
        fits = t.dim() == 4 and list(t.shape[2:]) == wanted and t.shape[0] in (1, batch) and t.shape[1] in (1, of)
        if not fits or t.dtype not in dtypes:
            raise ValueError(f"context_parallel: {name} of block_mask is {tuple(t.shape)} of {t.dtype}: over ranks it is "
                             f"that of the whole problem, ({batch} or 1, {of} or 1, {wanted[0]}, {wanted[1]}) of {dtypes[0]}")
        t = t.to(self.device)
        return _Mask(blocks=t.view(torch.uint8)) if name == "blocks" else _Mask(form=int(found.form), bounds=t)

    def attention(self, q, k, v, *, is_causal: bool = False, scale: float | None = None, total_q: int | None = None,
                  total_k: int | None = None, block_mask=None) -> torch.Tensor:
        """scaled_dot_product_attention of the whole problem: q [B,Hq,S here,D], k and v [B,Hk,S here,D], Hq a multiple of Hk, any
        strides with a contiguous last dimension. On GPUs gradients have the same bits run after run under
        torch.use_deterministic_algorithms, on the CPU always.
        total_q, total_k: rows of the whole; None: those of this rank times the group's size, where that is right.
        block_mask: as that of sternway.torch.flex_attention, beside is_causal: the whole problem's, the same on all ranks."""
        for name, t in (("q", q), ("k", k), ("v", v)):
            if t.dim() != 4 or t.device != self.device or t.dtype != q.dtype:
                raise ValueError(f"context_parallel: {name} is a {t.dim()}-dimensional tensor of {t.dtype} on {t.device}: q, k and "
                                 f"v are [B,H,S,D] of one dtype on {self.device}")
        if k.shape[:3] != v.shape[:3] or k.shape[0] != q.shape[0] or k.shape[3] != q.shape[3]:
            raise ValueError(f"context_parallel: q {tuple(q.shape)}, k {tuple(k.shape)} and v {tuple(v.shape)} do not go together")
        totals = (q.shape[2] * self.size if total_q is None else total_q,
                  k.shape[2] * self.size if total_k is None else total_k)
        mask = self.mask(block_mask, q.shape[0], (q.shape[1], k.shape[1]), totals)
        return _Attention.apply(self, (is_causal, scale, totals, mask), rows_of(q), rows_of(k), rows_of(v))

    def plan(self, call: str, options, tensors):
        deterministic = _native.DETERMINISTIC_ON if torch.are_deterministic_algorithms_enabled() else 0
        is_causal, scale, (total_q, total_k), mask = options
        masked = mask.fields()
        key = (call, is_causal, scale, total_q, total_k, mask.form, *masked.items(), deterministic,
               *((tuple(t.shape), t.stride()) for t in tensors.values()), tensors["q"].dtype)
        if key in self.plans:
            return self.plans[key]
        q, k, v = tensors["q"], tensors["k"], tensors["v"]
        dtypes = {torch.float16: _native.F16, torch.bfloat16: _native.BF16, torch.float32: _native.F32,
                  torch.float64: _native.F64}
        strides = {name: t.stride()[:3] for name, t in tensors.items()}
        number = {"scale": scale} if scale is not None else {}
        flags = 0 if scale is None else _native.ATTN_HAS_SCALE
        flags |= 0 if mask.blocks is None else _native.ATTN_BLOCK_MASK
        attn = _fill(_native.AttnDesc, dtype=dtypes[q.dtype], batch=q.shape[0], heads_q=q.shape[1], heads_kv=k.shape[1],
                     head_dim_qk=q.shape[3], head_dim_v=v.shape[3], max_seq_q=q.shape[2], max_seq_kv=k.shape[2],
                     mask=_native.MASK_CAUSAL_TOP_LEFT if is_causal else _native.MASK_NONE, deterministic=deterministic,
                     flags=flags, interval_form=mask.form, **number, **strides, **masked)
        desc = _Desc(struct_size=ctypes.sizeof(_Desc), attn=ctypes.addressof(attn), seq_q=total_q, seq_kv=total_k,
                     order=self.order, schedule=self.schedule, ranks_per_node=self.ranks_per_node)
        plan = ctypes.c_void_p()
        make = getattr(self.library, f"stw_cp_attn_{call}_plan")
        _check(self.library, make(self.cp, self.context, ctypes.byref(desc), ctypes.byref(plan)))
        self.plans[key] = plan, self.library.stw_cp_plan_workspace_size(plan)
        return self.plans[key]

    def call(self, call: str, options, **tensors) -> None:
        plan, size = self.plan(call, options, tensors)
        workspace = torch.empty(size, dtype=torch.uint8, device=self.device)
        args = _fill(_native.AttnArgs, **{name: t.data_ptr() for name, t in tensors.items()}, **options[-1].pointers())
        run = getattr(self.library, f"stw_cp_attn_{call}")
        with self.wire.guard():
            status = run(plan, args, ctypes.c_void_p(workspace.data_ptr()), ctypes.c_size_t(size),
                         ctypes.c_void_p(self.wire.stream()))
        if self.wire.left:  # messages that a failure left under way
            self.wire.kept.append((workspace, [t.detach() for t in tensors.values()], options))  # no graph, which leads here
        _check(self.library, status)


def context_parallel(group=None, *, order: str = "zigzag", schedule: str = "auto", ranks_per_node: int = 0,
                     timeout: float = 300.0) -> ContextParallel:
    """Attention over the ranks of a group of gloo or NCCL (None: all). order: "zigzag" or "contiguous", which rows a rank holds;
    schedule: "auto", "ring", "all-gather", "ulysses", "2-D" (with ranks_per_node); timeout: seconds a rank waits for another over gloo (NCCL has the group's own)."""
    return ContextParallel(group, order, schedule, ranks_per_node, timeout)
