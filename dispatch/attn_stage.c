/* SPDX-License-Identifier: MIT
 *
 * Inputs whose head dim is not contiguous: a plan gives each a place with contiguous rows in front of the
 * workspace and tells the backend of that one; a run call has the backend copy it there first. Dimensions
 * that are broadcast stay so: a dout of one number becomes one row. On a GPU it becomes the rows of one head:
 * a row that all CTAs read at once is a line of one part of L2 (1.76 times the time on an H200).
 */
#include "attn_problem.h"

#include "common/dtype.h"

#define ROW_BYTES 16 /* rows start at its multiples */

/* Strides of the copy and its extents: [batch, head, seq] without the dimensions that are broadcast, but for
 * rows that are to be spread. */
static void lay_out(stw_attn_stage *s, stw_tensor_extents e, const stw_tensor_param *from, int spreads) {
    int64_t pitch = ROW_BYTES / s->element, at = (e.dim + pitch - 1) / pitch * pitch;
    int rows = from->seq || spreads;
    s->rows = rows ? e.rows : 1;
    s->heads = from->head ? e.heads : 1;
    s->batch = from->batch ? e.batch : 1;
    s->cols = e.dim;
    s->to_strides = (stw_tensor_param){.seq = rows ? at : 0};
    at *= s->rows;
    s->to_strides.head = from->head ? at : 0;
    at *= s->heads;
    s->to_strides.batch = from->batch ? at : 0;
}

static size_t size_of(const stw_attn_stage *s) {
    int64_t pitch = ROW_BYTES / s->element, row = (s->cols + pitch - 1) / pitch * pitch;
    size_t bytes = (size_t)(s->batch * s->heads * s->rows * row) * s->element;
    return (bytes + STW_WORKSPACE_ALIGNMENT - 1) / STW_WORKSPACE_ALIGNMENT * STW_WORKSPACE_ALIGNMENT;
}

void stw_attn_stages_plan(const stw_attn_desc *desc, int spreads_rows, stw_attn_work *work) {
    work->stage_count = 0;
    work->stage_size = 0;
    for (uint32_t i = 0; i < STW_TENSOR_ROWS; ++i) {
        const stw_tensor_row *row = &stw_tensor_rows[i];
        stw_tensor_extents e = stw_tensor_extents_of(row, desc);
        int64_t col = stw_tensor_dim_stride(row, desc);
        stw_tensor_use use = stw_tensor_use_of(row, desc, work->kind);
        if (use != STW_USE_INPUT || !e.batch || !e.rows) continue;
        stw_tensor_param *p = stw_tensor_param_of(&work->params, row);
        int spreads = spreads_rows && row->dim_offset && p->seq == 0 && e.rows > 1;
        if (!spreads && (col == 1 || e.dim == 1)) continue;
        stw_attn_stage *s = &work->stage[work->stage_count++];
        *s = (stw_attn_stage){.from_strides = *p,
                              .from_col = col,
                              .element = (uint32_t)stw_dtype_size(desc->dtype),
                              .sequences = desc->batch,
                              .tensor = i};
        lay_out(s, e, p, spreads);
        *p = s->to_strides;
        s->to = (void *)work->stage_size; /* behind the workspace's start */
        work->stage_size += size_of(s);
    }
}

uint32_t stw_attn_stages_bind(const stw_attn_work *work, const stw_attn_params *params, char *workspace,
                              stw_attn_stage *stages) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < work->stage_count; ++i) {
        const stw_tensor_row *row = &stw_tensor_rows[work->stage[i].tensor];
        stw_attn_stage *s = &stages[count];
        *s = work->stage[i];
        s->from = stw_tensor_param_of((stw_attn_params *)params, row)->data;
        if (!s->from) continue; /* it has no rows in this call */
        s->to = workspace + (uintptr_t)s->to;
        s->cu_seqlens = row->kv ? params->cu_seqlens_kv : params->cu_seqlens_q;
        ++count;
    }
    return count;
}
