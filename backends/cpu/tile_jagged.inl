/* SPDX-License-Identifier: MIT
 *
 * What the jagged operations do with elements: lines and columns of softmax and layer norm, conversion and
 * filling; tile_slopes.inl has the pointwise ones. Every function takes any element type and writes dX in its
 * type or f32, replacing or adding (f32). Loads widen, sums are f32, one rounding at the end. Included by
 * tile.c alone. */

/* How results are written. PAST_CACHES: those of a large tensor to addresses at whole vectors, which then need not
 * be read before; run_phase in attn_bwd.c has the fence. */
enum { REPLACE, ADD, PAST_CACHES };

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

/* As many vectors as are worked on at a time where one waits for its own results; no more than registers hold. */
#define BUNDLE  (LANES == 16 ? 4 : 2)
#define EACH(k) for (int v = 0; v < (k); ++v)

/* BUNDLE whole vectors. */
INLINE void put_bundle(void *out, int64_t at, const uint32_t dtype, const int how, const vf *x) {
    if (dtype == STW_F32) {
        EACH(BUNDLE) store_f32((float *)out + at + v * LANES, x[v], how);
        return;
    }
    vh h[BUNDLE];
    uint16_t *to = (uint16_t *)out + at;
#if defined(__AVX512BF16__)
    __m512i least = _mm512_set1_epi32(-1); /* of all x without sign, less one: zero is no subnormal */
    EACH(BUNDLE) least = _mm512_min_epu32(least, (__m512i)(((vu)x[v] & 0x7FFFFFFFu) - 1u));
    if (dtype == STW_BF16 && !_mm512_cmplt_epu32_mask(least, _mm512_set1_epi32(0x7FFFFF))) {
        EACH(BUNDLE) store_half(to + v * LANES, (vh)_mm512_cvtneps_pbh((__m512)x[v]), how);
        return;
    }
#endif
    EACH(BUNDLE) h[v] = dtype == STW_BF16 ? vf_to_bf16(x[v]) : vf_to_f16(x[v]);
    EACH(BUNDLE) store_half(to + v * LANES, h[v], how);
}

INLINE int past_caches(const void *out, stw_tile_types t) {
    return t.large && !t.add && (uintptr_t)out % (LANES * (t.out == STW_F32 ? 4 : 2)) == 0;
}

INLINE vf get(const void *data, int64_t at, int64_t count, const uint32_t dtype) {
    return vf_load_upto(data, at, count < LANES ? (uint32_t)count : LANES, dtype);
}

#define AHEAD 2048 /* bytes; 512 to 8192 are as good */

/* Asks for what is read AHEAD of n elements from `at` on: a loop over several streams is otherwise held up by the
 * processor's own prefetching, which ends with each page. Asking beyond a tensor does no harm. */
INLINE void ask_ahead(const void *data, int64_t at, int64_t n, const uint32_t dtype) {
    const int64_t size = dtype == STW_F32 ? 4 : 2;
    for (int64_t byte = 0; byte < n * size; byte += 64)
        __builtin_prefetch((const char *)data + at * size + AHEAD + byte);
}

/* Instances of an always-inlined BODY(out, ..., in type, out type, how) for the types of a call. */
#define SPREAD_TO(how, BODY, t, ...)                                                                                   \
    do {                                                                                                               \
        if ((t).out == STW_F32) {                                                                                      \
            if ((t).in == STW_F32) BODY(__VA_ARGS__, STW_F32, STW_F32, how);                                           \
            else if ((t).in == STW_BF16) BODY(__VA_ARGS__, STW_BF16, STW_F32, how);                                    \
            else BODY(__VA_ARGS__, STW_F16, STW_F32, how);                                                             \
        } else if ((t).in == STW_BF16) BODY(__VA_ARGS__, STW_BF16, STW_BF16, how);                                     \
        else BODY(__VA_ARGS__, STW_F16, STW_F16, how);                                                                 \
    } while (0)
#define SPREAD(BODY, t, out, ...)                                                                                      \
    do {                                                                                                               \
        if (past_caches(out, t)) SPREAD_TO(PAST_CACHES, BODY, t, out, __VA_ARGS__);                                    \
        else if ((t).add) SPREAD_TO(ADD, BODY, t, out, __VA_ARGS__);                                                   \
        else SPREAD_TO(REPLACE, BODY, t, out, __VA_ARGS__);                                                            \
    } while (0)
