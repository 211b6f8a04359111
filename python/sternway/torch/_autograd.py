# SPDX-License-Identifier: MIT
"""How the operators of the namespace `sternway` are defined: schema, kernels for CPU and CUDA (ROCm builds call their
GPUs cuda as well), fake kernel, and the autograd of a backward, which has no derivative of its own."""
from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.autograd import forward_ad

NO_FORWARD_AD = "sternway: forward-mode AD is not there (attention and nested operations have no tangents)"
NO_DOUBLE_BACKWARD = "sternway: double backward is not there (a gradient computed by Sternway cannot be differentiated)"

# Gradients have the strides of their inputs, so a compiler may not give the kernel other strides than it promised.
_TAGS = (torch.Tag.pt2_compliant_tag,
         getattr(torch.Tag, "needs_exact_strides", None) or torch.Tag.needs_fixed_stride_order)

library = torch.library.Library("sternway", "DEF")
_modes = torch._C._len_torch_dispatch_stack
_transforms = torch._C._functorch.peek_interpreter_stack
_profiler = torch.autograd.profiler
_is_batch = torch._C._functorch.is_legacy_batchedtensor


def define(name: str, schema: str, kernel: Callable, fake: Callable, tags: tuple[torch.Tag, ...] = (),
           device_types: tuple[str, ...] = ("CPU", "CUDA")) -> torch._ops.OpOverload:
    """Defines `sternway::name`. The kernels get what the dispatcher passes: arguments that have the schema's default
    may be left out."""
    library.define(name + schema, tags=_TAGS + tags)
    for key in device_types:
        library.impl(name, kernel, key)
    torch.library.register_fake(f"sternway::{name}", fake, lib=library)
    return getattr(torch.ops.sternway, name).default


def is_plain(first: torch.Tensor, *tensors: torch.Tensor) -> bool:
    """Whether nothing but the kernel is to see a call: no mode, transform, subclass, profiler, and no device without a
    kernel. Then a call below autograd need not pass the dispatcher again, which takes a Python kernel 5 us."""
    if _modes() or _transforms() is not None or _profiler._is_profiler_enabled:
        return False
    kind = type(first)
    if kind is not torch.Tensor and kind is not torch.nn.Parameter or not (first.is_cpu or first.is_cuda):
        return False
    for tensor in tensors:
        kind = type(tensor)
        if kind is not torch.Tensor and kind is not torch.nn.Parameter:
            return False
    return True


def is_resolvable(tensors: Iterable[Any]) -> bool:
    """Whether a tensor has to be made one with memory of its own by PyTorch's dispatcher before a kernel sees it: views
    with the opposite sign, zeros without memory, the batches of is_grads_batched. Asked after a kernel has refused."""
    return any(t.is_neg() or t._is_zerotensor() or _is_batch(t) for t in tensors if isinstance(t, torch.Tensor))


def call_plain(kernel: Callable, operator: torch._ops.OpOverload, args: tuple, keywords: dict[str, Any]) -> Any:
    """The kernel on plain tensors (is_plain), or the operator where one of them has to be resolved first."""
    try:
        return kernel(*args, **keywords)
    except RuntimeError:
        if not is_resolvable(args):
            raise
    return below_autograd(operator, *args, **keywords)


def refuse_tangents(tensors: Iterable[Any]) -> None:
    """RuntimeError for tensors with a tangent: forward-mode AD would lose it."""
    if forward_ad._current_level < 0:
        return
    for tensor in tensors:
        if isinstance(tensor, torch.Tensor) and forward_ad.unpack_dual(tensor).tangent is not None:
            raise RuntimeError(NO_FORWARD_AD)


def below_autograd(operator: torch._ops.OpOverload, *args: Any, **keywords: Any) -> Any:
    """Calls the operator's next kernel under that of autograd."""
    with torch._C._AutoDispatchBelowAutograd():
        return operator(*args, **keywords)


class _Backward(torch.autograd.Function):
    """A gradient's place in a graph that somebody asked for by create_graph."""

    @staticmethod
    def forward(ctx, operator, keywords, *args):
        result = below_autograd(operator, *args, **keywords)
        return tuple(result) if isinstance(result, (list, tuple)) else result

    @staticmethod
    def backward(ctx, *grads):
        raise RuntimeError(NO_DOUBLE_BACKWARD)


def no_double_backward(operator: torch._ops.OpOverload, kernel: Callable) -> None:
    """Registers for autograd that the operator's results cannot be differentiated, with a text that says so. `kernel`
    is that of define()."""
    several = str(operator._schema).endswith("[]")

    def autograd(*args: Any, **keywords: Any) -> Any:
        tensors = [a for a in args if isinstance(a, torch.Tensor)]
        refuse_tangents(tensors)
        if not torch.is_grad_enabled() or not any([t.requires_grad for t in tensors]):
            if is_plain(*tensors):
                return call_plain(kernel, operator, args, keywords)
            return below_autograd(operator, *args, **keywords)
        result = _Backward.apply(operator, keywords, *args)
        return list(result) if several else result

    library.impl(operator._schema.name.split("::")[1], autograd, "Autograd")


def empty_gradient(tensor: torch.Tensor, zeros: bool = False) -> torch.Tensor:
    """Memory for the gradient of an input: its strides where they are dense with a contiguous last dimension, else
    contiguous. Broadcast dimensions (strides of 0) get memory of their own."""
    make = torch.zeros_like if zeros else torch.empty_like
    strides = tensor.stride()
    if strides[-1] == 1 and 0 not in strides:
        return make(tensor)
    return make(tensor, memory_format=torch.contiguous_format)
