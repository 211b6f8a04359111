# SPDX-License-Identifier: MIT
"""Float64 attention and its exact gradients for the inputs AS STORED in a golden file.

Used by make_golden.py, make_dropout_maps.py, make_windows.py and ../../examples/make_examples.py, on generation and by
--check.
The contract takes O and LSE as inputs, so their rounding belongs to the answer. Two independent routes:
gradients_autograd (PyTorch's float64 autograd of a loss whose gradient is the contract's formula for the
stored O and LSE) and gradients_formula (the formula written out in numpy). Both must agree.
"""
import dataclasses
import math

import numpy as np
import torch

import dropout_maps

F64 = torch.float64


@dataclasses.dataclass
class Problem:
    """One backward problem: the tensors and metadata strings of the file format (README.md)."""
    tensors: dict
    meta: dict

    def number(self, key, default=None, kind=int):
        return kind(self.meta[key]) if key in self.meta else default

    @property
    def varlen(self):
        return "cu_seqlens_q" in self.tensors

    @property
    def scale(self):
        return self.number("scale", 1.0 / math.sqrt(self.tensors["q"].shape[-1]), float)


@dataclasses.dataclass
class Sequence:
    """The part of a problem that one sequence owns; rows are used rows only."""
    index: int
    length_q: int
    length_k: int
    q_rows: tuple      # index of q, out, dout, dq
    k_rows: tuple      # index of k, v, dk, dv
    lse_rows: tuple    # index of lse, dlse, delta: [H, Lq]
    offset_q: int
    offset_k: int


def sequences(problem):
    """Lists the sequences of a problem, dense or varlen."""
    t = problem.tensors
    if problem.varlen:
        cu_q, cu_k = t["cu_seqlens_q"].tolist(), t["cu_seqlens_k"].tolist()
    else:
        cu_q, cu_k = ([n * t[name].shape[1] for n in range(t["q"].shape[0] + 1)] for name in "qk")
    spans = [(cu_q[b], cu_q[b + 1] - cu_q[b], cu_k[b], cu_k[b + 1] - cu_k[b]) for b in range(len(cu_q) - 1)]
    result = []
    for b, (start_q, length_q, start_k, length_k) in enumerate(spans):
        length_q = int(t["used_q"][b]) if "used_q" in t else length_q
        length_k = int(t["used_k"][b]) if "used_k" in t else length_k
        offset_q = int(t["q_offsets"][b]) if "q_offsets" in t else problem.number("q_offset", 0)
        offset_k = int(t["k_offsets"][b]) if "k_offsets" in t else problem.number("k_offset", 0)
        if problem.varlen:
            rows_q, rows_k = slice(start_q, start_q + length_q), slice(start_k, start_k + length_k)
            index = (rows_q,), (rows_k,), (slice(None), rows_q)
        else:
            rows_q, rows_k = slice(0, length_q), slice(0, length_k)
            index = (b, rows_q), (b, rows_k), (b, slice(None), rows_q)
        result.append(Sequence(b, length_q, length_k, *index, offset_q, offset_k))
    return result


def positions(problem, seq):
    """Global i and j, and the shift of the diagonal."""
    i, j = np.arange(seq.length_q) + seq.offset_q, np.arange(seq.length_k) + seq.offset_k
    shift = 0 if problem.meta.get("mask") == "causal_tl" else seq.length_k - seq.length_q
    return i, j, problem.number("diagonal_shift", shift)


def flash_visible(problem, distance):
    """The same by flash_causal and flash_window_*, read as csrc/flash_attn of flash-attn 2 reads them: a bound that is
    negative or not below max_seqlen_k is absent, causal puts 0 on the right, and beside a bound that is there an absent
    one is max_seqlen_k."""
    max_k = longest(problem, "k")
    left, right = problem.number("flash_window_left", -1), problem.number("flash_window_right", -1)
    left, right = (bound if bound < max_k else -1 for bound in (left, right))
    right = 0 if problem.number("flash_causal", 0) else right
    if left < 0 and right < 0:
        return np.ones(distance.shape, dtype=bool)
    left, right = (bound if bound >= 0 else max_k for bound in (left, right))
    return (distance >= -left) & (distance <= right)


