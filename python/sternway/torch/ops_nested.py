# SPDX-License-Identifier: MIT
"""The nested operators of `torch.ops.sternway`: nested_<op>_backward, the backward of each operation on nested tensors
that include/sternway/jagged_bwd.h defines (its formulas count here).

NESTED VALUES. A nested tensor [B, ..., j, ...] comes as its values, a contiguous tensor [..., total, ...] without the
first dimension, as nt.values() gives them, with `offsets` [B+1] (int32 or int64) and, where not every position of a
component is used, `used` [B]. `ragged_idx` is the nested tensor's ragged dimension (1 unless it was transposed) and
`dim` counts the nested tensor's dimensions, 0 the components. `max_length`: no component is longer; total where it is
absent. `storage` is "jagged" (values as they are: PyTorch's layout torch.jagged) or "components" (layout torch.strided:
components one behind the other; the tensor's shape says the sizes alone).

    operator      gradient `grad`                                         result
    gelu, silu, threshold   values, beside x                              dX as x
    softmax, log_softmax    values, beside y, the result along dim        dX as y
    sum           values without dim; dim ragged: dense [B, rest]         dX of `sizes`, those of x's values
    select        as sum; dim 0: values of component `index` alone        dX of `sizes`
    layer_norm    values, beside x, mean and rstd (f32, one a line)       those of dX, dweight, dbias in `outputs`
    rms_norm      values, beside x and rstd = (avg(x^2) + eps)^-1/2       those of dX, dweight in `outputs`
                  without normalized_size over the ragged dimension and those behind it, mean and rstd [B, ..]: dX alone
    linear        values [.., j, N], beside x [.., j, K], weight [N, K]   those of dX, dweight, dbias in `outputs`
    reshape       values of component shape grad_shape, -1 the ragged one  dX of component shape `shape`
    to_padded     dense [B, .., padded, ..]                               dX values with `total` positions
    from_padded   values                                                  dX dense [B, .., padded, ..]
`outputs` has bits: 1 dX, 4 dweight, 8 dbias. Results are new, of grad's type (dweight and dbias: weight's). Shapes that
disagree, types the library lacks and tensors that are not contiguous raise _native.InvalidError or UnsupportedError.

`full` promises offsets from 0 to total, nothing unused. Without it gradients start as zeros: positions outside every
component are never written."""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .. import _native
from . import _bridge
from ._autograd import define, no_double_backward
from ._nested_sizes import (
    DBIAS, DWEIGHT, DX, along, axis_of, expect, expect_elements, expect_reduced, make, pairs, storage_number)

_COMMON = "Tensor offsets, Tensor? used=None, *, int ragged_idx=1, SymInt? max_length=None, str storage='jagged', " \
          "bool full=False"


def _nested(name: str, arguments: str, returns: str, kernel: Callable, fake: Callable) -> None:
    """Defines nested_<name>_backward: both kernels get the schema's arguments with their defaults filled in."""
    full_name = f"nested_{name}_backward"
    operator = define(full_name, f"({arguments}) -> {returns}", kernel, fake)
    no_double_backward(operator, kernel)
    globals()[full_name] = operator


def _elementwise(op: int, grad: Tensor, like: Tensor, offsets: Tensor, used: Tensor | None, ragged_idx: int,
                 max_length: int | None, storage: str, full: bool, **more: Any) -> Tensor:
    expect("grad", grad, like.shape)
    dx = make(like, like.shape, full)
    _bridge.jagged_bwd(op, grad=grad, dx=dx, storage=storage_number(storage), **pairs(offsets, used),
                       **axis_of(like.shape, ragged_idx, max_length), **more)
    return dx


def _gelu(grad: Tensor, x: Tensor, offsets: Tensor, used: Tensor | None = None, *, ragged_idx: int = 1,
          max_length: int | None = None, storage: str = "jagged", full: bool = False,
          approximate: str = "none") -> Tensor:
    op = {"none": _native.JAGGED_GELU, "tanh": _native.JAGGED_GELU_TANH}.get(approximate)
    if op is None:
        raise _native.InvalidError(f"sternway: approximate is {approximate!r}; it is 'none' or 'tanh'")
    return _elementwise(op, grad, x, offsets, used, ragged_idx, max_length, storage, full, x=x)


