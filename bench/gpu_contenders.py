# SPDX-License-Identifier: MIT
"""The tensors of a case, the peers that do it, and a float64 backward of some of its heads.

A peer is opened as a Contender: a function that runs its backward alone and returns dq, dk, dv and, where the case has
it, dbias; with the out and lse of its forward where ours can take them."""
import dataclasses
import functools
import importlib
import math
from typing import Callable

import torch

from calls import native
from gpu_cases import PLAIN, mask_end

A = torch.ops.aten
TORCH_TYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
DROPOUT_P = 0.1


class Tensors:
    """Inputs of a case: dense as [B,H,S,D] views of [B,S,H,D] storage, packed as [T,H,D]."""

    def __init__(self, case):
        self.case = case
        self.generator = torch.Generator(device="cuda").manual_seed(case.seq * 1000 + case.dim)
        self.q, self.k = self.filled(case.heads, case.seq, case.dim), self.filled(case.kv, case.sk, case.dim)
        self.v, self.dout = self.filled(case.kv, case.sk, case.dv), self.filled(case.heads, case.seq, case.dv)
        self.bias = self.starts = self.slopes = self.intervals = None
        if case.mask:
            ends, prefix = mask_end(case.mask, case.sk)
            if case.mask == "causal":  # rows before a key's own
                form, columns = native.INTERVALS_RANGE, [[0] * case.sk, list(range(case.sk))]
            elif ends is None:
                form, columns = native.INTERVALS_FROM_BELOW, [[case.seq] * case.sk, [j if j >= prefix else 0 for j in range(case.sk)]]
            else:
                form, columns = native.INTERVALS_FROM, [ends]
            self.intervals = form, torch.tensor(columns, dtype=torch.int32, device="cuda").T.contiguous()[None, None]
        if case.bias:
            sizes = {"b": case.batch, "h": case.heads, "q": case.seq, "k": case.sk, "1": 1}
            self.bias = torch.randn(*(sizes[letter] for letter in case.bias), device="cuda", dtype=TORCH_TYPES[case.dtype], generator=self.generator)
        if case.lengths:
            self.starts = torch.tensor((0,) + case.lengths).cumsum(0).to(device="cuda", dtype=torch.int32)
        if case.alibi:
            self.slopes = 2.0 ** (-8.0 * torch.arange(1, case.heads + 1, device="cuda", dtype=torch.float32) / case.heads)

    def empty(self, heads, seq, dim, dtype=None):
        """In the layout of the case, `off` included."""
        case, dtype = self.case, dtype or TORCH_TYPES[self.case.dtype]
        if case.lengths:
            return torch.empty(sum(case.lengths), heads, dim, device="cuda", dtype=dtype)
        gap, first = int(case.off == "gap1"), int(case.off == "skew1")
        row = heads * (dim + gap) + gap
        storage = torch.empty(first + case.batch * seq * row, device="cuda", dtype=dtype)
        rows = storage[first:].view(case.batch, seq, row)[..., :heads * (dim + gap)]
        return rows.unflatten(-1, (heads, dim + gap))[..., :dim].transpose(1, 2)

    def filled(self, heads, seq, dim):
        return self.empty(heads, seq, dim).normal_(generator=self.generator)

    def gradients(self):
        """dq, dk, dv: NaN, and 1 where the call adds to what is there."""
        case = self.case
        made = []
        for heads, seq, dim, of_keys in ((case.heads, case.seq, case.dim, False), (case.kv, case.sk, case.dim, True), (case.kv, case.sk, case.dv, True)):
            dtype = torch.float32 if of_keys and case.grads else None
            made.append(self.empty(heads, seq, dim, dtype).fill_(1.0 if of_keys and case.grads == "acc" else math.nan))
        return made


@dataclasses.dataclass
class Contender:
    run: Callable
    out: torch.Tensor | None = None
    lse: torch.Tensor | None = None
    rng: object = None  # seed and offset of its dropout


