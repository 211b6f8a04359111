# SPDX-License-Identifier: MIT
"""Each nested operation: its references through PyTorch's nested tensors, and the formula written out in numpy.

Used by make_jagged.py. For every op, OPS holds (routes, formula):
  routes(problem)  {name of the route: {reference: flat float64 tensor}}: all routes through PyTorch that support the case;
                   "dense autograd" (every component an ordinary tensor) only where PyTorch's nested tensors lack the backward
  formula(problem) ({reference: value}, {reference: size}, {reference: terms}); size is the formula on absolute values, the
                   yardstick of rounding, and 0 where the answer is exact; terms is how many a sum adds up at most
"""
import math

import numpy as np
import torch

from nested import F64, Jagged, component_shape, dense_autograd, jagged_autograd, join, split, strided, strided_autograd

aten = torch.ops.aten


class Case:
    """A problem as its op sees it: lengths, shapes, and its tensors as float64 (integers: as they are)."""

    def __init__(self, tensors, meta):
        self.meta, self.op = meta, meta["op"]
        self.lengths = tensors["lengths"].tolist() if "lengths" in tensors else None
        self.t = {name: tensor.to(F64) if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}
        self.shape = self.list("shape")
        self.dim = int(meta["dim"]) if "dim" in meta and meta["dim"] != "component" else None

    def list(self, key):
        return [int(extent) for extent in self.meta[key].split(",")] if key in self.meta else None

    def number(self, key, kind=int):
        return kind(self.meta[key])

    def parts(self, name, shape=None):
        return split(self.t[name], self.lengths, shape or self.shape)

    def arrays(self, name, shape=None):
        return [part.numpy() for part in self.parts(name, shape)]

    @property
    def ragged_first(self):
        return self.shape[0] == -1

    @property
    def floating(self):
        return next(t for name, t in self.t.items() if name != "lengths").is_floating_point()


def flat(arrays):
    return torch.from_numpy(np.concatenate([np.asarray(a).reshape(-1) for a in arrays] or [np.zeros(0)]))


def only_dx(routes):
    return {name: {"dx_ref": join(components)} for name, components in routes.items()}


# ---- elementwise -----------------------------------------------------------------------------------------------------

def threshold_level(case):
    """The level as the test takes it: PyTorch compares 16-bit types in f32."""
    level = case.number("threshold", float)
    return level if case.meta["dtype"] not in ("f16", "bf16", "f32") else float(np.float32(level))


def pointwise_function(case):
    if case.op == "threshold":
        level = threshold_level(case)
        return lambda x: torch.nn.functional.threshold(x, level, 0.0)
    return {"gelu": torch.nn.functional.gelu, "silu": torch.nn.functional.silu,
            "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh")}[case.op]


def pointwise_routes(case):
    x, grad, function = case.parts("x"), case.parts("grad"), pointwise_function(case)
    if case.op == "threshold":      # torch.strided has the backward but not the forward
        routes = {"strided backward op": list(
            aten.threshold_backward(strided(grad), strided(x), threshold_level(case)).unbind())}
        if not case.floating:
            return only_dx(routes)
    else:
        routes = {"strided autograd": strided_autograd(function, x, grad)}
    routes["jagged autograd"] = jagged_autograd(function, x, case.shape, grad)
    return only_dx(routes)


