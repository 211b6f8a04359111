# SPDX-License-Identifier: MIT
"""Backward of nested sum and select, for both layouts: data is moved, nothing is rounded.

Arguments and results are those of the aten operators that nested_ops.py registers these functions for."""
from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from .. import _native
from ._nested_views import Jagged, along, fit, flat, is_jagged, packed, run, same_dtype, sizes_of
from ._takeover import Fallback

# ---- sum ----


def sum_strided(grad: torch.Tensor, self: torch.Tensor, dim: Sequence[int] | None,
                keepdim: bool = False) -> torch.Tensor:
    """grad: nested, 1 in the last dimension, which PyTorch's nested sum is along."""
    if dim is None or len(dim) != 1 or dim[0] % self.dim() != self.dim() - 1:
        raise Fallback(f"a sum along {dim}: accepted the last dimension")
    same_dtype(grad=grad, self=self)
    if not self.numel():
        return torch.empty_like(self)
    sizes = sizes_of(self)
    grad_buffer = packed(grad, "grad")
    if grad_buffer.numel() != sum(math.prod(row[:-1]) for row in sizes.rows):
        raise Fallback("grad does not have one element for each sum")
    buffer = torch.empty(sizes.numel, dtype=grad.dtype, device=grad.device)
    run(_native.JAGGED_SUM, grad=grad_buffer, dx=buffer, **along(sizes, sizes.dims - 1, grad.device))
    return sizes.nested(buffer)


def sum_jagged(grad: torch.Tensor, self: torch.Tensor, dim: Sequence[int] | None,
               keepdim: bool = False) -> torch.Tensor:
    """grad: jagged where the ragged dimension stayed, else dense."""
    x = Jagged(self)
    dims = sorted({d % (x.values.dim() + 1) for d in dim or range(x.values.dim() + 1)})
    ragged = x.ragged + 1
    if (0 in dims) != (ragged in dims) and dims != [ragged]:
        raise Fallback(f"a sum of a jagged tensor along {dims}")
    if is_jagged(grad):
        if ragged in dims:
            raise Fallback("grad is a nested tensor, but the ragged dimension was summed")
        values = Jagged(grad).values
    else:
        if ragged not in dims:
            raise Fallback("grad is not a nested tensor")
        values = grad
    inner_dims = [d - 1 for d in dims if d > 0]  # of the values; the batch dimension is the ragged one there
    same_dtype(grad=values, self=x.values)
    if dims == [ragged]:
        return _sum_ragged(x, values)
    shape = list(x.values.shape)
    for d in inner_dims:
        shape[d] = 1
    values = values.reshape(shape).contiguous()
    for d in inner_dims:  # one dimension at a time, each spread over what the ones before made
        shape[d] = x.values.shape[d]
        through = x.used is not None and not (0 in dims)
        result = torch.zeros(shape, dtype=values.dtype, device=values.device) if through else \
            torch.empty(shape, dtype=values.dtype, device=values.device)
        if result.numel():
            call = _spread(shape, d) if not through else _spread_with_holes(x, shape, d)
            run(_native.JAGGED_SUM, grad=values, dx=result, **call(values.device))
        values = result
    return x.wrap(values)


def _spread(shape: list[int], d: int):
    before, after = math.prod(shape[:d]), math.prod(shape[d + 1:])
    return lambda device: {**flat(device, before, shape[d] * after), "dim": _native.DIM_INNER, "dim_size": shape[d],
                           "dim_after": after}


def _spread_with_holes(x: Jagged, shape: list[int], d: int):
    inner = d > x.ragged
    after = math.prod(shape[d + 1:] if inner else shape[d + 1:x.ragged])
    call = {**x.ragged_call(), "outer": math.prod(shape[:x.ragged]), "inner": math.prod(shape[x.ragged + 1:]),
            "dim": _native.DIM_INNER if inner else _native.DIM_OUTER, "dim_size": shape[d], "dim_after": after}
    return lambda device: call