def _silu(grad: Tensor, x: Tensor, offsets: Tensor, used: Tensor | None = None, *, ragged_idx: int = 1,
          max_length: int | None = None, storage: str = "jagged", full: bool = False) -> Tensor:
    return _elementwise(_native.JAGGED_SILU, grad, x, offsets, used, ragged_idx, max_length, storage, full, x=x)


def _threshold(grad: Tensor, x: Tensor, offsets: Tensor, used: Tensor | None = None, *, ragged_idx: int = 1,
               max_length: int | None = None, storage: str = "jagged", full: bool = False,
               threshold: float = 0.0) -> Tensor:
    return _elementwise(_native.JAGGED_THRESHOLD, grad, x, offsets, used, ragged_idx, max_length, storage, full, x=x,
                        threshold=threshold)


def _softmax(grad: Tensor, y: Tensor, offsets: Tensor, used: Tensor | None = None, *, dim: int, ragged_idx: int = 1,
             max_length: int | None = None, storage: str = "jagged", full: bool = False) -> Tensor:
    return _elementwise(_native.JAGGED_SOFTMAX, grad, y, offsets, used, ragged_idx, max_length, storage, full, y=y,
                        **along(y.shape, ragged_idx, dim))


def _log_softmax(grad: Tensor, y: Tensor, offsets: Tensor, used: Tensor | None = None, *, dim: int,
                 ragged_idx: int = 1, max_length: int | None = None, storage: str = "jagged",
                 full: bool = False) -> Tensor:
    return _elementwise(_native.JAGGED_LOG_SOFTMAX, grad, y, offsets, used, ragged_idx, max_length, storage, full, y=y,
                        **along(y.shape, ragged_idx, dim))


def _like_second(grad: Tensor, x: Tensor, offsets: Tensor, used: Tensor | None = None, **options: Any) -> Tensor:
    return x.new_empty(x.shape)


def _of_sizes(op: int, grad: Tensor, sizes: Sequence[int], offsets: Tensor, used: Tensor | None, ragged_idx: int,
              max_length: int | None, storage: str, full: bool, **more: Any) -> Tensor:
    """dX of the sizes given, from a gradient of fewer dimensions."""
    dx = make(grad, sizes, full)
    _bridge.jagged_bwd(op, grad=grad, dx=dx, storage=storage_number(storage), **pairs(offsets, used),
                       **axis_of(sizes, ragged_idx, max_length), **more)
    return dx


def _sum(grad: Tensor, sizes: Sequence[int], offsets: Tensor, used: Tensor | None = None, *, dim: int,
         ragged_idx: int = 1, max_length: int | None = None, storage: str = "jagged", full: bool = False) -> Tensor:
    expect_reduced(grad, sizes, ragged_idx, dim, offsets, used)
    return _of_sizes(_native.JAGGED_SUM, grad, sizes, offsets, used, ragged_idx, max_length, storage, full,
                     **along(sizes, ragged_idx, dim))


def _select(grad: Tensor, sizes: Sequence[int], offsets: Tensor, used: Tensor | None = None, *, dim: int, index: int,
            ragged_idx: int = 1, max_length: int | None = None, storage: str = "jagged", full: bool = False) -> Tensor:
    expect_reduced(grad, sizes, ragged_idx, dim, offsets, used, index)
    return _of_sizes(_native.JAGGED_SELECT, grad, sizes, offsets, used, ragged_idx, max_length, storage, full,
                     index=index, **along(sizes, ragged_idx, dim))


def _sizes_fake(grad: Tensor, sizes: Sequence[int], offsets: Tensor, used: Tensor | None = None,
                **options: Any) -> Tensor:
    return grad.new_empty(sizes)


