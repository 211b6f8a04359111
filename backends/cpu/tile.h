/* SPDX-License-Identifier: MIT
 *
 * The tile operations: everything of the CPU backend that touches elements, as one table of functions an
 * instruction set. tile.c is compiled once for each (STW_TILE_TABLE names its table); attn_*.c go over the
 * problem and call them. Tiles are f32 (of f64 problems f64), row-major, 64-byte aligned; pitches are in
 * elements. */
#ifndef STW_CPU_TILE_H
#define STW_CPU_TILE_H

#include "common/jagged_ops.h"
#include "common/params/attn_seq.h"
#include "common/philox.h"

/* How a tile of dot products becomes logits S, and which of its pairs take part. */
typedef struct stw_tile_logits {
    float *s;            /* in: Q K^T; the operation says what is left there                 */
    uint32_t pitch;      /* of s and of every other tile of the operation                    */
    uint32_t rows, cols; /* of the problem in this tile                                      */
    uint32_t features;   /* STW_FEAT_*                                                       */
    uint32_t dtype;      /* operands are rounded to it                                       */
    float scale, softcap;
    int64_t low, high; /* pair (r, c) is visible iff low <= c - r <= high                    */
    const void *bias;  /* of pair (0, 0); null without bias                                  */
    int64_t bias_query;
    uint32_t bias_key, bias_dtype;
    float slope;          /* ALiBi                                                           */
    double diagonal;      /* ALiBi: the key (tile's column) on the diagonal of row 0         */
    double first_key;     /* ALiBi column form: position of column 0                         */
    const uint32_t *keep; /* dropout: all ones or zero for each pair; null without           */
    float keep_scale;
    const int32_t *hidden; /* [4][pitch]: first row, end, first, end that do not see a key; null: none */
    int32_t first_row;     /* row 0 as these count                                           */
} stw_tile_logits;

/* Backward: s <- P.Z, dp (in: dO V^T) <- dS', both rounded to dtype; raw (or null) <- dS in f32. */
typedef struct stw_tile_grad {
    stw_tile_logits logits;
    float *dp, *raw;
    const float *lse, *delta; /* of each row */
} stw_tile_grad;

/* Forward, online softmax: s <- exp(S - max).Z rounded to dtype; maximum, sum and fix (what the row of O
 * so far is multiplied with) are updated for each row. */
typedef struct stw_tile_softmax {
    stw_tile_logits logits;
    float *maximum, *sum, *fix;
} stw_tile_softmax;

/* Element types of a jagged tile operation: what is read, what is written, and whether that is added to. */
typedef struct stw_tile_types {
    uint32_t in, out; /* f16, bf16, f32; out: `in` or f32 */
    int add;          /* f32 only                         */
    int large;        /* the tensor written is larger than the caches: it need not stay in them */
} stw_tile_types;

/* One line of layer norm. */
typedef struct stw_tile_norm {
    const float *gamma; /* of the line's elements; null: 1 */
    float mean, rstd, average_g, average_gh;
} stw_tile_norm;

/* dX of a pointwise operation over n contiguous elements. */
typedef void (*stw_tile_pointwise)(void *out, const void *x, const void *g, int64_t n, float threshold,
                                   stw_tile_types types);

