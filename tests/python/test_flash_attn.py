# SPDX-License-Identifier: MIT
"""sternway.flash_attn on the CPU: outputs, LSE and gradients of every function and feature against float64."""
from __future__ import annotations

import itertools

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sternway._native")

import flash_attn_reference as reference  # noqa: E402

import sternway.flash_attn as flash_attn  # noqa: E402

F64 = torch.float64
RELATIVE = {F64: 1e-13, torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}  # norms; one or two units each


def close(got: torch.Tensor, expected: torch.Tensor, name: str, bound: float) -> None:
    got, expected = got.detach().to(F64), expected.detach()
    assert got.shape == expected.shape, name
    finite = torch.isfinite(expected)
    assert torch.equal(got[~finite], expected[~finite]), name
    got, expected = got[finite], expected[finite]
    assert torch.isfinite(got).all(), name
    error = (got - expected).norm() / expected.norm().clamp(min=1e-3)
    assert error <= bound, f"{name}: relative error {error:.2e}, bound {bound:.0e}"


def leaf(*shape: int, dtype: torch.dtype = F64) -> torch.Tensor:
    return torch.randn(*shape, dtype=F64).to(dtype).requires_grad_()


def wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to(F64).requires_grad_()


def check(out, lse, inputs, expected_out, expected_lse, expected_inputs, bound: float) -> None:
    """Outputs, and the gradients of a loss that reads out and LSE."""
    close(out, expected_out, "out", bound)
    close(lse, expected_lse, "lse", bound)
    dout, dlse = torch.randn_like(out), torch.randn_like(lse)
    dlse = dlse.masked_fill(~torch.isfinite(expected_lse), 0.0)
    got = torch.autograd.grad((out, lse), inputs, (dout, dlse))
    finite_lse = expected_lse.masked_fill(~torch.isfinite(expected_lse), 0.0)
    expected = torch.autograd.grad((expected_out, finite_lse), expected_inputs, (dout.to(F64), dlse.to(F64)))
    for position, (one, other) in enumerate(zip(got, expected)):
        assert one.dtype == inputs[position].dtype
        close(one, other, f"gradient {position}", bound)


WINDOWS = ((-1, -1), (5, 2), (3, -1), (-1, 4), (90, 0))
FEATURES = list(itertools.product((False, True), WINDOWS, (0.0, 1.7), (None, 1, 2)))


@pytest.mark.parametrize("sizes", [(13, 21), (23, 11), (1, 9)], ids=str)
@pytest.mark.parametrize("causal,window,softcap,alibi", FEATURES)
def test_features(causal, window, softcap, alibi, sizes):
    torch.manual_seed(1)
    rows, keys = sizes
    q, k, v = leaf(2, rows, 6, 7), leaf(2, keys, 2, 7), leaf(2, keys, 2, 7)
    slopes = None if alibi is None else torch.rand(*(6,) if alibi == 1 else (2, 6), dtype=F64)
    out, lse, _ = flash_attn.flash_attn_func(q, k, v, softmax_scale=0.4, causal=causal, window_size=window,
                                             softcap=softcap, alibi_slopes=slopes, return_attn_probs=True)
    others = wide(q), wide(k), wide(v)
    expected = reference.dense(*others, slopes, scale=0.4, causal=causal, window=window, softcap=softcap)
    check(out, lse, (q, k, v), expected[0], expected[1], others, RELATIVE[F64])


@pytest.mark.parametrize("dtype", RELATIVE, ids=str)
@pytest.mark.parametrize("head_dim", [1, 24, 67, 256])
def test_types(dtype, head_dim):
    torch.manual_seed(2)
    q, k, v = (leaf(2, rows, heads, head_dim, dtype=dtype) for rows, heads in ((19, 4), (33, 2), (33, 2)))
    others = wide(q), wide(k), wide(v)
    out, lse, probs = flash_attn.flash_attn_func(q, k, v, causal=True, return_attn_probs=True)
    assert out.dtype == dtype and lse.dtype == (F64 if dtype == F64 else torch.float32) and probs.numel() == 0
    expected = reference.dense(*others, causal=True)
    check(out, lse, (q, k, v), expected[0], expected[1], others, RELATIVE[dtype])


