/* SPDX-License-Identifier: MIT
 *
 * The two matrix products of the backward pass on f32 tiles: C (+)= A B and C (+)= A^T B. A block of
 * MR rows by NV vectors of C stays in registers; each step of k multiplies NV vectors of B with MR
 * broadcast elements of A. A block's sum starts at zero and is added to C once, which keeps long sums
 * (thousands of rows into dK, dV) more accurate than one running sum. Included by tile.c alone. */

#if defined(VEC_AVX512)
#define GEMM_MR 8 /* 8x3 = 24 sums of 32 registers, 8x2 for what 3 does not divide */
#define GEMM_NV 3
#elif defined(VEC_AVX2)
#define GEMM_MR 4 /* 4x3 = 12 sums of 16 registers */
#define GEMM_NV 3
#else
#define GEMM_MR 4
#define GEMM_NV 2
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

#define GEMM_LOOP(a_at, a_row, a_step)                                                                       \
    do {                                                                                                     \
        uint32_t vectors = (n + LANES - 1) / LANES;                                                          \
        for (uint32_t v = 0; v < vectors;) {                                                                 \
            uint32_t nv = gemm_width(vectors - v);                                                           \
            const float *b_at = b + (size_t)v * LANES;                                                       \
            for (uint32_t i = 0; i < m; i += GEMM_MR) {                                                      \
                float *c_at = c + (size_t)i * c_pitch + (size_t)v * LANES;                                   \
                if (nv == 1)                                                                                 \
                    gemm_block(1, k, a_at, a_row, a_step, b_at, b_pitch, c_at, c_pitch, add);                \
                else if (nv == 2)                                                                            \
                    gemm_block(2, k, a_at, a_row, a_step, b_at, b_pitch, c_at, c_pitch, add);                \
                else                                                                                         \
                    gemm_block(GEMM_NV, k, a_at, a_row, a_step, b_at, b_pitch, c_at, c_pitch, add);          \
            }                                                                                                \
            v += nv;                                                                                         \
        }                                                                                                    \
    } while (0)

static void tile_matmul(uint32_t m, uint32_t n, uint32_t k, const float *a, size_t a_pitch, const float *b,
                        size_t b_pitch, float *c, size_t c_pitch, int add) {
    GEMM_LOOP(a + (size_t)i * a_pitch, a_pitch, 1);
}

static void tile_matmul_at(uint32_t m, uint32_t n, uint32_t k, const float *a, size_t a_pitch, const float *b,
                           size_t b_pitch, float *c, size_t c_pitch, int add) {
    GEMM_LOOP(a + i, 1, a_pitch);
}
