# SPDX-License-Identifier: MIT
"""FlexAttention's call on masks that Sternway has: intervals of rows that do not see a key, and blocks of 128."""
from __future__ import annotations

from typing import Any

import torch

from .. import _native, attn_bwd, attn_fwd, masks


class _Flex(torch.autograd.Function):
    """Forward and backward of one call; options are those of attn_bwd."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: dict[str, Any]) -> torch.Tensor:
        out, lse = attn_fwd(q, k, v, **options)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.options = options
        return out  # type: ignore[no-any-return]

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[misc]
    def backward(ctx: Any, dout: torch.Tensor) -> Any:
        q, k, v, out, lse = ctx.saved_tensors
        gradients = attn_bwd(dout, q, k, v, out, lse, **ctx.options)
        return gradients.dq, gradients.dk, gradients.dv, None


def mask_of(block_mask: Any, heads_kv: int) -> masks.Intervals | masks.BlockMask | None:
    """What a caller names block_mask, as a mask of sternway.masks; None: no mask."""
    if block_mask is None or isinstance(block_mask, (masks.Intervals, masks.BlockMask)):
        return block_mask
    if not hasattr(block_mask, "mask_mod"):
        raise _native.InvalidError(f"sternway: block_mask is {type(block_mask).__name__}; FlexAttention's BlockMask "
                                   "or a mask of sternway.masks is expected")
    return masks.from_block_mask(block_mask, heads_kv)


def flex_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, block_mask: Any = None,
                   scale: float | None = None, mask: str | None = None) -> torch.Tensor:
    """Attention [B,H,S,D] under a mask, with gradients of query, key and value.

    block_mask: FlexAttention's BlockMask, which masks.from_block_mask takes apart at every call; or what it or another
    function of sternway.masks has returned, which costs nothing. mask: "causal" and the others of attn_bwd, beside it.
    Key heads may be fewer than query heads (enable_gqa). There is no score_mod. Raises UnsupportedError for a BlockMask
    that intervals and blocks cannot say."""
    block_mask = mask_of(block_mask, key.shape[1])
    options: dict[str, Any] = {"mask": mask, "scale": scale, **(block_mask.options() if block_mask else {})}
    return _Flex.apply(query, key, value, options)  # type: ignore[no-any-return]
