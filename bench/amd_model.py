# SPDX-License-Identifier: MIT
"""An issue model of CDNA's own main kernel: what one compute unit does with the instructions that the emulator traced
(tests/cdna_emu, CDNA_EMU_TRACE). It gives the share of time in which the matrix units work, and predictions for MI300X
and MI250X. A model, not a measurement: no AMD GPU was at hand to fit it to.

    python3 bench/amd_model.py [--build build/release] [--arch gfx942 gfx90a] [--dim 128 64] [--markdown]
    python3 bench/amd_model.py --arch gfx942 --floor 128=0.80 64=0.70     a test: no less

Assumptions, with where they are from ("assumed": nothing public was found, or nothing that agrees):
  issue     A compute unit has four SIMDs. A wave issues an instruction every 4 cycles at most, in order; of the
            waves of a SIMD one at a time issues to the vector unit, others may issue elsewhere (GCN, CDNA ISA guides).
  vector    4 cycles a wave, transcendental 16 (quarter rate, CDNA3 ISA guide). Packed f32 is at full rate (CDNA2 white
            paper). s_nop N: N + 1 times 4 cycles.
  matrix    16 x 16 x 16: 16 cycles on gfx942, 32 on gfx90a (AMD's matrix instruction calculator); instructions behind
            it issue meanwhile. Its sums are accumulated further at once; anything else reads them 8 cycles later, by
            s_nop or by the hardware (assumed equal).
  LDS       128 bytes a cycle for the compute unit, and the conflicts by AMD's order of lanes, which the emulator
            counted (lds.cpp); 64 cycles from there to the register (assumed: public measurements have 55 to 65 ns with the
            address arithmetic of a pointer chase around it). Results come in order.
  memory    64 bytes a cycle for the compute unit from L2; additions 27: 16 channels of 64 bytes an XCD for 38 compute
            units (CDNA3 white paper). Loads take 500 cycles (MI300X's Infinity Cache, public pointer chases: 218 ns),
            additions to memory 700 (assumed). vmcnt counts both in order.
  scalar    4 cycles; a taken branch 16 (assumed); loads of constants 200 (assumed).
  rest      All workgroups of a compute unit start together. Instructions are in the cache. Left out: TLB, contention of
            compute units for L2 beyond their share, power, preprocess and postprocess kernels, the tail of a grid.

The sustained clock under matrix work is the largest unknown. MI300X: 45% of the 1307 TFLOP/s at 2100 MHz is what public
measurements of large dense products give (about 590 TFLOP/s). MI250X, a device of it: 191.5 TFLOP/s at 1700 MHz, of
which nothing is taken away: an upper bound.

The check: AMD publishes 476 TFLOP/s for its own backward kernel on MI300X (D 128, S 8192, no mask, sums of dQ in f32).
Public of its main kernel is the mix, 3.50 wave instructions a useful product, 1.44 vector, 0.48 LDS, 0.16 memory (with
0.10 powers, which the mathematics asks for), not their order: with it the model can only say what no order exceeds."""
import argparse
import heapq
import os
import pathlib
import re
import subprocess
import sys
import tempfile

SIMDS, LDS_BYTES, REGISTERS = 4, 65536, 512
ISSUE, TRANSCENDENTAL, RESULT, BRANCH = 4, 16, 8, 16
LDS_RATE, LDS_LATENCY, LOAD_RATE, ADD_RATE = 128, 64, 64, 27
LOAD_LATENCY, ADD_LATENCY, CONSTANT_LATENCY = 500, 700, 200
WIDTHS = {"b8": 1, "u8": 1, "i8": 1, "ubyte": 1, "b16": 2, "u16": 2, "i16": 2, "ushort": 2, "short": 2, "b32": 4,
          "u32": 4, "i32": 4, "f32": 4, "dword": 4, "b64": 8, "u64": 8, "dwordx2": 8, "b96": 12, "dwordx3": 12,
          "b128": 16, "dwordx4": 16}
