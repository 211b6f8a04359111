# SPDX-License-Identifier: MIT
"""PyTorch's attention backward operators by the library's attn_bwd: each argument in PyTorch's own meaning.

Every implementation has its operator's arguments and works on tensors of any device. What an operator's forward did
decides what they mean: flash's diagonal ends bottom-right, that of the others starts top-left; flash draws dropout by
FlashAttention-2's map, the memory-efficient one by its own, and cuDNN by bits that nobody else can draw. Gradients get
the strides that PyTorch's meta functions promise, since compiled code asserts them. An LSE with
longer rows passes as it is."""
from __future__ import annotations

import functools
import math

import torch

from .. import _native
from . import _attention_schemas as schemas
from ._bridge import attn_bwd, attn_fwd
from ._takeover import Fallback, register

Tensors = tuple[torch.Tensor | None, ...]


def _inexact_lse(q: torch.Tensor) -> bool:
    """Whether PyTorch's forward on this tensor gives an LSE too rough for a backward that trusts it: in f32 on GPUs it
    is up to 9e-6 off, always to one side, which every gradient would have as a relative error
    (docs/determinism-accuracy.md)."""
    return q.dtype == torch.float32 and q.device.type == "cuda"


def _run(layout: int, grads: dict[str, torch.Tensor | None], *, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
         out: torch.Tensor, lse: torch.Tensor, flash: bool | None = None, **keywords) -> None:
    """Fills the gradients. Without a query, a key or a head_dim nothing depends on anything: zeros. In f32 on GPUs the
    library's own forward gives O and LSE anew. flash: which forward of PyTorch's gave the LSE; None: one of natural
    logarithms for sure."""
    wanted = {name: grad for name, grad in grads.items() if grad is not None}
    if q.numel() == 0 or k.numel() == 0 or v.numel() == 0:
        for grad in wanted.values():
            grad.zero_()
    elif wanted:
        if _inexact_lse(q):
            out, lse = torch.empty_like(out), lse.new_empty(_lse_shape(layout, q))
            attn_fwd(layout, q=q, k=k, v=v, out=out, lse=lse,
                     **{name: value for name, value in keywords.items() if name != "dout"})
        elif flash is not None:
            lse = _natural(lse, flash)
        attn_bwd(layout, q=q, k=k, v=v, out=out, lse=lse, **wanted, **keywords)


def _lse_shape(layout: int, q: torch.Tensor) -> tuple[int, ...]:
    if layout == _native.THD:
        return (q.shape[1], q.shape[0])
    return q.shape[:3] if layout == _native.BHSD else (q.shape[0], q.shape[2], q.shape[1])


def _causal(is_causal: bool) -> int:
    return _native.MASK_CAUSAL_TOP_LEFT if is_causal else _native.MASK_NONE


@functools.cache
def _has_binary_lse(device: torch.device, flash: bool) -> bool:
    """Whether the forward of a ROCm build gives the LSE as a logarithm to the base 2, as AOTriton did before 0.11. 16
    keys of equal weight tell: ln 16 is 2.77, log2 16 is 4."""
    if torch.cuda.is_current_stream_capturing():
        raise Fallback("the first call on ROCm inside a graph capture, before the base of its LSE is known")
    zeros = torch.zeros(1, 1, 16, 64, dtype=torch.float16, device=device)
    if flash:
        lse = torch.ops.aten._scaled_dot_product_flash_attention(zeros, zeros, zeros)[1]
    else:
        lse = torch.ops.aten._scaled_dot_product_efficient_attention(zeros, zeros, zeros, None, True)[1]
    return lse.flatten()[0].item() > 3.4


def _natural(lse: torch.Tensor, flash: bool) -> torch.Tensor:
    """The LSE of a forward of PyTorch's GPU kernels as a natural logarithm."""
    if torch.version.hip and _has_binary_lse(lse.device, flash):
        return lse * math.log(2)
    return lse


def _seqlens(cu_seqlens: torch.Tensor) -> torch.Tensor:
    return cu_seqlens if cu_seqlens.dtype == torch.int32 else cu_seqlens.to(torch.int32)


def _bias(bias: torch.Tensor | None, q: torch.Tensor) -> torch.Tensor | None:
    """The bias with four dimensions and keys next to each other. Bool passes as the mask of bytes that it is."""
    if bias is None:
        return None
    if bias.dtype not in (q.dtype, torch.bool) and not (bias.dtype == torch.float32 and q.dtype != torch.float64):
        raise Fallback(f"an attention bias of {bias.dtype} with inputs of {q.dtype}")
    if bias.dim() > 4:
        raise Fallback(f"an attention bias of {bias.dim()} dimensions")
    for _ in range(4 - bias.dim()):
        bias = bias.unsqueeze(0)
    return bias.contiguous() if bias.shape[3] > 1 and bias.stride(3) not in (0, 1) else bias


