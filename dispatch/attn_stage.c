/* SPDX-License-Identifier: MIT
 *
 * Inputs that are copied first: those whose head dim is not contiguous, and on a GPU those whose rows are no whole
 * vectors of 16 bytes. A plan gives each a place with contiguous rows in front of the workspace and tells the backend
 * of that one; a run call has the backend copy it there first. Dimensions that are broadcast stay so: a dout of one
 * number becomes one row. On a GPU it becomes the rows of one head: a row that all CTAs read at once is a line of one
 * part of L2 (1.76 times the time on an H200). */
#include "attn_problem.h"

#include "common/attn_packed.h"
#include "common/dtype.h"
#include "common/params/attn_seq.h"

/* Copies of rows that are no whole vectors pay where a call has so many FLOP for each byte of them: kernels without
 * vectors have a third to a fifth of the rate on an H200. About 100 keys without a mask, of full heads. */
#define FLOP_PER_BYTE 96.0

/* A tensor, and what its copy would be for. */
typedef struct candidate {
    stw_tensor_extents e;
    const stw_tensor_param *from;
    int64_t col;
    int strided, spreads, off; /* `off`: rows that are no whole vectors */
} candidate;

/* `vector`: elements of one, a power of two. */
static int is_off(int64_t stride, int64_t extent, int64_t vector) { return extent > 1 && (stride & (vector - 1)) != 0; }

/* 1: the call reads this tensor, which is an input with a head dim. */
static int look(const stw_attn_desc *desc, unsigned copies, stw_attn_work *work, uint32_t i, candidate *c) {
    const stw_tensor_row *row = &stw_tensor_rows[i];
    if (!row->dim_offset || stw_tensor_use_of(row, desc, work->kind) != STW_USE_INPUT) return 0;
    int64_t vector = STW_STAGE_PITCH / (int64_t)stw_dtype_size(desc->dtype);
    stw_tensor_extents e = stw_tensor_extents_of(row, desc);
    if (!e.batch || !e.rows) return 0;
    const stw_tensor_param *p = stw_tensor_param_of(&work->params, row);
    int64_t col = stw_tensor_dim_stride(row, desc);
    int off = desc->flags & STW_ATTN_ANY_ADDRESS || (e.dim & (vector - 1)) != 0 || is_off(p->seq, e.rows, vector) ||
              is_off(p->head, e.heads, vector) || is_off(p->batch, e.batch, vector);
    *c = (candidate){.e = e,
                     .from = p,
                     .col = e.dim == 1 ? 1 : col,
                     .strided = col != 1 && e.dim != 1,
                     .spreads = copies & STW_COPY_SPREADS && p->seq == 0 && e.rows > 1,
                     .off = copies & STW_COPY_ALIGNS && off};
    return 1;
}

/* Strides of the copy and its extents: [batch, head, seq] without the dimensions that are broadcast, but for
 * rows that are to be spread. */
static stw_attn_stage lay_out(const stw_attn_desc *desc, const candidate *c, uint32_t tensor) {
    const stw_tensor_param *from = c->from;
    int rows = from->seq || c->spreads;
    stw_attn_stage s = {.from_strides = *from,
                        .from_col = c->col,
                        .element = (uint32_t)stw_dtype_size(desc->dtype),
                        .sequences = desc->batch,
                        .tensor = tensor,
                        .rows = rows ? c->e.rows : 1,
                        .heads = from->head ? c->e.heads : 1,
                        .batch = from->batch ? c->e.batch : 1,
                        .cols = c->e.dim};
    int64_t at = stw_stage_row(&s);
    s.to_strides = (stw_tensor_param){.seq = rows ? at : 0};
    at *= s.rows;
    s.to_strides.head = from->head ? at : 0;
    at *= s.heads;
    s.to_strides.batch = from->batch ? at : 0;
    return s;
}

static size_t size_of(const stw_attn_stage *s) {
    size_t bytes = (size_t)(s->batch * s->heads * s->rows * stw_stage_row(s)) * s->element;
    return (bytes + STW_WORKSPACE_ALIGNMENT - 1) / STW_WORKSPACE_ALIGNMENT * STW_WORKSPACE_ALIGNMENT;
}

/* About how many FLOP the call has. Packed keys: as if sequences were equally long. */
static double flop_of(const stw_attn_desc *desc, const stw_attn_work *work) {
    const stw_attn_params *p = &work->params;
    int packed_q = stw_attn_is_packed(desc, 0), packed_kv = stw_attn_is_packed(desc, 1);
    double batch = (double)stw_larger(p->batch, 1), rows = packed_q ? (double)p->total_q : batch * (double)p->max_seq_q;
    double keys = packed_kv ? (double)p->total_kv / batch : (double)p->max_seq_kv;
    if (p->features & STW_FEAT_WINDOW_RIGHT) {
        double seen = (double)p->window_left + (double)p->window_right + 1;
        keys /= 2;
        if (p->features & STW_FEAT_WINDOW_LEFT && seen < keys) keys = seen > 0 ? seen : 0;
    }
    uint32_t d = p->head_dim_qk, dv = p->head_dim_v, cols = work->kind == STW_PLAN_ATTN_FWD ? d + dv : 3 * d + 2 * dv;
    return 2.0 * cols * (double)p->heads_q * rows * keys;
}

void stw_attn_stages_plan(const stw_attn_desc *desc, unsigned copies, stw_attn_work *work) {
    candidate read[STW_TENSOR_ROWS];
    uint32_t tensor[STW_TENSOR_ROWS], count = 0;
    double bytes = 0; /* of rows that are no whole vectors */
    work->stage_count = 0;
    work->stage_size = 0;
    for (uint32_t i = 0; i < STW_TENSOR_ROWS; ++i) {
        if (!look(desc, copies, work, i, &read[count])) continue;
        if (read[count].off) {
            stw_attn_stage s = lay_out(desc, &read[count], i);
            bytes += (double)size_of(&s);
        }
        tensor[count++] = i;
    }
    int aligns = bytes > 0 && flop_of(desc, work) >= FLOP_PER_BYTE * bytes;
    for (uint32_t n = 0; n < count; ++n) {
        const candidate *c = &read[n];
        const uint32_t i = tensor[n];
        if (!(c->strided || c->spreads || (aligns && c->off))) continue;
        stw_attn_stage *s = &work->stage[work->stage_count++];
        *s = lay_out(desc, c, i);
        *stw_tensor_param_of(&work->params, &stw_tensor_rows[i]) = s->to_strides;
        if (copies & STW_COPY_ALIGNS) work->params.features |= STW_FEAT_PADDED << i;
        s->to = (void *)work->stage_size; /* from the workspace's start */
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
