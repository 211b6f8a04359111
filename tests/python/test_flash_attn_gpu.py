# SPDX-License-Identifier: MIT
"""sternway.flash_attn on a GPU: PyTorch's forward and the library's, each with the library's backward, against float64
on the CPU; CUDA graphs, compiling, agreement of the random bits."""
from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sternway._native")

import flash_attn_reference as reference  # noqa: E402

import sternway.flash_attn as flash_attn  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]
F64 = torch.float64
RELATIVE = {torch.float32: 5e-6, torch.float16: 3e-3, torch.bfloat16: 2e-2}  # norms of errors
STARTS_Q, STARTS_K = [0, 50, 50, 183, 200], [0, 71, 100, 100, 291]


def close(got: torch.Tensor, expected: torch.Tensor, name: str, bound: float) -> None:
    got, expected = got.detach().to("cpu", F64), expected.detach()
    finite = torch.isfinite(expected)
    assert torch.equal(got[~finite], expected[~finite]), name
    error = (got[finite] - expected[finite]).norm() / expected[finite].norm()
    assert error <= bound, f"{name}: relative error {error:.2e}, bound {bound:.0e}"


def leaves(dtype: torch.dtype, *shapes: tuple[int, ...]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Random tensors on the GPU, and the same values in float64 on the CPU."""
    ours = [torch.randn(*shape).to(dtype).to("cuda").requires_grad_() for shape in shapes]
    return ours, [tensor.detach().to("cpu", F64).requires_grad_() for tensor in ours]


def compare(out, lse, inputs, expected, others, bound: float) -> None:
    close(out, expected[0], "out", bound)
    close(lse, expected[1], "lse", bound)
    dout = torch.randn_like(out)
    wide = torch.autograd.grad(expected[0], others, dout.to("cpu", F64))
    for position, (got, other) in enumerate(zip(torch.autograd.grad(out, inputs, dout), wide)):
        close(got, other, f"gradient {position}", bound)


@pytest.mark.parametrize("softcap,alibi", [(0.0, False), (0.0, True), (5.0, False)])
@pytest.mark.parametrize("causal,window", [(False, (-1, -1)), (True, (-1, -1)), (False, (40, 9)), (True, (33, -1))])
@pytest.mark.parametrize("dtype", RELATIVE, ids=str)
@pytest.mark.parametrize("head_dim", [59, 64, 128])
def test_dense(head_dim, dtype, causal, window, softcap, alibi):
    torch.manual_seed(1)
    (q, kv), others = leaves(dtype, (2, 113, 4, head_dim), (2, 203, 2, 2, head_dim))
    slopes = torch.rand(2, 4, device="cuda") * 0.3 if alibi else None
    settings = dict(causal=causal, softcap=softcap)
    out, lse, _ = flash_attn.flash_attn_kvpacked_func(q, kv, window_size=window, return_attn_probs=True,
                                                      alibi_slopes=slopes, **settings)
    slopes = None if slopes is None else slopes.to("cpu", F64)
    expected = list(reference.dense(others[0], *others[1].unbind(2), slopes, window=window, **settings))
    if alibi and dtype == torch.float32 and causal and window[0] < 0:  # without flash-attn's slope * (i + shift)
        expected[1] = expected[1] - slopes[..., None] * (torch.arange(113, dtype=F64) + 203 - 113)
    compare(out, lse, (q, kv), expected, others, RELATIVE[dtype])


@pytest.mark.parametrize("dropout_p", [0.0, 0.2])
@pytest.mark.parametrize("dtype", RELATIVE, ids=str)
@pytest.mark.parametrize("head_dim", [40, 67, 256])
def test_packed(head_dim, dtype, dropout_p):
    """With dropout the signs of S_dmask, in f16 and bf16 written by PyTorch's kernel, are the mask of our backward."""
    torch.manual_seed(2)
    (q, k, v), others = leaves(dtype, (200, 4, head_dim), (291, 2, head_dim), (291, 2, head_dim))
    lengths = [torch.tensor(starts, dtype=torch.int32, device="cuda") for starts in (STARTS_Q, STARTS_K)]
    out, lse, probs = flash_attn.flash_attn_varlen_func(q, k, v, *lengths, 133, 191, dropout_p, return_attn_probs=True)
    kept = None if dropout_p == 0 else ~torch.signbit(probs.cpu())
    expected = reference.packed(*others, STARTS_Q, STARTS_K, kept=kept, dropout_p=dropout_p, max_keys=191)
    compare(out, lse, (q, k, v), expected, others, RELATIVE[dtype])


@pytest.mark.parametrize("dtype", RELATIVE, ids=str)
def test_dropout_of_qkv_in_one_tensor(dtype):
    torch.manual_seed(3)
    (qkv,), (other,) = leaves(dtype, (2, 129, 3, 3, 64))
    out, lse, probs = flash_attn.flash_attn_qkvpacked_func(qkv, 0.17, causal=True, return_attn_probs=True)
    kept = ~torch.signbit(probs.cpu()[:, :, :129, :129])
    expected = reference.dense(*other.unbind(2), kept=kept, dropout_p=0.17, causal=True)
    compare(out, lse, (qkv,), expected, (other,), RELATIVE[dtype])


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_deterministic(dtype):
    torch.manual_seed(4)
    (q, k, v), _ = leaves(dtype, (2, 300, 8, 64), (2, 300, 2, 64), (2, 300, 2, 64))
    dout = torch.randn_like(q)
    runs = [torch.autograd.grad(flash_attn.flash_attn_func(q, k, v, causal=True, deterministic=True), (q, k, v), dout)
            for _ in range(3)]
    for run in runs[1:]:
        assert all(torch.equal(got, other) for got, other in zip(run, runs[0]))


@pytest.mark.parametrize("dropout_p", [0.0, 0.3])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_graph(dtype, dropout_p):
    """Forward and backward in a CUDA graph: replays give eager's bits; with dropout each replay draws anew."""
    torch.manual_seed(5)
    qkv = torch.randn(2, 65, 3, 2, 64, device="cuda", dtype=dtype, requires_grad=True)
    dout = torch.randn(2, 65, 2, 64, device="cuda", dtype=dtype)

    def step():
        out = flash_attn.flash_attn_qkvpacked_func(qkv, dropout_p, causal=True, deterministic=True)
        return out, torch.autograd.grad(out, qkv, dout)[0]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            eager = step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    results = []
    for _ in range(2):
        graph.replay()
        results.append([tensor.clone() for tensor in captured])
    if dropout_p == 0:
        for result in results:
            assert all(torch.equal(got, other) for got, other in zip(result, eager))
    else:
        assert not torch.equal(results[0][0], results[1][0]) and not torch.equal(results[0][1], results[1][1])
        assert all(torch.isfinite(tensor).all() for result in results for tensor in result)


@pytest.mark.parametrize("head_dim", [64, 59])
def test_compiled(head_dim):
    """One graph through Inductor, in f16 by PyTorch's forward; head_dim 59 is padded for it."""
    torch.manual_seed(6)
    torch._dynamo.reset()
    qkv = torch.randn(2, 65, 3, 2, head_dim, device="cuda", dtype=torch.float16, requires_grad=True)

    def model(x):
        out, lse, _ = flash_attn.flash_attn_qkvpacked_func(x * 1.5, causal=True, deterministic=True,
                                                           return_attn_probs=True)
        return (out.float() * 2).square().sum() + lse.sin().sum()
    expected, = torch.autograd.grad(model(qkv), qkv)
    got, = torch.autograd.grad(torch.compile(model, fullgraph=True)(qkv), qkv)
    assert (got.float() - expected.float()).norm() <= 2e-3 * expected.float().norm()


def test_one_query_of_grouped_heads():
    """PyTorch's forward takes another way there, packed and dense."""
    torch.manual_seed(7)
    (q, k, v), others = leaves(torch.float16, (3, 1, 8, 64), (3, 77, 2, 64), (3, 77, 2, 64))
    out, lse, _ = flash_attn.flash_attn_func(q, k, v, causal=True, return_attn_probs=True)
    compare(out, lse, (q, k, v), reference.dense(*others, causal=True), others, RELATIVE[torch.float16])
    starts, starts_k = [0, 1, 2, 3], [0, 77, 154, 231]
    lengths = [torch.tensor(one, dtype=torch.int32, device="cuda") for one in (starts, starts_k)]
    flat = [tensor.flatten(0, 1) for tensor in (q, k, v)]
    out, lse, _ = flash_attn.flash_attn_varlen_func(*flat, *lengths, 1, 77, causal=True, return_attn_probs=True)
    expected = reference.packed(*(tensor.flatten(0, 1) for tensor in others), starts, starts_k, causal=True)
    compare(out, lse, (q, k, v), expected, others, RELATIVE[torch.float16])


def test_tensors_on_two_devices():
    q = torch.randn(1, 9, 2, 8, device="cuda", dtype=torch.float16)
    with pytest.raises(ValueError, match="k is on cpu, q on cuda"):
        flash_attn.flash_attn_func(q, q.cpu(), q)
