/* SPDX-License-Identifier: MIT
 *
 * Elements that a call over ranks copies, converts, adds or sets, by the backend's cp_cast: in the call's stream, and
 * as few launches as the layouts allow. */
#include "cp.h"

/* Indices that follow each other in both tensors become one, from the last on. */
static void fold(stw_cp_cast *c) {
    int64_t extent[4] = {1, 1, 1, 1}, to[4] = {1, 0, 0, 0}, from[4] = {1, 0, 0, 0};
    int count = 0;
    for (int i = 3; i >= 0; --i) {
        int last = count - 1;
        if (c->extent[i] == 1) continue;
        if (count && c->to_stride[i] == to[last] * extent[last] &&
            (!c->from || c->from_stride[i] == from[last] * extent[last])) {
            extent[last] *= c->extent[i];
            continue;
        }
        extent[count] = c->extent[i];
        to[count] = c->to_stride[i];
        from[count++] = c->from_stride[i];
    }
    for (int i = 0; i < 4; ++i) {
        c->extent[3 - i] = extent[i];
        c->to_stride[3 - i] = to[i];
        c->from_stride[3 - i] = from[i];
    }
}

stw_status stw_cp_cast_all(const stw_cp_run *run, const stw_cp_cast *cast) {
    const stw_context *context = run->plan->context;
    stw_cp_cast folded = *cast;
    for (int i = 0; i < 4; ++i)
        if (!cast->extent[i]) return STW_OK;
    fold(&folded);
    return context->ops->cp_cast(&context->device, &run->plan->side, &folded, run->wire.stream);
}

stw_status stw_cp_convert(const stw_cp_run *run, void *to, uint32_t to_dtype, const void *from, uint32_t from_dtype,
                          int64_t count) {
    const stw_cp_cast cast = {.to = to,
                              .from = from,
                              .extent = {1, 1, 1, count},
                              .to_stride = {0, 0, 0, 1},
                              .from_stride = {0, 0, 0, 1},
                              .to_dtype = to_dtype,
                              .from_dtype = from_dtype};
    return stw_cp_cast_all(run, &cast);
}

stw_status stw_cp_set(const stw_cp_run *run, void *to, int64_t count, uint32_t dtype, double value) {
    const stw_cp_cast cast = {
        .to = to, .extent = {1, 1, 1, count}, .to_stride = {0, 0, 0, 1}, .value = value, .to_dtype = dtype};
    return stw_cp_cast_all(run, &cast);
}

stw_status stw_cp_add(const stw_cp_run *run, void *to, const void *from, int64_t count, uint32_t dtype) {
    const stw_cp_cast cast = {.to = to,
                              .from = from,
                              .extent = {1, 1, 1, count},
                              .to_stride = {0, 0, 0, 1},
                              .from_stride = {0, 0, 0, 1},
                              .to_dtype = dtype,
                              .from_dtype = dtype,
                              .adds = 1};
    return stw_cp_cast_all(run, &cast);
}

static char *at_head(const stw_cp_lines *lines) {
    return lines->row + lines->head * lines->t->head * (int64_t)stw_dtype_size(lines->t->dtype);
}

stw_status stw_cp_copy_heads(const stw_cp_run *run, const stw_cp_lines *to, const stw_cp_lines *from, int64_t batches,
                             int64_t rows, int64_t heads, int adds) {
    stw_cp_cast cast = {.to = at_head(to),
                        .extent = {batches, rows, heads, to->t->width},
                        .to_stride = {to->batch, to->t->seq, to->t->head, to->t->dim},
                        .to_dtype = (uint32_t)to->t->dtype,
                        .adds = adds != 0};
    if (from) {
        const int64_t strides[4] = {from->batch, from->t->seq, from->t->head, from->t->dim};
        cast.from = at_head(from);
        cast.from_dtype = (uint32_t)from->t->dtype;
        for (int i = 0, n = 0; i < STW_CP_SETS; ++i)
            if (from->t->more[i]) cast.more[n++] = (const char *)cast.from + from->t->more[i];
        for (int i = 0; i < 4; ++i) cast.from_stride[i] = strides[i];
    }
    return stw_cp_cast_all(run, &cast);
}

int64_t stw_cp_batch_stride(const stw_cp_tensor *t, const stw_cp_seq *seq) {
    if (t->whose == STW_CP_SHARDS) return seq->own[t->kv] * t->seq;
    if (t->whose == STW_CP_RANKS || t->packed) return seq->held[t->kv] * t->seq;
    return t->batch;
}

stw_status stw_cp_copy_rows(const stw_cp_run *run, const stw_cp_tensor *to, const stw_cp_tensor *from,
                            const stw_cp_seq *seq, int64_t row, int64_t count, int adds) {
    const stw_cp_lines target = {to, stw_cp_at(to, seq, 0, row), 0, stw_cp_batch_stride(to, seq)};
    if (!from) return stw_cp_copy_heads(run, &target, NULL, seq->batch, count, to->heads, adds);
    const stw_cp_lines source = {from, stw_cp_at(from, seq, 0, row), 0, stw_cp_batch_stride(from, seq)};
    return stw_cp_copy_heads(run, &target, &source, seq->batch, count, to->heads, adds);
}

/* Its rows are numbered through all sequences. */
static int is_line(const stw_cp_tensor *t) { return t->whose != STW_CP_CALLERS || t->packed; }

stw_status stw_cp_copy(const stw_cp_run *run, const stw_cp_tensor *to, const stw_cp_tensor *from, int adds) {
    const stw_cp_plan *p = run->plan;
    int shards = to->whose == STW_CP_SHARDS || from->whose == STW_CP_SHARDS;
    stw_status status = STW_OK;
    if (is_line(to) && is_line(from)) {
        const stw_cp_lines target = {to, to->data, 0, 0}, source = {from, from->data, 0, 0};
        int64_t rows = shards ? p->shard_rows[to->kv] : p->rows[to->kv];
        return stw_cp_copy_heads(run, &target, &source, 1, rows, to->heads, adds);
    }
    for (int64_t s = 0; s < p->seq_count && !status; ++s) {
        const stw_cp_seq *seq = &p->seqs[s];
        status = stw_cp_copy_rows(run, to, from, seq, 0, shards ? seq->own[to->kv] : seq->held[to->kv], adds);
    }
    return status;
}
