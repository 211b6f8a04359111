/* SPDX-License-Identifier: MIT
 *
 * The backward over ranks: delta of whole rows, then parts that add into f32 sums of dQ, dK and dV (cp.h has the
 * stages), or groups of heads (cp_heads.c). */
#include "cp.h"

static char *bytes_at(const stw_cp_run *run, size_t place) { return run->workspace + place; }

/* ---- stage 1 ---- */

/* Rows past the used length have a delta of zero. */
static stw_status zero_padding(const stw_cp_run *run) {
    const stw_cp_plan *p = run->plan;
    stw_status status = STW_OK;
    if (!(p->attn.flags & STW_ATTN_WRITE_DELTA)) return STW_OK;
    for (int64_t s = 0; s < p->seq_count; ++s)
        for (int at = 0, row = 0; at < 2 && !status; ++at) {
            const stw_cp_seq *seq = &p->seqs[s];
            stw_cp_chunk all = stw_cp_chunk_of(p->desc.order, seq->rows[0], p->cp->rank, p->cp->size, at);
            int64_t used = stw_cp_used(seq, 0, all).count;
            status = stw_cp_copy_rows(run, &run->delta, NULL, seq, row + used, all.count - used, 0);
            row += (int)all.count;
        }
    return status;
}

static stw_status run_rows(stw_cp_run *run) {
    const stw_cp_plan *p = run->plan;
    const stw_attn_desc *d = &p->attn;
    int64_t scratch = d->batch * d->heads_kv * (d->head_dim_qk + d->head_dim_v);
    char *keys = bytes_at(run, p->at.scratch), *dk = keys + (size_t)scratch * stw_dtype_size(p->number);
    stw_status status = stw_cp_set(run, keys, scratch, (uint32_t)p->number, 0);
    if (!status) status = stw_cp_set(run, bytes_at(run, p->at.dsink), d->heads_q, (uint32_t)p->number, 0);
    for (int64_t i = 0; i < p->row_count && !status; ++i) {
        const stw_cp_rows *rows = &p->row_calls[i];
        const stw_cp_seq *seq = &p->seqs[rows->seq];
        stw_attn_args a = STW_INIT(stw_attn_args);
        a.q = stw_cp_at(&run->q, seq, 0, rows->row);
        a.k = a.v = keys;
        a.block_mask = (const uint8_t *)keys;
        if (run->out.data) a.out = stw_cp_at(&run->out, seq, 0, rows->row);
        a.dout = stw_cp_at(&run->dout, seq, 0, rows->row);
        a.lse = (float *)(void *)stw_cp_at(&run->lse, seq, 0, rows->row);
        if (run->dlse.data) a.dlse = (const float *)(void *)stw_cp_at(&run->dlse, seq, 0, rows->row);
        a.delta = (float *)(void *)stw_cp_at(&run->delta, seq, 0, rows->row);
        a.sink = run->args.sink;
        a.dsink = (float *)(void *)bytes_at(run, p->at.dsink);
        a.dk = dk;
        a.cpu_threads = run->args.cpu_threads;
        status = stw_attn_bwd(p->engines[rows->engine].plan, &a, run->engine_workspace, p->engine_workspace,
                              run->wire.stream);
    }
    return status ? status : zero_padding(run);
}

/* ---- stage 3 ---- */

