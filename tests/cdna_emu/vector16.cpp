/* SPDX-License-Identifier: MIT
 *
 * Vector instructions on 16-bit values: f16 and 16-bit integers, alone, packed in pairs, and mixed with f32. */
#include "machine.h"

#include <algorithm>
#include <cmath>

namespace cdna {

#define EACH_LANE for (int l = 0; l < LANES; ++l)
#define HALF1(name, expression)                                                                                        \
    {#name, [](Wave &w, const Instruction &in) {                                                                       \
         const u32 *A = source(w, in, 1, Read::f16);                                                                   \
         alignas(64) u32 r[LANES];                                                                                     \
         EACH_LANE {                                                                                                   \
             float a = half_to_float(A[l]);                                                                            \
             r[l] = float_to_half(output(in, expression));                                                             \
         }                                                                                                             \
         result16(w, in, r);                                                                                           \
     }}
#define HALF2(name, expression)                                                                                        \
    {#name, [](Wave &w, const Instruction &in) {                                                                       \
         const u32 *A = source(w, in, 1, Read::f16), *B = source(w, in, 2, Read::f16);                                 \
         alignas(64) u32 r[LANES];                                                                                     \
         EACH_LANE {                                                                                                   \
             float a = half_to_float(A[l]), b = half_to_float(B[l]);                                                   \
             r[l] = float_to_half(output(in, expression));                                                             \
         }                                                                                                             \
         result16(w, in, r);                                                                                           \
     }}
#define SHORT2(name, expression)                                                                                       \
    {#name, [](Wave &w, const Instruction &in) {                                                                       \
         const u32 *A = source(w, in, 1, Read::f16), *B = source(w, in, 2, Read::f16);                                 \
         alignas(64) u32 r[LANES];                                                                                     \
         EACH_LANE {                                                                                                   \
             u16 a = (u16)A[l], b = (u16)B[l];                                                                         \
             r[l] = (u16)(expression);                                                                                 \
         }                                                                                                             \
         result16(w, in, r);                                                                                           \
     }}
#define SHORT3(name, expression)                                                                                       \
    {#name, [](Wave &w, const Instruction &in) {                                                                       \
         const u32 *A = source(w, in, 1, Read::f16), *B = source(w, in, 2, Read::f16),                                 \
                   *C = source(w, in, 3, Read::f16);                                                                   \
         alignas(64) u32 r[LANES];                                                                                     \
         EACH_LANE {                                                                                                   \
             u16 a = (u16)A[l], b = (u16)B[l], c = (u16)C[l];                                                          \
             r[l] = (u16)(expression);                                                                                 \
         }                                                                                                             \
         result16(w, in, r);                                                                                           \
     }}
/* Both halves of a register: the expression sees the bits a, b, c of one half. */
#define PACKED(name, sources, read, expression)                                                                        \
    {#name, [](Wave &w, const Instruction &in) {                                                                       \
         alignas(64) u32 x[3][2][LANES] = {}, r[LANES] = {};                                                           \
         for (int k = 0; k < sources; ++k) halves(w, in, k + 1, read, x[k][0], x[k][1]);                               \
         for (int h = 0; h < 2; ++h) EACH_LANE {                                                                       \
                 u32 a = x[0][h][l], b = x[1][h][l], c = x[2][h][l];                                                   \
                 (void)c;                                                                                              \
                 r[l] |= ((u32)(expression) & 0xffffu) << 16 * h;                                                      \
             }                                                                                                         \
         result(w, in, r);                                                                                             \
     }}

static float larger(float a, float b) { return a != a ? b : b != b ? a : a > b ? a : b; }
static float smaller(float a, float b) { return a != a ? b : b != b ? a : a < b ? a : b; }
/* One rounding: the product is exact in double, and so is the sum to far below a half's last bit. */
static u32 fused_half(u32 a, u32 b, u32 c) {
    return half_bits((_Float16)((double)half_to_float(a) * half_to_float(b) + half_to_float(c)));
}

