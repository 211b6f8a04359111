# SPDX-License-Identifier: MIT
"""PyTorch's attention backward operators by the library's attn_bwd: each argument in PyTorch's own meaning.

Every implementation has its operator's arguments and works on tensors of any device. What an operator's forward did
decides what they mean: flash's diagonal ends bottom-right, that of the others starts top-left; flash draws dropout by
FlashAttention-2's map, the memory-efficient one by its own, and cuDNN by bits that nobody else can draw. Gradients get
the strides that PyTorch's meta functions promise, since compiled code asserts them. An LSE with longer rows passes as
it is."""
from __future__ import annotations

import torch

from .. import _native
from . import _attention_schemas as schemas
from ._attention_arguments import bias_gradient, bias_of, causal, dropout, empty_bshd, flash_diagonal, run, seqlens
from ._takeover import Fallback, register

Tensors = tuple[torch.Tensor | None, ...]


def flash_attention_backward(grad_out: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
                             out: torch.Tensor, logsumexp: torch.Tensor, cum_seq_q: torch.Tensor | None,
                             cum_seq_k: torch.Tensor | None, max_q: int, max_k: int, dropout_p: float, is_causal: bool,
                             philox_seed: torch.Tensor | None, philox_offset: torch.Tensor | None, *,
                             scale: float | None = None, window_size_left: int | None = None,
                             window_size_right: int | None = None) -> Tensors:
    """aten::_flash_attention_backward. Dense: [B,S,H,D], LSE [B,H,S]. With cum_seq_*: [T,H,D], LSE [H,T], in some
    versions [B,H,max_q]; rows that no sequence has get gradients of 0."""
    tensors = {"q": query, "k": key, "v": value, "out": out, "dout": grad_out}
    options = dropout(dropout_p, _native.DROPOUT_FLASH2, philox_seed, philox_offset)
    if cum_seq_q is None:
        max_q, max_k = query.shape[1], key.shape[1]
    options |= flash_diagonal(max_q, max_k, cum_seq_q, cum_seq_k, is_causal, window_size_left, window_size_right)
    if cum_seq_q is None:
        grads = {"dq": torch.empty_like(query), "dk": torch.empty_like(key), "dv": torch.empty_like(value)}
        run(_native.BSHD, grads, **tensors, lse=logsumexp, flash=True, scale=scale, **options)
    else:
        grads = {"dq": torch.zeros_like(query), "dk": torch.zeros_like(key), "dv": torch.zeros_like(value)}
        run(_native.THD, grads, **tensors, lse=logsumexp, flash=True, cu_seqlens_q=seqlens(cum_seq_q),
            cu_seqlens_kv=seqlens(cum_seq_k), max_seq_q=max_q, max_seq_kv=max_k, scale=scale, **options)
    return tuple(grads.values())


def sdpa_flash_backward(grad_out: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
                        out: torch.Tensor, logsumexp: torch.Tensor, cum_seq_q: torch.Tensor | None,
                        cum_seq_k: torch.Tensor | None, max_q: int, max_k: int, dropout_p: float, is_causal: bool,
                        philox_seed: torch.Tensor | None, philox_offset: torch.Tensor | None, *,
                        scale: float | None = None) -> Tensors:
    """aten::_scaled_dot_product_flash_attention_backward on dense tensors [B,H,S,D]. Its causal diagonal is flash's,
    bottom-right; scaled_dot_product_attention calls it causal for equal lengths alone."""
    if grad_out is None:
        return None, None, None
    if cum_seq_q is not None:
        raise Fallback("a dense call with cumulative lengths")
    options = dropout(dropout_p, _native.DROPOUT_FLASH2, philox_seed, philox_offset)
    options |= flash_diagonal(query.shape[2], key.shape[2], None, None, is_causal, None, None)
    grads = {"dq": torch.empty_like(query), "dk": torch.empty_like(key), "dv": torch.empty_like(value)}
    run(_native.BHSD, grads, q=query, k=key, v=value, out=out, dout=grad_out, lse=logsumexp, flash=True, scale=scale,
        **options)
    return tuple(grads.values())


def sdpa_cpu_backward(grad_out: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
                      out: torch.Tensor, logsumexp: torch.Tensor, dropout_p: float, is_causal: bool, *,
                      attn_mask: torch.Tensor | None = None, scale: float | None = None) -> Tensors:
    """aten::_scaled_dot_product_flash_attention_for_cpu_backward: [B,H,S,D], causal top-left. float64 too."""
    if grad_out is None:
        return None, None, None
    if dropout_p:
        raise Fallback("dropout in the CPU's flash operator, which has none")
    grads = {"dq": empty_bshd(query), "dk": empty_bshd(key), "dv": empty_bshd(value)}
    run(_native.BHSD, grads, q=query, k=key, v=value, out=out, dout=grad_out, lse=logsumexp,
        bias=bias_of(attn_mask, query), mask=causal(is_causal), scale=scale)
    return tuple(grads.values())


