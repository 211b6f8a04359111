#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What the watches of waits and of wait states find, on CDNA's own main loop: check_waits.py KIND TOOL IMAGE OBJDUMP READELF ARCH.
KIND waits: some of the s_waitcnt that run become s_nop, one at a time, in a copy of the image (CDNA_EMU_CODE). KIND nops: some
s_nop N lose a wait state. Without the watch conform passes with every one of them, since the emulator's instructions are done at
once; with CDNA_EMU_WAITS=1 or CDNA_EMU_HAZARDS=1 two thirds of them must be found (some wait for what another wait
covers), and the kernel as it is must pass. Wait states before loads are left out: LLVM has more of them than documents ask for."""
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
KINDS = {"waits": (6, r"s_waitcnt [^/]*// ([0-9A-F]+): BF8C", "CDNA_EMU_WAITS", "a wait is missing|no wait before it"),
         "nops": (6, r"s_nop [1-9]\d* +// ([0-9A-F]+): BF80.*\n\s+v_", "CDNA_EMU_HAZARDS", "it comes too soon behind")}


def output(*words):
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, check=True).stdout


def places_of(pattern, image, objdump, readelf, kernel, ran):
    """Offsets in the image of the kernel's instructions of that pattern that ran."""
    text = re.search(r"\.text\s+PROGBITS\s+([0-9a-f]+) ([0-9a-f]+)", output(readelf, "-S", image))
    moved = int(text[2], 16) - int(text[1], 16)
    lines = [line for line in output(objdump, "-d", f"--disassemble-symbols={kernel}", image).splitlines() if "// " in line]
    found = [re.search(pattern, "\n".join(lines[number:number + 2])) for number in sorted(ran)]
    return [int(match[1], 16) + moved for match in found if match]


def ran_of(trace, kernel):
    """Numbers of the kernel's instructions that a wave of its first workgroup ran."""
    ran, ours = set(), False
    for line in trace.read_text(encoding="ascii").splitlines():
        word, *words = line.split()
        if word == "kernel":
            ours = words[0] == kernel
        elif word == "wave" and ours:
            ran |= {int(number.split(":")[0]) for number in words}
    return ran


def without(kind, whole, at):
    """s_nop N - 1 for s_nop N, s_nop 0 for s_waitcnt."""
    states = whole[at] - 1 if kind == "nops" else 0
    return whole[:at] + bytes([states, 0, 0x80, 0xbf]) + whole[at + 4:]


def main():
    kind, tool, image, objdump, readelf, arch = sys.argv[1:]
    planted, pattern, switch, said = KINDS[kind]
    whole = Path(image).read_bytes()
    kernel = f"stw_attn_bwd_{arch}_32x128_hd64_bf16_plain"
    found = {"0": 0, "1": 0}
    with tempfile.TemporaryDirectory() as folder:
        def conform(changed, **environment):
            code = Path(folder) / "code"
            code.write_bytes(changed)
            done = subprocess.run([tool, "conform", "--variant", "auto", *PROBLEMS], capture_output=True, text=True, check=False,
                                  env=os.environ | environment | {"CDNA_EMU_CODE": str(code)})
            return done.returncode == 0, done.stdout + done.stderr

        trace = Path(folder) / "trace"
        passed, words = conform(whole, CDNA_EMU_TRACE=str(trace), **{switch: "1"})
        if not passed:
            sys.exit(f"the kernel as it is:\n{words}")
        places = places_of(pattern, image, objdump, readelf, kernel, ran_of(trace, kernel))
        if len(places) < planted:
            sys.exit(f"{len(places)} {kind} of {image} ran")
        for at in random.Random(1).sample(places, planted):
            changed = without(kind, whole, at)
            for watch in found:
                passed, words = conform(changed, **{switch: watch})
                found[watch] += not passed
                if not passed and not re.search(said, words):
                    sys.exit(f"{kind} at {at:#x}:\n{words}")
    print(f"{planted} {kind} dropped, one at a time: {found['1']} found, {found['0']} without the watch")
    sys.exit(found["0"] != 0 or found["1"] * 3 < planted * 2)


if __name__ == "__main__":
    main()
