# SPDX-License-Identifier: MIT
"""The nested drop-in as a switch: what falls back and why, what is not there, what stays PyTorch's."""
from __future__ import annotations

import logging
import threading

import pytest

torch = pytest.importorskip("torch")
_native = pytest.importorskip("sternway._native")

from nested_support import components, cotangent, drop_in, nest  # noqa: E402

F = torch.nn.functional
both = pytest.mark.parametrize("layout", ["strided", "jagged"])


def stats_of(function, x, only="nested", strict=False):
    """(gradient of x, counts) of a backward under the drop-in."""
    result = function(x)
    grad = cotangent(result)
    with drop_in.enable(only=only, strict=strict):
        drop_in.reset_stats()
        got, = torch.autograd.grad(result, x, grad, retain_graph=True)
        counts = drop_in.stats()
    theirs, = torch.autograd.grad(result, x, grad)
    return got, theirs, counts


def same(a, b):
    return all(torch.equal(p, q) for p, q in zip(a.unbind(), b.unbind(), strict=True))


@both
def test_a_type_that_the_library_lacks_is_pytorchs(layout, caplog):
    x = nest([p.double() for p in components([(3, 5), (2, 5)])], layout)
    with caplog.at_level(logging.WARNING, "sternway.torch"):
        got, theirs, counts = stats_of(F.silu, x)
    assert same(got, theirs)
    assert counts["silu_backward"]["taken"] == 0 and counts["silu_backward"]["fallback"] == 1
    assert "accepted f16 1, bf16 2, f32 3" in next(iter(counts["silu_backward"]["reasons"]))
    with pytest.raises(_native.UnsupportedError, match="accepted f16"):
        stats_of(F.silu, x, strict=True)


@both
def test_float64_is_moved(layout):
    parts = [p.double() for p in components([(3, 5), (2, 5)])]
    for function, operator in ((F.relu, "threshold_backward"), (lambda x: x.select(0, 1), "_nested_select_backward")):
        got, theirs, counts = stats_of(function, nest(parts, layout), strict=True)
        assert same(got, theirs) and counts[operator]["taken"] == 1


@both
def test_only_what_is_named(layout):
    x = nest(components([(3, 5), (2, 5)]), layout)
    _, _, counts = stats_of(lambda x: F.silu(F.gelu(x)), x, only="gelu_backward")
    assert set(counts) == {"gelu_backward"}
    _, _, counts = stats_of(lambda x: F.silu(F.gelu(x)), x, only="attention")
    assert not counts


@both
def test_after_the_block_all_is_as_before(layout):
    x = nest(components([(3, 5), (2, 5)]), layout)
    result = F.gelu(x)
    grad = cotangent(result)
    before, = torch.autograd.grad(result, x, grad, retain_graph=True)
    with drop_in.enable(only="nested"):
        torch.autograd.grad(result, x, grad, retain_graph=True)
    drop_in.reset_stats()
    after, = torch.autograd.grad(result, x, grad)
    assert same(before, after) and not drop_in.stats()


def test_dense_tensors_are_pytorchs():
    x = torch.randn(5, 7, requires_grad=True)
    with drop_in.enable(only="nested", strict=True):
        drop_in.reset_stats()
        for function in (F.gelu, F.silu, F.relu, lambda x: F.softmax(x, -1), lambda x: F.layer_norm(x, (7,))):
            torch.autograd.grad(function(x), x, torch.randn(5, 7))
        assert not drop_in.stats()


@both
def test_forwards_are_pytorchs(layout):
    """to_padded_tensor and _nested_from_padded are each other's backward, and forwards too."""
    x = nest(components([(3, 5), (2, 5)]), layout)
    with drop_in.enable(only="nested", strict=True):
        drop_in.reset_stats()
        for padding in (0.0, -1.0):
            torch.nested.to_padded_tensor(x, padding)
        torch._nested_from_padded(torch.randn(2, 4, 5), torch.tensor([[3, 5], [4, 5]]))
        assert not drop_in.stats()


@both
@pytest.mark.parametrize("shapes", [[(0, 5), (0, 5)], [(0, 5)], [(3, 0), (2, 0)]],
                         ids=["two_empty", "one_empty", "no_columns"])