def _layer_norm(grad: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor | None, offsets: Tensor,
                used: Tensor | None = None, *, normalized_size: int | None = None, ragged_idx: int = 1,
                max_length: int | None = None, storage: str = "jagged", full: bool = False,
                outputs: int = DX | DWEIGHT | DBIAS) -> list[Tensor]:
    return _norm(_native.JAGGED_LAYER_NORM, grad, x, mean, rstd, weight, offsets, used, normalized_size, ragged_idx,
                 max_length, storage, full, outputs)


def _rms_norm(grad: Tensor, x: Tensor, rstd: Tensor, weight: Tensor | None, offsets: Tensor,
              used: Tensor | None = None, *, normalized_size: int | None = None, ragged_idx: int = 1,
              max_length: int | None = None, storage: str = "jagged", full: bool = False,
              outputs: int = DX | DWEIGHT) -> list[Tensor]:
    if outputs & DBIAS:
        raise _native.InvalidError("sternway: outputs has 8, dbias, which rms_norm has not")
    return _norm(_native.JAGGED_RMS_NORM, grad, x, None, rstd, weight, offsets, used, normalized_size, ragged_idx,
                 max_length, storage, full, outputs)


def _norm(op: int, grad: Tensor, x: Tensor, mean: Tensor | None, rstd: Tensor, weight: Tensor | None, offsets: Tensor,
          used: Tensor | None, normalized_size: int | None, ragged_idx: int, max_length: int | None, storage: str,
          full: bool, outputs: int) -> list[Tensor]:
    made = _norm_outputs(x, weight, normalized_size, outputs, full)
    expect("grad", grad, x.shape)
    axis = axis_of(x.shape, ragged_idx, max_length)
    where = {"dim": _native.DIM_RAGGED}
    lines = (offsets.shape[0] - 1) * axis["outer"]
    if normalized_size is not None:
        where = {"dim": _native.DIM_INNER, "dim_size": normalized_size, "dim_after": 1}
        lines = x.numel() // normalized_size if normalized_size > 0 else 0
        expect_elements("x", x, lines * normalized_size)
        if weight is not None:
            expect_elements("weight", weight, normalized_size)
    for name, tensor in (("mean", mean), ("rstd", rstd)):
        if tensor is not None:
            expect_elements(name, tensor, lines)
    _bridge.jagged_bwd(op, grad=grad, x=x, mean=mean, rstd=rstd, weight=weight, storage=storage_number(storage),
                       **where, **made, **pairs(offsets, used), **axis)
    return list(made.values())


def _norm_outputs(x: Tensor, weight: Tensor | None, normalized_size: int | None, outputs: int,
                  full: bool) -> dict[str, Tensor]:
    if normalized_size is None and outputs & (DWEIGHT | DBIAS):
        raise _native.InvalidError(f"sternway: outputs is {outputs}; a norm over the ragged dimension (without "
                                   "normalized_size) has dX alone, 1")
    made = {"dx": make(x, x.shape, full)} if outputs & DX else {}
    like = x if weight is None else weight
    if outputs & DWEIGHT:
        made["dweight"] = like.new_empty((normalized_size,))
    if outputs & DBIAS:
        made["dbias"] = like.new_empty((normalized_size,))
    return made


def _layer_norm_fake(grad: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor | None, offsets: Tensor,
                     used: Tensor | None = None, *, normalized_size: int | None = None,
                     outputs: int = DX | DWEIGHT | DBIAS,
                     **options: Any) -> list[Tensor]:
    return list(_norm_outputs(x, weight, normalized_size, outputs, True).values())


def _rms_norm_fake(grad: Tensor, x: Tensor, rstd: Tensor, weight: Tensor | None, offsets: Tensor,
                   used: Tensor | None = None, *, normalized_size: int | None = None, outputs: int = DX | DWEIGHT,
                   **options: Any) -> list[Tensor]:
    return list(_norm_outputs(x, weight, normalized_size, outputs, True).values())