def test_head_dim_of_v_may_differ():
    torch.manual_seed(3)
    q, k, v = leaf(1, 9, 2, 5), leaf(1, 11, 1, 5), leaf(1, 11, 1, 12)
    others = wide(q), wide(k), wide(v)
    out, lse, _ = flash_attn.flash_attn_func(q, k, v, return_attn_probs=True)
    expected = reference.dense(*others)
    check(out, lse, (q, k, v), expected[0], expected[1], others, RELATIVE[F64])


def test_views_and_broadcasts_as_they_are():
    torch.manual_seed(4)
    q = leaf(2, 3, 10, 6)  # [B, H, S, D]
    k, v = leaf(2, 3, 6, 14), leaf(1, 14, 1, 6)  # keys lie in columns
    others = wide(q), wide(k), wide(v)

    def as_read(q, k, v):
        return q.transpose(1, 2), k.permute(0, 3, 1, 2), v.expand(2, 14, 3, 6)
    out = flash_attn.flash_attn_func(*as_read(q, k, v))
    expected, _, _ = reference.dense(*as_read(*others))
    close(out, expected, "out", RELATIVE[F64])
    for got, other in zip(torch.autograd.grad(out.sum(), (q, k, v)), torch.autograd.grad(expected.sum(), others)):
        close(got, other, "gradient", RELATIVE[F64])


def test_packed_tensors_dense():
    torch.manual_seed(5)
    qkv = leaf(2, 17, 3, 4, 9)
    out, lse, _ = flash_attn.flash_attn_qkvpacked_func(qkv, causal=True, window_size=(6, -1), return_attn_probs=True)
    other = wide(qkv)
    expected = reference.dense(*other.unbind(2), causal=True, window=(6, -1))
    check(out, lse, (qkv,), expected[0], expected[1], (other,), RELATIVE[F64])
    q, kv = leaf(2, 12, 4, 9), leaf(2, 17, 2, 2, 9)
    out, lse, _ = flash_attn.flash_attn_kvpacked_func(q, kv, softcap=2.0, return_attn_probs=True)
    others = wide(q), wide(kv)
    expected = reference.dense(others[0], *others[1].unbind(2), softcap=2.0)
    check(out, lse, (q, kv), expected[0], expected[1], others, RELATIVE[F64])


STARTS_Q, STARTS_K = [0, 5, 5, 18, 20], [0, 7, 10, 10, 29]  # sequences without queries and without keys


@pytest.mark.parametrize("causal,window,softcap,alibi", FEATURES)
def test_varlen_features(causal, window, softcap, alibi):
    torch.manual_seed(6)
    q, k, v = leaf(20, 4, 5), leaf(29, 2, 5), leaf(29, 2, 5)
    slopes = None if alibi is None else torch.rand(*(4,) if alibi == 1 else (4, 4), dtype=F64)
    cu_q, cu_k = (torch.tensor(starts, dtype=torch.int32) for starts in (STARTS_Q, STARTS_K))
    out, lse, _ = flash_attn.flash_attn_varlen_func(q, k, v, cu_q, cu_k, 13, 19, causal=causal, window_size=window,
                                                    softcap=softcap, alibi_slopes=slopes, return_attn_probs=True)
    others = wide(q), wide(k), wide(v)
    expected = reference.packed(*others, STARTS_Q, STARTS_K, slopes, causal=causal, window=window, softcap=softcap,
                                max_keys=19)
    check(out, lse, (q, k, v), expected[0], expected[1], others, RELATIVE[F64])


