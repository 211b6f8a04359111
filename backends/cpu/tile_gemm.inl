/* SPDX-License-Identifier: MIT
 *
 * The two matrix products of the backward pass on f32 tiles: C (+)= A B and C (+)= A^T B. A block of
 * MR rows by NV vectors of C stays in registers; each step of k multiplies NV vectors of B with MR
 * broadcast elements of A. Every GEMM_K steps the sums are added to C and start at zero again: shorter
 * running sums have smaller errors (where few pairs are visible, one dot product's error is the result's).
 * Included by tile.c alone. */

#if defined(VEC_AVX512)
#define GEMM_MR 8 /* 8x3 = 24 sums of 32 registers, 8x2 for what 3 does not divide */
#define GEMM_NV 3
#define GEMM_K  32
#elif defined(VEC_AVX2)
#define GEMM_MR 4 /* 4x3 = 12 sums of 16 registers */
#define GEMM_NV 3
#define GEMM_K  32
#else
#define GEMM_MR 4
#define GEMM_NV 2
#define GEMM_K  16 /* no FMA: products are rounded too */
#endif

/* a_row: distance of the MR elements of one k; a_step: distance of two k. Constants once inlined. */
INLINE void gemm_block(const int nv, uint32_t k, const float *a, size_t a_row, size_t a_step, const float *b,
                       size_t b_pitch, float *c, size_t c_pitch, int add) {
    vf sum[GEMM_MR][GEMM_NV];
    for (int r = 0; r < GEMM_MR; ++r)
        for (int v = 0; v < nv; ++v) sum[r][v] = (vf){0};
    for (uint32_t i = 0; i < k; ++i) {
        vf x[GEMM_NV];
        for (int v = 0; v < nv; ++v) x[v] = vf_load(b + v * LANES);
        for (int r = 0; r < GEMM_MR; ++r) {
            vf y = vf_splat(a[(size_t)r * a_row]);
            for (int v = 0; v < nv; ++v) sum[r][v] += y * x[v];
        }
        a += a_step;
        b += b_pitch;
    }
    for (int r = 0; r < GEMM_MR; ++r)
        for (int v = 0; v < nv; ++v) {
            float *to = c + (size_t)r * c_pitch + v * LANES;
            vf_store(to, add ? vf_load(to) + sum[r][v] : sum[r][v]);
        }
}

/* Vectors of C: as many blocks of GEMM_NV as leave no single vector over. */
INLINE uint32_t gemm_width(uint32_t vectors) {
    if (vectors >= GEMM_NV) return GEMM_NV == 3 && vectors == 4 ? 2 : GEMM_NV;
    return vectors;
}

INLINE void gemm(uint32_t m, uint32_t n, uint32_t k, const float *a, size_t a_row, size_t a_step, const float *b,
                 size_t b_pitch, float *c, size_t c_pitch, int add) {
    uint32_t vectors = (n + LANES - 1) / LANES;
    for (uint32_t at = 0; at < k || !at; at += GEMM_K, add = 1) {
        uint32_t depth = k - at < GEMM_K ? k - at : GEMM_K, nv;
        for (uint32_t v = 0; v < vectors; v += nv) {
            const float *b_at = b + at * b_pitch + (size_t)v * LANES;
            nv = gemm_width(vectors - v);
            for (uint32_t i = 0; i < m; i += GEMM_MR) {
                const float *a_at = a + i * a_row + at * a_step;
                float *c_at = c + i * c_pitch + (size_t)v * LANES;
                if (nv == 1) gemm_block(1, depth, a_at, a_row, a_step, b_at, b_pitch, c_at, c_pitch, add);
                else if (nv == 2) gemm_block(2, depth, a_at, a_row, a_step, b_at, b_pitch, c_at, c_pitch, add);
                else gemm_block(GEMM_NV, depth, a_at, a_row, a_step, b_at, b_pitch, c_at, c_pitch, add);
            }
        }
    }
}

static void tile_matmul(uint32_t m, uint32_t n, uint32_t k, const float *a, size_t a_pitch, const float *b,
                        size_t b_pitch, float *c, size_t c_pitch, int add) {
    gemm(m, n, k, a, a_pitch, 1, b, b_pitch, c, c_pitch, add);
}

static void tile_matmul_at(uint32_t m, uint32_t n, uint32_t k, const float *a, size_t a_pitch, const float *b,
                           size_t b_pitch, float *c, size_t c_pitch, int add) {
    gemm(m, n, k, a, 1, a_pitch, b, b_pitch, c, c_pitch, add);
}
