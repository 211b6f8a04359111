# SPDX-License-Identifier: MIT
"""Arrays of other libraries than numpy give numpy's bits, as arrays of their own, without a copy of inputs."""
from __future__ import annotations

import gc
import weakref

import pytest

np = pytest.importorskip("numpy")
sternway = pytest.importorskip("sternway")

B, H, HK, S, T, D = 2, 4, 2, 11, 14, 6


def problem():
    random = np.random.default_rng(5)
    return [random.standard_normal(shape).astype("f")
            for shape in ((B, H, S, D), (B, H, S, D), (B, HK, T, D), (B, HK, T, D))]


def of_numpy(mask="causal"):
    dout, q, k, v = problem()
    out, lse = sternway.attn_fwd(q, k, v, mask=mask)
    return out, lse, sternway.attn_bwd(dout, q, k, v, out, lse, mask=mask)


def test_torch():
    torch = pytest.importorskip("torch")
    out, lse, expected = of_numpy()
    dout, q, k, v = (torch.from_numpy(array) for array in problem())
    mine, my_lse = sternway.attn_fwd(q, k, v, mask="causal")
    got = sternway.attn_bwd(dout, q, k, v, mine, my_lse, mask="causal")
    assert torch.equal(mine, torch.from_numpy(out)) and torch.equal(my_lse, torch.from_numpy(lse))
    for a, b in zip(got[:3], expected[:3]):
        assert torch.equal(a, torch.from_numpy(b)) and not a.requires_grad
    rows = q.transpose(1, 2).contiguous().transpose(1, 2)
    again = sternway.attn_bwd(dout, rows.requires_grad_(), torch.nn.Parameter(k), v, mine, my_lse, mask="causal")
    assert torch.equal(again.dq, got.dq) and again.dq.stride() == rows.stride()
    kept = sternway.dropout_mask(q, k, dropout_p=0.5, dropout_seed=3)
    assert kept.dtype == torch.uint8 and kept.shape == (B, H, S, T)


def test_torch_bfloat16_and_bool_mask():
    torch = pytest.importorskip("torch")
    dout, q, k, v = (torch.from_numpy(array).bfloat16() for array in problem())
    seen = torch.rand(1, 1, S, T, generator=torch.Generator().manual_seed(1)) > 0.3
    out, lse = sternway.attn_fwd(q, k, v, bias=seen)
    got = sternway.attn_bwd(dout, q, k, v, out, lse, bias=seen)
    wide = [x.double().requires_grad_() for x in (q, k, v)]
    scores = wide[0] @ wide[1].repeat_interleave(2, 1).mT / D ** 0.5
    p = scores.masked_fill(~seen, float("-inf")).softmax(-1)
    expected = torch.autograd.grad(p @ wide[2].repeat_interleave(2, 1), wide, dout.double())
    for a, b in zip(got[:3], expected):
        assert a.dtype == torch.bfloat16 and (a.double() - b).abs().max() < 0.03 * b.abs().max().clamp(min=1)


def test_torch_settings(monkeypatch):
    """What a call takes over from PyTorch: its threads, and determinism unless the caller says otherwise."""
    torch = pytest.importorskip("torch")
    from sternway import attention
    seen = []
    real = attention._forward
    monkeypatch.setattr(attention, "_forward", lambda *a, **options: seen.append(options) or real(*a, **options))
    q = torch.ones(1, 1, 3, 2)
    threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    try:
        torch.set_num_threads(1)
        sternway.attn_fwd(q, q, q)
        torch.use_deterministic_algorithms(True, warn_only=True)
        sternway.attn_fwd(q, q, q)
        sternway.attn_fwd(q, q, q, deterministic=False, cpu_threads=2)
    finally:
        torch.use_deterministic_algorithms(deterministic)
        torch.set_num_threads(threads)
    assert [options.get("cpu_threads") for options in seen] == [1, 1, 2]
    assert [options.get("deterministic") for options in seen] == [None, True, False]


def test_torch_wrong_device():
    torch = pytest.importorskip("torch")
    q = torch.ones(1, 1, 2, 2, device="meta")
    with pytest.raises(sternway.UnsupportedError, match="meta"):
        sternway.attn_fwd(q, q, q)


