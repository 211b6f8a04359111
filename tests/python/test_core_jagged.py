# SPDX-License-Identifier: MIT
"""sternway.jagged on numpy arrays: each operation against float64 formulas, component by component."""
from __future__ import annotations

import math
import zlib

import pytest

np = pytest.importorskip("numpy")
sternway = pytest.importorskip("sternway")
jagged = sternway.jagged
from core_reference import backward, check  # noqa: E402

LENGTHS = [3, 0, 17, 1, 6]
OFFSETS = np.concatenate([[0], np.cumsum(LENGTHS)]).astype(np.int64)
TOTAL = int(OFFSETS[-1])
USED = np.array([2, 0, 17, 0, 5], np.int64)


def values(name, *shape, dtype="float32"):
    return np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape).astype(dtype)


def parts(array, ragged=0, used=None):
    """Components in float64, rows in use alone."""
    lengths = LENGTHS if used is None else used
    return [array.take(range(OFFSETS[b], OFFSETS[b] + lengths[b]), axis=ragged).astype(np.float64)
            for b in range(len(LENGTHS))]


def compare(got, components, ragged=0, used=None, dtype="float32"):
    for mine, theirs in zip(parts(got, ragged, used), components):
        check("dx", mine, theirs, dtype)
    if used is not None:
        for b, length in enumerate(LENGTHS):
            rest = got.take(range(OFFSETS[b] + used[b], OFFSETS[b] + length), axis=ragged)
            assert not rest.any(), f"positions of component {b} behind its used length"


def gelu_slope(x):
    erf = np.vectorize(math.erf, otypes=[float])
    return 0.5 * (1 + erf(x / math.sqrt(2))) + x * np.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def gelu_tanh_slope(x):
    u = math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3)
    return (1 + np.tanh(u)) / 2 + x / 2 * (1 - np.tanh(u) ** 2) * math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x * x)


def silu_slope(x):
    s = 1 / (1 + np.exp(-x))
    return s * (1 + x * (1 - s))


POINTWISE = {
    "gelu": (jagged.gelu_backward, gelu_slope),
    "gelu_tanh": (lambda *a, **o: jagged.gelu_backward(*a, approximate="tanh", **o), gelu_tanh_slope),
    "silu": (jagged.silu_backward, silu_slope),
    "threshold": (lambda *a, **o: jagged.threshold_backward(*a, 0.25, **o), lambda x: (x > 0.25) * 1.0)}


@pytest.mark.parametrize("op", POINTWISE)
@pytest.mark.parametrize("used", [None, USED], ids=["full", "used"])
@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_pointwise(op, used, index):
    function, slope = POINTWISE[op]
    x, grad = values(op, TOTAL, 5), values("grad", TOTAL, 5)
    got = function(grad, x, OFFSETS.astype(index), used=None if used is None else used.astype(index))
    compare(got, [g * slope(a) for g, a in zip(parts(grad, 0, used), parts(x, 0, used))], used=used)


def test_pointwise_f16_into_f32():
    x, grad = (values(name, TOTAL, 3, dtype="float16") for name in ("f16", "g16"))
    dx = np.ones((TOTAL, 3), "f")
    got = jagged.silu_backward(grad, x, OFFSETS, dx=dx, accumulate="dx")
    assert got is dx
    compare(got, [1.0 + g * silu_slope(a) for g, a in zip(parts(grad), parts(x))], dtype="float16")


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("ragged,dim", [(0, 0), (0, 1), (0, -1), (1, 0), (1, 1), (1, 2)])
def test_softmax(ragged, dim, log):
    shape = (4, TOTAL, 3) if ragged else (TOTAL, 4, 3)
    scores, grad = values("softmax", *shape), values("grad", *shape)
    y = np.zeros_like(scores)
    for b in range(len(LENGTHS)):
        where = [slice(None)] * 3
        where[ragged] = slice(OFFSETS[b], OFFSETS[b + 1])
        part = np.exp(scores[tuple(where)])
        y[tuple(where)] = part / part.sum(axis=dim, keepdims=True)
    backward = jagged.log_softmax_backward if log else jagged.softmax_backward
    y = np.log(y, where=y > 0, out=np.zeros_like(y)) if log else y
    got = backward(grad, y, OFFSETS, dim, ragged_dim=ragged)
    expected = [g - np.exp(a) * g.sum(axis=dim, keepdims=True) if log else a * (g - (g * a).sum(axis=dim, keepdims=True))
                for g, a in zip(parts(grad, ragged), parts(y, ragged))]
    compare(got, expected, ragged)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
