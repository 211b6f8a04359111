# SPDX-License-Identifier: MIT
"""enable(), disable(), fallbacks, counts and logs; compile, vmap, threads and determinism through the drop-in."""
from __future__ import annotations

import logging
import os
import threading

import pytest

torch = pytest.importorskip("torch")
native = pytest.importorskip("sternway._native")

import torch.nn.functional as F  # noqa: E402
from enable_reference import check, flash, gradients  # noqa: E402

from sternway.torch import _takeover  # noqa: E402
from sternway.torch.enable import disable, enable, reset_stats, stats  # noqa: E402

OPERATOR = "_scaled_dot_product_flash_attention_for_cpu_backward"
ATEN = torch.ops.aten


@pytest.fixture(autouse=True)
def clean():
    reset_stats()
    _takeover._operators[OPERATOR].logged.clear()
    torch.manual_seed(20)
    yield
    disable()


def backward(dim=8, **options):
    x = torch.randn(1, 2, 5, dim, requires_grad=True)
    with flash():
        F.scaled_dot_product_attention(x, x, x, **options).square().sum().backward()
    return x


def taken():
    return stats().get(OPERATOR, {"taken": 0})["taken"]


def test_nothing_is_taken_over_unasked():
    backward()
    assert stats() == {}


def test_global_and_block():
    with enable() as setting:
        assert OPERATOR in setting.operators
        backward()
        with enable(only="nested"):
            backward()
            assert taken() == 1
        backward()
        assert taken() == 2
    backward()
    assert taken() == 2
    enable()
    enable()
    with enable(only=[]):
        backward()
    assert taken() == 2
    backward()
    assert taken() == 3
    disable()
    backward()
    assert taken() == 3


def test_block_that_ends_after_another_began():
    first, second = enable(), None
    first.__enter__()
    second = enable(only="nested").__enter__()
    first.__exit__(None, None, None)
    backward()
    assert taken() == 0
    second.__exit__(None, None, None)
    backward()
    assert taken() == 0 and not _takeover._active
    with pytest.raises(RuntimeError, match="entered already"):
        first.__enter__()


def test_settings_do_not_pile_up():
    from sternway.torch.enable import _stack
    for _ in range(50):
        enable()
    assert len(_stack) == 1
    for _ in range(50):
        with enable():
            pass
    assert len(_stack) == 1


@pytest.mark.parametrize("only", [OPERATOR, (OPERATOR,), f"aten::{OPERATOR}", f"{OPERATOR}.default", "attention", None],
                         ids=str)
def test_only(only):
    with enable(only=only):
        backward()
    assert taken() == 1


def test_only_another():
    with enable(only="_flash_attention_backward"):
        backward()
    assert stats() == {}


def test_unknown_name():
    with pytest.raises(ValueError, match="_flash_attention_backwards"):
        enable(only="_flash_attention_backwards")
    assert not _takeover._active


def test_fallback_is_counted_and_logged_once(caplog):
    caplog.set_level(logging.WARNING, "sternway.torch")
    with enable():
        x, y = backward(dim=257), backward(dim=257)
    reasons = stats()[OPERATOR]["reasons"]
    assert stats()[OPERATOR]["fallback"] == 2 and list(reasons.values()) == [2]
    reason, = reasons
    assert "257" in reason
    assert [record.getMessage() for record in caplog.records] == [f"sternway: {OPERATOR} runs PyTorch's own kernel: {reason}"]
    for leaf in (x, y):
        assert leaf.grad is not None and leaf.grad.abs().sum() > 0


def test_fallback_is_pytorchs_result():
    x = torch.randn(1, 2, 5, 300)
    out, lse = ATEN._scaled_dot_product_flash_attention_for_cpu(x, x, x)
    call = (torch.randn_like(x), x, x, x, out, lse, 0.0, True)
    theirs = getattr(ATEN, OPERATOR)(*call)
    with enable():
        ours = getattr(ATEN, OPERATOR)(*call)
    assert stats()[OPERATOR]["fallback"] == 1
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs))


def test_strict_raises_the_reason():
    with enable(strict=True), pytest.raises(native.UnsupportedError, match="257"):
        backward(dim=257)
    assert stats() == {}


def test_strict_raises_fallbacks_of_the_binding():
    x = torch.randn(1, 2, 5, 8)
    with enable(strict=True), pytest.raises(native.UnsupportedError, match="dropout"):
        getattr(ATEN, OPERATOR)(x, x, x, x, x, x[..., 0], 0.5, False)


