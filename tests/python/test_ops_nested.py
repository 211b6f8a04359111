# SPDX-License-Identifier: MIT
"""torch.ops.sternway.nested_*_backward: gradients against float64, component by component."""
from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from ops_reference import attention, check, visible  # noqa: E402

import sternway.torch  # noqa: E402,F401

ops = torch.ops.sternway
LENGTHS = (5, 0, 11, 1)
OFFSETS = torch.tensor([0, 5, 5, 16, 17])
USED = torch.tensor([3, 0, 11, 0])
TOTAL = 17
OUTER = 3


def rand(*sizes, seed=0, dtype=torch.float32):
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed)).to(dtype)


def parts(values, ragged_idx, used=None):
    """Views of the components' used positions, without and with their place in the values."""
    axis = ragged_idx - 1
    return [values.narrow(axis, int(OFFSETS[b]), n if used is None else int(used[b])) for b, n in enumerate(LENGTHS)]


def reference(function, x, ragged_idx, grads, used=None):
    """dX of function(component) in float64; grads: the gradient of each result."""
    dx = torch.zeros(x.shape, dtype=torch.float64)
    for part, to, grad in zip(parts(x, ragged_idx, used), parts(dx, ragged_idx, used), grads):
        leaf = part.double().requires_grad_()
        if leaf.numel():
            to.copy_(torch.autograd.grad(function(leaf), leaf, grad.double())[0])
    return dx


