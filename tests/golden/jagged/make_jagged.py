# SPDX-License-Identifier: MIT
"""Makes the golden vectors of the nested operations: one safetensors file per group of ops, next to this script.

tests/jagged reads them; README.md says what they hold. Inputs are seeded by the case's name; references come from PyTorch's
nested tensors in float64, by every route that supports the case, and from the formula (ops.py): all must agree.
    make_jagged.py                  writes the files anew
    make_jagged.py --check [FILE]   recomputes the references of committed files from what is stored in them
"""
import argparse
import math
import pathlib
import sys
import zlib

import numpy as np
import torch

FOLDER = pathlib.Path(__file__).resolve().parent
sys.path.append(str(FOLDER.parent))

import container                                                                        # noqa: E402
from attention_reference import Problem, disagreement, forward, gradients, gradients_formula               # noqa: E402
from nested import F64, Jagged, component_shape, strided                                # noqa: E402
from ops import OPS, Case                                                               # noqa: E402

ABOUT = {"about": "golden vectors of nested (jagged) operations", "source": "tests/golden/jagged/make_jagged.py"}
DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64, "i64": torch.int64,
          "i32": torch.int32, "i16": torch.int16, "i8": torch.int8, "u8": torch.uint8, "bool": torch.bool}
container.DTYPE_NAMES.update({torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL"})

TINY = [3, 0, 7, 1, 0]              # empty components, also the last one
HUGE = [2, 1, 157, 0, 3, 1]         # one huge component among tiny ones
FULL = [4, 2, 9, 5]                 # none empty, for select along the ragged dimension
FLOATS = ("f32", "bf16", "f16")
EXACT = ("f64", "i64", "i32", "i16", "i8", "u8")


def elements(shape, lengths):
    return sum(math.prod(component_shape(shape, length)) for length in lengths)


class Group:
    """The problems of one file."""

    def __init__(self):
        self.problems = {}

    def start(self, name):
        self.random = np.random.Generator(np.random.Philox(zlib.crc32(name.encode())))

    def values(self, dtype, count, factor=1.0):
        kind = DTYPES[dtype]
        if kind.is_floating_point:
            return torch.from_numpy(self.random.standard_normal(count) * factor).to(kind)
        limits = (0, 2) if kind is torch.bool else (torch.iinfo(kind).min, torch.iinfo(kind).max)
        return torch.from_numpy(self.random.integers(*limits, count, dtype=np.int64, endpoint=kind is not torch.bool)).to(kind)

    def add(self, name, op, dtype, tensors, **meta):
        """Computes the references of one problem and keeps it."""
        meta = {"op": op, "dtype": dtype,
                **{k: ",".join(map(str, v)) if isinstance(v, list) else v if isinstance(v, str) else repr(v)
                   for k, v in meta.items()}}
        value, size, terms, made_by = references(tensors, meta)
        for key, reference in value.items():
            wide = dtype == "f32"
            tensors[key] = reference if wide or not reference.is_floating_point() or dtype == "f64" \
                else reference.to(torch.float32)
            if not reference.is_floating_point():
                assert reference.dtype == DTYPES[dtype], (name, key, reference.dtype)
            if terms[key]:
                tensors[key.replace("_ref", "_size")] = size[key].to(torch.float32)
                meta[key.replace("_ref", "_terms")] = str(terms[key])
        meta["made_by"] = ", ".join(made_by)
        assert name not in self.problems, name
        self.problems[name] = Problem(tensors, meta)


def references(tensors, meta):
    """The references of a problem: PyTorch's, after all routes and the formula were found to agree."""
    routes, formula = OPS[meta["op"]]
    case = Case(tensors, meta)
    found = routes(case)
    expected, size, terms = formula(case)
    for route, values in found.items():
        assert values.keys() == expected.keys(), (route, values.keys(), expected.keys())
        for key, value in values.items():
            value = values[key] = value.detach().reshape(-1)
            if value.is_floating_point():
                size[key] = torch.as_tensor(size[key]).reshape(-1).double().abs()
                same_nan = torch.equal(value.isnan(), expected[key].isnan())
                error = disagreement(value.nan_to_num(), expected[key].nan_to_num(),
                                     size[key].nan_to_num() if terms[key] else None)
                assert same_nan and error <= (1e-12 if terms[key] else 0.0), f"{meta}: {route}, {key}: {error:.3g}"
            else:
                assert torch.equal(value, expected[key].reshape(-1)), (meta, route, key)
    return next(iter(found.values())), size, terms, found.keys()


def lengths_tensor(lengths):
    return torch.tensor(lengths, dtype=torch.int64)


def pointwise(g, name, op, dtype, shape, lengths, std=2.0, edit=None, **meta):
    g.start(name)
    count = elements(shape, lengths)
    t = {"lengths": lengths_tensor(lengths), "x": g.values(dtype, count, std), "grad": g.values(dtype, count)}
    if edit:
        edit(t)
    g.add(name, op, dtype, t, shape=shape, **meta)


def pointwise_cases(g):
    """gelu, silu, threshold: all types, ragged first, last and in the middle, extremes."""
    for n, op in enumerate(("gelu", "gelu_tanh", "silu", "threshold")):
        level = {"threshold": [0.0, 0.375, -1.25][n % 3]} if op == "threshold" else {}
        for m, dtype in enumerate(FLOATS):
            pointwise(g, f"{op}_{dtype}", op, dtype, [-1, 5], TINY, **level)
            pointwise(g, f"{op}_{dtype}_huge", op, dtype, [-1, 3], HUGE, **level)
            pointwise(g, f"{op}_{dtype}_last", op, dtype, [3, -1], [5, 0, 17, 2], **level)
            pointwise(g, f"{op}_{dtype}_middle", op, dtype, [2, -1, 7], TINY, **level)

        def extreme(t):
            wide = [0.0, -0.0, 1.0, -1.0, 5.25, -5.25, 9.5, -9.5, 30.0, -30.0, 300.0, -300.0, 2.0 ** -14, -(2.0 ** -14)]
            t["x"][:len(wide)] = torch.tensor(wide)
            t["x"][len(wide):2 * len(wide)] = torch.tensor(wide) * 0.5
        for dtype in FLOATS:
            pointwise(g, f"{op}_{dtype}_extreme", op, dtype, [-1, 4], [5, 2, 3], edit=extreme, **level)
    for dtype in EXACT:
        levels = {"threshold": 0.25 if dtype == "f64" else 3.5}
        pointwise(g, f"threshold_{dtype}", "threshold", dtype, [-1, 5], TINY, **levels)
        pointwise(g, f"threshold_{dtype}_middle", "threshold", dtype, [2, -1, 3], TINY, **levels)

    def special(t):
        t["x"][:6] = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1e-3])
    def tenths(t):      # x at a level that no type holds: 0 for f32 and f16, whose 0.1 is not above f32's
        t["x"][:20] = 0.1
    for dtype in FLOATS:
        pointwise(g, f"relu_{dtype}_special", "threshold", dtype, [-1], [4, 0, 7], edit=special, threshold=0.0)
        pointwise(g, f"threshold_{dtype}_tenth", "threshold", dtype, [-1, 3], TINY, edit=tenths, threshold=0.1)


