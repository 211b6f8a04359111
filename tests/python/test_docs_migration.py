# SPDX-License-Identifier: MIT
"""Tables of docs/migration.md. FlexAttention's: each row's call against PyTorch's flex_attention with its score_mod
or mask_mod, which runs uncompiled on the CPU. FlexAttention has no backward there; the gradient of the one row that
speaks of one is held against the formulas in float64, as are rows about xFormers' masks and Transformer Engine's
softmax types, whose packages are not needed here."""
from __future__ import annotations

import math
import pathlib
import re

import pytest

torch = pytest.importorskip("torch")
flex = pytest.importorskip("torch.nn.attention.flex_attention")
pytest.importorskip("sternway")

import sternway.flash_attn as flash_attn  # noqa: E402
from sternway.torch import sdpa  # noqa: E402

B, H, HK, S, D = 2, 6, 3, 45, 24
TABLE = pathlib.Path(__file__).resolve().parents[2] / "docs/migration.md"
DOCUMENT = torch.tensor([0] * 7 + [1] * 20 + [2] + [3] * (S - 28))
STARTS = torch.tensor([0, 7, 27, 28, S], dtype=torch.int32)
LENGTH, PREFIX, CAP = torch.tensor([31, 45]), 9, 3.0
SLOPE = 2.0 ** -torch.arange(1.0, H + 1)
RELATIVE = torch.linspace(-2.0, 2.0, H * (2 * S - 1)).view(H, -1).sin()


@pytest.fixture(name="qkv")
def make_inputs():
    generator = torch.Generator().manual_seed(11)
    return [torch.randn(B, heads, S, D, generator=generator) for heads in (H, HK, HK)]


@pytest.fixture(name="flexible")
def flex_attention_takes_the_head_dim():
    x = torch.zeros(1, 1, 16, D)
    try:
        flex.flex_attention(x, x, x)
    except ValueError as error:  # PyTorch 2.6: a power of two as head_dim alone
        pytest.skip(f"flex_attention: {error}")


def positions() -> torch.Tensor:
    """i - j + S - 1: the row of a table of distances."""
    at = torch.arange(S)
    return at[:, None] - at[None, :] + S - 1


