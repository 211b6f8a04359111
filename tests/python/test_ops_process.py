# SPDX-License-Identifier: MIT
"""The operators among threads, after a fork, under PyTorch's switches and its checkers."""
from __future__ import annotations

import os
import threading

import pytest

torch = pytest.importorskip("torch")

import sternway.torch  # noqa: E402,F401
from sternway.torch import _bridge, sdpa  # noqa: E402


def step(seed=0, sq=33):
    g = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(2, 3, n, 16, generator=g).requires_grad_() for n in (sq, 45, 45))
    out = sdpa(q, k, v, is_causal=True)
    return out, torch.autograd.grad(out.square().sum(), (q, k, v))


def same(a, b):
    return torch.equal(a[0], b[0]) and all(torch.equal(x, y) for x, y in zip(a[1], b[1]))


def test_threads():
    wants = {(seed, sq): step(seed, sq) for seed in range(3) for sq in (7, 33)}
    wrong = []

    def work(seed):
        for _ in range(20):
            for sq in (7, 33):
                if not same(step(seed, sq), wants[seed, sq]):
                    wrong.append((seed, sq))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_after_a_fork():
    want = step()
    torch.set_num_threads(1)  # PyTorch's own pool of threads does not live in a child
    child = os.fork()
    if child == 0:
        ok = False
        try:
            ok = same(step(), want)
        finally:
            os._exit(0 if ok else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert same(step(), want)


@pytest.mark.parametrize("warn_only", [False, True])
def test_deterministic_switch_reaches_the_call(warn_only, monkeypatch):
    seen = []
    original = _bridge._native.attn_bwd
    monkeypatch.setattr(_bridge._native, "attn_bwd",
                        lambda *a, **k: (seen.append(k.get("deterministic")), original(*a, **k)))
    step()
    torch.use_deterministic_algorithms(True, warn_only=warn_only)
    try:
        step()
    finally:
        torch.use_deterministic_algorithms(False)
    q = torch.randn(1, 1, 3, 8, requires_grad=True)
    sdpa(q, q, q, deterministic=False).sum().backward()
    assert seen == [None, True, False]


def test_number_of_threads_is_pytorch_s(monkeypatch):
    seen = []
    original = _bridge._native.attn_bwd
    monkeypatch.setattr(_bridge._native, "attn_bwd",
                        lambda *a, **k: (seen.append(k["cpu_threads"]), original(*a, **k)))
    before = torch.get_num_threads()
    try:
        for n in (1, 2):
            torch.set_num_threads(n)
            step()
    finally:
        torch.set_num_threads(before)
    assert seen == [1, 2]


def test_gradcheck_in_float64():
    g = torch.Generator().manual_seed(0)
    q, k, v, bias = (torch.randn(*s, generator=g, dtype=torch.float64).requires_grad_()
                     for s in ((1, 2, 3, 4), (1, 1, 5, 4), (1, 1, 5, 4), (1, 2, 1, 5)))
    assert torch.autograd.gradcheck(lambda *t: sdpa(*t, enable_gqa=True, return_lse=True, softcap=1.5), (q, k, v, bias))


def test_checkpoint_and_saved_tensor_hooks():
    from torch.utils.checkpoint import checkpoint

    g = torch.Generator().manual_seed(0)
    leaves = [torch.randn(2, 3, 9, 16, generator=g).requires_grad_() for _ in range(3)]
    want = torch.autograd.grad(sdpa(*leaves).square().sum(), leaves)
    got = torch.autograd.grad(checkpoint(sdpa, *leaves, use_reentrant=False).square().sum(), leaves)
    with torch.autograd.graph.save_on_cpu():
        moved = torch.autograd.grad(sdpa(*leaves).square().sum(), leaves)
    assert all(torch.equal(a, b) and torch.equal(a, c) for a, b, c in zip(want, got, moved))


def test_inputs_changed_before_the_backward_are_noticed():
    q, k, v = (torch.randn(1, 2, 5, 8, requires_grad=True) for _ in range(3))
    scaled = k * 1.0
    out = sdpa(q, scaled, v)
    scaled.add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_modes_see_the_operator():
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        step()
    names = {event.key for event in recorded.key_averages()}
    assert {"sternway::attn_fwd", "sternway::attn_bwd"} <= names
    meta = torch.empty(2, 3, 9, 16, device="meta")
    assert sdpa(meta, meta, meta).shape == meta.shape
