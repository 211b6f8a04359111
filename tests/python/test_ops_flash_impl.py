# SPDX-License-Identifier: MIT
"""Sternway as an implementation in PyTorch's registry of flash attention."""
from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import sternway.torch  # noqa: E402

attention = torch.nn.attention
pytestmark = pytest.mark.skipif(not hasattr(attention, "activate_flash_attention_impl"),
                                reason="this PyTorch has no registry of flash attention implementations")
OPERATOR = "_scaled_dot_product_flash_attention_for_cpu_backward"


def calls() -> int:
    """Backwards of PyTorch's CPU flash attention that ran through the library, in one step."""
    sternway.torch.reset_stats()
    q = torch.randn(1, 2, 33, 16, requires_grad=True)
    with attention.sdpa_kernel(attention.SDPBackend.FLASH_ATTENTION):
        torch.nn.functional.scaled_dot_product_attention(q, q, q).sum().backward()
    return sternway.torch.stats().get(OPERATOR, {"taken": 0})["taken"]


def test_activate_and_restore():
    assert "sternway" in attention.list_flash_attention_impls()
    assert calls() == 0
    attention.activate_flash_attention_impl("sternway")
    try:
        assert attention.current_flash_attention_impl() == "sternway" and calls() == 1
    finally:
        attention.restore_flash_attention_impl()
    assert attention.current_flash_attention_impl() is None and calls() == 0


def test_what_was_enabled_stays():
    with sternway.torch.enable(only=OPERATOR):
        attention.activate_flash_attention_impl("sternway")
        assert calls() == 1
        attention.restore_flash_attention_impl()
        assert calls() == 1
    assert calls() == 0
