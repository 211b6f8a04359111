#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Sternway's CPU backward against PyTorch's CPU flash-attention backward, side by side on the same tensors.

Every case is verified first (both against a float64 backward on a few heads), then both are timed in turn, so
that a change of clock or load meets both alike. Prints milliseconds (median) of each and the ratio torch/ours.

    python bench/cpu_peers.py [--library build/release/lib/libsternway.so] [--threads 1 2] [--heads 4] [--rounds 7]

Takes torch from the Python that runs it."""
import argparse
import ctypes
import pathlib
import statistics
import sys
import time

import torch

i32, i64, u32, u64, f32, f64, size_t, ptr = (ctypes.c_int32, ctypes.c_int64, ctypes.c_uint32, ctypes.c_uint64,
                                             ctypes.c_float, ctypes.c_double, ctypes.c_size_t, ctypes.c_void_p)
ENUM = ctypes.c_uint
DTYPES = {torch.float16: 1, torch.bfloat16: 2, torch.float32: 3}


class Strides(ctypes.Structure):
    _fields_ = [(n, i64) for n in ("batch", "head", "seq")]


class BiasStrides(ctypes.Structure):
    _fields_ = [(n, i64) for n in ("batch", "head", "query", "key")]


class Desc(ctypes.Structure):
    _fields_ = ([("struct_size", size_t)]
                + [(n, ENUM) for n in ("dtype", "dq_dtype", "dk_dtype", "dv_dtype", "dbias_dtype", "bias_dtype")]
                + [(n, i64) for n in ("batch", "heads_q", "heads_kv", "head_dim_qk", "head_dim_v", "max_seq_q",
                                      "max_seq_kv", "total_q", "total_kv")]
                + [(n, Strides) for n in ("q", "k", "v", "out", "dout", "dq", "dk", "dv", "lse", "dlse", "delta")]
                + [("bias", BiasStrides), ("dbias", BiasStrides), ("alibi_stride_batch", i64), ("outputs", u32),
                   ("accumulate", u32), ("mask", ENUM), ("flags", u32), ("window_left", i64), ("window_right", i64),
                   ("diagonal_shift", i64), ("scale", f32), ("softcap", f32), ("dropout_p", f64),
                   ("dropout_map", ENUM), ("deterministic", ENUM), ("splits", i32)]
                + [(n, i64) for n in ("batch_offset", "head_offset", "heads_total")])


class Args(ctypes.Structure):
    _fields_ = ([("struct_size", size_t)]
                + [(n, ptr) for n in ("q", "k", "v", "out", "dout", "lse", "dlse", "delta", "bias", "alibi_slopes",
                                      "sink", "cu_seqlens_q", "cu_seqlens_kv", "used_q", "used_kv", "q_offsets",
                                      "k_offsets")]
                + [("q_offset", i64), ("k_offset", i64), ("dropout_seed_ptr", ptr), ("dropout_offset_ptr", ptr),
                   ("dropout_seed", u64), ("dropout_offset", u64)]
                + [(n, ptr) for n in ("dq", "dk", "dv", "dbias", "dsink", "status_out")])


class ContextOpts(ctypes.Structure):
    _fields_ = [("struct_size", size_t), ("backend", ENUM), ("memory", ENUM), ("flags", u32), ("device", i32),
                ("arch", ctypes.c_char_p), ("cpu_threads", i32)]


class Sternway:
    """One context of the CPU backend."""

    def __init__(self, path, threads):
        self.lib = ctypes.CDLL(str(path))
        self.lib.stw_last_error.restype = ctypes.c_char_p
        self.lib.stw_plan_workspace_size.restype = size_t
        self.lib.stw_plan_workspace_size.argtypes = [ptr]
        self.lib.stw_attn_bwd.argtypes = [ptr, ptr, ptr, size_t, ptr]
        opts = ContextOpts(ctypes.sizeof(ContextOpts), 1, 1, 0, 0, None, threads)  # CPU, host memory
        self.context = ptr()
        self.check(self.lib.stw_context_create(ctypes.byref(opts), ctypes.byref(self.context)))

    def check(self, status):
        if status:
            sys.exit("sternway: " + self.lib.stw_last_error().decode())

    def backward(self, dout, q, k, v, out, lse, causal):
        """A function that runs the call, and its gradients."""
        desc = Desc(struct_size=ctypes.sizeof(Desc), dtype=DTYPES[q.dtype])
        desc.batch, desc.heads_q, desc.max_seq_q, desc.head_dim_qk = q.shape
        desc.heads_kv, desc.max_seq_kv, desc.head_dim_v = k.shape[1], k.shape[2], v.shape[3]
        desc.mask = 1 if causal else 0
        grads = [torch.empty_like(t) for t in (q, k, v)]
        tensors = dict(zip(("q", "k", "v", "out", "dout", "dq", "dk", "dv"), (q, k, v, out, dout, *grads)))
        args = Args(struct_size=ctypes.sizeof(Args), lse=lse.data_ptr())
        for name, tensor in tensors.items():
            setattr(desc, name, Strides(*tensor.stride()[:3]))
            setattr(args, name, tensor.data_ptr())
        desc.lse = Strides(*lse.stride())
        plan = ptr()
        self.check(self.lib.stw_attn_bwd_plan(self.context, ctypes.byref(desc), ctypes.byref(plan)))
        size = self.lib.stw_plan_workspace_size(plan)
        memory = torch.empty(size + 256, dtype=torch.uint8)
        workspace = (memory.data_ptr() + 255) // 256 * 256

        def run(keep=(tensors, lse, memory)):
            self.check(self.lib.stw_attn_bwd(plan, ctypes.byref(args), workspace, size, None))

        return run, grads


def float64_backward(dout, q, k, v, causal):
    q, k, v = (t.double().requires_grad_() for t in (q, k, v))
    torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal).backward(dout.double())
    return q.grad, k.grad, v.grad


def verify(name, grads, expected, limit):
    for which, grad, reference in zip(("dq", "dk", "dv"), grads, expected):
        error = ((grad[:, :1].double() - reference).norm() / reference.norm()).item()
        if not error < limit:
            sys.exit(f"{name}: {which} is off by {error:.2e} (relative RMS), limit {limit:.0e}: not timed")


def measure(sternway, dtype, seq, dim, causal, heads, rounds):
    ops = torch.ops.aten
    torch.manual_seed(seq + dim)
    q, k, v, dout = (torch.randn(1, heads, seq, dim).to(dtype) for _ in range(4))
    out, lse = ops._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal)
    ours, grads = sternway.backward(dout, q, k, v, out, lse, causal)

    def theirs():
        return ops._scaled_dot_product_flash_attention_for_cpu_backward(dout, q, k, v, out, lse, 0.0, causal)

    limit = 1e-5 if dtype == torch.float32 else 2e-2
    expected = float64_backward(dout[:, :1], q[:, :1], k[:, :1], v[:, :1], causal)
    ours()
    verify("sternway", grads, expected, limit)
    verify("torch", theirs(), expected, limit)
    times = ([], [])
    for _ in range(rounds):
        for function, seconds in zip((ours, theirs), times):
            time.sleep(0.05)  # OpenMP workers of the other side spin for a while after their call
            start = time.perf_counter()
            function()
            seconds.append(time.perf_counter() - start)
    return [statistics.median(t) * 1e3 for t in times]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    root = pathlib.Path(__file__).resolve().parent.parent
    parser.add_argument("--library", default=root / "build/release/lib/libsternway.so")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--seq", type=int, nargs="+", default=[1024, 2048, 4096])
    parser.add_argument("--dim", type=int, nargs="+", default=[64, 128])
    parser.add_argument("--dtype", nargs="+", choices=["f32", "bf16", "f16"], default=["f32", "bf16"])
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    names = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
    print(f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}; 1 x {options.heads} heads; median of "
          f"{options.rounds}, interleaved")
    print(f"{'threads':>7} {'dtype':>5} {'seq':>5} {'dim':>4} {'mask':>6} {'ours ms':>9} {'GFLOP/s':>8} {'torch ms':>9} {'ratio':>6}")
    for threads in options.threads:
        torch.set_num_threads(threads)
        sternway = Sternway(options.library, threads)
        for dtype in options.dtype:
            for seq in options.seq:
                for dim in options.dim:
                    for causal in (False, True):
                        ours, theirs = measure(sternway, names[dtype], seq, dim, causal, options.heads, options.rounds)
                        work = 10 * options.heads * seq * seq * dim * (0.5 if causal else 1.0)
                        print(f"{threads:7} {dtype:>5} {seq:5} {dim:4} {'causal' if causal else 'full':>6} {ours:9.2f} "
                              f"{work / ours / 1e6:8.0f} {theirs:9.2f} {theirs / ours:6.2f}", flush=True)


if __name__ == "__main__":
    main()
