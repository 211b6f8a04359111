# SPDX-License-Identifier: MIT
"""The implementation "sternway" of PyTorch's flash attention, where PyTorch has a registry of them (2.10 and newer):

    torch.nn.attention.activate_flash_attention_impl("sternway")

Its backward is the library's then, as after enable(only=...) of the two flash operators; its forward stays PyTorch's."""
from __future__ import annotations

import torch.nn.attention

NAME = "sternway"
OPERATORS = ("_flash_attention_backward", "_scaled_dot_product_flash_attention_backward")


class Handle:
    """What PyTorch keeps while the implementation is active; remove() gives the operators back."""

    def __init__(self) -> None:
        from .enable import enable

        self._enabled = enable(only=OPERATORS)
        self._enabled.__enter__()

    def remove(self) -> None:
        """Called by restore_flash_attention_impl()."""
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
