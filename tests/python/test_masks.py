# SPDX-License-Identifier: MIT
"""Masks in memory (sternway.masks) on the CPU: which pairs they leave, gradients against PyTorch's autograd under the
dense mask, FlexAttention's BlockMask, and what is refused."""
from __future__ import annotations

import pathlib
import runpy

import numpy as np
import pytest

sternway = pytest.importorskip("sternway")
torch = pytest.importorskip("torch")

from sternway import masks  # noqa: E402

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"
S = 150
IDS = np.repeat([3, 1, 4, 1], [40, 1, 70, 39])
PARENTS, STARTS = np.array([-1, 0, 1, 1, 0]), np.array([0, 50, 60, 80, 110, 150])


def node_of(token: int) -> int:
    return int(np.searchsorted(STARTS, token, "right")) - 1


def below(row: int, key: int) -> bool:
    while row > key:
        row = PARENTS[row]
    return row == key


# (name, mask, beside a causal mask, what the row sees)
CASES = [
    ("documents", masks.documents(IDS), True, lambda i, j: j <= i and np.all(IDS[j:i + 1] == IDS[i])),
    ("whole documents", masks.documents(IDS, causal=False), False, lambda i, j: np.all(IDS[min(i, j):max(i, j) + 1] == IDS[i])),
    ("chunks", masks.chunks(S, 33), True, lambda i, j: j <= i and i // 33 == j // 33),
    ("whole chunks", masks.chunks(S, 33, causal=False), False, lambda i, j: i // 33 == j // 33),
    ("prefix", masks.prefix(S, 20), False, lambda i, j: j < 20 or j <= i),
    ("tree", masks.tree(PARENTS, STARTS), True, lambda i, j: j <= i and below(node_of(i), node_of(j))),
    ("sliding", masks.sliding(S, 9, 3), True, lambda i, j: j <= i and (j < 3 or i - j <= 9)),
    ("padding", masks.padding(S, S, 5, 100), False, lambda i, j: 5 <= j < 105),
]


@pytest.mark.parametrize("name, mask, causal, sees", CASES, ids=[case[0] for case in CASES])
def test_pairs(name, mask, causal, sees):
    expected = np.array([[bool(sees(i, j)) for j in range(S)] for i in range(S)])
    assert mask.bounds.dtype == np.int32 and mask.bounds.shape[:3] == (1, 1, S)
    assert (masks.sees(mask, S, S, causal=causal)[0, 0] == expected).all()


def problem(batch=2, heads=4, heads_kv=2, seed=1):
    generator = torch.Generator().manual_seed(seed)
    shapes = [(batch, heads, S, 16), (batch, heads_kv, S, 16), (batch, heads_kv, S, 16), (batch, heads, S, 16)]
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


def dense_gradients(q, k, v, dout, shown):
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    group = q.shape[1] // k.shape[1]
    score = torch.einsum("bhid,bhjd->bhij", leaves[0], leaves[1].repeat_interleave(group, 1)) / q.shape[-1] ** 0.5
    score = score.masked_fill(~shown, -torch.inf)
    p = torch.softmax(score, -1).nan_to_num(0.0)
    (torch.einsum("bhij,bhjd->bhid", p, leaves[2].repeat_interleave(group, 1)) * dout).sum().backward()
    return [leaf.grad.nan_to_num(0.0) for leaf in leaves]


@pytest.mark.parametrize("name, mask, causal, sees", CASES, ids=[case[0] for case in CASES])
def test_gradients(name, mask, causal, sees):
    q, k, v, dout = problem()
    options = {"mask": "causal" if causal else None, **mask.options()}
    out, lse = sternway.attn_fwd(q, k, v, **options)
    gradients = sternway.attn_bwd(dout, q, k, v, out, lse, **options)
    shown = torch.from_numpy(masks.sees(mask, S, S, causal=causal))
    for ours, theirs in zip(gradients, dense_gradients(q, k, v, dout, shown.expand(2, 4, S, S))):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


def test_per_head_and_batch():
    q, k, v, dout = problem()
    shown = torch.rand(2, 2, 1, S, generator=torch.Generator().manual_seed(3)) * S
    i = torch.arange(S)[None, None, :, None]
    shown = (i < shown) | (i > shown + 20)  # one run a column, another for each key head
    mask = masks.from_pairs(shown)
    assert isinstance(mask, masks.Intervals) and mask.bounds.shape == (2, 2, S, 4)
    assert (masks.sees(mask, S, S) == shown.numpy()).all()
    out, lse = sternway.attn_fwd(q, k, v, **mask.options())
    gradients = sternway.attn_bwd(dout, q, k, v, out, lse, **mask.options())
    for ours, theirs in zip(gradients, dense_gradients(q, k, v, dout, shown.repeat_interleave(2, 1))):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


def test_packed_keys():
    """One sequence after the other in a pack: bounds [1,1,T,n], row positions local."""
    lengths = [60, 30, S - 90]
    starts = torch.tensor([0, 60, 90, S], dtype=torch.int32)
    q, k, v, dout = (x[0].transpose(0, 1).contiguous() for x in problem(batch=1))
    bounds = torch.cat([torch.from_numpy(masks.chunks(n, 20).bounds) for n in lengths], 2)
    options = {"layout": "thd", "cu_seqlens_q": starts, "cu_seqlens_kv": starts, "max_seq_q": 60, "max_seq_kv": 60,
               "mask": "causal", "intervals": bounds, "interval_form": "from"}
    out, lse = sternway.attn_fwd(q, k, v, **options)
    packed = sternway.attn_bwd(dout, q, k, v, out, lse, **options)
    ends = np.concatenate([np.minimum(np.arange(n) // 20 * 20 + 20, n) + start for n, start in zip(lengths, (0, 60, 90))])
    ids = torch.from_numpy(ends)
    shown = (ids[:, None] == ids) & (torch.arange(S)[:, None] >= torch.arange(S))
    whole = [x.transpose(0, 1)[None] for x in (q, k, v, dout)]
    for ours, theirs in zip(packed, dense_gradients(*whole, shown.expand(1, 4, S, S))):
        torch.testing.assert_close(ours, theirs[0].transpose(0, 1), rtol=1e-10, atol=1e-10)


flex = pytest.importorskip("torch.nn.attention.flex_attention")


def test_flex_documents():
    ids = torch.from_numpy(IDS)
    theirs = flex.create_block_mask(lambda b, h, i, j: (i >= j) & (ids[i] == ids[j]), 2, None, S, S, device="cpu")
    mask = masks.from_block_mask(theirs, 2)
    assert isinstance(mask, masks.Intervals) and mask.bounds.shape == (2, 1, S, 4)
    q, k, v, dout = problem()
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    out = sternway.torch.flex_attention(*leaves, block_mask=theirs)
    (out * dout).sum().backward()
    shown = torch.from_numpy(masks.sees(mask, S, S))
    for leaf, expected in zip(leaves, dense_gradients(q, k, v, dout, shown.expand(2, 4, S, S))):
        torch.testing.assert_close(leaf.grad, expected, rtol=1e-10, atol=1e-10)


def test_flex_blocks():
    """A mask of whole blocks, another for each query head, whole though the last blocks are short."""
    theirs = flex.create_block_mask(lambda b, h, i, j: (i // 128 + j // 128 + h) % 2 == 0, 1, 4, S, S, device="cpu")
    mask = masks.from_block_mask(theirs, 2)
    assert isinstance(mask, masks.BlockMask) and mask.blocks.shape == (1, 4, 2, 2)
    q, k, v, dout = problem()
    out, lse = sternway.attn_fwd(q, k, v, **mask.options())
    gradients = sternway.attn_bwd(dout, q, k, v, out, lse, **mask.options())
    shown = torch.from_numpy(masks.sees(mask, S, S))
    for ours, expected in zip(gradients, dense_gradients(q, k, v, dout, shown.expand(2, 4, S, S))):
        torch.testing.assert_close(ours, expected, rtol=1e-10, atol=1e-10)


def test_refusals():
    q, k, v, _ = problem()
    mask = masks.documents(IDS)
    three = flex.create_block_mask(lambda b, h, i, j: i % 3 != 0, None, None, S, S, device="cpu")
    with pytest.raises(sternway.UnsupportedError, match="more than two intervals"):
        masks.from_block_mask(three)
    of_heads = flex.create_block_mask(lambda b, h, i, j: i >= j + h, None, 4, S, S, device="cpu")
    with pytest.raises(sternway.UnsupportedError, match="share a key head"):
        masks.from_block_mask(of_heads, 2)
    with pytest.raises(sternway.InvalidError, match="interval_form is required"):
        sternway.attn_fwd(q, k, v, intervals=mask.bounds)
    with pytest.raises(sternway.InvalidError, match="intervals is required"):
        sternway.attn_fwd(q, k, v, interval_form="from")
    with pytest.raises(sternway.InvalidError, match="intervals has the shape"):
        sternway.attn_fwd(q, k, v, intervals=torch.from_numpy(mask.bounds), interval_form="range")
    with pytest.raises(sternway.InvalidError, match="block_mask has the shape"):
        sternway.attn_fwd(q, k, v, block_mask=torch.ones(1, 1, 1, 1, dtype=torch.bool))
    with pytest.raises(sternway.InvalidError, match="is 151, accepted: 0..150"):
        sternway.attn_fwd(q, k, v, intervals=torch.full((1, 1, S, 1), S + 1, dtype=torch.int32), interval_form="from")
    with pytest.raises(sternway.InvalidError, match="depth-first"):
        masks.tree(np.array([-1, 0, -1, 1]), np.arange(5))
    with pytest.raises(sternway.InvalidError, match="flex_attention|BlockMask"):
        sternway.torch.flex_attention(q, k, v, block_mask=3)


def test_example():
    """Real texts in one sequence have the gradients that each has alone."""
    if not (EXAMPLES / "minilm.safetensors").exists():
        pytest.skip("packages leave minilm.safetensors out")
    runpy.run_path(str(EXAMPLES / "documents.py"), run_name="__main__")
