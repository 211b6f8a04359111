# SPDX-License-Identifier: MIT
"""Tensors whose memory is not their content, forward-mode AD and other uses of PyTorch off the beaten track: results
are right, or an exception says what is not there."""
from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import sternway  # noqa: E402
import sternway.flash_attn as flash_attn  # noqa: E402
import sternway.torch  # noqa: E402


def _flash(q, k, v):
    return flash_attn.flash_attn_func(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)).transpose(1, 2)


def _operator(q, k, v):
    return torch.ops.sternway.attn_fwd(q, k, v)[0]


FUNCTIONS = pytest.mark.parametrize("function", [sternway.torch.sdpa, _flash, _operator],
                                    ids=["sdpa", "flash", "operator"])


def _tensors(requires_grad: bool = False):
    return [torch.randn(2, 2, rows, 8, requires_grad=requires_grad) for rows in (5, 7, 7)]


def _reference(q, k, v):
    q, k, v = q.double(), k.double(), v.double()
    return torch.softmax(q @ k.mT / 8**0.5, -1) @ v


def _negative(tensor):
    """A view that is -tensor."""
    view = torch.complex(tensor, tensor).conj().imag
    assert view.is_neg()
    return view


def _close(found, expected) -> None:
    torch.testing.assert_close(found.double(), expected.double(), atol=2e-6, rtol=1e-5)


@FUNCTIONS
@pytest.mark.parametrize("which", range(3))
def test_negative_views(function, which: int) -> None:
    tensors = _tensors()
    expected = list(tensors)
    expected[which] = -tensors[which]
    tensors[which] = _negative(tensors[which])
    _close(function(*tensors), _reference(*expected))


@FUNCTIONS
def test_gradients_of_negative_views(function) -> None:
    tensors = _tensors(requires_grad=True)
    dout = torch.randn(2, 2, 5, 8)
    found = torch.autograd.grad(function(tensors[0], _negative(tensors[1]), tensors[2]), tensors, _negative(dout))
    expected = torch.autograd.grad(_reference(tensors[0], -tensors[1], tensors[2]), tensors, -dout.double())
    for one, other in zip(found, expected):
        _close(one, other)


def test_negative_bias() -> None:
    q, k, v = _tensors(requires_grad=True)
    bias = torch.randn(1, 2, 5, 7)
    _close(torch.autograd.grad(sternway.torch.sdpa(q, k, v, _negative(bias)).square().sum(), q)[0],
           torch.autograd.grad(sternway.torch.sdpa(q, k, v, -bias).square().sum(), q)[0])


def test_negative_view_is_refused_where_nobody_resolves_it() -> None:
    q, k, v = _tensors()
    with pytest.raises(sternway.InvalidError, match="resolve_neg"):
        sternway.attn_fwd(_negative(q), k, v)
    x = torch.randn(6, 3)
    with pytest.raises(sternway.InvalidError, match="resolve_neg"):
        sternway.jagged.silu_backward(x, _negative(x), torch.tensor([0, 2, 6]))


def test_nested_operator_of_negative_view() -> None:
    x, grad = torch.randn(6, 3), torch.randn(6, 3)
    offsets = torch.tensor([0, 2, 6])
    _close(torch.ops.sternway.nested_silu_backward(_negative(grad), x, offsets, full=True),
           torch.ops.sternway.nested_silu_backward(-grad, x, offsets, full=True))


@FUNCTIONS
def test_zeros_without_memory(function) -> None:
    q, k, v = _tensors()
    _close(function(torch._efficientzerotensor(q.shape), k, v), _reference(torch.zeros_like(q), k, v))


@FUNCTIONS
def test_forward_mode_is_refused(function) -> None:
    q, k, v = _tensors()
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(q, q)
        with pytest.raises(RuntimeError, match="forward-mode"):
            function(dual, k, v)
        _close(function(q, k, v), _reference(q, k, v))
    with pytest.raises(RuntimeError, match="forward-mode"):
        torch.func.jvp(lambda x: function(x, k, v), (q,), (q,))


