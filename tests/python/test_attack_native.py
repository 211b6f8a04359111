# SPDX-License-Identifier: MIT
"""Wrong and hostile arguments of the C module: it raises, and neither crashes nor computes something else."""
from __future__ import annotations

import gc
import sys
import threading
import weakref

import pytest

np = pytest.importorskip("numpy")

import sternway  # noqa: E402
from sternway import _native  # noqa: E402


def _problem(rows: int = 5) -> tuple:
    """dout, q, k, v, out, lse of a small problem."""
    generator = np.random.default_rng(3)
    q, k, v = (generator.standard_normal((2, 3, n, 8)).astype(np.float32) for n in (rows, 7, 7))
    out, lse = sternway.attn_fwd(q, k, v)
    return generator.standard_normal(out.shape).astype(np.float32), q, k, v, out, lse


@pytest.mark.parametrize("name", ["status_out", "dropout_seed_ptr", "dropout_offset_ptr"])
@pytest.mark.parametrize("elements", [0, 2])
def test_numbers_in_memory_are_single(name: str, elements: int) -> None:
    array = np.zeros(elements, np.int32 if name == "status_out" else np.int64)
    with pytest.raises(sternway.InvalidError, match=f"{name} has the shape"):
        sternway.attn_bwd(*_problem(), dropout_p=0.5, **{name: array})


def test_status_of_a_jagged_call_is_one_number() -> None:
    x = np.ones((4, 3), np.float32)
    with pytest.raises(sternway.InvalidError, match="status_out"):
        sternway.jagged.silu_backward(x, x, np.array([0, 4]), status_out=np.zeros(0, np.int32))


@pytest.mark.parametrize("seed", [2**64, 2**64 + 1, -2**63 - 1])
def test_seeds_beyond_64_bits_are_refused(seed: int) -> None:
    _, q, k, *_ = _problem()
    for options in ({"dropout_seed": seed}, {"dropout_offset": seed}):
        with pytest.raises(OverflowError, match="64 bits"):
            sternway.dropout_mask(q, k, dropout_p=0.5, **options)


def test_negative_seed_is_its_twos_complement() -> None:
    _, q, k, *_ = _problem()
    one, other = (sternway.dropout_mask(q, k, dropout_p=0.5, dropout_seed=seed) for seed in (-7, 2**64 - 7))
    assert np.array_equal(one, other) and 0 < one.sum() < one.size


@pytest.mark.parametrize("flags", [2**32, 2**40 + 1, -1])
def test_flags_beyond_32_bits_are_refused(flags: int) -> None:
    with pytest.raises(OverflowError, match="flags"):
        sternway.attn_bwd(*_problem(), flags=flags)
    x = np.ones((4, 3), np.float32)
    with pytest.raises(OverflowError, match="flags"):
        sternway.jagged.backward("silu", grad=x, x=x, dx=x.copy(), offsets=(np.array([0, 4]),), axis=((4, 4),), outer=1,
                                 inner=3, flags=flags)


def test_device_and_operation_are_not_cut_to_32_bits() -> None:
    with pytest.raises(OverflowError, match="device"):
        sternway.Context("cpu", device=2**32)
    x = np.ones((4, 3), np.float32)
    with pytest.raises(OverflowError, match="op"):
        _native.jagged_bwd(sternway.Context("cpu"), 2**32 + int(sternway.JaggedOp.SILU), grad=x, x=x, dx=x.copy(),
                           offsets=(np.array([0, 4]),), axis=((4, 4),), outer=1, inner=3)


def test_softcap_that_rounds_to_off_is_refused() -> None:
    with pytest.raises(sternway.InvalidError, match="softcap"):
        sternway.attn_bwd(*_problem(), softcap=1e-300)


def test_offsets_from_a_generator_live_until_the_call_is_done() -> None:
    """Their arrays have no other owner."""
    x = np.random.default_rng(1).standard_normal((6, 3)).astype(np.float32)
    died = []

    class Offsets(np.ndarray):
        pass

    def offsets():
        made = np.array([0, 2, 6]).view(Offsets)
        weakref.finalize(made, died.append, "offsets")
        yield made

    class Field:
        """Read after the offsets: what is gone by then was freed too early."""

        def __index__(self) -> int:
            gc.collect()
            assert not died
            return 1

    dx = np.zeros_like(x)
    _native.jagged_bwd(sternway.Context("cpu"), int(sternway.JaggedOp.SILU), grad=x, x=x, dx=dx, offsets=offsets(),
                       axis=((6, 6),), inner=3, outer=Field())
    assert died and dx.any()