_NO_BIAS = "the gradient of a bias that is not given"  # PyTorch refuses it with an error of its own
_EFFICIENT_MASKS = {0: "MASK_NONE", 1: "MASK_CAUSAL_TOP_LEFT", 2: "MASK_CAUSAL_BOTTOM_RIGHT"}


def efficient_attention_backward(grad_out_: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
                                 bias: torch.Tensor | None, out: torch.Tensor, cu_seqlens_q: torch.Tensor | None,
                                 cu_seqlens_k: torch.Tensor | None, max_seqlen_q: int, max_seqlen_k: int,
                                 logsumexp: torch.Tensor, dropout_p: float, philox_seed: torch.Tensor | None,
                                 philox_offset: torch.Tensor | None, custom_mask_type: int, bias_requires_grad: bool,
                                 *, scale: float | None = None, num_splits_key: int | None = None,
                                 window_size: int | None = None, shared_storage_dqdkdv: bool = False) -> Tensors:
    """aten::_efficient_attention_backward: [B,S,H,D], LSE [B,H,S rounded up to 32]; with cu_seqlens_* [1,T,H,D] and
    LSE [sequences,H,max_seqlen_q rounded up]. A window hides key j where j <= i + shift - window_size, with the shift
    of the causal mask. num_splits_key is PyTorch's own matter: the keys always run in parallel here. Packed dropout and
    bottom-right windows follow the forward, from which PyTorch's backward differs."""
    if grad_out_ is None:
        return None, None, None, None
    if bias_requires_grad and bias is None:
        raise Fallback(_NO_BIAS)
    if custom_mask_type not in _EFFICIENT_MASKS:
        raise Fallback(f"custom_mask_type is {custom_mask_type}")
    options = dropout(dropout_p, _native.DROPOUT_MEM_EFF, philox_seed, philox_offset)
    options |= {"mask": getattr(_native, _EFFICIENT_MASKS[custom_mask_type]), "scale": scale}
    packed = cu_seqlens_q is not None
    if window_size is not None and window_size > 0:
        if custom_mask_type == 0:
            raise Fallback("a window of the memory-efficient operator without a causal mask")
        options["window_left"] = window_size - 1
    if shared_storage_dqdkdv:
        if query.shape != key.shape or query.shape != value.shape:
            raise Fallback("shared_storage_dqdkdv with tensors of unequal shapes")
        chunk = query.new_empty((*query.shape[:2], 3, *query.shape[2:]))
        grads = dict(zip(("dq", "dk", "dv"), chunk.unbind(2)))
    else:
        grads = {name: tensor.new_empty(tensor.shape) for name, tensor in (("dq", query), ("dk", key), ("dv", value))}
    tensors = {"q": query, "k": key, "v": value, "out": out, "dout": grad_out_}
    if packed:
        if bias is not None:
            raise Fallback("a bias with cumulative lengths")
        for grad in grads.values():
            grad.zero_()
        run(_native.THD, {name: grad.squeeze(0) for name, grad in grads.items()},
            **{name: tensor.squeeze(0) for name, tensor in tensors.items()}, lse=logsumexp, flash=False,
            cu_seqlens_q=seqlens(cu_seqlens_q), cu_seqlens_kv=seqlens(cu_seqlens_k), max_seq_q=max_seqlen_q,
            max_seq_kv=max_seqlen_k, **options)
        return (*grads.values(), None)
    bias, dbias = bias_of(bias, query), None
    if bias is not None and bias_requires_grad:
        bias, dbias = bias_gradient(bias)
    run(_native.BSHD, {**grads, "dbias": dbias}, **tensors, lse=logsumexp, flash=False, bias=bias, **options)
    return (*grads.values(), dbias)


def sdpa_efficient_backward(grad_out_: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
                            attn_bias: torch.Tensor | None, out: torch.Tensor, logsumexp: torch.Tensor,
                            philox_seed: torch.Tensor | None, philox_offset: torch.Tensor | None, dropout_p: float,
                            grad_input_mask: list[bool], is_causal: bool = False, *,
                            scale: float | None = None) -> Tensors:
    """aten::_scaled_dot_product_efficient_attention_backward: [B,H,S,D], LSE [B,H,S rounded up to 32]; the gradient of
    the bias has the sizes of the operator's argument, which scaled_dot_product_attention expands."""
    if grad_out_ is None:
        return None, None, None, None
    if grad_input_mask[3] and attn_bias is None:
        raise Fallback(_NO_BIAS)
    options = dropout(dropout_p, _native.DROPOUT_MEM_EFF, philox_seed, philox_offset)
    bias, dbias = bias_of(attn_bias, query), None
    if bias is not None and grad_input_mask[3]:
        bias, dbias = bias_gradient(bias)
    grads = {name: empty_bshd(tensor) if wanted else None for name, tensor, wanted in
             zip(("dq", "dk", "dv"), (query, key, value), grad_input_mask)}
    run(_native.BHSD, {**grads, "dbias": dbias}, q=query, k=key, v=value, out=out, dout=grad_out_,
        lse=logsumexp, flash=False, bias=bias, mask=causal(is_causal), scale=scale, **options)
    return (*grads.values(), None if dbias is None else dbias.view(attn_bias.shape))


