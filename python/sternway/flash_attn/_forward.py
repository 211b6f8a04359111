# SPDX-License-Identifier: MIT
"""The forward: PyTorch's flash operator where it takes the problem, which is 5 to 10 times faster there, else the
library's own."""
from __future__ import annotations

import functools

import torch
from torch.utils._python_dispatch import _disable_current_modes

from ..torch import _bridge
from ._problem import layout, shared_keywords

INFINITY = float("inf")


@functools.lru_cache(maxsize=None)
def _device_has_flash(device: torch.device) -> bool:
    return torch.backends.cuda.is_flash_attention_available() and torch.cuda.get_device_capability(device)[0] >= 8


@functools.lru_cache(maxsize=None)
def _build_has_alibi(device: torch.device) -> bool:
    """Whether this PyTorch's flash operator takes slopes. Wheels of PyPI are built without, which only a call says."""
    try:
        with _disable_current_modes():  # a fake tensor would be taken by every build
            q = torch.zeros(1, 1, 1, 8, dtype=torch.float16, device=device)
            slopes = torch.zeros(1, dtype=torch.float32, device=device)
            torch.ops.aten._flash_attention_forward.default(q, q, q, None, None, 1, 1, 0.0, False, False,
                                                            alibi_slopes=slopes)
    except RuntimeError as error:
        if "alibi" in str(error).lower():
            return False
        raise
    return True


def _is_zero(size: int | torch.SymInt) -> bool:
    return isinstance(size, int) and size == 0  # a symbolic size is taken for more, without a guard


def torch_takes(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_seqlens_q: torch.Tensor | None,
                cu_seqlens_k: torch.Tensor | None, alibi_slopes: torch.Tensor | None, max_seqlen_k: int,
                dropout_p: float, causal: bool, window_left: int, window_right: int, softcap: float) -> bool:
    """Whether PyTorch's flash operator is called for this problem. It has f16 and bf16 alone, one head_dim, no softcap,
    no empty batch. On ROCm builds also no ALiBi, no window, no causal mask of unequal lengths, whose diagonals differ
    from FlashAttention-2's, and no dropout, whose random bits do."""
    if q.device.type != "cuda" or q.dtype not in (torch.float16, torch.bfloat16) or softcap > 0:
        return False
    if q.shape[-1] != v.shape[-1] or not 0 < q.shape[-1] <= 256 or _is_zero(q.numel()) or _is_zero(k.numel()):
        return False
    if cu_seqlens_q is not None and (cu_seqlens_q.numel() < 2 or _is_zero(max_seqlen_k)):
        return False
    if not _device_has_flash(q.device) or (alibi_slopes is not None and not _build_has_alibi(q.device)):
        return False
    if torch.version.hip:
        same_lengths = cu_seqlens_q is cu_seqlens_k and (cu_seqlens_q is not None or q.shape[1] == k.shape[1])
        return (alibi_slopes is None and dropout_p == 0 and window_left < 0 and window_right < 0
                and (same_lengths or not causal))
    return True


def _loads_in_vectors(tensor: torch.Tensor) -> bool:
    strides = zip(tensor.stride()[:-1], tensor.shape[:-1])
    return tensor.stride(-1) == 1 and all(stride % 8 == 0 or size <= 1 for stride, size in strides)


