/* SPDX-License-Identifier: MIT
 *
 * Pointwise derivatives of the jagged operations. A vector's result takes a hundred cycles from step to step,
 * so BUNDLE vectors go through every step together: EACH(k) is a step of k vectors. Included by tile.c alone,
 * after tile_jagged.inl. */

/* x[] <- e^x for x <= 0. `fast`, a constant: the result is rounded to 16 bits, a few ulp of f32 do; else within
 * 0.7 ulp, as vf_exp does it. The polynomials are summed in pairs, which shortens the chain. */
INLINE void exps_of_negative(vf *x, const int k, const int fast) {
    vf n[BUNDLE], r[BUNDLE], rest[BUNDLE], square[BUNDLE], high[BUNDLE], low[BUNDLE], one[BUNDLE];
    const vf lowest = vf_splat(-104.0f);
    const float magic = 12582912.0f; /* 1.5 * 2^23: its ulp is 1 */
#if defined(VEC_AVX512)
    EACH(k) x[v] = (vf)_mm512_max_ps((__m512)lowest, (__m512)x[v]); /* a NaN in the second stays */
#else
    EACH(k) x[v] = vf_select(x[v] < lowest, lowest, x[v]);
#endif
    EACH(k) n[v] = x[v] * 1.44269504088896341f + magic;
    EACH(k) n[v] = n[v] - magic;
    EACH(k) x[v] = x[v] - n[v] * 0.693359375f;
    EACH(k) r[v] = x[v] + n[v] * 2.12194440e-4f;
    EACH(k) rest[v] = (x[v] - r[v]) + n[v] * 2.12194440e-4f;
    EACH(k) square[v] = r[v] * r[v];
    EACH(k) one[v] = r[v] + 1.0f;
    if (fast) {
        EACH(k) high[v] = r[v] * 8.312501945e-3f + 4.189033434e-2f;
        EACH(k) low[v] = r[v] * 1.666711569e-1f + 4.99992311e-1f;
        EACH(k) high[v] = high[v] * square[v] + low[v];
        EACH(k) x[v] = high[v] * square[v] + one[v];
    } else {
        EACH(k) high[v] = r[v] * 1.3933731243014336e-3f + 8.33331048488617e-3f;
        EACH(k) high[v] = square[v] * 1.98910798644647e-4f + high[v];
        EACH(k) low[v] = r[v] * 4.1666463017463684e-2f + 1.666666716337204e-1f;
        EACH(k) high[v] = high[v] * square[v] + low[v];
        EACH(k) high[v] = high[v] * r[v] + 5.0e-1f;
        EACH(k) rest[v] = rest[v] + (r[v] - (one[v] - 1.0f)); /* what the sums lose */
        EACH(k) x[v] = one[v] + (high[v] * square[v] + rest[v]);
    }
#if defined(VEC_AVX512)
    EACH(k) x[v] = (vf)_mm512_scalef_ps((__m512)x[v], (__m512)n[v]);
#else
    EACH(k) {
        n[v] = vf_only(n[v] == n[v], n[v]); /* a NaN has no integer; x holds it */
        vi whole = __builtin_convertvector(n[v], vi), half = whole >> 1;
        x[v] = x[v] * (vf)((half + 127) << 23) * (vf)((whole - half + 127) << 23);
    }
#endif
}

INLINE vf vf_reciprocal(vf x, const int fast) { /* 1 <= x */
#if defined(VEC_AVX512)
    if (fast) {
        vf r = (vf)_mm512_rcp14_ps((__m512)x);
        return r * (2.0f - x * r);
    }
#elif defined(VEC_AVX2)
    if (fast) {
        vf r = (vf)_mm256_rcp_ps((__m256)x);
        return r * (2.0f - x * r);
    }
#endif
    (void)fast;
    return 1.0f / x;
}

/* d GELU / dx = Phi(x) + x*phi(x). Near 0 it is 1/2 + x*q(x^2); beyond, with a = |x|, e = exp(-a^2/2):
 * e*(R(a) - phi(0)*a) on the negative side and 1 minus that on the other, R = (1 - Phi)/e a polynomial in
 * 1/(1 + 0.4 a). Both fits are within 1e-8 of their value's scale. */
INLINE void gelu_slopes(vf *x, const int k, const int fast) {
    static const float near[] = {-1.0724180901888758e-4f, 1.147949369624257e-3f,  -9.495110251009464e-3f,
                                 5.984041094779968e-2f,   -2.659614384174347e-1f, 7.978845834732056e-1f};
    static const float tail[] = {-0.187528544f, 0.106481016f, 0.0549614355f, 0.139163028f, 0.159077423f, 0.159597032f};
    vf e[BUNDLE], q[BUNDLE], t[BUNDLE], r[BUNDLE];
    EACH(k) e[v] = x[v] * x[v];
    EACH(k) q[v] = e[v] * 6.3301154114014935e-6f + near[0];
    for (int i = 1; i < 6; ++i) EACH(k) q[v] = q[v] * e[v] + near[i];
    EACH(k) q[v] = x[v] * q[v] + 0.5f;
    EACH(k) t[v] = vf_reciprocal(vf_abs(x[v]) * 0.4f + 1.0f, fast);
    EACH(k) r[v] = t[v] * 0.068554899f + tail[0];
    for (int i = 1; i < 6; ++i) EACH(k) r[v] = r[v] * t[v] + tail[i];
    EACH(k) r[v] = r[v] * t[v] - vf_abs(x[v]) * 0.39894228040143268f;
    EACH(k) e[v] = e[v] * -0.5f;
    exps_of_negative(e, k, fast);
    EACH(k) e[v] = e[v] * r[v];
    EACH(k) e[v] = vf_select(x[v] > 0.0f, 1.0f - e[v], e[v]);
    EACH(k) x[v] = vf_select(vf_abs(x[v]) < 1.25f, q[v], e[v]);
}

