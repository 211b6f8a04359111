/* SPDX-License-Identifier: MIT
 *
 * Runs a launch: workgroups (groups, below) over the host's threads, the waves of a group one after the other from
 * barrier to barrier or at random, registers and LDS poisoned at the start, instructions counted. */
#include "code_object.h"
#include "hazards.h"
#include "waits.h"

#include <algorithm>
#include <atomic>
#include <fstream>
#include <mutex>
#include <set>
#include <sstream>
#include <thread>

namespace cdna {

enum : u32 { POISON_VECTOR = 0x7fc1dead, POISON_SCALAR = 0xdeadbeef, POISON_LDS = 0x7fc1c1c1 };
static const u64 RUNAWAY = 4000000000ull; /* instructions of a wave */

/* Bits of kernel_code_properties, in the order of the registers they fill. */
enum {
    WANTS_SCRATCH_BUFFER = 1,
    WANTS_PACKET = 2,
    WANTS_QUEUE = 4,
    WANTS_ARGUMENTS = 8,
    WANTS_ID = 16,
    WANTS_FLAT_SCRATCH = 32,
    WANTS_SCRATCH_SIZE = 64
};

/* hsa_kernel_dispatch_packet_t: kernels read sizes from it. */
struct Packet {
    u16 header = 0, setup = 3, block[3], reserved = 0;
    u32 grid[3], scratch = 0, lds = 0;
    u64 object = 0, arguments = 0, reserved2 = 0, signal = 0;
};
static_assert(sizeof(Packet) == 64, "as the runtime writes it");

void Counts::add(const Counts &o) {
    scalar += o.scalar, vector += o.vector, transcendental += o.transcendental, matrix += o.matrix, lds += o.lds;
    memory += o.memory, constant += o.constant, control += o.control, matrix_cycles += o.matrix_cycles;
    bank_conflicts += o.bank_conflicts;
}

static void count(Wave &w, const Instruction &in) {
    ++w.kinds[(int)in.kind];
    w.matrix_cycles += in.cycles;
    ++w.executed;
}

static Counts counts_of(const Wave &w) {
    Counts counts;
    u64 *const to[] = {&counts.scalar, &counts.vector, &counts.transcendental, &counts.matrix,
                       &counts.lds,    &counts.memory, &counts.constant,       &counts.control};
    for (int kind = 0; kind < 8; ++kind) *to[kind] = w.kinds[kind];
    counts.matrix_cycles = w.matrix_cycles;
    counts.bank_conflicts = w.bank_conflicts;
    return counts;
}

/* The registers a wave starts with: what the descriptor asks for, then the group's number. */
static void start_scalars(Wave &w, const Kernel &kernel, const Run &run, const u32 *number) {
    std::fill(w.s, w.s + SGPRS, POISON_SCALAR);
    int at = 0;
    auto put64 = [&](u64 x) { w.s[at++] = (u32)x, w.s[at++] = (u32)(x >> 32); };
    if (kernel.properties & WANTS_SCRATCH_BUFFER) put64(0x5Cull << 32), put64(0xffffffffu);
    if (kernel.properties & WANTS_PACKET) put64(run.packet);
    if (kernel.properties & WANTS_QUEUE) at += 2;
    if (kernel.properties & WANTS_ARGUMENTS) put64(run.arguments);
    if (kernel.properties & WANTS_ID) at += 2;
    if (kernel.properties & WANTS_FLAT_SCRATCH) put64(0);
    if (kernel.properties & WANTS_SCRATCH_SIZE) w.s[at++] = kernel.scratch;
    int preloaded = kernel.preload & 127, from = kernel.preload >> 7;
    for (int i = 0; i < preloaded; ++i) memcpy(&w.s[at + i], (const u8 *)run.arguments + 4 * (from + i), 4);
    at = kernel.rsrc2 >> 1 & 31;
    for (int d = 0; d < 3; ++d)
        if (kernel.rsrc2 >> (7 + d) & 1) w.s[at++] = number[d];
    if (kernel.rsrc2 >> 10 & 1) ++at;
    if (kernel.rsrc2 & 1) w.s[at++] = 0; /* offset of the wave's scratch */
    w.s[M0] = ~0u;
}

/* Poison again in the registers that the kernel asked for: the others were poisoned once, and no compiler touches
 * what it did not ask for. */
static void poison_vectors(Wave &w, const Kernel &kernel) {
    u32 all = ((kernel.rsrc1 & 63) + 1) * 8, plain = std::min(all, ((kernel.rsrc3 & 63) + 1) * 4);
    std::fill(&w.v[0][0], &w.v[0][0] + plain * LANES, POISON_VECTOR);
    std::fill(&w.v[ACC_FIRST][0], &w.v[ACC_FIRST][0] + (all - plain) * LANES, POISON_VECTOR);
}

static void start_wave(Wave &w, int index, const Kernel &kernel, const Run &run, const u32 *number) {
    poison_vectors(w, kernel);
    start_scalars(w, kernel, run, number);
    const u32 *block = run.launch->block;
    int threads = (int)(block[0] * block[1] * block[2]), lanes = std::min((int)LANES, threads - LANES * index);
    w.set_exec(lanes == LANES ? ~0ull : (1ull << lanes) - 1);
    for (int l = 0; l < lanes; ++l) { /* three numbers of 10 bits */
        u32 t = (u32)(index * LANES + l);
        w.v[0][l] = t % block[0] | t / block[0] % block[1] << 10 | t / block[0] / block[1] << 20;
    }
    w.scc = 0;
    w.number = index;
    w.done = w.waiting = false;
    w.executed = 0;
    w.last = Region{0, 0};
    std::fill(w.kinds, w.kinds + 8, 0);
    w.matrix_cycles = w.bank_conflicts = 0;
    if (w.pending) pending_clear(*w.pending);
    if (w.issued) issued_clear(*w.issued);
}

static void step(Wave &w, const std::vector<Instruction> &code) {
    const u32 number = (u32)w.pc;
    const u64 conflicts = w.bank_conflicts;
    const Instruction &in = code[(size_t)w.pc++];
    if (w.pending) watch_waits(w, in, w.pc - 1);
    if (w.issued) watch_hazards(w, in, w.pc - 1);
    count(w, in);
    in.run(w, in);
    if (w.trace) w.trace->push_back({number, (u32)(w.bank_conflicts - conflicts)});
    if (w.executed > RUNAWAY) fault(w, in, "this wave does not end");
}

/* All waves at the barrier or ended: the next interval begins. False: all have ended. */
static bool pass_barrier(std::vector<Wave *> &waves, Group &group) {
    bool alive = false;
    for (Wave *w : waves) {
        alive |= !w->done;
        w->waiting = false;
    }
    group.next_epoch();
    for (Wave *w : waves)
        if (w->pending) cross_barrier(*w);
    return alive;
}

static void run_in_turn(std::vector<Wave *> &waves, Group &group, const std::vector<Instruction> &code) {
    do
        for (Wave *w : waves)
            while (!w->done && !w->waiting) step(*w, code);
    while (pass_barrier(waves, group));
}

static void run_at_random(std::vector<Wave *> &waves, Group &group, const std::vector<Instruction> &code, u32 seed) {
    u32 state = seed | 1;
    auto random = [&] {
        state ^= state << 13, state ^= state >> 17, state ^= state << 5;
        return state;
    };
    std::vector<Wave *> ready;
    for (;;) {
        ready.clear();
        for (Wave *w : waves)
            if (!w->done && !w->waiting) ready.push_back(w);
        if (ready.empty()) {
            if (!pass_barrier(waves, group)) return;
            continue;
        }
        Wave &w = *ready[random() % ready.size()];
        u32 steps = 1 + random() % (random() % 4 ? 8 : 400);
        while (steps-- && !w.done && !w.waiting) step(w, code);
    }
}

namespace {
/* One host thread's waves and LDS, used for one group after the other. Barrier intervals are counted through all of
 * them, so what a group did to LDS is no race with the next. */
struct Worker {
    const Kernel &kernel;
    const Run &run;
    std::vector<u8> scratch, poisoned_lds;
    std::vector<Wave *> waves;
    Group group;
    Counts counts;

