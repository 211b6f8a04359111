# SPDX-License-Identifier: MIT
"""What the mutation checks of the CPU backend (check.py) and of the GPU kernels (check_gpu.py, check_jagged.py) share:
reading the list, planting one bug in a copied tree, a device image as an object's source, running a command that may hang,
and the report."""

import concurrent.futures
import contextlib
import datetime
import os
import re
import signal
import subprocess
import sys
import threading
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


GAP = r"(?:\s|\\\n)"  # white space; a macro's lines go on behind a backslash


def tokens(text):
    """Words and signs, without the white space between them."""
    return re.findall(r"\w+|[^\w\s]", re.sub(rf"{GAP}+", " ", text))


def pattern(old):
    """Finds a row's old text however the source is formatted: any white space, or none, may stand between two tokens.
    Between two words there is some; where the old text begins or ends with some, no word goes on."""
    parts = tokens(old)
    found = re.escape(parts[0])
    for before, token in zip(parts, parts[1:]):
        both_words = re.match(r"\w", before) and re.match(r"\w", token)
        found += (f"{GAP}+" if both_words else f"{GAP}*") + re.escape(token)
    return re.compile((r"(?<!\w)" if re.match(r"\s\w", old) else "") + found + (r"(?!\w)" if re.search(r"\w\s$", old) else ""))


def changed(source, mutant):
    """(text, None): the file with the bug in it; (None, reason): what is wrong with the row."""
    text = (source / mutant["file"]).read_text()
    places = list(pattern(mutant["old"]).finditer(text))
    if len(places) != 1:
        return None, f"stale: the old text is found {len(places)} times in {mutant['file']}"
    if tokens(mutant["old"]) == tokens(mutant["new"]):
        return None, "old and new are the same"
    old, new = mutant["old"], mutant["new"]
    new = re.sub(rf"^{GAP}+", "", new) if re.match(GAP, old) else new  # the source keeps its own white space there
    new = re.sub(rf"{GAP}+\Z", "", new) if re.search(rf"{GAP}\Z", old) else new
    return text[:places[0].start()] + new + text[places[0].end():], None


def plant(source, tree, mutant):
    """Writes the changed file into the copied tree; what is wrong with the row, or None."""
    text, reason = changed(source, mutant)
    if not reason:
        (tree / mutant["file"]).write_text(text)
    return reason


def report_stale(source, mutants, more=()):
    """Whether each old text is there once, and what else is wrong; the exit status."""
    reasons = [f"{m['name']}: {reason}" for m in mutants if (reason := changed(source, m)[1])] + list(more)
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


def run(command, environment, timeout_s, stop=None):
    """Exit status and output; None when it hung. At a line that begins with `stop` it is ended, and its status is 1."""
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                               start_new_session=True)
    hung = threading.Event()

    def end():
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # its own session: conform and its workers

    def end_late():
        hung.set()
        end()
    timer = threading.Timer(timeout_s, end_late)
    timer.start()
    lines, stopped = [], False
    with process.stdout:
        for line in process.stdout:
            lines.append(line)
            if stop and line.startswith(stop):
                stopped = True
                end()
                break
        process.wait()
    timer.cancel()
    if stopped:
        return 1, "".join(lines)
    return (None, "") if hung.is_set() else (process.returncode, "".join(lines))


def conform(command, environment, timeout_s, mutant):
    """A run of conform; with a bug (`old`) up to the first case that fails: no other could change the verdict."""
    return run(command, environment, timeout_s, "FAIL" if mutant and "old" in mutant else None)


def verdict(mutant, status, output):
    """(good, text): without a bug (mutant None) conform passes, with one it fails or hangs."""
    if not mutant:
        return status == 0, "no bug: " + ("passes" if status == 0 else f"status {status}\n{output[-3000:]}")
    if status is None:
        return True, f"{mutant['name']}: found: hangs"
    failures = [line for line in output.splitlines() if line.startswith("FAIL")]
    if status == 1 and failures:
        return True, f"{mutant['name']}: found: {' '.join(failures[0].split()[1:3])}"
    return False, f"{mutant['name']}: NOT FOUND (status {status}): {mutant['what']}\n{output[-300:]}"


def report(check, mutants, jobs):
    """Runs check(mutant) for each, and for None first: no bug. Prints each as it ends; the exit status."""
    start, bad = time.monotonic(), 0
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for done in concurrent.futures.as_completed(pool.submit(check, mutant) for mutant in [None, *mutants]):
            good, text = done.result()
            print("ok  " if good else "FAIL", text, flush=True)
            bad += not good
    print(f"{len(mutants)} planted bugs, {bad} problems, {time.monotonic() - start:.0f} s")
    return 1 if bad or not mutants else 0
