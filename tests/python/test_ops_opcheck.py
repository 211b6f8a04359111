# SPDX-License-Identifier: MIT
"""torch.library.opcheck, all its tests, for every operator of torch.ops.sternway."""
from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import sternway.torch  # noqa: E402,F401
from sternway import _native  # noqa: E402

ops = torch.ops.sternway
CAUSAL = int(_native.MASK_CAUSAL_TOP_LEFT)


def rand(*sizes, seed=0, requires_grad=False, dtype=torch.float32):
    g = torch.Generator().manual_seed(seed + len(sizes))
    return torch.randn(*sizes, generator=g).to(dtype).requires_grad_(requires_grad)


def qkv(grad, dtype=torch.float32):
    return tuple(rand(*shape, seed=at, requires_grad=grad, dtype=dtype)
                 for at, shape in enumerate(((2, 4, 7, 8), (2, 2, 9, 8), (2, 2, 9, 8))))


def packed(grad):
    starts = torch.tensor([0, 3, 3, 10], dtype=torch.int32)
    return ([rand(10, 2, 8, seed=at, requires_grad=grad) for at in range(3)], starts)


def attention_cases():
    for grad in (False, True):
        yield "fwd", ops.attn_fwd, qkv(grad), {}
        yield "fwd_bf16", ops.attn_fwd, qkv(grad, torch.bfloat16), {"mask": CAUSAL, "window_left": 3, "scale": 0.2}
        q, k, v = qkv(grad)
        strided = (q.transpose(1, 2).contiguous().transpose(1, 2), k.mT.contiguous().mT, v)
        yield "fwd_strides", ops.attn_fwd, tuple(t.detach().requires_grad_(grad) for t in strided), {"softcap": 2.0}
        sink = rand(4, requires_grad=grad)
        yield "fwd_bias_sink", ops.attn_fwd, (q, k, v, rand(1, 4, 1, 9, requires_grad=grad), None, sink), {}
        yield "fwd_dropout", ops.attn_fwd, (q, k, v, *[None] * 7, torch.tensor([3]), torch.tensor([0])), {
            "dropout_p": 0.3}
        (pq, pk, pv), starts = packed(grad)
        yield "fwd_packed", ops.attn_fwd, (pq, pk, pv, None, None, None, starts, starts), {
            "layout": "thd", "max_seq_q": 7, "max_seq_kv": 7, "mask": CAUSAL}
        yield "fwd_bshd", ops.attn_fwd, tuple(t.detach().transpose(1, 2).requires_grad_(grad) for t in (q, k, v)), {
            "layout": "bshd"}
    q, k, v = qkv(False)
    out, lse = ops.attn_fwd(q, k, v)
    yield "bwd", ops.attn_bwd, (rand(2, 4, 7, 8, seed=5), q, k, v, out, lse), {}
    yield "bwd_dlse", ops.attn_bwd, (rand(2, 4, 7, 8, seed=5), q, k, v, out, lse, rand(2, 4, 7)), {"outputs": 5}
    bias = rand(1, 4, 7, 1)
    out, lse = ops.attn_fwd(q, k, v, bias)
    yield "bwd_bias", ops.attn_bwd, (rand(2, 4, 7, 8, seed=5), q, k, v, out, lse, None, bias), {"outputs": 15}
    (q, k, v), starts = packed(False)
    sizes = {"layout": "thd", "max_seq_q": 7, "max_seq_kv": 7}
    out, lse = ops.attn_fwd(q, k, v, None, None, None, starts, starts, **sizes)
    yield "bwd_packed", ops.attn_bwd, (rand(10, 2, 8, seed=5), q, k, v, out, lse, None, None, None, None, starts,
                                       starts), sizes
    yield "mask", ops.dropout_mask, (*qkv(False)[:2], *[None] * 4, torch.tensor([3]), torch.tensor([0])), {
        "dropout_p": 0.3}
    yield "nested_attention", ops.nested_attention_backward, (rand(10, 2, 8, seed=5), q, k, v, out, lse, starts,
                                                              starts), {"max_seq_q": 7, "max_seq_kv": 7}