def test_sum(dtype):
    inner = (10 * values("sum inner", TOTAL, 4)).astype(dtype)
    got = jagged.sum_backward(inner, OFFSETS, (TOTAL, 3, 4), 1)
    assert got.dtype == inner.dtype
    np.testing.assert_array_equal(got, np.broadcast_to(inner[:, None], (TOTAL, 3, 4)))
    ragged = (10 * values("sum ragged", len(LENGTHS), 3, 4)).astype(dtype)
    got = jagged.sum_backward(ragged, OFFSETS, (TOTAL, 3, 4), 0)
    np.testing.assert_array_equal(got, np.repeat(ragged, LENGTHS, axis=0))


def test_select():
    grad = values("select", TOTAL, 4)
    got = jagged.select_backward(grad, OFFSETS, (TOTAL, 3, 4), 1, -1)
    expected = np.zeros((TOTAL, 3, 4), "f")
    expected[:, 2] = grad
    np.testing.assert_array_equal(got, expected)
    whole = values("component", 17, 3, 4)
    got = jagged.select_backward(whole, OFFSETS, (TOTAL, 3, 4), None, 2)
    expected = np.zeros((TOTAL, 3, 4), "f")
    expected[OFFSETS[2]:OFFSETS[3]] = whole
    np.testing.assert_array_equal(got, expected)


def test_linear():
    x, grad, weight = values("x", TOTAL, 7), values("grad", TOTAL, 5), values("weight", 5, 7)
    for used in (None, USED):
        got = jagged.linear_backward(grad, x, weight, OFFSETS, used=used)
        rows, grads = np.concatenate(parts(x, 0, used)), np.concatenate(parts(grad, 0, used))
        compare(got.dx, [g @ weight.astype(np.float64) for g in parts(grad, 0, used)], used=used)
        check("dweight", got.dweight, grads.T @ rows, "float32")
        check("dbias", got.dbias, grads.sum(axis=0), "float32")
    full = jagged.linear_backward(grad, x, weight, OFFSETS, outputs=("dweight",), full=True)
    assert full.dx is None and full.dbias is None
    check("dweight", full.dweight, grad.astype(np.float64).T @ x.astype(np.float64), "float32")


@pytest.mark.parametrize("with_weight", [True, False])
def test_layer_norm(with_weight):
    x, grad, weight = values("x", TOTAL, 3, 8), values("grad", TOTAL, 3, 8), values("gamma", 8)
    wide = x.astype(np.float64)
    mean, rstd = wide.mean(axis=2).astype("f"), (1 / np.sqrt(wide.var(axis=2) + 1e-5)).astype("f")
    got = jagged.layer_norm_backward(grad, x, mean, rstd, OFFSETS, weight=weight if with_weight else None)
    h = (wide - mean[..., None]) * rstd[..., None].astype(np.float64)
    gamma = weight.astype(np.float64) if with_weight else 1.0
    g = grad * gamma
    expected = rstd[..., None] * (g - g.mean(axis=2, keepdims=True) - h * (g * h).mean(axis=2, keepdims=True))
    check("dx", got.dx, expected, "float32")
    if with_weight:
        check("dweight", got.dweight, (grad * h).sum(axis=(0, 1)), "float32")
        check("dbias", got.dbias, grad.astype(np.float64).sum(axis=(0, 1)), "float32")
    else:
        assert got.dweight is None and got.dbias is None
    both = jagged.layer_norm_backward(grad.reshape(TOTAL, 24), x.reshape(TOTAL, 24), *(np.zeros(TOTAL, "f") + i
                                                                                       for i in range(2)), OFFSETS)
    assert both.dx.shape == (TOTAL, 24)