static void halves(Wave &w, const Instruction &in, int k, Read read, u32 *low, u32 *high) {
    const Operand &o = in.op[k];
    u32 flip[2] = {in.neg_lo[k - 1] ? 0x8000u : 0, in.neg_hi[k - 1] ? 0x8000u : 0};
    EACH_LANE {
        u32 x = o.place == Place::vector                                        ? w.v[o.index][l]
                : o.place == Place::constant && read == Read::f16 && o.is_float ? float_to_half(o.value)
                                                                                : scalar32(w, o);
        low[l] = ((in.op_sel[k - 1] ? x >> 16 : x) & 0xffffu) ^ flip[0];
        high[l] = ((in.op_sel_hi[k - 1] ? x >> 16 : x) & 0xffffu) ^ flip[1];
    }
}

/* v_fma_mix: op_sel_hi says a source is f16, op_sel which half of it. */
static void mixed_source(Wave &w, const Instruction &in, int k, float *to) {
    const Operand &o = in.op[k];
    bool half = in.op_sel_hi[k - 1];
    EACH_LANE {
        u32 x = o.place == Place::vector                           ? w.v[o.index][l]
                : o.place == Place::constant && half && o.is_float ? float_to_half(o.value)
                                                                   : scalar32(w, o);
        float f = half ? half_to_float(in.op_sel[k - 1] ? x >> 16 : x) : as_float(x);
        if (o.absolute || in.neg_hi[k - 1]) f = fabsf(f);
        if (o.negate || in.neg_lo[k - 1]) f = -f;
        to[l] = f;
    }
}

enum { MIX_F32, MIX_LOW, MIX_HIGH };
static void run_mixed(Wave &w, const Instruction &in, int to) {
    float a[LANES], b[LANES], c[LANES];
    mixed_source(w, in, 1, a);
    mixed_source(w, in, 2, b);
    mixed_source(w, in, 3, c);
    const u32 *old = w.v[in.op[0].index];
    alignas(64) u32 r[LANES];
    EACH_LANE {
        float x = output(in, fmaf(a[l], b[l], c[l]));
        r[l] = to == MIX_F32   ? as_bits(x)
               : to == MIX_LOW ? (old[l] & 0xffff0000u) | float_to_half(x)
                               : (old[l] & 0xffffu) | float_to_half(x) << 16;
    }
    result(w, in, r);
}

