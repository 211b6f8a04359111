# SPDX-License-Identifier: MIT
"""What the compiler made of an image's kernels, against what they are meant to be; nothing runs.

No kernel has scratch memory; none has spilled registers, but those of gate.txt (gfx950: gate_gfx950.txt), up to the
values there; what a row of the tuning table asks of LDS is at most 64 KB; matrix instructions are as many as the tile needs:
in CDNA's own loop exactly one step in each of its loops, elsewhere a multiple of one product's. No step of CDNA's own
loop waits for its own additions to memory: loads come before them, and statistics through LDS. A line of these files
that no kernel needs any more is a failure, too.

    python3 check_gate.py IMAGE TABLE READELF OBJDUMP"""
import fnmatch
import pathlib
import re
import subprocess
import sys

FIELDS = {"scratch": "private_segment_fixed_size", "vector_spills": "vgpr_spill_count", "scalar_spills": "sgpr_spill_count",
          "static_lds": "group_segment_fixed_size", "agprs": "agpr_count"}
LDS_KB, CDNA_ROWS, CDNA_TALL_V, WAVES = 64, 32, 128, 4
# One step of CDNA's own loop without masks, everything counted: a prototype has 538 and 327 on gfx942. By head dim; tall:
# 192 with head_dim_v up to 128.
CDNA_STEP_MOST = {("gfx942", 128, "bf16"): 550, ("gfx942", 64, "bf16"): 319, ("gfx942", 128, "f16"): 572,
                  ("gfx942", 64, "f16"): 345, ("gfx90a", 128, "bf16"): 580, ("gfx90a", 64, "bf16"): 353,
                  ("gfx942", 96, "bf16"): 460, ("gfx942", 32, "bf16"): 244, ("gfx942", 96, "f16"): 487,
                  ("gfx942", 32, "f16"): 277, ("gfx90a", 96, "bf16"): 488, ("gfx90a", 32, "bf16"): 280,
                  ("gfx90a", 128, "f16"): 656, ("gfx90a", 96, "f16"): 562,
                  ("gfx90a", 64, "f16"): 388, ("gfx90a", 32, "f16"): 314,
                  ("gfx942", 192, "bf16"): 531, ("gfx942", "tall", "bf16"): 486, ("gfx942", 256, "bf16"): 447,
                  ("gfx942", 192, "f16"): 554, ("gfx942", "tall", "f16"): 509, ("gfx942", 256, "f16"): 459,
                  ("gfx942", 256, "f32"): 1105, ("gfx942", 128, "f32"): 1060, ("gfx942", 64, "f32"): 1500,
                  ("gfx90a", 256, "f32"): 1105, ("gfx90a", 128, "f32"): 1060, ("gfx90a", 64, "f32"): 1500,
                  ("gfx90a", 192, "f16"): 657, ("gfx90a", "tall", "f16"): 610, ("gfx90a", 256, "f16"): 572,
                  ("gfx950", 128, "f32"): 1145, ("gfx950", 256, "f32"): 1197,
                  ("gfx90a", 192, "bf16"): 556, ("gfx90a", "tall", "bf16"): 511, ("gfx90a", 256, "bf16"): 459,
                  ("gfx950", 64, "f16"): 320, ("gfx950", 128, "f16"): 510, ("gfx950", 256, "f16"): 418,
                  ("gfx950", 64, "bf16"): 321, ("gfx950", 128, "bf16"): 506, ("gfx950", 256, "bf16"): 418}

# Kernels without features whose scores are made in ordinary registers (SCORES_HERE).
CDNA_STEP_HERE = {("gfx942", 128, "bf16"): 494, ("gfx942", 128, "f16"): 517, ("gfx90a", 128, "bf16"): 518}


# What such a step may have more in kernels that know more than masks. In deterministic mode it waits once for the additions of
# the step before, by vmcnt(0), and its loop holds the branches of a turn besides its own. With dropout six calls of Philox are 60
# rounds of 6 instructions; the third loop holds other maps' calls, and branches. A bias is loaded by elements, 24 a lane, and buffers
# of rows come out of vector registers.
CDNA_STEP_MORE = {"plain": 0, "tall": 0, "ordered": 27, "alibi": 60, "softcap": 140, "hidden": 17, "dropout": 460, "bias": 186, "bytes": 210}
# Of f32 those that the compiler does not see (cdna.h), and what turns add to a step.
TURN_BRANCHES, TURN_BRANCHES_F32, TURNS_F32 = {"gfx90a": 3, "gfx942": 3, "gfx950": 2}, 4, 40
# Where it is asked for at run time (dropout, a bias; above head dim 64 ALiBi and a softcap): branches, and what they add.
ASKED_BRANCHES, ASKED_MORE = 4, 25
# Loops of other modes that hold none but their own branch: those whose steps test all pairs hold others, too. Under masks in
# memory where deterministic mode is asked at run time (hidden above head dim 64, hidden_ordered) none is straight.
STRAIGHT_2 = ("hidden",)