def test_norms_over_the_ragged_dimension():
    x, grad = values("x", 2, TOTAL, 8), values("grad", 2, TOTAL, 8)
    mean, rstd, root = (np.full((len(LENGTHS), 2), np.nan, "f") for _ in range(3))
    expected, without = [], []
    for b, (a, g) in enumerate(zip(parts(x, 1), parts(grad, 1))):
        a, g = a.astype(np.float64), g.astype(np.float64)
        if a.size:
            mean[b], rstd[b] = a.mean(axis=(1, 2)), 1 / np.sqrt(a.var(axis=(1, 2)) + 1e-5)
            root[b] = 1 / np.sqrt((a * a).mean(axis=(1, 2)) + 1e-5)
        m, s, q = (t[b].astype(np.float64)[:, None, None] for t in (mean, rstd, root))
        h = (a - m) * s
        average = (lambda t: t.mean(axis=(1, 2), keepdims=True)) if a.size else (lambda t: t)
        expected.append(s * (g - average(g) - h * average(g * h)))
        without.append(q * (g - a * q * average(g * a * q)))
    compare(jagged.layer_norm_backward(grad, x, mean, rstd, OFFSETS, normalized=2, ragged_dim=1).dx, expected, 1)
    compare(jagged.rms_norm_backward(grad, x, root, OFFSETS, normalized=2, ragged_dim=1).dx, without, 1)
    with pytest.raises(sternway.UnsupportedError, match="gamma would be ragged"):
        jagged.rms_norm_backward(grad, x, root, OFFSETS, normalized=2, ragged_dim=1, weight=values("w", 8), outputs="dx")


@pytest.mark.parametrize("with_weight", [True, False])
def test_rms_norm(with_weight):
    x, grad, weight = values("x", TOTAL, 3, 8), values("grad", TOTAL, 3, 8), values("gamma", 8)
    wide = x.astype(np.float64)
    rstd = (1 / np.sqrt((wide * wide).mean(axis=2) + 1e-5)).astype("f")
    got = jagged.rms_norm_backward(grad, x, rstd, OFFSETS, weight=weight if with_weight else None)
    h, g = wide * rstd[..., None], grad * (weight.astype(np.float64) if with_weight else 1.0)
    check("dx", got.dx, rstd[..., None] * (g - h * (g * h).mean(axis=2, keepdims=True)), "float32")
    assert got.dbias is None
    if with_weight:
        check("dweight", got.dweight, (grad * h).sum(axis=(0, 1)), "float32")
    with pytest.raises(sternway.InvalidError, match="rms_norm has not"):
        jagged.rms_norm_backward(grad, x, rstd, OFFSETS, weight=weight, outputs=("dbias",))


def test_matmul_one_ragged_extent():
    """Rows are ragged: A [L_b, 6] B [6, 4] with a B of each component."""
    a, b, grad = values("a", TOTAL, 6), values("b", len(LENGTHS), 6, 4), values("g", TOTAL, 4)
    got = jagged.matmul_backward(grad, a, b, m=(OFFSETS, TOTAL), k=6, n=4)
    compare(got.dx, [g @ w.T for g, w in zip(parts(grad), b.astype(np.float64))])
    for mine, g, left in zip(got.dother, parts(grad), parts(a)):
        check("dother", mine, left.T @ g, "float32")
    only = jagged.matmul_backward(grad, a, b, m=(OFFSETS, TOTAL), k=6, n=4, outputs="dother")
    assert only.dx is None
    np.testing.assert_array_equal(only.dother, got.dother)


