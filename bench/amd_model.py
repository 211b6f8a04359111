# SPDX-License-Identifier: MIT
"""An issue model of CDNA's own main kernel: what one compute unit does with the instructions that the emulator traced
(tests/cdna_emu, CDNA_EMU_TRACE). It gives the share of time in which the matrix units work, and predictions for MI300X
and MI250X. A model, not a measurement: no AMD GPU was at hand to fit it to.

    python3 bench/amd_model.py [--build build/release] [--arch gfx942 gfx90a] [--case bf16:128 bf16:64:det] [--markdown]
    python3 bench/amd_model.py --arch gfx942 --held tests/cdna_emu/model.txt     a test: no less than that
    python3 bench/amd_model.py --check bwd_hd128_bf16_a32_rtz_psskddv.co         AMD's own kernel, below

Assumptions, with where they are from ("assumed": nothing public was found, or nothing that agrees):
  issue     A compute unit has four SIMDs. A wave issues an instruction every 4 cycles at most, in order; of the
            waves of a SIMD one at a time issues to the vector unit, others may issue elsewhere (GCN, CDNA ISA guides).
  vector    4 cycles a wave, transcendental 16 (quarter rate, CDNA3 ISA guide). Packed f32 is at full rate (CDNA2 white
            paper), integer products too (LLVM's model of gfx90a and gfx940). s_nop N: N + 1 times 4 cycles.
  matrix    16 x 16 x 16: 16 cycles on gfx942, 32 on gfx90a, 16 x 16 x 4 of f32 32 (AMD's matrix instruction
            calculator); instructions behind it issue meanwhile. Its sums are accumulated further at once; anything
            else reads them 8 cycles later, by s_nop or by the hardware (assumed equal).
  LDS       128 bytes a cycle for the compute unit, and the conflicts by AMD's order of lanes, which the emulator
            counted (lds.cpp); 64 cycles from there to the register (assumed: public measurements have 55 to 65 ns with
            the address arithmetic of a pointer chase around it). Results come in order.
  memory    64 bytes a cycle for the compute unit from L2; additions 27: 16 channels of 64 bytes an XCD for 38 compute
            units (CDNA3 white paper). Loads take 500 cycles (MI300X's Infinity Cache, public pointer chases: 218 ns),
            additions to memory 700 (assumed). vmcnt counts both in order.
  scalar    4 cycles; a taken branch 16 (assumed); loads of constants 200 (assumed).
  rest      All workgroups of a compute unit start together. Instructions are in the cache. Left out: TLB, contention of
            compute units for L2 beyond their share, power, preprocess and postprocess kernels, the tail of a grid.

The sustained clock under matrix work is the largest unknown. MI300X: 45% of the 1307 TFLOP/s at 2100 MHz is what public
measurements of large dense products give (about 590 TFLOP/s). MI250X, a device of it: 191.5 TFLOP/s at 1700 MHz, of
which nothing is taken away: an upper bound. f32: 256 FLOP a cycle and compute unit; what is sustained is not known.

The check: AMD's own kernel for MI300X (D 128, no mask, sums of dQ in f32) is a public code object: --check disassembles
it and passes its loop, as its waves run it, through the model, to hold the result to what AMD publishes. Assumed
besides: no bank conflicts; a compute unit takes one work tile at a time, so a grid takes whole rounds of 304; the kernels
before and behind move their tensors at 5.3 TB/s, the peak. Nothing was fitted."""
import argparse
import collections
import heapq
import os
import pathlib
import re
import shutil
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
# device, peaks of dense 16-bit and f32 products in TFLOP/s, share of the former that is sustained
MACHINES = {"gfx942": ("MI300X", (1307.4, 163.4), 0.45), "gfx90a": ("MI250X, one of two devices", (191.5, 47.9), None)}
LONG = 8192  # of predictions
# Words of a problem by the table's name of it. HIDING: what a step of these does depends on where it is.
FEATURES = {"": "", "deterministic": "det", "ALiBi": "alibi", "softcap 30": "softcap30", "bias": "bias_bhqk",
            "mask of bytes": "biasu8_bhqk", "dropout, own map": "dropout0.2",
            "dropout, flash2": "dropout0.2:map_flash2", "dropout, mem_eff": "dropout0.2:map_mem_eff",
            "intervals that hide nothing": "intervals_two:draw_open",
            "documents": "intervals_from:causal_br:draw_documents:draw256", "random blocks": "blockmask"}
