#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The list of the suite, counted and crossed from the PROBLEM lines that `conform --long --problems` prints, for every
arch: how many are distinct, which features meet which types, head dims, layouts, tiles and other features. Nothing here
asks the suite what it covers."""

import itertools
import re
import subprocess
import sys

TOOL, ARCHS = sys.argv[1], sys.argv[2:]
LEAST = 5000
SIZES = re.compile(r"b(\d+)h(\d+)(?:k(\d+))?s(\d+)(?:x(\d+))?d(\d+)(?:x(\d+))?$")
failures = []


def check(what, missing):
    missing = list(missing)
    if missing:
        failures.append(what)
        print(f"FAIL {what}: {len(missing)} missing, the first: {missing[:12]}")


# docs/specification.md section 2, written out: what the suite no longer has must be missed, not left out of the crossings.
ROWS = set("""intervals interval_tiles block_mask plain head_dims wide_heads layout alignment broadcast varlen used_lengths empty mask_causal_tl mask_causal_br mask_window mask_shift bias dbias mask_bytes alibi
    alibi_column softcap sink dlse gqa dropout dropout_features dropout_mem_eff dropout_flash2 deterministic outputs grad_dtype accumulate
    offsets shard lse_layout delta data nan_lse beyond_range forward bugs pairs parts parts_features few_rows""".split())
FEATURES = set("""causal window shift bias bytes dbias alibi softcap sink dlse delta_in delta_out dropout mem_eff flash2 det used
    intervals blockmask varlen gqa cross unequal_dims grads wide accumulate pointer offsets shard lse_heads skew data scale""".split())
NESTED = {"jagged_" + op for op in """matmul linear softmax log_softmax sum select gelu gelu_tanh threshold silu layer_norm rms_norm reshape
    to_padded from_padded attention""".split()}


def head_dim(dq, dv):
    """The range of the larger one: kernels are made for these."""
    return next(limit for limit in (16, 32, 64, 96, 128, 192, 256) if max(dq, dv) <= limit)


def attention(line):
    """What one line has: its type, head dims, layout, tiles, and the features its options name."""
    op, dtype, sizes, *options = line.split(":")
    batch, heads, kv, sq, sk, dq, dv = (int(x) if x else None for x in SIZES.match(sizes).groups())
    kv, sk, dv = kv or heads, sq if sk is None else sk, dv or dq
    names = {re.sub(r"[-\d.].*$", "", o) or o for o in options}
    keys = {o.split("_")[0] if o.startswith(("bias", "data", "grads", "st_", "map_", "acc_", "seqs_")) else o for o in names}
    features = set()
    # one factor a feature of docs/specification.md section 2
    for feature, present in {
            "causal": any(o.startswith("causal") for o in options), "window": bool(keys & {"wl", "wr"}),
            "shift": "shift" in keys, "bytes": any(o.startswith("biasu8") for o in options),
            "bias": bool({"bias", "biasf"} & keys) or any(o.startswith("bias") for o in options),
            "dbias": any(o.startswith("grads_") and "b" in o[6:] for o in options), "alibi": "alibi" in keys,
            "softcap": "softcap" in keys, "intervals": any(o.startswith("intervals_") for o in options),
            "blockmask": "blockmask" in options, "sink": "sink" in keys, "dlse": "dlse" in keys, "delta_in": "delta_in" in options,
            "delta_out": "delta_out" in options, "dropout": "dropout" in keys, "mem_eff": "map_mem_eff" in options,
            "flash2": "map_flash2" in options, "det": "det" in options,
            "used": bool({"used", "lens_q", "lens_kv", "lens_zero"} & set(options)),
            "varlen": bool({"tq", "tk"} & keys), "gqa": kv != heads, "cross": sq != sk, "unequal_dims": dq != dv,
            "grads": any(o.startswith("grads_") for o in options), "wide": bool({"dq_f32", "dk_f32", "dv_f32"} & set(options)),
            "accumulate": any(o.startswith("acc_") for o in options), "pointer": "pointer" in options,
            "offsets": any(re.match(r"[qk]off-?\d", o) for o in options),
            "shard": any(re.match(r"(boff|hoff|htotal)\d", o) for o in options),
            "lse_heads": "lse_heads" in options, "skew": "skew" in keys, "data": any(o.startswith("data_") for o in options),
            "scale": "scale" in keys}.items():
        if present:
            features.add(feature)
    layout = ("packed" if "varlen" in features else "bhsd" if "bhsd" in options else
              "qkv" if "qkv" in options else "gap" if "gap" in keys else
              "strided" if any(o.startswith("st_") for o in options) else "bshd")
    tiles = {("q", "full") if sq and sq % 64 == 0 else ("q", "partial"), ("k", "full") if sk and sk % 64 == 0 else ("k", "partial")}
    return {"op": op, "dtype": dtype, "dim": head_dim(dq, dv), "layout": layout, "tiles": tiles, "features": features,
            "empty": not (batch and sq and sk)}


def jagged(line):
    op, dtype, *options = line.split(":")
    if op == "jagged_attention":
        return {"op": op, "dtype": options[1], "index": dtype, "lens": "given", "storage": "packed", "used": False}
    lens = [o for o in options if o.startswith("lens_")]
    return {"op": op, "dtype": dtype, "index": "i64" if "i64" in options else "i32", "lens": lens[0] if lens else "ragged",
            "storage": "jagged" if {"jagged", "other_jagged", "grad_jagged"} & set(options) else "components",
            "used": "used" in options}


def crossed(rows, first, second, all_first, all_second):
    """Pairs that none of these cases has."""
    seen = {(r[first], r[second]) for r in rows}
    return [p for p in itertools.product(all_first, all_second) if p not in seen]


def check_f64(arch, cases):
    """Attention in f64: every feature, on the CPU alone. Wider gradients than the inputs' there are none."""
    check(f"{arch} f64 without its row", [row for row, _ in cases if row != "f64"])
    if arch != "cpu":
        check(f"{arch} f64, which only the CPU takes", [row for row, _ in cases])
        return
    check(f"{arch} features of f64", sorted(FEATURES - {"wide"} - set().union(*(c["features"] for _, c in cases))))
    check(f"{arch} f64 x layout", {"bshd", "bhsd", "packed", "qkv", "gap"} - {c["layout"] for _, c in cases})