SHAPES = ([-1], [-1, 5], [3, -1], [2, -1, 7], [2, 3, -1], [-1, 2, 3], [-1, 2, 3, 2], [2, 3, 2, -1])


def label(shape):
    return "x".join("j" if extent == -1 else str(extent) for extent in shape)


def softmax(g, name, dtype, shape, dim, lengths, std=1.0, op="softmax"):
    g.start(name)
    count = elements(shape, lengths)
    case = Case({"lengths": lengths_tensor(lengths), "x": torch.from_numpy(g.random.standard_normal(count) * std)},
                {"op": op, "shape": ",".join(map(str, shape))})
    y = [getattr(torch, op)(part, dim) for part in case.parts("x")]
    t = {"lengths": case.t["lengths"], "y": torch.cat([part.reshape(-1) for part in y]).to(DTYPES[dtype]),
         "grad": g.values(dtype, count)}
    g.add(name, op, dtype, t, shape=shape, dim=dim)


def reduction_cases(g):
    """softmax, log_softmax, sum and select along every dimension of every shape."""
    for n, shape in enumerate(SHAPES):
        for dim in range(len(shape)):
            dtype = FLOATS[(n + dim) % 3]
            softmax(g, f"softmax_{label(shape)}_dim{dim}_{dtype}", dtype, shape, dim, TINY)
            softmax(g, f"log_softmax_{label(shape)}_dim{dim}_{dtype}", dtype, shape, dim, TINY, op="log_softmax")
            sum_case(g, dtype, shape, dim, TINY, bool((n + dim) % 2))
            for index in (0, -1) if shape[dim] != 1 else (0,):
                select_case(g, dtype, shape, dim, FULL if shape[dim] == -1 else TINY, index)
    for dtype in FLOATS:
        softmax(g, f"softmax_huge_ragged_{dtype}", dtype, [-1, 3], 0, HUGE)
        softmax(g, f"softmax_huge_inner_{dtype}", dtype, [-1, 9], 1, [1, 0, 41, 2])
        softmax(g, f"softmax_peaked_{dtype}", dtype, [-1, 67], 1, [2, 1], std=8.0)
        softmax(g, f"log_softmax_huge_ragged_{dtype}", dtype, [-1, 3], 0, HUGE, op="log_softmax")
        softmax(g, f"log_softmax_peaked_{dtype}", dtype, [-1, 67], 1, [2, 1], std=8.0, op="log_softmax")
        sum_case(g, dtype, [-1, 3], 0, HUGE, False, "_huge")
    for n, dtype in enumerate(EXACT + ("bool",)):
        shape = [[-1, 5], [2, -1, 3], [3, -1]][n % 3]
        for dim in range(len(shape)):
            sum_case(g, dtype, shape, dim, TINY, bool(dim % 2))
            select_case(g, dtype, shape, dim, FULL if shape[dim] == -1 else TINY, -1 if dim else 0)
    for n, dtype in enumerate(FLOATS + EXACT):
        select_component(g, dtype, [[-1, 5], [2, -1, 3], [3, -1]][n % 3], FULL, (-1, 2, 0)[n % 3])
    select_component(g, "f32", [-1, 5], TINY, 1, "_empty")
    select_case(g, "bf16", [-1, 5], 0, FULL, 1)
    select_case(g, "f16", [-1, 5], 1, TINY, 3)


