# SPDX-License-Identifier: MIT
"""scaled_dot_product_attention with the library's backward: above PyTorch's own, so key and value heads are not
expanded for GQA, boolean masks stay bytes, and the gradient of a bias has the bias's shape."""
from __future__ import annotations

import torch

from .. import _native
from ._dropout_fwd import dropout_forward
from ._forward import MASK_TOP_LEFT
from .ops import call_fwd

_MASKS = (torch.bool, torch.float16, torch.bfloat16, torch.float32, torch.float64)


def _four(tensor: torch.Tensor, name: str) -> torch.Tensor:
    """The tensor as [B,H,rows,D]: dimensions before the last three are joined, absent ones are 1."""
    if tensor.dim() == 4:
        return tensor
    if tensor.dim() < 2:
        raise _native.InvalidError(f"sternway: {name} has {tensor.dim()} dimensions; attention has two at least: rows "
                                   "and head_dim")
    if tensor.dim() > 4:
        return tensor.flatten(0, tensor.dim() - 4)
    return tensor[(None,) * (4 - tensor.dim())]


def _mask(mask: torch.Tensor, query: torch.Tensor, sizes: tuple) -> torch.Tensor:
    """The mask with four dimensions, each of them 1 or the problem's. query: as the caller gave it."""
    if mask.dtype not in _MASKS:
        raise _native.InvalidError(f"sternway: attn_mask is {mask.dtype}; it is bool, or floating point numbers that "
                                   "are added")
    if mask.dim() > 4:
        leading = query.shape[:-3]
        if mask.dim() != query.dim():
            raise _native.InvalidError(f"sternway: attn_mask has {mask.dim()} dimensions, query {query.dim()}")
        mask = mask.expand(*leading, *mask.shape[-3:]).flatten(0, mask.dim() - 4)
    elif mask.dim() < 4:
        mask = mask[(None,) * (4 - mask.dim())]
    for has, wants in zip(mask.shape, sizes):
        if has != 1 and has != wants:
            raise _native.InvalidError(f"sternway: attn_mask of {tuple(mask.shape)} does not broadcast to the scores' "
                                       f"{tuple(sizes)}")
    return mask


def _same_batch(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, enable_gqa: bool):
    """[B,H,rows,D] tensors of one batch, those of batch 1 broadcast without a copy; refuses sizes that disagree."""
    (b, hq, _, dq), (bk, hk, rows, dk), (bv, hv, rows_v, _) = q.shape, k.shape, v.shape
    if rows != rows_v or hk != hv:
        raise _native.InvalidError(f"sternway: key has {hk} heads of {rows} rows, value {hv} of {rows_v}: they have to "
                                   "be the same")
    if dq != dk:
        raise _native.InvalidError(f"sternway: head_dim is {dq} in query and {dk} in key")
    if hq != hk and not enable_gqa and hk != 1:
        raise _native.InvalidError(f"sternway: query has {hq} heads, key and value {hk}: enable_gqa=True lets groups "
                                   "of query heads share them")
    if b == bk == bv:
        return q, k, v
    batch = b if b != 1 else bk if bk != 1 else bv
    if any(n not in (1, batch) for n in (b, bk, bv)):
        raise _native.InvalidError(f"sternway: query, key and value have batches of {b}, {bk} and {bv}: they have to "
                                   "be the same, or 1")
    return tuple(t if t.shape[0] == batch else t.expand(batch, *t.shape[1:]) for t in (q, k, v))