def as_torch_takes(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor with head_dim padded with zeros to a multiple of 8 and rows on 16 bytes, which PyTorch's kernels need;
    itself where it is so already."""
    rest = -tensor.shape[-1] % 8
    if rest:
        padded = tensor.new_empty((*tensor.shape[:-1], tensor.shape[-1] + rest))
        padded[..., tensor.shape[-1]:] = 0
        padded[..., :tensor.shape[-1]] = tensor
        return padded
    return tensor if _loads_in_vectors(tensor) else tensor.contiguous()


def _on_16_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.data_ptr() % 16 == 0 else tensor.clone()


def _rows_of_the_pack(lse: torch.Tensor, cu_seqlens: torch.Tensor, rows: int) -> torch.Tensor:
    """LSE [H,T] out of [B,H,max_seqlen], as PyTorch's operator gave it in older versions. Nothing is read back."""
    row = torch.arange(rows, device=lse.device)
    sequence = torch.searchsorted(cu_seqlens[1:].to(torch.int64), row, right=True).clamp(max=lse.shape[0] - 1)
    local = (row - cu_seqlens.to(torch.int64)[sequence]).clamp(0, lse.shape[2] - 1)
    return lse[sequence, :, local].transpose(0, 1).contiguous()


def _rng_state(first: torch.Tensor, second: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Seed and offset as int64 [2] on the device: one tensor of two words since PyTorch 2.7, before that a tensor each,
    on the CPU outside of graph capture."""
    if first.numel() == 2:
        return first.view(torch.int64)
    return torch.stack([first.reshape(()).to(torch.int64), second.reshape(()).to(torch.int64)]).to(device)


def torch_forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_seqlens_q: torch.Tensor | None,
                  cu_seqlens_k: torch.Tensor | None, alibi_slopes: torch.Tensor | None, max_seqlen_q: int,
                  max_seqlen_k: int, dropout_p: float, scale: float | None, causal: bool, window_left: int,
                  window_right: int, return_probs: bool
                  ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    """out, LSE, the probabilities with the signs of dropout (None unless asked for and with dropout) and the state of
    the random numbers (None without dropout), by torch.ops.aten._flash_attention_forward."""
    head_dim = q.shape[-1]
    padded = [_on_16_bytes(as_torch_takes(tensor)) for tensor in (q, k, v)]
    if alibi_slopes is not None:
        alibi_slopes = alibi_slopes.contiguous()
    if cu_seqlens_q is not None:
        cu_seqlens_q, cu_seqlens_k = cu_seqlens_q.contiguous(), cu_seqlens_k.contiguous()
    keywords = {}
    if window_left >= 0 or window_right >= 0:
        keywords.update(window_size_left=window_left, window_size_right=window_right)
    if alibi_slopes is not None:
        keywords["alibi_slopes"] = alibi_slopes
    out, lse, first, second, probs = torch.ops.aten._flash_attention_forward.default(
        *padded, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p, causal,
        return_probs and dropout_p > 0, scale=head_dim ** -0.5 if scale is None else scale, **keywords)
    if cu_seqlens_q is not None and lse.dim() == 3:
        lse = _rows_of_the_pack(lse, cu_seqlens_q, q.shape[0])
    if padded[0].shape[-1] != head_dim:
        out = out[..., :head_dim]
    if dropout_p == 0:
        return out, lse, None, None
    return out, lse, probs if return_probs else None, _rng_state(first, second, q.device)


def own_forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_seqlens_q: torch.Tensor | None,
                cu_seqlens_k: torch.Tensor | None, alibi_slopes: torch.Tensor | None, max_seqlen_q: int,
                max_seqlen_k: int, dropout_p: float, scale: float | None, causal: bool, window_left: int,
                window_right: int, softcap: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """out, LSE and the state of the random numbers (None without dropout), by the library. The seed is drawn from
    PyTorch's default generator of the device, in its stream, so that manual_seed, activation checkpoints and graph
    replays see what they expect. LSE of a row without a key is +inf, as FlashAttention-2 writes it."""
    out = q.new_empty((*q.shape[:-1], v.shape[-1]))
    lse_shape = (q.shape[0], q.shape[2], q.shape[1]) if cu_seqlens_q is None else (q.shape[1], q.shape[0])
    lse = q.new_empty(lse_shape, dtype=torch.float64 if q.dtype == torch.float64 else torch.float32)
    rng_state = None
    if dropout_p > 0:
        rng_state = torch.randint(0, 2 ** 63 - 1, (2,), dtype=torch.int64, device=q.device)
    _bridge.attn_fwd(layout(cu_seqlens_q), q=q, k=k, v=v, out=out, lse=lse,
                     **shared_keywords(cu_seqlens_q, cu_seqlens_k, alibi_slopes, max_seqlen_q, max_seqlen_k, dropout_p,
                                       scale, causal, window_left, window_right, softcap, rng_state, q.dtype))
    if cu_seqlens_q is not None or causal or window_left >= 0 or window_right >= 0 or k.shape[1] == 0:
        lse.masked_fill_(lse == -INFINITY, INFINITY)
    return out, lse, rng_state