    Worker(const Kernel &k, const Run &r) : kernel(k), run(r) {
        const u32 *block = r.launch->block;
        size_t count = (block[0] * block[1] * block[2] + LANES - 1) / LANES;
        scratch.assign(count * LANES * r.scratch_bytes + 16, 0xc1);
        poisoned_lds.resize(r.lds_bytes);
        for (u32 i = 0; i < r.lds_bytes; ++i) poisoned_lds[i] = (u8)((u32)POISON_LDS >> 8 * (i % 4));
        /* LDS serves the instructions of one wave in their order, so a group of one wave has no races. */
        group.shadow.clear(r.launch->races && count > 1 ? r.lds_bytes / 2 + 1 : 0);
        group.waves = &waves;
        for (size_t i = 0; i < count; ++i) {
            Wave *w = (Wave *)aligned_alloc(alignof(Wave), sizeof(Wave));
            w->run = &run;
            w->group = &group;
            w->pending = run.guards ? pending_new() : nullptr;
            w->issued = run.hazards ? issued_new() : nullptr;
            w->scratch = scratch.data() + i * LANES * r.scratch_bytes;
            w->trace = nullptr;
            std::fill(&w->v[0][0], &w->v[0][0] + VGPRS * LANES, POISON_VECTOR);
            waves.push_back(w);
        }
    }
    ~Worker() {
        for (Wave *w : waves) {
            pending_free(w->pending);
            issued_free(w->issued);
            free(w);
        }
    }
    /* For bench/amd_model.py: the kernel with its LDS and registers, its instructions with cycles of the matrix unit,
     * and what each wave ran of them, by number, with cycles of bank conflicts. One write a launch, since launches of
     * other streams append to the same file. */
    void write_trace(const std::vector<std::vector<TraceEntry>> &traces) const {
        const std::vector<Instruction> &code = run.program->code;
        std::ostringstream text;
        text << "kernel " << run.program->name << ' ' << run.lds_bytes << ' ' << ((kernel.rsrc1 & 63) + 1) * 8 << '\n';
        for (size_t i = 0; i < code.size(); ++i)
            text << "code " << i << ' ' << (int)code[i].cycles << ' ' << code[i].text() << '\n';
        for (const std::vector<TraceEntry> &trace : traces) {
            text << "wave";
            for (const TraceEntry &e : trace) {
                text << ' ' << e.number;
                if (e.conflicts) text << ':' << e.conflicts;
            }
            text << '\n';
        }
        static std::mutex one_launch;
        std::lock_guard<std::mutex> hold(one_launch);
        std::ofstream file(run.launch->trace, std::ios::app);
        file << text.str() << std::flush;
        if (!file) throw Fault("cannot write " + run.launch->trace);
    }
    void run_group(u64 number) {
        const Launch &launch = *run.launch;
        u32 at[3] = {(u32)(number % launch.grid[0]), (u32)(number / launch.grid[0] % launch.grid[1]),
                     (u32)(number / launch.grid[0] / launch.grid[1])};
        group.lds = poisoned_lds;
        group.written.assign(launch.unset ? run.lds_bytes / 2 + 1 : 0, 0);
        group.next_epoch();
        int entry = run.program->at.at((u32)kernel.entry);
        for (size_t i = 0; i < waves.size(); ++i) {
            start_wave(*waves[i], (int)i, kernel, run, at);
            waves[i]->pc = entry;
        }
        std::vector<std::vector<TraceEntry>> traces(number == 0 && !launch.trace.empty() ? waves.size() : 0);
        for (size_t i = 0; i < traces.size(); ++i) waves[i]->trace = &traces[i];
        if (launch.schedule)
            run_at_random(waves, group, run.program->code, launch.schedule * 2654435761u + (u32)number * 40503u);
        else run_in_turn(waves, group, run.program->code);
        if (!traces.empty()) write_trace(traces);
        for (Wave *w : waves) counts.add(counts_of(*w)), w->trace = nullptr;
    }
};
} // namespace

static void check_shape(const Launch &launch, const Kernel &kernel, Arch arch) {
    u64 threads = (u64)launch.block[0] * launch.block[1] * launch.block[2];
    for (int d = 0; d < 3; ++d)
        if (!launch.grid[d] || (u64)launch.grid[d] * launch.block[d] > 0xffffffffull)
            throw Fault(launch.kernel + ": a grid of that width is not possible");
    if (!threads || threads > 1024) throw Fault(launch.kernel + ": a block has 1 to 1024 threads");
    const u32 kilobytes = arch == Arch::gfx950 ? 160 : 64;
    if (kernel.lds + launch.dynamic_lds > kilobytes << 10)
        throw Fault(launch.kernel + ": more than " + std::to_string(kilobytes) + " KB of LDS");
}

static Counts run_groups(const Kernel &kernel, const Run &run) {
    const Launch &launch = *run.launch;
    u64 groups = (u64)launch.grid[0] * launch.grid[1] * launch.grid[2];
    std::atomic<u64> next{0};
    std::atomic<bool> failed{false};
    std::mutex lock;
    std::string error;
    Counts total;
    auto work = [&] {
        Worker worker(kernel, run);
        try {
            for (u64 number; !failed && (number = next++) < groups;) worker.run_group(number);
        } catch (const std::exception &e) {
            std::lock_guard<std::mutex> guard(lock);
            if (!failed) error = e.what();
            failed = true;
        }
        std::lock_guard<std::mutex> guard(lock);
        total.add(worker.counts);
    };
    std::vector<std::thread> threads;
    u64 wanted = std::min<u64>((u64)std::max(launch.threads, 1), groups);
    for (u64 i = 1; i < wanted; ++i) threads.emplace_back(work);
    work();
    for (std::thread &t : threads) t.join();
    if (failed) throw Fault(error);
    return total;
}

Counts CodeObject::run(const Launch &launch) {
    const Kernel &kernel = image->kernel(launch.kernel);
    check_shape(launch, kernel, image->arch);
    std::vector<u8> arguments = launch.arguments;
    arguments.resize(std::max<size_t>(arguments.size(), kernel.arguments), 0);
    Packet packet;
    for (int d = 0; d < 3; ++d) {
        packet.block[d] = (u16)launch.block[d];
        packet.grid[d] = launch.grid[d] * launch.block[d];
    }
    Run run = {&image->program(launch.kernel),
               &launch,
               image->arch == Arch::gfx90a,
               kernel.lds + launch.dynamic_lds,
               kernel.scratch,
               launch.memory,
               (u64)image->memory.data(),
               (u64)arguments.data(),
               (u64)&packet,
               nullptr,
               nullptr,
               nullptr};
    std::shared_ptr<Semaphores> semaphores;
    if (launch.waits || launch.hazards) {
        std::lock_guard<std::mutex> guard(image->lock);
        if (launch.waits && !run.program->guards) run.program->guards = guards_of(*run.program);
        if (launch.hazards && !run.program->hazards) run.program->hazards = hazards_of(*run.program, image->arch);
        run.guards = launch.waits ? run.program->guards.get() : nullptr;
        if (launch.waits) semaphores = semaphores_new();
        run.semaphores = semaphores.get();
        run.hazards = launch.hazards ? run.program->hazards.get() : nullptr;
    }
    run.memory.push_back({run.arguments, run.arguments + arguments.size()});
    run.memory.push_back({run.code_base, run.code_base + image->memory.size()});
    run.memory.push_back({run.packet, run.packet + sizeof packet});
    return run_groups(kernel, run);
}

CodeObject::CodeObject(const void *bytes, size_t size, const std::string &objdump)
    : image(load_image(bytes, size, objdump)) {}
CodeObject::~CodeObject() {}

std::string CodeObject::arch() const { return name_of(image->arch); }
bool CodeObject::has(const std::string &kernel) const { return image->kernels.count(kernel) != 0; }

std::vector<std::string> CodeObject::kernels() const {
    std::vector<std::string> names;
    for (auto &k : image->kernels) names.push_back(k.first);
    return names;
}

KernelFacts CodeObject::facts(const std::string &name) {
    const Kernel &k = image->kernel(name);
    return {k.lds, k.scratch, k.arguments, ((k.rsrc1 & 63) + 1) * 8};
}

std::vector<std::string> CodeObject::unknown(const std::string &kernel) {
    std::set<std::string> names;
    for (const Instruction &in : image->program(kernel).code)
        if (in.run == run_unknown) names.insert(in.name() + " (" + in.text() + ")");
    return {names.begin(), names.end()};
}

std::vector<std::string> CodeObject::hazards(const std::string &kernel) {
    return hazards_on_all_paths(image->program(kernel), image->arch);
}

} // namespace cdna
