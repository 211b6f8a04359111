/* SPDX-License-Identifier: MIT
 *
 * Global, flat, scratch and buffer instructions, atomics, and the check that every byte belongs to the launch. */
#include "waits.h"

#include <algorithm>
#include <cmath>

namespace cdna {

void check_global(Wave &w, const Instruction &in, u64 address, int bytes, int lane) {
    u64 end = address + (u64)bytes;
    if (address >= w.last.begin && end <= w.last.end) return;
    for (const Region &region : w.run->memory)
        if (address >= region.begin && end <= region.end) {
            w.last = region;
            return;
        }
    char text[128];
    snprintf(text, sizeof text, "global address 0x%llx, %d bytes, lane %d of wave %d, is no memory of this launch",
             (unsigned long long)address, bytes, lane, w.number);
    fault(w, in, text);
}

u8 *scratch_at(Wave &w, const Instruction &in, u64 offset, int bytes, int lane) {
    if (offset + (u64)bytes > w.run->scratch_bytes) fault(w, in, "scratch byte " + std::to_string(offset));
    return w.scratch + (u64)lane * w.run->scratch_bytes + offset;
}

template <int BYTES> static void store_lane(const Wave &w, const Access &access, u8 *to, int data, int lane) {
    for (int k = 0; k < BYTES / 4; ++k) memcpy(to + 4 * k, &w.v[data + k][lane], 4);
    if (BYTES >= 4) return;
    u32 x = w.v[data][lane] >> (access.high ? 16 : 0);
    memcpy(to, &x, BYTES);
}

template <int BYTES> static void load_lane(Wave &w, const Access &access, const u8 *from, int data, int lane) {
    for (int k = 0; k < BYTES / 4; ++k) {
        if (from) memcpy(&w.v[data + k][lane], from + 4 * k, 4);
        else w.v[data + k][lane] = 0;
    }
    if (BYTES >= 4) return;
    u32 x = 0, &to = w.v[data][lane];
    if (from) memcpy(&x, from, BYTES);
    if (access.sign) x = BYTES == 1 ? (u32)(i32)(int8_t)x : (u32)(i32)(int16_t)x;
    if (access.d16) x = access.high ? (to & 0xffffu) | x << 16 : (to & 0xffff0000u) | (x & 0xffffu);
    to = x;
}

/* The width as a constant: copies of a few bytes become single instructions of the host. */
template <int BYTES>
static void transfer_width(Wave &w, const Access &access, u8 *const *at, u64 lanes, int data, u64 zero) {
    if (access.store) {
        for (u64 rest = lanes; rest; rest &= rest - 1) {
            int l = __builtin_ctzll(rest);
            store_lane<BYTES>(w, access, at[l], data, l);
        }
        return;
    }
    for (u64 rest = lanes | zero; rest; rest &= rest - 1) {
        int l = __builtin_ctzll(rest);
        load_lane<BYTES>(w, access, lanes >> l & 1 ? at[l] : nullptr, data, l);
    }
}

void transfer(Wave &w, const Instruction &in, u8 *const *at, u64 lanes, int data, u64 zero) {
    const Access access = in.access;
    switch (access.bytes) {
    case 1: return transfer_width<1>(w, access, at, lanes, data, zero);
    case 2: return transfer_width<2>(w, access, at, lanes, data, zero);
    case 4: return transfer_width<4>(w, access, at, lanes, data, zero);
    case 8: return transfer_width<8>(w, access, at, lanes, data, zero);
    case 12: return transfer_width<12>(w, access, at, lanes, data, zero);
    case 16: return transfer_width<16>(w, access, at, lanes, data, zero);
    default: fault(w, in, "an access of " + std::to_string(access.bytes) + " bytes");
    }
}

static u32 packed_sum(u32 a, u32 b, bool bf16) {
    u32 r = 0;
    for (int h = 0; h < 2; ++h) {
        u32 x = a >> 16 * h & 0xffffu, y = b >> 16 * h & 0xffffu;
        u32 sum = bf16 ? float_to_bf16(bf16_to_float(x) + bf16_to_float(y))
                       : float_to_half(half_to_float(x) + half_to_float(y));
        r |= sum << 16 * h;
    }
    return r;
}

static float flushed(float x) { return fabsf(x) < 1.17549435e-38f ? 0.0f : x; }

static u64 combined(Atomic kind, u64 old, u64 data, u64 compare, bool wide) {
    i64 signed_old = wide ? (i64)old : (i64)(i32)old, signed_data = wide ? (i64)data : (i64)(i32)data;
    switch (kind) {
    case Atomic::add: return old + data;
    case Atomic::sub: return old - data;
    case Atomic::and_: return old & data;
    case Atomic::or_: return old | data;
    case Atomic::xor_: return old ^ data;
    case Atomic::umax: return std::max(old, data);
    case Atomic::umin: return std::min(old, data);
    case Atomic::smax: return (u64)std::max(signed_old, signed_data);
    case Atomic::smin: return (u64)std::min(signed_old, signed_data);
    case Atomic::swap: return data;
    case Atomic::compare_swap: return old == compare ? data : old;
    case Atomic::increment: return old >= data ? 0 : old + 1;
    case Atomic::decrement: return old == 0 || old > data ? data : old - 1;
    case Atomic::add_f32: return as_bits(as_float((u32)old) + as_float((u32)data));
    case Atomic::add_f32_flushed: return as_bits(flushed(flushed(as_float((u32)old)) + flushed(as_float((u32)data))));
    case Atomic::add_f64: return as_bits64(as_double(old) + as_double(data));
    case Atomic::max_f64: return as_bits64(fmax(as_double(old), as_double(data)));
    case Atomic::min_f64: return as_bits64(fmin(as_double(old), as_double(data)));
    case Atomic::packed_add_f16: return packed_sum((u32)old, (u32)data, false);
    case Atomic::packed_add_bf16: return packed_sum((u32)old, (u32)data, true);
    case Atomic::none: break;
    }
    return old;
}

template <class T> static T exchange(T *at, Atomic kind, u64 data, u64 compare) {
    T old = __atomic_load_n(at, __ATOMIC_RELAXED), next;
    do next = (T)combined(kind, old, data, compare, sizeof(T) == 8);
    while (!__atomic_compare_exchange_n(at, &old, next, false, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED));
    return old;
}

/* compare: register of the compare value of LDS instructions; global ones have it behind the data. */
void transfer_atomic(Wave &w, const Instruction &in, u8 *const *at, u64 lanes, int data, int compare, int back) {
    Atomic kind = in.access.atomic;
    bool wide = in.access.bytes == 8, comparing = kind == Atomic::compare_swap;
    if (kind == Atomic::add_f32 && in.access.space != Access::lds &&
        (w.run->flushes_subnormals || w.run->launch->flush))
        kind = Atomic::add_f32_flushed;
    auto value = [&](int reg, int l) { return w.v[reg][l] | (wide ? (u64)w.v[reg + 1][l] << 32 : 0); };
    for (u64 rest = lanes; rest; rest &= rest - 1) {
        int l = __builtin_ctzll(rest);
        u64 x = value(data, l), expected = 0, old;
        if (comparing && compare >= 0) { /* LDS: first the compare value, then the data */
            expected = x;
            x = value(compare, l);
        } else if (comparing) {
            expected = value(data + (wide ? 2 : 1), l);
        }
        if (wide) old = exchange((u64 *)(void *)at[l], kind, x, expected);
        else old = exchange((u32 *)(void *)at[l], kind, x, expected);
        if (back < 0) continue;
        w.v[back][l] = (u32)old;
        if (wide) w.v[back + 1][l] = (u32)(old >> 32);
    }
}

/* loads: data, address, base; stores: address, data, base; atomics that return: result, address, data, base. */
void run_memory(Wave &w, const Instruction &in) {
    const Access &access = in.access;
    bool atomic = access.atomic != Atomic::none, takes_data = access.store || atomic;
    int k = 0, back = -1;
    if (!takes_data || (atomic && in.returns)) back = in.op[k++].index;
    const Operand &address = in.op[k++];
    int data = takes_data ? in.op[k++].index : back;
    const Operand &base = in.op[k];
    bool has_base = k < in.count && base.place == Place::scalar;
    u64 start = has_base ? scalar64(w, base) : 0, lanes = w.exec();
    u8 *at[LANES];
    for (u64 rest = lanes; rest; rest &= rest - 1) {
        int l = __builtin_ctzll(rest);
        if (access.space == Access::scratch) {
            u32 offset = (u32)in.offset;
            if (address.place == Place::vector) offset += w.v[address.index][l];
            if (has_base) offset += w.s[base.index];
            at[l] = scratch_at(w, in, offset, access.bytes, l);
            continue;
        }
        u64 a =
            has_base ? start + w.v[address.index][l] : (w.v[address.index][l] | (u64)w.v[address.index + 1][l] << 32);
        a += (u64)(i64)in.offset;
        if (access.space == Access::flat && a >> 48 == 1) {
            at[l] = lds_at(w, in, (u32)a, access.bytes,
                           atomic         ? Touch::atomic
                           : access.store ? Touch::write
                                          : Touch::read);
        } else if (access.space == Access::flat && a >> 48 == 2) {
            at[l] = scratch_at(w, in, (u32)a, access.bytes, l);
        } else {
            check_global(w, in, a, access.bytes, l);
            /* HSA runs in the unaligned mode, and the compiler joins loads of 16-bit elements: only atomics are
             * strict. */
            if (atomic && a & (access.bytes - 1)) fault(w, in, "misaligned address");
            at[l] = (u8 *)a;
        }
    }
    if (w.pending && !atomic && access.space == Access::global && access.bytes == 4) watch_semaphores(w, in, at, lanes);
    if (atomic) transfer_atomic(w, in, at, lanes, data, -1, back);
    else transfer(w, in, at, lanes, data);
}

/* Raw and structured buffers, whose accesses beyond num_records read zero and write nothing; and gfx90a's
 * scratch, which is a buffer with a base of our choosing (schedule.cpp). */
enum { SCRATCH_BUFFER_HIGH = 0x5C };

void run_buffer(Wave &w, const Instruction &in) {
    const Access &access = in.access;
    int data = in.op[0].index;
    const Operand &address = in.op[1], &resource = in.op[2];
    const u32 *r = &w.s[resource.index];
    u64 base = r[0] | (u64)(r[1] & 0xffffu) << 32, lanes = w.exec(), inside = 0;
    u32 stride = r[1] >> 16 & 0x3fff, records = r[2], offset_s = scalar32(w, in.op[3]);
    bool scratch = base == (u64)SCRATCH_BUFFER_HIGH << 32, structured = stride && in.idxen;
    u8 *at[LANES];
    for (u64 rest = lanes; rest; rest &= rest - 1) {
        int l = __builtin_ctzll(rest), reg = address.index;
        u32 index = in.idxen ? w.v[reg++][l] : 0, offset = (u32)in.offset + (in.offen ? w.v[reg][l] : 0);
        if (scratch) {
            at[l] = scratch_at(w, in, offset + offset_s / LANES, access.bytes, l);
            inside |= 1ull << l;
            continue;
        }
        u64 o = (u64)stride * index + offset;
        if (structured ? index >= records : o + (u64)access.bytes > records) {
            if (!structured && access.bytes > 4 && o < records) fault(w, in, "an access across the buffer's end");
            continue;
        }
        check_global(w, in, base + o + offset_s, access.bytes, l);
        at[l] = (u8 *)(base + o + offset_s);
        inside |= 1ull << l;
    }
    if (access.atomic != Atomic::none) transfer_atomic(w, in, at, inside, data, -1, in.returns ? data : -1);
    else transfer(w, in, at, inside, data, access.store ? 0 : lanes & ~inside);
}

} // namespace cdna
