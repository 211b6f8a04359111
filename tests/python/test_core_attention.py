# SPDX-License-Identifier: MIT
"""sternway.attn_bwd, attn_fwd and dropout_mask on numpy arrays against float64, every feature by itself and
together."""
from __future__ import annotations

import zlib

import pytest

np = pytest.importorskip("numpy")
sternway = pytest.importorskip("sternway")
import core_reference as reference  # noqa: E402

B, H, HK, SQ, SK, D, DV = 2, 4, 2, 37, 45, 19, 11
PER_BATCH = ("bias", "keep", "dlse")


def generator(name):
    return np.random.default_rng(zlib.crc32(name.encode()))


def tensors(name, dtype="float32", heads_kv=HK, rows=SQ, keys=SK):
    random = generator(name)
    shapes = {"q": (B, H, rows, D), "k": (B, heads_kv, keys, D), "v": (B, heads_kv, keys, DV), "dout": (B, H, rows, DV)}
    return {key: random.standard_normal(shape).astype(dtype) for key, shape in shapes.items()}


def wide(array):
    return None if array is None else array if array.dtype == bool else array.astype(np.float64)


def expected_gradients(t, out, lse, used=None, **options):
    """Gradients [B,...] in float64 for the stored O and LSE; `used` (rows, keys) by batch."""
    result = {name: [] for name in ("dq", "dk", "dv", "ds", "dsink")}
    for b in range(t["q"].shape[0]):
        rows, keys = used[b] if used else (t["q"].shape[2], t["k"].shape[2])
        mine = dict(options)
        for name in PER_BATCH:
            if mine.get(name) is not None:
                array = wide(mine[name])
                array = np.broadcast_to(array, (t["q"].shape[0], *array.shape[1:]))[b]
                mine[name] = array[:, :rows] if name == "dlse" else np.broadcast_to(
                    array, (H, t["q"].shape[2], t["k"].shape[2]))[:, :rows, :keys]
        one = reference.backward(wide(t["dout"])[b, :, :rows], wide(t["q"])[b, :, :rows], wide(t["k"])[b, :, :keys],
                                 wide(t["v"])[b, :, :keys], wide(out)[b, :, :rows], wide(lse)[b, :, :rows], **mine)
        for name, value in one.items():
            full = {"dq": t["q"].shape[1:], "dk": t["k"].shape[1:], "dv": t["v"].shape[1:],
                    "ds": (H, t["q"].shape[2], t["k"].shape[2])}.get(name)
            if full:
                padded = np.zeros(full)
                padded[tuple(slice(extent) for extent in value.shape)] = value
                value = padded
            result[name].append(value)
    return {name: np.stack(values) if name != "dsink" else sum(values) for name, values in result.items() if values}


def run(name, dtype="float32", heads_kv=HK, rows=SQ, keys=SK, outputs=("dq", "dk", "dv"), used=None,
        reference_options=None,
        **options):
    """Forward and backward of a problem; every result is compared."""
    t = tensors(name, dtype, heads_kv, rows, keys)
    calls = dict(options)
    theirs = {key: value for key, value in options.items()
              if key in ("mask", "window", "scale", "softcap", "bias", "sink",
                                                                      "dlse", "diagonal_shift")}
    theirs.update(reference_options or {})
    forward_options = {key: value for key, value in calls.items() if key != "dlse"}
    out, lse = sternway.attn_fwd(t["q"], t["k"], t["v"], **forward_options)
    got = sternway.attn_bwd(t["dout"], t["q"], t["k"], t["v"], out, lse, outputs=outputs, **calls)
    if theirs.get("mask") == "causal":
        theirs["mask"] = "causal_bottom_right"
    if theirs.get("sink") is not None:
        theirs["sink"] = wide(theirs["sink"])
    expected = expected_gradients(t, out, lse, used, **theirs)
    for gradient in ("dq", "dk", "dv"):
        assert (getattr(got, gradient) is None) == (gradient not in outputs)
        if gradient in outputs:
            reference.check(gradient, getattr(got, gradient), expected[gradient], dtype)
            assert getattr(got, gradient).dtype == t[gradient[1:]].dtype
    if "dbias" in outputs:
        axes = tuple(i for i, extent in enumerate(options["bias"].shape) if extent == 1)
        total = np.sum(expected["ds"], axis=axes, keepdims=True)
        reference.check("dbias", got.dbias, total, options["bias"].dtype if dtype == "float32" else dtype)
    if "dsink" in outputs:
        reference.check("dsink", got.dsink, expected["dsink"], "float32" if dtype != "float64" else dtype)
    return t, out, lse, got


