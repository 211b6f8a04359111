# SPDX-License-Identifier: MIT
"""Attention and its gradients in float64 numpy, written out from the contract's formulas, for the test_core_* files.

The gradients are those of the stored O and LSE. test_core_attention.py holds this reference to differences of its own
forward."""
from __future__ import annotations

import numpy as np

TOLERANCE = {"float64": 1e-12, "float32": 4e-6, "float16": 4e-3, "bfloat16": 3e-2}  # of the largest element


def scores(q, k, *, scale=None, softcap=0.0, bias=None, slopes=None, mask=None, window=None, diagonal_shift=None,
           column=False):
    """Final S [H,Lq,Lk] of one sequence with hidden pairs at -inf, and the factor of softcap's derivative."""
    heads, rows, dim = q.shape
    keys = k.shape[1]
    k = np.repeat(k, heads // k.shape[0], axis=0)
    s = (1.0 / np.sqrt(dim) if scale is None else scale) * np.einsum("hid,hjd->hij", q, k)
    slope = np.ones_like(s)
    if softcap:
        slope = 1.0 - np.tanh(s / softcap) ** 2
        s = softcap * np.tanh(s / softcap)
    shift = 0 if mask == "causal_top_left" else keys - rows
    shift = shift if diagonal_shift is None else diagonal_shift
    i, j = np.arange(rows)[:, None], np.arange(keys)[None, :]
    if bias is not None:
        s = np.where(bias, s, -np.inf) if bias.dtype == bool else s + bias
    if slopes is not None:
        s = s + slopes[:, None, None] * (j if column else -np.abs(i + shift - j))
    if mask:
        s = np.where(j <= i + shift, s, -np.inf)
    left, right = window or (None, None)
    if left is not None:
        s = np.where(j >= i + shift - left, s, -np.inf)
    if right is not None:
        s = np.where(j <= i + shift + right, s, -np.inf)
    return s, slope


def forward(q, k, v, *, sink=None, keep=None, **options):
    """O [H,Lq,Dv] and LSE [H,Lq]. keep: 0 or 1/(1-p) an element."""
    s, _ = scores(q, k, **options)
    v = np.repeat(v, q.shape[0] // v.shape[0], axis=0)
    every = s if sink is None else np.concatenate([s, np.broadcast_to(sink[:, None, None], (*s.shape[:2], 1))], axis=2)
    top = np.max(every, axis=2, initial=-1e300)
    with np.errstate(divide="ignore"):
        lse = top + np.log(np.sum(np.exp(every - top[..., None]), axis=2))
    lse = np.where(np.isneginf(every).all(axis=2) if every.shape[2] else True, -np.inf, lse)
    p = np.where(np.isneginf(s), 0.0, np.exp(s - np.where(np.isfinite(lse), lse, 0.0)[..., None]))
    return np.einsum("hij,hjd->hid", p if keep is None else p * keep, v), lse


def backward(dout, q, k, v, out, lse, *, sink=None, keep=None, dlse=None, **options):
    """{"dq", "dk", "dv", "ds" (the bias's gradient before it is summed), "dsink"} of one sequence."""
    s, slope = scores(q, k, **options)
    group = q.shape[0] // k.shape[0]
    kk, vv = np.repeat(k, group, axis=0), np.repeat(v, group, axis=0)
    seen = np.isfinite(s) & np.isfinite(lse)[..., None]
    p = np.where(seen, np.exp(np.where(seen, s, 0.0) - np.where(np.isfinite(lse), lse, 0.0)[..., None]), 0.0)
    z = 1.0 if keep is None else keep
    delta = np.sum(dout * out, axis=2) - (0.0 if dlse is None else dlse)
    ds = p * (np.einsum("hid,hjd->hij", dout, vv) * z - delta[..., None])
    scale = options.get("scale")
    inner = (1.0 / np.sqrt(q.shape[2]) if scale is None else scale) * ds * slope

    def over_group(x):
        return x.reshape(k.shape[0], group, *x.shape[1:]).sum(axis=1)
    result = {"dq": np.einsum("hij,hjd->hid", inner, kk), "dk": over_group(np.einsum("hij,hid->hjd", inner, q)),
              "dv": over_group(np.einsum("hij,hid->hjd", p * z, dout)), "ds": ds}
    if sink is not None:
        weight = np.where(np.isfinite(lse), np.exp(sink[:, None] - np.where(np.isfinite(lse), lse, 0.0)), 0.0)
        result["dsink"] = -np.sum(weight * delta, axis=1)
    return result


def check(name, got, expected, dtype):
    """Holds `got` to the float64 array `expected` within the type's tolerance of its largest element."""
    got = np.asarray(got, dtype=np.float64)
    assert got.shape == expected.shape, (name, got.shape, expected.shape)
    bound = TOLERANCE[str(dtype)] * max(1.0, float(np.max(np.abs(expected), initial=0.0)))
    worst = float(np.max(np.abs(got - expected), initial=0.0))
    assert worst <= bound, f"{name}: off by {worst:.3g}, {bound:.3g} are allowed"
