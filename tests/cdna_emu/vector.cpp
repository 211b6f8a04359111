/* SPDX-License-Identifier: MIT
 *
 * Vector instructions on 32-bit lanes: f32 and integers, carries, conversions, lane access, packed f32. */
#include "machine.h"

#include <algorithm>
#include <cmath>

namespace cdna {

/* Every lane's result from its sources; the expression sees a, b, c. */
#define EACH_LANE for (int l = 0; l < LANES; ++l)
#define FLOAT1(name, expression)                                                                                       \
    {#name, [](Wave &w, const Instruction &in) {                                                                       \
         const u32 *A = source(w, in, 1, Read::f32);                                                                   \
         alignas(64) u32 r[LANES];                                                                                     \
         EACH_LANE {                                                                                                   \
             float a = as_float(A[l]);                                                                                 \
             r[l] = as_bits(output(in, expression));                                                                   \
         }                                                                                                             \
         result(w, in, r);                                                                                             \
     }}
#define FLOAT2(name, expression)                                                                                       \
    {#name, [](Wave &w, const Instruction &in) {                                                                       \
         const u32 *A = source(w, in, 1, Read::f32), *B = source(w, in, 2, Read::f32);                                 \
         alignas(64) u32 r[LANES];                                                                                     \
         EACH_LANE {                                                                                                   \
             float a = as_float(A[l]), b = as_float(B[l]);                                                             \
             r[l] = as_bits(expression);                                                                               \
         }                                                                                                             \
         if (in.scale || in.clamp) EACH_LANE r[l] = as_bits(output(in, as_float(r[l])));                               \
         result(w, in, r);                                                                                             \
     }}
#define FLOAT3(name, expression)                                                                                       \
    {#name, [](Wave &w, const Instruction &in) {                                                                       \
         const u32 *A = source(w, in, 1, Read::f32), *B = source(w, in, 2, Read::f32),                                 \
                   *C = source(w, in, 3, Read::f32);                                                                   \
         alignas(64) u32 r[LANES];                                                                                     \
         EACH_LANE {                                                                                                   \
             float a = as_float(A[l]), b = as_float(B[l]), c = as_float(C[l]);                                         \
             r[l] = as_bits(expression);                                                                               \
         }                                                                                                             \
         if (in.scale || in.clamp) EACH_LANE r[l] = as_bits(output(in, as_float(r[l])));                               \
         result(w, in, r);                                                                                             \
     }}
/* The destination is the third source. */
#define ACCUMULATE(name, expression)                                                                                   \
    {#name, [](Wave &w, const Instruction &in) {                                                                       \
         const u32 *A = source(w, in, 1, Read::f32), *B = source(w, in, 2, Read::f32), *C = w.v[in.op[0].index];       \
         alignas(64) u32 r[LANES];                                                                                     \
         EACH_LANE {                                                                                                   \
             float a = as_float(A[l]), b = as_float(B[l]), c = as_float(C[l]);                                         \
             r[l] = as_bits(output(in, expression));                                                                   \
         }                                                                                                             \
         result(w, in, r);                                                                                             \
     }}
#define WORD1(name, expression)                                                                                        \
    {#name, [](Wave &w, const Instruction &in) {                                                                       \
         const u32 *A = source(w, in, 1);                                                                              \
         alignas(64) u32 r[LANES];                                                                                     \
         EACH_LANE {                                                                                                   \
             u32 a = A[l];                                                                                             \
             r[l] = expression;                                                                                        \
         }                                                                                                             \
         result(w, in, r);                                                                                             \
     }}
#define WORD2(name, expression)                                                                                        \
    {#name, [](Wave &w, const Instruction &in) {                                                                       \
         const u32 *A = source(w, in, 1), *B = source(w, in, 2);                                                       \
         alignas(64) u32 r[LANES];                                                                                     \
         EACH_LANE {                                                                                                   \
             u32 a = A[l], b = B[l];                                                                                   \
             r[l] = expression;                                                                                        \
         }                                                                                                             \
         result(w, in, r);                                                                                             \
     }}