static const Entry entries[] = {
    HALF1(v_exp_f16, exp2f(a)),
    HALF1(v_log_f16, log2f(a)),
    HALF1(v_rcp_f16, 1.0f / a),
    HALF1(v_sqrt_f16, sqrtf(a)),
    HALF1(v_rsq_f16, 1.0f / sqrtf(a)),
    HALF1(v_rndne_f16, nearbyintf(a)),
    HALF1(v_floor_f16, floorf(a)),
    HALF1(v_ceil_f16, ceilf(a)),
    HALF1(v_trunc_f16, truncf(a)),
    HALF2(v_add_f16, a + b),
    HALF2(v_sub_f16, a - b),
    HALF2(v_subrev_f16, b - a),
    HALF2(v_mul_f16, a *b),
    HALF2(v_max_f16, larger(a, b)),
    HALF2(v_min_f16, smaller(a, b)),
    SHORT3(v_mad_legacy_u16, (u32)a *b + c),
    SHORT2(v_add_u16, a + b),
    SHORT2(v_sub_u16, a - b),
    SHORT2(v_subrev_u16, b - a),
    SHORT2(v_mul_lo_u16, (u32)a *b),
    SHORT2(v_lshlrev_b16, b << (a & 15)),
    SHORT2(v_lshrrev_b16, b >> (a & 15)),
    SHORT2(v_ashrrev_i16, (int16_t)b >> (a & 15)),
    SHORT2(v_max_u16, std::max(a, b)),
    SHORT2(v_min_u16, std::min(a, b)),
    SHORT2(v_max_i16, std::max((int16_t)a, (int16_t)b)),
    SHORT2(v_min_i16, std::min((int16_t)a, (int16_t)b)),
    PACKED(v_pk_add_f16, 2, Read::f16, float_to_half(half_to_float(a) + half_to_float(b))),
    PACKED(v_pk_mul_f16, 2, Read::f16, float_to_half(half_to_float(a) * half_to_float(b))),
    PACKED(v_pk_max_f16, 2, Read::f16, float_to_half(larger(half_to_float(a), half_to_float(b)))),
    PACKED(v_pk_min_f16, 2, Read::f16, float_to_half(smaller(half_to_float(a), half_to_float(b)))),
    PACKED(v_pk_fma_f16, 3, Read::f16, fused_half(a, b, c)),
    PACKED(v_pk_add_u16, 2, Read::bits, a + b),
    PACKED(v_pk_mad_u16, 3, Read::bits, a *b + c),
    PACKED(v_pk_sub_u16, 2, Read::bits, a - b),
    PACKED(v_pk_sub_i16, 2, Read::bits, a - b),
    PACKED(v_pk_mul_lo_u16, 2, Read::bits, a *b),
    PACKED(v_pk_lshlrev_b16, 2, Read::bits, b << (a & 15)),
    PACKED(v_pk_lshrrev_b16, 2, Read::bits, b >> (a & 15)),
    PACKED(v_pk_ashrrev_i16, 2, Read::bits, (int16_t)b >> (a & 15)),
    PACKED(v_pk_max_i16, 2, Read::bits, std::max((int16_t)a, (int16_t)b)),
    PACKED(v_pk_min_i16, 2, Read::bits, std::min((int16_t)a, (int16_t)b)),
    PACKED(v_pk_max_u16, 2, Read::bits, std::max(a, b)),
    PACKED(v_pk_min_u16, 2, Read::bits, std::min(a, b)),
    {"v_cvt_f32_f16",
     [](Wave &w, const Instruction &in) {
         const u32 *A = source(w, in, 1, Read::f16);
         alignas(64) u32 r[LANES];
         EACH_LANE r[l] = as_bits(output(in, half_to_float(A[l])));
         result(w, in, r);
     }},
    {"v_cvt_f16_f32",
     [](Wave &w, const Instruction &in) {
         const u32 *A = source(w, in, 1, Read::f32);
         alignas(64) u32 r[LANES];
         EACH_LANE r[l] = float_to_half(output(in, as_float(A[l])));
         result16(w, in, r);
     }},
    {"v_fma_f16",
     [](Wave &w, const Instruction &in) {
         const u32 *A = source(w, in, 1, Read::f16), *B = source(w, in, 2, Read::f16), *C = source(w, in, 3, Read::f16);
         alignas(64) u32 r[LANES];
         EACH_LANE r[l] = fused_half(A[l], B[l], C[l]);
         result16(w, in, r);
     }},
    {"v_cvt_pk_bf16_f32", /* gfx950: to nearest even, a NaN stays one */
     [](Wave &w, const Instruction &in) {
         const u32 *A = source(w, in, 1, Read::f32), *B = source(w, in, 2, Read::f32);
         alignas(64) u32 r[LANES];
         EACH_LANE r[l] = float_to_bf16(as_float(A[l])) | float_to_bf16(as_float(B[l])) << 16;
         result(w, in, r);
     }},
    {"v_cvt_pk_f16_f32", /* gfx950 */
     [](Wave &w, const Instruction &in) {
         const u32 *A = source(w, in, 1, Read::f32), *B = source(w, in, 2, Read::f32);
         alignas(64) u32 r[LANES];
         EACH_LANE r[l] = float_to_half(as_float(A[l])) | float_to_half(as_float(B[l])) << 16;
         result(w, in, r);
     }},
    {"v_pack_b32_f16",
     [](Wave &w, const Instruction &in) {
         const u32 *A = source(w, in, 1, Read::f16), *B = source(w, in, 2, Read::f16);
         alignas(64) u32 r[LANES];
         EACH_LANE r[l] = (A[l] & 0xffffu) | B[l] << 16;
         result(w, in, r);
     }},
    {"v_fma_mix_f32", [](Wave &w, const Instruction &in) { run_mixed(w, in, MIX_F32); }},
    {"v_fma_mixlo_f16", [](Wave &w, const Instruction &in) { run_mixed(w, in, MIX_LOW); }},
    {"v_fma_mixhi_f16", [](Wave &w, const Instruction &in) { run_mixed(w, in, MIX_HIGH); }},
};

void add_vector16(Handlers &to) {
    for (const Entry &e : entries) to[e.name] = e.run;
}

} // namespace cdna
