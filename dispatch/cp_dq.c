/* SPDX-License-Identifier: MIT
 *
 * Sums of dQ that all parts of a sequence's rows add to, on GPUs: in the order of the main loop's registers, set to
 * zero once before the parts and made dQ by one kernel after them. A part that zeroed and converted sums of its own
 * would read and write 20 bytes an element of dQ for that, 0.18 ms for 8192 rows of 32 heads of 128 at 3 TB/s.
 *
 * Where nothing but dQ, dK and dV is asked for, the kernel that sets the sums to zero makes the rows' statistics (LSE,
 * delta and marks, as main loops read them), too, and no part makes its own: each would read Q and dO for the marks. */
#include "cp.h"

#include <stdlib.h>
#include <string.h>

/* What all parts have in common, of all rows and keys of this shard: its last kernel makes dQ. */
static stw_attn_desc finish_desc(const stw_cp_plan *p, const stw_cp_seq *seq) {
    stw_attn_desc d = stw_cp_backward_desc(p, seq, seq->own[0], seq->own[1], seq->own[1]);
    d.bias_dtype = d.dbias_dtype = STW_DTYPE_NONE;
    d.bias = d.dbias = (stw_bias_strides){0};
    d.flags &= ~(STW_ATTN_ALIBI | STW_ATTN_ALIBI_COLUMN | STW_ATTN_BLOCK_MASK);
    d.interval_form = STW_INTERVALS_NONE;
    d.intervals = (stw_interval_strides){0};
    d.block_mask = (stw_block_mask_strides){0};
    d.softcap = 0;
    d.softcap_f64 = 0;
    d.dropout_p = 0;
    d.batch_offset = 0;
    d.outputs &= STW_OUT_DQ | STW_OUT_DK | STW_OUT_DV;
    d.accumulate = d.outputs & (STW_OUT_DK | STW_OUT_DV);
    if (p->split > 1) return d; /* to f32, for the exchange */
    d.dq_dtype = p->attn.dq_dtype;
    d.dq = p->attn.dq;
    d.dq.batch = 0;
    d.accumulate |= p->attn.accumulate & STW_OUT_DQ;
    return d;
}

/* What makes statistics and zeroes sums: a call of the same rows without a mask. That every row sees a key of the
 * whole problem is known; those of a part that it does not see are hidden by the part's main loop. */
static stw_attn_desc start_desc(const stw_cp_plan *p, const stw_cp_seq *seq) {
    stw_attn_desc d = finish_desc(p, seq);
    d.flags &= ~(STW_ATTN_GIVEN_DELTA | STW_ATTN_HAS_SHIFT | STW_ATTN_HAS_WINDOW_LEFT | STW_ATTN_HAS_WINDOW_RIGHT);
    d.flags |= p->attn.flags & STW_ATTN_DLSE;
    d.mask = STW_MASK_NONE;
    d.window_left = d.window_right = d.diagonal_shift = 0;
    d.delta = (stw_attn_strides){0};
    return d;
}

/* Whether one kernel can make the statistics of all rows. What a caller asks for beside gradients is made a row call
 * (cp_bwd.c), a semaphore's start follows from a part's keys, and the LSE of rows that see nothing is not read. */
static int has_plain_stats(const stw_cp_plan *p) {
    const uint32_t flags = STW_ATTN_GIVEN_DELTA | STW_ATTN_WRITE_DELTA;
    if (p->split > 1 || p->attn.flags & flags || p->attn.outputs & (STW_OUT_DSINK | STW_OUT_DBIAS)) return 0;
    for (int64_t s = 0; s < p->seq_count; ++s)
        for (int at = 0; at < 2; ++at) {
            const stw_cp_seq *seq = &p->seqs[s];
            const stw_cp_chunk rows = stw_cp_chunk_of(p->desc.order, seq->rows[0], p->shard, p->shards, at);
            if (stw_cp_seeing_rows(seq, rows).count != rows.count) return 0;
        }
    return 1;
}

/* Whether the parts' rows can be blocks of sums, whatever the main loop: one sequence a call, all rows used. */
static int has_plain_rows(const stw_cp_plan *p) {
    if (p->kind != STW_PLAN_ATTN_BWD || p->context->ops->backend == STW_BACKEND_CPU) return 0;
    if (!(p->attn.outputs & STW_OUT_DQ) || p->attn.flags & STW_ATTN_HAS_USED_LENGTHS) return 0;
    for (int64_t s = 0; s < p->seq_count; ++s)
        if (p->seqs[s].batch != 1 || (p->seqs[s].own[0] && !p->seqs[s].own[1])) return 0;
    return p->seq_count > 0;
}

static const stw_attn_work *work_of(const stw_cp_plan *p, int32_t engine) { return &p->engines[engine].plan->work; }