def test_reference_against_differences():
    """The reference's own gradients against central differences of its forward, with every term in it."""
    random = generator("differences")
    q, k, v = random.standard_normal((4, 5, 3)), random.standard_normal((2, 6, 3)), random.standard_normal((2, 6, 2))
    bias, sink = random.standard_normal((4, 5, 6)), random.standard_normal(4)
    dout, dlse = random.standard_normal((4, 5, 2)), random.standard_normal((4, 5))
    keep = (random.random((4, 5, 6)) > 0.3) / 0.7
    options = dict(softcap=2.0, slopes=random.random(4), mask="causal_bottom_right", window=(3, 1), keep=keep,
                   scale=0.7)
    values = {"dq": q, "dk": k, "dv": v, "ds": bias, "dsink": sink}

    def loss():
        out, lse = reference.forward(q, k, v, bias=bias, sink=sink, **options)
        return np.sum(out * dout) + np.sum(lse * dlse)
    out, lse = reference.forward(q, k, v, bias=bias, sink=sink, **options)
    gradients = reference.backward(dout, q, k, v, out, lse, bias=bias, sink=sink, dlse=dlse, **options)
    for name, value in values.items():
        flat = value.reshape(-1)
        for at in range(0, flat.size, 3):
            before, step = flat[at], 1e-5
            flat[at] = before + step
            above = loss()
            flat[at] = before - step
            slope = (above - loss()) / (2 * step)
            flat[at] = before
            assert abs(gradients[name].reshape(-1)[at] - slope) < 1e-8, (name, at)


def test_forward():
    t = tensors("forward")
    sink = np.linspace(-1, 1, H).astype("f")
    out, lse = sternway.attn_fwd(t["q"], t["k"], t["v"], mask="causal_bottom_right", sink=sink, softcap=3.0)
    for b in range(B):
        expected = reference.forward(*(wide(t[name][b]) for name in "qkv"), mask="causal_bottom_right", sink=wide(sink),
                                     softcap=3.0)
        reference.check("out", out[b], expected[0], "float32")
        reference.check("lse", lse[b], expected[1], "float32")


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("mask", [None, "causal_top_left", "causal"])
def test_types_and_masks(dtype, mask):
    run(f"types {dtype} {mask}", dtype, mask=mask)


def test_bfloat16():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    t = tensors("bf16")
    t = {name: array.astype(ml_dtypes.bfloat16) for name, array in t.items()}
    out, lse = sternway.attn_fwd(t["q"], t["k"], t["v"], mask="causal")
    got = sternway.attn_bwd(t["dout"], t["q"], t["k"], t["v"], out, lse, mask="causal")
    assert out.dtype == ml_dtypes.bfloat16 and lse.dtype == np.float32
    expected = expected_gradients(t, out, lse, mask="causal_bottom_right")
    for name in ("dq", "dk", "dv"):
        assert getattr(got, name).dtype == ml_dtypes.bfloat16
        reference.check(name, getattr(got, name), expected[name], "bfloat16")


def test_uint16_is_no_bfloat16():
    t = tensors("uint16")
    with pytest.raises(sternway.Error):
        sternway.attn_fwd(*(t[name].astype("uint16") for name in "qkv"))


@pytest.mark.parametrize("heads_kv", [1, 4])
def test_heads(heads_kv):
    run(f"heads {heads_kv}", heads_kv=heads_kv)


@pytest.mark.parametrize("window", [(7, 3), (None, 2), (5, None), (0, 0)])
def test_windows(window):
    run(f"window {window}", window=window)
    run(f"window {window} causal", window=window, mask="causal_top_left")


def test_diagonal_shift():
    run("shift", mask="causal_top_left", diagonal_shift=-3)


def test_flash_window_is_bottom_right():
    """FlashAttention's (causal, left, right): a right bound of 0, and the left one."""
    run("flash window", flash_window=(True, 6, -1),
        reference_options={"mask": "causal_bottom_right", "window": (6, None)})


def test_scale_and_softcap():
    run("scale", scale=0.3)
    run("scale 0", scale=0.0)
    run("softcap", softcap=1.5)
    run("softcap f64", dtype="float64", softcap=1.1, scale=0.7)


@pytest.mark.parametrize("shape", [(B, H, SQ, SK), (1, H, SQ, SK), (B, 1, 1, SK), (1, 1, SQ, 1), (1, H, 1, 1)])
def test_bias(shape):
    bias = generator(f"bias {shape}").standard_normal(shape).astype("f")
    run(f"bias {shape}", bias=bias, outputs=("dq", "dk", "dv", "dbias"))