def check_attention(arch, cases):
    dtypes, dims = ("bf16", "f16", "f32"), (16, 32, 64, 96, 128, 192, 256)
    layouts = ("bshd", "bhsd", "packed", "qkv", "gap")
    check(f"{arch} rows of attention", sorted(ROWS ^ {row for row, _ in cases}))
    for row in sorted({row for row, _ in cases}):
        mine = [c for r, c in cases if r == row]
        # the row is about this; what it cannot have is not asked for
        own_layout = {"varlen": ("packed",), "broadcast": ("strided", "packed"), "layout": ("bhsd", "qkv", "gap")}.get(row, layouts)
        check(f"{arch} {row} x dtype x layout", crossed(mine, "dtype", "layout", dtypes, own_layout))
        check(f"{arch} {row} x dtype x head dim", crossed(mine, "dtype", "dim", dtypes, dims))
        if row == "empty":
            continue
        tiles = set().union(*(c["tiles"] for c in mine))
        check(f"{arch} {row} x full and partial tiles", set(itertools.product("qk", ("full", "partial"))) - tiles)
    for dtype in dtypes:
        check(f"{arch} {dtype} x head dim x layout",
              crossed([c for _, c in cases if c["dtype"] == dtype], "dim", "layout", dims, layouts))


# Two features that no call can have at once, or that are one another's part.
NEVER = {frozenset(p) for p in (("mem_eff", "flash2"), ("delta_in", "delta_out"), ("delta_in", "dlse"), ("bytes", "dbias"),
                                ("offsets", "pointer"))}  # what is behind the pointers is not in the line


def check_features(arch, cases):
    check(f"{arch} features of attention", sorted(FEATURES ^ set().union(*(c["features"] for _, c in cases))))
    features = sorted(FEATURES)
    seen = {frozenset(p) for _, c in cases for p in itertools.combinations(sorted(c["features"]), 2)}
    check(f"{arch} features x features", sorted(tuple(sorted(p)) for p in
          {frozenset(p) for p in itertools.combinations(features, 2)} - seen - NEVER))


def check_jagged(arch, cases):
    check(f"{arch} nested operations", sorted(NESTED ^ {c["op"] for c in cases}))
    for op in sorted(NESTED):
        mine = [c for c in cases if c["op"] == op]
        check(f"{arch} {op} x type x offsets", crossed(mine, "dtype", "index", ("bf16", "f16", "f32"), ("i32", "i64")))
        if op == "jagged_attention":
            continue
        for key, values in (("lens", ("ragged", "lens_full", "lens_zeros", "lens_huge")), ("used", (False, True)),
                            ("storage", ("components", "jagged"))):
            check(f"{arch} {op} x type x {key}", crossed(mine, "dtype", key, ("bf16", "f16", "f32"), values))
            check(f"{arch} {op} x offsets x {key}", crossed(mine, "index", key, ("i32", "i64"), values))


for arch in ARCHS:
    out = subprocess.run([TOOL, "conform", "--arch", arch, "--long", "--problems"], capture_output=True, text=True, check=True,
                         timeout=120).stdout
    lines = [line.split(" ") for line in out.splitlines()]
    assert all(len(line) == 2 for line in lines)
    distinct = {problem for _, problem in lines}
    print(f"{arch}: {len(distinct)} distinct problems, {sum(p.startswith('jagged') for p in distinct)} of them nested")
    check(f"{arch}: {LEAST} distinct problems", range(LEAST - len(distinct)))
    check(f"{arch}: every line once", range(len(lines) - len(distinct)))
    cases = [(row, attention(p)) for row, p in lines if not p.startswith("jagged")]
    check_f64(arch, [(row, c) for row, c in cases if c["dtype"] == "f64"])
    cases = [(row, c) for row, c in cases if c["dtype"] != "f64"]
    check_attention(arch, cases)
    check_features(arch, cases)
    check_jagged(arch, [jagged(p) for _, p in lines if p.startswith("jagged")])

print(f"{len(failures)} failures")
sys.exit(1 if failures or not ARCHS else 0)
