# SPDX-License-Identifier: MIT
"""Attention over the ranks that torchrun has started, against float64 and one device:

    torchrun --nproc-per-node 4 -m sternway.cp_conform                    # processes of the CPU, over gloo
    torchrun --nproc-per-node 2 -m sternway.cp_conform --backend nccl     # a GPU each, over the group's communicator

Each row is forward and backward by sternway.torch.context_parallel. Root mean square errors of out, dq, dk and dv may be
1.25 times those of sternway.torch.sdpa on one device, as in `sternway cp-conform`, which has all features."""
from __future__ import annotations

import argparse
import datetime
import os
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F

from .torch import context_parallel, sdpa

ALLOWED = 1.25
NAMES = ("out", "dq", "dk", "dv")
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
PROBLEMS = (  # dtype, batch, heads of q, heads of k, rows, keys, head_dim, causal; heads for Ulysses on 2 to 4 ranks
    ("bf16", 2, 24, 12, 192, 192, 64, True), ("f32", 1, 12, 12, 131, 131, 32, True), ("f16", 1, 24, 12, 96, 144, 64, False),
    ("f32", 2, 12, 12, 61, 90, 24, False))
SCHEDULES = ("auto", "ring", "all-gather", "ulysses")


def rows_of_suite(size: int):
    """(name, order, schedule, problem); Ulysses where the ranks divide the heads."""
    for problem in PROBLEMS:
        dtype, batch, heads, kv_heads, rows, keys, dim, causal = problem
        line = f"{dtype} b{batch} h{heads}k{kv_heads} s{rows}x{keys} d{dim}{' causal' if causal else ''}"
        for order in ("zigzag", "contiguous"):
            for schedule in SCHEDULES:
                if schedule != "ulysses" or kv_heads % size == 0:
                    yield f"{order} {schedule} {line}", order, schedule, problem


def gradients(call, tensors, dout):
    leaves = [t.detach().clone().requires_grad_() for t in tensors]
    out = call(*leaves)
    return (out.detach(), *torch.autograd.grad(out, leaves, dout))


def squares(results, wanted) -> list:
    return [(got.double() - want).square().sum().item() for got, want in zip(results, wanted)]


def check(order: str, schedule: str, problem, seed: int, timeout: float):
    """RMS errors over those of one device, of all ranks together: {"out": 1.0, ...}."""
    name, batch, heads, kv_heads, rows, keys, dim, causal = problem
    cp = context_parallel(order=order, schedule=schedule, timeout=timeout)
    generator = torch.Generator().manual_seed(seed)
    shapes = ((batch, heads, rows, dim), (batch, kv_heads, keys, dim), (batch, kv_heads, keys, dim), (batch, heads, rows, dim))
    whole = [torch.randn(shape, generator=generator, dtype=torch.float64).to(DTYPES[name]).to(cp.device) for shape in shapes]
    try:
        got = gradients(lambda q, k, v: cp.attention(q, k, v, is_causal=causal, total_q=rows, total_k=keys),
                        [cp.shard(t, 2) for t in whole[:3]], cp.shard(whole[3], 2))
        exact = gradients(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=heads != kv_heads),
                          [t.double() for t in whole[:3]], whole[3].double())
        alone = gradients(lambda q, k, v: sdpa(q, k, v, is_causal=causal, enable_gqa=heads != kv_heads), whole[:3], whole[3])
        sums = torch.tensor(squares(got, [cp.shard(t, 2) for t in exact]), dtype=torch.float64, device=cp.device)
        dist.all_reduce(sums)
    finally:
        cp.close()
    return {name: (error / own) ** 0.5 for name, error, own in zip(NAMES, sums.tolist(), squares(alone, exact))}


def main() -> int:
    parser = argparse.ArgumentParser(prog="torchrun --nproc-per-node N -m sternway.cp_conform",
                                     description=__doc__.splitlines()[0])
    parser.add_argument("--backend", choices=("gloo", "nccl"), default="gloo", help="of the process group (default: gloo)")
    parser.add_argument("-f", "--filter", default="", help="only rows whose line holds this text")
    parser.add_argument("-s", "--seed", type=int, default=0, help="other data for every row")
    parser.add_argument("-t", "--timeout", type=float, default=120, help="seconds that a rank waits for another")
    options = parser.parse_args()
    if "RANK" not in os.environ:
        parser.error("it is started by torchrun, which sets RANK and WORLD_SIZE")
    if options.backend == "nccl":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group(options.backend, timeout=datetime.timedelta(seconds=options.timeout))
    first, ran, failed = dist.get_rank() == 0, 0, 0
    for number, (line, order, schedule, problem) in enumerate(rows_of_suite(dist.get_world_size())):
        if options.filter not in line:
            continue
        ratios = check(order, schedule, problem, options.seed * 1000 + number, options.timeout)
        good = all(ratio <= ALLOWED for ratio in ratios.values())
        ran, failed = ran + good, failed + (not good)
        if first:
            print("ok  " if good else "FAIL", line, *(f"{name} {ratio:.2f}" for name, ratio in ratios.items()), flush=True)
    if first:
        print(f"{ran} ran, {failed} failed on {dist.get_world_size()} ranks over {options.backend}; "
              "numbers are RMS errors over the single device's own")
    dist.destroy_process_group()
    return 1 if failed or not ran else 0


if __name__ == "__main__":
    sys.exit(main())