def test_bias_expanded_view():
    """A bias whose strides are 0: its gradient has one element there."""
    narrow = generator("expanded").standard_normal((1, H, 1, SK)).astype("f")
    t = tensors("expanded")
    bias = np.broadcast_to(narrow, (B, H, SQ, SK))
    out, lse = sternway.attn_fwd(t["q"], t["k"], t["v"], bias=bias)
    got = sternway.attn_bwd(t["dout"], t["q"], t["k"], t["v"], out, lse, bias=bias, outputs="dbias")
    expected = expected_gradients(t, out, lse, bias=narrow)["ds"].sum(axis=(0, 2), keepdims=True)
    assert got.dq is None
    reference.check("dbias", got.dbias, expected, "float32")


def test_byte_mask():
    for dtype in (bool, np.uint8):
        seen = generator("bytes").random((B, 1, SQ, SK)) > 0.4
        run("bytes", bias=seen.astype(dtype), reference_options={"bias": seen})


def test_alibi():
    slopes = np.array([0.5, 0.25, 0.1, 0.9], "f")
    run("alibi", mask="causal", alibi_slopes=slopes, reference_options={"slopes": wide(slopes)})
    run("alibi column", mask="causal", alibi_slopes=slopes, flags=sternway.AttnFlag.ALIBI_COLUMN,
        reference_options={"slopes": wide(slopes), "column": True})


def test_sink_and_dlse():
    sink = np.array([-0.5, 0.0, 1.0, 2.0], "f")
    run("sink", sink=sink, outputs=("dq", "dk", "dv", "dsink"))
    dlse = generator("dlse").standard_normal((B, H, SQ)).astype("f")
    run("dlse", sink=sink, dlse=dlse, mask="causal", outputs=("dq", "dk", "dv", "dsink"))


def test_dropout_follows_its_mask():
    for name in ("philox", "mem_eff", "flash2"):
        dropout = dict(dropout_p=0.25, dropout_map=name, dropout_seed=2 ** 40 + 7, dropout_offset=12)
        t = tensors("dropout")
        kept = sternway.dropout_mask(t["q"], t["k"], **dropout)
        assert kept.shape == (B, H, SQ, SK) and kept.dtype == np.uint8 and set(np.unique(kept)) == {0, 1}
        assert abs(kept.mean() - 0.75) < 0.02
        run("dropout", **dropout, reference_options={"keep": kept / 0.75})
        pointers = {f"dropout_{part}_ptr": np.array([dropout[f"dropout_{part}"]], np.int64)
                    for part in ("seed", "offset")}
        again = sternway.dropout_mask(t["q"], t["k"], dropout_p=0.25, dropout_map=name, **pointers)
        assert np.array_equal(kept, again)


def test_used_lengths():
    used_q, used_kv = np.array([SQ, 5], np.int32), np.array([17, SK], np.int32)
    run("used", mask="causal", used_q=used_q, used_kv=used_kv, used=[(SQ, 17), (5, SK)])


def test_accumulate():
    t = tensors("accumulate")
    out, lse = sternway.attn_fwd(t["q"], t["k"], t["v"])
    fresh = sternway.attn_bwd(t["dout"], t["q"], t["k"], t["v"], out, lse)
    dq, dk, dv = (np.full_like(t[name], 2.0) for name in "qkv")
    sternway.attn_bwd(t["dout"], t["q"], t["k"], t["v"], out, lse, dq=dq, dk=dk, dv=dv, accumulate=("dq", "dv"))
    np.testing.assert_allclose(dq, fresh.dq + np.float32(2.0), atol=1e-6)
    np.testing.assert_allclose(dv, fresh.dv + np.float32(2.0), atol=1e-6)
    np.testing.assert_array_equal(dk, fresh.dk)


def test_f32_gradients_of_f16():
    t = tensors("f32 of f16", "float16")
    out, lse = sternway.attn_fwd(t["q"], t["k"], t["v"])
    dq = np.empty(t["q"].shape, "f")
    got = sternway.attn_bwd(t["dout"], t["q"], t["k"], t["v"], out, lse, dq=dq, outputs=("dk",))
    assert got.dq is dq and got.dk.dtype == np.float16 and got.dv is None
    reference.check("dq", dq, expected_gradients(t, out, lse)["dq"], "float16")


