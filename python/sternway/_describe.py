# SPDX-License-Identifier: MIT
"""Descriptors of attention problems (stw_attn_desc) from arrays or from sizes, for plans and explanations. Calls do not
need them: the C module reads arrays itself."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import _native
from ._arrays import DTYPES as _NAMES
from ._arrays import dtype_of, libraries, library_of
from ._context import number
from ._options import LAYOUTS, layout_number, output_bits, resolve
from .enums import AttnFlag, DType

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._options import Options

DTYPES: dict[str, int] = {item.name.lower(): int(item) for item in DType} | _NAMES
_SIDES = ("q", "k", "v", "out", "dout")
_LAY_OUT = {_native.BSHD: _native.layout_bshd, _native.BHSD: _native.layout_bhsd, _native.THD: _native.layout_thd}
_FLAG_OF_NUMBER = {"window_left": AttnFlag.HAS_WINDOW_LEFT, "window_right": AttnFlag.HAS_WINDOW_RIGHT,
                   "diagonal_shift": AttnFlag.HAS_SHIFT, "scale": AttnFlag.HAS_SCALE}
_FLAG_OF_ARRAY = {"alibi_slopes": AttnFlag.ALIBI, "sink": AttnFlag.SINK, "dlse": AttnFlag.DLSE,
                  "used_q": AttnFlag.HAS_USED_LENGTHS, "used_kv": AttnFlag.HAS_USED_LENGTHS}
_OF_CALLS = {"cu_seqlens_q", "cu_seqlens_kv", "q_offsets", "k_offsets", "q_offset", "k_offset", "dropout_seed",
             "dropout_offset", "dropout_seed_ptr", "dropout_offset_ptr", "status_out", "cpu_threads", "workspace",
             "stream",
             "delta", "bias", "flash_window"}  # no part of a descriptor, or handled apart


def _set_options(desc: _native.AttnDesc, options: dict[str, Any]) -> None:
    """The options of a call, and fields of the descriptor by name."""
    desc.flags |= options.pop("flags", None) or 0
    deterministic = options.pop("deterministic", None)
    if deterministic is not None:
        desc.deterministic = _native.DETERMINISTIC_ON if deterministic else _native.DETERMINISTIC_OFF
    for name, value in options.items():
        if value is None or name in _OF_CALLS:
            continue
        if name in _FLAG_OF_ARRAY:
            desc.flags |= _FLAG_OF_ARRAY[name]
        elif not hasattr(desc, name):
            raise TypeError(f"sternway: there is no argument {name!r}")
        else:
            setattr(desc, name, output_bits(value, name) if name == "outputs" else value)
            desc.flags |= _FLAG_OF_NUMBER.get(name, 0)
    if desc.dtype == DType.F64:
        desc.scale_f64, desc.softcap_f64 = options.get("scale") or 0.0, options.get("softcap") or 0.0
    slopes = options.get("alibi_slopes")
    if slopes is not None and len(slopes.shape) == 2:
        desc.alibi_stride_batch = desc.heads_q


def _set_bias(desc: _native.AttnDesc, bias: Any) -> None:
    """The bias's type and strides; its gradient is dense, with the bias's zeros."""
    desc.bias_dtype = dtype_of(bias)
    strides = (libraries.get(type(bias)) or library_of(bias)).strides(bias)
    desc.bias = tuple(0 if extent == 1 else stride for extent, stride in zip(bias.shape, strides))
    size, dense = 1, []
    for extent, stride in zip(reversed(bias.shape), reversed(desc.bias)):
        dense.append(size if stride else 0)
        size *= extent if stride else 1
    desc.dbias = tuple(reversed(dense))


def _rows(layout: int, strides: tuple[int, ...]) -> tuple[int, int, int]:
    if layout == _native.THD:
        return 0, strides[1], strides[0]
    return (strides[0], strides[1], strides[2]) if layout == _native.BHSD else (strides[0], strides[2], strides[1])


def _finish(desc: _native.AttnDesc, layout: int, options: dict[str, Any]) -> None:
    _set_options(desc, options)
    _LAY_OUT[layout](desc)
    if options.get("bias") is not None:
        _set_bias(desc, options["bias"])
    if options.get("flash_window") is not None:
        _native.mask_from_flash(desc, *options["flash_window"])


def attn_desc(q: Any, k: Any, v: Any, *, layout: str | int = "bhsd", outputs: tuple[str, ...] | str | int = 0,
              dout: Any = None, out: Any = None, **options: Unpack[Options]) -> _native.AttnDesc:
    """The descriptor of a problem given as arrays: sizes, types and strides of q, k, v, of out, dout and bias where
    given, and the options of attn_bwd. LSE, delta and the gradients are laid out contiguous. Raises InvalidError,
    UnsupportedError."""
    code = LAYOUTS.get(layout)  # type: ignore[arg-type]
    code = layout_number(layout) if code is None else code
    resolve(options)  # type: ignore[arg-type]
    desc = _native.AttnDesc(dtype=dtype_of(q), outputs=output_bits(outputs, "outputs"))
    head, row = (1, 0) if code == _native.THD else (1, 2) if code == _native.BHSD else (2, 1)
    desc.heads_q, desc.heads_kv = q.shape[head], k.shape[head]
    desc.head_dim_qk, desc.head_dim_v = q.shape[-1], v.shape[-1]
    if code == _native.THD:
        desc.total_q, desc.total_kv, desc.batch = q.shape[0], k.shape[0], options["cu_seqlens_q"].shape[0] - 1
        desc.flags = AttnFlag.PACKED_Q | AttnFlag.PACKED_KV
    else:
        desc.batch, desc.max_seq_q, desc.max_seq_kv = q.shape[0], q.shape[row], k.shape[row]
    _finish(desc, code, options)  # type: ignore[arg-type]
    library, last = libraries.get(type(q)) or library_of(q), [1] * 5
    for i, array in enumerate((q, k, v, out, dout)):
        if array is not None:
            strides = library.strides(array)
            setattr(desc, _SIDES[i], _rows(code, strides))
            last[i] = strides[-1] if array.shape[-1] > 1 else 1
    if last != [1] * 5:
        desc.dim = tuple(last)
        desc.flags |= AttnFlag.HAS_DIM_STRIDES
    return desc


def desc_of_sizes(*, layout: str | int, batch: int, heads_q: int, heads_kv: int | None, seq_q: int, seq_kv: int | None,
                  head_dim: int, head_dim_v: int | None, dtype: str | int, **options: Any) -> _native.AttnDesc:
    """The descriptor of a contiguous problem of these sizes; further fields of stw_attn_desc by name."""
    code = LAYOUTS.get(layout)  # type: ignore[arg-type]
    code = layout_number(layout) if code is None else code
    resolve(options)
    desc = _native.AttnDesc(
        dtype=number(DTYPES, dtype, "dtype"), batch=batch, heads_q=heads_q,
        heads_kv=heads_q if heads_kv is None else heads_kv,
        head_dim_qk=head_dim, head_dim_v=head_dim if head_dim_v is None else head_dim_v, max_seq_q=seq_q,
        max_seq_kv=seq_q if seq_kv is None else seq_kv)
    _finish(desc, code, options)
    return desc
