# SPDX-License-Identifier: MIT
"""sdpa of nested tensors of layout torch.jagged: one packed call over their values."""
from __future__ import annotations

from typing import Any

import torch

from .. import _native
from ._dropout_fwd import dropout_forward
from .ops import call_fwd


def _packed(tensor: torch.Tensor, name: str):
    """values [T,H,D], offsets as int32, used lengths as int32 or None, and the longest component."""
    if not tensor.is_nested or tensor.layout != torch.jagged:
        kind = "nested of another layout" if tensor.is_nested else "dense"
        raise _native.UnsupportedError(f"sternway: {name} is {kind}; sdpa of nested tensors takes those of layout "
                                       "torch.jagged alone")
    if tensor.dim() != 4 or tensor._ragged_idx != 2:
        raise _native.InvalidError(f"sternway: nested {name} has to be [B,H,j,E] with the ragged dimension third: "
                                   "nt.unflatten(-1, (H, E)).transpose(1, 2)")
    offsets, lengths = tensor.offsets(), tensor.lengths()
    longest = tensor._max_seqlen if lengths is None else int(offsets.diff().max()) if offsets.shape[0] > 1 else 0
    return (tensor.transpose(1, 2).values(), offsets, None if lengths is None else lengths.to(torch.int32), longest)


def jagged(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: torch.Tensor | None,
           dropout_p: float, enable_gqa: bool, alibi_slopes: torch.Tensor | None, sink: torch.Tensor | None,
           return_lse: bool, options: dict[str, Any]):
    """sdpa's arguments, with scale, softcap, mask and windows in `options`. Its lse is [Hq,T]."""
    if attn_mask is not None:
        raise _native.UnsupportedError("sternway: attn_mask beside nested tensors (is_causal, window and alibi_slopes "
                                       "are there)")
    q, offsets_q, used_q, longest_q = _packed(query, "query")
    k, offsets_k, used_k, longest_k = _packed(key, "key")
    v, offsets_v, _, _ = _packed(value, "value")
    if offsets_q.shape != offsets_k.shape or offsets_k.shape != offsets_v.shape or k.shape[:2] != v.shape[:2]:
        raise _native.InvalidError(f"sternway: nested query, key and value have {offsets_q.shape[0] - 1}, "
                                   f"{offsets_k.shape[0] - 1} and {offsets_v.shape[0] - 1} components; values of key "
                                   f"and value are {tuple(k.shape)} and {tuple(v.shape)}: they have to agree")
    if q.shape[1] != k.shape[1] and not enable_gqa and k.shape[1] != 1:
        raise _native.InvalidError(f"sternway: query has {q.shape[1]} heads, key and value {k.shape[1]}: "
                                   "enable_gqa=True lets groups of query heads share them")
    starts_q = offsets_q.to(torch.int32)
    starts_k = starts_q if offsets_k is offsets_q else offsets_k.to(torch.int32)
    options = {**options, "layout": "thd", "max_seq_q": longest_q, "max_seq_kv": longest_k}
    found = None
    if dropout_p > 0.0:
        plain = all(t is None for t in (alibi_slopes, sink, used_q, used_k))
        found = dropout_forward(q, k, v, starts_q, starts_k, dropout_p, options) if plain else None
    if found is None:
        state = (None, None)
        if dropout_p > 0.0:
            from .sdpa import random_state

            options["dropout_p"] = dropout_p
            state = random_state(q.device)
        found = call_fwd(q, k, v, None, alibi_slopes, sink, starts_q, starts_k, used_q, used_k, *state, **options)
    out, lse = found
    nested = torch.nested.nested_tensor_from_jagged(out, offsets=offsets_q, lengths=query.lengths())
    return (nested.transpose(1, 2), lse) if return_lse else nested.transpose(1, 2)