def visible_pairs(problem, seq):
    """bool [Lq, Lk]: the pairs that the causal mask and the window leave."""
    i, j, shift = positions(problem, seq)
    distance = j[None, :] - (i[:, None] + shift)
    if any(key.startswith("flash_") for key in problem.meta):
        return flash_visible(problem, distance)
    visible = np.ones(distance.shape, dtype=bool)
    if problem.meta.get("mask", "none") != "none":
        visible &= distance <= 0
    if "window_left" in problem.meta:
        visible &= distance >= -problem.number("window_left")
    if "window_right" in problem.meta:
        visible &= distance <= problem.number("window_right")
    return visible


def alibi_bias(problem, seq):
    """float64 [H, Lq, Lk], or None."""
    if "alibi_slopes" not in problem.tensors:
        return None
    slopes = problem.tensors["alibi_slopes"].double().numpy()
    slopes = (slopes if slopes.ndim == 1 else slopes[seq.index])[:, None, None]
    i, j, shift = positions(problem, seq)
    if problem.meta.get("alibi_column") == "1":
        return slopes * np.broadcast_to(j[None, None, :], (1, len(i), len(j)))
    return -slopes * np.abs(i[:, None] + shift - j[None, :])[None]


def longest(problem, side):
    """The largest number of rows of a sequence."""
    return int(problem.tensors[f"cu_seqlens_{side}"].diff().max()) if problem.varlen else problem.tensors[side].shape[1]


def dropout_factors(problem, seq):
    """Z, float64 [H, Lq, Lk]: 0 or 1/(1-p); None without dropout."""
    p = problem.number("dropout_p", 0.0, float)
    if p == 0.0:
        return None
    seed, offset = problem.number("dropout_seed"), problem.number("dropout_offset")
    heads = problem.tensors["q"].shape[-2]
    heads_total = problem.number("heads_total", heads)
    i, j, _ = positions(problem, seq)
    keep = []
    for h in range(heads):
        batch_head = (seq.index + problem.number("batch_offset", 0)) * heads_total \
            + h + problem.number("head_offset", 0)
        kind = problem.meta.get("dropout_map", "philox")
        if kind == "philox":
            keep.append(dropout_maps.keep_philox(p, seed, offset, batch_head, i, j))
        elif kind == "mem_eff":
            base = 0 if problem.varlen else batch_head * seq.length_q * seq.length_k
            keep.append(dropout_maps.keep_mem_eff(p, seed, offset, base, i, j, seq.length_k))
        elif kind == "mem_eff_backward":
            base = batch_head * longest(problem, "q") * longest(problem, "k")
            keep.append(dropout_maps.keep_mem_eff(p, seed, offset, base, i, j, seq.length_k))
        else:
            keep.append(dropout_maps.keep_flash2(p, seed, offset, batch_head, i, j))
    return np.where(np.stack(keep), 1.0 / (1.0 - p), 0.0)


def bias_block(bias, seq):
    """The sequence's view of a bias, broadcast to [H or 1, Lq, Lk] (dims of size 1 stay for the caller to expand)."""
    part = bias[seq.index if bias.shape[0] > 1 else 0]
    part = part if part.shape[1] == 1 else part[:, :seq.length_q]
    part = part if part.shape[2] == 1 else part[:, :, :seq.length_k]
    return part


def hidden_rows(form, bounds, i):
    """bool [Hk or 1, Lq, Lk]: rows i that the bounds [Hk or 1, Lk, n] of each key hide, as FlashMask's column forms do."""
    c = [bounds[:, None, :, n] for n in range(bounds.shape[-1])]
    i = i[None, :, None]
    return {"from": lambda: i >= c[0], "range": lambda: (i >= c[0]) & (i < c[1]),
            "from_below": lambda: (i >= c[0]) | (i < c[1]), "range_below": lambda: ((i >= c[0]) & (i < c[1])) | (i < c[2]),
            "two_ranges": lambda: ((i >= c[0]) & (i < c[1])) | ((i >= c[2]) & (i < c[3]))}[form]()


