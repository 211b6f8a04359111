/* SPDX-License-Identifier: MIT
 *
 * Products of bf16 operands by vdpbf16ps: two terms a lane and instruction, twice the speed of f32. An operand is
 * a word of two neighbours along the summed index. The instruction takes subnormal numbers for zero, so packing
 * tells whether an element is below 2^-50, where a product or a sum could be subnormal. Such blocks are
 * multiplied as f32. Jagged products only. Included by tile.c alone, compiled where the instruction exists. */

#define PAIR_K     64u /* words of one running sum */
#define PAIR_AHEAD 8   /* rows: each is only a few lines of the cache, too short for the processor's own prefetching */
#define PAIR_TINY  ((127u - 50u) << 7) /* bits of 2^-50 */

/* The least of all magnitudes less one, element by element: zero is not tiny. */
INLINE __m512i pair_least(__m512i least, __m512i elements) {
    __m512i magnitude = _mm512_and_si512(elements, _mm512_set1_epi16(0x7FFF));
    return _mm512_min_epu16(least, _mm512_sub_epi16(magnitude, _mm512_set1_epi16(1)));
}

INLINE int pair_is_tiny(__m512i least) {
    return _mm512_cmplt_epu16_mask(least, _mm512_set1_epi16((short)(PAIR_TINY - 1u))) != 0;
}

INLINE __m512i pair_load(const uint16_t *from, uint32_t count) { /* zeros behind */
    if (count >= 32) return _mm512_loadu_si512(from);
    return _mm512_maskz_loadu_epi16((1u << count) - 1u, from);
}

/* to[i][n] <- terms 2i and 2i+1 of column n of from[terms][cols], 32 columns at a time. 1: a tiny element was seen. */
static int tile_pair_rows(uint32_t *to, size_t pitch, const void *data, int64_t stride, uint32_t terms, uint32_t cols) {
    const uint16_t *from = data;
    static const uint16_t order[32] = {0, 32, 1, 33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39,
                                       8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
    const __m512i first = _mm512_loadu_si512(order), second = _mm512_add_epi16(first, _mm512_set1_epi16(16));
    __m512i least = _mm512_set1_epi16(-1);
    for (uint32_t i = 0; i < terms; i += 2, to += pitch, from += 2 * stride)
        for (uint32_t n = 0; n < cols; n += 32) {
            __m512i low = pair_load(from + n, cols - n), high = _mm512_setzero_si512();
            _mm_prefetch((const char *)(from + PAIR_AHEAD * stride + n), _MM_HINT_T0);
            _mm_prefetch((const char *)(from + (PAIR_AHEAD + 1) * stride + n), _MM_HINT_T0);
            if (i + 1 < terms) high = pair_load(from + stride + n, cols - n);
            least = pair_least(pair_least(least, low), high);
            _mm512_storeu_si512(to + n, _mm512_permutex2var_epi16(low, first, high));
            _mm512_storeu_si512(to + n + 16, _mm512_permutex2var_epi16(low, second, high));
        }
    return pair_is_tiny(least);
}

/* to[r][i] <- terms 2i and 2i+1 of row r of from[rows][terms], whose terms are neighbours. */
static int tile_pair_terms(uint32_t *to, size_t pitch, const void *data, int64_t stride, uint32_t rows,
                           uint32_t terms) {
    __m512i least = _mm512_set1_epi16(-1);
    for (uint32_t r = 0; r < rows; ++r, to += pitch) {
        const uint16_t *from = (const uint16_t *)data + (int64_t)r * stride;
        for (uint32_t i = 0; i < terms; i += 32) {
            __m512i pairs = pair_load(from + i, terms - i);
            _mm_prefetch((const char *)(from + PAIR_AHEAD * stride + i), _MM_HINT_T0);
            least = pair_least(least, pairs);
            _mm512_storeu_si512(to + i / 2, pairs);
        }
    }
    return pair_is_tiny(least);
}

INLINE void pair_block(const int nv, uint32_t k, const uint32_t *a, size_t a_row, size_t a_step, const uint32_t *b,
                       size_t b_pitch, float *c, size_t c_pitch, int add) {
    __m512 sum[GEMM_MR][GEMM_NV];
    for (int r = 0; r < GEMM_MR; ++r)
        for (int v = 0; v < nv; ++v) sum[r][v] = _mm512_setzero_ps();
    for (uint32_t i = 0; i < k; ++i) {
        __m512bh x[GEMM_NV];
        for (int v = 0; v < nv; ++v) x[v] = (__m512bh)_mm512_loadu_si512(b + v * LANES);
        for (int r = 0; r < GEMM_MR; ++r) {
            __m512bh y = (__m512bh)_mm512_set1_epi32((int)a[(size_t)r * a_row]);
            for (int v = 0; v < nv; ++v) sum[r][v] = _mm512_dpbf16_ps(sum[r][v], y, x[v]);
        }
        a += a_step;
        b += b_pitch;
    }
    for (int r = 0; r < GEMM_MR; ++r)
        for (int v = 0; v < nv; ++v) {
            float *to = c + (size_t)r * c_pitch + v * LANES;
            vf x = (vf)sum[r][v];
            vf_store(to, add ? vf_load(to) + x : x);
        }
}

/* C[m][n] (+)= sum over k words of A and B; A's words at a[row*a_row + i*a_step], B's at b[i*b_pitch + n]. */
static void tile_matmul_pairs(uint32_t m, uint32_t n, uint32_t k, const uint32_t *a, size_t a_row, size_t a_step,
                              const uint32_t *b, size_t b_pitch, float *c, size_t c_pitch, int add) {
    uint32_t vectors = (n + LANES - 1) / LANES, nv;
    for (uint32_t at = 0; at < k; at += PAIR_K, add = 1) {
        uint32_t depth = k - at < PAIR_K ? k - at : PAIR_K;
        for (uint32_t v = 0; v < vectors; v += nv) {
            const uint32_t *b_at = b + at * b_pitch + (size_t)v * LANES;
            nv = gemm_width(vectors - v);
            for (uint32_t i = 0; i < m; i += GEMM_MR) {
                const uint32_t *a_at = a + i * a_row + at * a_step;
                float *c_at = c + i * c_pitch + (size_t)v * LANES;
                if (nv == 1) pair_block(1, depth, a_at, a_row, a_step, b_at, b_pitch, c_at, c_pitch, add);
                else if (nv == 2) pair_block(2, depth, a_at, a_row, a_step, b_at, b_pitch, c_at, c_pitch, add);
                else pair_block(GEMM_NV, depth, a_at, a_row, a_step, b_at, b_pitch, c_at, c_pitch, add);
            }
        }
    }
}