#define WORD3(name, expression)                                                                                        \
    {#name, [](Wave &w, const Instruction &in) {                                                                       \
         const u32 *A = source(w, in, 1), *B = source(w, in, 2), *C = source(w, in, 3);                                \
         alignas(64) u32 r[LANES];                                                                                     \
         EACH_LANE {                                                                                                   \
             u32 a = A[l], b = B[l], c = C[l];                                                                         \
             r[l] = expression;                                                                                        \
         }                                                                                                             \
         result(w, in, r);                                                                                             \
     }}
/* dst, carry out, a, b[, carry in]; the expression in 64 bits. */
#define CARRY(name, expression, takes)                                                                                 \
    {#name, [](Wave &w, const Instruction &in) {                                                                       \
         const u32 *A = source(w, in, 2), *B = source(w, in, 3);                                                       \
         u64 carry_in = takes ? scalar64(w, in.op[4]) : 0, carry_out = 0, lanes = w.exec();                            \
         alignas(64) u32 r[LANES];                                                                                     \
         EACH_LANE {                                                                                                   \
             u64 a = A[l], b = B[l], c = carry_in >> l & 1, x = expression;                                            \
             (void)c;                                                                                                  \
             r[l] = (u32)x;                                                                                            \
             if (lanes >> l & x >> 32 & 1) carry_out |= 1ull << l;                                                     \
         }                                                                                                             \
         result(w, in, r);                                                                                             \
         result_mask(w, in, 1, carry_out);                                                                             \
     }}

static const float SMALLEST_NORMAL = 1.17549435e-38f;
static float flushed(float a) { return fabsf(a) < SMALLEST_NORMAL ? 0.0f : a; }
static float larger(float a, float b) {
    return a != a ? b : b != b ? a : a > b || (a == b && !std::signbit(a)) ? a : b;
}
static float smaller(float a, float b) {
    return a != a ? b : b != b ? a : a < b || (a == b && std::signbit(a)) ? a : b;
}
static float fraction(float a) {
    float r = a - floorf(a);
    return r < 1.0f ? r : 0x1.fffffep-1f;
}
static u32 to_u32(float a) { return a != a || a <= 0 ? 0 : a >= 4294967296.0f ? ~0u : (u32)a; }
static u32 to_i32(float a) {
    return a != a ? 0 : a >= 2147483648.0f ? 0x7fffffffu : a <= -2147483648.0f ? 0x80000000u : (u32)(i32)a;
}
static float mantissa(float a) {
    int e;
    return std::isfinite(a) ? frexpf(a, &e) : a;
}
static u32 exponent(float a) {
    int e = 0;
    if (std::isfinite(a) && a != 0) frexpf(a, &e);
    return (u32)e;
}
static u32 rounded_to_zero_half(float a) {
    u32 h = float_to_half(a);
    float back = half_to_float(h);
    if (std::isinf(back) && std::isfinite(a)) return (h & 0x8000u) | 0x7bffu;
    return fabsf(back) > fabsf(a) ? h - 1 : h;
}
static u32 field(u32 a, u32 from, u32 bits, bool sign) {
    from &= 31, bits &= 31;
    if (!bits) return 0;
    u32 x = a >> from << (32 - bits);
    return sign ? (u32)((i32)x >> (32 - bits)) : x >> (32 - bits);
}
static u32 permuted(u32 a, u32 b, u32 select) {
    u64 bytes = (u64)a << 32 | b;
    u32 r = 0;
    for (int i = 0; i < 4; ++i) {
        u32 s = select >> 8 * i & 255, x;
        if (s < 8) x = (u32)(bytes >> 8 * s) & 255;
        else if (s < 12) x = bytes >> ((s - 8) * 16 + 15) & 1 ? 255 : 0;
        else x = s == 12 ? 0 : 255;
        r |= x << 8 * i;
    }
    return r;
}
static i32 low24(u32 x) { return (i32)(x << 8) >> 8; }

