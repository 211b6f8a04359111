# SPDX-License-Identifier: MIT
"""The part of Sternway's C interface that the peer benchmarks use, over ctypes, on torch tensors.

Dense tensors are [B,H,S,D] views of any strides, packed ones [T,H,D] with cu_seqlens; LSE is [B,H,S] or [H,T].
Used by cpu_peers.py and gpu_peers.py; a reader's shortest example of a call is examples/ in C."""
import ctypes
import sys

import torch

i32, i64, u32, u64, f32, f64, size_t, ptr = (ctypes.c_int32, ctypes.c_int64, ctypes.c_uint32, ctypes.c_uint64,
                                             ctypes.c_float, ctypes.c_double, ctypes.c_size_t, ctypes.c_void_p)
ENUM = ctypes.c_uint
DTYPES = {torch.float16: 1, torch.bfloat16: 2, torch.float32: 3, torch.float64: 4, torch.uint8: 6, torch.bool: 6}
BACKENDS = {"cpu": 1, "cuda": 2, "hip": 3}
MEMORY = {"cpu": 1, "cuda": 2, "hip": 2}  # STW_MEMORY_HOST, STW_MEMORY_DEVICE
MASK_CAUSAL = 2  # STW_MASK_CAUSAL_BOTTOM_RIGHT; the same as top-left where both sides are equally long
DROPOUT_MAPS = {"philox": 0, "mem_eff": 1, "flash2": 2}
OUT_QKV, OUT_DBIAS = 7, 8
DETERMINISTIC = {True: 1, False: 2}


class Strides(ctypes.Structure):
    _fields_ = [(n, i64) for n in ("batch", "head", "seq")]


class BiasStrides(ctypes.Structure):
    _fields_ = [(n, i64) for n in ("batch", "head", "query", "key")]


class DimStrides(ctypes.Structure):
    _fields_ = [(n, i64) for n in ("q", "k", "v", "out", "dout")]


class Desc(ctypes.Structure):
    _fields_ = ([("struct_size", size_t)]
                + [(n, ENUM) for n in ("dtype", "dq_dtype", "dk_dtype", "dv_dtype", "dbias_dtype", "bias_dtype")]
                + [(n, i64) for n in ("batch", "heads_q", "heads_kv", "head_dim_qk", "head_dim_v", "max_seq_q",
                                      "max_seq_kv", "total_q", "total_kv")]
                + [(n, Strides) for n in ("q", "k", "v", "out", "dout", "dq", "dk", "dv", "lse", "dlse", "delta")]
                + [("bias", BiasStrides), ("dbias", BiasStrides), ("alibi_stride_batch", i64), ("outputs", u32),
                   ("accumulate", u32), ("mask", ENUM), ("flags", u32), ("window_left", i64), ("window_right", i64),
                   ("diagonal_shift", i64), ("scale", f32), ("softcap", f32), ("dropout_p", f64),
                   ("dropout_map", ENUM), ("deterministic", ENUM)]
                + [(n, i64) for n in ("batch_offset", "head_offset", "heads_total")]
                + [("dim", DimStrides), ("scale_f64", f64), ("softcap_f64", f64)])


class Args(ctypes.Structure):
    _fields_ = ([("struct_size", size_t)]
                + [(n, ptr) for n in ("q", "k", "v", "out", "dout", "lse", "dlse", "delta", "bias", "alibi_slopes",
                                      "sink", "cu_seqlens_q", "cu_seqlens_kv", "used_q", "used_kv", "q_offsets",
                                      "k_offsets")]
                + [("q_offset", i64), ("k_offset", i64), ("dropout_seed_ptr", ptr), ("dropout_offset_ptr", ptr),
                   ("dropout_seed", u64), ("dropout_offset", u64)]
                + [(n, ptr) for n in ("dq", "dk", "dv", "dbias", "dsink", "status_out")] + [("cpu_threads", i32)])


class ContextOpts(ctypes.Structure):
    _fields_ = [("struct_size", size_t), ("backend", ENUM), ("memory", ENUM), ("flags", u32), ("device", i32),
                ("arch", ctypes.c_char_p), ("cpu_threads", i32)]


def bias_strides(tensor):
    """A dimension of size 1 is a broadcast."""
    return BiasStrides(*(0 if size == 1 else stride for size, stride in zip(tensor.shape, tensor.stride())))


class Call:
    """One planned call: run(stream) does it; what it points to stays alive with it."""

    def __init__(self, api, kind, desc, args, keep, device):
        self.api, self.args, self.keep, self.plan = api, args, keep, ptr()
        api.check(getattr(api.lib, f"stw_attn_{kind}_plan")(api.context, ctypes.byref(desc), ctypes.byref(self.plan)))
        self.size = api.lib.stw_plan_workspace_size(self.plan)
        self.memory = torch.empty(self.size, dtype=torch.uint8, device=device)
        self.workspace = self.memory.data_ptr()
        self.function = getattr(api.lib, f"stw_attn_{kind}")
        self.reference = ctypes.byref(args)

    def run(self, stream=None):
        status = self.function(self.plan, self.reference, self.workspace, self.size, stream)
        if status:
            self.api.check(status)

    def field(self, name):
        """A line of the plan's description, "variant" for one."""
        text = ctypes.create_string_buffer(4096)
        self.api.check(self.api.lib.stw_plan_describe(self.plan, text, len(text), None))
        for line in text.value.decode().split("\n"):
            if line.startswith(name + ": "):
                return line[len(name) + 2:]
        return ""

    def dropout_mask(self, stream=None):
        """uint8 [B,H,Sq,Sk], 1 = kept."""
        q, k = self.keep["q"], self.keep["k"]
        mask = torch.empty(q.shape[0], q.shape[1], q.shape[2], k.shape[2], dtype=torch.uint8, device=q.device)
        self.api.check(self.api.lib.stw_dropout_mask(self.plan, self.reference, mask.data_ptr(), stream))
        return mask

    def __del__(self):
        self.api.lib.stw_plan_destroy(self.plan)


