#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A model of attention's backward over many GPUs: what each schedule of sternway/attn_cp.h takes, from flops, bytes and rates.

    python3 bench/cp_model.py [--machine nvlink|xgmi] [--heads 32] [--kv-heads 8] [--head-dim 128] [--tflops 500] ...
    python3 bench/cp_model.py --measured FILE      # a document of `sternway bench --cp --json`: the model beside it

It is paper and arithmetic for 8 to 4096 GPUs and S of 128k to 16M, and names the fastest schedule. The rates are arguments:
    --machine  vendors' figures for links: nvlink (an H200 node: a switch, 450 GB/s each way, whoever the peers are) or xgmi (an
               MI300X node: 64 GB/s each way to each of 7 peers); both with 400 Gb/s a GPU between nodes
    --tflops   of the backward on one GPU, as `sternway bench` prints it for the shape (500 is assumed for both machines)
    --link     GB/s that a GPU sends to one other GPU of its node
    --link-all GB/s that it sends to all of them at once
    --network  GB/s that a GPU sends between nodes (400 Gb/s: 50)
    --latency  seconds before a message moves
    --memory   GB/s of the GPU's memory: sums of dK and dV are read and written in every step, K and V copied, sums cast once

With --measured a row's rates are its own: TFLOP/s of the one device alone, GB/s of the messages alone. What the model makes of
them may differ from the measured time by 15%; beyond that the exit status is 1.

Of a causal problem of S rows on N ranks in zigzag order, a rank computes 1/N of 5 products of S*S/2*D*2 flops a head.
    ring        N steps; a step's compute hides its moves (K, V in 16 bits, dK and dV in f32) where it is longer
    all-gather  K and V of all before, dK and dV of all behind
    ulysses     Q, dO, K and V by heads before, dQ, dK and dV behind, in groups of heads: what moves under the kernels of another
                group takes of them the share of multiprocessors that messages hold
    2-D         ulysses in the node, a ring between nodes
"""
import argparse
import json
import pathlib
import re
import sys
from dataclasses import dataclass, replace

ALLOWED = 0.15  # of a measured time


@dataclass
class Machine:
    tflops: float = 500.0
    link: float = 450.0
    link_all: float = 450.0
    network: float = 50.0
    latency: float = 10e-6
    per_node: int = 8
    memory: float = 3000.0


MACHINES = {"nvlink": Machine(), "xgmi": Machine(link=64.0, link_all=448.0, memory=4500.0)}


@dataclass
class Problem:
    rows: int
    ranks: int
    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    causal: bool = True
    batch: int = 1

    def flops(self):
        return 5 * 2 * self.batch * self.rows * self.rows * self.head_dim * self.heads * (0.5 if self.causal else 1)

    def kv_bytes(self, rows, kv_heads):
        """K and V in 16 bits, and their gradients in f32."""
        numbers = 2 * self.batch * rows * kv_heads * self.head_dim
        return 2 * numbers, 4 * numbers


def bandwidth(machine, ranks, to_all=False):
    """GB/s to the next rank, or to all, where all ranks send at once: beyond a node the network is on the way of some."""
    if ranks > machine.per_node:
        return machine.network
    return min(machine.link_all, machine.link * max(ranks - 1, 1)) if to_all else machine.link


def compute(problem, machine):
    return problem.flops() / problem.ranks / (machine.tflops * 1e12)


def ring_over(problem, machine, shards, rows, kv_heads, gb_s):
    """(seconds, bytes a rank sends) of a ring of `shards` shards of `rows` rows each, the kernels' time included."""
    inputs, sums = problem.kv_bytes(rows, kv_heads)
    memory, step = machine.memory * 1e9, compute(problem, machine) / shards
    if shards == 1:
        return step, 0
    late = 0.25 if problem.causal else 0.5  # of a step: the second chunk of the own block's keys, under the last sums

    def tick(work, moved):
        return max(work, moved / (gb_s * 1e9) + machine.latency if moved else 0)

    # K and V are copied; own sums are written and read, and with them the two sets that come home; the result is of 16 bits
    seconds = (2 * inputs + (2.5 + min(2, shards - 1)) * sums) / memory
    seconds += tick((1 - late) * step, inputs) + tick(late * step, sums)
    for n in range(1, shards):  # the first step of a set writes, the others read as well
        seconds += tick(step + (1 if n < 3 else 2) * sums / memory, (inputs if n < shards - 1 else 0) + (sums if n > 1 else 0))
    return seconds, (shards - 1) * (inputs + sums)


def ring(problem, machine):
    return ring_over(problem, machine, problem.ranks, problem.rows / problem.ranks, problem.kv_heads,
                     bandwidth(machine, problem.ranks))


def all_gather(problem, machine):
    inputs, sums = problem.kv_bytes(problem.rows / problem.ranks, problem.kv_heads)
    moved = (problem.ranks - 1) * (inputs + sums)
    gb_s = bandwidth(machine, problem.ranks, to_all=True)
    passes = problem.ranks * 2 * (inputs + sums) / (machine.memory * 1e9) if problem.ranks > 1 else 0
    return compute(problem, machine) + passes + moved / (gb_s * 1e9) + 2 * machine.latency, moved


