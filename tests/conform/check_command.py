#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""`sternway conform` as a command: exit status, lines, totals, JSON, replay, --require, refusals."""

import json
import os
import re
import subprocess
import sys

TOOL = sys.argv[1]
LINE = "attn_bwd:bf16:b2h4k2s65x33d40:causal_br"
failures = []


def run(*args, **more):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("STERNWAY_")}
    environment.update(more)
    done = subprocess.run([TOOL, "conform", *args], capture_output=True, text=True, env=environment, timeout=280)
    return done.returncode, done.stdout, done.stderr


def check(what, good, *shown):
    if not good:
        failures.append(what)
        print("FAIL", what, *shown)


def totals(text):
    found = re.fullmatch(r"(\d+) passed, (\d+) failed, (\d+) skipped", text.splitlines()[-1])
    return tuple(int(x) for x in found.groups()) if found else None


status, out, err = run("--backend", "cpu", "-v", LINE)
check("a replay passes", status == 0, out, err)
lines = [x for x in out.splitlines() if x.startswith("ok given " + LINE + " cpu_")]
check("one line for each variant, with both figures",
      len(lines) >= 2 and all(re.search(r" max=\d+\.\d+:d[qkv] rms=\d+\.\d+:d[qkv] ", x) for x in lines), out)
missing = sum(x.startswith("skip variant ") for x in out.splitlines())  # instruction sets that this processor lacks
check("totals are the last line", totals(out) and totals(out)[1:] == (0, missing), out)
check("distinct problems are counted", "\n1 distinct problem on " in out, out)

status, again, _ = run("--backend", "cpu", "-v", LINE)
check("a replay prints the same figures", again == out, out, again)
status, again, _ = run("--backend", "cpu", "-v", "--jobs", "0", LINE)
check("in this process alone: the same figures", status == 0 and again == out, out, again)
status, other, _ = run("--backend", "cpu", "-v", LINE + ":seed5")
check("another seed is other data", other.replace(":seed5", "") != out)

status, out, _ = run("--backend", "cpu", "--variant", "cpu_portable_32x32", "--json", LINE)
document = json.loads(out)
check("JSON", status == 0 and document["arch"] == "cpu" and document["passed"] >= 1 and document["failed"] == 0
      and document["cases"][0]["problem"] == LINE and document["cases"][0]["dq"]["max_ratio"] < 1, out)

status, out, err = run("--backend", "cpu", "--require", "sm90", LINE)
check("--require of an arch that ran nothing fails", status == 1 and "sm90" in err, out, err)
status, out, err = run("--backend", "cpu", "attn_bwd:bf16:b2h2s129x131d64:bias_bhqk:grads_qkvb:acc_qkvb")  # random sums of f32 would not fit
check("what the library refuses is built and skipped", status == 1 and totals(out)[:2] == (0, 0) and "only f32 outputs accumulate" in out, status, out, err)
status, out, err = run("--arch", "gfx942", LINE)
check("an arch that is not there is skipped by name, and nothing ran", status == 1 and totals(out) == (0, 0, 1)
      and "gfx942" in out and "nothing ran: arch gfx942" in err, status, out, err)
status, out, err = run("--arch", "gfx942", "--require", "gfx942", LINE)
check("... and fails when it is required", status == 1, out, err)
status, out, err = run("--backend", "cpu", "--variant", "nonsense", LINE)
check("a variant that is not there is refused with those that are", status == 2 and "nonsense" in err
      and "cpu_portable_32x32" in err, status, out, err)
status, out, err = run("--backend", "cpu", "--require", "sm91", LINE)
check("--require of no arch is refused", status == 2 and "sm91" in err and not out, status, out, err)
for line in ("attn_bwd:f32:b4096h64s65536d128", "attn_bwd:f32:b1024h64s65536d128"):
    status, out, err = run("--backend", "cpu", line)
    check("too large a problem is skipped by name", status == 1 and re.search(f"(?m)^skip given {line} .*needs more memory than", out)
          and "FAIL" not in out and re.search("nothing ran: (needs more memory|variant )" if missing else "nothing ran: needs more memory", err), status, out, err)
status, out, err = run("--backend", "cpu", "attn_bwd:f32:b4096h64s65536d128", LINE)
check("... and the others decide", status == 0 and totals(out)[0] >= 2 and totals(out)[1] == 0, status, out, err)
for line, text in (("attn_bwd:f32:b1h1s8d257", "head_dim_qk 257"), ("attn_bwd:f32:b2h1s5d8:thd:cuq0,9,10", "cuq")):
    status, out, err = run("--backend", "cpu", line, LINE)
    check(f"refused by the library: {line}", status == 2 and text in err and "FAIL" not in out, status, out, err)
for args, text in ((("--repeat=0",), "not a number from 1"), (("--quick", "--long"), "exclude each other"),
                   (("--long", "--quick"), "exclude each other")):
    status, out, err = run("--backend", "cpu", *args, LINE)
    check(f"refused: {args}", status == 2 and text in err and not out, status, out, err)

for args, wanted in (((LINE + ":nonsense",), "'nonsense' is not an option"), (("--filter", "nothing-like-it"), "no case matches"),
                     (("--jobs", "65"), "not a number"), (("--unknown",), "unknown"),
                     (("attn_bwd:f32:b2h1s5d8:thd:cuq0,9,10",), "cuq")):
    status, out, err = run("--backend", "cpu", *args)
    check(f"refused: {args}", status in (1, 2) and wanted in out + err, status, out, err)

status, out, _ = run("--list")
rows = [x.split() for x in out.splitlines()[:-1]]
count = int(out.splitlines()[-1].split()[0])
check("rows are listed with their cases", len(rows) >= 30 and sum(int(x[1]) for x in rows) == count, out)
check("at least 1200 distinct problems by default", count >= 1200, count)
check("at least 5000 with --long", int(run("--list", "--long")[1].splitlines()[-1].split()[0]) >= 5000)

status, out, _ = run("--backend", "cpu", "--filter", "dbias*f32", "--cases", "5", "--seed", "3", "--repeat", "3")
check("filter, cases and seed", status == 0 and "5 distinct problems" in out and ":seed" in out, out)
status, out, _ = run("--backend", "cpu", "--filter", "!data_", "--quick", "--cases", "9")
check("a filter after ! leaves out", status == 0 and "9 distinct problems" in out and "data_" not in out, out)
status, out, _ = run("--backend", "cpu", "-v", "--filter", ":bf16:", "--filter", "!data_", "--filter", "dlse", "--cases", "7")
lines = [line for line in out.splitlines() if "attn_bwd:" in line]
check("all filters must hold", status == 0 and len({line.split()[2] for line in lines}) == 7 and
      all(":bf16:" in line and "dlse" in line and "data_" not in line for line in lines), out)
status, out, _ = run("--backend", "cpu", "--soak", "20", "--seed", "9")
check("soak", status == 0 and "20 distinct problems" in out, out[-300:])
# Five rows see the one key that there is, and most seeds hide it: data without a visible pair is no further data.
status, out, _ = run("--backend", "cpu", "--variant", "auto",
                     "attn_bwd:f32:b2h2s17x1d8:tq34:tk2:lse_heads:bias_bh1k:wl9:softcap4:alibi:delta_in:used:dropout0.1:"
                     "grads_q:lens_kv:pointer:seed1149")
check("a near miss of one live key", status == 0 and "1 result judged on 8 data sets" in out, out)

print(f"{len(failures)} failures")
sys.exit(1 if failures else 0)
