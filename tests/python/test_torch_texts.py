# SPDX-License-Identifier: MIT
"""Slips of somebody new at sdpa(), enable() and the flash-attn functions: refused by a text that says what to write."""
from __future__ import annotations

import logging

import pytest

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")
sternway = pytest.importorskip("sternway")

import sternway.flash_attn as flash_attn  # noqa: E402
import sternway.torch  # noqa: E402


def x() -> torch.Tensor:
    return torch.ones(1, 5, 2, 8)


@pytest.mark.parametrize("arguments, options, match", [
    ((np.ones((1, 2, 5, 8), "f"),) * 3, {}, "query is ndarray, a torch.Tensor is expected"),
    ((x(), x(), [1.0]), {}, "value is list"),
    ((x(),) * 3, {"alibi_slopes": [1.0] * 5}, "alibi_slopes is list"),
    ((x(),) * 3, {"window": (-1, 0)}, r"window is \(-1, 0\).*None for no bound"),
    ((x(),) * 3, {"window": 4}, "window is 4; it is a pair"),
])
def test_sdpa(arguments, options, match):
    with pytest.raises(sternway.InvalidError, match=match):
        sternway.torch.sdpa(*arguments, **options)


@pytest.mark.parametrize("arguments, options, match", [
    ((np.ones((1, 5, 2, 8), "f"),) * 3, {}, "q is ndarray, a torch.Tensor is expected"),
    ((x(),) * 3, {"window_size": 4}, r"window_size is 4, expected \(left, right\)"),
    ((x(),) * 3, {"window_size": (None, None)}, "-1 for no bound"),
    ((x(), x(), x(), None, True), {}, "FlashAttention 3 has no dropout_p"),
    ((x(), x(), x(), 0.3, True), {}, "softmax_scale True.*FlashAttention 3"),
])
def test_flash_attn(arguments, options, match):
    with pytest.raises(sternway.InvalidError, match=match):
        flash_attn.flash_attn_func(*arguments, **options)


def test_help_of_flash_attn_says_what_is_common():
    for name in flash_attn.__all__:
        if name.endswith("_func"):
            assert "window_size   (left, right)" in getattr(flash_attn, name).__doc__, name


def test_the_log_line_names_the_library(caplog: pytest.LogCaptureFixture):
    """Python prints a warning that no handler takes without its logger's name."""
    q = torch.ones(1, 1, 3, 257, requires_grad=True)
    with caplog.at_level(logging.WARNING, "sternway.torch"), sternway.torch.enable() as enabled:
        assert "in force" in repr(enabled) and "not" not in repr(enabled)
        torch.nn.functional.scaled_dot_product_attention(q, q, q).sum().backward()
    assert "not in force" in repr(enabled)
    assert all(record.getMessage().startswith("sternway: ") for record in caplog.records)
    assert caplog.records or "head_dim_qk 257" in str(sternway.torch.stats())
