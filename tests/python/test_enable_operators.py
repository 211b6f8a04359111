# SPDX-License-Identifier: MIT
"""The implementations of the GPU operators, called with CPU tensors: layouts, LSE forms, diagonals, windows, packed
sequences, biases, dropout state. Against float64; dropout against the maps of tests/golden/dropout_maps.py."""
from __future__ import annotations

import importlib.util
import math
import pathlib

import pytest

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")
native = pytest.importorskip("sternway._native")

from enable_reference import check, forward, gradients, hidden  # noqa: E402

from sternway.torch import _attention_arguments as arguments  # noqa: E402
from sternway.torch import attention_ops as ops  # noqa: E402
from sternway.torch._takeover import Fallback  # noqa: E402
from sternway.torch.enable import enable  # noqa: E402

MAPS = pathlib.Path(__file__).resolve().parents[1] / "golden" / "dropout_maps.py"
SEED, OFFSET = 0xFEDCBA9876543210, 0x1122334455667788


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(20)


def dropout_maps():
    if not MAPS.exists():
        pytest.skip("tests/golden is not there")
    spec = importlib.util.spec_from_file_location("dropout_maps", MAPS)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Problem:
    """Inputs [B,H,S,D], O and f32 LSE as a forward hands them on, and the float64 gradients."""

    def __init__(self, b=2, hq=3, sq=21, d=16, hk=None, sk=33, dtype=torch.float32, **options):
        self.q = torch.randn(b, hq, sq, d, dtype=dtype)
        self.k, self.v = (torch.randn(b, hk or hq, sk, d, dtype=dtype) for _ in range(2))
        self.dout = torch.randn_like(self.q)
        out, lse = forward(self.q, self.k, self.v, **options)
        self.out, self.lse = out.to(dtype), lse.float()
        self.expected = gradients(self.q, self.k, self.v, self.dout, **options)

    def bshd(self):
        return tuple(x.transpose(1, 2).contiguous() for x in (self.dout, self.q, self.k, self.v, self.out))

    def compare(self, result, swapped=False):
        for actual, reference in zip(result, self.expected):
            check(actual.transpose(1, 2) if swapped and actual.dim() == 4 else actual, reference)