INLINE void gelu_tanh_slopes(vf *x, const int k, const int fast) {
    const float root = 0.79788456080286536f, cubic = 0.044715f;
    vf z[BUNDLE], u[BUNDLE], e[BUNDLE], t[BUNDLE], slope[BUNDLE];
    EACH(k) z[v] = x[v] * x[v];
    EACH(k) u[v] = root * (x[v] + cubic * (z[v] * x[v]));
    if (fast) {
        EACH(k) e[v] = vf_abs(u[v]) * -2.0f;
        exps_of_negative(e, k, 1);
        EACH(k) t[v] = vf_reciprocal(e[v] + 1.0f, 1);
        EACH(k) e[v] = 2.0f * (e[v] * t[v]);
        EACH(k) slope[v] = 2.0f * (e[v] * t[v]);
        EACH(k) t[v] = vf_select(u[v] > 0.0f, 1.0f - e[v], e[v] - 1.0f);
    } else {
        EACH(k) t[v] = vf_tanh(u[v], &slope[v]);
    }
    EACH(k) x[v] = 0.5f * (t[v] + 1.0f) + 0.5f * x[v] * slope[v] * (root * (3.0f * cubic * z[v] + 1.0f));
}

/* s*(1 + x*(1 - s)), s = 1/(1 + exp(-x)); of s and 1 - s the smaller is exp(-|x|)/(1 + exp(-|x|)). */
INLINE void silu_slopes(vf *x, const int k, const int fast) {
    vf e[BUNDLE], large[BUNDLE], small[BUNDLE], rest[BUNDLE];
    EACH(k) e[v] = -vf_abs(x[v]);
    exps_of_negative(e, k, fast);
    EACH(k) large[v] = vf_reciprocal(e[v] + 1.0f, fast);
    EACH(k) small[v] = e[v] * large[v];
    if (!fast) { /* its rounding, found again: a division more costs as much as all the rest */
#if LANES > 4
        EACH(k) rest[v] = (e[v] - small[v]) - small[v] * e[v];
        EACH(k) small[v] += rest[v] * large[v];
#else
        EACH(k) small[v] = e[v] / (e[v] + 1.0f); /* no FMA */
#endif
    }
    EACH(k) rest[v] = vf_select(x[v] > 0.0f, small[v], large[v]);
    EACH(k) small[v] = vf_select(x[v] > 0.0f, large[v], small[v]);
    EACH(k) x[v] = small[v] * (x[v] * rest[v] + 1.0f);
}

#define POINTWISE(name, SLOPES)                                                                                        \
    INLINE void name##_as(void *out, const void *x_at, const void *g_at, int64_t n, const uint32_t in,                 \
                          const uint32_t type, const int how) {                                                        \
        int64_t i = 0;                                                                                                 \
        for (; i + BUNDLE * LANES <= n; i += BUNDLE * LANES) {                                                         \
            vf x[BUNDLE];                                                                                              \
            ask_ahead(x_at, i, BUNDLE *LANES, in);                                                                     \
            ask_ahead(g_at, i, BUNDLE *LANES, in);                                                                     \
            EACH(BUNDLE) x[v] = vf_load_as(x_at, i + v * LANES, in);                                                   \
            SLOPES(x, BUNDLE, type != STW_F32);                                                                        \
            EACH(BUNDLE) x[v] = x[v] * vf_load_as(g_at, i + v * LANES, in);                                            \
            put_bundle(out, i, type, how, x);                                                                          \
        }                                                                                                              \
        for (; i < n; i += LANES) {                                                                                    \
            vf x = get(x_at, i, n - i, in);                                                                            \
            SLOPES(&x, 1, type != STW_F32);                                                                            \
            put(out, i, n - i, type, how, x * get(g_at, i, n - i, in));                                                \
        }                                                                                                              \
    }                                                                                                                  \
    static void name(void *out, const void *x, const void *g, int64_t n, float threshold, stw_tile_types t) {          \
        (void)threshold;                                                                                               \
        SPREAD(name##_as, t, out, x, g, n);                                                                            \
    }

POINTWISE(tile_gelu, gelu_slopes)
POINTWISE(tile_gelu_tanh, gelu_tanh_slopes)
POINTWISE(tile_silu, silu_slopes)

INLINE void threshold_as(void *out, const void *x_at, const void *g_at, int64_t n, float threshold, const uint32_t in,
                         const uint32_t type, const int how) {
    int64_t i = 0;
    for (; i + BUNDLE * LANES <= n; i += BUNDLE * LANES) {
        vf x[BUNDLE];
        ask_ahead(x_at, i, BUNDLE * LANES, in);
        ask_ahead(g_at, i, BUNDLE * LANES, in);
        EACH(BUNDLE) x[v] = vf_load_as(x_at, i + v * LANES, in);
        EACH(BUNDLE) x[v] = vf_select(x[v] <= threshold, (vf){0}, vf_load_as(g_at, i + v * LANES, in));
        put_bundle(out, i, type, how, x);
    }
    for (; i < n; i += LANES) {
        vf x = get(x_at, i, n - i, in), g = get(g_at, i, n - i, in);
        put(out, i, n - i, type, how, vf_select(x <= threshold, (vf){0}, g));
    }
}
static void tile_threshold(void *out, const void *x, const void *g, int64_t n, float threshold, stw_tile_types t) {
    SPREAD(threshold_as, t, out, x, g, n, threshold);
}