def _sum_ragged(x: Jagged, grad: torch.Tensor) -> torch.Tensor:
    """grad: dense [components, outer.., inner..], with or without a 1 for the ragged dimension."""
    grad = grad.contiguous()
    fit((grad.numel() * x.total, x.components * x.values.numel()))
    result = torch.empty(x.values.shape, dtype=grad.dtype, device=grad.device)
    if not x.covered():
        result.zero_()
    if result.numel() and x.components:
        run(_native.JAGGED_SUM, grad=grad, dx=result, dim=_native.DIM_RAGGED, **x.ragged_call())
    return x.wrap(result)


# ---- select ----


def select_strided(grad_output: torch.Tensor, self: torch.Tensor, dim: int, index: int) -> torch.Tensor:
    """grad_output: the component's shape where dim is 0, else nested without `dim`. The result is contiguous."""
    sizes = sizes_of(self)
    same_dtype(grad_output=grad_output, self=self)
    device = self.device
    buffer = torch.empty(sizes.numel, dtype=self.dtype, device=device)
    column = dim % self.dim() - 1
    if not sizes.numel:
        return sizes.nested(buffer)
    if column < 0:
        index = index % sizes.count
        if tuple(grad_output.shape) != sizes.rows[index]:
            raise Fallback("grad_output does not have the component's shape")
        if not grad_output.numel():
            return sizes.nested(buffer.zero_())
        grad = grad_output.contiguous()
        call = {"offsets": (sizes.element_offsets(device),), "axis": ((max(sizes.numels), sizes.numel),),
                "dim": _native.DIM_COMPONENT, "flags": _native.JAGGED_FULL}
    else:
        grad = packed(grad_output, "grad_output")
        rows = tuple(row[:column] + row[column + 1:] for row in sizes.rows)
        fit((grad.numel(), sum(math.prod(row) for row in rows)))
        call = along(sizes, column, device)
    run(_native.JAGGED_SELECT, grad=grad, dx=buffer, index=int(index), **call)
    return sizes.nested(buffer)


def select_jagged(grad_output: torch.Tensor, self: torch.Tensor, dim: int, index: int) -> torch.Tensor:
    """grad_output: the component's used part where dim is 0, else jagged without `dim`."""
    x = Jagged(self)
    value_dim = dim % (x.values.dim() + 1) - 1
    same_dtype(grad_output=grad_output, self=self)
    shape, device = x.values.shape, x.values.device
    if value_dim < 0:
        if is_jagged(grad_output):
            raise Fallback("grad_output is a nested tensor")
        wanted = list(shape)
        wanted[x.ragged] = grad_output.shape[x.ragged] if grad_output.dim() == len(shape) else -1
        if device.type == "cpu" and x.components:  # a GPU's offsets are not read back
            b = int(index)
            lengths = x.offsets.diff() if x.used is None else x.used
            wanted[x.ragged] = int(lengths[b])
        fit((list(grad_output.shape), wanted))
        result = torch.empty(shape, dtype=grad_output.dtype, device=device)
        if not grad_output.numel() or not x.covered():
            result.zero_()
        if grad_output.numel():
            run(_native.JAGGED_SELECT, grad=grad_output.contiguous(), dx=result,
                dim=_native.DIM_COMPONENT, index=int(index), **x.ragged_call())
        return x.wrap(result)
    if value_dim == x.ragged or not is_jagged(grad_output):
        raise Fallback("a select along the ragged dimension")
    grad = Jagged(grad_output).values.contiguous()
    fit((grad.shape, (*shape[:value_dim], *shape[value_dim + 1:])))
    through = x.used is not None
    result = (torch.zeros if through else torch.empty)(shape, dtype=grad.dtype, device=device)
    if result.numel():
        run(_native.JAGGED_SELECT, grad=grad, dx=result, index=int(index), **x.along(value_dim))
    return x.wrap(result)