def unhidden(problem, seq):
    """bool [Hq or 1, Lq, Lk]: the pairs that intervals and a block mask leave; None: there are neither."""
    t, shown = problem.tensors, None
    group = t["q"].shape[-2] // t["k"].shape[-2]
    if "intervals" in t:
        bounds = t["intervals"][0 if problem.varlen else seq.index]
        first = int(t["cu_seqlens_k"][seq.index]) if problem.varlen else 0
        bounds = bounds[:, first:first + seq.length_k].long()
        i = torch.arange(seq.length_q) + seq.offset_q
        shown = ~hidden_rows(problem.meta["interval_form"], bounds, i)
        shown = shown.repeat_interleave(group, 0) if shown.shape[0] > 1 else shown
    if "block_mask" in t:
        blocks = t["block_mask"][seq.index] != 0
        blocks = blocks.repeat_interleave(128, 1).repeat_interleave(128, 2)[:, :seq.length_q, :seq.length_k]
        shown = blocks if shown is None else shown & blocks
    return shown


def shown_block(problem, seq):
    """Pairs that a bias of bytes, intervals and a block mask let be seen, [H or 1, Lq or 1, Lk or 1] of truth values;
    None: there is none of them."""
    bias, shown = problem.tensors.get("bias"), unhidden(problem, seq)
    if bias is None or bias.is_floating_point():
        return shown
    bias = bias_block(bias, seq) != 0
    return bias if shown is None else shown & bias


def seen_only(tensor, seen):
    """Zeroes the rows that nobody sees, by selection: whatever they hold (NaN included) is not part of the problem."""
    return torch.where(torch.from_numpy(seen)[:, None, None], tensor, 0.0)


class SequenceGraph:
    """The differentiable float64 forward of one sequence: scores, LSE, P, O and the row bookkeeping."""

    def __init__(self, problem, seq, leaves):
        visible = visible_pairs(problem, seq)
        self.sees, self.seen = visible.any(1), visible.any(0)
        group = problem.tensors["q"].shape[-2] // problem.tensors["k"].shape[-2]
        q = seen_only(leaves["q"][seq.q_rows], self.sees)
        k = seen_only(leaves["k"][seq.k_rows], self.seen).repeat_interleave(group, 1)
        v = seen_only(leaves["v"][seq.k_rows], self.seen).repeat_interleave(group, 1)
        score = problem.scale * torch.einsum("ihd,jhd->hij", q, k)
        cap = problem.number("softcap", 0.0, float)
        if cap != 0.0:
            score = cap * torch.tanh(score / cap)
        mask, shown = torch.from_numpy(visible), shown_block(problem, seq)
        if shown is not None:
            mask = mask & shown
        if "bias" in leaves:
            score = score + torch.where(mask, bias_block(leaves["bias"], seq), 0.0)
        alibi = alibi_bias(problem, seq)
        if alibi is not None:
            score = score + torch.from_numpy(alibi)
        score = torch.where(mask, score, -torch.inf)

        # rows with no key and no (finite) sink have no distribution: they are left out, not patched up afterwards
        logits = score
        if "sink" in leaves:
            sink = leaves["sink"][:, None, None].expand(*score.shape[:2], 1)
            logits = torch.cat([score, sink], -1)
        self.live = (logits > -torch.inf).any(-1) if logits.shape[-1] else torch.zeros(score.shape[:2], dtype=bool)
        self.lse_rows = torch.logsumexp(logits[self.live], -1)
        P = torch.zeros_like(score)
        P[self.live] = torch.exp(score[self.live] - self.lse_rows[:, None])
        factors = dropout_factors(problem, seq)
        Z = 1.0 if factors is None else torch.from_numpy(factors)
        self.out = torch.einsum("hij,jhd->ihd", P * Z, v)

    def lse(self):
        full = torch.full(self.live.shape, -torch.inf, dtype=F64)
        full[self.live] = self.lse_rows.detach()
        return full


LEAVES = ("q", "k", "v", "bias", "sink")


def is_f64(problem):
    return problem.tensors["q"].dtype == F64


def float64_leaves(problem, wanted):
    return {name: problem.tensors[name].detach().clone().double().requires_grad_(wanted) for name in LEAVES
            if name in problem.tensors and problem.tensors[name].is_floating_point()}


