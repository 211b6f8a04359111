# SPDX-License-Identifier: MIT
"""What jagged tensors alone have: other ragged dimensions, holes, positions in no component, sums PyTorch lacks."""
from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sternway._native")

from nested_support import check, close, components, drop_in, nest, scale_of  # noqa: E402

F = torch.nn.functional
from_jagged = torch.nested.nested_tensor_from_jagged
OFFSETS = (0, 3, 3, 8)


def behind_heads(storage: str):
    """[components, 2 heads, ragged, 5]: values that lie so, or with the heads inside of the ragged dimension."""
    offsets = torch.tensor(OFFSETS)
    if storage == "as_is":
        return from_jagged(torch.randn(2, 8, 5), offsets, jagged_dim=2).detach().requires_grad_()
    return from_jagged(torch.randn(8, 2, 5), offsets).transpose(1, 2).detach().requires_grad_()


storages = pytest.mark.parametrize("storage", ["as_is", "transposed"])


@storages
@pytest.mark.parametrize("function", [F.gelu, F.silu, F.relu], ids=lambda f: f.__name__)
def test_pointwise_behind_heads(function, storage):
    x = behind_heads(storage)
    operator = {"relu": "threshold"}.get(function.__name__, function.__name__) + "_backward"
    check(function, function, [x], [x.unbind()], operator)


@storages
@pytest.mark.parametrize("dim", [1, 3])
def test_softmax_behind_heads(dim, storage):
    x = behind_heads(storage)
    check(lambda x: F.softmax(x, dim), lambda x: F.softmax(x, dim - 1), [x], [x.unbind()], "_softmax_backward_data")


def test_layer_norm_behind_heads():
    x = behind_heads("as_is")
    parameters = [t.requires_grad_() for t in components([(5,), (5,)], seed=3)]
    function = lambda x, w, b: F.layer_norm(x, (5,), w, b)  # noqa: E731
    check(function, function, [x], [x.unbind()], "native_layer_norm_backward", parameters)


@storages
@pytest.mark.parametrize("dim,index", [(1, 1), (3, -2)])
def test_select_behind_heads(dim, index, storage):
    x = behind_heads(storage)
    check(lambda x: x.select(dim, index), lambda x: x.select(dim - 1, index), [x], [x.unbind()],
          "_nested_select_backward")


@storages
@pytest.mark.parametrize("index", [0, 1, 2])
def test_select_a_component_behind_heads(index, storage):
    x = behind_heads(storage)
    with drop_in.enable(only="nested", strict=True):
        part = x.select(0, index)
        grad = torch.randn(part.shape)
        got, = torch.autograd.grad(part, x, grad)
    for b, p in enumerate(got.unbind()):
        assert torch.equal(p, grad if b == index else torch.zeros_like(p))


# ---- sums: PyTorch has none of these backwards for jagged tensors ----

SUM = "_nested_sum_backward"


@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("dim", [(2,), (3,), (2, 3), (-1,)])
def test_sum_inside_of_components(dim, keepdim):
    parts = components([(3, 4, 5), (0, 4, 5), (2, 4, 5)])
    check(lambda x: x.sum(dim, keepdim=keepdim), lambda x: x.sum([d - 1 if d > 0 else d for d in dim], keepdim=keepdim),
          [nest(parts, "jagged")], [parts], SUM)


@storages
@pytest.mark.parametrize("dim", [(1,), (3,), (1, 3)])
def test_sum_behind_heads(dim, storage):
    x = behind_heads(storage)
    check(lambda x: x.sum(dim), lambda x: x.sum([d - 1 for d in dim]), [x], [x.unbind()], SUM)


@pytest.mark.parametrize("keepdim", [False, True])
def test_sum_along_the_ragged_dimension(keepdim):
    parts = components([(3, 4, 5), (0, 4, 5), (2, 4, 5)])
    check(lambda x: x.sum(1, keepdim=keepdim), lambda x: x.sum(0, keepdim=keepdim), [nest(parts, "jagged")], [parts],
          SUM)


@pytest.mark.parametrize("dim", [(0, 1), (0, 1, 2), (0, 1, 2, 3)])
@pytest.mark.parametrize("keepdim", [False, True])
def test_sum_of_all_components(dim, keepdim):
    parts = components([(3, 4, 5), (0, 4, 5), (2, 4, 5)])
    x = nest(parts, "jagged")
    result = x.sum(dim, keepdim=keepdim)
    grad = torch.randn(result.shape)
    with drop_in.enable(only=SUM, strict=True):
        got, = torch.autograd.grad(result, x, grad)
    rows = torch.cat(parts).double().requires_grad_()
    wanted, = torch.autograd.grad(rows.sum([d - 1 for d in dim[1:]]), rows, grad.double().squeeze())
    close(torch.cat(got.unbind()), wanted, torch.float32, scale_of([wanted]))


