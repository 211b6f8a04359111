/* SPDX-License-Identifier: MIT
 *
 * Vector instructions on 64-bit values: shifts and sums, f64, and the helpers of division in both precisions. */
#include "machine.h"

#include <cmath>

namespace cdna {

#define EACH_LANE for (int l = 0; l < LANES; ++l)
#define DOUBLE1(name, expression)                                                                                      \
    {#name, [](Wave &w, const Instruction &in) {                                                                       \
         u64 A[LANES];                                                                                                 \
         source64(w, in, 1, A, true);                                                                                  \
         EACH_LANE {                                                                                                   \
             double a = as_double(A[l]);                                                                               \
             A[l] = as_bits64(expression);                                                                             \
         }                                                                                                             \
         result64(w, in, A);                                                                                           \
     }}
#define DOUBLE2(name, expression)                                                                                      \
    {#name, [](Wave &w, const Instruction &in) {                                                                       \
         u64 A[LANES], B[LANES];                                                                                       \
         source64(w, in, 1, A, true);                                                                                  \
         source64(w, in, 2, B, true);                                                                                  \
         EACH_LANE {                                                                                                   \
             double a = as_double(A[l]), b = as_double(B[l]);                                                          \
             A[l] = as_bits64(expression);                                                                             \
         }                                                                                                             \
         result64(w, in, A);                                                                                           \
     }}
#define DOUBLE_TO_WORD(name, expression)                                                                               \
    {#name, [](Wave &w, const Instruction &in) {                                                                       \
         u64 A[LANES];                                                                                                 \
         alignas(64) u32 r[LANES];                                                                                     \
         source64(w, in, 1, A, true);                                                                                  \
         EACH_LANE {                                                                                                   \
             double a = as_double(A[l]);                                                                               \
             r[l] = expression;                                                                                        \
         }                                                                                                             \
         result(w, in, r);                                                                                             \
     }}
#define WORD_TO_DOUBLE(name, expression)                                                                               \
    {#name, [](Wave &w, const Instruction &in) {                                                                       \
         const u32 *A = source(w, in, 1, Read::f32);                                                                   \
         u64 r[LANES];                                                                                                 \
         EACH_LANE {                                                                                                   \
             u32 a = A[l];                                                                                             \
             r[l] = as_bits64(expression);                                                                             \
         }                                                                                                             \
         result64(w, in, r);                                                                                           \
     }}
#define SHIFT(name, expression)                                                                                        \
    {#name, [](Wave &w, const Instruction &in) {                                                                       \
         u64 B[LANES];                                                                                                 \
         const u32 *A = source(w, in, 1);                                                                              \
         source64(w, in, 2, B);                                                                                        \
         EACH_LANE {                                                                                                   \
             u32 a = A[l] & 63;                                                                                        \
             u64 b = B[l];                                                                                             \
             B[l] = expression;                                                                                        \
         }                                                                                                             \
         result64(w, in, B);                                                                                           \
     }}

static u32 to_i32(double a) {
    return a != a ? 0 : a >= 2147483648.0 ? 0x7fffffffu : a <= -2147483649.0 ? 0x80000000u : (u32)(i32)a;
}
static double mantissa(double a) {
    int e;
    return std::isfinite(a) ? frexp(a, &e) : a;
}
static u32 exponent(double a) {
    int e = 0;
    if (std::isfinite(a) && a != 0) frexp(a, &e);
    return (u32)e;
}
static int biased(float x) { return (int)(as_bits(x) >> 23 & 255); }
static int biased(double x) { return (int)(as_bits64(x) >> 52 & 2047); }

/* Division a/b is built from v_div_scale (brings operands into range), Newton steps, v_div_fmas and v_div_fixup.
 * `scaled` is the source to scale: the denominator or the numerator. */
template <class F> struct Division;
template <> struct Division<float> {
    enum { FAR = 96, STEP = 64, SUBNORMAL = 23 };
    static constexpr double least = 1.17549435e-38;
};
template <> struct Division<double> {
    enum { FAR = 768, STEP = 128, SUBNORMAL = 53 };
    static constexpr double least = 2.2250738585072014e-308;
};

template <class F> static F div_scale(F scaled, F denominator, F numerator, bool *mask) {
    typedef Division<F> D;
    bool is_denominator = !memcmp(&scaled, &denominator, sizeof(F)),
         is_numerator = !memcmp(&scaled, &numerator, sizeof(F));
    long double inverse = 1.0L / denominator, quotient = (long double)numerator / denominator;
    auto times = [](F x, int e) { return (F)ldexp((double)x, e); };
    if (numerator == 0 || denominator == 0) return (F)NAN;
    if (biased(numerator) - biased(denominator) >= D::FAR) {
        *mask = true;
        return is_denominator ? times(scaled, D::STEP) : scaled;
    }
    if (biased(denominator) == 0) return times(scaled, D::STEP);
    if (fabsl(inverse) < D::least && fabsl(quotient) < D::least) {
        *mask = true;
        return is_denominator ? times(scaled, D::STEP) : scaled;
    }
    if (fabsl(inverse) < D::least) return times(scaled, -D::STEP);
    if (fabsl(quotient) < D::least) {
        *mask = true;
        return is_numerator ? times(scaled, D::STEP) : scaled;
    }
    if (biased(numerator) <= D::SUBNORMAL) return times(scaled, D::STEP);
    return scaled;
}