# ---- PyTorch's own operators ----------------------------------------------------------------------------------------


def flash(case, t, p):
    longest = max(case.lengths) if case.lengths else 0
    if case.lengths or case.window:
        sizes = (t.starts, t.starts, longest, longest) if case.lengths else (None, None, case.seq, case.sk)
        # without starts the operator takes [B,S,H,D]
        q, k, v, dout = ((x if case.lengths else x.transpose(1, 2)) for x in (t.q, t.k, t.v, t.dout))
        sides = dict(window_size_left=case.window, window_size_right=0) if case.window else {}
        out, lse, rng, unused, _ = A._flash_attention_forward(q, k, v, *sizes, p, case.causal, False, **sides)

        def run():
            made = A._flash_attention_backward(dout, q, k, v, out, lse, *sizes, p, case.causal, rng, unused, **sides)
            return made if case.lengths else tuple(x.transpose(1, 2) for x in made)
        return Contender(run, out if case.lengths else out.transpose(1, 2), lse, rng)
    out, lse, cq, ck, mq, mk, rng, unused, _ = A._scaled_dot_product_flash_attention(t.q, t.k, t.v, p, case.causal, False)
    return Contender(lambda: A._scaled_dot_product_flash_attention_backward(t.dout, t.q, t.k, t.v, out, lse, cq, ck, mq, mk, p, case.causal,
                                                                            rng, unused), out, lse, rng)


def flash_det(case, t, p):
    made = flash(case, t, p)

    def deterministic():
        torch.use_deterministic_algorithms(True)
        grads = made.run()
        torch.use_deterministic_algorithms(False)
        return grads

    return dataclasses.replace(made, run=deterministic)


def hidden_rows(t):
    """[2, 2, Sk]: of two intervals the first row that does not see a key and the row behind the last."""
    form, bounds = t.intervals
    c, zero = bounds[0, 0].T, torch.zeros_like(bounds[0, 0, :, 0])
    if form == native.INTERVALS_RANGE:
        return torch.stack([torch.stack([c[0], c[1]]), torch.stack([zero, zero])])
    below = c[1] if form == native.INTERVALS_FROM_BELOW else zero
    return torch.stack([torch.stack([c[0], torch.full_like(zero, t.case.seq)]), torch.stack([zero, below])])


def full_bias(case, t):
    return None if t.bias is None else t.bias.expand(case.batch, case.heads, -1, -1)


def efficient(case, t, p):
    bias = full_bias(case, t)
    out, lse, seed, offset = A._scaled_dot_product_efficient_attention(t.q, t.k, t.v, bias, True, p, case.causal)
    wanted = [True, True, True, bias is not None and case.bias_grad]

    def run():
        grads = A._scaled_dot_product_efficient_attention_backward(t.dout, t.q, t.k, t.v, bias, out, lse, seed, offset, p, wanted, case.causal)
        if not wanted[3]:
            return grads[:3]
        # A broadcast bias gets the sum, which a training step takes too.
        return grads[:3] + (grads[3].sum_to_size(t.bias.shape),)

    return Contender(run, out, lse, (seed, offset))


def cudnn(case, t, p):
    bias = full_bias(case, t)
    out, lse, cq, ck, mq, mk, seed, offset, _ = A._scaled_dot_product_cudnn_attention(t.q, t.k, t.v, bias, True, p, case.causal, False)
    return Contender(lambda: A._scaled_dot_product_cudnn_attention_backward(t.dout, t.q, t.k, t.v, out, lse, seed, offset, bias, cq, ck, mq, mk, p,
                                                                            case.causal), out, lse)


# ---- peers whose backward is reached through autograd ---------------------------------------------------------------


def by_autograd(t, forward):
    leaves = [x.detach().requires_grad_() for x in (t.q, t.k, t.v)]
    out = forward(*leaves)
    return Contender(lambda: torch.autograd.grad(out, leaves, t.dout, retain_graph=True))


