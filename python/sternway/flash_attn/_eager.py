# SPDX-License-Identifier: MIT
"""The short way of an eager call: an autograd.Function straight above the library, where nobody traces or watches
operators; everybody else gets the operators of _operators.py. The dispatcher's Python layers would cost each forward
and backward as much again as all the rest of the call."""
from __future__ import annotations

import torch
from torch import Tensor

from ..torch._autograd import call_plain, refuse_tangents
from . import _calls, _operators

_PLAIN = {torch.Tensor, torch.nn.Parameter, type(None)}
# Where a version of PyTorch lacks one of these, every call goes through the operators.
_modes = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 1)
_transforms = getattr(torch._C._functorch, "peek_interpreter_stack", lambda: True)
_tracing = getattr(torch._C, "_get_tracing_state", lambda: True)


def _watched(q: Tensor, k: Tensor | None, v: Tensor | None) -> bool:
    """Whether a compiler, a tracer, a dispatch mode or a subclass of tensors wants to see operators."""
    return (torch.compiler.is_compiling() or type(q) not in _PLAIN or type(k) not in _PLAIN or type(v) not in _PLAIN
            or _modes() > 0 or _transforms() is not None or _tracing() is not None)


def _backward_operator(dout, dlse, q, k, v, out, lse, rng_state, *arguments):
    """_calls.backward by the operator, whose results are tensors all."""
    state = rng_state if rng_state is not None else q.new_empty(0, dtype=torch.int64)
    gradients = _operators.attention_backward(dout, dlse, q, k, v, out, lse, state, *arguments)
    return [gradient if arguments[-1] >> bit & 1 else None for bit, gradient in enumerate(gradients)]


class SternwayFlashAttention(torch.autograd.Function):
    """The two operators' work, without the operators."""

    @staticmethod
    def forward(ctx, q, k, v, cu_seqlens_q, cu_seqlens_k, alibi_slopes, *settings):
        arguments = (q, k, v, cu_seqlens_q, cu_seqlens_k, alibi_slopes, *settings)
        out, lse, probs, rng_state = call_plain(_calls.forward, _operators.attention, arguments, {})
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(q, k, v, out, lse, rng_state, cu_seqlens_q, cu_seqlens_k, alibi_slopes)
        ctx.settings = settings[:-1]
        if probs is None:
            return out, lse, None
        ctx.mark_non_differentiable(probs)
        return out, lse, probs

    @staticmethod
    def backward(ctx, dout, dlse, _):
        wanted = sum(needed << bit for bit, needed in enumerate(ctx.needs_input_grad[:3]))
        q, k, v, out, lse, rng_state, *others = ctx.saved_tensors
        if dout is None and dlse is None:
            return (None,) * 16
        if dout is None:  # only LSE is in the loss
            dout = torch.zeros_like(out)
        arguments = (*others, *ctx.settings, wanted)
        if torch.is_grad_enabled() or _watched(dout, dlse, None):  # with create_graph: it refuses a second backward
            gradients = _backward_operator(dout, dlse, q, k, v, out, lse, rng_state, *arguments)
        else:
            tensors = (dout, dlse, q, k, v, out, lse, rng_state)
            gradients = call_plain(_calls.backward, _backward_operator, (*tensors, *arguments), {})
        return (*gradients, *(None,) * 13)


def attention(q: Tensor, k: Tensor | None, v: Tensor | None, *arguments) -> tuple[Tensor, Tensor, Tensor | None]:
    """out, LSE and S_dmask (None or empty where there is none) of the operator's arguments."""
    refuse_tangents((q, k, v))
    if _watched(q, k, v):
        return _operators.attention(q, k, v, *arguments)[:3]
    if torch.is_grad_enabled() and any(one is not None and one.requires_grad for one in (q, k, v)):
        return SternwayFlashAttention.apply(q, k, v, *arguments)
    return call_plain(_calls.forward, _operators.attention, (q, k, v, *arguments), {})[:3]