def _linear(grad: Tensor, x: Tensor, weight: Tensor, offsets: Tensor, used: Tensor | None = None, *,
            ragged_idx: int = 1, max_length: int | None = None, storage: str = "jagged", full: bool = False,
            outputs: int = DX | DWEIGHT) -> list[Tensor]:
    made = _linear_outputs(x, weight, outputs, full)
    axis = axis_of(x.shape, ragged_idx, max_length)
    if ragged_idx != x.dim() - 1:
        raise _native.InvalidError("sternway: linear takes values whose ragged dimension is the last but one; join the "
                                   "dimensions behind it with it, or move them before it")
    if weight.dim() != 2:
        raise _native.InvalidError(f"sternway: weight has {weight.dim()} dimensions, it has two, [N, K]")
    expect("weight", weight, (weight.shape[0], x.shape[-1]))
    expect("grad", grad, (*x.shape[:-1], weight.shape[0]))
    _bridge.jagged_bwd(_native.JAGGED_LINEAR, grad=grad, x=x, weight=weight, storage=storage_number(storage),
                       out_features=weight.shape[0], flags=_native.JAGGED_FULL if full and used is None else 0, **made,
                       **pairs(offsets, used), **axis)
    return list(made.values())


def _linear_outputs(x: Tensor, weight: Tensor, outputs: int, full: bool) -> dict[str, Tensor]:
    made = {"dx": make(x, x.shape, full)} if outputs & DX else {}
    if outputs & DWEIGHT:
        made["dweight"] = torch.empty_like(weight, memory_format=torch.contiguous_format)
    if outputs & DBIAS:
        made["dbias"] = weight.new_empty((weight.shape[0],))
    return made


def _linear_fake(grad: Tensor, x: Tensor, weight: Tensor, offsets: Tensor, used: Tensor | None = None, *,
                 outputs: int = DX | DWEIGHT, **options: Any) -> list[Tensor]:
    return list(_linear_outputs(x, weight, outputs, True).values())


def _reshape(grad: Tensor, offsets: Tensor, used: Tensor | None = None, *, shape: Sequence[int],
             grad_shape: Sequence[int], max_length: int | None = None, storage: str = "jagged",
             grad_storage: str = "jagged", full: bool = False) -> Tensor:
    sizes = _reshape_sizes(grad, shape, grad_shape)
    dx = make(grad, sizes, full)
    total = sizes[list(shape).index(-1)]
    size = total if max_length is None else max_length
    _bridge.jagged_bwd(_native.JAGGED_RESHAPE, grad=grad, dx=dx, axis=((size, total),), shape=tuple(shape),
                       grad_shape=tuple(grad_shape), storage=storage_number(storage),
                       grad_storage=storage_number(grad_storage), **pairs(offsets, used))
    return dx


def _reshape_sizes(grad: Tensor, shape: Sequence[int], grad_shape: Sequence[int]) -> list[int]:
    """Sizes of dX's values."""
    if list(shape).count(-1) != 1 or list(grad_shape).count(-1) != 1:
        raise _native.InvalidError(f"sternway: shape {tuple(shape)} and grad_shape {tuple(grad_shape)} of a component: "
                                   "each has one -1, the ragged extent")
    at = list(grad_shape).index(-1)
    if grad.dim() != len(grad_shape):
        raise _native.InvalidError(f"sternway: grad has {grad.dim()} dimensions and grad_shape {len(grad_shape)}")
    expect("grad", grad, [grad.shape[at] if size == -1 else size for size in grad_shape])
    sizes = [grad.shape[at] if size == -1 else size for size in shape]
    expect_elements("grad", grad, math.prod(sizes))
    return sizes


def _reshape_fake(grad: Tensor, offsets: Tensor, used: Tensor | None = None, *, shape: Sequence[int],
                  grad_shape: Sequence[int], **options: Any) -> Tensor:
    return grad.new_empty(_reshape_sizes(grad, shape, grad_shape))


