# SPDX-License-Identifier: MIT
"""Makes the golden vectors of attention backward: one safetensors file per group of features, next to this script.

`sternway run` and the conformance suite read them; README.md says what they hold. Inputs are seeded by the case's
name; O, LSE and the references come from float64 (attention_reference.py), by two routes that must agree.
    make_golden.py                  writes the files anew
    make_golden.py --check [FILE]   recomputes the references of committed files from what is stored in them
"""
import argparse
import pathlib
import sys
import zlib

import numpy as np
import torch

import container
import dropout_maps
from attention_reference import Problem, check_stored, disagreement, forward, gradients, sequences

FOLDER = pathlib.Path(__file__).resolve().parent
ABOUT = {"about": "golden vectors of attention backward", "source": "tests/golden/make_golden.py"}
DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64}
NAN, INF = float("nan"), float("inf")


class Group:
    """The cases of one file."""

    def __init__(self):
        self.problems = {}

    def add(self, name, dtype, q, k=None, *, heads=(1, 1), D=8, Dv=None, used=None, bias=None, alibi=None, sink=None,
            dlse=False, delta=False, std=1.0, extra=None, edit=None, after=None, poison=None, **meta):
        """Builds one problem and its references.

        q, k: (batch, length) for dense, a list of sequence lengths for varlen. heads: (Hq, Hk). used: (used_q, used_k),
        lists or None. bias: shape, or (shape, type). alibi: "h" or "bh". sink: list per head. delta: give delta in
        place of out. extra: further tensors. edit: changes the inputs before the forward, after: what is stored
        from it (by name); poison: puts NaN where nothing may look, at the end. Other arguments are metadata.
        """
        random = np.random.Generator(np.random.Philox(zlib.crc32(name.encode())))
        kind = DTYPES[dtype]
        number = torch.float64 if dtype == "f64" else torch.float32  # of LSE, dLSE, delta, slopes, sink

        def normal(*shape, to=kind, factor=std):
            return torch.from_numpy(np.asarray(random.standard_normal(shape) * factor)).to(to)

        k = q if k is None else k
        varlen = isinstance(q, list)
        lead_q, lead_k = ((sum(q),), (sum(k),)) if varlen else (q, k)
        batch = len(q) if varlen else q[0]
        Hq, Hk = heads
        t = {"q": normal(*lead_q, Hq, D), "k": normal(*lead_k, Hk, D), "v": normal(*lead_k, Hk, Dv or D),
             "dout": normal(*lead_q, Hq, Dv or D)}
        if varlen:
            for side, lengths in (("q", q), ("k", k)):
                t[f"cu_seqlens_{side}"] = torch.tensor(np.concatenate([[0], np.cumsum(lengths)]), dtype=torch.int32)
        for side, lengths in zip("qk", used or ()):
            if lengths is not None:
                t[f"used_{side}"] = torch.tensor(lengths, dtype=torch.int32)
        if bias is not None:
            shape, bias_type = bias if isinstance(bias[0], tuple) else (bias, dtype)
            if bias_type == "bool":
                t["bias"] = normal(*shape, to=torch.float64, factor=1.0) > -0.5
            elif bias_type == "u8":  # any number but 0 is as good as 1
                t["bias"] = (normal(*shape, to=torch.float64, factor=128.0).abs() * 2.0).to(torch.uint8)
            else:
                t["bias"] = normal(*shape, to=DTYPES[bias_type], factor=1.0)
        if alibi is not None:
            slopes = 2.0 ** (-8.0 * np.arange(1, Hq + 1) / Hq) * (1.0 if alibi == "h" else np.arange(1, batch + 1)[:, None])
            t["alibi_slopes"] = torch.tensor(slopes, dtype=number)
        if sink is not None:
            t["sink"] = torch.tensor(sink, dtype=number)
        t.update(extra or {})
        meta = {key: value if isinstance(value, str) else repr(value) for key, value in meta.items()}
        problem = Problem(t, {"mask": "none", **meta})
        if edit:
            edit(t)

        out, lse = forward(problem)
        t["out"], t["lse"] = out.to(kind), lse.to(number)
        if dlse or delta:
            t["dlse"] = normal(*lse.shape, to=number, factor=1.0)
        self.fill_gaps(problem, normal)
        if after:
            after(t)
        if delta:
            dot = (t["dout"].double() * t["out"].double()).sum(-1)
            dot = dot.T if varlen else dot.transpose(1, 2)
            t["delta"] = (dot - t.pop("dlse").double()).to(number)
            del t["out"]
        if poison:
            poison(t)
        self.finish(name, problem)
        return problem

    def fill_gaps(self, problem, normal):
        """Puts plausible numbers into out and lse outside the used lengths: nothing may depend on them."""
        t = problem.tensors
        gap = torch.ones(t["out"].shape[:-2], dtype=bool)
        for seq in sequences(problem):
            gap[seq.q_rows] = False
        if bool(gap.any()):
            t["out"][gap] = normal(*t["out"][gap].shape)
            at = t["lse"].T if problem.varlen else t["lse"].transpose(1, 2)
            at[gap] = normal(*at[gap].shape, to=at.dtype)

    def finish(self, name, problem):
        """Adds the references: F64 where the answer is f32 or f64, F32 (far finer than the answer) where it is 16 bits."""
        references = gradients(problem)
        wide = problem.tensors["q"].dtype in (torch.float32, torch.float64) or problem.meta.get("grad_dtype") == "f32"
        for key, value in references.items():
            assert bool(torch.isfinite(value).all()), (name, key)
            f32_bias = key == "dbias_ref" and problem.tensors["bias"].dtype == torch.float32
            problem.tensors[key] = value if wide or f32_bias or key == "dsink_ref" else value.to(torch.float32)
        assert name not in self.problems
        self.problems[name] = problem


