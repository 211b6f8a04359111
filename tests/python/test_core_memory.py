# SPDX-License-Identifier: MIT
"""What the C module must keep alive, and the sizes of memory that it must not believe."""
from __future__ import annotations

import gc
import weakref

import pytest

np = pytest.importorskip("numpy")
sternway = pytest.importorskip("sternway")
native = sternway._native


class Holder(np.ndarray):
    """An array that weak references can watch."""


def watched(value):
    array = np.full(3, value, np.int64).view(Holder)
    return array, weakref.ref(array)


def test_each_axis_keeps_its_arrays():
    """The three axes of one struct have fields of the same names."""
    arrays, alive = zip(*(watched(i) for i in range(6)))
    args = sternway.JaggedArgs(axis=tuple((arrays[2 * i], arrays[2 * i + 1]) for i in range(3)))
    addresses = [array.ctypes.data for array in arrays]
    del arrays
    gc.collect()
    assert all(reference() is not None for reference in alive), "an array whose address is in the struct was freed"
    assert [axis[i] for axis in args.axis for i in range(2)] == addresses
    copy = args.copy()
    del args
    gc.collect()
    assert all(reference() is not None for reference in alive)
    del copy
    gc.collect()
    assert all(reference() is None for reference in alive)


@pytest.mark.parametrize("instead", [None, 0, np.zeros(3)], ids=["None", "address", "array"])
def test_a_field_lets_go_of_what_it_had(instead):
    array, alive = watched(1)
    args = sternway.AttnArgs(q=array)
    del array
    assert alive() is not None
    args.q = instead
    gc.collect()
    assert alive() is None


class Made:
    """An object whose array lives in the capsule alone."""

    def __init__(self, value):
        self.value, self.alive = value, None

    @property
    def __array_struct__(self):
        array = np.full(4, self.value, "f").view(Holder)
        self.alive = weakref.ref(array)
        return array.__array_struct__


def test_an_array_made_for_its_capsule():
    """It lives as long as the call, in which the next argument's own property runs, and as long as a struct."""
    x, grad, seen = np.full(4, 0.5, "f"), Made(2.0), []

    class Result(Made):
        @property
        def __array_struct__(self):
            seen.append(grad.alive() is not None)
            return super().__array_struct__

    native.jagged_bwd(sternway.Context("cpu"), native.JAGGED_SILU, grad=grad, x=x, dx=Result(0.0),
                      offsets=(np.array([0, 4]),), axis=((4, 4),))
    assert seen == [True] and grad.alive() is None
    args = sternway.AttnArgs(q=grad)
    gc.collect()
    assert grad.alive() is not None
    del args
    gc.collect()
    assert grad.alive() is None


def problem(rows=64, dim=32):
    q = np.random.default_rng(3).standard_normal((1, 1, rows, dim)).astype("f")
    out, lse = sternway.attn_fwd(q, q, q)
    desc = sternway.attn_desc(q, q, q, out=out, dout=out, outputs=("dq", "dk", "dv"))
    gradients = {name: np.empty_like(q) for name in ("dq", "dk", "dv")}
    return desc, sternway.AttnArgs(q=q, k=q, v=q, out=out, dout=out, lse=lse, **gradients), gradients


def test_a_plan_does_not_believe_a_small_workspace():
    desc, args, gradients = problem()
    context = sternway.Context("cpu")
    plan = context.attn_bwd_plan(desc)
    assert plan.workspace_size > 64
    plan.run(args, np.empty(plan.workspace_size, np.uint8))
    expected = gradients["dq"].copy()
    with pytest.raises(sternway.WorkspaceError):
        plan.run(args, np.empty(64, np.uint8))
    with pytest.raises(sternway.InvalidError, match="workspace is smaller"):
        plan.run(args, np.empty(64, np.uint8), plan.workspace_size)
    with pytest.raises(sternway.InvalidError, match="workspace is not contiguous"):
        plan.run(args, np.empty(2 * plan.workspace_size, np.uint8)[::2])
    size = context.attn_bwd_once_workspace(desc)
    context.attn_bwd_once(desc, args, np.empty(size, np.uint8))
    np.testing.assert_array_equal(gradients["dq"], expected)
    with pytest.raises(sternway.InvalidError, match="workspace is smaller"):
        context.attn_bwd_once(desc, args, np.empty(64, np.uint8), size)


def test_a_copy_does_not_leave_its_arrays():
    context = sternway.Context("cpu")
    to, source = np.zeros(4, "f"), np.ones(4, "f")
    context.copy(to, source, 16)
    np.testing.assert_array_equal(to, source)
    for pair, size in (((to, source), 20), ((to[:2], source), 16), ((to, source[:2]), 16), ((to, source), -1)):
        with pytest.raises(sternway.InvalidError):
            context.copy(*pair, size)
    source.flags.writeable = False
    context.copy(to, source, 16)
    with pytest.raises(sternway.InvalidError, match="read only"):
        context.copy(source, to, 16)


@pytest.mark.parametrize("elements", [0, 2])
@pytest.mark.parametrize("name,dtype", [("status_out", np.int32), ("dropout_seed_ptr", np.int64),
                                        ("dropout_offset_ptr", np.int64)])
def test_arrays_of_one_element(name, dtype, elements):
    q = np.ones((1, 1, 3, 8), "f")
    with pytest.raises(sternway.InvalidError, match=f"{name} has the shape .* one element"):
        sternway.attn_fwd(q, q, q, dropout_p=0.5, dropout_map="philox", **{name: np.zeros(elements, dtype)})


def test_numbers_of_devices_that_do_not_fit():
    """2^32 is not device 0."""
    with pytest.raises(OverflowError):
        sternway.Context("cpu", device=1 << 32)


class Claims:
    """An object that claims a shape that no memory has."""

    address = 4096

    def __init__(self, shape):
        self.shape = shape

    @property
    def __cuda_array_interface__(self):
        return {"shape": self.shape, "typestr": "<f4", "data": (self.address, False), "version": 3}


@pytest.mark.parametrize("shape", [(-1, 3), (1 << 40, 1 << 40)])
def test_shapes_that_nothing_has(shape):
    with pytest.raises(sternway.InvalidError, match="negative|2\\^63"):
        sternway.AttnArgs(q=Claims(shape))


def test_an_address_that_is_none():
    claims = Claims((3,))
    claims.address = "4096"
    with pytest.raises(TypeError):
        sternway.AttnArgs(q=claims)


def test_negative_views():
    """The imaginary part of a conjugate negates what is in memory."""
    torch = pytest.importorskip("torch")
    x = torch.randn(1, 1, 3, 8, dtype=torch.complex64)
    q, negative = x.real.contiguous(), x.conj().imag
    assert negative.is_neg()
    with pytest.raises(sternway.InvalidError, match="q negates"):
        sternway.attn_fwd(negative, q, q)
    torch.testing.assert_close(sternway.attn_fwd(negative.resolve_neg(), q, q)[0],
                               sternway.attn_fwd(-x.imag.contiguous(), q, q)[0])
    sternway.attn_fwd(x.imag, q, q)  # strides are even here too, and nothing is negated
