# SPDX-License-Identifier: MIT
"""What is on this machine, and which backend and variant a problem gets."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import _native
from ._arrays import dtype_of, libraries, library_of
from ._context import BACKENDS, MEMORY, number
from ._options import LAYOUTS, layout_number, output_bits, resolve
from .enums import AttnFlag, Backend, DType, JaggedOp, Memory

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._options import Options

_DTYPES = {item.name.lower(): int(item) for item in DType}
_SIDES = ("q", "k", "v", "out", "dout")


def info() -> dict[str, Any]:
    """{"version": "0.1.0", "devices": [...], "images": [...]}: a dict for each device of this machine and each device
    image in the library, with the fields of stw_device_info and stw_image_info and the backend's name. No driver is
    started. `python -m sternway info` prints more."""
    devices, images = _native.devices(), _native.embedded_images()
    for row in (*devices, *images):
        row["backend"] = Backend(row["backend"]).name.lower()
    return {"version": _native.version(), "devices": devices, "images": images}


def _opts(backend: str | int, memory: str | int, device: int | None, arch: str | None) -> _native.ContextOpts:
    opts = _native.ContextOpts(backend=number(BACKENDS, backend, "backend"), memory=number(MEMORY, memory, "memory"),
                               arch=arch)
    if device is not None:
        opts.device, opts.flags = device, _native.CONTEXT_HAS_DEVICE
    return opts


def _sizes(desc: _native.AttnDesc, layout: int, q: Any, k: Any, v: Any, options: dict[str, Any]) -> None:
    if layout == _native.THD:
        desc.total_q, desc.heads_q, desc.head_dim_qk = q.shape
        desc.total_kv, desc.heads_kv, desc.head_dim_v = v.shape
        desc.batch = options["cu_seqlens_q"].shape[0] - 1
        desc.max_seq_q, desc.max_seq_kv = options["max_seq_q"], options["max_seq_kv"]
        desc.flags = AttnFlag.PACKED_Q | AttnFlag.PACKED_KV
    else:
        head, row = (1, 2) if layout == _native.BHSD else (2, 1)
        desc.batch, desc.heads_q, desc.max_seq_q, desc.head_dim_qk = q.shape[0], q.shape[head], q.shape[row], q.shape[3]
        desc.heads_kv, desc.max_seq_kv, desc.head_dim_v = k.shape[head], k.shape[row], v.shape[3]


def _rows(layout: int, strides: tuple[int, ...]) -> tuple[int, int, int]:
    if layout == _native.THD:
        return 0, strides[1], strides[0]
    return (strides[0], strides[1], strides[2]) if layout == _native.BHSD else (strides[0], strides[2], strides[1])


def attn_desc(q: Any, k: Any, v: Any, *, layout: str | int = "bhsd", outputs: tuple[str, ...] | str | int = 0,
              dout: Any = None, out: Any = None, **options: Unpack[Options]) -> _native.AttnDesc:
    """The descriptor (stw_attn_desc) of a problem given as arrays, for plans and explanations: sizes, types and strides of
    q, k, v, of out, dout and bias where given, and the options of attn_bwd. Everything else is laid out contiguous."""
    code = LAYOUTS.get(layout)  # type: ignore[arg-type]
    code = layout_number(layout) if code is None else code
    resolve(options)  # type: ignore[arg-type]
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    desc = _native.AttnDesc(dtype=dtype_of(q), outputs=output_bits(outputs, "outputs"))
    _sizes(desc, code, q, k, v, given)
    (_native.layout_bshd, _native.layout_bhsd, _native.layout_thd)[code](desc)
    library, last = libraries.get(type(q)) or library_of(q), [1] * 5
    for i, array in enumerate((q, k, v, out, dout)):
        if array is not None:
            strides = library.strides(array)
            setattr(desc, _SIDES[i], _rows(code, strides))
            last[i] = strides[-1]
    flags, numbers = desc.flags, {"dropout_p", "dropout_map", "mask", "batch_offset", "head_offset", "heads_total",
                                  "accumulate", "max_seq_q", "max_seq_kv"}
    if last != [1] * 5:
        desc.dim = tuple(last)
        flags |= AttnFlag.HAS_DIM_STRIDES
    for name in numbers & given.keys():
        setattr(desc, name, given[name])
    for name, flag in (("window_left", AttnFlag.HAS_WINDOW_LEFT), ("window_right", AttnFlag.HAS_WINDOW_RIGHT),
                       ("diagonal_shift", AttnFlag.HAS_SHIFT), ("scale", AttnFlag.HAS_SCALE)):
        if name in given:
            setattr(desc, name, given[name])
            flags |= flag
    for name, flag in (("alibi_slopes", AttnFlag.ALIBI), ("sink", AttnFlag.SINK), ("dlse", AttnFlag.DLSE),
                       ("used_q", AttnFlag.HAS_USED_LENGTHS), ("used_kv", AttnFlag.HAS_USED_LENGTHS)):
        if name in given:
            flags |= flag
    desc.flags = flags | given.get("flags", 0)
    if "softcap" in given:
        desc.softcap = given["softcap"]
    if desc.dtype == DType.F64:
        desc.scale_f64, desc.softcap_f64 = given.get("scale", 0.0), given.get("softcap", 0.0)
    if "alibi_slopes" in given and len(given["alibi_slopes"].shape) == 2:
        desc.alibi_stride_batch = desc.heads_q
    if "deterministic" in given:
        desc.deterministic = _native.DETERMINISTIC_ON if given["deterministic"] else _native.DETERMINISTIC_OFF
    if "bias" in given:
        bias = given["bias"]
        desc.bias_dtype = dtype_of(bias)
        strides = library.strides(bias)
        desc.bias = tuple(0 if extent == 1 else stride for extent, stride in zip(bias.shape, strides))
        sizes = [1 if stride == 0 else extent for extent, stride in zip(bias.shape, desc.bias)]
        dense = [0 if size == 1 else sizes[1] * sizes[2] * sizes[3] for size in sizes[:1]]
        dense += [0 if sizes[1] == 1 else sizes[2] * sizes[3], 0 if sizes[2] == 1 else sizes[3], int(sizes[3] > 1)]
        desc.dbias = tuple(dense)
    if "flash_window" in given:
        _native.mask_from_flash(desc, *given["flash_window"])
    return desc


def explain(q: Any = None, k: Any = None, v: Any = None, *, backend: str | int = "auto", memory: str | int | None = None,
            device: int | None = None, arch: str | None = None, layout: str | int = "bhsd", desc: Any = None,
            batch: int = 1, heads_q: int = 1, heads_kv: int | None = None, seq_q: int = 0, seq_kv: int | None = None,
            head_dim: int = 0, head_dim_v: int | None = None, dtype: str | int = "bf16", **options: Any) -> str:
    """For every backend: chosen for this attention backward, or why not, and the plan of the chosen one (stw_explain_attn).

    The problem as arrays q, k, v with attn_bwd's options, or as sizes (contiguous, `layout`), or as `desc`, an AttnDesc or
    a JaggedDesc. memory: "host", "device", "buffers"; absent: where the arrays are, for sizes "buffers", which fits
    every backend. A refusal of the problem is part of the text."""
    if desc is not None:
        opts = _opts(backend, Memory.BUFFERS if memory is None else memory, device, arch)
        if isinstance(desc, _native.JaggedDesc):
            return _native.explain_jagged(opts, desc)
        return _native.explain_attn(opts, desc)
    if q is not None:
        context = (libraries.get(type(q)) or library_of(q)).context(q)
        opts = _opts(backend, context.memory if memory is None else memory,
                     context.device if device is None and context.device >= 0 else device, arch)
        return _native.explain_attn(opts, attn_desc(q, k, v, layout=layout, **options))
    made = _native.AttnDesc(dtype=number(_DTYPES, dtype, "dtype"), batch=batch, heads_q=heads_q,
                            heads_kv=heads_q if heads_kv is None else heads_kv, head_dim_qk=head_dim,
                            head_dim_v=head_dim if head_dim_v is None else head_dim_v, max_seq_q=seq_q,
                            max_seq_kv=seq_q if seq_kv is None else seq_kv)
    code = LAYOUTS.get(layout)  # type: ignore[arg-type]
    code = layout_number(layout) if code is None else code
    resolve(options)
    for name, flag in (("window_left", AttnFlag.HAS_WINDOW_LEFT), ("window_right", AttnFlag.HAS_WINDOW_RIGHT),
                       ("diagonal_shift", AttnFlag.HAS_SHIFT), ("scale", AttnFlag.HAS_SCALE)):
        if options.get(name) is not None:
            made.flags |= flag
    deterministic = options.pop("deterministic", None)
    if deterministic is not None:
        made.deterministic = _native.DETERMINISTIC_ON if deterministic else _native.DETERMINISTIC_OFF
    if "outputs" in options:
        options["outputs"] = output_bits(options["outputs"], "outputs")
    made.flags |= options.pop("flags", 0) or 0
    for name, value in options.items():
        if value is not None:
            setattr(made, name, value)
    (_native.layout_bshd, _native.layout_bhsd, _native.layout_thd)[code](made)
    return _native.explain_attn(_opts(backend, Memory.BUFFERS if memory is None else memory, device, arch), made)


def explain_jagged(op: str | int, *, dtype: str | int, components: int, backend: str | int = "auto",
                   memory: str | int = "buffers", device: int | None = None, arch: str | None = None,
                   index_dtype: str | int = "i64", **fields: Any) -> str:
    """As explain(), of a nested operation: `op` and the fields of stw_jagged_desc by name, axis=((size, total), ...)."""
    desc = _native.JaggedDesc(op=number({item.name.lower(): int(item) for item in JaggedOp}, op, "op"),
                              dtype=number(_DTYPES, dtype, "dtype"), components=components,
                              index_dtype=number(_DTYPES, index_dtype, "index_dtype"), **fields)
    return _native.explain_jagged(_opts(backend, memory, device, arch), desc)
