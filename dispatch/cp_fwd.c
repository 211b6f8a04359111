/* SPDX-License-Identifier: MIT
 *
 * The forward over ranks: O and LSE of each part in f32, merged row by row as they come:
 *     LSE = log(exp(LSE_a) + exp(LSE_b)),  O = exp(LSE_a - LSE) O_a + exp(LSE_b - LSE) O_b
 * A sink takes part once, at the end: it adds to LSE and nothing to O. */
#include "cp.h"

#include <math.h>
#include <string.h>

static char *bytes_at(const stw_cp_run *run, size_t place) { return run->workspace + place; }

/* Elements as numbers. */
static const char *as_numbers(const stw_cp_plan *p, char *to, const char *from, stw_dtype dtype, int64_t count) {
    if (dtype == p->number) return from;
    for (int64_t n = 0; n < count; ++n) ((float *)(void *)to)[n] = stw_load_f32(from, n, dtype);
    return to;
}

static void bias_as_numbers(const stw_cp_run *run) {
    const stw_cp_plan *p = run->plan;
    const stw_bias_strides *s = &p->attn.bias;
    const int64_t *e = p->dbias_extent;
    for (int64_t n = 0; n < p->dbias_count; ++n) {
        int64_t j = n % e[3], i = n / e[3] % e[2], h = n / e[3] / e[2] % e[1], b = n / e[3] / e[2] / e[1];
        double value =
            stw_load_f64(run->args.bias, b * s->batch + h * s->head + i * s->query + j * s->key, p->attn.bias_dtype);
        stw_store_f64(bytes_at(run, p->at.bias32), n, p->number, value);
    }
}

static int has_bias_copy(const stw_cp_plan *p) {
    return p->attn.bias_dtype && p->attn.bias_dtype != STW_U8 && p->attn.bias_dtype != p->number;
}

/* exp(a - b), 0 where a is -inf. */
static double weight(double a, double b) { return a == (double)-INFINITY ? 0 : exp(a - b); }

static void merge_row(const stw_cp_plan *p, char *out, char *lse, const char *out_part, const char *lse_part) {
    double a = stw_load_f64(lse, 0, p->number), b = stw_load_f64(lse_part, 0, p->number);
    if (b == (double)-INFINITY) return; /* the part's keys are all hidden from this row */
    double most = a > b ? a : b, sum = most + log(weight(a, most) + weight(b, most));
    double keep = weight(a, sum), add = weight(b, sum);
    for (int64_t n = 0; n < p->attn.head_dim_v; ++n) {
        double before = keep != 0 ? keep * stw_load_f64(out, n, p->number) : 0;
        stw_store_f64(out, n, p->number, before + add * stw_load_f64(out_part, n, p->number));
    }
    stw_store_f64(lse, 0, p->number, sum);
}

static stw_cp_tensor out_of(const stw_cp_run *run) {
    const stw_cp_plan *p = run->plan;
    return stw_cp_ours(p, bytes_at(run, p->at.out), STW_CP_SHARDS, 0, p->heads_q, p->attn.head_dim_v, p->number);
}
static stw_cp_tensor lse_of(const stw_cp_run *run) {
    const stw_cp_plan *p = run->plan;
    return stw_cp_ours(p, bytes_at(run, p->at.lse_sum), STW_CP_SHARDS, 0, p->heads_q, 1, p->number);
}