def forward(problem):
    """O (shaped like dout) and LSE in float64; rows outside the used lengths are 0 and -inf."""
    leaves = float64_leaves(problem, False)
    out = torch.zeros(problem.tensors["dout"].shape, dtype=F64)
    shape = out.shape[:-1]
    lse = torch.full((shape[1], shape[0]) if problem.varlen else (shape[0], shape[2], shape[1]), -torch.inf, dtype=F64)
    for seq in sequences(problem):
        graph = SequenceGraph(problem, seq, leaves)
        out[seq.q_rows], lse[seq.lse_rows] = graph.out, graph.lse()
    return out, lse


def gradients_autograd(problem):
    """Exact gradients by float64 autograd.

    With O and lse the differentiable values and `out`, `lse32` the stored ones, the loss
        sum_i r_i * (dO_i . O_i + c_i * lse_i),   r_i = exp(lse_i - lse32_i),   c_i = dO_i . O_i - D_i,
    r and c constants, has dLoss/dS = r.P.(dP - dO.O + c) = exp(S - lse32).(dP - D): the contract's formula.
    """
    t = problem.tensors
    leaves = float64_leaves(problem, True)
    loss = torch.zeros((), dtype=F64)
    for seq in sequences(problem):
        graph = SequenceGraph(problem, seq, leaves)
        dout = seen_only(t["dout"][seq.q_rows].double(), graph.sees)
        dot_out = (dout * graph.out).sum(-1).T
        if "delta" in t:
            D = t["delta"][seq.lse_rows].double()
        else:
            D = (dout * seen_only(t["out"][seq.q_rows].double(), graph.sees)).sum(-1).T
            if "dlse" in t:
                D = D - t["dlse"][seq.lse_rows].double()
        lse32 = t["lse"][seq.lse_rows].double()
        use = graph.live & ~torch.isinf(lse32)
        lse = torch.zeros_like(lse32).index_put((graph.live,), graph.lse_rows)
        r = torch.exp(lse.detach() - lse32)[use]
        c = (dot_out.detach() - D)[use]
        loss = loss + (r * (dot_out[use] + c * lse[use])).sum()
    names = list(leaves)
    grads = torch.autograd.grad(loss, [leaves[name] for name in names], allow_unused=True, materialize_grads=True) \
        if loss.requires_grad else [torch.zeros_like(leaves[name]) for name in names]
    return {f"d{name}_ref": grad for name, grad in zip(names, grads)}


def add_to_bias(target, part, h):
    """Adds [Lq, Lk] to the head's view of a bias-shaped array, summed over its broadcast dimensions."""
    target = target[h if target.shape[0] > 1 else 0]
    for axis in (0, 1):
        if target.shape[axis] == 1:
            part = part.sum(axis, keepdims=True)
    target += part


