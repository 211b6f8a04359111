# SPDX-License-Identifier: MIT
"""The nested operators of `torch.ops.sternway`: nested_<op>_backward, the backward of each operation on nested tensors
that include/sternway/jagged_bwd.h defines (its formulas count here).

NESTED VALUES. A nested tensor [B, ..., j, ...] comes as its values, a contiguous tensor [..., total, ...] without the
first dimension, as nt.values() gives them, with `offsets` [B+1] (int32 or int64) and, where not every position of a
component is used, `used` [B]. `ragged_idx` is the nested tensor's ragged dimension (1 unless it was transposed) and
`dim` counts the nested tensor's dimensions, 0 the components. `max_length`: no component is longer; total where it is
absent. `storage` is "jagged" (values as they are: PyTorch's layout torch.jagged) or "components" (layout torch.strided:
components one behind the other; the tensor's shape says the sizes alone).
`full` promises offsets from 0 to total, nothing unused. Without it gradients start as zeros: positions outside every
component are never written."""
from __future__ import annotations

import math
from typing import Any, Callable

import torch

from .. import _native
from . import _bridge
from ._autograd import define, no_double_backward

_STORAGE = {"jagged": int(_native.STORAGE_JAGGED), "components": int(_native.STORAGE_COMPONENTS)}
_COMMON = "Tensor offsets, Tensor? used=None, *, int ragged_idx=1, SymInt? max_length=None, str storage='jagged', " \
          "bool full=False"
DX, DOTHER, DWEIGHT, DBIAS = 1, 2, 4, 8
_DTYPES = {getattr(torch, name): int(getattr(_native, code)) for name, code in (
    ("float16", "F16"), ("bfloat16", "BF16"), ("float32", "F32"), ("float64", "F64"), ("int32", "I32"),
    ("int64", "I64"))}


def _prod(sizes) -> int:
    return math.prod(sizes)


def _storage(name: str) -> int:
    if name not in _STORAGE:
        raise _native.InvalidError(f"sternway: storage is {name!r}; it is 'jagged' or 'components'")
    return _STORAGE[name]


def _make(like: torch.Tensor, sizes, full: bool) -> torch.Tensor:
    return like.new_empty(sizes) if full else like.new_zeros(sizes)


def _axis(sizes, ragged_idx: int, max_length: int | None) -> dict[str, Any]:
    """outer, the ragged axis and inner of values of these sizes."""
    at = ragged_idx - 1
    if not 0 <= at < len(sizes):
        raise _native.InvalidError(f"sternway: ragged_idx is {ragged_idx} of a nested tensor with {len(sizes) + 1} "
                                   "dimensions")
    total = sizes[at]
    size = total if max_length is None else min(max_length, total)
    return {"outer": _prod(sizes[:at]), "inner": _prod(sizes[at + 1:]), "axis": ((size, total),)}


def _along(sizes, ragged_idx: int, dim: int) -> dict[str, Any]:
    """dim, dim_size and dim_after of a dimension of the nested tensor."""
    at, dim = ragged_idx - 1, dim + len(sizes) + 1 if dim < 0 else dim
    if not 0 <= dim <= len(sizes):
        raise _native.InvalidError(f"sternway: dim is {dim} of a nested tensor with {len(sizes) + 1} dimensions")
    if dim == 0:
        return {"dim": _native.DIM_COMPONENT}
    dim -= 1
    if dim == at:
        return {"dim": _native.DIM_RAGGED}
    if dim < at:
        return {"dim": _native.DIM_OUTER, "dim_size": sizes[dim], "dim_after": _prod(sizes[dim + 1:at])}
    return {"dim": _native.DIM_INNER, "dim_size": sizes[dim], "dim_after": _prod(sizes[dim + 1:])}


def _pairs(offsets: torch.Tensor, used: torch.Tensor | None) -> dict[str, Any]:
    return {"offsets": (offsets,)} if used is None else {"offsets": (offsets,), "used": (used,)}


