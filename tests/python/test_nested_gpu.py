# SPDX-License-Identifier: MIT
"""The nested drop-in on a GPU: each operator of both layouts against float64, streams, graphs."""
from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sternway._native")

from nested_support import SIZES, check, close, components, cotangent, drop_in, nest, scale_of  # noqa: E402

pytestmark = pytest.mark.gpu
F = torch.nn.functional
both = pytest.mark.parametrize("layout", ["strided", "jagged"])
types = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=lambda t: str(t)[6:])


def parts_of(shapes, dtype=torch.float32, seed=0):
    return components(shapes, dtype, seed, "cuda")


def parameters_of(shapes, dtype=torch.float32):
    return [t.requires_grad_() for t in parts_of(shapes, dtype, 3)]


@both
@types
@pytest.mark.parametrize("name", ["gelu", "gelu_tanh", "silu", "relu"])
def test_pointwise(name, dtype, layout):
    function = {"gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "silu": F.silu,
                "relu": F.relu}[name]
    parts = parts_of(SIZES, dtype)
    operator = {"gelu_tanh": "gelu", "relu": "threshold"}.get(name, name) + "_backward"
    check(function, function, [nest(parts, layout)], [parts], operator)


@both
@types
def test_linear(layout, dtype):
    parts = parts_of(SIZES, dtype)
    check(F.linear, F.linear, [nest(parts, layout)], [parts], "linear_backward", parameters_of([(5, 7), (5,)], dtype))


@both
@types
@pytest.mark.parametrize("dim", [1, -1])
def test_softmax(layout, dtype, dim):
    parts = parts_of(SIZES, dtype)
    check(lambda x: F.softmax(x, dim), lambda x: F.softmax(x, dim - 1 if dim > 0 else dim), [nest(parts, layout)],
          [parts], "_softmax_backward_data")


def test_softmax_of_scores():
    parts = parts_of([(2, 3, 4), (2, 1, 5), (2, 6, 1)])
    check(lambda x: F.softmax(x, -1), lambda x: F.softmax(x, -1), [nest(parts, "strided")], [parts],
          "_softmax_backward_data")


@both
def test_layer_norm(layout):
    parts = parts_of(SIZES)
    function = lambda x, w, b: F.layer_norm(x, (7,), w, b)  # noqa: E731
    check(function, function, [nest(parts, layout)], [parts], "native_layer_norm_backward",
          parameters_of([(7,), (7,)]))


@both
@types
def test_select_a_component(layout, dtype):
    x = nest(parts_of(SIZES, dtype), layout)
    for index in (0, 1, 2):
        result = x.select(0, index)
        grad = torch.randn_like(result)
        with drop_in.enable(only="nested", strict=True):
            drop_in.reset_stats()
            got, = torch.autograd.grad(result, x, grad)
            assert drop_in.stats()["_nested_select_backward"]["taken"] == 1
        for b, part in enumerate(got.unbind()):
            assert torch.equal(part, grad if b == index else torch.zeros_like(part))


@types
@pytest.mark.parametrize("dim", [(1,), (2,), (0, 1)])
def test_sum_jagged(dim, dtype):
    parts = parts_of(SIZES, dtype)
    x = nest(parts, "jagged")
    result = x.sum(dim)
    grad = cotangent(result)
    with drop_in.enable(only="nested", strict=True):
        got, = torch.autograd.grad(result, x, grad)
    for b, part in enumerate(got.unbind()):
        wanted = {(1,): lambda: grad[b], (2,): lambda: grad.unbind()[b][:, None], (0, 1): lambda: grad}[dim]()
        assert torch.equal(part, wanted.expand(part.shape))


@both
@types
def test_to_padded(layout, dtype):
    x = nest(parts_of(SIZES, dtype), layout)
    padded = torch.nested.to_padded_tensor(x, 0.5, output_size=(4, 8, 7))
    grad = torch.randn_like(padded)
    with drop_in.enable(only="nested", strict=True):
        got, = torch.autograd.grad(padded, x, grad)
    for b, part in enumerate(got.unbind()):
        assert torch.equal(part, grad[b, :part.shape[0]])


@types
@pytest.mark.parametrize("sizes", [[(3, 5, 2), (7, 5, 2)], [(3, 5, 4), (1, 5, 7)], [(3, 5, 2), (1, 4, 6), (6, 2, 3)]],
                         ids=["m", "mn", "mkn"])
def test_matmul_strided(sizes, dtype):
    a, b = parts_of([(m, k) for m, k, n in sizes], dtype), parts_of([(k, n) for m, k, n in sizes], dtype, 3)
    check(lambda a, b: a @ b, lambda a, b: a @ b, [nest(a, "strided"), nest(b, "strided")], [a, b], "matmul_backward")


@types
def test_matmul_jagged(dtype):
    parts = parts_of(SIZES, dtype)
    check(lambda x, w: x @ w, lambda x, w: x @ w, [nest(parts, "jagged")], [parts], "matmul_backward",
          parameters_of([(7, 4)], dtype))
    x, stack = nest(parts, "jagged"), parts_of([(4, 7, 6)], dtype, 5)[0].requires_grad_()
    result = x @ stack
    grad = cotangent(result)
    with drop_in.enable(only="nested", strict=True):
        drop_in.reset_stats()
        got = torch.autograd.grad(result, (x, stack), grad)
        assert drop_in.stats()["matmul_backward"]["taken"] == 1
    exact = [p.double().cpu().requires_grad_() for p in parts]
    exact_stack = stack.detach().double().cpu().requires_grad_()
    wanted = torch.autograd.grad([p @ exact_stack[b] for b, p in enumerate(exact)], [*exact, exact_stack],
                                 [g.double().cpu() for g in grad.unbind()])
    for p, q in zip(got[0].unbind(), wanted):
        close(p, q, dtype, scale_of(wanted[:-1]))
    close(got[1], wanted[-1], dtype, scale_of([wanted[-1]]))


def test_rows_in_no_component_are_zeros():
    values = torch.randn(9, 5, device="cuda", requires_grad=True)
    x = torch.nested.nested_tensor_from_jagged(values, torch.tensor([1, 4, 4, 7], device="cuda"), max_seqlen=3)
    result = x.sum(1)
    with drop_in.enable(only="nested", strict=True):
        got, = torch.autograd.grad(result, values, torch.ones_like(result))
    assert torch.equal(got[:, 0].cpu(), torch.tensor([0., 1, 1, 1, 1, 1, 1, 0, 0]))


def test_another_stream():
    parts = parts_of(SIZES)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for layout in ("strided", "jagged"):
            check(lambda x: F.softmax(x, 1), lambda x: F.softmax(x, 0), [nest(parts, layout)], [parts],
                  "_softmax_backward_data")
    side.synchronize()


def test_a_graph():
    """A captured step of a jagged model, run again with other values."""
    offsets = torch.tensor([0, 3, 3, 8], device="cuda")
    weight = torch.randn(5, 7, device="cuda", requires_grad=True)
    values, grad = torch.randn(8, 7, device="cuda", requires_grad=True), torch.randn(8, 5, device="cuda")

    def step():
        x = torch.nested.nested_tensor_from_jagged(values, offsets, min_seqlen=0, max_seqlen=5)
        return torch.autograd.grad(F.gelu(F.linear(x, weight)).values(), (values, weight), grad)

    with drop_in.enable(only="nested", strict=True):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = step()
        with torch.no_grad():
            values.copy_(torch.randn(8, 7))
        graph.replay()
        for a, b in zip(captured, step(), strict=True):
            assert torch.equal(a, b)