def dense_cases(g):
    """Types, head dims (odd, unequal, up to 256), lengths (odd, unequal, 1), GQA, output types, special values."""
    g.add("f32_d1", "f32", (2, 5), (2, 7), heads=(2, 2), D=1)
    g.add("bf16_d3_dv5", "bf16", (1, 33), (1, 17), heads=(2, 2), D=3, Dv=5)
    g.add("f16_d8", "f16", (1, 33), (1, 65), heads=(2, 2), D=8)
    g.add("f32_d17_dv9", "f32", (1, 17), (1, 33), D=17, Dv=9)
    g.add("bf16_d33", "bf16", (1, 17), (1, 33), D=33)
    g.add("f16_d64_s2", "f16", (2, 2), heads=(2, 2), D=64)
    g.add("bf16_d64", "bf16", (1, 65), (1, 63), D=64)
    g.add("f32_d64", "f32", (1, 17), (1, 15), D=64)
    g.add("bf16_d80", "bf16", (1, 9), (1, 17), D=80)
    g.add("f16_d96", "f16", (1, 17), (1, 9), D=96)
    g.add("f32_d128", "f32", (1, 9), (1, 5), D=128)
    g.add("bf16_d128", "bf16", (1, 17), (1, 31), D=128)
    g.add("bf16_d192_dv128", "bf16", (1, 9), (1, 17), D=192, Dv=128)
    g.add("f32_d192_dv128", "f32", (1, 3), (1, 5), D=192, Dv=128)
    g.add("f16_d256", "f16", (1, 9), (1, 9), D=256)
    g.add("f32_d256", "f32", (1, 3), (1, 4), D=256)
    g.add("bf16_d256_dv64", "bf16", (1, 5), (1, 17), D=256, Dv=64)
    g.add("bf16_d32_dv256", "bf16", (1, 9), (1, 5), D=32, Dv=256)
    g.add("f16_d16_s1", "f16", (2, 1), heads=(3, 3), D=16)
    g.add("f32_sq1_sk127", "f32", (1, 1), (1, 127), D=4)
    g.add("bf16_sq127_sk1", "bf16", (1, 127), (1, 1), D=8)
    g.add("f32_sq127_sk129", "f32", (1, 127), (1, 129), D=4)
    g.add("gqa_bf16", "bf16", (2, 17), (2, 9), heads=(4, 2), D=8)
    g.add("mqa_f32", "f32", (1, 9), (1, 17), heads=(6, 1), D=8)
    g.add("gqa_f16_odd_group", "f16", (1, 17), (1, 9), heads=(6, 2), D=12)
    g.add("grad_f32_bf16", "bf16", (1, 33), (1, 17), heads=(2, 1), D=16, grad_dtype="f32")
    g.add("grad_f32_f16", "f16", (1, 17), (1, 33), heads=(2, 1), D=8, grad_dtype="f32")
    g.add("scale_given", "bf16", (1, 17), (1, 18), D=17, scale=0.125)
    g.add("scale_negative", "f32", (1, 9), (1, 17), D=8, scale=-0.75)
    g.add("scale_zero", "f16", (1, 9), (1, 17), D=8, scale=0.0)
    g.add("splits_2", "bf16", (1, 17), (1, 129), D=8)
    g.add("deterministic_gqa", "bf16", (1, 33), (1, 65), heads=(2, 1), D=8, deterministic=1)
    g.add("std3_f16", "f16", (1, 65), (1, 66), D=16, std=3.0)
    g.add("std3_f32", "f32", (1, 17), (1, 15), D=16, std=3.0)

    def one_hot(t):
        t["v"][:] = torch.eye(16)[:, None]
    g.add("one_hot_v", "f32", (1, 17), (1, 16), D=8, Dv=16, edit=one_hot)

    def tiny_dout(t):
        t["dout"].mul_(2.0 ** -12)
        t["v"].mul_(2.0 ** -6)
    g.add("denormal_f16", "f16", (1, 33), (1, 17), D=16, edit=tiny_dout)


def mask_cases(g):
    """Causal top-left and bottom-right, windows, shifted diagonals; rows and keys without partners."""
    for mask in ("causal_tl", "causal_br"):
        g.add(f"{mask}_wide", "bf16", (1, 17), (1, 33), heads=(2, 2), D=16, mask=mask)
        g.add(f"{mask}_tall", "f16", (1, 33), (1, 17), heads=(2, 2), D=16, mask=mask)
    g.add("causal_br_65x5", "f32", (1, 65), (1, 5), D=4, mask="causal_br")
    g.add("causal_br_1x65", "bf16", (2, 1), (2, 65), heads=(4, 1), D=8, mask="causal_br")
    g.add("causal_br_127", "bf16", (1, 127), D=8, mask="causal_br")
    g.add("causal_tl_129", "f32", (1, 129), D=4, mask="causal_tl")
    g.add("causal_gqa", "f16", (1, 33), (1, 40), heads=(4, 2), D=8, mask="causal_br")
    g.add("window_left", "bf16", (1, 65), (1, 63), D=16, window_left=7)
    g.add("window_right", "f16", (1, 33), (1, 65), D=16, window_right=5)
    g.add("window_both", "f32", (1, 65), (1, 66), D=4, window_left=9, window_right=4)
    g.add("window_zero", "f16", (1, 17), (1, 17), D=8, window_left=0, window_right=0)
    g.add("window_both_tall", "bf16", (1, 65), (1, 17), D=16, window_left=3, window_right=2)
    g.add("window_causal_tl", "bf16", (1, 33), (1, 47), D=16, mask="causal_tl", window_left=6)
    g.add("window_causal_br", "f32", (1, 33), (1, 65), D=4, mask="causal_br", window_left=16)
    g.add("window_causal_self", "f16", (1, 33), (1, 40), D=8, mask="causal_br", window_left=0)
    g.add("window_causal_tl_right", "bf16", (1, 17), (1, 17), D=8, mask="causal_tl", window_left=8, window_right=5)
    g.add("shift_positive", "bf16", (1, 17), (1, 65), D=16, mask="causal_br", diagonal_shift=20)
    g.add("shift_negative", "f32", (1, 33), (1, 17), D=8, mask="causal_br", diagonal_shift=-5)
    g.add("shift_zero_br", "f16", (1, 17), (1, 33), D=8, mask="causal_br", diagonal_shift=0)
    g.add("shift_on_tl", "bf16", (1, 17), (1, 33), D=8, mask="causal_tl", diagonal_shift=3)
    g.add("shift_window_mostly_empty", "bf16", (1, 33), (1, 17), D=8, diagonal_shift=14, window_left=3, window_right=3)
    g.add("all_masked", "f16", (1, 5), (1, 7), D=8, mask="causal_br", diagonal_shift=-100)


