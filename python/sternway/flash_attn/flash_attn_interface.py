# SPDX-License-Identifier: MIT
"""The functions of flash-attn's flash_attn_interface, with their signatures.

Common to all of them:
    tensors       q [B, Sq, H, D], k [B, Sk, Hk, D], v [B, Sk, Hk, Dv]; packed (varlen) q [Tq, H, D], k and v
                  [Tk, Hk, ...]; f16, bf16, f32, on the CPU also f64; on one CPU or GPU. D and Dv are 1 to 256, any
                  (flash-attn: equal). H is a multiple of Hk. Any strides: views of larger tensors, transposed and
                  expanded ones pass as they are.
    dropout_p     probability, 0: none. Elements are taken by FlashAttention-2's random bits, the probability in steps
                  of 1/256; on a GPU out of PyTorch's CUDA generator, on the CPU of its default one (torch.manual_seed).
    softmax_scale what q k^T is multiplied by; None: 1/sqrt(D).
    causal        bottom-right aligned: query i sees keys j <= i + Lk - Lq.
    window_size   (left, right): i + Lk - Lq - left <= j <= i + Lk - Lq + right, -1: no bound; FlashAttention-2's own
                  reading, in which a bound of Sk or more is none, and an absent one beside a given one is Sk.
    softcap       c > 0: the scaled scores s become c * tanh(s / c); 0: off. Unlike flash-attn's, with dropout too.
    alibi_slopes  [H] or [B, H], f32 (f64 beside f64): adds -slope * |i + Lk - Lq - j|. No gradient flows into them.
    deterministic the backward gives the same bits each time. Also under torch.use_deterministic_algorithms.
    return_attn_probs  returns (out, softmax_lse, S_dmask) instead of out. softmax_lse is the natural logarithm of each
                  row's sum, f32 (f64 beside f64) [B, H, Sq], packed [H, Tq]; +inf in rows without a key. In f16, bf16
                  and f64 causal attention with alibi_slopes adds slope * (i + Lk - Lq) to it, as FlashAttention-2
                  does (a right bound of 0 without a left one is causal too). A gradient that flows into it is
                  taken into account (flash-attn drops it).
                  S_dmask, for tests: empty without dropout; with dropout [B, H, Sq, Sk] rounded up to 128 each,
                  negative where an element was taken: on a GPU what flash-attn gives, on the CPU the softmax.
Returns out [B, Sq, H, Dv] or [Tq, H, Dv], new memory of the caller's. Rows of a pack that are in no sequence are left
as allocated, in gradients too.
Raises InvalidError (tensors that do not fit each other) and UnsupportedError (what flash-attn takes and the library
does not) with the library's text. Formulas: FlashAttention-2, arXiv 2307.08691, algorithms 1 and 2;
include/sternway/attn_bwd.h."""
from __future__ import annotations

import torch

from . import _eager
from ._probabilities import tile_keys as _get_block_size_n  # noqa: F401 (who reads S_dmask asks for it)
from ._low_level import (_flash_attn_backward, _flash_attn_forward, _flash_attn_varlen_backward,  # noqa: F401
                         _flash_attn_varlen_forward)
from ._problem import invalid, unsupported

USE_TRITON_ROCM = False  # flash-attn's name; callers that ask get "the usual kernels"

Tensor = torch.Tensor
Window = tuple[int, int]
Result = torch.Tensor | tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def _number(value: object) -> int:
    return value if isinstance(value, (int, torch.SymInt)) else int(value)


def _rows(tensor: Tensor) -> int:
    return tensor.shape[1] if tensor.dim() > 1 else 0  # a wrong rank is named further on


def _attend(q: torch.Tensor, k: torch.Tensor | None, v: torch.Tensor | None, cu_seqlens_q: torch.Tensor | None,
            cu_seqlens_k: torch.Tensor | None, max_seqlen_q: int, max_seqlen_k: int, dropout_p: float,
            softmax_scale: float | None, causal: bool, window_size: tuple[int, int], softcap: float,
            alibi_slopes: torch.Tensor | None, deterministic: bool, return_attn_probs: bool) -> Result:
    if alibi_slopes is not None and alibi_slopes.requires_grad and torch.is_grad_enabled():
        raise unsupported("alibi_slopes requires a gradient, which FlashAttention does not give: pass "
                          "alibi_slopes.detach(), or the bias to sternway.torch.sdpa")
    if not 0.0 <= dropout_p < 1.0:
        raise invalid(f"dropout_p is {dropout_p}, expected 0 <= p < 1")
    out, lse, probs = _eager.attention(
        q, k, v, cu_seqlens_q, cu_seqlens_k, alibi_slopes, _number(max_seqlen_q), _number(max_seqlen_k),
        float(dropout_p), None if softmax_scale is None else float(softmax_scale), bool(causal),
        _number(window_size[0]), _number(window_size[1]), max(float(softcap), 0.0), bool(deterministic),
        bool(return_attn_probs))
    if not return_attn_probs:
        return out
    return out, lse, q.new_empty(0) if probs is None else probs


def _attend_packed(q: Tensor, k: Tensor | None, v: Tensor | None, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor,
                   *arguments) -> Result:
    if cu_seqlens_q is None or cu_seqlens_k is None:
        raise invalid("cu_seqlens is None, expected int32 [B + 1]")
    return _attend(q, k, v, cu_seqlens_q, cu_seqlens_k, *arguments)