def sum_case(g, dtype, shape, dim, lengths, keepdim, suffix=""):
    name = f"sum_{label(shape)}_dim{dim}_{dtype}{suffix}"
    g.start(name)
    rest = shape[:dim] + shape[dim + 1:]
    count = len(lengths) * math.prod(rest) if shape[dim] == -1 else elements(rest, lengths)
    g.add(name, "sum", dtype, {"lengths": lengths_tensor(lengths), "grad": g.values(dtype, count)}, shape=shape, dim=dim,
          keepdim=int(keepdim))


def select_case(g, dtype, shape, dim, lengths, index):
    name = f"select_{label(shape)}_dim{dim}_{dtype}_at{index}"
    g.start(name)
    rest = shape[:dim] + shape[dim + 1:]
    count = len(lengths) * math.prod(rest) if shape[dim] == -1 else elements(rest, lengths)
    g.add(name, "select", dtype, {"lengths": lengths_tensor(lengths), "grad": g.values(dtype, count)}, shape=shape, dim=dim,
          index=index)


def select_component(g, dtype, shape, lengths, index, suffix=""):
    name = f"select_{label(shape)}_component_{dtype}{suffix}"
    g.start(name)
    count = math.prod(component_shape(shape, lengths[index]))
    g.add(name, "select", dtype, {"lengths": lengths_tensor(lengths), "grad": g.values(dtype, count)}, shape=shape,
          dim="component", index=index)


