# SPDX-License-Identifier: MIT
"""What is wrong is refused with a text that names it, before anything is written."""
from __future__ import annotations

import pytest

np = pytest.importorskip("numpy")
sternway = pytest.importorskip("sternway")

B, H, S, D = 2, 4, 9, 8


def problem(dtype="float32"):
    random = np.random.default_rng(3)
    q, k, v, dout = (random.standard_normal((B, H, S, D)).astype(dtype) for _ in range(4))
    out, lse = sternway.attn_fwd(q, k, v)
    return {"dout": dout, "q": q, "k": k, "v": v, "out": out, "lse": lse}


def backward(changes, **options):
    """The call with some tensors replaced; results that are given must keep their NaN."""
    arrays = {**problem(), **changes}
    results = {name: np.full((B, H, S, D), np.nan, "f") for name in ("dq", "dk", "dv")}
    results.update({name: options.pop(name) for name in tuple(options) if name in ("dq", "dk", "dv", "dbias", "dsink")})
    before = {name: array.copy() for name, array in results.items()}
    try:
        return sternway.attn_bwd(*(arrays[name] for name in ("dout", "q", "k", "v", "out", "lse")), **results,
                                 **options)
    except sternway.Error:
        for name, array in results.items():
            np.testing.assert_array_equal(array, before[name])
        raise


def refused(changes, match, error=sternway.InvalidError, **options):
    with pytest.raises(error, match=match) as caught:
        backward(changes, **options)
    assert caught.value.status == error.status


def test_the_call_itself_is_right():
    assert not np.isnan(backward({}).dq).any()


@pytest.mark.parametrize("name", ["q", "k", "v", "out", "dout"])
def test_wrong_dtype(name):
    refused({name: problem()[name].astype("float16")}, rf"\b{name}\b|q is")


def test_dtypes_that_the_library_lacks():
    for dtype in ("int32", "complex64", "int8"):
        with pytest.raises(sternway.Error):
            q = np.ones((1, 1, 2, 2), dtype)
            sternway.attn_bwd(q, q, q, q, q, np.zeros((1, 1, 2), "f"))
    refused({"lse": problem()["lse"].astype("float64")}, "lse")


@pytest.mark.parametrize("name,shape", [
    ("k", (B, 3, S, D)), ("v", (B, H, S + 1, D)), ("out", (B, H, S, D + 1)), ("dout", (B, H, S + 1, D)),
    ("lse", (B, H, S - 1)),
    ("q", (B, H, S)), ("lse", (B, H)), ("k", (B + 1, H, S, D))])
def test_sizes_that_disagree(name, shape):
    refused({name: np.ones(shape, "f")}, rf"\b{name}\b|heads|shape")


def test_results_of_wrong_size():
    refused({}, "dk", dk=np.zeros((B, H, S + 1, D), "f"))
    refused({}, "dbias", dbias=np.zeros((B, H, S, S + 2), "f"), bias=np.zeros((B, H, S, S), "f"))
    refused({}, "bias", dbias=np.zeros((B, H, S, S), "f"))


def test_head_dim_of_results_is_contiguous():
    scattered = np.zeros((B, H, D, S), "f").transpose(0, 1, 3, 2)
    refused({}, "dq.*stride.*head_dim", dq=scattered)


def test_read_only_results():
    dq = np.zeros((B, H, S, D), "f")
    dq.flags.writeable = False
    refused({}, "dq is read only", dq=dq)


def test_results_that_are_inputs():
    arrays = problem()
    with pytest.raises(sternway.InvalidError, match="dq|overlap"):
        sternway.attn_bwd(*(arrays[name] for name in ("dout", "q", "k", "v", "out", "lse")), dq=arrays["q"])


def test_negative_strides():
    refused({"q": problem()["q"][:, :, ::-1]}, "stride|negative", sternway.UnsupportedError)


def test_other_byte_order():
    refused({"q": problem()["q"].astype(">f4")}, "q")


def test_options():
    refused({}, "mask is 'lower'", mask="lower")
    refused({}, "layout is 'sbhd'", layout="sbhd")
    refused({}, "outputs is 'dx'", outputs="dx")
    refused({}, "dropout_map is 'torch'", dropout_map="torch")
    refused({}, "dropout_p", dropout_p=1.5)
    refused({}, "window_left", window=(-1, None))
    refused({}, "flash_window", flash_window=(True, -1, -1), mask="causal")
    refused({}, "dbias is asked for without bias", outputs=("dbias",))
    refused({}, "sink", outputs=("dsink",))
    refused({}, "q has the shape", layout="thd")
    rows = np.ones((5, 2, 4), "f")
    with pytest.raises(sternway.InvalidError, match="cu_seqlens_q is required"):
        sternway.attn_fwd(rows, rows, rows, layout="thd", max_seq_q=5, max_seq_kv=5)
    refused({}, "scale", scale=float("nan"))
    with pytest.raises(TypeError, match="windw"):
        backward({}, windw=3)


