# SPDX-License-Identifier: MIT
"""What ptxas made of Hopper's own products of linear; nothing runs, no GPU is needed. A kernel for both forms and types:
four matrix instructions, all of them in its one loop over stages, which waits for all but the last stage's products and
touches no spilled register. Ends with 77 without cuobjdump.

    python3 check_products.py IMAGE CUOBJDUMP"""
import pathlib
import sys

from check_gate import code, count, hot_loop, read

PRODUCTS = 4  # a stage of 64 by 16 an instruction


def check_kernel(instructions):
    if (products := count(instructions, "HGMMA")) != PRODUCTS:
        yield f"{products} matrix instructions, not {PRODUCTS}"
    body = hot_loop(instructions, PRODUCTS)
    if body is None:
        yield "no loop of them"
        return
    if spilled := count(body, r"\b(LDL|STL)\b"):
        yield f"{spilled} accesses to spilled registers"
    if (waits := count(body, r"WARPGROUP\.DEPBAR\.LE gsb0, 0x1\b")) != 1 or count(body, r"WARPGROUP\.DEPBAR") != 1:
        yield f"{waits} waits for the stage before, not one alone"


def main():
    image, cuobjdump = sys.argv[1:]
    if not pathlib.Path(cuobjdump).exists():
        print(f"skip: no cuobjdump ({cuobjdump}): bootstrap.sh installs one")
        return 77
    kernels = {name: body for name, body in code(read(cuobjdump, image, "-sass")).items() if "_wgmma_" in name}
    wanted = {f"stw_jagged_wgmma_{form}_{kind}" for form in ("01", "11") for kind in ("bf16", "f16")}
    failures = [f"{name}: not in the image" for name in wanted - kernels.keys()]
    failures += [f"{name}: unknown" for name in kernels.keys() - wanted]
    for name in sorted(kernels):
        failures += [f"{name}: {words}" for words in check_kernel(kernels[name])]
    print(*failures, f"{len(kernels)} kernels, {len(failures)} failures", sep="\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