def test_torch_jagged():
    torch = pytest.importorskip("torch")
    offsets = torch.tensor([0, 3, 3, 9])
    x = torch.randn(9, 4, generator=torch.Generator().manual_seed(2))
    got = sternway.jagged.gelu_backward(torch.ones_like(x), x, offsets)
    wide = x.double().requires_grad_()
    expected, = torch.autograd.grad(torch.nn.functional.gelu(wide).sum(), wide)
    assert (got.double() - expected).abs().max() < 1e-5


@pytest.mark.gpu
def test_torch_on_a_gpu():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    expected = of_numpy()[2]
    dout, q, k, v = (torch.from_numpy(array).cuda() for array in problem())
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        out, lse = sternway.attn_fwd(q, k, v, mask="causal")
        got = sternway.attn_bwd(dout, q, k, v, out, lse, mask="causal")
    stream.synchronize()
    for a, b in zip(got[:3], expected[:3]):
        assert a.is_cuda and np.abs(a.cpu().numpy() - b).max() < 1e-5
    with pytest.raises(sternway.InvalidError, match="k is in host memory"):
        sternway.attn_fwd(q, k.cpu(), v)
    offsets = torch.tensor([0, 3, 3, 9], device="cuda")
    x = torch.randn(9, 4, device="cuda")
    got = sternway.jagged.silu_backward(torch.ones_like(x), x, offsets)
    wide = x.double().requires_grad_()
    assert (got - torch.autograd.grad(torch.nn.functional.silu(wide).sum(), wide)[0]).abs().max() < 1e-5
    assert "chosen" in sternway.explain(q, k, v, mask="causal")


@pytest.mark.gpu
def test_cupy_on_a_gpu():
    cupy = pytest.importorskip("cupy")
    expected = of_numpy()[2]
    dout, q, k, v = (cupy.asarray(array) for array in problem())
    with cupy.cuda.Stream(non_blocking=True) as stream:
        stream.wait_event(cupy.cuda.Stream.null.record())
        out, lse = sternway.attn_fwd(q, k, v, mask="causal")
        got = sternway.attn_bwd(dout, q, k, v, out, lse, mask="causal")
    stream.synchronize()
    for a, b in zip(got[:3], expected[:3]):
        assert np.abs(cupy.asnumpy(a) - b).max() < 1e-5


def test_jax():
    jax = pytest.importorskip("jax")
    out, lse, expected = of_numpy()
    with jax.default_device(jax.devices("cpu")[0]):
        dout, q, k, v = (jax.numpy.asarray(array) for array in problem())
        mine, my_lse = sternway.attn_fwd(q, k, v, mask="causal")
        assert isinstance(mine, jax.Array) and np.array_equal(mine, out) and np.array_equal(my_lse, lse)
        got = sternway.attn_bwd(dout, q, k, v, mine, my_lse, mask="causal")
        for a, b in zip(got[:3], expected[:3]):
            assert isinstance(a, jax.Array) and np.array_equal(a, b)
        with pytest.raises(sternway.InvalidError, match="immutable"):
            sternway.attn_bwd(dout, q, k, v, mine, my_lse, dq=q + 0)
        with pytest.raises(sternway.InvalidError, match="tracer"):
            jax.jit(lambda q: sternway.attn_fwd(q, k, v)[0])(q)
        half = [x.astype(jax.numpy.bfloat16) for x in (q, k, v)]
        rounded, _ = sternway.attn_fwd(*half)
        assert rounded.dtype == jax.numpy.bfloat16
        x = jax.numpy.asarray(problem()[0].reshape(-1, D))
        slope = sternway.jagged.silu_backward(x * 0 + 1, x, jax.numpy.asarray([0, 5, x.shape[0]], dtype="int32"))
        assert isinstance(slope, jax.Array)
        assert np.allclose(slope, jax.vmap(jax.vmap(jax.grad(jax.nn.silu)))(x), atol=1e-6)


def test_jax_memory_that_is_written():
    """What stands for a result on a GPU: the array's own memory, writable, with its type; here in host memory."""
    jax = pytest.importorskip("jax")
    from sternway._jax import Fresh
    for name, typestr in (("float32", "<f4"), ("bfloat16", "<V2"), ("float16", "<f2"), ("uint8", "|u1"),
                          ("int32", "<i4")):
        array = jax.numpy.empty((2, 3), name, device=jax.devices("cpu")[0])
        interface = Fresh(array, name).__cuda_array_interface__
        assert interface == {"shape": (2, 3), "typestr": typestr, "data": (array.unsafe_buffer_pointer(), False),
                             "version": 3}


