#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Sternway's CPU backward against PyTorch's CPU flash-attention backward, side by side on the same tensors.

Every case is verified first (both against a float64 backward on a few heads), then both are timed in turn, so
that a change of clock or load meets both alike. Prints milliseconds (median) of each and the ratio torch/ours.

    python bench/cpu_peers.py [--threads 1 2] [--heads 4] [--rounds 7]

Takes torch, and sternway if it is installed, from the Python that runs it."""
import argparse
import statistics
import sys
import time

import torch

from calls import open_or_exit


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
    call, grads = sternway.backward(dout, q, k, v, out, lse, causal)

    def theirs():
        return ops._scaled_dot_product_flash_attention_for_cpu_backward(dout, q, k, v, out, lse, 0.0, causal)

    limit = 1e-5 if dtype == torch.float32 else 2e-2
    expected = float64_backward(dout[:, :1], q[:, :1], k[:, :1], v[:, :1], causal)
    call.run()
    verify("sternway", grads, expected, limit)
    verify("torch", theirs(), expected, limit)
    times = ([], [])
    for _ in range(rounds):
        for function, seconds in zip((call.run, theirs), times):
            time.sleep(0.05)  # OpenMP workers of the other side spin for a while after their call
            start = time.perf_counter()
            function()
            seconds.append(time.perf_counter() - start)
    return [statistics.median(t) * 1e3 for t in times]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
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
        sternway = open_or_exit("cpu", threads)
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
