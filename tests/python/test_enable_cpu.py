# SPDX-License-Identifier: MIT
"""scaled_dot_product_attention on the CPU with its backward taken over, against float64."""
from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sternway._native")

import torch.nn.functional as F  # noqa: E402
from enable_reference import check, flash, forward, gradients, hidden  # noqa: E402

from sternway.torch.enable import disable, enable, reset_stats, stats  # noqa: E402

OPERATOR = "_scaled_dot_product_flash_attention_for_cpu_backward"
VERSION = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
needs_gqa = pytest.mark.skipif(VERSION < (2, 11), reason="enable_gqa with the CPU's flash operator")


@pytest.fixture(autouse=True)
def clean():
    reset_stats()
    torch.manual_seed(20)
    yield
    disable()


def inputs(b, hq, sq, d, hk=None, sk=None, dtype=torch.float32):
    q = torch.randn(b, hq, sq, d, dtype=dtype)
    k, v = (torch.randn(b, hk or hq, sk or sq, d, dtype=dtype) for _ in range(2))
    return q, k, v


def ours(q, k, v, dout, **options):
    """Gradients by autograd through PyTorch's forward with the library's backward, which must have run."""
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    before = stats().get(OPERATOR, {"taken": 0})["taken"]
    with flash(), enable(only="attention", strict=True):
        result = torch.autograd.grad(F.scaled_dot_product_attention(*leaves, **options), leaves, dout)
    assert stats()[OPERATOR] == {"taken": before + 1, "fallback": 0, "reasons": {}}
    return result


def compare(q, k, v, hide=None, bias=None, **options):
    dout = torch.randn(*q.shape[:3], v.shape[3], dtype=q.dtype)
    expected = gradients(q, k, v, dout, hide=hide, bias=bias, scale=options.get("scale"))
    for actual, reference in zip(ours(q, k, v, dout, **options), expected):
        check(actual, reference)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_types(dtype, causal):
    q, k, v = inputs(2, 3, 37, 24, sk=53, dtype=dtype)
    compare(q, k, v, hide=hidden(37, 53, causal="top_left") if causal else None, is_causal=causal)


@pytest.mark.parametrize("rows, keys", [(1, 1), (1, 29), (31, 1), (65, 19)])
def test_lengths(rows, keys):
    compare(*inputs(1, 2, rows, 8, sk=keys))
    compare(*inputs(1, 2, rows, 8, sk=keys), hide=hidden(rows, keys, causal="top_left"), is_causal=True)


@pytest.mark.parametrize("dim", [1, 7, 96, 255])
def test_head_dims(dim):
    compare(*inputs(1, 2, 19, dim), scale=0.3)


@pytest.mark.parametrize("shape", [(21, 33), (1, 1, 21, 33), (2, 1, 21, 33), (1, 3, 21, 33), (2, 3, 21, 33),
                                   (2, 1, 1, 33)], ids=str)
@pytest.mark.parametrize("kind", ["bool", "float"])
def test_masks(shape, kind):
    q, k, v = inputs(2, 3, 21, 16, sk=33)
    mask = torch.randn(shape) if kind == "float" else torch.rand(shape) > 0.3
    if kind == "bool":
        mask[..., 0] = True  # no row without a key: test_rows_without_keys has them
    compare(q, k, v, bias=mask, attn_mask=mask)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_f32_mask_of_16_bit_inputs(dtype):
    q, k, v = inputs(1, 2, 21, 16, dtype=dtype)
    mask = torch.randn(21, 21)
    compare(q, k, v, bias=mask, attn_mask=mask)


def test_mask_with_keys_apart():
    q, k, v = inputs(1, 2, 21, 16, sk=33)
    mask, dout = torch.randn(33, 21).t(), torch.randn_like(q)
    out, lse = forward(q, k, v, bias=mask)
    with enable(strict=True):  # called by itself, since some versions' forward refuses such a mask
        result = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            dout, q, k, v, out.float(), lse.float(), 0.0, False, attn_mask=mask)
    for actual, reference in zip(result, gradients(q, k, v, dout, bias=mask)):
        check(actual, reference)


def test_rows_without_keys():
    q, k, v = inputs(1, 2, 9, 8)
    mask = torch.ones(9, 9, dtype=torch.bool)
    mask[4] = False
    dout = torch.randn_like(q)
    dq, dk, dv = ours(q, k, v, dout, attn_mask=mask)
    expected = gradients(q, k, v, dout, bias=mask)
    assert torch.equal(dq[:, :, 4], torch.zeros(1, 2, 8))
    for actual, reference in zip((dq, dk, dv), expected):
        check(actual, reference)


@needs_gqa
def test_grouped_heads():
    q, k, v = inputs(2, 6, 17, 16, hk=2, sk=29)
    compare(q, k, v, enable_gqa=True)


