#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What the tests of a coverage build ran of common/, backends/gpu/ and dispatch/: check.py BUILD. Fails below 100% of the lines or 95% of the
branches. Prints what is missing, and every exclusion with its reason."""
import json
import pathlib
import re
import subprocess
import sys

SOURCE = pathlib.Path(__file__).resolve().parents[2]
LINES, BRANCHES = 1.0, 0.95
MARKER = re.compile(r"GCOVR_EXCL_(?:BR_)?LINE\b:?\s*(.*?)\s*(?:\*/|$)")


def counts(build):
    words = ["gcovr", "--root", SOURCE, "--object-directory", build, "--filter", "common/", "--filter", "backends/gpu/", "--filter", "backends/[a-z]+/attn_(sm90|cdna)[.]c", "--filter", "dispatch/",
             "--exclude", "common/kernels/", "--json", "-"]
    done = subprocess.run(words, cwd=SOURCE, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"gcovr: {done.stderr[-2000:]}")
    return json.loads(done.stdout)["files"]


def exclusions():
    found = []
    for folder in ("common", "backends/gpu", "dispatch"):
        for path in sorted((SOURCE / folder).rglob("*")):
            if path.suffix not in (".c", ".h", ".inl", ".def"):
                continue
            for number, line in enumerate(path.read_text().splitlines(), 1):
                if marker := MARKER.search(line):
                    found.append((f"{path.relative_to(SOURCE)}:{number}", marker[1]))
    return found


def main():
    (build,) = sys.argv[1:]
    total, missed = {"lines": 0, "branches": 0}, {"lines": 0, "branches": 0}
    for file in sorted(counts(build), key=lambda file: file["file"]):
        text = (SOURCE / file["file"]).read_text().splitlines()
        lines = [line for line in file["lines"] if not line["gcovr/noncode"]]
        branches = [(line, branch) for line in lines for branch in line["branches"]]
        never = [line for line in lines if not line["count"]]
        not_taken = [line for line, branch in branches if not branch["count"]]
        total["lines"] += len(lines)
        total["branches"] += len(branches)
        missed["lines"] += len(never)
        missed["branches"] += len(not_taken)
        print(f"{file['file']:32} lines {len(lines) - len(never)}/{len(lines)}, branches {len(branches) - len(not_taken)}/{len(branches)}")
        for line in never:
            print(f"    never ran: {line['line_number']}: {text[line['line_number'] - 1].strip()}")
    left_out = exclusions()
    for place, reason in left_out:
        print(f"left out: {place}: {reason or 'NO REASON'}")
    share = {what: 1 - missed[what] / max(total[what], 1) for what in total}
    print(f"{len(left_out)} exclusions; lines {100 * share['lines']:.2f}% of {total['lines']}, "
          f"branches {100 * share['branches']:.2f}% of {total['branches']}; 100% and 95% are promised")
    if not total["lines"] or share["lines"] < LINES or share["branches"] < BRANCHES or not all(reason for _, reason in left_out):
        sys.exit(1)


if __name__ == "__main__":
    main()