/* v_bitop3: its table has the bit of 4 a + 2 b + c. */
static void run_bits_of_three(Wave &w, const Instruction &in, bool of_16) {
    const Read read = of_16 ? Read::f16 : Read::bits;
    const u32 *source_of[3] = {source(w, in, 1, read), source(w, in, 2, read), source(w, in, 3, read)};
    alignas(64) u32 r[LANES] = {0};
    for (u32 row = 0; row < 8; ++row) EACH_LANE {
            u32 bits = in.form >> row & 1 ? ~0u : 0;
            for (u32 k = 0; k < 3; ++k) bits &= row >> (2 - k) & 1 ? source_of[k][l] : ~source_of[k][l];
            r[l] |= bits;
        }
    of_16 ? result16(w, in, r) : result(w, in, r);
}

/* gfx950: of each two rows of so many lanes, the second of the first operand and the first of the second. */
static void run_lane_swap(Wave &w, const Instruction &in, int rows) {
    if (~w.exec()) fault(w, in, "lanes are swapped where some are off");
    u32 *x = w.v[in.op[0].index], *y = w.v[in.op[1].index];
    EACH_LANE if (l & rows) std::swap(x[l], y[l - rows]);
}

static const Entry floats[] = {
    FLOAT1(v_exp_f32, flushed(exp2f(flushed(a)))),
    FLOAT1(v_log_f32, log2f(flushed(a))),
    FLOAT1(v_rcp_f32, 1.0f / a),
    FLOAT1(v_rcp_iflag_f32, 1.0f / a),
    FLOAT1(v_rsq_f32, 1.0f / sqrtf(a)),
    FLOAT1(v_sqrt_f32, sqrtf(a)),
    FLOAT1(v_rndne_f32, nearbyintf(a)),
    FLOAT1(v_floor_f32, floorf(a)),
    FLOAT1(v_ceil_f32, ceilf(a)),
    FLOAT1(v_trunc_f32, truncf(a)),
    FLOAT1(v_fract_f32, fraction(a)),
    FLOAT1(v_frexp_mant_f32, mantissa(a)),
    FLOAT2(v_add_f32, a + b),
    FLOAT2(v_sub_f32, a - b),
    FLOAT2(v_subrev_f32, b - a),
    FLOAT2(v_mul_f32, a *b),
    FLOAT2(v_mul_legacy_f32, a == 0 || b == 0 ? 0.0f : a * b),
    FLOAT2(v_max_f32, larger(a, b)),
    FLOAT2(v_min_f32, smaller(a, b)),
    FLOAT3(v_fma_f32, fmaf(a, b, c)),
    FLOAT3(v_mad_f32, a *b + c),
    FLOAT3(v_max3_f32, larger(larger(a, b), c)),
    FLOAT3(v_min3_f32, smaller(smaller(a, b), c)),
    FLOAT3(v_med3_f32, larger(smaller(a, b), smaller(larger(a, b), c))),
    FLOAT3(v_fmamk_f32, fmaf(a, b, c)),
    FLOAT3(v_fmaak_f32, fmaf(a, b, c)),
    FLOAT3(v_madmk_f32, a *b + c),
    FLOAT3(v_madak_f32, a *b + c),
    ACCUMULATE(v_fmac_f32, fmaf(a, b, c)),
    ACCUMULATE(v_mac_f32, a *b + c),
};

