# SPDX-License-Identifier: MIT
"""What the mutation checks of the CPU backend (check.py) and of the GPU kernels (check_gpu.py, check_jagged.py) share:
reading the list, planting one bug in a copied tree, a device image as an object's source, running a command that may hang,
and the report."""

import concurrent.futures
import datetime
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


def part(mutants, count):
    """Of a list that takes too long for one day: every count-th row, another part each day. STW_PART, a number, says which;
    STW_PART=all: every row."""
    which = os.environ.get("STW_PART") or str(datetime.date.today().toordinal() % count)
    if count == 1 or which == "all":
        return mutants
    if not which.isdecimal():
        sys.exit(f"STW_PART={which}: a number or all")
    taken = mutants[int(which) % count::count]
    print(f"STW_PART={int(which) % count} of {count}: {len(taken)} of {len(mutants)} rows")
    return taken


def wrong(source, mutant):
    """What is wrong with the row, or None."""
    count = (source / mutant["file"]).read_text().count(mutant["old"])
    if count != 1:
        return f"stale: the old text is found {count} times in {mutant['file']}"
    return "old and new are the same" if mutant["old"] == mutant["new"] else None


def plant(source, tree, mutant):
    """Writes the changed file into the copied tree; what is wrong with the row, or None."""
    reason = wrong(source, mutant)
    if not reason:
        text = (source / mutant["file"]).read_text()
        (tree / mutant["file"]).write_text(text.replace(mutant["old"], mutant["new"]))
    return reason


def report_stale(source, mutants):
    """Whether each old text is there once; the exit status."""
    reasons = [f"{m['name']}: {reason}" for m in mutants if (reason := wrong(source, m))]
    print(*(f"FAIL {reason}" for reason in reasons), f"{len(mutants)} rows, {len(reasons)} problems", sep="\n")
    return 1 if reasons or not mutants else 0


def embed(image, symbol):
    """A device image as backends/gpu/image.c wants it: C source with its bytes between the symbols, and its hash."""
    value = 0xCBF29CE484222325  # FNV-1a, as backends/gpu/image.c has it
    for byte in image.read_bytes():
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return (f'__asm__(".pushsection .rodata\\n.balign 256\\n.globl {symbol}_begin\\n.hidden {symbol}_begin\\n'
            f'{symbol}_begin:\\n.incbin \\"{image}\\"\\n.globl {symbol}_end\\n.hidden {symbol}_end\\n{symbol}_end:\\n'
            f'.byte 0\\n.popsection\\n");\n'), f"0x{value:016x}"


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