@pytest.mark.parametrize("name", ["gelu", "relu", "softmax", "linear", "sum", "select"])
def test_nothing_inside(name, shapes, layout):
    x = nest(components(shapes), layout)
    columns = shapes[0][1]
    if name == "linear" and layout == "strided" and not columns:
        pytest.skip("PyTorch has no such forward")
    weight = torch.randn(4, columns, requires_grad=True)
    functions = {"gelu": F.gelu, "relu": F.relu, "softmax": lambda x: F.softmax(x, -1),
                 "linear": lambda x: F.linear(x, weight), "sum": lambda x: x.sum(-1, keepdim=True),
                 "select": lambda x: x.select(0, 0)}
    result = functions[name](x)
    grad = torch.ones_like(result)
    with drop_in.enable(only="nested", strict=True):
        wanted = [x, weight] if name == "linear" else [x]
        got = torch.autograd.grad(result, wanted, grad)
    assert [p.shape for p in got[0].unbind()] == [torch.Size(shape) for shape in shapes]
    if name == "linear":
        assert torch.equal(got[1], torch.zeros_like(weight)) or columns == 0


def test_no_components():
    x, grad = torch.nested.nested_tensor([]), torch.nested.nested_tensor([])
    with drop_in.enable(only="nested", strict=True):
        aten = torch.ops.aten
        for got in (aten.gelu_backward(grad, x), aten.silu_backward(grad, x), aten.threshold_backward(grad, x, 0),
                    aten._nested_sum_backward(grad, x, [0], True),
                    aten._softmax_backward_data(grad, x, 0, torch.float32)):
            assert got.is_nested and got.numel() == 0 and got.size(0) == 0
        got, dweight, _ = torch.ops.aten.linear_backward(x, grad, torch.randn(3, 4), [True, True, False])
        assert got.size(0) == 0 and torch.equal(dweight, torch.zeros(3, 4))


def test_jagged_without_components():
    x = torch.nested.nested_tensor_from_jagged(torch.empty(0, 5), torch.zeros(1, dtype=torch.int64))
    x = x.detach().requires_grad_()
    weight = torch.randn(4, 5, requires_grad=True)
    with drop_in.enable(only="nested", strict=True):
        for function in (F.gelu, lambda x: F.softmax(x, -1), lambda x: F.linear(x, weight), lambda x: x.sum(-1)):
            result = function(x)
            got, = torch.autograd.grad(result, x, torch.ones_like(result))
            assert got.values().shape == (0, 5)


def test_several_ragged_dimensions():
    parts = components([(3, 5), (2, 4)])
    x = nest(parts, "strided")
    got, theirs, counts = stats_of(F.gelu, x, strict=True)  # as a whole
    assert counts["gelu_backward"]["taken"] == 1
    torch.testing.assert_close(got.values(), theirs.values())
    got, theirs, counts = stats_of(lambda x: F.softmax(x, 1), x)
    assert same(got, theirs)
    assert next(iter(counts["_softmax_backward_data"]["reasons"])) == "2 ragged dimensions: accepted one"
    grad = torch.randn(2, 3, 5)
    padded = torch.nested.to_padded_tensor(x, 0.0)
    theirs, = torch.autograd.grad(padded, x, grad, retain_graph=True)
    with drop_in.enable(only="nested"):
        drop_in.reset_stats()
        got, = torch.autograd.grad(padded, x, grad)
        counts = drop_in.stats()
    assert same(got, theirs)
    assert next(iter(counts["_nested_from_padded"]["reasons"])) == "padding in 2 dimensions: accepted one"


def test_a_gradient_that_is_not_contiguous():
    x = nest(components([(3, 3), (2, 3)]), "strided")
    result = F.softmax(x, -1)
    grad = nest(components([(3, 3), (3, 2)], seed=2), "strided").detach().transpose(1, 2)
    theirs, = torch.autograd.grad(result, x, grad, retain_graph=True)
    with drop_in.enable(only="nested"):
        drop_in.reset_stats()
        got, = torch.autograd.grad(result, x, grad)
        counts = drop_in.stats()
    assert same(got, theirs)
    assert next(iter(counts["_softmax_backward_data"]["reasons"])) == \
        "grad_output is a nested tensor that is not contiguous"


