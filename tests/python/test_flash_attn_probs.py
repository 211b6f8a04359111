# SPDX-License-Identifier: MIT
"""S_dmask in flash-attn's form, and causal ALiBi in f32."""
from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import flash_attn_reference as reference  # noqa: E402
from sternway import flash_attn  # noqa: E402
from sternway.flash_attn import _probabilities  # noqa: E402


def test_largest_score_of_a_tile_and_those_to_its_right():
    scores = torch.tensor([[[1.0, 5.0, 2.0, 4.0, 3.0], [0.0, -torch.inf, -torch.inf, -torch.inf, -torch.inf],
                            [-torch.inf] * 5]])
    values = _probabilities._below_the_largest(scores, 2)
    expected = torch.tensor([[[-4.0, 0.0, -2.0, 0.0, 0.0], [0.0] + [-torch.inf] * 4, [-torch.inf] * 5]]).exp()
    assert torch.equal(values, expected)
    assert _probabilities._below_the_largest(scores[..., :0], 2).shape == (1, 3, 0)


@pytest.mark.parametrize("packed", [False, True])
def test_causal_alibi_in_f32_is_exact_far_from_the_start(packed):
    q, k, v = (torch.randn(1, 401, 2, 16) for _ in range(3))
    slopes = torch.tensor([0.31, 0.27])
    expected, lse, _ = reference.dense(*(x.double() for x in (q, k, v)), slopes.double(), causal=True)
    if packed:
        starts = torch.tensor([0, 401], dtype=torch.int32)
        out, ours, _ = flash_attn.flash_attn_varlen_func(q[0], k[0], v[0], starts, starts, 401, 401, causal=True,
                                                         alibi_slopes=slopes, return_attn_probs=True)
        out, ours = out[None], ours[None]
    else:
        out, ours, _ = flash_attn.flash_attn_func(q, k, v, causal=True, alibi_slopes=slopes, return_attn_probs=True)
    assert (out - expected).abs().max() < 1e-6
    place = torch.arange(401, dtype=torch.float64)
    assert (ours - (lse - slopes.double()[:, None] * place)).abs().max() < 1e-6
