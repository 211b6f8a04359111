/* SPDX-License-Identifier: MIT
 *
 * log_softmax of the jagged operations: out = g - e^y*sum, the sum of g by line or one a column. As for the pointwise
 * operations BUNDLE vectors go through every step of e^y together. Included by tile.c alone, after tile_slopes.inl. */

INLINE double total_as(const void *a, int64_t n, const uint32_t in) {
    double total = 0;
    for (int64_t from = 0; from < n; from += SUM_VECTORS * LANES) {
        int64_t end = from + SUM_VECTORS * LANES < n ? from + SUM_VECTORS * LANES : n, i = from;
        vf sum[4] = {{0}, {0}, {0}, {0}};
        for (; i + 4 * LANES <= end; i += 4 * LANES) EACH(4) sum[v] += vf_load_as(a, i + v * LANES, in);
        for (; i < end; i += LANES) sum[0] += get(a, i, end - i, in);
        total += (double)lane_sum((sum[0] + sum[1]) + (sum[2] + sum[3]));
    }
    return total;
}
static double tile_total(const void *a, int64_t n, uint32_t dtype) {
    if (dtype == STW_F32) return total_as(a, n, STW_F32);
    return dtype == STW_BF16 ? total_as(a, n, STW_BF16) : total_as(a, n, STW_F16);
}

/* x[] <- e^x, also where a caller's y is no logarithm of a softmax and above 0. */
INLINE void exps(vf *x, const int k, const int fast) {
    const vf highest = vf_splat(89.0f);
    EACH(k) x[v] = vf_select(x[v] > highest, highest, x[v]); /* a NaN stays */
    exps_of_negative(x, k, fast);
}

INLINE void log_softmax_line_as(void *out, const void *y, const void *g, const float *sums, float sum, int64_t n,
                                const uint32_t in, const uint32_t type, const int how) {
    const int fast = type != STW_F32;
    int64_t i = 0;
    for (; i + BUNDLE * LANES <= n; i += BUNDLE * LANES) {
        vf x[BUNDLE];
        EACH(BUNDLE) x[v] = vf_load_as(y, i + v * LANES, in);
        exps(x, BUNDLE, fast);
        EACH(BUNDLE)
        x[v] = vf_load_as(g, i + v * LANES, in) - x[v] * (sums ? vf_load(sums + i + v * LANES) : vf_splat(sum));
        put_bundle(out, i, type, how, x);
    }
    for (; i < n; i += LANES) {
        vf x = get(y, i, n - i, in);
        exps(&x, 1, fast);
        put(out, i, n - i, type, how, get(g, i, n - i, in) - x * (sums ? vf_load(sums + i) : vf_splat(sum)));
    }
}
static void tile_log_softmax_line(void *out, const void *y, const void *g, const float *sums, float sum, int64_t n,
                                  stw_tile_types t) {
    if (sums) SPREAD(log_softmax_line_as, t, out, y, g, sums, 0.0f, n);
    else SPREAD(log_softmax_line_as, t, out, y, g, NULL, sum, n);
}

/* Lines of n neighbours, one after the other. */
INLINE void log_softmax_lines_as(char *out, const char *y, const char *g, int64_t lines, int64_t n, const uint32_t in,
                                 const uint32_t type, const int how) {
    const int64_t read = n * (in == STW_F32 ? 4 : 2), written = n * (type == STW_F32 ? 4 : 2);
    for (; lines > 0; --lines, y += read, g += read, out += written)
        log_softmax_line_as(out, y, g, NULL, (float)total_as(g, n, in), n, in, type, how);
}
static void tile_log_softmax_lines(void *out, const void *y, const void *g, int64_t lines, int64_t n,
                                   stw_tile_types t) {
    if (n % LANES) t.large = 0; /* other lines start elsewhere */
    SPREAD(log_softmax_lines_as, t, out, y, g, lines, n);
}
