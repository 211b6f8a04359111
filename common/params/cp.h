/* SPDX-License-Identifier: MIT
 *
 * What attention over ranks does between its calls of attention: elements that are copied, converted, added or set, and
 * the merge of a part of the forward. Filled by dispatch/cp_*.c, read by common/kernels/cp.h and backends/cpu/cp.c.
 * Strides are in elements. */
#ifndef STW_COMMON_PARAMS_CP_H
#define STW_COMMON_PARAMS_CP_H

#include "attn_bwd.h"

/* A thread of a GPU moves so many elements at a time where rows allow it, and copies so many of these vectors. */
enum { STW_CP_THREADS = 256, STW_CP_VECTOR = 4, STW_CP_AHEAD = 4 };

/* Beside the values of stw_dtype: in what the forward of f64 problems sums, which the CPU alone has. */
#define STW_CP_LONG_DOUBLE 64u

/* to[i] = x, or to[i] + x, where x is `value` or from[i] + more[0][i] + more[1][i]; the last index varies fastest. */
typedef struct stw_cp_cast {
    void *to;
    const void *from;    /* null: `value`                                             */
    const void *more[2]; /* of from's type and strides; null: nothing is added; [0] before [1] */
    int64_t extent[4], to_stride[4], from_stride[4];
    double value;
    uint32_t to_dtype, from_dtype;
    uint32_t adds;   /* to what is there, with one rounding of f32's sum    */
    uint32_t vector; /* GPUs: elements of a thread, 1 or STW_CP_VECTOR      */
    int64_t blocks;  /* GPUs: CTAs                                          */
} stw_cp_cast;

/* A line is a row of one head. LSE = log(exp(LSE) + exp(part's)), O = exp(LSE - new) O + exp(part's - new) part's. */
typedef struct stw_cp_merge {
    void *out_sum, *lse_sum; /* lines of `width`, lines: [batches][rows][heads], `to_batch` lines between batches */
    const void *out, *lse;   /* of the part; out: lines without gaps, or null: zero (a sink)                      */
    int64_t batches, rows, heads, width;
    int64_t to_batch;
    int64_t lse_batch, lse_row, lse_head;
    uint32_t dtype, sum_dtype; /* of the part, of the sums: STW_F64, or STW_CP_LONG_DOUBLE */
    int64_t blocks;            /* GPUs: CTAs                                               */
} stw_cp_merge;

STW_PARAMS_ASSERT(sizeof(stw_cp_cast) == 160, "host and device agree on a cast");
STW_PARAMS_ASSERT(sizeof(stw_cp_merge) == 112, "host and device agree on a merge");

#endif
