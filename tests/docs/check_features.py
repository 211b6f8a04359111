#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Which main loop runs which feature: the tables of README.md and docs/features.md, asked of `sternway explain` on fake
devices (tests/loader), one problem a cell and head dim.

check_features.py --tool T --fakes DIR [--source DIR]   fails where a table is not what explain says
check_features.py ... --write                           writes the tables
"""
import argparse
import json
import os
import pathlib
import re
import subprocess
import sys

BEGIN = "<!-- made by tests/docs/check_features.py --write -->"
END = "<!-- end of what check_features.py makes -->"
DIMS = (32, 64, 96, 128, 192, 256)
DEVICES = {  # column: backend, arch, what the fake driver shows
    "CPU": ("cpu", None, {}),
    "sm80": ("cuda", "sm80", {"FAKE_CUDA_DEVICES": "A100|8.0|108|166912|42949672960"}),
    "sm90": ("cuda", "sm90", {"FAKE_CUDA_DEVICES": "H200|9.0|132|232448|150754820096"}),
    "gfx90a": ("hip", "gfx90a", {"FAKE_HIP_DEVICES": "MI250X|gfx90a:sramecc+:xnack-|104|65536|68702699520"}),
    "gfx942": ("hip", "gfx942", {"FAKE_HIP_DEVICES": "MI300X|gfx942:sramecc+:xnack-|304|65536|206141652992"}),
    "gfx950": ("hip", "gfx950", {"FAKE_HIP_DEVICES": "MI355X|gfx950:sramecc+:xnack-|256|163840|309220868096"}),
}
OWN = {"sm90": "sm90", "gfx90a": "cdna", "gfx942": "cdna", "gfx950": "cdna"}  # how the names of the arch's own loops begin

# Feature; its types, "16" for f16 and bf16; the options behind b2h8k2s1024d<D> of each problem of a cell, "@-3" for a head
# dim of D - 3; whether the README has the row, too.
ROWS = (
    ("f16, bf16: no mask, causal (both kinds), windows", "16", ("", "causal_tl", "causal_br", "wl200:wr100", "causal_br:wl200"), True),
    ("packed sequences, used lengths", "16", ("thd:tq1500:tk1500", "used", "causal_br:used"), True),
    ("interleaved q, k and v; other strides of whole 16 bytes", "16", ("qkv", "bhsd", "gap8"), False),
    ("head dims that are no multiple of 8, rows off 16 bytes", "16", ("@-3", "gap1"), False),
    ("deterministic", "16", ("det", "causal_br:det", "thd:tq1500:tk1500:det"), True),
    ("gradient through LSE, delta given or written", "16", ("dlse", "delta_in", "delta_out"), False),
    ("sink with its gradient", "16", ("sink:grads_qkvs",), True),
    ("ALiBi by distance", "16", ("alibi", "alibi:causal_br"), True),
    ("ALiBi by key", "16", ("alibi:alibi_col:causal_br",), False),
    ("softcap", "16", ("softcap30", "softcap30:causal_br"), True),
    ("dropout, every map", "16", ("dropout0.1", "dropout0.1:map_mem_eff", "dropout0.1:map_flash2"), True),
    ("dropout with ALiBi or with a bias", "16", ("alibi:dropout0.1", "bias_1hqk:dropout0.1", "biasu8_11qk:dropout0.1"), False),
    ("dropout with f32 or accumulated dK and dV", "16", ("dropout0.1:dk_f32:dv_f32", "dropout0.1:dk_f32:dv_f32:acc_kv"), False),
    ("softcap with ALiBi or dropout, ALiBi with a bias", "16", ("alibi:softcap30", "softcap30:dropout0.1", "alibi:bias_1hqk"), False),
    ("masks in memory with ALiBi, softcap, dropout or a bias", "16",
     ("intervals_two:alibi", "blockmask:softcap30", "intervals_two:dropout0.1", "blockmask:bias_1hqk:grads_qkv"), False),
    ("deterministic, with one of these", "16", ("alibi:det", "softcap30:det", "dropout0.1:det"), False),
    ("a subset of dQ, dK and dV", "16", ("grads_q", "grads_k", "grads_kv"), True),
    ("dQ in f32, also accumulated", "16", ("dq_f32", "dq_f32:acc_q"), False),
    ("dK and dV in f32, also accumulated", "16", ("dk_f32:dv_f32", "dk_f32:dv_f32:acc_kv"), True),
    ("ALiBi, softcap or a bias, with f32 or accumulated dK and dV", "16",
     ("alibi:dk_f32:dv_f32", "softcap30:dk_f32:dv_f32:acc_kv", "bias_1hqk:grads_qkv:dk_f32:dv_f32"), False),
    ("masks in memory, with f32 or accumulated dK and dV", "16", ("intervals_two:dk_f32:dv_f32", "blockmask:dk_f32:dv_f32:acc_kv"), False),
    ("ALiBi, softcap, a bias or masks, with a subset of dQ, dK and dV", "16",
     ("alibi:grads_q", "softcap30:grads_kv", "bias_1hqk:grads_qk", "intervals_two:grads_kv"), False),
    ("bias of the inputs' type, no gradient", "16", ("bias_bhqk:grads_qkv", "bias_1hqk:grads_qkv"), True),
    ("bias of f32, no gradient", "16", ("biasf32_1hqk:grads_qkv",), False),
    ("bias and its broadcast gradient", "16", ("bias_1hqk:grads_qkvb", "bias_11qk:grads_qkvb"), True),
    ("bias and its gradient, one for every pair", "16", ("bias_bhqk:grads_qkvb",), True),
    ("bias and its gradient in f32, one for every pair", "16", ("biasf32_bhqk:grads_qkvb", "bias_bhqk:grads_qkvb:dbias_f32"), False),
    ("mask of bytes", "16", ("biasu8_11qk", "biasu8_b11k"), True),
    ("interval and block masks", "16", ("intervals_two", "causal_br:intervals_from", "blockmask:mask_heads", "intervals_from:thd:tq1500:tk1500"), True),
    ("interval and block masks, deterministic", "16", ("intervals_two:det",), False),
    ("f32", "f32", ("", "causal_br", "bias_bhqk", "dropout0.1"), True),
    ("f64", "f64", ("", "causal_br", "bias_bhqk", "dropout0.1"), True),
)


def explain(options, column, problem):
    """("own" | "shared" | "yes" | "no") of one problem on one device."""
    backend, arch, device = DEVICES[column]
    folders = {"cuda": "cuda", "hip": "hip7", "cpu": "none"}
    environment = {name: value for name, value in os.environ.items() if not name.startswith("STERNWAY_")}
    environment |= {**device, "LD_LIBRARY_PATH": str(options.fakes / folders[backend])}
    words = [options.tool, "explain", "--json", "--backend", backend, *(("--arch", arch) if arch else ()), problem]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment, timeout=60)
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        sys.exit(f"{' '.join(map(str, words))}: {done.stdout}{done.stderr}")
    if answer["chosen"] is None:
        reason = next((row["reason"] for row in answer["backends"] if row["backend"] == backend), answer["reason"])
        if "STW_E_UNSUPPORTED" not in reason:
            sys.exit(f"{column}, {problem}: {reason}")
        return "no"
    if column not in OWN:
        return "yes"
    loop = answer["plan"]["tile"].split(" loop ")[1]
    shared = "not the fastest kernels" in answer["plan"]["costs more"]  # AMD: the same tile by the shared kernels
    return "own" if loop.startswith(OWN[column]) and not shared else "shared"


def problem_of(dtype, option, dim):
    shift = re.match(r"@(-?\d+):?", option)  # another head dim
    dim, rest = (dim + int(shift[1]), option[shift.end():]) if shift else (dim, option)
    heads = "h8" if option == "qkv" else "h8k2"
    return f"attn_bwd:{dtype}:b2{heads}s1024d{dim}{':' if rest else ''}{rest}"


def of_type(options, column, dtype, choices):
    """What all problems of a feature get in one type, by head dim."""
    own, some = [], []
    for dim in DIMS:
        answers = {explain(options, column, problem_of(dtype, choice, dim)) for choice in choices}
        if len(answers) > 1 and answers != {"own", "shared"}:
            sys.exit(f"{column}, {choices}, head_dim {dim}: {answers}: split this row")
        (some if len(answers) > 1 else own if answers == {"own"} else []).append(dim)
        other = min(answers - {"own"}, default="shared")
    if not own and not some:
        return other

    def words(dims):
        last = f" to {dims[-1]}" if len(dims) > 1 else f" at {dims[0]}"
        return "" if dims == list(DIMS) else last if dims == list(DIMS[:len(dims)]) else f" at {', '.join(map(str, dims))}"
    return "; ".join((["own" + words(own)] if own else []) + (["some" + words(some)] if some else []))


def cell(options, column, dtypes, choices):
    if dtypes != "16":
        return of_type(options, column, dtypes, choices)
    f16, bf16 = (of_type(options, column, dtype, choices) for dtype in ("f16", "bf16"))
    if f16 == bf16:
        return bf16
    return f"bf16 {bf16}" if f16 == "shared" else f"f16 {f16}" if bf16 == "shared" else f"f16 {f16}, bf16 {bf16}"


def table(rows):
    lines = [f"| feature | {' | '.join(DEVICES)} |", "|---|" + "---|" * len(DEVICES)]
    return "\n".join(lines + [f"| {' | '.join(row)} |" for row in rows])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tool", type=pathlib.Path, required=True)
    parser.add_argument("--fakes", type=pathlib.Path, required=True)
    parser.add_argument("--source", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[2])
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    rows = [(short, [name, *(cell(options, column, dtypes, choices) for column in DEVICES)])
            for name, dtypes, choices, short in ROWS]
    wrong = 0
    for path, wanted in (("README.md", [row for short, row in rows if short]), ("docs/features.md", [row for _, row in rows])):
        text = (options.source / path).read_text()
        parts = re.fullmatch(f"(.*{re.escape(BEGIN)}\n).*({re.escape(END)}.*)", text, re.S)
        if not parts:
            sys.exit(f"{path} has no place for the table: {BEGIN} ... {END}")
        made = parts[1] + table(wanted) + "\n" + parts[2]
        if options.write:
            (options.source / path).write_text(made)
        elif made != text:
            wrong = 1
            kept = text.splitlines()
            print(f"{path}: explain says otherwise (tests/docs/check_features.py --write):", file=sys.stderr)
            print("\n".join(line for line in made.splitlines() if line not in kept), file=sys.stderr)
    return wrong


if __name__ == "__main__":
    sys.exit(main())