def notes(readelf, image):
    """Metadata by kernel."""
    text = subprocess.run([readelf, "--notes", image], text=True, capture_output=True, check=True).stdout
    kernels = {}
    for part in re.split(r"\n  - (?=\.)", text)[1:]:
        name = re.search(r"^\s*\.name:\s+(stw_\w+)", part, re.M)
        values = {key: re.search(rf"\.{field}:\s+(\d+)", part) for key, field in FIELDS.items()}
        if name and all(values.values()):
            kernels[name[1]] = {key: int(value[1]) for key, value in values.items()}
    return kernels


def code(objdump, image, kernel):
    """(mnemonic, operands, number of the instruction that a branch goes to or None) of a kernel."""
    text = subprocess.run([objdump, "-d", f"--disassemble-symbols={kernel}", image], text=True, capture_output=True,
                          check=True).stdout
    found = re.findall(r"^\s+(\S+)([^/\n]*)// ([0-9A-F]+):(?:.*<\S+\+0x([0-9a-f]+)>)?", text, re.M)
    base = int(found[0][2], 16)
    number = {int(at, 16) - base: i for i, (_, _, at, _) in enumerate(found)}
    return [(name, operands, number.get(int(to, 16)) if to else None) for name, operands, _, to in found]


def straight_loops(instructions, others=0, all_waits=0):
    """(matrix instructions, instructions, the fewest loads and additions that a wait leaves under way) of every loop that
    holds matrix instructions and no other branch, or so many others; without so many waits for all there is."""
    loops = []
    for i, (name, _, to) in enumerate(instructions):
        if not name.startswith(("s_cbranch", "s_branch")) or to is None or to > i:
            continue
        body = [n for n, _, _ in instructions[to:i + 1]]
        matrix = ["mfma" in n for n in body]
        if any(matrix) and sum(n.startswith(("s_cbranch", "s_branch")) for n in body) == 1 + others:
            waits = [int(n) for _, operands, _ in instructions[to:i + 1] for n in re.findall(r"\bvmcnt\((\d+)\)", operands)]
            for _ in range(min(all_waits, waits.count(0))):
                waits.remove(0)
            loops.append((sum(matrix), len(body), min(waits, default=63)))
    return loops