typedef struct stw_tile_ops {
    const char *loop; /* column `loop` of the tuning table                            */
    uint32_t lanes;   /* widths of B and C operands are padded to a multiple of this  */

    /* to[rows][width] <- from, converted; columns cols..width-1 become 0. */
    void (*load_rows)(float *to, size_t pitch, uint32_t width, const void *from, int64_t stride, uint32_t rows,
                      uint32_t cols, uint32_t dtype);
    /* to[cols][0..rows-1] <- from[rows][cols] transposed; both multiples of `lanes`. */
    void (*transpose)(float *to, size_t to_pitch, const float *from, size_t from_pitch, uint32_t rows, uint32_t cols);
    /* to <- src*scale in `dtype`, or to += src*scale (f32). */
    void (*store_rows)(void *to, int64_t stride, uint32_t dtype, int add, const float *src, size_t pitch, uint32_t rows,
                       uint32_t cols, float scale);
    /* to <- src, or to += src. */
    void (*add_rows)(float *to, int64_t stride, int add, const float *src, size_t pitch, uint32_t rows, uint32_t cols);
    /* out[r] <- sum_c a[r][c]*b[r][c] of two tensors of `dtype`, rounded once. */
    void (*dot_rows)(float *out, const void *a, int64_t a_stride, const void *b, int64_t b_stride, uint32_t rows,
                     uint32_t cols, uint32_t dtype);

    /* C[m][n] (+)= A[m][k] B[k][n]; m and n are rounded up to EDGE_STRIP and lanes. */
    void (*matmul)(uint32_t m, uint32_t n, uint32_t k, const float *a, size_t a_pitch, const float *b, size_t b_pitch,
                   float *c, size_t c_pitch, int add);
    /* The same with A stored transposed, a[k][m]. */
    void (*matmul_at)(uint32_t m, uint32_t n, uint32_t k, const float *a, size_t a_pitch, const float *b,
                      size_t b_pitch, float *c, size_t c_pitch, int add);
    /* C[m][n] (+)= A B in f64, A[i][s] = a[i*a_row + s*a_step]; n is rounded up to lanes, m is not. */
    void (*matmul_f64)(uint32_t m, uint32_t n, uint32_t k, const double *a, size_t a_row, size_t a_step,
                       const double *b, size_t b_pitch, double *c, size_t c_pitch, int add);

    void (*grad)(const stw_tile_grad *tile);
    void (*softmax)(const stw_tile_softmax *tile);
    void (*scale_rows)(float *to, size_t pitch, uint32_t rows, uint32_t cols, const float *factor);
    /* keep[rows][pitch] for local rows i0.. and keys j0.. of a stream. */
    void (*dropout)(uint32_t *keep, size_t pitch, const stw_attn_params *p, const stw_dropout_stream *stream,
                    int64_t i0, int64_t j0, uint32_t rows, uint32_t cols);

    /* Jagged operations, n contiguous elements each (tile_jagged.inl). Columns of f32 are padded to lanes. */
    stw_tile_pointwise pointwise[STW_JAGGED_OPS]; /* by stw_jagged_op; null: not pointwise */
    void (*convert)(void *out, const void *from, int64_t n, stw_tile_types types);
    void (*fill)(void *out, float value, int64_t n, stw_tile_types types);
    /* `bytes` <- an element of 1, 2, 4 or 8 bytes, which fills `pattern`; large as in stw_tile_types */
    void (*repeat)(void *out, uint64_t pattern, size_t bytes, int large);
    double (*dot)(const void *a, const void *b, int64_t n, uint32_t dtype);
    /* acc += a, or a*b when b is not null */
    void (*add_columns)(float *acc, const void *a, const void *b, int64_t n, uint32_t dtype);
    /* out (+)= the sum of `parts` arrays, `pitch` apart, in double and in order; out is of types.out */
    void (*sum_parts)(void *out, const float *from, int64_t parts, int64_t pitch, int64_t n, stw_tile_types types);
    /* out = y*(g - sum); `sums` (one an element) or, when null, `sum` */
    void (*softmax_line)(void *out, const void *y, const void *g, const float *sums, float sum, int64_t n,
                         stw_tile_types types);
    /* the same with each line's own sum, for lines of n neighbours */
    void (*softmax_lines)(void *out, const void *y, const void *g, int64_t lines, int64_t n, stw_tile_types types);
    double (*total)(const void *a, int64_t n, uint32_t dtype);
    /* as softmax_line and softmax_lines: out = g - e^y*sum, of sums of g */
    void (*log_softmax_line)(void *out, const void *y, const void *g, const float *sums, float sum, int64_t n,
                             stw_tile_types types);
    void (*log_softmax_lines)(void *out, const void *y, const void *g, int64_t lines, int64_t n, stw_tile_types types);
    /* sums_out: of g*gamma, of g*gamma*h; dgamma and dbeta, both, dgamma alone or neither: as norm_columns does it */
    void (*norm_sums)(const void *x, const void *g, const stw_tile_norm *norm, int64_t n, uint32_t dtype,
                      double *sums_out, float *dgamma, float *dbeta);
    void (*norm_line)(void *out, const void *x, const void *g, const stw_tile_norm *norm, int64_t n,
                      stw_tile_types types);
    /* dgamma += g*h, dbeta += g; either may be null */
    void (*norm_columns)(float *dgamma, float *dbeta, const void *x, const void *g, float mean, float rstd, int64_t n,
                         uint32_t dtype);

    /* Products of bf16 (tile_scores.inl); null without the instruction. Packing returns 1 where an element is
     * too small for it. to[i][n]: terms 2i, 2i+1 of column n; to[r][i]: of row r; rows of
     * `to` hold a multiple of 32 columns or 16 words. */
    int (*pair_rows)(uint32_t *to, size_t pitch, const void *from, int64_t stride, uint32_t terms, uint32_t cols);
    int (*pair_terms)(uint32_t *to, size_t pitch, const void *from, int64_t stride, uint32_t rows, uint32_t terms);
    void (*matmul_pairs)(uint32_t m, uint32_t n, uint32_t k, const uint32_t *a, size_t a_row, size_t a_step,
                         const uint32_t *b, size_t b_pitch, float *c, size_t c_pitch, int add);
} stw_tile_ops;

extern const stw_tile_ops stw_tile_portable;
#if defined(__x86_64__)
extern const stw_tile_ops stw_tile_avx2, stw_tile_avx512, stw_tile_avx512_bf16;
#endif

#endif
