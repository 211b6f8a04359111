/* SPDX-License-Identifier: MIT
 *
 * The forward over ranks: O and LSE of each part, merged row by row as they come:
 *     LSE = log(exp(LSE_a) + exp(LSE_b)),  O = exp(LSE_a - LSE) O_a + exp(LSE_b - LSE) O_b
 * Parts are computed in f32 (of f32 problems in f64: a rounded LSE is a relative error of all of a part) and summed
 * in double (of f64 problems in long double), so that O has one rounding. A sink takes part once, at the end: it adds
 * to LSE and nothing to O. */
#include "cp.h"

#include <math.h>
#include <string.h>

typedef long double real;

static char *bytes_at(const stw_cp_run *run, size_t place) { return run->workspace + place; }

static real load_sum(const stw_cp_plan *p, const char *sums, int64_t at) {
    return p->number == STW_F64 ? ((const real *)(const void *)sums)[at]
                                : (real)((const double *)(const void *)sums)[at];
}
static void store_sum(const stw_cp_plan *p, char *sums, int64_t at, real value) {
    if (p->number == STW_F64) ((real *)(void *)sums)[at] = value;
    else ((double *)(void *)sums)[at] = (double)value;
}

/* ---- inputs in the parts' type ---- */

static void widen(const stw_cp_plan *p, char *to, const void *from, stw_dtype dtype, int64_t count) {
    if (dtype == p->partial) memcpy(to, from, (size_t)count * stw_dtype_size(dtype));
    else
        for (int64_t n = 0; n < count; ++n) stw_store_f64(to, n, p->partial, stw_load_f64(from, n, dtype));
}

static void widen_q(const stw_cp_run *run) {
    const stw_cp_plan *p = run->plan;
    const stw_cp_tensor *from = &run->shard_q;
    const stw_cp_tensor to =
        stw_cp_ours(bytes_at(run, p->at.wide_q), STW_CP_SHARDS, 0, p->heads_q, from->width, p->partial);
    for (int64_t s = 0; s < p->seq_count; ++s)
        for (int64_t b = 0; b < p->seqs[s].batch; ++b)
            for (int64_t row = 0; row < p->seqs[s].own[0]; ++row) {
                char *to_row = stw_cp_at(&to, &p->seqs[s], b, row), *from_row = stw_cp_at(from, &p->seqs[s], b, row);
                for (int64_t n = 0; n < to.seq; ++n)
                    stw_store_f64(
                        to_row, n, p->partial,
                        stw_load_f64(from_row, n / to.width * from->head + n % to.width * from->dim, from->dtype));
            }
}

static void widen_bias(const stw_cp_run *run) {
    const stw_cp_plan *p = run->plan;
    const stw_bias_strides *s = &p->attn.bias;
    const int64_t *e = p->dbias_extent;
    for (int64_t n = 0; n < p->dbias_count && stw_cp_has_wide_bias(p); ++n) {
        int64_t j = n % e[3], i = n / e[3] % e[2], h = n / e[3] / e[2] % e[1], b = n / e[3] / e[2] / e[1];
        int64_t at = b * s->batch + h * s->head + i * s->query + j * s->key;
        stw_store_f64(bytes_at(run, p->at.wide_bias), n, p->partial,
                      stw_load_f64(run->args.bias, at, p->attn.bias_dtype));
    }
}

static void widen_slopes(const stw_cp_run *run) {
    const stw_cp_plan *p = run->plan;
    const stw_attn_desc *d = &p->attn;
    if (d->flags & STW_ATTN_ALIBI && d->batch)
        widen(p, bytes_at(run, p->at.wide_slopes), run->args.alibi_slopes, p->number,
              (d->batch - 1) * d->alibi_stride_batch + d->heads_q);
}

/* ---- merging ---- */

/* exp(a - b), 0 where a is -inf. */
static real weight(real a, real b) { return a == -(real)INFINITY ? 0 : expl(a - b); }