@FUNCTIONS
def test_functionalize(function) -> None:
    tensors = _tensors()
    _close(torch.func.functionalize(function)(*tensors), _reference(*tensors))


@FUNCTIONS
def test_vmap(function) -> None:
    tensors = [torch.stack([t, 2 * t]) for t in _tensors()]
    found = torch.func.vmap(function)(*tensors)
    for at in range(2):
        _close(found[at], _reference(*(t[at] for t in tensors)))


def test_batched_gradients_of_flash_attn() -> None:
    tensors = _tensors(requires_grad=True)
    dout = torch.randn(3, 2, 2, 5, 8)
    found = torch.autograd.grad(_flash(*tensors), tensors, dout, is_grads_batched=True)
    for at in range(3):
        for one, other in zip(found, torch.autograd.grad(_reference(*tensors), tensors, dout[at].double())):
            _close(one[at], other)


# ---- results in the caller's tensors --------------------------------------------------------------------------------
def test_result_that_requires_a_gradient_is_refused() -> None:
    q, k, v = _tensors()
    out, lse = sternway.attn_fwd(q, k, v)
    tracked = torch.zeros_like(q, requires_grad=True)
    for call in (lambda: sternway.attn_bwd(out, q, k, v, out, lse, dq=tracked),
                 lambda: sternway.attn_fwd(q, k, v, out=tracked),
                 lambda: sternway.jagged.silu_backward(torch.ones(4, 3), torch.ones(4, 3), torch.tensor([0, 4]),
                                                       dx=torch.zeros(4, 3, requires_grad=True))):
        with pytest.raises(sternway.InvalidError, match="requires a gradient"):
            call()


def test_autograd_sees_that_a_saved_tensor_is_written() -> None:
    q, k, v = _tensors()
    out, lse = sternway.attn_fwd(q, k, v)
    dq, scale = torch.ones_like(q), torch.ones(1, requires_grad=True)
    product = (scale * dq).sum()
    sternway.attn_bwd(out, q, k, v, out, lse, dq=dq)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()
    with torch.inference_mode():
        written = torch.zeros_like(q)
    sternway.attn_bwd(out, q, k, v, out, lse, dq=written)
    assert torch.equal(written, dq)


def test_outputs_that_name_nothing_are_refused() -> None:
    q, k, v = _tensors()
    out, lse = sternway.attn_fwd(q, k, v)
    with pytest.raises(sternway.InvalidError, match="outputs"):
        torch.ops.sternway.attn_bwd(out, q, k, v, out, lse, outputs=64)


# ---- the drop-in ----------------------------------------------------------------------------------------------------
def test_stats_from_within_the_lock() -> None:
    """As a signal handler or a finalizer calls it that comes in while a counter is set."""
    from sternway.torch import _takeover

    assert _takeover._lock.acquire(timeout=1)
    try:
        second = _takeover._lock.acquire(timeout=1)
        assert second, "the same thread waits for itself"
        _takeover._lock.release()
        sternway.torch.stats()
    finally:
        _takeover._lock.release()


def test_switching_while_backwards_run() -> None:
    import threading

    tensors = _tensors(requires_grad=True)
    dout = torch.randn(2, 2, 5, 8)
    expected = torch.autograd.grad(_reference(*tensors), tensors, dout.double())
    stop, errors = threading.Event(), []

    def switch() -> None:
        while not stop.is_set():
            with sternway.torch.enable("attention", strict=True):
                sternway.torch.enable()
            sternway.torch.disable()

    def work() -> None:
        try:
            for _ in range(100):
                out = torch.nn.functional.scaled_dot_product_attention(*tensors)
                for one, other in zip(torch.autograd.grad(out, tensors, dout), expected):
                    _close(one, other)
        except BaseException as error:
            errors.append(error)

    switcher = threading.Thread(target=switch)
    workers = [threading.Thread(target=work) for _ in range(3)]
    for thread in (switcher, *workers):
        thread.start()
    for thread in workers:
        thread.join()
    stop.set()
    switcher.join()
    sternway.torch.disable()
    assert not errors
