# SPDX-License-Identifier: MIT
"""sternway.torch.sdpa against PyTorch's own math in float64: every argument, shapes of any rank, refusals."""
from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from ops_reference import attention, check, doubles, visible  # noqa: E402

from sternway import _native  # noqa: E402
from sternway.torch import sdpa  # noqa: E402


def inputs(*shapes, dtype=torch.float32, seed=0):
    g = torch.Generator().manual_seed(seed)
    return [torch.randn(*shape, generator=g).to(dtype).requires_grad_() for shape in shapes]


def gradients(function, leaves):
    out = function()
    g = torch.Generator().manual_seed(9)
    dout = torch.randn(*out.shape, generator=g).to(out.dtype)
    return out, torch.autograd.grad(out, leaves, dout)


def compare(leaves, dtype, ours, theirs, factor=1.0):
    """ours(*leaves) and theirs(*float64 leaves): results and every gradient."""
    out, grads = gradients(lambda: ours(*leaves), leaves)
    refs = doubles(*leaves)
    ref, ref_grads = gradients(lambda: theirs(*refs), refs)
    check("out", out, ref, dtype, factor)
    for at, (got, want, leaf) in enumerate(zip(grads, ref_grads, leaves)):
        assert got.dtype == leaf.dtype
        check(f"gradient {at}", got, want, dtype, 2.0 * factor)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("causal", [False, True])
def test_as_pytorch_s(dtype, causal):
    leaves = inputs((2, 3, 29, 24), (2, 3, 41, 24), (2, 3, 41, 17), dtype=dtype)
    compare(leaves, dtype, lambda q, k, v: sdpa(q, k, v, is_causal=causal, scale=0.3),
            lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=0.3))


@pytest.mark.parametrize("rank", [2, 3, 4, 5])
@pytest.mark.parametrize("masked", [False, True])
def test_any_rank(rank, masked):
    lead = (2, 2, 3)[5 - rank:] if rank > 2 else ()
    leaves = inputs((*lead, 9, 8), (*lead, 13, 8), (*lead, 13, 5))
    if masked:
        leaves += inputs((*lead, 9, 13), seed=4)
    compare(leaves, torch.float32, sdpa, F.scaled_dot_product_attention)


def test_grouped_heads():
    leaves = inputs((2, 6, 9, 8), (2, 2, 13, 8), (2, 2, 13, 8))
    compare(leaves, torch.float32, lambda *t: sdpa(*t, enable_gqa=True),
            lambda *t: F.scaled_dot_product_attention(*t, enable_gqa=True))


def test_keys_of_one_batch_and_one_head():
    leaves = inputs((3, 4, 9, 8), (1, 1, 13, 8), (1, 1, 13, 8))
    compare(leaves, torch.float32, sdpa, F.scaled_dot_product_attention)


@pytest.mark.parametrize("shape", [(2, 4, 9, 13), (1, 4, 1, 13), (9, 13), (4, 1, 1), (13,), (1, 1)])
def test_gradient_of_a_broadcast_mask(shape):
    """With LSE among the results: a mask that is the same for every key moves nothing else."""
    leaves = inputs((2, 4, 9, 8), (2, 4, 13, 8), (2, 4, 13, 8)) + inputs(shape, seed=4)

    def ours(q, k, v, mask):
        out, lse = sdpa(q, k, v, mask, return_lse=True)
        return torch.cat([out, lse[..., None]], -1)

    def theirs(q, k, v, mask):
        out, lse = attention(q, k, v, bias=mask)
        return torch.cat([out, lse[..., None]], -1)

    compare(leaves, torch.float32, ours, theirs)


def test_boolean_mask_hides_rows():
    leaves = inputs((2, 4, 9, 8), (2, 4, 13, 8), (2, 4, 13, 8))
    mask = torch.rand(2, 1, 9, 13, generator=torch.Generator().manual_seed(4)) > 0.4
    mask[0, 0, 3] = False
    compare(leaves, torch.float32, lambda *t: sdpa(*t, mask), lambda *t: attention(*t, bias=mask)[0])
    assert not sdpa(*leaves, mask)[0, :, 3].any()


