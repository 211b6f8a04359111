#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Sternway's CPU backward of nested operations against PyTorch's nested tensors, side by side on the same data.

PyTorch's side is the backward op itself on nested tensors, in both layouts where both have it (the faster one counts), not
autograd's bookkeeping. Where PyTorch's nested backward is far slower than a loop over the components (matmul pads them),
the loop takes part too. Every case is verified first against a float64 formula, then all are timed in turn. PyTorch
allocates its results in each call; malloc is told to keep the memory, so that no page faults are timed. Prints
milliseconds (median) of each, and the ratio torch / ours.

    python bench/cpu_jagged.py [--threads 1 2] [--only softmax] [--rounds 9] [--hold]

On a machine that others use, the kernel may leave both threads of either side on one core; --hold gives each its own.

Takes torch, and sternway if it is installed, from the Python that runs it."""
import argparse
import ctypes
import os
import statistics
import sys
import time
import warnings

import torch

import nested_calls as jagged
from calls import DTYPES as NUMBERS, native, open_or_exit

warnings.filterwarnings("ignore")
aten = torch.ops.aten
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
LIMITS = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}

# PyTorch 2.11 adds up gamma's and beta's gradients in 16 bits: a quarter off for 65536 rows
TORCH_LIMITS = {"layer_norm": 0.5}


class Buffer:
    """Components of mixed sizes: [total, inner] values with offsets; one component of a quarter of all positions, some empty.
    `equal`: all of one size."""

    def __init__(self, components, total, inner, dtype, equal=False):
        torch.manual_seed(components + inner)
        weights = torch.rand(components) ** 2
        weights[::17] = 0
        sizes = (weights / weights.sum() * total * 0.75).long()
        sizes[components // 2] += total - int(sizes.sum())
        if equal:
            sizes[:] = total // components
        self.sizes, self.dtype, self.inner, self.total = sizes.tolist(), dtype, inner, total
        self.offsets = torch.tensor([0] + self.sizes).cumsum(0)
        self.axis = (self.offsets, max(self.sizes), total)

    def values(self, inner=None, factor=1.0):
        return (torch.randn(self.total, inner or self.inner) * factor).to(self.dtype)

    def strided(self, values):
        return torch.nested.as_nested_tensor(list(values.split(self.sizes)), layout=torch.strided)

    def jagged(self, values, like=None):
        return torch.nested.nested_tensor_from_jagged(values, self.offsets if like is None else like.offsets())

    def pair(self, make, *values):
        first = make(values[0])
        return [first] + [self.jagged(v, first) if make == self.jagged else make(v) for v in values[1:]]


def like(*tensors):
    return [torch.full_like(t, float("nan")) for t in tensors]


def pointwise(b, op):
    x, g = b.values(factor=2.0), b.values()
    dx, = like(x)
    call = dict(op=op, tensors=dict(x=x, grad=g, dx=dx), outputs=[dx], inner=b.inner)
    _, function = jagged.POINTWISE[op]
    theirs = {make.__name__: (lambda pair=b.pair(make, x, g): function(pair[1], pair[0])) for make in (b.strided, b.jagged)}
    return call, theirs, lambda: [function(g.double(), x.double())]


def log_softmax(b):
    y, g = torch.log_softmax(b.values().float(), 1).to(b.dtype), b.values()
    dx, = like(y)
    call = dict(op="log_softmax", tensors=dict(y=y, grad=g, dx=dx), outputs=[dx], inner=b.inner, dim=jagged.DIMS["inner"])
    # PyTorch's nested tensors lack this backward; rows of inner elements need none
    theirs = {"rows": lambda: aten._log_softmax_backward_data(g, y, 1, b.dtype)}
    return call, theirs, lambda: [g.double() - y.double().exp() * g.double().sum(1, keepdim=True)]


def softmax(b, dim):
    y = b.values().float()
    parts = [torch.softmax(part, dim) for part in y.split(b.sizes)]
    y, g = torch.cat(parts).to(b.dtype), b.values()
    dx, = like(y)
    call = dict(op="softmax", tensors=dict(y=y, grad=g, dx=dx), outputs=[dx], inner=b.inner,
                dim=jagged.DIMS["ragged" if dim == 0 else "inner"])
    theirs = {}
    if dim == 1:
        for make in (b.strided, b.jagged):
            number = 2 if make == b.strided else -1     # 2.11's jagged backward is right only when counted from the back
            theirs[make.__name__] = lambda p=b.pair(make, y, g), n=number: aten._softmax_backward_data(p[1], p[0], n, b.dtype)
    else:
        theirs["strided"] = lambda p=b.pair(b.strided, y, g): aten._softmax_backward_data(p[1], p[0], 1, b.dtype)

    def exact():
        return [torch.cat([Y * (G - (G * Y).sum(dim, keepdim=True))
                           for Y, G in zip(y.double().split(b.sizes), g.double().split(b.sizes))])]
    return call, theirs, exact


def sum_last(b):
    g = b.values(1)
    dx = torch.full((b.total, b.inner), float("nan"), dtype=b.dtype)
    call = dict(op="sum", tensors=dict(grad=g, dx=dx), outputs=[dx], inner=b.inner, dim=jagged.DIMS["inner"])
    shape = b.strided(dx)
    theirs = {"strided": lambda p=b.strided(g): aten._nested_sum_backward(p, shape, [2], True),
              "expand": lambda: g.expand(b.total, b.inner).contiguous()}
    return call, theirs, lambda: [g.double().expand(b.total, b.inner)]


def layer_norm(b):
    x, g = b.values(), b.values()
    gamma = torch.rand(b.inner) + 0.5                   # f32: then PyTorch's mean and rstd are f32 too
    mean, rstd = x.float().mean(1), 1 / torch.sqrt(x.float().var(1, correction=0) + 1e-5)
    dx, dgamma, dbeta = like(x, gamma, gamma)
    call = dict(op="layer_norm", tensors=dict(x=x, grad=g, weight=gamma, mean=mean, rstd=rstd, dx=dx, dweight=dgamma,
                                              dbias=dbeta), outputs=[dx, dgamma, dbeta], inner=b.inner, flags=native.JAGGED_HAS_GAMMA,
                weight_dtype=NUMBERS[torch.float32])
    m, r = mean[:, None], rstd[:, None]
    theirs = {make.__name__: (lambda p=b.pair(make, x, g): aten.native_layer_norm_backward(
        p[1], p[0], [b.inner], m, r, gamma, gamma, [True] * 3)) for make in (b.strided, b.jagged)}

    def exact():
        h, G = (x.double() - mean.double()[:, None]) * rstd.double()[:, None], g.double()
        s = G * gamma.double()
        return [rstd.double()[:, None] * (s - s.mean(1, keepdim=True) - h * (s * h).mean(1, keepdim=True)), (G * h).sum(0),
                G.sum(0)]
    return call, theirs, exact


def rms_norm(b):
    x, g = b.values(), b.values()
    gamma = torch.rand(b.inner) + 0.5
    rstd = 1 / torch.sqrt(x.float().square().mean(1) + 1e-5)
    dx, dgamma = like(x, gamma)
    call = dict(op="rms_norm", tensors=dict(x=x, grad=g, weight=gamma, rstd=rstd, dx=dx, dweight=dgamma), outputs=[dx, dgamma],
                inner=b.inner, flags=native.JAGGED_HAS_GAMMA, weight_dtype=NUMBERS[torch.float32])
    # PyTorch's backward of nested rms_norm is autograd's, of rows in the values' own type
    leaves = [x.clone().requires_grad_(), gamma.to(b.dtype).requires_grad_()]
    y = torch.nn.functional.rms_norm(leaves[0], [b.inner], leaves[1], 1e-5)
    theirs = {"rows": lambda: torch.autograd.grad(y, leaves, g, retain_graph=True)}

    def exact():
        h, G = x.double() * rstd.double()[:, None], g.double()
        s = G * gamma.double()
        return [rstd.double()[:, None] * (s - h * (s * h).mean(1, keepdim=True)), (G * h).sum(0)]
    return call, theirs, exact


def ragged_norm(b):
    """layer_norm over the ragged dimension and inner; PyTorch lacks the backward, so that a loop takes its place."""
    x, g = b.values(), b.values()
    parts = [part.double() for part in x.split(b.sizes)]
    mean = torch.stack([p.mean() if p.numel() else p.new_zeros(()) for p in parts]).float()
    rstd = torch.stack([(p.var(correction=0) + 1e-5).rsqrt() if p.numel() else p.new_ones(()) for p in parts]).float()
    dx, = like(x)
    call = dict(op="layer_norm", tensors=dict(x=x, grad=g, mean=mean, rstd=rstd, dx=dx), outputs=[dx], inner=b.inner,
                dim=jagged.DIMS["ragged"])
    result = torch.empty_like(x)
    views = [(X, G, D, m.reshape(1, 1), r.reshape(1, 1)) for X, G, D, m, r in zip(
        x.split(b.sizes), g.split(b.sizes), result.split(b.sizes), mean.to(b.dtype), rstd.to(b.dtype)) if X.numel()]

    def loop():
        for X, G, D, m, r in views:
            D.copy_(aten.native_layer_norm_backward(G, X, list(X.shape), m, r, None, None, [True, False, False])[0])
        return result

    def exact():
        found = []
        for X, G, m, r in zip(parts, g.double().split(b.sizes), mean.double(), rstd.double()):
            h = (X - m) * r
            found.append(r * (G - G.mean() - h * (G * h).mean()) if X.numel() else X)
        return [torch.cat(found)]
    return call, {"loop": loop}, exact


def linear(b, N):
    x, g, w = b.values(), b.values(N), torch.randn(N, b.inner).to(b.dtype)
    bias = torch.zeros(N, dtype=b.dtype)
    dx, dw, db = like(x, w, bias)
    call = dict(op="linear", tensors=dict(x=x, grad=g, weight=w, dx=dx, dweight=dw, dbias=db), outputs=[dx, dw, db],
                inner=b.inner, out_features=N, flags=native.JAGGED_FULL)
    theirs = {make.__name__: (lambda p=b.pair(make, x, g): aten.linear_backward(p[0], p[1], w, [True] * 3))
              for make in (b.strided, b.jagged)}
    return call, theirs, lambda: [g.double() @ w.double(), g.double().T @ x.double(), g.double().sum(0)]


def matmul(b, N):
    a, g = b.values(), b.values(N)
    other = torch.randn(len(b.sizes), b.inner, N).to(b.dtype)
    da, dother = like(a, other)
    call = dict(op="matmul", tensors=dict(x=a, grad=g, other=other, dx=da, dother=dother), outputs=[da, dother],
                axes={0: b.axis, 1: b.inner, 2: N})
    nested = b.strided(a), torch.nested.as_nested_tensor(list(other), layout=torch.strided), b.strided(g)
    theirs = {"strided": lambda: aten.matmul_backward(nested[2], nested[0], nested[1], [True, True])}
    views = list(zip(a.split(b.sizes), g.split(b.sizes), other))
    results = torch.empty_like(a), torch.empty_like(other)
    targets = list(zip(results[0].split(b.sizes), results[1]))

    def loop():
        for (A, G, B), (dA, dB) in zip(views, targets):
            torch.mm(G, B.T, out=dA)
            torch.mm(A.T, G, out=dB)
        return results
    theirs["loop"] = loop

    def bmm():
        A, G, dA = (t.view(len(b.sizes), b.sizes[0], -1) for t in (a, g, results[0]))
        torch.bmm(G, other.transpose(1, 2), out=dA)
        torch.bmm(A.transpose(1, 2), G, out=results[1])
        return results
    if len(set(b.sizes)) == 1:
        theirs["bmm"] = bmm

    def exact():
        parts = list(zip(a.double().split(b.sizes), g.double().split(b.sizes), other.double()))
        return [torch.cat([G @ B.T for _, G, B in parts]), torch.stack([A.T @ G for A, G, _ in parts])]
    return call, theirs, exact


def to_padded(b):
    longest = max(b.sizes)
    g = torch.randn(len(b.sizes), longest, b.inner).to(b.dtype)
    dx = torch.full((b.total, b.inner), float("nan"), dtype=b.dtype)
    call = dict(op="to_padded", tensors=dict(grad=g, dx=dx), outputs=[dx], inner=b.inner, padded=longest)
    shape = b.strided(dx)._nested_tensor_size()
    theirs = {"strided": lambda: aten._nested_from_padded(g, shape),
              "loop": lambda: torch.cat([G[:n] for G, n in zip(g, b.sizes)])}
    return call, theirs, lambda: [torch.cat([G[:n] for G, n in zip(g.double(), b.sizes)])]


CASES = {
    **{op: (65536, 256, lambda b, op=op: pointwise(b, op)) for op in jagged.POINTWISE},
    "softmax_inner": (65536, 256, lambda b: softmax(b, 1)), "softmax_ragged": (65536, 256, lambda b: softmax(b, 0)),
    "log_softmax": (65536, 256, log_softmax), "layer_norm_ragged": (65536, 256, ragged_norm),
    "sum_inner": (65536, 256, sum_last), "layer_norm": (65536, 256, layer_norm), "rms_norm": (65536, 256, rms_norm),
    "linear": (8192, 512, lambda b: linear(b, 512)), "matmul": (16384, 128, lambda b: matmul(b, 64)),
    "matmul_small": (16384, 64, lambda b: matmul(b, 64)), "to_padded": (8192, 256, to_padded),
}


def verify(name, who, outputs, expected, limit):
    for n, (got, want) in enumerate(zip(outputs, expected)):
        got = torch.cat([c.reshape(-1) for c in got.unbind()]) if got.is_nested else got.reshape(-1)
        error = float((got.double() - want.reshape(-1)).norm() / want.norm())
        if not error < limit:
            sys.exit(f"{name}: {who}'s output {n} is off by {error:.2e} (relative RMS), limit {limit:.0e}: not timed")


def measure(sternway, name, dtype, components, rounds, summary):
    total, inner, make = CASES[name]
    b = Buffer(components, total, inner, dtype, equal=name.endswith("small"))
    spec, theirs, exact = make(b)
    outputs, op, tensors = spec.pop("outputs"), spec.pop("op"), spec.pop("tensors")
    call = jagged.Call(sternway, op, spec.pop("axes", {0: b.axis}), components, tensors, **spec)
    expected = exact()
    call.run()
    verify(name, "sternway", outputs, expected, LIMITS[dtype])
    for layout, function in theirs.items():
        results = function()
        limit = LIMITS[dtype] if dtype == torch.float32 else TORCH_LIMITS.get(name, LIMITS[dtype])
        verify(name, f"torch {layout}", results if isinstance(results, (tuple, list)) else [results], expected, limit)
    functions = {"ours": call.run, **theirs}
    times = {who: [] for who in functions}
    for _ in range(rounds):
        for who, function in functions.items():
            time.sleep(0.02)  # OpenMP workers of the other side spin for a while after their call
            start = time.perf_counter()
            function()
            times[who].append(time.perf_counter() - start)
    spent = {who: summary(seconds) * 1e3 for who, seconds in times.items()}
    best = min(theirs, key=spent.get)
    return spent["ours"], spent[best], best


def threads_now():
    return {int(number) for number in os.listdir("/proc/self/task")}


def open_held(threads, hold):
    """The library with its threads started; `hold`: the n-th thread of either side stays on the n-th core."""
    if not hold:
        return open_or_exit("cpu", threads)
    cores = sorted(open_held.cores)
    os.sched_setaffinity(0, cores)
    before = threads_now()
    sternway = open_or_exit("cpu", threads)
    ours = threads_now() - before
    torch.mm(torch.randn(512, 512), torch.randn(512, 512))   # starts PyTorch's
    for group in (ours, threads_now() - before - ours):
        for n, thread in enumerate(sorted(group)):
            os.sched_setaffinity(thread, {cores[(n + 1) % len(cores)]})
    os.sched_setaffinity(0, {cores[0]})
    return sternway


open_held.cores = os.sched_getaffinity(0)


def keep_memory():
    """glibc: no mapping of its own for large blocks, nothing given back."""
    libc = ctypes.CDLL(None)
    M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
    libc.mallopt(M_MMAP_MAX, 0)
    libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def main():
    keep_memory()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--dtype", nargs="+", choices=sorted(DTYPES), default=["f32", "bf16"])
    parser.add_argument("--only", nargs="+", choices=sorted(CASES), default=list(CASES))
    parser.add_argument("--components", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--best", action="store_true", help="the shortest of the rounds, for a machine that others use too")
    parser.add_argument("--hold", action="store_true", help="each thread on a core of its own, on both sides")
    options = parser.parse_args()
    print(f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}; {options.components} components; "
          f"{'best' if options.best else 'median'} of {options.rounds}, interleaved")
    print(f"{'threads':>7} {'dtype':>5} {'case':>15} {'rows':>6} {'inner':>6} {'ours ms':>9} {'torch ms':>9} {'ratio':>6} layout")
    for threads in options.threads:
        torch.set_num_threads(threads)
        sternway = open_held(threads, options.hold)
        for dtype in options.dtype:
            for name in options.only:
                ours, theirs, layout = measure(sternway, name, DTYPES[dtype], options.components, options.rounds,
                                               min if options.best else statistics.median)
                rows, inner, _ = CASES[name]
                print(f"{threads:7} {dtype:>5} {name:>15} {rows:6} {inner:6} {ours:9.2f} {theirs:9.2f} {theirs / ours:6.2f} "
                      f"{layout}", flush=True)


if __name__ == "__main__":
    main()