def pointwise_formula(case):
    x, g = case.t["x"].numpy(), case.t["grad"].numpy()
    if case.op == "threshold":
        value = np.where(x <= threshold_level(case), np.zeros_like(g), g)
        return {"dx_ref": flat([value])}, {"dx_ref": 0.0 * value}, {"dx_ref": 0}
    if case.op == "gelu":
        cdf, erf = (np.array([0.5 * math.erfc(-v / math.sqrt(2.0)) for v in x]),
                    np.array([math.erf(abs(v) / math.sqrt(2.0)) for v in x]))
        slope = x * np.exp(-0.5 * x * x) / math.sqrt(2.0 * math.pi)
        value, size = cdf + slope, 0.5 * (1.0 + erf) + abs(slope)
    elif case.op == "gelu_tanh":
        k = math.sqrt(2.0 / math.pi)
        u, du = k * (x + 0.044715 * x ** 3), k * (1.0 + 3.0 * 0.044715 * x * x)
        th, sech = np.tanh(u), np.exp(-2.0 * abs(u)) * 4.0 / (1.0 + np.exp(-2.0 * abs(u))) ** 2
        half = np.exp(-2.0 * np.maximum(-u, 0.0)) / (1.0 + np.exp(-2.0 * abs(u)))     # (1 + tanh u)/2 without cancellation
        value = half + 0.5 * x * sech * du
        # 1 - tanh^2 cancels until tanh is 1 in f32
        size = 0.5 * (1.0 + abs(th)) + 0.5 * abs(x) * du * np.where(abs(u) < 9.1, 1.0 + th * th, sech)
    else:
        s, rest = 1.0 / (1.0 + np.exp(-np.clip(x, -700, 700))), 1.0 / (1.0 + np.exp(np.clip(x, -700, 700)))
        value = s * (1.0 + x * rest)
        size = s * (1.0 + abs(x) * np.where(x < 17.5, 1.0 + s, rest))   # 1 - s cancels until s is 1 in f32
    return {"dx_ref": flat([g * value])}, {"dx_ref": abs(g) * size}, {"dx_ref": 1}


# ---- along a dimension -----------------------------------------------------------------------------------------------

def reduced(case):
    return case.shape[:case.dim] + case.shape[case.dim + 1:]


def softmax_routes(case):
    # the result Y is an input and rounded: the backward ops take it as it is
    y, grad = case.parts("y"), case.parts("grad")
    routes = {"strided backward op": list(aten._softmax_backward_data(strided(grad), strided(y), case.dim + 1, F64).unbind())}
    # torch.jagged's backward takes contiguous values alone. 2.11 goes wrong along the ragged dimension (it sums along the next
    # one), and with a dimension counted from the front (the same); from the back it is right.
    if case.ragged_first and case.dim > 0:
        j = Jagged(y, case.shape)
        g = Jagged(grad, case.shape, offsets=j.tensor.offsets())
        result = aten._softmax_backward_data(g.tensor, j.tensor, case.dim - len(case.shape), F64)
        routes["jagged backward op"] = list(result.values().split(case.lengths, 0))
    return only_dx(routes)


def softmax_formula(case):
    value, size, terms = [], [], 0
    for y, g in zip(case.arrays("y"), case.arrays("grad")):
        value.append(y * (g - (g * y).sum(case.dim, keepdims=True)))
        size.append(abs(y) * (abs(g) + abs(g * y).sum(case.dim, keepdims=True)))
        terms = max(terms, y.shape[case.dim])
    return {"dx_ref": flat(value)}, {"dx_ref": flat(size)}, {"dx_ref": terms}


def log_softmax_routes(case):
    # as softmax. 2.11 has no backward of it, of neither layout
    dense = [aten._log_softmax_backward_data(g.contiguous(), y.contiguous(), case.dim, F64)
             for y, g in zip(case.parts("y"), case.parts("grad"))]
    return only_dx({"dense backward op": dense})


def log_softmax_formula(case):
    value, size, terms = [], [], 0
    for y, g in zip(case.arrays("y"), case.arrays("grad")):
        value.append(g - np.exp(y) * g.sum(case.dim, keepdims=True))
        size.append(abs(g) + np.exp(y) * abs(g).sum(case.dim, keepdims=True) * (1.0 + abs(y)))
        terms = max(terms, y.shape[case.dim])
    return {"dx_ref": flat(value)}, {"dx_ref": flat(size)}, {"dx_ref": terms}


def zeros(case):
    kind = case.t["grad"].dtype
    return [torch.zeros(component_shape(case.shape, length), dtype=kind) for length in case.lengths]


def sum_parts(case):
    """The gradient's components, with the summed dimension of size 1 put back."""
    if case.shape[case.dim] == -1:
        grads = list(case.t["grad"].reshape(len(case.lengths), *reduced(case)))
    else:
        grads = case.parts("grad", reduced(case))
    return [g.unsqueeze(case.dim) for g in grads]