def test_mask_and_causal_together():
    leaves = inputs((2, 4, 9, 8), (2, 4, 13, 8), (2, 4, 13, 8), (4, 1, 13))
    compare(leaves, torch.float32, lambda *t: sdpa(*t, is_causal=True),
            lambda q, k, v, m: attention(q, k, v, bias=m, seen=visible(9, 13, "top_left"))[0])


def test_softcap_window_alibi_sink_and_lse():
    leaves = inputs((2, 4, 9, 8), (2, 2, 13, 8), (2, 2, 13, 8), (4,))
    slopes = torch.tensor([0.5, 0.25, 0.125, 0.0625])

    def ours(q, k, v, sink):
        out, lse = sdpa(q, k, v, softcap=2.0, window=(5, 2), alibi_slopes=slopes, sink=sink, return_lse=True,
                        enable_gqa=True, deterministic=True)
        return torch.cat([out, lse[..., None]], -1)

    def theirs(q, k, v, sink):
        out, lse = attention(q, k, v, softcap=2.0, seen=visible(9, 13, "none", 5, 2), alibi=slopes.double(), shift=4,
                             sink=sink)
        return torch.cat([out, lse[..., None]], -1)

    compare(leaves, torch.float32, ours, theirs)


def test_dropout_follows_the_generator():
    q, k, v = inputs((2, 4, 33, 8), (2, 4, 45, 8), (2, 4, 45, 8))
    torch.manual_seed(3)
    first = sdpa(q, k, v, dropout_p=0.4)
    second = sdpa(q, k, v, dropout_p=0.4)
    torch.manual_seed(3)
    assert torch.equal(first, sdpa(q, k, v, dropout_p=0.4)) and not torch.equal(first, second)
    ones = torch.ones(1, 1, 64, 4, requires_grad=True)  # values of one: what is kept of each row, over 1 - p
    torch.manual_seed(5)
    out = sdpa(torch.zeros(1, 1, 501, 4), torch.zeros(1, 1, 64, 4), ones, dropout_p=0.4)
    assert abs(out.mean().item() - 1.0) < 0.03 and out.std() > 0.05
    (dv,) = torch.autograd.grad(out, ones, torch.ones_like(out))
    assert abs(dv.sum().item() / out.sum().item() - 1.0) < 1e-5  # the same elements in both directions


@pytest.mark.parametrize("wants", [(0,), (1,), (2,), (0, 2)])
def test_only_what_requires_a_gradient(wants):
    leaves = inputs((2, 4, 9, 8), (2, 4, 13, 8), (2, 4, 13, 8))
    every = torch.autograd.grad(sdpa(*leaves).square().sum(), leaves)
    for at, leaf in enumerate(leaves):
        leaf.requires_grad_(at in wants)
    some = torch.autograd.grad(sdpa(*leaves).square().sum(), [leaves[at] for at in wants])
    assert all(torch.equal(got, every[at]) for got, at in zip(some, wants))


@pytest.mark.parametrize("shapes", [((2, 4, 0, 8), (2, 4, 13, 8)), ((2, 4, 9, 8), (2, 4, 0, 8)),
                                    ((0, 4, 9, 8), (0, 4, 13, 8))])
def test_nothing_to_do(shapes):
    q, k, v = inputs(shapes[0], shapes[1], shapes[1])
    out = sdpa(q, k, v)
    assert out.shape == q.shape and not out.any()
    for gradient, leaf in zip(torch.autograd.grad(out.sum(), (q, k, v)), (q, k, v)):
        assert gradient.shape == leaf.shape and not gradient.any()