def sdpa(case, t, p):
    """What PyTorch chooses, with the copies that it needs."""
    return by_autograd(t, lambda q, k, v: torch.nn.functional.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=case.causal,
                                                                                           enable_gqa=case.kv != case.heads))


@functools.lru_cache(None)
def compiled_flex():
    from torch.nn.attention.flex_attention import flex_attention
    return torch.compile(flex_attention, dynamic=False)


def flex(case, t, p):
    """FlexAttention, compiled for this very problem."""
    from torch.nn.attention.flex_attention import create_block_mask
    cap, slopes = case.softcap, t.slopes

    def changed(score, b, h, i, j):
        return cap * torch.tanh(score / cap) if cap else score - slopes[h] * (i - j).abs()

    hidden = hidden_rows(t) if case.mask else None

    def sees(b, h, i, j):
        seen = i >= j if case.causal else i >= 0
        if hidden is not None:
            for x in range(2):
                seen = seen & ((i < hidden[x, 0, j]) | (i >= hidden[x, 1, j]))
        return seen

    visible = create_block_mask(sees, None, None, case.seq, case.sk) if case.causal or case.mask else None
    score = None if case.mask else changed
    return by_autograd(t, lambda q, k, v: compiled_flex()(q, k, v, score_mod=score, block_mask=visible, enable_gqa=case.kv != case.heads))


@functools.lru_cache(None)
def flash3_module():
    """FlashAttention-3 where it can be imported; its names differ by version."""
    for name in ("flash_attn_interface", "flash_attn_3.flash_attn_interface"):
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    return None


def fa3(case, t, p, deterministic=False):
    options = dict(causal=case.causal, deterministic=deterministic)
    if case.softcap:
        options["softcap"] = case.softcap
    if case.window:
        options["window_size"] = (case.window, 0)

    def forward(q, k, v):
        if case.lengths:
            longest = case.planned or max(case.lengths)
            made = flash3_module().flash_attn_varlen_func(q, k, v, t.starts, t.starts, longest, longest, **options)
        else:
            made = flash3_module().flash_attn_func(*(x.transpose(1, 2) for x in (q, k, v)), **options)
        out = made[0] if isinstance(made, tuple) else made
        return out if case.lengths else out.transpose(1, 2)

    return by_autograd(t, forward)


def fa3_det(case, t, p):
    return fa3(case, t, p, deterministic=True)


PEERS = {"cudnn": cudnn, "flash": flash, "efficient": efficient, "fa3": fa3, "flex": flex, "sdpa": sdpa, "flash_det": flash_det, "fa3_det": fa3_det}
ITS_OWN_MASK = ("philox",)  # a map that no peer has: its gradients are others, its time counts


def open_peers(case, t, allowed):
    """{name: Contender}, {name: why it does not do this problem}."""
    found, refused = {}, {}
    for name in case.peers:
        if name == PLAIN or name not in allowed or name.startswith("fa3") and not flash3_module():
            continue
        try:
            made = PEERS[name](case, t, DROPOUT_P if case.dropout else 0.0)
            made.run()
            torch.cuda.synchronize()
            found[name] = made
        except (RuntimeError, ValueError, TypeError, NotImplementedError, AssertionError) as error:
            refused[name] = f"{type(error).__name__}: " + str(error).split("\n")[0][:100]
    return found, refused


def comparable(case, name):
    """Whether the peer's gradients are those of our call."""
    return not case.dropout or (case.dropout, name) in (("mem_eff", "efficient"), ("flash2", "flash"))


# ---- the reference --------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Rules:
    """What stands between the operands and the gradients, of one key head and its query heads."""
    causal: bool
    window: int = 0
    softcap: float = 0.0
    slopes: torch.Tensor | None = None  # a query head each
    bias: torch.Tensor | None = None    # [heads, Sq, Sk]
    keep: torch.Tensor | None = None    # likewise
    p: float = 0.0
    hidden: torch.Tensor | None = None  # [2, 2, Sk]


