# SPDX-License-Identifier: MIT
"""Backward of nested to padded and of padded to nested, for both layouts: data is moved, nothing is rounded.

Arguments and results are those of the aten operators that nested_ops.py registers these functions for. PyTorch pads
with a number of the caller's; a backward always pads with zeros."""
from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nested._internal.nested_tensor import NestedTensor

from .. import _native
from ._nested_views import Jagged, Sizes, fit, packed, run, sizes_of, sizes_of_table
from ._takeover import Fallback

# ---- nested to padded, backward: dense to nested ----


def to_padded_strided(padded: torch.Tensor, cpu_nested_shape_example: torch.Tensor,
                      fuse_transform_0213: bool = False) -> torch.Tensor:
    """padded: dense [components, dimensions..]. The result has the sizes of the table in host memory."""
    if fuse_transform_0213:
        raise Fallback("fuse_transform_0213")
    sizes = sizes_of_table(cpu_nested_shape_example)
    column = _padded_column(sizes, padded.shape)
    if max(sizes.lengths(column)) > padded.shape[1 + column]:
        raise Fallback("a component is longer than the padded tensor")
    buffer = torch.empty(sizes.numel, dtype=padded.dtype, device=padded.device)
    if sizes.numel:
        run(_native.JAGGED_TO_PADDED, grad=padded.contiguous(), dx=buffer,
                           **_padded_call(sizes, column, padded.device, padded.shape[1 + column]))
    return sizes.nested(buffer)


def _padded_column(sizes: Sizes, shape: Sequence[int]) -> int:
    """The one dimension that padding fills up. Fallback where there are several."""
    if len(shape) != sizes.dims + 1 or shape[0] != sizes.count:
        raise Fallback(f"{sizes.count} components of {sizes.dims} dimensions and a padded tensor of shape {shape}")
    filled = {c for c in range(sizes.dims) if c in sizes.ragged or sizes.extent(c) != shape[1 + c]}
    if len(filled) > 1:
        raise Fallback(f"padding in {len(filled)} dimensions: accepted one")
    return filled.pop() if filled else 0


def _padded_call(sizes: Sizes, column: int, device: torch.device, padded: int) -> dict:
    return {"offsets": (sizes.offsets(column, device),), "axis": (sizes.axis(column),),
            "outer": sizes.constant(0, column), "inner": sizes.constant(column + 1, sizes.dims), "padded": padded,
            "flags": _native.JAGGED_FULL}


def to_padded_jagged(padded: torch.Tensor, offsets: torch.Tensor, dummy: torch.Tensor, ragged_idx: int = 1,
                     min_seqlen: torch.Tensor | None = None, max_seqlen: torch.Tensor | None = None,
                     sum_S: int | None = None) -> torch.Tensor:
    """padded: dense [components, outer.., padded, inner..]; the result's values are [outer.., sum_S, inner..]."""
    if sum_S is None or ragged_idx != 1:  # behind ragged_idx 1 PyTorch passes another extent as sum_S
        raise Fallback("the total of all components is not given")
    if type(padded) is not torch.Tensor or type(offsets) is not torch.Tensor:
        raise Fallback(f"padded is a {type(padded).__name__}, not a plain tensor (torch.compile traces PyTorch's own"
                       " decomposition)")
    fit((padded.shape[0], offsets.shape[0] - 1))
    shape = (*padded.shape[1:ragged_idx], int(sum_S), *padded.shape[ragged_idx + 1:])
    metadata = {"min_seqlen": min_seqlen, "max_seqlen": max_seqlen}
    metadata = {name: value for name, value in metadata.items() if value is not None}
    result = NestedTensor(torch.empty(shape, dtype=padded.dtype, device=padded.device), offsets,
                          _ragged_idx=ragged_idx, _metadata_cache=metadata)
    x = Jagged(result)
    if not x.covered():
        x.values.zero_()
    if x.values.numel() and x.components:
        run(_native.JAGGED_TO_PADDED, grad=padded.contiguous(), dx=x.values,
                           padded=padded.shape[ragged_idx], **x.ragged_call())
    return result


# ---- padded to nested, backward: nested to dense ----


def from_padded_strided(self: torch.Tensor, padding: float, output_size: Sequence[int] | None = None) -> torch.Tensor:
    """self: the nested gradient. The result is dense, zeros in the padding."""
    if padding != 0:
        raise Fallback(f"padding {padding}")
    sizes = sizes_of(self)
    grad = packed(self, "self")
    shape = output_size
    if shape is None:
        shape = (sizes.count, *(max(sizes.lengths(c)) for c in range(sizes.dims)))
    column = _padded_column(sizes, shape)
    if max(sizes.lengths(column)) > shape[1 + column]:
        raise Fallback("a component is longer than the padded tensor")
    result = torch.empty(tuple(shape), dtype=self.dtype, device=self.device)
    if not sizes.numel:
        result.zero_()
    elif result.numel():
        run(_native.JAGGED_FROM_PADDED, grad=grad, dx=result,
                           **_padded_call(sizes, column, self.device, shape[1 + column]))
    return result


def from_padded_jagged(self: torch.Tensor, padding: float, output_size: Sequence[int] | None = None) -> torch.Tensor:
    """self: the jagged gradient; output_size [components, outer.., padded, inner..] is given in a backward."""
    if padding != 0 or output_size is None:
        raise Fallback(f"padding {padding}" if padding != 0 else "no output_size")
    g = Jagged(self)
    if g.used is not None:
        raise Fallback("a jagged tensor with holes")
    shape = (g.components, *g.values.shape[:g.ragged], int(output_size[g.ragged + 1]), *g.values.shape[g.ragged + 1:])
    result = torch.empty(shape, dtype=g.values.dtype, device=g.values.device)
    if not g.values.numel():
        result.zero_()
    elif result.numel():
        run(_native.JAGGED_FROM_PADDED, grad=g.values.contiguous(), dx=result,
                           padded=shape[g.ragged + 1], **g.ragged_call())
    return result