def test_lengths_are_checked():
    refused({}, "used_kv", used_kv=np.array([3, S + 1], np.int32))
    refused({}, "used_q", used_q=np.array([3, 3], np.int64))
    refused({}, "used_q", used_q=np.array([3], np.int32))


def test_limits_are_unsupported():
    wide = np.ones((1, 1, 2, 300), "f")
    with pytest.raises(sternway.UnsupportedError, match="head_dim"):
        sternway.attn_fwd(wide, wide, wide)
    with pytest.raises(NotImplementedError):
        sternway.attn_fwd(wide, wide, wide)


def test_what_is_no_array():
    q = np.ones((1, 1, 2, 2), "f")
    with pytest.raises(sternway.InvalidError, match="list is not an array"):
        sternway.attn_fwd([1.0], q, q)
    with pytest.raises((sternway.InvalidError, TypeError), match="k"):
        sternway.attn_fwd(q, [1.0], q)
    with pytest.raises(sternway.InvalidError, match="v is NoneType"):
        sternway.attn_fwd(q, q, None)
    with pytest.raises(sternway.InvalidError, match="k is list"):
        sternway.attn_bwd(q, q, [1.0], q, q, np.zeros((1, 1, 2), "f"))


def test_masked_arrays():
    q = np.ma.masked_array(np.ones((1, 1, 2, 2), "f"), mask=True)
    with pytest.raises(sternway.InvalidError, match="masked"):
        sternway.attn_fwd(q, q, q)


def test_memory_of_another_device():
    """An array that says it is on a GPU, given to a call in host memory."""
    class Elsewhere:
        __cuda_array_interface__ = {"shape": (B, H, S, D), "typestr": "<f4", "data": (4096, False), "version": 3}
    with pytest.raises(sternway.InvalidError, match="k is in .*GPU"):
        backward({"k": Elsewhere()})


def test_backends_by_name_are_never_replaced():
    with pytest.raises(sternway.InvalidError, match="backend is 'tpu'"):
        sternway.Context("tpu")
    with pytest.raises(sternway.Error):
        sternway.Context("cuda", memory="host")
    with pytest.raises(sternway.InvalidError, match="cpu_threads"):
        sternway.Context("cpu", cpu_threads=-1)


def test_last_error_is_the_text():
    with pytest.raises(sternway.UnsupportedError) as caught:
        wide = np.ones((1, 1, 2, 300), "f")
        sternway.attn_fwd(wide, wide, wide)
    assert sternway.last_error() == str(caught.value)


def small_call(**options):
    q = np.ones((1, 1, 3, 8), "f")
    sternway.attn_fwd(q, q, q, **options)


@pytest.mark.parametrize("added", [1 << 32, -1 << 32])
@pytest.mark.parametrize("name", ["op", "flags"])
def test_numbers_of_32_bits_are_not_cut(name, added):
    x, native = np.ones(4, "f"), sternway._native
    numbers = {"op": native.JAGGED_SILU, "flags": 0}
    numbers[name] += added
    with pytest.raises(OverflowError, match=name):
        native.jagged_bwd(sternway.Context("cpu"), numbers["op"], grad=x, x=x, dx=x.copy(), axis=((4, 4),),
                          offsets=(np.array([0, 4]),), flags=numbers["flags"])
    if name == "flags":
        with pytest.raises(OverflowError, match=name):
            small_call(flags=added)


@pytest.mark.parametrize("name", ["dropout_seed", "dropout_offset"])
def test_numbers_of_64_bits_are_not_cut(name):
    for number in (-1 << 63, -1, (1 << 64) - 1):
        small_call(dropout_p=0.5, **{name: number})
    for number in (1 << 64, (-1 << 63) - 1):
        with pytest.raises(OverflowError, match=name):
            small_call(dropout_p=0.5, **{name: number})
    with pytest.raises(TypeError):
        small_call(dropout_p=0.5, **{name: 1.5})
    q = np.ones((1, 1, 9, 8), "f")
    kept = [sternway.dropout_mask(q, q, dropout_p=0.5, dropout_seed=seed) for seed in (-1, (1 << 64) - 1, 0)]
    np.testing.assert_array_equal(kept[0], kept[1])
    assert (kept[0] != kept[2]).any()
