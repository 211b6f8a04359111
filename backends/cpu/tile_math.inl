/* SPDX-License-Identifier: MIT
 *
 * exp and tanh of a vector, within 0.7 and 1.4 ulp, subnormal results included. In rows that see few keys these
 * errors are the result's own, and conformance compares with libm's. Included by tile.c alone. */

/* e^x: x = n ln2 + r with |r| <= ln2/2, a minimax polynomial for e^r, then a scaling by 2^n that
 * rounds once. NaN stays NaN, -inf gives 0, what overflows gives inf. */
INLINE vf vf_exp(vf x) {
    const vf lowest = vf_splat(-104.0f), highest = vf_splat(89.0f);
#if defined(VEC_AVX512)
    x = (vf)_mm512_min_ps((__m512)highest, _mm512_max_ps((__m512)lowest, (__m512)x)); /* NaN in the second stays */
#else
    x = vf_select(x < lowest, lowest, x);
    x = vf_select(x > highest, highest, x);
#endif
    const float magic = 12582912.0f; /* 1.5 * 2^23: its ulp is 1 */
    vf n = (x * 1.44269504088896341f + magic) - magic;
    vf far = x - n * 0.693359375f; /* nine bits: the product is exact also without FMA */
    vf r = far + n * 2.12194440e-4f, r_rest = (far - r) + n * 2.12194440e-4f;
    vf p = r * 1.98910798644647e-4f + 1.3933731243014336e-3f;
    p = p * r + 8.33331048488617e-3f;
    p = p * r + 4.1666463017463684e-2f;
    p = p * r + 1.666666716337204e-1f;
    p = p * r + 5.0e-1f;
    vf one = r + 1.0f, one_rest = r - (one - 1.0f); /* what the sum loses is carried along */
    vf y = one + (p * (r * r) + (one_rest + r_rest));
#if defined(VEC_AVX512)
    return (vf)_mm512_scalef_ps((__m512)y, (__m512)n);
#else
    n = vf_only(n == n, n);                                       /* a NaN has no integer; y holds it */
    vi whole = __builtin_convertvector(n, vi), half = whole >> 1; /* two factors, neither out of range */
    return y * (vf)((half + 127) << 23) * (vf)((whole - half + 127) << 23);
#endif
}

/* tanh(x) and 1 - tanh(x)^2: with e = exp(-2|x|) and q = 2e/(1+e), 1 - q and q(2-q), without cancellation; a polynomial
 * (Cephes' tanhf) where that would lose digits, and there 1 - tanh^2 as it stands, which has two roundings. */
INLINE vf vf_tanh(vf x, vf *slope_out) {
    vf size = vf_abs(x), e = vf_exp(size * -2.0f), sum = e + 1.0f;
    vf q = (e * 2.0f) / sum, large = 1.0f - q; /* one rounding of a number near 1; (1-e)/(1+e) has three */
    large = (vf)((vi)large | ((vi)x & (vi)vu_splat(0x80000000u)));
    vf z = x * x;
    vf p = z * -5.70498872745e-3f + 2.06390887954e-2f;
    p = p * z + -5.37397155531e-2f;
    p = p * z + 1.33314422036e-1f;
    p = p * z + -3.33332819422e-1f;
    vf small = p * z * x + x;
    *slope_out = vf_select(size < vf_splat(0.625f), 1.0f - small * small, q * (2.0f - q));
    return vf_select(size < vf_splat(0.625f), small, large);
}
