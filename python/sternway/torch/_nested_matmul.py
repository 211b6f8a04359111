# SPDX-License-Identifier: MIT
"""Backward of products of nested tensors: dA = G B^T, dB = A^T G for each component, in both layouts.

A matrix of the library is row-major or the transpose of a row-major one; m, k and n may each be ragged, a matrix with
two ragged extents (scores of attention) says where its components start. Strided tensors whose matrices lie
otherwise, as heads inside of rows do, are copied, which PyTorch does too. Products of a jagged tensor with one matrix
for all components are linear layers, whose sums over all rows have kernels of their own."""
from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .. import _native
from ._nested_linear import linear_rows
from ._nested_views import Jagged, Sizes, fit, is_jagged, packed, run, same_components, same_dtype, sizes_of
from ._takeover import Fallback

Pair = tuple[torch.Tensor | None, torch.Tensor | None]


@dataclass
class Matrix:
    """An operand as it lies in memory: `data` contiguous."""
    data: torch.Tensor
    transposed: bool
    jagged: bool = False
    bases: torch.Tensor | None = None


def _product(grad: Matrix, x: Matrix, other: Matrix, dx: torch.Tensor | None, dother: torch.Tensor | None,
             **call: Any) -> None:
    """The call. dx and dother lie as x and other do."""
    flags = call.pop("flags", 0)
    for matrix, transposed in ((grad, _native.JAGGED_GRAD_TRANSPOSED), (x, _native.JAGGED_X_TRANSPOSED),
                               (other, _native.JAGGED_OTHER_TRANSPOSED)):
        flags |= transposed if matrix.transposed else 0
    for name, matrix in (("grad", grad), ("x", x), ("other", other)):
        if matrix.bases is not None:
            call[f"{name}_bases"] = matrix.bases
    storage = {False: _native.STORAGE_COMPONENTS, True: _native.STORAGE_JAGGED}
    run(_native.JAGGED_MATMUL, grad=grad.data, x=x.data, other=other.data, dx=dx, dother=dother,
                       flags=flags, storage=storage[x.jagged], other_storage=storage[other.jagged],
                       grad_storage=storage[grad.jagged], **call)


# ---- strided ----


def matmul_backward_strided(grad: torch.Tensor | None, self: torch.Tensor, other: torch.Tensor,
                            mask: Sequence[bool]) -> Pair:
    if grad is None:
        return None, None
    if not (grad.is_nested and self.is_nested):
        raise Fallback("a product of a dense and a nested tensor")
    same_dtype(grad=grad, self=self, other=other)
    if not other.is_nested:
        return _one_matrix(grad, self, other, mask)
    if not self.numel() and not other.numel():
        return (torch.empty_like(self) if mask[0] else None), (torch.empty_like(other) if mask[1] else None)
    sizes = [sizes_of(t) for t in (grad, self, other)]
    g_sizes, x_sizes, o_sizes = sizes
    if len({s.dims for s in sizes}) > 1 or x_sizes.dims < 2 or len({s.count for s in sizes}) > 1:
        raise Fallback("operands of different dimensions")
    outer = x_sizes.constant(0, x_sizes.dims - 2)
    if outer is None or any(row[:-2] != other_row[:-2] for row, other_row in zip(x_sizes.rows, o_sizes.rows)):
        raise Fallback("leading dimensions of the components that differ")
    for g, x, o in zip(g_sizes.rows, x_sizes.rows, o_sizes.rows):
        fit((x[-1], o[-2]), (g, (*x[:-1], o[-1])))
    m, k, n = x_sizes.dims - 2, x_sizes.dims - 1, o_sizes.dims - 1
    if outer == 0:
        return _zeros(self, x_sizes, mask[0]), _zeros(other, o_sizes, mask[1])
    (g_matrix, _), (x_matrix, self), (o_matrix, other) = (
        _matrix(t, s) for t, s in ((grad, g_sizes), (self, x_sizes), (other, o_sizes)))
    device = self.device
    offsets: list[torch.Tensor | None] = []
    axes, ragged_axes = [], 0
    for bit, (s, column) in enumerate(((x_sizes, m), (x_sizes, k), (o_sizes, n))):
        if column in s.ragged:
            ragged_axes |= 1 << bit
            offsets.append(s.offsets(column, device))
            axes.append(s.axis(column))
        else:
            offsets.append(None)
            axes.append((s.extent(column), 0))
    dx = _gradient_buffer(self, x_sizes) if mask[0] else None
    dother = _gradient_buffer(other, o_sizes) if mask[1] else None
    wanted = [t if t is not None and t.numel() else None for t in (dx, dother)]
    if any(t is not None for t in wanted):
        _product(g_matrix, x_matrix, o_matrix, *wanted, offsets=tuple(offsets), axis=tuple(axes), ragged_axes=ragged_axes, outer=outer,
                 components=x_sizes.count, flags=_native.JAGGED_FULL if ragged_axes else 0)
    return _as(self, dx), _as(other, dother)


