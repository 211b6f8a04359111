/* SPDX-License-Identifier: MIT
 *
 * Derivatives of the activation functions. Where the result is rounded to 16 bits (FAST) the functions below it are
 * as exact as f32's eps; else as exact as a library's. */
#ifndef STW_COMMON_KERNELS_JAGGED_MATH_H
#define STW_COMMON_KERNELS_JAGGED_MATH_H

#include "common/device/device.h"

/* erf within 1 ulp (two minimax polynomials, the outer one in the exponent). */
DEV_FN float jag_erf(float x) {
    float t = fabsf(x), s = x * x;
    if (t > 0.927734375f) {
        float r = fmaf(-1.72853470e-5f, t, 3.83197126e-4f), u = fmaf(-3.88396438e-3f, t, 2.42546219e-2f);
        r = fmaf(r, s, u);
        r = fmaf(r, t, -1.06777877e-1f);
        r = fmaf(r, t, -6.34846687e-1f);
        r = fmaf(r, t, -1.28717512e-1f);
        r = fmaf(r, t, -t);
        return copysignf(1.0f - dev_exp(r), x);
    }
    float r = -5.96761703e-4f;
    r = fmaf(r, s, 4.99119423e-3f);
    r = fmaf(r, s, -2.67681349e-2f);
    r = fmaf(r, s, 1.12819925e-1f);
    r = fmaf(r, s, -3.76125336e-1f);
    r = fmaf(r, s, 1.28379166e-1f);
    return fmaf(r, x, x);
}

/* 1 / (1 + e^-x) */
template <bool FAST> DEV_FN float jag_sigmoid(float x) {
    if (FAST) return dev_reciprocal_fast(1.0f + dev_exp2_fast(x * -DEV_LOG2E));
    return 1.0f / (1.0f + dev_exp(-x));
}

/* Each: G times the derivative at x. */
struct jag_gelu {
    template <bool FAST> DEV_FN float of(float g, float x, float) {
        const float inverse_sqrt_tau = 0.398942280401432678f, half_sqrt = 0.707106781186547524f;
        if (!FAST)
            return g * fmaf(x * inverse_sqrt_tau, dev_exp(-0.5f * x * x), 0.5f * (1.0f + jag_erf(x * half_sqrt)));
        /* Abramowitz and Stegun 7.1.26: erfc(z) = poly(t) e^-z^2, which is also in phi; 1.5e-7 at most. */
        float e = dev_exp2_fast(x * x * (-0.5f * DEV_LOG2E)),
              t = dev_reciprocal_fast(fmaf(fabsf(x), 0.3275911f * half_sqrt, 1.0f));
        float r = fmaf(t, 1.061405429f * 0.5f, -1.453152027f * 0.5f);
        r = fmaf(r, t, 1.421413741f * 0.5f);
        r = fmaf(r, t, -0.284496736f * 0.5f);
        r = fmaf(r, t, 0.254829592f * 0.5f) * t * e;
        return g * fmaf(x * inverse_sqrt_tau, e, x > 0.0f ? 1.0f - r : r);
    }
};

struct jag_gelu_tanh {
    template <bool FAST> DEV_FN float of(float g, float x, float) {
        const float a = 0.797884560802865356f, b = 0.044715f; /* sqrt(2/pi) */
        float square = x * x, u = a * x * fmaf(b, square, 1.0f), slope = a * fmaf(3.0f * b, square, 1.0f);
        if (!FAST) {
            float less, t = dev_tanh(u, &less);
            return g * fmaf(0.5f * x * less, slope, 0.5f * (1.0f + t));
        }
        float s = jag_sigmoid<true>(2.0f * u); /* (1 + tanh u)/2; 1 - tanh^2 u = 4 s (1 - s) */
        return g * fmaf(2.0f * x * s * (1.0f - s), slope, s);
    }
};

struct jag_silu {
    template <bool FAST> DEV_FN float of(float g, float x, float) {
        float s = jag_sigmoid<FAST>(x);
        return g * s * fmaf(x, 1.0f - s, 1.0f);
    }
};

/* `threshold`: the caller's in f32, whatever the type of x. */
struct jag_threshold {
    template <bool FAST> DEV_FN float of(float g, float x, float threshold) { return x <= threshold ? 0.0f : g; }
};

#endif
