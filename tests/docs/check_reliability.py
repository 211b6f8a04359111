#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Names in the table of docs/reliability.md: check_reliability.py SOURCE BUILD CTEST. Tests are in CTest, `full:` steps in
bootstrap.sh, planted bugs in tests/mutants; every promise has a test."""
import json
import pathlib
import re
import subprocess
import sys
import tomllib

SOURCE, BUILD, CTEST = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3]
text = subprocess.run([CTEST, "--test-dir", BUILD, "--show-only=json-v1"], check=True, capture_output=True, text=True).stdout
tests = {test["name"] for test in json.loads(text)["tests"]}
bugs = {row["name"] for path in (SOURCE / "tests/mutants").glob("*.toml") for row in tomllib.loads(path.read_text())["mutant"]}
steps = (SOURCE / "bootstrap.sh").read_text()


def faults(table):
    """What is wrong with it, a line each."""
    found, rows = [], [line.strip("|").split(" | ") for line in table.splitlines() if line.startswith("| ")][1:]
    for row in rows:
        if len(row) != 4:
            found.append(f"{row[0]}: {len(row)} columns")
            continue
        names = re.findall(r"`([^`]+)`", row[2])
        found += [f"{row[0].strip()}: no test"] if not names else []
        found += [f"{name} is no test" for name in names if not name.startswith("full: ") and name not in tests]
        found += [f"{name} is no step of bootstrap.sh" for name in names if name.startswith("full: ") and name[6:] not in steps]
        found += [f"{name} is no planted bug" for name in re.findall(r"`([^`]+)`", row[3]) if name not in bugs]
        found += [f"{row[0].strip()}: no word on a planted bug"] if not row[3].strip() else []
    return found + ([] if len(rows) > 20 else [f"{len(rows)} promises"])


table = (SOURCE / "docs/reliability.md").read_text()
wrong = faults(table)
print(*wrong, sep="\n")
for old, new in (("`tool_stop`", "`tool_stopped`"), ("`swapped-dk-dv`", "`swapped`"), ("`full: fuzzing`", "`full: guessing`"), ("`conform_soak`", "")):
    if old not in table or len(faults(table.replace(old, new))) <= len(wrong):
        wrong.append(f"{new} in the place of {old} is not noticed")
        print(wrong[-1])
sys.exit(1 if wrong else 0)
