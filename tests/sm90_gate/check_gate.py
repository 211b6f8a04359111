# SPDX-License-Identifier: MIT
"""What ptxas made of Hopper's own main loop, against what it is meant to be; nothing runs, no GPU is needed.

For every row of the table with a loop of Hopper's own and both types there are the kernels of MODES, MODES_WIDE for
wide heads, and no other. Its matrix instructions are those of its steps, no more; a step has its exponentials between
the wait for S and its last wait, while products run; no wait that the source does not have; dQ is added in vectors;
nothing is spilled but what gate.txt lists, in a step no more than it says. Rows with loop `sm90_short` have a kernel a
type; of these and of the loop for few rows matrix instructions and exponentials are counted. The kernels before and
behind loop `sm90`, one each a type, load whole vectors, all of them ahead of the first store of a result, and fit a
multiprocessor four times. A line of gate.txt that no kernel needs any more is a failure, too. (Products that ptxas
takes one by one end the build: cmake/nvcc_checked.sh.) Ends with 77 without cuobjdump.

    python3 check_gate.py IMAGE TABLE CUOBJDUMP"""
import bisect
import fnmatch
import itertools
import pathlib
import re
import subprocess
import sys

BN, TYPES = 128, ("bf16", "f16")
MODES = ("plain", "ordered", "outputs", "outputs_ordered", "general", "general_ordered", "alibi", "alibi_ordered",
         "alibi_outputs", "softcap", "softcap_ordered", "softcap_outputs", "dropout", "dropout_outputs", "dropout_alibi",
         "dropout_bias", "bias", "bias_outputs", "bias_more", "masks", "masks_ordered", "masks_outputs", "all")
MODES_WIDE = ("plain", "ordered", "features", "outputs", "dropout", "dropout_outputs", "bias", "masks", "all", "all_dbias")  # from dropout on: less than 128 keys
# no step of their own where all terms may be subnormal
ASKS_EXACT = ("_dropout_outputs", "_alibi_outputs", "_softcap_outputs", "_bias_outputs", "_masks_outputs", "_bias_more", "_all")
WAITS = ["1", "0", "0", "2", "1", "0"]  # dP; rows that are cleared; dV; S; dQ; dK
# Wide heads: dV; dQ, in two halves where it has no place; rows that are cleared; S; dK; dP.
# Work tiles of 128 keys: dQ; rows that are cleared; S; dK; dP in two halves
WAITS_WIDE = {192: ["2", "1", "0", "1", "1", "1"], 256: ["2", "1", "1", "0", "1", "1", "1"]}
WAITS_TALL = ["1", "0", "1", "0", "1", "1"]


def read(cuobjdump, image, what):
    done = subprocess.run([cuobjdump, what, image], text=True, capture_output=True)
    if done.returncode:
        sys.exit(f"{cuobjdump} {what}: {done.stderr.strip()}")
    return done.stdout


def code(text):
    """[(address, instruction)] by kernel."""
    kernels, current = {}, None
    instruction = re.compile(r"\s+/\*([0-9a-f]{4,})\*/\s+(.*?)\s*;")
    for line in text.splitlines():
        if "Function : " in line:
            current = kernels.setdefault(line.split("Function : ")[1].split()[0], [])
        elif (found := instruction.match(line)) and current is not None:
            current.append((int(found[1], 16), found[2]))
    return kernels


def count(instructions, pattern):
    seen = re.compile(pattern).search
    return sum(seen(text) is not None for _, text in instructions)


def hot_loop(instructions, products):
    """The shortest loop with just so many matrix instructions: that of steps with nothing special."""
    best, places = None, [at for at, _ in instructions]
    before = list(itertools.accumulate(("HGMMA" in text for _, text in instructions), initial=0))
    for i, (at, text) in enumerate(instructions):
        if "BRA" not in text or not (jump := re.search(r"\bBRA\b.*?(0x[0-9a-f]+)", text)) or int(jump[1], 16) >= at:
            continue
        first = bisect.bisect_left(places, int(jump[1], 16))
        if before[i + 1] - before[first] == products and (best is None or i + 1 - first < len(best)):
            best = range(first, i + 1)
    return best and [instructions[i] for i in best]


def check_step(body, values, softcap, spilled_most, products, apart):
    """What is wrong with a step; `values`: exponentials of a thread. Under softcap tanh takes so many, and P once or
    twice as many ahead of dV (with and without hidden pairs, or also for dBias). `products` that are left in the first
    wait; `apart`: dP is waited for ahead of that, for dBias."""
    waits = [(i, found[1]) for i, (_, text) in enumerate(body)
             if (found := re.search(r"WARPGROUP\.DEPBAR\.LE gsb0, 0x([0-9a-f]+)", text))]
    order, wanted = [most for _, most in waits], ["0"] * apart + [products] + WAITS[1:]
    if order != wanted:
        yield f"waits for products until {','.join(order)} are left, not {','.join(wanted)}"
        return
    held, last = waits[-3][0], waits[-1][0]
    exponentials = [i for i, (_, text) in enumerate(body) if "MUFU.EX2" in text]
    early = sum(i < held for i in exponentials)
    if len(exponentials) != values + early:
        yield f"{len(exponentials) - early} exponentials behind the wait for S, not {values}"
    if late := sum(i > last for i in exponentials):
        yield f"{late} exponentials behind the last wait, where no product runs"
    if not values * softcap <= early <= 2 * values * softcap:
        yield f"{early} exponentials ahead of the wait for S"
    if (spilled := count(body, r"\b(LDL|STL)\b")) > spilled_most:
        yield f"{spilled} accesses to spilled registers, at most {spilled_most}"
    if (adds := count(body, r"RED\S*\.ADD\.F32x4\b")) != 8:
        yield f"{adds} vector additions to dQ, not 8"