def _bias_gradient(bias: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The bias and memory for its gradient, which has the bias's sizes and rows of a multiple of 16 elements. An
    expanded bias is copied to its sizes: the library sums what strides of 0 broadcast, and here the caller does."""
    if bias.dtype == torch.bool:
        raise Fallback("the gradient of a bool mask")
    if any(size > 1 and stride == 0 for size, stride in zip(bias.shape, bias.stride())):
        bias = bias.contiguous()
    keys = bias.shape[3]
    return bias, bias.new_empty((*bias.shape[:3], (keys + 15) // 16 * 16))[..., :keys]


def _value(tensor: torch.Tensor) -> int:
    """A 64-bit number of host memory, read as unsigned."""
    return int(tensor.item()) & (2**64 - 1)


def _dropout(p: float, dropout_map: int, seed: torch.Tensor | None, offset: torch.Tensor | None) -> dict:
    """Keywords of PyTorch's own dropout state. Two tensors of one number, or one of both (FlashAttention's rng_state);
    in host memory they are passed by value, else by address, which a CUDA graph reads anew at each replay."""
    if p == 0.0:
        return {}
    if not 0.0 < p < 1.0:
        raise Fallback(f"dropout_p is {p}")
    if torch.version.hip:
        raise Fallback("dropout on ROCm: its forward draws other random numbers than the CUDA kernels")
    if seed is None or (offset is None and seed.numel() != 2):
        raise Fallback("dropout without the seed and the offset of its forward")
    found = {"dropout_p": p, "dropout_map": dropout_map}
    if seed.numel() == 2:
        if seed.device.type != "cpu":
            address = seed.data_ptr()
            return {**found, "dropout_seed_ptr": address, "dropout_offset_ptr": address + 8 * seed.stride(-1)}
        seed, offset = seed.view(torch.int64).reshape(2).unbind()
    for name, tensor in (("seed", seed), ("offset", offset)):
        if tensor.device.type == "cpu":
            found[f"dropout_{name}"] = _value(tensor)
        else:
            found[f"dropout_{name}_ptr"] = tensor.data_ptr()
    return found


def _flash_diagonal(q_rows: int, k_rows: int, cu_seqlens_q: torch.Tensor | None, cu_seqlens_k: torch.Tensor | None,
                    is_causal: bool, left: int | None, right: int | None) -> dict:
    """The pair of windows in FlashAttention-2's reading. ROCm's kernels have other conventions off the square."""
    left, right = -1 if left is None else left, -1 if right is None else right
    if torch.version.hip and (is_causal or left >= 0 or right >= 0):
        same = cu_seqlens_q is None or cu_seqlens_q.data_ptr() == cu_seqlens_k.data_ptr()
        if not same or q_rows != k_rows or left >= 0 or right >= 0:
            raise Fallback("causal attention with unequal lengths, or a window, on ROCm")
    return {"flash_window": (bool(is_causal), left, right)}


def flash_attention_backward(grad_out: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
                             out: torch.Tensor, logsumexp: torch.Tensor, cum_seq_q: torch.Tensor | None,
                             cum_seq_k: torch.Tensor | None, max_q: int, max_k: int, dropout_p: float, is_causal: bool,
                             philox_seed: torch.Tensor | None, philox_offset: torch.Tensor | None, *,
                             scale: float | None = None, window_size_left: int | None = None,
                             window_size_right: int | None = None) -> Tensors:
    """aten::_flash_attention_backward. Dense: [B,S,H,D], LSE [B,H,S]. With cum_seq_*: [T,H,D], LSE [H,T], in some
    versions [B,H,max_q]; rows that no sequence has get gradients of 0."""
    tensors = {"q": query, "k": key, "v": value, "out": out, "dout": grad_out}
    options = _dropout(dropout_p, _native.DROPOUT_FLASH2, philox_seed, philox_offset)
    if cum_seq_q is None:
        max_q, max_k = query.shape[1], key.shape[1]
    options |= _flash_diagonal(max_q, max_k, cum_seq_q, cum_seq_k, is_causal, window_size_left, window_size_right)
    if cum_seq_q is None:
        grads = {"dq": torch.empty_like(query), "dk": torch.empty_like(key), "dv": torch.empty_like(value)}
        _run(_native.BSHD, grads, **tensors, lse=logsumexp, flash=True, scale=scale, **options)
    else:
        grads = {"dq": torch.zeros_like(query), "dk": torch.zeros_like(key), "dv": torch.zeros_like(value)}
        _run(_native.THD, grads, **tensors, lse=logsumexp, flash=True, cu_seqlens_q=_seqlens(cum_seq_q),
             cu_seqlens_kv=_seqlens(cum_seq_k), max_seq_q=max_q, max_seq_kv=max_k, scale=scale, **options)
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
    options = _dropout(dropout_p, _native.DROPOUT_FLASH2, philox_seed, philox_offset)
    options |= _flash_diagonal(query.shape[2], key.shape[2], None, None, is_causal, None, None)
    grads = {"dq": torch.empty_like(query), "dk": torch.empty_like(key), "dv": torch.empty_like(value)}
    _run(_native.BHSD, grads, q=query, k=key, v=value, out=out, dout=grad_out, lse=logsumexp, flash=True, scale=scale,
         **options)
    return tuple(grads.values())


def _empty_bshd(like: torch.Tensor) -> torch.Tensor:
    """[B,H,S,D] whose memory is [B,S,H,D]."""
    return torch.empty_permuted(like.shape, (0, 2, 1, 3), dtype=like.dtype, device=like.device)


def sdpa_cpu_backward(grad_out: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
                      out: torch.Tensor, logsumexp: torch.Tensor, dropout_p: float, is_causal: bool, *,
                      attn_mask: torch.Tensor | None = None, scale: float | None = None) -> Tensors:
    """aten::_scaled_dot_product_flash_attention_for_cpu_backward: [B,H,S,D], causal top-left. float64 too."""
    if grad_out is None:
        return None, None, None
    if dropout_p:
        raise Fallback("dropout in the CPU's flash operator, which has none")
    grads = {"dq": _empty_bshd(query), "dk": _empty_bshd(key), "dv": _empty_bshd(value)}
    _run(_native.BHSD, grads, q=query, k=key, v=value, out=out, dout=grad_out, lse=logsumexp,
         bias=_bias(attn_mask, query), mask=_causal(is_causal), scale=scale)
    return tuple(grads.values())


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
    if custom_mask_type not in _EFFICIENT_MASKS:
        raise Fallback(f"custom_mask_type is {custom_mask_type}")
    options = _dropout(dropout_p, _native.DROPOUT_MEM_EFF, philox_seed, philox_offset)
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
        _run(_native.THD, {name: grad.squeeze(0) for name, grad in grads.items()},
             **{name: tensor.squeeze(0) for name, tensor in tensors.items()}, lse=logsumexp, flash=False,
             cu_seqlens_q=_seqlens(cu_seqlens_q), cu_seqlens_kv=_seqlens(cu_seqlens_k), max_seq_q=max_seqlen_q,
             max_seq_kv=max_seqlen_k, **options)
        return (*grads.values(), None)
    bias, dbias = _bias(bias, query), None
    if bias is not None and bias_requires_grad:
        bias, dbias = _bias_gradient(bias)
    _run(_native.BSHD, {**grads, "dbias": dbias}, **tensors, lse=logsumexp, flash=False, bias=bias,
         **options)
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
    options = _dropout(dropout_p, _native.DROPOUT_MEM_EFF, philox_seed, philox_offset)
    bias, dbias = _bias(attn_bias, query), None
    if bias is not None and grad_input_mask[3]:
        bias, dbias = _bias_gradient(bias)
    grads = {name: _empty_bshd(tensor) if wanted else None for name, tensor, wanted in
             zip(("dq", "dk", "dv"), (query, key, value), grad_input_mask)}
    _run(_native.BHSD, {**grads, "dbias": dbias}, q=query, k=key, v=value, out=out, dout=grad_out_,
         lse=logsumexp, flash=False, bias=bias, mask=_causal(is_causal), scale=scale, **options)
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
    options = {"mask": _causal(is_causal), "scale": scale}
    if cum_seq_q is None:
        grads = {"dq": torch.empty_like(query), "dk": torch.empty_like(key), "dv": torch.empty_like(value)}
        _run(_native.BHSD, grads, **tensors, lse=logsumexp, bias=_bias(attn_bias, query),
             **options)
        return tuple(grads.values())
    if attn_bias is not None:
        raise Fallback("a bias with cumulative lengths")
    rows = query.shape[:2]
    if query.dim() != 3 or logsumexp.shape[:2] != rows or logsumexp.numel() != rows.numel():
        raise Fallback("an LSE of cuDNN that is not [T,H,1]")
    grads = {"dq": torch.zeros_like(query), "dk": torch.zeros_like(key), "dv": torch.zeros_like(value)}
    _run(_native.THD, grads, **tensors, lse=logsumexp.reshape(rows).t(), cu_seqlens_q=_seqlens(cum_seq_q),
         cu_seqlens_kv=_seqlens(cum_seq_k), max_seq_q=max_q, max_seq_kv=max_k, **options)
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
    bias, dbias = _bias(attn_bias, query), None
    if bias is not None and grad_input_mask[3]:
        bias, _ = _bias_gradient(bias)
        dbias = torch.empty_like(bias)
    grads = {name: torch.empty_like(tensor) if wanted else None for name, tensor, wanted in
             zip(("dq", "dk", "dv"), (query, key, value), grad_input_mask)}
    _run(_native.BHSD, {**grads, "dbias": dbias}, q=query, k=key, v=value, out=out, dout=grad_out,
         lse=logsumexp, bias=bias, mask=_causal(is_causal), scale=scale)
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
