/* SPDX-License-Identifier: MIT
 *
 * Vector compares: a condition of two sources per lane, into a scalar mask. */
#include "machine.h"

#include <cmath>

#ifdef __AVX512F__
#include <immintrin.h>
#endif

namespace cdna {

/* Numbers of conditions and types are decode.cpp's. */
template <class T> static bool holds(int condition, T a, T b) {
    switch (condition) {
    case 1: return a < b;
    case 2: return a == b;
    case 3: return a <= b;
    case 4: return a > b;
    case 5: return a < b || a > b;
    case 6: return a >= b;
    case 7: return a == a && b == b;
    case 8: return !(a == a && b == b);
    case 9: return !(a >= b);
    case 10: return !(a < b || a > b);
    case 11: return !(a > b);
    case 12: return !(a <= b);
    case 13: return !(a == b);
    case 14: return !(a < b);
    case 15: return true;
    default: return false;
    }
}

static bool is_of_class(float a, u32 classes) {
    bool negative = std::signbit(a);
    int bit;
    switch (std::fpclassify(a)) {
    case FP_NAN: bit = as_bits(a) >> 22 & 1; break;
    case FP_INFINITE: bit = negative ? 2 : 9; break;
    case FP_NORMAL: bit = negative ? 3 : 8; break;
    case FP_SUBNORMAL: bit = negative ? 4 : 7; break;
    default: bit = negative ? 5 : 6; break;
    }
    return classes >> bit & 1;
}

/* A mask of the lanes where `f` holds. */
template <class F> static u64 each_lane(F f) {
    u64 mask = 0;
#ifdef __AVX512F__
    alignas(64) u32 found[LANES];
    for (int l = 0; l < LANES; ++l) found[l] = f(l) ? 1 : 0;
    for (int q = 0; q < LANES / 16; ++q) {
        __m512i part = _mm512_load_si512(found + 16 * q);
        mask |= (u64)_mm512_test_epi32_mask(part, part) << 16 * q;
    }
#else
    for (int q = 0; q < LANES / 16; ++q) { /* by sixteens: the compiler makes vectors of that */
        u32 part = 0;
        for (int l = 0; l < 16; ++l) part |= (u32)f(q * 16 + l) << l;
        mask |= (u64)part << 16 * q;
    }
#endif
    return mask;
}

/* The condition as a constant, so that the loop over lanes has none. `number`: a lane's bits as what is compared. */
template <class W, class F> static u64 each_lane_word(int condition, const W *A, const W *B, F number) {
#define CASE(n)                                                                                                        \
    case n: return each_lane([=](int l) { return holds(n, number(A[l]), number(B[l])); });
    switch (condition) {
        CASE(1)
        CASE(2)
        CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12) CASE(13) CASE(14) CASE(15)
    }
#undef CASE
    return 0;
}

void run_compare(Wave &w, const Instruction &in) {
    int c = in.form;
    u64 mask = 0;
    if (in.type <= 2 || in.type == 9) {
        bool f32 = in.type == 0;
        const u32 *A = source(w, in, 1, f32 || in.type == 9 ? Read::f32 : Read::bits);
        const u32 *B = source(w, in, 2, f32 ? Read::f32 : Read::bits);
        if (f32) mask = each_lane_word(c, A, B, [](u32 x) { return as_float(x); });
        else if (in.type == 1) mask = each_lane_word(c, A, B, [](u32 x) { return (i32)x; });
        else if (in.type == 2) mask = each_lane_word(c, A, B, [](u32 x) { return x; });
        else mask = each_lane([=](int l) { return is_of_class(as_float(A[l]), B[l]); });
    } else if (in.type <= 5) {
        const u32 *A = source(w, in, 1, Read::f16), *B = source(w, in, 2, Read::f16);
        if (in.type == 3) mask = each_lane([=](int l) { return holds(c, half_to_float(A[l]), half_to_float(B[l])); });
        else if (in.type == 4) mask = each_lane([=](int l) { return holds(c, (int16_t)A[l], (int16_t)B[l]); });
        else mask = each_lane([=](int l) { return holds(c, (u16)A[l], (u16)B[l]); });
    } else {
        u64 A[LANES], B[LANES];
        source64(w, in, 1, A, in.type == 8);
        source64(w, in, 2, B, in.type == 8);
        if (in.type == 6) mask = each_lane_word(c, A, B, [](u64 x) { return (i64)x; });
        else if (in.type == 7) mask = each_lane_word(c, A, B, [](u64 x) { return x; });
        else mask = each_lane_word(c, A, B, [](u64 x) { return as_double(x); });
    }
    mask &= w.exec();
    result_mask(w, in, 0, mask);
    if (in.exec_result) w.set_exec(mask);
}

} // namespace cdna