def _one_matrix(grad: torch.Tensor, self: torch.Tensor, other: torch.Tensor, mask: Sequence[bool]) -> Pair:
    """One dense matrix [k, n] for all rows of a nested tensor: a linear layer with the weight other^T."""
    if other.dim() != 2:
        raise Fallback("a product of a nested and a dense tensor of more than two dimensions")
    x, g = packed(self, "self"), packed(grad.contiguous(), "grad")
    same_rows = zip(sizes_of(self).rows, sizes_of(grad).rows, strict=True)
    fit(*((g_row, (*x_row[:-1], other.shape[1])) for x_row, g_row in same_rows))
    dx = torch.empty_like(self) if mask[0] else None
    dweight, _ = linear_rows(x, g, other.t(), dx.values() if dx is not None else None, (mask[1], False))
    return dx, (dweight.t() if dweight is not None else None)


def _zeros(like: torch.Tensor, sizes: Sizes, wanted: bool) -> torch.Tensor | None:
    return sizes.nested(torch.zeros(sizes.numel, dtype=like.dtype, device=like.device)) if wanted else None


def _strides_of(sizes: Sizes, transposed: bool) -> list[list[int]]:
    rows = []
    for row in sizes.rows:
        shape = (*row[:-2], row[-1], row[-2]) if transposed else row
        strides = [math.prod(shape[c + 1:]) for c in range(len(shape))]
        if transposed:
            strides[-2:] = strides[-1], strides[-2]
        rows.append(strides)
    return rows


def _lies(sizes: Sizes, strides: list[list[int]], transposed: bool) -> bool:
    """Whether the strides say row-major, or its transpose; those of extents up to 1 mean nothing."""
    for row, given, wanted in zip(sizes.rows, strides, _strides_of(sizes, transposed)):
        if math.prod(row) and any(s > 1 and a != b for s, a, b in zip(row, given, wanted)):
            return False
    return True


def _follow(nested: torch.Tensor, sizes: Sizes) -> bool:
    """Whether the components fill the buffer one behind the other."""
    starts = nested._nested_tensor_storage_offsets().tolist()
    return nested.values().numel() == sizes.numel and \
        all(at == start for at, start, n in zip(starts, sizes.starts(), sizes.numels) if n)


def _matrix(nested: torch.Tensor, sizes: Sizes) -> tuple[Matrix, torch.Tensor]:
    """The operand, and the nested tensor whose sizes and strides say how it lies: `nested`, or a contiguous copy of
    matrices that lie in no way that the library knows. PyTorch copies every operand that is not contiguous."""
    transposed = False
    if not nested.is_contiguous() or nested.values().numel() != sizes.numel:
        strides = nested._nested_tensor_strides().tolist()
        transposed = not _lies(sizes, strides, False)
        if not _follow(nested, sizes) or (transposed and not _lies(sizes, strides, True)):
            nested, transposed = nested.clone(memory_format=torch.contiguous_format), False
    matrix = Matrix(nested.values(), transposed)
    if len({sizes.dims - 2, sizes.dims - 1} & set(sizes.ragged)) == 2:
        matrix.bases = sizes.array(("starts",), sizes.starts, nested.device)
    return matrix, nested


def _gradient_buffer(like: torch.Tensor, sizes: Sizes) -> torch.Tensor:
    """Empty products over k leave zeros, which the call writes; a buffer without elements is not passed to it."""
    return torch.empty(sizes.numel, dtype=like.dtype, device=like.device)


def _as(like: torch.Tensor, buffer: torch.Tensor | None) -> torch.Tensor | None:
    """A nested tensor on `buffer` with the sizes and strides of `like`."""
    if buffer is None:
        return None
    return torch._nested_view_from_buffer(buffer, like._nested_tensor_size(), like._nested_tensor_strides(),
                                          like._nested_tensor_storage_offsets())


# ---- jagged ----


