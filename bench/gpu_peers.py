#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Sternway's attention backward on a GPU against PyTorch's: flash (FA2), memory-efficient and cuDNN.

One process, the same tensors, torch's current stream, [B,S,H,D] storage as training code has it. Every case is
verified before it is timed: ours and each peer against a float64 backward of some heads, ours against the peer's
gradients on all of them. Then bursts of calls in turn (device events, first call of a burst not counted), median.

    python bench/gpu_peers.py [--suite fa dims features f32 near deterministic packed] [--quick] [--csv FILE] [--variant ID]

Ratios are peer's time over ours: above 1 we are faster. fa3_line is not run: cuDNN's ratio of this run over that of
FlashAttention-3 to cuDNN (FA3_OF_CUDNN in gpu_cases.py). Exit status 1 when a result was wrong or a peer of the
case could not be compared for another reason than that it does not do the problem."""
import argparse
import csv
import math
import os
import pathlib
import re
import statistics
import sys

import torch

from gpu_cases import FA3_OF_CUDNN, SUITES
from calls import open_or_exit

A = torch.ops.aten
TORCH_TYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
LIMIT = {"bf16": 8e-3, "f16": 1e-3, "f32": 2e-5}  # relative RMS against float64, and twice a peer's error
DROPOUT_P = 0.1
SEED, OFFSET = 20261121, 8


class Tensors:
    """Inputs of a case: dense as [B,H,S,D] views of [B,S,H,D] storage, packed as [T,H,D]."""

    def __init__(self, case):
        generator = torch.Generator(device="cuda").manual_seed(case.seq * 1000 + case.dim)
        dtype = TORCH_TYPES[case.dtype]

        def make(heads, dim):
            rows = (sum(case.lengths),) if case.lengths else (case.batch, case.seq)
            tensor = torch.randn(*rows, heads, dim, device="cuda", dtype=dtype, generator=generator)
            return tensor if case.lengths else tensor.transpose(1, 2)

        self.q, self.k = make(case.heads, case.dim), make(case.kv, case.dim)
        self.v, self.dout = make(case.kv, case.dv), make(case.heads, case.dv)
        self.bias = self.starts = None
        if case.bias:
            shape = (case.batch if case.bias[0] == "b" else 1, case.heads, case.seq, case.seq)
            self.bias = torch.randn(*shape, device="cuda", dtype=dtype, generator=generator)
        if case.lengths:
            ends = torch.tensor((0,) + case.lengths).cumsum(0)
            self.starts = ends.to(device="cuda", dtype=torch.int32)


# ---- peers: name -> (function that runs the backward, out, lse, seed, offset) ------------------------------------


def flash(case, t, p):
    if case.lengths:
        longest = max(case.lengths)
        out, lse, rng, unused, _ = A._flash_attention_forward(t.q, t.k, t.v, t.starts, t.starts, longest, longest, p,
                                                              case.causal, False)
        return (lambda: A._flash_attention_backward(t.dout, t.q, t.k, t.v, out, lse, t.starts, t.starts, longest,
                                                    longest, p, case.causal, rng, unused)), out, lse, rng
    out, lse, cq, ck, mq, mk, rng, unused, _ = A._scaled_dot_product_flash_attention(t.q, t.k, t.v, p, case.causal,
                                                                                     False)
    return (lambda: A._scaled_dot_product_flash_attention_backward(t.dout, t.q, t.k, t.v, out, lse, cq, ck, mq, mk, p,
                                                                   case.causal, rng, unused)), out, lse, rng


def flash_det(case, t, p):
    run, out, lse, rng = flash(case, t, p)

    def deterministic():
        torch.use_deterministic_algorithms(True)
        grads = run()
        torch.use_deterministic_algorithms(False)
        return grads

    return deterministic, out, lse, rng


def full_bias(case, t):
    return None if t.bias is None else t.bias.expand(case.batch, -1, -1, -1)


def efficient(case, t, p):
    bias = full_bias(case, t)
    out, lse, seed, offset = A._scaled_dot_product_efficient_attention(t.q, t.k, t.v, bias, True, p, case.causal)
    wanted = [True, True, True, bias is not None and case.bias_grad]

    def run():
        grads = A._scaled_dot_product_efficient_attention_backward(t.dout, t.q, t.k, t.v, bias, out, lse, seed, offset,
                                                                   p, wanted, case.causal)
        if not wanted[3]:
            return grads[:3]
        # Broadcast over the batch: its gradient is the sum, which a training step takes too.
        return grads[:3] + (grads[3].sum(0, keepdim=True) if t.bias.shape[0] == 1 else grads[3],)

    return run, out, lse, (seed, offset)


def cudnn(case, t, p):
    bias = full_bias(case, t)
    out, lse, cq, ck, mq, mk, seed, offset, _ = A._scaled_dot_product_cudnn_attention(t.q, t.k, t.v, bias, True, p,
                                                                                      case.causal, False)
    return (lambda: A._scaled_dot_product_cudnn_attention_backward(t.dout, t.q, t.k, t.v, out, lse, seed, offset, bias,
                                                                   cq, ck, mq, mk, p, case.causal)), out, lse, None


PEERS = {"flash": flash, "flash_det": flash_det, "efficient": efficient, "cudnn": cudnn}


def open_peers(case, t):
    """{name: contender}, {name: why it does not do this problem}."""
    found, refused = {}, {}
    for name in case.peers:
        if name == "normal":
            continue
        try:
            made = PEERS[name](case, t, DROPOUT_P if case.dropout else 0.0)
            made[0]()
            torch.cuda.synchronize()
            found[name] = made
        except RuntimeError as error:
            refused[name] = str(error).split("\n")[0][:100]
    return found, refused


# ---- ours ---------------------------------------------------------------------------------------------------------


def open_ours(contexts, case, t, found):
    """{name: (call, gradients)}: ours, and where the case asks for it our own normal mode. O and LSE are those of
    the peer whose dropout mask is ours, else of any peer, else our own forward's."""
    sternway, plain = contexts
    stream = torch.cuda.current_stream().cuda_stream
    dropout, out, lse = None, None, None
    if case.dropout == "philox" or not found:
        dropout = (DROPOUT_P, "philox", SEED, OFFSET) if case.dropout else None
        forward, out, lse = plain.forward(t.q, t.k, t.v, case.causal, dropout)
        forward.run(stream)
    else:
        _, out, lse, rng = next(iter(found.values()))
        if case.dropout:
            seed, offset = rng.tolist() if torch.is_tensor(rng) else (int(x) for x in rng)
            dropout = (DROPOUT_P, case.dropout, seed & (2**64 - 1), offset)
        if lse.dim() == 4:
            lse = lse.squeeze(-1)
    dbias = None if t.bias is None or not case.bias_grad else torch.empty_like(t.bias).fill_(float("nan"))
    cu = (t.starts, case.planned or max(case.lengths)) if case.lengths else None
    ours = {}
    for name, deterministic in (("ours", case.deterministic), ("normal", False)):
        if name == "ours" or name in case.peers:
            call, grads = sternway.backward(t.dout, t.q, t.k, t.v, out, lse, case.causal, bias=t.bias, dbias=dbias,
                                            dropout=dropout, cu=cu, deterministic=deterministic)
            ours[name] = (call, grads + ([dbias] if dbias is not None else []))
    return ours


