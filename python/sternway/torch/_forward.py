# SPDX-License-Identifier: MIT
"""PyTorch's flash forward on NVIDIA GPUs, which is several times as fast as the library's: where it takes a problem of
f16 or bf16, out and LSE are its. It is never asked for f32 and f64, whose LSE has to be better than it is there; nor on
AMD GPUs, whose LSE and random bits are another implementation's; nor on CPUs, where the library's is the faster one."""
from __future__ import annotations

from typing import Any

import torch

from .. import _native

MASK_NONE, MASK_TOP_LEFT, MASK_BOTTOM_RIGHT = (int(_native.MASK_NONE), int(_native.MASK_CAUSAL_TOP_LEFT),
                                               int(_native.MASK_CAUSAL_BOTTOM_RIGHT))
_HALF = (torch.float16, torch.bfloat16)
_NOT_THEIRS = ("bias", "alibi_slopes", "sink", "used_q", "used_kv")


def _lengths(q: torch.Tensor, k: torch.Tensor, options: dict[str, Any]) -> tuple[int, int]:
    """Longest sequences of queries and keys."""
    layout = options.get("layout", "bhsd")
    if layout == "thd":
        return options["max_seq_q"], options["max_seq_kv"]
    rows = 2 if layout == "bhsd" else 1
    return q.shape[rows], k.shape[rows]


def flash_windows(q: torch.Tensor, k: torch.Tensor, options: dict[str, Any]) -> tuple[bool, int, int] | None:
    """causal and the two windows as the flash operator reads them, -1 for none, or None where it has no words for the
    mask. Its diagonals end bottom-right; a bound beside an absent one hides other keys than ours does, so both have to
    be there; and rows that see no key have another LSE."""
    mask, left, right = options.get("mask", 0), options.get("window_left"), options.get("window_right")
    rows, keys = _lengths(q, k, options)
    packed = options.get("layout") == "thd"
    if options.get("diagonal_shift") is not None:
        return None
    if mask == MASK_NONE and left is None and right is None:
        return False, -1, -1
    if rows > keys or packed and not _same_lengths(options):  # causal rows without keys, and other lengths by sequence
        return None
    if mask == MASK_TOP_LEFT and rows != keys:
        return None
    if left is None and (right is None or right == 0) and mask != MASK_NONE:
        return True, -1, -1
    if mask != MASK_NONE:
        right = 0
    if left is None or right is None or left >= keys or right >= keys:
        return None
    return False, left, right


def _same_lengths(options: dict[str, Any]) -> bool:
    """Whether queries and keys of a packed problem are known to have the same starts."""
    return options.get("same_starts", False)


def takes(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: dict[str, Any]) -> bool:
    """Whether PyTorch's flash forward takes the types and sizes; `flash_windows` says it of the mask."""
    if q.dtype not in _HALF or not q.is_cuda or torch.version.hip or not (q.dtype == k.dtype == v.dtype):
        return False
    rank = 3 if options.get("layout") == "thd" else 4
    if k.shape != v.shape or q.dim() != rank or k.dim() != rank or not q.device == k.device == v.device:
        return False  # or another value head dim
    head = 2 if options.get("layout") == "bshd" else 1
    dim, heads = q.shape[-1], k.shape[head]
    if dim % 8 or dim > 256 or k.shape[-1] != dim or 0 in q.shape or 0 in k.shape or q.shape[head] % heads:
        return False
    if rank == 4 and q.shape[0] != k.shape[0]:
        return False
    if any(t.stride(-1) != 1 for t in (q, k, v)) or options.get("softcap", 0.0) != 0.0:
        return False
    if any(options.get(name, 0) for name in ("q_offset", "k_offset", "batch_offset", "head_offset", "heads_total")):
        return False
    return torch.backends.cuda.is_flash_attention_available()


def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_seqlens_q: torch.Tensor | None,
         cu_seqlens_kv: torch.Tensor | None, windows: tuple[bool, int, int], options: dict[str, Any]):
    """aten::_flash_attention_forward, out in the layout of q."""
    layout = options.get("layout", "bhsd")
    causal, left, right = windows
    rows, keys = _lengths(q, k, options)
    if layout == "bhsd":
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    window = {} if left < 0 and right < 0 else {"window_size_left": left, "window_size_right": right}
    out, lse, seed, offset, _ = torch.ops.aten._flash_attention_forward.default(
        q, k, v, cu_seqlens_q, cu_seqlens_kv, rows, keys, options.get("dropout_p", 0.0), causal, False,
        scale=options.get("scale"), **window)
    return out.transpose(1, 2) if layout == "bhsd" else out, lse, seed, offset


def of_pytorch(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, tensors: dict[str, torch.Tensor],
               options: dict[str, Any], results) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Out and LSE of PyTorch's flash forward, or None where it is not for this problem. results(q, v, layout) gives
    memory of the strides that the operator promised; another layout of theirs is copied into it."""
    if not takes(q, k, v, options) or options.get("dropout_p", 0.0) > 0:
        return None
    if any(name in tensors for name in _NOT_THEIRS):
        return None
    starts_q, starts_kv = tensors.get("cu_seqlens_q"), tensors.get("cu_seqlens_kv")
    if starts_q is not None and starts_q is starts_kv:
        options = {**options, "same_starts": True}
    windows = flash_windows(q, k, options)
    if windows is None:
        return None
    out, lse, _, _ = call(q, k, v, starts_q, starts_kv, windows, options)
    promised_out, promised_lse = results(q, v, options.get("layout", "bhsd"))
    if lse.shape != promised_lse.shape:  # packed rows padded by sequence: ROCm's kernels, and PyTorch before 2.7
        return None
    if out.stride() != promised_out.stride():
        out = promised_out.copy_(out)
    if lse.stride() != promised_lse.stride():
        lse = promised_lse.copy_(lse)
    return out, lse
