# SPDX-License-Identifier: MIT
"""Each nested backward of the drop-in, both layouts, against float64."""
from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sternway._native")

from nested_support import SIZES, check, close, components, cotangent, drop_in, nest, scale_of  # noqa: E402

import torch.utils.checkpoint  # noqa: E402

F = torch.nn.functional
TYPES = [torch.float32, torch.bfloat16, torch.float16]
both = pytest.mark.parametrize("layout", ["strided", "jagged"])
types = pytest.mark.parametrize("dtype", TYPES, ids=lambda t: str(t)[6:])

POINTWISE = {
    "gelu": (F.gelu, "gelu_backward"),
    "gelu_tanh": (lambda x: F.gelu(x, approximate="tanh"), "gelu_backward"),
    "silu": (F.silu, "silu_backward"),
    "relu": (F.relu, "threshold_backward"),
}


@both
@types
@pytest.mark.parametrize("name", POINTWISE)
def test_pointwise(name, dtype, layout):
    function, operator = POINTWISE[name]
    parts = components(SIZES, dtype)
    check(function, function, [nest(parts, layout)], [parts], operator)


@both
@types
@pytest.mark.parametrize("bias", [True, False])
def test_linear(layout, dtype, bias):
    parts = components(SIZES, dtype)
    parameters = [t.requires_grad_() for t in components([(5, 7), (5,)] if bias else [(5, 7)], dtype, 3)]
    check(F.linear, F.linear, [nest(parts, layout)], [parts], "linear_backward", parameters)


@pytest.mark.parametrize("frozen", ["input", "weight", "bias"])
@both
def test_linear_gives_what_is_asked(layout, frozen):
    parts = components(SIZES)
    x = nest(parts, layout)
    weight, bias = (t.requires_grad_() for t in components([(5, 7), (5,)], seed=3))
    {"input": x, "weight": weight, "bias": bias}[frozen].requires_grad_(False)
    result = F.linear(x, weight, bias)
    grad = cotangent(result)
    wanted = [t for t in (x, weight, bias) if t.requires_grad]
    theirs = torch.autograd.grad(result, wanted, grad, retain_graph=True)
    with drop_in.enable(only="nested", strict=True):
        ours = torch.autograd.grad(result, wanted, grad)
    for a, b in zip(ours, theirs, strict=True):
        for p, q in zip(a.unbind(), b.unbind(), strict=True):
            torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-5)


@both
@types
@pytest.mark.parametrize("dim", [1, -1])
def test_softmax(layout, dtype, dim):
    parts = components(SIZES, dtype)
    check(lambda x: F.softmax(x, dim), lambda x: F.softmax(x, dim - 1 if dim > 0 else dim), [nest(parts, layout)],
          [parts], "_softmax_backward_data")


@types
@pytest.mark.parametrize("dim", [2, -1])
def test_log_softmax(dtype, dim):
    """Of the jagged layout alone, along constant dimensions: PyTorch has no other forward, and no backward."""
    parts = components(SIZES, dtype)
    check(lambda x: F.log_softmax(x, dim), lambda x: F.log_softmax(x, -1), [nest(parts, "jagged")], [parts],
          "_log_softmax_backward_data")


@both
@pytest.mark.parametrize("dim", [1, 2, 3])
@pytest.mark.parametrize("ragged", [0, 1, 2])
def test_softmax_of_more_dimensions(layout, dim, ragged):
    if layout == "jagged" and dim == ragged + 1 and ragged:
        pytest.skip("PyTorch has no such forward")
    shapes = [[3, 2, 5] for _ in range(3)]
    for length, shape in zip((4, 0, 9), shapes):
        shape[ragged] = length
    parts = components(shapes)
    check(lambda x: F.softmax(x, dim), lambda x: F.softmax(x, dim - 1), [nest(parts, layout)], [parts],
          "_softmax_backward_data")


def test_softmax_of_scores():
    """Two ragged dimensions, as scores of attention have."""
    parts = components([(2, 3, 4), (2, 1, 5), (2, 0, 2), (2, 6, 1)])
    check(lambda x: F.softmax(x, -1), lambda x: F.softmax(x, -1), [nest(parts, "strided")], [parts],
          "_softmax_backward_data")


@both
def test_layer_norm(layout):
    parts = components(SIZES)
    parameters = [t.requires_grad_() for t in components([(7,), (7,)], seed=3)]
    function = lambda x, w, b: F.layer_norm(x, (7,), w, b)  # noqa: E731
    check(function, function, [nest(parts, layout)], [parts], "native_layer_norm_backward", parameters)