def test_refusals():
    q, k, v = (t.detach() for t in inputs((2, 4, 9, 8), (2, 2, 13, 8), (2, 2, 13, 8)))
    with pytest.raises(ValueError, match="enable_gqa"):
        sdpa(q, k, v)
    with pytest.raises(ValueError, match="rows"):
        sdpa(q, k, v[..., :5, :], enable_gqa=True)
    with pytest.raises(ValueError, match="head_dim"):
        sdpa(q[..., :7], k, v, enable_gqa=True)
    with pytest.raises(ValueError, match="broadcast"):
        sdpa(q, k, v, torch.zeros(9, 12), enable_gqa=True)
    with pytest.raises(ValueError, match="int64"):
        sdpa(q, k, v, torch.zeros(9, 13, dtype=torch.int64), enable_gqa=True)
    with pytest.raises(ValueError, match="dropout_p"):
        sdpa(q, k, v, dropout_p=1.0, enable_gqa=True)
    with pytest.raises(ValueError, match="pair"):
        sdpa(q, k, v, enable_gqa=True, window=3)
    with pytest.raises(NotImplementedError, match="int64"):
        sdpa(q.long(), k.long(), v.long(), enable_gqa=True)
    with pytest.raises(ValueError, match="two at least"):
        sdpa(q[0, 0, 0], k, v)
    with pytest.raises(_native.InvalidError):
        sdpa(q, k.half(), v, enable_gqa=True)
    with pytest.raises(_native.InvalidError):
        sdpa(q, k, v, enable_gqa=True, window=(-3, 0))
    with pytest.raises(NotImplementedError):
        sdpa(torch.zeros(1, 1, 3, 257), torch.zeros(1, 1, 3, 257), torch.zeros(1, 1, 3, 257))


def test_autocast():
    q, k, v, bias = inputs((2, 4, 9, 8), (2, 4, 13, 8), (2, 4, 13, 8), (1, 4, 1, 13))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = sdpa(q, k, v, bias)
    assert out.dtype == torch.bfloat16
    grads = torch.autograd.grad(out.float().square().sum(), (q, k, v, bias))
    assert all(g.dtype == torch.float32 for g in grads)
    low = [t.detach().bfloat16().requires_grad_() for t in (q, k, v)] + [bias]
    want = sdpa(*low)
    assert torch.equal(out, want)
    for got, other in zip(grads, torch.autograd.grad(want.float().square().sum(), low)):
        assert torch.equal(got, other.float())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert sdpa(*(t.double() for t in (q, k, v))).dtype == torch.float64


def jagged(lengths, heads, dim, seed=0, requires_grad=True):
    g = torch.Generator().manual_seed(seed)
    parts = [torch.randn(n, heads, dim, generator=g) for n in lengths]
    nested = torch.nested.nested_tensor(parts, layout=torch.jagged, requires_grad=requires_grad)
    return nested, [p.clone().requires_grad_() for p in parts]


@pytest.mark.parametrize("causal", [False, True])
def test_nested(causal):
    lengths = (5, 1, 12)
    (q, qs), (k, ks), (v, vs) = jagged(lengths, 4, 8), jagged((7, 3, 9), 2, 8, 1), jagged((7, 3, 9), 2, 8, 2)
    out, lse = sdpa(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=causal, enable_gqa=True,
                    return_lse=True)
    assert out.is_nested and lse.shape == (4, 18)
    dout = torch.randn(18, 4, 8, generator=torch.Generator().manual_seed(7))
    grads = torch.autograd.grad(out.transpose(1, 2).values(), (q, k, v), dout)
    start = 0
    for at, n in enumerate(lengths):
        one = doubles(*(t[at].transpose(0, 1)[None] for t in (qs, ks, vs)))
        seen = visible(n, one[1].shape[2], "top_left") if causal else None
        ref, _ = attention(*one, seen=seen)
        check("out", out.transpose(1, 2).values()[start:start + n], ref[0].transpose(0, 1), torch.float32)
        ref[0].transpose(0, 1).backward(dout[start:start + n].double())
        for grad, leaf in zip(grads, one):
            check("gradient", grad.unbind()[at], leaf.grad[0].transpose(0, 1), torch.float32, 2.0)
        start += n


def test_nested_refusals():
    nested, _ = jagged((5, 1), 2, 8, requires_grad=False)
    q = nested.transpose(1, 2)
    with pytest.raises(NotImplementedError, match="attn_mask"):
        sdpa(q, q, q, torch.zeros(1))
    with pytest.raises(ValueError, match="ragged dimension third"):
        sdpa(nested, q, q)
    with pytest.raises(NotImplementedError, match="dense"):
        sdpa(q, torch.zeros(2, 2, 5, 8), q)