# ---- verification -------------------------------------------------------------------------------------------------


def float64_backward(dout, q, k, v, causal, bias, keep):
    """Gradients of one batch and one key/value head; q and dout have the group's heads in front."""
    dout, q, k, v = (x.double() for x in (dout, q, k, v))
    scale = 1 / math.sqrt(q.shape[-1])
    dq, dk, dv, dbias = [], torch.zeros_like(k), torch.zeros_like(v), []
    for head in range(q.shape[0]):
        s = scale * (q[head] @ k.T)
        if bias is not None:
            s += bias[head].double()
        if causal:
            s.masked_fill_(torch.ones_like(s, dtype=torch.bool).triu(1), -math.inf)
        p = s.softmax(-1)
        z = keep[head].double() / (1 - DROPOUT_P) if keep is not None else None
        pz = p * z if keep is not None else p
        dv += pz.T @ dout[head]
        dp = dout[head] @ v.T
        if keep is not None:
            dp *= z
        delta = (p * dp).sum(-1, keepdim=True)
        ds = p * (dp - delta)
        dbias.append(ds)
        dq.append(scale * (ds @ k))
        dk += scale * (ds.T @ q[head])
    return torch.stack(dq), dk, dv, torch.stack(dbias)


def relative(got, expected):
    error = ((got.double() - expected).norm() / expected.norm()).item()
    return error if math.isfinite(error) else math.inf