@both
@types
@pytest.mark.parametrize("wide", [True, False], ids=["f32_weight", "own_weight"])
def test_layer_norm_with_exact_statistics(layout, dtype, wide):
    """The operator itself: PyTorch's forward rounds the statistics that it saves to bf16 and f16."""
    weight_type = torch.float32 if wide else dtype
    parts = components(SIZES, dtype)
    x = nest(parts, layout).detach()
    grad = cotangent(x)
    weight, bias = components([(7,), (7,)], weight_type, 3)
    rows = torch.cat(parts).double().requires_grad_()
    leaves = [rows, weight.double().requires_grad_(), bias.double().requires_grad_()]
    out = F.layer_norm(rows, (7,), *leaves[1:], eps=1e-5)
    wanted = torch.autograd.grad(out, leaves, torch.cat(grad.unbind()).double())
    mean = rows.detach().mean(-1).float()
    rstd = (rows.detach().var(-1, unbiased=False) + 1e-5).rsqrt().float()
    with drop_in.enable(only="nested", strict=True):
        got = torch.ops.aten.native_layer_norm_backward(grad, x, [7], mean, rstd, weight, bias, [True, True, True])
    close(torch.cat(got[0].unbind()), wanted[0], dtype, scale_of([wanted[0]]))
    for a, b in zip(got[1:], wanted[1:], strict=True):
        close(a, b, weight_type, scale_of([b]))


def test_layer_norm_without_parameters():
    parts = components([(3, 2, 5), (4, 2, 5)])
    for shape in ((5,), (2, 5)):
        check(lambda x: F.layer_norm(x, shape), lambda x: F.layer_norm(x, shape), [nest(parts, "jagged")], [parts],
              "native_layer_norm_backward")


def over_ragged(x, *parameters):
    """layer_norm over the ragged dimension and those behind it; of a component or of the nested tensor."""
    if x.is_nested:
        return F.layer_norm(x, x.shape[1:], *parameters)
    return F.layer_norm(x, x.shape, *parameters) if x.numel() else x * 1.0


@pytest.mark.parametrize("behind", [(7,), (2, 5)])
def test_layer_norm_over_the_ragged_dimension(behind):
    """Of the jagged layout alone: PyTorch has its forward, and no backward."""
    parts = components([(length, *behind) for length in (3, 0, 5, 1)])
    check(over_ragged, over_ragged, [nest(parts, "jagged")], [parts], "native_layer_norm_backward")


@types
def test_layer_norm_over_the_ragged_dimension_with_exact_statistics(dtype):
    parts = components([(3, 7), (5, 7), (1, 7)], dtype)
    x = nest(parts, "jagged").detach()
    grad = cotangent(x)
    exact = [part.double().requires_grad_() for part in parts]
    wanted = torch.autograd.grad([over_ragged(part) for part in exact], exact, [g.double() for g in grad.unbind()])
    mean = torch.stack([part.detach().mean() for part in exact]).float().view(3, 1, 1)
    deviation = torch.stack([(part.detach().var(unbiased=False) + 1e-5).sqrt() for part in exact]).float().view(3, 1, 1)
    with drop_in.enable(only="nested", strict=True):
        got = torch.ops.aten.native_layer_norm_backward(grad, x, list(x.shape[1:]), mean, deviation, None, None,
                                                        [True, False, False])
    close(got[0].values(), torch.cat(wanted), dtype, scale_of(wanted))
    assert got[1] is None and got[2] is None


def test_layer_norm_over_the_ragged_dimension_with_a_weight_falls_back():
    """Its forward leaves weight and bias out, so that no gradient of the two is right."""
    x = nest(components([(3, 7), (5, 7)]), "jagged")
    weight, grad = torch.ones(7), cotangent(x.detach())
    with drop_in.enable(only="nested"):
        drop_in.reset_stats()
        with pytest.raises(RuntimeError):
            torch.ops.aten.native_layer_norm_backward(grad, x.detach(), list(x.shape[1:]), torch.zeros(2, 1, 1),
                                                      torch.ones(2, 1, 1), weight, None, [True, True, False])
        assert drop_in.stats()["native_layer_norm_backward"]["fallback"] == 1


def test_layer_norm_strided_over_more_dimensions():
    parts = components([(3, 2, 5), (4, 2, 5)])
    parameters = [t.requires_grad_() for t in components([(2, 5), (2, 5)], seed=3)]
    function = lambda x, w, b: F.layer_norm(x, (2, 5), w, b)  # noqa: E731
    check(function, function, [nest(parts, "strided")], [parts], "native_layer_norm_backward", parameters)


@both
@pytest.mark.parametrize("dtype", [*TYPES, torch.float64], ids=lambda t: str(t)[6:])
def test_sum_along_the_last_dimension(layout, dtype):
    parts = components(SIZES, dtype)
    check(lambda x: x.sum(-1, keepdim=True), lambda x: x.sum(-1, keepdim=True), [nest(parts, layout)], [parts],
          "_nested_sum_backward")


