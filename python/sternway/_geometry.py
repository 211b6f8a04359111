# SPDX-License-Identifier: MIT
"""Where the ragged dimension of a nested tensor's values is, as fields of stw_jagged_desc."""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from . import _native


def around(shape: Sequence[int], ragged: int) -> dict[str, Any]:
    """outer and inner: the elements before and behind dimension `ragged`."""
    return {"outer": math.prod(shape[:ragged]), "inner": math.prod(shape[ragged + 1:])}


def along(shape: Sequence[int], ragged: int, dim: int) -> dict[str, Any]:
    """dim, dim_size and dim_after of an operation along dimension `dim`; both dimensions count from 0."""
    if dim == ragged:
        return {"dim": _native.DIM_RAGGED}
    before = dim < ragged
    return {"dim": _native.DIM_OUTER if before else _native.DIM_INNER, "dim_size": shape[dim],
            "dim_after": math.prod(shape[dim + 1:ragged if before else len(shape)])}
