# SPDX-License-Identifier: MIT
"""No access to LDS of CDNA's own main loop waits for a bank: the emulator's count of conflicts (lds.cpp) in problems that
take it, of every tile and with an edge of the mask.

    python3 check_banks.py STERNWAY     in the environment of the emulator's other tests"""
import os
import pathlib
import subprocess
import sys
import tempfile

PROBLEMS = tuple(f"attn_bwd:bf16:b1h2s257d{dim}:causal_tl" for dim in ("32", "64", "96", "128", "192", "192x128", "256"))
PROBLEMS += tuple(f"attn_bwd:f32:b1h2s257d{dim}:causal_tl" for dim in ("64", "128", "256"))


def main():
    failures = []
    for problem in PROBLEMS:
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "counts"
            done = subprocess.run([sys.argv[1], "conform", "--variant", "auto", "-j0", problem], text=True,
                                  capture_output=True, env=dict(os.environ, CDNA_EMU_COUNTS=str(path)))
            lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
        kernels = {name: int(numbers[-1]) for name, *numbers in lines if name.endswith(("_bf16_plain", "_bf16_tall", "_f32_plain"))}
        if done.returncode or not kernels:
            failures.append(f"{problem}: {done.stdout}{done.stderr}kernels {sorted(name for name, *_ in lines)}")
        failures += [f"{problem}: {name}: {lost} cycles of conflicts" for name, lost in kernels.items() if lost]
    print(*failures, f"{len(PROBLEMS)} problems, {len(failures)} failures", sep="\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