def bias_cases(g):
    """Additive bias with its gradient: every broadcast pattern, types, -inf and -65504 entries."""
    def shape(pattern, B, H, Sq, Sk):
        return tuple(1 if axis == "1" else size for axis, size in zip(pattern, (B, H, Sq, Sk)))
    patterns = ("bhqk", "1hqk", "b1qk", "11qk", "bhq1", "bh1k", "b11k", "1hq1", "1h1k", "11q1", "111k", "b1q1",
                "bh11", "b111", "1h11", "1111")
    for n, pattern in enumerate(patterns):
        dtype = ("bf16", "f16", "f32")[n % 3]
        Sq, Sk = ((17, 9), (9, 19), (5, 17))[n % 3]
        g.add(f"{pattern}_{dtype}", dtype, (2, Sq), (2, Sk), heads=(2, 2), D=4 if dtype == "f32" else 8,
              bias=shape(pattern, 2, 2, Sq, Sk))
    g.add("f32_bias_bf16", "bf16", (1, 33), (1, 17), heads=(2, 2), D=8, bias=((1, 2, 33, 17), "f32"))
    g.add("f32_bias_f16_broadcast", "f16", (2, 17), (2, 33), heads=(2, 1), D=8, bias=((1, 1, 17, 33), "f32"))
    g.add("grad_f32_bias_bf16", "bf16", (1, 17), (1, 18), D=8, bias=(1, 1, 17, 18), grad_dtype="f32")
    g.add("causal_br", "bf16", (1, 33), (1, 17), heads=(2, 2), D=8, bias=(1, 2, 33, 17), mask="causal_br")
    g.add("causal_tl_keys", "f16", (2, 17), (2, 33), heads=(2, 2), D=8, bias=(2, 1, 1, 33), mask="causal_tl")
    g.add("window", "f32", (1, 33), (1, 65), D=4, bias=(1, 1, 1, 65), window_left=5, window_right=6)
    g.add("gqa_65", "bf16", (1, 65), (1, 63), heads=(2, 1), D=4, bias=(1, 1, 65, 63))
    g.add("deterministic", "f16", (2, 17), (2, 17), heads=(2, 2), D=8, bias=(1, 1, 17, 17), deterministic=1)

    def some_infinite(t):
        t["bias"][..., 3] = -INF
        t["bias"][..., ::5, 1:9] = -INF
    g.add("minus_inf", "bf16", (1, 17), (1, 33), heads=(2, 2), D=8, bias=(1, 2, 17, 33), edit=some_infinite)

    def row_infinite(t):
        t["bias"][:, :, 4] = -INF
        t["bias"][:, 1, 9:] = -INF
    g.add("minus_inf_rows", "f32", (1, 17), (1, 9), heads=(2, 2), D=8, bias=(1, 2, 17, 9), edit=row_infinite)
    g.add("minus_inf_keys", "f16", (2, 17), (2, 33), heads=(2, 2), D=8, bias=(2, 1, 1, 33),
          edit=lambda t: t["bias"][1, :, :, 20:].fill_(-INF))
    g.add("minus_inf_all", "bf16", (1, 5), (1, 7), D=8, bias=(1, 1, 1, 1), edit=lambda t: t["bias"].fill_(-INF))

    def some_lowest(t):
        t["bias"][..., 2::3] = -65504.0
    g.add("minus_65504_f16", "f16", (1, 17), (1, 33), heads=(2, 2), D=8, bias=(1, 1, 17, 33), edit=some_lowest)
    g.add("minus_65504_f32", "f32", (1, 9), (1, 17), D=8, bias=(1, 1, 9, 17), edit=some_lowest)
    g.add("minus_65504_f32_bias_bf16", "bf16", (1, 17), (1, 17), D=8, bias=((1, 1, 1, 17), "f32"), edit=some_lowest)


def as_pytorch(problem):
    """The forward against PyTorch's own operation with the mask as it is (True: visible), where it has the features."""
    t = problem.tensors
    q, k, v = (t[name].double().transpose(1, 2) for name in "qkv")
    mask = t["bias"] != 0
    if problem.meta["mask"] != "none":
        mask = mask & torch.ones(q.shape[2], k.shape[2], dtype=bool).tril(k.shape[2] - q.shape[2] if "br" in problem.meta["mask"] else 0)
    theirs = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True).transpose(1, 2)
    live = mask.expand(*q.shape[:3], k.shape[2]).any(-1).transpose(1, 2)
    assert bool(((forward(problem)[0] - theirs)[live].abs() < 1e-14).all())


