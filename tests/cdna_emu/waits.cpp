/* SPDX-License-Identifier: MIT
 *
 * What a missing s_waitcnt does on a GPU (Launch.waits). The emulator's accesses are done at once, so results never
 * show it: registers touched while a load that fills them is pending; LDS that an access may touch after a barrier,
 * which lds.cpp takes for one of that interval; semaphores passed on before the workgroup's additions are there.
 * Rules of gfx9's counters: vmcnt counts loads, stores and atomics, in order; lgkmcnt counts LDS, in order, and
 * constant loads, in no order; flat counts in both, in no order. Which registers an instruction names is read from its
 * text. */
#include "waits.h"

#include <cctype>
#include <deque>
#include <mutex>
#include <unordered_set>

namespace cdna {

enum { NO_WAIT = 1000 };
enum class Queue : u8 { none, vector, lds, constant, flat };

/* An instruction as far as waits are concerned. */
struct Guard {
    std::vector<Registers> named;
    bool fills = false;   /* named[0] is what it loads */
    bool changes = false; /* global memory */
    bool device = false;  /* sees what all of the device wrote: glc of gfx90a, sc1 of later ones */
    Queue queue = Queue::none;
    int vector_left = NO_WAIT, lgkm_left = NO_WAIT; /* of s_waitcnt: as many may stay pending */
};

struct Guards {
    std::vector<Guard> of;
};

namespace {
struct Load {
    Registers to;
    bool fills, unordered, changes;
    Queue queue;
    const Instruction *by;
};
/* Bytes of LDS, touched by the wave's access number `by`. */
struct Touched {
    u64 by;
    u32 offset;
    int bytes;
    Touch touch;
};
} // namespace

struct Pending {
    std::vector<Load> vector, lgkm;
    u8 marks[REGISTERS] = {0}; /* loads that will fill it */
    std::deque<Touched> touched;
    u64 lds_begun = 0, lds_done = 0;
    u64 changes_begun = 0, changes_done = 0; /* of global memory            */
    u64 changes_at_barrier = 0;              /* begun before the last barrier */
};

struct Semaphores {
    std::mutex lock;
    std::unordered_set<u64> looked_at;
};
std::shared_ptr<Semaphores> semaphores_new() { return std::make_shared<Semaphores>(); }

static bool begins(const std::string &text, const char *start) { return !text.compare(0, strlen(start), start); }
static bool holds(const std::string &text, const char *part) { return text.find(part) != std::string::npos; }

/* v5, a[0:3], s[4:5], vcc, exec_lo, m0; letters before it make it part of a word. */
std::vector<Registers> registers_in(const std::string &text) {
    std::vector<Registers> all;
    for (size_t i = text.find(' '); i < text.size(); ++i) {
        if (isalnum((unsigned char)text[i - 1]) || text[i - 1] == '_') continue;
        int first, last, base = text[i] == 'v' ? 0 : text[i] == 'a' ? (int)ACC_FIRST : (int)SCALARS_FIRST;
        bool vcc = !text.compare(i, 3, "vcc"), exec = !text.compare(i, 4, "exec");
        if (vcc || exec) {
            std::string half = text.substr(i + (vcc ? 3 : 4), 3);
            first = SCALARS_FIRST + (vcc ? (int)VCC : (int)EXEC) + (half == "_hi");
            all.push_back({(u16)first, (u16)(first + (half != "_hi" && half != "_lo"))});
        } else if (!text.compare(i, 2, "m0")) {
            all.push_back({SCALARS_FIRST + M0, SCALARS_FIRST + M0});
        } else if (text[i] != 'v' && text[i] != 'a' && text[i] != 's') {
            continue;
        } else if (sscanf(text.c_str() + i + 1, "[%d:%d]", &first, &last) == 2) {
            all.push_back({(u16)(base + first), (u16)(base + last)});
        } else if (i + 1 < text.size() && isdigit((unsigned char)text[i + 1])) {
            first = atoi(text.c_str() + i + 1);
            all.push_back({(u16)(base + first), (u16)(base + first)});
        }
    }
    return all;
}

static int left_by(const std::string &text, const char *counter) {
    size_t at = text.find(counter);
    return at == std::string::npos ? (int)NO_WAIT : atoi(text.c_str() + at + strlen(counter));
}

static Guard guard_of(const Instruction &in) {
    const std::string &name = in.name();
    Guard g;
    if (name == "s_waitcnt") {
        g.vector_left = left_by(in.text(), "vmcnt(");
        g.lgkm_left = left_by(in.text(), "lgkmcnt(");
        return g;
    }
    g.named = registers_in(in.text());
    bool load = holds(name, "_load_"), memory = load || holds(name, "_store_") || holds(name, "_atomic_");
    if (memory && begins(name, "s_")) g.queue = Queue::constant, g.fills = load;
    else if (memory) {
        g.queue = begins(name, "flat_") ? Queue::flat : Queue::vector;
        g.fills = (load && !holds(name, "_lds_")) || (holds(name, "_atomic_") && in.returns);
        g.changes = !load && !begins(name, "scratch_"); /* gfx90a's scratch is a buffer; our kernels have none */
        g.device = holds(in.text(), " glc") || holds(in.text(), " sc1");
    } else if (name == "s_memtime" || name == "s_memrealtime") g.queue = Queue::constant, g.fills = true;
    else if (begins(name, "ds_")) {
        g.queue = Queue::lds;
        for (const char *start : {"ds_read", "ds_bpermute", "ds_permute", "ds_swizzle", "ds_consume", "ds_append"})
            g.fills |= begins(name, start);
        g.fills |= holds(name, "_rtn") || in.returns;
    }
    g.fills &= !g.named.empty();
    return g;
}

bool fills_register(const Instruction &in) { return guard_of(in).fills; }

std::shared_ptr<const Guards> guards_of(const Program &program) {
    std::shared_ptr<Guards> made(new Guards);
    for (const Instruction &in : program.code) made->of.push_back(guard_of(in));
    return made;
}

Pending *pending_new() { return new Pending; }
void pending_free(Pending *pending) { delete pending; }
void pending_clear(Pending &pending) { pending = Pending(); }

/* All but the last `left` are done; where order is not promised, only a wait for all of them promises anything. */
static void retire(Pending &pending, std::vector<Load> &loads, int left) {
    bool ordered = true;
    for (const Load &load : loads) ordered &= !load.unordered && load.queue == loads[0].queue;
    size_t keep = left == 0 ? 0 : !ordered || (size_t)left > loads.size() ? loads.size() : (size_t)left;
    for (size_t i = 0; i + keep < loads.size(); ++i) {
        for (int r = loads[i].to.first; loads[i].fills && r <= loads[i].to.last; ++r) --pending.marks[r];
        if (&loads == &pending.vector) pending.changes_done += loads[i].changes;
        else pending.lds_done += loads[i].queue == Queue::lds;
    }
    loads.erase(loads.begin(), loads.end() - (long)keep);
}

static void add(Pending &pending, std::vector<Load> &to, const Load &load) {
    to.push_back(load);
    for (int r = load.to.first; load.fills && r <= load.to.last; ++r) ++pending.marks[r];
}

/* A load may fill again what an earlier one of its own ordered queue fills: halves of a register. */
static void check(Wave &w, const Instruction &in, const Guard &g, int r, bool filled) {
    for (const std::vector<Load> *loads : {&w.pending->vector, &w.pending->lgkm})
        for (const Load &load : *loads) {
            if (!load.fills || r < load.to.first || r > load.to.last) continue;
            if (filled && !load.unordered && load.queue == g.queue) continue;
            fault(w, in,
                  "a register is touched while \"" + load.by->text() + "\" may not have filled it: a wait is missing");
        }
}

void watch_waits(Wave &w, const Instruction &in, int number) {
    const Guard &g = w.run->guards->of[(size_t)number];
    Pending &p = *w.pending;
    if (g.vector_left != NO_WAIT) retire(p, p.vector, g.vector_left);
    if (g.lgkm_left != NO_WAIT) retire(p, p.lgkm, g.lgkm_left);
    for (size_t i = 0; i < g.named.size(); ++i)
        for (int r = g.named[i].first; r <= g.named[i].last; ++r)
            if (p.marks[r]) check(w, in, g, r, g.fills && i == 0);
    if (g.queue == Queue::none) return;
    bool unordered = g.queue == Queue::constant || g.queue == Queue::flat;
    Load load = {g.fills ? g.named[0] : Registers{0, 0}, g.fills, unordered, g.changes, g.queue, &in};
    if (g.queue == Queue::vector || g.queue == Queue::flat) add(p, p.vector, load), p.changes_begun += g.changes;
    if (g.queue != Queue::vector) add(p, p.lgkm, load), p.lds_begun += g.queue == Queue::lds;
}

static void forget_done(Pending &p) {
    while (!p.touched.empty() && p.touched.front().by <= p.lds_done) p.touched.pop_front();
}

void note_lds(Wave &w, u32 offset, int bytes, Touch touch) {
    forget_done(*w.pending);
    w.pending->touched.push_back({w.pending->lds_begun, offset, bytes, touch});
}

/* A wave ends once all that it began is done. */
void cross_barrier(Wave &w) {
    Pending &p = *w.pending;
    if (w.done) p.touched.clear(), p.changes_done = p.changes_begun;
    p.changes_at_barrier = p.changes_begun;
    forget_done(p);
    LdsShadow &s = w.group->shadow;
    const u16 epoch = w.group->epoch, self = (u16)(1u << w.number);
    for (const Touched &t : p.touched)
        for (u32 half = t.offset / 2; half <= (t.offset + (u32)t.bytes - 1) / 2; ++half)
            if (t.touch != Touch::read) {
                s.write_epoch[half] = epoch;
                s.writer[half] = t.touch == Touch::atomic ? (u16)LdsShadow::BY_ATOMIC : (u16)w.number;
            } else {
                s.readers[half] = (u16)((s.read_epoch[half] == epoch ? s.readers[half] : 0) | self);
                s.read_epoch[half] = epoch;
            }
}

/* What other waves did before the last barrier counts, and all that this one did before its store. */
static bool all_there(const Wave &w) {
    for (const Wave *other : *w.group->waves) {
        const Pending &p = *other->pending;
        if (p.changes_done < (other == &w ? p.changes_begun - 1 : p.changes_at_barrier)) return false;
    }
    return true;
}

void watch_semaphores(Wave &w, const Instruction &in, u8 *const *at, u64 lanes) {
    const Guard &g = w.run->guards->of[(size_t)(&in - w.run->program->code.data())];
    if (!lanes || (!in.access.store && !g.device)) return;
    u8 *const first = at[__builtin_ctzll(lanes)];
    for (u64 rest = lanes; rest; rest &= rest - 1)
        if (at[__builtin_ctzll(rest)] != first) return; /* a semaphore is one word for the wave */
    Semaphores &known = *w.run->semaphores;
    std::lock_guard<std::mutex> hold(known.lock);
    if (!in.access.store) known.looked_at.insert((u64)first);
    else if (known.looked_at.count((u64)first) && !all_there(w))
        fault(w, in, "a semaphore is passed on before all additions of the workgroup are there: a wait is missing");
}

} // namespace cdna
