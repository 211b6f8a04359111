#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""`conform --devices`: several GPUs share the cases of one run. check_devices.py TOOL EMULATOR FAKE: folders with a
libcuda.so.1 that computes (sm80) and with one that only answers, for archs and failures."""

import json
import os
import re
import subprocess
import sys

TOOL, EMULATOR, FAKE = sys.argv[1:]
THREE = "A|9.0|2|232448|140000000000;B|8.0|2|166912|40000000000;Old|7.5|2|65536|8000000000;D|8.0|2|166912|40000000000"
MIXED = "A|8.0|108|166912|40000000000;B|9.0|132|232448|140000000000;C|8.0|108|166912|40000000000"
LINES = [f"attn_bwd:{t}:b1h1s{s}x{x}d16" for t, s, x in (("bf16", 17, 16), ("f16", 3, 9), ("bf16", 16, 20), ("f16", 33, 5),
                                                      ("bf16", 2, 40), ("f16", 18, 18), ("bf16", 31, 1))]
failures = []


def run(driver, devices, *args, **more):
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("STERNWAY_", "FAKE_", "LD_LIBRARY_PATH"))}
    environment.update(more, LD_LIBRARY_PATH=driver, FAKE_CUDA_DEVICES=devices)
    if driver == EMULATOR:
        environment["FAKE_FAST"] = "1"
    done = subprocess.run([TOOL, "conform", "-v", "--backend", "cuda", "--variant", "auto", *args], capture_output=True, text=True,
                          env=environment, timeout=280)
    return done.returncode, done.stdout, done.stderr


def check(what, good, *shown):
    if not good:
        failures.append(what)
        print("FAIL", what, *shown)


def cases(text):
    return [x for x in text.splitlines() if re.match(r"(ok|FAIL|skip) given attn", x)]


status, one, err = run(EMULATOR, THREE, "--arch", "sm80", *LINES)
check("one device", status == 0 and len(cases(one)) == len(LINES) and "device" not in one, one, err)
for jobs in ("1", "5"):
    status, out, err = run(EMULATOR, THREE, "--arch", "sm80", "--devices", "all", "--jobs", jobs, *LINES)
    check("all devices: the results of one, in the same order", status == 0 and
          [re.sub(r" device=\d+", "", x) for x in cases(out)] == cases(one), out, err)
    check("... each on the device whose turn it is", [int(re.search(r" device=(\d+)", x).group(1)) for x in cases(out)] ==
          [(0, 1, 3)[i % 3] for i in range(len(LINES))], out)
    check("... one without kernels left out by name", re.search(r"^skip device 2: .*sm75", out, re.M), out)
    tallies = re.findall(r"^device (\d+) +(\d+) +(\d+) +(\d+)", out, re.M)
    check("... a tally by device", [tuple(map(int, t)) for t in tallies] == [(0, 3, 0, 0), (1, 2, 0, 0), (3, 2, 0, 0)], out)
status, out, err = run(EMULATOR, THREE, "--arch", "sm80", "--devices", "3,1", "--json", *LINES[:4])
document = json.loads(out)
check("named devices in their order", status == 0 and [c["device"] for c in document["cases"] if "seed" in c] == [3, 1, 3, 1] and
      [d["name"] for d in document["devices"]] == ["device 3", "device 1"], out[:500], err)
status, out, err = run(EMULATOR, THREE, "--arch", "sm80", "--devices", "3", LINES[0])
check("one named device", status == 0 and "device" not in out, out, err)

status, out, err = run(FAKE, MIXED, "--devices", "0,1", LINES[0])
check("two archs are refused", status == 2 and "device 1: sm90, not sm80 as device 0" in err and not cases(out), status, out, err)
status, out, err = run(FAKE, MIXED, "--devices", "all", *LINES[:4])
found = [(x.split()[0], int(re.search(r" device=(\d+)", x).group(1))) for x in cases(out)]
check("with all, those of another arch are left out by name", "skip device 1: sm90, not sm80 as device 0" in out and
      found == [("FAIL", 0), ("FAIL", 2), ("FAIL", 0), ("FAIL", 2)] and status == 1, out, err)
check("what failed is counted by device", re.search(r"^device 2 +0 +2 +0", out, re.M), out)
status, out, err = run(FAKE, MIXED, "--arch", "sm80", "--devices", "all", *LINES[:3])
check("one forced arch for all", [int(re.search(r" device=(\d+)", x).group(1)) for x in cases(out)] == [0, 1, 2], out, err)
status, out, err = run(FAKE, MIXED, "--arch", "sm80", "--devices", "0,3", LINES[0])
check("a device that is not there", status == 1 and "device 3 does not exist" in err and not cases(out), out, err)
status, out, err = run(FAKE, MIXED, "--arch", "sm80", "--devices", "0,1", "--jobs", "0", LINES[0])
check("one process is for one device", status == 2 and "--jobs 0" in err and not cases(out), out, err)
for nth, device in (("1", "arch sm80"), ("2", "device 0"), ("3", "device 1"), ("4", "device 2")):  # the first is opened twice
    status, out, err = run(FAKE, MIXED, "--arch", "sm80", "--devices", "all", LINES[0], FAKE_FAIL=f"cuDevicePrimaryCtxRetain:2:{nth}")
    check(f"a broken device stops the run: {nth}", status == 1 and device in out + err and "out of memory" in err and not cases(out), out, err)
status, out, err = run(FAKE, "Old|7.5|2|65536|8000000000;Older|7.0|2|65536|8000000000", "--devices", "all", LINES[0])
check("no device with kernels", status == 1 and "sm75" in out and not cases(out), out, err)

print(f"{len(failures)} failures")
sys.exit(1 if failures else 0)
