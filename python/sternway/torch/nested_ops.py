# SPDX-License-Identifier: MIT
"""Backward operators of nested tensors, strided and jagged, for PyTorch's dispatcher and its table of jagged ones.

Each function here has the arguments of the aten operator that it is registered for and returns its results; what the
library does not take raises Fallback with the reason, and PyTorch's own code runs. Formulas: sternway/jagged_bwd.h.
Memory layout and types of results are PyTorch's, with None for gradients that were not asked for.

Where results differ from PyTorch's on purpose:
- positions of jagged tensors in no component (holes that `lengths` leave, rows in front of the first offset or behind
  the last) get zeros where the call follows the components, and what PyTorch computes from their contents otherwise;
- sums are in f32 and rounded once, so bf16 and f16 gradients of layer_norm's and linear's parameters are closer to the
  exact ones;
- log_softmax of jagged tensors has a backward, and layer_norm over the ragged dimension (PyTorch has the forwards
  alone);
- softmax along the ragged dimension of a jagged tensor gets its gradient along that dimension (PyTorch takes the next
  dimension of the values instead), sum and a select of an inner dimension get theirs (PyTorch raises).

reshape and view have no entry: their backward is a view of the gradient, nothing is computed. The operators between
values with offsets and padded ones (_jagged_to_padded_dense_forward and its converse) have no derivative in PyTorch.
torch.compile traces what PyTorch's table does with jagged tensors into operators on their values: a compiled backward
of jagged tensors is PyTorch's, which the log says."""
from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import torch

from .. import _native
from ._nested_linear import linear_backward
from ._nested_matmul import matmul_backward_jagged, matmul_backward_strided
from ._nested_moves import select_jagged, select_strided, sum_jagged, sum_strided
from ._nested_padded import from_padded_jagged, from_padded_strided, to_padded_jagged, to_padded_strided
from ._nested_table import in_backward, register
from ._nested_views import (Jagged, along, fit, flat, is_jagged, packed, run, same_components, same_dtype, same_sizes,
                            sizes_of)
from ._takeover import Fallback

# ---- pointwise ----


def _pointwise(op: int, grad: torch.Tensor, x: torch.Tensor, **fields: float) -> torch.Tensor:
    same_dtype(grad=grad, self=x)
    if is_jagged(x):
        return _pointwise_jagged(op, grad, x, **fields)
    grad_buffer, x_buffer = packed(grad, "grad"), packed(x, "self")
    same_sizes(grad, x, "grad and self")
    result = torch.empty_like(x)
    if x_buffer.numel():
        run(op, grad=grad_buffer, x=x_buffer, dx=result.values(), **fields,
            **flat(x.device, 1, x_buffer.numel()))
    return result


def _pointwise_jagged(op: int, grad: torch.Tensor, x: torch.Tensor, **fields: float) -> torch.Tensor:
    if not is_jagged(grad):
        raise Fallback("grad is not a nested tensor")
    g, v = Jagged(grad), Jagged(x)
    same_components(g, v, "grad and self")
    fit((g.values.shape, v.values.shape))
    order = v.order()
    grad_values, values = g.in_order(order, "grad"), v.in_order(order, "self")
    result = torch.empty_like(v.values) if v.used is None else torch.zeros_like(v.values)
    if values.numel():
        call = flat(values.device, 1, values.numel()) if v.used is None else v.ragged_call(order)
        run(op, grad=grad_values, x=values, dx=result.permute(order), **fields, **call)
    return v.wrap(result)


def gelu_backward(grad_output: torch.Tensor, self: torch.Tensor, *, approximate: str = "none") -> torch.Tensor:
    ops = {"none": _native.JAGGED_GELU, "tanh": _native.JAGGED_GELU_TANH}
    if approximate not in ops:
        raise Fallback(f"approximate={approximate!r}")
    return _pointwise(ops[approximate], grad_output, self)


