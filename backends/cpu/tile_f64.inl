/* SPDX-License-Identifier: MIT
 *
 * The matrix product of f64 tiles: C (+)= A B, A in any strides. A block of GEMM64_MR rows by two vectors of C
 * stays in registers. Every GEMM64_K steps the sums are added to C and start at zero again: shorter running
 * sums have smaller errors. Included by tile.c alone. */

#define GEMM64_MR 4
#define GEMM64_K  32
#define LANES64   (LANES / 2) /* of one register: `vd` are two */

typedef double vd_half __attribute__((vector_size(8 * LANES64)));
typedef double vd_half_any __attribute__((vector_size(8 * LANES64), aligned(8), may_alias));

/* `rows`, a constant, of C from `c` on, two vectors wide. */
INLINE void gemm64_block(const int rows, uint32_t k, const double *a, size_t a_row, size_t a_step, const double *b,
                         size_t b_pitch, double *c, size_t c_pitch, int add) {
    vd_half low[GEMM64_MR], high[GEMM64_MR];
    for (int r = 0; r < rows; ++r) low[r] = high[r] = (vd_half){0};
    for (uint32_t i = 0; i < k; ++i) {
        vd_half x = *(const vd_half_any *)b, y = *(const vd_half_any *)(b + LANES64);
        for (int r = 0; r < rows; ++r) {
            low[r] += a[(size_t)r * a_row] * x;
            high[r] += a[(size_t)r * a_row] * y;
        }
        a += a_step;
        b += b_pitch;
    }
    for (int r = 0; r < rows; ++r) {
        vd_half_any *to = (vd_half_any *)(c + (size_t)r * c_pitch), *next = to + 1;
        if (add) {
            low[r] += *to;
            high[r] += *next;
        }
        *to = low[r];
        *next = high[r];
    }
}

static void tile_matmul_f64(uint32_t m, uint32_t n, uint32_t k, const double *a, size_t a_row, size_t a_step,
                            const double *b, size_t b_pitch, double *c, size_t c_pitch, int add) {
    uint32_t whole = m / GEMM64_MR * GEMM64_MR;
    for (uint32_t at = 0; at < k; at += GEMM64_K, add = 1) {
        uint32_t depth = k - at < GEMM64_K ? k - at : GEMM64_K;
        const double *a_at = a + at * a_step, *b_at = b + at * b_pitch;
        for (uint32_t j = 0; j < n; j += LANES) {
            for (uint32_t i = 0; i < whole; i += GEMM64_MR)
                gemm64_block(GEMM64_MR, depth, a_at + i * a_row, a_row, a_step, b_at + j, b_pitch, c + i * c_pitch + j,
                             c_pitch, add);
            for (uint32_t i = whole; i < m; ++i)
                gemm64_block(1, depth, a_at + i * a_row, a_row, a_step, b_at + j, b_pitch, c + i * c_pitch + j, c_pitch,
                             add);
        }
    }
}