def gradients_formula(problem):
    """The same gradients from the contract's formula written out, head by head, in numpy.

    Also returns the formula on absolute values, the yardstick for rounding where terms cancel (a bias broadcast
    over all keys has a gradient of nearly zero). Of f64 problems in long double.
    """
    wide = np.longdouble if is_f64(problem) else np.float64
    t = {name: tensor.double().numpy().astype(wide)
         for name, tensor in problem.tensors.items() if tensor.is_floating_point()}
    result = {f"d{name}_ref": np.zeros(t[name].shape, wide) for name in LEAVES if name in t}
    size = {name: np.zeros_like(value) for name, value in result.items()}
    cap, scale = problem.number("softcap", 0.0, float), problem.scale
    heads = t["q"].shape[-2]
    group = heads // t["k"].shape[-2]
    for seq in sequences(problem):
        visible, shown = visible_pairs(problem, seq), shown_block(problem, seq)
        alibi, factors = alibi_bias(problem, seq), dropout_factors(problem, seq)
        sees, seen = visible.any(1)[:, None], visible.any(0)[:, None]
        for h in range(heads):
            at_q, at_k = seq.q_rows + (h,), seq.k_rows + (h // group,)
            q, dout = np.where(sees, t["q"][at_q], 0.0), np.where(sees, t["dout"][at_q], 0.0)
            k, v = np.where(seen, t["k"][at_k], 0.0), np.where(seen, t["v"][at_k], 0.0)
            rows = seq.lse_rows[:-2] + (h,) + seq.lse_rows[-1:]
            lse = t["lse"][rows]
            if "delta" in t:
                D, D_size = t["delta"][rows], np.abs(t["delta"][rows])
            else:
                product = dout * np.where(sees, t["out"][at_q], 0.0)
                dlse = t["dlse"][rows] if "dlse" in t else 0.0
                D, D_size = product.sum(-1) - dlse, np.abs(product).sum(-1) + np.abs(dlse)
            S = scale * (q @ k.T)
            slope = scale
            if cap != 0.0:
                slope = scale * (1.0 - np.tanh(S / cap) ** 2)
                S = cap * np.tanh(S / cap)
            if "bias" in t:
                block = bias_block(t["bias"], seq)
                S = S + np.where(visible, block[h if block.shape[0] > 1 else 0], 0.0)
            if alibi is not None:
                S = S + alibi[h]
            live = ~np.isinf(lse)
            selected = visible & (S > -np.inf) & live[:, None]
            if shown is not None:
                selected = selected & shown[h if shown.shape[0] > 1 else 0].numpy()
            P = np.exp(np.where(selected, S, 0.0) - np.where(live, lse, 0.0)[:, None])
            P = np.where(selected, P, 0.0)
            Z = 1.0 if factors is None else factors[h]
            dS = np.where(selected, P * ((dout @ v.T) * Z - D[:, None]), 0.0)
            dS_size = np.where(selected, P * ((abs(dout) @ abs(v).T) * Z + D_size[:, None]), 0.0)
            result["dv_ref"][at_k] += (P * Z).T @ dout
            result["dq_ref"][at_q] += (dS * slope) @ k
            result["dk_ref"][at_k] += (dS * slope).T @ q
            size["dv_ref"][at_k] += (P * Z).T @ abs(dout)
            size["dq_ref"][at_q] += abs(dS_size * slope) @ abs(k)
            size["dk_ref"][at_k] += abs(dS_size * slope).T @ abs(q)
            if "bias" in t:
                add_to_bias(bias_block(result["dbias_ref"], seq), dS, h)
                add_to_bias(bias_block(size["dbias_ref"], seq), dS_size, h)
            if "sink" in t and np.isfinite(t["sink"][h]):
                share = np.exp(t["sink"][h] - lse[live])
                result["dsink_ref"][h] -= (share * D[live]).sum()
                size["dsink_ref"][h] += (share * D_size[live]).sum()
    return tuple({name: torch.from_numpy(np.asarray(value, np.float64)) for name, value in part.items()}
                 for part in (result, size))


def disagreement(got, want, size=None):
    """Largest difference over the largest value of `size` (by default of |want|; absolute where that is 0)."""
    if want.numel() == 0:
        return 0.0
    if not bool(torch.isfinite(got).all()):
        return float("inf")
    top = float((want if size is None else size).abs().max())
    return float((got.double() - want.double()).abs().max()) / (top if top > 0.0 else 1.0)


def gradients(problem, tolerance=1e-12):
    """Both routes, compared; returns the float64 references: of f64 problems the formula's, which are rounded once."""
    by_autograd = gradients_autograd(problem)
    by_formula, size = gradients_formula(problem)
    for name, value in by_autograd.items():
        error = disagreement(value, by_formula[name], size[name])
        assert error <= tolerance, f"{name}: autograd and formula differ by {error:.3g}"
    return by_formula if is_f64(problem) else by_autograd


def check_stored(problem):
    """Verifies a stored problem's references; returns the largest disagreement in units of what its type allows."""
    worst = 0.0
    by_formula, size = gradients_formula(problem)
    try:
        exact = gradients(problem)
    except AssertionError:          # inputs that make no sense
        return float("inf")
    for name, value in exact.items():
        if name in problem.tensors:
            stored = problem.tensors[name]
            narrow = stored.dtype == torch.float32
            worst = max(worst, disagreement(stored, value, None if narrow else size[name]) / (2.0 ** -23 if narrow else 1e-12),
                        disagreement(stored, by_formula[name], size[name]) / 2.0 ** -23)
    return worst
