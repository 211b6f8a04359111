/* SPDX-License-Identifier: MIT
 *
 * The backward by heads (Ulysses): each rank computes all rows of its heads, by plain calls of attn_bwd.h without sums
 * between ranks. Its heads go in groups, one after the other. Tick g computes group g; under its kernels rows of group
 * g + 1 come and gradients of group g - 1 leave. Tensors of the shard are there twice, for even and odd groups. */
#include "cp.h"

enum { GROUPS_MAX = 8 };

/* ---- the plan ---- */

int32_t stw_cp_groups_of(const stw_cp_plan *p, int64_t heads_kv, int64_t call_rows) {
    int32_t groups = 1;
    if (p->desc.head_groups) return p->desc.head_groups;
    for (int32_t n = 2; n <= GROUPS_MAX && n <= heads_kv; ++n)
        if (heads_kv % n == 0 && call_rows * (heads_kv / n) >= STW_CP_GROUP_ROWS) groups = n;
    return groups;
}

/* Nothing is computed for dSink alone, which delta's call makes. */
static int has_gradients(const stw_cp_plan *p) {
    return (p->attn.outputs & (STW_OUT_DQ | STW_OUT_DK | STW_OUT_DV)) != 0;
}

/* Of a call; it writes all of its rows of dQ, dK and dV. */
static stw_attn_desc group_desc(const stw_cp_plan *p, const stw_cp_seq *seq, stw_cp_chunk q, stw_cp_chunk k,
                                int32_t group) {
    stw_attn_desc d = stw_cp_backward_desc(p, seq, q.count, k.count, seq->own[1]);
    if (d.dropout_p > 0) d.head_offset += group * d.heads_q;
    d.lse = d.delta = stw_cp_own_rows(seq->own[0], p->heads_q, 1); /* of all groups */
    if (d.batch == 1) d.lse.batch = d.delta.batch = 0;
    d.dq_dtype = stw_cp_result_dtype(p, STW_OUT_DQ);
    d.dk_dtype = stw_cp_result_dtype(p, STW_OUT_DK);
    d.dv_dtype = stw_cp_result_dtype(p, STW_OUT_DV);
    d.accumulate = 0;
    return d;
}

stw_status stw_cp_heads_make(stw_cp_plan *p) {
    stw_status status = STW_OK;
    for (int32_t group = 0; group < p->groups && has_gradients(p); ++group) {
        const stw_cp_tick tick = {.part = p->part_count};
        for (int64_t s = 0; s < p->seq_count && !status; ++s) {
            const stw_cp_seq *seq = &p->seqs[s];
            const stw_cp_chunk q = {0, seq->used[0]}, k = {0, seq->used[1]};
            const int sees = stw_cp_sees(seq, q, k);
            p->starts_own |= !sees || q.count != seq->rows[0] || k.count != seq->rows[1];
            if (!sees) continue;
            stw_cp_part part = {.seq = (int32_t)s, .q_rows = q.count, .k_rows = k.count};
            const stw_attn_desc desc = group_desc(p, seq, q, k, group);
            status = stw_cp_engine_get(p, &desc, 0, &part.engine);
            if (status) break;
            stw_cp_part *added = stw_cp_grow(&p->parts, &p->part_count, sizeof *added);
            if (!added) return stw_fail(STW_E_NO_MEMORY, "%s: no memory", p->call);
            *added = part;
        }
        stw_cp_tick *added = status ? NULL : stw_cp_grow(&p->ticks, &p->tick_count, sizeof *added);
        if (!added) return status ? status : stw_fail(STW_E_NO_MEMORY, "%s: no memory", p->call);
        *added = tick;
        added->parts = p->part_count - tick.part;
    }
    p->steps_run = p->part_count > 0;
    p->steps_skipped = 1 - p->steps_run;
    p->sent_bytes += stw_cp_other_bytes(p);
    return status;
}

/* ---- a call ---- */

/* A tensor of the shard with a group's heads, in the set of this group. */
static stw_cp_tensor group_tensor(const stw_cp_run *run, size_t place, int32_t group, int kv, int64_t width,
                                  stw_dtype dtype) {
    const stw_cp_plan *p = run->plan;
    const int64_t heads = (kv ? p->heads_kv : p->heads_q) / p->groups;
    const size_t set = stw_cp_slot_size((size_t)(p->shard_rows[kv] * heads * width) * stw_dtype_size(dtype));
    return stw_cp_ours(run->workspace + place + (group & 1) * set, STW_CP_SHARDS, kv, heads, width, dtype);
}

