# SPDX-License-Identifier: MIT
"""nested_matmul_backward and nested_attention_backward of `torch.ops.sternway`: the nested operators with more than one
ragged axis.

matmul: C_b[m,n] = A_b[m,k] B_b[k,n], x is A, other is B, results (dA, dB) as `outputs` asks (bits 1 and 2). `offsets`,
`used`, `sizes` and `totals` have an entry for each of m, k and n: None and 0 where the axis is not ragged. A matrix
with one ragged extent is values [outer, rows, columns] with the total for that extent (storage jagged, the default
there); one without is a stack [components, outer, rows, columns]; one with two needs the bases of its components.
attention: nested q, k, v as packed [T,H,D] with their offsets; gradients as `outputs` asks (bits 1, 2 and 4)."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .. import _native
from . import _bridge
from ._autograd import define, empty_gradient, no_double_backward
from ._nested_sizes import DOTHER, DX, expect_elements, storage_number

_FLAGS = (("x_transposed", _native.JAGGED_X_TRANSPOSED), ("other_transposed", _native.JAGGED_OTHER_TRANSPOSED),
          ("grad_transposed", _native.JAGGED_GRAD_TRANSPOSED))
_MATRICES = (("x", 0, 1), ("other", 1, 2), ("grad", 0, 2))  # and the axes of their rows and columns


def _matrix(name: str, tensor: Tensor, axes: tuple[int, int], offsets: Sequence[Tensor | None], sizes: Sequence[int],
            totals: Sequence[int], stack: int, outer: int, bases: Tensor | None, storage: str | None) -> int:
    """Checks the elements of one of the three matrices; its storage's number, as named or, by default, jagged with one
    ragged extent and components with none or two."""
    ragged = [offsets[axis] is not None for axis in axes]
    if bases is None and all(ragged):
        raise _native.InvalidError(f"sternway: the matrices {name} have two ragged extents, and {name}_bases is absent")
    if bases is None:
        elements = outer if any(ragged) else outer * stack
        for axis, is_ragged in zip(axes, ragged):
            elements *= totals[axis] if is_ragged else sizes[axis]
        expect_elements(name, tensor, elements)
    if storage is not None:
        return storage_number(storage)
    return storage_number("jagged" if sum(ragged) == 1 and bases is None else "components")


def _matmul(grad: Tensor, x: Tensor, other: Tensor, offsets: Sequence[Tensor | None], used: Sequence[Tensor | None],
            x_bases: Tensor | None = None, other_bases: Tensor | None = None, grad_bases: Tensor | None = None, *,
            sizes: Sequence[int], totals: Sequence[int], components: int, outer: int = 1, storage: str | None = None,
            other_storage: str | None = None, grad_storage: str | None = None, outputs: int = DX | DOTHER,
            **transposed: bool) -> list[Tensor]:
    if not len(offsets) == len(used) == len(sizes) == len(totals) == 3:
        raise _native.InvalidError("sternway: nested matmul has three axes, m, k and n: offsets, used, sizes and "
                                   "totals have an entry for each, None or 0 where the axis is not ragged")
    bases = {"x_bases": x_bases, "other_bases": other_bases, "grad_bases": grad_bases}
    stored = {}
    for (name, *axes), tensor, kind in zip(_MATRICES, (x, other, grad), (storage, other_storage, grad_storage)):
        field = "storage" if name == "x" else f"{name}_storage"
        stored[field] = _matrix(name, tensor, axes, offsets, sizes, totals, components, outer, bases[f"{name}_bases"],
                                kind)
    made = {}
    if outputs & DX:
        made.update(dx=torch.zeros_like(x, memory_format=torch.contiguous_format), other=other)
    if outputs & DOTHER:
        made.update(dother=torch.zeros_like(other, memory_format=torch.contiguous_format), x=x)
    _bridge.jagged_bwd(_native.JAGGED_MATMUL, grad=grad, offsets=tuple(offsets), used=tuple(used),
                       axis=tuple(zip(sizes, totals)), components=components, outer=outer,
                       ragged_axes=sum(1 << at for at, starts in enumerate(offsets) if starts is not None),
                       flags=sum(int(flag) for name, flag in _FLAGS if transposed.get(name, False)), **stored, **made,
                       **{name: base for name, base in bases.items() if base is not None})
    return [made[name] for name in ("dx", "dother") if name in made]


def _matmul_fake(grad: Tensor, x: Tensor, other: Tensor, offsets: Sequence[Tensor | None],
                 used: Sequence[Tensor | None], *bases: Tensor | None, outputs: int = DX | DOTHER,
                 **options: Any) -> list[Tensor]:
    return [torch.empty_like(tensor, memory_format=torch.contiguous_format)
            for bit, tensor in ((DX, x), (DOTHER, other)) if outputs & bit]


def _starts(offsets: Tensor) -> Tensor:
    return offsets if offsets.dtype == torch.int32 else offsets.to(torch.int32)


def _attention(dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, offsets_q: Tensor,
               offsets_kv: Tensor, used_q: Tensor | None = None, used_kv: Tensor | None = None, *, max_seq_q: int,
               max_seq_kv: int, causal: bool = False, scale: float | None = None, outputs: int = 7) -> list[Tensor]:
    made = {name: empty_gradient(tensor, zeros=True) for bit, name, tensor in ((1, "dq", q), (2, "dk", k), (4, "dv", v))
            if outputs & bit}
    used = {name: _starts(tensor) for name, tensor in (("used_q", used_q), ("used_kv", used_kv)) if tensor is not None}
    starts_q = _starts(offsets_q)
    starts_kv = starts_q if offsets_kv is offsets_q else _starts(offsets_kv)
    if made:
        _bridge.attn_bwd(_native.THD, q=q, k=k, v=v, out=out, dout=dout, lse=lse, cu_seqlens_q=starts_q,
                         cu_seqlens_kv=starts_kv, max_seq_q=max_seq_q, max_seq_kv=max_seq_kv, scale=scale,
                         mask=_native.MASK_CAUSAL_TOP_LEFT if causal else _native.MASK_NONE, **used, **made)
    return list(made.values())


def _attention_fake(dout: Tensor, q: Tensor, k: Tensor, v: Tensor, *tensors: Tensor | None, outputs: int = 7,
                    **options: Any) -> list[Tensor]:
    return [empty_gradient(tensor) for bit, tensor in ((1, q), (2, k), (4, v)) if outputs & bit]


nested_matmul_backward = define(
    "nested_matmul_backward",
    "(Tensor grad, Tensor x, Tensor other, Tensor?[] offsets, Tensor?[] used, Tensor? x_bases=None, "
    "Tensor? other_bases=None, Tensor? grad_bases=None, *, SymInt[] sizes, SymInt[] totals, SymInt components, "
    "SymInt outer=1, str? storage=None, str? other_storage=None, str? grad_storage=None, bool x_transposed=False, "
    "bool other_transposed=False, bool grad_transposed=False, int outputs=3) -> Tensor[]", _matmul, _matmul_fake)
nested_attention_backward = define(
    "nested_attention_backward",
    "(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, Tensor offsets_q, Tensor offsets_kv, "
    "Tensor? used_q=None, Tensor? used_kv=None, *, SymInt max_seq_q, SymInt max_seq_kv, bool causal=False, "
    "float? scale=None, int outputs=7) -> Tensor[]", _attention, _attention_fake)
no_double_backward(nested_matmul_backward, _matmul)
no_double_backward(nested_attention_backward, _attention)
