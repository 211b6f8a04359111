#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What the tests of a coverage build ran of common/, backends/gpu/, dispatch/ and the main loops' host sides: check.py BUILD.
Fails below 100% of the lines or 95% of the branches, where a source was not counted, and where a line is left out without a
reason. Prints what is missing, and every exclusion with its reason."""
import json
import pathlib
import re
import subprocess
import sys

SOURCE = pathlib.Path(__file__).resolve().parents[2]
LINES, BRANCHES = 1.0, 0.95
COUNTED = re.compile(r"(common|dispatch|backends/gpu)/[^/]+\.c|backends/[a-z]+/attn_(sm90|cdna)[a-z0-9_]*\.c")
READ = re.compile(r"(common|dispatch|backends/gpu)/.*\.(c|h|inl|def)|backends/[a-z]+/attn_(sm90|cdna)[a-z0-9_]*\.c")
MARKER = re.compile(r"\w*_EXCL_\w*:?\s*(.*?)\s*(?:\*/|$)")
NO_CODE = {"dispatch/backends.c"}  # a table alone
KNOWN = re.compile(r"GCOVR_EXCL_(BR_)?LINE\b")


def counts(build):
    words = ["gcovr", "--root", SOURCE, "--object-directory", build, "--filter", "common/", "--filter", "backends/gpu/",
             "--filter", "backends/[a-z]+/attn_(sm90|cdna)[a-z0-9_]*[.]c", "--filter", "dispatch/", "--exclude", "common/kernels/", "--json", "-"]
    done = subprocess.run(words, cwd=SOURCE, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"gcovr: {done.stderr[-2000:]}")
    return json.loads(done.stdout)["files"]


def sources(pattern):
    paths = (path.relative_to(SOURCE).as_posix() for folder in ("common", "dispatch", "backends") for path in (SOURCE / folder).rglob("*.*"))
    return sorted(path for path in paths if pattern.fullmatch(path))


def exclusions():
    """(place, reason) of each marker; a marker of another kind, such as one of a region, has no reason."""
    found = []
    for path in sources(READ):
        for number, line in enumerate((SOURCE / path).read_text().splitlines(), 1):
            if marker := MARKER.search(line):
                found.append((f"{path}:{number}", marker[1] if KNOWN.match(marker[0]) else ""))
    return found


def main():
    (build,) = sys.argv[1:]
    total, missed = {"lines": 0, "branches": 0}, {"lines": 0, "branches": 0}
    counted = sorted(counts(build), key=lambda file: file["file"])
    for file in counted:
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
    absent = sorted(set(sources(COUNTED)) - NO_CODE - {file["file"] for file in counted})
    for path in absent:
        print(f"not counted: {path}")
    left_out = exclusions()
    for place, reason in left_out:
        print(f"left out: {place}: {reason or 'NO REASON'}")
    share = {what: 1 - missed[what] / max(total[what], 1) for what in total}
    print(f"{len(left_out)} exclusions; lines {100 * share['lines']:.2f}% of {total['lines']}, "
          f"branches {100 * share['branches']:.2f}% of {total['branches']}; 100% and 95% are promised")
    if not total["lines"] or share["lines"] < LINES or share["branches"] < BRANCHES or absent or not all(reason for _, reason in left_out):
        sys.exit(1)


if __name__ == "__main__":
    main()
