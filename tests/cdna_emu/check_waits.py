#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What the watches of waits and of wait states find, on CDNA's own main loop: check_waits.py KIND TOOL IMAGE OBJDUMP READELF ARCH.
KIND waits: some of the kernel's s_waitcnt become s_nop, one at a time, in a copy of the image (CDNA_EMU_CODE). KIND nops: some of its
s_nop N lose a wait state. Without the watch conform passes with every one of them, since the emulator's instructions are done at
once; with CDNA_EMU_WAITS=1 or CDNA_EMU_HAZARDS=1 most must be found (some order memory alone, some are on no path that
runs), and the kernel as it is must pass."""
import os
import random
import re
import subprocess
import sys
import tempfile
from pathlib import Path

PROBLEMS = ["attn_bwd:bf16:b2h4k2s70x200d64", "attn_bwd:bf16:b1h2s130d64:causal_br",
            "attn_bwd:bf16:b1h2s70x130d64:acc_kv:dk_f32:dv_f32"]
# How many, how objdump writes one, the switch of the watch, its words.
KINDS = {"waits": (6, r"s_waitcnt [^/]*// ([0-9A-F]+): BF8C", "CDNA_EMU_WAITS", "a wait is missing"),
         "nops": (4, r"s_nop [1-9]\d* +// ([0-9A-F]+): BF80", "CDNA_EMU_HAZARDS", "it comes too soon behind")}


def output(*words):
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, check=True).stdout


def places_of(pattern, image, objdump, readelf, kernel):
    """Offsets in the image of the kernel's instructions of that pattern."""
    text = re.search(r"\.text\s+PROGBITS\s+([0-9a-f]+) ([0-9a-f]+)", output(readelf, "-S", image))
    moved = int(text[2], 16) - int(text[1], 16)
    lines = output(objdump, "-d", f"--disassemble-symbols={kernel}", image)
    return [int(at, 16) + moved for at in re.findall(pattern, lines)]


def without(kind, whole, at):
    """s_nop N - 1 for s_nop N, s_nop 0 for s_waitcnt."""
    states = whole[at] - 1 if kind == "nops" else 0
    return whole[:at] + bytes([states, 0, 0x80, 0xbf]) + whole[at + 4:]


def main():
    kind, tool, image, objdump, readelf, arch = sys.argv[1:]
    planted, pattern, switch, said = KINDS[kind]
    whole = Path(image).read_bytes()
    places = places_of(pattern, image, objdump, readelf, f"stw_attn_bwd_{arch}_32x128_hd64_bf16_plain")
    if len(places) < planted:
        sys.exit(f"{image} has {len(places)} {kind}")
    found = {"0": 0, "1": 0}
    with tempfile.TemporaryDirectory() as folder:
        def conform(changed, watch):
            code = Path(folder) / "code"
            code.write_bytes(changed)
            done = subprocess.run([tool, "conform", "--variant", "auto", *PROBLEMS], capture_output=True, text=True, check=False,
                                  env=os.environ | {"CDNA_EMU_CODE": str(code), switch: watch})
            return done.returncode == 0, done.stdout + done.stderr

        passed, words = conform(whole, "1")
        if not passed:
            sys.exit(f"the kernel as it is:\n{words}")
        for at in random.Random(1).sample(places, planted):
            changed = without(kind, whole, at)
            for watch in found:
                passed, words = conform(changed, watch)
                found[watch] += not passed
                if not passed and said not in words:
                    sys.exit(f"{kind} at {at:#x}:\n{words}")
    print(f"{planted} {kind} dropped, one at a time: {found['1']} found, {found['0']} without the watch")
    sys.exit(found["0"] != 0 or found["1"] * 2 < planted)


if __name__ == "__main__":
    main()