ACTIVATIONS = {
    "gelu": (lambda g, x, **k: ops.nested_gelu_backward(g, x, OFFSETS, **k), F.gelu),
    "gelu_tanh": (lambda g, x, **k: ops.nested_gelu_backward(g, x, OFFSETS, approximate="tanh", **k),
                  lambda t: F.gelu(t, approximate="tanh")),
    "silu": (lambda g, x, **k: ops.nested_silu_backward(g, x, OFFSETS, **k), F.silu),
    "threshold": (lambda g, x, **k: ops.nested_threshold_backward(g, x, OFFSETS, threshold=0.25, **k),
                  lambda t: F.threshold(t, 0.25, 0.0)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("ragged_idx", [1, 2])
@pytest.mark.parametrize("name", list(ACTIVATIONS))
def test_activations(name, ragged_idx, dtype):
    ours, forward = ACTIVATIONS[name]
    shape = (TOTAL, 7) if ragged_idx == 1 else (OUTER, TOTAL, 7)
    x, grad = rand(*shape, dtype=dtype), rand(*shape, seed=1, dtype=dtype)
    want = reference(forward, x, ragged_idx, parts(grad, ragged_idx))
    check("dx", ours(grad, x, ragged_idx=ragged_idx, full=True), want, dtype)


def test_used_lengths_and_values_of_no_component():
    x, grad = rand(TOTAL + 4, 7), rand(TOTAL + 4, 7, seed=1)
    x[3:5] = grad[3:5] = x[TOTAL:] = float("nan")
    dx = ops.nested_silu_backward(grad, x, OFFSETS, USED, max_length=11)
    want = torch.zeros(TOTAL + 4, 7, dtype=torch.float64)
    want[:TOTAL] = reference(F.silu, x[:TOTAL], 1, parts(grad, 1, USED), USED)
    check("dx", dx, want, torch.float32)


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
@pytest.mark.parametrize("dim", [1, 2, 3])
@pytest.mark.parametrize("ragged_idx", [1, 2])
def test_softmax(dim, ragged_idx, name):
    forward, ours = getattr(torch, name), getattr(ops, f"nested_{name}_backward")
    shape = (TOTAL, 4, 6) if ragged_idx == 1 else (4, TOTAL, 6)
    x, grad = rand(*shape), rand(*shape, seed=1)
    y = torch.zeros(shape)
    for part, to in zip(parts(x, ragged_idx), parts(y, ragged_idx)):
        to.copy_(forward(part, dim - 1))
    want = reference(lambda t: forward(t, dim - 1), x, ragged_idx, parts(grad, ragged_idx))
    check("dx", ours(grad, y, OFFSETS, dim=dim, ragged_idx=ragged_idx), want, torch.float32)


@pytest.mark.parametrize("dim", [1, 2, 3])
@pytest.mark.parametrize("ragged_idx", [1, 2])
def test_sum(dim, ragged_idx):
    shape = [TOTAL, 4, 6] if ragged_idx == 1 else [4, TOTAL, 6]
    if dim == ragged_idx:
        grad = rand(len(LENGTHS), *(size for at, size in enumerate(shape) if at != ragged_idx - 1), seed=1)
        grads = list(grad)
    else:
        grad = rand(*(size for at, size in enumerate(shape) if at != dim - 1), seed=1)
        grads = parts(grad, ragged_idx - (dim < ragged_idx))
    want = reference(lambda t: t.sum(dim - 1), rand(*shape), ragged_idx, grads)
    check("dx", ops.nested_sum_backward(grad, shape, OFFSETS, dim=dim, ragged_idx=ragged_idx), want, torch.float32)


def test_select():
    grad = rand(TOTAL, 4, seed=1)
    want = reference(lambda t: t.select(2, -2), rand(TOTAL, 4, 6), 1, parts(grad, 1))
    check("inner", ops.nested_select_backward(grad, [TOTAL, 4, 6], OFFSETS, dim=3, index=-2), want, torch.float32)
    want = torch.zeros(TOTAL, 4, dtype=torch.float64)
    want[5:16] = grad[:11]
    got = ops.nested_select_backward(grad[:11].contiguous(), [TOTAL, 4], OFFSETS, dim=0, index=2)
    check("component", got, want, torch.float32)


@pytest.mark.parametrize("gamma", [False, True])
def test_layer_norm(gamma):
    x, grad, weight = rand(TOTAL, 4, 6), rand(TOTAL, 4, 6, seed=1), rand(6, seed=2) if gamma else None
    mean = x.mean(-1)
    rstd = (x.var(-1, unbiased=False) + 1e-5).rsqrt()
    leaf, scale, shift = x.double().requires_grad_(), (weight if gamma else torch.ones(6)).double().requires_grad_(), \
        torch.zeros(6, dtype=torch.float64, requires_grad=True)
    wants = torch.autograd.grad(F.layer_norm(leaf, (6,), scale, shift), (leaf, scale, shift), grad.double())
    got = ops.nested_layer_norm_backward(grad, x, mean, rstd, weight, OFFSETS, normalized_size=6,
                                         outputs=13 if gamma else 1)
    assert len(got) == (3 if gamma else 1)
    for name, a, b in zip(("dx", "dweight", "dbias"), got, wants):
        check(name, a, b, torch.float32)


@pytest.mark.parametrize("gamma", [False, True])
def test_rms_norm(gamma):
    x, grad, weight = rand(TOTAL, 4, 6), rand(TOTAL, 4, 6, seed=1), rand(6, seed=2) if gamma else None
    rstd = (x.square().mean(-1) + 1e-5).rsqrt()
    leaf, scale = x.double().requires_grad_(), (weight if gamma else torch.ones(6)).double().requires_grad_()
    y = leaf * (leaf.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * scale
    wants = torch.autograd.grad(y, (leaf, scale), grad.double())
    got = ops.nested_rms_norm_backward(grad, x, rstd, weight, OFFSETS, normalized_size=6, outputs=5 if gamma else 1)
    assert len(got) == (2 if gamma else 1)
    for name, a, b in zip(("dx", "dweight"), got, wants):
        check(name, a, b, torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("storage", ["jagged", "components"])
@pytest.mark.parametrize("name", ["layer_norm", "rms_norm"])
@pytest.mark.parametrize("ragged_idx", [1, 2])
def test_norms_over_the_ragged_dimension(ragged_idx, name, storage, dtype):
    """A line is what a component uses of one outer index: [.., ragged, 4, 6] or [3, ragged, 6]."""
    outer = 1 if ragged_idx == 1 else OUTER
    shapes = [((n, 4, 6) if ragged_idx == 1 else (OUTER, n, 6)) for n in LENGTHS]
    xs, grads = ([rand(*shape, seed=seed + at, dtype=dtype) for at, shape in enumerate(shapes)] for seed in (10, 20))
    mean, rstd = torch.zeros(len(LENGTHS), outer), torch.ones(len(LENGTHS), outer)
    wants = []
    for b, (x, grad) in enumerate(zip(xs, grads)):
        leaf = x.double().requires_grad_()
        lines = leaf.reshape(outer, -1)
        if leaf.numel():
            centre = lines.mean(-1, keepdim=True) if name == "layer_norm" else 0.0 * lines[:, :1]
            scale = ((lines - centre).square().mean(-1, keepdim=True) + 1e-5).rsqrt()
            mean[b], rstd[b] = centre[:, 0].detach(), scale[:, 0].detach()
            wants.append(torch.autograd.grad(((lines - centre) * scale).reshape(x.shape), leaf, grad.double())[0])
        else:
            wants.append(leaf.detach())
    flat = storage == "components"
    join = (lambda of: torch.cat([t.reshape(-1) for t in of])) if flat else (lambda of: torch.cat(of, ragged_idx - 1))
    sizes = list(shapes[0])
    sizes[ragged_idx - 1] = TOTAL
    x, grad, want = (join(of).reshape(sizes) for of in (xs, grads, wants))
    statistics = (mean, rstd) if name == "layer_norm" else (rstd,)
    (dx,) = getattr(ops, f"nested_{name}_backward")(grad, x, *statistics, None, OFFSETS, ragged_idx=ragged_idx,
                                                    storage=storage, outputs=1)
    check("dx", dx, want, dtype)


def test_norms_over_the_ragged_dimension_have_dx_alone():
    x, rstd = rand(TOTAL, 6), rand(4)
    for outputs in (5, 4):
        with pytest.raises(ValueError, match="dX alone"):
            ops.nested_rms_norm_backward(x, x, rstd, None, OFFSETS, outputs=outputs)
    with pytest.raises(sternway.UnsupportedError, match="gamma would be ragged"):
        ops.nested_rms_norm_backward(x, x, rstd, rand(6), OFFSETS, outputs=1)
    with pytest.raises(ValueError, match="rstd"):
        ops.nested_rms_norm_backward(x, x, rand(TOTAL), None, OFFSETS, outputs=1)


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_linear(dtype, full):
    x, grad, weight = rand(TOTAL, 6, dtype=dtype), rand(TOTAL, 5, seed=1, dtype=dtype), rand(5, 6, seed=2, dtype=dtype)
    leaf, matrix, shift = (t.double().requires_grad_() for t in (x, weight, torch.zeros(5)))
    wants = torch.autograd.grad(F.linear(leaf, matrix, shift), (leaf, matrix, shift), grad.double())
    got = ops.nested_linear_backward(grad, x, weight, OFFSETS, full=full, outputs=13)
    for name, a, b in zip(("dx", "dweight", "dbias"), got, wants):
        check(name, a, b, dtype)
    (dweight,) = ops.nested_linear_backward(grad, x, weight, OFFSETS, outputs=4)
    check("dweight alone", dweight, wants[1], dtype)
    with pytest.raises(ValueError, match="last but one"):
        ops.nested_linear_backward(rand(TOTAL, 2, 5), rand(TOTAL, 2, 6), weight, OFFSETS)


def test_matmul():
    x, other, grad = rand(TOTAL, 6), rand(4, 6, 5, seed=1), rand(TOTAL, 5, seed=2)
    dx, dother = ops.nested_matmul_backward(grad, x, other, [OFFSETS, None, None], [None] * 3, sizes=[11, 6, 5],
                                            totals=[TOTAL, 0, 0], components=4)
    wants = [torch.zeros(t.shape, dtype=torch.float64) for t in (x, other)]
    for b, (a, c) in enumerate(zip(parts(x, 1), parts(grad, 1))):
        parts(wants[0], 1)[b].copy_(c.double() @ other[b].double().T)
        wants[1][b] = a.double().T @ c.double()
    check("dx", dx, wants[0], torch.float32)
    check("dother", dother, wants[1], torch.float32)
    (only,) = ops.nested_matmul_backward(grad, x, other, [OFFSETS, None, None], [None] * 3, sizes=[11, 6, 5],
                                         totals=[TOTAL, 0, 0], components=4, outputs=2)
    assert torch.equal(only, dother)


def test_reshape():
    grad = rand(3, TOTAL, 2, seed=1)  # components [3, j, 2] of x [6, j]
    x = rand(6, TOTAL)
    want = reference(lambda t: t.reshape(3, -1, 2), x, 2, parts(grad, 2))
    got = ops.nested_reshape_backward(grad, OFFSETS, shape=[6, -1], grad_shape=[3, -1, 2])
    check("dx", got, want, torch.float32)


def test_padded():
    grad, padded = rand(4, 9, 6, seed=1), 9
    want = torch.zeros(TOTAL, 6, dtype=torch.float64)
    for b, to in enumerate(parts(want, 1)):
        to[:padded] = grad[b, :min(to.shape[0], padded)]
    check("to", ops.nested_to_padded_backward(grad, OFFSETS, total=TOTAL), want, torch.float32)
    values = rand(OUTER, TOTAL, 6)
    want = torch.zeros(4, OUTER, 12, 6, dtype=torch.float64)
    for b, part in enumerate(parts(values, 2)):
        want[b, :, :part.shape[1]] = part
    check("from", ops.nested_from_padded_backward(values, OFFSETS, padded=12, ragged_idx=2), want, torch.float32)


def test_attention():
    q, k, v, dout = (rand(TOTAL, 2, 8, seed=at) for at in range(4))
    starts = OFFSETS.int()
    sizes = {"max_seq_q": 11, "max_seq_kv": 11}
    out, lse = ops.attn_fwd(q, k, v, None, None, None, starts, starts, layout="thd", mask=1, **sizes)
    got = ops.nested_attention_backward(dout, q, k, v, out, lse, OFFSETS, OFFSETS, causal=True, **sizes)
    wants = [torch.zeros(TOTAL, 2, 8, dtype=torch.float64) for _ in range(3)]
    for b, n in enumerate(LENGTHS):
        one = [parts(t, 1)[b].double().transpose(0, 1)[None].requires_grad_() for t in (q, k, v)]
        result, _ = attention(*one, seen=visible(n, n, "top_left"))
        for to, grad in zip(wants, torch.autograd.grad(result, one, parts(dout, 1)[b].double().transpose(0, 1)[None])):
            parts(to, 1)[b].copy_(grad[0].transpose(0, 1))
    for name, a, b in zip(("dq", "dk", "dv"), got, wants):
        check(name, a, b, torch.float32, 2.0)


def test_double_backward_and_bad_input():
    x, grad = rand(TOTAL, 7).requires_grad_(), rand(TOTAL, 7, seed=1)
    dx = ops.nested_silu_backward(grad, x, OFFSETS)
    with pytest.raises(RuntimeError, match="double backward is not there"):
        dx.sum().backward()
    x = x.detach()
    with pytest.raises(ValueError, match="contiguous"):
        ops.nested_silu_backward(rand(7, TOTAL).T, x, OFFSETS)
    with pytest.raises(ValueError, match="grad"):
        ops.nested_silu_backward(grad, x.double(), OFFSETS)
    with pytest.raises(ValueError):
        ops.nested_silu_backward(grad, x, torch.tensor([0, 9, 4, 17]))
    for wrong in (lambda: ops.nested_silu_backward(grad[:9], x, OFFSETS),
                  lambda: ops.nested_sum_backward(rand(3, 7), [TOTAL, 7], OFFSETS, dim=1),
                  lambda: ops.nested_select_backward(rand(9, 7), [TOTAL, 7], OFFSETS, dim=0, index=2),
                  lambda: ops.nested_layer_norm_backward(grad, x, rand(9), rand(TOTAL), None, OFFSETS,
                                                         normalized_size=7, outputs=1),
                  lambda: ops.nested_linear_backward(rand(TOTAL, 4), x, rand(5, 7), OFFSETS),
                  lambda: ops.nested_reshape_backward(grad, OFFSETS, shape=[-1, 8], grad_shape=[-1, 7]),
                  lambda: ops.nested_to_padded_backward(rand(3, 9, 6), OFFSETS, total=TOTAL),
                  lambda: ops.nested_matmul_backward(rand(TOTAL, 5), x, rand(4, 7, 4), [OFFSETS, None, None],
                                                     [None] * 3, sizes=[11, 7, 5], totals=[TOTAL, 0, 0],
                                                     components=4)):
        with pytest.raises(ValueError, match="it must"):  # before a kernel reads what is not there
            wrong()
    with pytest.raises(ValueError, match="ragged_idx"):
        ops.nested_silu_backward(grad, x, OFFSETS, ragged_idx=3)
    with pytest.raises(ValueError, match="storage"):
        ops.nested_silu_backward(grad, x, OFFSETS, storage="strided")