template <class F> static F div_fixup(F quotient, F denominator, F numerator) {
    bool negative = std::signbit(denominator) != std::signbit(numerator);
    F infinity = (F)INFINITY, zero = 0;
    if (numerator != numerator) return numerator;
    if (denominator != denominator) return denominator;
    if ((denominator == 0 && numerator == 0) || (std::isinf(denominator) && std::isinf(numerator))) return (F)NAN;
    if (denominator == 0 || std::isinf(numerator)) return negative ? -infinity : infinity;
    if (std::isinf(denominator) || numerator == 0) return negative ? -zero : zero;
    if (quotient != quotient) return numerator / denominator;
    return negative ? -std::fabs(quotient) : std::fabs(quotient);
}

static void run_div_scale_f32(Wave &w, const Instruction &in) {
    const u32 *A = source(w, in, 2, Read::f32), *B = source(w, in, 3, Read::f32), *C = source(w, in, 4, Read::f32);
    alignas(64) u32 r[LANES];
    u64 mask = 0;
    EACH_LANE {
        bool set = false;
        r[l] = as_bits(div_scale(as_float(A[l]), as_float(B[l]), as_float(C[l]), &set));
        mask |= (u64)set << l;
    }
    result(w, in, r);
    result_mask(w, in, 1, mask & w.exec());
}

static void run_div_scale_f64(Wave &w, const Instruction &in) {
    u64 A[LANES], B[LANES], C[LANES], mask = 0;
    source64(w, in, 2, A, true);
    source64(w, in, 3, B, true);
    source64(w, in, 4, C, true);
    EACH_LANE {
        bool set = false;
        A[l] = as_bits64(div_scale(as_double(A[l]), as_double(B[l]), as_double(C[l]), &set));
        mask |= (u64)set << l;
    }
    result64(w, in, A);
    result_mask(w, in, 1, mask & w.exec());
}

/* The last step of a division: scaled back inside the one rounding, or a subnormal quotient would be rounded
 * twice. `Wide` holds the product exactly. */
template <class F, class Wide> static F div_fmas(F a, F b, F c, bool scaled, bool up) {
    if (!scaled || !std::isfinite(a * b) || !std::isfinite(c)) return std::fma(a, b, c);
    Wide sum = (Wide)a * b + c;
    return (F)(sum * (Wide)ldexp(1.0, (up ? 1 : -1) * (int)Division<F>::STEP));
}

static void run_div_fmas_f32(Wave &w, const Instruction &in) {
    const u32 *A = source(w, in, 1, Read::f32), *B = source(w, in, 2, Read::f32), *C = source(w, in, 3, Read::f32);
    u64 scaled = w.vcc();
    alignas(64) u32 r[LANES];
    EACH_LANE {
        float c = as_float(C[l]);
        r[l] = as_bits(div_fmas<float, double>(as_float(A[l]), as_float(B[l]), c, scaled >> l & 1, biased(c) > 127));
    }
    result(w, in, r);
}

static void run_div_fmas_f64(Wave &w, const Instruction &in) {
    u64 A[LANES], B[LANES], C[LANES], scaled = w.vcc();
    source64(w, in, 1, A, true);
    source64(w, in, 2, B, true);
    source64(w, in, 3, C, true);
    EACH_LANE {
        double c = as_double(C[l]);
        A[l] = as_bits64(
            div_fmas<double, __float128>(as_double(A[l]), as_double(B[l]), c, scaled >> l & 1, biased(c) > 1023));
    }
    result64(w, in, A);
}

/* a*b + c on 64 bits; carry of lanes out of the top. */
static void run_mad_64(Wave &w, const Instruction &in, bool sign) {
    const u32 *A = source(w, in, 2), *B = source(w, in, 3);
    u64 C[LANES], carry = 0;
    source64(w, in, 4, C);
    EACH_LANE {
        u64 product = sign ? (u64)((i64)(i32)A[l] * (i32)B[l]) : (u64)A[l] * B[l], sum = product + C[l];
        if (!sign && sum < product) carry |= 1ull << l;
        C[l] = sum;
    }
    result64(w, in, C);
    result_mask(w, in, 1, carry & w.exec());
}

