# SPDX-License-Identifier: MIT
"""What the mutation checks of the CPU backend (check.py) and of the GPU kernels (check_gpu.py) share: reading the list,
planting one bug in a copied tree, running a command that may hang, and the report."""

import concurrent.futures
import os
import subprocess
import sys
import time
import tomllib


def load(path, only):
    """The rows of a list, or those whose names contain `only`."""
    mutants = tomllib.loads(path.read_text())["mutant"]
    if len({m["name"] for m in mutants}) != len(mutants):
        sys.exit(f"{path.name}: a name is there twice")
    return [m for m in mutants if not only or only in m["name"]]


def plant(source, tree, mutant):
    """Writes the changed file into the copied tree; what is wrong with the row, or None."""
    text = (source / mutant["file"]).read_text()
    count = text.count(mutant["old"])
    if count != 1:
        return f"stale: the old text is found {count} times in {mutant['file']}"
    if mutant["old"] == mutant["new"]:
        return "old and new are the same"
    (tree / mutant["file"]).write_text(text.replace(mutant["old"], mutant["new"]))
    return None


def run(command, environment, timeout_s):
    """Exit status and output; None when it hung."""
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                               start_new_session=True)
    try:
        output, _ = process.communicate(timeout=timeout_s)
        return process.returncode, output
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)  # its own session: conform and its workers
        process.communicate()
        return None, ""


def verdict(mutant, status, output, describe):
    """(good, text): without a bug (mutant None) conform passes, with one it fails or hangs. `describe`: of a failed run's
    FAIL lines."""
    if not mutant:
        return status == 0, "no bug: " + ("passes" if status == 0 else f"status {status}\n{output[-3000:]}")
    if status is None:
        return True, f"{mutant['name']}: found: hangs"
    failures = [line for line in output.splitlines() if line.startswith("FAIL")]
    if status == 1 and failures:
        return True, f"{mutant['name']}: found: {describe(failures)}"
    return False, f"{mutant['name']}: NOT FOUND (status {status}): {mutant['what']}\n{output[-300:]}"


def report(check, mutants, jobs):
    """Runs check(mutant) for each, and for None first: no bug. Prints; the exit status."""
    start, bad = time.monotonic(), 0
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for good, text in pool.map(check, [None, *mutants]):
            print("ok  " if good else "FAIL", text, flush=True)
            bad += not good
    print(f"{len(mutants)} planted bugs, {bad} problems, {time.monotonic() - start:.0f} s")
    return 1 if bad or not mutants else 0