def test_offsets_are_vectors() -> None:
    x = np.ones((2, 3), np.float32)
    with pytest.raises(sternway.InvalidError, match="offsets"):
        sternway.jagged.backward("silu", grad=x, x=x, dx=x.copy(), offsets=np.array([0, 2]), axis=((2, 2),), outer=1,
                                 inner=3)


def test_offsets_of_a_ragged_axis_are_needed() -> None:
    x = np.ones((2, 3), np.float32)
    for offsets in (None, ()):
        with pytest.raises(sternway.InvalidError, match="offsets"):
            sternway.jagged.backward("silu", grad=x, x=x, dx=x.copy(), offsets=offsets, axis=((2, 2),), outer=1,
                                     inner=3)
    with pytest.raises(sternway.InvalidError, match="offsets"):
        sternway.jagged.silu_backward(x, x, None)
    with pytest.raises(sternway.InvalidError, match="offsets"):
        sternway.jagged.matmul_backward(x, x, x, m=(None, 2), k=3, n=3)


def test_misspelt_keywords_are_refused() -> None:
    x, offsets = np.ones((2, 3), np.float32), np.array([0, 2])
    for call in (lambda: sternway.jagged.silu_backward(x, x, offsets, raged_dim=0),
                 lambda: sternway.jagged.linear_backward(x, x, np.ones((3, 3), np.float32), offsets, max_len=2),
                 lambda: sternway.jagged.matmul_backward(x, x, x, m=(offsets, 2), k=3, n=3, shape=(2, 3)),
                 lambda: sternway.jagged.reshape_backward(x, offsets, (-1, 3), (-1, 3), maxlength=2),
                 lambda: sternway.attn_bwd(*_problem(), sofcap=3.0)):
        with pytest.raises(TypeError, match="no argument"):
            call()


@pytest.mark.parametrize("options", [{"mask": True}, {"layout": True}, {"outputs": True}, {"outputs": 64},
                                     {"outputs": 65}, {"outputs": 3.5}, {"accumulate": 32}, {"window": 3},
                                     {"window": (1, 2, 3)}, {"dropout_map": False}])
def test_values_that_name_nothing_are_refused(options: dict) -> None:
    with pytest.raises(sternway.InvalidError, match=next(iter(options))):
        sternway.attn_bwd(*_problem(), **options)


@pytest.mark.parametrize("outputs", [True, 2, 16, 1 << 20, 1.5])
def test_jagged_outputs_that_name_nothing_are_refused(outputs) -> None:
    x = np.ones((2, 3), np.float32)
    with pytest.raises(sternway.InvalidError, match="outputs|needs|asked|given|dother"):
        sternway.jagged.linear_backward(x, x, np.ones((3, 3), np.float32), np.array([0, 2]), outputs=outputs)


def test_length_that_raises_is_passed_on() -> None:
    class Shape(tuple):
        def __len__(self) -> int:
            raise KeyError("length")

    x = np.ones((2, 3), np.float32)
    with pytest.raises(KeyError):
        sternway.jagged.backward("reshape", grad=x, dx=x.copy(), offsets=(np.array([0, 2]),), axis=((2, 2),),
                                 shape=Shape((-1, 3)), grad_shape=(-1, 3))


# ---- contexts -------------------------------------------------------------------------------------------------------
def test_wrong_address_is_no_buffer() -> None:
    context = sternway.Context("cpu")
    with pytest.raises(sternway.InvalidError, match="no buffer"):
        context.buffer_free(4096)
    address = context.buffer_alloc(100)
    with pytest.raises(sternway.InvalidError, match="no buffer"):
        sternway.Context("cpu").buffer_free(address)
    context.buffer_free(address)
    with pytest.raises(sternway.InvalidError, match="no buffer"):
        context.buffer_free(address)


def test_copy_stays_within_the_arrays() -> None:
    context, array = sternway.Context("cpu"), np.zeros(4, np.float32)
    for size in (17, -1):
        with pytest.raises(sternway.InvalidError, match="smaller|copy"):
            context.copy(array, np.zeros(100, np.float32), size)
        with pytest.raises(sternway.InvalidError, match="smaller|copy"):
            context.copy(np.zeros(100, np.float32), array, size)
    with pytest.raises(sternway.InvalidError, match="contiguous"):
        context.copy(np.zeros(8, np.float32)[::2], array, 16)


