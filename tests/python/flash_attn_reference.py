# SPDX-License-Identifier: MIT
"""Attention in plain float64 PyTorch, as flash-attn 2 defines it, for the tests of sternway.flash_attn: one sequence at
a time, differentiable by autograd."""
from __future__ import annotations

import torch


def visible(rows: int, keys: int, causal: bool, window: tuple[int, int], max_keys: int) -> torch.Tensor:
    """[rows, keys], True where the query sees the key, pair by pair from the four steps of docs/migration.md."""
    left, right = (None if size < 0 or size >= max_keys else size for size in window)
    if causal:
        right = 0
    if left is None and right is None:
        return torch.ones(rows, keys, dtype=torch.bool)
    left = max_keys if left is None else left
    right = max_keys if right is None else right
    shift = keys - rows
    pairs = [[i + shift - left <= j <= i + shift + right for j in range(keys)] for i in range(rows)]
    return torch.tensor(pairs, dtype=torch.bool).reshape(rows, keys)


def one(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, slopes: torch.Tensor | None = None,
        kept: torch.Tensor | None = None, dropout_p: float = 0.0, scale: float | None = None, causal: bool = False,
        window: tuple[int, int] = (-1, -1), softcap: float = 0.0, max_keys: int | None = None
        ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """out [Sq, H, Dv], LSE [H, Sq] in flash-attn's convention and the softmax [H, Sq, Sk] of q [Sq, H, D],
    k [Sk, Hk, D] and v; slopes [H]; kept [H, Sq, Sk] of the dropout."""
    rows, heads, head_dim = q.shape
    keys = k.shape[0]
    group = heads // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = torch.einsum("ihd,jhd->hij", q, k) * (head_dim ** -0.5 if scale is None else scale)
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    place = torch.arange(rows, dtype=q.dtype) + keys - rows
    if slopes is not None:
        scores = scores - slopes[:, None, None] * (place[:, None] - torch.arange(keys, dtype=q.dtype)).abs()
    max_keys = keys if max_keys is None else max_keys
    seen = visible(rows, keys, causal, window, max_keys)
    scores = scores.masked_fill(~seen, float("-inf"))
    empty = ~seen.any(1)  # rows without a key
    lse = torch.logsumexp(scores.masked_fill(empty[:, None], 0.0), -1) if keys else scores.new_zeros(heads, rows)
    probs = torch.exp(scores - lse[..., None])
    if slopes is not None and not 0 <= window[0] < max_keys and (causal or 0 == window[1] < max_keys):
        lse = lse + slopes[:, None] * place
    lse = lse.masked_fill(empty, float("inf"))
    dropped = probs if kept is None else probs * kept / (1 - dropout_p)
    return torch.einsum("hij,jhd->ihd", dropped, v), lse, probs


def dense(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, slopes: torch.Tensor | None = None,
          kept: torch.Tensor | None = None, **settings) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """one() over a batch: out [B, Sq, H, Dv], LSE [B, H, Sq], softmax [B, H, Sq, Sk]."""
    parts = [one(q[b], k[b], v[b], slopes if slopes is None or slopes.dim() == 1 else slopes[b],
                 None if kept is None else kept[b], **settings) for b in range(q.shape[0])]
    return tuple(torch.stack(part) for part in zip(*parts))


def packed(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, starts_q: list[int], starts_k: list[int],
           slopes: torch.Tensor | None = None, kept: torch.Tensor | None = None, **settings
           ) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
    """one() over the sequences of a pack: out [Tq, H, Dv], LSE [H, Tq], a softmax a sequence."""
    outs, lses, probs = [], [], []
    for b, (q0, q1, k0, k1) in enumerate(zip(starts_q, starts_q[1:], starts_k, starts_k[1:])):
        kept_here = None if kept is None else kept[b, :, :q1 - q0, :k1 - k0]
        out, lse, prob = one(q[q0:q1], k[k0:k1], v[k0:k1], slopes if slopes is None or slopes.dim() == 1 else slopes[b],
                             kept_here, **settings)
        outs.append(out), lses.append(lse), probs.append(prob)
    return torch.cat(outs), torch.cat(lses, 1), probs