def layer_norm(g, name, dtype, shape, normalized, lengths, gamma=True, mean=0.0, std=1.0):
    g.start(name)
    M, count = math.prod(normalized), elements(shape, lengths)
    x = (g.values("f64", count, std) + mean).to(DTYPES[dtype])
    lines = x.double().reshape(-1, M)
    t = {"lengths": lengths_tensor(lengths), "x": x, "grad": g.values(dtype, count),
         "mean": lines.mean(1).to(torch.float32),
         "rstd": (1.0 / torch.sqrt((lines - lines.mean(1, keepdim=True)).square().mean(1) + 1e-5)).to(torch.float32)}
    if gamma:
        t["weight"] = (1.0 + g.values("f64", M, 0.3)).to(DTYPES[dtype if gamma is True else gamma])
    g.add(name, "layer_norm", dtype, t, shape=shape, normalized=normalized)


def rms_norm(g, name, dtype, shape, normalized, lengths, gamma=True):
    g.start(name)
    M, count = math.prod(normalized), elements(shape, lengths)
    x = g.values(dtype, count)
    t = {"lengths": lengths_tensor(lengths), "x": x, "grad": g.values(dtype, count),
         "rstd": (x.double().reshape(-1, M).square().mean(1) + 1e-5).rsqrt().to(torch.float32)}
    if gamma:
        t["weight"] = (1.0 + g.values("f64", M, 0.3)).to(DTYPES[dtype if gamma is True else gamma])
    g.add(name, "rms_norm", dtype, t, shape=shape, normalized=normalized)


def ragged_norm(g, op, name, dtype, shape, lengths):
    """A norm over the ragged dimension and those behind it: a line per component and index in front of it."""
    g.start(name)
    count, ragged = elements(shape, lengths), shape.index(-1)
    case = Case({"lengths": lengths_tensor(lengths), "x": g.values(dtype, count)}, {"op": op, "shape": ",".join(map(str, shape))})
    lines = [line for part in case.parts("x") for line in part.reshape(math.prod(shape[:ragged]), -1)]
    mean = torch.stack([line.mean() if line.numel() and op == "layer_norm" else torch.zeros((), dtype=F64) for line in lines])
    spread = torch.stack([(line - m).square().mean() if line.numel() else torch.zeros((), dtype=F64)
                          for line, m in zip(lines, mean)])
    t = {"lengths": case.t["lengths"], "x": case.t["x"].to(DTYPES[dtype]), "grad": g.values(dtype, count),
         "rstd": (spread + 1e-5).rsqrt().to(torch.float32)}
    if op == "layer_norm":
        t["mean"] = mean.to(torch.float32)
    g.add(name, op, dtype, t, shape=shape, normalized=shape[ragged:])


def linear(g, name, dtype, shape, N, lengths):
    g.start(name)
    K = shape[-1]
    rows = elements(shape[:-1], lengths)
    g.add(name, "linear", dtype, {
        "lengths": lengths_tensor(lengths), "x": g.values(dtype, rows * K), "weight": g.values(dtype, (N, K)),
        "grad": g.values(dtype, rows * N)}, shape=shape, out_features=N)


def matmul(g, name, dtype, m, k, n, outer=1):
    g.start(name)
    count = len(next(extent for extent in (m, k, n) if isinstance(extent, list)))
    m, k, n = (np.array(extent if isinstance(extent, list) else [extent] * count) for extent in (m, k, n))
    t = {axis: torch.tensor(extent) for axis, extent in zip("mkn", (m, k, n))}
    for side, rows, columns in (("a", m, k), ("b", k, n), ("grad", m, n)):
        t[side] = g.values(dtype, outer * int((rows * columns).sum()))
    g.add(name, "matmul", dtype, t, **({"outer": outer} if outer > 1 else {}))