@pytest.mark.gpu
def test_jax_on_a_gpu():
    jax = pytest.importorskip("jax")
    if jax.default_backend() != "gpu":
        pytest.skip("JAX has no GPU")
    expected = of_numpy()[2]
    dout, q, k, v = (jax.numpy.asarray(array) for array in problem())
    out, lse = sternway.attn_fwd(q, k, v, mask="causal")
    got = sternway.attn_bwd(dout, q, k, v, out, lse, mask="causal")
    for a, b in zip(got[:3], expected[:3]):
        assert isinstance(a, jax.Array) and np.abs(np.asarray(a) - b).max() < 1e-5
    half = [x.astype("bfloat16") for x in (q, k, v)]
    rounded, _ = sternway.attn_fwd(*half, mask="causal")
    assert rounded.dtype == "bfloat16" and np.abs(np.asarray(rounded, "f") - np.asarray(out)).max() < 0.05


def test_buffer():
    context = sternway.Context("cpu", memory="buffers")
    buffer = sternway.Buffer(context, (3, 5), "f32")
    source = np.arange(15, dtype="f").reshape(3, 5)
    buffer.copy_from(source)
    back = np.zeros_like(source)
    buffer.copy_to(back)
    np.testing.assert_array_equal(back, source)
    view = np.asarray(buffer)
    assert view.ctypes.data == buffer.pointer and view.strides == source.strides and view.dtype == source.dtype
    watched = weakref.ref(buffer)
    del buffer
    gc.collect()
    np.testing.assert_array_equal(view, source)  # the reader holds the memory
    del view
    gc.collect()
    assert watched() is None
    with pytest.raises(sternway.InvalidError, match="60"):
        sternway.Buffer(context, (3, 5)).copy_to(np.zeros(4, "f"))
    for name in ("f16", "bfloat16", "float64", "i8", "uint8", "i16", "i32", "int64"):
        other = sternway.Buffer(context, (2, 3), name)
        assert other.nbytes == 6 * np.asarray(other).itemsize == 6 * other.itemsize


def test_buffers_as_arguments():
    """Arrays of the package's own type, of a context whose memory is buffers."""
    context = sternway.Context("cpu", memory="buffers")
    out, lse, expected = of_numpy()
    host = dict(zip(("dout", "q", "k", "v"), problem()), out=out, lse=lse)
    device = {name: sternway.Buffer(context, array.shape) for name, array in host.items()}
    for name, array in host.items():
        device[name].copy_from(array)
    arguments = [device[name] for name in ("dout", "q", "k", "v", "out", "lse")]
    got = sternway.attn_bwd(*arguments, mask="causal")
    for mine, wanted in zip(got[:3], expected[:3]):
        assert isinstance(mine, sternway.Buffer) and mine.context is context
        np.testing.assert_array_equal(np.asarray(mine), wanted)
    mine, my_lse = sternway.attn_fwd(*arguments[1:4], mask="causal")
    np.testing.assert_array_equal(np.asarray(my_lse), lse)
    assert sternway.attn_desc(*arguments[1:4]).q == (H * S * D, S * D, D)


def test_bfloat16_buffers():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    context = sternway.Context("cpu", memory="buffers")
    arrays = [array.astype(ml_dtypes.bfloat16) for array in problem()[1:]]
    buffers = [sternway.Buffer(context, array.shape, "bf16") for array in arrays]
    for buffer, array in zip(buffers, arrays):
        buffer.copy_from(array.view(np.uint16))
    out, lse = sternway.attn_fwd(*buffers)
    wanted, wanted_lse = sternway.attn_fwd(*arrays)
    np.testing.assert_array_equal(np.asarray(out).view(np.uint16), wanted.view(np.uint16))
    np.testing.assert_array_equal(np.asarray(lse), wanted_lse)