def test_given_delta():
    t = tensors("delta")
    out, lse = sternway.attn_fwd(t["q"], t["k"], t["v"])
    delta = np.empty((B, H, SQ), "f")
    plain = sternway.attn_bwd(t["dout"], t["q"], t["k"], t["v"], out, lse, delta=delta,
                              flags=sternway.AttnFlag.WRITE_DELTA)
    reference.check("delta", delta, np.sum(wide(t["dout"]) * wide(out), axis=3), "float32")
    given = sternway.attn_bwd(t["dout"], t["q"], t["k"], t["v"], None, lse, delta=delta,
                              flags=sternway.AttnFlag.GIVEN_DELTA)
    for a, b in zip(plain[:3], given[:3]):
        np.testing.assert_array_equal(a, b)


def test_layouts_and_strides():
    """[B,S,H,D], views of it as [B,H,S,D], a padded row, a broadcast dout and a scattered head_dim: the same
    gradients."""
    t = tensors("layouts")
    out, lse = sternway.attn_fwd(t["q"], t["k"], t["v"], mask="causal")
    plain = sternway.attn_bwd(t["dout"], t["q"], t["k"], t["v"], out, lse, mask="causal")

    def seq_first(array):
        return np.ascontiguousarray(array.transpose(0, 2, 1, 3))
    rows = {name: seq_first(array) for name, array in {**t, "out": out}.items()}
    got = sternway.attn_bwd(*(rows[name] for name in ("dout", "q", "k", "v", "out")), lse, layout="bshd", mask="causal")
    for a, b in zip(plain[:3], got[:3]):
        np.testing.assert_array_equal(a, b.transpose(0, 2, 1, 3))
    views = {name: array.transpose(0, 2, 1, 3) for name, array in rows.items()}
    scattered = np.ascontiguousarray(t["k"].transpose(0, 1, 3, 2)).transpose(0, 1, 3, 2)
    wider = np.empty((B, H, SQ, D + 5), "f")
    lse_rows = np.ascontiguousarray(lse.transpose(2, 0, 1)).transpose(1, 2, 0)
    got = sternway.attn_bwd(views["dout"], views["q"], scattered, views["v"], views["out"], lse_rows, mask="causal",
                            dq=wider[..., :D], outputs=("dk", "dv"))
    for a, b in zip(plain[:3], got[:3]):
        np.testing.assert_array_equal(a, b)
    ones = np.broadcast_to(np.float32(1.0), out.shape)
    spread = sternway.attn_bwd(ones, t["q"], t["k"], t["v"], out, lse, mask="causal")
    dense = sternway.attn_bwd(np.ones_like(out), t["q"], t["k"], t["v"], out, lse, mask="causal")
    for a, b in zip(spread[:3], dense[:3]):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("lse_layout", ["heads", "local"])
def test_packed(lse_layout):
    """Sequences of odd lengths, one of them empty, each against its own reference."""
    lengths, random = [(5, 9), (0, 3), (31, 17), (13, 13)], generator("packed")
    cu_q, cu_k = (np.concatenate([[0], np.cumsum([pair[side] for pair in lengths])]).astype(np.int32)
                  for side in (0, 1))
    q, k, v, dout = (random.standard_normal(shape).astype("f") for shape in
                     ((cu_q[-1], H, D), (cu_k[-1], HK, D), (cu_k[-1], HK, DV), (cu_q[-1], H, DV)))
    options = dict(layout="thd", cu_seqlens_q=cu_q, cu_seqlens_kv=cu_k, max_seq_q=31, max_seq_kv=17, mask="causal",
                   dropout_p=0.2, dropout_seed=5)
    lse = np.zeros((len(lengths), H, 31), "f") if lse_layout == "local" else None
    out, lse = sternway.attn_fwd(q, k, v, lse=lse, **options)
    got = sternway.attn_bwd(dout, q, k, v, out, lse, **options)
    kept = sternway.dropout_mask(q, k, **{name: value for name, value in options.items() if name != "mask"})
    assert kept.shape == (len(lengths), H, 31, 17)
    for b, (rows, keys) in enumerate(lengths):
        mine, theirs = slice(cu_q[b], cu_q[b + 1]), slice(cu_k[b], cu_k[b + 1])

        def part(array, where):
            return wide(array[where]).transpose(1, 0, 2)
        my_lse = lse[b, :, :rows] if lse_layout == "local" else lse[:, mine]
        expected = reference.backward(part(dout, mine), part(q, mine), part(k, theirs), part(v, theirs),
                                      part(out, mine),
                                      wide(my_lse), mask="causal_bottom_right", keep=kept[b, :, :rows, :keys] / 0.8)
        for name, array, where in (("dq", got.dq, mine), ("dk", got.dk, theirs), ("dv", got.dv, theirs)):
            reference.check(f"{name} of {b}", array[where].transpose(1, 0, 2), expected[name], "float32")


