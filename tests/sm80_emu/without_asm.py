#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Copies a leaf header without the functions that hold PTX: the emulator has its own of the same names. A new
instruction in the header is then a name that leaf.h of this folder lacks, which the compiler reports.

    without_asm.py FROM TO"""
import re
import sys

text = open(sys.argv[1], encoding="utf-8").read()
text = re.sub(r"#define LEAF_MMA_16.*?\n(?=LEAF_MMA_16)", "", text, flags=re.S)
text = re.sub(r"^LEAF_MMA_16\(.*\n", "", text, flags=re.M)
kept, end = [], 0
for match in re.finditer(r"^(template <[^\n]*>\s*)?DEV_FN [^\n;{]*\{", text, flags=re.M):
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
