/* SPDX-License-Identifier: MIT
 *
 * Reading and writing vector registers: constants and scalars spread over the lanes, source and destination
 * modifiers, sub-dword selection (SDWA), and writes under the EXEC mask. */
#include "machine.h"

#ifdef __AVX512F__
#include <immintrin.h>
#endif

namespace cdna {

static u32 selected(u32 x, int select, bool sign) {
    if (select <= 3) {
        u32 byte = x >> 8 * select & 0xffu;
        return sign ? (u32)(i32)(int8_t)byte : byte;
    }
    if (select <= 5) {
        u32 half = x >> 16 * (select - 4) & 0xffffu;
        return sign ? (u32)(i32)(int16_t)half : half;
    }
    return x;
}

static u32 uniform(const Wave &w, const Operand &o, Read read, int part) {
    if (o.place == Place::constant) {
        if (read == Read::f16 && o.is_float) return float_to_half(o.value);
        return part ? (u32)(o.bits >> 32) : o.bits32;
    }
    return part ? (u32)(scalar64(w, o) >> 32) : scalar32(w, o);
}

const u32 *source(Wave &w, const Instruction &in, int k, Read read, int part) {
    const Operand &o = in.op[k];
    u32 *spread = w.temporary[k];
    const u32 *lanes = spread;
    if (o.place == Place::vector) {
        lanes = w.v[o.index + part];
    } else {
        u32 x = uniform(w, o, read, part);
        for (int l = 0; l < LANES; ++l) spread[l] = x;
    }
    if (in.sdwa && (k == 1 || k == 2) && (in.src_select[k - 1] != SELECT_DWORD || o.sign_extend)) {
        for (int l = 0; l < LANES; ++l) spread[l] = selected(lanes[l], in.src_select[k - 1], o.sign_extend);
        lanes = spread;
    }
    if (in.op_sel_given && read == Read::f16 && in.op_sel[k - 1]) {
        for (int l = 0; l < LANES; ++l) spread[l] = lanes[l] >> 16;
        lanes = spread;
    }
    if (o.negate || o.absolute) {
        u32 sign = read == Read::f16 ? 0x8000u : 0x80000000u;
        u32 keep = o.absolute ? ~sign : ~0u, flip = o.negate ? sign : 0;
        for (int l = 0; l < LANES; ++l) spread[l] = (lanes[l] & keep) ^ flip;
        lanes = spread;
    }
    return lanes;
}

void source64(Wave &w, const Instruction &in, int k, u64 *values, bool as_f64) {
    const Operand &o = in.op[k];
    if (o.place == Place::vector) {
        const u32 *low = w.v[o.index], *high = w.v[o.index + 1];
        for (int l = 0; l < LANES; ++l) values[l] = low[l] | (u64)high[l] << 32;
    } else {
        u64 x = scalar64(w, o);
        for (int l = 0; l < LANES; ++l) values[l] = x;
    }
    if (!as_f64) return;
    const u64 sign = 1ull << 63;
    if (o.absolute)
        for (int l = 0; l < LANES; ++l) values[l] &= ~sign;
    if (o.negate)
        for (int l = 0; l < LANES; ++l) values[l] ^= sign;
}

void store_lanes(u32 *to, const u32 *from, u64 mask) {
    if (mask == ~0ull) {
        memcpy(to, from, LANES * sizeof *to);
        return;
    }
#ifdef __AVX512F__
    for (int q = 0; q < LANES / 16; ++q)
        _mm512_mask_storeu_epi32(to + 16 * q, (__mmask16)(mask >> 16 * q), _mm512_loadu_si512(from + 16 * q));
#else
    for (int l = 0; l < LANES; ++l) to[l] = mask >> l & 1 ? from[l] : to[l];
#endif
}

void result(Wave &w, const Instruction &in, const u32 *values, int part) {
    u32 *to = w.v[in.op[0].index + part];
    u64 mask = w.exec();
    if (!in.sdwa || in.dst_select == SELECT_DWORD) {
        store_lanes(to, values, mask);
        return;
    }
    alignas(64) u32 merged[LANES];
    bool byte = in.dst_select < 4;
    int shift = byte ? 8 * in.dst_select : 16 * (in.dst_select - 4);
    u32 field = (byte ? 0xffu : 0xffffu) << shift;
    for (int l = 0; l < LANES; ++l) {
        u32 x = values[l] << shift & field;
        if (in.dst_unused == UNUSED_PRESERVE) x |= to[l] & ~field;
        if (in.dst_unused == UNUSED_SIGN)
            x = (byte ? (u32)(i32)(int8_t)values[l] : (u32)(i32)(int16_t)values[l]) << shift;
        merged[l] = x;
    }
    store_lanes(to, merged, mask);
}

void result64(Wave &w, const Instruction &in, const u64 *values) {
    alignas(64) u32 low[LANES], high[LANES];
    for (int l = 0; l < LANES; ++l) low[l] = (u32)values[l], high[l] = (u32)(values[l] >> 32);
    result(w, in, low, 0);
    result(w, in, high, 1);
}

/* Most 16-bit instructions clear the upper half; those of three sources keep the half they do not write. */
void result16(Wave &w, const Instruction &in, u32 *values) {
    const u32 *old = w.v[in.op[0].index];
    for (int l = 0; l < LANES && !in.sdwa; ++l) {
        if (in.op_sel_given && in.op_sel[3]) values[l] = values[l] << 16 | (old[l] & 0xffffu);
        else if (in.half_result || in.op_sel_given) values[l] = (values[l] & 0xffffu) | (old[l] & 0xffff0000u);
        else values[l] &= 0xffffu;
    }
    result(w, in, values);
}

void run_nothing(Wave &, const Instruction &) {}

void run_unknown(Wave &w, const Instruction &in) { fault(w, in, "the emulator does not know this instruction"); }

void fault(const Wave &w, const Instruction &in, const std::string &what) {
    char place[32];
    snprintf(place, sizeof place, "0x%x", in.address);
    throw Fault(w.run->program->name + ", address " + place + ", \"" + in.text() + "\": " + what);
}

} // namespace cdna