static stw_status run_part(stw_cp_run *run, const stw_cp_tick *tick, const stw_cp_part *part) {
    const stw_cp_plan *p = run->plan;
    const stw_attn_desc *d = &p->attn;
    const stw_cp_seq *seq = &p->seqs[part->seq];
    const stw_cp_tensor q =
        stw_cp_ours(p, bytes_at(run, p->at.q32), STW_CP_SHARDS, 0, p->heads_q, d->head_dim_qk, p->number);
    const stw_cp_tensor out = out_of(run), lse = lse_of(run);
    int64_t number = (int64_t)stw_dtype_size(p->number), wide_k = p->heads_kv * d->head_dim_qk,
            wide_v = p->heads_kv * d->head_dim_v;
    const char *block = stw_cp_slot(run, tick->slot);
    if (d->dtype != p->number) block = bytes_at(run, p->at.kv32);
    if (part == p->parts + tick->part) /* the tick's first */
        as_numbers(p, bytes_at(run, p->at.kv32), stw_cp_slot(run, tick->slot), d->dtype,
                   tick->block_rows * (wide_k + wide_v));
    char *out_part = bytes_at(run, p->at.out_part), *lse_part = bytes_at(run, p->at.lse_part);
    stw_attn_args a = STW_INIT(stw_attn_args);
    a.q = stw_cp_at(p, &q, seq, 0, part->q_row);
    a.k = block + part->k_row * wide_k * number;
    a.v = block + (tick->block_rows * wide_k + part->k_row * wide_v) * number;
    a.out = out_part;
    a.lse = (float *)(void *)lse_part;
    if (d->flags & STW_ATTN_ALIBI)
        a.alibi_slopes =
            (const float *)(const void *)((const char *)run->args.alibi_slopes +
                                          (seq->index * d->alibi_stride_batch + p->lane * p->heads_q) * number);
    if (d->bias_dtype) {
        const stw_bias_strides *s = &p->engines[part->engine].desc.bias;
        const int64_t *e = p->dbias_extent;
        int copied = has_bias_copy(p);
        int64_t batch = copied ? (d->bias.batch ? e[1] * e[2] * e[3] : 0) : d->bias.batch;
        a.bias = (copied ? bytes_at(run, p->at.bias32) : (const char *)run->args.bias) +
                 (seq->index * batch + part->q_row * s->query + part->k_at * s->key) *
                     (copied ? number : (int64_t)stw_dtype_size(d->bias_dtype));
    }
    a.q_offset = part->q_at + p->desc.q_offset;
    a.k_offset = part->k_at + p->desc.k_offset;
    a.dropout_seed_ptr = run->args.dropout_seed_ptr;
    a.dropout_offset_ptr = run->args.dropout_offset_ptr;
    a.dropout_seed = run->args.dropout_seed;
    a.dropout_offset = run->args.dropout_offset;
    a.cpu_threads = run->args.cpu_threads;
    stw_status status =
        stw_attn_fwd(p->engines[part->engine].plan, &a, run->engine_workspace, p->engine_workspace, run->wire.stream);
    if (status) return status;
    for (int64_t b = 0; b < seq->batch; ++b)
        for (int64_t row = 0; row < part->q_rows; ++row)
            for (int64_t h = 0; h < p->heads_q; ++h) {
                int64_t from = (b * part->q_rows + row) * p->heads_q + h;
                merge_row(p, stw_cp_at(p, &out, seq, b, part->q_row + row) + h * out.head * number,
                          stw_cp_at(p, &lse, seq, b, part->q_row + row) + h * number,
                          out_part + from * d->head_dim_v * number, lse_part + from * number);
            }
    return STW_OK;
}

/* -inf for every row; and at the end the sink, which rows past the used length go without. */
static void start_lse(const stw_cp_run *run) {
    const stw_cp_plan *p = run->plan;
    for (int64_t n = 0; n < p->shard_rows[0] * p->heads_q; ++n)
        stw_store_f64(bytes_at(run, p->at.lse_sum), n, p->number, (double)-INFINITY);
}

static void add_sink_row(const stw_cp_run *run, char *out, char *lse, int64_t head) {
    const stw_cp_plan *p = run->plan;
    double sink = stw_load_f64(run->args.sink, p->lane * p->heads_q + head, p->number);
    double before = stw_load_f64(lse, 0, p->number);
    if (sink == (double)-INFINITY) return;
    double most = sink > before ? sink : before, sum = most + log(weight(before, most) + weight(sink, most));
    for (int64_t n = 0; n < p->attn.head_dim_v && before != (double)-INFINITY; ++n)
        stw_store_f64(out, n, p->number, weight(before, sum) * stw_load_f64(out, n, p->number));
    stw_store_f64(lse, 0, p->number, sum);
}