def product_cases(g):
    """layer_norm, rms_norm, linear and matmul."""
    for dtype in FLOATS:
        layer_norm(g, f"layer_norm_{dtype}", dtype, [-1, 5], [5], TINY)
        layer_norm(g, f"layer_norm_{dtype}_huge", dtype, [-1, 17], [17], [1, 53, 0, 2])
        layer_norm(g, f"layer_norm_{dtype}_plain", dtype, [-1, 6], [6], TINY, gamma=False)
        layer_norm(g, f"layer_norm_{dtype}_pair", dtype, [-1, 2, 3], [2, 3], TINY)
        layer_norm(g, f"layer_norm_{dtype}_lines", dtype, [-1, 2, 7], [7], TINY)
        layer_norm(g, f"layer_norm_{dtype}_outer", dtype, [2, -1, 7], [7], TINY)
        layer_norm(g, f"layer_norm_{dtype}_empty", dtype, [-1, 5], [5], [0, 0, 0])
        rms_norm(g, f"rms_norm_{dtype}", dtype, [-1, 5], [5], TINY)
        rms_norm(g, f"rms_norm_{dtype}_huge", dtype, [-1, 17], [17], [1, 53, 0, 2])
        rms_norm(g, f"rms_norm_{dtype}_plain", dtype, [-1, 6], [6], TINY, gamma=False)
        rms_norm(g, f"rms_norm_{dtype}_lines", dtype, [-1, 2, 7], [7], TINY)
        rms_norm(g, f"rms_norm_{dtype}_outer", dtype, [2, -1, 7], [7], TINY)
        rms_norm(g, f"rms_norm_{dtype}_empty", dtype, [-1, 5], [5], [0, 0, 0])
        for op in ("layer_norm", "rms_norm"):
            ragged_norm(g, op, f"{op}_{dtype}_ragged", dtype, [-1, 5], TINY)
            ragged_norm(g, op, f"{op}_{dtype}_ragged_alone", dtype, [3, -1], HUGE)
            ragged_norm(g, op, f"{op}_{dtype}_ragged_middle", dtype, [2, -1, 2, 3], TINY)
        linear(g, f"linear_{dtype}", dtype, [-1, 5], 3, TINY)
        linear(g, f"linear_{dtype}_huge", dtype, [-1, 7], 9, HUGE)
        linear(g, f"linear_{dtype}_middle", dtype, [2, -1, 5], 4, TINY)
        linear(g, f"linear_{dtype}_heads", dtype, [-1, 2, 5], 3, TINY)
        linear(g, f"linear_{dtype}_empty", dtype, [-1, 5], 3, [0, 0])
        linear(g, f"linear_{dtype}_wide", dtype, [-1, 33], 17, [9, 0, 4])
    layer_norm(g, "layer_norm_bf16_f32_gamma", "bf16", [-1, 5], [5], TINY, gamma="f32")
    layer_norm(g, "layer_norm_f16_f32_gamma", "f16", [-1, 9], [9], TINY, gamma="f32")
    rms_norm(g, "rms_norm_bf16_f32_gamma", "bf16", [-1, 5], [5], TINY, gamma="f32")
    layer_norm(g, "layer_norm_f32_one", "f32", [-1, 1], [1], TINY)
    layer_norm(g, "layer_norm_f32_offset", "f32", [-1, 5], [5], TINY, mean=100.0)
    layer_norm(g, "layer_norm_bf16_small", "bf16", [-1, 65], [65], [2, 1], std=1e-3)
    linear(g, "linear_f32_one", "f32", [-1, 1], 1, TINY)
    ragged = {"m": ([3, 0, 7, 1], 5, 2), "k": (3, [5, 0, 2, 9], 4), "n": (3, 5, [2, 0, 7, 1]),
              "mn": ([3, 0, 7, 1], 5, [2, 4, 0, 9]), "mk": ([3, 0, 7, 1], [2, 4, 0, 9], 3),
              "kn": (4, [3, 0, 7, 1], [2, 4, 5, 9]), "mkn": ([3, 0, 7, 1], [5, 2, 0, 4], [2, 4, 3, 9])}
    for which, sizes in ragged.items():
        for dtype in FLOATS:
            matmul(g, f"matmul_{which}_{dtype}", dtype, *sizes)
    for n, dtype in enumerate(FLOATS):
        matmul(g, f"matmul_heads_{dtype}", dtype, *list(ragged.values())[n], outer=2)
        matmul(g, f"matmul_huge_{dtype}", dtype, [1, 2, 83, 0, 1], 9, 5)
        matmul(g, f"matmul_long_k_{dtype}", dtype, 3, [1, 0, 97, 2], 5)
    matmul(g, "matmul_scores_f32", "f32", [5, 0, 19, 1], 8, [3, 2, 17, 0])
    matmul(g, "matmul_ones_f32", "f32", [1, 1, 0], 1, 1)