def sample_of(case, t):
    """Slices of batch and head that the float64 reference covers: the last ones."""
    group = case.heads // case.kv
    if not case.lengths:
        return (case.batch - 1, slice(case.heads - group, case.heads)), (case.batch - 1, case.kv - 1)
    longest = max(range(len(case.lengths)), key=lambda b: case.lengths[b])
    first = sum(case.lengths[:longest])
    return (first, case.lengths[longest]), None


def errors_against(case, grads, expected, sample):
    """Largest relative RMS error over the gradients, on the sampled heads."""
    (at_q, at_kv) = sample
    if case.lengths:
        first, count = at_q
        rows = slice(first, first + count)
        got = [grads[0][rows, -(case.heads // case.kv):].transpose(0, 1), grads[1][rows, -1], grads[2][rows, -1]]
    else:
        got = [grads[0][at_q], grads[1][at_kv], grads[2][at_kv]]
        if case.bias == "bhqk" and case.bias_grad:
            got.append(grads[3][at_q])
    return max(relative(g, e) for g, e in zip(got, expected))


def reference_of(case, t, call):
    sample = sample_of(case, t)
    stream = torch.cuda.current_stream().cuda_stream
    at_q, at_kv = sample
    if case.lengths:
        rows, group = slice(at_q[0], at_q[0] + at_q[1]), case.heads // case.kv
        parts = (t.dout[rows, -group:].transpose(0, 1), t.q[rows, -group:].transpose(0, 1), t.k[rows, -1], t.v[rows, -1])
        return sample, float64_backward(*parts, case.causal, None, None)
    keep = call.dropout_mask(stream)[at_q] if case.dropout else None
    bias = full_bias(case, t)[at_q] if case.bias else None
    return sample, float64_backward(t.dout[at_q], t.q[at_q], t.k[at_kv], t.v[at_kv], case.causal, bias, keep)


def verify(case, t, ours, found):
    """({name: error}, text of what is wrong or "")."""
    stream = torch.cuda.current_stream().cuda_stream
    for call, _ in ours.values():
        call.run(stream)
    sample, expected = reference_of(case, t, ours["ours"][0])
    errors = {name: errors_against(case, grads, expected, sample) for name, (_, grads) in ours.items()}
    limit, wrong = LIMIT[case.dtype], ""
    comparable = {} if case.dropout == "philox" else found
    for name, made in comparable.items():
        theirs = made[0]()
        errors[name] = errors_against(case, theirs, expected, sample)
        apart = max(relative(g, x.double()) for g, x in zip(ours["ours"][1], theirs) if x is not None and x.numel())
        if apart > 2 * limit:
            wrong = f"ours and {name} are {apart:.1e} apart"
    best = min([limit / 2] + [errors[name] for name in comparable]) * 2
    for name in ours:
        if not errors[name] <= max(best, limit if case.dtype == "f32" else 0):
            wrong = f"{name}: off by {errors[name]:.1e} against float64, allowed {best:.1e}"
    return errors, wrong


# ---- timing -------------------------------------------------------------------------------------------------------


def burst(function, calls):
    """Milliseconds of each call but the first; the device gets a start so that the host is ahead of it."""
    events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(calls)]
    torch.cuda._sleep(400_000)
    function()
    for begin, end in events:
        begin.record()
        function()
        end.record()
    torch.cuda.synchronize()
    return [begin.elapsed_time(end) for begin, end in events]


def measure(functions, rounds, budget_ms):
    """{name: (median, spread of the quartiles)} of interleaved bursts."""
    calls = {name: min(50, max(2, int(budget_ms / statistics.median(burst(f, 3))))) for name, f in functions.items()}
    times = {name: [] for name in functions}
    names = list(functions)
    for turn in range(rounds):
        for name in names[turn % len(names):] + names[:turn % len(names)]:
            times[name] += burst(functions[name], calls[name])
    result = {}
    for name, values in times.items():
        quarters = statistics.quantiles(values, n=4)
        result[name] = (quarters[1], quarters[2] - quarters[0])
    return result


# ---- report -------------------------------------------------------------------------------------------------------

COLUMNS = ("flash", "efficient", "cudnn", "fa3_line", "normal", "flash_det")


def run_case(contexts, case, options):
    t = Tensors(case)
    found, refused = open_peers(case, t)
    ours = open_ours(contexts, case, t, found)
    errors, wrong = verify(case, t, ours, found)
    row = dict(group=case.group, case=case.name, variant=ours["ours"][0].field("variant"), wrong=wrong)
    row.update({f"error_{name}": f"{error:.2e}" for name, error in errors.items()})
    row.update({f"refused_{name}": why for name, why in refused.items()})
    if wrong:
        return row
    stream = torch.cuda.current_stream().cuda_stream
    functions = {name: (lambda call=call: call.run(stream)) for name, (call, _) in ours.items()}
    functions.update({name: made[0] for name, made in found.items()})
    times = measure(functions, 3 if options.quick else options.rounds, 4 if options.quick else 10)
    for name, (median, spread) in times.items():
        row[f"ms_{name}"], row[f"iqr_{name}"] = f"{median:.4f}", f"{spread:.4f}"
    row["tflops"] = f"{case.flop() / times['ours'][0] * 1e-9:.1f}"
    for name in times:
        if name != "ours":
            row[f"ratio_{name}"] = times[name][0] / times["ours"][0]
    if case.group.startswith("fa ") and "ratio_cudnn" in row:  # not run: where FlashAttention-3 would be beside this cuDNN
        row["ratio_fa3_line"] = row["ratio_cudnn"] / FA3_OF_CUDNN[case.dim, case.causal][case.seq]
    return row


def print_row(row):
    cells = [f"{row['ratio_' + n]:7.3f}" if f"ratio_{n}" in row else f"{'-':>7}" for n in COLUMNS]
    times = f"{row.get('ms_ours', '-'):>8} {row.get('tflops', '-'):>7}"
    print(f"{row['case']:46} {times} {' '.join(cells)} {row.get('error_ours', '-'):>8}  {row['variant']}"
          f"{'  WRONG: ' + row['wrong'] if row['wrong'] else ''}", flush=True)


def geometric_mean(ratios):
    return math.exp(sum(math.log(r) for r, _ in ratios) / len(ratios))


def ratios_of(rows):
    """(group, peer, [(ratio, case)]) of every group, and of the suites that have several groups as a whole."""
    groups = list(dict.fromkeys(r["group"] for r in rows))
    for group in groups + ["fa (all)", "dims (all)", "near (all)", "f32 (all)"]:
        chosen = [r for r in rows if r["group"] == group or group.endswith(" (all)") and r["group"].startswith(group[:-6])]
        if len({r["group"] for r in chosen}) < 2 and group.endswith(" (all)"):
            continue
        for name in COLUMNS:
            ratios = [(r[f"ratio_{name}"], r["case"]) for r in chosen if f"ratio_{name}" in r]
            if ratios:
                yield group, name, ratios


def print_summary(rows):
    print(f"\n{'group':18} {'peer':10} {'cases':>5} {'geomean':>8} {'minimum':>8}  at")
    for group, name, ratios in ratios_of(rows):
        print(f"{group:18} {name:10} {len(ratios):5} {geometric_mean(ratios):8.3f} {min(ratios)[0]:8.3f}  {min(ratios)[1]}")


def write_tables(path, rows):
    """The tables of docs/performance/sm80.md."""
    lines = ["| group | peer | cases | geometric mean | minimum, at |", "|---|---|---|---|---|"]
    lines += [f"| {group} | {name} | {len(ratios)} | {geometric_mean(ratios):.3f} | {min(ratios)[0]:.3f}, {min(ratios)[1]} |"
              for group, name, ratios in ratios_of(rows)]
    lengths = (512, 1024, 2048, 4096, 8192, 16384)
    lines += ["", "| D, whose | " + " | ".join(f"{'S ' if s == 512 else ''}{s}" for s in lengths) + " |", "|---" * 7 + "|"]
    at = {row["case"]: row for row in rows if row["group"].startswith("fa ") and not row["wrong"]}
    for dim in (64, 128):
        for name in ("ours", "flash"):
            cells = []
            for seq in lengths:
                pair = [at.get(f"bf16:b{16384 // seq}h{2048 // dim}s{seq}d{dim}:{mask}", {}) for mask in ("full", "causal")]
                cells.append(" / ".join(f"{float(r['tflops']) / (r['ratio_flash'] if name == 'flash' else 1):.0f}"
                                        if "ratio_flash" in r else "-" for r in pair))
            lines.append(f"| {dim}, {name} | " + " | ".join(cells) + " |")
    pathlib.Path(path).write_text("\n".join(lines) + "\n", encoding="utf-8")


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", nargs="+", choices=list(SUITES), default=["fa"])
    parser.add_argument("--only", default="", metavar="REGEX", help="cases whose name matches")
    parser.add_argument("--variant", help="force this variant (STERNWAY_VARIANT)")
    parser.add_argument("--quick", action="store_true", help="3 short rounds")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--csv", metavar="FILE", help="all columns of every case, errors and quartile distances too")
    parser.add_argument("--tables", metavar="FILE", help="the tables of docs/performance/sm80.md")
    return parser.parse_args()


def write_csv(path, rows):
    keys = list(dict.fromkeys(key for row in rows for key in row))
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, keys)
        writer.writeheader()
        writer.writerows(rows)


def main():
    options = parse()
    if not torch.cuda.is_available():
        sys.exit("gpu_peers: torch finds no CUDA device")
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.utils.deterministic.fill_uninitialized_memory = False  # its deterministic mode is timed, not its debugging aid
    plain = open_or_exit("cuda", device=torch.cuda.current_device())  # whose forward is not forced
    if options.variant:
        os.environ["STERNWAY_VARIANT"] = options.variant
    sternway = open_or_exit("cuda", device=torch.cuda.current_device())
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}, kernels of "
          f"{sternway.arch}; {'3 (quick)' if options.quick else options.rounds} rounds, interleaved, hot, medians")
    print(f"{'case':46} {'ours ms':>8} {'TFLOP/s':>7} " + " ".join(f"{n[:7]:>7}" for n in COLUMNS)
          + f" {'error':>8}  variant   (peer's time / ours)")
    rows = []
    for case in (case for suite in options.suite for case in SUITES[suite]() if re.search(options.only, case.name)):
        try:
            rows.append(run_case((sternway, plain), case, options))
        except RuntimeError as error:
            if options.variant and f"{options.variant}:" in str(error):
                print(f"{case.name:46} {str(error)[:100]}")
                continue
            rows.append(dict(group=case.group, case=case.name, variant="-", wrong=str(error).split("\n")[0][:160]))
        print_row(rows[-1])
        if options.csv:
            write_csv(options.csv, rows)
        if "CUDA error" in rows[-1]["wrong"]:
            sys.exit("gpu_peers: the device's context is lost; the case above or the one before it did that")
    print_summary(rows)
    if options.tables:
        write_tables(options.tables, rows)
    sys.exit(1 if any(row["wrong"] for row in rows) else 0)


if __name__ == "__main__":
    main()
