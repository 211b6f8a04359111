# SPDX-License-Identifier: MIT
"""The operators and sdpa on a GPU: gradients against float64, PyTorch's forward under our backward, dropout by
PyTorch's own random state, CUDA graphs, streams, compiled and deterministic."""
from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from ops_reference import attention, check, doubles, visible  # noqa: E402

import sternway.torch  # noqa: E402,F401
from sternway.torch import _dropout_fwd, _forward, sdpa  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]
ops = torch.ops.sternway
HALF = (torch.float16, torch.bfloat16)


def inputs(*shapes, dtype=torch.float32, seed=0):
    g = torch.Generator().manual_seed(seed)
    return [torch.randn(*shape, generator=g).to(dtype).cuda().requires_grad_() for shape in shapes]


def compare(leaves, ours, theirs, dtype, factor=2.0):
    out = ours(*leaves)
    dout = torch.randn(out.shape, generator=torch.Generator().manual_seed(9)).to(out.dtype)
    grads = torch.autograd.grad(out, leaves, dout.cuda())
    refs = doubles(*(t.cpu() for t in leaves))
    ref = theirs(*refs)
    check("out", out.cpu(), ref, dtype, factor)
    for at, (got, want) in enumerate(zip(grads, torch.autograd.grad(ref, refs, dout.double()))):
        check(f"gradient {at}", got.cpu(), want, dtype, 2.0 * factor)


@pytest.mark.parametrize("dtype", [torch.float32, *HALF])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("sizes", [(129, 129, 64, 64), (97, 201, 80, 80), (33, 65, 72, 40)])
def test_gradients(sizes, causal, dtype):
    sq, sk, d, dv = sizes
    leaves = inputs((2, 4, sq, d), (2, 2, sk, d), (2, 2, sk, dv), dtype=dtype)
    seen = visible(sq, sk, "top_left") if causal else None
    compare(leaves, lambda *t: sdpa(*t, is_causal=causal, enable_gqa=True),
            lambda *t: attention(*t, seen=seen)[0], dtype)


@pytest.mark.parametrize("dtype", [torch.float32, *HALF])
def test_bias_boolean_mask_window_softcap(dtype):
    leaves = inputs((2, 4, 97, 64), (2, 4, 131, 64), (2, 4, 131, 64), (1, 4, 1, 131), dtype=dtype)
    compare(leaves, sdpa, lambda q, k, v, b: attention(q, k, v, bias=b)[0], dtype, 4.0)
    mask = torch.rand(2, 1, 97, 131, generator=torch.Generator().manual_seed(3)) > 0.3
    mask[0, 0, 7] = False
    compare(leaves[:3], lambda *t: sdpa(*t, mask.cuda()), lambda *t: attention(*t, bias=mask)[0], dtype)
    compare(leaves[:3], lambda *t: sdpa(*t, window=(31, 17), softcap=3.0),
            lambda *t: attention(*t, seen=visible(97, 131, "none", 31, 17), softcap=3.0)[0], dtype)


