# SPDX-License-Identifier: MIT
"""Wave instructions and MFMA cycles per useful MFMA of the library's own AMD kernels, counted on the emulator
(tests/cdna_emu): every kernel of a backward call together. Useful: 5*Sq*Sk*D*B*H/4096 products of 16x16x16, half of
them under a causal mask; of unequal head dims, given as 192x128, D is (3*192 + 2*128)/5. Counts, not timings: they say
how much a kernel issues, not how fast it is.

    python3 bench/amd_counts.py [--build build/release] [--arch gfx942 gfx90a] [--dtype bf16] [--words :det] [--markdown]
    python3 bench/amd_counts.py --whole --words :blockmask       instructions of the call: useful products depend on the mask"""
import argparse
import os
import pathlib
import subprocess
import sys
import tempfile

KINDS = ("scalar", "vector", "transcendental", "matrix", "lds", "memory", "constant", "control", "cycles")
SHAPES = {"1536 full": "s1536{}", "1000 full": "s1000{}", "1536 causal": "s1536{}:causal_tl"}
# Goals of both kinds: bf16, by (arch, D, shape).
GOALS = {("gfx942", "128"): (2.53, 3.20, 3.19), ("gfx942", "64"): (3.10, 3.99, 4.00), ("gfx90a", "128"): (2.64, None, None),
         ("gfx90a", "64"): (3.33, None, None)}


def count(build, arch, problem):
    """Counts by kernel of the problem's first backward call, which the conformance suite verifies."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "counts"
        # Empty values are as good as none.
        env = dict(os.environ, LD_LIBRARY_PATH=str(build / "tests/emu"), STERNWAY_BACKEND=f"hip:{arch}",
                   CDNA_EMU_ARCH=arch, CDNA_EMU_COUNTS=str(path), CDNA_EMU_RACES="", CDNA_EMU_SCHEDULE="",
                   CDNA_EMU_CUS="1")  # whole work tiles
        done = subprocess.run([build / "bin/sternway", "conform", "--variant", "auto", "-j0", problem], env=env,
                              text=True, capture_output=True)
        if done.returncode:
            sys.exit(f"{arch} {problem}: {done.stdout}{done.stderr}")
        kernels = {}
        for line in path.read_text().splitlines():
            name, *numbers = line.split()
            if not name.startswith(("stw_attn_bwd", "stw_attn_stage", "stw_attn_hidden")):
                continue
            if name in kernels:
                break
            kernels[name] = dict(zip(KINDS, map(int, numbers)))
        return kernels


def total(counts):
    return sum(n for kind, n in counts.items() if kind != "cycles")


def part_of(name):
    """Copies of rows that are no whole vectors count as preprocess."""
    if "_hidden_blocks" in name:
        return "hidden blocks"
    if "_preprocess" in name or "_stage" in name:
        return "preprocess"
    return "postprocess" if "_postprocess" in name else "main"


def main():
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build/release"))
    parse.add_argument("--arch", nargs="+", default=["gfx942", "gfx90a"])
    parse.add_argument("--dtype", nargs="+", default=["bf16"])
    parse.add_argument("--dim", nargs="+", default=["128", "64"])
    parse.add_argument("--shape", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    parse.add_argument("--words", default="", help="more words of the problem, such as :det")
    parse.add_argument("--whole", action="store_true", help="counts of the whole call, not a useful MFMA")
    parse.add_argument("--markdown", action="store_true", help="rows of a table for docs/performance/amd.md")
    options = parse.parse_args()
    head = ["arch", "dtype", "D", "S", "VALU", "exp", "LDS", "memory", "MFMA", "scalar", "preprocess", "main", "postprocess",
            "total", "goal", "MFMA cycles"]
    if options.whole:
        head = ["arch", "dtype", "D", "S", "hidden blocks", "main", "total", "of it MFMA"]
    if options.markdown:
        print("| " + " | ".join(head) + " |\n|" + "---|" * len(head))
    else:
        print(*(f"{h:>7s}" for h in head))
    for arch in options.arch:
        for dtype in options.dtype:
            for dim in options.dim:
                for shape in options.shape:
                    problem = f"attn_bwd:{dtype}:b1h1{SHAPES[shape].format('d' + dim)}{options.words}"
                    kernels = count(options.build.resolve(), arch, problem)
                    length = int(shape.split()[0])
                    dim_qk, dim_v = (int(x) for x in (dim.split("x") * 2)[:2])
                    useful = (3 * dim_qk + 2 * dim_v) * length * length / 4096 * (0.5 if "causal" in shape else 1.0)
                    whole = {kind: sum(k[kind] for k in kernels.values()) / useful for kind in KINDS}
                    of = {part: sum(total(c) for name, c in kernels.items() if part_of(name) == part)
                          for part in ("hidden blocks", "preprocess", "main", "postprocess")}
                    row = [arch, dtype, dim, shape]
                    if options.whole:
                        row += [str(n) for n in (of["hidden blocks"], of["main"], sum(of.values()),
                                                 sum(c["matrix"] for c in kernels.values()))]
                        print("| " + " | ".join(row) + " |" if options.markdown else " ".join(f"{c:>7s}" for c in row),
                              flush=True)
                        continue
                    goal = GOALS[arch, dim][list(SHAPES).index(shape)] if dtype == "bf16" and (arch, dim) in GOALS and not options.words else None
                    row += [f"{x:.2f}" for x in (whole["vector"], whole["transcendental"], whole["lds"], whole["memory"],
                                                 whole["matrix"], whole["scalar"] + whole["constant"] + whole["control"],
                                                 *(of[part] / useful for part in ("preprocess", "main", "postprocess")), total(whole))]
                    row += [f"{goal:.2f}" if goal else "", f"{whole['cycles']:.1f}"]
                    print("| " + " | ".join(row) + " |" if options.markdown else " ".join(f"{c:>7s}" for c in row),
                          flush=True)


if __name__ == "__main__":
    main()