def sum_routes(case):
    grads = sum_parts(case)
    if case.dim + 1 == len(case.shape) and len(case.shape) > 1 and case.t["grad"].dtype != torch.bool:
        if case.floating:
            return only_dx({"strided autograd": strided_autograd(lambda x: x.sum(-1, keepdim=True), zeros(case), grads)})
        result = aten._nested_sum_backward(strided(grads), strided(zeros(case)), [case.dim + 1], True)
        return only_dx({"strided backward op": list(result.unbind())})
    if not case.floating:       # autograd is for real types
        return only_dx({"dense expand": [g.expand(z.shape).contiguous() for g, z in zip(grads, zeros(case))]})
    return only_dx({"dense autograd": dense_autograd(lambda x: x.sum(case.dim, keepdim=True), zeros(case), grads)})


def sum_formula(case):
    value = [np.broadcast_to(g.numpy(), component_shape(case.shape, n)) for g, n in zip(sum_parts(case), case.lengths)]
    return {"dx_ref": flat(value)}, {"dx_ref": 0 * flat(value)}, {"dx_ref": 0}


def select_parts(case):
    if case.shape[case.dim] == -1:
        return list(case.t["grad"].reshape(len(case.lengths), *reduced(case)))
    return case.parts("grad", reduced(case))


def select_routes(case):
    index = case.number("index")
    if case.dim is None:
        part = case.t["grad"].reshape(component_shape(case.shape, case.lengths[index]))
        leaf = strided(zeros(case), True) if case.floating else None
        if leaf is None:
            return only_dx({"strided backward op": list(
                aten._nested_select_backward(part, strided(zeros(case)), 0, index).unbind())})
        leaf.select(0, index).backward(part)
        return only_dx({"strided autograd": list(leaf.grad.unbind())})
    # 2.11 cannot run select's backward along any dimension of the components, in neither layout
    if not case.floating:
        return only_dx({"dense select_scatter": [torch.select_scatter(z, g, case.dim, index)
                                                 for z, g in zip(zeros(case), select_parts(case))]})
    return only_dx({"dense autograd": dense_autograd(lambda x: x.select(case.dim, index), zeros(case), select_parts(case))})


def select_formula(case):
    index, value = case.number("index"), [z.numpy() for z in zeros(case)]
    if case.dim is None:
        value[index][...] = case.t["grad"].reshape(value[index].shape).numpy()
    else:
        for z, g in zip(value, select_parts(case)):
            z[(slice(None),) * case.dim + (index,)] = g.numpy()
    return {"dx_ref": flat(value)}, {"dx_ref": 0 * flat(value)}, {"dx_ref": 0}


# ---- layer norm and linear -------------------------------------------------------------------------------------------

def norm_lines(case, *names):
    """Lines over the ragged dimension: each component whole, per index in front of it; rstd and mean follow that order."""
    before = math.prod(case.shape[:case.shape.index(-1)])
    parts = [[line for part in case.parts(name) for line in part.reshape(before, -1)] for name in names]
    return list(zip(*parts, case.t["mean"] if "mean" in case.t else torch.zeros_like(case.t["rstd"]), case.t["rstd"]))


def ragged_layer_norm(grad, x, mean, rstd):
    """dX of one line by the dense backward op."""
    ones = torch.ones_like(x)
    return aten.native_layer_norm_backward(grad, x, [x.numel()], mean.reshape(1), rstd.reshape(1), ones, ones,
                                           [True, False, False])[0]


def ragged_norm_formula(case):
    value, size, terms = [], [], 0
    for x, g, mean, rstd in norm_lines(case, "x", "grad"):
        if x.numel():
            x, g, mean, rstd = (t.numpy() for t in (x, g, mean, rstd))
            h, average = (x - mean) * rstd, g.mean() if case.op == "layer_norm" else 0.0
            value.append(rstd * (g - average - h * (g * h).mean()))
            size.append(rstd * (abs(g) + (abs(g).mean() if case.op == "layer_norm" else 0.0) + abs(h) * abs(g * h).mean()))
            terms = max(terms, x.size)
    return {"dx_ref": flat(value)}, {"dx_ref": flat(size)}, {"dx_ref": terms}