/* log(exp(a) + exp(b)); one of them is not -inf. */
static real log_sum(real a, real b) {
    real most = a > b || isnan(a) ? a : b;
    return isinf(most) ? most : most + logl(weight(a, most) + weight(b, most));
}

/* Element `at` of the sums of LSE, and its row of those of O. */
static void merge_row(const stw_cp_run *run, int64_t at, const char *out_part, const char *lse_part) {
    const stw_cp_plan *p = run->plan;
    char *lse = bytes_at(run, p->at.lse_sum), *out = bytes_at(run, p->at.out_sum);
    int64_t width = p->attn.head_dim_v;
    real a = load_sum(p, lse, at), b = (real)stw_load_f64(lse_part, 0, p->partial);
    if (b == -(real)INFINITY) return; /* the part's keys are all hidden from this row */
    real sum = log_sum(a, b), keep = weight(a, sum), add = weight(b, sum);
    for (int64_t n = 0; n < width; ++n) {
        real before = keep != 0 ? keep * load_sum(p, out, at * width + n) : 0;
        store_sum(p, out, at * width + n, before + add * (real)stw_load_f64(out_part, n, p->partial));
    }
    store_sum(p, lse, at, sum);
}

static void add_sink(const stw_cp_run *run, int64_t at, int64_t head) {
    const stw_cp_plan *p = run->plan;
    char *lse = bytes_at(run, p->at.lse_sum), *out = bytes_at(run, p->at.out_sum);
    int64_t width = p->attn.head_dim_v;
    real sink = (real)stw_load_f64(run->args.sink, p->lane * p->heads_q + head, p->number),
         before = load_sum(p, lse, at);
    if (sink == -(real)INFINITY) return;
    real sum = log_sum(before, sink), keep = weight(before, sum);
    for (int64_t n = 0; n < width; ++n) store_sum(p, out, at * width + n, keep * load_sum(p, out, at * width + n));
    store_sum(p, lse, at, sum);
}

static int64_t line_of(const stw_cp_plan *p, const stw_cp_seq *seq, int64_t b, int64_t row) {
    return (seq->base[0] + b * seq->own[0] + row) * p->heads_q;
}

/* Of rows up to the used length. */
static void add_sinks(const stw_cp_run *run) {
    const stw_cp_plan *p = run->plan;
    for (int64_t s = 0; s < p->seq_count; ++s)
        for (int64_t at = 0, first = 0; at < 2; ++at) {
            const stw_cp_seq *seq = &p->seqs[s];
            stw_cp_chunk all = stw_cp_chunk_of(p->desc.order, seq->rows[0], p->shard, p->shards, (int)at);
            for (int64_t b = 0; b < seq->batch; ++b)
                for (int64_t row = first; row < first + stw_cp_used(seq, 0, all).count; ++row)
                    for (int64_t h = 0; h < p->heads_q; ++h) add_sink(run, line_of(p, seq, b, row) + h, h);
            first += all.count;
        }
}

static stw_status run_part(stw_cp_run *run, const stw_cp_tick *tick, const stw_cp_part *part) {
    const stw_cp_plan *p = run->plan;
    const stw_attn_desc *d = &p->attn;
    const stw_cp_seq *seq = &p->seqs[part->seq];
    int64_t size = (int64_t)stw_dtype_size(p->partial), wide_k = p->heads_kv * d->head_dim_qk,
            wide_v = p->heads_kv * d->head_dim_v;
    char *block = bytes_at(run, p->at.wide_kv), *out_part = bytes_at(run, p->at.out_part);
    char *lse_part = bytes_at(run, p->at.lse_part);
    if (part == p->parts + tick->part) /* the tick's first */
        widen(p, block, stw_cp_slot(run, tick->slot), d->dtype, tick->block_rows * (wide_k + wide_v));
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
    stw_status status =
        stw_attn_fwd(p->engines[part->engine].plan, &a, run->engine_workspace, p->engine_workspace, run->wire.stream);
    if (status) return status;
    for (int64_t b = 0; b < seq->batch; ++b)
        for (int64_t row = 0; row < part->q_rows; ++row)
            for (int64_t h = 0; h < p->heads_q; ++h) {
                int64_t from = (b * part->q_rows + row) * p->heads_q + h;
                merge_row(run, line_of(p, seq, b, part->q_row + row) + h, out_part + from * d->head_dim_v * size,
                          lse_part + from * size);
            }
    return STW_OK;
}