def test_matmul_two_ragged_extents():
    """Attention's scores: A [L_b, 4] B [4, L_b] of component b at its place in the buffer of B's and G's."""
    squares = np.concatenate([[0], np.cumsum(np.square(LENGTHS))]).astype(np.int64)
    a, b, grad = values("a2", TOTAL, 4), values("b2", TOTAL, 4), values("g2", int(squares[-1]))
    got = jagged.matmul_backward(grad, a, b, m=(OFFSETS, TOTAL, 17), k=4, n=(OFFSETS, TOTAL, 17), other_transposed=True,
                                 grad_bases=squares[:-1].copy())
    grads = [grad[squares[i]:squares[i + 1]].reshape(n, n).astype(np.float64) for i, n in enumerate(LENGTHS)]
    compare(got.dx, [g @ right for g, right in zip(grads, parts(b))])
    compare(got.dother, [g.T @ left for g, left in zip(grads, parts(a))])


def test_reshape():
    grad = values("reshape", TOTAL * 6)
    got = jagged.reshape_backward(grad, OFFSETS, (2, -1, 3), (-1, 6), storage="jagged")
    assert got.shape == (2, TOTAL, 3)
    for b, length in enumerate(LENGTHS):
        part = grad[OFFSETS[b] * 6:OFFSETS[b + 1] * 6]
        np.testing.assert_array_equal(got[:, OFFSETS[b]:OFFSETS[b + 1]], part.reshape(2, length, 3))


def test_reshape_options():
    """Used lengths, an f32 result that is added to, int32 offsets; and what is refused."""
    grad = values("reshape f16", TOTAL * 6, dtype="float16")
    dx = np.ones(TOTAL * 6, "f")
    got = jagged.reshape_backward(grad, OFFSETS.astype(np.int32), (-1, 2, 3), (-1, 6), used=USED.astype(np.int32),
                                  dx=dx, accumulate="dx")
    assert got is dx
    for b, length in enumerate(LENGTHS):
        start, end = OFFSETS[b] * 6, (OFFSETS[b] + USED[b]) * 6
        np.testing.assert_array_equal(dx[start:end], grad[start:end].astype("f") + 1)
        np.testing.assert_array_equal(dx[end:OFFSETS[b + 1] * 6], 1)
    frozen = np.ones(TOTAL * 6, "float16")
    frozen.flags.writeable = False
    with pytest.raises(sternway.InvalidError, match="read only"):
        jagged.reshape_backward(grad, OFFSETS, (-1, 6), (-1, 6), dx=frozen)
    with pytest.raises(sternway.InvalidError, match="contiguous"):
        jagged.reshape_backward(grad[::2], OFFSETS, (-1, 3), (-1, 3))
    with pytest.raises(sternway.InvalidError, match="shape"):
        jagged.reshape_backward(grad, OFFSETS, (-1, 6), (-1, 5))
    with pytest.raises(sternway.InvalidError, match="exactly one -1"):
        jagged.reshape_backward(grad, OFFSETS, (-1, -1, 6), (-1, 6))