def packed(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """The documents of each row of the batch as sequences."""
    rows = [t.transpose(1, 2).flatten(0, 1) for t in (q, k, v)]
    starts = torch.cat([STARTS, STARTS[1:] + S])
    out = flash_attn.flash_attn_varlen_func(*rows, starts, starts, 20, 20)
    return out.unflatten(0, (B, S)).transpose(1, 2)


def keys(q, k, v) -> torch.Tensor:
    return sdpa(q, k, v, attn_mask=(torch.arange(S) < LENGTH[:, None])[:, None, None], enable_gqa=True)


def prefixed(q, k, v) -> torch.Tensor:
    at = torch.arange(S)
    visible = (at[None, :] < PREFIX) | (at[:, None] >= at[None, :])
    return sdpa(q, k, v, attn_mask=visible, enable_gqa=True)


CASES = {
    "`q >= kv`": (None, lambda b, h, i, j: i >= j, lambda *t: sdpa(*t, is_causal=True, enable_gqa=True)),
    "`(q >= kv) & (q - kv <= w)`": (None, lambda b, h, i, j: (i >= j) & (i - j <= 5),
                                    lambda *t: sdpa(*t, window=(5, 0), enable_gqa=True)),
    "`doc[q] == doc[kv]`": (None, lambda b, h, i, j: DOCUMENT[i] == DOCUMENT[j], packed),
    "`kv < length[b]`": (None, lambda b, h, i, j: j < LENGTH[b], keys),
    "`(kv < prefix)": (None, lambda b, h, i, j: (j < PREFIX) | (i >= j), prefixed),
    "`score + slope[h] * (kv - q)`": (lambda s, b, h, i, j: s + SLOPE[h] * (j - i), lambda b, h, i, j: i >= j,
                                      lambda *t: sdpa(*t, alibi_slopes=SLOPE, is_causal=True, enable_gqa=True)),
    "`score + table[h, q - kv + n]`": (lambda s, b, h, i, j: s + RELATIVE[h, i - j + S - 1], None,
                                       lambda *t: sdpa(*t, attn_mask=RELATIVE[:, positions()][None], enable_gqa=True)),
    "`cap * tanh(score / cap)`": (lambda s, b, h, i, j: CAP * torch.tanh(s / CAP), None,
                                  lambda *t: sdpa(*t, softcap=CAP, enable_gqa=True)),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("row", CASES)
def test_flex_row(flexible, row: str, qkv: list) -> None:
    score_mod, mask_mod, ours = CASES[row]
    mask = mask_mod and flex.create_block_mask(mask_mod, B, H, S, S, device="cpu")
    theirs = flex.flex_attention(*qkv, score_mod=score_mod, block_mask=mask, enable_gqa=True)
    assert (ours(*qkv) - theirs).abs().max() < 2e-6


def test_the_table_has_these_rows() -> None:
    table = re.split("\n###? ", TABLE.read_text(encoding="utf-8").split("### FlexAttention")[1])[0]
    assert [row for row in CASES if row not in table] == []
    assert len(re.findall(r"^\| ", table, re.M)) == 15  # a heading, the eight above, and six without a formula


def test_gradient_of_a_table_of_distances(qkv: list) -> None:
    """The bias's gradient goes on to the table, through the index, by autograd."""
    table = RELATIVE.clone().requires_grad_()
    dout = torch.randn(B, H, S, D, generator=torch.Generator().manual_seed(12))
    sdpa(*qkv, attn_mask=table[:, positions()][None], enable_gqa=True).backward(dout)
    exact = RELATIVE.double().requires_grad_()
    q, k, v = (t.double() for t in qkv)
    k, v = (t.repeat_interleave(H // HK, 1) for t in (k, v))
    scores = q @ k.transpose(-1, -2) / math.sqrt(D) + exact[:, positions()]
    (torch.softmax(scores, -1) @ v).backward(dout.double())
    assert (table.grad - exact.grad).norm() < 2e-6 * exact.grad.norm()


@pytest.mark.filterwarnings("ignore")
def test_lse(flexible, qkv: list) -> None:
    theirs = flex.flex_attention(*qkv, enable_gqa=True, return_lse=True)[1]
    assert (sdpa(*qkv, enable_gqa=True, return_lse=True)[1] - theirs).abs().max() < 2e-6


def exact(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, visible: torch.Tensor, extra: float) -> torch.Tensor:
    """Attention in float64 with `extra` added to the sum of exponentials."""
    q, k, v = (t.double() for t in (q, k, v))
    k, v = (t.repeat_interleave(H // HK, 1) for t in (k, v))
    weights = torch.exp(q @ k.transpose(-1, -2) / math.sqrt(D)) * visible
    return weights / (weights.sum(-1, keepdim=True) + extra) @ v


def test_softmax_off_by_one(qkv: list) -> None:
    """Transformer Engine's "off-by-one" adds 1 to the denominator: a sink whose logit is 0."""
    ours = sdpa(*qkv, sink=torch.zeros(H), enable_gqa=True)
    assert (ours - exact(*qkv, torch.ones(S, S), 1.0)).abs().max() < 2e-6


def test_local_attention_of_xformers(qkv: list) -> None:
    """LowerTriangularFromBottomRightLocalAttentionMask(w): a key w or more before the query's position is hidden."""
    w, rows = 6, 30
    q = qkv[0][:, :, :rows]
    before = torch.arange(rows)[:, None] + S - rows - torch.arange(S)[None, :]
    views = [t.transpose(1, 2) for t in (q, *qkv[1:])]
    ours = flash_attn.flash_attn_func(*views, causal=True, window_size=(w - 1, 0)).transpose(1, 2)
    assert (ours - exact(q, *qkv[1:], (before >= 0) & (before < w), 0.0)).abs().max() < 2e-6