/* ---- the call ---- */

static void start_sums(const stw_cp_run *run) {
    const stw_cp_plan *p = run->plan;
    int64_t rows = p->shard_rows[0] * p->heads_q;
    memset(bytes_at(run, p->at.out_sum), 0, (size_t)(rows * p->attn.head_dim_v) * stw_cp_wide_size(p));
    for (int64_t n = 0; n < rows; ++n) store_sum(p, bytes_at(run, p->at.lse_sum), n, -(real)INFINITY);
}

static stw_status exchange_in(stw_cp_run *run) {
    const stw_cp_tensor *from[] = {&run->q, &run->k, &run->v}, *to[] = {&run->shard_q, &run->shard_k, &run->shard_v};
    return run->plan->split > 1 ? stw_cp_exchange(run, 1, from, to, NULL, 3) : STW_OK;
}

static stw_status write_results(stw_cp_run *run) {
    const stw_cp_plan *p = run->plan;
    const stw_attn_desc *d = &p->attn;
    int64_t rows = p->shard_rows[0] * p->heads_q;
    char *lse_data = bytes_at(run, p->at.lse);
    const stw_cp_tensor out =
        stw_cp_ours(bytes_at(run, p->at.out), STW_CP_SHARDS, 0, p->heads_q, d->head_dim_v, d->dtype);
    const stw_cp_tensor lse = stw_cp_ours(lse_data, STW_CP_SHARDS, 0, p->heads_q, 1, p->number);
    for (int64_t n = 0; n < rows * d->head_dim_v; ++n)
        stw_store_f64(out.data, n, d->dtype, (double)load_sum(p, bytes_at(run, p->at.out_sum), n));
    for (int64_t n = 0; n < rows; ++n)
        stw_store_f64(lse.data, n, p->number, (double)load_sum(p, bytes_at(run, p->at.lse_sum), n));
    /* a rank that wants no LSE gets it nevertheless: the others may want theirs */
    const stw_cp_tensor unwanted =
        stw_cp_ours(lse_data + (size_t)rows * stw_dtype_size(p->number), STW_CP_RANKS, 0, d->heads_q, 1, p->number);
    const stw_cp_tensor *from[] = {&lse, &out}, *to[] = {run->lse.data ? &run->lse : &unwanted, &run->out};
    if (p->split > 1) return stw_cp_exchange(run, 0, from, to, NULL, 2);
    for (int i = 0; i < 2; ++i) stw_cp_copy(p, to[i], from[i], 0);
    return STW_OK;
}

stw_status stw_cp_attn_fwd(const stw_cp_plan *plan, const stw_attn_args *args, void *workspace, size_t workspace_size,
                           stw_stream stream) {
    stw_cp_run run;
    stw_status status =
        stw_cp_run_begin(plan, STW_PLAN_ATTN_FWD, "cp_attn_fwd", args, workspace, workspace_size, stream, &run);
    if (status) return status;
    status = exchange_in(&run);
    if (!status) status = stw_cp_blocks(&run);
    if (status) return stw_cp_call_ended(&run.wire, status);
    widen_q(&run);
    widen_bias(&run);
    widen_slopes(&run);
    start_sums(&run);
    status = stw_cp_ticks(&run, run_part);
    if (!status && plan->attn.flags & STW_ATTN_SINK) add_sinks(&run);
    if (!status) status = write_results(&run);
    if (!status && run.args.status_out) *run.args.status_out = 0;
    return stw_cp_call_ended(&run.wire, status);
}