# ---- structs --------------------------------------------------------------------------------------------------------
def _plan(problem: tuple):
    dout, q, k, v, out, lse = problem
    context = sternway.Context("cpu")
    desc = sternway.attn_desc(q, k, v)
    args = sternway.AttnArgs(q=q, k=k, v=v, out=out, dout=dout, lse=lse, dq=np.zeros_like(q), dk=np.zeros_like(k),
                             dv=np.zeros_like(v))
    return context, desc, args


def test_workspace_array_says_its_size() -> None:
    context, desc, args = _plan(_problem())
    plan = context.attn_bwd_plan(desc)
    assert plan.workspace_size > 64
    with pytest.raises(sternway.WorkspaceError):
        plan.run(args, np.zeros(64, np.uint8))
    with pytest.raises(sternway.InvalidError, match="workspace"):
        plan.run(args, np.zeros(64, np.uint8), plan.workspace_size)
    with pytest.raises(sternway.InvalidError, match="workspace"):
        context.attn_bwd_once(desc, args, np.zeros(64, np.uint8), plan.workspace_size)
    workspace = np.zeros(plan.workspace_size, np.uint8)
    context.attn_bwd_once(desc, args, workspace)
    workspace.flags.writeable = False
    with pytest.raises(sternway.InvalidError, match="read only"):
        plan.run(args, workspace)


def test_struct_keeps_the_arrays_of_every_axis() -> None:
    args = sternway.JaggedArgs(axis=tuple((np.arange(3), None, None, None) for _ in range(3)))
    arrays = [np.arange(3) for _ in range(3)]
    counts = [sys.getrefcount(array) for array in arrays]
    args.axis = tuple((array, None, None, None) for array in arrays)
    assert all(sys.getrefcount(array) > count for array, count in zip(arrays, counts))
    copy = args.copy()
    args.axis = ((None,) * 4,) * 3
    del args
    copy.axis = ((None,) * 4,) * 3
    assert [sys.getrefcount(array) for array in arrays] == counts


def test_struct_lets_go_of_what_is_replaced() -> None:
    array = np.zeros(3, np.float32)
    count = sys.getrefcount(array)
    args = sternway.AttnArgs(q=array)
    assert sys.getrefcount(array) > count
    args.q = 0
    assert sys.getrefcount(array) == count


def test_cycle_through_a_struct_is_collected() -> None:
    class Array(np.ndarray):
        pass

    array = np.zeros(3, np.float32).view(Array)
    one, other = sternway.AttnArgs(q=array), sternway.AttnArgs()
    one.k, other.k = other, one
    gone = weakref.ref(array)
    del array, one, other
    gc.collect()
    assert gone() is None


def test_struct_may_change_while_a_call_runs() -> None:
    """Another thread replaces the arrays of the arguments; those of the call live until it is done."""
    problem = _problem(rows=300)
    context, desc, args = _plan(problem)
    plan = context.attn_bwd_plan(desc)
    dq = np.zeros_like(problem[1])
    workspace = np.zeros(plan.workspace_size, np.uint8)
    stop = threading.Event()

    def change() -> None:
        while not stop.is_set():
            args.dq = np.zeros_like(problem[1])
            args.dq = dq

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(200):
            plan.run(args, workspace)
    finally:
        stop.set()
        thread.join()
    args.dq = dq
    plan.run(args, workspace)
    assert np.array_equal(dq, sternway.attn_bwd(*problem, cpu_threads=1)[0])


def test_nothing_is_added_to_new_arrays() -> None:
    """Their content is whatever was in memory."""
    x, offsets, weight = np.ones((2, 3), np.float32), np.array([0, 2]), np.ones((3, 3), np.float32)
    row = np.ones(2, np.float32)
    for call in (lambda: sternway.attn_bwd(*_problem(), accumulate="dk"),
                 lambda: sternway.jagged.silu_backward(x, x, offsets, accumulate="dx"),
                 lambda: sternway.jagged.reshape_backward(x, offsets, (-1, 3), (-1, 3), accumulate="dx"),
                 lambda: sternway.jagged.linear_backward(x, x, weight, offsets, accumulate=("dx", "dweight"),
                                                         dx=x.copy(), outputs=("dx", "dweight")),
                 lambda: sternway.jagged.layer_norm_backward(x, x, row, row, offsets, accumulate="dx"),
                 lambda: sternway.jagged.matmul_backward(x, x, weight, m=(offsets, 2), k=3, n=3,
                                                         accumulate="dother")):
        with pytest.raises(sternway.InvalidError, match="accumulate"):
            call()
    dx = np.ones_like(x)
    sternway.jagged.silu_backward(x, x, offsets, dx=dx, accumulate="dx")
    assert np.array_equal(dx, 1 + sternway.jagged.silu_backward(x, x, offsets))