static const Entry words[] = {
    WORD1(v_mov_b32, a),
    WORD1(v_not_b32, ~a),
    WORD1(v_bfrev_b32, reversed(a)),
    WORD1(v_ffbh_u32, a ? (u32)__builtin_clz(a) : ~0u),
    WORD1(v_ffbl_b32, a ? (u32)__builtin_ctz(a) : ~0u),
    WORD1(v_ffbh_i32, a == 0 || a == ~0u ? ~0u : (u32)__builtin_clz((i32)a < 0 ? ~a : a)),
    WORD1(v_accvgpr_read_b32, a),
    WORD1(v_accvgpr_write_b32, a),
    WORD1(v_accvgpr_mov_b32, a),
    WORD1(v_cvt_f32_u32, as_bits((float)a)),
    WORD1(v_cvt_f32_i32, as_bits((float)(i32)a)),
    WORD1(v_cvt_f32_ubyte0, as_bits((float)(a & 255))),
    WORD1(v_cvt_f32_ubyte1, as_bits((float)(a >> 8 & 255))),
    WORD1(v_cvt_f32_ubyte2, as_bits((float)(a >> 16 & 255))),
    WORD1(v_cvt_f32_ubyte3, as_bits((float)(a >> 24))),
    WORD2(v_and_b32, a &b),
    WORD2(v_or_b32, a | b),
    WORD2(v_xor_b32, a ^ b),
    WORD2(v_xnor_b32, ~(a ^ b)),
    WORD2(v_lshlrev_b32, b << (a & 31)),
    WORD2(v_lshrrev_b32, b >> (a & 31)),
    WORD2(v_ashrrev_i32, (u32)((i32)b >> (a & 31))),
    WORD2(v_add_u32, a + b),
    WORD2(v_sub_u32, a - b),
    WORD2(v_subrev_u32, b - a),
    WORD2(v_max_u32, std::max(a, b)),
    WORD2(v_min_u32, std::min(a, b)),
    WORD2(v_max_i32, (u32)std::max((i32)a, (i32)b)),
    WORD2(v_min_i32, (u32)std::min((i32)a, (i32)b)),
    WORD2(v_mul_u32_u24, (a & 0xffffffu) * (b & 0xffffffu)),
    WORD2(v_mul_i32_i24, (u32)(low24(a) * low24(b))),
    WORD2(v_mul_hi_u32_u24, (u32)((u64)(a & 0xffffffu) * (b & 0xffffffu) >> 32)),
    WORD2(v_mul_lo_u32, a *b),
    WORD2(v_mul_hi_u32, (u32)((u64)a *b >> 32)),
    WORD2(v_mul_hi_i32, (u32)((i64)(i32)a *(i32)b >> 32)),
    WORD2(v_bfm_b32, ((1u << (a & 31)) - 1) << (b & 31)),
    WORD2(v_bcnt_u32_b32, (u32)__builtin_popcount(a) + b),
    WORD3(v_mad_u32_u24, (a & 0xffffffu) * (b & 0xffffffu) + c),
    WORD3(v_mad_i32_i24, (u32)(low24(a) * low24(b)) + c),
    WORD3(v_mad_u32_u16, (a & 0xffffu) * (b & 0xffffu) + c),
    WORD3(v_bfe_u32, field(a, b, c, false)),
    WORD3(v_bfe_i32, field(a, b, c, true)),
    WORD3(v_bfi_b32, (a & b) | (~a & c)),
    WORD3(v_alignbit_b32, (u32)(((u64)a << 32 | b) >> (c & 31))),
    WORD3(v_alignbyte_b32, (u32)(((u64)a << 32 | b) >> 8 * (c & 3))),
    WORD3(v_perm_b32, permuted(a, b, c)),
    WORD3(v_and_or_b32, (a & b) | c),
    WORD3(v_or3_b32, a | b | c),
    WORD3(v_xad_u32, (a ^ b) + c),
    WORD3(v_lshl_or_b32, a << (b & 31) | c),
    WORD3(v_lshl_add_u32, (a << (b & 31)) + c),
    WORD3(v_add_lshl_u32, (a + b) << (c & 31)),
    WORD3(v_add3_u32, a + b + c),
    WORD3(v_max3_u32, std::max(std::max(a, b), c)),
    WORD3(v_min3_u32, std::min(std::min(a, b), c)),
    WORD3(v_max3_i32, (u32)std::max(std::max((i32)a, (i32)b), (i32)c)),
    WORD3(v_min3_i32, (u32)std::min(std::min((i32)a, (i32)b), (i32)c)),
    WORD3(v_med3_i32, (u32)std::max(std::min((i32)a, (i32)b), std::min(std::max((i32)a, (i32)b), (i32)c))),
    WORD3(v_med3_u32, std::max(std::min(a, b), std::min(std::max(a, b), c))),
    CARRY(v_add_co_u32, a + b, false),
    CARRY(v_sub_co_u32, a - b, false),
    CARRY(v_subrev_co_u32, b - a, false),
    CARRY(v_addc_co_u32, a + b + c, true),
    CARRY(v_subb_co_u32, a - b - c, true),
    CARRY(v_subbrev_co_u32, b - a - c, true),
};