def shape_cases(g):
    """reshape and the padded ops: exact in every type."""
    pairs = (([-1, 6], [-1, 2, 3]), ([6, -1], [2, 3, -1]), ([2, 3, -1], [6, -1]), ([2, -1, 6], [2, -1, 2, 3]),
             ([-1, 6], [2, -1, 3]), ([2, -1, 3], [6, -1]), ([-1], [-1, 1]), ([3, -1], [-1, 3]))
    for n, (shape, target) in enumerate(pairs):
        for dtype in (FLOATS + EXACT)[n % 3::3]:
            name = f"reshape_{label(shape)}_to_{label(target)}_{dtype}"
            g.start(name)
            g.add(name, "reshape", dtype, {"lengths": lengths_tensor(TINY), "grad": g.values(dtype, elements(shape, TINY))},
                  shape=shape, grad_shape=target)
    n = 0
    for shape in ([-1, 5], [2, -1, 3], [3, -1]):
        for lengths, padded in ((TINY, 7), (TINY, 9), (TINY, 2), (HUGE, 157), ([0, 0], 3)):
            for op in ("to_padded", "from_padded"):
                dtype = FLOATS[n % 3] if n % 4 else "f64"
                n += 1
                name = f"{op}_{label(shape)}_{max(lengths)}_in_{padded}_{dtype}"
                g.start(name)
                count = elements(shape, lengths) if op == "from_padded" else \
                    len(lengths) * math.prod(component_shape(shape, padded))
                if lengths is HUGE and shape != [-1, 5]:
                    continue
                g.add(name, op, dtype, {"lengths": lengths_tensor(lengths), "grad": g.values(dtype, count)}, shape=shape,
                      padded=padded)


def nested_attention(parts, dout):
    """{route: (dq, dk, dv)} of scaled_dot_product_attention on nested tensors; components are [L,H,D]."""
    sdpa = torch.nn.functional.scaled_dot_product_attention
    leaves = [strided([c.transpose(0, 1).contiguous() for c in part], True) for part in parts]
    sdpa(*leaves).backward(strided([c.transpose(0, 1).contiguous() for c in dout]))
    routes = {"strided autograd": [torch.cat([c.transpose(0, 1) for c in leaf.grad.unbind()]) for leaf in leaves]}
    q = Jagged(parts[0], [-1, *parts[0][0].shape[1:]], True)
    k, v = (Jagged(part, [-1, *part[0].shape[1:]], True) for part in parts[1:])
    if q.lengths == k.lengths:          # 2.11 fails where the keys have lengths of their own
        k, v = (Jagged(part, [-1, *part[0].shape[1:]], True, offsets=q.tensor.offsets()) for part in parts[1:])
        out = sdpa(*(part.tensor.transpose(1, 2) for part in (q, k, v))).transpose(1, 2)
        out.values().backward(torch.cat(dout))
        routes["jagged autograd"] = [part.values.grad for part in (q, k, v)]
    return routes