GROUP_ROWS, GROUPS_MAX = 131072, 8  # dispatch/cp_heads.c: keys times heads of k of a group, at least; groups, at most
HELD = 32 / 132  # of a GPU's multiprocessors, by NCCL on an H200


def groups_of(problem):
    heads = problem.kv_heads // problem.ranks
    return max(n for n in range(1, GROUPS_MAX + 1)
               if n == 1 or heads % n == 0 and problem.batch * problem.rows * (heads // n) >= GROUP_ROWS)


def exchange(problem, machine, ranks, gb_s, back=4, groups=1):
    """Q, dO (16 bits), K, V, LSE and delta; dQ, dK and dV back, `back` bytes a number; each rank keeps 1/ranks."""
    rows = problem.batch * problem.rows / problem.ranks
    heads = problem.heads * problem.head_dim
    kv = problem.kv_heads * problem.head_dim
    all_of_it = rows * (2 * (2 * heads + 2 * kv) + 8 * problem.heads + back * (heads + 2 * kv))
    moved = all_of_it * (ranks - 1) / ranks
    packed = (4 * moved + 2 * (all_of_it - moved)) / (machine.memory * 1e9)  # read and written on either end; the own part once
    alone = 1 / groups + HELD * (1 - 1 / groups)
    return packed + alone * moved / (gb_s * 1e9) + 2 * machine.latency * (ranks > 1), moved


def ulysses(problem, machine):
    if problem.kv_heads % problem.ranks:
        return None
    seconds, moved = exchange(problem, machine, problem.ranks, bandwidth(machine, problem.ranks, to_all=True), 2,
                              groups_of(problem))
    return compute(problem, machine) + seconds, moved


def two_d(problem, machine):
    split = machine.per_node
    if problem.ranks % split or problem.kv_heads % split or problem.ranks == split:
        return None
    shards = problem.ranks // split
    inner, inner_bytes = exchange(problem, machine, split, bandwidth(machine, split, to_all=True))
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


LINE = re.compile(r"attn_bwd:(?:bf16|f16):b(?P<batch>\d+)h(?P<heads>\d+)(?:k(?P<kv_heads>\d+))?s(?P<rows>\d+)d(?P<head_dim>\d+)"
                  r"(?P<causal>:causal_(?:tl|br))?$")


def measured_rows(document):
    """(line, schedule, measured seconds, the model's) of each row of `bench --cp --json` that the model speaks of: dense
    backward of one length in 16 bits."""
    for row in document["problems"]:
        over, line = row.get("over_ranks"), LINE.match(row["problem"])
        if not over or not line:
            continue
        sizes = {name: int(value) for name, value in line.groupdict().items() if name != "causal" and value}
        problem = Problem(ranks=over["ranks"], causal=bool(line["causal"]), **{"kv_heads": sizes["heads"], **sizes})
        single = problem.flops() / over["single_ms"] * 1e-9
        sent = over["sent_bytes"] / max(over["communication_ms"], 1e-9) * 1e-6
        machine = Machine(single, sent, sent, sent, per_node=over["ranks"])
        done = SCHEDULES[over["schedule"]](problem, machine)
        if done:
            yield row["problem"], over["schedule"], row["median_ms"] * 1e-3, done[0]


def compare(path):
    """Prints the rows of a document; True where the model meets all of them, of which there is one at least."""
    rows = list(measured_rows(json.loads(pathlib.Path(path).read_text(encoding="utf-8"))))
    for line, schedule, measured, modelled in rows:
        off = modelled / measured - 1
        print(f"{'ok  ' if abs(off) <= ALLOWED else 'FAIL'} {line} {schedule}: measured {measured:.6f} s, modelled {modelled:.6f} s, {off:+.1%}")
    if not rows:
        print(f"FAIL {path}: no row of `sternway bench --cp` that the model speaks of")
    return bool(rows) and all(abs(modelled / measured - 1) <= ALLOWED for _, _, measured, modelled in rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--kv-heads", type=int, default=8)
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--machine", choices=MACHINES, default="nvlink")
    for rate in ("tflops", "link", "link_all", "network", "latency", "memory"):
        parser.add_argument("--" + rate.replace("_", "-"), type=float)
    parser.add_argument("--measured", metavar="FILE")
    args = parser.parse_args()
    if args.measured:
        sys.exit(not compare(args.measured))
    given = {rate: value for rate, value in vars(args).items() if value is not None and hasattr(Machine, rate)}
    machine = replace(MACHINES[args.machine], **given)
    print(f"{args.machine}: a model, no measurement: seconds of one backward, efficiency of a GPU, GB that it sends")
    for ranks in (8, 64, 512, 4096):
        for thousands in (128, 1024, 4096, 16384):
            problem = Problem(thousands * 1024, ranks, args.heads, args.kv_heads, args.head_dim)
            name, seconds, moved = choose(problem, machine)
            print(f"{ranks:5} GPUs  S {thousands:6}k  {name:10}  {seconds:10.4f} s  {efficiency(problem, machine, seconds):5.0%}"
                  f"  {moved / 1e9:8.2f} GB")


if __name__ == "__main__":
    main()
