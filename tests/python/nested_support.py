# SPDX-License-Identifier: MIT
"""What the tests of the nested drop-in share: nested tensors of odd sizes, and gradients in float64 to compare with."""
from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

import sternway.torch as drop_in

LAYOUTS = {"strided": torch.strided, "jagged": torch.jagged}
SIZES = ((3, 7), (0, 7), (5, 7), (1, 7))  # ragged first, with an empty component

# Largest difference as a part of the largest element: sums in f32, or a few roundings to the type; f64 is only moved.
TOLERANCES = {torch.float32: 2e-6, torch.float16: 2.0**-9, torch.bfloat16: 2.0**-6, torch.float64: 0.0}


def components(shapes: Sequence[Sequence[int]], dtype: torch.dtype = torch.float32, seed: int = 0,
               device: str = "cpu") -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(tuple(shape), generator=generator).to(dtype).to(device) for shape in shapes]


def nest(parts: Sequence[torch.Tensor], layout: str) -> torch.Tensor:
    return torch.nested.nested_tensor([part.clone() for part in parts], layout=LAYOUTS[layout], requires_grad=True,
                                      device=parts[0].device if parts else None)


def cotangent(result: torch.Tensor, seed: int = 1) -> torch.Tensor:
    """A random gradient of `result`, nested or dense."""
    generator = torch.Generator().manual_seed(seed)
    if not result.is_nested:
        return torch.randn(result.shape, generator=generator).to(result.dtype).to(result.device)
    if result.layout is torch.strided:
        return torch.nested.nested_tensor([torch.randn(part.shape, generator=generator) for part in result.unbind()],
                                          dtype=result.dtype, device=result.device)
    grad = torch.zeros_like(result)
    for part in grad.unbind():
        part.copy_(torch.randn(part.shape, generator=generator))
    return grad


def close(got: torch.Tensor, wanted: torch.Tensor, dtype: torch.dtype, scale: float) -> None:
    assert got.shape == wanted.shape
    assert got.dtype == dtype
    difference = (got.double().cpu() - wanted.cpu()).abs()
    assert torch.isfinite(got).all()
    assert difference.numel() == 0 or difference.max() <= TOLERANCES[dtype] * scale, difference.max()


def scale_of(parts: Sequence[torch.Tensor]) -> float:
    return max((float(part.abs().max()) for part in parts if part.numel()), default=0.0) or 1.0


def check(function: Callable, dense: Callable, inputs: Sequence[torch.Tensor], parts: Sequence[Sequence[torch.Tensor]],
          operator: str, parameters: Sequence[torch.Tensor] = (), strict: bool = True) -> None:
    """Backward of function(*inputs, *parameters) through the library against autograd in float64.

    parts[i] are the components of the nested inputs[i]; dense(*components, *parameters) is the same function of one
    component, or of the stack where the result is dense. The operator must have been taken over, once at least, and
    nothing may have fallen back."""
    with drop_in.enable(only="nested", strict=strict):
        drop_in.reset_stats()
        result = function(*inputs, *parameters)
        grad = cotangent(result)
        wanted = [t for t in (*inputs, *parameters) if t.requires_grad]
        got = torch.autograd.grad(result, wanted, grad)
    counts = drop_in.stats()
    assert counts[operator]["taken"] >= 1, counts
    assert all(not count["fallback"] for count in counts.values()), counts
    exact = [[part.detach().double().cpu().requires_grad_() for part in of] for of in parts]
    exact_parameters = [p.detach().double().cpu().requires_grad_() for p in parameters]
    results = [dense(*rows, *exact_parameters) for rows in zip(*exact)]
    grads = grad.unbind()
    leaves = [part for of in exact for part in of] + exact_parameters
    reference = list(torch.autograd.grad(results, leaves, [g.double().cpu() for g in grads], allow_unused=True))
    reference = [torch.zeros_like(leaf) if r is None else r for leaf, r in zip(leaves, reference)]
    for tensor, of in zip(got, exact):
        part_grads, reference = reference[:len(of)], reference[len(of):]
        scale = scale_of(part_grads)
        for part, want in zip(tensor.unbind(), part_grads, strict=True):
            close(part, want, tensor.dtype, scale)
    for tensor, want in zip(got[len(exact):], reference, strict=True):
        close(tensor, want, tensor.dtype, scale_of([want]))
