# SPDX-License-Identifier: MIT
"""Backward of products of nested tensors in the drop-in, both layouts, against float64."""
from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sternway._native")

from nested_support import check, close, components, cotangent, drop_in, nest, scale_of  # noqa: E402

TYPES = [torch.float32, torch.bfloat16, torch.float16]
types = pytest.mark.parametrize("dtype", TYPES, ids=lambda t: str(t)[6:])
OP = "matmul_backward"
dense_first = pytest.mark.skipif(tuple(map(int, torch.__version__.split(".")[:2])) < (2, 11),
                                 reason="older PyTorch has no forward of a dense times a jagged tensor, 2.6 at least")


def turned(t):
    return t.transpose(-1, -2)


def mm(a, b):
    return a @ b


def mm_turned(a, b):
    return a @ turned(b)


# m, k, n of each component
RAGGED = {
    "none": [(3, 5, 2)] * 3,
    "m": [(3, 5, 2), (0, 5, 2), (7, 5, 2)],
    "k": [(3, 5, 2), (3, 1, 2), (3, 0, 2)],
    "n": [(3, 5, 4), (3, 5, 1), (3, 5, 6)],
    "mk": [(3, 5, 2), (1, 4, 2), (6, 0, 2)],
    "mn": [(3, 5, 2), (1, 5, 4), (0, 5, 7), (6, 5, 6)],
    "kn": [(3, 5, 2), (3, 4, 1), (3, 2, 6)],
    "mkn": [(3, 5, 2), (1, 4, 6), (6, 2, 3)],
}


@pytest.mark.parametrize("outer,dtype", [((), dtype) for dtype in TYPES] + [((2,), TYPES[0]), ((2, 3), TYPES[0])],
                         ids=["f32", "bf16", "f16", "4d", "5d"])
@pytest.mark.parametrize("ragged", RAGGED)
def test_strided(ragged, outer, dtype):
    a = components([(*outer, m, k) for m, k, n in RAGGED[ragged]], dtype)
    b = components([(*outer, k, n) for m, k, n in RAGGED[ragged]], dtype, 3)
    check(mm, mm, [nest(a, "strided"), nest(b, "strided")], [a, b], OP)


@pytest.mark.parametrize("ragged", ["m", "n", "mn", "mkn"])
def test_strided_transposed(ragged):
    a = components([(2, m, k) for m, k, n in RAGGED[ragged]])
    b = components([(2, n, k) for m, k, n in RAGGED[ragged]], seed=3)
    check(mm_turned, mm_turned, [nest(a, "strided"), nest(b, "strided")], [a, b], OP)


def test_strided_only_one_gradient():
    a, b = (components([(m, k) for m, k, n in RAGGED["mn"]]), components([(k, n) for m, k, n in RAGGED["mn"]], seed=3))
    for which in (0, 1):
        x = [nest(a, "strided"), nest(b, "strided")]
        x[1 - which].requires_grad_(False)
        result = x[0] @ x[1]
        grad = cotangent(result)
        wanted, = torch.autograd.grad(result, x[which], grad, retain_graph=True)
        with drop_in.enable(only=OP, strict=True):
            got, = torch.autograd.grad(result, x[which], grad)
        for p, q in zip(got.unbind(), wanted.unbind(), strict=True):
            torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-5)


def test_heads_inside_of_rows():
    """As attention by products has them; what lies in no way that the library knows is copied, as PyTorch does."""
    parts = components([(4, 2, 3), (5, 2, 3), (0, 2, 3)])

    def scores(x):
        heads = x.transpose(1, 2) if x.is_nested else x.transpose(0, 1)
        return heads @ turned(heads)

    check(scores, scores, [nest(parts, "strided")], [parts], OP)
    a, b = nest(parts, "strided"), nest(parts, "strided")
    result = a.transpose(1, 2) @ turned(b.transpose(1, 2))
    grad = torch.nested.nested_tensor([torch.randn(n, n, 2) for n in (4, 5, 0)]).transpose(1, 3)
    assert [part.shape for part in grad.unbind()] == [part.shape for part in result.unbind()]
    theirs = torch.autograd.grad(result, (a, b), grad, retain_graph=True)
    with drop_in.enable(only=OP, strict=True):
        ours = torch.autograd.grad(result, (a, b), grad)
    for got, wanted in zip(ours, theirs, strict=True):
        for p, q in zip(got.unbind(), wanted.unbind(), strict=True):
            torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-5)


def test_attention_by_products():
    parts = [components([(n, 2, 5) for n in (3, 1, 6)], seed=seed) for seed in range(3)]
    tensors = [nest(of, "strided") for of in parts]

    def attention(q, k, v):
        swap = (1, 2) if q.is_nested else (0, 1)
        q, k, v = (t.transpose(*swap) for t in (q, k, v))
        return (torch.softmax(q @ turned(k), -1) @ v).transpose(*swap)

    check(attention, attention, tensors, parts, OP)


