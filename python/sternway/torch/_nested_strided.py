# SPDX-License-Identifier: MIT
"""Strided nested tensors: a buffer with sizes in host memory. Offsets on the device are made once for the same sizes
and kept for a bounded number of sizes, so that steps of the same sizes copy nothing."""
from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import torch

from .. import _native
from . import _bridge
from ._takeover import Fallback

SIZES_KEPT = 64  # shapes of strided nested tensors whose offsets are kept
OFFSETS_KEPT = 16  # arrays of offsets kept for each of them: axes, devices, streams


def capturing(device: torch.device) -> bool:
    """Whether a graph is being captured in the current stream: what is made now holds nothing before the graph runs."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


class Sizes:
    """Sizes of a strided nested tensor: rows[b] is the shape of component b."""

    def __init__(self, rows: tuple[tuple[int, ...], ...], dims: int) -> None:
        self.rows = rows
        self.dims = dims  # of a component
        self.count = len(rows)
        self.ragged = tuple(c for c in range(dims) if len({row[c] for row in rows}) > 1)
        self.numels = tuple(math.prod(row) for row in rows)
        self.numel = sum(self.numels)
        self._arrays: dict[tuple, torch.Tensor] = {}
        self._views: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None

    def constant(self, first: int, end: int) -> int | None:
        """Product of the extents first..end-1 of each component; None where it is not the same for all."""
        products = {math.prod(row[first:end]) for row in self.rows}
        return products.pop() if len(products) == 1 else None

    def extent(self, column: int) -> int:
        """A dimension that is the same in all components."""
        return self.rows[0][column]

    def the_ragged(self, wanted: int = 0) -> int:
        """The ragged dimension; `wanted` where none is. Fallback where there are several."""
        if len(self.ragged) > 1:
            raise Fallback(f"{len(self.ragged)} ragged dimensions: accepted one")
        return self.ragged[0] if self.ragged else wanted

    def lengths(self, column: int) -> tuple[int, ...]:
        return tuple(row[column] for row in self.rows)

    def axis(self, column: int) -> tuple[int, int]:
        """(longest, total) of a dimension."""
        lengths = self.lengths(column)
        return max(lengths, default=0), sum(lengths)

    def array(self, what: tuple, values: Any, device: torch.device) -> torch.Tensor:
        """The int64 array that values() makes, on a device; kept under `what` for that device and its stream."""
        key = (what, device, _bridge.stream(device))
        found = self._arrays.get(key)
        if found is None:
            if capturing(device):
                raise Fallback("these sizes have no offsets on the device yet, and a graph is being captured: run a"
                               " step with them before the capture")
            found = torch.tensor(values(), dtype=torch.int64, device="cpu").to(device)
            if len(self._arrays) >= OFFSETS_KEPT:
                self._arrays.clear()
            self._arrays[key] = found
        return found

    def offsets(self, column: int, device: torch.device) -> torch.Tensor:
        """offsets[components + 1] of a dimension."""
        return self.array(("offsets", column), lambda: _running(self.lengths(column)), device)

    def element_offsets(self, device: torch.device) -> torch.Tensor:
        """offsets[components + 1] in elements, for work that only knows components as a whole."""
        return self.array(("elements",), lambda: _running(self.numels), device)

    def line_offsets(self, column: int, device: torch.device) -> torch.Tensor:
        """Offsets where each position before `column` is a component of its own."""
        def make() -> list[int]:
            return _running([row[column] for row in self.rows for _ in range(math.prod(row[:column]))])

        return self.array(("lines", column), make, device)

    def starts(self) -> list[int]:
        """First element of each component in a contiguous buffer."""
        return _running(self.numels)[:-1]

    def nested(self, buffer: torch.Tensor) -> torch.Tensor:
        """A contiguous nested tensor of these sizes whose storage is `buffer`, a flat one of the same device."""
        if self._views is None:
            strides = [[math.prod(row[c + 1:]) for c in range(self.dims)] for row in self.rows]
            host = {"dtype": torch.int64, "device": "cpu"}  # whatever torch.set_default_device says
            self._views = (torch.tensor(self.rows, **host).view(self.count, self.dims),
                           torch.tensor(strides, **host).view(self.count, self.dims),
                           torch.tensor(self.starts(), **host))
        return torch._nested_view_from_buffer(buffer, *self._views)


def _running(lengths: Sequence[int]) -> list[int]:
    total, sums = 0, [0]
    for length in lengths:
        total += length
        sums.append(total)
    return sums


@functools.lru_cache(maxsize=SIZES_KEPT)
def _sizes(count: int, dims: int, flat_sizes: tuple[int, ...]) -> Sizes:
    return Sizes(tuple(flat_sizes[b * dims:(b + 1) * dims] for b in range(count)), dims)


def sizes_of_table(table: torch.Tensor) -> Sizes:
    """Sizes from PyTorch's table [components, dimensions] in host memory. Fallback without components."""
    if table.dim() != 2 or not table.shape[0]:
        raise Fallback("no components")
    return _sizes(table.shape[0], table.shape[1], tuple(table.flatten().tolist()))


def sizes_of(nested: torch.Tensor) -> Sizes:
    """Sizes of a strided nested tensor. Fallback without components."""
    return sizes_of_table(nested._nested_tensor_size())


def ragged_lines(sizes: Sizes, column: int, device: torch.device) -> dict[str, Any]:
    """Keywords of a call along `column`, whatever the dimensions before it: without `inner` and `dim`. Where the
    dimensions before it are not the same in all components, each position of theirs is a component of its own."""
    longest, total = sizes.axis(column)
    outer = sizes.constant(0, column)
    if outer is not None:
        return {"offsets": (sizes.offsets(column, device),), "axis": ((longest, total),), "outer": outer,
                "flags": _native.JAGGED_FULL}
    total = sum(math.prod(row[:column + 1]) for row in sizes.rows)
    return {"offsets": (sizes.line_offsets(column, device),), "axis": ((longest, total),), "outer": 1,
            "flags": _native.JAGGED_FULL}


def same_sizes(a: torch.Tensor, b: torch.Tensor, names: str) -> None:
    if not torch.equal(a._nested_tensor_size(), b._nested_tensor_size()):
        raise Fallback(f"{names} have different nested sizes")


def packed(nested: torch.Tensor, name: str) -> torch.Tensor:
    """The flat buffer of a contiguous strided nested tensor. Fallback where it is not contiguous or a part of more."""
    if not nested.is_nested:
        raise Fallback(f"{name} is not a nested tensor")
    buffer = nested.values()
    if not nested.is_contiguous() or buffer.numel() != nested.numel():
        raise Fallback(f"{name} is a nested tensor that is not contiguous")
    return buffer
