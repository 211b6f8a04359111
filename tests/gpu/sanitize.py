#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""compute-sanitizer over conformance cases: memcheck, racecheck, synccheck and initcheck, side by side.

    sanitize.py TOOL ARCH [--cases FILE] [--limit N] [--tools memcheck,...] [--logs FOLDER] [--program PROGRAM...]

TOOL is bin/sternway; the cases are run by `sternway conform`, which must pass as well: the tools slow kernels down
and so reorder them. A line a tool: cases, processes watched, errors. Ends with 77 where there is no GPU with
kernels of the arch or no compute-sanitizer, and names the reason."""
import argparse
import concurrent.futures
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
MORE = {"memcheck": ["--leak-check", "no"], "racecheck": ["--racecheck-report", "all"]}


def watch(tool, command, logs, timeout):
    """(good, text) of one tool over the command and every process that it starts."""
    started = time.monotonic()
    watched = ["compute-sanitizer", "--tool", tool, "--target-processes", "all", "--log-file", f"{logs}/{tool}.%p.log",
               *MORE.get(tool, []), *command]
    try:
        done = subprocess.run(watched, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        return False, f"{tool}: not done in {timeout} s"
    (logs / f"{tool}.out").write_text(done.stdout + done.stderr)
    errors = processes = 0
    for log in logs.glob(f"{tool}.*.log"):
        found = re.findall(r"ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard", log.read_text(errors="replace"))
        processes += bool(found)
        errors += sum(int(a or b) for a, b in found)
    totals = re.search(r"^(\d+) passed, (\d+) failed, (\d+) skipped$", done.stdout, re.M)
    cases = len(re.findall(r"^ok given (?!pool:)", done.stdout, re.M))
    good = done.returncode == 0 and totals and int(totals.group(2)) == 0 and cases and processes and not errors
    return good, (f"{tool}: {cases} cases, {totals.group(0) if totals else 'no totals'}; {processes} processes watched, "
                  f"{errors} errors, exit {done.returncode}, {time.monotonic() - started:.0f} s")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("arch")
    parser.add_argument("--cases", type=Path, default=HERE / "sanitize_cases.txt")
    parser.add_argument("--limit", type=int, default=1000000)
    parser.add_argument("--tools", default=",".join(TOOLS))
    parser.add_argument("--logs", type=Path)
    parser.add_argument("--jobs", default="2")
    parser.add_argument("--timeout", type=int, default=900)
    options = parser.parse_args()
    lines = [line for line in options.cases.read_text().splitlines() if line and not line.startswith("#")][:options.limit]
    if not shutil.which("compute-sanitizer"):
        print("skip: no compute-sanitizer")
        return 77
    probe = subprocess.run([sys.executable, HERE / "conform.py", options.program, options.arch, "--variant", "auto", lines[0]],
                           capture_output=True, text=True)
    if probe.returncode:
        print(probe.stdout, probe.stderr)
        return probe.returncode
    scratch = tempfile.TemporaryDirectory()
    logs = options.logs or Path(scratch.name)
    logs.mkdir(parents=True, exist_ok=True)
    command = [options.program, "conform", "--arch", options.arch, "--variant", "auto", "--jobs", options.jobs, *lines]
    tools, bad = options.tools.split(","), 0
    with concurrent.futures.ThreadPoolExecutor(len(tools)) as pool:
        for good, text in pool.map(lambda tool: watch(tool, command, logs, options.timeout), tools):
            print("ok  " if good else "FAIL", text, flush=True)
            bad += not good
    print(f"{len(lines)} cases a tool, {len(tools)} tools, {bad} problems")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
