# SPDX-License-Identifier: MIT
"""The drop-in on a GPU: forwards by PyTorch's kernels, backwards by the library, against float64; dropout by the masks
that the forward's own seed and offset give."""
from __future__ import annotations

import importlib.util
import pathlib

import pytest

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")
pytest.importorskip("sternway._native")

import torch.nn.functional as F  # noqa: E402
from enable_reference import BOUNDS, check, forward, gradients, hidden  # noqa: E402
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402

from sternway.torch.enable import disable, enable, reset_stats, stats  # noqa: E402

pytestmark = pytest.mark.gpu
ATEN = torch.ops.aten
MAPS = pathlib.Path(__file__).resolve().parents[1] / "golden" / "dropout_maps.py"
OPERATORS = {SDPBackend.FLASH_ATTENTION: "_scaled_dot_product_flash_attention_backward",
             SDPBackend.EFFICIENT_ATTENTION: "_scaled_dot_product_efficient_attention_backward",
             SDPBackend.CUDNN_ATTENTION: "_scaled_dot_product_cudnn_attention_backward"}
LIMITS = BOUNDS  # f32 too: its LSE is made anew, since PyTorch's is up to 9e-6 off
F16, BF16, F32 = torch.float16, torch.bfloat16, torch.float32


@pytest.fixture(autouse=True)
def clean():
    reset_stats()
    torch.manual_seed(20)
    yield
    disable()


def leaves(b, hq, sq, d, hk=None, sk=None, dtype=BF16):
    shapes = ((b, hq, sq, d), (b, hk or hq, sk or sq, d), (b, hk or hq, sk or sq, d))
    return [torch.randn(shape, device="cuda", dtype=dtype, requires_grad=True) for shape in shapes]


def sdpa_or_skip(*args, **options):
    """scaled_dot_product_attention where the chosen backend takes the problem, which is PyTorch's matter."""
    try:
        return F.scaled_dot_product_attention(*args, **options)
    except RuntimeError as error:
        if "No available kernel" not in str(error):
            raise
        pytest.skip(f"PyTorch's forward: {error}")


def compare(actual, expected, dtype):
    torch.cuda.synchronize()
    for a, b in zip(actual, expected):
        check(a, b, LIMITS[dtype])


def taken(operator):
    return stats().get(operator, {"taken": 0})["taken"]


@pytest.mark.parametrize("backend, dtype", [
    (SDPBackend.FLASH_ATTENTION, BF16), (SDPBackend.FLASH_ATTENTION, F16), (SDPBackend.EFFICIENT_ATTENTION, BF16),
    (SDPBackend.EFFICIENT_ATTENTION, F32), (SDPBackend.CUDNN_ATTENTION, BF16), (SDPBackend.CUDNN_ATTENTION, F16)],
    ids=lambda x: getattr(x, "name", str(x)))
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length, dim", [(128, 64), (77, 40)])
def test_sdpa(backend, dtype, causal, length, dim):
    q, k, v = leaves(2, 3, length, dim, dtype=dtype)
    dout = torch.randn_like(q)
    with sdpa_kernel(backend), enable(strict=True):
        grads = torch.autograd.grad(F.scaled_dot_product_attention(q, k, v, is_causal=causal), (q, k, v), dout)
    assert taken(OPERATORS[backend]) == 1
    hide = hidden(length, length, causal="top_left", device="cuda") if causal else None
    compare(grads, gradients(q, k, v, dout, hide=hide), dtype)


@pytest.mark.parametrize("backend", [SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION], ids=lambda x: x.name)
def test_grouped_heads(backend):
    q, k, v = leaves(2, 6, 93, 64, hk=2, sk=131)
    dout = torch.randn_like(q)
    with sdpa_kernel(backend), enable(strict=True):
        grads = torch.autograd.grad(sdpa_or_skip(q, k, v, enable_gqa=True), (q, k, v), dout)
    assert taken(OPERATORS[backend]) == 1
    compare(grads, gradients(q, k, v, dout), BF16)


@pytest.mark.parametrize("shape", [(2, 3, 77, 131), (1, 1, 77, 131), (2, 1, 1, 131), (77, 131)], ids=str)
@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_bias_and_its_gradient(shape, dtype):
    q, k, v = leaves(2, 3, 77, 32, sk=131, dtype=dtype)
    bias = torch.randn(shape, device="cuda", dtype=dtype, requires_grad=True)
    dout = torch.randn_like(q)
    with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION), enable(strict=True):
        grads = torch.autograd.grad(F.scaled_dot_product_attention(q, k, v, attn_mask=bias), (q, k, v, bias), dout)
    assert taken(OPERATORS[SDPBackend.EFFICIENT_ATTENTION]) == 1
    compare(grads, gradients(q, k, v, dout, bias=bias), dtype)