def silu_backward(grad_output: torch.Tensor, self: torch.Tensor) -> torch.Tensor:
    return _pointwise(_native.JAGGED_SILU, grad_output, self)


def threshold_backward(grad_output: torch.Tensor, self: torch.Tensor, threshold: float) -> torch.Tensor:
    if not math.isfinite(threshold):
        raise Fallback(f"threshold {threshold} is not finite")
    return _pointwise(_native.JAGGED_THRESHOLD, grad_output, self, threshold=float(threshold))


# ---- softmax, log_softmax ----


def _same_softmax(grad_output: torch.Tensor, output: torch.Tensor, input_dtype: torch.dtype) -> None:
    same_dtype(grad_output=grad_output, output=output)
    if input_dtype != output.dtype:
        raise Fallback(f"the softmax's input was {input_dtype} and its result {output.dtype}")


def softmax_backward(grad_output: torch.Tensor, output: torch.Tensor, dim: int,
                     input_dtype: torch.dtype) -> torch.Tensor:
    _same_softmax(grad_output, output, input_dtype)
    if is_jagged(output):
        return _softmax_jagged(_native.JAGGED_SOFTMAX, grad_output, output, dim)
    grad_buffer, buffer = packed(grad_output, "grad_output"), packed(output, "output")
    same_sizes(grad_output, output, "grad_output and output")
    result = torch.empty_like(output)
    if not buffer.numel():
        return result
    sizes = sizes_of(output)
    column = dim % output.dim() - 1
    if column < 0:
        raise Fallback("softmax along the batch dimension")
    run(_native.JAGGED_SOFTMAX, grad=grad_buffer, y=buffer, dx=result.values(),
        **along(sizes, column, output.device))
    return result


def log_softmax_backward(grad_output: torch.Tensor, output: torch.Tensor, dim: int,
                         input_dtype: torch.dtype) -> torch.Tensor:
    _same_softmax(grad_output, output, input_dtype)
    return _softmax_jagged(_native.JAGGED_LOG_SOFTMAX, grad_output, output, dim)


def _softmax_jagged(op: int, grad_output: torch.Tensor, output: torch.Tensor, dim: int) -> torch.Tensor:
    if not is_jagged(grad_output):
        raise Fallback("grad_output is not a nested tensor")
    g, y = Jagged(grad_output), Jagged(output)
    same_components(g, y, "grad_output and output")
    fit((g.values.shape, y.values.shape))
    value_dim = dim % (y.values.dim() + 1) - 1
    if value_dim < 0:
        raise Fallback("softmax along the batch dimension")
    order = y.order()
    grad_values, values = g.in_order(order, "grad_output"), y.in_order(order, "output")
    through = value_dim == y.ragged or y.used is not None
    result = y.fresh(y.values) if through else torch.empty_like(y.values)
    if values.numel():
        run(op, grad=grad_values, y=values, dx=result.permute(order),
            **y.along(value_dim, order))
    return y.wrap(result)


# ---- layer norm ----


