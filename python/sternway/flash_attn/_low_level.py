# SPDX-License-Identifier: MIT
"""flash-attn's four functions below autograd, which ring attention, context parallelism and the like call for
themselves: _flash_attn_forward, _flash_attn_backward and their varlen forms. Not for torch.compile: the backward ones
break its graph."""
from __future__ import annotations

import torch
from torch import Tensor

from .. import _native
from ..torch import _bridge
from . import _operators
from ._problem import layout, shared_keywords, split, unsupported


def _flash_attn_forward(q: Tensor, k: Tensor, v: Tensor, dropout_p: float, softmax_scale: float | None, causal: bool,
                        window_size_left: int, window_size_right: int, softcap: float, alibi_slopes: Tensor | None,
                        return_softmax: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """out [B, Sq, H, Dv], softmax_lse [B, H, Sq], S_dmask (empty without dropout or return_softmax) and rng_state,
    int64 [2] with dropout, else empty."""
    return _flash_attn_varlen_forward(q, k, v, None, None, q.shape[1], k.shape[1], dropout_p, softmax_scale, causal,
                                      window_size_left, window_size_right, softcap, alibi_slopes, return_softmax)


@torch.no_grad()
def _flash_attn_varlen_forward(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor,
                               max_seqlen_q: int, max_seqlen_k: int, dropout_p: float, softmax_scale: float | None,
                               causal: bool, window_size_left: int = -1, window_size_right: int = -1,
                               softcap: float = 0.0, alibi_slopes: Tensor | None = None, return_softmax: bool = False,
                               block_table: Tensor | None = None, leftpad_k: Tensor | None = None,
                               seqused_k: Tensor | None = None, zero_tensors: bool = False,
                               num_splits: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The same for packed sequences: out [Tq, H, Dv], softmax_lse [H, Tq]. zero_tensors zeroes the rows of out that are
    in no sequence; num_splits is the operator's own matter. block_table, leftpad_k, seqused_k: UnsupportedError."""
    for name, value in (("block_table", block_table), ("leftpad_k", leftpad_k), ("seqused_k", seqused_k)):
        if value is not None:
            raise unsupported(f"{name} of _flash_attn_varlen_forward is for inference and is not in this package")
    out, lse, probs, rng_state = _operators.attention(
        q, k, v, cu_seqlens_q, cu_seqlens_k, alibi_slopes, max_seqlen_q, max_seqlen_k, dropout_p, softmax_scale, causal,
        window_size_left, window_size_right, max(softcap, 0.0), False, return_softmax)
    if zero_tensors and cu_seqlens_q is not None:
        row = torch.arange(out.shape[0], device=out.device)
        outside = (row < cu_seqlens_q[0]) | (row >= cu_seqlens_q[-1])
        out = out.masked_fill(outside[:, None, None], 0.0)
    return out, lse, probs, rng_state


def _flash_attn_backward(dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, softmax_lse: Tensor,
                         dq: Tensor | None, dk: Tensor | None, dv: Tensor | None, dropout_p: float,
                         softmax_scale: float | None, causal: bool, window_size_left: int, window_size_right: int,
                         softcap: float, alibi_slopes: Tensor | None, deterministic: bool,
                         rng_state: Tensor | None = None) -> Tensor:
    """Writes dq, dk and dv, buffers of the caller's in the shapes of q, k and v, any strides with a contiguous
    head_dim (None: that gradient is not computed), and returns softmax_d f32 [B, H, Sq], the row sums of
    dout * out."""
    return _flash_attn_varlen_backward(dout, q, k, v, out, softmax_lse, dq, dk, dv, None, None, q.shape[1], k.shape[1],
                                       dropout_p, softmax_scale, causal, window_size_left, window_size_right, softcap,
                                       alibi_slopes, deterministic, rng_state)


@torch.no_grad()
def _flash_attn_varlen_backward(dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, softmax_lse: Tensor,
                                dq: Tensor | None, dk: Tensor | None, dv: Tensor | None, cu_seqlens_q: Tensor,
                                cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int, dropout_p: float,
                                softmax_scale: float | None, causal: bool, window_size_left: int,
                                window_size_right: int, softcap: float, alibi_slopes: Tensor | None,
                                deterministic: bool, rng_state: Tensor | None = None,
                                zero_tensors: bool = False) -> Tensor:
    """The same for packed sequences; softmax_lse and softmax_d are [H, Tq] (theirs has 128 unused rows a sequence
    more). zero_tensors zeroes the buffers first, for rows in no sequence."""
    q, k, v = split(q, k, v, cu_seqlens_q is not None)
    given = {name: buffer for name, buffer in (("dq", dq), ("dk", dk), ("dv", dv)) if buffer is not None}
    if zero_tensors:
        for buffer in given.values():
            buffer.zero_()
    delta = torch.empty_like(softmax_lse)
    keywords = shared_keywords(cu_seqlens_q, cu_seqlens_k, alibi_slopes, max_seqlen_q, max_seqlen_k, dropout_p,
                               softmax_scale, causal, window_size_left, window_size_right, softcap, rng_state, q.dtype)
    if deterministic:
        keywords["deterministic"] = True
    if not given:
        given = {"dq": torch.empty_like(q, memory_format=torch.contiguous_format)}
    _bridge.attn_bwd(layout(cu_seqlens_q), q=q, k=k, v=v, out=out, dout=dout, lse=softmax_lse, delta=delta,
                     flags=_native.ATTN_WRITE_DELTA, **given, **keywords)
    return delta
