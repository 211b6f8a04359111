# SPDX-License-Identifier: MIT
"""sternway.flash_attn as a package: flash-attn's signatures, errors and their text, compiling, the helpers of
bert_padding, the functions below autograd, install()."""
from __future__ import annotations

import inspect
import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
native = pytest.importorskip("sternway._native")

import flash_attn_reference as reference  # noqa: E402

import sternway.flash_attn as flash_attn  # noqa: E402
from sternway.flash_attn import bert_padding, flash_attn_interface  # noqa: E402

F64 = torch.float64
COMMON = ("dropout_p=0.0 softmax_scale=None causal=False window_size=(-1, -1) softcap=0.0 alibi_slopes=None "
          "deterministic=False return_attn_probs=False").replace(", ", ",")
LENGTHS = "cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k"
SIGNATURES = {  # flash-attn 2.8's
    "flash_attn_func": f"q k v {COMMON}",
    "flash_attn_kvpacked_func": f"q kv {COMMON}",
    "flash_attn_qkvpacked_func": f"qkv {COMMON}",
    "flash_attn_varlen_func": f"q k v {LENGTHS} {COMMON} block_table=None",
    "flash_attn_varlen_kvpacked_func": f"q kv {LENGTHS} {COMMON}",
    "flash_attn_varlen_qkvpacked_func": f"qkv cu_seqlens max_seqlen {COMMON}",
    "flash_attn_with_kvcache": "q k_cache v_cache k=None v=None rotary_cos=None rotary_sin=None cache_seqlens=None "
                               "cache_batch_idx=None cache_leftpad=None block_table=None softmax_scale=None "
                               "causal=False window_size=(-1,-1) softcap=0.0 rotary_interleaved=True "
                               "alibi_slopes=None num_splits=0 return_softmax_lse=False",
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_signature(name):
    parameters = inspect.signature(getattr(flash_attn, name)).parameters.values()
    written = [p.name if p.default is p.empty else f"{p.name}={p.default!r}".replace(", ", ",") for p in parameters]
    assert written == SIGNATURES[name].split()
    assert getattr(flash_attn_interface, name) is getattr(flash_attn, name)


def qkv(dtype=torch.float32):
    torch.manual_seed(0)
    return [torch.randn(2, 11, 2, 6).to(dtype) for _ in range(3)]


def pack():
    return [torch.randn(11, 2, 6) for _ in range(3)], torch.tensor([0, 4, 11], dtype=torch.int32)


def test_errors_name_what_is_wrong():
    q, k, v = qkv()
    invalid = native.InvalidError
    calls = [
        (lambda: flash_attn.flash_attn_func(q, k.half(), v), r"k is torch\.float16, q is torch\.float32"),
        (lambda: flash_attn.flash_attn_func(q[0], k, v), r"q has 3 dimensions"),
        (lambda: flash_attn.flash_attn_func(q, k[..., :5], v), r"head_dim 6.* 5"),
        (lambda: flash_attn.flash_attn_func(q[:1], k, v), r"batch 1.* 2"),
        (lambda: flash_attn.flash_attn_func(q, k[:, :, :1].expand(2, 11, 3, 6), v.repeat(1, 1, 2, 1)[:, :, :3]),
         r"2 heads, not a multiple of the 3"),
        (lambda: flash_attn.flash_attn_func(q, k, v[:, :10]), r"differ in more than head_dim"),
        (lambda: flash_attn.flash_attn_func(q, k, v, 1.0), r"dropout_p is 1\.0"),
        (lambda: flash_attn.flash_attn_func(q, k, v, alibi_slopes=torch.ones(2, dtype=torch.float16)),
         r"alibi_slopes is torch\.float16"),
        (lambda: flash_attn.flash_attn_func(q, k, v, alibi_slopes=torch.ones(3)),
         r"alibi_slopes has shape \[3\], expected \[2\] or \[2, 2\]"),
        (lambda: flash_attn.flash_attn_func(q[0, 0, 0], k, v), r"q has 1 dimensions"),
        (lambda: flash_attn.flash_attn_qkvpacked_func(torch.randn(2, 11, 2, 2, 6)), r"size 2 in its dimension 2"),
        (lambda: flash_attn.flash_attn_kvpacked_func(q, torch.randn(2, 11, 3, 2, 6)), r"size 3 in its dimension 2"),
    ]
    for call, text in calls:
        with pytest.raises(invalid, match=text) as caught:
            call()
        assert caught.value.status == 1 and isinstance(caught.value, ValueError)


def test_errors_of_packs():
    (q, k, v), starts = pack()
    with pytest.raises(native.InvalidError, match=r"cu_seqlens_q is torch\.int64"):
        flash_attn.flash_attn_varlen_func(q, k, v, starts.long(), starts, 7, 7)
    with pytest.raises(native.InvalidError, match="cu_seqlens is None"):
        flash_attn.flash_attn_varlen_func(q, k, v, None, starts, 7, 7)
    with pytest.raises(native.InvalidError, match=r"cu_seqlens_q \[3\] and cu_seqlens_k \[2\] differ"):
        flash_attn.flash_attn_varlen_func(q, k, v, starts, starts[1:], 7, 7)
    with pytest.raises(native.InvalidError, match="cu_seqlens_q"):
        flash_attn.flash_attn_varlen_func(q, k, v, starts + 5, starts, 7, 7)
    with pytest.raises(native.UnsupportedError, match="block_table"):
        flash_attn.flash_attn_varlen_func(q, k, v, starts, starts, 7, 7, block_table=torch.zeros(2, 1))
    with pytest.raises(NotImplementedError, match="inference"):
        flash_attn.flash_attn_with_kvcache(q, k, v)


def test_a_gradient_that_is_not_there():
    q, k, v = qkv()
    slopes = torch.ones(2, requires_grad=True)
    with pytest.raises(native.UnsupportedError, match=r"alibi_slopes\.detach\(\)"):
        flash_attn.flash_attn_func(q, k, v, alibi_slopes=slopes)
    with torch.no_grad():
        flash_attn.flash_attn_func(q, k, v, alibi_slopes=slopes)
    q.requires_grad_()
    gradient, = torch.autograd.grad(flash_attn.flash_attn_func(q, k, v).sum(), q, create_graph=True)
    with pytest.raises(NotImplementedError, match="double backward"):
        gradient.square().sum().backward()


def test_another_device():
    q, k, v = qkv()
    with pytest.raises((native.InvalidError, native.UnsupportedError), match="k is on meta"):
        flash_attn._operators._attention(q, k.to("meta"), v, None, None, None, 11, 11, 0.0, None, False, -1, -1, 0.0,
                                         False, False)


def model(x, starts=None):
    """A loss through qkv projections; packed with `starts`."""
    if starts is None:
        out, lse, _ = flash_attn.flash_attn_qkvpacked_func(x, causal=True, return_attn_probs=True)
    else:
        out, lse, _ = flash_attn.flash_attn_varlen_qkvpacked_func(x, starts, 7, window_size=(3, 3),
                                                                  return_attn_probs=True)
    return out.square().sum() + lse.sin().sum()


@pytest.mark.parametrize("packed", [False, True], ids=["dense", "packed"])
def test_compiles_into_one_graph(packed):
    torch.manual_seed(1)
    torch._dynamo.reset()
    x = torch.randn(*(11,) if packed else (2, 11), 3, 2, 6, requires_grad=True)
    starts = torch.tensor([0, 4, 11], dtype=torch.int32) if packed else None
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    expected, = torch.autograd.grad(model(x, starts), x)
    got, = torch.autograd.grad(compiled(x, starts), x)
    assert torch.equal(got, expected)


def test_packs_of_other_sizes_share_one_graph():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend="aot_eager")
    for lengths in ((4, 7), (5, 7), (6, 3)):
        starts = torch.tensor([0, lengths[0], sum(lengths)], dtype=torch.int32)
        x = torch.randn(sum(lengths), 3, 2, 6, requires_grad=True)
        expected, = torch.autograd.grad(model(x, starts), x)
        assert torch.equal(torch.autograd.grad(compiled(x, starts), x)[0], expected)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_operators_keep_their_promises():
    """opcheck: schema, fake kernels, autograd and AOT dispatch of both operators."""
    torch.manual_seed(2)
    operators = torch.ops.sternway_flash
    attention, backward = operators.attention.default, operators.attention_backward.default
    starts = torch.tensor([0, 4, 11], dtype=torch.int32)
    settings = (11, 11, 0.0, None, True, -1, 3, 0.0, True)
    dense = [torch.randn(2, 11, 2, 6, requires_grad=True) for _ in range(3)]
    kv = [torch.randn(2, 11, 4, 6, requires_grad=True), torch.randn(2, 11, 2, 2, 6, requires_grad=True), None]
    packed = [torch.randn(11, 3, 2, 6, requires_grad=True), None, None]
    for tensors, cu in ((dense, None), (kv, None), (packed, starts)):
        torch.library.opcheck(attention, (*tensors, cu, cu, torch.rand(tensors[0].shape[-2]), *settings, False))
        tensors = [tensor if tensor is None else tensor.detach() for tensor in tensors]
        out, lse, _, state = attention(*tensors, cu, cu, None, *settings, False)
        wanted = sum(1 << bit for bit, tensor in enumerate(tensors) if tensor is not None)
        dout = torch.randn_like(out)
        torch.library.opcheck(backward, (dout, None, *tensors, out, lse, state, cu, cu, None, *settings, wanted))


