#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A soak with its memory measured: check_soak.py TOOL PRELOAD CALLS. Random problems, each repeated 50 times bit for bit,
make so many backward calls in one process; the blocks that are allocated and the process's memory, which count_memory.c
writes during calls, do not grow: those of the second half stay within the first half's. A shorter run in which each call
loses a block must be noticed."""
import os
import subprocess
import sys
import tempfile

TOOL, PRELOAD, CALLS = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2]), int(sys.argv[3])
REPEAT = 50
BLOCKS, KIB = 100, 32 << 10  # what the second half may have more: problems differ in size


def soak(calls, **more):
    """(Exit status, last line, what grew in blocks and KiB, calls)"""
    with tempfile.TemporaryDirectory(prefix="sternway-soak-") as folder:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("STERNWAY_")}
        environment.update(LD_PRELOAD=PRELOAD, COUNT_MEMORY=f"{folder}/memory", **more)
        done = subprocess.run([TOOL, "conform", "--backend", "cpu", "--variant", "auto", "--jobs", "0", "--soak", str(calls // REPEAT), "--seed",
                               "11", "--repeat", str(REPEAT)], env=environment, capture_output=True, text=True)
        with open(f"{folder}/memory", encoding="ascii") as file:
            rows = [tuple(map(int, line.split())) for line in file]
    rows = rows[len(rows) // 10:]  # the first ones warm up
    half = len(rows) // 2
    grown = [max(row[i] for row in rows[half:]) - max(row[i] for row in rows[:half]) for i in (1, 2)]
    return done.returncode, done.stdout.splitlines()[-1], grown, rows[-1][0]


status, line, grown, calls = soak(CALLS)
print(f"{calls} backward calls: {line}; grown by {grown[0]} blocks and {grown[1]} KiB")
bad = status != 0 or calls < CALLS or grown[0] > BLOCKS or grown[1] > KIB
status, line, grown, calls = soak(CALLS // 10, COUNT_LEAK="16")
print(f"{calls} calls that lose a block each: {line}; grown by {grown[0]} blocks and {grown[1]} KiB")
sys.exit(1 if bad or status != 0 or grown[0] <= BLOCKS else 0)