def main():
    image, table, readelf, objdump = sys.argv[1:]
    arch = pathlib.Path(table).name.split(".")[1]
    failures = []
    kernels = notes(readelf, image)
    gate = pathlib.Path(__file__).parent / f"gate_{arch}.txt"
    gate = gate if gate.exists() else gate.with_name("gate.txt")
    bounds = [line.split(None, 3) for line in gate.read_text().splitlines() if line and not line.startswith("#")]
    jagged = all(name.startswith("stw_jagged") for name in kernels)
    bounds = [bound for bound in bounds if bound[0].startswith("stw_jagged") == jagged]
    needed = set()
    for name, facts in kernels.items():
        allowed = {"scratch": 0, "vector_spills": 0, "scalar_spills": 0, "static_lds": 0}
        for i, (pattern, vectors, scalars, _) in enumerate(bounds):
            if fnmatch.fnmatch(name, pattern.replace("ARCH", arch)):
                allowed.update(vector_spills=int(vectors), scalar_spills=int(scalars))
                if facts["vector_spills"] or facts["scalar_spills"]:
                    needed.add(i)
                break
        failures += [f"{name}: {what} {facts[what]}, at most {most}" for what, most in allowed.items() if facts[what] > most]
    failures += [f"{gate.name}: no kernel needs {bounds[i][0]}" for i in range(len(bounds))
                 if i not in needed and ("gfx" not in bounds[i][0] or arch in bounds[i][0])]

    rows = re.findall(r"^STW_VARIANT\((\w+), (\d+), (\d+), (\d+), \d+, (\d+), (\d+), (\w+)\)", pathlib.Path(table).read_text(), re.M)
    for row, *numbers, loop in rows:
        hd, bm, bn, warps, kb = map(int, numbers)
        if kb > LDS_KB:
            failures.append(f"{row}: {kb} KB of LDS")
        mine = [name for name in kernels if f"_{row}_" in name]
        if not mine:
            failures.append(f"{row}: no kernels")
        for name in mine:
            instructions = code(objdump, image, name)
            matrix = sum("mfma" in n for n, _, _ in instructions)
            mode = name.rsplit("_", 1)[1]
            hidden = "_hidden" in name and not name.endswith("_exact")
            turns = hidden and (hd > 64 or mode == "ordered")
            asked = mode in ("dropout", "bias", "bytes") or (hd > 64 and mode in ("alibi", "softcap"))
            tall, ordered = "_tall" in name, mode == "ordered" and not hidden
            own = mode in CDNA_STEP_MORE and loop.startswith("cdna")
            product = bm * bn * hd // 4096 // warps
            keys, held = 64 if hd > 192 else 128 if hd > 128 else 192, 16 if hd > 192 else 32 # STW_CDNA_BN, STW_CDNA_HELD
            step = (3 * hd + 2 * (CDNA_TALL_V if tall else hd)) * CDNA_ROWS * keys // 4096 // WAVES
            if (own or mode == "every") and loop == "cdna_few": # S, dP and dQ, 3 of 5 products, take 32 columns or keys an instruction
                step = step * 7 // 10
            f32 = loop == "cdna_f32"
            if f32: # STW_CDNA_F32_BN; four instructions a product, blocks of bm rows
                keys, held = 64 if hd > 128 else 128 if hd > 64 else 192, 16
                step = 4 * 5 * hd * bm * keys // 4096 // WAVES
            if ("_every_ordered" in name or mode == "every") and loop.startswith("cdna"):
                # with a softcap and without; these exact, each product as four of f32
                kinds = 10 if arch == "gfx90a" and not f32 and (mode == "ordered" or "_f16_" in name) else 2
                if matrix != kinds * step:
                    failures.append(f"{name}: {matrix} matrix instructions, a step has {step}")
            elif own and turns:
                inline = 4 * step if arch == "gfx90a" else 0
                if matrix != 3 * step + inline:
                    failures.append(f"{name}: {matrix} matrix instructions, a step has {step}")
            elif own and asked:
                exact = 4 if arch == "gfx90a" else 0  # in the same kernel, each product as four of f32
                capped = hd * CDNA_ROWS * keys // 4096 // WAVES if mode == "dropout" else 0  # dP beside a softcap
                loops = [found for found in straight_loops(instructions, ASKED_BRANCHES, 1) if found[0] == step]
                if not loops: # clang leaves them in their middle: two branches more, and the wait for the turn is within
                    loops = [found for found in straight_loops(instructions, ASKED_BRANCHES + 2, 2) if found[0] == step]
                most = CDNA_STEP_MOST[arch, hd, "bf16" if "_bf16_" in name else "f16"] + CDNA_STEP_MORE[mode] + ASKED_MORE
                if mode == "bias" and (hd == 32 or (arch, hd) == ("gfx90a", 64)): # scalars of steps that know more come out of vector registers
                    most += 55
                lifts = arch == "gfx90a" and "_f16_" in name
                # of steps; two more draw by other maps, or one by both; one knows what no other kernels do
                draws = {32: 2, 64: 2, 128: 1}.get(hd, 0) if mode == "dropout" and not lifts else 0
                kinds = 3 + draws + (mode == "bias")
                if not loops or matrix != (kinds + exact) * step + (1 + exact) * capped:
                    failures.append(f"{name}: {matrix} matrix instructions, loops of {loops}; a step has {step}")
                elif min(n for _, n, _ in loops) > most:
                    failures.append(f"{name}: {loops} instructions a step, at most {most}")
                elif min(under_way for _, _, under_way in loops) < held * hd // 64 // WAVES:
                    failures.append(f"{name}: {loops}: a step waits for its own additions")
            elif own:
                loops = straight_loops(instructions, (TURN_BRANCHES_F32 if f32 else TURN_BRANCHES[arch]) if ordered else 0)
                dtype = "f32" if f32 else "bf16" if "_bf16_" in name else "f16"
                most = CDNA_STEP_MOST[arch, "tall" if tall else hd, dtype] + (TURNS_F32 if f32 and ordered else CDNA_STEP_MORE[mode])
                if mode == "plain":
                    most = CDNA_STEP_HERE.get((arch, hd, dtype), most)
                inline = 4 * step if ordered and arch == "gfx90a" and not f32 else 0 # the exact steps, each product as four of f32
                straight = 2 if arch != "gfx90a" and "_bf16_" in name or mode in STRAIGHT_2 else 3 # else in the third, sums may be added one by one
                # dQ alone, in a wave that sees none of a step's pairs
                unseen = hd * CDNA_ROWS * keys // (8192 if loop == "cdna_few" else 4096) // WAVES if mode in ("plain", "tall") and not f32 and (arch, dtype) != ("gfx90a", "f16") else 0
                shortest = loops.pop(0) if unseen and loops else (0, 0, 63)
                if ordered:
                    loops = [found for found in loops if found[0] == step] # not that of a turn which is waited for
                if [m for m, _, _ in loops] != [step] * straight or shortest[0] != unseen or matrix != 3 * step + inline + unseen:
                    failures.append(f"{name}: loops of {loops} (matrix, all, under way) instructions, {matrix} in all; a step has {step}")
                elif min(n for _, n, _ in loops) > most or shortest[1] > most // 2:
                    failures.append(f"{name}: {loops} instructions a step, at most {most}, {shortest[1]} without pairs")
                elif not ordered and min(under_way for _, _, under_way in loops + [shortest]) < held * hd // 64 // WAVES:
                    failures.append(f"{name}: {loops}: a step waits for its own additions")
            elif name.endswith("_exact"):
                if matrix != 4 * (2 if "_every_" in name else 1) * step: # each as four of f32
                    failures.append(f"{name}: {matrix} matrix instructions")
            elif not matrix or matrix % product:
                failures.append(f"{name}: {matrix} matrix instructions, a product has {product}")
    print(*failures, f"{arch}: {len(kernels)} kernels, {len(rows)} rows, {len(failures)} failures", sep="\n")
    return 1 if failures or len(kernels) < 10 else 0


if __name__ == "__main__":
    sys.exit(main())
