# SPDX-License-Identifier: MIT
"""Backward of a linear layer over nested tensors of both layouts: rows of all components together."""
from __future__ import annotations

from collections.abc import Sequence

import torch

from .. import _native
from ._nested_views import Jagged, fit, flat, is_jagged, packed, run, same_components, same_dtype
from ._takeover import Fallback


def linear_backward(self: torch.Tensor, grad_output: torch.Tensor | None, weight: torch.Tensor,
                    output_mask: Sequence[bool]) -> tuple[torch.Tensor | None, ...]:
    if grad_output is None:
        return None, None, None
    same_dtype(self=self, grad_output=grad_output, weight=weight)
    if weight.dim() != 2:
        raise Fallback(f"a weight of {weight.dim()} dimensions")
    if is_jagged(self):
        return _linear_jagged(self, grad_output, weight, output_mask)
    if not grad_output.is_nested:
        raise Fallback("grad_output is not a nested tensor")
    x, grad = packed(self, "self"), packed(grad_output.contiguous(), "grad_output")
    dx = torch.empty_like(self) if output_mask[0] else None
    dweight, dbias = linear_rows(x, grad, weight, dx.values() if dx is not None else None, output_mask[1:])
    return dx, dweight, dbias


def _linear_jagged(self: torch.Tensor, grad_output: torch.Tensor, weight: torch.Tensor,
                   output_mask: Sequence[bool]) -> tuple[torch.Tensor | None, ...]:
    if not is_jagged(grad_output):
        raise Fallback("grad_output is not a nested tensor")
    x, g = Jagged(self), Jagged(grad_output)
    same_components(x, g, "self and grad_output")
    if x.used is not None or x.ragged == x.values.dim() - 1:
        raise Fallback("a linear layer over a jagged tensor with holes, or over its ragged dimension")
    values = x.contiguous("self")
    fit((values.shape[-1], weight.shape[1]), (g.values.shape, (*values.shape[:-1], weight.shape[0])))
    dx = torch.empty_like(values) if output_mask[0] else None
    dweight, dbias = linear_rows(values, g.values.contiguous(), weight, dx, output_mask[1:])
    return x.wrap(dx) if dx is not None else None, dweight, dbias


def linear_rows(x: torch.Tensor, grad: torch.Tensor, weight: torch.Tensor, dx: torch.Tensor | None,
                wanted: Sequence[bool]) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Gradients of rows X [.., K], G [.., N] and W [N, K], all contiguous but W: writes dX, returns dW and dbias."""
    features, inner = weight.shape
    if inner and features:
        fit((x.numel() % inner, 0), (grad.numel(), x.numel() // inner * features))
    make = torch.empty if x.numel() and grad.numel() else torch.zeros
    dweight = make((features, inner), dtype=weight.dtype, device=x.device) if wanted[0] else None
    dbias = make((features,), dtype=weight.dtype, device=x.device) if wanted[1] else None
    if make is torch.empty:
        call = flat(x.device, x.numel() // inner, inner)
        if torch.version.hip and torch.are_deterministic_algorithms_enabled():
            call["flags"] = 0  # hipBLASLt's products, which FULL asks for, are not deterministic
        if dx is not None or dweight is not None or dbias is not None:
            run(_native.JAGGED_LINEAR, grad=grad, x=x, weight=weight.contiguous(), dx=dx,
                               dweight=dweight, dbias=dbias, out_features=features, **call)
    else:
        if grad.numel() and dbias is not None:  # K is 0: the bias has a gradient all the same
            raise Fallback("a linear layer without inputs")
        if dx is not None:
            dx.zero_()
    return dweight, dbias