def test_strided_and_one_matrix():
    parts = components([(3, 2, 7), (0, 2, 7), (5, 2, 7)])
    matrix = components([(7, 4)], seed=3)[0]
    x, grad = nest(parts, "strided").detach(), nest(components([(3, 2, 4), (0, 2, 4), (5, 2, 4)], seed=5), "strided")
    with drop_in.enable(only=OP, strict=True):
        dx, dmatrix = torch.ops.aten.matmul_backward(grad.detach(), x, matrix, [True, True])
    exact = [p.double().requires_grad_() for p in (*parts, matrix)]
    wanted = torch.autograd.grad([p @ exact[-1] for p in exact[:-1]], exact, [g.double() for g in grad.unbind()])
    for p, q in zip(dx.unbind(), wanted):
        close(p, q, torch.float32, scale_of(wanted[:-1]))
    close(dmatrix, wanted[-1], torch.float32, scale_of(wanted[-1:]))


@types
def test_jagged_and_one_matrix(dtype):
    parts = components([(3, 6), (0, 6), (5, 6)], dtype)
    weight = components([(6, 4)], dtype, 3)[0].requires_grad_()
    check(mm, mm, [nest(parts, "jagged")], [parts], OP, [weight])
    check(mm_turned, mm_turned, [nest(parts, "jagged")], [parts], OP,
          [components([(4, 6)], dtype, 3)[0].requires_grad_()])


def test_jagged_of_more_dimensions_and_one_matrix():
    parts = components([(3, 2, 6), (0, 2, 6), (5, 2, 6)])
    weight = components([(6, 4)], seed=3)[0].requires_grad_()
    check(mm, mm, [nest(parts, "jagged")], [parts], OP, [weight])


@dense_first
@types
def test_one_matrix_and_jagged_columns(dtype):
    for shape in ([(6, 3), (6, 0), (6, 5)],):
        parts = components(shape, dtype)
        matrix = components([(4, 6)], dtype, 3)[0].requires_grad_()
        check(lambda x, w: w @ x, lambda x, w: w @ x, [nest(parts, "jagged")], [parts], OP, [matrix])
    parts = components([(3, 6), (0, 6), (5, 6)], dtype)
    check(lambda x, w: w @ turned(x), lambda x, w: w @ turned(x), [nest(parts, "jagged")], [parts], OP, [matrix])


def dense_stack(function, parts, stack, columns=False):
    """Backward of function(jagged, dense [components, ..]) against the function of each component in float64."""
    x, d = nest(parts, "jagged"), stack.clone().requires_grad_()
    with drop_in.enable(only="nested", strict=True):
        drop_in.reset_stats()
        result = function(x, d)
        grad = cotangent(result)
        got = torch.autograd.grad(result, (x, d), grad)
        assert drop_in.stats()[OP]["taken"] == 1
    exact, exact_d = [p.double().requires_grad_() for p in parts], stack.double().requires_grad_()
    results = [function(p, exact_d[b]) for b, p in enumerate(exact)]
    wanted = torch.autograd.grad(results, [*exact, exact_d], [g.double() for g in grad.unbind()])
    for p, q in zip(got[0].unbind(), wanted, strict=False):
        close(p, q, stack.dtype, scale_of(wanted[:-1]))
    close(got[1], wanted[-1], stack.dtype, scale_of([wanted[-1]]))


@types
def test_jagged_and_a_matrix_a_component(dtype):
    parts = components([(3, 6), (0, 6), (5, 6)], dtype)
    dense_stack(mm, parts, components([(3, 6, 4)], dtype, 3)[0])
    dense_stack(mm_turned, parts, components([(3, 4, 6)], dtype, 3)[0])


def test_jagged_behind_heads_and_a_matrix_a_component():
    parts = components([(2, 3, 6), (2, 0, 6), (2, 5, 6)])
    dense_stack(mm, parts, components([(3, 2, 6, 4)], seed=3)[0])


@dense_first
@types
def test_a_matrix_a_component_and_jagged_columns(dtype):
    parts = components([(6, 3), (6, 0), (6, 5)], dtype)
    dense_stack(lambda x, d: d @ x, parts, components([(3, 4, 6)], dtype, 3)[0])


def jagged_pair(a_shape, b_shape, lengths=(3, 0, 5)):
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    total = sum(lengths)
    make = torch.nested.nested_tensor_from_jagged
    return [make(torch.randn(total, *shape), offsets).detach().requires_grad_() for shape in (a_shape, b_shape)]


def test_stack_at_each_position():
    x, y = jagged_pair((2, 4), (4, 3))
    check(mm, mm, [x, y], [x.unbind(), y.unbind()], OP)
    x, y = jagged_pair((5, 2, 4), (5, 3, 4))
    check(mm_turned, mm_turned, [x, y], [x.unbind(), y.unbind()], OP)


def test_over_the_ragged_dimension():
    x, y = jagged_pair((5,), (4,))
    function = lambda a, b: turned(a) @ b  # noqa: E731
    check(function, function, [x, y], [x.unbind(), y.unbind()], OP)
