# SPDX-License-Identifier: MIT
"""Nested tensors of both layouts as the library's calls take them: values, offsets, used lengths, extents.

A strided nested tensor is a buffer with sizes in host memory; a jagged one is a tensor of values with offsets on its
device (torch.nested._internal.nested_tensor.NestedTensor). Work that does not meet the ragged dimension needs no
offsets at all: it is one component of one position, [outer, 1, inner], whose offsets are the constant 0, 1."""
from __future__ import annotations

import math
from typing import Any

import torch
from torch.nested._internal import ops as _jagged_ops
from torch.nested._internal.nested_tensor import NestedTensor

from .. import _native
from . import _bridge
from ._nested_strided import Sizes, capturing, packed, ragged_lines, same_sizes, sizes_of, sizes_of_table
from ._takeover import Fallback

__all__ = ["Jagged", "Sizes", "along", "fit", "flat", "is_jagged", "one", "packed", "ragged_lines", "run",
           "same_components", "same_dtype", "same_sizes", "sizes_of", "sizes_of_table"]

_TYPES = frozenset((torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int8, torch.uint8, torch.int16,
                    torch.int32, torch.int64))  # which of them an operation has is the library's to say
_ones: dict[torch.device, torch.Tensor] = {}


def one(device: torch.device) -> torch.Tensor:
    """Offsets 0, 1 on a device. An array made while a graph is captured holds nothing before the graph runs, so it
    serves that call alone."""
    found = _ones.get(device)
    if found is None:
        found = torch.arange(2, dtype=torch.int64, device=device)
        if type(found) is torch.Tensor and not capturing(device):
            if device.type == "cuda":
                torch.cuda.current_stream(device).synchronize()  # other streams read it from now on; once a device
            _ones[device] = found
    return found


def flat(device: torch.device, outer: int = 1, inner: int = 1) -> dict[str, Any]:
    """Keywords of a call on [outer, inner] elements without a ragged dimension. Both must be 1 or more."""
    return {"offsets": (one(device),), "axis": ((1, 1),), "outer": outer, "inner": inner,
            "flags": _native.JAGGED_FULL}


