#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""compute-sanitizer over conformance cases: memcheck, racecheck, synccheck and initcheck, side by side.

    sanitize.py TOOL ARCH [--apart TEST_GPU_APART] [--cases FILE] [--limit N] [--tools memcheck,...] [--logs FOLDER]

TOOL is bin/sternway; with --apart memcheck runs a second time, over that test, where every tensor has an allocation
of its own; the cases are run by `sternway conform`, which must pass as well: the tools slow kernels down
and so reorder them. A line a tool: cases, errors. Ends with 77 where there is no GPU with
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


def watch(tool, command, log, timeout):
    """(cases, errors or None, text) of one tool over the command. One process: conform --jobs 0 forks nothing, and
    the tools follow no process that was forked without a new program."""
    watched = ["compute-sanitizer", "--tool", tool, "--log-file", str(log), *MORE.get(tool, []), *command]
    try:
        done = subprocess.run(watched, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        return 0, None, f"not done in {timeout} s"
    log.with_suffix(".out").write_text(done.stdout + done.stderr)
    words = log.read_text(errors="replace") if log.exists() else ""
    found = re.findall(r"ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard", words)
    totals = re.search(r"^(\d+) passed, (\d+) failed, (\d+) skipped$", done.stdout, re.M)
    cases = len(re.findall(r"^ok given (?!pool:)", done.stdout, re.M))
    if not found or not totals or totals.group(2) != "0" or totals.group(3) != "0":
        return cases, None, f"exit {done.returncode}: {totals.group(0) if totals else done.stderr[-300:]}"
    return cases, sum(int(a or b) for a, b in found), ""


def watch_apart(program, arch, lines, logs, timeout):
    """As check, for the test that puts every tensor into an allocation of its own."""
    started, log = time.monotonic(), logs / "apart.log"
    (logs / "cases.txt").write_text("\n".join(lines) + "\n")
    watched = ["compute-sanitizer", "--tool", "memcheck", "--log-file", str(log), *MORE["memcheck"], str(program), arch,
               str(logs / "cases.txt")]
    done = subprocess.run(watched, capture_output=True, text=True, timeout=timeout)
    (logs / "apart.out").write_text(done.stdout + done.stderr)
    found = re.search(r"ERROR SUMMARY: (\d+) error", log.read_text(errors="replace")) if log.exists() else None
    count = re.search(r"^(\d+) cases, every tensor apart$", done.stdout, re.M)
    good = done.returncode == 0 and found and found.group(1) == "0" and count
    return bool(good), (f"memcheck, tensors apart: {count.group(1) if count else 'not all'} cases, "
                        f"{found.group(1) if found else 'no'} errors, exit {done.returncode}, "
                        f"{time.monotonic() - started:.0f} s")


def check(tool, command, lines, shards, logs, timeout):
    """(good, text) of one tool over all the cases, in several processes side by side."""
    started = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(shards) as pool:
        results = list(pool.map(lambda n: watch(tool, command + lines[n::shards], logs / f"{tool}.{n}.log", timeout),
                                range(shards)))
    cases = sum(count for count, _, _ in results)
    broken = [text for _, errors, text in results if errors is None]
    errors = sum(errors or 0 for _, errors, _ in results)
    good = cases == len(lines) and not broken and not errors
    return good, (f"{tool}: {cases} cases, {errors} errors, {time.monotonic() - started:.0f} s"
                  f"{'; ' if broken else ''}{'; '.join(broken)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("arch")
    parser.add_argument("--apart", type=Path)
    parser.add_argument("--cases", type=Path, default=HERE / "sanitize_cases.txt")
    parser.add_argument("--limit", type=int, default=1000000)
    parser.add_argument("--tools", default=",".join(TOOLS))
    parser.add_argument("--logs", type=Path)
    parser.add_argument("--shards", type=int, default=2, help="processes a tool")
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
    command = [options.program, "conform", "-v", "--arch", options.arch, "--variant", "auto", "--jobs", "0"]
    tools, bad = options.tools.split(","), 0
    with concurrent.futures.ThreadPoolExecutor(len(tools)) as pool:
        for good, text in pool.map(
                lambda tool: check(tool, command, lines, options.shards, logs, options.timeout), tools):
            print("ok  " if good else "FAIL", text, flush=True)
            bad += not good
    if options.apart:
        good, text = watch_apart(options.apart, options.arch, lines, logs, options.timeout)
        print("ok  " if good else "FAIL", text, flush=True)
        bad += not good
    print(f"{len(lines)} cases a tool, {len(tools)} tools, {bad} problems")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