# name, device, peak of dense 16-bit products in TFLOP/s, share of it that is sustained
MACHINES = {"gfx942": ("MI300X", 1307.4, 0.45), "gfx90a": ("MI250X, one of two devices", 191.5, 1.0)}
LONG, KEYS = 8192, 192  # of predictions; keys of a work tile
PUBLISHED, MIX = 476.0, {"all": 3.50, "vector": 1.44, "powers": 0.10, "lds": 0.48, "memory": 0.16}


class Instruction:
    """What the model needs of one line of disassembly."""
    __slots__ = ("kind", "cycles", "writes", "reads", "sums", "rate", "vm", "lgkm", "returns")

    def __init__(self, cycles, text):
        name, _, rest = text.partition(" ")
        self.cycles, self.vm, self.lgkm, self.rate, self.returns = cycles, None, None, 0.0, True
        operands = [registers(part) for part in rest.split(",")]
        self.writes, self.reads, self.sums = frozenset(), frozenset().union(*operands), frozenset()
        width = next((WIDTHS[part] for part in reversed(re.split("_", re.sub(r"_(e32|e64|sdwa)$", "", name)))
                      if part in WIDTHS), 4)
        if "mfma" in name:
            self.kind, self.writes, self.sums = "matrix", operands[0], operands[3]
            self.reads = operands[1] | operands[2] | (operands[0] - operands[3])
        elif name.startswith("v_"):
            self.kind = "vector"
            self.cycles = TRANSCENDENTAL if name.startswith(("v_exp", "v_log", "v_rcp", "v_rsq", "v_sqrt")) else ISSUE
        elif name.startswith("ds_"):
            self.kind = "lds"
            pairs = 2 if re.match(r"ds_(read|write)2", name) else 1
            self.cycles = max(1.0, 64 * width * pairs / LDS_RATE)
        elif name.startswith(("buffer_", "global_", "flat_", "scratch_")):
            adds = "atomic" in name or "store" in name
            self.kind, self.cycles = "memory", 64 * width / (ADD_RATE if adds else LOAD_RATE)
            self.returns = not adds
        elif name.startswith("s_load"):
            self.kind = "constant"
        elif name == "s_barrier":
            self.kind = "barrier"
        elif name == "s_waitcnt":
            self.kind = "wait"
            counts = dict(re.findall(r"(vmcnt|lgkmcnt)\((\d+)\)", rest))
            self.vm, self.lgkm = (int(counts[key]) if key in counts else None for key in ("vmcnt", "lgkmcnt"))
        elif name == "s_nop":
            self.kind, self.cycles = "scalar", ISSUE * (int(rest, 0) + 1)
        else:
            self.kind, self.cycles = "branch" if name.startswith(("s_branch", "s_cbranch")) else "scalar", ISSUE


def registers(operand):
    """Vector registers of an operand, AGPRs from 512 on."""
    found = re.match(r"\s*-?\|?([va])(?:(\d+)|\[(\d+):(\d+)\])", operand)
    if not found:
        return frozenset()
    first, last = (int(found[2]),) * 2 if found[2] else (int(found[3]), int(found[4]))
    return frozenset(r + (512 if found[1] == "a" else 0) for r in range(first, last + 1))


class Wave:
    def __init__(self, trace, simd, group):
        self.trace, self.simd, self.group = trace, simd, group
        self.next, self.at = 0.0, 0
        self.memory, self.lds, self.constants = [], [], 0.0  # when those under way arrive, in order
        self.ready, self.forwarded = {}, {}                   # of sums: for anybody, for further sums
        self.marks = []                                       # start of every matrix instruction


