/* SPDX-License-Identifier: MIT
 *
 * The two sides of a problem of `sternway run`: dense or packed, the batch, the longest sequence. Called by
 * run_shape.c. cu_seqlens is checked here, since the sizes of the problem come from it. */
#include "run.h"

#include <string.h>

static int32_t int32_at(const stw_st_tensor *tensor, int64_t index) {
    int32_t value;
    memcpy(&value, (const char *)tensor->data + 4 * index, 4);
    return value;
}

/* Starts of sequences: not decreasing, inside the rows. Finds the longest one. */
static int read_starts(run_problem *p, run_slot slot, int64_t rows, int64_t *batch_out,
                       int64_t *longest_out) {
    const stw_st_tensor *cu = p->inputs[slot];
    const char *name = run_slot_rows[slot].name;
    if (cu->type != STW_ST_I32 || cu->rank != 1 || cu->elements < 1)
        return run_refuse(p, STW_EXIT_USAGE, "%s: int32 [B+1] is accepted", name);
    int32_t before = 0;
    *batch_out = cu->shape[0] - 1;
    *longest_out = 0;
    for (int64_t b = 0; b <= *batch_out; ++b) {
        int32_t start = int32_at(cu, b);
        if (start < before || start > rows)
            return run_refuse(p, STW_EXIT_USAGE,
                              "%s[%lld] = %d: %d..%lld is accepted (not decreasing, within the rows)", name,
                              (long long)b, start, before, (long long)rows);
        if (b > 0 && start - before > *longest_out) *longest_out = start - before;
        before = start;
    }
    return 0;
}

/* One side: `of` is q or k. */
static int read_side(run_problem *p, run_slot of, run_slot cu, int64_t *batch_out, int64_t *max_seq_out,
                     int64_t *total_out) {
    const stw_st_tensor *tensor = p->inputs[of];
    int side = of == RUN_K, packed = p->inputs[cu] != NULL;
    if (tensor->rank != (packed ? 3 : 4))
        return run_refuse(p, STW_EXIT_USAGE, "%s: %d dimensions; %s", run_slot_rows[of].name, tensor->rank,
                          packed ? "[T,H,D] is accepted with cu_seqlens"
                                 : "[B,S,H,D] is accepted without cu_seqlens");
    if (packed) {
        int64_t rows = tensor->shape[0];
        int status = read_starts(p, cu, rows, batch_out, max_seq_out);
        if (status) return status;
        *total_out = rows;
        p->desc.flags |= side ? STW_ATTN_PACKED_KV : STW_ATTN_PACKED_Q;
        p->first_row[side] = int32_at(p->inputs[cu], 0);
        p->end_row[side] = int32_at(p->inputs[cu], *batch_out);
        return 0;
    }
    *batch_out = tensor->shape[0];
    *max_seq_out = tensor->shape[1];
    *total_out = 0;
    p->first_row[side] = 0;
    if (__builtin_mul_overflow(*batch_out, *max_seq_out, &p->end_row[side]))
        return run_refuse(p, STW_EXIT_USAGE, "%s: batch * sequence overflows", run_slot_rows[of].name);
    return 0;
}

int run_shape_lengths(run_problem *p) {
    stw_attn_desc *d = &p->desc;
    int64_t batch_kv = 0;
    int status = read_side(p, RUN_Q, RUN_CU_Q, &d->batch, &d->max_seq_q, &d->total_q);
    if (!status) status = read_side(p, RUN_K, RUN_CU_K, &batch_kv, &d->max_seq_kv, &d->total_kv);
    if (!status && batch_kv != d->batch)
        return run_refuse(p, STW_EXIT_USAGE, "batch is %lld by %s and %lld by %s", (long long)d->batch,
                          p->inputs[RUN_CU_Q] ? "cu_seqlens_q" : "q", (long long)batch_kv,
                          p->inputs[RUN_CU_K] ? "cu_seqlens_k" : "k");
    return status;
}
