# SPDX-License-Identifier: MIT
"""torch.ops.sternway.attn_fwd, attn_bwd and dropout_mask: each feature's results and gradients against float64."""
from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from ops_reference import attention, check, doubles, visible  # noqa: E402

import sternway.torch  # noqa: E402,F401
from sternway import _native  # noqa: E402

ops = torch.ops.sternway
TOP_LEFT, BOTTOM_RIGHT = int(_native.MASK_CAUSAL_TOP_LEFT), int(_native.MASK_CAUSAL_BOTTOM_RIGHT)
MASKS = {"none": 0, "top_left": TOP_LEFT, "bottom_right": BOTTOM_RIGHT}


def problem(dtype=torch.float32, b=2, hq=4, hk=2, sq=37, sk=53, d=24, dv=24, seed=0):
    g = torch.Generator().manual_seed(seed)
    make = lambda *sizes: torch.randn(*sizes, generator=g).to(dtype)  # noqa: E731
    return make(b, hq, sq, d), make(b, hk, sk, d), make(b, hk, sk, dv), make(b, hq, sq, dv), torch.randn(
        b, hq, sq, generator=g)


def compare(q, k, v, dout, dlse, bias=None, alibi=None, sink=None, keep=None, state=(None, None), seen=None, shift=0,
            dtype=None, **options):
    """Runs the operator and its derivative, and the same in float64."""
    dtype = dtype or q.dtype
    leaves = [None if t is None else t.detach().requires_grad_(t.is_floating_point()) for t in (q, k, v, bias, sink)]
    lq, lk, lv, lbias, lsink = leaves
    out, lse = ops.attn_fwd(lq, lk, lv, lbias, alibi, lsink, None, None, None, None, *state, **options)
    dq, dk, dv, dbias, dsink = (None if t is None else t for t in doubles(q, k, v, bias, sink))
    if keep is not None:
        options = {**options, "keep": keep}
    ref_out, ref_lse = attention(dq, dk, dv, seen=seen, scale=options.get("scale"), softcap=options.get("softcap", 0.0),
                                 bias=dbias, alibi=None if alibi is None else alibi.double(), shift=shift, sink=dsink,
                                 keep=keep, p=options.get("dropout_p", 0.0))
    check("out", out, ref_out, dtype)
    check("lse", lse, ref_lse, torch.float64 if dtype == torch.float64 else torch.float32)
    finite = torch.isfinite(ref_lse)
    dlse = dlse.masked_fill(~finite, 0.0)
    (out.double() * dout.double()).sum().add((lse.masked_fill(~finite, 0.0).double() * dlse.double()).sum()).backward()
    (ref_out * dout.double()).sum().add((ref_lse.masked_fill(~finite, 0.0) * dlse.double()).sum()).backward()
    for name, leaf, ref in zip(("dq", "dk", "dv", "dbias", "dsink"), leaves, (dq, dk, dv, dbias, dsink)):
        if leaf is not None and leaf.is_floating_point():
            assert leaf.grad.dtype == leaf.dtype
            check(name, leaf.grad, ref.grad, dtype, factor=2.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("mask", list(MASKS))
def test_masks(mask, dtype):
    q, k, v, dout, dlse = problem(dtype)
    compare(q, k, v, dout, dlse, seen=visible(37, 53, mask), mask=MASKS[mask])


@pytest.mark.parametrize("window", [(5, 3), (None, 4), (7, None), (0, 0)])
@pytest.mark.parametrize("mask", list(MASKS))
def test_windows(mask, window):
    left, right = window
    q, k, v, dout, dlse = problem()
    compare(q, k, v, dout, dlse, seen=visible(37, 53, mask, left, right), mask=MASKS[mask], window_left=left,
            window_right=right)


def test_shift_scale_softcap():
    q, k, v, dout, dlse = problem()
    compare(q, k, v, dout, dlse, seen=visible(37, 53, "top_left", shift=-9), mask=TOP_LEFT, diagonal_shift=-9,
            scale=0.37, softcap=1.5)


def test_rows_without_keys_are_zeros():
    q, k, v, dout, dlse = problem(sq=41, sk=19)
    compare(q, k, v, dout, dlse, seen=visible(41, 19, "bottom_right"), mask=BOTTOM_RIGHT)


@pytest.mark.parametrize("heads", [(6, 1), (6, 2), (3, 3)])
def test_grouped_heads_and_other_value_dim(heads):
    q, k, v, dout, dlse = problem(hq=heads[0], hk=heads[1], d=20, dv=33)
    compare(q, k, v, dout, dlse)


@pytest.mark.parametrize("shape", [(2, 4, 37, 53), (1, 4, 37, 53), (2, 1, 37, 53), (1, 1, 37, 53), (1, 4, 1, 53),
                                   (2, 1, 37, 1), (1, 1, 1, 1)])
def test_bias_gradient_has_the_bias_s_shape(shape):
    q, k, v, dout, dlse = problem()
    compare(q, k, v, dout, dlse, bias=torch.randn(*shape, generator=torch.Generator().manual_seed(3)))


def test_bias_of_other_strides():
    q, k, v, dout, dlse = problem()
    g = torch.Generator().manual_seed(3)
    compare(q, k, v, dout, dlse, bias=torch.randn(2, 4, 53, 37, generator=g).transpose(-1, -2))
    compare(q, k, v, dout, dlse, bias=torch.randn(1, 4, 1, 53, generator=g).expand(2, 4, 37, 53))


def test_f32_bias_beside_bf16():
    q, k, v, dout, dlse = problem(torch.bfloat16)
    compare(q, k, v, dout, dlse, bias=torch.randn(1, 4, 37, 53, generator=torch.Generator().manual_seed(3)))


def test_boolean_mask():
    q, k, v, dout, dlse = problem()
    mask = torch.rand(2, 1, 37, 53, generator=torch.Generator().manual_seed(3)) > 0.3
    mask[1, 0, 5] = False  # a row without keys
    compare(q, k, v, dout, dlse, bias=mask)


@pytest.mark.parametrize("batched", [False, True])
def test_alibi(batched):
    q, k, v, dout, dlse = problem()
    slopes = torch.rand(*((2, 4) if batched else (4,)), generator=torch.Generator().manual_seed(3))
    compare(q, k, v, dout, dlse, alibi=slopes, shift=16)


def test_sink():
    q, k, v, dout, dlse = problem()
    compare(q, k, v, dout, dlse, sink=torch.tensor([0.5, -1.0, 2.0, float("-inf")])[:4].nan_to_num(neginf=-3.0),
            seen=visible(37, 53, "bottom_right"), mask=BOTTOM_RIGHT)


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_dropout(layout):
    q, k, v, dout, dlse = problem()
    seed, offset = torch.tensor([77]), torch.tensor([5])
    keep = ops.dropout_mask(q, k, None, None, None, None, seed, offset, dropout_p=0.3)
    assert keep.dtype == torch.bool and keep.shape == (2, 4, 37, 53) and 0.6 < keep.float().mean() < 0.8
    if layout == "bhsd":
        compare(q, k, v, dout, dlse, keep=keep, state=(seed, offset), dropout_p=0.3)
    else:
        same = ops.dropout_mask(q.transpose(1, 2), k.transpose(1, 2), None, None, None, None, seed, offset,
                                dropout_p=0.3, layout="bshd")
        assert torch.equal(same, keep)


def test_dropout_without_seed_is_refused():
    q, k, v, _, _ = problem()
    with pytest.raises(ValueError, match="dropout_seed"):
        ops.attn_fwd(q, k, v, dropout_p=0.3)


def test_strides_pass_as_they_are():
    q, k, v, dout, dlse = problem(d=24, dv=24)
    other = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in (q, k, v, dout)]
    compare(*other, dlse)
    compare(q.mT.contiguous().mT, k.mT.contiguous().mT, v, dout, dlse)  # head_dim is not contiguous
    packed = torch.randn(2, 37, 3, 4, 24, generator=torch.Generator().manual_seed(5))
    q, k, v = (packed[:, :, at].transpose(1, 2) for at in range(3))  # slices of one projection
    compare(q, k, v, dout[..., :24], dlse)
    compare(q[:, :1].expand(2, 4, 37, 24), k, v, dout, dlse)  # a broadcast input