def byte_cases(g):
    """A bias of truth values or bytes, which hides pairs: every broadcast, whole rows and keys, beside other features."""
    def shape(pattern, *sizes):
        return tuple(size if letter != "1" else 1 for letter, size in zip(pattern, sizes)), "bool"
    for n, pattern in enumerate(("bhqk", "1hqk", "b1qk", "11qk", "bh1k", "b11k", "bhq1", "1111")):
        Sq, Sk = ((17, 33), (33, 17), (5, 7), (65, 63))[n % 4]
        as_pytorch(g.add(f"bool_{pattern}", ("bf16", "f16", "f32")[n % 3], (2, Sq), (2, Sk), heads=(2, 1 + n % 2), D=8,
                         bias=shape(pattern, 2, 2, Sq, Sk), edit=(lambda t: t["bias"].fill_(True)) if pattern == "1111" else None))
    as_pytorch(g.add("u8_bhqk", "bf16", (2, 17), (2, 33), heads=(4, 2), D=16, bias=((2, 4, 17, 33), "u8")))
    as_pytorch(g.add("causal_br", "f16", (1, 33), (1, 47), heads=(2, 2), D=8, bias=((1, 1, 33, 47), "bool"), mask="causal_br"))
    as_pytorch(g.add("causal_tl_keys", "f32", (2, 17), (2, 33), heads=(2, 1), D=8, bias=((2, 1, 1, 33), "bool"), mask="causal_tl"))

    def rows_and_keys(t):
        t["bias"][..., 2::5, :] = False
        t["bias"][..., 3] = False
    as_pytorch(g.add("rows_hidden", "bf16", (2, 17), (2, 33), heads=(2, 2), D=8, bias=((2, 1, 17, 33), "bool"), edit=rows_and_keys))
    g.add("rows_hidden_sink", "f32", (1, 17), (1, 9), heads=(2, 2), D=8, bias=((1, 2, 17, 9), "bool"), sink=[0.5, -INF], dlse=True,
          edit=rows_and_keys)
    g.add("all_hidden", "bf16", (1, 5), (1, 7), D=8, bias=((1, 1, 1, 1), "bool"), edit=lambda t: t["bias"].fill_(False))
    as_pytorch(g.add("full_tiles", "bf16", (1, 64), (1, 128), D=64, bias=((1, 1, 64, 128), "bool")))
    g.add("window_alibi_softcap", "f16", (1, 33), (1, 47), heads=(2, 2), D=8, bias=((1, 2, 33, 47), "u8"), alibi="h", softcap=4.0,
          window_left=20, window_right=9)
    g.add("varlen_used", "bf16", [17, 9, 5], [12, 19, 5], heads=(2, 1), D=8, bias=((3, 1, 17, 19), "bool"), used=([12, 9, 5], [12, 9, 4]))
    g.add("dropout", "f32", (2, 17), (2, 9), heads=(2, 2), D=8, bias=((1, 2, 17, 9), "bool"), dropout_p=0.2, dropout_seed=5,
          dropout_offset=3, deterministic=1)


def drawn(name, *shape, most):
    random = np.random.Generator(np.random.Philox(zlib.crc32(name.encode())))
    return torch.from_numpy(random.integers(0, most + 1, shape).astype(np.int32))


