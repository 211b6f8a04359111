# SPDX-License-Identifier: MIT
"""The operators sternway_flash::attention and ::attention_backward: dense and packed, q, k and v in one, two or three
tensors. PyTorch's dispatcher knows their shapes and gradients, so torch.compile keeps them in its graph, and modes that
look at operators see them."""
from __future__ import annotations

import torch

from . import _calls
from ._forward import as_torch_takes, torch_takes
from ._probabilities import rounded
from ._problem import check_extras, split

_SETTINGS = ("Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, Tensor? alibi_slopes, SymInt max_seqlen_q, "
             "SymInt max_seqlen_k, float dropout_p, float? scale, bool causal, SymInt window_left, "
             "SymInt window_right, float softcap, bool deterministic")
_library = torch.library.Library("sternway_flash", "DEF")
_library.define(f"attention(Tensor q, Tensor? k, Tensor? v, {_SETTINGS}, bool return_probs) -> "
                "(Tensor out, Tensor lse, Tensor probs, Tensor rng_state)", tags=(torch.Tag.nondeterministic_seeded,))
_library.define("attention_backward(Tensor dout, Tensor? dlse, Tensor q, Tensor? k, Tensor? v, Tensor out, Tensor lse, "
                f"Tensor rng_state, {_SETTINGS}, int wanted) -> (Tensor dq, Tensor dk, Tensor dv)")


def _attention(q, *arguments):
    out, lse, probs, rng_state = _calls.forward(q, *arguments)
    return (out, lse, q.new_empty(0) if probs is None else probs,
            q.new_empty(0, dtype=torch.int64) if rng_state is None else rng_state)


def _attention_fake(q, k, v, cu_seqlens_q, cu_seqlens_k, alibi_slopes, max_seqlen_q, max_seqlen_k, dropout_p, scale,
                    causal, window_left, window_right, softcap, deterministic, return_probs):
    q, k, v = split(q, k, v, cu_seqlens_q is not None)
    check_extras(q, cu_seqlens_q, cu_seqlens_k, alibi_slopes)
    if torch_takes(q, k, v, cu_seqlens_q, cu_seqlens_k, alibi_slopes, max_seqlen_k, dropout_p, causal, window_left,
                   window_right, softcap):
        out = torch.empty_like(as_torch_takes(q))[..., :v.shape[-1]]
    else:
        out = q.new_empty((*q.shape[:-1], v.shape[-1]))
    if cu_seqlens_q is None:
        batch, lse_shape = q.shape[0], (q.shape[0], q.shape[2], q.shape[1])
    else:
        batch, lse_shape = cu_seqlens_q.shape[0] - 1, (q.shape[1], q.shape[0])
    lse = q.new_empty(lse_shape, dtype=torch.float64 if q.dtype == torch.float64 else torch.float32)
    shape = 0
    if return_probs and dropout_p > 0:
        shape = (batch, q.shape[-2], rounded(max_seqlen_q), rounded(max_seqlen_k))
    return out, lse, q.new_empty(shape), q.new_empty(2 if dropout_p > 0 else 0, dtype=torch.int64)


def _given(q, gradients):
    return tuple(q.new_empty(0) if gradient is None else gradient for gradient in gradients)


def _attention_backward(dout, dlse, q, *arguments):
    return _given(q, _calls.backward(dout, dlse, q, *arguments))


def _attention_backward_fake(dout, dlse, q, k, v, *arguments):
    return _given(q, _calls.gradient_buffers(q, k, v, arguments[-1]))


def _save(ctx, inputs, output):
    q, k, v, cu_seqlens_q, cu_seqlens_k, alibi_slopes, *settings, _ = inputs
    out, lse, probs, rng_state = output
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(probs, rng_state)
    ctx.save_for_backward(q, k, v, out, lse, rng_state, cu_seqlens_q, cu_seqlens_k, alibi_slopes)
    ctx.settings = settings


def _backward(ctx, dout, dlse, *_):
    if dout is None and dlse is None:
        return (None,) * 16
    q, k, v, out, lse, rng_state, *others = ctx.saved_tensors
    if dout is None:  # only LSE is in the loss
        dout = torch.zeros_like(out)
    wanted = sum(needed << bit for bit, needed in enumerate(ctx.needs_input_grad[:3]))
    gradients = attention_backward(dout, dlse, q, k, v, out, lse, rng_state, *others, *ctx.settings, wanted)
    given = [gradient if wanted >> bit & 1 else None for bit, gradient in enumerate(gradients)]
    return (*given, *(None,) * 13)


def _no_second_backward(ctx, *_):
    raise NotImplementedError("sternway.flash_attn: the backward of attention has no backward of its own (double "
                              "backward, create_graph=True); use PyTorch's math attention where you need it")


_library.impl("attention", _attention, "CompositeExplicitAutograd")
_library.impl("attention_backward", _attention_backward, "CompositeExplicitAutograd")
torch.library.register_fake("sternway_flash::attention", _attention_fake, lib=_library)
torch.library.register_fake("sternway_flash::attention_backward", _attention_backward_fake, lib=_library)
torch.library.register_autograd("sternway_flash::attention", _backward, setup_context=_save, lib=_library)
torch.library.register_autograd("sternway_flash::attention_backward", _no_second_backward, lib=_library)

attention = torch.ops.sternway_flash.attention.default
attention_backward = torch.ops.sternway_flash.attention_backward.default