def check_kernel(name, instructions, hd, bm, bounds):
    step = 2 * (hd // 16) + 2 * (bm // 16) + BN // 16  # S and dP, dV and dK, dQ
    # in a unit and at its end; bf16 also where all terms may be subnormal
    steps = 4 if "_bf16_" in name and not name.endswith(ASKS_EXACT) else 2
    scores = hd // 16 * (2 if bm == 128 and name.endswith(("_plain", "_general")) else 1)  # first; behind a step without pairs
    products = count(instructions, "HGMMA")
    if products != scores + steps * step:
        yield f"{products} matrix instructions, not {scores} and {steps} steps of {step}"
    body = hot_loop(instructions, step)
    if body is None:
        yield f"no loop of {step} matrix instructions"
    else:
        spilled_most = next((int(row[4]) for row in bounds if fnmatch.fnmatch(name, row[0])), 0)
        softcap = "_softcap" in name  # whose dV are two groups
        of_all = name.endswith("_all")
        yield from check_step(body, bm // 2, softcap or of_all, spilled_most, "2" if softcap else "1", of_all)


def check_wide_kernel(name, instructions, hd, bn, bounds):
    tall, direct = bn == 128, hd > 192
    groups, panels, parts = (2, 1, 1) if tall else (2, 2, 2) if direct else (3, 1, 1)
    # S, dP, dV, dK, dQ
    step = hd // 16 + (2 * (128 // 16) if tall else hd // 16) + 8 * panels + bn // 16 * parts
    if (products := count(instructions, "HGMMA")) != 2 * step:  # in a unit; at its beginning and end
        yield f"{products} matrix instructions, not 2 steps of {step}"
    if (adds := count(instructions, "UBLKRED")) != (not direct):
        yield f"{adds} bulk additions to dQ, not {int(not direct)}"
    body = hot_loop(instructions, step)
    if body is None:
        yield f"no loop of {step} matrix instructions"
        return
    order = [found[1] for _, text in body if (found := re.search(r"WARPGROUP\.DEPBAR\.LE gsb0, 0x([0-9a-f]+)", text))]
    if order != (wanted := WAITS_TALL if tall else WAITS_WIDE[hd]):
        yield f"waits for products until {','.join(order)} are left, not {','.join(wanted)}"
    times = 3 if name.endswith("_features") else 2 if name.endswith(("_all", "_all_dbias")) else 1  # tanh, P of it; P under ALiBi; tanh, P
    each = 64 * bn // (128 * groups) * times
    if (exponentials := count(body, r"MUFU\.EX2")) != each:
        yield f"{exponentials} exponentials, not {each}"
    spilled_most = next((int(row[4]) for row in bounds if fnmatch.fnmatch(name, row[0])), 0)
    if (spilled := count(body, r"\b(LDL|STL)\b")) > spilled_most:
        yield f"{spilled} accesses to spilled registers, at most {spilled_most}"
    vectors = 64 * hd // (4 * 128 * groups)
    if direct and (adds := count(body, r"RED\S*\.ADD\.F32x4\b")) != vectors:
        yield f"{adds} vector additions to dQ, not {vectors}"
    if not direct and (stores := count(body, r"\bSTS\.128 \S+, R\d")) != vectors:
        yield f"{stores} vectors of dQ, not {vectors}"


def check_short(name, instructions, hd, bm, bn):
    """The kernel of short sequences, whose scores are unrolled: each product once, an exponential a score. Where there are more than
    two SUBs of queries, one more stands in a loop for blocks that are seen in part."""
    sub = 16 if hd > 32 and (bn > 64) != (hd > 64) and (bn != 128 or bm < 128) else 32
    copies = bm // sub + (bm // sub > 2)
    wanted = copies * (2 * (hd // 16) + 2 * (sub // 16)) + bn // 16  # S and dP, dV and dK; dQ
    if (products := count(instructions, "HGMMA")) != wanted:
        yield f"{products} matrix instructions, not {wanted}"
    if (exponentials := count(instructions, "MUFU.EX2")) != copies * sub // 2:
        yield f"{exponentials} exponentials, not {copies * sub // 2}"


def check_few_kernel(name, instructions, hd, rows):
    tiles = 8  # of dV and dK at a time
    products = 2 * (hd // 16) * (rows // 8) + 2 * (rows // 16) * tiles + 4 * rows * hd // 512  # S, dP; dV, dK; dQ
    if not count(instructions, r"STG\.E\.EF\.128"):
        yield "dK and dV are not stored as lines that leave L2 first"
    if (have := count(instructions, "HMMA")) != products:
        yield f"{have} matrix instructions, not {products}"
    if (exponentials := count(instructions, r"MUFU\.EX2")) != rows // 2 * (2 if rows > 16 else 1):  # with hidden pairs, without
        yield f"{exponentials} exponentials, not {rows // 2 * (2 if rows > 16 else 1)}"


def check_spills(kernels, stacks, bounds):
    needed = set()
    for name, instructions in kernels.items():
        facts = (stacks.get(name, -1), count(instructions, r"\bSTL\b"), count(instructions, r"\bLDL\b"))
        most = (0, 0, 0)
        for i, (pattern, *values, _, _) in enumerate(bounds):
            if fnmatch.fnmatch(name, pattern):
                most = tuple(map(int, values))
                if facts != (0, 0, 0):
                    needed.add(i)
                break
        if facts[0] < 0 or any(have > allowed for have, allowed in zip(facts, most)):
            yield f"{name}: stack, spill stores, spill loads {facts}, at most {most}"
    yield from (f"gate.txt: no kernel needs {bounds[i][0]}" for i in range(len(bounds)) if i not in needed)


def check_rows(name, instructions, vectors):
    """A kernel of query rows: its vectors are under way together. (A path for rows off 16 bytes loads by elements.)"""
    loads = [i for i, (_, text) in enumerate(instructions) if re.search(r"\bLDG\.E\.128\b", text)]
    runs, longest = 0, 0
    for i, (_, text) in enumerate(instructions):
        if re.search(r"\bLDG\.E\.128\b", text):
            runs += 1
            longest = max(longest, runs)
        elif re.search(r"\b(STG|FFMA|SHFL)\b", text):
            runs = 0
    if len(loads) < vectors or longest < vectors:
        yield f"{longest} vectors of {len(loads)} are loaded before one is used, not {vectors}"
    if count(instructions, "HGMMA"):
        yield "matrix instructions"


def check_lists(name, instructions):
    """A kernel that lists what masks leave."""
    if count(instructions, "HGMMA"):
        yield "matrix instructions"


def main():
    image, table, cuobjdump = sys.argv[1:]
    if not pathlib.Path(cuobjdump).exists():
        print(f"skip: no cuobjdump ({cuobjdump}): bootstrap.sh installs one")
        return 77
    kernels = code(read(cuobjdump, image, "-sass"))
    stacks = {name: int(stack) for name, stack in
              re.findall(r"Function (\S+):\s+REG:\d+ STACK:(\d+)", read(cuobjdump, image, "-res-usage"))}
    bounds = [line.split(None, 5) for line in (pathlib.Path(__file__).parent / "gate.txt").read_text().splitlines()
              if line and not line.startswith("#")]
    rows = re.findall(r"^STW_VARIANT\((\w+), (\d+), (\d+), (\d+), .*, sm90(\w*)\)", pathlib.Path(table).read_text(), re.M)
    wanted = {f"stw_attn_bwd_{row}_{kind}_{mode}": (check_wide_kernel, int(hd), int(bn), bounds) if loop else
              (check_kernel, int(hd), int(bm), bounds) for row, hd, bm, bn, loop in rows if loop != "_short" for kind in TYPES
              for mode in ((MODES_WIDE if int(bn) < 128 else MODES_WIDE[:4]) if loop else MODES)}
    wanted |= {f"stw_attn_bwd_{row}_{kind}": (check_short, int(hd), int(bm), int(bn)) for row, hd, bm, bn, loop in rows
               if loop == "_short" for kind in TYPES}
    wanted |= {f"stw_attn_bwd_{stage}_sm90_hd{hd}_{kind}": (check_rows, 8) for _, hd, _, _, loop in rows if not loop
               for kind in TYPES for stage in ("preprocess", "postprocess")}
    wanted |= {f"stw_attn_bwd_{stage}_sm90": (check_lists,) for stage in ("visible", "order")}  # of masks
    few = re.findall(r"^STW_VARIANT\((\w+), (\d+), (\d+), .*, few\d+\)", pathlib.Path(table).read_text(), re.M)
    wanted |= {f"stw_attn_bwd_{row}_{kind}_plain": (check_few_kernel, int(hd), int(bm)) for row, hd, bm in few for kind in TYPES}
    failures = [f"{name}: not in the image" for name in wanted.keys() - kernels.keys()]
    failures += [f"{name}: not of the table" for name in kernels.keys() - wanted.keys()]
    for name in sorted(wanted.keys() & kernels.keys()):
        check, *shape = wanted[name]
        failures += [f"{name}: {words}" for words in check(name, kernels[name], *shape)]
    failures += check_spills(kernels, stacks, bounds)
    print(*failures, f"{len(kernels)} kernels, {len(failures)} failures", sep="\n")
    return 1 if failures or not kernels else 0


if __name__ == "__main__":
    sys.exit(main())
