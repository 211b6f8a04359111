# SPDX-License-Identifier: MIT
"""Sizes of the nested operators' tensors: from values to the fields of the C module's call, and checks of every shape,
because the C module counts elements alone."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from .. import _geometry, _native

_STORAGES = {"jagged": int(_native.STORAGE_JAGGED), "components": int(_native.STORAGE_COMPONENTS)}
DX, DOTHER, DWEIGHT, DBIAS = 1, 2, 4, 8


def storage_number(name: str) -> int:
    if name not in _STORAGES:
        raise _native.InvalidError(f"sternway: storage is {name!r}; it is 'jagged' or 'components'")
    return _STORAGES[name]


def make(like: Tensor, sizes: Sequence[int], full: bool) -> Tensor:
    return like.new_empty(sizes) if full else like.new_zeros(sizes)


def axis_of(sizes: Sequence[int], ragged_idx: int, max_length: int | None) -> dict[str, Any]:
    """outer, the ragged axis and inner of values of these sizes."""
    at = ragged_idx - 1
    if not 0 <= at < len(sizes):
        raise _native.InvalidError(f"sternway: ragged_idx is {ragged_idx} of a nested tensor with {len(sizes) + 1} "
                                   "dimensions")
    total = sizes[at]
    size = total if max_length is None else min(max_length, total)
    return {**_geometry.around(sizes, at), "axis": ((size, total),)}


def along(sizes: Sequence[int], ragged_idx: int, dim: int) -> dict[str, Any]:
    """dim, dim_size and dim_after of a dimension of the nested tensor."""
    dim = dim + len(sizes) + 1 if dim < 0 else dim
    if not 0 <= dim <= len(sizes):
        raise _native.InvalidError(f"sternway: dim is {dim} of a nested tensor with {len(sizes) + 1} dimensions")
    return _geometry.along(sizes, ragged_idx - 1, dim - 1) if dim else {"dim": _native.DIM_COMPONENT}


def pairs(offsets: Tensor, used: Tensor | None) -> dict[str, Any]:
    return {"offsets": (offsets,)} if used is None else {"offsets": (offsets,), "used": (used,)}


def expect(name: str, tensor: Tensor, sizes: Sequence[int]) -> None:
    """Refuses a tensor of another shape."""
    if tuple(tensor.shape) != tuple(sizes):
        raise _native.InvalidError(f"sternway: {name} has the shape {tuple(tensor.shape)}, it must be {tuple(sizes)}")


def expect_elements(name: str, tensor: Tensor, elements: int) -> None:
    """Refuses a tensor with another number of elements."""
    if tensor.numel() != elements:
        raise _native.InvalidError(f"sternway: {name} of the shape {tuple(tensor.shape)} has {tensor.numel()} elements,"
                                   f" it must have {elements}")


def expect_reduced(grad: Tensor, sizes: Sequence[int], ragged_idx: int, dim: int, offsets: Tensor,
                   used: Tensor | None, index: int = 0) -> None:
    """Refuses a gradient of another shape than sum or select along `dim` leaves of values of these sizes. The length of
    a component as a whole (select, dim 0) is known where the offsets are in host memory; elsewhere it is the kernel's
    to respect."""
    at, dim = ragged_idx - 1, dim + len(sizes) + 1 if dim < 0 else dim
    wanted = [size for place, size in enumerate(sizes) if place != dim - 1]
    components = offsets.shape[0] - 1
    if dim == ragged_idx:
        wanted = [components, *wanted]
    elif dim == 0 and grad.dim() == len(sizes):
        wanted[at] = grad.shape[at]
        if offsets.device.type == "cpu" and -components <= index < components:
            wanted[at] = int((offsets.diff() if used is None else used)[index])
    expect("grad", grad, wanted)