def test_views():
    base = torch.randn(2, 27, 3, 4, 16)  # [B,S,(q k v),H,D]
    q, k, v = (x.transpose(1, 2) for x in base.unbind(2))
    compare(q, k, v)
    compare(torch.randn(2, 4, 27, 16), torch.randn(1, 1, 27, 16).expand(2, 4, -1, -1),
            torch.randn(2, 1, 27, 16).expand(-1, 4, -1, -1))


def test_expanded_gradient():
    q, k, v = (x.requires_grad_() for x in inputs(2, 3, 17, 16))
    with flash(), enable(strict=True):
        F.scaled_dot_product_attention(q, k, v).sum().backward()  # a dout whose strides are all 0
    for actual, reference in zip((q.grad, k.grad, v.grad), gradients(q, k, v, torch.ones(2, 3, 17, 16))):
        check(actual, reference)


def test_gradient_with_a_strided_head_dim():
    q, k, v = inputs(2, 4, 27, 16)
    dout = torch.randn(2, 16, 4, 27).permute(0, 2, 3, 1)
    for actual, reference in zip(ours(q, k, v, dout), gradients(q, k, v, dout)):
        check(actual, reference)


def test_strides_are_pytorchs():
    q, k, v = (x.requires_grad_() for x in inputs(2, 3, 17, 16, sk=5))
    dout = torch.randn(2, 3, 17, 16)
    with flash():
        theirs = torch.autograd.grad(F.scaled_dot_product_attention(q, k, v), (q, k, v), dout)
    for a, b in zip(ours(q, k, v, dout), theirs):
        assert a.stride() == b.stride() and a.dtype == b.dtype


@pytest.mark.parametrize("shape", [(0, 2, 5, 8), (2, 2, 0, 8), (2, 0, 5, 8)], ids=str)
def test_empty(shape):
    x = torch.randn(shape)
    with enable(strict=True):
        result = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            x, x, x, x, x, torch.zeros(shape[:3]), 0.0, False)
    assert [grad.shape for grad in result] == [x.shape] * 3


def test_no_queries_or_no_keys():
    some, none = torch.randn(1, 2, 5, 8), torch.randn(1, 2, 0, 8)
    backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    with enable(strict=True):
        dq, dk, dv = backward(none, none, some, some, none, torch.zeros(1, 2, 0), 0.0, False)
        assert dq.shape == none.shape and not dk.any() and not dv.any() and dk.shape == some.shape
        dq, dk, dv = backward(some, some, none, none, some, torch.zeros(1, 2, 5), 0.0, False)
        assert not dq.any() and dq.shape == some.shape and dk.shape == none.shape


@pytest.mark.parametrize("causal", [False, True])
def test_gradcheck(causal):
    q, k, v = (x.requires_grad_() for x in inputs(1, 2, 5, 3, sk=4, dtype=torch.float64))
    with flash(), enable(strict=True):
        assert torch.autograd.gradcheck(
            lambda *x: F.scaled_dot_product_attention(*x, is_causal=causal), (q, k, v))
    assert stats()[OPERATOR]["taken"] > 0


def test_subset_of_gradients():
    q, k, v = inputs(1, 2, 9, 8)
    k.requires_grad_()
    dout = torch.randn(1, 2, 9, 8)
    with flash(), enable(strict=True):
        dk, = torch.autograd.grad(F.scaled_dot_product_attention(q, k, v), (k,), dout)
    check(dk, gradients(q, k, v, dout)[1])


def test_autocast():
    linear = torch.nn.Linear(16, 48)
    x = torch.randn(2, 19, 16)

    def loss():
        with torch.autocast("cpu", dtype=torch.bfloat16), flash():
            q, k, v = (y.unflatten(-1, (4, -1)).transpose(1, 2) for y in linear(x).chunk(3, -1))
            return F.scaled_dot_product_attention(q, k, v).float().square().sum()

    theirs = torch.autograd.grad(loss(), linear.weight)[0]
    with enable(strict=True):
        ours = torch.autograd.grad(loss(), linear.weight)[0]
    assert stats()[OPERATOR]["taken"] == 1
    check(ours, theirs.double(), 2 * 4 * 2.0**-8)  # two results of bf16, each within its bound


def test_multi_head_attention():
    layer = torch.nn.TransformerEncoderLayer(24, 3, 32, dropout=0.0, batch_first=True)
    x = torch.randn(2, 13, 24)
    parameters = list(layer.parameters())
    with flash():
        theirs = torch.autograd.grad(layer(x).square().sum(), parameters)
        with enable(strict=True):
            ours = torch.autograd.grad(layer(x).square().sum(), parameters)
    assert stats()[OPERATOR]["taken"] == 1
    scale = max(grad.abs().max() for grad in theirs)
    for a, b in zip(ours, theirs):
        assert (a - b).abs().max() <= 1e-5 * scale