def test_varlen_packed_tensors():
    torch.manual_seed(7)
    starts = torch.tensor(STARTS_K, dtype=torch.int32)
    qkv = leaf(29, 3, 2, 6)
    out, lse, _ = flash_attn.flash_attn_varlen_qkvpacked_func(qkv, starts, 19, causal=True, return_attn_probs=True)
    other = wide(qkv)
    expected = reference.packed(*other.unbind(1), STARTS_K, STARTS_K, causal=True)
    check(out, lse, (qkv,), expected[0], expected[1], (other,), RELATIVE[F64])
    q, kv = leaf(20, 4, 6), leaf(29, 2, 2, 6)
    cu_q = torch.tensor(STARTS_Q, dtype=torch.int32)
    out, lse, _ = flash_attn.flash_attn_varlen_kvpacked_func(q, kv, cu_q, starts, 13, 19, return_attn_probs=True)
    others = wide(q), wide(kv)
    expected = reference.packed(others[0], *others[1].unbind(1), STARTS_Q, STARTS_K)
    check(out, lse, (q, kv), expected[0], expected[1], others, RELATIVE[F64])


@pytest.mark.parametrize("softcap", [0.0, 1.5])
def test_dropout(softcap):
    """The signs of S_dmask are the mask, its values the softmax; forward and backward follow both."""
    torch.manual_seed(8)
    q, k, v = leaf(2, 37, 4, 8), leaf(2, 45, 2, 8), leaf(2, 45, 2, 8)
    slopes = torch.rand(4, dtype=F64)
    settings = dict(causal=True, softcap=softcap)
    out, lse, probs = flash_attn.flash_attn_func(q, k, v, 0.3, alibi_slopes=slopes, return_attn_probs=True, **settings)
    assert probs.shape == (2, 4, 128, 128)
    probs = probs[:, :, :37, :45]
    kept = ~torch.signbit(probs)
    others = wide(q), wide(k), wide(v)
    expected = reference.dense(*others, slopes, kept, dropout_p=0.3, **settings)
    check(out, lse, (q, k, v), expected[0], expected[1], others, RELATIVE[F64])
    close(probs.abs(), expected[2], "probabilities", RELATIVE[F64])
    assert 0.66 < kept.to(F64).mean() < 0.74


def test_dropout_varlen():
    torch.manual_seed(9)
    q, k, v = leaf(20, 4, 5), leaf(29, 2, 5), leaf(29, 2, 5)
    cu_q, cu_k = (torch.tensor(starts, dtype=torch.int32) for starts in (STARTS_Q, STARTS_K))
    out, lse, probs = flash_attn.flash_attn_varlen_func(q, k, v, cu_q, cu_k, 13, 19, 0.5, return_attn_probs=True)
    others = wide(q), wide(k), wide(v)
    expected = reference.packed(*others, STARTS_Q, STARTS_K, kept=~torch.signbit(probs), dropout_p=0.5)
    check(out, lse, (q, k, v), expected[0], expected[1], others, RELATIVE[F64])
    for b, one in enumerate(expected[2]):
        close(probs[b, :, :one.shape[1], :one.shape[2]].abs(), one, f"probabilities {b}", RELATIVE[F64])
    sizes = [(q1 - q0) * (k1 - k0) for q0, q1, k0, k1 in zip(STARTS_Q, STARTS_Q[1:], STARTS_K, STARTS_K[1:])]
    assert (probs != 0).sum() == 4 * sum(sizes)  # nothing beyond the sequences


def test_dropout_follows_the_generator():
    q = torch.randn(1, 65, 2, 8)

    def run():
        return flash_attn.flash_attn_func(q, q, q, 0.4)
    torch.manual_seed(10)
    first, second = run(), run()
    torch.manual_seed(10)
    assert torch.equal(run(), first) and torch.equal(run(), second) and not torch.equal(first, second)