def test_layout_bshd():
    q, k, v, dout, dlse = problem()
    want = ops.attn_fwd(q, k, v, mask=TOP_LEFT)
    out, lse = ops.attn_fwd(*(t.transpose(1, 2).contiguous() for t in (q, k, v)), mask=TOP_LEFT, layout="bshd")
    assert torch.equal(out.transpose(1, 2), want[0]) and torch.equal(lse, want[1])
    grads = ops.attn_bwd(dout, q, k, v, *want, mask=TOP_LEFT)
    other = ops.attn_bwd(*(t.transpose(1, 2) for t in (dout, q, k, v, want[0])), lse, mask=TOP_LEFT, layout="bshd")
    assert all(torch.equal(a, b.transpose(1, 2)) for a, b in zip(grads, other))


def test_packed_with_used_lengths_and_gaps():
    g = torch.Generator().manual_seed(1)
    starts_q, starts_k = torch.tensor([0, 11, 11, 30]).int(), torch.tensor([0, 7, 20, 41]).int()
    used_q, used_k = torch.tensor([9, 0, 19], dtype=torch.int32), torch.tensor([7, 10, 21], dtype=torch.int32)
    q, k, v = (torch.randn(*shape, generator=g) for shape in ((33, 4, 24), (44, 2, 24), (44, 2, 24)))
    dout, dlse = torch.randn(33, 4, 24, generator=g), torch.randn(4, 33, generator=g)
    leaves = [t.clone().requires_grad_() for t in (q, k, v)]
    for used in ((None, None), (used_q, used_k)):
        for leaf in leaves:
            leaf.grad = None
        out, lse = ops.attn_fwd(*leaves, None, None, None, starts_q, starts_k, *used, layout="thd", max_seq_q=19,
                                max_seq_kv=21, mask=BOTTOM_RIGHT)
        torch.autograd.backward((out, lse), (dout, dlse))
        want = [torch.zeros_like(t) for t in (out, q, k, v)]
        for b in range(3):
            nq = int(starts_q[b + 1] - starts_q[b]) if used[0] is None else int(used[0][b])
            nk = int(starts_k[b + 1] - starts_k[b]) if used[1] is None else int(used[1][b])
            rows, keys = slice(int(starts_q[b]), int(starts_q[b]) + nq), slice(int(starts_k[b]), int(starts_k[b]) + nk)
            one = doubles(*(t[at].transpose(0, 1)[None] for t, at in ((q, rows), (k, keys), (v, keys))))
            ref, ref_lse = attention(*one, seen=visible(nq, nk, "bottom_right"))
            seen = torch.isfinite(ref_lse)
            loss = (ref[0].transpose(0, 1) * dout[rows]).sum()
            loss = loss + (ref_lse[0] * dlse[:, rows])[seen[0]].sum()
            loss.backward()
            for to, at, value in zip(want, (rows, rows, keys, keys), (ref.detach(), *(t.grad for t in one))):
                to[at] = value[0].transpose(0, 1).float()
        for name, got, ref in zip(("out", "dq", "dk", "dv"), (out, *(t.grad for t in leaves)), want):
            check(name, got, ref, torch.float32, factor=2.0)
            assert not got[30:33].any() if name in ("out", "dq") else not got[41:].any()  # rows of no sequence


