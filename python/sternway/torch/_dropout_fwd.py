# SPDX-License-Identifier: MIT
"""`sternway::flash_fwd`: PyTorch's flash forward with dropout on GPUs, which draws its own Philox state; the backward
is sternway::attn_bwd with that state and FlashAttention-2's map."""
from __future__ import annotations

from typing import Any

import torch

from .. import _native
from . import _forward, ops
from ._autograd import below_autograd, define, is_plain, library

FLASH2 = int(_native.DROPOUT_FLASH2)


def _windows(causal: bool, left: int, right: int) -> dict[str, Any]:
    """The mask as attn_bwd's options say it."""
    options: dict[str, Any] = {"mask": _forward.MASK_BOTTOM_RIGHT} if causal else {}
    if left >= 0:
        options["window_left"] = left
    if right >= 0:
        options["window_right"] = right
    return options


def _flash_fwd(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_seqlens_q: torch.Tensor | None = None,
               cu_seqlens_kv: torch.Tensor | None = None, *, causal: bool = False, left: int = -1, right: int = -1,
               **options: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    out, lse, seed, offset = _forward.call(q, k, v, cu_seqlens_q, cu_seqlens_kv, (causal, left, right), options)
    promised = ops._results(q, v, options.get("layout", "bhsd"))
    if lse.shape != promised[1].shape:
        raise _native.UnsupportedError(f"sternway: PyTorch {torch.__version__} gives an LSE of {tuple(lse.shape)} for "
                                       "packed tensors with dropout")
    out = out if out.stride() == promised[0].stride() else promised[0].copy_(out)
    lse = lse if lse.stride() == promised[1].stride() else promised[1].copy_(lse)
    if seed.numel() != 2:  # before 2.7: seed and offset apart
        seed = torch.stack([seed.reshape(()), offset.reshape(())])
    return out, lse, seed.view(torch.int64).to(q.device)


def _flash_fwd_fake(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_seqlens_q: torch.Tensor | None = None,
                    cu_seqlens_kv: torch.Tensor | None = None, **options: Any):
    return (*ops._results(q, v, options.get("layout", "bhsd")), q.new_empty((2,), dtype=torch.int64))


flash_fwd = define("flash_fwd", "(Tensor q, Tensor k, Tensor v, Tensor? cu_seqlens_q=None, Tensor? cu_seqlens_kv=None, "
                   f"*, {ops._SIZES}, bool causal=False, int left=-1, int right=-1, float? scale=None, "
                   "float dropout_p=0., bool? deterministic=None) -> (Tensor out, Tensor lse, Tensor state)",
                   _flash_fwd, _flash_fwd_fake, tags=(torch.Tag.nondeterministic_seeded,),
                   device_types=("CUDA",))


class _FlashAttention(torch.autograd.Function):
    """flash_fwd with attn_bwd as its derivative."""

    @staticmethod
    def forward(ctx, options, q, k, v, cu_seqlens_q, cu_seqlens_kv):
        if is_plain(q, k, v):
            out, lse, state = _flash_fwd(q, k, v, cu_seqlens_q, cu_seqlens_kv, **options)
        else:
            out, lse, state = below_autograd(flash_fwd, q, k, v, cu_seqlens_q, cu_seqlens_kv, **options)
        ctx.save_for_backward(q, k, v, out, lse, cu_seqlens_q, cu_seqlens_kv, state)
        ctx.options = options
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(state)
        return out, lse, state

    @staticmethod
    def backward(ctx, dout, dlse, _):
        q, k, v, out, lse, starts_q, starts_kv, state = ctx.saved_tensors
        options = dict(ctx.options)
        options.update(_windows(options.pop("causal", False), options.pop("left", -1), options.pop("right", -1)),
                       dropout_map=FLASH2)
        saved = (q, k, v, out, lse, None, None, None, starts_q, starts_kv, None, None, state[:1], state[1:])
        made = ops.backward_of(saved, dout, dlse, (*ctx.needs_input_grad[1:4], False, False, False), options)
        return (None, *made[:3], None, None)


def _autograd(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_seqlens_q: torch.Tensor | None = None,
              cu_seqlens_kv: torch.Tensor | None = None, **options: Any):
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        return _FlashAttention.apply(options, q, k, v, cu_seqlens_q, cu_seqlens_kv)
    return below_autograd(flash_fwd, q, k, v, cu_seqlens_q, cu_seqlens_kv, **options)


library.impl("flash_fwd", _autograd, "Autograd")


def dropout_forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_seqlens_q: torch.Tensor | None,
                    cu_seqlens_kv: torch.Tensor | None, dropout_p: float, options: dict[str, Any]):
    """Out and LSE of the flash forward with dropout, or None where it does not take the problem: then the library's
    forward and its own map serve. Packed problems go to the library: their LSE differs between PyTorch's versions."""
    if q.device.type != "cuda" or cu_seqlens_q is not None:
        return None
    if torch.is_autocast_enabled("cuda") and q.dtype != torch.float64:
        dtype = torch.get_autocast_dtype("cuda")
        q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
    if not _forward.takes(q, k, v, options):
        return None
    windows = _forward.flash_windows(q, k, options)
    if windows is None:
        return None
    causal, left, right = windows
    keep = {name: options[name] for name in ("layout", "scale", "deterministic") if name in options}
    out, lse, _ = torch.ops.sternway.flash_fwd.default(q, k, v, cu_seqlens_q, cu_seqlens_kv, causal=causal, left=left,
                                                       right=right, dropout_p=dropout_p, **keep)
    return out, lse
