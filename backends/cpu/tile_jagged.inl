/* SPDX-License-Identifier: MIT
 *
 * What the jagged operations do with elements: pointwise derivatives, lines and columns of softmax and layer
 * norm, conversion and filling. Every function takes any element type and writes dX in its type or f32,
 * replacing or adding (f32). Loads widen, sums are f32, one rounding at the end. Included by tile.c alone. */

/* Where the result is rounded to 16 bits, e^x and 1/x within a few ulp of f32 do: `fast`, a constant. */
INLINE vf vf_exp_negative(vf x, const int fast) { /* x <= 0 */
    if (!fast) return vf_exp(x);
    const vf lowest = vf_splat(-104.0f);
#if defined(VEC_AVX512)
    x = (vf)_mm512_max_ps((__m512)lowest, (__m512)x); /* a NaN in the second stays */
#else
    x = vf_select(x < lowest, lowest, x);
#endif
    const float magic = 12582912.0f; /* 1.5 * 2^23: its ulp is 1 */
    vf n = (x * 1.44269504088896341f + magic) - magic;
    vf r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    vf p = r * 8.33331048488617e-3f + 4.1666463017463684e-2f;
    p = p * r + 1.666666716337204e-1f;
    p = p * r + 5.0e-1f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
#if defined(VEC_AVX512)
    return (vf)_mm512_scalef_ps((__m512)p, (__m512)n);
#else
    n = vf_only(n == n, n);
    vi whole = __builtin_convertvector(n, vi), half = whole >> 1;
    return p * (vf)((half + 127) << 23) * (vf)((whole - half + 127) << 23);
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
INLINE vf vf_gelu_slope(vf x, const int fast) {
    vf a = vf_abs(x), z = x * x;
    vf q = z * 6.3301154114014935e-6f + -1.0724180901888758e-4f;
    q = q * z + 1.147949369624257e-3f;
    q = q * z + -9.495110251009464e-3f;
    q = q * z + 5.984041094779968e-2f;
    q = q * z + -2.659614384174347e-1f;
    q = q * z + 7.978845834732056e-1f;
    vf near = x * q + 0.5f;
    vf t = vf_reciprocal(a * 0.4f + 1.0f, fast);
    vf r = t * 0.068554899f + -0.187528544f;
    r = r * t + 0.106481016f;
    r = r * t + 0.0549614355f;
    r = r * t + 0.139163028f;
    r = r * t + 0.159077423f;
    r = r * t + 0.159597032f;
    vf far = vf_exp_negative(z * -0.5f, fast) * (r * t - a * 0.39894228040143268f);
    far = vf_select(x > 0.0f, 1.0f - far, far);
    return vf_select(a < 1.25f, near, far);
}

INLINE vf vf_gelu_tanh_slope(vf x, const int fast) {
    const float root = 0.79788456080286536f, cubic = 0.044715f;
    vf z = x * x, u = root * (x + cubic * (z * x)), slope, t;
    if (fast) {
        vf e = vf_exp_negative(vf_abs(u) * -2.0f, 1), r = vf_reciprocal(e + 1.0f, 1), rest = 2.0f * (e * r);
        t = vf_select(u > 0.0f, 1.0f - rest, rest - 1.0f);
        slope = 2.0f * (rest * r);
    } else {
        t = vf_tanh(u, &slope);
    }
    return 0.5f * (t + 1.0f) + 0.5f * x * slope * (root * (3.0f * cubic * z + 1.0f));
}

/* s*(1 + x*(1 - s)), s = 1/(1 + exp(-x)); of s and 1 - s the smaller is exp(-|x|)/(1 + exp(-|x|)). */
INLINE vf vf_silu_slope(vf x, const int fast) {
    vf e = vf_exp_negative(-vf_abs(x), fast), large = vf_reciprocal(e + 1.0f, fast);
    vf small = e * large;
    if (!fast) { /* its rounding, found again: a division more costs as much as all the rest */
#if LANES > 4
        small += ((e - small) - small * e) * large;
#else
        small = e / (e + 1.0f); /* without FMA there is nothing to find it with */
#endif
    }
    vi positive = x > 0.0f;
    vf s = vf_select(positive, large, small), rest = vf_select(positive, small, large);
    return s * (x * rest + 1.0f);
}

/* How results are written. PAST_CACHES: those of a large tensor to addresses at whole vectors, which then need not
 * be read before; run_phase in attn_bwd.c has the fence. */
enum { REPLACE, ADD, PAST_CACHES };

INLINE vh to_bf16(vf x) {
#if defined(__AVX512BF16__)
    vi subnormal = (vi)(((vu)x & 0x7FFFFFFFu) - 1u < vu_splat(0x7FFFFFu)); /* the instruction makes them 0 */
    if (!_mm512_test_epi32_mask((__m512i)subnormal, (__m512i)subnormal)) return (vh)_mm512_cvtneps_pbh((__m512)x);
#endif
    return vf_to_bf16(x);
}

INLINE void store_f32(float *to, vf x, const int how) {
#if defined(VEC_AVX512)
    if (how == PAST_CACHES) _mm512_stream_ps(to, (__m512)x);
#elif defined(VEC_AVX2)
    if (how == PAST_CACHES) _mm256_stream_ps(to, (__m256)x);
#else
    if (how == PAST_CACHES) vf_store(to, x);
#endif
    else vf_store(to, how == ADD ? vf_load(to) + x : x);
}

INLINE void store_half(uint16_t *to, vh h, const int how) {
#if defined(VEC_AVX512)
    if (how == PAST_CACHES) _mm256_stream_si256((__m256i *)(void *)to, (__m256i)h);
#elif defined(VEC_AVX2)
    if (how == PAST_CACHES) _mm_stream_si128((__m128i *)(void *)to, (__m128i)h);
#else
    if (how == PAST_CACHES) *(vh_any *)to = h;
#endif
    else *(vh_any *)to = h;
}

/* `count` >= LANES: a whole vector. */
INLINE void put(void *out, int64_t at, int64_t count, const uint32_t dtype, const int how, vf x) {
    size_t n = count < LANES ? (size_t)count : LANES;
    if (dtype == STW_F32) {
        float *to = (float *)out + at;
        if (n == LANES) {
            store_f32(to, x, how);
        } else {
            if (how == ADD) x = vf_load_some(to, 0, (uint32_t)n, STW_F32) + x;
            memcpy(to, &x, 4 * n);
        }
    } else {
        vh h = dtype == STW_BF16 ? to_bf16(x) : vf_to_f16(x);
        if (n == LANES) store_half((uint16_t *)out + at, h, how);
        else memcpy((uint16_t *)out + at, &h, 2 * n);
    }
}

INLINE int past_caches(const void *out, stw_tile_types t) {
    return t.large && !t.add && (uintptr_t)out % (LANES * (t.out == STW_F32 ? 4 : 2)) == 0;
}

INLINE vf get(const void *data, int64_t at, int64_t count, const uint32_t dtype) {
    return vf_load_upto(data, at, count < LANES ? (uint32_t)count : LANES, dtype);
}

/* Instances of an always-inlined BODY(out, ..., in type, out type, how) for the types of a call. */
#define SPREAD_TO(how, BODY, t, ...)                                                                         \
    do {                                                                                                     \
        if ((t).out == STW_F32) {                                                                            \
            if ((t).in == STW_F32) BODY(__VA_ARGS__, STW_F32, STW_F32, how);                                 \
            else if ((t).in == STW_BF16) BODY(__VA_ARGS__, STW_BF16, STW_F32, how);                          \
            else BODY(__VA_ARGS__, STW_F16, STW_F32, how);                                                   \
        } else if ((t).in == STW_BF16) BODY(__VA_ARGS__, STW_BF16, STW_BF16, how);                           \
        else BODY(__VA_ARGS__, STW_F16, STW_F16, how);                                                       \
    } while (0)
#define SPREAD(BODY, t, out, ...)                                                                            \
    do {                                                                                                     \
        if (past_caches(out, t)) SPREAD_TO(PAST_CACHES, BODY, t, out, __VA_ARGS__);                          \
        else if ((t).add) SPREAD_TO(ADD, BODY, t, out, __VA_ARGS__);                                         \
        else SPREAD_TO(REPLACE, BODY, t, out, __VA_ARGS__);                                                  \
    } while (0)
#define BY_TYPE(dtype, CALL)                                                                                 \
    do {                                                                                                     \
        if ((dtype) == STW_F32) { CALL(STW_F32); }                                                           \
        else if ((dtype) == STW_BF16) { CALL(STW_BF16); }                                                    \
        else { CALL(STW_F16); }                                                                              \
    } while (0)

#define POINTWISE(name, expression)                                                                          \
    INLINE void name##_as(void *out, const void *x_at, const void *g_at, int64_t n, float threshold,         \
                          const uint32_t in, const uint32_t type, const int how) {                           \
        (void)threshold;                                                                                     \
        for (int64_t i = 0; i < n; i += LANES) {                                                             \
            vf x = get(x_at, i, n - i, in), g = get(g_at, i, n - i, in);                                     \
            put(out, i, n - i, type, how, expression);                                                       \
        }                                                                                                    \
    }                                                                                                        \
    static void name(void *out, const void *x, const void *g, int64_t n, float threshold,                    \
                     stw_tile_types t) {                                                                     \
        SPREAD(name##_as, t, out, x, g, n, threshold);                                                       \
    }

POINTWISE(tile_gelu, g *vf_gelu_slope(x, type != STW_F32))
POINTWISE(tile_gelu_tanh, g *vf_gelu_tanh_slope(x, type != STW_F32))
POINTWISE(tile_silu, g *vf_silu_slope(x, type != STW_F32))
POINTWISE(tile_threshold, vf_select(x <= threshold, (vf){0}, g))

/* ---- copies ---- */

INLINE void convert_as(void *out, const void *from, int64_t n, const uint32_t in, const uint32_t type,
                       const int how) {
    for (int64_t i = 0; i < n; i += LANES) put(out, i, n - i, type, how, get(from, i, n - i, in));
}
static void tile_convert(void *out, const void *from, int64_t n, stw_tile_types t) {
    SPREAD(convert_as, t, out, from, n);
}

INLINE void fill_as(void *out, vf value, int64_t n, const uint32_t in, const uint32_t type, const int how) {
    (void)in;
    for (int64_t i = 0; i < n; i += LANES) put(out, i, n - i, type, how, value);
}
static void tile_fill(void *out, float value, int64_t n, stw_tile_types t) {
    vf x = vf_splat(value);
    SPREAD(fill_as, t, out, x, n);
}

/* ---- sums ---- */

#define SUM_VECTORS 64 /* of one running f32 sum; the rest is added in double */

INLINE double dot_as(const void *a, const void *b, int64_t n, const uint32_t in) {
    double total = 0;
    for (int64_t from = 0; from < n; from += SUM_VECTORS * LANES) {
        int64_t end = from + SUM_VECTORS * LANES < n ? from + SUM_VECTORS * LANES : n;
        vf sum = {0}, other = {0};
        int64_t i = from;
        for (; i + 2 * LANES <= end; i += 2 * LANES) {
            sum += vf_load_as(a, i, in) * vf_load_as(b, i, in);
            other += vf_load_as(a, i + LANES, in) * vf_load_as(b, i + LANES, in);
        }
        for (; i < end; i += LANES) sum += get(a, i, end - i, in) * get(b, i, end - i, in);
        total += (double)vf_sum(sum + other);
    }
    return total;
}
static double tile_dot(const void *a, const void *b, int64_t n, uint32_t dtype) {
    if (dtype == STW_F32) return dot_as(a, b, n, STW_F32);
    return dtype == STW_BF16 ? dot_as(a, b, n, STW_BF16) : dot_as(a, b, n, STW_F16);
}

INLINE float lane_sum(vf x) {
#if defined(VEC_AVX512)
    return _mm512_reduce_add_ps((__m512)x);
#else
    return vf_sum(x);
#endif
}

/* A line of at most SUM_VECTORS vectors. */
INLINE float short_dot(const void *a, const void *b, int64_t n, const uint32_t in) {
    vf sum[4] = {{0}, {0}, {0}, {0}};
    int64_t i = 0;
    for (; i + 4 * LANES <= n; i += 4 * LANES)
        for (int v = 0; v < 4; ++v) sum[v] += vf_load_as(a, i + v * LANES, in) * vf_load_as(b, i + v * LANES, in);
    for (; i < n; i += LANES) sum[0] += get(a, i, n - i, in) * get(b, i, n - i, in);
    return lane_sum((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

/* acc[i] += a[i] (*b[i]); acc is padded to whole vectors. */
INLINE void add_columns_as(float *acc, const void *a, const void *b, int64_t n, const uint32_t in) {
    if (b)
        for (int64_t i = 0; i < n; i += LANES)
            vf_store(acc + i, vf_load(acc + i) + get(a, i, n - i, in) * get(b, i, n - i, in));
    else
        for (int64_t i = 0; i < n; i += LANES) vf_store(acc + i, vf_load(acc + i) + get(a, i, n - i, in));
}
static void tile_add_columns(float *acc, const void *a, const void *b, int64_t n, uint32_t dtype) {
#define CALL(type) add_columns_as(acc, a, b, n, type)
    BY_TYPE(dtype, CALL);
#undef CALL
}

/* ---- softmax: out = y*(g - sum), one sum or one a column (padded) ---- */

INLINE void softmax_line_as(void *out, const void *y, const void *g, const float *sums, float sum, int64_t n,
                            const uint32_t in, const uint32_t type, const int how) {
    for (int64_t i = 0; i < n; i += LANES) {
        vf s = sums ? vf_load(sums + i) : vf_splat(sum);
        put(out, i, n - i, type, how, get(y, i, n - i, in) * (get(g, i, n - i, in) - s));
    }
}
static void tile_softmax_line(void *out, const void *y, const void *g, const float *sums, float sum, int64_t n,
                              stw_tile_types t) {
    if (sums) SPREAD(softmax_line_as, t, out, y, g, sums, 0.0f, n);
    else SPREAD(softmax_line_as, t, out, y, g, NULL, sum, n);
}

/* Lines of n neighbours, one behind the other. */
INLINE void softmax_lines_as(char *out, const char *y, const char *g, int64_t lines, int64_t n, const uint32_t in,
                             const uint32_t type, const int how) {
    const int64_t read = n * (in == STW_F32 ? 4 : 2), written = n * (type == STW_F32 ? 4 : 2);
    for (; lines > 0; --lines, y += read, g += read, out += written) {
        float sum = n <= SUM_VECTORS * LANES ? short_dot(g, y, n, in) : (float)dot_as(g, y, n, in);
        softmax_line_as(out, y, g, NULL, sum, n, in, type, how);
    }
}
static void tile_softmax_lines(void *out, const void *y, const void *g, int64_t lines, int64_t n,
                               stw_tile_types t) {
    if (n % LANES) t.large = 0; /* other lines start elsewhere */
    SPREAD(softmax_lines_as, t, out, y, g, lines, n);
}

/* ---- layer norm; gamma in f32, null: 1 ---- */

INLINE void norm_sums_as(const void *x, const void *g, const float *gamma, float mean, float rstd, int64_t n,
                         double *sums_out, const uint32_t in) {
    double total_g = 0, total_gh = 0;
    for (int64_t from = 0; from < n; from += SUM_VECTORS * LANES) {
        int64_t end = from + SUM_VECTORS * LANES < n ? from + SUM_VECTORS * LANES : n;
        vf sum_g = {0}, sum_gh = {0};
        for (int64_t i = from; i < end; i += LANES) {
            vf w = get(g, i, end - i, in), h = (get(x, i, end - i, in) - mean) * rstd;
            if (gamma) w *= get(gamma, i, end - i, STW_F32);
            sum_g += w; /* behind the end: w is 0 */
            sum_gh += w * h;
        }
        total_g += (double)vf_sum(sum_g);
        total_gh += (double)vf_sum(sum_gh);
    }
    sums_out[0] = total_g;
    sums_out[1] = total_gh;
}
static void tile_norm_sums(const void *x, const void *g, const float *gamma, float mean, float rstd, int64_t n,
                           uint32_t dtype, double *sums_out) {
#define CALL(type) norm_sums_as(x, g, gamma, mean, rstd, n, sums_out, type)
    BY_TYPE(dtype, CALL);
#undef CALL
}

INLINE void norm_line_as(void *out, const void *x_at, const void *g_at, const stw_tile_norm *t, int64_t n,
                         const uint32_t in, const uint32_t type, const int how) {
    const float *gamma = t->gamma;
    for (int64_t i = 0; i < n; i += LANES) {
        vf h = (get(x_at, i, n - i, in) - t->mean) * t->rstd, w = get(g_at, i, n - i, in);
        if (gamma) w *= get(gamma, i, n - i, STW_F32);
        put(out, i, n - i, type, how, ((w - t->average_g) - h * t->average_gh) * t->rstd);
    }
}
static void tile_norm_line(void *out, const void *x, const void *g, const stw_tile_norm *norm, int64_t n,
                           stw_tile_types t) {
    SPREAD(norm_line_as, t, out, x, g, norm, n);
}

/* dgamma += g*h, dbeta += g; either may be null, both are padded to whole vectors. */
INLINE void norm_columns_as(float *dgamma, float *dbeta, const void *x_at, const void *g_at, float mean,
                            float rstd, int64_t n, const uint32_t in) {
    for (int64_t i = 0; i < n; i += LANES) {
        vf g = get(g_at, i, n - i, in);
        if (dgamma) vf_store(dgamma + i, vf_load(dgamma + i) + g * ((get(x_at, i, n - i, in) - mean) * rstd));
        if (dbeta) vf_store(dbeta + i, vf_load(dbeta + i) + g);
    }
}
static void tile_norm_columns(float *dgamma, float *dbeta, const void *x, const void *g, float mean, float rstd,
                              int64_t n, uint32_t dtype) {
#define CALL(type)                                                                                           \
    if (dgamma && dbeta) norm_columns_as(dgamma, dbeta, x, g, mean, rstd, n, type);                          \
    else if (dgamma) norm_columns_as(dgamma, NULL, x, g, mean, rstd, n, type);                               \
    else norm_columns_as(NULL, dbeta, NULL, g, mean, rstd, n, type)
    BY_TYPE(dtype, CALL);
#undef CALL
}
