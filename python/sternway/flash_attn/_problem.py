# SPDX-License-Identifier: MIT
"""What one call of the flash-attn functions asks for: the three tensors out of their packings, checked, and the
keywords that the library's calls share between forward and backward."""
from __future__ import annotations

import torch

from .. import _native


def invalid(text: str) -> Exception:
    """InvalidError with this text, for what is found wrong before the library sees it."""
    return _native.InvalidError(f"sternway.flash_attn: {text}")


def unsupported(text: str) -> Exception:
    """UnsupportedError with this text, for what flash-attn takes and this package does not."""
    return _native.UnsupportedError(f"sternway.flash_attn: {text}")


def _check_packing(name: str, tensor: torch.Tensor, rank: int, parts: int, rows: str) -> None:
    shape, heads = tensor.shape, "H" if parts == 3 else "Hk"
    if len(shape) != rank:
        raise invalid(f"{name} has {len(shape)} dimensions ({list(shape)}), expected [{rows}, {parts}, {heads}, D]")
    if shape[-3] != parts:
        raise invalid(f"{name} has size {shape[-3]} in its dimension {rank - 3} ({list(shape)}), expected {parts}")


def split(q: torch.Tensor, k: torch.Tensor | None, v: torch.Tensor | None, packed: bool
          ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Views of q, k and v, whichever of them share a tensor: without k, q is qkv [..., 3, H, D]; without v, k is kv
    [..., 2, Hk, D]. `packed` tells [T, H, D] from [B, S, H, D]. Raises InvalidError for a rank or a size that does
    not fit; nothing is copied."""
    rank, rows = (3, "T") if packed else (4, "B, S")
    if k is None:
        _check_packing("qkv", q, rank + 1, 3, rows)
        q, k, v = q.unbind(-3)
    elif v is None:
        _check_packing("kv", k, rank + 1, 2, rows)
        k, v = k.unbind(-3)
    shape_q, shape_k, shape_v = q.shape, k.shape, v.shape
    for name, shape in (("q", shape_q), ("k", shape_k), ("v", shape_v)):
        if len(shape) != rank:
            raise invalid(f"{name} has {len(shape)} dimensions ({list(shape)}), expected [{rows}, H, D]")
    if shape_q[-1] != shape_k[-1]:
        raise invalid(f"q has head_dim {shape_q[-1]}, k has {shape_k[-1]}")
    if shape_k != shape_v and shape_k[:-1] != shape_v[:-1]:
        raise invalid(f"k {list(shape_k)} and v {list(shape_v)} differ in more than head_dim")
    heads, heads_kv = shape_q[-2], shape_k[-2]
    if heads != heads_kv and (heads_kv == 0 or heads % heads_kv != 0):
        raise invalid(f"q has {heads} heads, not a multiple of the {heads_kv} of k and v")
    if not packed and shape_q[0] != shape_k[0]:
        raise invalid(f"q has batch {shape_q[0]}, k and v have {shape_k[0]}")
    dtype, device = q.dtype, q.device
    for name, tensor in (("k", k), ("v", v)):
        if tensor.dtype != dtype:
            raise invalid(f"{name} is {tensor.dtype}, q is {dtype}")
        if tensor.device != device:
            raise invalid(f"{name} is on {tensor.device}, q on {device}")
    return q, k, v


def check_extras(q: torch.Tensor, cu_seqlens_q: torch.Tensor | None, cu_seqlens_k: torch.Tensor | None,
                 alibi_slopes: torch.Tensor | None) -> None:
    """Device, type and shape of cu_seqlens_* and alibi_slopes, which the forward may hand to PyTorch. Raises
    InvalidError."""
    if cu_seqlens_q is not None:
        for name, tensor in (("cu_seqlens_q", cu_seqlens_q), ("cu_seqlens_k", cu_seqlens_k)):
            if tensor is None or tensor.dtype != torch.int32 or tensor.dim() != 1 or tensor.shape[0] == 0:
                seen = None if tensor is None else f"{tensor.dtype} {list(tensor.shape)}"
                raise invalid(f"{name} is {seen}, expected int32 [B + 1]")
            if tensor.device != q.device:
                raise invalid(f"{name} is on {tensor.device}, q on {q.device}")
        if cu_seqlens_q.shape != cu_seqlens_k.shape:
            raise invalid(f"cu_seqlens_q {list(cu_seqlens_q.shape)} and cu_seqlens_k {list(cu_seqlens_k.shape)} differ")
    if alibi_slopes is None:
        return
    batch = q.shape[0] if cu_seqlens_q is None else cu_seqlens_q.shape[0] - 1
    if alibi_slopes.device != q.device:
        raise invalid(f"alibi_slopes is on {alibi_slopes.device}, q on {q.device}")
    if alibi_slopes.dtype != (torch.float64 if q.dtype == torch.float64 else torch.float32):
        raise invalid(f"alibi_slopes is {alibi_slopes.dtype}, expected float32 (float64 beside a float64 q)")
    if tuple(alibi_slopes.shape) not in ((q.shape[-2],), (batch, q.shape[-2])):
        raise invalid(f"alibi_slopes has shape {list(alibi_slopes.shape)}, expected [{q.shape[-2]}] or "
                      f"[{batch}, {q.shape[-2]}]")


def layout(cu_seqlens_q: torch.Tensor | None) -> int:
    """The library's layout number."""
    return _native.BSHD if cu_seqlens_q is None else _native.THD


def shared_keywords(cu_seqlens_q: torch.Tensor | None, cu_seqlens_k: torch.Tensor | None,
                    alibi_slopes: torch.Tensor | None, max_seqlen_q: int, max_seqlen_k: int, dropout_p: float,
                    scale: float | None, causal: bool, window_left: int, window_right: int, softcap: float,
                    rng_state: torch.Tensor | None, dtype: torch.dtype) -> dict:
    """What forward, backward and dropout mask are told alike. The mask is FlashAttention-2's reading of its windows. In
    f32, which FlashAttention-2 lacks, causal ALiBi is -slope*|i + shift - j|: its own slope*j makes scores of hundreds,
    whose rounding is seen (4e-6 instead of 3e-7 with 517 keys and slopes to 0.3 on an H100). Dropout bits follow
    FlashAttention-2's map, seed and offset are the two words of rng_state, read where they lie."""
    keywords = {"flash_window": (bool(causal), window_left, window_right), "scale": scale,
                "alibi_slopes": alibi_slopes}
    if alibi_slopes is not None and dtype == torch.float32 and window_left < 0 and (causal or window_right == 0):
        del keywords["flash_window"]
        keywords["mask"] = _native.MASK_CAUSAL_BOTTOM_RIGHT
    if softcap > 0:
        keywords["softcap"] = softcap
    if cu_seqlens_q is not None:
        keywords.update(cu_seqlens_q=cu_seqlens_q, cu_seqlens_kv=cu_seqlens_k, max_seq_q=max_seqlen_q,
                        max_seq_kv=max_seqlen_k)
    if dropout_p > 0:
        address = rng_state.data_ptr()
        keywords.update(dropout_p=dropout_p, dropout_map=_native.DROPOUT_FLASH2, dropout_seed_ptr=address,
                        dropout_offset_ptr=address + 8)
    return keywords