/* A group's tensors in the order of inputs_of and results_of. */
enum { INPUT_Q, INPUT_DOUT, INPUT_K, INPUT_V, INPUTS };
enum { RESULTS = 3 };

/* Rows on their way in, or gradients on theirs back. */
typedef struct group_exchange {
    stw_cp_tensor tensors[INPUTS];
    const stw_cp_tensor *from[INPUTS], *to[INPUTS];
    int adds[INPUTS];
    stw_cp_exchange x;
} group_exchange;

static void add_tensor(group_exchange *e, const stw_cp_tensor *ranks, stw_cp_tensor shards, int adds) {
    const int i = e->x.count++;
    e->tensors[i] = shards;
    e->from[i] = e->x.in ? ranks : &e->tensors[i];
    e->to[i] = e->x.in ? &e->tensors[i] : ranks;
    e->adds[i] = adds;
}

/* LSE and delta of all groups come with the first one. */
static stw_cp_tensor row_tensor(const stw_cp_run *run, size_t place) {
    const stw_cp_plan *p = run->plan;
    return stw_cp_ours(run->workspace + place, STW_CP_SHARDS, 0, p->heads_q, 1, p->number);
}

static void rows_of(const stw_cp_run *run, group_exchange *e) {
    const stw_cp_plan *p = run->plan;
    e->x = (stw_cp_exchange){
        .in = 1, .groups = 1, .from = e->from, .to = e->to, .sent = p->at.sent_rows, .received = p->at.received_rows};
    add_tensor(e, &run->lse, row_tensor(run, p->at.lse), 0);
    add_tensor(e, &run->delta, row_tensor(run, p->at.shard_delta), 0);
}

static void inputs_of(const stw_cp_run *run, int32_t group, group_exchange *e) {
    const stw_cp_plan *p = run->plan;
    const stw_attn_desc *d = &p->attn;
    const stw_cp_places *at = &p->at;
    e->x = (stw_cp_exchange){.in = 1, .group = group, .groups = p->groups, .from = e->from, .to = e->to};
    add_tensor(e, &run->q, group_tensor(run, at->q, group, 0, d->head_dim_qk, d->dtype), 0);
    add_tensor(e, &run->dout, group_tensor(run, at->dout, group, 0, d->head_dim_v, d->dtype), 0);
    add_tensor(e, &run->k, group_tensor(run, at->k, group, 1, d->head_dim_qk, d->dtype), 0);
    add_tensor(e, &run->v, group_tensor(run, at->v, group, 1, d->head_dim_v, d->dtype), 0);
}

static void results_of(const stw_cp_run *run, int32_t group, group_exchange *e) {
    const stw_cp_plan *p = run->plan;
    const stw_attn_desc *d = &p->attn;
    const struct {
        uint32_t bit;
        int kv;
        size_t place;
        int64_t width;
        const stw_cp_tensor *callers;
    } rows[RESULTS] = {{STW_OUT_DQ, 0, p->at.dq, d->head_dim_qk, &run->dq},
                       {STW_OUT_DK, 1, p->at.dk, d->head_dim_qk, &run->dk},
                       {STW_OUT_DV, 1, p->at.dv, d->head_dim_v, &run->dv}};
    e->x = (stw_cp_exchange){.group = group,
                             .groups = p->groups,
                             .from = e->from,
                             .to = e->to,
                             .adds = e->adds,
                             .sent = p->at.sent_back,
                             .received = p->at.received_back};
    for (int i = 0; i < RESULTS; ++i)
        if (d->outputs & rows[i].bit)
            add_tensor(
                e, rows[i].callers,
                group_tensor(run, rows[i].place, group, rows[i].kv, rows[i].width, stw_cp_result_dtype(p, rows[i].bit)),
                (d->accumulate & rows[i].bit) != 0);
}

/* Rows that no call writes are zero. */
static stw_status start_results(const stw_cp_run *run, const group_exchange *results) {
    const stw_cp_plan *p = run->plan;
    stw_status status = STW_OK;
    for (int i = 0; i < results->x.count && p->starts_own && !status; ++i) {
        const stw_cp_tensor *t = &results->tensors[i];
        status = stw_cp_set(run, t->data, p->shard_rows[t->kv] * t->seq, (uint32_t)t->dtype, 0);
    }
    return status;
}