static stw_status run_part(stw_cp_run *run, const stw_cp_tick *tick, const stw_cp_part *part) {
    const stw_cp_plan *p = run->plan;
    const stw_attn_desc *d = &p->attn;
    const stw_cp_seq *seq = &p->seqs[part->seq];
    const int32_t engine = p->has_alone && !run->shares_dq ? part->alone : part->engine;
    int64_t element = (int64_t)stw_dtype_size(d->dtype), number = (int64_t)stw_dtype_size(p->number);
    int64_t wide_k = p->heads_kv * d->head_dim_qk, wide_v = p->heads_kv * d->head_dim_v;
    const char *block = stw_cp_slot(run, tick->slot);
    char *sums = stw_cp_sum_slot(run, tick->sum_slot);
    const stw_cp_tensor dq =
        stw_cp_ours(bytes_at(run, p->at.dq), STW_CP_SHARDS, 0, p->heads_q, d->head_dim_qk, p->number);
    stw_attn_args a = STW_INIT(stw_attn_args);
    a.q = stw_cp_at(&run->shard_q, seq, 0, part->q_row);
    a.dout = stw_cp_at(&run->shard_dout, seq, 0, part->q_row);
    a.lse = (float *)(void *)stw_cp_at(&run->shard_lse, seq, 0, part->q_row);
    a.delta = run->shares_dq && p->keeps_stats ? stw_cp_stats_at(run, part)
                                               : (float *)(void *)stw_cp_at(&run->shard_delta, seq, 0, part->q_row);
    a.k = block + part->k_row * wide_k * element;
    a.v = block + (tick->block_rows * wide_k + part->k_row * wide_v) * element;
    a.dq = run->shares_dq ? (void *)stw_cp_dq_at(run, part) : stw_cp_at(&dq, seq, 0, part->q_row);
    a.dk = sums + part->k_row * wide_k * number;
    a.dv = sums + (tick->block_rows * wide_k + part->k_row * wide_v) * number;
    a.alibi_slopes = stw_cp_slopes(run, seq);
    if (d->bias_dtype) {
        const stw_bias_strides *dbias = &p->engines[engine].desc.dbias;
        const int64_t *e = p->dbias_extent;
        a.bias = (const char *)run->args.bias +
                 (seq->index * d->bias.batch + part->q_row * d->bias.query + part->k_at * d->bias.key) *
                     (int64_t)stw_dtype_size(d->bias_dtype);
        a.dbias = bytes_at(run, p->at.dbias) + ((d->bias.batch ? seq->index * e[1] * e[2] * e[3] : 0) +
                                                part->q_row * dbias->query + part->k_at * dbias->key) *
                                                   number;
    }
    stw_cp_positions(run, part, &a);
    return stw_attn_bwd(p->engines[engine].plan, &a, run->engine_workspace, p->engine_workspace, run->wire.stream);
}

/* Rows of this shard's sums and of the sets that have come home with these rows: one pass over all of them. The set of
 * odd steps is added first. `all`: the rows are those of all sequences, else of the only one. */
static stw_status write_rows(const stw_cp_run *run, const stw_cp_tensor *to, stw_cp_tensor sums, stw_cp_chunk rows,
                             int all, int adds) {
    const stw_cp_plan *p = run->plan;
    for (int set = 0; set < STW_CP_SETS; ++set) {
        const stw_cp_chunk has = p->home_rows[set];
        const int has_rows = has.first <= rows.first && has.first + has.count >= rows.first + rows.count;
        if (p->home[set] >= 0 && has_rows)
            sums.more[set] = stw_cp_sum_slot(run, p->home[set]) - stw_cp_sum_slot(run, STW_CP_OWN);
    }
    if (all) return stw_cp_copy(run, to, &sums, adds);
    return stw_cp_copy_rows(run, to, &sums, &p->seqs[0], rows.first, rows.count, adds);
}

/* This shard's sums into tensors of dK and dV; null: not wanted. */
static stw_status write_sums(const stw_cp_run *run, const stw_cp_tensor *const to[2], const int adds[2]) {
    const stw_cp_plan *p = run->plan;
    const int64_t width[2] = {p->attn.head_dim_qk, p->attn.head_dim_v}, keys = p->shard_rows[1];
    char *from = stw_cp_sum_slot(run, STW_CP_OWN);
    stw_status status = STW_OK;
    int64_t cut = 0; /* where a set begins or ends: at the second chunk of the only sequence */
    for (int set = 0; set < STW_CP_SETS; ++set)
        if (p->home[set] >= 0 && p->home_rows[set].count != keys)
            cut = p->home_rows[set].first ? p->home_rows[set].first : p->home_rows[set].count;
    for (int i = 0; i < 2 && !status; ++i) { /* all of K's, then all of V's */
        const stw_cp_tensor sums = stw_cp_ours(from, STW_CP_SHARDS, 1, p->heads_kv, width[i], p->number);
        from += keys * sums.seq * (int64_t)stw_dtype_size(p->number);
        if (!to[i]) continue;
        status = write_rows(run, to[i], sums, (stw_cp_chunk){0, cut ? cut : keys}, !cut, adds[i]);
        if (cut && !status) status = write_rows(run, to[i], sums, (stw_cp_chunk){cut, keys - cut}, 0, adds[i]);
    }
    return status;
}

