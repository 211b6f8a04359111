# SPDX-License-Identifier: MIT
"""Forward and backward of one call, below autograd and the dispatcher: which forward runs, where gradients go."""
from __future__ import annotations

import torch
from torch import Tensor

from ..torch import _bridge
from ._forward import own_forward, torch_forward, torch_takes
from ._probabilities import signed_probabilities
from ._problem import check_extras, layout, shared_keywords, split


def forward(q: Tensor, k: Tensor | None, v: Tensor | None, cu_seqlens_q: Tensor | None, cu_seqlens_k: Tensor | None,
            alibi_slopes: Tensor | None, max_seqlen_q: int, max_seqlen_k: int, dropout_p: float, scale: float | None,
            causal: bool, window_left: int, window_right: int, softcap: float, deterministic: bool, return_probs: bool
            ) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """out, LSE, S_dmask (None unless asked for and with dropout) and the state of the random numbers (None without
    dropout)."""
    q, k, v = split(q, k, v, cu_seqlens_q is not None)
    check_extras(q, cu_seqlens_q, cu_seqlens_k, alibi_slopes)
    tensors = (q, k, v, cu_seqlens_q, cu_seqlens_k, alibi_slopes)
    if torch_takes(*tensors, max_seqlen_k, dropout_p, causal, window_left, window_right, softcap):
        return torch_forward(*tensors, max_seqlen_q, max_seqlen_k, dropout_p, scale, causal, window_left, window_right,
                             return_probs)
    settings = (max_seqlen_q, max_seqlen_k, dropout_p, scale, causal, window_left, window_right, softcap)
    out, lse, rng_state = own_forward(*tensors, *settings)
    probs = None
    if return_probs and dropout_p > 0:
        probs = signed_probabilities(*tensors, *settings, rng_state)
    return out, lse, probs, rng_state


def _gradient_like(tensor: Tensor) -> Tensor:
    buffer = torch.empty_like(tensor)  # with the tensor's own order of dimensions, unless head_dim is not the inmost
    return buffer if buffer.stride(-1) == 1 else tensor.new_empty(tensor.shape)


def gradient_buffers(q: Tensor, k: Tensor | None, v: Tensor | None, wanted: int) -> list[Tensor | None]:
    """Buffers in the packing of the inputs; bit 0 of `wanted` is q's (or qkv's), 1 is k's (or kv's), 2 is v's. None for
    what is not wanted."""
    return [_gradient_like(tensor) if tensor is not None and wanted >> bit & 1 else None
            for bit, tensor in enumerate((q, k, v))]


def backward(dout: Tensor, dlse: Tensor | None, q: Tensor, k: Tensor | None, v: Tensor | None, out: Tensor, lse: Tensor,
             rng_state: Tensor | None, cu_seqlens_q: Tensor | None, cu_seqlens_k: Tensor | None,
             alibi_slopes: Tensor | None, max_seqlen_q: int, max_seqlen_k: int, dropout_p: float, scale: float | None,
             causal: bool, window_left: int, window_right: int, softcap: float, deterministic: bool, wanted: int
             ) -> list[Tensor | None]:
    """The gradients of q, k and v in the packing of the inputs, None where they are not wanted."""
    dq, dk, dv = gradients = gradient_buffers(q, k, v, wanted)
    if k is None:
        dq, dk, dv = dq.unbind(-3)
    elif v is None and dk is not None:
        dk, dv = dk.unbind(-3)
    q, k, v = split(q, k, v, cu_seqlens_q is not None)
    keywords = shared_keywords(cu_seqlens_q, cu_seqlens_k, alibi_slopes, max_seqlen_q, max_seqlen_k, dropout_p, scale,
                               causal, window_left, window_right, softcap, rng_state, q.dtype)
    if deterministic:
        keywords["deterministic"] = True
    _bridge.attn_bwd(layout(cu_seqlens_q), q=q, k=k, v=v, out=out, dout=dout, lse=lse, dlse=dlse, dq=dq, dk=dk, dv=dv,
                     **keywords)
    return gradients