static void add_sinks(const stw_cp_run *run) {
    const stw_cp_plan *p = run->plan;
    const stw_cp_tensor out = out_of(run), lse = lse_of(run);
    int64_t number = (int64_t)stw_dtype_size(p->number);
    for (int64_t s = 0; s < p->seq_count; ++s)
        for (int at = 0, first = 0; at < 2; ++at) {
            const stw_cp_seq *seq = &p->seqs[s];
            stw_cp_chunk all = stw_cp_chunk_of(p->desc.order, seq->rows[0], p->shard, p->shards, at);
            for (int64_t b = 0; b < seq->batch; ++b)
                for (int64_t row = 0; row < stw_cp_used(seq, 0, all).count; ++row)
                    for (int64_t h = 0; h < p->heads_q; ++h)
                        add_sink_row(run, stw_cp_at(p, &out, seq, b, first + row) + h * out.head * number,
                                     stw_cp_at(p, &lse, seq, b, first + row) + h * number, h);
            first += (int)all.count;
        }
}

static stw_status exchange_in(stw_cp_run *run) {
    const stw_cp_tensor *from[] = {&run->q, &run->k, &run->v}, *to[] = {&run->shard_q, &run->shard_k, &run->shard_v};
    return run->plan->split > 1 ? stw_cp_exchange(run, 1, from, to, NULL, 3) : STW_OK;
}

/* All rows of a shard's or a caller's tensor into one of the shard. */
static void copy_shard(const stw_cp_plan *p, const stw_cp_tensor *to, const stw_cp_tensor *from) {
    for (int64_t s = 0; s < p->seq_count; ++s)
        for (int64_t b = 0; b < p->seqs[s].batch; ++b)
            for (int64_t row = 0; row < p->seqs[s].own[0]; ++row)
                for (int64_t h = 0; h < to->heads; ++h)
                    for (int64_t n = 0; n < to->width; ++n)
                        stw_store_f64(stw_cp_at(p, to, &p->seqs[s], b, row), h * to->head + n, to->dtype,
                                      stw_load_f64(stw_cp_at(p, from, &p->seqs[s], b, row),
                                                   h * from->head + n * from->dim, from->dtype));
}

static stw_status write_results(stw_cp_run *run) {
    const stw_cp_plan *p = run->plan;
    const stw_cp_tensor out = out_of(run), lse = lse_of(run);
    const stw_cp_tensor *from[] = {&lse, &out}, *to[] = {&run->lse, &run->out};
    int first = run->lse.data ? 0 : 1; /* a rank that wants no LSE gets it nevertheless, where the others do */
    if (p->split == 1) {
        for (int i = first; i < 2; ++i) stw_cp_copy(p, to[i], from[i], 0);
        return STW_OK;
    }
    const stw_cp_tensor unwanted =
        stw_cp_ours(p, bytes_at(run, p->at.lse_part), STW_CP_RANKS, 0, p->attn.heads_q, 1, p->number);
    if (first) to[0] = &unwanted;
    return stw_cp_exchange(run, 0, from, to, NULL, 2);
}

stw_status stw_cp_attn_fwd(const stw_cp_plan *plan, const stw_attn_args *args, void *workspace, size_t workspace_size,
                           stw_stream stream) {
    stw_cp_run run;
    stw_status status =
        stw_cp_run_begin(plan, STW_PLAN_ATTN_FWD, "cp_attn_fwd", args, workspace, workspace_size, stream, &run);
    if (!status) status = exchange_in(&run);
    if (!status) status = stw_cp_blocks(&run);
    if (status) return status;
    const stw_cp_tensor q = stw_cp_ours(plan, bytes_at(&run, plan->at.q32), STW_CP_SHARDS, 0, plan->heads_q,
                                        plan->attn.head_dim_qk, plan->number);
    copy_shard(plan, &q, &run.shard_q);
    if (has_bias_copy(plan)) bias_as_numbers(&run);
    memset(bytes_at(&run, plan->at.out), 0,
           (size_t)(plan->shard_rows[0] * plan->heads_q * plan->attn.head_dim_v) * stw_dtype_size(plan->number));
    start_lse(&run);
    status = stw_cp_ticks(&run, run_part);
    if (!status && plan->attn.flags & STW_ATTN_SINK) add_sinks(&run);
    if (!status) status = write_results(&run);
    if (!status && args->status_out) *run.args.status_out = 0;
    return status;
}
