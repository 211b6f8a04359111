/* SPDX-License-Identifier: MIT
 *
 * What the kernel that copies inputs into the workspace receives: a tensor whose head dim is strided, or whose rows are
 * no whole vectors of 16 bytes, becomes one with contiguous rows at multiples of 16 bytes. Filled by
 * dispatch/attn_stage.c and backends/gpu/attn_tiled.c, read by common/kernels/attn_stage.h and the CPU backend. */
#ifndef STW_COMMON_PARAMS_ATTN_STAGE_H
#define STW_COMMON_PARAMS_ATTN_STAGE_H

#include "attn_bwd.h"

#define STW_STAGE_ROWS  64 /* of a work tile */
#define STW_STAGE_PITCH 16 /* bytes: rows of a copy start at their multiples; a GPU fills what is left with zeros */
#define STW_STAGES_MAX  5  /* of a call */

typedef struct stw_attn_stage {
    const void *from;
    void *to;
    const int32_t *cu_seqlens;        /* packed: rows past the last sequence are not there; else null    */
    int64_t sequences;                /* entries of cu_seqlens, less 1                                   */
    int64_t batch, heads, rows, cols; /* of the copy: 1 where the tensor is broadcast             */
    stw_tensor_param from_strides;    /* data: null                                               */
    stw_tensor_param to_strides;
    int64_t from_col;
    uint32_t element; /* bytes */
    uint32_t tensor;  /* which of stw_tensor_rows */
} stw_attn_stage;

/* Rows that are copied. */
STW_SHARED_FN int64_t stw_stage_rows(const stw_attn_stage *s) {
    if (!s->cu_seqlens) return s->rows;
    int64_t end = s->cu_seqlens[s->sequences];
    return end < 0 ? 0 : end < s->rows ? end : s->rows;
}

/* Work tiles of STW_STAGE_ROWS rows of a head. */
STW_SHARED_FN int64_t stw_stage_strips(const stw_attn_stage *s) {
    return (s->rows + STW_STAGE_ROWS - 1) / STW_STAGE_ROWS;
}

/* Elements from one row of a copy to the next. */
STW_SHARED_FN int64_t stw_stage_row(const stw_attn_stage *s) {
    int64_t vector = STW_STAGE_PITCH / (int64_t)s->element;
    return (s->cols + vector - 1) / vector * vector;
}

/* All copies of a call, for one kernel. */
typedef struct stw_attn_stages {
    stw_attn_stage stage[STW_STAGES_MAX];
    int64_t end[STW_STAGES_MAX]; /* work tiles of the copies up to this one */
    uint32_t count, reserved;
} stw_attn_stages;

STW_PARAMS_ASSERT(sizeof(stw_attn_stage) == 144, "host and device agree on the copy");
STW_PARAMS_ASSERT(sizeof(stw_attn_stages) == 5 * (144 + 8) + 8, "host and device agree on the copies");

#endif