#define BY_TYPE(dtype, CALL)                                                                                           \
    do {                                                                                                               \
        if ((dtype) == STW_F32) {                                                                                      \
            CALL(STW_F32);                                                                                             \
        } else if ((dtype) == STW_BF16) {                                                                              \
            CALL(STW_BF16);                                                                                            \
        } else {                                                                                                       \
            CALL(STW_F16);                                                                                             \
        }                                                                                                              \
    } while (0)

/* ---- copies ---- */

INLINE void convert_as(void *out, const void *from, int64_t n, const uint32_t in, const uint32_t type, const int how) {
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

/* `bytes` at out <- an element again and again: of at most 8 bytes, itself repeated in `pattern`. The first and the
 * last vector overlap others, so that those between can be whole and aligned. */
static void tile_repeat(void *out, uint64_t pattern, size_t bytes, int large) {
    const vf x = (vf)(pattern + (vq){0});
    char *to = out;
    if (bytes < sizeof x) {
        memcpy(to, &x, bytes);
        return;
    }
    char *last = to + (bytes - sizeof x);
    memcpy(to, &x, sizeof x);
    memcpy(last, &x, sizeof x);
    to += sizeof x - (uintptr_t)to % sizeof x;
    if (large)
        for (; to < last; to += sizeof x) store_f32((float *)(void *)to, x, PAST_CACHES);
    else
        for (; to < last; to += sizeof x) store_f32((float *)(void *)to, x, REPLACE);
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

/* out (+)= the sum of `parts` arrays of f32, `pitch` apart, in double and in order, rounded to f32 and
 * then to the type. */
INLINE void sum_parts_as(void *out, const float *from, int64_t parts, int64_t pitch, int64_t n, int add,
                         const uint32_t in, const uint32_t type, const int how) {
    (void)in;
    for (int64_t i = 0; i < n; i += LANES) {
        vd sum = {0};
        if (add) sum = __builtin_convertvector(get(out, i, n - i, type), vd);
        for (int64_t part = 0; part < parts; ++part)
            sum += __builtin_convertvector(get(from + part * pitch, i, n - i, STW_F32), vd);
        put(out, i, n - i, type, how, __builtin_convertvector(sum, vf));
    }
}
static void tile_sum_parts(void *out, const float *from, int64_t parts, int64_t pitch, int64_t n, stw_tile_types t) {
    int add = t.add;
    t.add = 0; /* within the double */
    SPREAD(sum_parts_as, t, out, from, parts, pitch, n, add);
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

/* Lines of n neighbours, one after the other. */
INLINE void softmax_lines_as(char *out, const char *y, const char *g, int64_t lines, int64_t n, const uint32_t in,
                             const uint32_t type, const int how) {
    const int64_t read = n * (in == STW_F32 ? 4 : 2), written = n * (type == STW_F32 ? 4 : 2);
    for (; lines > 0; --lines, y += read, g += read, out += written) {
        float sum = n <= SUM_VECTORS * LANES ? short_dot(g, y, n, in) : (float)dot_as(g, y, n, in);
        softmax_line_as(out, y, g, NULL, sum, n, in, type, how);
    }
}
static void tile_softmax_lines(void *out, const void *y, const void *g, int64_t lines, int64_t n, stw_tile_types t) {
    if (n % LANES) t.large = 0; /* other lines start elsewhere */
    SPREAD(softmax_lines_as, t, out, y, g, lines, n);
}

/* ---- layer norm; gamma in f32, null: 1 ---- */

/* `count` elements from i on: h, and g with gamma (0 past the end). */
INLINE void norm_terms(const void *x, const void *g, const stw_tile_norm *t, int64_t i, int64_t count,
                       const uint32_t in, vf *h_out, vf *w_out) {
    *h_out = (get(x, i, count, in) - t->mean) * t->rstd;
    *w_out = get(g, i, count, in);
    if (t->gamma) *w_out *= get(t->gamma, i, count, STW_F32);
}

/* The sums of a vector; with dgamma also that vector's part of the column sums. */
INLINE void norm_sum(const void *x, const void *g, const stw_tile_norm *t, int64_t i, int64_t count, const uint32_t in,
                     float *dgamma, float *dbeta, vf *sum_g, vf *sum_gh) {
    vf h, w;
    norm_terms(x, g, t, i, count, in, &h, &w);
    *sum_g += w;
    *sum_gh += w * h;
    if (!dgamma) return;
    vf plain = get(g, i, count, in);
    vf_store(dgamma + i, vf_load(dgamma + i) + plain * h);
    if (dbeta) vf_store(dbeta + i, vf_load(dbeta + i) + plain);
}

INLINE void norm_sums_as(const void *x, const void *g, const stw_tile_norm *t, int64_t n, double *sums_out,
                         float *dgamma, float *dbeta, const uint32_t in) {
    double total_g = 0, total_gh = 0;
    for (int64_t from = 0; from < n; from += SUM_VECTORS * LANES) {
        int64_t end = from + SUM_VECTORS * LANES < n ? from + SUM_VECTORS * LANES : n, i = from;
        vf sum_g[2] = {{0}, {0}}, sum_gh[2] = {{0}, {0}};
        for (; i + 2 * LANES <= end; i += 2 * LANES) {
            ask_ahead(x, i, 2 * LANES, in);
            ask_ahead(g, i, 2 * LANES, in);
            norm_sum(x, g, t, i, LANES, in, dgamma, dbeta, &sum_g[0], &sum_gh[0]);
            norm_sum(x, g, t, i + LANES, LANES, in, dgamma, dbeta, &sum_g[1], &sum_gh[1]);
        }
        for (; i < end; i += LANES) norm_sum(x, g, t, i, end - i, in, dgamma, dbeta, &sum_g[0], &sum_gh[0]);
        total_g += (double)lane_sum(sum_g[0] + sum_g[1]);
        total_gh += (double)lane_sum(sum_gh[0] + sum_gh[1]);
    }
    sums_out[0] = total_g;
    sums_out[1] = total_gh;
}
static void tile_norm_sums(const void *x, const void *g, const stw_tile_norm *norm, int64_t n, uint32_t dtype,
                           double *sums_out, float *dgamma, float *dbeta) {
    const stw_tile_norm t = *norm;
#define CALL(type)                                                                                                     \
    if (dgamma && dbeta) norm_sums_as(x, g, &t, n, sums_out, dgamma, dbeta, type);                                     \
    else if (dgamma) norm_sums_as(x, g, &t, n, sums_out, dgamma, NULL, type);                                          \
    else norm_sums_as(x, g, &t, n, sums_out, NULL, NULL, type)
    BY_TYPE(dtype, CALL);
#undef CALL
}

INLINE void norm_put(void *out, const void *x, const void *g, const stw_tile_norm *t, int64_t i, int64_t count,
                     const uint32_t in, const uint32_t type, const int how) {
    vf h, w;
    norm_terms(x, g, t, i, count, in, &h, &w);
    put(out, i, count, type, how, ((w - t->average_g) - h * t->average_gh) * t->rstd);
}
INLINE void norm_line_as(void *out, const void *x, const void *g, const stw_tile_norm *t, int64_t n, const uint32_t in,
                         const uint32_t type, const int how) {
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) norm_put(out, x, g, t, i, LANES, in, type, how);
    if (i < n) norm_put(out, x, g, t, i, n - i, in, type, how);
}
static void tile_norm_line(void *out, const void *x, const void *g, const stw_tile_norm *norm, int64_t n,
                           stw_tile_types t) {
    const stw_tile_norm line = *norm;
    SPREAD(norm_line_as, t, out, x, g, &line, n);
}

/* dgamma += g*h, dbeta += g; either may be null, both are padded to whole vectors. */
INLINE void norm_columns_as(float *dgamma, float *dbeta, const void *x_at, const void *g_at, float mean, float rstd,
                            int64_t n, const uint32_t in) {
    for (int64_t i = 0; i < n; i += LANES) {
        vf g = get(g_at, i, n - i, in);
        if (dgamma) vf_store(dgamma + i, vf_load(dgamma + i) + g * ((get(x_at, i, n - i, in) - mean) * rstd));
        if (dbeta) vf_store(dbeta + i, vf_load(dbeta + i) + g);
    }
}
static void tile_norm_columns(float *dgamma, float *dbeta, const void *x, const void *g, float mean, float rstd,
                              int64_t n, uint32_t dtype) {
#define CALL(type)                                                                                                     \
    if (dgamma && dbeta) norm_columns_as(dgamma, dbeta, x, g, mean, rstd, n, type);                                    \
    else if (dgamma) norm_columns_as(dgamma, NULL, x, g, mean, rstd, n, type);                                         \
    else norm_columns_as(NULL, dbeta, NULL, g, mean, rstd, n, type)
    BY_TYPE(dtype, CALL);
#undef CALL
}