# ---- holes ----

def with_holes():
    """Components [start, start + length) of rows of 7: positions between them are in none."""
    base = torch.randn(3, 7, 5, requires_grad=True)
    start, length = torch.tensor([1, 0, 2]), torch.tensor([3, 0, 4])
    return base, torch.nested.narrow(base, 1, start, length, layout=torch.jagged), start.tolist(), length.tolist()


HOLES = {
    "gelu": (F.gelu, "gelu_backward"),
    "silu": (F.silu, "silu_backward"),
    "relu": (F.relu, "threshold_backward"),
    "softmax": (lambda x: F.softmax(x, -1), "_softmax_backward_data"),
    "sum": (lambda x: x.sum(-1), "_nested_sum_backward"),
}


@pytest.mark.parametrize("name", HOLES)
def test_holes(name):
    function, operator = HOLES[name]
    base, x, start, length = with_holes()
    with drop_in.enable(only="nested", strict=True):
        drop_in.reset_stats()
        result = function(x)
        grad = torch.zeros_like(result)
        grad._values.fill_(float("nan"))  # what lies in a hole goes nowhere
        for part in grad.unbind():
            part.copy_(torch.randn(part.shape))
        got, = torch.autograd.grad(result, base, grad)
        assert drop_in.stats()[operator]["taken"] == 1
    exact = base.detach().double().requires_grad_()
    parts = [exact[b, s:s + n] for b, (s, n) in enumerate(zip(start, length))]
    wanted, = torch.autograd.grad([function(p) for p in parts], exact, [g.double() for g in grad.unbind()])
    close(got, wanted, torch.float32, scale_of([wanted]))  # zeros between the components


def test_select_a_component_with_holes():
    base, x, start, length = with_holes()
    with drop_in.enable(only="nested", strict=True):
        part = x.select(0, 2)
        grad = torch.randn(part.shape)
        got, = torch.autograd.grad(part, base, grad)
    wanted = torch.zeros(3, 7, 5)
    wanted[2, 2:6] = grad
    assert torch.equal(got, wanted)


# ---- positions in no component ----

def uncovered():
    """Offsets that leave rows out at both ends, of values [9, 5]; and their components' ranges."""
    return torch.tensor([1, 4, 4, 7]), [(1, 4), (4, 4), (4, 7)]


def test_sum_with_rows_in_no_component():
    offsets, ranges = uncovered()
    values = torch.randn(9, 5, requires_grad=True)
    result = from_jagged(values, offsets).sum(1)
    grad = torch.randn(3, 5)
    with drop_in.enable(only="nested", strict=True):
        got, = torch.autograd.grad(result, values, grad)
    wanted = torch.zeros(9, 5)
    for b, (first, end) in enumerate(ranges):
        wanted[first:end] = grad[b]
    assert torch.equal(got, wanted)


def test_operators_with_rows_in_no_component():
    """The operators themselves: PyTorch's forwards want offsets that cover all rows."""
    offsets, ranges = uncovered()
    exact = torch.randn(9, 5).double().requires_grad_()
    results = [F.softmax(exact[first:end], 0) for first, end in ranges]
    y, grad = torch.full((9, 5), float("nan")), torch.randn(9, 5)
    for (first, end), of in zip(ranges, results, strict=True):
        y[first:end] = of.detach()
    wanted, = torch.autograd.grad(results, exact, [grad[first:end].double() for first, end in ranges])
    with drop_in.enable(only="nested", strict=True):
        got = torch.ops.aten._softmax_backward_data(from_jagged(grad, offsets), from_jagged(y, offsets), 1,
                                                    torch.float32)
        selected = torch.ops.aten._nested_select_backward(grad[:3], from_jagged(y, offsets), 0, 2)
    close(got.values(), wanted, torch.float32, scale_of([wanted]))  # zeros in front and behind
    wanted = torch.zeros(9, 5)
    wanted[4:7] = grad[:3]
    assert torch.equal(selected.values(), wanted)


def test_holes_and_one_matrix():
    base, x, start, length = with_holes()
    matrix = torch.randn(5, 4, requires_grad=True)
    result = x @ matrix
    grad = torch.zeros_like(result)
    grad._values.fill_(float("nan"))
    for part in grad.unbind():
        part.copy_(torch.randn(part.shape))
    with drop_in.enable(only="nested", strict=True):
        got = torch.autograd.grad(result, (base, matrix), grad)
    exact = [t.detach().double().requires_grad_() for t in (base, matrix)]
    parts = [exact[0][b, s:s + n] @ exact[1] for b, (s, n) in enumerate(zip(start, length))]
    wanted = torch.autograd.grad(parts, exact, [g.double() for g in grad.unbind()])
    for a, b in zip(got, wanted, strict=True):
        close(a, b, torch.float32, scale_of([b]))
