/* SPDX-License-Identifier: MIT
 *
 * Products of bf16 operands by vdpbf16ps: two terms a lane and instruction, twice the speed of f32. Operands are
 * words of two neighbouring terms (of the summed index). The instruction takes subnormal numbers for zero, so packing
 * tells whether an element is so small (below 2^-50) that a product or a sum could be one: such blocks are
 * multiplied as f32. Jagged products only. Included by tile.c alone, compiled where the instruction exists. */

#define PAIR_K    64u /* words of one running sum */
#define PAIR_TINY ((127u - 50u) << 7) /* bits of 2^-50 */

INLINE vi pair_is_tiny(vu element) { /* 16 bits in a word; zero is not tiny */
    return (vi)((element & 0x7FFFu) - 1u < vu_splat(PAIR_TINY - 1u));
}

INLINE int pair_any(vi mask) {
    return _mm512_test_epi32_mask((__m512i)mask, (__m512i)mask) != 0;
}

INLINE vu pair_load(const uint16_t *from, uint32_t count) { /* widened, zeros behind */
    vh h = {0};
    if (count >= LANES) h = *(const vh_any *)from;
    else memcpy(&h, from, 2 * (size_t)count);
    return __builtin_convertvector(h, vu);
}

/* to[i][n] <- terms 2i and 2i+1 of column n of from[terms][cols]. 1: a tiny element was seen. */
static int tile_pair_rows(uint32_t *to, size_t pitch, const void *data, int64_t stride, uint32_t terms,
                          uint32_t cols) {
    const uint16_t *from = data;
    vi tiny = {0};
    for (uint32_t i = 0; i < terms; i += 2, to += pitch, from += 2 * stride)
        for (uint32_t n = 0; n < cols; n += LANES) {
            vu low = pair_load(from + n, cols - n), high = {0};
            if (i + 1 < terms) high = pair_load(from + stride + n, cols - n);
            tiny |= pair_is_tiny(low) | pair_is_tiny(high);
            *(vu_any *)(to + n) = low | high << 16;
        }
    return pair_any(tiny);
}

/* to[r][i] <- terms 2i and 2i+1 of row r of from[rows][terms], whose terms are neighbours. */
static int tile_pair_terms(uint32_t *to, size_t pitch, const void *data, int64_t stride, uint32_t rows,
                           uint32_t terms) {
    vi tiny = {0};
    for (uint32_t r = 0; r < rows; ++r, to += pitch) {
        const uint16_t *from = (const uint16_t *)data + (int64_t)r * stride;
        for (uint32_t i = 0; i < terms; i += 2 * LANES) {
            vu pairs = {0};
            if (terms - i >= 2 * LANES) memcpy(&pairs, from + i, sizeof pairs); /* at any element */
            else memcpy(&pairs, from + i, 2 * (size_t)(terms - i));
            tiny |= pair_is_tiny(pairs & 0xFFFFu) | pair_is_tiny(pairs >> 16);
            *(vu_any *)(to + i / 2) = pairs;
        }
    }
    return pair_any(tiny);
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
