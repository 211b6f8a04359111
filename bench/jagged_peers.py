#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Sternway's jagged operations on a GPU against PyTorch's dense backward of the same buffer, or its loop over components.

One process, the same tensors, torch's current stream. Every case is verified on some components against float64 before
it is timed: bursts of 110 ms in turn, in an order drawn for every round, medians (gpu_timing.py). Bytes are each input
read once and each output written once; "of copy" is that rate over a copy's of the same run, of a fill's where only
writing counts.

    python bench/jagged_peers.py [--only REGEX] [--rows 65536] [--width 4096] [--dtype bf16] [--csv FILE]

Exit status 1 when a result was wrong."""
import argparse
import csv
import math
import random
import re
import sys

import torch

from calls import DTYPES, native, open_or_exit
from gpu_timing import measure
import nested_calls as J

A = torch.ops.aten
TORCH_TYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
LIMIT = {"bf16": 4e-3, "f16": 5e-4, "f32": 2e-6}  # relative RMS of the sampled rows against float64


def lengths_of(total, components, seed=3):
    """Components of mixed size that fill `total`: one is a quarter of it, some are empty."""
    generator = torch.Generator().manual_seed(seed)
    weights = torch.rand(components, generator=generator) ** 3
    weights[::16] = 0
    lengths = (weights / weights.sum() * (total * 3 // 4)).long()
    lengths[1] += total - lengths.sum()
    return lengths.tolist()


class Problem:
    """A case: `ours`, a planned call; `theirs`, a function; what to check."""

    def __init__(self, api, name, op, dtype, lengths, tensors, written, size, peer, expected, bytes_moved=0, flop=0,
                 writes_only=False, **fields):
        self.name, self.peer, self.expected = name, peer, expected
        self.bytes, self.flop, self.writes_only, self.outputs = bytes_moved, flop, writes_only, written
        starts = torch.tensor([0] + lengths).cumsum(0)
        self.starts = starts.tolist()
        self.keep = [starts.to("cuda", torch.int64), tensors]
        self.status = torch.full((1,), -1, dtype=torch.int32, device="cuda")
        total = self.starts[-1]
        self.plan = J.Plan(api, op, DTYPES[TORCH_TYPES[dtype]], [(max(lengths), total)] + [(s, 0) for s in size],
                                 index_dtype=native.I64, components=len(lengths), **fields)
        memory = torch.empty(self.plan.size, dtype=torch.uint8, device="cuda")
        self.keep.append(memory)
        self.workspace = memory.data_ptr()
        pointers = {n: t.data_ptr() for n, t in {**tensors, **written}.items()}
        axes = [(self.keep[0].data_ptr(), None)]
        self.args = self.plan.args(axes, status_out=self.status.data_ptr(), **pointers)

    def run(self):
        self.plan.run(self.args, self.workspace, torch.cuda.current_stream().cuda_stream)

    def verify(self, limit):
        for tensor in self.outputs.values():
            tensor.fill_(float("nan"))
        self.run()
        torch.cuda.synchronize()
        if self.status.item():
            return 0.0, f"status {self.status.item():#x}"
        worst = 0.0
        for got, expected in self.expected(self):
            error = ((got.double() - expected).norm() / expected.norm().clamp_min(1e-30)).item()
            worst = max(worst, error if math.isfinite(error) else math.inf)
        return worst, "" if worst <= limit else f"off by {worst:.1e}, allowed {limit:.1e}"


def sample(problem):
    """Rows that are compared: of the first, the largest and the last components, and some between."""
    total = problem.starts[-1]
    picked = torch.randperm(total, generator=torch.Generator().manual_seed(5))[:200]
    return torch.cat((torch.arange(min(20, total)), torch.arange(max(0, total - 20), total), picked)).cuda()


def randoms(*shape, dtype, seed, scale=1.0):
    generator = torch.Generator(device="cuda").manual_seed(seed)
    return (torch.randn(*shape, device="cuda", dtype=torch.float32, generator=generator) * scale).to(TORCH_TYPES[dtype])


def derivative(f, x, g):
    x = x.double().requires_grad_()
    return torch.autograd.grad(f(x), x, g.double())[0]


def pointwise(api, o, lengths):
    g, x = (randoms(o.rows, o.width, dtype=o.dtype, seed=s) for s in (1, 2))
    dx = torch.empty_like(x)
    for name, (f, backward) in J.POINTWISE.items():
        def expected(problem, f=f):
            at = sample(problem)
            yield dx[at], derivative(f, x[at], g[at])
        yield Problem(api, name, name, o.dtype, lengths, {"grad": g, "x": x}, {"dx": dx}, (),
                      lambda backward=backward: backward(g, x), expected, bytes_moved=3 * x.numel() * x.element_size(),
                      inner=o.width)


def some_components(problem):
    """Rows of the components that are compared: the first ones, of which one is a quarter of all, one between, the last."""
    count = len(problem.starts) - 1
    for b in (0, 1, count // 2, count - 1):
        if problem.starts[b] < problem.starts[b + 1]:
            yield b, slice(problem.starts[b], problem.starts[b + 1])


def loop_over(lengths, backward):
    """A function that calls backward(component, rows) for every component that has rows."""
    first = torch.tensor([0] + lengths).cumsum(0).tolist()
    parts = [(b, slice(first[b], first[b + 1])) for b in range(len(lengths)) if lengths[b]]

    def loop():
        for b, rows in parts:
            backward(b, rows)
    return loop


def softmax(api, o, lengths):
    g = randoms(o.rows, o.width, dtype=o.dtype, seed=1)
    y = torch.softmax(randoms(o.rows, o.width, dtype=o.dtype, seed=2).float(), -1).to(g.dtype)
    dx = torch.empty_like(y)

    def expected(problem):
        at = sample(problem)
        a, b = g[at].double(), y[at].double()
        yield dx[at], b * (a - (a * b).sum(-1, keepdim=True))

    bytes_moved = 3 * y.numel() * y.element_size()
    yield Problem(api, "softmax inner", "softmax", o.dtype, lengths, {"grad": g, "y": y}, {"dx": dx}, (),
                  lambda: A._softmax_backward_data(g, y, -1, g.dtype), expected, bytes_moved=bytes_moved, inner=o.width, dim=3)

    def expected_ragged(problem):
        for _, rows in some_components(problem):
            u, v = g[rows, :64].double(), y[rows, :64].double()
            yield dx[rows, :64], v * (u - (u * v).sum(0, keepdim=True))

    def of_component(_, rows):
        dx[rows] = A._softmax_backward_data(g[rows], y[rows], 0, g.dtype)

    yield Problem(api, "softmax ragged", "softmax", o.dtype, lengths, {"grad": g, "y": y}, {"dx": dx}, (),
                  loop_over(lengths, of_component), expected_ragged, bytes_moved=bytes_moved, inner=o.width, dim=2)


def log_softmax(api, o, lengths):
    g = randoms(o.rows, o.width, dtype=o.dtype, seed=1)
    y = torch.log_softmax(randoms(o.rows, o.width, dtype=o.dtype, seed=2).float(), -1).to(g.dtype)
    dx = torch.empty_like(y)

    def expected(problem):
        at = sample(problem)
        a, b = g[at].double(), y[at].double()
        yield dx[at], a - b.exp() * a.sum(-1, keepdim=True)

    yield Problem(api, "log_softmax inner", "log_softmax", o.dtype, lengths, {"grad": g, "y": y}, {"dx": dx}, (),
                  lambda: A._log_softmax_backward_data(g, y, -1, g.dtype), expected,
                  bytes_moved=3 * y.numel() * y.element_size(), inner=o.width, dim=3)

    def expected_ragged(problem):
        for _, rows in some_components(problem):
            a, b = g[rows, :64].double(), y[rows, :64].double()
            yield dx[rows, :64], a - b.exp() * a.sum(0, keepdim=True)

    def of_component(_, rows):
        dx[rows] = A._log_softmax_backward_data(g[rows], y[rows], 0, g.dtype)

    yield Problem(api, "log_softmax ragged", "log_softmax", o.dtype, lengths, {"grad": g, "y": y}, {"dx": dx}, (),
                  loop_over(lengths, of_component), expected_ragged, bytes_moved=3 * y.numel() * y.element_size(), inner=o.width, dim=2)


def rms_norm(api, o, lengths):
    g, x = (randoms(o.rows, o.width, dtype=o.dtype, seed=s) for s in (1, 2))
    gamma = randoms(o.width, dtype=o.dtype, seed=3)
    rstd = (x.float().square().mean(-1) + 1e-5).rsqrt()
    out = {"dx": torch.empty_like(x), "dweight": torch.empty_like(gamma)}

    def expected(problem):
        at = sample(problem)
        s = rstd[at, None].double()
        h, w = x[at].double() * s, g[at].double() * gamma.double()
        yield out["dx"][at], s * (w - h * (w * h).mean(-1, keepdim=True))
        columns = slice(0, 128)
        yield out["dweight"][columns], (g[:, columns].double() * x[:, columns].double() * rstd[:, None].double()).sum(0)

    yield Problem(api, "rms_norm", "rms_norm", o.dtype, lengths, {"grad": g, "x": x, "weight": gamma, "rstd": rstd}, out, (),
                  lambda: A._fused_rms_norm_backward(g, x, [o.width], rstd[:, None], gamma, [True, True]), expected,
                  bytes_moved=3 * x.numel() * x.element_size(), inner=o.width, flags=native.JAGGED_HAS_GAMMA)


def layer_norm(api, o, lengths):
    g, x = (randoms(o.rows, o.width, dtype=o.dtype, seed=s) for s in (1, 2))
    gamma, beta = randoms(o.width, dtype=o.dtype, seed=3), randoms(o.width, dtype=o.dtype, seed=4)
    mean = x.float().mean(-1)
    rstd = (x.float().var(-1, unbiased=False) + 1e-5).rsqrt()
    out = {"dx": torch.empty_like(x), "dweight": torch.empty_like(gamma), "dbias": torch.empty_like(gamma)}

    def expected(problem):
        at = sample(problem)
        s, h = rstd[at, None].double(), (x[at].double() - mean[at, None].double()) * rstd[at, None].double()
        w = g[at].double() * gamma.double()
        yield out["dx"][at], s * (w - w.mean(-1, keepdim=True) - h * (w * h).mean(-1, keepdim=True))
        if "dweight" in problem.outputs:
            columns = slice(0, 128)
            h = (x[:, columns].double() - mean[:, None].double()) * rstd[:, None].double()
            yield out["dweight"][columns], (g[:, columns].double() * h).sum(0)
            yield out["dbias"][columns], g[:, columns].double().sum(0)

    bytes_moved = 3 * x.numel() * x.element_size()
    tensors = {"grad": g, "x": x, "weight": gamma, "mean": mean, "rstd": rstd}
    for name, outputs, mask in (("layer_norm", 13, [True, True, True]), ("layer_norm dX", 1, [True, False, False])):
        yield Problem(api, name, "layer_norm", o.dtype, lengths, tensors, {k: v for k, v in out.items() if k == "dx" or outputs == 13}, (),
                      lambda mask=mask: A.native_layer_norm_backward(g, x, [o.width], mean[:, None], rstd[:, None], gamma, beta, mask),
                      expected, bytes_moved=bytes_moved, inner=o.width, flags=native.JAGGED_HAS_GAMMA, outputs=outputs)


def norms_over_components(api, o, lengths):
    """layer_norm and rms_norm over the ragged dimension and inner together: a mean and a deviation a component."""
    g, x = (randoms(o.rows, o.width, dtype=o.dtype, seed=s) for s in (1, 2))
    dx = torch.empty_like(x)
    mean, square = (torch.zeros(len(lengths), device="cuda") for _ in range(2))
    loop_over(lengths, lambda b, rows: (mean[b].copy_(x[rows].float().mean()), square[b].copy_(x[rows].float().square().mean())))()
    of_norm = {"layer_norm ragged": (mean, (square - mean.square() + 1e-5).rsqrt()), "rms_norm ragged": (None, (square + 1e-5).rsqrt())}
    for name, (centre, rstd) in of_norm.items():
        def expected(problem, centre=centre, rstd=rstd):
            for b, rows in some_components(problem):
                w, s = g[rows].double(), rstd[b].double()
                h = (x[rows].double() - (0 if centre is None else centre[b].double())) * s
                yield dx[rows], s * (w - (0 if centre is None else w.mean()) - h * (w * h).mean())

        def of_component(b, rows, centre=centre, rstd=rstd):
            one, other = g[rows].view(1, -1), x[rows].view(1, -1)
            if centre is None:
                A._fused_rms_norm_backward(one, other, [one.shape[1]], rstd[b].view(1, 1), None, [True, False])
            else:
                A.native_layer_norm_backward(one, other, [one.shape[1]], centre[b].view(1, 1), rstd[b].view(1, 1), None, None, [True, False, False])

        tensors = {"grad": g, "x": x, "rstd": rstd, **({} if centre is None else {"mean": centre})}
        yield Problem(api, name, name.split()[0], o.dtype, lengths, tensors, {"dx": dx}, (), loop_over(lengths, of_component), expected,
                      bytes_moved=3 * x.numel() * x.element_size(), inner=o.width, dim=2, outputs=1)


def moves(api, o, lengths):
    g = randoms(o.rows, 1, dtype=o.dtype, seed=1)
    dx = torch.empty(o.rows, o.width, dtype=g.dtype, device="cuda")
    bytes_moved = dx.numel() * dx.element_size()

    def expected(problem):
        at = sample(problem)
        yield dx[at], g[at].double().expand(-1, o.width)

    yield Problem(api, "sum inner", "sum", o.dtype, lengths, {"grad": g}, {"dx": dx}, (), lambda: dx.copy_(g.expand_as(dx)), expected,
                  bytes_moved=bytes_moved, writes_only=True, inner=o.width, dim=3)
    dense = randoms(len(lengths), o.width, dtype=o.dtype, seed=2)
    counts = torch.tensor(lengths, device="cuda")

    def expected_ragged(problem):
        at = sample(problem)
        b = torch.searchsorted(torch.tensor(problem.starts, device="cuda"), at, right=True) - 1
        yield dx[at], dense[b].double()

    yield Problem(api, "sum ragged", "sum", o.dtype, lengths, {"grad": dense}, {"dx": dx}, (),
                  lambda: torch.repeat_interleave(dense, counts, dim=0, output_size=o.rows), expected_ragged, bytes_moved=bytes_moved,
                  writes_only=True, inner=o.width, dim=2)

    def expected_select(problem):
        at = sample(problem)
        full = torch.zeros(len(at), o.width, dtype=torch.float64, device="cuda")
        full[:, 7] = g[at, 0].double()
        yield dx[at], full

    yield Problem(api, "select inner", "select", o.dtype, lengths, {"grad": g}, {"dx": dx}, (),
                  lambda: A.select_backward(g[:, 0], dx.shape, 1, 7), expected_select, bytes_moved=bytes_moved, writes_only=True,
                  inner=o.width, dim=3, index=7)


def padded(api, o, lengths):
    """Gradients between padded and nested: components of similar length, or the padded tensor would not fit."""
    each = max(o.rows // 64, 1)
    lengths = [max(each - (b * 37) % (each // 2 + 1), 1) for b in range(64)]
    total = sum(lengths)
    starts = torch.tensor([0] + lengths).cumsum(0).cuda()
    dense = randoms(64, each, o.width, dtype=o.dtype, seed=1)
    nested = randoms(total, o.width, dtype=o.dtype, seed=2)
    dx, full = torch.empty_like(nested), torch.empty_like(dense)

    def expected_to(problem):
        for b in (0, 5, 63):
            yield dx[problem.starts[b]:problem.starts[b + 1]], dense[b, :lengths[b]].double()

    def expected_from(problem):
        for b in (0, 5, 63):
            yield full[b, :lengths[b]], nested[problem.starts[b]:problem.starts[b + 1]].double()
            yield full[b, lengths[b]:] + 1, torch.ones_like(full[b, lengths[b]:], dtype=torch.float64)

    size = nested.element_size()
    yield Problem(api, "to_padded", "to_padded", o.dtype, lengths, {"grad": dense}, {"dx": dx}, (),
                  lambda: A._padded_dense_to_jagged_forward(dense, [starts], total), expected_to, bytes_moved=2 * nested.numel() * size,
                  inner=o.width, padded=each)
    yield Problem(api, "from_padded", "from_padded", o.dtype, lengths, {"grad": nested}, {"dx": full}, (),
                  lambda: A._jagged_to_padded_dense_forward(nested, [starts], [each], 0.0), expected_from,
                  bytes_moved=(nested.numel() + full.numel()) * size, inner=o.width, padded=each)


def linear(api, o, lengths):
    features = o.width
    g, x = randoms(o.rows, features, dtype=o.dtype, seed=1), randoms(o.rows, o.width, dtype=o.dtype, seed=2)
    w = randoms(features, o.width, dtype=o.dtype, seed=3)
    out = {"dx": torch.empty_like(x), "dweight": torch.empty_like(w), "dbias": torch.empty(features, dtype=g.dtype, device="cuda")}
    flop = 2 * o.rows * features * o.width

    def expected(problem):
        at = sample(problem)
        if "dx" in problem.outputs:
            yield out["dx"][at], g[at].double() @ w.double()
        if "dweight" in problem.outputs:
            yield out["dweight"][:64], g[:, :64].double().T @ x.double()
        if "dbias" in problem.outputs:
            yield out["dbias"], g.double().sum(0)

    def torch_all():
        return g @ w, g.T @ x, g.sum(0)

    cases = (("linear", 13, torch_all, 2 * flop), ("linear dX", 1, lambda: g @ w, flop), ("linear dW", 4, lambda: g.T @ x, flop),
             ("linear dbias", 8, lambda: g.sum(0), 0))
    names = {1: "dx", 4: "dweight", 8: "dbias"}
    for flags in (0, native.JAGGED_FULL):
        for name, outputs, peer, work in cases:
            if flags and outputs == 8:
                continue
            tensors = {"grad": g, **({"x": x} if outputs & 4 else {}), **({"weight": w} if outputs & 1 else {})}
            yield Problem(api, name + (" full" if flags else ""), "linear", o.dtype, lengths, tensors,
                          {names[bit]: out[names[bit]] for bit in names if outputs & bit}, (), peer, expected, flop=work,
                          bytes_moved=g.numel() * g.element_size() if outputs == 8 else 0, inner=o.width, out_features=features,
                          outputs=outputs, flags=flags)


def matmul(api, o, _):
    """512 components of mixed size, [m,k] x [k,n] with m ragged, against a loop of torch products."""
    generator = torch.Generator().manual_seed(9)
    lengths = torch.randint(1, 257, (512,), generator=generator).tolist()
    for huge in (False, True):
        if huge:
            lengths = lengths[:511] + [20000]
        for k, n in ((128, 128), (512, 256)):
            total = sum(lengths)
            a, g = randoms(total, k, dtype=o.dtype, seed=1), randoms(total, n, dtype=o.dtype, seed=2)
            b = randoms(512, k, n, dtype=o.dtype, seed=3)
            out = {"dx": torch.empty_like(a), "dother": torch.empty_like(b)}
            first = torch.tensor([0] + lengths).cumsum(0).tolist()

            def loop(a=a, g=g, b=b, first=first):
                return [(g[first[i]:first[i + 1]] @ b[i].T, a[first[i]:first[i + 1]].T @ g[first[i]:first[i + 1]]) for i in range(512)]

            def expected(problem, a=a, g=g, b=b, out=out):
                for i in (0, 1, 100, 511):
                    rows = slice(problem.starts[i], problem.starts[i + 1])
                    yield out["dx"][rows], g[rows].double() @ b[i].double().T
                    yield out["dother"][i], a[rows].double().T @ g[rows].double()

            yield Problem(api, f"matmul 512 x [m,{k}][{k},{n}]{' one huge' if huge else ''}", "matmul", o.dtype, lengths,
                          {"x": a, "other": b, "grad": g}, out, (k, n), loop, expected, flop=4 * total * k * n, ragged_axes=1)


SUITES = (pointwise, softmax, log_softmax, layer_norm, rms_norm, norms_over_components, moves, padded, linear, matmul)


def base_rates(o):
    """Bytes a millisecond of a copy and of a fill of the buffer."""
    a = torch.empty(o.rows, o.width, dtype=TORCH_TYPES[o.dtype], device="cuda").normal_()
    b = torch.empty_like(a)
    times = measure({"copy": lambda: b.copy_(a), "fill": lambda: b.fill_(1.0)}, o.rounds, o.burst, random.Random(o.seed))
    size = a.numel() * a.element_size()
    return 2 * size / times["copy"].median, size / times["fill"].median


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="REGEX")
    parser.add_argument("--rows", type=int, default=65536)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--components", type=int, default=512)
    parser.add_argument("--dtype", default="bf16", choices=TORCH_TYPES)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--burst", type=float, default=110, metavar="MS")
    parser.add_argument("--seed", type=int, default=21, help="of the order within a round")
    parser.add_argument("--csv", metavar="FILE")
    o = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("jagged_peers: torch finds no CUDA device")
    torch.backends.cuda.matmul.allow_tf32 = False
    api = open_or_exit("cuda", device=torch.cuda.current_device())
    copy, fill = base_rates(o)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, kernels of {api.arch}, {o.rows} x {o.width} {o.dtype}, "
          f"{o.components} components; copy {copy / 1e9:.2f} TB/s, fill {fill / 1e9:.2f} TB/s", flush=True)
    print(f"{'case':40} {'ours ms':>8} {'TB/s':>6} {'of copy':>7} {'TFLOP/s':>8} {'torch ms':>9} {'ratio':>6} {'error':>8}")
    chance, rows, lengths = random.Random(o.seed), [], lengths_of(o.rows, o.components)
    for suite in SUITES:
        for problem in suite(api, o, lengths):
            if not re.search(o.only, problem.name):
                continue
            error, wrong = problem.verify(LIMIT[o.dtype])
            row = dict(case=problem.name, error=f"{error:.1e}", wrong=wrong, variant=problem.plan.text().split("variant: ")[1].split("\n")[0])
            if not wrong:
                functions = {"ours": problem.run}
                try:
                    problem.peer()
                    functions["torch"] = problem.peer
                except (RuntimeError, TypeError, NotImplementedError) as refused:
                    row["refused"] = str(refused).split("\n")[0][:80]
                times = measure(functions, o.rounds, o.burst, chance)
                ours = times["ours"].median
                row.update(ms=f"{ours:.4f}", range=f"{times['ours'].spread:.4f}")
                if problem.bytes:
                    row["tbs"] = f"{problem.bytes / ours / 1e9:.2f}"
                    row["of_copy"] = f"{problem.bytes / ours / (fill if problem.writes_only else copy):.3f}"
                if problem.flop:
                    row["tflops"] = f"{problem.flop / ours / 1e9:.1f}"
                if "torch" in times:
                    row["torch_ms"], row["ratio"] = f"{times['torch'].median:.4f}", f"{times['torch'].over(times['ours']):.3f}"
            rows.append(row)
            print(f"{row['case']:40} " + " ".join(f"{row.get(k, '-'):>{w}}" for k, w in (("ms", 8), ("tbs", 6), ("of_copy", 7),
                  ("tflops", 8), ("torch_ms", 9), ("ratio", 6), ("error", 8)))
                  + f"  {row['variant']}{'  WRONG: ' + wrong if wrong else ''}{'  torch: ' + row['refused'] if 'refused' in row else ''}", flush=True)
    if o.csv:
        keys = list(dict.fromkeys(key for row in rows for key in row))
        with open(o.csv, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, keys)
            writer.writeheader()
            writer.writerows(rows)
    sys.exit(1 if any(row["wrong"] for row in rows) else 0)


if __name__ == "__main__":
    main()