def test_bool_mask():
    q, k, v = leaves(2, 3, 77, 32, sk=131)
    mask = torch.rand(2, 1, 77, 131, device="cuda") > 0.3
    dout = torch.randn_like(q)
    with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION), enable(strict=True):
        grads = torch.autograd.grad(F.scaled_dot_product_attention(q, k, v, attn_mask=mask), (q, k, v), dout)
    compare(grads, gradients(q, k, v, dout, bias=mask), BF16)


def dropout_maps():
    if not MAPS.exists():
        pytest.skip("tests/golden is not there")
    spec = importlib.util.spec_from_file_location("dropout_maps", MAPS)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def seed_and_offset(first, second):
    """Of a pair in one tensor (PyTorch 2.7 and later), or of two numbers."""
    words = [int(x) & (2**64 - 1) for t in (first, second) if t is not None and t.numel()
             for x in t.cpu().view(torch.int64).reshape(-1).tolist()]
    return words[0], words[1]


def factor_of(kind, p, seed, offset, b, h, rows, keys):
    maps = dropout_maps()
    i, j = np.arange(rows), np.arange(keys)
    if kind == "flash":
        keep = [[maps.keep_flash2(p, seed, offset, x * h + y, i, j) for y in range(h)] for x in range(b)]
    else:
        keep = [[maps.keep_mem_eff(p, seed, offset, (x * h + y) * rows * keys, i, j, keys) for y in range(h)]
                for x in range(b)]
    return torch.from_numpy(np.array(keep)).cuda().double() / (1 - p)


def forward_with_dropout(kind, q, k, v, p):
    """O of PyTorch's operator, and the two tensors of its dropout state."""
    if kind == "flash":
        result = ATEN._scaled_dot_product_flash_attention(q, k, v, p, False)
        return result[0], result[6], result[7]
    result = ATEN._scaled_dot_product_efficient_attention(q, k, v, None, True, p, False)
    return result[0], result[2], result[3]


@pytest.mark.parametrize("kind", ["flash", "efficient"])
@pytest.mark.skipif(bool(torch.version.hip), reason="dropout falls back on ROCm")
def test_dropout(kind):
    p = 0.3
    q, k, v = leaves(2, 3, 77, 64, sk=131)
    dout = torch.randn_like(q)
    with enable(strict=True):
        out, *random = forward_with_dropout(kind, q, k, v, p)
        grads = torch.autograd.grad(out, (q, k, v), dout)
    factor = factor_of(kind, p, *seed_and_offset(*random), 2, 3, 77, 131)
    compare(grads, gradients(q, k, v, dout, factor=factor), BF16)


@pytest.mark.parametrize("kind", ["flash", "efficient"])
@pytest.mark.skipif(bool(torch.version.hip), reason="dropout falls back on ROCm")
def test_graph_with_dropout(kind):
    """A captured step draws new numbers at each replay, in forward and backward."""
    p = 0.3
    q, k, v = leaves(1, 2, 77, 64)
    dout = torch.randn_like(q)

    def step():
        out, *random = forward_with_dropout(kind, q, k, v, p)
        return torch.autograd.grad(out, (q, k, v), dout), random

    with enable(strict=True):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            grads, random = step()
    seen = set()
    for _ in range(2):
        graph.replay()
        torch.cuda.synchronize()
        words = seed_and_offset(*random)
        seen.add(words)
        compare(grads, gradients(q, k, v, dout, factor=factor_of(kind, p, *words, 1, 2, 77, 77)), BF16)
    assert len(seen) == 2


def test_cudnn_dropout_falls_back():
    q, k, v = leaves(2, 3, 77, 64)
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION), enable():
        out = F.scaled_dot_product_attention(q, k, v, dropout_p=0.2)
        grads = torch.autograd.grad(out, (q, k, v), torch.randn_like(q))
    counts = stats()[OPERATORS[SDPBackend.CUDNN_ATTENTION]]
    assert counts["taken"] == 0 and counts["fallback"] == 1 and "cuDNN" in next(iter(counts["reasons"]))
    assert all(torch.isfinite(grad).all() for grad in grads)


LENGTHS = [(7, 12), (90, 35), (1, 1), (64, 64)]
# O and LSE of PyTorch 2.11's memory-efficient forward are off by 2 and 4 under a bottom-right mask with more queries
# than keys, and the gradients of a wrong LSE are no one's.
WRONG_FORWARD = [(90, 35)]


