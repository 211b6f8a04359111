# SPDX-License-Identifier: MIT
"""The backward of reshape, whose descriptor needs the ranks of its shapes: a call of the C module that leaves them at 0
is refused once its arrays are checked, and a plan of the whole descriptor runs."""
from __future__ import annotations

from typing import Any

from . import _native
from ._arrays import Library, dtype_of


def _planned(library: Library, context: _native.Context, grad: Any, offsets: Any, dx: Any, shapes: dict[str, Any],
             options: dict[str, Any]) -> None:
    """By the raw structs."""
    used, same = options.get("used"), dtype_of(dx) == dtype_of(grad)
    desc = _native.JaggedDesc(
        op=_native.JAGGED_RESHAPE, dtype=dtype_of(grad), index_dtype=dtype_of(offsets), outputs=_native.JAGGED_DX,
        dx_dtype=_native.DTYPE_NONE if same else dtype_of(dx), components=offsets.shape[0] - 1,
        accumulate=options.get("accumulate") or 0, shape_rank=len(shapes["shape"]), grad_rank=len(shapes["grad_shape"]),
        flags=options.get("flags", 0) | (_native.JAGGED_HAS_USED if used else 0), **shapes)
    plan = context.jagged_bwd_plan(desc)
    workspace, size = options.get("workspace"), plan.workspace_size
    if callable(workspace):
        workspace = workspace(size)
    elif workspace is None and size:
        workspace = library.empty(grad, (size,), "uint8")
    axis = tuple(array[0] if array else None for array in
                 ((offsets,), used, options.get("offsets_host"), options.get("used_host")))
    args = _native.JaggedArgs(axis=(axis,), grad=grad, dx=dx, status_out=options.get("status_out"),
                              cpu_threads=options.get("cpu_threads") or 0)
    plan.run(args, workspace, size, options.get("stream") or 0)


def reshape(library: Library, grad: Any, offsets: Any, dx: Any, shapes: dict[str, Any],
            options: dict[str, Any]) -> None:
    """Writes dX. shapes: the descriptor's fields axis, storage, grad_storage, shape, grad_shape; options: those of
    jagged.backward."""
    context = options.pop("context", None) or library.context(grad)
    library.prepare(grad, context, options)
    planned = False
    try:
        _native.jagged_bwd(context, _native.JAGGED_RESHAPE, grad=grad, offsets=(offsets,), dx=dx, **shapes, **options)
    except _native.InvalidError as error:
        if "shape_rank 0" not in str(error):
            raise
        planned = True
    if planned:
        _planned(library, context, grad, offsets, dx, shapes, options)
    if library.takes_over:
        library.finish(context, options)
