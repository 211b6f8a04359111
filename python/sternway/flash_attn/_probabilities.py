# SPDX-License-Identifier: MIT
"""The attention probabilities that return_attn_probs gives beside the library's own forward: for tests, O(Sq * Sk)
memory, a loop over the sequences."""
from __future__ import annotations

import torch

from ..torch import _bridge
from ._problem import invalid, layout, shared_keywords


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


def _scores(q: torch.Tensor, k: torch.Tensor, alibi_slopes: torch.Tensor | None, seen: torch.Tensor,
                  scale: float, softcap: float) -> torch.Tensor:
    """The scores [H, Sq, Sk], -inf where hidden, of q [Sq, H, D] and k [Sk, Hk, D]."""
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
    return scores.masked_fill(~seen, float("-inf"))


def tile_keys(device: torch.device, head_dim: int, is_dropout: bool, is_causal: bool) -> int:
    """Keys in a tile of FlashAttention-2's forward kernels. Their S_dmask holds exp(s - m), m the largest score of the
    row in its tile and those to the right of it, and who reads it needs the tiles."""
    if head_dim > 256:
        raise invalid(f"head_dim is {head_dim}, expected at most 256")
    if head_dim <= 32:
        return 128
    if head_dim <= 64:
        return 64 if is_dropout else 128
    if not 96 < head_dim <= 128:
        return 64
    major, minor = torch.cuda.get_device_capability(device)
    if major == 8 and minor > 0:  # GPUs with 100 KB of shared memory in an SM
        return 64 if is_causal and not is_dropout else 32
    return 32 if is_dropout else 64


def _below_the_largest(scores: torch.Tensor, tile: int) -> torch.Tensor:
    """exp(s - m) of scores [H, Sq, Sk], m as tile_keys says; rows without a key are zero."""
    if not scores.shape[-1]:
        return scores
    largest = torch.stack([part.amax(-1) for part in scores.split(tile, -1)], -1)
    m = largest.flip(-1).cummax(-1).values.flip(-1).repeat_interleave(tile, -1)[..., :scores.shape[-1]]
    return torch.exp(scores - m).nan_to_num(0.0)


def signed_probabilities(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_seqlens_q: torch.Tensor | None,
                         cu_seqlens_k: torch.Tensor | None, alibi_slopes: torch.Tensor | None, max_seqlen_q: int,
                         max_seqlen_k: int, dropout_p: float, scale: float | None, causal: bool, window_left: int,
                         window_right: int, softcap: float, rng_state: torch.Tensor) -> torch.Tensor:
    """[B, H, max_seqlen_q, max_seqlen_k], both rounded up to multiples of 128, of q's type: the softmax before dropout,
    on a GPU in flash-attn's form (tile_keys), negative where dropout took the element; zeros outside of the sequences.
    Packed problems read cu_seqlens back."""
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
                               window_left, window_right, softcap, rng_state, q.dtype)
    for name in ("flash_window", "scale", "alibi_slopes", "softcap"):
        keywords.pop(name, None)
    _bridge.dropout_mask(layout(cu_seqlens_q), q=q, k=k, mask_out=kept, **keywords)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    for b, (one_q, one_k) in enumerate(sequences):
        slopes = alibi_slopes if alibi_slopes is None or alibi_slopes.dim() == 1 else alibi_slopes[b]
        seen = _visible(rows[b], keys[b], max_seqlen_k, causal, window_left, window_right, q.device)
        scores = _scores(one_q, one_k, slopes, seen, scale, softcap)
        values = (_below_the_largest(scores, tile_keys(q.device, q.shape[-1], True, causal)) if q.is_cuda
                  else torch.softmax(scores, -1).nan_to_num(0.0))
        sign = kept[b, :, :rows[b], :keys[b]].to(values.dtype) * 2 - 1
        probs[b, :, :rows[b], :keys[b]] = torch.copysign(values, sign)
    return probs