def test_only_the_gradients_asked_for():
    q, k, v, dout, _ = problem()
    out, lse = ops.attn_fwd(q, k, v)
    every = ops.attn_bwd(dout, q, k, v, out, lse)
    for outputs, which in ((1, [0]), (6, [1, 2]), (4, [2])):
        some = ops.attn_bwd(dout, q, k, v, out, lse, outputs=outputs)
        assert len(some) == len(which) and all(torch.equal(a, every[at]) for a, at in zip(some, which))
    k.requires_grad_()
    out, _ = ops.attn_fwd(q, k, v)
    (dk,) = torch.autograd.grad(out, k, dout)
    assert torch.equal(dk, every[1])


def test_gradient_of_lse_alone():
    q, k, v, _, dlse = problem()
    leaves, refs = [t.requires_grad_() for t in (q, k, v)], doubles(q, k, v)
    grads = torch.autograd.grad(ops.attn_fwd(*leaves)[1], leaves, dlse)
    wants = torch.autograd.grad(attention(*refs)[1], refs[:2], dlse.double())
    for got, want in zip(grads, wants):
        check("of lse", got, want, torch.float32, factor=2.0)
    assert not grads[2].any()


def test_double_backward_says_that_it_is_not_there():
    q, k, v, _, _ = problem()
    q.requires_grad_()
    (dq,) = torch.autograd.grad(ops.attn_fwd(q, k, v)[0].sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="double backward is not there"):
        dq.sum().backward()


def test_bad_input_is_refused_with_the_library_s_text():
    q, k, v, _, _ = problem()
    with pytest.raises(ValueError):
        ops.attn_fwd(q, k.double(), v)
    with pytest.raises(ValueError):
        ops.attn_fwd(q, k[..., :20], v)
    with pytest.raises(ValueError):
        ops.attn_fwd(q[0], k[0], v[0])
    with pytest.raises(ValueError, match="layout"):
        ops.attn_fwd(q, k, v, layout="sbhd")
    with pytest.raises(ValueError, match="alibi_slopes"):
        ops.attn_fwd(q, k, v, None, torch.rand(4).requires_grad_())
    with pytest.raises(ValueError, match="bias"):
        ops.attn_bwd(q, q, k, v, q, q[..., 0], outputs=8)
    with pytest.raises(NotImplementedError):
        ops.attn_fwd(torch.randn(1, 1, 3, 300), torch.randn(1, 1, 3, 300), torch.randn(1, 1, 3, 300))