/* Sources read as floats, results that are not (or the other way round). */
#define FLOAT_TO_WORD(name, expression)                                                                                \
    {#name, [](Wave &w, const Instruction &in) {                                                                       \
         const u32 *A = source(w, in, 1, Read::f32);                                                                   \
         alignas(64) u32 r[LANES];                                                                                     \
         EACH_LANE {                                                                                                   \
             float a = as_float(A[l]);                                                                                 \
             r[l] = expression;                                                                                        \
         }                                                                                                             \
         result(w, in, r);                                                                                             \
     }}

static void run_select(Wave &w, const Instruction &in) {
    const u32 *A = source(w, in, 1, Read::f32), *B = source(w, in, 2, Read::f32);
    u64 mask = in.count > 3 ? scalar64(w, in.op[3]) : w.vcc();
    alignas(64) u32 r[LANES];
    memcpy(r, A, sizeof r);
    store_lanes(r, B, mask);
    result(w, in, r);
}

static void run_read_first(Wave &w, const Instruction &in) {
    u64 lanes = w.exec();
    int l = lanes ? __builtin_ctzll(lanes) : 0;
    const Operand &o = in.op[1];
    set_scalar32(w, in.op[0], o.place == Place::vector ? w.v[o.index][l] : scalar32(w, o));
}

static void run_count_below(Wave &w, const Instruction &in, int first) {
    const u32 *A = source(w, in, 1), *B = source(w, in, 2);
    alignas(64) u32 r[LANES];
    EACH_LANE {
        int below = l - first;
        u32 mask = below <= 0 ? 0 : below >= 32 ? ~0u : (1u << below) - 1;
        r[l] = B[l] + (u32)__builtin_popcount(A[l] & mask);
    }
    result(w, in, r);
}

/* Packed f32: two registers; op_sel and op_sel_hi choose which half of a source each half of the result sees. */
static void packed_source(Wave &w, const Instruction &in, int k, u32 *low, u32 *high) {
    const Operand &o = in.op[k];
    int from[2] = {in.op_sel[k - 1], in.op_sel_hi[k - 1]}, negate[2] = {in.neg_lo[k - 1], in.neg_hi[k - 1]};
    u32 *to[2] = {low, high};
    for (int h = 0; h < 2; ++h) {
        u32 flip = negate[h] ? 0x80000000u : 0;
        const u32 *lanes = o.place == Place::vector ? w.v[o.index + from[h]] : nullptr;
        u32 same = o.place == Place::scalar ? w.s[o.index + from[h]] : o.bits32, *values = to[h];
        if (lanes) EACH_LANE values[l] = lanes[l] ^ flip;
        else EACH_LANE values[l] = same ^ flip;
    }
}

template <class F> static void packed_float(Wave &w, const Instruction &in, int sources, F f) {
    alignas(64) u32 x[3][2][LANES] = {}, r[2][LANES];
    for (int k = 0; k < sources; ++k) packed_source(w, in, k + 1, x[k][0], x[k][1]);
    for (int h = 0; h < 2; ++h) {
        EACH_LANE r[h][l] = as_bits(f(as_float(x[0][h][l]), as_float(x[1][h][l]), as_float(x[2][h][l])));
    }
    result(w, in, r[0], 0);
    result(w, in, r[1], 1);
}

