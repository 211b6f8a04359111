#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What a call from Python costs beyond the library's own time, on one core of the CPU and on the tests' fake driver.

The problem is the smallest with a gradient that is not 0: one head, one query, two keys, head_dim 1, f32. Every row is
verified against the formulas in float64 first, then timed by `timeit`: the shortest of the rounds. "library" is the
same call made in C (bench/smallest_call.c, compiled here; without a C compiler the column stays empty), "Python" the
difference. On the fake driver a launch computes nothing; there the driver's log must name the launch instead.

    python bench/python_overhead.py [--rounds 300] [--calls 200] [--fakes build/release/tests/fakes] [--limit 8]

Exit status 1 when a result was wrong, or where a cached call of sternway.attn_bwd takes more than --limit microseconds
beyond the library's time."""
from __future__ import annotations

import argparse
import math
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import timeit
import types
from collections.abc import Callable

from calls import native  # finds the package

import numpy as np
import sternway

HERE = pathlib.Path(__file__).resolve().parent
BUILD = HERE.parent / "build/release"
DEVICE = "A100|8.0|108|166912|42949672960"  # of the fake driver
Q, K, V, DOUT = 0.5, (1.0, -0.25), (2.0, 0.75), 1.5


def exact() -> dict[str, np.ndarray]:
    """out, LSE and the gradients of the problem in float64, by the formulas of docs/mathematics.md."""
    q, k, v = np.float64(Q), np.array(K), np.array(V)
    s = q * k
    lse = np.log(np.exp(s).sum())
    p = np.exp(s - lse)
    out = p @ v
    ds = p * (DOUT * v - DOUT * out)
    return {"out": out, "lse": lse, "dq": ds @ k, "dk": ds * q, "dv": p * DOUT}


EXACT = exact()
INPUTS = {"dout": DOUT, "q": Q, "k": K, "v": V, "out": EXACT["out"], "lse": EXACT["lse"]}
GRADIENTS = ("dq", "dk", "dv")


def arrays() -> dict[str, np.ndarray]:
    """The problem's arrays [B,H,S,D], LSE [B,H,S]; gradients are NaN."""
    values = INPUTS | {"dq": [math.nan], "dk": [math.nan] * 2, "dv": [math.nan] * 2}
    return {name: np.array(value, dtype=np.float32).reshape((1, 1, -1) if name == "lse" else (1, 1, -1, 1))
            for name, value in values.items()}


def wrong(gradients) -> str:
    """What is wrong with dq, dk, dv; "" if nothing is."""
    for name, got in zip(GRADIENTS, gradients):
        got = np.asarray(got.detach() if hasattr(got, "detach") else got, dtype=np.float64).reshape(-1)
        if not np.abs(got - EXACT[name]).max() < 1e-6:
            return f"{name} is {got}, not {EXACT[name]}"
    return ""


def microseconds(call: Callable[[], object], options: argparse.Namespace) -> float:
    """Of a call, the shortest of the rounds."""
    return min(timeit.repeat(call, number=options.calls, repeat=options.rounds)) / options.calls * 1e6