def check_attention(tensors, lengths):
    """PyTorch's nested attention and attention_reference.py agree on unrounded O and LSE; returns the routes' names."""
    t = {name: tensors[name].double() if name in ("q", "k", "v", "dout") else tensors[name] for name in tensors}
    problem = Problem(t, {"mask": "none"})
    t["out"], t["lse"] = forward(problem)
    expected = gradients_formula(problem)[0]
    parts = [list(t[name].split(size)) for name, size in zip(("q", "k", "v", "dout"), lengths)]
    routes = nested_attention(parts[:3], parts[3])
    for route, values in routes.items():
        for name, value in zip(("dq_ref", "dk_ref", "dv_ref"), values):
            error = disagreement(value, expected[name])
            assert error <= 1e-12, (route, name, error)
    return ", ".join(routes)


def attention(g, name, dtype, lengths_q, lengths_k=None, heads=2, D=8, **meta):
    """Attention of nested q, k, v: the tensors of tests/golden's packed problems."""
    g.start(name)
    lengths_k = lengths_k or lengths_q
    kind = DTYPES[dtype]
    q, k, v, dout = (g.values(dtype, (sum(size), heads, D)) for size in (lengths_q, lengths_k, lengths_k, lengths_q))
    t = {"q": q, "k": k, "v": v, "dout": dout}
    for side, size in (("q", lengths_q), ("k", lengths_k)):
        t[f"cu_seqlens_{side}"] = torch.tensor([0, *size]).cumsum(0).to(torch.int32)
    plain = not meta and min(*lengths_q, *lengths_k) > 0        # 2.11 on the CPU: no mask, nothing empty
    made_by = check_attention(t, (lengths_q, lengths_k, lengths_k, lengths_q)) if plain else "dense autograd"
    problem = Problem(t, {"mask": "none", "op": "attention", "dtype": dtype, **meta})
    out, lse = forward(problem)
    t["out"], t["lse"] = out.to(kind), lse.to(torch.float32)
    for key, value in gradients(problem).items():
        t[key] = value if dtype == "f32" else value.to(torch.float32)
    problem.meta["made_by"] = made_by
    g.problems[name] = problem


def attention_cases(g):
    for dtype in FLOATS:
        attention(g, f"attention_{dtype}", dtype, [3, 9, 1, 5])
        attention(g, f"attention_{dtype}_empty", dtype, [3, 0, 11, 1])
        attention(g, f"attention_{dtype}_cross", dtype, [3, 7, 1], [5, 2, 9])
    attention(g, "attention_f32_causal", "f32", [7, 1, 19], mask="causal_tl")
    attention(g, "attention_bf16_huge", "bf16", [1, 67, 2])


GROUPS = {"pointwise": pointwise_cases, "reductions": reduction_cases, "products": product_cases, "shapes": shape_cases,
          "attention": attention_cases}


def check(path):
    """Recomputes what a file holds; the number of problems."""
    problems = container.read_problems(path)
    for name, (tensors, meta) in problems.items():
        if meta["op"] == "attention":
            exact = gradients(Problem(tensors, meta))
        else:
            inputs = {key: value for key, value in tensors.items() if not key.endswith(("_ref", "_size"))}
            exact, _, _, made_by = references(inputs, meta)
            assert ", ".join(made_by) == meta["made_by"], (name, made_by)
        for key, value in exact.items():
            stored = tensors[key]
            if stored.dtype == torch.float32:
                value = value.to(torch.float32)
            limit = 1e-12 if stored.dtype == torch.float64 else 2.0 ** -23 if stored.is_floating_point() else 0.0
            if stored.is_floating_point():
                assert torch.equal(stored.isnan(), value.isnan()), (name, key)
                error = disagreement(stored.nan_to_num(), value.nan_to_num())
            else:
                error = float(not torch.equal(stored, value))
            assert error <= limit, f"{path.name} {name} {key}: {error:.3g}"
    return len(problems)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", nargs="*", metavar="FILE", default=None)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.check is not None:
        for path in [pathlib.Path(name) for name in options.check] or sorted(FOLDER.glob("*.safetensors")):
            print(f"{path.name}: {check(path)} problems agree")
        return
    for name, make in GROUPS.items():
        group = Group()
        make(group)
        path = FOLDER / f"{name}.safetensors"
        container.write_problems(path, group.problems, ABOUT)
        print(f"{path.name}: {len(group.problems)} problems, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