def test_shard_of_a_larger_problem():
    """The rows of a whole problem from 20 on, called with q_offset, are its rows bit by bit in dQ."""
    t = tensors("shard")
    options = dict(mask="causal_top_left", dropout_p=0.3, dropout_seed=11)
    out, lse = sternway.attn_fwd(t["q"], t["k"], t["v"], **options)
    whole = sternway.attn_bwd(t["dout"], t["q"], t["k"], t["v"], out, lse, **options)
    part = slice(20, None)
    got = sternway.attn_bwd(t["dout"][:, :, part], t["q"][:, :, part], t["k"], t["v"], out[:, :, part], lse[:, :, part],
                            q_offset=20, outputs="dq", **options)
    np.testing.assert_allclose(got.dq, whole.dq[:, :, part], atol=1e-6)


@pytest.mark.parametrize("case", range(40))
def test_features_together(case):
    """Random features of random odd sizes at once, in f64, where nothing but the formulas can differ."""
    random = np.random.default_rng(case)
    pick = random.random
    rows, keys = int(random.integers(1, 80)), int(random.integers(1, 80))
    options, theirs, outputs = {}, {}, ["dq", "dk", "dv"]
    mask = random.choice([None, "causal_top_left", "causal_bottom_right"])
    if mask is not None:
        options["mask"] = str(mask)
    if pick() < 0.4:
        options["window"] = tuple(None if pick() < 0.3 else int(random.integers(0, 30)) for _ in range(2))
    if pick() < 0.2:
        options["diagonal_shift"] = int(random.integers(-20, 20))
    if pick() < 0.4:
        options["scale"] = float(random.normal())
    if pick() < 0.4:
        options["softcap"] = float(random.uniform(0.5, 3))
    if pick() < 0.6:
        shape = tuple(extent if pick() < 0.6 else 1 for extent in (B, H, rows, keys))
        if pick() < 0.3:
            options["bias"] = pick_bytes = random.random(shape) > 0.2
            theirs["bias"] = pick_bytes
        else:
            options["bias"] = random.standard_normal(shape)
            outputs.append("dbias")
    if pick() < 0.3:
        options["alibi_slopes"] = theirs["slopes"] = random.random(H)
    if pick() < 0.4:
        options["sink"] = random.standard_normal(H)
        outputs.append("dsink")
    if pick() < 0.4:
        options["dlse"] = random.standard_normal((B, H, rows))
    used = None
    if pick() < 0.3:
        used = [(int(random.integers(0, rows + 1)), int(random.integers(0, keys + 1))) for _ in range(B)]
        options["used_q"], options["used_kv"] = (np.array(side, np.int32) for side in zip(*used))
    if pick() < 0.4:
        dropout = dict(dropout_p=float(random.uniform(0.05, 0.9)), dropout_seed=int(random.integers(2 ** 62)),
                       dropout_map=str(random.choice(["philox", "mem_eff", "flash2"])))
        sizes = tensors(f"together {case}", "float64", 1, rows, keys)
        lengths = {name: options[name] for name in ("used_q", "used_kv") if name in options}
        kept = sternway.dropout_mask(sizes["q"], sizes["k"], **dropout, **lengths)
        factor = dropout["dropout_p"]
        theirs["keep"] = kept / (1 - factor)
        options.update(dropout)
    heads_kv = int(random.choice([1, 2, 4]))
    run(f"together {case}", "float64", heads_kv, rows, keys, tuple(outputs), used, theirs, **options)


def test_empty():
    for shape in ((0, H, SQ, D), (B, H, 0, D)):
        q = np.zeros(shape, "f")
        k = np.ones((shape[0], HK, 5, D), "f")
        out, lse = sternway.attn_fwd(q, k, k)
        got = sternway.attn_bwd(out, q, k, k, out, lse)
        assert got.dq.shape == q.shape and not got.dk.any() and not got.dv.any()


def test_deterministic_is_the_same_bits():
    t = tensors("bits")
    out, lse = sternway.attn_fwd(t["q"], t["k"], t["v"])
    first, second = (sternway.attn_bwd(t["dout"], t["q"], t["k"], t["v"], out, lse, deterministic=True)
                     for _ in range(2))
    for a, b in zip(first[:3], second[:3]):
        np.testing.assert_array_equal(a, b)