class Unit:
    """A compute unit: what its waves share, and the time each is free again."""

    def __init__(self, code, traces, groups):
        self.code = code
        self.vector, self.matrix = [0.0] * SIMDS, [0.0] * SIMDS
        self.lds = self.memory = 0.0
        self.waves = [Wave(trace, i % SIMDS, group) for group in range(groups) for i, trace in enumerate(traces)]
        self.arrived = [[] for _ in range(groups)]

    def waits(self, wave, i):
        """When a wait of the wave ends."""
        end = wave.next
        if i.vm is not None:
            while len(wave.memory) > i.vm:
                end = max(end, wave.memory.pop(0))
        if i.lgkm is not None:
            while len(wave.lds) > i.lgkm:
                end = max(end, wave.lds.pop(0))
            if i.lgkm == 0:
                end = max(end, wave.constants)
        return end

    def earliest(self, wave, i):
        start = wave.next
        for r in i.reads:
            start = max(start, wave.ready.get(r, 0.0))
        for r in i.sums:
            start = max(start, wave.forwarded.get(r, 0.0))
        if i.kind in ("vector", "matrix"):
            start = max(start, self.vector[wave.simd])
        if i.kind == "matrix":
            start = max(start, self.matrix[wave.simd])
        return start

    def issue(self, wave, i, conflicts, start):
        wave.next = start + ISSUE
        if i.kind == "vector":
            self.vector[wave.simd] = start + i.cycles
            wave.next = start + i.cycles
        elif i.kind == "matrix":
            self.vector[wave.simd], self.matrix[wave.simd] = start + ISSUE, start + i.cycles
            for r in i.writes:
                wave.ready[r], wave.forwarded[r] = start + i.cycles + RESULT, start + i.cycles
            wave.marks.append(start)
        elif i.kind == "lds":
            self.lds = max(self.lds, start) + i.cycles + conflicts
            wave.lds.append(self.lds + LDS_LATENCY)
        elif i.kind == "memory":
            self.memory = max(self.memory, start) + i.cycles
            arrives = self.memory + (LOAD_LATENCY if i.returns else ADD_LATENCY)
            wave.memory.append(max(arrives, wave.memory[-1] if wave.memory else 0.0))
        elif i.kind == "constant":
            wave.constants = max(wave.constants, start + CONSTANT_LATENCY)
        else:
            wave.next = start + i.cycles

    def run(self):
        queue = [(0.0, n) for n in range(len(self.waves))]
        heapq.heapify(queue)
        while queue:
            now, n = heapq.heappop(queue)
            wave = self.waves[n]
            number, conflicts = wave.trace[wave.at]
            i = self.code[number]
            if i.kind == "wait":
                wave.next = max(self.waits(wave, i), wave.next) + ISSUE
            elif i.kind == "barrier":
                here = self.arrived[wave.group]
                here.append(n)
                wave.at += 1
                if len(here) == sum(w.group == wave.group for w in self.waves):
                    end = max(self.waves[m].next for m in here) + ISSUE
                    for m in here:
                        self.waves[m].next = end
                        if self.waves[m].at < len(self.waves[m].trace):
                            heapq.heappush(queue, (end, m))
                    here.clear()
                continue
            else:
                start = self.earliest(wave, i)
                if start > now:  # others go first until then
                    heapq.heappush(queue, (start, n))
                    wave.next = start
                    continue
                self.issue(wave, i, conflicts, start)
                if i.kind == "branch" and wave.at + 1 < len(wave.trace) and wave.trace[wave.at + 1][0] != number + 1:
                    wave.next = start + BRANCH
            wave.at += 1
            if wave.at < len(wave.trace):
                heapq.heappush(queue, (wave.next, n))
        return max(wave.next for wave in self.waves)


def read(path, wanted):
    """The first launch of a kernel whose name matches: its name, LDS, registers, code, and the waves' traces."""
    name, code, traces = None, {}, []
    for line in path.read_text().splitlines():
        word, _, rest = line.partition(" ")
        if word == "kernel":
            if traces:
                break
            kernel, lds, count = rest.split()
            name = (kernel, int(lds), int(count)) if re.search(wanted, kernel) else None
        elif name and word == "code":
            number, cycles, text = rest.split(" ", 2)
            code[int(number)] = Instruction(int(cycles), text)
        elif name and word == "wave":
            traces.append([tuple(map(int, (entry + ":0").split(":")[:2])) for entry in rest.split()])
    if not traces:
        sys.exit(f"{path}: no kernel {wanted}")
    return name or (kernel, int(lds), int(count)), code, traces


