# SPDX-License-Identifier: MIT
"""What the functions of sternway.jagged take by keyword and what they return."""
from __future__ import annotations

from typing import Any, NamedTuple, TypedDict

from . import _native

Shape = tuple[int, ...]


class Call(TypedDict, total=False):
    """Keywords of every function of sternway.jagged; Placed and Common add those at the end.

    used          [components] of the offsets' type: positions in use of each component; absent: all
    offsets_host, used_host  the same values in host memory, checked before a GPU runs
    shape         dimensions of the nested tensor with the total at ragged_dim; absent: the values' own
    ragged_dim    which of them is ragged, 0
    storage       "jagged" (values [outer, total, inner]) or "components"; the same without outer dimensions
    max_length    no component is longer; absent: the total
    full          promise: offsets go from 0 to the total and nothing is unused (faster linear)
    accumulate    results that are added to what their f32 array holds: "dx", ("dx", "dweight"), or JaggedOut bits
    status_out    [1] int32: the JaggedData bits of what was wrong in offsets
    cpu_threads, workspace, stream, context: as for attn_bwd"""
    used: Any
    offsets_host: Any
    used_host: Any
    max_length: int | None
    full: bool
    accumulate: str | tuple[str, ...] | int | None
    status_out: Any
    cpu_threads: int | None
    workspace: Any
    stream: Any
    context: _native.Context | None


class Placed(Call, total=False):
    """Where the ragged dimension is."""
    ragged_dim: int
    storage: str | int


class Common(Placed, total=False):
    """And the nested tensor's dimensions."""
    shape: Shape | None


class Products(NamedTuple):
    """What linear_backward, layer_norm_backward and rms_norm_backward return; None for what was not asked for."""
    dx: Any
    dweight: Any
    dbias: Any


class MatmulGradients(NamedTuple):
    """What matmul_backward returns."""
    dx: Any
    dother: Any