def cudnn_attention_backward(grad_out: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
                             out: torch.Tensor, logsumexp: torch.Tensor, philox_seed: torch.Tensor | None,
                             philox_offset: torch.Tensor | None, attn_bias: torch.Tensor | None,
                             cum_seq_q: torch.Tensor | None, cum_seq_k: torch.Tensor | None, max_q: int, max_k: int,
                             dropout_p: float, is_causal: bool, *, scale: float | None = None) -> Tensors:
    """aten::_cudnn_attention_backward and aten::_scaled_dot_product_cudnn_attention_backward: [B,H,S,D], LSE [B,H,S]
    or [B,H,S,1]; with cum_seq_* [T,H,D], LSE [T,H,1]. Causal top-left. Dropout falls back."""
    if grad_out is None:
        return None, None, None
    if dropout_p:
        raise Fallback("cuDNN's dropout, whose random numbers cannot be drawn outside it")
    tensors = {"q": query, "k": key, "v": value, "out": out, "dout": grad_out}
    options = {"mask": causal(is_causal), "scale": scale}
    if cum_seq_q is None:
        grads = {"dq": torch.empty_like(query), "dk": torch.empty_like(key), "dv": torch.empty_like(value)}
        run(_native.BHSD, grads, **tensors, lse=logsumexp, bias=bias_of(attn_bias, query), **options)
        return tuple(grads.values())
    if attn_bias is not None:
        raise Fallback("a bias with cumulative lengths")
    rows = query.shape[:2]
    if query.dim() != 3 or logsumexp.shape[:2] != rows or logsumexp.numel() != rows.numel():
        raise Fallback("an LSE of cuDNN that is not [T,H,1]")
    grads = {"dq": torch.zeros_like(query), "dk": torch.zeros_like(key), "dv": torch.zeros_like(value)}
    run(_native.THD, grads, **tensors, lse=logsumexp.reshape(rows).t(), cu_seqlens_q=seqlens(cum_seq_q),
        cu_seqlens_kv=seqlens(cum_seq_k), max_seq_q=max_q, max_seq_kv=max_k, **options)
    return tuple(grads.values())


def overrideable_backward(grad_out: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
                          attn_bias: torch.Tensor | None, grad_input_mask: list[bool], out: torch.Tensor,
                          logsumexp: torch.Tensor, cum_seq_q: torch.Tensor | None, cum_seq_k: torch.Tensor | None,
                          max_q: int, max_k: int, dropout_p: float, is_causal: bool, philox_seed: torch.Tensor | None,
                          philox_offset: torch.Tensor | None, *, scale: float | None = None) -> Tensors:
    """aten::_scaled_dot_product_fused_attention_overrideable_backward: [B,H,S,D], LSE [B,H,S], causal top-left. PyTorch
    has no kernel of it for the CPU and CUDA, so a fallback ends in PyTorch's error."""
    if grad_out is None:
        return None, None, None, None
    if dropout_p:
        raise Fallback("dropout of an overridden forward, whose random numbers are unknown")
    if cum_seq_q is not None:
        raise Fallback("an overridden forward with cumulative lengths")
    bias, dbias = bias_of(attn_bias, query), None
    if bias is not None and grad_input_mask[3]:
        bias, _ = bias_gradient(bias)
        dbias = torch.empty_like(bias)
    grads = {name: torch.empty_like(tensor) if wanted else None for name, tensor, wanted in
             zip(("dq", "dk", "dv"), (query, key, value), grad_input_mask)}
    run(_native.BHSD, {**grads, "dbias": dbias}, q=query, k=key, v=value, out=out, dout=grad_out,
        lse=logsumexp, bias=bias, mask=causal(is_causal), scale=scale)
    return (*grads.values(), None if dbias is None else dbias.view(attn_bias.shape))


register("_flash_attention_backward", ("CUDA",), flash_attention_backward, schemas.FLASH)
register("_scaled_dot_product_flash_attention_backward", ("CUDA",), sdpa_flash_backward, schemas.SDPA_FLASH)
register("_scaled_dot_product_flash_attention_for_cpu_backward", ("CPU",), sdpa_cpu_backward, schemas.SDPA_CPU)
register("_efficient_attention_backward", ("CUDA",), efficient_attention_backward, schemas.EFFICIENT)
register("_scaled_dot_product_efficient_attention_backward", ("CUDA",), sdpa_efficient_backward,
         schemas.SDPA_EFFICIENT)
register("_cudnn_attention_backward", ("CUDA",), cudnn_attention_backward, schemas.CUDNN)
register("_scaled_dot_product_cudnn_attention_backward", ("CUDA",), cudnn_attention_backward, schemas.SDPA_CUDNN)
register("_scaled_dot_product_fused_attention_overrideable_backward", ("CPU", "CUDA"), overrideable_backward,
         schemas.OVERRIDEABLE)