HIDING = ("documents", "random blocks")
WAITS = ("memory wait", "LDS wait", "barrier", "results", "powers")
PLAIN = [f"bf16:{dim}" for dim in ("128", "64", "192", "192x128", "256")]
PLAIN += [f"f32:{dim}" for dim in ("64", "128", "256")]
CASES = PLAIN + [f"bf16:{dim}:{words}" for dim in ("128", "64") for words in FEATURES.values() if words]
# TFLOP/s that AMD publishes of its own kernel: MI300X, bf16, D 128, no mask, sums of dQ in f32, heads 32/8, by batch
# and length (op_tests/cpp/mha/README.md of github.com/ROCm/aiter). Its tile is 16 rows by 192 keys.
PUBLISHED = {(1, 1024): 313.67, (1, 2048): 269.19, (1, 4096): 423.53, (1, 8192): 481.28, (1, 10240): 491.28,
             (4, 1024): 353.44, (4, 2048): 430.81, (4, 4096): 457.38, (4, 8192): 458.72, (4, 10240): 476.64,
             (8, 1024): 329.69, (8, 2048): 426.56, (8, 4096): 460.44, (8, 8192): 475.56, (8, 10240): 480.87}
UNITS, HBM = 304, 5.3  # compute units and TB/s of an MI300X


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
            powers = name.startswith(("v_exp", "v_log", "v_rcp", "v_rsq", "v_sqrt"))
            self.kind, self.cycles = ("powers", TRANSCENDENTAL) if powers else ("vector", ISSUE)
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
        self.since, self.spans = 0.0, []                      # (from, to, what it does or waits for), SIMD 0 alone

    def did(self, what, until):
        if self.simd == 0 and until > self.since:
            self.spans.append((self.since, until, what))
        self.since = max(self.since, until)


class Unit:
    """A compute unit: what its waves share, and the time each is free again. `free`: of WAITS, what costs nothing."""

    def __init__(self, code, traces, groups, free=()):
        self.code, self.free = code, free
        self.vector, self.matrix = [0.0] * SIMDS, [0.0] * SIMDS
        self.lds = self.memory = 0.0
        self.waves = [Wave(trace, i % SIMDS, group) for group in range(groups) for i, trace in enumerate(traces)]
        self.arrived = [[] for _ in range(groups)]

    def waits(self, wave, i):
        """When a wait of the wave ends, and what it was for."""
        ends = [(wave.next, None)]
        if i.vm is not None:
            while len(wave.memory) > i.vm:
                ends.append((wave.memory.pop(0), "memory wait"))
        if i.lgkm is not None:
            while len(wave.lds) > i.lgkm:
                ends.append((wave.lds.pop(0), "LDS wait"))
            if i.lgkm == 0:
                ends.append((wave.constants, "memory wait"))
        return max((end for end in ends if end[1] not in self.free), key=lambda end: end[0])

    def earliest(self, wave, i):
        """When it can be issued, and what it waits for until then."""
        start, what = wave.next, None
        if "results" not in self.free:
            late = max([wave.ready.get(r, 0.0) for r in i.reads] + [wave.forwarded.get(r, 0.0) for r in i.sums] + [0.0])
            if late > start:
                start, what = late, "results"
        if i.kind in ("vector", "powers", "matrix") and self.vector[wave.simd] > start:
            start, what = self.vector[wave.simd], "other wave"
        if i.kind == "matrix" and self.matrix[wave.simd] > start:
            start, what = self.matrix[wave.simd], "matrix"
        return start, what

    def issue(self, wave, i, conflicts, start):
        wave.next = start + ISSUE
        if i.kind in ("vector", "powers"):
            cycles = ISSUE if "powers" in self.free else i.cycles
            self.vector[wave.simd] = wave.next = start + cycles
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
                end, what = self.waits(wave, i)
                wave.did(what, end)
                wave.next = end + ISSUE
                wave.did("scalar", wave.next)
            elif i.kind == "barrier" and "barrier" not in self.free:
                here = self.arrived[wave.group]
                here.append(n)
                wave.at += 1
                if len(here) == sum(w.group == wave.group for w in self.waves):
                    end = max(self.waves[m].next for m in here) + ISSUE
                    for m in here:
                        self.waves[m].did("barrier", end)
                        self.waves[m].next = end
                        if self.waves[m].at < len(self.waves[m].trace):
                            heapq.heappush(queue, (end, m))
                    here.clear()
                continue
            else:
                start, what = self.earliest(wave, i)
                if start > now:  # others go first until then
                    heapq.heappush(queue, (start, n))
                    wave.did(what, start)
                    wave.next = start
                    continue
                self.issue(wave, i, conflicts, start)
                if i.kind == "branch" and wave.at + 1 < len(wave.trace) and wave.trace[wave.at + 1][0] != number + 1:
                    wave.next = start + BRANCH
                wave.did("scalar" if i.kind in ("branch", "constant") else i.kind, wave.next)
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
    return name, code, traces