def _nested(name: str, arguments: str, returns: str, kernel: Callable, fake: Callable) -> None:
    """Defines nested_<name>_backward: both kernels get the schema's arguments with their defaults filled in."""
    full_name = f"nested_{name}_backward"
    operator = define(full_name, f"({arguments}) -> {returns}", kernel, fake)
    no_double_backward(operator, kernel)
    globals()[full_name] = operator


def _elementwise(op: int, grad: torch.Tensor, like: torch.Tensor, offsets: torch.Tensor, used: torch.Tensor | None,
                 ragged_idx: int, max_length: int | None, storage: str, full: bool, **more: Any) -> torch.Tensor:
    dx = _make(like, like.shape, full)
    _bridge.jagged_bwd(op, grad=grad, dx=dx, storage=_storage(storage), **_pairs(offsets, used),
                       **_axis(like.shape, ragged_idx, max_length), **more)
    return dx


def _gelu(grad, x, offsets, used=None, *, ragged_idx=1, max_length=None, storage="jagged", full=False,
          approximate="none"):
    op = {"none": _native.JAGGED_GELU, "tanh": _native.JAGGED_GELU_TANH}.get(approximate)
    if op is None:
        raise _native.InvalidError(f"sternway: approximate is {approximate!r}; it is 'none' or 'tanh'")
    return _elementwise(op, grad, x, offsets, used, ragged_idx, max_length, storage, full, x=x)


def _silu(grad, x, offsets, used=None, *, ragged_idx=1, max_length=None, storage="jagged", full=False):
    return _elementwise(_native.JAGGED_SILU, grad, x, offsets, used, ragged_idx, max_length, storage, full, x=x)


def _threshold(grad, x, offsets, used=None, *, ragged_idx=1, max_length=None, storage="jagged", full=False,
               threshold=0.0):
    return _elementwise(_native.JAGGED_THRESHOLD, grad, x, offsets, used, ragged_idx, max_length, storage, full, x=x,
                        threshold=threshold)


def _softmax(grad, y, offsets, used=None, *, dim, ragged_idx=1, max_length=None, storage="jagged", full=False):
    return _elementwise(_native.JAGGED_SOFTMAX, grad, y, offsets, used, ragged_idx, max_length, storage, full, y=y,
                        **_along(y.shape, ragged_idx, dim))


def _like_second(grad, x, offsets, used=None, **options):
    return x.new_empty(x.shape)


def _of_sizes(op: int, grad, sizes, offsets, used, ragged_idx, max_length, storage, full, **more):
    """dX of the sizes given, from a gradient of fewer dimensions."""
    dx = _make(grad, sizes, full)
    _bridge.jagged_bwd(op, grad=grad, dx=dx, storage=_storage(storage), **_pairs(offsets, used),
                       **_axis(sizes, ragged_idx, max_length), **more)
    return dx


def _sum(grad, sizes, offsets, used=None, *, dim, ragged_idx=1, max_length=None, storage="jagged", full=False):
    return _of_sizes(_native.JAGGED_SUM, grad, sizes, offsets, used, ragged_idx, max_length, storage, full,
                     **_along(sizes, ragged_idx, dim))


def _select(grad, sizes, offsets, used=None, *, dim, index, ragged_idx=1, max_length=None, storage="jagged",
            full=False):
    return _of_sizes(_native.JAGGED_SELECT, grad, sizes, offsets, used, ragged_idx, max_length, storage, full,
                     index=index, **_along(sizes, ragged_idx, dim))


def _sizes_fake(grad, sizes, offsets, used=None, **options):
    return grad.new_empty(sizes)


def _layer_norm(grad, x, mean, rstd, weight, offsets, used=None, *, normalized_size, ragged_idx=1, max_length=None,
                storage="jagged", full=False, outputs=DX | DWEIGHT | DBIAS):
    made = _layer_norm_outputs(x, weight, normalized_size, outputs, full)
    _bridge.jagged_bwd(_native.JAGGED_LAYER_NORM, grad=grad, x=x, mean=mean, rstd=rstd, weight=weight,
                       storage=_storage(storage), dim=_native.DIM_INNER, dim_size=normalized_size, dim_after=1,
                       **made, **_pairs(offsets, used), **_axis(x.shape, ragged_idx, max_length))
    return list(made.values())