def layer_norm_routes(case):
    # mean and rstd are inputs and rounded: the backward op takes them as they are
    norm = case.list("normalized")
    if -1 in norm:      # 2.11 has the forward of the jagged layout alone: its backward fails
        return {"dense backward op": {"dx_ref": flat([ragged_layer_norm(g, x, mean, rstd)
                                                      for x, g, mean, rstd in norm_lines(case, "x", "grad") if x.numel()])}}
    lines = case.t["mean"].numel()
    gamma = case.t.get("weight", torch.ones(math.prod(norm), dtype=F64)).reshape(norm)
    x, grad = case.parts("x"), case.parts("grad")
    mask = [True, True, True]

    def references(dx, dgamma, dbeta):
        found = {"dx_ref": join(dx)}
        if "weight" in case.t:
            found.update(dweight_ref=dgamma.reshape(-1), dbias_ref=dbeta.reshape(-1))
        return found

    mean, rstd = (case.t[name].reshape(lines, *[1] * len(norm)) for name in ("mean", "rstd"))
    dx, dgamma, dbeta = aten.native_layer_norm_backward(strided(grad), strided(x), norm, mean, rstd, gamma, gamma, mask)
    routes = {"strided backward op": references(dx.unbind(), dgamma, dbeta)}
    if case.ragged_first and lines:
        j = Jagged(x, case.shape)
        g = Jagged(grad, case.shape, offsets=j.tensor.offsets())
        like = j.values.shape[:j.values.dim() - len(norm)] + (1,) * len(norm)
        dx, dgamma, dbeta = aten.native_layer_norm_backward(g.tensor, j.tensor, norm, mean.reshape(like), rstd.reshape(like),
                                                            gamma, gamma, mask)
        routes["jagged backward op"] = references(dx.values().split(case.lengths, 0), dgamma, dbeta)
    return routes


def layer_norm_formula(case):
    if -1 in case.list("normalized"):
        return ragged_norm_formula(case)
    M = math.prod(case.list("normalized"))
    lines = case.t["mean"].numel()
    x, g = (case.t[name].numpy().reshape(lines, M) for name in ("x", "grad"))
    mean, rstd = (case.t[name].numpy().reshape(lines, 1) for name in ("mean", "rstd"))
    gamma = case.t["weight"].numpy() if "weight" in case.t else np.ones(M)
    h, scaled = (x - mean) * rstd, g * gamma
    dx = rstd * (scaled - scaled.mean(1, keepdims=True) - h * (scaled * h).mean(1, keepdims=True))
    size = rstd * (abs(scaled) + abs(scaled).mean(1, keepdims=True) + abs(h) * abs(scaled * h).mean(1, keepdims=True))
    value, sizes, terms = {"dx_ref": flat([dx])}, {"dx_ref": flat([size])}, {"dx_ref": M}
    if "weight" in case.t:
        value.update(dweight_ref=flat([(g * h).sum(0)]), dbias_ref=flat([g.sum(0)]))
        sizes.update(dweight_ref=flat([abs(g * h).sum(0)]), dbias_ref=flat([abs(g).sum(0)]))
        terms.update(dweight_ref=lines, dbias_ref=lines)
    return value, sizes, terms


