# SPDX-License-Identifier: MIT
"""nested_matmul_backward and nested_attention_backward of `torch.ops.sternway`: the nested operators with more than one
ragged axis."""
from __future__ import annotations

import torch

from .. import _native
from . import _bridge
from ._autograd import define, empty_gradient, no_double_backward
from .ops_nested import DOTHER, DX, _storage

_FLAGS = (("x_transposed", _native.JAGGED_X_TRANSPOSED), ("other_transposed", _native.JAGGED_OTHER_TRANSPOSED),
          ("grad_transposed", _native.JAGGED_GRAD_TRANSPOSED))


def _matrix_storage(given: str | None, rows: torch.Tensor | None, columns: torch.Tensor | None,
                    bases: torch.Tensor | None) -> int:
    """The storage named, else that of a matrix with these ragged extents: jagged with one, components with none or two."""
    if given is not None:
        return _storage(given)
    return _storage("jagged" if (rows is None) != (columns is None) and bases is None else "components")


def _matmul(grad, x, other, offsets, used, x_bases=None, other_bases=None, grad_bases=None, *, sizes, totals,
            components, outer=1, storage=None, other_storage=None, grad_storage=None, outputs=DX | DOTHER, **transposed):
    if len(offsets) != 3 or len(used) != 3 or len(sizes) != 3 or len(totals) != 3:
        raise _native.InvalidError("sternway: nested matmul has three axes, m, k and n: offsets, used, sizes and totals "
                                   "have an entry for each, None or 0 where the axis is not ragged")
    made = _matmul_fake(grad, x, other, offsets, used, outputs=outputs, zeros=True)
    made = dict(zip([name for bit, name in ((DX, "dx"), (DOTHER, "dother")) if outputs & bit], made))
    stored = {name: _matrix_storage(given, offsets[first], offsets[second], base)
              for name, given, first, second, base in (("storage", storage, 0, 1, x_bases),
                                                       ("other_storage", other_storage, 1, 2, other_bases),
                                                       ("grad_storage", grad_storage, 0, 2, grad_bases))}
    ragged = sum(1 << at for at, starts in enumerate(offsets) if starts is not None)
    flags = sum(int(flag) for name, flag in _FLAGS if transposed.get(name, False))
    given = {}
    if outputs & DX:
        given["other"] = other
    if outputs & DOTHER:
        given["x"] = x
    bases = {"x_bases": x_bases, "other_bases": other_bases, "grad_bases": grad_bases}
    index = {} if any(starts is not None for starts in offsets) else {"index_dtype": _native.I64}
    _bridge.jagged_bwd(_native.JAGGED_MATMUL, grad=grad, offsets=tuple(offsets), used=tuple(used),
                       axis=tuple(zip(sizes, totals)), ragged_axes=ragged, components=components, outer=outer,
                       flags=flags, **stored, **given, **made, **index,
                       **{name: base for name, base in bases.items() if base is not None})
    return list(made.values())


def _matmul_fake(grad, x, other, offsets, used, *bases, outputs=DX | DOTHER, zeros=False, **options):
    make = torch.zeros_like if zeros else torch.empty_like
    return [make(tensor, memory_format=torch.contiguous_format)
            for bit, tensor in ((DX, x), (DOTHER, other)) if outputs & bit]


def _starts(offsets: torch.Tensor) -> torch.Tensor:
    return offsets if offsets.dtype == torch.int32 else offsets.to(torch.int32)


def _attention(dout, q, k, v, out, lse, offsets_q, offsets_kv, used_q=None, used_kv=None, *, max_seq_q, max_seq_kv,
               causal=False, scale=None, outputs=7):
    made = dict(zip([name for bit, name in ((1, "dq"), (2, "dk"), (4, "dv")) if outputs & bit],
                    _attention_fake(dout, q, k, v, out, lse, offsets_q, offsets_kv, outputs=outputs, zeros=True)))
    used = {name: tensor.to(torch.int32) for name, tensor in (("used_q", used_q), ("used_kv", used_kv))
            if tensor is not None}
    starts_q = _starts(offsets_q)
    starts_kv = starts_q if offsets_kv is offsets_q else _starts(offsets_kv)
    if made:
        _bridge.attn_bwd(_native.THD, q=q, k=k, v=v, out=out, dout=dout, lse=lse, cu_seqlens_q=starts_q,
                         cu_seqlens_kv=starts_kv, max_seq_q=max_seq_q, max_seq_kv=max_seq_kv, scale=scale,
                         mask=_native.MASK_CAUSAL_TOP_LEFT if causal else _native.MASK_NONE, **used, **made)
    return list(made.values())


def _attention_fake(dout, q, k, v, out, lse, offsets_q, offsets_kv, used_q=None, used_kv=None, *, outputs=7,
                    zeros=False, **options):
    return [empty_gradient(tensor, zeros) for bit, tensor in ((1, q), (2, k), (4, v)) if outputs & bit]


nested_matmul_backward = define(
    "nested_matmul_backward",
    "(Tensor grad, Tensor x, Tensor other, Tensor?[] offsets, Tensor?[] used, Tensor? x_bases=None, "
    "Tensor? other_bases=None, Tensor? grad_bases=None, *, SymInt[] sizes, SymInt[] totals, SymInt components, "
    "SymInt outer=1, str? storage=None, str? other_storage=None, str? grad_storage=None, bool x_transposed=False, "
    "bool other_transposed=False, bool grad_transposed=False, int outputs=3) -> Tensor[]",
    _matmul, _matmul_fake)
nested_attention_backward = define(
    "nested_attention_backward",
    "(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, Tensor offsets_q, Tensor offsets_kv, "
    "Tensor? used_q=None, Tensor? used_kv=None, *, SymInt max_seq_q, SymInt max_seq_kv, bool causal=False, "
    "float? scale=None, int outputs=7) -> Tensor[]", _attention, _attention_fake)
no_double_backward(nested_matmul_backward, _matmul)
no_double_backward(nested_attention_backward, _attention)
