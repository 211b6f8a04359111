# SPDX-License-Identifier: MIT
"""Attention written out in float64, its gradients by autograd, and comparisons with them: for test_enable_*.py."""
from __future__ import annotations

import contextlib
import math

import torch

# Of the norm: four roundings to the type; f32: the error of PyTorch's LSE (9e-7) in two factors and four sums.
BOUNDS = {torch.float64: 1e-13, torch.float32: 4e-6, torch.float16: 4 * 2.0**-11, torch.bfloat16: 4 * 2.0**-8}


def hidden(rows: int, keys: int, *, causal: str | None = None, left: int | None = None, right: int | None = None,
           device: torch.device | str = "cpu") -> torch.Tensor:
    """True where the pair of query and key is hidden. causal: "top_left" or "bottom_right"; left and right: bounds
    around the diagonal that ends bottom-right, top-left under causal="top_left"."""
    distance = torch.arange(keys, device=device)[None] - torch.arange(rows, device=device)[:, None]
    if causal != "top_left":
        distance = distance - (keys - rows)
    result = torch.zeros(rows, keys, dtype=torch.bool, device=device)
    if causal:
        result |= distance > 0
    if left is not None:
        result |= distance < -left
    if right is not None:
        result |= distance > right
    return result


def forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, bias: torch.Tensor | None = None,
            hide: torch.Tensor | None = None, scale: float | None = None,
            factor: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """O and LSE of [B,H,S,D] in float64; rows without a key give 0. factor: what dropout multiplies P by."""
    q, k, v = q.double(), k.double(), v.double()
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = (1 / math.sqrt(q.shape[-1]) if scale is None else scale) * q @ k.transpose(-1, -2)
    if bias is not None:
        if bias.dtype == torch.bool:
            scores = scores.masked_fill(~bias, -math.inf)
        else:
            scores = scores + bias.double()
    if hide is not None:
        scores = scores.masked_fill(hide, -math.inf)
    lse = torch.logsumexp(scores, -1)
    p = torch.where(torch.isfinite(scores), torch.exp(scores - lse.masked_fill(lse.isinf(), 0)[..., None]), 0)
    return (p if factor is None else p * factor) @ v, lse


def gradients(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dout: torch.Tensor, *,
              bias: torch.Tensor | None = None, **options) -> tuple[torch.Tensor, ...]:
    """dQ, dK, dV in float64, and the gradient of a bias of floating point numbers in its own shape."""
    leaves = [x.detach().double().requires_grad_() for x in (q, k, v)]
    if bias is not None and bias.is_floating_point():
        bias = bias.detach().double().requires_grad_()
        leaves.append(bias)
    out, _ = forward(*leaves[:3], bias=bias, **options)
    return torch.autograd.grad(out, leaves, dout.double(), allow_unused=True)


def check(actual: torch.Tensor, expected: torch.Tensor, bound: float | None = None) -> None:
    """Holds the norm of the error to the bound of the type, and the shape to be the same. Where the exact gradient is
    0, as of a query with a single key, its terms are of the size 1 and leave their rounding."""
    assert actual.shape == expected.shape
    bound = BOUNDS[actual.dtype] if bound is None else bound
    assert torch.isfinite(actual).all()
    error, size = (actual.double() - expected).norm().item(), expected.norm().item()
    if size <= 1e-12 * math.sqrt(actual.numel()):
        size = math.sqrt(actual.numel())
    assert error <= bound * size, f"relative error {error / size:.2e}, allowed {bound:.2e}"


@contextlib.contextmanager
def flash():
    """scaled_dot_product_attention by PyTorch's flash operator alone, which the CPU has too."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        yield