def along(sizes: Sizes, column: int, device: torch.device) -> dict[str, Any]:
    """Keywords of a call along a dimension of a strided nested tensor's components, which has elements."""
    after = sizes.constant(column + 1, sizes.dims)
    if after is None:
        ragged = sizes.the_ragged()
        return {"offsets": (sizes.offsets(ragged, device),), "axis": (sizes.axis(ragged),),
                "outer": sizes.constant(0, ragged), "inner": sizes.constant(ragged + 1, sizes.dims),
                "dim": _native.DIM_OUTER, "dim_size": sizes.extent(column),
                "dim_after": sizes.constant(column + 1, ragged), "flags": _native.JAGGED_FULL}
    if column in sizes.ragged:
        return {**ragged_lines(sizes, column, device), "inner": after, "dim": _native.DIM_RAGGED}
    size = sizes.extent(column)
    return {**flat(device, sizes.numel // (size * after), size * after), "dim": _native.DIM_INNER, "dim_size": size,
            "dim_after": after}


def run(op: int, *, grad: torch.Tensor, **call: Any) -> None:
    """The library's call. Fallback for element types that it has nowhere; InvalidError for what is wrong."""
    if grad.dtype not in _TYPES:
        raise Fallback(f"values of {grad.dtype}")
    _bridge.jagged_bwd(op, grad=grad, **call)


def fit(*pairs: tuple[Any, Any]) -> None:
    """Fallback unless the two of each pair are equal: the library believes the sizes that it is told, and PyTorch's own
    code says what is wrong."""
    for got, wanted in pairs:
        if got != wanted:
            raise Fallback(f"sizes do not fit: {got} where {wanted} was expected")


def same_dtype(**tensors: torch.Tensor | None) -> None:
    """Fallback unless the tensors that are there have one type, which the library may or may not have."""
    given = {name: (tensor._values if isinstance(tensor, NestedTensor) else tensor).dtype  # no __torch_function__
             for name, tensor in tensors.items() if tensor is not None}
    if len(set(given.values())) > 1:
        raise Fallback("the types differ: " + ", ".join(f"{name} is {dtype}" for name, dtype in given.items()))


def is_jagged(tensor: Any) -> bool:
    return isinstance(tensor, NestedTensor)


class Jagged:
    """A jagged nested tensor. Dimensions are those of its values, where the batch dimension is missing."""

    def __init__(self, nested: NestedTensor) -> None:
        self.nested = nested
        self.values: torch.Tensor = nested._values
        if type(self.values) not in (torch.Tensor, torch.nn.Parameter):
            raise Fallback(f"values are a {type(self.values).__name__}, not a plain tensor (torch.compile traces"
                           " PyTorch's own decomposition)")
        self.ragged: int = nested._ragged_idx - 1
        self.offsets: torch.Tensor = nested._offsets.contiguous()
        self.used: torch.Tensor | None = None
        if nested._lengths is not None:
            self.used = nested._lengths.to(self.offsets.dtype).contiguous()

    @property
    def components(self) -> int:
        return self.offsets.shape[0] - 1

    @property
    def total(self) -> int:
        return self.values.shape[self.ragged]

    def order(self) -> tuple[int, ...]:
        """Dimensions of the values from the slowest to the fastest in memory. Fallback for values with gaps."""
        if self.values.is_contiguous():
            return tuple(range(self.values.dim()))
        stride, shape = self.values.stride(), self.values.shape
        order = tuple(sorted(range(self.values.dim()), key=lambda d: (-stride[d], -shape[d])))
        if not self.values.permute(order).is_contiguous():
            raise Fallback("the values of a nested tensor are not dense")
        return order

    def in_order(self, order: tuple[int, ...], name: str) -> torch.Tensor:
        """The values as they lie in memory, contiguous. Fallback where they lie otherwise."""
        values = self.values.permute(order)
        if not values.is_contiguous():
            raise Fallback(f"{name} is stored in another order than the other tensors, or with gaps")
        return values

    def contiguous(self, name: str) -> torch.Tensor:
        if not self.values.is_contiguous():
            raise Fallback(f"{name}: the values of a nested tensor are not contiguous")
        return self.values

    def covered(self) -> bool:
        """Whether components are known to hold every position of the values; a GPU's offsets are not read back."""
        if self.used is not None or self.offsets.device.type != "cpu" or not self.components:
            return False
        return int(self.offsets[0]) == 0 and int(self.offsets[-1]) == self.total

    def fresh(self, values: torch.Tensor) -> torch.Tensor:
        """Memory for a gradient like `values`: positions in no component, which no call writes, are zeros."""
        return torch.empty_like(values) if self.covered() else torch.zeros_like(values)

    def axis(self) -> tuple[int, int]:
        """(longest, total): the longest where PyTorch knows it without reading the offsets back, else the total."""
        longest = None if self.used is not None else self.nested._maybe_max_seqlen
        return (self.total if longest is None else min(int(longest), self.total)), self.total

    def ragged_call(self, order: tuple[int, ...] | None = None) -> dict[str, Any]:
        """Keywords of a call that follows the components, of values that lie in memory in `order`."""
        order = order or tuple(range(self.values.dim()))
        at = order.index(self.ragged)
        extents = [self.values.shape[d] for d in order]
        call: dict[str, Any] = {"offsets": (self.offsets,), "axis": (self.axis(),), "storage": _native.STORAGE_JAGGED,
                                "outer": math.prod(extents[:at]), "inner": math.prod(extents[at + 1:])}
        if self.used is not None:
            call["used"] = (self.used,)
        return call

    def along(self, dim: int, order: tuple[int, ...] | None = None) -> dict[str, Any]:
        """Keywords of a call along dimension `dim` of the values, whichever of the three kinds it is."""
        order = order or tuple(range(self.values.dim()))
        at, ragged_at = order.index(dim), order.index(self.ragged)
        extents = [self.values.shape[d] for d in order]
        if dim == self.ragged:
            return {**self.ragged_call(order), "dim": _native.DIM_RAGGED}
        if self.used is None:
            after = math.prod(extents[at + 1:])
            return {**flat(self.values.device, math.prod(extents[:at]), extents[at] * after),
                    "dim": _native.DIM_INNER, "dim_size": extents[at], "dim_after": after}
        inner = at > ragged_at
        after = math.prod(extents[at + 1:] if inner else extents[at + 1:ragged_at])
        return {**self.ragged_call(order), "dim": _native.DIM_INNER if inner else _native.DIM_OUTER,
                "dim_size": extents[at], "dim_after": after}

    def wrap(self, values: torch.Tensor, ragged: int | None = None) -> NestedTensor:
        """A jagged nested tensor of other values with this one's components."""
        metadata = _jagged_ops.extract_kwargs(self.nested)
        if ragged is not None:
            metadata["_ragged_idx"] = ragged + 1
        return NestedTensor(values, **metadata)


def same_components(a: Jagged, b: Jagged, names: str) -> None:
    """Fallback unless both have the same offsets (the same tensor, as PyTorch demands) and the same values' shape."""
    if a.nested._offsets is b.nested._offsets and a.nested._lengths is b.nested._lengths:
        return
    if a.nested._size[a.ragged + 1] != b.nested._size[b.ragged + 1]:
        raise Fallback(f"{names} have different offsets")