@pytest.mark.parametrize("padded", [17, 4, 20])
def test_padded(padded):
    dense = values("dense", len(LENGTHS), padded, 3)
    got = jagged.to_padded_backward(dense, OFFSETS, TOTAL)
    expected = np.zeros((TOTAL, 3), "f")
    for b, length in enumerate(LENGTHS):
        rows = min(length, padded)
        expected[OFFSETS[b]:OFFSETS[b] + rows] = dense[b, :rows]
    np.testing.assert_array_equal(got, expected)
    nested = values("nested", TOTAL, 3)
    got = jagged.from_padded_backward(nested, OFFSETS, padded)
    expected = np.zeros((len(LENGTHS), padded, 3), "f")
    for b, length in enumerate(LENGTHS):
        rows = min(length, padded)
        expected[b, :rows] = nested[OFFSETS[b]:OFFSETS[b] + rows]
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_attention(index):
    q, k, v, dout = (values(name, TOTAL, heads, width) for name, heads, width in
                     (("q", 4, 9), ("k", 2, 9), ("v", 2, 6), ("do", 4, 6)))
    cu = OFFSETS.astype(np.int32)
    out, lse = sternway.attn_fwd(q, k, v, layout="thd", cu_seqlens_q=cu, cu_seqlens_kv=cu, max_seq_q=17, max_seq_kv=17)
    got = jagged.attention_backward(dout, q, k, v, out, lse, OFFSETS.astype(index), OFFSETS.astype(index),
                                    max_length_q=17)
    heads = [[part.transpose(1, 0, 2) for part in parts(array)] for array in (dout, q, k, v, out)]
    for b, arrays in enumerate(zip(*heads)):
        expected = backward(*arrays, lse[:, OFFSETS[b]:OFFSETS[b + 1]].astype(np.float64))
        for name in ("dq", "dk", "dv"):
            check(name, parts(getattr(got, name))[b].transpose(1, 0, 2), expected[name], "float32")


def test_components_storage():
    """PyTorch's strided layout: component b is [2, L_b, 3] in one piece."""
    flat, grad = values("flat", TOTAL * 6), values("flat grad", TOTAL * 6)
    got = jagged.softmax_backward(grad, np.abs(flat), OFFSETS, 1, shape=(2, TOTAL, 3), ragged_dim=1,
                                  storage="components")
    assert got.shape == flat.shape
    for b, length in enumerate(LENGTHS):
        where = slice(OFFSETS[b] * 6, OFFSETS[b + 1] * 6)
        y, g = (array[where].reshape(2, length, 3).astype(np.float64) for array in (np.abs(flat), grad))
        check("dx", got[where].reshape(2, length, 3), y * (g - (g * y).sum(axis=1, keepdims=True)), "float32")


def test_full_is_a_promise():
    """It reaches the library, which refuses it beside used lengths."""
    x = values("full", TOTAL, 2)
    np.testing.assert_array_equal(jagged.silu_backward(x, x, OFFSETS, full=True), jagged.silu_backward(x, x, OFFSETS))
    with pytest.raises(sternway.InvalidError, match="FULL"):
        jagged.silu_backward(x, x, OFFSETS, full=True, used=USED)


def test_wrong_offsets_are_refused_by_name():
    x = values("x", TOTAL, 2)
    wrong = OFFSETS.copy()
    wrong[2] = TOTAL + 1
    with pytest.raises(sternway.InvalidError, match="offsets"):
        jagged.silu_backward(x, x, wrong)
    with pytest.raises(sternway.InvalidError, match="contiguous"):
        jagged.silu_backward(x, np.asfortranarray(x), OFFSETS)
    with pytest.raises(sternway.InvalidError, match="approximate"):
        jagged.gelu_backward(x, x, OFFSETS, approximate="sigmoid")
    with pytest.raises(sternway.UnsupportedError):
        jagged.gelu_backward(x.astype("float64"), x.astype("float64"), OFFSETS)


def test_no_components():
    x = np.empty((0, 3), "f")
    assert jagged.gelu_backward(x, x, np.zeros(1, np.int64)).shape == (0, 3)
    got = jagged.linear_backward(np.empty((0, 5), "f"), x, np.ones((5, 3), "f"), np.zeros(1, np.int64))
    assert not got.dweight.any() and not got.dbias.any() and got.dweight.shape == (5, 3)


def test_every_operation_has_a_function():
    functions = {"gelu_tanh": "gelu", "gelu": "gelu"}
    for op in sternway.JaggedOp:
        name = op.name.lower()
        assert callable(getattr(jagged, f"{functions.get(name, name)}_backward"))
