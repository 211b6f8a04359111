# SPDX-License-Identifier: MIT
"""The attention probabilities that return_attn_probs gives beside the library's own forward: for tests, O(Sq * Sk)
memory, a loop over the sequences."""
from __future__ import annotations

import torch

from ..torch import _bridge
from ._problem import layout, shared_keywords


def rounded(length: int) -> int:
    """A length as flash-attn rounds it in S_dmask: up to a multiple of 128."""
    return (length + 127) // 128 * 128


def _visible(rows: int, keys: int, max_keys: int, causal: bool, window_left: int, window_right: int,
             device: torch.device) -> torch.Tensor:
    """[rows, keys], True where query i sees key j: FlashAttention-2's reading of its pair of windows, described in
    docs/migration.md."""
    left = window_left if 0 <= window_left < max_keys else None
    right = window_right if 0 <= window_right < max_keys else None
    if causal:
        right = 0
    if left is None and right is None:
        return torch.ones(rows, keys, dtype=torch.bool, device=device)
    left = max_keys if left is None else left
    right = max_keys if right is None else right
    distance = torch.arange(keys, device=device) - torch.arange(rows, device=device)[:, None] - (keys - rows)
    return (distance <= right) & (distance >= -left)


def _one_sequence(q: torch.Tensor, k: torch.Tensor, alibi_slopes: torch.Tensor | None, seen: torch.Tensor,
                  scale: float, softcap: float) -> torch.Tensor:
    """softmax [H, Sq, Sk] of q [Sq, H, D] and k [Sk, Hk, D]; rows without a key are zero."""
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    keys = k.to(wide).repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    scores = torch.einsum("ihd,jhd->hij", q.to(wide), keys) * scale
    if softcap > 0:
        scores = softcap * torch.tanh(scores / softcap)
    if alibi_slopes is not None:
        rows, columns = seen.shape
        shift = columns - rows
        distance = torch.arange(rows, device=q.device)[:, None] + shift - torch.arange(columns, device=q.device)
        scores = scores - alibi_slopes.to(wide)[:, None, None] * distance.abs().to(wide)
    return torch.softmax(scores.masked_fill(~seen, float("-inf")), dim=-1).nan_to_num(0.0)


def signed_probabilities(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_seqlens_q: torch.Tensor | None,
                         cu_seqlens_k: torch.Tensor | None, alibi_slopes: torch.Tensor | None, max_seqlen_q: int,
                         max_seqlen_k: int, dropout_p: float, scale: float | None, causal: bool, window_left: int,
                         window_right: int, softcap: float, rng_state: torch.Tensor) -> torch.Tensor:
    """[B, H, max_seqlen_q, max_seqlen_k], both rounded up to multiples of 128, of q's type: the softmax before dropout,
    negative where dropout took the element; zeros outside of the sequences. Packed problems read cu_seqlens back."""
    if cu_seqlens_q is None:
        batch, rows, keys = q.shape[0], [q.shape[1]] * q.shape[0], [k.shape[1]] * q.shape[0]
        sequences = list(zip(q, k))
    else:
        rows, keys = cu_seqlens_q.diff().tolist(), cu_seqlens_k.diff().tolist()
        batch, starts_q, starts_k = len(rows), cu_seqlens_q.tolist(), cu_seqlens_k.tolist()
        sequences = [(q[starts_q[b]:starts_q[b + 1]], k[starts_k[b]:starts_k[b + 1]]) for b in range(batch)]
    probs = q.new_zeros((batch, q.shape[-2], rounded(max_seqlen_q), rounded(max_seqlen_k)))
    if q.numel() == 0 or k.numel() == 0:
        return probs
    kept = torch.empty((batch, q.shape[-2], max_seqlen_q, max_seqlen_k), dtype=torch.uint8, device=q.device)
    keywords = shared_keywords(cu_seqlens_q, cu_seqlens_k, None, max_seqlen_q, max_seqlen_k, dropout_p, scale, causal,
                               window_left, window_right, softcap, rng_state)
    for name in ("flash_window", "scale", "alibi_slopes", "softcap"):
        keywords.pop(name, None)
    _bridge.dropout_mask(layout(cu_seqlens_q), q=q, k=k, mask_out=kept, **keywords)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    for b, (one_q, one_k) in enumerate(sequences):
        slopes = alibi_slopes if alibi_slopes is None or alibi_slopes.dim() == 1 else alibi_slopes[b]
        seen = _visible(rows[b], keys[b], max_seqlen_k, causal, window_left, window_right, q.device)
        values = _one_sequence(one_q, one_k, slopes, seen, scale, softcap)
        sign = kept[b, :, :rows[b], :keys[b]].to(values.dtype) * 2 - 1
        probs[b, :, :rows[b], :keys[b]] = torch.copysign(values, sign)
    return probs