def rms_norm_routes(case):
    # rstd is an input and rounded. PyTorch's own operator that takes it is CUDA's alone in 2.11; layer_norm's of the lines
    # (x, -x), whose mean is 0 and average square that of x, with the gradient (grad, -grad), is twice the same
    if -1 in case.list("normalized"):
        return {"dense layer_norm backward op": {"dx_ref": flat([
            ragged_layer_norm(torch.cat((g, -g)), torch.cat((x, -x)), mean, rstd)[:x.numel()]
            for x, g, mean, rstd in norm_lines(case, "x", "grad") if x.numel()])}}
    M, lines = math.prod(case.list("normalized")), case.t["rstd"].numel()
    x, grad = (case.t[name].reshape(lines, M) for name in ("x", "grad"))
    gamma = case.t.get("weight", torch.ones(M, dtype=F64)).repeat(2)
    mean, rstd = torch.zeros(lines, 1, dtype=F64), case.t["rstd"].reshape(lines, 1)
    dx, dgamma, _ = aten.native_layer_norm_backward(torch.cat((grad, -grad), 1), torch.cat((x, -x), 1), [2 * M], mean, rstd,
                                                    gamma, gamma, [True, True, True])
    found = {"dx_ref": dx[:, :M].reshape(-1)}
    if "weight" in case.t:
        found["dweight_ref"] = dgamma[:M]
    return {"dense layer_norm backward op": found}


def rms_norm_formula(case):
    if -1 in case.list("normalized"):
        return ragged_norm_formula(case)
    M, lines = math.prod(case.list("normalized")), case.t["rstd"].numel()
    x, g = (case.t[name].numpy().reshape(lines, M) for name in ("x", "grad"))
    rstd = case.t["rstd"].numpy().reshape(lines, 1)
    h, scaled = x * rstd, g * (case.t["weight"].numpy() if "weight" in case.t else np.ones(M))
    value = {"dx_ref": flat([rstd * (scaled - h * (scaled * h).mean(1, keepdims=True))])}
    size, terms = {"dx_ref": flat([rstd * (abs(scaled) + abs(h) * abs(scaled * h).mean(1, keepdims=True))])}, {"dx_ref": M}
    if "weight" in case.t:
        value["dweight_ref"], size["dweight_ref"] = flat([(g * h).sum(0)]), flat([abs(g * h).sum(0)])
        terms["dweight_ref"] = lines
    return value, size, terms


def linear_routes(case):
    weight = case.t["weight"]
    x, grad = case.parts("x"), case.parts("grad", case.shape[:-1] + [weight.shape[0]])
    dx, dw, db = aten.linear_backward(strided(x), strided(grad), weight, [True, True, True])
    routes = {"strided backward op": {"dx_ref": join(dx.unbind()), "dweight_ref": dw, "dbias_ref": db}}

    def autograd(run):
        w, b = weight.clone().requires_grad_(), torch.zeros(weight.shape[0], dtype=F64, requires_grad=True)
        dx = run(lambda t: torch.nn.functional.linear(t, w, b))
        return {"dx_ref": join(dx), "dweight_ref": w.grad, "dbias_ref": b.grad}

    if len(case.shape) == 2:
        routes["strided autograd"] = autograd(lambda function: strided_autograd(function, x, grad))
    if case.ragged_first:
        routes["jagged autograd"] = autograd(lambda function: jagged_autograd(function, x, case.shape, grad))
    return routes


def linear_formula(case):
    w = case.t["weight"].numpy()
    x, g = case.t["x"].numpy().reshape(-1, w.shape[1]), case.t["grad"].numpy().reshape(-1, w.shape[0])
    value = {"dx_ref": flat([g @ w]), "dweight_ref": flat([g.T @ x]), "dbias_ref": flat([g.sum(0)])}
    size = {"dx_ref": flat([abs(g) @ abs(w)]), "dweight_ref": flat([abs(g).T @ abs(x)]), "dbias_ref": flat([abs(g).sum(0)])}
    return value, size, {"dx_ref": w.shape[0], "dweight_ref": len(x), "dbias_ref": len(x)}


# ---- matmul ----------------------------------------------------------------------------------------------------------

def matmul_parts(case):
    """Per component [outer, rows, columns] of a, b, grad."""
    m, k, n = (case.t[name].tolist() for name in "mkn")
    outer = case.number("outer") if "outer" in case.meta else 1
    parts = []
    for name, rows, columns in (("a", m, k), ("b", k, n), ("grad", m, n)):
        sizes = [outer * r * c for r, c in zip(rows, columns)]
        parts.append([p.reshape(outer, r, c) for p, r, c in zip(case.t[name].reshape(-1).split(sizes), rows, columns)])
    return outer, m, k, n, parts