/* ---- stage 4 ---- */

static stw_status write_gradients(stw_cp_run *run) {
    const stw_cp_plan *p = run->plan;
    const stw_attn_desc *d = &p->attn;
    const stw_cp_tensor dq =
        stw_cp_ours(bytes_at(run, p->at.dq), STW_CP_SHARDS, 0, p->heads_q, d->head_dim_qk, p->number);
    const stw_cp_tensor dk =
        stw_cp_ours(bytes_at(run, p->at.dk), STW_CP_SHARDS, 1, p->heads_kv, d->head_dim_qk, p->number);
    const stw_cp_tensor dv =
        stw_cp_ours(bytes_at(run, p->at.dv), STW_CP_SHARDS, 1, p->heads_kv, d->head_dim_v, p->number);
    const stw_cp_tensor *all[] = {&dq, &dk, &dv}, *callers[] = {&run->dq, &run->dk, &run->dv}, *from[3], *to[3];
    const uint32_t bits[] = {STW_OUT_DQ, STW_OUT_DK, STW_OUT_DV};
    int count = 0, adds[3], wanted[3], add_all[3], exchanges = p->split > 1;
    for (int i = 0; i < 3; ++i) {
        wanted[i] = (d->outputs & bits[i]) != 0;
        add_all[i] = (d->accumulate & bits[i]) != 0;
        if (!wanted[i]) continue;
        from[count] = all[i];
        to[count] = callers[i];
        adds[count++] = add_all[i];
    }
    const stw_cp_tensor *const keys[2] = {wanted[1] ? exchanges ? &dk : &run->dk : NULL,
                                          wanted[2] ? exchanges ? &dv : &run->dv : NULL};
    const int add_keys[2] = {!exchanges && add_all[1], !exchanges && add_all[2]};
    stw_status status = write_sums(run, keys, add_keys);
    if (run->shares_dq && !status) status = stw_cp_dq_finish(run, exchanges ? &dq : &run->dq);
    if (status) return status;
    const stw_cp_exchange x = {.groups = 1, .count = count, .from = from, .to = to, .adds = adds};
    if (exchanges) return stw_cp_exchange_all(run, &x);
    return wanted[0] && !run->shares_dq ? stw_cp_copy(run, &run->dq, &dq, add_all[0]) : STW_OK;
}

static stw_status write_dbias(const stw_cp_run *run) {
    const stw_cp_plan *p = run->plan;
    const stw_bias_strides *s = &p->attn.dbias;
    const int64_t *e = p->dbias_extent;
    const stw_cp_cast cast = {.to = run->args.dbias,
                              .from = bytes_at(run, p->at.dbias),
                              .extent = {e[0], e[1], e[2], e[3]},
                              .to_stride = {s->batch, s->head, s->query, s->key},
                              .from_stride = {e[1] * e[2] * e[3], e[2] * e[3], e[3], 1},
                              .to_dtype = (uint32_t)p->attn.dbias_dtype,
                              .from_dtype = (uint32_t)p->number,
                              .adds = (p->attn.accumulate & STW_OUT_DBIAS) != 0};
    return stw_cp_cast_all(run, &cast);
}

static stw_status write_dsink(const stw_cp_run *run) {
    const stw_cp_plan *p = run->plan;
    const char *from = bytes_at(run, p->at.dsink);
    uint32_t number = (uint32_t)p->number;
    if (p->attn.accumulate & STW_OUT_DSINK) return stw_cp_add(run, run->args.dsink, from, p->attn.heads_q, number);
    return stw_cp_convert(run, run->args.dsink, number, from, number, p->attn.heads_q);
}

