#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Sternway's attention backward on a GPU against the best that others have for the same problem.

Peers: PyTorch's flash (FA2), memory-efficient and cuDNN backward, FlexAttention (compiled) and scaled_dot_product_attention
where they alone do it, FlashAttention-3 where `flash_attn_interface` can be imported, our own call without the feature
(plain), and another build of this library (--baseline).

One process, the same tensors, one stream, [B,S,H,D] storage as training code has it. Every case is verified before it is
timed: ours and each peer against a float64 backward of some heads, ours against the peer's gradients on all of them. Then
bursts of at least 110 ms (shorter ones in a fixed order flatter whoever comes after an easy one) in turn, in an order that
is drawn for every round; so is the order of cases (--seed). Calls under half a millisecond run from a CUDA graph. A time is
the median over rounds, a ratio the median of the rounds' ratios: the peer's time over ours, above 1 we are faster.

    python bench/gpu_peers.py --suite fa few_heads dims --csv run.csv        # then bench/record.py writes the document
    python bench/gpu_peers.py --suite classes --quick                        # one or two problems of every class
    python bench/gpu_peers.py --suite classes --quick --baseline old/libsternway.so.0 --peers baseline   # before / after

Exit status 1 when a result was wrong."""
import argparse
import datetime
import os
import random
import re
import shlex
import subprocess
import sys
import time

import torch

import peers_csv
from calls import native, open_or_exit
from gpu_cases import PLAIN, SUITES, mask_tiles
from gpu_contenders import DROPOUT_P, PEERS, Tensors, comparable, error_of, flash3_module, open_peers, reference_of, relative
from gpu_timing import measure

LIMIT = {"bf16": 8e-3, "f16": 1e-3, "f32": 2e-5}  # relative RMS against float64, and twice a peer's error
SEED, OFFSET = 20261121, 8                          # of our own dropout
BASELINE = "baseline"

# ---- ours ---------------------------------------------------------------------------------------------------------


class Ours:
    """A planned call of a library, and its gradients."""

    def __init__(self, machine, case, t, source):
        dbias = None if t.bias is None or not case.bias_grad or not case.bias else torch.full_like(t.bias, float("nan"))
        options = options_of(case, t)
        options.update(dropout=source.dropout if case.dropout else None)
        call, grads = machine.backward(t.dout, t.q, t.k, t.v, source.out, source.lse, case.causal, grads=t.gradients(), dbias=dbias,
                                       deterministic=case.deterministic, accumulate=case.grads == "acc", **options)
        self.call, self.made, self.stream = call, grads + ([dbias] if dbias is not None else []), torch.cuda.current_stream().cuda_stream
        self.case = case

    def run(self):
        self.call.run(self.stream)

    def gradients(self):
        """Those of one run, less what was there."""
        self.run()
        return [x - 1 if i in (1, 2) and self.case.grads == "acc" else x for i, x in enumerate(self.made)]


class Source:
    """out and lse, of a peer with the same dropout where there is one, else of our own forward; and that dropout."""

    def __init__(self, machine, case, t, found):
        peers = [peer for name, peer in found.items() if peer.lse is not None and comparable(case, name)]
        self.dropout = (DROPOUT_P, case.dropout, SEED, OFFSET) if case.dropout else None
        if peers and case.dropout:
            rng = peers[0].rng
            seed, offset = rng.tolist() if torch.is_tensor(rng) else (int(x) for x in rng)
            self.dropout = (DROPOUT_P, case.dropout, seed & (2**64 - 1), offset)
        if peers and not case.off:
            self.out, self.lse = peers[0].out, peers[0].lse
            if self.lse.dim() == 4:
                self.lse = self.lse.squeeze(-1)
            return
        options = dict(options_of(case, t), dropout=self.dropout)
        forward, self.out, self.lse = machine.forward(t.q, t.k, t.v, case.causal, t.empty(case.heads, case.seq, case.dv), **options)
        forward.run(torch.cuda.current_stream().cuda_stream)


def options_of(case, t):
    """What forward and backward have in common."""
    return dict(window=case.window, softcap=case.softcap, slopes=t.slopes if case.alibi else None, bias=t.bias if case.bias else None,
                cu=(t.starts, case.planned or max(case.lengths)) if case.lengths else None, intervals=t.intervals)


def open_ours(machines, case, t, found):
    """{name: Ours}: ours, the plain call and the baseline where they are wanted."""
    source = Source(machines["forward"], case, t, found)
    ours = {"ours": Ours(machines["ours"], case, t, source)}
    if PLAIN in case.peers and PLAIN in machines["peers"]:
        plain = case.plain()
        tensors = Tensors(plain)
        ours[PLAIN] = Ours(machines["ours"], plain, tensors, Source(machines["forward"], plain, tensors, {}))
    refused = {}
    if BASELINE in machines:
        try:
            ours[BASELINE] = Ours(machines[BASELINE], case, t, source)
        except native.Error as error:
            refused[BASELINE] = str(error)[:100]
    return ours, refused


# ---- verification -------------------------------------------------------------------------------------------------


def verify(case, t, ours, found):
    """({name: error}, text of what is wrong or "")."""
    made = {name: one.gradients() for name, one in ours.items() if name != PLAIN}
    mask = ours["ours"].call.dropout_mask(torch.cuda.current_stream().cuda_stream) if case.dropout else None
    expected = reference_of(case, t, mask)
    errors = {name: error_of(case, grads, expected) for name, grads in made.items()}
    limit, wrong, judges = LIMIT[case.dtype], "", []
    for name, peer in found.items():
        if not comparable(case, name):
            continue
        theirs = peer.run()
        errors[name] = error_of(case, theirs, expected)
        judges.append(errors[name])
        apart = max(relative(g, x.double()) for g, x in zip(made["ours"], theirs) if x is not None and x.numel())
        if apart > 2 * limit:
            wrong = f"ours and {name} are {apart:.1e} apart"
    best = 2 * min([limit / 2] + judges)
    for name in made:
        if not errors[name] <= max(best, limit if case.dtype == "f32" else 0):
            wrong = f"{name}: off by {errors[name]:.1e} against float64, allowed {best:.1e}"
    return errors, wrong


# ---- a case -------------------------------------------------------------------------------------------------------


def run_case(machines, suite, case, options, chance):
    t = Tensors(case)
    found, refused = open_peers(case, t, machines["peers"])
    ours, not_planned = open_ours(machines, case, t, found)
    errors, wrong = verify(case, t, ours, found)
    row = dict(suite=suite, group=case.group, case=case.name, variant=ours["ours"].call.field("variant"), wrong=wrong)
    row.update({f"error_{name}": f"{error:.2e}" for name, error in errors.items()})
    row.update({f"refused_{name}": why for name, why in {**refused, **not_planned}.items()})
    if wrong:
        return row
    functions = {name: one.run for name, one in {**ours, **found}.items()}
    times = measure(functions, options.rounds, options.burst, chance)
    mine = times["ours"]
    for name, time_ in times.items():
        row[f"ms_{name}"], row[f"range_{name}"] = f"{time_.median:.5f}", f"{time_.spread:.5f}"
        if name != "ours":
            row[f"ratio_{name}"] = f"{time_.over(mine):.4f}"
    row["graph"] = "".join("yes" if mine.in_graph else "") + "".join(f" not {n}" for n, x in times.items() if x.in_graph != mine.in_graph)
    if case.mask and PLAIN in times:
        share = 1.0 if case.mask == "causal" else mask_tiles(case.mask, case.seq, 128 if case.dim <= 64 else 64)
        row["visible"], row["over_visible"] = f"{share:.4f}", f"{mine.median / (share * times[PLAIN].median):.4f}"
    row["tflops"] = f"{case.flop() / mine.median * 1e-9:.1f}"
    best = peers_csv.best_peer(row)
    row["best_peer"], row["ratio_best"] = best if best else ("", "")
    return row


# ---- report -------------------------------------------------------------------------------------------------------


def cells_of(row):
    return " ".join(f"{peers_csv.TITLES[name].replace('ours without it', 'plain')} {float(row[f'ratio_{name}']):.3f}"
                    for name in peers_csv.TITLES if row.get(f"ratio_{name}"))


def print_row(row):
    print(f"{row['case']:58} {row.get('ms_ours', '-'):>9} {row.get('tflops', '-'):>7}  {cells_of(row):40} {row.get('error_ours', '-'):>8}  "
          f"{row['variant']}" + ("  graph" if row.get("graph") else "")
          + (f"  {row['over_visible']} of {row['visible']} of all tiles" if row.get("visible") else "")
          + "".join(f"  [{key[8:]}: {why}]" for key, why in row.items() if key.startswith("refused_"))
          + (f"  WRONG: {row['wrong']}" if row["wrong"] else ""), flush=True)


def print_summary(rows):
    print(f"\n{'group':32} {'peer':18} {'cases':>5} {'geomean':>8} {'minimum':>8}  at")
    for group, name, ratios in peers_csv.groups(rows):
        mean = peers_csv.geometric_mean([ratio for ratio, _ in ratios])
        print(f"{group:32} {peers_csv.TITLES.get(name, name):18} {len(ratios):5} {mean:8.3f} {min(ratios)[0]:8.3f}  {min(ratios)[1]}")


def driver_version():
    try:
        done = subprocess.run(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"], capture_output=True, text=True, check=True)
        return done.stdout.split("\n")[0].strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def commit_of(options):
    if options.commit:
        return options.commit
    try:
        return subprocess.run(["git", "-C", os.path.dirname(__file__) or ".", "describe", "--always", "--dirty"], capture_output=True, text=True,
                              check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def about(machines, options):
    peer = flash3_module()
    name = torch.cuda.get_device_name() + (f", {options.arch} kernels" if options.arch else "")
    return {"device": name, "driver": driver_version(), "date": datetime.date.today().isoformat(),
            "commit": commit_of(options), "command": shlex.join(["python", "bench/gpu_peers.py", *sys.argv[1:]]),
            "versions": f"sternway {native.version()}, PyTorch {torch.__version__}, CUDA {torch.version.cuda}, cuDNN "
                        f"{torch.backends.cudnn.version()}, FlashAttention-3 {getattr(peer, '__version__', 'there') if peer else 'not there'}",
            **({"baseline": options.baseline_name or options.baseline} if options.baseline else {}),
            "kernels": machines["ours"].arch, "timing": f"{options.rounds} rounds of bursts of {options.burst:g} ms, order by seed {options.seed}"}


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", nargs="+", choices=[*SUITES, "all"], default=["fa"], help="all: every suite but classes")
    parser.add_argument("--only", default="", metavar="REGEX", help="cases whose name matches")
    parser.add_argument("--part", default="1/1", metavar="K/N", help="every N-th case, from the K-th on, where one run has not time for all")
    parser.add_argument("--peers", nargs="+", choices=[*PEERS, PLAIN, BASELINE], help="these alone (default: those that a case names)")
    parser.add_argument("--without", nargs="+", choices=[*PEERS, PLAIN], default=[], help="all but these; flex takes 20 seconds to compile a problem")
    parser.add_argument("--baseline", metavar="LIB", help="another libsternway.so that takes its turn")
    parser.add_argument("--baseline-name", metavar="TEXT", help="what the record calls it, a commit (default: its path)")
    parser.add_argument("--library", metavar="LIB", help="the libsternway.so that is measured (default: the package's)")
    parser.add_argument("--arch", help="force the kernels of this arch, ours and the baseline's: sm80 on a newer GPU")
    parser.add_argument("--variant", help="force this variant (STERNWAY_VARIANT)")
    parser.add_argument("--quick", action="store_true", help="3 rounds")
    parser.add_argument("--rounds", type=int, help="default 5")
    parser.add_argument("--burst", type=float, default=110, metavar="MS")
    parser.add_argument("--seed", type=int, default=21, help="of the order")
    parser.add_argument("--limit", type=float, metavar="SECONDS", help="begin no case after so long")
    parser.add_argument("--csv", metavar="FILE", help="all columns of every case, errors and ranges too")
    parser.add_argument("--commit", help="written into the CSV (default: git describe)")
    options = parser.parse_args()
    options.rounds = options.rounds or (3 if options.quick else 5)
    return options


def chosen(options):
    """(suite, case) by suite, each case once."""
    suites = [name for name in SUITES if name != "classes"] if "all" in options.suite else options.suite
    first, step = map(int, options.part.split("/"))
    cases = {}
    for suite in suites:
        for case in SUITES[suite]():
            if re.search(options.only, case.name):
                cases.setdefault(case.name, (suite, case))
    return list(cases.values())[first - 1::step]


def open_machines(options):
    """The contexts by what they are for, and the names of the peers that may run."""
    device = torch.cuda.current_device()
    machines = {"peers": set(options.peers or [*PEERS, PLAIN]) - set(options.without), "forward": open_or_exit("cuda", device=device, library=options.library)}
    if options.baseline:
        machines[BASELINE] = open_or_exit("cuda", device=device, library=options.baseline, arch=options.arch)
    if options.variant:
        os.environ["STERNWAY_VARIANT"] = options.variant  # of the backward alone
    machines["ours"] = open_or_exit("cuda", device=device, library=options.library, arch=options.arch)
    return machines


def run_all(machines, options, said):
    """The rows, in the order of the suites."""
    chance, cases, rows, begin = random.Random(options.seed), chosen(options), {}, time.monotonic()
    for suite, case in chance.sample(cases, len(cases)):
        if options.limit and time.monotonic() - begin > options.limit:
            print(f"{case.name:58} left out: {options.limit:g} seconds are over")
            continue
        try:
            row = run_case(machines, suite, case, options, chance)
        except RuntimeError as error:
            row = dict(suite=suite, group=case.group, case=case.name, variant="-", wrong=str(error).split("\n")[0][:160])
        rows[case.name] = row
        print_row(row)
        if options.csv:
            peers_csv.write(options.csv, said, [rows[case.name] for _, case in cases if case.name in rows])
        if "CUDA error" in row["wrong"]:
            sys.exit("gpu_peers: the device's context is lost; the case above or the one before it did that")
    return [rows[case.name] for _, case in cases if case.name in rows]


def main():
    options = parse()
    if not torch.cuda.is_available():
        sys.exit("gpu_peers: torch finds no CUDA device")
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.utils.deterministic.fill_uninitialized_memory = False  # its deterministic mode is timed, not its debugging aid
    with torch.cuda.stream(torch.cuda.Stream()):  # graphs are captured on a stream that is no default one
        machines = open_machines(options)
        said = about(machines, options)
        print("\n".join(f"{key}: {value}" for key, value in said.items()))
        print(f"\n{'case':58} {'ours ms':>9} {'TFLOP/s':>7}  {'peer, its time / ours':40} {'error':>8}  variant")
        rows = run_all(machines, options, said)
    print_summary(rows)
    sys.exit(1 if any(row["wrong"] for row in rows) else 0)


if __name__ == "__main__":
    main()