def _layer_norm_outputs(x, weight, normalized_size, outputs, full) -> dict[str, torch.Tensor]:
    made = {"dx": _make(x, x.shape, full)} if outputs & DX else {}
    like = x if weight is None else weight
    if outputs & DWEIGHT:
        made["dweight"] = like.new_empty((normalized_size,))
    if outputs & DBIAS:
        made["dbias"] = like.new_empty((normalized_size,))
    return made


def _layer_norm_fake(grad, x, mean, rstd, weight, offsets, used=None, *, normalized_size,
                     outputs=DX | DWEIGHT | DBIAS, **options):
    return list(_layer_norm_outputs(x, weight, normalized_size, outputs, True).values())


def _linear(grad, x, weight, offsets, used=None, *, ragged_idx=1, max_length=None, storage="jagged", full=False,
            outputs=DX | DWEIGHT):
    made = _linear_outputs(x, weight, outputs, full)
    axis = _axis(x.shape, ragged_idx, max_length)
    if ragged_idx != x.dim() - 1:
        raise _native.InvalidError("sternway: linear takes values whose ragged dimension is the last but one; join the "
                                   "dimensions behind it with it, or move them before it")
    _bridge.jagged_bwd(_native.JAGGED_LINEAR, grad=grad, x=x, weight=weight, storage=_storage(storage),
                       out_features=weight.shape[0], flags=_native.JAGGED_FULL if full and used is None else 0, **made,
                       **_pairs(offsets, used), **axis)
    return list(made.values())


def _linear_outputs(x, weight, outputs, full) -> dict[str, torch.Tensor]:
    made = {"dx": _make(x, x.shape, full)} if outputs & DX else {}
    if outputs & DWEIGHT:
        made["dweight"] = torch.empty_like(weight, memory_format=torch.contiguous_format)
    if outputs & DBIAS:
        made["dbias"] = weight.new_empty((weight.shape[0],))
    return made


def _linear_fake(grad, x, weight, offsets, used=None, *, outputs=DX | DWEIGHT, **options):
    return list(_linear_outputs(x, weight, outputs, True).values())


def _reshape(grad, offsets, used=None, *, shape, grad_shape, max_length=None, storage="jagged", grad_storage="jagged",
             full=False):
    sizes = _reshape_sizes(grad, shape, grad_shape)
    dx = _make(grad, sizes, full)
    total = sizes[list(shape).index(-1)]
    if not grad.is_contiguous() or any(t is not None and (t.device != grad.device or not t.is_contiguous())
                                       for t in (offsets, used)):
        raise _native.InvalidError("sternway: grad, offsets and used have to be contiguous and on one device")
    desc = _native.JaggedDesc(
        op=_native.JAGGED_RESHAPE, dtype=_DTYPES[grad.dtype], index_dtype=_DTYPES[offsets.dtype],
        outputs=DX, components=offsets.shape[0] - 1, axis=((total if max_length is None else max_length, total),),
        flags=0 if used is None else _native.JAGGED_HAS_USED, storage=_storage(storage),
        grad_storage=_storage(grad_storage), shape=tuple(shape), grad_shape=tuple(grad_shape), shape_rank=len(shape),
        grad_rank=len(grad_shape))
    args = _native.JaggedArgs(axis=((offsets, used, None, None),), grad=grad, dx=dx)
    plan = _bridge.context(grad.device).jagged_bwd_plan(desc)
    memory = _bridge.workspace(grad.device)
    size = plan.workspace_size
    plan.run(args, memory(size) if memory is not None and size else torch.empty(size, dtype=torch.uint8), size,
             _bridge.stream(grad.device))
    return dx