def matmul_backward_jagged(grad: torch.Tensor | None, self: torch.Tensor, other: torch.Tensor,
                           mask: Sequence[bool]) -> Pair:
    if grad is None:
        return None, None
    same_dtype(grad=grad, self=self, other=other)
    if is_jagged(self) and is_jagged(other):
        if is_jagged(grad):
            return _stack(Jagged(grad), Jagged(self), Jagged(other), mask)
        return _over_ragged(grad, Jagged(self), Jagged(other), mask)
    if not is_jagged(grad):
        raise Fallback("grad is not a nested tensor")
    if is_jagged(self):
        if other.dim() == 2:
            return _shared(Jagged(grad), Jagged(self), other, mask)
        return _rows(Jagged(grad), Jagged(self), other, mask)
    return _columns(Jagged(grad), self, Jagged(other), mask)


def _dense(tensor: torch.Tensor) -> Matrix:
    """A dense operand [.., rows, columns]. Others than row-major matrices and their transposes are copied; PyTorch
    pads or unbinds every operand of these products, which are copies too."""
    if not tensor.is_contiguous() and tensor.transpose(-1, -2).is_contiguous():
        return Matrix(tensor.transpose(-1, -2), True)
    return Matrix(tensor.contiguous(), False)


def _like(matrix: Matrix, tensor: torch.Tensor, zeros: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Memory that lies as the matrix does, and the same as a tensor of the operand's shape."""
    memory = (torch.zeros_like if zeros else torch.empty_like)(matrix.data)
    return memory, memory.transpose(-1, -2) if matrix.transposed else memory


def _shared(grad: Jagged, x: Jagged, other: torch.Tensor, mask: Sequence[bool]) -> Pair:
    """One matrix [k, n] for all rows: a linear layer with the weight other^T."""
    same_components(grad, x, "grad and self")
    if x.ragged == x.values.dim() - 1 or x.used is not None:
        raise Fallback("a product over the ragged dimension, or of a jagged tensor with holes, and one matrix")
    values = x.contiguous("self")
    fit((values.shape[-1], other.shape[0]), (grad.values.shape, (*values.shape[:-1], other.shape[1])))
    if not values.numel() or not grad.values.numel():
        dx = torch.zeros_like(values) if mask[0] else None
        dother = torch.zeros_like(other) if mask[1] else None
        return (x.wrap(dx) if dx is not None else None), dother
    dx = torch.empty_like(values) if mask[0] else None
    dweight, _ = linear_rows(values, grad.values.contiguous(), other.t(), dx, (mask[1], False))
    return (x.wrap(dx) if dx is not None else None), (dweight.t() if dweight is not None else None)


def _run(grad: Matrix, x: Matrix, other: Matrix, x_like: torch.Tensor, other_like: torch.Tensor,
         zeros: tuple[bool, bool], mask: Sequence[bool], **call: Any) -> Pair:
    """The call for gradients in memory like the operands'. zeros: operands with positions in no component."""
    dx, dx_as = _like(x, x_like, zeros[0]) if mask[0] else (None, None)
    dother, dother_as = _like(other, other_like, zeros[1]) if mask[1] else (None, None)
    wanted = [t if t is not None and t.numel() else None for t in (dx, dother)]
    if any(t is not None for t in wanted):
        _product(grad, x, other, *wanted, **call)
    return dx_as, dother_as


def _ragged_axis(x: Jagged, bit: int, axes: list[tuple[int, int]]) -> dict[str, Any]:
    """Keywords for the one ragged axis of a product."""
    axes[bit] = x.axis()
    call: dict[str, Any] = {"offsets": tuple(x.offsets if i == bit else None for i in range(3)), "axis": tuple(axes),
                            "ragged_axes": 1 << bit, "components": x.components}
    if x.used is not None:
        call["used"] = tuple(x.used if i == bit else None for i in range(3))
    return call


def _stack(grad: Jagged, x: Jagged, other: Jagged, mask: Sequence[bool]) -> Pair:
    """Matrices at each ragged position: a dense stack."""
    same_components(x, other, "self and other")
    same_components(grad, x, "grad and self")
    if x.ragged > x.values.dim() - 3 or x.values.shape[:-2] != other.values.shape[:-2] or x.used is not None:
        raise Fallback("a product of jagged tensors that is no stack of matrices")
    m, k = x.values.shape[-2:]
    n = other.values.shape[-1]
    fit((other.values.shape[-2], k), (grad.values.shape, (*x.values.shape[:-1], n)))
    outer = math.prod(x.values.shape[:-2])
    if not outer:
        return (x.wrap(torch.zeros_like(x.values)) if mask[0] else None,
                other.wrap(torch.zeros_like(other.values)) if mask[1] else None)
    matrices = [_dense(t.values) for t in (grad, x, other)]
    dx, dother = _run(*matrices, x.values, other.values, (False, False), mask, axis=((m, 0), (k, 0), (n, 0)),
                      offsets=(None, None, None), ragged_axes=0, outer=outer, components=1)
    return (x.wrap(dx) if dx is not None else None), (other.wrap(dother) if dother is not None else None)


def _over_ragged(grad: torch.Tensor, x: Jagged, other: Jagged, mask: Sequence[bool]) -> Pair:
    """[m, ragged] [ragged, n] to a dense [components, m, n]."""
    same_components(x, other, "self and other")
    if x.values.dim() != 2 or other.values.dim() != 2 or x.ragged != 1 or other.ragged != 0:
        raise Fallback("a product over the ragged dimension of more than two dimensions")
    m, n = x.values.shape[0], other.values.shape[1]
    fit((grad.shape, (x.components, m, n)), (x.total, other.total))
    if not grad.numel():
        return (x.wrap(torch.zeros_like(x.values)) if mask[0] else None,
                other.wrap(torch.zeros_like(other.values)) if mask[1] else None)
    g_matrix, x_matrix, o_matrix = _dense(grad), _dense(x.values), _dense(other.values)
    x_matrix.jagged = o_matrix.jagged = True
    zeros = not x.covered()
    dx, dother = _run(g_matrix, x_matrix, o_matrix, x.values, other.values, (zeros, zeros), mask,
                      **_ragged_axis(x, 1, [(m, 0), (0, 0), (n, 0)]))
    return (x.wrap(dx) if dx is not None else None), (other.wrap(dother) if dother is not None else None)


def _rows(grad: Jagged, x: Jagged, other: torch.Tensor, mask: Sequence[bool]) -> Pair:
    """Jagged rows times one dense matrix a component: [outer.., ragged, k] [components, outer.., k, n]."""
    same_components(grad, x, "grad and self")
    if other.dim() != x.values.dim() + 1 or x.ragged != x.values.dim() - 2 or not x.components or \
            tuple(other.shape[:-2]) != (x.components, *x.values.shape[:-2]):
        raise Fallback("a product of a jagged and a dense tensor whose leading dimensions differ")
    k, n = other.shape[-2:]
    fit((x.values.shape[-1], k), (grad.values.shape, (*x.values.shape[:-1], n)))
    outer = math.prod(x.values.shape[:-2])
    if not outer:
        return (x.wrap(torch.zeros_like(x.values)) if mask[0] else None,
                torch.zeros_like(other) if mask[1] else None)
    g_matrix, x_matrix, o_matrix = _dense(grad.values), _dense(x.values), _dense(other)
    g_matrix.jagged = x_matrix.jagged = True
    dx, dother = _run(g_matrix, x_matrix, o_matrix, x.values, other, (not x.covered(), False), mask, outer=outer,
                      **_ragged_axis(x, 0, [(0, 0), (k, 0), (n, 0)]))
    return (x.wrap(dx) if dx is not None else None), dother


def _columns(grad: Jagged, x: torch.Tensor, other: Jagged, mask: Sequence[bool]) -> Pair:
    """A dense matrix times jagged columns: [.., m, k] [k, ragged], one matrix for all or one a component."""
    same_components(grad, other, "grad and other")
    last = other.values.dim() - 1
    if other.ragged != last or not other.components:
        raise Fallback("a product of a dense tensor and a jagged one whose last dimension is not ragged")
    m, k = x.shape[-2:]
    fit((other.values.shape[-2], k), (grad.values.shape, (*other.values.shape[:-2], m, other.total)))
    g_matrix, x_matrix, o_matrix = _dense(grad.values), _dense(x), _dense(other.values)
    if x.dim() == 2:
        if last != 1 or other.used is not None:
            raise Fallback("one matrix and a jagged tensor of more dimensions, or with holes")
        dx, dother = _run(g_matrix, x_matrix, o_matrix, x, other.values, (False, False), mask,
                          axis=((m, 0), (k, 0), (other.total, 0)), offsets=(None, None, None), ragged_axes=0,
                          components=1)
        return dx, (other.wrap(dother) if dother is not None else None)
    outer = math.prod(other.values.shape[:-2])
    if tuple(x.shape[:-2]) != (other.components, *other.values.shape[:-2]) or not outer:
        raise Fallback("a product of a dense and a jagged tensor whose leading dimensions differ")
    g_matrix.jagged = o_matrix.jagged = True
    dx, dother = _run(g_matrix, x_matrix, o_matrix, x, other.values, (False, not other.covered()), mask, outer=outer,
                      **_ragged_axis(other, 2, [(m, 0), (k, 0), (0, 0)]))
    return dx, (other.wrap(dother) if dother is not None else None)
