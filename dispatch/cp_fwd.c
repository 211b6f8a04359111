/* SPDX-License-Identifier: MIT
 *
 * The forward over ranks: O and LSE of each part, merged row by row as they come:
 *     LSE = log(exp(LSE_a) + exp(LSE_b)),  O = exp(LSE_a - LSE) O_a + exp(LSE_b - LSE) O_b
 * Parts are computed in f32 (of f32 problems in f64 where the backend has it: a rounded LSE is a relative error of all
 * of a part) and summed in double (of f64 problems in long double), so that O has one rounding. A sink takes part once,
 * at the end: it adds to LSE and nothing to O. */
#include "cp.h"

#include <math.h>

static char *bytes_at(const stw_cp_run *run, size_t place) { return run->workspace + place; }

/* ---- inputs in the parts' type ---- */

static stw_status widen_q(const stw_cp_run *run) {
    const stw_cp_plan *p = run->plan;
    const stw_cp_tensor *from = &run->shard_q;
    const stw_cp_tensor to =
        stw_cp_ours(bytes_at(run, p->at.wide_q), STW_CP_SHARDS, 0, p->heads_q, from->width, p->partial);
    return stw_cp_copy(run, &to, from, 0);
}

static stw_status widen_bias(const stw_cp_run *run) {
    const stw_cp_plan *p = run->plan;
    const stw_bias_strides *s = &p->attn.bias;
    const int64_t *e = p->dbias_extent;
    if (!stw_cp_has_wide_bias(p)) return STW_OK;
    const stw_cp_cast cast = {.to = bytes_at(run, p->at.wide_bias),
                              .from = run->args.bias,
                              .extent = {e[0], e[1], e[2], e[3]},
                              .to_stride = {e[1] * e[2] * e[3], e[2] * e[3], e[3], 1},
                              .from_stride = {s->batch, s->head, s->query, s->key},
                              .to_dtype = (uint32_t)p->partial,
                              .from_dtype = (uint32_t)p->attn.bias_dtype};
    return stw_cp_cast_all(run, &cast);
}

static stw_status widen_slopes(const stw_cp_run *run) {
    const stw_cp_plan *p = run->plan;
    const stw_attn_desc *d = &p->attn;
    if (!(d->flags & STW_ATTN_ALIBI) || !d->batch) return STW_OK;
    return stw_cp_convert(run, bytes_at(run, p->at.wide_slopes), (uint32_t)p->partial, run->args.alibi_slopes,
                          (uint32_t)p->number, (d->batch - 1) * d->alibi_stride_batch + d->heads_q);
}

/* ---- merging ---- */

static int64_t line_of(const stw_cp_plan *p, const stw_cp_seq *seq, int64_t b, int64_t row) {
    return (seq->base[0] + b * seq->own[0] + row) * p->heads_q;
}

/* A merge into rows [row, + rows) of all batches of a sequence. */
static stw_cp_merge merge_into(const stw_cp_run *run, const stw_cp_seq *seq, int64_t row, int64_t rows) {
    const stw_cp_plan *p = run->plan;
    size_t line = (size_t)line_of(p, seq, 0, row) * stw_cp_wide_size(p);
    return (stw_cp_merge){.out_sum = bytes_at(run, p->at.out_sum) + line * (size_t)p->attn.head_dim_v,
                          .lse_sum = bytes_at(run, p->at.lse_sum) + line,
                          .batches = seq->batch,
                          .rows = rows,
                          .heads = p->heads_q,
                          .width = p->attn.head_dim_v,
                          .to_batch = seq->own[0] * p->heads_q,
                          .sum_dtype = stw_cp_wide_dtype(p)};
}

static stw_status merge(const stw_cp_run *run, const stw_cp_merge *m) {
    const stw_context *context = run->plan->context;
    return context->ops->cp_merge(&context->device, &run->plan->side, m, run->wire.stream);
}

/* A part without rows of O, of rows up to the used length. */
static stw_status add_sinks(const stw_cp_run *run) {
    const stw_cp_plan *p = run->plan;
    stw_status status = STW_OK;
    for (int64_t s = 0; s < p->seq_count; ++s)
        for (int64_t at = 0, first = 0; at < 2 && !status; ++at) {
            const stw_cp_seq *seq = &p->seqs[s];
            stw_cp_chunk all = stw_cp_chunk_of(p->desc.order, seq->rows[0], p->shard, p->shards, (int)at);
            stw_cp_merge m = merge_into(run, seq, first, stw_cp_used(seq, 0, all).count);
            m.lse = (const char *)run->args.sink + p->lane * p->heads_q * (int64_t)stw_dtype_size(p->number);
            m.lse_head = 1;
            m.dtype = (uint32_t)p->number;
            status = merge(run, &m);
            first += all.count;
        }
    return status;
}