class Sternway:
    """One context. The environment (STERNWAY_VARIANT and so on) is read here."""

    def __init__(self, path, backend="cpu", threads=0, device=0):
        self.lib = ctypes.CDLL(str(path))
        self.lib.stw_last_error.restype = ctypes.c_char_p
        self.lib.stw_plan_workspace_size.restype = size_t
        self.lib.stw_context_arch.restype = ctypes.c_char_p
        for name, types in {"stw_plan_workspace_size": [ptr], "stw_plan_destroy": [ptr],
                            "stw_attn_bwd": [ptr, ptr, ptr, size_t, ptr], "stw_attn_fwd": [ptr, ptr, ptr, size_t, ptr],
                            "stw_plan_describe": [ptr, ptr, size_t, ptr], "stw_context_arch": [ptr],
                            "stw_dropout_mask": [ptr, ptr, ptr, ptr],
                            "stw_attn_mask_from_flash": [ptr, ctypes.c_int, i64, i64]}.items():
            getattr(self.lib, name).argtypes = types
        opts = ContextOpts(ctypes.sizeof(ContextOpts), BACKENDS[backend], MEMORY[backend], 1, device, None, threads)
        self.context = ptr()
        self.check(self.lib.stw_context_create(ctypes.byref(opts), ctypes.byref(self.context)))
        self.arch = self.lib.stw_context_arch(self.context).decode()

    def check(self, status):
        if status:
            raise RuntimeError("sternway: " + self.lib.stw_last_error().decode())

    def mask_from_flash(self, desc, causal=False, window_size=(-1, -1)):
        """Sets the mask of a Desc whose sizes are set to what FlashAttention 2 makes of its causal and window_size."""
        self.check(self.lib.stw_attn_mask_from_flash(ctypes.byref(desc), causal, *window_size))

    def _call(self, kind, tensors, lse, causal, bias, dbias, dropout, cu, deterministic):
        q, k, v = (tensors[n] for n in ("q", "k", "v"))
        desc = Desc(struct_size=ctypes.sizeof(Desc), dtype=DTYPES[q.dtype], mask=MASK_CAUSAL if causal else 0)
        args = Args(struct_size=ctypes.sizeof(Args), lse=lse.data_ptr())
        keep = dict(tensors, lse=lse, bias=bias, dbias=dbias, cu=cu)
        desc.deterministic = DETERMINISTIC[deterministic]
        if cu:
            starts, longest = cu
            desc.batch, desc.max_seq_q, desc.max_seq_kv = len(starts) - 1, longest, longest
            desc.total_q, desc.heads_q, desc.head_dim_qk = q.shape
            desc.total_kv, desc.heads_kv, desc.head_dim_v = v.shape
            args.cu_seqlens_q = args.cu_seqlens_kv = starts.data_ptr()
            desc.lse = Strides(0, *lse.stride())
        else:
            desc.batch, desc.heads_q, desc.max_seq_q, desc.head_dim_qk = q.shape
            desc.heads_kv, desc.max_seq_kv, desc.head_dim_v = v.shape[1:]
            desc.lse = Strides(*lse.stride())
        for name, tensor in tensors.items():
            strides = (0, tensor.stride(1), tensor.stride(0)) if cu else tensor.stride()[:3]
            setattr(desc, name, Strides(*strides))
            setattr(args, name, tensor.data_ptr())
        if bias is not None:
            desc.bias_dtype, desc.bias, args.bias = DTYPES[bias.dtype], bias_strides(bias), bias.data_ptr()
        if dbias is not None:
            desc.dbias, args.dbias, desc.outputs = bias_strides(dbias), dbias.data_ptr(), OUT_QKV | OUT_DBIAS
        if dropout:
            desc.dropout_p, desc.dropout_map = dropout[0], DROPOUT_MAPS[dropout[1]]
            args.dropout_seed, args.dropout_offset = dropout[2:]
        return Call(self, kind, desc, args, keep, q.device)

    def backward(self, dout, q, k, v, out, lse, causal=False, bias=None, dbias=None, dropout=None, cu=None,
                 deterministic=False):
        """A planned call and its gradients (dq, dk, dv), NaN until it runs. dropout = (p, map, seed, offset);
        cu = (starts, longest sequence)."""
        grads = [torch.empty_like(t).fill_(float("nan")) for t in (q, k, v)]
        tensors = dict(zip(("q", "k", "v", "out", "dout", "dq", "dk", "dv"), (q, k, v, out, dout, *grads)))
        return self._call("bwd", tensors, lse, causal, bias, dbias, dropout, cu, deterministic), grads

    def forward(self, q, k, v, causal=False, dropout=None):
        """A planned dense forward and its out and lse."""
        out = torch.empty(*q.shape[:3], v.shape[3], dtype=q.dtype, device=q.device)
        lse = torch.empty(q.shape[:3], dtype=torch.float64 if q.dtype == torch.float64 else torch.float32, device=q.device)
        tensors = dict(q=q, k=k, v=v, out=out)
        return self._call("fwd", tensors, lse, causal, None, None, dropout, None, False), out, lse


def open_or_exit(*arguments, **named):
    try:
        return Sternway(*arguments, **named)
    except (OSError, RuntimeError) as error:
        sys.exit(str(error))