/* The rows and columns of a block of sums are known from the first sequence on; 0: there are none. */
static int is_alike(const stw_attn_work *a, const stw_attn_work *b) {
    return a->dq_order[0] && !memcmp(a->dq_order, b->dq_order, sizeof a->dq_order);
}

static void give_up(stw_cp_plan *p) {
    free(p->dq_sums);
    p->dq_sums = NULL;
    p->keeps_stats = 0;
}

/* Sums, where statistics are kept behind these, as they lie in the workspace of the call that makes both. */
static void place_sums(stw_cp_plan *p) {
    p->dq_numbers = 0;
    for (int64_t s = 0; s < p->seq_count; ++s) {
        stw_cp_dq_sums *sums = &p->dq_sums[s];
        if (!p->seqs[s].own[0]) continue;
        const size_t bytes = work_of(p, sums->engine)->workspace_size;
        const stw_attn_work *starts = p->keeps_stats ? work_of(p, sums->starts) : NULL;
        const size_t place = starts ? starts->dq_place : 0;
        size_t all = place + bytes;
        if (starts && starts->workspace_size > all) all = starts->workspace_size;
        sums->head = (int64_t)(bytes / sizeof(float)) / p->heads_q;
        sums->stats = p->dq_numbers;
        sums->place = p->dq_numbers + (int64_t)(place / sizeof(float));
        p->dq_numbers += (int64_t)((all + 255) / 256 * 256 / sizeof(float));
    }
}

stw_status stw_cp_dq_plan(stw_cp_plan *p) {
    if (!has_plain_rows(p)) return STW_OK;
    stw_cp_dq_sums *all = calloc((size_t)p->seq_count, sizeof *all);
    if (!all) return stw_fail(STW_E_NO_MEMORY, "%s: no memory", p->call);
    const stw_attn_work *first = NULL;
    stw_status status = STW_OK;
    int fits = 1;
    p->keeps_stats = has_plain_stats(p);
    for (int64_t s = 0; s < p->seq_count && fits && !status; ++s) {
        if (!p->seqs[s].own[0]) continue;
        const stw_attn_desc desc = finish_desc(p, &p->seqs[s]);
        status = stw_cp_engine_get(p, &desc, STW_FEAT_FINISHED_DQ, &all[s].engine);
        if (status) break;
        const stw_attn_work *work = work_of(p, all[s].engine);
        if (!first) first = work;
        fits = is_alike(first, work) && !work->stage_count;
        if (work->params.features & STW_FEAT_DETERMINISTIC) p->keeps_stats = 0;
        if (!fits || !p->keeps_stats) continue;
        const stw_attn_desc ahead = start_desc(p, &p->seqs[s]);
        status = stw_cp_engine_get(p, &ahead, STW_FEAT_STARTED_DQ, &all[s].starts);
        if (!status) {
            const stw_attn_work *starts = work_of(p, all[s].starts);
            p->keeps_stats = is_alike(first, starts) && !starts->stage_count;
        } else if (status == STW_E_UNSUPPORTED) { /* a variant that is forced may take the parts alone */
            p->keeps_stats = 0;
            status = STW_OK;
        }
    }
    p->dq_sums = all;
    if (status || !fits || !first) {
        give_up(p);
        return status;
    }
    memcpy(p->dq_order, first->dq_order, sizeof p->dq_order);
    place_sums(p);
    return STW_OK;
}

/* Parts begin and end at blocks, or at the last row, and all of their main loops have one order. Rows of a block past
 * a part's last one would get what its keys make of rows of zeros: NaN, where a key is infinite. */
static int parts_fit(const stw_cp_plan *p) {
    for (int64_t i = 0; i < p->part_count; ++i) {
        const stw_cp_part *part = &p->parts[i];
        const stw_attn_work *work = work_of(p, part->engine);
        const int64_t end = part->q_row + part->q_rows;
        if (part->q_row % p->dq_order[0] || (end % p->dq_order[0] && end != p->seqs[part->seq].own[0]) ||
            !is_alike(work, work_of(p, p->dq_sums[part->seq].engine)))
            return 0;
    }
    return 1;
}

/* All main loops read statistics in the form in which they are made. */
static int stats_fit(const stw_cp_plan *p) {
    for (int64_t i = 0; i < p->part_count; ++i) {
        const stw_cp_part *part = &p->parts[i];
        const stw_attn_work *work = work_of(p, part->engine), *starts = work_of(p, p->dq_sums[part->seq].starts);
        if (memcmp(work->stats_order, starts->stats_order, sizeof work->stats_order)) return 0;
    }
    return 1;
}