def matmul_routes(case):
    outer, m, k, n, (a, b, g) = matmul_parts(case)

    def plain(parts):
        return parts if outer > 1 else [part[0] for part in parts]

    a, b, g = (plain(parts) for parts in (a, b, g))
    dims = len(a[0].shape)
    da, db = aten.matmul_backward(strided(g), strided(a), strided(b), [True, True])
    routes = {"strided backward op": {"da_ref": join(da.unbind()), "db_ref": join(db.unbind())}}
    A, B = strided(a, True), strided(b, True)
    torch.matmul(A, B).backward(strided(g))
    routes["strided autograd"] = {"da_ref": join(A.grad.unbind()), "db_ref": join(B.grad.unbind())}
    if dims == 2 and len(set(k)) == 1 and len(set(n)) == 1:      # torch.jagged: [*, k] times dense [components, k, n]
        dense = torch.stack(b).requires_grad_()
        da = jagged_autograd(lambda x: x @ dense, a, [-1, k[0]], g)
        routes["jagged autograd"] = {"da_ref": join(da), "db_ref": dense.grad}
    if dims == 2 and len(set(m)) == 1 and len(set(n)) == 1 and len(set(k)) > 1:     # [*, m]^T times [*, n]
        left = Jagged([part.T for part in a], [-1, m[0]], True)
        right = Jagged(b, [-1, n[0]], True, offsets=left.tensor.offsets())
        (left.tensor.transpose(1, 2) @ right.tensor).backward(torch.stack(g))
        routes["jagged autograd"] = {"da_ref": join([part.T for part in left.values.grad.split(k, 0)]),
                                     "db_ref": right.values.grad}
    return routes


def matmul_formula(case):
    _, _, _, _, parts = matmul_parts(case)
    a, b, g = ([part.numpy() for part in group] for group in parts)

    def products(f):
        return ([f(G) @ f(B).swapaxes(1, 2) for G, B in zip(g, b)], [f(A).swapaxes(1, 2) @ f(G) for A, G in zip(a, g)])

    (da, db), (size_a, size_b) = products(lambda t: t), products(abs)
    terms = {"da_ref": max(part.shape[2] for part in g), "db_ref": max(part.shape[1] for part in g)}
    return {"da_ref": flat(da), "db_ref": flat(db)}, {"da_ref": flat(size_a), "db_ref": flat(size_b)}, terms


# ---- shapes ----------------------------------------------------------------------------------------------------------

def reshape_routes(case):
    target = case.list("grad_shape")
    grads, x = case.parts("grad", target), zeros(case)
    routes = {}
    if not case.floating:
        return only_dx({"strided reshape": list(strided(grads).reshape(len(x), *case.shape).unbind())}) \
            if case.shape.index(-1) == target.index(-1) and -1 not in case.shape[:-1] else \
            only_dx({"dense reshape": [g.reshape(z.shape) for g, z in zip(grads, x)]})
    # torch.strided infers no size but the old ones; torch.jagged wants the ragged dimension to stay the first
    if case.shape.index(-1) == target.index(-1) and case.shape[:case.shape.index(-1)] == target[:target.index(-1)]:
        routes["strided autograd"] = strided_autograd(lambda t: t.reshape(len(x), *target), x, grads)
    if case.ragged_first and target[0] == -1 and len(case.shape) > 1:
        routes["jagged autograd"] = jagged_autograd(lambda t: t.reshape(len(x), *target), x, case.shape, grads)
    if not routes:
        routes["dense autograd"] = [g for c, part in zip(x, grads)
                                    for g in dense_autograd(lambda t: t.reshape(part.shape), [c], [part])]
    return only_dx(routes)


def reshape_formula(case):
    value = flat([case.t["grad"].numpy()])
    return {"dx_ref": value}, {"dx_ref": 0 * value}, {"dx_ref": 0}


