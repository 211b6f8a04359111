#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Seconds to compile a transformer block with its backward by torch.compile, and milliseconds of its steps, with and
without sternway.torch.enable(), on one core.

The gradients of every row are held against the block in float64, and the counts of sternway.torch.stats() against what
the row says, before it is timed.

    python bench/python_compile.py [--rounds 100] [--backend inductor] [--rows 197]

Exit status 1 when a row was wrong."""
from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
import timeit

os.environ["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] = "1"  # or the second row would find what the first compiled

import calls  # noqa: F401  finds the package

import torch
import sternway.torch

BATCH, WIDTH, HEADS = 2, 192, 3


class Block(torch.nn.Module):
    """LayerNorm, causal attention and its projections, with the residual."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.qkv, self.out = torch.nn.Linear(WIDTH, 3 * WIDTH), torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        attention = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(attention.transpose(1, 2).flatten(2))


class Steps:
    """The block, its input, and what its gradients are in float64."""

    def __init__(self, rows: int) -> None:
        torch.manual_seed(3)
        self.block, self.x = Block(), torch.randn(BATCH, rows, WIDTH)
        self.dout = torch.randn_like(self.x)
        reference = Block().double()
        reference.load_state_dict(self.block.state_dict())
        reference(self.x.double()).backward(self.dout.double())
        self.expected = [weight.grad for weight in reference.parameters()]

    def run(self, function) -> None:
        self.block.zero_grad()
        function(self.x).backward(self.dout)

    def error(self) -> float:
        """Largest relative RMS error of a weight's gradient."""
        pairs = zip(self.block.parameters(), self.expected)
        return max(((weight.grad.double() - e).norm() / e.norm()).item() for weight, e in pairs)


def row(steps: Steps, options: argparse.Namespace, enabled: bool, compiled: bool, folder: str) -> bool:
    """Prints a row, compiled into an empty folder; whether it was right."""
    torch.compiler.reset()
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
    sternway.torch.reset_stats()
    if enabled:
        sternway.torch.enable()
    function = torch.compile(steps.block, fullgraph=True, backend=options.backend) if compiled else steps.block
    begin = time.perf_counter()
    steps.run(function)
    first, error = time.perf_counter() - begin, steps.error()
    shortest = min(timeit.repeat(lambda: steps.run(function), number=1, repeat=options.rounds)) * 1e3
    taken = sum(counts["taken"] for counts in sternway.torch.stats().values())
    sternway.torch.disable()
    good = error < 1e-5 and bool(taken) == enabled
    name = f"{'compiled' if compiled else 'eager'}, {'enable()' if enabled else 'PyTorch alone'}"
    print(f"{name:26} {f'{first:.2f}' if compiled else '':>9} {shortest:8.2f} {error:8.1e} {taken:6}"
          f"{'' if good else '  WRONG'}", flush=True)
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--backend", default="inductor", help="of torch.compile")
    parser.add_argument("--rows", type=int, default=197, help="tokens of a sequence")
    options = parser.parse_args()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    steps = Steps(options.rows)
    print(f"torch {torch.__version__}, block of {BATCH} x {options.rows} x {WIDTH}, {HEADS} heads, causal, f32; "
          f"backend {options.backend}")
    print(f"{'':26} {'compile s':>9} {'step ms':>8} {'error':>8} {'taken':>6}")
    warm = torch.compile(torch.nn.Linear(3, 5), backend=options.backend)  # loads the compiler
    warm(torch.ones(2, 3)).sum().backward()
    good = []
    for compiled in (False, True):
        for enabled in (False, True):
            with tempfile.TemporaryDirectory() as folder:
                good.append(row(steps, options, enabled, compiled, folder))
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