def test_invalid_raises():
    x = torch.randn(1, 2, 5, 8)
    with enable(), pytest.raises(native.InvalidError):
        getattr(ATEN, OPERATOR)(x, x, x[:, :, :, :4], x, x, x[..., 0], 0.0, False)
    assert stats() == {}


def test_reasons_are_bounded(caplog):
    operator = _takeover.Operator("test", "nested")
    for size in range(1000):
        operator.refused(_takeover.Fallback(f"size {size}"), strict=False)
    assert len(operator.reasons) == _takeover.MAX_REASONS + 1
    assert sum(operator.reasons.values()) == 1000
    assert len(caplog.records) == _takeover.MAX_REASONS + 1


def test_unknown_schema_is_refused(monkeypatch):
    monkeypatch.setattr(_takeover._operators[OPERATOR], "schemas", {"aten::another() -> ()"})
    with pytest.raises(native.UnsupportedError, match=f"(?s){torch.__version__.split('+')[0]}.*{OPERATOR}"):
        enable()
    assert not _takeover._active
    backward()
    assert stats() == {}
    with enable(only="_flash_attention_backward"):
        pass


def test_operator_that_this_pytorch_lacks():
    _takeover.register("_an_operator_of_tomorrow_attention", ("CPU",), lambda: None, "aten::x() -> ()")
    try:
        with enable() as setting:
            assert "_an_operator_of_tomorrow_attention" not in setting.operators
    finally:
        del _takeover._operators["_an_operator_of_tomorrow_attention"]


def test_double_backward_keeps_pytorchs_message():
    x = torch.randn(1, 2, 5, 8, requires_grad=True)
    with flash(), enable():
        grad, = torch.autograd.grad(F.scaled_dot_product_attention(x, x, x).square().sum(), x, create_graph=True)
        with pytest.raises(RuntimeError, match="not implemented"):
            grad.sum().backward()


def test_other_registrations_stay_in_force():
    """A kernel that someone else registers later is what a fallback runs, and does not displace ours."""
    calls = []

    def theirs(grad_out, q, k, v, out, lse, dropout_p, is_causal, *, attn_mask=None, scale=None):
        calls.append(q.shape)
        return torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)

    with enable():
        library = torch.library.Library("aten", "IMPL")
        library.impl(OPERATOR, theirs, "CPU")
        try:
            backward()
            assert taken() == 1 and not calls
            backward(dim=257)
            assert len(calls) == 1
        finally:
            library._destroy()


@pytest.mark.parametrize("dynamic", [False, True])
def test_compile(dynamic):
    torch._dynamo.reset()
    linear = torch.nn.Linear(8, 24)

    @torch.compile(backend="aot_eager", fullgraph=True, dynamic=dynamic)
    def loss(x):
        q, k, v = (y.unflatten(-1, (2, -1)).transpose(1, 2) for y in linear(x).chunk(3, -1))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).square().sum()

    for length in (7, 11):
        x = torch.randn(2, length, 8)
        with flash():
            theirs, = torch.autograd.grad(loss(x), linear.weight)
            with enable(strict=True):
                before = taken()
                ours, = torch.autograd.grad(loss(x), linear.weight)
                assert taken() == before + 1
        check(ours, theirs.double(), 1e-5)


def test_vmap():
    x = torch.randn(3, 1, 2, 5, 8)

    def loss(y):
        return F.scaled_dot_product_attention(y, y, y).square().sum()

    with flash():
        theirs = torch.func.vmap(torch.func.grad(loss))(x)
        with enable(strict=True):
            ours = torch.func.vmap(torch.func.grad(loss))(x)
    assert taken() > 0
    check(ours, theirs.double(), 1e-5)


def test_inference_mode():
    x, dout = torch.randn(1, 2, 5, 8), torch.randn(1, 2, 5, 8)
    with torch.inference_mode(), enable(strict=True):
        out, lse = ATEN._scaled_dot_product_flash_attention_for_cpu(x, x, x)
        result = getattr(ATEN, OPERATOR)(dout, x, x, x, out, lse, 0.0, False)
    assert taken() == 1
    for actual, reference in zip(result, gradients(x, x, x, dout)):
        check(actual, reference)