def test_dropout_in_a_checkpoint():
    from torch.utils.checkpoint import checkpoint
    torch.manual_seed(11)
    q = leaf(1, 40, 2, 8)
    state = torch.get_rng_state()
    plain, = torch.autograd.grad(flash_attn.flash_attn_func(q, q, q, 0.4).square().sum(), q)
    torch.set_rng_state(state)
    again = checkpoint(lambda x: flash_attn.flash_attn_func(x, x, x, 0.4), q, use_reentrant=False)
    torch.manual_seed(99)
    assert torch.equal(torch.autograd.grad(again.square().sum(), q)[0], plain)


def test_only_the_gradients_that_are_needed():
    torch.manual_seed(12)
    for wanted in itertools.product((False, True), repeat=3):
        if not any(wanted):
            continue
        tensors = [torch.randn(1, 9, 2, 6, dtype=F64, requires_grad=flag) for flag in wanted]
        flash_attn.flash_attn_func(*tensors, causal=True).square().sum().backward()
        others = [wide(tensor) for tensor in tensors]
        reference.dense(*others, causal=True)[0].square().sum().backward()
        for flag, tensor, other in zip(wanted, tensors, others):
            assert (tensor.grad is not None) == flag
            if flag:
                close(tensor.grad, other.grad, str(wanted), RELATIVE[F64])


def test_loss_of_lse_alone():
    torch.manual_seed(13)
    q, k, v = leaf(1, 9, 2, 6), leaf(1, 12, 2, 6), leaf(1, 12, 2, 6)
    _, lse, _ = flash_attn.flash_attn_func(q, k, v, return_attn_probs=True)
    others = wide(q), wide(k), wide(v)
    expected = torch.autograd.grad(reference.dense(*others)[1].square().sum(), others[:2])
    for got, other in zip(torch.autograd.grad(lse.square().sum(), (q, k)), expected):
        close(got, other, "gradient", RELATIVE[F64])


def test_same_bits_when_deterministic():
    torch.manual_seed(14)
    q, k, v = (torch.randn(2, 150, 4, 32, requires_grad=True) for _ in range(3))
    dout = torch.randn(2, 150, 4, 32)
    first, second = (torch.autograd.grad(flash_attn.flash_attn_func(q, k, v, deterministic=True), (q, k, v), dout)
                     for _ in range(2))
    for got, other in zip(first, second):
        assert torch.equal(got, other)


def test_dropout_of_nothing():
    q, k = leaf(5, 2, 6), leaf(0, 2, 6)
    starts, none = torch.tensor([0, 5], dtype=torch.int32), torch.tensor([0, 0], dtype=torch.int32)
    out, _, probs = flash_attn.flash_attn_varlen_func(q, k, k, starts, none, 5, 1, 0.5, return_attn_probs=True)
    assert not out.any() and probs.shape == (1, 2, 128, 128) and not probs.any()


def test_gradient_of_rows_at_one_address():
    torch.manual_seed(15)
    row = torch.randn(1, 1, 1, 33, dtype=F64)
    k = row.expand(1, 33, 1, 33).requires_grad_()
    q, v = leaf(1, 5, 1, 33), leaf(1, 33, 1, 33)
    others = wide(q), wide(k), wide(v)
    out, lse, _ = flash_attn.flash_attn_func(q, k, v, return_attn_probs=True)
    expected = reference.dense(*others)
    check(out, lse, (q, k, v), expected[0], expected[1], others, RELATIVE[F64])


@pytest.mark.parametrize("shape_q,shape_k", [((0, 4, 2, 8), (0, 5, 2, 8)), ((2, 0, 2, 8), (2, 5, 2, 8)),
                                             ((2, 4, 2, 8), (2, 0, 2, 8))])
def test_empty(shape_q, shape_k):
    q, k, v = leaf(*shape_q), leaf(*shape_k), leaf(*shape_k)
    out, lse, _ = flash_attn.flash_attn_func(q, k, v, return_attn_probs=True)
    assert out.shape == shape_q and not out.any() and (lse == float("inf")).all()
    for gradient, tensor in zip(torch.autograd.grad(out.sum(), (q, k, v)), (q, k, v)):
        assert gradient.shape == tensor.shape and not gradient.any()
