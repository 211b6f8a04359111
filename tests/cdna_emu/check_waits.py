#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What the watch of waits finds, on CDNA's own main loop: check_waits.py TOOL IMAGE OBJDUMP READELF ARCH. Some of the
kernel's s_waitcnt become s_nop, one at a time, in a copy of the image (CDNA_EMU_CODE). Without the watch conform passes with every one of
them, since the emulator's loads are done at once; with CDNA_EMU_WAITS=1 most must be found (some order memory alone), and the
kernel as it is must pass."""
import os
import random
import re
import subprocess
import sys
import tempfile
from pathlib import Path

PLANTED = 6
PROBLEMS = ["attn_bwd:bf16:b2h4k2s70x200d64", "attn_bwd:bf16:b1h2s130d64:causal_br",
            "attn_bwd:bf16:b1h2s70x130d64:acc_kv:dk_f32:dv_f32"]
NOP = bytes.fromhex("000080bf")


def output(*words):
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, check=True).stdout


def waits_of(image, objdump, readelf, kernel):
    """Offsets in the image of the kernel's s_waitcnt."""
    text = re.search(r"\.text\s+PROGBITS\s+([0-9a-f]+) ([0-9a-f]+)", output(readelf, "-S", image))
    moved = int(text[2], 16) - int(text[1], 16)
    lines = output(objdump, "-d", f"--disassemble-symbols={kernel}", image)
    return [int(at, 16) + moved for at in re.findall(r"s_waitcnt [^/]*// ([0-9A-F]+): BF8C", lines)]


def main():
    tool, image, objdump, readelf, arch = sys.argv[1:]
    whole = Path(image).read_bytes()
    waits = waits_of(image, objdump, readelf, f"stw_attn_bwd_{arch}_32x128_hd64_bf16_plain")
    if len(waits) < PLANTED:
        sys.exit(f"{image} has {len(waits)} waits")
    found = {"0": 0, "1": 0}
    with tempfile.TemporaryDirectory() as folder:
        def conform(changed, watch):
            code = Path(folder) / "code"
            code.write_bytes(changed)
            done = subprocess.run([tool, "conform", "--variant", "auto", *PROBLEMS], capture_output=True, text=True, check=False,
                                  env=os.environ | {"CDNA_EMU_CODE": str(code), "CDNA_EMU_WAITS": watch})
            return done.returncode == 0, done.stdout + done.stderr

        passed, words = conform(whole, "1")
        if not passed:
            sys.exit(f"the kernel as it is:\n{words}")
        for at in random.Random(1).sample(waits, PLANTED):
            changed = whole[:at] + NOP + whole[at + 4:]
            for watch in found:
                passed, words = conform(changed, watch)
                found[watch] += not passed
                if not passed and "a wait is missing" not in words:
                    sys.exit(f"wait at {at:#x}:\n{words}")
    print(f"{PLANTED} waits dropped, one at a time: {found['1']} found, {found['0']} without the watch")
    sys.exit(found["0"] != 0 or found["1"] * 2 < PLANTED)


if __name__ == "__main__":
    main()