def test_sum_along_a_ragged_last_dimension():
    parts = components([(2, 3, 4), (2, 1, 5), (2, 6, 0)])
    check(lambda x: x.sum(-1, keepdim=True), lambda x: x.sum(-1, keepdim=True), [nest(parts, "strided")], [parts],
          "_nested_sum_backward")


@both
@pytest.mark.parametrize("index", [0, 1, 2, -1])
def test_select_a_component(layout, index):
    parts = components([(3, 2, 5), (0, 2, 5), (4, 2, 5)])
    x = nest(parts, layout)
    result = x.select(0, index)
    grad = torch.randn(result.shape)
    with drop_in.enable(only="nested", strict=True):
        drop_in.reset_stats()
        got, = torch.autograd.grad(result, x, grad)
        assert drop_in.stats()["_nested_select_backward"]["taken"] == 1
    for b, part in enumerate(got.unbind()):
        assert torch.equal(part, grad if b == index % 3 else torch.zeros_like(parts[b]))


@both
def test_select_inside_of_components(layout):
    parts = components([(3, 2, 5), (0, 2, 5), (4, 2, 5)])
    for dim, index in ((2, 1), (3, -2 if layout == "jagged" else 3)):  # PyTorch takes no negative one there
        check(lambda x: x.select(dim, index), lambda x: x.select(dim - 1, index), [nest(parts, layout)], [parts],
              "_nested_select_backward")


def test_select_along_the_ragged_dimension():
    parts = components([(3, 2, 5), (1, 2, 5), (4, 2, 5)])
    check(lambda x: x.select(1, 0), lambda x: x.select(0, 0), [nest(parts, "strided")], [parts],
          "_nested_select_backward")


@both
@types
@pytest.mark.parametrize("more", [0, 4])
def test_to_padded(layout, dtype, more):
    parts = components(SIZES, dtype)
    x = nest(parts, layout)
    padded = torch.nested.to_padded_tensor(x, 0.5, output_size=(4, 5 + more, 7))
    grad = torch.randn(padded.shape).to(dtype)
    with drop_in.enable(only="nested", strict=True):
        drop_in.reset_stats()
        got, = torch.autograd.grad(padded, x, grad)
        assert sum(c["taken"] for c in drop_in.stats().values()) == 1
    for b, part in enumerate(got.unbind()):
        assert torch.equal(part, grad[b, :parts[b].shape[0]])


def test_from_padded_strided():
    table = torch.tensor([[3, 7], [0, 7], [5, 7]])
    padded = torch.randn(3, 6, 7, requires_grad=True)
    nested = torch._nested_from_padded(padded, table)
    parts = components(table.tolist(), seed=2)
    with drop_in.enable(only="nested", strict=True):
        drop_in.reset_stats()
        got, = torch.autograd.grad(nested, padded, torch.nested.nested_tensor(parts))
        assert drop_in.stats()["to_padded_tensor"]["taken"] == 1
    wanted = torch.zeros(3, 6, 7)
    for b, part in enumerate(parts):
        wanted[b, :len(part)] = part
    assert torch.equal(got, wanted)


@pytest.mark.parametrize("ragged", [1, 2])
def test_from_padded_jagged(ragged):
    internal = pytest.importorskip("torch.nested._internal.nested_tensor")
    shape = [3, 4, 4, 3]
    shape[ragged] = 6
    padded = torch.randn(shape, requires_grad=True)
    offsets = torch.tensor([0, 3, 3, 8])
    nested = internal.nested_from_padded(padded, offsets, ragged_idx=ragged, sum_S=8)
    grad = cotangent(nested)
    with drop_in.enable(only="nested", strict=True):
        drop_in.reset_stats()
        got, = torch.autograd.grad(nested, padded, grad)
        assert drop_in.stats()["to_padded_tensor"]["taken"] == 1
    wanted = torch.zeros(shape)
    for b, part in enumerate(grad.unbind()):
        wanted[b].narrow(ragged - 1, 0, part.shape[ragged - 1]).copy_(part)
    assert torch.equal(got, wanted)


def test_a_forward_inside_of_a_backward():
    """Checkpointing runs forwards again in the backward: padding of any number stays PyTorch's, strict or not."""
    x = nest(components(SIZES), "jagged")  # PyTorch cannot checkpoint strided ones
    function = lambda x: torch.nested.to_padded_tensor(F.gelu(x), -7.0)  # noqa: E731
    theirs, = torch.autograd.grad(function(x).sum(), x)
    with drop_in.enable(only="nested", strict=True):
        result = torch.utils.checkpoint.checkpoint(function, x, use_reentrant=False)
        ours, = torch.autograd.grad(result.sum(), x)
    for a, b in zip(ours.unbind(), theirs.unbind(), strict=True):
        torch.testing.assert_close(a, b)