stw_status stw_cp_dq_judge(stw_cp_plan *p) {
    stw_status status = STW_OK;
    if (!p->dq_sums) return STW_OK;
    if (!parts_fit(p)) {
        give_up(p);
        return STW_OK;
    }
    if (p->keeps_stats && !stats_fit(p)) {
        p->keeps_stats = 0;
        place_sums(p);
        return STW_OK;
    }
    for (int64_t s = 0; s < p->seq_count; ++s) {
        if (!p->seqs[s].own[0]) continue;
        p->has_alone |= work_of(p, p->dq_sums[s].engine)->unaligned_variant != NULL;
        p->has_alone |= p->keeps_stats && work_of(p, p->dq_sums[s].starts)->unaligned_variant;
    }
    for (int64_t i = 0; i < p->part_count; ++i) p->has_alone |= work_of(p, p->parts[i].engine)->unaligned_variant != 0;
    /* what a call runs whose q or dO starts off 16 bytes: other kernels, whose sums lie in another order */
    for (int64_t i = 0; i < p->part_count && p->has_alone && !status; ++i) {
        stw_cp_part *part = &p->parts[i];
        stw_attn_desc alone = p->engines[part->engine].desc;
        alone.dq = stw_cp_own_rows(p->seqs[part->seq].own[0], p->heads_q, p->attn.head_dim_qk);
        alone.dq.batch = 0;
        status = stw_cp_engine_get(p, &alone, 0, &part->alone);
    }
    return status;
}

/* ---- a call ---- */

int stw_cp_dq_is_shared(const stw_cp_run *run) {
    uintptr_t starts = (uintptr_t)run->shard_q.data | (uintptr_t)run->shard_dout.data;
    return run->plan->dq_sums && (!run->plan->has_alone || starts % 16 == 0);
}

static float *sums_of(const stw_cp_run *run, int64_t s) {
    return (float *)(void *)(run->workspace + run->plan->at.dq_sums) + run->plan->dq_sums[s].place;
}

float *stw_cp_dq_at(const stw_cp_run *run, const stw_cp_part *part) {
    return sums_of(run, part->seq) + part->q_row * run->plan->dq_order[1];
}

static float *stats_of(const stw_cp_run *run, int64_t s) {
    return (float *)(void *)(run->workspace + run->plan->at.dq_sums) + run->plan->dq_sums[s].stats;
}

float *stw_cp_stats_at(const stw_cp_run *run, const stw_cp_part *part) {
    const stw_cp_plan *p = run->plan;
    const int64_t block = part->q_row / p->dq_order[0];
    return stats_of(run, part->seq) + block * work_of(p, p->dq_sums[part->seq].starts)->stats_order[0];
}

/* The first kernel of a call of all rows of each sequence in this shard, or the last one. Keys and their gradients are
 * there for the check of pointers alone. */
static stw_status run_ends(const stw_cp_run *run, const stw_cp_tensor *dq, int starts) {
    const stw_cp_plan *p = run->plan;
    stw_status status = STW_OK;
    for (int64_t s = 0; s < p->seq_count && !status; ++s) {
        const stw_cp_seq *seq = &p->seqs[s];
        if (!seq->own[0]) continue;
        const stw_cp_dq_sums *sums = &p->dq_sums[s];
        const stw_plan *plan = p->engines[starts ? sums->starts : sums->engine].plan;
        stw_attn_args a = STW_INIT(stw_attn_args);
        a.q = stw_cp_at(&run->shard_q, seq, 0, 0);
        a.dout = stw_cp_at(&run->shard_dout, seq, 0, 0);
        a.lse = (float *)(void *)stw_cp_at(&run->shard_lse, seq, 0, 0);
        a.k = a.v = stw_cp_slot(run, STW_CP_OWN);
        a.dk = stw_cp_sum_slot(run, STW_CP_OWN);
        a.dv = (float *)a.dk + seq->own[1] * p->heads_kv * p->attn.head_dim_qk;
        a.dq = stw_cp_at(dq, seq, 0, 0);
        if (starts) a.out = stw_cp_at(&run->out, seq, 0, 0);
        else a.delta = (float *)(void *)stw_cp_at(&run->shard_delta, seq, 0, 0); /* not read */
        if (starts && run->dlse.data) a.dlse = (const float *)(void *)stw_cp_at(&run->dlse, seq, 0, 0);
        status =
            stw_attn_bwd(plan, &a, starts ? stats_of(run, s) : sums_of(run, s), stw_plan_bytes(plan), run->wire.stream);
    }
    return status;
}

stw_status stw_cp_dq_start(const stw_cp_run *run) { return run_ends(run, &run->dq, 1); }
stw_status stw_cp_dq_finish(const stw_cp_run *run, const stw_cp_tensor *dq) { return run_ends(run, dq, 0); }