static stw_status run_part(stw_cp_run *run, const stw_cp_tick *tick, const stw_cp_part *part) {
    const stw_cp_plan *p = run->plan;
    const stw_attn_desc *d = &p->attn;
    const stw_cp_seq *seq = &p->seqs[part->seq];
    int64_t size = (int64_t)stw_dtype_size(p->partial), wide_k = p->heads_kv * d->head_dim_qk,
            wide_v = p->heads_kv * d->head_dim_v;
    char *block = bytes_at(run, p->at.wide_kv), *out_part = bytes_at(run, p->at.out_part);
    char *lse_part = bytes_at(run, p->at.lse_part);
    stw_status status = STW_OK;
    if (part == p->parts + tick->part) /* the tick's first */
        status = stw_cp_convert(run, block, (uint32_t)p->partial, stw_cp_slot(run, tick->slot), (uint32_t)d->dtype,
                                tick->block_rows * (wide_k + wide_v));
    if (status) return status;
    stw_attn_args a = STW_INIT(stw_attn_args);
    a.q = bytes_at(run, p->at.wide_q) + line_of(p, seq, 0, part->q_row) * d->head_dim_qk * size;
    a.k = block + part->k_row * wide_k * size;
    a.v = block + (tick->block_rows * wide_k + part->k_row * wide_v) * size;
    a.out = out_part;
    a.lse = (float *)(void *)lse_part;
    a.alibi_slopes = (float *)(void *)(bytes_at(run, p->at.wide_slopes) +
                                       (seq->index * d->alibi_stride_batch + p->lane * p->heads_q) * size);
    if (d->bias_dtype) {
        const stw_bias_strides *s = &p->engines[part->engine].desc.bias;
        const int64_t *e = p->dbias_extent;
        int copied = stw_cp_has_wide_bias(p);
        int64_t batch = !copied ? d->bias.batch : d->bias.batch ? e[1] * e[2] * e[3] : 0;
        a.bias = (copied ? bytes_at(run, p->at.wide_bias) : (const char *)run->args.bias) +
                 (seq->index * batch + part->q_row * s->query + part->k_at * s->key) *
                     (copied ? size : (int64_t)stw_dtype_size(d->bias_dtype));
    }
    stw_cp_positions(run, part, &a);
    status =
        stw_attn_fwd(p->engines[part->engine].plan, &a, run->engine_workspace, p->engine_workspace, run->wire.stream);
    if (status) return status;
    stw_cp_merge m = merge_into(run, seq, part->q_row, part->q_rows);
    m.out = out_part;
    m.lse = lse_part;
    m.lse_batch = part->q_rows * p->heads_q;
    m.lse_row = p->heads_q;
    m.lse_head = 1;
    m.dtype = (uint32_t)p->partial;
    return merge(run, &m);
}

/* ---- the call ---- */

static stw_status start_sums(const stw_cp_run *run) {
    const stw_cp_plan *p = run->plan;
    int64_t rows = p->shard_rows[0] * p->heads_q;
    uint32_t wide = stw_cp_wide_dtype(p);
    stw_status status = stw_cp_set(run, bytes_at(run, p->at.out_sum), rows * p->attn.head_dim_v, wide, 0);
    return status ? status : stw_cp_set(run, bytes_at(run, p->at.lse_sum), rows, wide, -INFINITY);
}

/* Under the first moves. */
static stw_status start(stw_cp_run *run) {
    stw_status status = widen_q(run);
    if (!status) status = widen_bias(run);
    if (!status) status = widen_slopes(run);
    return status ? status : start_sums(run);
}

static stw_status exchange_in(stw_cp_run *run) {
    const stw_cp_tensor *from[] = {&run->q, &run->k, &run->v}, *to[] = {&run->shard_q, &run->shard_k, &run->shard_v};
    const stw_cp_exchange x = {.in = 1, .groups = 1, .count = 3, .from = from, .to = to};
    return run->plan->split > 1 ? stw_cp_exchange_all(run, &x) : STW_OK;
}

static stw_status write_results(stw_cp_run *run) {
    const stw_cp_plan *p = run->plan;
    const stw_attn_desc *d = &p->attn;
    int64_t rows = p->shard_rows[0] * p->heads_q;
    char *lse_data = bytes_at(run, p->at.lse);
    const stw_cp_tensor out =
        stw_cp_ours(bytes_at(run, p->at.out), STW_CP_SHARDS, 0, p->heads_q, d->head_dim_v, d->dtype);
    const stw_cp_tensor lse = stw_cp_ours(lse_data, STW_CP_SHARDS, 0, p->heads_q, 1, p->number);
    uint32_t wide = stw_cp_wide_dtype(p);
    stw_status status =
        stw_cp_convert(run, out.data, (uint32_t)d->dtype, bytes_at(run, p->at.out_sum), wide, rows * d->head_dim_v);
    if (!status) status = stw_cp_convert(run, lse.data, (uint32_t)p->number, bytes_at(run, p->at.lse_sum), wide, rows);
    /* a rank that wants no LSE gets it nevertheless: the others may want theirs */
    const stw_cp_tensor unwanted =
        stw_cp_ours(lse_data + (size_t)rows * stw_dtype_size(p->number), STW_CP_RANKS, 0, d->heads_q, 1, p->number);
    const stw_cp_tensor *from[] = {&lse, &out}, *to[] = {run->lse.data ? &run->lse : &unwanted, &run->out};
    const stw_cp_exchange x = {.groups = 1, .count = 2, .from = from, .to = to};
    if (p->split > 1 && !status) return stw_cp_exchange_all(run, &x);
    for (int i = 0; i < 2 && !status; ++i) status = stw_cp_copy(run, to[i], from[i], 0);
    return status;
}

stw_status stw_cp_attn_fwd(const stw_cp_plan *plan, const stw_attn_args *args, void *workspace, size_t workspace_size,
                           stw_stream stream) {
    stw_cp_run run;
    stw_status status =
        stw_cp_run_begin(plan, STW_PLAN_ATTN_FWD, "cp_attn_fwd", args, workspace, workspace_size, stream, &run);
    if (status) return status;
    status = exchange_in(&run);
    if (!status) status = stw_cp_blocks(&run);
    if (!status) status = stw_cp_ticks(&run, start, run_part);
    if (!status && plan->attn.flags & STW_ATTN_SINK) status = add_sinks(&run);
    if (!status) status = write_results(&run);
    if (!status && run.args.status_out) status = stw_cp_set(&run, run.args.status_out, 1, STW_F32, 0);
    return stw_cp_call_ended(&run.wire, status);
}