def random_state(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Seed and offset of a call's dropout from PyTorch's generator of the device: tensors that the kernels read, so
    each replay of a CUDA graph has its own."""
    state = torch.randint(0, 2**63 - 1, (2,), dtype=torch.int64, device=device)
    return state[:1], state[1:]


def _dense(query, key, value, attn_mask, dropout_p, options):
    """Out and LSE of [B,H,rows,D] tensors and a mask with four dimensions."""
    if dropout_p > 0.0:
        if attn_mask is None:
            found = dropout_forward(query, key, value, None, None, dropout_p, options)
            if found is not None:
                return found
        seed, offset = random_state(query.device)
        return call_fwd(query, key, value, attn_mask, None, None, None, None, None, None, seed, offset,
                        dropout_p=dropout_p, **options)
    return call_fwd(query, key, value, attn_mask, **options)


def sdpa(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: torch.Tensor | None = None,
         dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False, *,
         softcap: float = 0.0, window: tuple[int | None, int | None] | None = None,
         alibi_slopes: torch.Tensor | None = None, sink: torch.Tensor | None = None, return_lse: bool = False,
         deterministic: bool | None = None) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """softmax(scale * Q K^T + mask) V as torch.nn.functional.scaled_dot_product_attention, its backward by Sternway.

    query [...,Hq,L,E], key [...,Hk,S,E], value [...,Hk,S,Ev] of one type (f16, bf16, f32; f64 on the CPU), on one
    device, any strides; or nested tensors of layout torch.jagged, [B,H,j,E], whose lengths may differ between query
    and key. Nothing of them is copied. Head dims of 1 to 256. Beyond PyTorch's arguments and semantics:
    attn_mask   bool (True: visible) or added numbers of query's type or f32, broadcast to [...,Hq,L,S] without being
                expanded; its gradient has its own shape. May be there together with is_causal; not with nested tensors
    is_causal   j <= i, aligned top-left as PyTorch's
    enable_gqa  each key and value head serves Hq/Hk query heads; one head (Hk = 1) serves all without it as well
    softcap     c > 0: scores become c*tanh(scores/c) before the mask is added
    window      (left, right), None for no bound: i + shift - left <= j <= i + shift + right; shift is 0 with is_causal,
                else S - L (aligned bottom-right)
    alibi_slopes  f32 [Hq] or [B,Hq]: scores get -slope*|i + shift - j|
    sink        f32 [Hq]: a logit for each head that takes part in the softmax and has no value
    return_lse  (out, lse): lse f32 [...,Hq,L] (nested: of the packed rows, [Hq,total]), natural logarithm, with a
                gradient of its own
    deterministic  the backward gives the same bits run after run; None: as torch.use_deterministic_algorithms says

    Dropout draws from PyTorch's generator of the device. Rows that see no key are zeros, as are their gradients. On
    NVIDIA GPUs the forward of f16 and bf16 is PyTorch's flash operator where it takes the problem, else the library's.
    Raises _native.InvalidError (a ValueError) for what does not fit together, UnsupportedError (a
    NotImplementedError) for what the library lacks: nothing falls back to another implementation. Under autocast
    query, key and value get its type.

    Formulas: FlashAttention-2, arXiv 2307.08691, algorithms 1 and 2; softcap, sink and the LSE's gradient by the chain
    rule."""
    for name, tensor in (("query", query), ("key", key), ("value", value), ("attn_mask", attn_mask),
                         ("alibi_slopes", alibi_slopes), ("sink", sink)):
        if tensor is not None and not isinstance(tensor, torch.Tensor):
            raise _native.InvalidError(f"sternway: {name} is {type(tensor).__name__}, a torch.Tensor is expected")
    options = {}
    if scale is not None:
        options["scale"] = float(scale)
    if softcap:
        options["softcap"] = float(softcap)
    if is_causal:
        options["mask"] = MASK_TOP_LEFT
    if window is not None:
        if not isinstance(window, (tuple, list)) or len(window) != 2 or any(n is not None and n < 0 for n in window):
            raise _native.InvalidError(f"sternway: window is {window!r}; it is a pair, (left, right), of 0 or more, "
                                       "None for no bound")
        if window[0] is not None:
            options["window_left"] = window[0]
        if window[1] is not None:
            options["window_right"] = window[1]
    if deterministic is not None:
        options["deterministic"] = deterministic
    if not 0.0 <= dropout_p < 1.0:
        raise _native.InvalidError(f"sternway: dropout_p is {dropout_p}; it is at least 0 and below 1")
    if query.is_nested or key.is_nested or value.is_nested:
        from ._sdpa_jagged import jagged

        return jagged(query, key, value, attn_mask, dropout_p, enable_gqa, alibi_slopes, sink, return_lse, options)
    if query.dim() != 4 or key.dim() != 4 or value.dim() != 4:
        query_4d, key, value = _four(query, "query"), _four(key, "key"), _four(value, "value")
    else:
        query_4d = query
    q, k, v = _same_batch(query_4d, key, value, enable_gqa)
    if attn_mask is not None:
        attn_mask = _mask(attn_mask, query, (*q.shape[:3], k.shape[2]))
    if alibi_slopes is None and sink is None:
        out, lse = _dense(q, k, v, attn_mask, dropout_p, options)
    else:
        seed, offset = random_state(q.device) if dropout_p > 0.0 else (None, None)
        if dropout_p > 0.0:
            options["dropout_p"] = dropout_p
        out, lse = call_fwd(q, k, v, attn_mask, alibi_slopes, sink, None, None, None, None, seed, offset, **options)
    if query.dim() != 4:
        leading = query.shape[:-3] if query.dim() > 4 else query.shape[:-2]
        if query.dim() > 4:
            out = out.unflatten(0, leading)
            lse = lse.unflatten(0, leading)
        else:
            out, lse = out.reshape(*leading, *out.shape[-2:]), lse.reshape(*leading, lse.shape[-1])
    return (out, lse) if return_lse else out


__all__ = ["sdpa", "random_state"]