def layer_norm_backward(grad_out: torch.Tensor, input: torch.Tensor, normalized_shape: Sequence[int],
                        mean: torch.Tensor, rstd: torch.Tensor, weight: torch.Tensor | None,
                        bias: torch.Tensor | None, output_mask: Sequence[bool]) -> tuple[torch.Tensor | None, ...]:
    same_dtype(grad_out=grad_out, input=input)
    if weight is not None and weight.dtype not in (input.dtype, torch.float32):
        raise Fallback(f"a weight of {weight.dtype} with values of {input.dtype}")
    if is_jagged(input):
        return _layer_norm_jagged(grad_out, input, normalized_shape, mean, rstd, weight, bias, output_mask)
    grad, x = packed(grad_out, "grad_out"), packed(input, "input")
    same_sizes(grad_out, input, "grad_out and input")
    size = math.prod(normalized_shape)
    result = torch.empty_like(input) if output_mask[0] else None
    call = flat(x.device, max(1, x.numel() // max(1, size)), max(1, size))
    sums = _norm(grad, x, mean, rstd, weight, bias, result.values() if result is not None else None, output_mask, size,
                 call)
    return result, *sums


def _layer_norm_jagged(grad_out: torch.Tensor, input: torch.Tensor, normalized_shape: Sequence[int],
                       mean: torch.Tensor, rstd: torch.Tensor, weight: torch.Tensor | None,
                       bias: torch.Tensor | None, output_mask: Sequence[bool]) -> tuple[torch.Tensor | None, ...]:
    if not is_jagged(grad_out):
        raise Fallback("grad_out is not a nested tensor")
    g, x = Jagged(grad_out), Jagged(input)
    same_components(g, x, "grad_out and input")
    fit((g.values.shape, x.values.shape))
    first = x.values.dim() - len(normalized_shape)
    if first <= x.ragged:
        return _layer_norm_ragged(g, x, first, mean, rstd, weight, bias, output_mask)
    grad, values = g.contiguous("grad_out"), x.contiguous("input")
    size = math.prod(values.shape[first:])
    result = torch.empty_like(values) if output_mask[0] and x.used is None else None
    if output_mask[0] and x.used is not None:
        result = torch.zeros_like(values)
    call = flat(values.device, max(1, values.numel() // max(1, size)), max(1, size))
    if x.used is not None:
        call = x.ragged_call()
    sums = _norm(grad, values, mean, rstd, weight, bias, result, output_mask, size, call)
    return x.wrap(result) if result is not None else None, *sums


def _layer_norm_ragged(g: Jagged, x: Jagged, first: int, mean: torch.Tensor, rstd: torch.Tensor,
                       weight: torch.Tensor | None, bias: torch.Tensor | None,
                       output_mask: Sequence[bool]) -> tuple[torch.Tensor | None, ...]:
    """Each component is one line. PyTorch's forward takes no weight into account and saves statistics [B, 1, 1]."""
    if first != x.ragged or x.ragged or x.used is not None:
        raise Fallback("layer_norm over the ragged dimension and others in front of it, or with lengths")
    if weight is not None or bias is not None:
        raise Fallback("layer_norm over the ragged dimension with a weight or a bias, which its forward leaves out")
    for given in (mean, rstd):
        fit((given.numel(), x.components))
    grad, values = g.contiguous("grad_out"), x.contiguous("input")
    if not output_mask[0]:
        return None, None, None
    result = x.fresh(values)
    if values.numel():
        rstd = rstd.float().reciprocal() if _saves_deviations() else rstd.float()
        run(_native.JAGGED_LAYER_NORM, grad=grad, x=values, mean=mean.float().contiguous(), rstd=rstd.contiguous(),
            dx=result, dim=_native.DIM_RAGGED, **x.ragged_call())
    return x.wrap(result), None, None


@functools.cache
def _saves_deviations() -> bool:
    """Whether the forward over the ragged dimension saves the deviation for its inverse, as PyTorch 2.15 does."""
    with torch.no_grad():
        x = torch.nested.nested_tensor([torch.tensor([[-4.0], [4.0]])], layout=torch.jagged)
        return bool(torch.ops.aten.native_layer_norm(x, [x.shape[1], 1], None, None, 0.0)[2].item() > 1.0)


def _norm(grad: torch.Tensor, x: torch.Tensor, mean: torch.Tensor, rstd: torch.Tensor, weight: torch.Tensor | None,
          bias: torch.Tensor | None, dx: torch.Tensor | None, output_mask: Sequence[bool], size: int,
          call: dict) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    if output_mask[1] and weight is None or output_mask[2] and bias is None:
        raise Fallback("the gradient of a parameter is asked for that is absent")
    if weight is not None and bias is not None and bias.dtype != weight.dtype:
        raise Fallback(f"a bias of {bias.dtype} with a weight of {weight.dtype}")
    lines = x.numel() // max(1, size)
    for given, wanted in ((mean, lines), (rstd, lines), (weight, size), (bias, size)):
        fit((wanted if given is None else given.numel(), wanted))
    make = torch.empty_like if x.numel() else torch.zeros_like
    dweight = make(weight, memory_format=torch.contiguous_format) if output_mask[1] else None
    dbias = make(bias, memory_format=torch.contiguous_format) if output_mask[2] else None
    if x.numel() and any(output_mask):
        gamma = weight.contiguous() if weight is not None else None
        run(_native.JAGGED_LAYER_NORM, grad=grad, x=x, mean=mean.float().contiguous(),
            rstd=rstd.float().contiguous(), weight=gamma, dx=dx, dweight=dweight, dbias=dbias,
            dim=_native.DIM_INNER, dim_size=size, **call)
    return dweight, dbias


# ---- registration ----

register("gelu_backward", "aten::gelu_backward(Tensor grad_output, Tensor self, *, str approximate=\"none\") -> Tensor",
         gelu_backward, gelu_backward)
register("silu_backward", "aten::silu_backward(Tensor grad_output, Tensor self) -> Tensor", silu_backward,
         silu_backward)
register("threshold_backward",
         "aten::threshold_backward(Tensor grad_output, Tensor self, Scalar threshold) -> Tensor", threshold_backward,
         threshold_backward)
register("_softmax_backward_data",
         "aten::_softmax_backward_data(Tensor grad_output, Tensor output, int dim, ScalarType input_dtype) -> Tensor",
         softmax_backward, softmax_backward)
register("_log_softmax_backward_data",
         "aten::_log_softmax_backward_data(Tensor grad_output, Tensor output, int dim, ScalarType input_dtype)"
         " -> Tensor", None, log_softmax_backward)
register("linear_backward",
         "aten::linear_backward(Tensor self, Tensor grad_output, Tensor weight, bool[3] output_mask)"
         " -> (Tensor, Tensor, Tensor)", linear_backward, linear_backward)
register("native_layer_norm_backward",
         "aten::native_layer_norm_backward(Tensor grad_out, Tensor input, SymInt[] normalized_shape, Tensor mean,"
         " Tensor rstd, Tensor? weight, Tensor? bias, bool[3] output_mask) -> (Tensor, Tensor, Tensor)",
         layer_norm_backward, layer_norm_backward)
register("matmul_backward",
         "aten::matmul_backward(Tensor grad, Tensor self, Tensor other, bool[2] mask) -> (Tensor, Tensor)",
         matmul_backward_strided, matmul_backward_jagged)
register("_nested_sum_backward",
         "aten::_nested_sum_backward(Tensor grad, Tensor self, int[1]? dim, bool keepdim=False) -> Tensor",
         sum_strided, sum_jagged)
register("_nested_select_backward",
         "aten::_nested_select_backward(Tensor grad_output, Tensor self, int dim, SymInt index) -> Tensor",
         select_strided, select_jagged)
register("_nested_from_padded",
         "aten::_nested_from_padded(Tensor padded, Tensor cpu_nested_shape_example, bool fuse_transform_0213=False)"
         " -> Tensor", to_padded_strided, None, keys=("CPU", "CUDA"), is_backward=in_backward)
register("_nested_from_padded_tensor",
         "aten::_nested_from_padded_tensor(Tensor padded, Tensor offsets, Tensor dummy, int ragged_idx=1,"
         " Tensor? min_seqlen=None, Tensor? max_seqlen=None, SymInt? sum_S=None) -> Tensor", None, to_padded_jagged,
         is_backward=in_backward)
register("to_padded_tensor",
         "aten::to_padded_tensor(Tensor self, float padding, SymInt[]? output_size=None) -> Tensor",
         from_padded_strided, from_padded_jagged,
         is_backward=lambda self, padding, output_size=None: padding == 0 and in_backward())