def _to_padded(grad: Tensor, offsets: Tensor, used: Tensor | None = None, *, total: int, ragged_idx: int = 1,
               max_length: int | None = None, storage: str = "jagged", full: bool = False) -> Tensor:
    sizes = [total if at == ragged_idx - 1 else size for at, size in enumerate(grad.shape[1:])]
    expect("grad", grad, (offsets.shape[0] - 1, *grad.shape[1:]))
    return _of_sizes(_native.JAGGED_TO_PADDED, grad, sizes, offsets, used, ragged_idx, max_length, storage, full,
                     padded=grad.shape[ragged_idx])


def _to_padded_fake(grad: Tensor, offsets: Tensor, used: Tensor | None = None, *, total: int, ragged_idx: int = 1,
                    **options: Any) -> Tensor:
    return grad.new_empty([total if at == ragged_idx - 1 else size for at, size in enumerate(grad.shape[1:])])


def _from_padded(grad: Tensor, offsets: Tensor, used: Tensor | None = None, *, padded: int, ragged_idx: int = 1,
                 max_length: int | None = None, storage: str = "jagged", full: bool = False) -> Tensor:
    dx = _from_padded_fake(grad, offsets, used, padded=padded, ragged_idx=ragged_idx)
    _bridge.jagged_bwd(_native.JAGGED_FROM_PADDED, grad=grad, dx=dx, storage=storage_number(storage), padded=padded,
                       **pairs(offsets, used), **axis_of(grad.shape, ragged_idx, max_length))
    return dx


def _from_padded_fake(grad: Tensor, offsets: Tensor, used: Tensor | None = None, *, padded: int, ragged_idx: int = 1,
                      **options: Any) -> Tensor:
    sizes = [padded if at == ragged_idx - 1 else size for at, size in enumerate(grad.shape)]
    return grad.new_empty([offsets.shape[0] - 1, *sizes])


_nested("gelu", f"Tensor grad, Tensor x, {_COMMON}, str approximate='none'", "Tensor", _gelu, _like_second)
_nested("silu", f"Tensor grad, Tensor x, {_COMMON}", "Tensor", _silu, _like_second)
_nested("threshold", f"Tensor grad, Tensor x, {_COMMON}, float threshold=0.", "Tensor", _threshold, _like_second)
_nested("softmax", f"Tensor grad, Tensor y, {_COMMON}, int dim", "Tensor", _softmax, _like_second)
_nested("log_softmax", f"Tensor grad, Tensor y, {_COMMON}, int dim", "Tensor", _log_softmax, _like_second)
_nested("sum", f"Tensor grad, SymInt[] sizes, {_COMMON}, int dim", "Tensor", _sum, _sizes_fake)
_nested("select", f"Tensor grad, SymInt[] sizes, {_COMMON}, int dim, SymInt index", "Tensor", _select, _sizes_fake)
_nested("layer_norm", f"Tensor grad, Tensor x, Tensor mean, Tensor rstd, Tensor? weight, {_COMMON}, "
        "SymInt? normalized_size=None, int outputs=13", "Tensor[]", _layer_norm, _layer_norm_fake)
_nested("rms_norm", f"Tensor grad, Tensor x, Tensor rstd, Tensor? weight, {_COMMON}, "
        "SymInt? normalized_size=None, int outputs=5", "Tensor[]", _rms_norm, _rms_norm_fake)
_nested("linear", f"Tensor grad, Tensor x, Tensor weight, {_COMMON}, int outputs=5", "Tensor[]", _linear, _linear_fake)
_nested("reshape", "Tensor grad, Tensor offsets, Tensor? used=None, *, SymInt[] shape, SymInt[] grad_shape, "
        "SymInt? max_length=None, str storage='jagged', str grad_storage='jagged', bool full=False", "Tensor", _reshape,
        _reshape_fake)
_nested("to_padded", f"Tensor grad, {_COMMON}, SymInt total", "Tensor", _to_padded, _to_padded_fake)
_nested("from_padded", f"Tensor grad, {_COMMON}, SymInt padded", "Tensor", _from_padded, _from_padded_fake)