def test_linear_copies_such_a_gradient_as_pytorch_does():
    x = nest(components([(3, 5), (2, 5)]), "strided")
    weight = torch.randn(3, 5, requires_grad=True)
    result = F.linear(x, weight)
    grad = nest(components([(3, 3), (3, 2)], seed=2), "strided").detach().transpose(1, 2)
    theirs = torch.autograd.grad(result, (x, weight), grad, retain_graph=True)
    with drop_in.enable(only="nested", strict=True):
        got = torch.autograd.grad(result, (x, weight), grad)
    for a, b in zip(got, theirs):
        for p, q in zip(a.unbind(), b.unbind()):
            torch.testing.assert_close(p, q)


@both
def test_a_model(layout):
    """Everything at once, gradients against PyTorch's own."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(7, 16), torch.nn.GELU(), torch.nn.LayerNorm(16),
                                torch.nn.Linear(16, 8), torch.nn.ReLU(), torch.nn.Linear(8, 5), torch.nn.Softmax(-1))
    x = nest(components([(3, 7), (0, 7), (11, 7)]), layout)
    result = model(x)
    padded = torch.nested.to_padded_tensor(result, 0.0)
    grad = torch.randn(padded.shape)
    wanted = [x, *model.parameters()]
    theirs = torch.autograd.grad(padded, wanted, grad, retain_graph=True)
    with drop_in.enable(only="nested", strict=True):
        drop_in.reset_stats()
        ours = torch.autograd.grad(padded, wanted, grad)
        counts = drop_in.stats()
    assert sum(count["taken"] for count in counts.values()) == 8
    for a, b in zip(ours, theirs, strict=True):
        for p, q in zip(a.unbind(), b.unbind(), strict=True):
            torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-6)


def test_the_same_sizes_make_offsets_once():
    views = pytest.importorskip("sternway.torch._nested_strided")
    device = torch.device("cpu")
    a, b = (views.sizes_of(nest(components([(3, 5), (2, 5)], seed=s), "strided")) for s in (0, 1))
    assert a is b and a.offsets(0, device) is b.offsets(0, device)
    assert a.offsets(0, device).tolist() == [0, 3, 5]
    for length in range(2 * views.SIZES_KEPT):  # a bounded number of them is kept
        views.sizes_of(torch.nested.nested_tensor([torch.zeros(length, 2)]))
    assert views._sizes.cache_info().currsize == views.SIZES_KEPT


@both
def test_threads(layout):
    parts = components([(3, 7), (0, 7), (9, 7)])
    wanted = []
    for p in parts:
        p = p.clone().requires_grad_()
        wanted.append(torch.autograd.grad(F.gelu(p), p, torch.ones_like(p))[0])
    failures = []

    def work():
        for _ in range(20):
            x = nest(parts, layout)
            result = F.gelu(x)
            got, = torch.autograd.grad(result, x, torch.ones_like(result))
            if not all(torch.allclose(p, q, atol=1e-6) for p, q in zip(got.unbind(), wanted)):
                failures.append(got)

    with drop_in.enable(only="nested", strict=True):
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures


@both
def test_double_backward_is_pytorchs(layout):
    """A gradient of the gradient runs PyTorch's formula: the operator's own autograd is above the drop-in."""
    x = nest(components([(3, 5), (2, 5)]), layout)
    result = F.relu(x)
    with drop_in.enable(only="nested"):
        grad, = torch.autograd.grad(result, x, torch.ones_like(result), create_graph=True)
    assert grad.requires_grad




def test_another_default_device():
    """Sizes are in host memory whatever the default device is; "meta" holds no numbers."""
    x = nest(components([(3, 11), (4, 11)]), "strided")  # sizes of no other test
    result = x.sum(-1, keepdim=True)
    grad = cotangent(result)
    before = torch.get_default_device()
    torch.set_default_device("meta")
    try:
        with drop_in.enable(only="nested", strict=True):
            got, = torch.autograd.grad(result, x, grad)
    finally:
        torch.set_default_device(before)
    for part, g in zip(got.unbind(), grad.unbind(), strict=True):
        assert torch.equal(part, g.expand(part.shape))


def wrong_sizes():
    aten = torch.ops.aten
    strided = lambda *shapes: nest(components(shapes), "strided").detach()  # noqa: E731
    x, offsets = strided((3, 5), (2, 5)), torch.tensor([0, 3, 5])
    jagged = lambda *shape: torch.nested.nested_tensor_from_jagged(torch.randn(shape), offsets)  # noqa: E731
    j, w, few = jagged(5, 5), torch.randn(4, 5), torch.randn(1)
    ones = torch.ones(5)
    return {
        "gelu": lambda: aten.gelu_backward(strided((3, 4), (2, 4)), x),
        "gelu_jagged": lambda: aten.gelu_backward(jagged(5, 1), j),
        "softmax": lambda: aten._softmax_backward_data(strided((3, 4), (2, 4)), x, 1, torch.float32),
        "softmax_jagged": lambda: aten._softmax_backward_data(jagged(5, 1), j, 2, torch.float32),
        "linear": lambda: aten.linear_backward(x, strided((3, 3), (2, 3)), w, [True, True, True]),
        "linear_jagged": lambda: aten.linear_backward(j, jagged(5, 3), w, [True, True, True]),
        "norm_mean": lambda: aten.native_layer_norm_backward(x, x, [5], few, ones, ones, ones, [True] * 3),
        "norm_weight": lambda: aten.native_layer_norm_backward(x, x, [5], ones, ones, few, ones, [True] * 3),
        "norm_jagged": lambda: aten.native_layer_norm_backward(j, j, [5], ones, few, ones, ones, [True] * 3),
        "sum": lambda: aten._nested_sum_backward(strided((2, 1), (2, 1)), x, [-1], True),
        "sum_jagged": lambda: aten._nested_sum_backward(torch.randn(1, 5), j, [1]),
        "select": lambda: aten._nested_select_backward(torch.randn(1, 5), x, 0, 0),
        "select_inside": lambda: aten._nested_select_backward(strided((1,), (1,)), x, 2, 0),
        "select_jagged": lambda: aten._nested_select_backward(torch.randn(1, 5), j, 0, 0),
        "matmul": lambda: aten.matmul_backward(strided((3, 3), (1, 2)), x, strided((5, 3), (5, 2)), [True, True]),
        "matmul_jagged": lambda: aten.matmul_backward(jagged(5, 3), j, torch.randn(5, 4), [True, True]),
        "matmul_stack": lambda: aten.matmul_backward(jagged(5, 4), j, torch.randn(2, 3, 4), [True, True]),
    }


@pytest.mark.parametrize("name", wrong_sizes())
def test_wrong_sizes_reach_no_kernel_of_ours(name):
    with drop_in.enable(only="nested", strict=True):
        with pytest.raises(_native.UnsupportedError, match="size|element|shape"):
            wrong_sizes()[name]()


def test_compiled_jagged_backwards_are_pytorchs():
    """The compiler traces PyTorch's own decomposition into operators on the values; the reason is told."""
    offsets, weight = torch.tensor([0, 3, 3, 8]), torch.randn(5, 7)
    values = torch.randn(8, 7, requires_grad=True)

    def step(values):
        x = torch.nested.nested_tensor_from_jagged(values, offsets, min_seqlen=0, max_seqlen=5)
        return F.gelu(F.linear(x, weight)).values().sum()

    wanted, = torch.autograd.grad(step(values), values)
    torch.compiler.reset()
    with drop_in.enable(only="nested"):
        drop_in.reset_stats()
        got, = torch.autograd.grad(torch.compile(step, backend="aot_eager", fullgraph=True)(values), values)
        counts = drop_in.stats()
    torch.testing.assert_close(got, wanted)
    assert counts["gelu_backward"]["taken"] == 0
    assert any("not a plain tensor" in reason for reason in counts["gelu_backward"]["reasons"])