class Seen(torch.utils._python_dispatch.TorchDispatchMode):
    """Notes the operators that pass."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(str(function))
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("dropout_p", [0.0, 0.3])
def test_operators_and_the_short_way_agree(dropout_p):
    """Under a dispatch mode the operators run, else an autograd.Function: the same bits."""
    def step():
        torch.manual_seed(5)
        q, kv = torch.randn(2, 11, 4, 6, requires_grad=True), torch.randn(2, 17, 2, 2, 6)
        slopes, lse_weight = torch.rand(4), torch.randn(2, 4, 11)
        out, lse, probs = flash_attn.flash_attn_kvpacked_func(q, kv, dropout_p, causal=True, alibi_slopes=slopes,
                                                              deterministic=True, return_attn_probs=True)
        loss = out.sin().sum() + (lse * lse_weight).sum()
        return out, lse, probs, *torch.autograd.grad(loss, q)
    with Seen() as seen:
        watched = step()
    assert [name for name in seen.names if "sternway_flash" in name] == [
        "sternway_flash.attention.default", "sternway_flash.attention_backward.default"]
    assert all(torch.equal(got, other) for got, other in zip(watched, step()))


def test_what_asks_for_determinism(monkeypatch):
    seen, run = [], native.attn_bwd
    monkeypatch.setattr(native, "attn_bwd", lambda *args, **keywords: (seen.append(keywords.get("deterministic")),
                                                                       run(*args, **keywords)))
    q = torch.randn(1, 9, 2, 6, requires_grad=True)
    for asked, everywhere in ((False, False), (True, False), (False, True)):
        torch.use_deterministic_algorithms(everywhere)
        try:
            flash_attn.flash_attn_func(q, q, q, deterministic=asked).sum().backward()
        finally:
            torch.use_deterministic_algorithms(False)
    assert seen[0] is not True and seen[1:] == [True, True]


def test_many_threads_at_once():
    from concurrent.futures import ThreadPoolExecutor

    def step(seed):
        x = torch.randn(40 + seed, 3, 2, 8, generator=torch.Generator().manual_seed(seed), requires_grad=True)
        starts = torch.tensor([0, 17, 40 + seed], dtype=torch.int32)
        out = flash_attn.flash_attn_varlen_qkvpacked_func(x, starts, 40, causal=True)
        return torch.autograd.grad(out.sin().sum(), x)[0]
    alone = [step(seed) for seed in range(12)]
    with ThreadPoolExecutor(6) as pool:
        for got, other in zip(pool.map(step, list(range(12)) * 4), alone * 4):
            assert torch.equal(got, other)


def test_padding_out_and_in():
    torch.manual_seed(3)
    states = torch.randn(3, 7, 2, 4, dtype=F64, requires_grad=True)
    mask = torch.tensor([[1] * 5 + [0] * 2, [0] * 7, [1, 0, 1, 1, 0, 0, 1]])
    for one in (mask, mask.bool()):
        tokens, indices, starts, longest, used = bert_padding.unpad_input(states, one)
        assert starts.tolist() == [0, 5, 5, 9] and starts.dtype == torch.int32 and longest == 5
        assert used.tolist() == [5, 0, 4] and indices.tolist() == [0, 1, 2, 3, 4, 14, 16, 17, 20]
        assert torch.equal(tokens, torch.stack([states[i // 7, i % 7] for i in indices.tolist()]))
        back = bert_padding.pad_input(tokens, indices, 3, 7)
        assert torch.equal(back, states * mask[..., None, None])
        weight = torch.randn_like(back)
        gradient, = torch.autograd.grad((back * weight).sum(), states)
        assert torch.equal(gradient, weight * mask[..., None, None])
    unused = torch.zeros_like(mask)
    unused[1, 2] = 1
    tokens, _, starts, longest, used = bert_padding.unpad_input(states, mask, unused)
    assert starts.tolist() == [0, 5, 6, 10] and used.tolist() == [5, 0, 4] and tokens.shape[0] == 10
    assert torch.autograd.gradcheck(lambda x: bert_padding.index_first_axis(x, torch.tensor([2, 0, 2])),
                                    torch.randn(3, 4, dtype=F64, requires_grad=True))


def test_padding_of_concatenated_sequences():
    states = torch.arange(18.0).reshape(3, 6, 1)
    lengths = torch.tensor([[2, 3, 0, 0, 0, 0], [3, 2, 0, 0, 0, 0], [6, 0, 0, 0, 0, 0]])
    tokens, indices, starts, longest = bert_padding.unpad_input_for_concatenated_sequences(states, lengths)
    assert starts.tolist() == [0, 2, 5, 8, 10, 16] and longest == 6
    assert indices.tolist() == [*range(5), *range(6, 11), *range(12, 18)]
    assert tokens.flatten().tolist() == [float(i) for i in indices.tolist()]


@pytest.mark.parametrize("packed", [False, True], ids=["dense", "packed"])
def test_functions_below_autograd(packed):
    torch.manual_seed(4)
    shape, shape_k, window = ((20, 4, 6), (29, 2, 6), (4, 4)) if packed else ((2, 13, 4, 6), (2, 19, 2, 6), (-1, 5))
    q, k, v = (torch.randn(*one, dtype=F64, requires_grad=True) for one in (shape, shape_k, shape_k))
    starts_q, starts_k = [0, 5, 5, 18, 20], [0, 7, 10, 10, 29]
    lengths = [torch.tensor(starts_q, dtype=torch.int32), torch.tensor(starts_k, dtype=torch.int32), 13, 19]
    data = [tensor.detach() for tensor in (q, k, v)]
    if packed:
        out, lse, probs, state = flash_attn_interface._flash_attn_varlen_forward(*data, *lengths, 0.25, 0.3, True,
                                                                                 *window, 0.0, None, True)
        kept = ~torch.signbit(probs)
        expected, _, _ = reference.packed(q, k, v, starts_q, starts_k, kept=kept, dropout_p=0.25, scale=0.3,
                                          causal=True, window=window, max_keys=19)
    else:
        out, lse, probs, state = flash_attn_interface._flash_attn_forward(*data, 0.25, 0.3, True, *window, 0.0, None,
                                                                          True)
        kept = ~torch.signbit(probs[:, :, :13, :19])
        expected, _, _ = reference.dense(q, k, v, kept=kept, dropout_p=0.25, scale=0.3, causal=True, window=window)
    torch.testing.assert_close(out, expected.detach(), rtol=1e-10, atol=1e-12)
    dout = torch.randn_like(out)
    dq, dkv = torch.empty_like(data[0]), torch.empty(*shape_k[:-2], 2, *shape_k[-2:], dtype=F64)
    arguments = (dout, *data, out, lse, dq, dkv.select(-3, 0), dkv.select(-3, 1))
    settings = (0.25, 0.3, True, *window, 0.0, None, False, state)
    if packed:
        delta = flash_attn_interface._flash_attn_varlen_backward(*arguments, *lengths, *settings)
    else:
        delta = flash_attn_interface._flash_attn_backward(*arguments, *settings)
    sums = (dout * out).sum(-1).transpose(-1, -2)
    torch.testing.assert_close(delta, sums, rtol=1e-10, atol=1e-12)
    for got, other in zip((dq, *dkv.unbind(-3)), torch.autograd.grad(expected, (q, k, v), dout)):
        torch.testing.assert_close(got, other, rtol=1e-9, atol=1e-12)


PROGRAM = """
import sternway.flash_attn
sternway.flash_attn.install()
sternway.flash_attn.install()
import flash_attn, flash_attn.bert_padding, importlib.util
from flash_attn.bert_padding import unpad_input
from flash_attn.flash_attn_interface import _flash_attn_forward, flash_attn_varlen_func
from flash_attn import flash_attn_func
assert flash_attn_func is sternway.flash_attn.flash_attn_func and importlib.util.find_spec("flash_attn") is not None
assert tuple(int(x) for x in flash_attn.__version__.split("+")[0].split(".")) >= (2, 8, 0)
import sys, types
sys.modules["flash_attn"] = types.ModuleType("flash_attn")
try:
    sternway.flash_attn.install()
except ImportError as error:
    assert "imported already" in str(error)
else:
    raise SystemExit("install() replaced a package in use")
"""


def test_install():
    paths = os.pathsep.join(path for path in sys.path if path)
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, env={**os.environ, "PYTHONPATH": paths}, timeout=120)
