#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""`sternway conform` on a GPU as a test: conform.py TOOL ARCH [arguments of conform...]. Ends with 77, naming the
reason, when this machine cannot run the arch; anything else that kept it from running is a failure."""
import re
import subprocess
import sys

tool, arch, *rest = sys.argv[1:]
probe = subprocess.run([tool, "conform", "--arch", arch, "--variant", "auto", "--jobs", "1", "attn_bwd:bf16:b1h1s16d16"],
                       capture_output=True, text=True)
absent = re.search(rf"^skip (arch {arch}: STW_E_NO_(DRIVER|DEVICE|IMAGE)\b.*)$", probe.stdout, re.M)
if absent:
    print(f"skip {absent.group(1)}")
    sys.exit(77)
sys.exit(subprocess.run([tool, "conform", "--arch", arch, "--require", arch, *rest]).returncode)
