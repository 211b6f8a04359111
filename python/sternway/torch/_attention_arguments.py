# SPDX-License-Identifier: MIT
"""What attention_ops.py needs of PyTorch's arguments: dropout state, biases, diagonals, the base of an LSE, and the
call of the library."""
from __future__ import annotations

import functools
import math

import torch

from .. import _native
from ._bridge import attn_bwd, attn_fwd
from ._takeover import Fallback


def _inexact_lse(q: torch.Tensor) -> bool:
    """Whether PyTorch's forward on this tensor gives an LSE too rough for a backward that trusts it: in f32 on GPUs it
    is up to 9e-6 off, always to one side, which every gradient would have as a relative error
    (docs/determinism-accuracy.md)."""
    return q.dtype == torch.float32 and q.device.type == "cuda"


def run(layout: int, grads: dict[str, torch.Tensor | None], *, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
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


def causal(is_causal: bool) -> int:
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


def seqlens(cu_seqlens: torch.Tensor) -> torch.Tensor:
    return cu_seqlens if cu_seqlens.dtype == torch.int32 else cu_seqlens.to(torch.int32)


def bias_of(bias: torch.Tensor | None, q: torch.Tensor) -> torch.Tensor | None:
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


def bias_gradient(bias: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
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


def dropout(p: float, dropout_map: int, seed: torch.Tensor | None, offset: torch.Tensor | None) -> dict:
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


def flash_diagonal(q_rows: int, k_rows: int, cu_seqlens_q: torch.Tensor | None, cu_seqlens_k: torch.Tensor | None,
                   is_causal: bool, left: int | None, right: int | None) -> dict:
    """The pair of windows in FlashAttention-2's reading. ROCm's kernels have other conventions off the square."""
    left, right = -1 if left is None else left, -1 if right is None else right
    if torch.version.hip and (is_causal or left >= 0 or right >= 0):
        same = cu_seqlens_q is None or cu_seqlens_q.data_ptr() == cu_seqlens_k.data_ptr()
        if not same or q_rows != k_rows or left >= 0 or right >= 0:
            raise Fallback("causal attention with unequal lengths, or a window, on ROCm")
    return {"flash_window": (bool(is_causal), left, right)}


def empty_bshd(like: torch.Tensor) -> torch.Tensor:
    """[B,H,S,D] whose memory is [B,S,H,D]."""
    return torch.empty_permuted(like.shape, (0, 2, 1, 3), dtype=like.dtype, device=like.device)
