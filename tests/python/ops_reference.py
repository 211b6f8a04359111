# SPDX-License-Identifier: MIT
"""Attention in float64 from PyTorch's elementary operations, whose autograd gives the gradients to compare with."""
from __future__ import annotations

import torch

# Relative error of a whole tensor: two roundings to the type for f16 and bf16 (P or dS as an operand, and the result),
# for f32 and f64 some tens of roundings that sums make.
TOLERANCE = {torch.float64: 1e-13, torch.float32: 3e-6, torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7}
NAMES = ("out", "lse", "dq", "dk", "dv", "dbias", "dsink")


def visible(rows: int, keys: int, mask: str = "none", left: int | None = None, right: int | None = None,
            shift: int | None = None) -> torch.Tensor:
    """[rows,keys]: which keys a query sees."""
    if shift is None:
        shift = 0 if mask == "top_left" else keys - rows
    distance = torch.arange(keys)[None, :] - torch.arange(rows)[:, None] - shift
    seen = torch.ones(rows, keys, dtype=torch.bool)
    if mask != "none":
        seen &= distance <= 0
    if left is not None:
        seen &= distance >= -left
    if right is not None:
        seen &= distance <= right
    return seen


def attention(q, k, v, *, seen=None, scale=None, softcap=0.0, bias=None, alibi=None, shift=0, sink=None, keep=None,
              p=0.0):
    """out and lse of [B,H,S,D] float64 tensors. bias: bool or added numbers; keep: the dropout mask."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    s = (q @ k.transpose(-1, -2)) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if softcap:
        s = softcap * torch.tanh(s / softcap)
    if bias is not None and bias.dtype == torch.bool:
        s = s.masked_fill(~bias, float("-inf"))
    elif bias is not None:
        s = s + bias
    if alibi is not None:
        distance = torch.arange(q.shape[2])[:, None] + shift - torch.arange(k.shape[2])[None, :]
        s = s - alibi.reshape(-1, q.shape[1], 1, 1) * distance.abs()
    if seen is not None:
        s = s.masked_fill(~seen, float("-inf"))
    logits = s if sink is None else torch.cat([s, sink.reshape(1, -1, 1, 1).expand(*s.shape[:3], 1)], -1)
    empty = (logits == float("-inf")).all(-1)
    lse = torch.logsumexp(logits.masked_fill(empty[..., None], 0.0), -1).masked_fill(empty, float("-inf"))
    weights = torch.exp(s - lse.masked_fill(empty, 0.0)[..., None])
    if keep is not None:
        weights = weights * keep / (1 - p)
    return weights @ v, lse


def doubles(*tensors):
    """float64 leaves of the same values, None for None."""
    return [None if t is None else t.detach().double().requires_grad_() if t.is_floating_point() else t
            for t in tensors]


def error(got: torch.Tensor, want: torch.Tensor) -> float:
    """|got - want| / |want| over the tensor; infinities have to be in the same places."""
    got, want = got.detach().double(), want.detach().double()
    assert got.shape == want.shape, (got.shape, want.shape)
    finite = torch.isfinite(want)
    assert torch.equal(got[~finite], want[~finite]), "infinities in other places"
    if not finite.any():
        return 0.0
    scale = want[finite].norm()
    difference = (got[finite] - want[finite]).norm()
    return (difference if scale == 0 else difference / scale).item()


def check(name: str, got: torch.Tensor, want: torch.Tensor, dtype: torch.dtype, factor: float = 1.0) -> None:
    """Fails where `got` is further from `want` than the type's rounding explains."""
    found = error(got, want)
    assert found <= TOLERANCE[dtype] * factor, f"{name}: relative error {found:.2e} ({dtype})"