static stw_status run_group(stw_cp_run *run, int32_t group, const group_exchange *inputs,
                            const group_exchange *results) {
    const stw_cp_plan *p = run->plan;
    const stw_attn_desc *d = &p->attn;
    const stw_cp_tick *tick = &p->ticks[group];
    const stw_cp_tensor lse = row_tensor(run, p->at.lse), delta = row_tensor(run, p->at.shard_delta);
    const int64_t first = group * (p->heads_q / p->groups) * (int64_t)stw_dtype_size(p->number);
    stw_status status = start_results(run, results);
    run->group = group;
    for (int64_t i = tick->part; i < tick->part + tick->parts && !status; ++i) {
        const stw_cp_part *part = &p->parts[i];
        const stw_cp_seq *seq = &p->seqs[part->seq];
        stw_attn_args a = STW_INIT(stw_attn_args);
        void **const outputs[RESULTS] = {&a.dq, &a.dk, &a.dv};
        const uint32_t bits[RESULTS] = {STW_OUT_DQ, STW_OUT_DK, STW_OUT_DV};
        a.lse = (float *)(void *)(stw_cp_at(&lse, seq, 0, 0) + first);
        a.delta = (float *)(void *)(stw_cp_at(&delta, seq, 0, 0) + first);
        a.q = stw_cp_at(&inputs->tensors[INPUT_Q], seq, 0, 0);
        a.dout = stw_cp_at(&inputs->tensors[INPUT_DOUT], seq, 0, 0);
        a.k = stw_cp_at(&inputs->tensors[INPUT_K], seq, 0, 0);
        a.v = stw_cp_at(&inputs->tensors[INPUT_V], seq, 0, 0);
        for (int n = 0, at = 0; n < RESULTS; ++n)
            if (d->outputs & bits[n]) *outputs[n] = stw_cp_at(&results->tensors[at++], seq, 0, 0);
        a.alibi_slopes = stw_cp_slopes(run, seq);
        stw_cp_positions(run, part, &a);
        status = stw_attn_bwd(p->engines[part->engine].plan, &a, run->engine_workspace, p->engine_workspace,
                              run->wire.stream);
    }
    return status;
}

/* Group g computes while g + 1 comes and g - 1 leaves. Tick -1 has group 0 come, and LSE and delta of all; the tick
 * after the last group has that one leave. */
static stw_status run_tick(stw_cp_run *run, int32_t g) {
    const int32_t groups = run->plan->groups;
    const int comes = g + 1 < groups, leaves = g > 0, computes = g >= 0 && g < groups;
    group_exchange next, now, made, done, rows;
    const stw_cp_exchange *moves[2];
    int count = 0;
    stw_status status = STW_OK;
    if (comes) {
        inputs_of(run, g + 1, &next);
        status = stw_cp_exchange_pack(run, &next.x);
        moves[count++] = &next.x;
    }
    if (g < 0) {
        rows_of(run, &rows);
        if (!status) status = stw_cp_exchange_pack(run, &rows.x);
        moves[count++] = &rows.x;
    }
    if (leaves) {
        results_of(run, g - 1, &done);
        moves[count++] = &done.x;
    }
    if (count && !status) status = stw_cp_exchange_start(run, moves, count);
    for (int i = 0; i < count && !status; ++i) status = stw_cp_exchange_own(run, moves[i]);
    if (computes) {
        inputs_of(run, g, &now);
        results_of(run, g, &made);
        if (!status) status = run_group(run, g, &now, &made);
    }
    if (count) { /* also after a failure: the transport holds our memory */
        stw_status waited = run->plan->cp->broken[0] ? STW_OK : stw_cp_wait(&run->wire);
        if (!status) status = waited;
    }
    if (comes && !status) status = stw_cp_exchange_unpack(run, &next.x);
    if (g < 0 && !status) status = stw_cp_exchange_unpack(run, &rows.x);
    if (leaves && !status) status = stw_cp_exchange_unpack(run, &done.x);
    if (computes && !status) status = stw_cp_exchange_pack(run, &made.x);
    return status;
}

stw_status stw_cp_heads_run(stw_cp_run *run) {
    stw_status status = STW_OK;
    for (int32_t g = -1; g <= run->plan->groups && has_gradients(run->plan) && !status; ++g) status = run_tick(run, g);
    return status;
}
