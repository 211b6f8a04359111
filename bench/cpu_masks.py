# SPDX-License-Identifier: MIT
"""Masks in memory on the CPU: time of the backward beside the share of pairs that they leave. One thread, CPU time of
the process, the least of --rounds rounds over all cases: python bench/cpu_masks.py"""
from __future__ import annotations

import argparse
import time
from typing import Any

import numpy
import sternway
from sternway import masks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=6)
    options = parser.parse_args()
    size = options.length
    random = numpy.random.default_rng(0)
    q, k, v, dout = (random.standard_normal((1, 2, size, options.head_dim)).astype(numpy.float32) for _ in range(4))
    below = numpy.stack([numpy.full(size, size), numpy.arange(size)], -1).astype(numpy.int32)[None, None]
    cases: dict[str, tuple[float, dict[str, Any]]] = {
        "full": (1, {}), "causal": (0.5, {"mask": "causal"}),
        "causal by intervals": (0.5, masks.Intervals(below, sternway.IntervalForm.FROM_BELOW).options())}
    for parts in (2, 4, 8, 16, 32):
        cases[f"{parts} chunks"] = (1 / parts, masks.chunks(size, size // parts, causal=False).options())
    cases["8 causal chunks"] = (1 / 16, {"mask": "causal", **masks.chunks(size, size // 8).options()})
    forward = {name: sternway.attn_fwd(q, k, v, cpu_threads=1, **words) for name, (_, words) in cases.items()}
    least = dict.fromkeys(cases, float("inf"))
    for _ in range(options.rounds):
        for name, (_, words) in cases.items():
            start = time.process_time()
            sternway.attn_bwd(dout, q, k, v, *forward[name], cpu_threads=1, **words)
            least[name] = min(least[name], time.process_time() - start)
    print("| mask | pairs | ms | of full |\n|---|---|---|---|")
    for name, (share, _) in cases.items():
        print(f"| {name} | {share:.3f} | {least[name] * 1e3:.1f} | {least[name] / least['full']:.3f} |")


if __name__ == "__main__":
    main()