def _reshape_sizes(grad, shape, grad_shape) -> list[int]:
    if list(shape).count(-1) != 1 or list(grad_shape).count(-1) != 1:
        raise _native.InvalidError(f"sternway: shape {tuple(shape)} and grad_shape {tuple(grad_shape)} of a component: "
                                   "each has one -1, the ragged extent")
    at = list(grad_shape).index(-1)
    if grad.dim() != len(grad_shape):
        raise _native.InvalidError(f"sternway: grad has {grad.dim()} dimensions and grad_shape {len(grad_shape)}")
    return [grad.shape[at] if size == -1 else size for size in shape]


def _reshape_fake(grad, offsets, used=None, *, shape, grad_shape, **options):
    return grad.new_empty(_reshape_sizes(grad, shape, grad_shape))


def _to_padded(grad, offsets, used=None, *, total, ragged_idx=1, max_length=None, storage="jagged", full=False):
    sizes = [total if at == ragged_idx - 1 else size for at, size in enumerate(grad.shape[1:])]
    return _of_sizes(_native.JAGGED_TO_PADDED, grad, sizes, offsets, used, ragged_idx, max_length, storage, full,
                     padded=grad.shape[ragged_idx])


def _to_padded_fake(grad, offsets, used=None, *, total, ragged_idx=1, **options):
    return grad.new_empty([total if at == ragged_idx - 1 else size for at, size in enumerate(grad.shape[1:])])


def _from_padded(grad, offsets, used=None, *, padded, ragged_idx=1, max_length=None, storage="jagged", full=False):
    dx = _from_padded_fake(grad, offsets, used, padded=padded, ragged_idx=ragged_idx)
    _bridge.jagged_bwd(_native.JAGGED_FROM_PADDED, grad=grad, dx=dx, storage=_storage(storage), padded=padded,
                       **_pairs(offsets, used), **_axis(grad.shape, ragged_idx, max_length))
    return dx


def _from_padded_fake(grad, offsets, used=None, *, padded, ragged_idx=1, **options):
    sizes = [padded if at == ragged_idx - 1 else size for at, size in enumerate(grad.shape)]
    return grad.new_empty([offsets.shape[0] - 1, *sizes])


_nested("gelu", f"Tensor grad, Tensor x, {_COMMON}, str approximate='none'", "Tensor", _gelu, _like_second)
_nested("silu", f"Tensor grad, Tensor x, {_COMMON}", "Tensor", _silu, _like_second)
_nested("threshold", f"Tensor grad, Tensor x, {_COMMON}, float threshold=0.", "Tensor", _threshold, _like_second)
_nested("softmax", f"Tensor grad, Tensor y, {_COMMON}, int dim", "Tensor", _softmax, _like_second)
_nested("sum", f"Tensor grad, SymInt[] sizes, {_COMMON}, int dim", "Tensor", _sum, _sizes_fake)
_nested("select", f"Tensor grad, SymInt[] sizes, {_COMMON}, int dim, SymInt index", "Tensor", _select, _sizes_fake)
_nested("layer_norm", f"Tensor grad, Tensor x, Tensor mean, Tensor rstd, Tensor? weight, {_COMMON}, "
        "SymInt normalized_size, int outputs=13", "Tensor[]", _layer_norm, _layer_norm_fake)
_nested("linear", f"Tensor grad, Tensor x, Tensor weight, {_COMMON}, int outputs=5", "Tensor[]", _linear, _linear_fake)
_nested("reshape", "Tensor grad, Tensor offsets, Tensor? used=None, *, SymInt[] shape, SymInt[] grad_shape, "
        "SymInt? max_length=None, str storage='jagged', str grad_storage='jagged', bool full=False", "Tensor", _reshape,
        _reshape_fake)
_nested("to_padded", f"Tensor grad, {_COMMON}, SymInt total", "Tensor", _to_padded, _to_padded_fake)
_nested("from_padded", f"Tensor grad, {_COMMON}, SymInt padded", "Tensor", _from_padded, _from_padded_fake)