def trace(build, arch, case, length):
    """The main kernel's first workgroup in a problem that conform verifies."""
    dtype, dim, *words = case.split(":")
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "trace"
        env = dict(os.environ, LD_LIBRARY_PATH=str(build / "tests/emu"), STERNWAY_BACKEND=f"hip:{arch}",
                   CDNA_EMU_ARCH=arch, CDNA_EMU_TRACE=str(path), CDNA_EMU_RACES="", CDNA_EMU_SCHEDULE="",
                   CDNA_EMU_CUS="1")  # a whole work tile
        done = subprocess.run([build / "bin/sternway", "conform", "--variant", "auto", "-j0",
                               ":".join([f"attn_bwd:{dtype}:b1h1s{length}d{dim}", *words])],
                              env=env, text=True, capture_output=True)
        if done.returncode:
            sys.exit(f"{arch} {case}: {done.stdout}{done.stderr}")
        name, code, traces = read(path, rf"^stw_attn_bwd_{arch}_\w+_{dtype}_(?!full$|\w*exact$)")
    if not traces:
        sys.exit(f"{arch} {case}: takes the shared loop")
    return name, code, traces


def idle_time(unit, busy, first, last):
    """What waves of SIMD 0 do from `first` to `last` while its matrix unit has nothing to do, as shares of the time."""
    waves = [wave for wave in unit.waves if wave.simd == 0]
    marks = sorted(start for wave in waves for start in wave.marks if first <= start <= last)
    gaps = [(mark + busy, after) for mark, after in zip(marks, marks[1:]) if after > mark + busy]
    shares = collections.Counter()
    for wave in waves:
        at = 0
        for start, end in gaps:
            while at < len(wave.spans) and wave.spans[at][1] <= start:
                at += 1
            place = at
            while place < len(wave.spans) and wave.spans[place][0] < end:
                since, until, what = wave.spans[place]
                shares[what] += (min(until, end) - max(since, start)) / len(waves) / (last - first)
                place += 1
    return shares


