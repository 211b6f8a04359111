/* SPDX-License-Identifier: MIT
 *
 * The matrix unit's arithmetic, as an H200's was measured on 2026-11-21 (f16 and bf16 operands, f32 accumulators):
 * products are exact, also subnormal ones; all terms of an element are cut off at 2^-25 of the largest one's
 * exponent, added exactly, and the sum is cut off to f32. */
#include "machine.h"

#include <cmath>
#include <cstring>

enum { M = 16, N = 8, K = 16, KEPT = 25 };

struct number {
    int64_t integer; /* times 2^exponent */
    int exponent;
    float value;
};

static number number_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    int exponent = (int)(bits >> 23 & 255u);
    int64_t integer = (int64_t)(bits & 0x7FFFFFu);
    if (exponent) integer |= 0x800000;
    else exponent = 1;
    return {x < 0 ? -integer : integer, exponent - 150, x};
}

static number number_of(uint32_t bits, emu_format format) {
    if (format == EMU_BF16) {
        float x;
        bits <<= 16;
        memcpy(&x, &bits, 4);
        return number_of(x);
    }
    uint16_t half = (uint16_t)bits;
    _Float16 x;
    memcpy(&x, &half, 2);
    return number_of((float)x);
}

/* Adds `integer` * 2^exponent, cut off below 2^grid. */
static void add_cut(int64_t *sum, int64_t integer, int exponent, int grid) {
    uint64_t size = (uint64_t)(integer < 0 ? -integer : integer);
    int shift = exponent - grid;
    size = shift >= 0 ? size << shift : shift > -63 ? size >> -shift : 0;
    *sum += integer < 0 ? -(int64_t)size : (int64_t)size;
}

static float element(float c, const number *a, const number *b) {
    double plain = (double)c;
    for (int k = 0; k < K; ++k) plain += (double)a[k].value * (double)b[k].value;
    if (!std::isfinite(plain)) return (float)plain;
    number before = number_of(c);
    int top = -126;
    if (before.integer && before.exponent + 23 > top) top = before.exponent + 23;
    for (int k = 0; k < K; ++k)
        if (a[k].integer && b[k].integer && a[k].exponent + b[k].exponent + 46 > top)
            top = a[k].exponent + b[k].exponent + 46;
    int64_t sum = 0;
    int exponent = top - KEPT;
    add_cut(&sum, before.integer, before.exponent, exponent);
    for (int k = 0; k < K; ++k)
        if (a[k].integer && b[k].integer)
            add_cut(&sum, a[k].integer * b[k].integer, a[k].exponent + b[k].exponent, exponent);
    uint64_t size = (uint64_t)(sum < 0 ? -sum : sum);
    while (size >> 24 || (size && exponent < -149)) size >>= 1, ++exponent;
    double x = ldexp((double)size, exponent);
    return (float)(sum < 0 ? -x : x);
}

void emu_matrix_product(emu_format format, float *const *c, const uint32_t *const *a, const uint32_t *const *b) {
    static number left[M][K], right[N][K];
    for (int lane = 0; lane < EMU_LANES; ++lane)
        for (int half = 0; half < 2; ++half) {
            for (int i = 0; i < 4; ++i)
                left[lane / 4 + 8 * (i & 1)][lane % 4 * 2 + half + 8 * (i >> 1)] =
                    number_of(a[lane][i] >> (16 * half) & 0xFFFFu, format);
            for (int i = 0; i < 2; ++i)
                right[lane / 4][lane % 4 * 2 + half + 8 * i] = number_of(b[lane][i] >> (16 * half) & 0xFFFFu, format);
        }
    for (int lane = 0; lane < EMU_LANES; ++lane)
        for (int i = 0; i < 4; ++i)
            c[lane][i] = element(c[lane][i], left[lane / 4 + 8 * (i / 2)], right[lane % 4 * 2 + i % 2]);
}