class Table:
    """Rows as they come: what was called, microseconds, the library's own, the difference."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.failed = options, False
        print(f"{'call':58} {'us':>7} {'library':>7} {'Python':>7}")

    def row(self, name: str, make: Callable[[], tuple[Callable, Callable[[], str]]], library: float | None = None,
            limit: float | None = None) -> float | None:
        """make() gives the call and what verifies it afterwards, "" where nothing is wrong."""
        try:
            call, check = make()
            call()
            complaint = check()
            if complaint:
                raise AssertionError(complaint)
        except Exception as error:
            self.failed = True
            print(f"{name:58} WRONG: {str(error).splitlines()[0][:200]}")
            return None
        shortest = microseconds(call, self.options)
        self.show(name, shortest, library, limit)
        return shortest

    def show(self, name: str, shortest: float, library: float | None = None, limit: float | None = None) -> None:
        beyond = shortest - library if library is not None else None
        late = limit is not None and (beyond if beyond is not None else shortest) > limit
        self.failed = self.failed or late
        cells = [f"{value:7.2f}" if value is not None else f"{'':7}" for value in (shortest, library, beyond)]
        print(f"{name:58} {' '.join(cells)}{f'  above the limit of {limit:g} us' if late else ''}", flush=True)


# ---- the library's own time ---------------------------------------------------------------------------------------


def library_path() -> pathlib.Path:
    """The shared library that the package has loaded."""
    lines = pathlib.Path("/proc/self/maps").read_text().splitlines()
    return pathlib.Path(next(line.split()[-1] for line in lines if "libsternway.so" in line))


def compile_c(folder: str) -> pathlib.Path | None:
    """smallest_call.c against the very library of the package; None without a compiler."""
    compiler = os.environ.get("CC") or shutil.which("cc")
    if not compiler:
        return None
    out, library = pathlib.Path(folder) / "smallest_call", library_path()
    subprocess.run([compiler, "-O2", f"-I{HERE.parent / 'include'}", str(HERE / "smallest_call.c"), "-o", str(out),
                    str(library), f"-Wl,-rpath,{library.parent}", "-lm"], check=True)
    return out


def in_c(program: pathlib.Path | None, backend: str, options: argparse.Namespace, **environment: str) -> float | None:
    """Microseconds of the call in C. On the CPU its gradients must be right."""
    if program is None:
        return None
    command = [program, backend, str(options.rounds), str(options.calls)]
    words = subprocess.run(command, env={**os.environ, **environment}, check=True,
                           capture_output=True, text=True).stdout.split()
    got = [float(word) for word in words[1:]]
    if backend == "cpu" and not np.allclose(got, [EXACT["dq"], *EXACT["dk"]], atol=1e-6):
        sys.exit(f"smallest_call: gradients {got}")
    return float(words[0]) / 1e3


# ---- calls --------------------------------------------------------------------------------------------------------


def numpy_rows(table: Table, library: float | None) -> None:
    t = arrays()
    inputs = [t[name] for name in INPUTS]
    grads = {name: t[name] for name in GRADIENTS}
    context = native.Context(backend=native.BACKEND_CPU, memory=native.MEMORY_HOST, cpu_threads=1)

    def bare():
        return (lambda: native.attn_bwd(context, native.BHSD, cpu_threads=1, **t)), (lambda: wrong(grads.values()))

    def given():
        for array in grads.values():
            array.fill(math.nan)
        return (lambda: sternway.attn_bwd(*inputs, **grads)), (lambda: wrong(grads.values()))

    def fresh():
        return (lambda: sternway.attn_bwd(*inputs)), (lambda: wrong(sternway.attn_bwd(*inputs)))

    table.row("the C module alone, numpy, gradients given", bare, library)
    table.row("sternway.attn_bwd, numpy, gradients given", given, library, table.options.limit)
    table.row("sternway.attn_bwd, numpy", fresh, library)


def torch_rows(table: Table, library: float | None) -> None:
    try:
        import torch
        import sternway.torch
        from sternway import flash_attn
    except ImportError as error:
        print(f"no rows of PyTorch: {error}")
        return
    torch.set_num_threads(1)
    functional, aten = torch.nn.functional, torch.ops.aten
    t = {name: torch.from_numpy(array) for name, array in arrays().items()}
    inputs = [t[name] for name in INPUTS]
    grads = {name: t[name] for name in GRADIENTS}

    def given():
        return (lambda: sternway.attn_bwd(*inputs, **grads)), (lambda: wrong(grads.values()))

    def fresh():
        return (lambda: sternway.attn_bwd(*inputs)), (lambda: wrong(sternway.attn_bwd(*inputs)))

    def operator():
        op = torch.ops.sternway.attn_bwd
        return (lambda: op(*inputs)), (lambda: wrong(op(*inputs)))

    theirs = aten._scaled_dot_product_flash_attention_for_cpu_backward
    backward = (t["dout"], t["q"], t["k"], t["v"], t["out"], t["lse"], 0.0, False)

    def pytorch():
        return (lambda: theirs(*backward)), (lambda: wrong(theirs(*backward)))

    def taken():
        sternway.torch.reset_stats()

        def check() -> str:
            counts = sternway.torch.stats().get("_scaled_dot_product_flash_attention_for_cpu_backward", {})
            return wrong(theirs(*backward)) or ("" if counts.get("taken") else f"not taken over: {counts}")
        return (lambda: theirs(*backward)), check

    def leaves():
        return [t[name].clone().requires_grad_() for name in ("q", "k", "v")]

    def step(function):
        """Forward and backward of a function of [B,H,S,D]."""
        def make():
            q, k, v = leaves()

            def call():
                q.grad = k.grad = v.grad = None
                function(q, k, v).backward(t["dout"])
            return call, (lambda: wrong((q.grad, k.grad, v.grad)))
        return make

    def flash(q, k, v):
        return flash_attn.flash_attn_func(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)).transpose(1, 2)

    table.row("sternway.attn_bwd, PyTorch, gradients given", given, library, table.options.limit)
    table.row("sternway.attn_bwd, PyTorch", fresh, library)
    table.row("torch.ops.sternway.attn_bwd", operator, library)
    plain = table.row("PyTorch's own CPU backward, never enabled", pytorch)
    with sternway.torch.enable():
        table.row("the same operator under enable()", taken, library)
        table.row("scaled_dot_product_attention, both ways, under enable()",
                  step(functional.scaled_dot_product_attention))
    table.row("PyTorch's own CPU backward, after disable()", pytorch, plain)
    table.row("scaled_dot_product_attention, both ways, PyTorch alone", step(functional.scaled_dot_product_attention))
    table.row("sternway.torch.sdpa, both ways", step(sternway.torch.sdpa))
    table.row("sternway.flash_attn.flash_attn_func, both ways", step(flash))


# ---- over the fake driver -----------------------------------------------------------------------------------------


class Block:
    """A device array of the fake driver's memory, with what CuPy's arrays have."""

    device = types.SimpleNamespace(id=0)

    def __init__(self, context, array: np.ndarray) -> None:
        self.at = context.buffer_alloc(array.nbytes)
        context.copy(self.at, array.ctypes.data, array.nbytes, 0)
        self.described = {"shape": array.shape, "typestr": array.dtype.str, "data": (self.at, False), "version": 3,
                          "strides": None}

    @property
    def __cuda_array_interface__(self) -> dict:
        return self.described


def fake_rows(options: argparse.Namespace) -> int:
    """In a process of its own, whose libcuda.so.1 is the tests' fake."""
    context = native.Context(backend=native.BACKEND_CUDA, memory=native.MEMORY_DEVICE)
    blocks = {name: Block(context, array) for name, array in arrays().items()}
    space = Block(context, np.zeros(1 << 20, dtype=np.uint8))
    log = pathlib.Path(os.environ["FAKE_LOG"])

    def call() -> None:
        native.attn_bwd(context, native.BHSD, workspace=space, **blocks)

    if "FAKE_FAST" in os.environ:  # then the driver writes no log
        print(f"{microseconds(call, options):.4f}")
        return 0
    call()
    launches = log.read_text().count("launch ") if log.exists() else 0
    print(f"{launches} launches")
    return 0 if launches else 1