def packed(hq, hk, d, dtype):
    rows, keys = (sum(pair[i] for pair in LENGTHS) for i in (0, 1))
    tensors = [torch.randn(n, h, d, device="cuda", dtype=dtype, requires_grad=True)
               for n, h in ((rows, hq), (keys, hk), (keys, hk))]
    starts = [torch.tensor(np.cumsum([0] + [pair[i] for pair in LENGTHS]), dtype=torch.int32, device="cuda")
              for i in (0, 1)]
    return tensors, starts


def compare_packed(tensors, grads, dout, starts, dtype, mask, left_out=()):
    torch.cuda.synchronize()
    at = [x.tolist() for x in starts]
    for number, (rows, keys) in enumerate(LENGTHS):
        if (rows, keys) in left_out:
            continue
        slices = [slice(*at[i][number:number + 2]) for i in (0, 1, 1)]
        one = [x.detach()[part].transpose(0, 1)[None] for x, part in zip(tensors, slices)]
        expected = gradients(*one, dout[slices[0]].transpose(0, 1)[None], hide=mask(rows, keys))
        for grad, part, reference in zip(grads, slices, expected):
            check(grad[part].transpose(0, 1)[None], reference, LIMITS[dtype])


@pytest.mark.parametrize("causal, left, right", [(False, None, None), (True, None, None), (False, 9, 5),
                                                 (True, 9, None)])
def test_flash_packed(causal, left, right):
    tensors, starts = packed(4, 2, 64, BF16)
    dout = torch.randn_like(tensors[0])
    with enable(strict=True):
        out = ATEN._flash_attention_forward(*tensors, *starts, 90, 64, 0.0, causal, False, window_size_left=left,
                                            window_size_right=right)[0]
        grads = torch.autograd.grad(out, tensors, dout)
    assert taken("_flash_attention_backward") == 1

    def mask(rows, keys):
        to_right = 0 if causal else right
        if left is None and to_right is None:
            return None
        return hidden(rows, keys, left=64 if left is None else left, right=64 if to_right is None else to_right,
                      device="cuda")

    compare_packed(tensors, grads, dout, starts, BF16, mask)


@pytest.mark.parametrize("rows, keys, causal", [(77, 131, True), (131, 77, True), (77, 131, False)])
def test_flash_dense(rows, keys, causal):
    q, k, v = (torch.randn(2, n, 3, 64, device="cuda", dtype=F16, requires_grad=True) for n in (rows, keys, keys))
    dout = torch.randn_like(q)
    with enable(strict=True):
        out = ATEN._flash_attention_forward(q, k, v, None, None, rows, keys, 0.0, causal, False)[0]
        grads = torch.autograd.grad(out, (q, k, v), dout)
    hide = hidden(rows, keys, causal="bottom_right", device="cuda") if causal else None
    expected = gradients(*(x.detach().transpose(1, 2) for x in (q, k, v, dout)), hide=hide)
    compare([x.transpose(1, 2) for x in grads], expected, F16)


@pytest.mark.parametrize("mask_type, causal", [(0, None), (1, "top_left"), (2, "bottom_right")])
@pytest.mark.parametrize("dtype", [BF16, F32], ids=str)
def test_efficient_packed(mask_type, causal, dtype):
    tensors, starts = packed(3, 3, 32, dtype)
    dout = torch.randn_like(tensors[0])
    with enable(strict=True):
        out = ATEN._efficient_attention_forward(*(x[None] for x in tensors), None, *starts, 90, 64, 0.0, mask_type,
                                                True)[0]
        grads = torch.autograd.grad(out, tensors, dout[None])
    assert taken("_efficient_attention_backward") == 1
    compare_packed(tensors, grads, dout, starts, dtype,
                   lambda rows, keys: hidden(rows, keys, causal=causal, device="cuda") if causal else None,
                   left_out=WRONG_FORWARD if causal == "bottom_right" else ())


@pytest.mark.parametrize("mask_type, causal, rows, keys", [
    (1, "top_left", 93, 93), (1, "top_left", 61, 131), (1, "top_left", 131, 61), (2, "bottom_right", 93, 93),
    (2, "bottom_right", 61, 131)])
@pytest.mark.skipif(bool(torch.version.hip), reason="ROCm's memory-efficient operator has no windows")
def test_efficient_window(mask_type, causal, rows, keys):
    """O of the forward tells which keys it saw; the gradients are those of this forward. PyTorch's derivative of the
    forward does not hand window_size on, so the operators are called one by one."""
    q, k, v = (torch.randn(2, n, 3, 64, device="cuda", dtype=BF16) for n in (rows, keys, keys))
    dout = torch.randn_like(q)
    out, lse, *random = ATEN._efficient_attention_forward(q, k, v, None, None, None, None, None, 0.0, mask_type, True,
                                                          window_size=7)[:4]
    with enable(strict=True):
        grads = ATEN._efficient_attention_backward(dout, q, k, v, None, out, None, None, rows, keys, lse, 0.0, *random,
                                                   mask_type, False, window_size=7)[:3]
    assert taken("_efficient_attention_backward") == 1
    hide = hidden(rows, keys, causal=causal, left=6, device="cuda")
    plain = [x.detach().transpose(1, 2) for x in (q, k, v, dout)]
    seen = ~hide.all(1)
    check(out.detach().transpose(1, 2)[:, :, seen], forward(*plain[:3], hide=hide)[0][:, :, seen], LIMITS[BF16])
    compare([x.transpose(1, 2) for x in grads], gradients(*plain, hide=hide), BF16)


