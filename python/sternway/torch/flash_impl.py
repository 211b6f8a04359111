# SPDX-License-Identifier: MIT
"""The implementation "sternway" of PyTorch's flash attention, where PyTorch has a registry of them:

    torch.nn.attention.activate_flash_attention_impl("sternway")
    torch.nn.attention.restore_flash_attention_impl()

In between the backward of flash attention is the library's, as by enable(only=...) of its operators, on top of what was
enabled before; its forward stays PyTorch's."""
from __future__ import annotations

import torch.nn.attention

from . import _takeover
from .enable import enable

NAME = "sternway"
OPERATORS = ("_flash_attention_backward", "_scaled_dot_product_flash_attention_backward",
             "_scaled_dot_product_flash_attention_for_cpu_backward")


class Handle:
    """What PyTorch keeps while the implementation is active."""

    def __init__(self) -> None:
        before = _takeover._active
        self._enabled = enable(only=(*OPERATORS, *before), strict=any(before.values())).__enter__()

    def remove(self) -> None:
        """Called by restore_flash_attention_impl(): the operators are as they were."""
        enabled, self._enabled = self._enabled, None
        if enabled is not None:
            enabled.__exit__(None, None, None)


def register() -> bool:
    """Makes the name known to PyTorch; nothing is taken over before it is activated. False where this PyTorch has no
    registry."""
    registry = getattr(torch.nn.attention, "register_flash_attention_impl", None)
    if registry is None:
        return False
    registry(NAME, register_fn=Handle)
    return True
