# SPDX-License-Identifier: MIT
"""Sternway for PyTorch 2.6 and newer.

enable(), disable(), stats(), reset_stats()  take over the backward operators of an unmodified model
flex_attention()                             FlexAttention's masks
sdpa()                                       scaled_dot_product_attention above PyTorch's expand
context_parallel()                           attention over the ranks of a gloo group
torch.ops.sternway.*                         the operators: attn_fwd, attn_bwd, dropout_mask, nested_<op>_backward
activate_flash_attention_impl("sternway")    PyTorch's own registry of flash implementations, 2.10 and newer"""
from __future__ import annotations

OLDEST = (2, 6)


def _check_version() -> None:
    try:
        import torch
    except ImportError as error:
        raise ImportError(f"sternway.torch needs PyTorch 2.6 or newer: {error}") from error
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if version < OLDEST:
        raise ImportError(f"sternway.torch needs PyTorch 2.6 or newer: this is {torch.__version__}")


_check_version()

from . import flash_impl, ops, ops_nested, ops_nested_products  # noqa: E402
from .context_parallel import context_parallel  # noqa: E402
from .enable import disable, enable, reset_stats, stats  # noqa: E402
from .flex import flex_attention  # noqa: E402
from .sdpa import sdpa  # noqa: E402

attn_fwd, attn_bwd, dropout_mask = ops.attn_fwd, ops.attn_bwd, ops.dropout_mask
flash_impl.register()

__all__ = ["attn_bwd", "attn_fwd", "context_parallel", "disable", "dropout_mask", "enable", "flex_attention", "ops",
           "ops_nested", "ops_nested_products", "reset_stats", "sdpa", "stats"]