def padded(lse, multiple=32):
    """The LSE with rows up to a multiple, which nobody may read: NaN."""
    rows = -(-lse.shape[-1] // multiple) * multiple
    return torch.nn.functional.pad(lse, (0, rows - lse.shape[-1]), value=float("nan"))


def state(dtype=torch.uint64):
    """FlashAttention's rng_state: seed and offset in one tensor."""
    return torch.from_numpy(np.array([SEED, OFFSET], dtype=np.uint64)).view(dtype)


def numbers():
    """Seed and offset as the int64 scalars of the memory-efficient operator."""
    return tuple(torch.from_numpy(np.array(x, dtype=np.uint64).view(np.int64)) for x in (SEED, OFFSET))


NONE = (None, None)


# _flash_attention_backward, _scaled_dot_product_flash_attention_backward

@pytest.mark.parametrize("rows, keys", [(33, 33), (21, 40), (40, 21), (1, 19)])
@pytest.mark.parametrize("causal", [False, True])
def test_flash(rows, keys, causal):
    hide = hidden(rows, keys, causal="bottom_right") if causal else None
    problem = Problem(hq=6, hk=2, sq=rows, sk=keys, hide=hide)
    result = ops.flash_attention_backward(*problem.bshd(), problem.lse, *NONE, rows, keys, 0.0, causal, *NONE)
    problem.compare(result, swapped=True)
    result = ops.sdpa_flash_backward(problem.dout, problem.q, problem.k, problem.v, problem.out, problem.lse, *NONE,
                                     rows, keys, 0.0, causal, *NONE)
    problem.compare(result)


def flash_hidden(rows, keys, causal, left, right):
    """docs/migration.md, Windows of FlashAttention, written out."""
    left = None if left is None or left < 0 or left >= keys else left
    right = None if right is None or right < 0 or right >= keys else right
    if causal:
        right = 0
    if left is None and right is None:
        return None
    return hidden(rows, keys, left=keys if left is None else left, right=keys if right is None else right)


@pytest.mark.parametrize("rows, keys", [(33, 33), (21, 40), (70, 21)])
@pytest.mark.parametrize("causal, left, right", [(False, 5, 3), (True, 4, None), (False, None, 2), (False, 7, -1),
                                                 (True, 7, 7), (False, 100, 100)])
def test_flash_windows(rows, keys, causal, left, right):
    problem = Problem(b=1, sq=rows, sk=keys, hide=flash_hidden(rows, keys, causal, left, right), scale=0.4)
    problem.compare(ops.flash_attention_backward(
        *problem.bshd(), problem.lse, *NONE, rows, keys, 0.0, causal, *NONE, scale=0.4, window_size_left=left,
        window_size_right=right), swapped=True)


def packed(problems):
    """Problems of one batch each as packed tensors: (dout, q, k, v, out) of [T,H,D], and the starts of q and k. A gap
    of NaN lies behind the last sequence."""
    tensors = [torch.cat([getattr(p, name)[0].transpose(0, 1) for p in problems])
               for name in ("dout", "q", "k", "v", "out")]
    tensors = [torch.cat([x, torch.full((3, *x.shape[1:]), float("nan"))]) for x in tensors]
    starts = [torch.tensor(np.cumsum([0] + [getattr(p, name).shape[2] for p in problems]), dtype=torch.int32)
              for name in ("q", "k")]
    return tensors, starts


def compare_packed(problems, result, starts):
    """Every sequence's gradients, and zeros in the gap."""
    for number, problem in enumerate(problems):
        for actual, reference, at in zip(result, problem.expected, (starts[0], starts[1], starts[1])):
            check(actual[at[number]:at[number + 1]].transpose(0, 1)[None], reference)
    for actual, at in zip(result, (starts[0], starts[1], starts[1])):
        assert not actual[at[-1]:].any()


LENGTHS = [(7, 12), (20, 5), (1, 1), (13, 13)]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("rows_of_lse", ["packed", "local", "local padded"])
@pytest.mark.parametrize("index", [torch.int32, torch.int64], ids=str)
def test_flash_packed(causal, rows_of_lse, index):
    problems = [Problem(b=1, hq=4, hk=2, sq=rows, sk=keys,
                        hide=hidden(rows, keys, causal="bottom_right") if causal else None) for rows, keys in LENGTHS]
    tensors, starts = packed(problems)
    if rows_of_lse == "packed":
        lse = torch.cat([p.lse[0] for p in problems] + [torch.full((4, 3), float("nan"))], 1)
    else:
        rows = 20 if rows_of_lse == "local" else 128
        lse = torch.full((len(problems), 4, rows), float("nan"))
        for number, problem in enumerate(problems):
            lse[number, :, :problem.lse.shape[2]] = problem.lse[0]
    result = ops.flash_attention_backward(*tensors, lse, *(x.to(index) for x in starts), 20, 13, 0.0, causal, *NONE)
    compare_packed(problems, result, starts)


@pytest.mark.parametrize("causal, left, right", [(False, 5, 3), (True, 4, None), (False, None, 2)])
def test_flash_packed_windows(causal, left, right):
    """What is absent beside a bound becomes max_k, the longest sequence's, in every sequence."""
    to_right = 0 if causal else 20 if right is None else right
    problems = [Problem(b=1, sq=rows, sk=keys, hide=hidden(rows, keys, left=20 if left is None else left,
                                                           right=to_right)) for rows, keys in [*LENGTHS, (60, 20)]]
    tensors, starts = packed(problems)
    lse = torch.cat([p.lse[0] for p in problems] + [torch.full((3, 3), float("nan"))], 1)
    result = ops.flash_attention_backward(*tensors, lse, *starts, 60, 20, 0.0, causal, *NONE, window_size_left=left,
                                          window_size_right=right)
    compare_packed(problems, result, starts)


@pytest.mark.parametrize("form", ["uint64 pair", "int64 pair", "two numbers"])
def test_flash_dropout(form):
    maps, p = dropout_maps(), 0.3
    b, h, rows, keys = 2, 3, 21, 33
    keep = np.stack([[maps.keep_flash2(p, SEED, OFFSET, i * h + j, np.arange(rows), np.arange(keys))
                      for j in range(h)] for i in range(b)])
    problem = Problem(b, h, rows, sk=keys, factor=torch.from_numpy(keep).double() / (1 - p))
    random = {"uint64 pair": (state(), None), "int64 pair": (state(torch.int64), torch.empty(0)),
              "two numbers": numbers()}[form]
    problem.compare(ops.flash_attention_backward(*problem.bshd(), problem.lse, *NONE, rows, keys, p, False, *random),
                    swapped=True)
    problem.compare(ops.sdpa_flash_backward(problem.dout, problem.q, problem.k, problem.v, problem.out, problem.lse,
                                            *NONE, rows, keys, p, False, *random))


# _efficient_attention_backward, _scaled_dot_product_efficient_attention_backward

def efficient(problem, mask_type=0, bias=None, wants_bias=False, p=0.0, random=NONE, **options):
    rows, keys = problem.q.shape[2], problem.k.shape[2]
    return ops.efficient_attention_backward(
        *problem.bshd()[:4], bias, problem.bshd()[4], *NONE, rows, keys, padded(problem.lse), p, *random, mask_type,
        wants_bias, **options)


@pytest.mark.parametrize("rows, keys", [(33, 33), (21, 40), (40, 21)])
@pytest.mark.parametrize("mask_type, causal", [(0, None), (1, "top_left"), (2, "bottom_right")])
def test_efficient(rows, keys, mask_type, causal):
    hide = hidden(rows, keys, causal=causal) if causal else None
    problem = Problem(sq=rows, sk=keys, hide=hide, scale=0.2)
    result = efficient(problem, mask_type, scale=0.2, num_splits_key=2)
    assert result[3] is None and all(x.is_contiguous() for x in result[:3])
    problem.compare(result[:3], swapped=True)


@pytest.mark.parametrize("rows, keys", [(33, 33), (21, 40), (40, 21)])
@pytest.mark.parametrize("mask_type, causal", [(1, "top_left"), (2, "bottom_right")])
def test_efficient_window(mask_type, causal, rows, keys):
    hide = hidden(rows, keys, causal=causal, left=6)  # hides j <= i + shift - 7
    problem = Problem(sq=rows, sk=keys, hide=hide)
    problem.compare(efficient(problem, mask_type, window_size=7)[:3], swapped=True)


def test_efficient_window_without_a_mask_falls_back():
    with pytest.raises(Fallback, match="window"):
        efficient(Problem(), window_size=7)


def test_efficient_shared_storage():
    problem = Problem(sq=21, sk=21)
    result = efficient(problem, shared_storage_dqdkdv=True)
    assert len({x.untyped_storage().data_ptr() for x in result[:3]}) == 1
    assert [x.storage_offset() for x in result[:3]] == [0, 3 * 16, 2 * 3 * 16]
    problem.compare(result[:3], swapped=True)


@pytest.mark.parametrize("shape", [(2, 3, 21, 33), (1, 1, 21, 33), (2, 1, 1, 33), (1, 3, 21, 1)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_efficient_bias(shape, dtype):
    """An expanded bias gets the gradient of its expanded sizes."""
    bias = torch.randn(shape, dtype=dtype).expand(2, 3, 21, 33)
    problem = Problem(bias=bias, dtype=dtype)
    result = efficient(problem, bias=bias, wants_bias=True)
    assert result[3].dtype == dtype and result[3].stride()[-2:] == (48, 1)
    problem.compare(result[:3], swapped=True)
    check(result[3], problem.expected[3])
    result = ops.sdpa_efficient_backward(problem.dout, problem.q, problem.k, problem.v, bias, problem.out,
                                         padded(problem.lse), *NONE, 0.0, [True] * 4)
    problem.compare(result)
    without = ops.sdpa_efficient_backward(problem.dout, problem.q, problem.k, problem.v, bias, problem.out,
                                          padded(problem.lse), *NONE, 0.0, [True, True, True, False])
    assert without[3] is None
    assert all(torch.equal(a, b) for a, b in zip(without[:3], result[:3]))


@pytest.mark.parametrize("wanted", [(1, 0, 0, 0), (0, 1, 1, 0), (0, 0, 0, 1), (0, 0, 0, 0)], ids=str)
def test_efficient_subset(wanted):
    bias = torch.randn(2, 3, 21, 33)
    problem = Problem(bias=bias)
    result = ops.sdpa_efficient_backward(problem.dout, problem.q, problem.k, problem.v, bias, problem.out,
                                         padded(problem.lse), *NONE, 0.0, [bool(x) for x in wanted])
    for want, actual, reference in zip(wanted, result, problem.expected):
        assert (actual is not None) == bool(want)
        if want:
            check(actual, reference)


def test_sdpa_efficient_causal():
    problem = Problem(hide=hidden(21, 33, causal="top_left"), scale=0.3)
    result = ops.sdpa_efficient_backward(problem.dout, problem.q, problem.k, problem.v, None, problem.out,
                                         padded(problem.lse), *NONE, 0.0, [True, True, True, False], True, scale=0.3)
    assert result[0].transpose(1, 2).is_contiguous()
    problem.compare(result[:3])


@pytest.mark.parametrize("mask_type, causal", [(0, None), (1, "top_left"), (2, "bottom_right")])
def test_efficient_packed(mask_type, causal):
    problems = [Problem(b=1, sq=rows, sk=keys, hide=hidden(rows, keys, causal=causal) if causal else None)
                for rows, keys in LENGTHS]
    tensors, starts = packed(problems)
    lse = torch.full((len(problems), 3, 32), float("nan"))
    for number, problem in enumerate(problems):
        lse[number, :, :problem.lse.shape[2]] = problem.lse[0]
    dout, q, k, v, out = (x[None] for x in tensors)
    result = ops.efficient_attention_backward(dout, q, k, v, None, out, *starts, 20, 13, lse, 0.0, *NONE, mask_type,
                                              False)
    assert result[3] is None
    compare_packed(problems, [x[0] for x in result[:3]], starts)


def test_efficient_dropout():
    maps, p = dropout_maps(), 0.3
    b, h, rows, keys = 2, 3, 21, 33
    keep = np.stack([[maps.keep_mem_eff(p, SEED, OFFSET, (i * h + j) * rows * keys, np.arange(rows), np.arange(keys),
                                        keys) for j in range(h)] for i in range(b)])
    problem = Problem(b, h, rows, sk=keys, factor=torch.from_numpy(keep).double() / (1 - p))
    problem.compare(efficient(problem, p=p, random=numbers())[:3], swapped=True)
    problem.compare(ops.sdpa_efficient_backward(problem.dout, problem.q, problem.k, problem.v, None, problem.out,
                                                padded(problem.lse), *numbers(), p, [True, True, True, False])[:3])


# _cudnn_attention_backward, _scaled_dot_product_cudnn_attention_backward

@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("last", [(), (1,)], ids=["LSE [B,H,S]", "LSE [B,H,S,1]"])
def test_cudnn(causal, last):
    problem = Problem(hq=6, hk=2, hide=hidden(21, 33, causal="top_left") if causal else None, scale=0.3)
    problem.compare(ops.cudnn_attention_backward(
        problem.dout, problem.q, problem.k, problem.v, problem.out, problem.lse.view(*problem.lse.shape, *last), *NONE,
        None, *NONE, 21, 33, 0.0, causal, scale=0.3))


@pytest.mark.parametrize("shape", [(21, 33), (1, 21, 33), (2, 3, 21, 33), (2, 1, 21, 33)], ids=str)
def test_cudnn_bias(shape):
    bias = torch.randn(shape)
    problem = Problem(bias=bias)
    problem.compare(ops.cudnn_attention_backward(problem.dout, problem.q, problem.k, problem.v, problem.out,
                                                 problem.lse, *NONE, bias, *NONE, 21, 33, 0.0, False))


@pytest.mark.parametrize("causal", [False, True])
def test_cudnn_packed(causal):
    problems = [Problem(b=1, hq=4, hk=2, sq=rows, sk=keys, hide=hidden(rows, keys, causal="top_left") if causal else
                        None) for rows, keys in LENGTHS]
    tensors, starts = packed(problems)
    lse = torch.cat([p.lse[0] for p in problems] + [torch.full((4, 3), float("nan"))], 1).t().contiguous()[..., None]
    result = ops.cudnn_attention_backward(*tensors, lse, *NONE, None, *starts, 20, 13, 0.0, causal)
    compare_packed(problems, result, starts)


# _scaled_dot_product_fused_attention_overrideable_backward, through the dispatcher, since the CPU has no other of it

@pytest.mark.parametrize("wanted", [(True, True, True, True), (True, False, True, False)], ids=str)
def test_overrideable(wanted):
    bias = torch.randn(2, 3, 21, 33)
    problem = Problem(bias=bias)
    empty = torch.empty(0)
    with enable(strict=True):
        result = torch.ops.aten._scaled_dot_product_fused_attention_overrideable_backward(
            problem.dout, problem.q, problem.k, problem.v, bias, wanted, problem.out, problem.lse, None, None, 21, 33,
            0.0, False, empty, empty)
    for want, actual, reference in zip(wanted, result, problem.expected):
        assert (actual is not None) == want
        if want:
            check(actual, reference)


# f32 on GPUs, where the LSE of PyTorch's forward is not good enough

def test_forward_anew(monkeypatch):
    """O and LSE of the call are not read where the library's own forward replaces them."""
    monkeypatch.setattr(arguments, "_inexact_lse", lambda q: True)
    maps, p = dropout_maps(), 0.3
    keep = np.stack([[maps.keep_mem_eff(p, SEED, OFFSET, (i * 3 + j) * 21 * 33, np.arange(21), np.arange(33), 33)
                      for j in range(3)] for i in range(2)])
    bias = torch.randn(2, 3, 21, 33)
    problem = Problem(bias=bias, hide=hidden(21, 33, causal="top_left"), scale=0.3,
                      factor=torch.from_numpy(keep).double() / (1 - p))
    nothing, lse = torch.full_like(problem.out, float("nan")), padded(torch.full_like(problem.lse, float("nan")))
    problem.compare(ops.sdpa_efficient_backward(problem.dout, problem.q, problem.k, problem.v, bias, nothing, lse,
                                                *numbers(), p, [True] * 4, True, scale=0.3))
    result = ops.efficient_attention_backward(*problem.bshd()[:4], bias, nothing.transpose(1, 2), *NONE, 21, 33, lse, p,
                                              *numbers(), 1, True, scale=0.3)
    problem.compare(result[:3], swapped=True)
    check(result[3], problem.expected[3])


def test_forward_anew_packed(monkeypatch):
    monkeypatch.setattr(arguments, "_inexact_lse", lambda q: True)
    problems = [Problem(b=1, sq=rows, sk=keys, hide=hidden(rows, keys, causal="bottom_right"))
                for rows, keys in LENGTHS]
    tensors, starts = packed(problems)
    dout, q, k, v, out = (x[None] for x in tensors)
    lse = torch.full((len(problems), 3, 32), float("nan"))
    result = ops.efficient_attention_backward(dout, q, k, v, None, out * float("nan"), *starts, 20, 13, lse, 0.0, *NONE,
                                              2, False)
    compare_packed(problems, [x[0] for x in result[:3]], starts)


# What is refused, and why

@pytest.mark.parametrize("call", [
    lambda x: ops.cudnn_attention_backward(x, x, x, x, x, x[..., 0], *NONE, None, *NONE, 5, 5, 0.1, False),
    lambda x: ops.overrideable_backward(x, x, x, x, None, [True] * 4, x, x[..., 0], *NONE, 5, 5, 0.1, False, *NONE),
    lambda x: ops.sdpa_cpu_backward(x, x, x, x, x, x[..., 0], 0.1, False),
    lambda x: ops.sdpa_flash_backward(x, x, x, x, x, x[..., 0], *NONE, 5, 5, 1.0, False, state(), None),
    lambda x: ops.sdpa_flash_backward(x, x, x, x, x, x[..., 0], *NONE, 5, 5, 0.1, False, *NONE),
], ids=["cudnn", "overrideable", "cpu", "flash p=1", "flash without a seed"])
def test_dropout_that_cannot_be_followed(call):
    with pytest.raises(Fallback, match="dropout"):
        call(torch.randn(1, 2, 5, 8))


def test_bias_of_another_type():
    x = torch.randn(1, 2, 5, 8)
    with pytest.raises(Fallback, match="torch.bfloat16"):
        ops.sdpa_cpu_backward(x, x, x, x, x, x[..., 0], 0.0, False, attn_mask=torch.zeros(5, 5, dtype=torch.bfloat16))


@pytest.mark.parametrize("base", [math.e, 2])
def test_rocm(monkeypatch, base):
    """What ROCm's kernels read in another way falls back; the rest is the same, but for the base of an older LSE."""
    monkeypatch.setattr(torch.version, "hip", "6.4")
    monkeypatch.setattr(arguments, "_has_binary_lse", lambda device, flash: base == 2)
    problem = Problem(sq=21, sk=21, hide=hidden(21, 21, causal="top_left"))
    lse = problem.lse / math.log(base)
    dense = (problem.dout, problem.q, problem.k, problem.v, problem.out, lse, *NONE, 21, 21)
    problem.compare(ops.sdpa_flash_backward(*dense, 0.0, True, *NONE))
    problem.compare(ops.flash_attention_backward(*problem.bshd(), lse, *NONE, 21, 21, 0.0, True, *NONE), swapped=True)
    problem.compare(ops.sdpa_efficient_backward(*dense[:4], None, problem.out, lse, *NONE,
                                                0.0, [True] * 3 + [False], True)[:3])
    problem.compare(ops.efficient_attention_backward(
        *problem.bshd()[:4], None, problem.bshd()[4], *NONE, 21, 21, lse, 0.0, *NONE, 1, False)[:3], swapped=True)
    with pytest.raises(Fallback, match="ROCm"):
        ops.sdpa_flash_backward(*dense, 0.1, True, state(), None)
    x, y = torch.randn(1, 2, 5, 8), torch.randn(1, 2, 7, 8)
    with pytest.raises(Fallback, match="unequal"):
        ops.sdpa_flash_backward(x, x, y, y, x, x[..., 0], *NONE, 5, 7, 0.0, True, *NONE)


@pytest.mark.parametrize("function", [ops.sdpa_flash_backward, ops.cudnn_attention_backward,
                                      ops.sdpa_efficient_backward, ops.overrideable_backward, ops.sdpa_cpu_backward])
def test_undefined_gradient(function):
    x = torch.randn(1, 2, 5, 8)
    count = {ops.sdpa_flash_backward: 13, ops.cudnn_attention_backward: 14, ops.sdpa_efficient_backward: 10,
             ops.overrideable_backward: 15, ops.sdpa_cpu_backward: 7}[function]
    result = function(None, x, x, x, *[None] * (count - 3))
    assert set(result) == {None}


def test_gradient_of_no_bias_is_left_to_pytorch_s_error():
    q = torch.randn(1, 3, 2, 8)
    with pytest.raises(Fallback, match="a bias that is not given"):
        ops.efficient_attention_backward(q, q, q, q, None, q, None, None, 3, 3, torch.zeros(1, 2, 32), 0.0, None,
                                         None, 0, True)
    with pytest.raises(Fallback, match="a bias that is not given"):
        ops.sdpa_efficient_backward(q, q, q, q, None, q, torch.zeros(1, 3, 32), None, None, 0.0, [True] * 4)
