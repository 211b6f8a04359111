#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A case run again from its PROBLEM line, alone, has the same data and the same figures: of attention, forward and nested
rows, of --soak and --large, with its printed seed put into the line, and in whatever company."""

import os
import re
import subprocess
import sys

TOOL = sys.argv[1]
failures = []


def run(*args):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("STERNWAY_")}
    done = subprocess.run([TOOL, "conform", "-v", "--backend", "cpu", "--variant", "auto", *args], capture_output=True, text=True,
                          env=environment, timeout=280)
    return done.returncode, done.stdout, done.stderr


def results(text):
    """PROBLEM to the rest of its line, without the row."""
    return {x.split()[2]: x.split(maxsplit=3)[3] for x in text.splitlines() if re.match(r"(ok|FAIL|skip) \w+ (attn|jagged)_", x)}


def check(what, good, *shown):
    if not good:
        failures.append(what)
        print("FAIL", what, *shown)


for what, least, args in (("rows", 20, ["--filter", "!jagged", "--cases", "20"]), ("further rounds", 12, ["--long", "--filter", "!jagged",
                           "--cases", "12", "--seed", "77"]),
                          ("nested rows", 15, ["--filter", "jagged", "--cases", "15"]), ("repeats", 4, ["--cases", "4", "--repeat", "2"]),
                          ("soak", 6, ["--soak", "900", "--filter", "!jagged", "--cases", "6", "--seed", "5"]),
                          ("nested soak", 6, ["--soak", "900", "--filter", "jagged", "--cases", "6", "--seed", "5"]),
                          ("large", 2, ["--large", "jagged_softmax:f16:c30l40t1200i24:inner:lens_full",
                                        "attn_bwd:bf16:b1h2s300x200d40:causal_br"])):
    status, out, err = run(*args)
    first = results(out)
    check(f"{what} run", status == 0 and len(first) == least, out, err)
    large = ["--large"] if what == "large" else []
    status, again, err = run(*large, *reversed(list(first)))
    check(f"{what}: the same figures alone", results(again) == first, first, results(again))
    seeded = {f"{p}:seed{re.search(r'seed=([0-9]+)', rest).group(1)}" if ":seed" not in p else p: rest for p, rest in first.items()}
    status, again, err = run(*large, *seeded)
    check(f"{what}: the same figures with the printed seed in the line", results(again) == seeded, seeded, results(again))

print(f"{len(failures)} failures")
sys.exit(1 if failures else 0)
