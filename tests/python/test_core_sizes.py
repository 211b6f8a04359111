# SPDX-License-Identifier: MIT
"""_native.jagged_bwd counts the elements of every array: one element too few or too many is refused before it is read
or written."""
from __future__ import annotations

import pytest

np = pytest.importorskip("numpy")
sternway = pytest.importorskip("sternway")
native = sternway._native

LENGTHS = [3, 0, 4]
OFFSETS = np.array([0, 3, 3, 7])
COMPONENTS, TOTAL, OUTER, INNER, FEATURES, PADDED, NORMALIZED = 3, 7, 2, 6, 5, 9, 3
NESTED = OUTER * TOTAL * INNER
ROWS = OUTER * TOTAL
NESTED_FIELDS = {"outer": OUTER, "inner": INNER}
RAGGED_M = {"ragged_axes": 1, "axis": ((4, TOTAL), (INNER, 0), (FEATURES, 0)), "outer": OUTER}

# operation: its name, its fields, the elements of its arrays
CASES = {
    "gelu": ("GELU", NESTED_FIELDS, {"grad": NESTED, "x": NESTED, "dx": NESTED}),
    "gelu_tanh": ("GELU_TANH", {}, {"grad": TOTAL, "x": TOTAL, "dx": TOTAL}),
    "silu": ("SILU", NESTED_FIELDS, {"grad": NESTED, "x": NESTED, "dx": NESTED}),
    "threshold": ("THRESHOLD", NESTED_FIELDS, {"grad": NESTED, "x": NESTED, "dx": NESTED}),
    "softmax": ("SOFTMAX", {**NESTED_FIELDS, "dim": native.DIM_INNER, "dim_size": 2, "dim_after": 3},
                {"grad": NESTED, "y": NESTED, "dx": NESTED}),
    "log_softmax": ("LOG_SOFTMAX", {**NESTED_FIELDS, "dim": native.DIM_RAGGED},
                    {"grad": NESTED, "y": NESTED, "dx": NESTED}),
    "linear": ("LINEAR", {**NESTED_FIELDS, "out_features": FEATURES},
               {"grad": ROWS * FEATURES, "x": NESTED, "weight": FEATURES * INNER, "dx": NESTED,
                "dweight": FEATURES * INNER, "dbias": FEATURES}),
    "layer_norm": ("LAYER_NORM", {**NESTED_FIELDS, "dim": native.DIM_INNER, "dim_size": NORMALIZED},
                   {"grad": NESTED, "x": NESTED, "mean": NESTED // NORMALIZED, "rstd": NESTED // NORMALIZED,
                    "weight": NORMALIZED, "dx": NESTED, "dweight": NORMALIZED, "dbias": NORMALIZED}),
    "rms_norm": ("RMS_NORM", {**NESTED_FIELDS, "dim": native.DIM_INNER, "dim_size": NORMALIZED},
                 {"grad": NESTED, "x": NESTED, "rstd": NESTED // NORMALIZED, "weight": NORMALIZED, "dx": NESTED,
                  "dweight": NORMALIZED}),
    "layer_norm along ragged": ("LAYER_NORM", {**NESTED_FIELDS, "dim": native.DIM_RAGGED},
                                {"grad": NESTED, "x": NESTED, "mean": COMPONENTS * OUTER, "rstd": COMPONENTS * OUTER,
                                 "dx": NESTED}),
    "rms_norm along ragged": ("RMS_NORM", {**NESTED_FIELDS, "dim": native.DIM_RAGGED},
                              {"grad": NESTED, "x": NESTED, "rstd": COMPONENTS * OUTER, "dx": NESTED}),
    "sum along inner": ("SUM", {**NESTED_FIELDS, "dim": native.DIM_INNER, "dim_after": 2},
                        {"grad": NESTED // 3, "dx": NESTED}),
    "sum along outer": ("SUM", {**NESTED_FIELDS, "dim": native.DIM_OUTER}, {"grad": TOTAL * INNER, "dx": NESTED}),
    "sum along ragged": ("SUM", {**NESTED_FIELDS, "dim": native.DIM_RAGGED},
                         {"grad": COMPONENTS * OUTER * INNER, "dx": NESTED}),
    "select along inner": ("SELECT", {**NESTED_FIELDS, "dim": native.DIM_INNER, "index": 5},
                           {"grad": ROWS, "dx": NESTED}),
    "select a component": ("SELECT", {**NESTED_FIELDS, "dim": native.DIM_COMPONENT, "index": -1},
                           {"grad": LENGTHS[-1] * OUTER * INNER, "dx": NESTED}),
    "select a used component": ("SELECT", {**NESTED_FIELDS, "dim": native.DIM_COMPONENT, "index": 0,
                                           "used": (np.array([2, 0, 1]),)}, {"grad": 2 * OUTER * INNER, "dx": NESTED}),
    "reshape": ("RESHAPE", {"shape": (2, -1, 6), "grad_shape": (3, 4, -1)}, {"grad": 12 * TOTAL, "dx": 12 * TOTAL}),
    "to_padded": ("TO_PADDED", {**NESTED_FIELDS, "padded": PADDED},
                  {"grad": COMPONENTS * OUTER * PADDED * INNER, "dx": NESTED}),
    "from_padded": ("FROM_PADDED", {**NESTED_FIELDS, "padded": PADDED},
                    {"grad": NESTED, "dx": COMPONENTS * OUTER * PADDED * INNER}),
    "matmul": ("MATMUL", RAGGED_M, {"grad": ROWS * FEATURES, "x": ROWS * INNER, "other": COMPONENTS * OUTER * INNER *
                                    FEATURES, "dx": ROWS * INNER, "dother": COMPONENTS * OUTER * INNER * FEATURES}),
    "matmul with bases": ("MATMUL", {**RAGGED_M, "x_bases": np.array([0, 36, 36])}, {
        "grad": ROWS * FEATURES, "x": 84, "other": COMPONENTS * OUTER * INNER * FEATURES, "dx": 84,
        "dother": COMPONENTS * OUTER * INNER * FEATURES})}


def call(name, **changed):
    """The call of a case, with other numbers of elements for the arrays in `changed`."""
    op, fields, elements = CASES[name]
    arrays = {array: np.ones(changed.get(array, count), "f") for array, count in elements.items()}
    axis = {} if op == "MATMUL" else {"axis": ((TOTAL, TOTAL),)}
    native.jagged_bwd(sternway.Context("cpu"), getattr(native, f"JAGGED_{op}"), offsets=(OFFSETS,),
                      **{**axis, **fields, **arrays})


@pytest.mark.parametrize("name", CASES)
def test_right_sizes(name):
    call(name)


@pytest.mark.parametrize("name,array", [
    (name, array) for name, case in CASES.items() for array in case[2]
    if (name, array) != ("matmul with bases", "x")])  # the buffer that the bases point into: its size is the call's
def test_wrong_size(name, array):
    right = CASES[name][2][array]
    for wrong in (right - 1, right + 1):
        with pytest.raises(sternway.InvalidError, match=f"{array} has {wrong} elements.* must have {right}"):
            call(name, **{array: wrong})


@pytest.mark.parametrize("wrong", [2, 4])
def test_wrong_number_of_bases(wrong):
    op, fields, elements = CASES["matmul with bases"]
    arrays = {array: np.ones(count, "f") for array, count in elements.items()}
    with pytest.raises(sternway.InvalidError, match=f"x_bases has {wrong} elements.* must have 3"):
        native.jagged_bwd(sternway.Context("cpu"), native.JAGGED_MATMUL, offsets=(OFFSETS,),
                          **{**fields, **arrays, "x_bases": np.zeros(wrong, np.int64)})


@pytest.mark.parametrize("elements", [0, 2])
def test_wrong_status(elements):
    x = np.ones(7, "f")
    with pytest.raises(sternway.InvalidError, match=f"status_out has {elements} elements.* must have 1"):
        sternway.jagged.silu_backward(x, x, OFFSETS, status_out=np.zeros(elements, np.int32))


def test_the_librarys_text_comes_first():
    """Sizes that no plan takes are refused as the library says it, not counted."""
    x = np.ones(7, "f")
    with pytest.raises(sternway.UnsupportedError, match="2\\^60|not in 0"):
        native.jagged_bwd(sternway.Context("cpu"), native.JAGGED_SILU, grad=x, x=x, dx=x.copy(), offsets=(OFFSETS,),
                          axis=((7, 1 << 40),), outer=1 << 40, inner=1 << 40)