@pytest.mark.parametrize("window", [None, (31, 17)])
def test_pytorch_s_forward_serves_half_types(window, monkeypatch):
    """The same problem by PyTorch's flash forward and by the library's: close, and both differentiable by attn_bwd."""
    leaves = inputs((2, 4, 129, 64), (2, 2, 129, 64), (2, 2, 129, 64), dtype=torch.bfloat16)
    used = []
    original = _forward.call
    monkeypatch.setattr(_forward, "call", lambda *a: (used.append(1), original(*a))[1])
    out, lse = sdpa(*leaves, enable_gqa=True, window=window, return_lse=True)
    assert used
    monkeypatch.setattr(_forward, "takes", lambda *a: False)
    other, other_lse = sdpa(*leaves, enable_gqa=True, window=window, return_lse=True)
    assert len(used) == 1 and out.stride() == other.stride()
    torch.testing.assert_close(out, other, rtol=2**-6, atol=2**-6)
    torch.testing.assert_close(lse, other_lse, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("causal", [False, True])
def test_dropout_by_pytorch_s_state(causal):
    """flash_fwd's state and the map FLASH2 give the mask of PyTorch's forward."""
    q, k, v = inputs((2, 4, 129, 64), (2, 4, 129, 64), (2, 4, 129, 64), dtype=torch.float16)
    out, lse, state = ops.flash_fwd(q, k, v, causal=causal, dropout_p=0.3)
    keep = ops.dropout_mask(q, k, None, None, None, None, state[:1], state[1:], dropout_p=0.3,
                            dropout_map=_dropout_fwd.FLASH2).cpu()
    dout = torch.randn(out.shape, generator=torch.Generator().manual_seed(9)).half()
    grads = torch.autograd.grad(out, (q, k, v), dout.cuda())
    refs = doubles(q.cpu(), k.cpu(), v.cpu())
    ref, ref_lse = attention(*refs, keep=keep, p=0.3, seen=visible(129, 129, "top_left") if causal else None)
    check("out", out.cpu(), ref, torch.float16, 2.0)
    check("lse", lse.cpu(), ref_lse, torch.float32, 10.0)
    for got, want in zip(grads, torch.autograd.grad(ref, refs, dout.double())):
        check("gradient", got.cpu(), want, torch.float16, 4.0)
    torch.manual_seed(4)
    first, second = sdpa(q, k, v, dropout_p=0.3), sdpa(q, k, v, dropout_p=0.3)
    torch.manual_seed(4)
    assert torch.equal(sdpa(q, k, v, dropout_p=0.3), first) and not torch.equal(first, second)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_cuda_graph(dtype):
    leaves = inputs((2, 4, 129, 64), (2, 4, 97, 64), (2, 4, 97, 64), dtype=dtype)

    def step():
        return torch.autograd.grad(sdpa(*leaves, deterministic=True).float().square().sum(), leaves)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    with torch.no_grad():
        for leaf, other in zip(leaves, inputs(*(t.shape for t in leaves), dtype=dtype, seed=5)):
            leaf.copy_(other)
    graph.replay()
    torch.cuda.synchronize()
    for got, want in zip(captured, step()):
        assert torch.equal(got, want)


def test_dropout_in_a_cuda_graph_draws_anew():
    q = torch.zeros(1, 2, 65, 32, device="cuda", requires_grad=True)
    sdpa(q, q, torch.ones_like(q), dropout_p=0.5)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = sdpa(q, q, torch.ones_like(q), dropout_p=0.5)
    graph.replay()
    first = out.clone()
    graph.replay()
    torch.cuda.synchronize()
    assert first.std() > 0 and not torch.equal(first, out)


def test_current_stream():
    leaves = inputs((2, 4, 513, 64), (2, 4, 513, 64), (2, 4, 513, 64))
    want = torch.autograd.grad(sdpa(*leaves, deterministic=True).square().sum(), leaves)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(20_000_000)  # what runs on another stream reads the copies before they are made
        copies = [(t * 1.0).detach().requires_grad_() for t in leaves]
        got = torch.autograd.grad(sdpa(*copies, deterministic=True).square().sum(), copies)
    side.synchronize()
    assert all(torch.equal(a, b) for a, b in zip(got, want))


def test_deterministic_runs_are_bit_equal():
    leaves = inputs((2, 8, 1025, 64), (2, 2, 1025, 64), (2, 2, 1025, 64), dtype=torch.bfloat16)
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        runs = [torch.autograd.grad(sdpa(*leaves, is_causal=True, enable_gqa=True).float().square().sum(), leaves)
                for _ in range(3)]
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(a, b) for run in runs[1:] for a, b in zip(run, runs[0]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_compiled(dtype):
    leaves = inputs((2, 129, 4 * 64), (2, 129, 4 * 64), (2, 129, 4 * 64), dtype=dtype)

    def block(q, k, v):
        q, k, v = (t.unflatten(-1, (4, 64)).transpose(1, 2) for t in (q, k, v))
        return sdpa(q, k, v, is_causal=True, deterministic=True).transpose(1, 2).flatten(2)

    compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
    want, got = block(*leaves), compiled(*leaves)
    assert torch.equal(want, got)
    for a, b in zip(*(torch.autograd.grad(out.float().square().sum(), leaves) for out in (want, got))):
        torch.testing.assert_close(a, b)
    args = tuple(t.detach().unflatten(-1, (4, 64)).transpose(1, 2) for t in leaves)
    torch.library.opcheck(ops.attn_fwd.default, args)


def test_autocast_and_nested():
    leaves = inputs((2, 4, 65, 64), (2, 4, 65, 64), (2, 4, 65, 64))
    with torch.autocast("cuda", dtype=torch.bfloat16):
        out = sdpa(*leaves)
    assert out.dtype == torch.bfloat16
    assert all(g.dtype == torch.float32 for g in torch.autograd.grad(out.float().sum(), leaves))
    parts = [torch.randn(n, 4, 64, device="cuda", dtype=torch.bfloat16) for n in (33, 1, 129)]
    nested = torch.nested.nested_tensor(parts, layout=torch.jagged, requires_grad=True)
    out = sdpa(*[nested.transpose(1, 2)] * 3, is_causal=True)
    (grad,) = torch.autograd.grad(out.transpose(1, 2).values().float().square().sum(), nested)
    for at, part in enumerate(parts):
        (leaf,) = doubles(part.cpu())
        one = leaf.transpose(0, 1)[None]
        ref = attention(one, one, one, seen=visible(part.shape[0], part.shape[0], "top_left"))[0]
        got = out.transpose(1, 2).unbind()[at]
        check("out", got.cpu(), ref[0].transpose(0, 1), torch.bfloat16, 2.0)
        (want,) = torch.autograd.grad(ref.square().sum(), leaf)
        check("gradient", grad.unbind()[at].cpu(), want, torch.bfloat16, 6.0)


def test_tensors_on_two_devices_are_refused():
    (q,) = inputs((1, 2, 9, 8))
    with pytest.raises(ValueError, match="k is in host memory"):
        sdpa(q, q.detach().cpu(), q)
    with pytest.raises(NotImplementedError):
        sdpa(q.double(), q.double(), q.double())


def test_nested_operator():
    offsets = torch.tensor([0, 5, 5, 17], device="cuda")
    x, grad = inputs((17, 6), (17, 6))
    got = ops.nested_silu_backward(grad.detach(), x.detach(), offsets, full=True)
    leaf, up = doubles(x.cpu(), grad.cpu())
    (want,) = torch.autograd.grad(torch.nn.functional.silu(leaf), leaf, up.detach())
    check("dx", got.cpu(), want, torch.float32)
    y = ops.nested_reshape_backward(torch.randn(17, 2, 3, device="cuda"), offsets, shape=[-1, 6], grad_shape=[-1, 2, 3])
    assert y.shape == (17, 6)
