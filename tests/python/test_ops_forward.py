# SPDX-License-Identifier: MIT
"""Which problems go to PyTorch's flash forward: what it is told means the mask that was asked for. Needs no GPU: the
choice looks at sizes and options alone."""
from __future__ import annotations

import itertools
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from ops_reference import visible  # noqa: E402

import sternway.torch  # noqa: E402,F401
from sternway.torch import _forward  # noqa: E402

MASKS = {"none": _forward.MASK_NONE, "top_left": _forward.MASK_TOP_LEFT, "bottom_right": _forward.MASK_BOTTOM_RIGHT}


def flash_reads(rows: int, keys: int, causal: bool, left: int, right: int) -> torch.Tensor:
    """FlashAttention-2's reading of its arguments, as its host code has it (flash_api.cpp): sizes from the number of
    keys on and negative ones are absent, causal is a right window of 0, and an absent bound beside a present one is the
    number of keys; diagonals end bottom-right."""
    left, right = (-1 if size >= keys else size for size in (left, right))
    right = 0 if causal else right
    if left < 0 and right < 0:
        return torch.ones(rows, keys, dtype=torch.bool)
    left, right = (keys if size < 0 else size for size in (left, right))
    return visible(rows, keys, "none", left, right)


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_windows_mean_the_same(layout):
    taken = 0
    sizes = [None, 0, 1, 3, 5, 8]
    for rows, keys, mask, left, right in itertools.product((1, 4, 6), (1, 4, 6), MASKS, sizes, sizes):
        q, k = (torch.empty((1, 2, n, 8) if layout == "bhsd" else (1, n, 2, 8)) for n in (rows, keys))
        options = {"mask": MASKS[mask], "window_left": left, "window_right": right, "layout": layout}
        found = _forward.flash_windows(q, k, options)
        if found is None:
            continue
        taken += 1
        wanted = visible(rows, keys, mask, left, right)
        assert torch.equal(flash_reads(rows, keys, *found), wanted), (rows, keys, mask, left, right, found)
        assert wanted.any(1).all(), "rows without keys have another LSE there"
    assert taken > 100
    q, k = torch.empty(1, 2, 4, 8), torch.empty(1, 2, 4, 8)
    assert _forward.flash_windows(q, k, {"diagonal_shift": 0}) is None


def test_packed_needs_the_same_starts():
    q = torch.empty(9, 2, 8)
    options = {"layout": "thd", "max_seq_q": 5, "max_seq_kv": 5, "mask": MASKS["top_left"]}
    assert _forward.flash_windows(q, q, options) is None
    assert _forward.flash_windows(q, q, {**options, "same_starts": True}) == (True, -1, -1)
    assert _forward.flash_windows(q, q, {**options, "mask": 0}) == (False, -1, -1)


def test_cpu_and_f32_stay_here():
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        q = torch.empty(1, 2, 4, 8, dtype=dtype)
        assert not _forward.takes(q, q, q, {})


@pytest.mark.parametrize(("stub", "text"), [("sys.modules['torch'] = None", "needs PyTorch 2.6 or newer: import of"),
                                            ("sys.modules['torch'] = types.ModuleType('torch'); "
                                             "sys.modules['torch'].__version__ = '2.5.1+cpu'",
                                             "needs PyTorch 2.6 or newer: this is 2.5.1")])
def test_without_a_fitting_pytorch(stub, text):
    program = f"import sys, types; {stub}\nimport sternway.torch"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode != 0 and f"ImportError: sternway.torch {text}" in done.stderr
