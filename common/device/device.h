/* SPDX-License-Identifier: MIT
 *
 * Entrance of all device code. An image includes its vendor's leaf first (threads, waves, barriers, atomics,
 * number formats: backends/cuda/leaf.h or backends/hip/leaf.h), so that nothing here tells the vendors apart. */
#ifndef STW_COMMON_DEVICE_DEVICE_H
#define STW_COMMON_DEVICE_DEVICE_H

#include <stddef.h>
#include <stdint.h>

#if !defined(DEV_FN)
#error "include the vendor's leaf.h first"
#endif

#include "common/params/attn_launch.h"
#include "common/philox.h"

#define DEV_LOG2E 1.44269504088896341f

template <class T> struct dev_is_f16 {
    enum { yes = 0 };
};
template <> struct dev_is_f16<dev_f16> {
    enum { yes = 1 };
};

DEV_FN float dev_infinity() { return __builtin_huge_valf(); }

DEV_FN bool dev_is_infinite(float x) { return x == dev_infinity() || x == -dev_infinity(); }

DEV_FN uint32_t dev_bits(float x) { return __builtin_bit_cast(uint32_t, x); }
DEV_FN float dev_of_bits(uint32_t x) { return __builtin_bit_cast(float, x); }

/* e^x of f32 operands, within 0.6 ulp, subnormal results included (few keys a row: its error is the result's).
 * x = n ln2 + r, a polynomial for e^r, 2^n in two factors. NaN stays NaN. */
DEV_FN float dev_exp_f32(float x) {
    x = x < -104.0f ? -104.0f : x > 89.0f ? 89.0f : x;
    const float magic = 12582912.0f; /* 1.5 * 2^23: its ulp is 1, n is in the lower bits of the sum */
    float sum = fmaf(x, DEV_LOG2E, magic), n = sum - magic;
    float r = fmaf(n, -0.693359375f, x);
    r = fmaf(n, 2.12194440e-4f, r);
    float p = fmaf(1.98910798644647e-4f, r, 1.3933731243014336e-3f);
    p = fmaf(p, r, 8.33331048488617e-3f);
    p = fmaf(p, r, 4.1666463017463684e-2f);
    p = fmaf(p, r, 1.666666716337204e-1f);
    p = fmaf(p, r, 0.5f);
    float y = fmaf(p, r * r, r) + 1.0f;
    int whole = (int)(dev_bits(sum) - dev_bits(magic)), half = whole >> 1;
    return y * dev_of_bits((uint32_t)(half + 127) << 23) * dev_of_bits((uint32_t)(whole - half + 127) << 23);
}

/* tanh(x) and 1 - tanh(x)^2, the latter without cancellation: with q = 2e/(1+e), 1 - q and q(2-q). Near 0 a polynomial
 * (Cephes' tanhf), and 1 - tanh^2 as it stands, which has one rounding. */
DEV_FN float dev_tanh(float x, float *slope_out) {
    float size = fabsf(x), e = dev_exp(-2.0f * size), sum = e + 1.0f;
    float q = 2.0f * e / sum, large = copysignf(1.0f - q, x), z = x * x;
    float poly = z * -5.70498872745e-3f + 2.06390887954e-2f;
    poly = poly * z - 5.37397155531e-2f;
    poly = poly * z + 1.33314422036e-1f;
    poly = poly * z - 3.33332819422e-1f;
    float small = poly * z * x + x;
    *slope_out = size < 0.625f ? fmaf(-small, small, 1.0f) : q * (2.0f - q);
    return size < 0.625f ? small : large;
}

/* A tensor's element of any type. */
DEV_FN float dev_load_any(const void *data, int64_t index, uint32_t dtype) {
    if (dtype == STW_F32) return ((const float *)data)[index];
    uint16_t bits = ((const uint16_t *)data)[index];
    return dtype == STW_BF16 ? dev_from_bf16(bits) : dev_from_f16(bits);
}

DEV_FN void dev_store_any(void *data, int64_t index, uint32_t dtype, float x) {
    if (dtype == STW_F32) ((float *)data)[index] = x;
    else ((uint16_t *)data)[index] = dtype == STW_BF16 ? dev_to_bf16(x) : dev_to_f16(x);
}

/* Two neighbours, the first at an even column of a row on a 16-byte boundary. */
DEV_FN void dev_store_any_pair(void *data, int64_t index, uint32_t dtype, float x, float y) {
    if (dtype == STW_F32) dev_set_pair((float *)data + index, x, y);
    else if (dtype == STW_BF16) dev_set_pair((dev_bf16 *)data + index, x, y);
    else dev_set_pair((dev_f16 *)data + index, x, y);
}

/* Two 16-bit numbers in a word; G words (4 or 2) to memory at a multiple of their size. */
DEV_FN uint32_t dev_pack(dev_bf16, float low, float high) { return dev_pack_bf16(low, high); }
DEV_FN uint32_t dev_pack(dev_f16, float low, float high) { return dev_pack_f16(low, high); }
/* The lower or upper one of two in a word. */
DEV_FN float dev_half_of(dev_bf16, uint32_t w, bool upper) { return dev_of_bits(upper ? w & 0xFFFF0000u : w << 16); }
DEV_FN float dev_half_of(dev_f16, uint32_t w, bool upper) { return dev_from_f16((uint16_t)(upper ? w >> 16 : w)); }
template <int G> DEV_FN void dev_store_words(void *to, const uint32_t w[G]) {
    if constexpr (G == 4) dev_store_vector(to, dev_vector{{w[0], w[1], w[2], w[3]}});
    else dev_store_half(to, w[0], w[1]);
}

DEV_FN int64_t dev_row(const stw_tensor_param &t, int64_t b, int64_t h, int64_t row) {
    return b * t.batch + h * t.head + row * t.seq;
}

#endif