def nested_cases():
    offsets, used = torch.tensor([0, 3, 3, 10]), torch.tensor([2, 0, 7])
    x, y = rand(10, 6), rand(10, 6, seed=1)
    for name in ("gelu", "silu", "threshold"):
        yield name, getattr(ops, f"nested_{name}_backward"), (y, x, offsets), {"full": True}
        yield name + "_used", getattr(ops, f"nested_{name}_backward"), (y, x, offsets, used), {"max_length": 7}
    yield "gelu_tanh", ops.nested_gelu_backward, (y, x, offsets), {"approximate": "tanh"}
    yield "softmax", ops.nested_softmax_backward, (y, x.softmax(-1), offsets), {"dim": 2}
    yield "softmax_ragged", ops.nested_softmax_backward, (y, x.softmax(-1), offsets), {"dim": 1}
    yield "log_softmax", ops.nested_log_softmax_backward, (y, x.log_softmax(-1), offsets), {"dim": 2}
    yield "log_softmax_ragged", ops.nested_log_softmax_backward, (y, x.log_softmax(-1), offsets), {"dim": 1}
    yield "sum", ops.nested_sum_backward, (rand(3, 6), [10, 6], offsets), {"dim": 1}
    yield "sum_inner", ops.nested_sum_backward, (rand(10), [10, 6], offsets), {"dim": 2}
    yield "select", ops.nested_select_backward, (rand(10), [10, 6], offsets), {"dim": -1, "index": -2}
    yield "select_component", ops.nested_select_backward, (rand(7, 6), [10, 6], offsets), {"dim": 0, "index": 2}
    yield "layer_norm", ops.nested_layer_norm_backward, (y, x, rand(10), rand(10).exp(), rand(6), offsets), {
        "normalized_size": 6}
    yield "layer_norm_dx", ops.nested_layer_norm_backward, (y, x, rand(10), rand(10).exp(), None, offsets), {
        "normalized_size": 6, "outputs": 1}
    yield "layer_norm_ragged", ops.nested_layer_norm_backward, (y, x, rand(3), rand(3).exp(), None, offsets), {
        "outputs": 1}
    yield "rms_norm", ops.nested_rms_norm_backward, (y, x, rand(10).exp(), rand(6), offsets), {"normalized_size": 6}
    yield "rms_norm_ragged", ops.nested_rms_norm_backward, (y, x, rand(3).exp(), None, offsets, used), {
        "outputs": 1, "max_length": 7}
    yield "linear", ops.nested_linear_backward, (rand(10, 5), x, rand(5, 6, seed=3), offsets), {"outputs": 13}
    yield "linear_full", ops.nested_linear_backward, (rand(10, 5), x, rand(5, 6, seed=3), offsets), {"full": True}
    yield "reshape", ops.nested_reshape_backward, (rand(10, 2, 3), offsets), {
        "shape": [-1, 6], "grad_shape": [-1, 2, 3]}
    yield "to_padded", ops.nested_to_padded_backward, (rand(3, 8, 6), offsets), {"total": 10}
    yield "from_padded", ops.nested_from_padded_backward, (x, offsets), {"padded": 8}
    nothing = [None] * 3
    yield "matmul_m", ops.nested_matmul_backward, (rand(10, 5), x, rand(3, 6, 5, seed=3), [offsets, None, None],
                                                   nothing), {"sizes": [7, 6, 5], "totals": [10, 0, 0], "components": 3}


CASES = {}
for _make in (attention_cases, nested_cases):
    for _name, *_case in _make():
        differentiable = any(isinstance(a, torch.Tensor) and a.requires_grad for a in _case[1])
        CASES[_name + "_grad" * differentiable] = _case


@pytest.mark.parametrize("name", list(CASES))
def test_opcheck(name):
    operator, args, keywords = CASES[name]
    torch.library.opcheck(operator.default, args, keywords)


def test_every_operator_is_checked():
    names = {name.split("::")[1].split(".")[0] for name in torch._C._dispatch_get_all_op_names()
             if name.startswith("sternway::")}
    checked = {case[0].default._schema.name.split("::")[1] for case in CASES.values()}
    assert names - checked == {"flash_fwd"}  # runs on GPUs alone