def model(traced, free=()):
    """Shares of time in which the matrix units work: in the loop; what they wait for; workgroups side by side, time and
    matrix time of the work tile."""
    (_, lds, vector_registers), code, traces = traced
    groups = max(1, min(REGISTERS // vector_registers, LDS_BYTES // max(lds, 1)))
    unit = Unit(code, traces, groups, free)
    time = unit.run()
    busy = next(i.cycles for i in code.values() if i.kind == "matrix")
    marks = sorted(start for wave in unit.waves if wave.simd == 0 for start in wave.marks)
    first, last = marks[len(marks) // 5], marks[len(marks) * 4 // 5]
    loop = (len(marks) * 4 // 5 - len(marks) // 5) * busy / (last - first)
    return loop, idle_time(unit, busy, first, last), groups, time, len(marks) * busy


def keys_of(dtype, dim):
    """Keys of a work tile."""
    dim = int(dim.split("x")[0])
    if dtype == "f32":
        return 192 if dim <= 64 else 128 if dim <= 128 else 64
    return 192 if dim <= 128 else 128 if dim <= 192 else 64


def predicted(arch, case, length, traced):
    """The share in the loop, and a row of the table."""
    dtype, dim, *words = case.split(":")
    machine, peaks, sustained = MACHINES[arch]
    peak = peaks[dtype == "f32"]
    sustained = None if dtype == "f32" else sustained
    loop, idle, groups, time, busy = model(traced)
    feature = next((name for name, more in FEATURES.items() if more == ":".join(words)), ":".join(words))
    row = [machine, dtype, dim, feature, str(groups), f"{loop:.2f}"]
    if feature in HIDING:  # what a step does depends on where it is
        row += ["", "", ""]
    else:
        fixed = max(time - busy / loop, 0.0)  # prologue and epilogue, whose part falls with the length
        long, keys = busy * LONG / length, keys_of(dtype, dim)
        share = long / (long / loop + fixed) * (LONG / keys) / -(-LONG // keys)
        row += [f"{share:.2f}", f"{share * peak:.0f}", f"{share * peak * sustained:.0f}" if sustained else ""]
    shares = [f"{what} {share:.2f}" for what, share in idle.most_common() if share >= 0.015]
    return loop, row + [", ".join(shares)]


def disassembled(path):
    """Instructions of a code object with one kernel, and where its labels are."""
    tool = next((shutil.which(name) for name in ("llvm-objdump-19", "llvm-objdump") if shutil.which(name)), None)
    if not tool:
        sys.exit("llvm-objdump is not found")
    text = subprocess.run([tool, "-d", "--mcpu=gfx942", path], check=True, text=True, capture_output=True).stdout
    lines, labels = [], {}
    for line in text.splitlines():
        label = re.match(r"[0-9a-f]+ <(\w+)>:", line)
        if label:
            labels[label[1]] = len(lines)
        elif "// " in line:
            lines.append(line.split("//")[0].strip())
    return lines, labels


def peer_traces(lines, labels, turns):
    """What the four waves of AMD's kernel run: its first two waves go round the first loop with products, the others
    round the second, two steps a turn. Branches forward inside a loop are taken (they are of the last keys), branches
    out of it are not; all that stands before the first loop and behind the last is run once."""
    loops = [(labels[line.split()[1]], end) for end, line in enumerate(lines) if line.startswith("s_branch")]
    loops = [(start, end) for start, end in loops if sum("mfma" in line for line in lines[start:end]) > 100]
    bodies = []
    for start, end in loops:
        at, body = start, []
        while at <= end:
            body.append((at, 0))
            to = labels[lines[at].split()[1]] if lines[at].startswith("s_cbranch") else at + 1
            at = to if at < to <= end else at + 1
        bodies.append(body)
    before = [(at, 0) for at in range(loops[0][0])]
    behind = [(at, 0) for at in range(loops[-1][1] + 1, len(lines))]
    return [before + bodies[wave // 2] * turns + behind for wave in range(SIMDS)]


def check(path):
    """AMD's own kernel through the model, beside what AMD publishes of the whole backward."""
    lines, labels = disassembled(path)
    code = {at: Instruction(16 if "16x16x16" in line else 0, line) for at, line in enumerate(lines)}
    name, turns = (path.name, LDS_BYTES, REGISTERS), 32
    loop, idle, _, time, _ = model((name, code, peer_traces(lines, labels, turns)))
    twice = model((name, code, peer_traces(lines, labels, 2 * turns)))[3]
    step = (twice - time) / turns / 2
    fixed = time - 2 * turns * step
    print(f"{path.name}: {loop:.3f} in the loop, {step:.0f} cycles a step, {fixed:.0f} before and behind;",
          ", ".join(f"{what} {share:.2f}" for what, share in idle.most_common() if share >= 0.015))
    _, peaks, sustained = MACHINES["gfx942"]
    clock = peaks[0] * 1e12 / (UNITS * 2048) * sustained  # 2048 FLOP a cycle
    near = 0
    for (batch, length), published in PUBLISHED.items():
        rows, tiles = batch * 32 * length, batch * 32 * -(-length // 192)
        seconds = -(-tiles // UNITS) * (length / 16 * step + fixed) / clock
        seconds += rows * 128 * (2 + 2 + 4 + 2) / (HBM * 1e12)  # O and dO are read; dQ is read in f32, written in bf16
        tflops = 10 * rows * length * 128 / seconds / 1e12
        near += abs(tflops / published - 1) <= 0.15
        print(f"batch {batch} S {length}: {tflops:.0f} TFLOP/s predicted, {published:.0f} published, "
              f"{100 * (tflops / published - 1):+.0f}%")
    print(f"{near} of {len(PUBLISHED)} within 15%")


def held(path, arch):
    """Problems and what the model said of each."""
    rows = [line.split() for line in path.read_text().splitlines() if line and not line.startswith("#")]
    return {case: float(share) for of, case, share in rows if of == arch}


def main():
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build/release"))
    parse.add_argument("--arch", nargs="+", default=["gfx942", "gfx90a"])
    parse.add_argument("--case", nargs="+", metavar="DTYPE:DIM:WORDS", help="bf16:128, bf16:64:det; default: all")
    parse.add_argument("--length", type=int, default=768, help="of the traced problem; a multiple of 192")
    parse.add_argument("--free", nargs="+", default=[], choices=WAITS, help="what is taken to cost nothing")
    parse.add_argument("--held", type=pathlib.Path, help="a test: in the loop no less than 0.97 of what the file has")
    parse.add_argument("--only", choices=["plain", "features"], help="of the file's problems")
    parse.add_argument("--check", nargs="+", type=pathlib.Path, metavar="CO", help="AMD's own kernels, nothing else")
    parse.add_argument("--markdown", action="store_true", help="rows of a table for docs/performance/amd.md")
    options = parse.parse_args()
    for path in options.check or []:
        check(path)
    if options.check:
        return 0
    head = ["machine", "dtype", "D", "problem", "workgroups a CU", "matrix units at work, loop", "at S 8192",
            "TFLOP/s at peak clock", "TFLOP/s sustained", "matrix units idle during"]
    print("| " + " | ".join(head) + " |\n|" + "---|" * len(head) if options.markdown else "  ".join(head))
    failures = []
    for arch in options.arch:
        floors = held(options.held, arch) if options.held else {}
        cases = [case for case in floors if options.only in (None, "features" if case.count(":") > 1 else "plain")]
        if options.held and not cases:
            failures.append(f"{options.held} has nothing of {arch}")
        for case in options.case or cases or CASES:
            traced = trace(options.build.resolve(), arch, case, options.length)
            if options.free:
                print(arch, case, *options.free, f"free: {model(traced, options.free)[0]:.3f}", flush=True)
                continue
            loop, row = predicted(arch, case, options.length, traced)
            if not options.markdown:
                row[5] = f"{loop:.3f}"
            print("| " + " | ".join(row) + " |" if options.markdown else "  ".join(row), flush=True)
            if case in floors and loop < 0.97 * floors[case]:
                failures.append(f"{arch} {case}: {loop:.3f} of the time, 3% less than {floors[case]}")
    print(*failures, sep="\n", end="\n" if failures else "")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
