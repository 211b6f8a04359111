/* SPDX-License-Identifier: MIT
 *
 * LDS instructions, with bounds, with the watch for races: two waves that touch the same bytes in one barrier
 * interval, one of them writing, unless both are atomic or write the same value; and with the count of conflicts:
 * lanes of one cycle that want different words of one bank. */
#include "waits.h"

#include <algorithm>
#include <set>

namespace cdna {

static void race(Wave &w, const Instruction &in, u32 half, const char *kind, int other) {
    std::string whom = other == LdsShadow::BY_ATOMIC ? "an atomic" : "wave " + std::to_string(other);
    fault(w, in,
          std::string("LDS race, ") + kind + ", at byte " + std::to_string(2 * half) + ": wave " +
              std::to_string(w.number) + " against " + whom + ", no barrier between them, or no wait before it");
}

static void watch(Wave &w, const Instruction &in, u32 half, Touch touch) {
    LdsShadow &s = w.group->shadow;
    u16 epoch = w.group->epoch, self = (u16)(1u << w.number);
    bool written = s.write_epoch[half] == epoch && s.writer[half] != w.number;
    u16 readers = s.read_epoch[half] == epoch ? s.readers[half] : 0, others = (u16)(readers & ~self);
    if (touch == Touch::read) {
        if (written) race(w, in, half, "read after write", s.writer[half]);
        s.readers[half] = readers | self;
        s.read_epoch[half] = epoch;
        return;
    }
    bool both_atomic = touch == Touch::atomic && s.writer[half] == LdsShadow::BY_ATOMIC;
    if (written && !both_atomic && touch != Touch::rewrite) race(w, in, half, "write after write", s.writer[half]);
    if (others) race(w, in, half, "write after read", __builtin_ctz(others));
    s.write_epoch[half] = epoch;
    s.writer[half] = (u16)(touch == Touch::atomic ? (int)LdsShadow::BY_ATOMIC : w.number);
}

/* The usual case, which the compiler makes vectors of: HALVES that only this wave touched, if any. False: not so,
 * and nothing was noted. */
template <int HALVES> static bool watch_quiet(const Wave &w, u32 half, bool write) {
    LdsShadow &s = w.group->shadow;
    const u16 epoch = w.group->epoch, self = (u16)(1u << w.number), number = (u16)w.number;
    u16 *write_epoch = &s.write_epoch[half], *writer = &s.writer[half], *read_epoch = &s.read_epoch[half],
        *readers = &s.readers[half], loud = 0;
    for (int i = 0; i < HALVES; ++i) loud |= (u16)((write_epoch[i] == epoch) & (writer[i] != number));
    if (!write) {
        if (loud) return false;
        for (int i = 0; i < HALVES; ++i) readers[i] = (u16)((read_epoch[i] == epoch ? readers[i] : 0) | self);
        for (int i = 0; i < HALVES; ++i) read_epoch[i] = epoch;
        return true;
    }
    for (int i = 0; i < HALVES; ++i) loud |= (u16)((read_epoch[i] == epoch) & ((readers[i] & ~self) != 0));
    if (loud) return false;
    for (int i = 0; i < HALVES; ++i) write_epoch[i] = epoch, writer[i] = number;
    return true;
}

static bool all_quiet(const Wave &w, u32 offset, int bytes, Touch touch) {
    if (touch == Touch::atomic || (offset & 1)) return false;
    bool write = touch != Touch::read;
    switch (bytes) {
    case 2: return watch_quiet<1>(w, offset / 2, write);
    case 4: return watch_quiet<2>(w, offset / 2, write);
    case 8: return watch_quiet<4>(w, offset / 2, write);
    case 16: return watch_quiet<8>(w, offset / 2, write);
    default: return false;
    }
}

static void watch_unset(Wave &w, const Instruction &in, u32 offset, int bytes, Touch touch) {
    std::vector<u8> &written = w.group->written;
    for (u32 half = offset / 2; half <= (offset + (u32)bytes - 1) / 2; ++half) {
        if (touch == Touch::write || touch == Touch::rewrite) written[half] = 1;
        else if (!written[half])
            fault(w, in, "LDS byte " + std::to_string(half * 2) + " is read, and its group has not written it");
    }
}

u8 *lds_at(Wave &w, const Instruction &in, u32 offset, int bytes, Touch touch) {
    Group &g = *w.group;
    if ((u64)offset + (u64)bytes > g.lds.size())
        fault(w, in, "LDS byte " + std::to_string(offset) + " of " + std::to_string(g.lds.size()));
    if (!g.shadow.readers.empty() && !all_quiet(w, offset, bytes, touch))
        for (u32 half = offset / 2; half <= (offset + (u32)bytes - 1) / 2; ++half) watch(w, in, half, touch);
    if (!g.shadow.readers.empty() && w.pending) note_lds(w, offset, bytes, touch);
    if (!g.written.empty()) watch_unset(w, in, offset, bytes, touch);
    return g.lds.data() + offset;
}

/* The cycle of a lane: 128 bytes go in one, those of lanes in a row, but for reads of 16 bytes, whose order AMD
 * documents with composable_kernel (docs/conceptual/ck_tile/hardware/lds_bank_conflicts.rst). */
static int cycle_of(int lane, int bytes, bool store) {
    static const int fours[] = {0, 1, 2, 3, 1, 0, 3, 2};
    if (bytes == 16 && !store) return lane / 32 * 4 + fours[lane % 32 / 4];
    return lane * std::max(bytes, 4) / 128;
}

/* Cycles beyond those that the lanes' bytes take: of each cycle, the most words of one bank but one. */
static void count_conflicts(Wave &w, const u32 *address, u32 offset, int bytes, bool store) {
    enum { BANKS = 32, CYCLES = 8 };
    if (!w.run->launch->banks) return;
    std::set<u32> words[CYCLES][BANKS];
    for (int l = 0; l < LANES; ++l)
        for (u32 byte = 0; byte < (u32)bytes && w.exec() >> l & 1; byte += 4) {
            u32 word = (address[l] + offset + byte) / 4;
            words[cycle_of(l, bytes, store)][word % BANKS].insert(word);
        }
    for (auto &cycle : words) {
        size_t most = 1;
        for (auto &bank : cycle) most = std::max(most, bank.size());
        w.bank_conflicts += most - 1;
    }
}

#define EACH_ACTIVE(w) for (u64 rest = (w).exec(), l; rest && (l = (u64)__builtin_ctzll(rest), true); rest &= rest - 1)

/* A word with the value that is there already: flags that any wave may raise. */
static bool writes_again(const Wave &w, const Access &access, u32 offset, int data, int lane) {
    const Group &g = *w.group;
    return access.bytes == 4 && (u64)offset + 4 <= g.lds.size() && !memcmp(&g.lds[offset], &w.v[data][lane], 4);
}

void run_lds(Wave &w, const Instruction &in) {
    const Access &access = in.access;
    bool atomic = access.atomic != Atomic::none;
    int k = access.store || (atomic && !in.returns) ? 0 : 1; /* the address */
    Touch touch = atomic ? Touch::atomic : access.store ? Touch::write : Touch::read;
    u8 *at[LANES];
    const u32 *address = w.v[in.op[k].index];
    if (!atomic) count_conflicts(w, address, (u32)in.offset, access.bytes, access.store);
    EACH_ACTIVE(w) {
        u32 offset = address[l] + (u32)in.offset;
        bool again = access.store && writes_again(w, access, offset, in.op[1].index, (int)l);
        at[l] = lds_at(w, in, offset, access.bytes, again ? Touch::rewrite : touch);
    }
    if (atomic) {
        int compare = access.atomic == Atomic::compare_swap ? in.op[k + 2].index : -1;
        transfer_atomic(w, in, at, w.exec(), in.op[k + 1].index, compare, in.returns ? in.op[0].index : -1);
    } else {
        transfer(w, in, at, w.exec(), in.op[access.store ? 1 : 0].index);
    }
}

/* ds_read2, ds_write2: two places, offsets in units of the element (or of 64). */
void run_lds_pair(Wave &w, const Instruction &in) {
    const Access &access = in.access;
    int work_tile = access.bytes * (in.form ? 64 : 1), words = access.bytes / 4;
    u32 offsets[2] = {(u32)(in.offset0 * work_tile), (u32)(in.offset1 * work_tile)};
    u32 address[LANES];
    memcpy(address, w.v[in.op[access.store ? 0 : 1].index], sizeof address);
    for (int h = 0; h < 2; ++h) {
        count_conflicts(w, address, offsets[h], access.bytes, access.store);
        int data = access.store ? in.op[1 + h].index : in.op[0].index + h * words;
        u8 *at[LANES];
        EACH_ACTIVE(w)
        at[l] = lds_at(w, in, address[l] + offsets[h], access.bytes, access.store ? Touch::write : Touch::read);
        transfer(w, in, at, w.exec(), data);
    }
}

static void run_permute_back(Wave &w, const Instruction &in) {
    alignas(64) u32 r[LANES];
    const u32 *from = w.v[in.op[1].index], *data = w.v[in.op[2].index];
    u64 lanes = w.exec();
    for (int l = 0; l < LANES; ++l) {
        u32 lane = (from[l] + (u32)in.offset) >> 2 & 63;
        r[l] = lanes >> lane & 1 ? data[lane] : 0;
    }
    store_lanes(w.v[in.op[0].index], r, lanes);
}

static void run_permute(Wave &w, const Instruction &in) {
    alignas(64) u32 r[LANES] = {0};
    const u32 *to = w.v[in.op[1].index], *data = w.v[in.op[2].index];
    u64 lanes = w.exec();
    for (int l = 0; l < LANES; ++l)
        if (lanes >> l & 1) r[(to[l] + (u32)in.offset) >> 2 & 63] = data[l];
    store_lanes(w.v[in.op[0].index], r, lanes);
}

void add_lds(Handlers &to) {
    to["ds_bpermute_b32"] = run_permute_back;
    to["ds_permute_b32"] = run_permute;
    to["ds_nop"] = run_nothing;
}

} // namespace cdna