def test_plans_and_raw_structs():
    """The C interface as it is: a descriptor, a plan, its arguments."""
    out, lse, expected = of_numpy(mask=None)
    dout, q, k, v = problem()
    desc = sternway.AttnDesc(dtype=sternway.DType.F32, batch=B, heads_q=H, heads_kv=HK, head_dim_qk=D, head_dim_v=D,
                             max_seq_q=S, max_seq_kv=T)
    sternway.layout_bhsd(desc)
    assert desc.q == (H * S * D, S * D, D)
    context = sternway.Context("cpu")
    assert (context.arch, context.backend, context.memory, context.device) == ("cpu", 1, 1, -1)
    plan = context.attn_bwd_plan(desc)
    assert isinstance(plan, sternway.Plan) and "backend: cpu" in plan.describe()
    dq, dk, dv = np.empty_like(q), np.empty_like(k), np.empty_like(v)
    args = sternway.AttnArgs(q=q, k=k, v=v, out=out, dout=dout, lse=lse, dq=dq, dk=dk, dv=dv)
    workspace = np.empty(plan.workspace_size, np.uint8)
    plan.run(args, workspace, plan.workspace_size)
    for a, b in zip((dq, dk, dv), expected[:3]):
        np.testing.assert_array_equal(a, b)
    for array in (dq, dk, dv):
        array[:] = np.nan
    size = context.attn_bwd_once_workspace(desc)
    context.attn_bwd_once(desc, args, np.empty(size, np.uint8), size)
    np.testing.assert_array_equal(dq, expected.dq)
    with pytest.raises(sternway.WorkspaceError):
        plan.run(args, None, 0)
    kept = np.zeros((B, H, S, T), np.uint8)
    desc.dropout_p = 0.5
    context.attn_fwd_plan(desc).dropout_mask(sternway.AttnArgs(dropout_seed=3), kept)
    np.testing.assert_array_equal(kept, sternway.dropout_mask(q, k, dropout_p=0.5, dropout_seed=3))


def test_streams_and_copies():
    context = sternway.Context("cpu", memory="buffers")
    stream = context.stream_create()
    source, target = np.arange(7, dtype="f"), np.zeros(7, "f")
    context.copy(target, source, 28, stream)
    context.stream_synchronize(stream)
    context.stream_destroy(stream)
    np.testing.assert_array_equal(source, target)


def test_flash_mask_of_a_descriptor():
    desc = sternway.AttnDesc(dtype=sternway.DType.F32, batch=1, heads_q=1, heads_kv=1, head_dim_qk=8, head_dim_v=8,
                             max_seq_q=5, max_seq_kv=9)
    sternway.mask_from_flash(desc, True, 3, -1)
    assert desc.window_left == 3 and desc.flags & sternway.AttnFlag.HAS_WINDOW_LEFT


def test_attn_desc_of_arrays():
    """The descriptor of arrays names the same problem as the call: a plan of it gives the call's bits."""
    out, lse, expected = of_numpy()
    dout, q, k, v = (np.ascontiguousarray(a.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3) for a in problem())
    out = np.ascontiguousarray(out.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)
    desc = sternway.attn_desc(q, k, v, mask="causal", out=out, dout=dout)
    dq, dk, dv = (np.empty(x.shape, "f") for x in (q, k, v))
    plan = sternway.Context("cpu").attn_bwd_plan(desc)
    plan.run(sternway.AttnArgs(q=q, k=k, v=v, out=out, dout=dout, lse=lse, dq=dq, dk=dk, dv=dv),
             np.empty(plan.workspace_size, np.uint8))
    for a, b in zip((dq, dk, dv), expected[:3]):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("shape", [(B, 1, 1, T), (1, H, S, 1), (B, H, S, T), (1, 1, S, T)])
def test_attn_desc_of_a_bias(shape):
    """dBias of a plan made of attn_desc has the call's bits."""
    bias = np.random.default_rng(6).standard_normal(shape).astype("f")
    dout, q, k, v = problem()
    out, lse = sternway.attn_fwd(q, k, v, bias=bias)
    expected = sternway.attn_bwd(dout, q, k, v, out, lse, bias=bias, outputs=("dbias", "dq"))
    plan = sternway.Context("cpu").attn_bwd_plan(sternway.attn_desc(q, k, v, bias=bias, outputs=("dbias", "dq")))
    dbias, dq = np.empty_like(bias), np.empty_like(q)
    plan.run(sternway.AttnArgs(q=q, k=k, v=v, out=out, dout=dout, lse=lse, bias=bias, dbias=dbias, dq=dq),
             np.empty(plan.workspace_size, np.uint8))
    np.testing.assert_array_equal(dq, expected.dq)
    np.testing.assert_array_equal(dbias, expected.dbias)


def test_attn_desc_of_an_expanded_bias():
    """dBias is dense in the dimensions that the bias has."""
    _, q, k, v = problem()
    bias = np.broadcast_to(np.ones((1, H, 1, T), "f"), (B, H, S, T))
    desc = sternway.attn_desc(q, k, v, bias=bias, outputs="dbias")
    assert desc.bias == (0, T, 0, 1) and desc.dbias == (0, T, 0, 1)