def test_jagged_nested_tensors():
    lengths = [rows for rows, _ in LENGTHS]
    parts = [torch.randn(n, 3, 64, device="cuda", dtype=BF16) for n in lengths]
    leaf = torch.nested.nested_tensor(parts, layout=torch.jagged, device="cuda", dtype=BF16, requires_grad=True)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION), enable(only="attention", strict=True):
        x = leaf.transpose(1, 2)
        out = F.scaled_dot_product_attention(x, x, x).transpose(1, 2)
        grad, = torch.autograd.grad(out.values().float().square().sum(), leaf)
    assert taken("_flash_attention_backward") == 1
    for part, actual in zip(parts, grad.unbind()):
        y = part.double().requires_grad_()
        z = y.transpose(0, 1)
        p = torch.softmax(z @ z.transpose(-1, -2) / 8, -1)
        expected, = torch.autograd.grad((p @ z).square().sum(), y)
        check(actual, expected, 2 * LIMITS[BF16])  # the loss's own gradient is rounded to bf16 too


@pytest.mark.parametrize("backend", list(OPERATORS), ids=lambda x: x.name)
def test_deterministic(backend):
    q, k, v = leaves(2, 3, 517, 64)
    dout = torch.randn_like(q)
    torch.use_deterministic_algorithms(True, warn_only=backend == SDPBackend.CUDNN_ATTENTION)
    try:
        with sdpa_kernel(backend), enable(strict=True):
            out = sdpa_or_skip(q, k, v)
            runs = [torch.autograd.grad(out, (q, k, v), dout, retain_graph=True) for _ in range(5)]
    finally:
        torch.use_deterministic_algorithms(False)
    for run in runs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(run, runs[0]))


def test_side_stream():
    """The backward follows the current stream: its inputs are still being made when it is issued."""
    q, k, v = leaves(2, 4, 300, 64)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side), sdpa_kernel(SDPBackend.FLASH_ATTENTION), enable(strict=True):
        heavy = torch.randn(4096, 4096, device="cuda")
        for _ in range(20):
            heavy = heavy @ heavy / 64
        dout = torch.randn_like(q) + 0 * heavy.nan_to_num(0, 0, 0)[0, 0].to(BF16)
        grads = torch.autograd.grad(F.scaled_dot_product_attention(q, k, v), (q, k, v), dout)
    torch.cuda.current_stream().wait_stream(side)
    compare(grads, gradients(q, k, v, dout), BF16)


@pytest.mark.parametrize("compiler", ["aot_eager", "inductor"])
@pytest.mark.parametrize("backend", list(OPERATORS), ids=lambda x: x.name)
def test_compile(compiler, backend):
    torch._dynamo.reset()
    linear = torch.nn.Linear(64, 192, device="cuda", dtype=BF16)
    x = torch.randn(2, 77, 64, device="cuda", dtype=BF16)

    def loss(y):
        q, k, v = (z.unflatten(-1, (2, -1)).transpose(1, 2) for z in linear(y).chunk(3, -1))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).float().square().sum()

    # PyTorch's caches of compiled graphs do not see which backend sdpa_kernel() chose
    with sdpa_kernel(backend), torch._inductor.config.patch(force_disable_caches=True):
        theirs, = torch.autograd.grad(loss(x), linear.weight)
        with enable(strict=True):
            ours, = torch.autograd.grad(torch.compile(loss, backend=compiler, fullgraph=True)(x), linear.weight)
    assert taken(OPERATORS[backend]) == 1
    check(ours, theirs.double(), 2 * LIMITS[BF16])


def test_f64_is_left_to_the_math_backend():
    """CUDA has no f64 kernel here; PyTorch's fused forwards have none either, so the math backend serves."""
    q, k, v = leaves(1, 2, 9, 8, dtype=torch.float64)
    dout = torch.randn_like(q)
    with enable(strict=True):
        grads = torch.autograd.grad(F.scaled_dot_product_attention(q, k, v), (q, k, v), dout)
    compare(grads, gradients(q, k, v, dout), torch.float64)
    assert stats() == {}
