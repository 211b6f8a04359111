# SPDX-License-Identifier: MIT
"""torch.compile(fullgraph=True) of sdpa and of the operators: no graph break, results and gradients as without it."""
from __future__ import annotations

import shutil

import pytest

torch = pytest.importorskip("torch")

from sternway.torch import sdpa  # noqa: E402

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
BACKENDS = [("aot_eager", False), ("aot_eager", True), pytest.param("inductor", True, marks=needs_compiler)]


@pytest.fixture(autouse=True)
def fresh():
    torch.compiler.reset()


def inputs(sq=9, sk=13, requires_grad=True):
    g = torch.Generator().manual_seed(0)
    shapes = ((2, sq, 4 * 8), (2, sk, 2 * 8), (2, sk, 2 * 8))
    return [torch.randn(*shape, generator=g).requires_grad_(requires_grad) for shape in shapes]


def block(q, k, v, **options):
    """Attention as models have it: heads split off as views, and joined behind."""
    q, k, v = (t.unflatten(-1, (-1, 8)).transpose(1, 2) for t in (q * 1.5, k, v))
    return sdpa(q, k, v, enable_gqa=True, **options).transpose(1, 2).flatten(2).tanh()


def agree(function, compiled, leaves):
    for run in (1, 2):
        want, got = function(*leaves), compiled(*leaves)
        torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-6)
        wants = torch.autograd.grad(want.square().sum(), leaves)
        for a, b in zip(torch.autograd.grad(got.square().sum(), leaves), wants):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("backend", "dynamic"), BACKENDS)
def test_causal(backend, dynamic):
    compiled = torch.compile(lambda *t: block(*t, is_causal=True), fullgraph=True, dynamic=dynamic, backend=backend)
    for sq, sk in ((9, 13), (17, 17)) if dynamic else ((9, 13),):
        agree(lambda *t: block(*t, is_causal=True), compiled, inputs(sq, sk))


def test_every_option():
    slopes, sink = torch.tensor([0.5, 0.25, 0.125, 0.0625]), torch.randn(4, requires_grad=True)
    bias = torch.randn(1, 4, 1, 13, requires_grad=True)

    def function(q, k, v, sink, bias):
        return block(q, k, v, attn_mask=bias, scale=0.3, softcap=2.0, window=(5, 2), alibi_slopes=slopes, sink=sink,
                     deterministic=True)

    agree(function, torch.compile(function, fullgraph=True, backend="aot_eager"), [*inputs(), sink, bias])


def test_dropout_draws_anew_and_follows_the_seed():
    compiled = torch.compile(lambda *t: block(*t, dropout_p=0.4), fullgraph=True, backend="aot_eager")
    leaves = inputs()
    torch.manual_seed(1)
    first, second = compiled(*leaves), compiled(*leaves)
    torch.manual_seed(1)
    assert torch.equal(compiled(*leaves), first) and not torch.equal(first, second)
    assert all(g.isfinite().all() for g in torch.autograd.grad(first.sum(), leaves))


def test_autocast():
    def function(*leaves):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return block(*leaves)

    leaves = inputs()
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    want, got = function(*leaves), compiled(*leaves)
    assert got.dtype == want.dtype == torch.bfloat16
    torch.testing.assert_close(got, want)
    for a, b in zip(*(torch.autograd.grad(out.float().sum(), leaves) for out in (got, want))):
        torch.testing.assert_close(a, b)


def test_boolean_mask_and_lse():
    mask = torch.rand(2, 1, 9, 13) > 0.3

    def function(q, k, v):
        q, k, v = (t.unflatten(-1, (-1, 8)).transpose(1, 2) for t in (q, k, v))
        out, lse = sdpa(q, k, v, mask, enable_gqa=True, return_lse=True)
        return torch.cat([out, lse[..., None]], -1)

    agree(function, torch.compile(function, fullgraph=True, backend="aot_eager"), inputs())


def test_packed_operator():
    starts = torch.tensor([0, 4, 9], dtype=torch.int32)

    def function(q, k, v):
        return torch.ops.sternway.attn_fwd(q, k, v, None, None, None, starts, starts, layout="thd", max_seq_q=5,
                                           max_seq_kv=5)[0].sin()

    leaves = [torch.randn(9, 2, 8, requires_grad=True) for _ in range(3)]
    agree(function, torch.compile(function, fullgraph=True, backend="aot_eager", dynamic=True), leaves)


def test_no_gradient():
    leaves = inputs(requires_grad=False)
    compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        torch.testing.assert_close(compiled(*leaves), block(*leaves))


def test_exported():
    class Module(torch.nn.Module):
        def forward(self, q, k, v):
            return block(q, k, v)

    leaves = inputs(requires_grad=False)
    program = torch.export.export(Module(), tuple(leaves))
    assert any("sternway.attn_fwd" in str(node.target) for node in program.graph.nodes)
    torch.testing.assert_close(program.module()(*leaves), block(*leaves))
