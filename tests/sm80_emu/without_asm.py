#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Copies a source without the functions that hold PTX: the emulator has its own of the same names. A new instruction
there is then a name that leaf.h or sm90.h of this folder lacks, which the compiler reports. Of sm90's, kernels get
their arguments by reference, and mbarriers and products are sm90.h's.

    without_asm.py FROM TO"""
import re
import sys

text = open(sys.argv[1], encoding="utf-8").read()
text = re.sub(r"#define LEAF_MMA_16.*?\n(?=LEAF_MMA_16)", "", text, flags=re.S)
text = re.sub(r"^LEAF_MMA_16\(.*\n", "", text, flags=re.M)
text = re.sub(r"DEV_ARGUMENT (stw_\w+) (\w+), DEV_ARGUMENT (stw_\w+) (\w+)", r"const \1 &\2, const \3 &\4", text)
text = re.sub(r"^struct sm90_mbarrier \{.*?^\};\n", "", text, flags=re.S | re.M)
text = re.sub(r"^#define SM90_(SS|RS|MMA)\((?:[^\n]*\\\n)*[^\n]*\n", "", text, flags=re.M)
text = re.sub(r"^(template <class T> struct sm90_mma;|SM90_MMA\(.*\))\n", "", text, flags=re.M)
text = re.sub(r"asm\(\"\{\\n.reg .b64 x;\\nmul.wide.u32 x,.*?\);",
              "high = (uint32_t)((uint64_t)a * b >> 32), low = a * b;", text, flags=re.S)
if "STW_CUDA_MMA_SM90_H" in text:
    text = text.replace('#include "tensor_map.h"\n', '#include "tensor_map.h"\n#include "tests/sm80_emu/sm90.h"\n')
kept, end = [], 0
for match in re.finditer(r"^(template <[^\n]*>\s*)?DEV_FN [^;{]*\{", text, flags=re.M):
    if match.start() < end:
        continue
    depth, at = 1, match.end()
    while depth:
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        at += 1
    if re.search(r"\basm\b", text[match.start():at]):
        kept.append(text[end:match.start()])
        end = at
kept.append(text[end:])
with open(sys.argv[2], "w", encoding="utf-8") as out:
    out.write("".join(kept))