def over_fake_driver(table: Table, program: pathlib.Path | None, folder: str) -> None:
    options = table.options
    cuda = options.fakes / "cuda"
    if not (cuda / "libcuda.so.1").exists():
        print(f"no rows of the fake driver: {cuda}/libcuda.so.1 is not there (--fakes)")
        return
    environment = {"LD_LIBRARY_PATH": str(cuda), "FAKE_CUDA_DEVICES": DEVICE, "FAKE_LOG": f"{folder}/log"}
    command = [sys.executable, __file__, "--fake", "--calls", str(options.calls), "--rounds", str(options.rounds)]
    name = "the C module alone, fake CUDA driver, device arrays"
    for fast in ({}, {"FAKE_FAST": "1"}):  # first with a log, to see the launches
        done = subprocess.run(command, env={**os.environ, **environment, **fast}, check=False, capture_output=True,
                              text=True)
        if done.returncode:
            table.failed = True
            print(f"{name:58} WRONG: {(done.stdout + done.stderr).strip()[-300:]}")
            return
    table.show(name, float(done.stdout), in_c(program, "cuda", options, FAKE_FAST="1", **environment),
               options.limit)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--calls", type=int, default=200, help="of a round, which others should not interrupt")
    parser.add_argument("--limit", type=float, default=8.0, help="microseconds")
    parser.add_argument("--fakes", type=pathlib.Path, default=BUILD / "tests/fakes")
    parser.add_argument("--fake", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    if options.fake:
        return fake_rows(options)
    with tempfile.TemporaryDirectory() as folder:
        program = compile_c(folder)
        library = in_c(program, "cpu", options)
        table = Table(options)
        numpy_rows(table, library)
        over_fake_driver(table, program, folder)
        torch_rows(table, library)
    return 1 if table.failed else 0


if __name__ == "__main__":
    sys.exit(main())
