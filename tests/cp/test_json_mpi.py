# SPDX-License-Identifier: MIT
"""The documents of `bench --cp --json` and `cp-conform --json` under mpirun: those of ranks that are threads, field by field.

    python3 test_json_mpi.py MPIRUN TOOL"""
import json
import subprocess
import sys

MPIRUN, TOOL = sys.argv[1:]
LINE = "attn_bwd:f32:b1h4s48d16:causal_br"
ROW = "zigzag ring attn_bwd:f16:b1h4k2s512"


def document(launcher, *words):
    """A rank count of its own for threads; a launcher says it for processes."""
    ranks = [] if launcher else ["-n", "2"]
    done = subprocess.run([*launcher, TOOL, *words, *ranks], text=True, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def shape(value):
    if isinstance(value, dict):
        return {key: shape(item) for key, item in value.items()}
    return [shape(item) for item in value] if isinstance(value, list) else type(value).__name__.replace("int", "float")


def main():
    launcher = [MPIRUN, "--oversubscribe", "-n", "2"]
    bench = ("bench", "--cp", "--json", "--seconds", "0.01", LINE)
    threads, processes = document([], *bench), document(launcher, *bench)
    assert shape(threads) == shape(processes), (threads, processes)
    problem = processes["problems"][0]
    assert problem["problem"] == LINE and problem["verified"], problem
    assert problem["over_ranks"]["ranks"] == 2 and problem["over_ranks"]["transport"] == "MPI", problem
    conform = ("cp-conform", "--json", "-f", ROW)
    threads, processes = document([], *conform), document(launcher, *conform)
    assert processes["ran"] == 1 and not processes["failed"], processes
    assert threads == processes, (threads, processes)  # the same sums in the same order
    refused = subprocess.run([*launcher, TOOL, "bench", "--cp", "--json", "attn_bwd:f32:b1h0s48d16"], text=True, capture_output=True,
                             timeout=120)
    assert refused.returncode, refused.stdout
    print("documents of 2 processes and of 2 threads have the same fields")


main()