def to_padded_routes(case):
    padded = case.number("padded")          # nested tensors do not truncate, and want an element
    grad = case.t["grad"]                                   # [components, outer.., padded, inner..]
    where = case.shape.index(-1)
    size = (len(case.lengths), *component_shape(case.shape, padded))
    if 0 < max(case.lengths) <= padded:
        leaf = strided(zeros(case), True)
        leaf.to_padded_tensor(0.0, size).backward(grad.reshape(size))
        routes = {"strided autograd": list(leaf.grad.unbind())}
        if case.ragged_first and max(case.lengths) == padded:
            j = Jagged(zeros(case), case.shape, True)
            j.tensor.to_padded_tensor(0.0).backward(grad.reshape(size))
            routes["jagged autograd"] = list(j.values.grad.split(case.lengths, 0))
        return only_dx(routes)

    def cut(x):
        x = x.narrow(where, 0, min(padded, x.shape[where]))
        missing = list(x.shape)
        missing[where] = padded - x.shape[where]
        return torch.cat([x, x.new_zeros(missing)], where)
    return only_dx({"dense autograd": dense_autograd(cut, zeros(case), list(grad.reshape(size)))})


def padded_slices(case, dense):
    """The part of each component in a dense tensor, and the part of the component that has a place there."""
    where = case.shape.index(-1)
    for b, length in enumerate(case.lengths):
        index = (slice(None),) * where + (slice(0, min(length, case.number("padded"))),)
        yield dense[b], index


def to_padded_formula(case):
    value = [z.numpy() for z in zeros(case)]
    dense = case.t["grad"].numpy().reshape(len(value), *component_shape(case.shape, case.number("padded")))
    for z, (part, index) in zip(value, padded_slices(case, dense)):
        z[index] = part[index]
    return {"dx_ref": flat(value)}, {"dx_ref": 0 * flat(value)}, {"dx_ref": 0}


def from_padded_routes(case):
    from torch.nested._internal.nested_tensor import nested_from_padded
    padded, grads = case.number("padded"), case.parts("grad")
    size = (len(case.lengths), *component_shape(case.shape, padded))
    if case.ragged_first and case.floating and max(case.lengths) <= padded and len(case.shape) <= 2:
        dense = torch.zeros(size, dtype=F64, requires_grad=True)
        offsets = torch.tensor([0] + case.lengths).cumsum(0)
        nested_from_padded(dense, offsets, 1).values().backward(torch.cat(grads))
        return {"jagged autograd": {"dx_ref": dense.grad.reshape(-1)}}
    if 0 < max(case.lengths) <= padded:    # the same op's own inverse
        result = strided(grads).to_padded_tensor(0.0, size)
        return {"strided to_padded_tensor": {"dx_ref": result.reshape(-1)}}
    where, parts = case.shape.index(-1), []
    for g in grads:
        leaf = torch.zeros(size[1:], dtype=g.dtype, requires_grad=True)
        kept = min(padded, g.shape[where])
        leaf.narrow(where, 0, kept).backward(g.narrow(where, 0, kept))
        parts.append(leaf.grad)
    return {"dense autograd": {"dx_ref": join(parts)}}


def from_padded_formula(case):
    dense = np.zeros((len(case.lengths), *component_shape(case.shape, case.number("padded"))))
    for g, (part, index) in zip(case.arrays("grad"), padded_slices(case, dense)):
        part[index] = g[index]
    return {"dx_ref": flat([dense])}, {"dx_ref": 0 * flat([dense])}, {"dx_ref": 0}


POINTWISE = (pointwise_routes, pointwise_formula)
OPS = {
    "gelu": POINTWISE, "gelu_tanh": POINTWISE, "silu": POINTWISE, "threshold": POINTWISE,
    "softmax": (softmax_routes, softmax_formula), "log_softmax": (log_softmax_routes, log_softmax_formula),
    "sum": (sum_routes, sum_formula), "select": (select_routes, select_formula), "layer_norm": (layer_norm_routes, layer_norm_formula),
    "rms_norm": (rms_norm_routes, rms_norm_formula),
    "linear": (linear_routes, linear_formula), "matmul": (matmul_routes, matmul_formula),
    "reshape": (reshape_routes, reshape_formula), "to_padded": (to_padded_routes, to_padded_formula),
    "from_padded": (from_padded_routes, from_padded_formula),
}