def trace(build, arch, dtype, dim, length):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "trace"
        env = dict(os.environ, LD_LIBRARY_PATH=str(build / "tests/emu"), STERNWAY_BACKEND=f"hip:{arch}",
                   CDNA_EMU_ARCH=arch, CDNA_EMU_TRACE=str(path), CDNA_EMU_RACES="", CDNA_EMU_SCHEDULE="",
                   CDNA_EMU_CUS="1")  # a whole work tile
        done = subprocess.run([build / "bin/sternway", "conform", "--variant", "auto", "-j0",
                               f"attn_bwd:{dtype}:b1h1s{length}d{dim}"], env=env, text=True, capture_output=True)
        if done.returncode:
            sys.exit(f"{arch} {dtype} {dim}: {done.stdout}{done.stderr}")
        return read(path, rf"_{dtype}_plain$")


def model(kernel, code, traces):
    """Shares of time in which the matrix units work: in the loop, in all of the work tile; workgroups side by side."""
    _, lds, vector_registers = kernel
    groups = max(1, min(REGISTERS // vector_registers, LDS_BYTES // max(lds, 1)))
    unit = Unit(code, traces, groups)
    time = unit.run()
    busy = next(i.cycles for i in code.values() if i.kind == "matrix")
    marks = sorted(start for wave in unit.waves if wave.simd == 0 for start in wave.marks)
    first, last = marks[len(marks) // 5], marks[len(marks) * 4 // 5]
    loop = (len(marks) * 4 // 5 - len(marks) // 5) * busy / (last - first)
    return loop, len(marks) * busy / time, groups, time, len(marks) * busy


def predicted(arch, dtype, dim, length, traced):
    """The share in the loop, and a row of the table."""
    machine, peak, sustained = MACHINES[arch]
    loop, _, groups, time, busy = model(*traced)
    fixed = max(time - busy / loop, 0.0)  # prologue and epilogue, whose part falls with the length
    long = busy * LONG / length
    share = long / (long / loop + fixed) * (LONG / KEYS) / -(-LONG // KEYS)
    return loop, [machine, dtype, str(dim), str(groups), f"{loop:.2f}", f"{share:.2f}", f"{share * peak:.0f}",
                  f"{share * peak * sustained:.0f}" if sustained < 1 else ""]


def main():
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build/release"))
    parse.add_argument("--arch", nargs="+", default=["gfx942", "gfx90a"])
    parse.add_argument("--dtype", nargs="+", default=["bf16"])
    parse.add_argument("--dim", nargs="+", type=int, default=[128, 64])
    parse.add_argument("--length", type=int, default=768, help="of the traced problem; a multiple of 192")
    parse.add_argument("--floor", nargs="+", default=[], metavar="DIM=SHARE", help="the least share in the loop")
    parse.add_argument("--markdown", action="store_true", help="rows of a table for docs/performance/amd.md")
    options = parse.parse_args()
    floors = {int(dim): float(share) for dim, share in (word.split("=") for word in options.floor)}
    head = ["machine", "dtype", "D", "workgroups a CU", "matrix units at work, loop", "at S 8192",
            "TFLOP/s at peak clock", "TFLOP/s sustained"]
    print("| " + " | ".join(head) + " |\n|" + "---|" * len(head) if options.markdown else "  ".join(head))
    failures = []
    for arch in options.arch:
        for dtype in options.dtype:
            for dim in options.dim if not floors else floors:
                traced = trace(options.build.resolve(), arch, dtype, dim, options.length)
                loop, row = predicted(arch, dtype, dim, options.length, traced)
                print("| " + " | ".join(row) + " |" if options.markdown else "  ".join(row), flush=True)
                if dim in floors and loop < floors[dim]:
                    failures.append(f"{arch} {dtype} head_dim {dim}: {loop:.3f} of the time, at least {floors[dim]}")
    if not floors:
        cycles = max(16.0, ISSUE * MIX["all"] + (TRANSCENDENTAL - ISSUE) * MIX["powers"])
        _, peak, sustained = MACHINES["gfx942"]
        bound = 16.0 / cycles * peak * sustained
        print(f"AMD's kernel, MI300X, D 128: {PUBLISHED:.0f} TFLOP/s published; its mix allows {bound:.0f} at most")
    print(*failures, sep="\n", end="\n" if failures else "")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