static void run_fma(Wave &w, const Instruction &in, bool accumulate) {
    u64 A[LANES], B[LANES], C[LANES];
    source64(w, in, 1, A, true);
    source64(w, in, 2, B, true);
    if (accumulate) {
        const u32 *low = w.v[in.op[0].index], *high = w.v[in.op[0].index + 1];
        EACH_LANE C[l] = low[l] | (u64)high[l] << 32;
    } else {
        source64(w, in, 3, C, true);
    }
    EACH_LANE A[l] = as_bits64(fma(as_double(A[l]), as_double(B[l]), as_double(C[l])));
    result64(w, in, A);
}

static const Entry entries[] = {
    DOUBLE1(v_rcp_f64, 1.0 / a),
    DOUBLE1(v_rsq_f64, 1.0 / sqrt(a)),
    DOUBLE1(v_sqrt_f64, sqrt(a)),
    DOUBLE1(v_rndne_f64, nearbyint(a)),
    DOUBLE1(v_floor_f64, floor(a)),
    DOUBLE1(v_ceil_f64, ceil(a)),
    DOUBLE1(v_trunc_f64, trunc(a)),
    DOUBLE1(v_frexp_mant_f64, mantissa(a)),
    DOUBLE2(v_add_f64, a + b),
    DOUBLE2(v_mul_f64, a *b),
    DOUBLE2(v_max_f64, fmax(a, b)),
    DOUBLE2(v_min_f64, fmin(a, b)),
    DOUBLE_TO_WORD(v_frexp_exp_i32_f64, exponent(a)),
    DOUBLE_TO_WORD(v_cvt_i32_f64, to_i32(a)),
    DOUBLE_TO_WORD(v_cvt_f32_f64, as_bits((float)a)),
    WORD_TO_DOUBLE(v_cvt_f64_f32, (double)as_float(a)),
    WORD_TO_DOUBLE(v_cvt_f64_i32, (double)(i32)a),
    WORD_TO_DOUBLE(v_cvt_f64_u32, (double)a),
    SHIFT(v_lshlrev_b64, b << a),
    SHIFT(v_lshrrev_b64, b >> a),
    SHIFT(v_ashrrev_i64, (u64)((i64)b >> a)),
    {"v_mov_b64",
     [](Wave &w, const Instruction &in) {
         u64 A[LANES];
         source64(w, in, 1, A);
         result64(w, in, A);
     }},
    {"v_lshl_add_u64",
     [](Wave &w, const Instruction &in) {
         u64 A[LANES], C[LANES];
         source64(w, in, 1, A);
         source64(w, in, 3, C);
         const u32 *B = source(w, in, 2);
         EACH_LANE A[l] = (A[l] << (B[l] & 7)) + C[l];
         result64(w, in, A);
     }},
    {"v_ldexp_f64",
     [](Wave &w, const Instruction &in) {
         u64 A[LANES];
         source64(w, in, 1, A, true);
         const u32 *B = source(w, in, 2);
         EACH_LANE A[l] = as_bits64(ldexp(as_double(A[l]), (i32)B[l]));
         result64(w, in, A);
     }},
    {"v_mad_u64_u32", [](Wave &w, const Instruction &in) { run_mad_64(w, in, false); }},
    {"v_mad_i64_i32", [](Wave &w, const Instruction &in) { run_mad_64(w, in, true); }},
    {"v_fma_f64", [](Wave &w, const Instruction &in) { run_fma(w, in, false); }},
    {"v_fmac_f64", [](Wave &w, const Instruction &in) { run_fma(w, in, true); }},
    {"v_div_scale_f32", run_div_scale_f32},
    {"v_div_scale_f64", run_div_scale_f64},
    {"v_div_fmas_f32", run_div_fmas_f32},
    {"v_div_fmas_f64", run_div_fmas_f64},
    {"v_div_fixup_f32",
     [](Wave &w, const Instruction &in) {
         const u32 *A = source(w, in, 1, Read::f32), *B = source(w, in, 2, Read::f32), *C = source(w, in, 3, Read::f32);
         alignas(64) u32 r[LANES];
         EACH_LANE r[l] = as_bits(div_fixup(as_float(A[l]), as_float(B[l]), as_float(C[l])));
         result(w, in, r);
     }},
    {"v_div_fixup_f64",
     [](Wave &w, const Instruction &in) {
         u64 A[LANES], B[LANES], C[LANES];
         source64(w, in, 1, A, true);
         source64(w, in, 2, B, true);
         source64(w, in, 3, C, true);
         EACH_LANE A[l] = as_bits64(div_fixup(as_double(A[l]), as_double(B[l]), as_double(C[l])));
         result64(w, in, A);
     }},
};

void add_vector64(Handlers &to) {
    for (const Entry &e : entries) to[e.name] = e.run;
}

} // namespace cdna
