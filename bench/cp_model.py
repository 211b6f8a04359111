#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A model of attention's backward over many GPUs: what each schedule of sternway/attn_cp.h takes, from flops, bytes and rates.

    python3 bench/cp_model.py [--heads 32] [--kv-heads 8] [--head-dim 128] [--tflops 500] [--link 900] [--network 50]

It is paper and arithmetic: no run on two GPUs or more has been compared with it yet. The rates are arguments:
    --tflops   of the backward on one GPU, as `sternway bench` prints it for the shape
    --link     GB/s that a GPU sends in its node (NVLink 4: 900 GB/s in both directions, 450 each way)
    --network  GB/s that a GPU sends between nodes (400 Gb/s: 50)
    --latency  seconds before a message moves

Of a causal problem of S rows on N ranks in zigzag order, a rank computes 1/N of 5 products of S*S/2*D*2 flops a head.
    ring        N steps; a step's compute hides its moves (K, V in 16 bits, dK and dV in f32) where it is longer
    all-gather  K and V of all before, dK and dV of all behind
    ulysses     Q, dO, K and V by heads before, dQ, dK and dV behind
    2-D         ulysses in the node, a ring between nodes
"""
import argparse
from dataclasses import dataclass


@dataclass
class Machine:
    tflops: float = 500.0
    link: float = 450.0
    network: float = 50.0
    latency: float = 10e-6
    per_node: int = 8


@dataclass
class Problem:
    rows: int
    ranks: int
    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    causal: bool = True

    def flops(self):
        return 5 * 2 * self.rows * self.rows * self.head_dim * self.heads * (0.5 if self.causal else 1)

    def kv_bytes(self, rows, kv_heads):
        """K and V in 16 bits, and their gradients in f32."""
        return 2 * 2 * rows * kv_heads * self.head_dim, 2 * 4 * rows * kv_heads * self.head_dim


def bandwidth(machine, ranks):
    """GB/s to the next rank, where all ranks send at once: beyond a node the network is on the way of some."""
    return machine.link if ranks <= machine.per_node else machine.network


def compute(problem, machine):
    return problem.flops() / problem.ranks / (machine.tflops * 1e12)


def ring_over(problem, machine, shards, rows, kv_heads, gb_s):
    """(seconds, bytes a rank sends) of a ring of `shards` shards of `rows` rows each, the kernels' time included."""
    inputs, sums = problem.kv_bytes(rows, kv_heads)
    step = compute(problem, machine) / shards
    move = (inputs + sums) / (gb_s * 1e9) + machine.latency
    home = sums / 2 / (gb_s * 1e9) + machine.latency if shards > 1 else 0  # the last half has nothing to hide under
    return step + (shards - 1) * max(step, move) + home, (shards - 1) * (inputs + sums) + (sums if shards > 1 else 0)


def ring(problem, machine):
    return ring_over(problem, machine, problem.ranks, problem.rows / problem.ranks, problem.kv_heads,
                     bandwidth(machine, problem.ranks))


def all_gather(problem, machine):
    inputs, sums = problem.kv_bytes(problem.rows / problem.ranks, problem.kv_heads)
    moved = (problem.ranks - 1) * (inputs + sums)
    return compute(problem, machine) + moved / (bandwidth(machine, problem.ranks) * 1e9) + 2 * machine.latency, moved


def exchange(problem, machine, ranks, gb_s):
    """Q, dO (16 bits), K, V, LSE and delta; dQ, dK and dV back in f32; each rank keeps 1/ranks."""
    rows = problem.rows / problem.ranks
    heads = problem.heads * problem.head_dim
    kv = problem.kv_heads * problem.head_dim
    moved = rows * (2 * (2 * heads + 2 * kv) + 8 * problem.heads + 4 * (heads + 2 * kv)) * (ranks - 1) / ranks
    return moved / (gb_s * 1e9) + 2 * machine.latency * (ranks > 1), moved


def ulysses(problem, machine):
    if problem.kv_heads % problem.ranks:
        return None
    seconds, moved = exchange(problem, machine, problem.ranks, bandwidth(machine, problem.ranks))
    return compute(problem, machine) + seconds, moved


def two_d(problem, machine):
    split = machine.per_node
    if problem.ranks % split or problem.kv_heads % split or problem.ranks == split:
        return None
    shards = problem.ranks // split
    inner, inner_bytes = exchange(problem, machine, split, machine.link)
    outer, outer_bytes = ring_over(problem, machine, shards, problem.rows / shards, problem.kv_heads // split, machine.network)
    return inner + outer, inner_bytes + outer_bytes


SCHEDULES = {"ring": ring, "all-gather": all_gather, "ulysses": ulysses, "2-D": two_d}


def choose(problem, machine):
    """(name, seconds, bytes) of the fastest; of equals the one that moves less."""
    found = [(*done, name) for name, make in SCHEDULES.items() if (done := make(problem, machine))]
    seconds, moved, name = min(found, key=lambda row: (round(row[0], 9), row[1]))
    return name, seconds, moved


def efficiency(problem, machine, seconds):
    return compute(problem, machine) / seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--kv-heads", type=int, default=8)
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--tflops", type=float, default=Machine.tflops)
    parser.add_argument("--link", type=float, default=Machine.link)
    parser.add_argument("--network", type=float, default=Machine.network)
    parser.add_argument("--latency", type=float, default=Machine.latency)
    args = parser.parse_args()
    machine = Machine(args.tflops, args.link, args.network, args.latency)
    print("a model, no measurement: seconds of one backward, efficiency of a GPU, GB that it sends")
    for ranks in (8, 64, 512, 4096):
        for thousands in (128, 1024, 4096, 16384):
            problem = Problem(thousands * 1024, ranks, args.heads, args.kv_heads, args.head_dim)
            name, seconds, moved = choose(problem, machine)
            print(f"{ranks:5} GPUs  S {thousands:6}k  {name:10}  {seconds:10.4f} s  {efficiency(problem, machine, seconds):5.0%}"
                  f"  {moved / 1e9:8.2f} GB")


if __name__ == "__main__":
    main()