def float64_backward(dout, q, k, v, rules):
    """Gradients of one key head; q and dout have its query heads in front. dbias is a list, a query head each."""
    dout, q, k, v = (x.double() for x in (dout, q, k, v))
    scale, cap = 1 / math.sqrt(q.shape[-1]), rules.softcap
    i, j = torch.arange(q.shape[1], device=q.device)[:, None] + (k.shape[0] - q.shape[1]), torch.arange(k.shape[0], device=q.device)[None]
    hidden = None
    if rules.causal or rules.window:
        hidden = j > i
        if rules.window:
            hidden |= j < i - rules.window
    if rules.hidden is not None:
        rows = torch.arange(q.shape[1], device=q.device)[:, None]
        for first, end in rules.hidden:
            now = (rows >= first) & (rows < end)
            hidden = now if hidden is None else hidden | now
    dq, dk, dv, dbias = [], torch.zeros_like(k), torch.zeros_like(v), []
    for head in range(q.shape[0]):
        s, slope = scale * (q[head] @ k.T), None
        if cap:
            s = torch.tanh(s / cap)
            slope = 1 - s * s
            s *= cap
        if rules.slopes is not None:
            s -= rules.slopes[head].double() * (i - j).abs()
        if rules.bias is not None:
            s += rules.bias[head].double()
        if hidden is not None:
            s.masked_fill_(hidden, -math.inf)
        p = s.softmax(-1)
        dp = dout[head] @ v.T
        if rules.keep is not None:
            z = rules.keep[head].double() / (1 - rules.p)
            dv += (p * z).T @ dout[head]
            dp *= z
        else:
            dv += p.T @ dout[head]
        ds = p * (dp - (p * dp).sum(-1, keepdim=True))
        if rules.bias is not None:
            dbias.append(ds)
        if cap:
            ds = ds * slope
        dq.append(scale * (ds @ k))
        dk += scale * (ds.T @ q[head])
    return torch.stack(dq), dk, dv, dbias


def sampled(case, grads):
    """The parts of gradients that the reference covers: the last key head of the last batch, of the longest sequence where packed."""
    group = case.heads // case.kv
    if case.lengths:
        longest = max(range(len(case.lengths)), key=lambda b: case.lengths[b])
        first = sum(case.lengths[:longest])
        rows = slice(first, first + case.lengths[longest])
        return grads[0][rows, -group:].transpose(0, 1), grads[1][rows, -1], grads[2][rows, -1]
    return grads[0][-1, -group:], grads[1][-1, -1], grads[2][-1, -1]


def reference_of(case, t, mask):
    """dq, dk, dv and, of a bias with a gradient for each score, dbias of the sampled heads; mask: which scores dropout keeps."""
    group = case.heads // case.kv
    bias = None if t.bias is None else full_bias(case, t)[-1, -group:]
    rules = Rules(case.causal, case.window, case.softcap, None if t.slopes is None else t.slopes[-group:], bias,
                  None if mask is None else mask[-1, -group:], DROPOUT_P, hidden_rows(t) if case.mask else None)
    q, k, v = sampled(case, (t.q, t.k, t.v))
    dout = sampled(case, (t.dout, t.k, t.v))[0]
    dq, dk, dv, dbias = float64_backward(dout, q, k, v, rules)
    return [dq, dk, dv] + ([torch.stack(dbias)] if case.bias == "bhqk" and case.bias_grad else [])


def relative(got, expected):
    error = ((got.double() - expected).norm() / expected.norm()).item()
    return error if math.isfinite(error) else math.inf


def error_of(case, grads, expected):
    """Largest relative RMS error over the sampled gradients."""
    got = list(sampled(case, grads))
    if len(expected) > 3:
        got.append(grads[3][-1, -(case.heads // case.kv):])
    return max(relative(g, e) for g, e in zip(got, expected))