def interval_cases(g):
    """Masks in memory: every form of intervals as documents, prefixes, trees, windows, padding and at random, for all
    heads or each; block masks. Each as a dense boolean mask gives it."""
    def bounds(B, heads, Sk, *columns):
        return torch.stack([torch.as_tensor(c, dtype=torch.int32).expand(B, heads, Sk) for c in columns], -1).contiguous()

    def documents(lengths):
        ends = np.cumsum(lengths)
        return np.repeat(ends - lengths, lengths), np.repeat(ends, lengths)

    start, end = documents(np.array([20, 1, 30, 14]))
    j = np.arange(65)
    g.add("causal_documents", "bf16", (2, 65), heads=(4, 2), D=8, mask="causal_br", interval_form="from",
          extra={"intervals": bounds(2, 1, 65, end)})
    g.add("documents", "f32", (1, 65), heads=(2, 1), D=8, interval_form="from_below", extra={"intervals": bounds(1, 1, 65, end, start)})
    g.add("prefix", "f16", (1, 65), heads=(2, 2), D=16, interval_form="from_below",
          extra={"intervals": bounds(1, 1, 65, np.full(65, 65), np.where(j < 23, 0, j))})
    g.add("causal_by_intervals", "f32", (1, 65), D=8, interval_form="from_below", extra={"intervals": bounds(1, 1, 65, np.full(65, 65), j)})
    g.add("sliding_with_sinks", "bf16", (1, 65), heads=(2, 2), D=16, mask="causal_br", interval_form="from",
          extra={"intervals": bounds(1, 1, 65, np.where(j < 4, 65, np.minimum(j + 9, 65)))})
    branch_end = np.where(j < 25, 65, np.minimum(25 + (j - 25) // 10 * 10 + 10, 65))
    g.add("tree", "f32", (1, 65), heads=(2, 1), D=8, mask="causal_br", interval_form="from", extra={"intervals": bounds(1, 1, 65, branch_end)})
    g.add("padding", "f16", (2, 33), (2, 40), heads=(2, 2), D=8, interval_form="range",
          extra={"intervals": bounds(2, 1, 40, np.zeros(40), np.where((np.arange(40) < 5) | (np.arange(40) >= 37), 33, 0))})
    g.add("dead_rows", "f32", (1, 33), (1, 40), heads=(2, 2), D=8, interval_form="range_below", dlse=True, sink=[0.5, -INF],
          extra={"intervals": bounds(1, 1, 40, np.full(40, 9), np.full(40, 13), np.full(40, 2))})
    for form, count in (("from", 1), ("range", 2), ("from_below", 2), ("range_below", 3), ("two_ranges", 4)):
        name = f"random_{form}"
        g.add(name, "bf16", (2, 33), (2, 40), heads=(4, 2), D=4, interval_form=form,
              extra={"intervals": drawn(name, 2, 2, 40, count, most=33)})
    g.add("random_all_features", "f32", (2, 33), (2, 40), heads=(4, 2), D=12, Dv=7, interval_form="two_ranges", mask="causal_br",
          bias=(1, 4, 33, 40), alibi="h", softcap=3.3, sink=[0.5, -1.25, 2.0, 0.0], dlse=True, dropout_p=0.2, dropout_seed=7,
          dropout_offset=0, extra={"intervals": drawn("random_all_features", 2, 2, 40, 4, most=33)})
    g.add("random_offset", "f32", (1, 33), (1, 40), heads=(2, 1), D=8, interval_form="two_ranges", mask="causal_tl", q_offset=70,
          k_offset=60, extra={"intervals": drawn("random_offset", 1, 1, 40, 4, most=33) + 70})
    g.add("random_varlen", "f16", [17, 0, 20], [12, 33, 20], heads=(4, 2), D=8, interval_form="from_below",
          extra={"intervals": torch.where(torch.tensor([1] * 12 + [0] * 33 + [1] * 20, dtype=bool)[:, None],
                                           drawn("random_varlen", 1, 2, 65, 2, most=17), 0)})
    g.add("random_used", "f32", (2, 17), (2, 33), heads=(2, 1), D=8, used=([9, 17], [20, 1]), mask="causal_br", interval_form="range",
          extra={"intervals": drawn("random_used", 2, 1, 33, 2, most=17)})
    g.add("blocks", "bf16", (1, 130), (1, 260), heads=(1, 1), D=4,
          extra={"block_mask": torch.tensor([[[[1, 0, 255], [0, 1, 1]]]], dtype=torch.uint8)})
    g.add("blocks_of_heads", "f32", (1, 129), (1, 257), heads=(2, 2), D=2, interval_form="range",
          extra={"block_mask": torch.tensor([[[[True, False, True], [True, True, False]], [[False, True, False], [False, False, False]]]]),
                 "intervals": drawn("blocks_of_heads", 1, 1, 257, 2, most=129)})


def logit_cases(g):
    """Softcap, sinks with their gradient, the gradient that flows into LSE, a given delta."""
    g.add("softcap_f32", "f32", (1, 17), (1, 33), heads=(1, 1), D=8, softcap=2.0)
    g.add("softcap_bf16", "bf16", (1, 33), (1, 31), heads=(2, 1), D=16, softcap=30.0, std=3.0)
    g.add("softcap_saturated", "f16", (1, 17), (1, 17), D=16, softcap=0.5, std=2.0)
    g.add("softcap_bias", "bf16", (1, 17), (1, 19), heads=(2, 2), D=8, softcap=3.0, bias=(1, 2, 17, 19))
    g.add("softcap_causal", "f32", (1, 17), (1, 33), D=8, softcap=5.0, mask="causal_br", scale=0.5)
    g.add("softcap_alibi", "f16", (1, 17), (1, 33), heads=(2, 2), D=8, softcap=4.0, alibi="h")
    g.add("sink_f32", "f32", (2, 9), (2, 7), heads=(2, 2), D=8, sink=[0.5, -1.25])
    g.add("sink_bf16_gqa", "bf16", (2, 17), (2, 9), heads=(4, 2), D=8, sink=[1.0, 0.0, -3.0, 4.0])
    g.add("sink_empty_rows", "bf16", (1, 33), (1, 17), heads=(2, 2), D=8, sink=[0.75, -0.5], mask="causal_br")
    g.add("sink_empty_rows_dlse", "f32", (1, 17), (1, 5), heads=(2, 2), D=8, sink=[0.75, -0.5], mask="causal_br", dlse=True)
    g.add("sink_minus_inf", "f16", (1, 17), (1, 9), heads=(3, 3), D=8, sink=[0.25, -INF, 2.0], mask="causal_br")
    g.add("sink_minus_inf_dlse", "f32", (1, 9), (1, 5), heads=(2, 2), D=8, sink=[-INF, 1.0], mask="causal_br", dlse=True)
    g.add("sink_dominant", "bf16", (1, 17), (1, 17), heads=(2, 2), D=8, sink=[12.0, 20.0])
    g.add("dlse_f32", "f32", (2, 9), (2, 7), heads=(2, 2), D=8, dlse=True)
    g.add("dlse_bf16_causal", "bf16", (1, 33), (1, 17), heads=(2, 1), D=8, dlse=True, mask="causal_br")
    g.add("delta_f32", "f32", (2, 9), (2, 7), heads=(2, 2), D=8, delta=True)
    g.add("delta_bf16_causal", "bf16", (1, 33), (1, 17), heads=(2, 1), D=8, delta=True, mask="causal_br")
    g.add("delta_sink", "f16", (1, 17), (1, 9), heads=(2, 2), D=8, delta=True, sink=[0.5, 1.5])
    g.add("delta_bias", "bf16", (1, 17), (1, 9), heads=(2, 2), D=8, delta=True, bias=(1, 2, 17, 9))


def length_cases(g):
    """Used lengths of dense problems, packed sequences, zero lengths, gaps, empty problems."""
    g.add("dense_used_k", "bf16", (3, 17), (3, 33), heads=(2, 2), D=8, used=(None, [33, 1, 20]))
    g.add("dense_used_q", "f16", (3, 17), (3, 9), heads=(2, 2), D=8, used=([5, 17, 0], None))
    g.add("dense_used_both_causal_br", "f32", (3, 17), (3, 17), D=4, used=([17, 6, 9], [11, 17, 9]), mask="causal_br")
    g.add("dense_used_zero_k", "bf16", (2, 17), (2, 17), D=8, used=(None, [0, 9]))
    g.add("dense_used_window", "bf16", (2, 33), (2, 40), D=8, used=([33, 20], [30, 40]), window_left=5, window_right=3)
    g.add("dense_used_bias", "f16", (2, 17), (2, 9), heads=(2, 2), D=8, used=([12, 17], [9, 4]), bias=(1, 2, 17, 9))
    g.add("dense_used_sink_dlse", "f32", (2, 9), (2, 9), heads=(2, 2), D=8, used=([4, 9], [9, 0]), sink=[0.5, -0.5], dlse=True)
    g.add("empty_sk0", "bf16", (2, 5), (2, 0), heads=(2, 1), D=8)
    g.add("empty_sq0", "f16", (2, 0), (2, 5), heads=(2, 1), D=8)
    g.add("empty_b0", "f32", (0, 5), (0, 5), heads=(2, 1), D=8)
    g.add("empty_sk0_sink", "f32", (1, 5), (1, 0), heads=(2, 2), D=8, sink=[0.5, 1.0], dlse=True)

    g.add("varlen_self", "bf16", [17, 5, 33, 1], heads=(2, 2), D=8)
    g.add("varlen_cross", "f16", [17, 5, 33], [9, 63, 2], heads=(2, 2), D=8)
    g.add("varlen_zero", "f32", [0, 9, 5, 0, 7, 0], [4, 0, 9, 0, 3, 0], heads=(2, 2), D=4)
    g.add("varlen_zero_first_last", "bf16", [0, 17, 0], [0, 17, 0], D=16, mask="causal_br")
    g.add("varlen_all_zero", "f16", [0, 0], [0, 0], heads=(2, 2), D=8)
    g.add("varlen_gqa_causal_tl", "bf16", [17, 9, 20], [12, 33, 20], heads=(4, 2), D=8, mask="causal_tl")
    g.add("varlen_causal_br", "f32", [17, 9, 20], [12, 33, 20], D=8, mask="causal_br")
    g.add("varlen_window", "f16", [33, 9, 17], [12, 33, 20], D=8, window_left=4, window_right=6)
    g.add("varlen_window_causal", "bf16", [65, 9], D=8, mask="causal_br", window_left=8)
    g.add("varlen_used", "bf16", [17, 9, 20], [12, 33, 20], heads=(2, 2), D=8, used=([10, 9, 0], [12, 21, 7]))
    g.add("varlen_used_causal_br", "f32", [17, 9], [12, 33], heads=(2, 1), D=8, used=([10, 5], [12, 21]), mask="causal_br")
    g.add("varlen_bias", "bf16", [17, 9, 5], [12, 19, 5], heads=(2, 2), D=8, bias=(3, 2, 17, 19))
    g.add("varlen_bias_keys", "f16", [17, 9, 5], [12, 19, 5], heads=(2, 2), D=8, bias=(1, 2, 1, 19), mask="causal_tl")
    g.add("varlen_bias_shared_f32", "bf16", [9, 12], [12, 9], heads=(2, 2), D=8, bias=((1, 1, 12, 12), "f32"), deterministic=1)
    g.add("varlen_alibi_bh", "f32", [9, 12], [17, 5], heads=(2, 2), D=8, alibi="bh")
    g.add("varlen_sink_dlse", "bf16", [17, 5, 0, 9], [9, 17, 5, 0], heads=(2, 2), D=8, sink=[0.5, -1.0], dlse=True, mask="causal_br")
    g.add("varlen_delta", "f16", [17, 9], [9, 20], heads=(2, 2), D=8, delta=True)
    g.add("varlen_many_short", "bf16", [1, 2, 3, 1, 5, 2, 7, 1, 4, 6, 2, 1], heads=(2, 1), D=8, mask="causal_br")
    g.add("varlen_grad_f32", "bf16", [17, 9], [9, 20], heads=(2, 1), D=8, grad_dtype="f32")


def position_cases(g):
    """ALiBi in both forms, global offsets, and shards of one larger problem."""
    g.add("alibi_h", "bf16", (2, 17), (2, 33), heads=(2, 2), D=8, alibi="h")
    g.add("alibi_bh", "f32", (2, 9), (2, 7), heads=(2, 2), D=8, alibi="bh")
    g.add("alibi_tall", "f16", (1, 33), (1, 17), heads=(2, 2), D=8, alibi="h")
    g.add("alibi_gqa_causal_br", "bf16", (1, 33), (1, 40), heads=(4, 2), D=8, alibi="h", mask="causal_br")
    g.add("alibi_causal_tl", "f16", (1, 17), (1, 33), heads=(2, 2), D=8, alibi="h", mask="causal_tl")
    g.add("alibi_shift", "f32", (1, 17), (1, 33), heads=(2, 2), D=8, alibi="h", diagonal_shift=5)
    g.add("alibi_column_causal", "bf16", (1, 17), (1, 33), heads=(2, 2), D=8, alibi="h", alibi_column="1", mask="causal_br")
    g.add("alibi_column_bh", "f32", (2, 9), (2, 7), heads=(2, 2), D=8, alibi="bh", alibi_column="1")
    g.add("alibi_used", "bf16", (2, 17), (2, 17), heads=(2, 2), D=8, alibi="h", used=([9, 17], [17, 12]))
    g.add("varlen_offsets_tl", "bf16", [17, 9, 5], [12, 19, 9], heads=(2, 2), D=8, mask="causal_tl",
          extra={"q_offsets": torch.tensor([3, 10, 40]), "k_offsets": torch.tensor([0, 4, 38])})
    g.add("varlen_offsets_window", "f32", [17, 9], [12, 19], D=8, mask="causal_tl", window_left=6, alibi="h",
          extra={"q_offsets": torch.tensor([5, 1000003]), "k_offsets": torch.tensor([2, 999995])})
    g.add("offset_beyond_32_bits", "f16", (1, 17), (1, 17), D=8, mask="causal_tl", alibi="h",
          q_offset=2 ** 33 + 5, k_offset=2 ** 33)
    shards(g, "cp_f32", "f32", alibi="h", mask="causal_tl", diagonal_shift=9)
    shards(g, "cp_bf16_window", "bf16", mask="causal_br", window_left=11, diagonal_shift=9)


def shards(g, name, dtype, **options):
    """A problem of 24 queries and 33 keys, then halves of its queries and of its keys with offsets.

    A shard is given the O and LSE of the whole problem; the shards' gradients add up to the whole ones.
    """
    whole = g.add(f"{name}_whole", dtype, (1, 24), (1, 33), heads=(2, 1), D=8, dlse=True, **options)
    exact = gradients(whole)
    total = {key: torch.zeros_like(value) for key, value in exact.items()}
    for part, side, rows, cols in (("q0", "q", slice(0, 10), slice(None)), ("q1", "q", slice(10, 24), slice(None)),
                                   ("k0", "k", slice(None), slice(0, 20)), ("k1", "k", slice(None), slice(20, 33))):
        t = {key: value for key, value in whole.tensors.items() if not key.endswith("_ref")}
        for key in t:
            if key in ("q", "out", "dout"):
                t[key] = t[key][:, rows]
            elif key in ("k", "v"):
                t[key] = t[key][:, cols]
            elif key in ("lse", "dlse"):
                t[key] = t[key][:, :, rows]
        start = rows.start if side == "q" else cols.start
        problem = Problem(t, dict(whole.meta, **{f"{side}_offset": str(start)}))
        g.finish(f"{name}_{part}", problem)
        if side == "q":
            for key, value in gradients(problem).items():
                total[key][:, rows if key == "dq_ref" else slice(None)] += value
    assert all(disagreement(total[key], exact[key]) < 1e-12 for key in exact), name


def dropout_cases(g):
    """Sternway's own dropout map; the maps of PyTorch are in dropout_mem_eff and dropout_flash2."""
    seeds = dict(dropout_seed=1234567890123456789, dropout_offset=42, dropout_map="philox")
    g.add("p10_bf16", "bf16", (2, 17), (2, 33), heads=(2, 2), D=8, dropout_p=0.1, **seeds)
    g.add("p50_f16", "f16", (1, 33), (1, 17), heads=(2, 2), D=8, dropout_p=0.5, **seeds)
    g.add("p30_f32", "f32", (2, 9), (2, 7), heads=(2, 2), D=8, dropout_p=0.3, **seeds)
    g.add("p97_f32", "f32", (1, 33), (1, 31), D=4, dropout_p=0.97, **seeds)
    g.add("p_tiny", "f16", (1, 17), (1, 17), D=8, dropout_p=1e-9, **seeds)
    g.add("seed_64_bits", "bf16", (1, 17), (1, 33), D=8, dropout_p=0.2, dropout_seed=0xFEDCBA9876543210,
          dropout_offset=0xF123456789ABCDEF, dropout_map="philox")
    g.add("seed_zero", "f32", (1, 17), (1, 9), D=8, dropout_p=0.2, dropout_seed=0, dropout_offset=0)
    g.add("causal_gqa", "bf16", (1, 33), (1, 40), heads=(2, 1), D=16, mask="causal_br", dropout_p=0.1, **seeds)
    g.add("s_130", "bf16", (1, 130), (1, 129), D=8, dropout_p=0.1, **seeds)
    g.add("varlen", "f16", [17, 0, 33, 5], [9, 4, 20, 5], heads=(2, 2), D=8, dropout_p=0.1, **seeds)
    g.add("used_lengths", "bf16", (2, 17), (2, 17), heads=(2, 2), D=8, used=([9, 17], [17, 12]), dropout_p=0.1, **seeds)
    g.add("bias", "bf16", (2, 17), (2, 9), heads=(2, 2), D=8, bias=(1, 2, 17, 9), dropout_p=0.1, **seeds)
    g.add("sink_dlse", "f32", (1, 9), (1, 17), heads=(2, 2), D=8, sink=[0.5, 1.0], dlse=True, dropout_p=0.25, **seeds)
    g.add("delta", "f16", (1, 17), (1, 17), heads=(2, 2), D=8, delta=True, dropout_p=0.1, **seeds)
    g.add("offsets", "bf16", (1, 17), (1, 17), D=8, mask="causal_tl", q_offset=35, k_offset=30, dropout_p=0.2, **seeds)

    whole = g.add("tp_whole", "f32", (2, 9), (2, 10), heads=(4, 2), D=8, dropout_p=0.2, **seeds)
    cut = {}
    for key, value in whole.tensors.items():
        if not key.endswith("_ref"):
            per_group = slice(1, 2) if key in ("k", "v") else slice(2, 4)
            cut[key] = value[1:2, per_group] if key == "lse" else value[1:2, :, per_group]
    part = Problem(cut, dict(whole.meta, batch_offset="1", head_offset="2", heads_total="4"))
    g.finish("tp_batch1_heads23", part)
    for key, value in gradients(part).items():
        heads = slice(2, 4) if key == "dq_ref" else slice(1, 2)
        assert disagreement(value, whole.tensors[key][1:2, :, heads]) < 1e-12, key


def combined_cases(g):
    """Many features at once, and memory that nothing may look at."""
    drop = dict(dropout_p=0.15, dropout_seed=77, dropout_offset=5)
    everything = dict(heads=(4, 2), softcap=6.0, sink=[0.5, -0.5, 1.0, 0.0], dlse=True, window_left=12, mask="causal_br", **drop)
    g.add("dense_all_bf16", "bf16", (2, 17), (2, 23), D=8, bias=(2, 1, 17, 23), alibi="h", **everything)
    g.add("dense_all_f32", "f32", (1, 17), (1, 15), D=8, bias=(1, 4, 1, 15), alibi="bh", **everything)
    g.add("varlen_all_f16", "f16", [17, 0, 9], [23, 5, 12], D=8, bias=(1, 4, 17, 23), alibi="bh", **everything)
    g.add("varlen_all_used_bf16", "bf16", [17, 9], [23, 12], D=8, used=([11, 9], [23, 8]), bias=((2, 1, 17, 1), "f32"), **everything)
    g.add("alibi_bias_window", "f16", (1, 33), (1, 47), heads=(2, 2), D=4, alibi="h", bias=(1, 1, 33, 47), window_left=8, window_right=8)
    g.add("d192_dv128_gqa_causal_sink", "bf16", (1, 7), (1, 10), heads=(2, 1), D=192, Dv=128, mask="causal_br", sink=[0.0, 1.0])
    g.add("d80_varlen_causal", "f16", [9, 5], heads=(2, 1), D=80, mask="causal_br")
    g.add("deterministic_varlen_all", "bf16", [17, 9], [23, 12], D=8, bias=(1, 1, 17, 23), deterministic=1, **everything)
    g.add("shard_offsets_heads", "bf16", (1, 17), (1, 23), heads=(2, 1), D=8, alibi="h", mask="causal_tl", diagonal_shift=6,
          q_offset=17, k_offset=23, batch_offset=3, head_offset=4, heads_total=8, **drop)

    def gap_rows(t):
        for b, (rows_q, rows_k) in enumerate(zip(t["used_q"].tolist(), t["used_k"].tolist())):
            for key in ("q", "out", "dout"):
                t[key][b, rows_q:] = NAN
            t["lse"][b, :, rows_q:] = NAN
            t["k"][b, rows_k:] = NAN
            t["v"][b, rows_k:] = INF
    g.add("nan_past_used_bf16", "bf16", (2, 17), (2, 33), heads=(2, 1), D=8, used=([9, 17], [20, 1]), poison=gap_rows)
    g.add("nan_past_used_f32", "f32", (2, 17), (2, 17), D=8, used=([17, 5], [3, 17]), mask="causal_br", poison=gap_rows)

    def unseen_keys(t):
        t["k"][:, 17:] = NAN
        t["v"][:, 17:] = NAN
    g.add("nan_unseen_keys", "f16", (1, 17), (1, 33), heads=(2, 1), D=16, mask="causal_tl", poison=unseen_keys)

    def blind_rows(t):
        for key in ("q", "out", "dout"):
            t[key][:, :16] = NAN
    g.add("nan_rows_without_keys", "bf16", (1, 33), (1, 17), heads=(2, 1), D=16, mask="causal_br", poison=blind_rows)

    def masked_bias(t):
        above = torch.ones(17, 33, dtype=bool).triu(17)
        t["bias"][:, :, above] = NAN
    g.add("nan_masked_bias", "bf16", (1, 17), (1, 33), heads=(2, 2), D=8, mask="causal_br", bias=(1, 2, 17, 33), poison=masked_bias)

    def infinite_lse(t):
        t["lse"][:, :, 3] = INF
        t["lse"][:, :, 5] = -INF
    g.add("lse_infinite_rows", "f32", (1, 9), (1, 17), heads=(2, 2), D=8, after=infinite_lse)

    def zero_lse(t):
        t["q"][:] = 0.0
        t["bias"][:] = -float(np.log(16.0))
    g.add("lse_near_zero", "f32", (1, 9), (1, 16), D=8, bias=(1, 1, 1, 1), edit=zero_lse,
          after=lambda t: t["lse"].zero_())


def f64_cases(g):
    """Problems in f64, which the CPU backend takes: a case or two of every feature."""
    g.add("f64_dense", "f64", (2, 17), (2, 33), heads=(4, 2), D=8)
    g.add("f64_unequal_dims", "f64", (1, 33), (1, 65), D=24, Dv=5, scale=0.1)
    g.add("f64_over_tiles", "f64", (1, 40), (1, 70), heads=(2, 1), D=8, mask="causal_br")
    g.add("f64_window_tall", "f64", (1, 40), (1, 17), heads=(2, 2), D=8, window_left=3, window_right=2)
    g.add("f64_shift", "f64", (1, 17), (1, 33), D=8, mask="causal_tl", diagonal_shift=3)
    g.add("f64_used", "f64", (2, 17), (2, 33), heads=(2, 1), D=8, used=([9, 17], [20, 1]), mask="causal_br")
    g.add("f64_varlen", "f64", [17, 0, 20], [12, 33, 20], heads=(2, 1), D=8, mask="causal_br")
    g.add("f64_varlen_used", "f64", [17, 9, 20], [12, 33, 20], heads=(2, 2), D=8, used=([10, 9, 0], [12, 21, 7]))
    g.add("f64_bias", "f64", (2, 17), (2, 19), heads=(2, 2), D=8, bias=(2, 2, 17, 19))
    g.add("f64_bias_keys", "f64", (2, 17), (2, 19), heads=(2, 2), D=8, bias=(2, 1, 1, 19), mask="causal_tl")
    g.add("f64_bias_shared", "f64", (2, 9), (2, 12), heads=(2, 2), D=8, bias=(1, 1, 9, 12))
    g.add("f64_alibi", "f64", (2, 17), (2, 33), heads=(2, 2), D=8, alibi="bh", mask="causal_br")
    g.add("f64_alibi_column", "f64", (1, 17), (1, 33), heads=(2, 2), D=8, alibi="h", alibi_column=1, mask="causal_br")
    g.add("f64_softcap", "f64", (1, 17), (1, 33), heads=(2, 1), D=8, softcap=2.1, std=2.0)
    g.add("f64_sink_dlse", "f64", (1, 17), (1, 5), heads=(2, 2), D=8, sink=[0.75, -0.5], mask="causal_br", dlse=True)
    g.add("f64_delta", "f64", (2, 9), (2, 7), heads=(2, 2), D=8, delta=True, sink=[0.5, -INF])
    g.add("f64_dropout", "f64", (2, 17), (2, 33), heads=(2, 2), D=8, dropout_p=0.3, dropout_seed=1234567890123456789,
          dropout_offset=42)
    g.add("f64_everything", "f64", (2, 33), (2, 40), heads=(4, 2), D=12, Dv=7, bias=(1, 4, 33, 40), alibi="h", softcap=3.3,
          sink=[0.5, -1.25, 2.0, 0.0], dlse=True, dropout_p=0.2, dropout_seed=7, dropout_offset=0, mask="causal_br", window_left=20)
    g.add("random_f64", "f64", (2, 17), (2, 33), heads=(4, 2), D=8, interval_form="two_ranges",
          extra={"intervals": drawn("random_f64", 2, 2, 33, 4, most=17)})


GROUPS = {"dense": dense_cases, "masks": mask_cases, "bias": bias_cases, "bytes": byte_cases, "intervals": interval_cases, "logits": logit_cases, "lengths": length_cases,
          "position": position_cases, "dropout": dropout_cases, "combined": combined_cases,
          "f64": f64_cases}


def check(paths):
    """Recomputes the references of stored files by both routes."""
    worst = 0.0
    for path in paths:
        problems = container.read_problems(path)
        units = {name: check_stored(Problem(*parts)) for name, parts in problems.items()}
        worst = max(worst, *units.values())
        for name in (name for name, value in units.items() if value > 1.0):
            print(f"{pathlib.Path(path).name}: {name}: references off by {units[name]:.3g} times what is allowed")
        print(f"{pathlib.Path(path).name}: {len(problems)} problems, references within {max(units.values()):.3g} of what is allowed")
    return worst <= 1.0


def main():
    parser = argparse.ArgumentParser(description="Makes or checks the golden vectors of attention backward.")
    parser.add_argument("--check", action="store_true", help="verify stored files instead of writing them")
    parser.add_argument("files", nargs="*", help="files to check (all files of this folder)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dropout_maps.check_known_answers()
    if options.check:
        sys.exit(0 if check(options.files or sorted(FOLDER.glob("*.safetensors"))) else 1)
    for name, build in GROUPS.items():
        group = Group()
        build(group)
        path = FOLDER / f"{name}.safetensors"
        container.write_problems(path, group.problems, ABOUT)
        print(f"{path.name}: {len(group.problems)} problems, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