static stw_status exchange_in(stw_cp_run *run) {
    const stw_cp_tensor *from[] = {&run->lse, &run->delta, &run->q, &run->dout, &run->k, &run->v};
    const stw_cp_tensor *to[] = {&run->shard_lse,  &run->shard_delta, &run->shard_q,
                                 &run->shard_dout, &run->shard_k,     &run->shard_v};
    const stw_cp_exchange x = {.in = 1, .groups = 1, .count = 6, .from = from, .to = to};
    return run->plan->split > 1 ? stw_cp_exchange_all(run, &x) : STW_OK;
}

/* Under the first moves: sums that start as zeros, delta where it is not exchanged. */
static stw_status start(stw_cp_run *run) {
    const stw_cp_plan *p = run->plan;
    const stw_attn_desc *d = &p->attn;
    const uint32_t number = (uint32_t)p->number;
    stw_status status;
    run->shares_dq = stw_cp_dq_is_shared(run);
    const int starts = run->shares_dq && p->keeps_stats;
    if (starts) status = stw_cp_dq_start(run);
    else if (run->shares_dq) status = stw_cp_set(run, bytes_at(run, p->at.dq_sums), p->dq_numbers, number, 0);
    else status = stw_cp_set(run, bytes_at(run, p->at.dq), p->shard_rows[0] * p->heads_q * d->head_dim_qk, number, 0);
    if (d->outputs & STW_OUT_DBIAS && !status)
        status = stw_cp_set(run, bytes_at(run, p->at.dbias), p->dbias_count, number, 0);
    if (!status && p->starts_own)
        status = stw_cp_zero_sums(run, STW_CP_OWN, p->shard_rows[1], (stw_cp_chunk){0, p->shard_rows[1]});
    return status || p->split > 1 || starts ? status : run_rows(run);
}

/* Stages 1 to 4 over shards. */
static stw_status run_shards(stw_cp_run *run) {
    const stw_cp_plan *p = run->plan;
    stw_status status = p->split > 1 ? run_rows(run) : STW_OK;
    if (!status) status = exchange_in(run);
    if (!status) status = stw_cp_blocks(run);
    if (!status) status = stw_cp_ticks(run, start, run_part);
    if (!status && p->schedule == STW_CP_ALL_GATHER) status = stw_cp_scatter_sums(run);
    return status ? status : write_gradients(run);
}

static stw_status run_heads(stw_cp_run *run) {
    stw_status status = run_rows(run);
    return status ? status : stw_cp_heads_run(run);
}

stw_status stw_cp_attn_bwd(const stw_cp_plan *plan, const stw_attn_args *args, void *workspace, size_t workspace_size,
                           stw_stream stream) {
    stw_cp_run run;
    stw_status status =
        stw_cp_run_begin(plan, STW_PLAN_ATTN_BWD, "cp_attn_bwd", args, workspace, workspace_size, stream, &run);
    if (status) return status;
    const stw_attn_desc *d = &plan->attn;
    status = stw_cp_goes_by_heads(plan) ? run_heads(&run) : run_shards(&run);
    run.wire.what = "the sum of dsink";
    if (!status && d->outputs & STW_OUT_DSINK)
        status =
            stw_cp_sum_over_ranks(&run, bytes_at(&run, plan->at.dsink), bytes_at(&run, plan->at.dsinks), d->heads_q);
    run.wire.what = "the sum of dbias";
    if (!status && d->outputs & STW_OUT_DBIAS && !d->bias.query)
        status = stw_cp_sum_over_ranks(&run, bytes_at(&run, plan->at.dbias), bytes_at(&run, plan->at.dbiases),
                                       plan->dbias_count);
    if (!status && d->outputs & STW_OUT_DBIAS) status = write_dbias(&run);
    if (!status && d->outputs & STW_OUT_DSINK) status = write_dsink(&run);
    if (!status && run.args.status_out) status = stw_cp_set(&run, run.args.status_out, 1, STW_F32, 0);
    return stw_cp_call_ended(&run.wire, status);
}