def test_fake_tensors():
    from torch._subclasses.fake_tensor import FakeTensorMode
    with enable(strict=True), FakeTensorMode():
        x = torch.empty(1, 2, 5, 8)
        result = getattr(ATEN, OPERATOR)(x, x, x, x, x, x[..., 0], 0.0, False)
    assert [grad.shape for grad in result] == [x.shape] * 3
    assert stats() == {}


def test_threads():
    x, dout = torch.randn(2, 3, 37, 16), torch.randn(2, 3, 37, 16)
    out, lse = ATEN._scaled_dot_product_flash_attention_for_cpu(x, x, x)
    expected = gradients(x, x, x, dout)
    errors = []

    def work():
        try:
            for _ in range(20):
                with enable(strict=True):
                    result = getattr(ATEN, OPERATOR)(dout, x, x, x, out, lse, 0.0, False)
                for actual, reference in zip(result, expected):
                    check(actual, reference)
        except BaseException as error:  # handed to the test's own thread
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    with enable(strict=True):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not errors
    assert taken() == 160
    assert not _takeover._active


def test_blocks_of_two_threads_that_begin_in_between():
    """A thread's enable() may stand between another's enable() and its `with`; what was in force before comes back."""
    def elsewhere(function):
        thread = threading.Thread(target=function)
        thread.start()
        thread.join()

    outer = enable(only="attention")
    first, second = enable(strict=True), []
    elsewhere(lambda: second.append(enable(strict=True)))
    with first:
        elsewhere(second[0].__enter__)
        assert _takeover._active
    assert _takeover._active
    second[0].__exit__(None, None, None)
    assert _takeover._active == outer.switches


@pytest.mark.parametrize("warn_only", [False, True])
def test_deterministic(warn_only):
    x = torch.randn(2, 3, 67, 16, requires_grad=True)
    torch.use_deterministic_algorithms(True, warn_only=warn_only)
    try:
        with flash(), enable(strict=True):
            grads = [torch.autograd.grad(F.scaled_dot_product_attention(x, x, x).square().sum(), x)[0]
                     for _ in range(3)]
    finally:
        torch.use_deterministic_algorithms(False)
    assert taken() == 3
    assert torch.equal(grads[0], grads[1]) and torch.equal(grads[0], grads[2])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_fork():
    """What the parent enabled is in force in a child, which has none of the parent's threads."""
    x, dout = torch.randn(2, 3, 37, 16), torch.randn(2, 3, 37, 16)
    out, lse = ATEN._scaled_dot_product_flash_attention_for_cpu(x, x, x)
    with enable(strict=True):
        expected = getattr(ATEN, OPERATOR)(dout, x, x, x, out, lse, 0.0, False)
        child = os.fork()
        if child == 0:
            try:
                result = getattr(ATEN, OPERATOR)(dout, x, x, x, out, lse, 0.0, False)
                os._exit(0 if taken() == 2 and all(torch.equal(a, b) for a, b in zip(result, expected)) else 1)
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_number_of_threads_is_pytorchs(monkeypatch):
    seen, real = [], native.attn_bwd
    monkeypatch.setattr(native, "attn_bwd", lambda *args, **options: (seen.append(options), real(*args, **options))[1])
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with enable(strict=True):
            backward()
    finally:
        torch.set_num_threads(before)
    assert [options["cpu_threads"] for options in seen] == [3]


def test_nested_key_without_dense_calls():
    """An operator taken over for nested tensors alone: nested calls and their fallback, dense calls not at all."""
    calls = []

    def implementation(x):
        calls.append(x.is_nested)
        if x.size(0) == 3:
            raise _takeover.Fallback("three of them")
        return x

    _takeover.register("sin", ("NestedTensorCPU",), implementation, str(ATEN.sin.default._schema))
    try:
        two, three = (torch.nested.nested_tensor([torch.randn(3 + i, 4) for i in range(n)]) for n in (2, 3))
        with enable(only="sin"):
            assert torch.equal(torch.sin(two)[1], two[1])
            assert torch.equal(torch.sin(three)[2], torch.sin(three[2]))
            with pytest.raises(native.UnsupportedError, match="three"), enable(only="sin", strict=True):
                torch.sin(three)
        assert calls == [True, True, True]
        assert stats()["sin"] == {"taken": 1, "fallback": 1, "reasons": {"three of them": 1}}
        assert torch.equal(torch.sin(two)[1], torch.sin(two[1]))
    finally:
        disable()
        del _takeover._operators["sin"]