static void run_packed_move(Wave &w, const Instruction &in) {
    alignas(64) u32 r[2][LANES];
    for (int k = 1; k <= 2; ++k) {
        const Operand &o = in.op[k];
        int from = in.op_sel[k - 1];
        EACH_LANE r[k - 1][l] = o.place == Place::vector   ? w.v[o.index + from][l]
                                : o.place == Place::scalar ? w.s[o.index + from]
                                                           : o.bits32;
    }
    result(w, in, r[0], 0);
    result(w, in, r[1], 1);
}

static const Entry others[] = {
    FLOAT_TO_WORD(v_cvt_u32_f32, to_u32(a)),
    FLOAT_TO_WORD(v_cvt_i32_f32, to_i32(a)),
    FLOAT_TO_WORD(v_frexp_exp_i32_f32, exponent(a)),
    {"v_ldexp_f32",
     [](Wave &w, const Instruction &in) {
         const u32 *A = source(w, in, 1, Read::f32), *B = source(w, in, 2);
         alignas(64) u32 r[LANES];
         EACH_LANE r[l] = as_bits(output(in, ldexpf(as_float(A[l]), (i32)B[l])));
         result(w, in, r);
     }},
    {"v_cvt_pkrtz_f16_f32",
     [](Wave &w, const Instruction &in) {
         const u32 *A = source(w, in, 1, Read::f32), *B = source(w, in, 2, Read::f32);
         alignas(64) u32 r[LANES];
         EACH_LANE r[l] = rounded_to_zero_half(as_float(A[l])) | rounded_to_zero_half(as_float(B[l])) << 16;
         result(w, in, r);
     }},
    {"v_cndmask_b32", run_select},
    {"v_readfirstlane_b32", run_read_first},
    {"v_readlane_b32",
     [](Wave &w, const Instruction &in) {
         set_scalar32(w, in.op[0], w.v[in.op[1].index][scalar32(w, in.op[2]) & 63]);
     }},
    {"v_writelane_b32",
     [](Wave &w, const Instruction &in) { w.v[in.op[0].index][scalar32(w, in.op[2]) & 63] = scalar32(w, in.op[1]); }},
    {"v_mbcnt_lo_u32_b32", [](Wave &w, const Instruction &in) { run_count_below(w, in, 0); }},
    {"v_mbcnt_hi_u32_b32", [](Wave &w, const Instruction &in) { run_count_below(w, in, 32); }},
    {"v_swap_b32",
     [](Wave &w, const Instruction &in) {
         u64 lanes = w.exec();
         EACH_LANE if (lanes >> l & 1) std::swap(w.v[in.op[0].index][l], w.v[in.op[1].index][l]);
     }},
    {"v_permlane16_swap_b32", [](Wave &w, const Instruction &in) { run_lane_swap(w, in, 16); }},
    {"v_permlane32_swap_b32", [](Wave &w, const Instruction &in) { run_lane_swap(w, in, 32); }},
    {"v_bitop3_b32", [](Wave &w, const Instruction &in) { run_bits_of_three(w, in, false); }},
    {"v_bitop3_b16", [](Wave &w, const Instruction &in) { run_bits_of_three(w, in, true); }},
    {"v_nop", run_nothing},
    {"v_pk_add_f32",
     [](Wave &w, const Instruction &in) { packed_float(w, in, 2, [](float a, float b, float) { return a + b; }); }},
    {"v_pk_mul_f32",
     [](Wave &w, const Instruction &in) { packed_float(w, in, 2, [](float a, float b, float) { return a * b; }); }},
    {"v_pk_fma_f32",
     [](Wave &w, const Instruction &in) {
         packed_float(w, in, 3, [](float a, float b, float c) { return fmaf(a, b, c); });
     }},
    {"v_pk_mov_b32", run_packed_move},
};

void add_vector(Handlers &to) {
    for (const Entry &e : floats) to[e.name] = e.run;
    for (const Entry &e : words) to[e.name] = e.run;
    for (const Entry &e : others) to[e.name] = e.run;
}

} // namespace cdna
