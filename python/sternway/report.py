# SPDX-License-Identifier: MIT
"""What is on this machine, and which backend and variant a problem gets."""
from __future__ import annotations

from typing import Any

from . import _native
from ._arrays import libraries, library_of
from ._context import BACKENDS, MEMORY, number
from ._describe import DTYPES, attn_desc, desc_of_sizes
from .enums import Backend, Memory
from .jagged import OPS


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


def explain(q: Any = None, k: Any = None, v: Any = None, *, desc: _native.AttnDesc | _native.JaggedDesc | None = None,
            backend: str | int = "auto", memory: str | int | None = None, device: int | None = None,
            arch: str | None = None, layout: str | int = "bhsd", batch: int = 1, heads_q: int = 1,
            heads_kv: int | None = None, seq_q: int = 0, seq_kv: int | None = None, head_dim: int = 0,
            head_dim_v: int | None = None, dtype: str | int = "bf16", forward: bool = False, **options: Any) -> str:
    """For every backend: chosen for this attention backward, or why not, and the plan of the chosen one
    (stw_explain_attn); forward=True: for its forward (stw_explain_attn_fwd).

    The problem as arrays q, k, v with attn_bwd's options, or as sizes (contiguous, `layout`) with those options and
    fields of AttnDesc, or as `desc`, an AttnDesc or a JaggedDesc. memory: "host", "device", "buffers"; absent: where
    the arrays are, else "buffers", which fits every backend. A refusal of the problem is part of the text."""
    if isinstance(q, str):
        raise _native.InvalidError("sternway: explain() takes arrays or sizes (heads_q=, seq_q=, head_dim=, ...); a "
                                   "problem in one line is for the command: python -m sternway explain PROBLEM")
    if desc is None and q is not None and (k is None or v is None):
        raise _native.InvalidError("sternway: explain(q, k, v) takes three arrays, or sizes alone")
    if desc is None and q is not None:
        context = (libraries.get(type(q)) or library_of(q)).context(q)
        memory = context.memory if memory is None else memory
        device = context.device if device is None and context.device >= 0 else device
    opts = _opts(backend, Memory.BUFFERS if memory is None else memory, device, arch)
    if isinstance(desc, _native.JaggedDesc):
        return _native.explain_jagged(opts, desc)
    try:
        if desc is None and q is not None:
            desc = attn_desc(q, k, v, layout=layout, **options)
        elif desc is None:
            desc = desc_of_sizes(layout=layout, batch=batch, heads_q=heads_q, heads_kv=heads_kv, seq_q=seq_q,
                                 seq_kv=seq_kv,
                                 head_dim=head_dim, head_dim_v=head_dim_v, dtype=dtype, **options)
    except (_native.InvalidError, _native.UnsupportedError) as error:
        return f"refused: {error} ({_native.status_name(error.status)})\n"
    return _native.explain_attn_fwd(opts, desc) if forward else _native.explain_attn(opts, desc)


def explain_jagged(op: str | int, *, dtype: str | int, components: int, backend: str | int = "auto",
                   memory: str | int = "buffers", device: int | None = None, arch: str | None = None,
                   index_dtype: str | int = "i64", **fields: Any) -> str:
    """As explain(), of a nested operation: `op` and the fields of stw_jagged_desc by name, axis=((size, total),
    ...)."""
    for name in fields:
        if not hasattr(_native.JaggedDesc, name):
            raise TypeError(f"sternway: there is no argument {name!r}")
    desc = _native.JaggedDesc(op=number(OPS, op, "op"), dtype=number(DTYPES, dtype, "dtype"), components=components,
                              index_dtype=number(DTYPES, index_dtype, "index_dtype"), **fields)
    return _native.explain_jagged(_opts(backend, memory, device, arch), desc)


__all__ = ["attn_desc", "explain", "explain_jagged", "info"]