def flash_attn_func(q: Tensor, k: Tensor, v: Tensor, dropout_p: float = 0.0, softmax_scale: float | None = None,
                    causal: bool = False, window_size: Window = (-1, -1), softcap: float = 0.0,
                    alibi_slopes: Tensor | None = None, deterministic: bool = False,
                    return_attn_probs: bool = False) -> Result:
    """Attention of q [B, Sq, H, D], k [B, Sk, Hk, D], v [B, Sk, Hk, Dv]: out [B, Sq, H, Dv]. See the module."""
    return _attend(q, k, v, None, None, _rows(q), _rows(k), dropout_p, softmax_scale, causal, window_size, softcap,
                   alibi_slopes, deterministic, return_attn_probs)


def flash_attn_kvpacked_func(q: Tensor, kv: Tensor, dropout_p: float = 0.0, softmax_scale: float | None = None,
                             causal: bool = False, window_size: Window = (-1, -1), softcap: float = 0.0,
                             alibi_slopes: Tensor | None = None, deterministic: bool = False,
                             return_attn_probs: bool = False) -> Result:
    """The same with kv [B, Sk, 2, Hk, D], whose gradient is written into one buffer. See the module."""
    return _attend(q, kv, None, None, None, _rows(q), _rows(kv), dropout_p, softmax_scale, causal, window_size,
                   softcap, alibi_slopes, deterministic, return_attn_probs)


def flash_attn_qkvpacked_func(qkv: Tensor, dropout_p: float = 0.0, softmax_scale: float | None = None,
                              causal: bool = False, window_size: Window = (-1, -1), softcap: float = 0.0,
                              alibi_slopes: Tensor | None = None, deterministic: bool = False,
                              return_attn_probs: bool = False) -> Result:
    """The same with qkv [B, S, 3, H, D], whose gradient is written into one buffer. See the module."""
    return _attend(qkv, None, None, None, None, _rows(qkv), _rows(qkv), dropout_p, softmax_scale, causal,
                   window_size, softcap, alibi_slopes, deterministic, return_attn_probs)


def flash_attn_varlen_func(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor,
                           max_seqlen_q: int, max_seqlen_k: int, dropout_p: float = 0.0,
                           softmax_scale: float | None = None, causal: bool = False, window_size: Window = (-1, -1),
                           softcap: float = 0.0, alibi_slopes: Tensor | None = None, deterministic: bool = False,
                           return_attn_probs: bool = False, block_table: Tensor | None = None) -> Result:
    """Attention of sequences packed without padding: q [Tq, H, D], k [Tk, Hk, D], v [Tk, Hk, Dv], out [Tq, H, Dv].

    cu_seqlens_q, cu_seqlens_k: int32 [B + 1] on the tensors' device, the first row of each sequence and the end of the
    last; lengths of zero are fine. max_seqlen_q, max_seqlen_k: at least the longest sequence. block_table (paged
    keys) has no backward: UnsupportedError. See the module."""
    if block_table is not None:
        raise unsupported("block_table: paged keys and values have no backward; use flash-attn's own inference "
                          "functions for them")
    return _attend_packed(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p, softmax_scale,
                          causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs)


def flash_attn_varlen_kvpacked_func(q: Tensor, kv: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor,
                                    max_seqlen_q: int, max_seqlen_k: int, dropout_p: float = 0.0,
                                    softmax_scale: float | None = None, causal: bool = False,
                                    window_size: Window = (-1, -1), softcap: float = 0.0,
                                    alibi_slopes: Tensor | None = None, deterministic: bool = False,
                                    return_attn_probs: bool = False) -> Result:
    """flash_attn_varlen_func() with kv [Tk, 2, Hk, D], whose gradient is written into one buffer."""
    return _attend_packed(q, kv, None, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p, softmax_scale,
                          causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs)


def flash_attn_varlen_qkvpacked_func(qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int, dropout_p: float = 0.0,
                                     softmax_scale: float | None = None, causal: bool = False,
                                     window_size: Window = (-1, -1), softcap: float = 0.0,
                                     alibi_slopes: Tensor | None = None, deterministic: bool = False,
                                     return_attn_probs: bool = False) -> Result:
    """flash_attn_varlen_func() with qkv [T, 3, H, D], whose gradient is written into one buffer."""
    return _attend_packed(qkv, None, None, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, dropout_p, softmax_scale,
                          causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs)


def flash_attn_with_kvcache(q: Tensor, k_cache: Tensor, v_cache: Tensor, k: Tensor | None = None,
                            v: Tensor | None = None, rotary_cos: Tensor | None = None, rotary_sin: Tensor | None = None,
                            cache_seqlens: int | Tensor | None = None, cache_batch_idx: Tensor | None = None,
                            cache_leftpad: Tensor | None = None, block_table: Tensor | None = None,
                            softmax_scale: float | None = None, causal: bool = False, window_size: Window = (-1, -1),
                            softcap: float = 0.0, rotary_interleaved: bool = True, alibi_slopes: Tensor | None = None,
                            num_splits: int = 0, return_softmax_lse: bool = False) -> None:
    """Decoding with a cache of keys and values: inference, which has no backward and is not in this package. Raises
    NotImplementedError."""
    raise NotImplementedError("sternway.flash_attn: flash_attn_with_kvcache is inference with a cache, without a "
                              "backward, and is not in this package; use flash-attn's own")
