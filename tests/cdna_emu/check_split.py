# SPDX-License-Identifier: MIT
"""Work tiles of CDNA's own main loop in parts: `explain` says of every problem of split_problems.txt that it is split, by
query heads of some and by query blocks of others, and all of them are right.

    python3 check_split.py STERNWAY     in the environment of the emulator's other tests"""
import pathlib
import re
import subprocess
import sys

PARTS = r"; a work tile in (\d+) parts by query heads, (\d+) by query blocks"


def main():
    lines = (pathlib.Path(__file__).parent / "split_problems.txt").read_text().splitlines()
    problems = [line for line in lines if line and not line.startswith("#")]
    by_heads = by_blocks = 0
    failures = []
    for problem in problems:
        text = subprocess.run([sys.argv[1], "explain", problem], text=True, capture_output=True).stdout
        found = re.search(PARTS, text)
        heads, blocks = map(int, found.groups()) if found else (1, 1)
        by_heads, by_blocks = by_heads + (heads > 1), by_blocks + (blocks > 1)
        if heads * blocks == 1:
            failures.append(f"{problem}: not split\n{text}")
    if by_heads < 10 or by_blocks < 5:
        failures.append(f"{by_heads} problems are split by query heads, {by_blocks} by query blocks: 10 and 5 at least")
    done = subprocess.run([sys.argv[1], "conform", "--variant", "auto", "--jobs", "2", *problems], text=True)
    print(*failures, f"{len(problems)} problems, {by_heads} by query heads, {by_blocks} by query blocks", sep="\n")
    return 1 if failures or done.returncode else 0


if __name__ == "__main__":
    sys.exit(main())
