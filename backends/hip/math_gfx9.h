/* SPDX-License-Identifier: MIT
 *
 * Mathematics of AMD's leaf without a device library. Included by leaf.h alone. */
#ifndef STW_HIP_MATH_GFX9_H
#define STW_HIP_MATH_GFX9_H

DEV_FN float fabsf(float x) { return __builtin_fabsf(x); }
DEV_FN float fmaf(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
DEV_FN float fmaxf(float x, float y) { return __builtin_fmaxf(x, y); }
DEV_FN float copysignf(float x, float y) { return __builtin_copysignf(x, y); }

/* 2^x within 2 ulp, subnormal results flushed: for operands that are rounded to 16 bits. Compilers without a builtin
 * for the instruction (before clang 17) take it for the general function. */
DEV_FN float dev_exp2_fast(float x) {
#if __has_builtin(__builtin_amdgcn_exp2f)
    return __builtin_amdgcn_exp2f(x);
#else
    return __builtin_exp2f(x);
#endif
}

/* e^x within 2 ulp: x*log2(e) as an integer and the rest, which the instruction takes; subnormal results are
 * made by the scaling. */
DEV_FN float dev_exp(float x) {
    const float log2e = 0x1.715476p+0f, log2e_low = 0x1.4ae0bep-26f;
    float high = x * log2e, low = fmaf(x, log2e, -high) + x * log2e_low;
    float whole = __builtin_rintf(high);
    float y = __builtin_ldexpf(dev_exp2_fast(high - whole + low), (int)whole);
    y = x < -104.0f ? 0.0f : y;
    y = x > 0x1.62e42ep+6f ? __builtin_huge_valf() : y;
    return x != x ? x : y;
}

/* e^x and log(x) of doubles, to about 1e-15: rare, and rounded to f32 in the end. */
DEV_FN double dev_exp(double x) {
    if (x != x) return x;
    if (x < -745.0) return 0.0;
    if (x > 709.7) return __builtin_huge_val();
    double whole = __builtin_rint(x * 0x1.71547652b82fep+0);
    double r = __builtin_fma(-whole, 0x1.62e42fefa39efp-1, x);
    r = __builtin_fma(-whole, 0x1.abc9e3b39803fp-56, r);
    double sum = 1.0; /* Taylor in Horner's form: |r| <= ln(2)/2, the 14th term is below 2^-58 */
    DEV_UNROLL_FOR (int k = 14; k > 0; --k) sum = __builtin_fma(sum * r, 1.0 / k, 1.0);
    return __builtin_ldexp(sum, (int)whole);
}
DEV_FN double dev_log(double x) {
    if (x != x || x < 0.0) return __builtin_nan("");
    if (x == 0.0) return -__builtin_huge_val();
    if (x == __builtin_huge_val()) return x;
    int e = __builtin_amdgcn_frexp_exp(x);
    double m = __builtin_amdgcn_frexp_mant(x);
    if (m < 0x1.6a09e667f3bcdp-1) m *= 2.0, --e;
    double t = (m - 1.0) / (m + 1.0), z = t * t, sum = 0.0; /* 2 atanh(t), |t| < 0.172: 11 terms */
    DEV_UNROLL_FOR (int k = 23; k > 0; k -= 2) sum = __builtin_fma(sum, z, 1.0 / k);
    return __builtin_fma((double)e, 0x1.62e42fefa39efp-1, 2.0 * t * sum);
}

#endif
