/* SPDX-License-Identifier: MIT
 *
 * The ticks of one rank. Block b of K and V goes from its owner along the shards b+1, b+2, ... that see something of
 * it; the shard at distance s works on it in step s, tick s. Sums of dK and dV of the block are made in two sets, one
 * of the odd steps and one of the even ones, so that a set moves from step s to step s + 2 under the kernels of step
 * s + 1, and a step adds to a set that is there. The last shard of each set sends it home.
 *
 *   K and V       leave the shard of a step in its tick, to be there before the next shard's step
 *   a set         leaves it in the tick after, when its parts have run
 * What the owner makes of its own block stays with it. The second chunk of the own block's keys comes last, in tick
 * `shards`, and the last set moves home under it. Under a causal mask in zigzag order all ranks have the same work in
 * each tick: 3/2 chunks by chunks in the first, 2 in each step, 1/2 in the last. All of the own block in the last tick,
 * one call in place of two, made two H200 no faster (32 heads on 8, S 32768, 2026-11-29).
 *
 * A rank looks at each block once: whether it is on the block's way, who is before it and who after. The rows that see
 * a chunk of keys are one run, so these are a few divisions a sequence, and a plan is linear in ranks. */
#include "cp.h"

#include <stdlib.h>
#include <string.h>

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

int64_t stw_cp_block_rows(const stw_cp_plan *p, int64_t b) {
    int64_t rows = 0;
    for (int64_t s = 0; s < p->seq_count; ++s)
        rows += p->seqs[s].batch * stw_cp_rows_of(p->desc.order, p->seqs[s].rows[1], b, p->shards);
    return rows;
}

int stw_cp_needs(const stw_cp_plan *p, int64_t n, int64_t b) {
    for (int64_t s = 0; s < p->seq_count; ++s)
        for (int at = 0; at < 4; ++at) {
            const stw_cp_seq *seq = &p->seqs[s];
            stw_cp_chunk q = stw_cp_chunk_of(p->desc.order, seq->rows[0], n, p->shards, at & 1);
            stw_cp_chunk k = stw_cp_chunk_of(p->desc.order, seq->rows[1], b, p->shards, at >> 1);
            if (stw_cp_sees(seq, stw_cp_used(seq, 0, q), stw_cp_used(seq, 1, k))) return 1;
        }
    return 0;
}

/* ---- the order of ticks ---- */

/* The step of a tick; `shards` after the last one. */
static int64_t step_at(const stw_cp_plan *p, int64_t tick) { return tick == p->shards && p->cuts_own ? 0 : tick; }

/* ---- who is on a block's way: `chunks` of its keys, bit 0 and bit 1 ---- */

enum { BOTH_CHUNKS = 3 };

/* The chunk of 0..chunks-1 that holds a row: c*rows/chunks <= row < (c+1)*rows/chunks, rounded down. */
static int64_t chunk_of_row(int64_t rows, int64_t chunks, int64_t row) {
    return ((row + 1) * chunks + rows - 1) / rows - 1;
}

/* The chunk that has rows and is c or the next such one; `chunks` where there is none. */
static int64_t chunk_from(int64_t rows, int64_t chunks, int64_t c) {
    int64_t row = c * rows / chunks;
    return row < rows ? chunk_of_row(rows, chunks, row) : chunks;
}

/* The same of the one before; -1 where there is none. */
static int64_t chunk_to(int64_t rows, int64_t chunks, int64_t c) {
    int64_t end = (c + 1) * rows / chunks;
    return end > 0 ? chunk_of_row(rows, chunks, end - 1) : -1;
}

enum { KEY_CHUNKS = 2 };

/* The run of chunks of q whose first and last hold the first and last row that sees a key of block b's chunk `keys`. */
static int seen_by(const stw_cp_plan *p, const stw_cp_seq *seq, int64_t b, int keys, int64_t run_out[2]) {
    stw_cp_chunk k = stw_cp_used(seq, 1, stw_cp_chunk_of(p->desc.order, seq->rows[1], b, p->shards, keys));
    if (!seq->batch || !k.count || seq->low > seq->high) return 0;
    int64_t first = k.first - seq->high, last = k.first + k.count - 1 - seq->low;
    if (first < 0) first = 0;
    if (last > seq->used[0] - 1) last = seq->used[0] - 1;
    if (first > last) return 0;
    run_out[0] = chunk_of_row(seq->rows[0], 2 * p->shards, first);
    run_out[1] = chunk_of_row(seq->rows[0], 2 * p->shards, last);
    return 1;
}

/* Of the shards with a chunk of `run` the first from n on; `shards` where there is none. */
static int64_t shard_from(const stw_cp_plan *p, int64_t rows, const int64_t run[2], int64_t n) {
    int64_t shards = p->shards, chunks = 2 * shards, found = shards;
    if (p->desc.order == STW_CP_CONTIGUOUS) {
        int64_t c = chunk_from(rows, chunks, larger(2 * n, run[0]));
        return c <= run[1] ? c / 2 : shards;
    }
    int64_t c = chunk_from(rows, chunks, larger(n, run[0]));
    if (c <= run[1] && c < shards) found = c;
    c = chunk_to(rows, chunks, smaller(chunks - 1 - n, run[1]));
    if (c >= run[0] && c >= shards && chunks - 1 - c < found) found = chunks - 1 - c;
    return found;
}

/* The same, the last up to n; -1 where there is none. */
static int64_t shard_to(const stw_cp_plan *p, int64_t rows, const int64_t run[2], int64_t n) {
    int64_t shards = p->shards, chunks = 2 * shards, found = -1;
    if (p->desc.order == STW_CP_CONTIGUOUS) {
        int64_t c = chunk_to(rows, chunks, smaller(2 * n + 1, run[1]));
        return c >= run[0] ? c / 2 : -1;
    }
    int64_t c = chunk_to(rows, chunks, smaller(n, run[1]));
    if (c >= run[0]) found = c;
    c = chunk_from(rows, chunks, larger(chunks - 1 - n, run[0]));
    if (c <= run[1] && chunks - 1 - c > found) found = chunks - 1 - c;
    return found;
}

/* The first shard from n on that needs a block, or the last up to n. */
static int64_t user_from(const stw_cp_plan *p, int64_t b, int chunks, int64_t n) {
    int64_t found = p->shards, run[2];
    for (int64_t s = 0; s < p->seq_count; ++s)
        for (int keys = 0; keys < KEY_CHUNKS; ++keys)
            if (chunks >> keys & 1 && seen_by(p, &p->seqs[s], b, keys, run))
                found = smaller(found, shard_from(p, p->seqs[s].rows[0], run, n));
    return found;
}

static int64_t user_to(const stw_cp_plan *p, int64_t b, int chunks, int64_t n) {
    int64_t found = -1, run[2];
    for (int64_t s = 0; s < p->seq_count; ++s)
        for (int keys = 0; keys < KEY_CHUNKS; ++keys)
            if (chunks >> keys & 1 && seen_by(p, &p->seqs[s], b, keys, run))
                found = larger(found, shard_to(p, p->seqs[s].rows[0], run, n));
    return found;
}

/* The first step from `step` on in which a shard needs block b; `shards` where there is none. Steps go around. */
static int64_t step_from(const stw_cp_plan *p, int64_t b, int chunks, int64_t step) {
    int64_t n = b + step, found = p->shards;
    if (step >= p->shards) return p->shards;
    if (n < p->shards) {
        found = user_from(p, b, chunks, n);
        if (found < p->shards) return found - b;
        n = p->shards;
    }
    found = user_from(p, b, chunks, n - p->shards);
    return found < b ? found + p->shards - b : p->shards;
}

/* The last up to `step`; -1 where there is none. */
static int64_t step_to(const stw_cp_plan *p, int64_t b, int chunks, int64_t step) {
    int64_t n = b + step, found;
    if (step < 0) return -1;
    if (n >= p->shards) {
        found = user_to(p, b, chunks, n - p->shards);
        if (found >= 0) return found + p->shards - b;
        n = p->shards - 1;
    }
    found = user_to(p, b, chunks, n);
    return found >= b ? found - b : -1;
}

/* ---- parts ---- */

stw_attn_strides stw_cp_own_rows(int64_t batch_rows, int64_t heads, int64_t dim) {
    return (stw_attn_strides){.batch = batch_rows * heads * dim, .head = dim, .seq = heads * dim};
}

/* Descriptors of parts and of calls for delta start from this one: dense, of these rows and keys. */
static stw_attn_desc common_desc(const stw_cp_plan *p, const stw_cp_seq *seq, int64_t q_rows, int64_t k_rows) {
    stw_attn_desc d = p->attn;
    d.batch = seq->batch;
    d.heads_q = p->heads_q / p->groups;
    d.heads_kv = p->heads_kv / p->groups;
    d.head_offset += p->lane * p->heads_q;
    d.max_seq_q = q_rows;
    d.max_seq_kv = k_rows;
    d.total_q = d.total_kv = 0;
    d.dk_dtype = d.dv_dtype = d.dq_dtype = p->number;
    d.flags &= ~(STW_ATTN_PACKED_Q | STW_ATTN_PACKED_KV | STW_ATTN_HAS_USED_LENGTHS | STW_ATTN_DLSE |
                 STW_ATTN_GIVEN_DELTA | STW_ATTN_WRITE_DELTA | STW_ATTN_SINK);
    d.accumulate = 0;
    if (d.dropout_p > 0) d.batch_offset += seq->index;
    else d.batch_offset = 0;
    return d;
}

static void one_batch(stw_attn_desc *d) {
    stw_attn_strides *all[] = {&d->q,  &d->k,  &d->v,   &d->out,  &d->dout, &d->dq,
                               &d->dk, &d->dv, &d->lse, &d->dlse, &d->delta};
    if (d->batch > 1) return;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; ++i) all[i]->batch = 0;
    d->bias.batch = d->dbias.batch = d->intervals.batch = d->block_mask.batch = 0;
}

stw_attn_desc stw_cp_backward_desc(const stw_cp_plan *p, const stw_cp_seq *seq, int64_t q_rows, int64_t k_rows,
                                   int64_t block) {
    stw_attn_desc d = common_desc(p, seq, q_rows, k_rows);
    int64_t dqk = d.head_dim_qk, dv = d.head_dim_v;
    d.flags |= STW_ATTN_GIVEN_DELTA | STW_ATTN_HAS_SHIFT;
    d.diagonal_shift = seq->shift;
    d.outputs &= STW_OUT_DQ | STW_OUT_DK | STW_OUT_DV | STW_OUT_DBIAS;
    if (p->split > 1) {
        d.q = stw_cp_own_rows(seq->own[0], d.heads_q, dqk);
        d.dout = stw_cp_own_rows(seq->own[0], d.heads_q, dv);
        d.lse = stw_cp_own_rows(seq->own[0], d.heads_q, 1);
        d.dim = (stw_attn_dim_strides){1, 1, 1, 1, 1};
    }
    if (p->split > 1 || !(p->attn.flags & (STW_ATTN_GIVEN_DELTA | STW_ATTN_WRITE_DELTA)))
        d.delta = stw_cp_own_rows(seq->own[0], d.heads_q, 1);
    d.dim.k = d.dim.v = 1;
    d.dq = stw_cp_own_rows(seq->own[0], d.heads_q, dqk);
    d.k = stw_cp_own_rows(block, d.heads_kv, dqk);
    d.v = stw_cp_own_rows(block, d.heads_kv, dv);
    d.dk = stw_cp_own_rows(block, d.heads_kv, dqk);
    d.dv = stw_cp_own_rows(block, d.heads_kv, dv);
    d.accumulate = d.outputs;
    if (d.outputs & STW_OUT_DBIAS) {
        const int64_t *e = p->dbias_extent;
        d.dbias_dtype = p->number;
        d.dbias = (stw_bias_strides){d.bias.batch ? e[1] * e[2] * e[3] : 0, d.bias.head ? e[2] * e[3] : 0,
                                     d.bias.query ? e[3] : 0, d.bias.key};
    } else {
        d.dbias_dtype = STW_DTYPE_NONE;
    }
    if (!(d.flags & STW_ATTN_HAS_DIM_STRIDES)) d.dim = (stw_attn_dim_strides){0};
    one_batch(&d);
    return d;
}

/* In a type wider than O's: parts are not rounded to it, and the errors of their LSE are small beside O's own. */
static stw_attn_desc forward_desc(const stw_cp_plan *p, const stw_cp_seq *seq, int64_t q_rows, int64_t k_rows,
                                  int64_t block) {
    stw_attn_desc d = common_desc(p, seq, q_rows, k_rows);
    d.flags |= STW_ATTN_HAS_SHIFT;
    d.flags &= ~STW_ATTN_HAS_DIM_STRIDES;
    d.dim = (stw_attn_dim_strides){0};
    d.diagonal_shift = seq->shift;
    d.dtype = p->partial;
    d.dq_dtype = d.dk_dtype = d.dv_dtype = d.dbias_dtype = STW_DTYPE_NONE;
    d.outputs = 0;
    if (d.dtype == STW_F64 && p->attn.dtype != STW_F64) {
        d.scale_f64 = (double)d.scale;
        d.softcap_f64 = (double)d.softcap;
    }
    d.q = stw_cp_own_rows(seq->own[0], d.heads_q, d.head_dim_qk);
    d.k = stw_cp_own_rows(block, d.heads_kv, d.head_dim_qk);
    d.v = stw_cp_own_rows(block, d.heads_kv, d.head_dim_v);
    d.out = stw_cp_own_rows(q_rows, d.heads_q, d.head_dim_v);
    d.lse = stw_cp_own_rows(q_rows, d.heads_q, 1);
    if (stw_cp_has_wide_bias(p)) {
        const int64_t *e = p->dbias_extent;
        d.bias_dtype = p->partial;
        d.bias = (stw_bias_strides){d.bias.batch ? e[1] * e[2] * e[3] : 0, d.bias.head ? e[2] * e[3] : 0,
                                    d.bias.query ? e[3] : 0, d.bias.key};
    }
    one_batch(&d);
    return d;
}

/* The first chunk, and both where they are one run of rows; returns how many there are. */
static int merge(stw_cp_chunk chunk[2]) {
    if (chunk[0].first + chunk[0].count != chunk[1].first) return 2;
    chunk[0].count += chunk[1].count;
    return 1;
}

/* A slot of K and V or of sums from the tick in which it fills to the last that reads it. */
typedef struct span {
    int64_t first, last;
    int64_t *slot;         /* of the parts that use it: by step or tick */
    int64_t receipt, sent; /* moves that name the slot, or -1          */
} span;

typedef struct maker {
    stw_cp_plan *p;
    int64_t *slot_of, *sum_slot_of, *starts; /* by step, by tick */
    int64_t home[STW_CP_SETS];               /* slots             */
    int64_t tick_max, last_step;
    int own_ran;                  /* parts of the own block                                */
    int64_t written, own_written; /* keys whose sums the parts of this tick, of the own block begin with */
    struct timed_move {
        int64_t tick;
        stw_cp_move move;
    } *moves;
    int64_t move_count;
    int64_t *first_move, *order; /* moves of a tick: order[first_move[t]] to order[first_move[t + 1]] */
    span *spans[2];              /* K and V, sums */
    int64_t span_count[2];
} maker;

static stw_status add_part(maker *m, stw_cp_tick *tick, const stw_cp_part *part, const stw_attn_desc *desc) {
    stw_cp_plan *p = m->p;
    stw_cp_part own = *part;
    const uint32_t kept = (p->dq_sums ? STW_FEAT_KEPT_DQ : 0) | (p->keeps_stats ? STW_FEAT_KEPT_STATS : 0);
    stw_status status = stw_cp_engine_get(p, desc, kept, &own.engine);
    if (status) return status;
    stw_cp_part *added = stw_cp_grow(&p->parts, &p->part_count, sizeof *p->parts);
    if (!added) return stw_fail(STW_E_NO_MEMORY, "%s: no memory", p->call);
    *added = own;
    tick->parts++;
    return STW_OK;
}

/* A run of keys of a tick, and where it lies in the block and in the sums, in rows of the sequence. */
typedef struct key_run {
    stw_cp_chunk keys;
    int64_t row;
} key_run;

/* The keys of a tick; returns how many runs they are. */
static int keys_of(const stw_cp_plan *p, const stw_cp_seq *seq, int64_t b, const stw_cp_tick *tick, key_run runs[2]) {
    stw_cp_chunk all[2];
    for (int i = 0; i < 2; ++i) all[i] = stw_cp_chunk_of(p->desc.order, seq->rows[1], b, p->shards, i);
    runs[0] = (key_run){all[0], 0};
    runs[1] = (key_run){all[1], all[0].count};
    if (!tick->step && p->cuts_own) {
        runs[0] = runs[tick->is_last];
        return 1;
    }
    int count = merge(all);
    runs[0].keys = all[0];
    return count;
}

static int sees_all(const stw_cp_seq *seq, stw_cp_chunk q, stw_cp_chunk k) {
    return k.first + k.count - 1 - q.first <= seq->high && k.first - (q.first + q.count - 1) >= seq->low;
}

/* Nothing but causal masks and windows goes by positions. */
static int has_free_positions(const stw_cp_plan *p) {
    return p->kind == STW_PLAN_ATTN_BWD && !(p->attn.flags & STW_ATTN_ALIBI) && !(p->attn.dropout_p > 0) &&
           !stw_cp_has_masks(p);
}

/* Whether rows of both chunks of q can be one part, as if the second began where the first ends: it sees all of the
 * keys both where it is and where it would be. */
static int is_one_part(const stw_cp_plan *p, const stw_cp_seq *seq, const stw_cp_chunk q[2], stw_cp_chunk k) {
    const stw_cp_chunk moved = {q[0].first + q[0].count, q[1].count};
    const stw_cp_chunk first = stw_cp_used(seq, 0, q[0]), second = stw_cp_used(seq, 0, q[1]);
    if (!has_free_positions(p) || first.count != q[0].count || second.count != q[1].count) return 0;
    return stw_cp_sees(seq, first, k) && sees_all(seq, second, k) && sees_all(seq, moved, k);
}

/* The same of both runs of keys: each chunk of q sees all of them or nothing. A bias goes by keys. */
static int is_one_run(const stw_cp_plan *p, const stw_cp_seq *seq, const stw_cp_chunk q[2], int q_count,
                      const key_run k[2]) {
    const stw_cp_chunk all[3] = {k[0].keys, k[1].keys, {k[0].keys.first + k[0].keys.count, k[1].keys.count}};
    if (!has_free_positions(p) || p->attn.bias_dtype || seq->used[1] != seq->rows[1]) return 0;
    for (int i = 0; i < q_count; ++i) {
        const stw_cp_chunk rows = stw_cp_used(seq, 0, q[i]);
        int seen = 0, whole = 0;
        for (int n = 0; n < 3; ++n) {
            seen += stw_cp_sees(seq, rows, all[n]);
            whole += all[n].count && sees_all(seq, rows, all[n]);
        }
        if (seen && whole < 3) return 0;
    }
    return 1;
}

/* The parts of sequence `s` in one tick on block b; `base`: rows of the sequences before it. */
static stw_status sequence_parts(maker *m, stw_cp_tick *tick, int64_t b, int32_t s, int64_t base) {
    stw_cp_plan *p = m->p;
    const stw_cp_seq *seq = &p->seqs[s];
    stw_cp_chunk q[2];
    key_run k[2];
    for (int at = 0; at < 2; ++at) q[at] = stw_cp_chunk_of(p->desc.order, seq->rows[0], p->shard, p->shards, at);
    int64_t block = stw_cp_rows_of(p->desc.order, seq->rows[1], b, p->shards), q_second = q[0].count;
    int q_count = merge(q), k_count = keys_of(p, seq, b, tick, k);
    if (k_count == 2 && is_one_run(p, seq, q, q_count, k)) {
        k[0].keys.count += k[1].keys.count;
        k_count = 1;
    }
    for (int at = 0; at < k_count; ++at)
        for (int i = 0, written = 0, together = 0; i < q_count && !together; ++i) {
            stw_cp_chunk rows = stw_cp_used(seq, 0, q[i]), keys = stw_cp_used(seq, 1, k[at].keys);
            if (!stw_cp_sees(seq, rows, keys)) continue;
            together = q_count == 2 && !i && is_one_part(p, seq, q, keys);
            if (together) rows.count += q[1].count;
            const stw_cp_part part = {
                .seq = s,
                .q_row = i ? q_second : 0,
                .q_rows = rows.count,
                .k_rows = keys.count,
                .k_row = base + k[at].row,
                .q_at = rows.first,
                .k_at = keys.first,
            };
            stw_attn_desc desc = p->kind == STW_PLAN_ATTN_FWD
                                     ? forward_desc(p, seq, rows.count, keys.count, block)
                                     : stw_cp_backward_desc(p, seq, rows.count, keys.count, block);
            if (p->dq_sums) desc.dq = (stw_attn_strides){.head = p->dq_sums[s].head, .seq = desc.head_dim_qk};
            if (tick->starts_sums && p->kind == STW_PLAN_ATTN_BWD && !written) {
                desc.accumulate &= ~(uint32_t)(STW_OUT_DK | STW_OUT_DV);
                m->written += seq->batch * keys.count;
                written = 1;
            }
            stw_status status = add_part(m, tick, &part, &desc);
            if (status) return status;
        }
    return STW_OK;
}

/* ---- slots and moves ---- */

/* -1 without memory. */
static int64_t add_move(maker *m, int64_t tick, int64_t peer, int sends, int sums, size_t bytes) {
    struct timed_move *added = stw_cp_grow(&m->moves, &m->move_count, sizeof *added);
    if (!added) return -1;
    added->tick = tick;
    added->move = (stw_cp_move){.peer = stw_cp_peer(m->p, peer),
                                .sends = (uint8_t)sends,
                                .sums = (uint8_t)sums,
                                .slot = STW_CP_OWN,
                                .bytes = bytes,
                                .piece = {{0, bytes}}};
    if (sends) m->p->sent_bytes += bytes;
    return m->move_count - 1;
}

static int add_span(maker *m, int sums, const span *made) {
    span *added = stw_cp_grow(&m->spans[sums], &m->span_count[sums], sizeof *added);
    if (added) *added = *made;
    return added != NULL;
}

static int by_first(const void *a, const void *b) {
    const span *x = a, *y = b;
    return x->first != y->first ? (x->first > y->first) - (x->first < y->first)
                                : (x->last > y->last) - (x->last < y->last);
}

/* Gives each span the first slot that is free in its first tick, in the order of time: no fewer slots would do. */
static int place_spans(maker *m, int sums) {
    int32_t *count = sums ? &m->p->sum_count : &m->p->slot_count;
    int64_t *until = NULL, slots = 0; /* the last tick of each slot's newest span */
    if (m->span_count[sums]) qsort(m->spans[sums], (size_t)m->span_count[sums], sizeof(span), by_first);
    for (int64_t i = 0; i < m->span_count[sums]; ++i) {
        const span *at = &m->spans[sums][i];
        int64_t slot = 0;
        while (slot < slots && until[slot] >= at->first) ++slot;
        if (slot == slots && !stw_cp_grow(&until, &slots, sizeof *until)) {
            free(until);
            return 0;
        }
        until[slot] = at->last;
        *at->slot = slot;
        if (at->receipt >= 0) m->moves[at->receipt].move.slot = (int32_t)slot;
        if (at->sent >= 0) m->moves[at->sent].move.slot = (int32_t)slot;
    }
    *count = (int32_t)slots;
    free(until);
    return 1;
}

/* This rank's part of the way of block b's K and V, which begins with the owner. 0 without memory. */
static int move_block(maker *m, int64_t b) {
    stw_cp_plan *p = m->p;
    int64_t step = (p->shard - b + p->shards) % p->shards;
    int needs = step_from(p, b, BOTH_CHUNKS, step) == step;
    if (step && !needs) return 1;
    int64_t next = step_from(p, b, BOTH_CHUNKS, step + 1);
    size_t bytes = stw_cp_block_bytes(p, stw_cp_block_rows(p, b));
    span slot = {.slot = &m->slot_of[step], .receipt = -1, .sent = -1};
    if (step) {
        slot.first = larger(step_to(p, b, BOTH_CHUNKS, step - 1), 0);
        slot.last = step;
        slot.receipt = add_move(m, slot.first, (b + slot.first) % p->shards, 0, 0, bytes);
        if (slot.receipt < 0) return 0;
    } else if (needs) {
        m->slot_of[0] = STW_CP_OWN;
    }
    if (next < p->shards && (slot.sent = add_move(m, step, (b + next) % p->shards, 1, 0, bytes)) < 0) return 0;
    return !step || add_span(m, 0, &slot);
}

/* The first step from `step` on, of the same set, in which a shard adds to a block's sums; `shards`: there is none. */
static int64_t set_from(const stw_cp_plan *p, int64_t b, int chunks, int64_t step) {
    int64_t next = step;
    while ((next = step_from(p, b, chunks, next)) < p->shards && (next - step) % STW_CP_SETS) ++next;
    return next;
}

/* The last up to `step`; 0 or less where there is none. */
static int64_t set_to(const stw_cp_plan *p, int64_t b, int chunks, int64_t step) {
    int64_t before = step;
    while ((before = step_to(p, b, chunks, before)) > 0 && (step - before) % STW_CP_SETS) --before;
    return before;
}

/* The rows of block b to whose sums the steps of a set add: a chunk where none of them sees the other one and the block
 * is one sequence, else all. */
static stw_cp_chunk set_rows(const stw_cp_plan *p, int64_t b, int set) {
    const stw_cp_chunk all = {0, stw_cp_block_rows(p, b)};
    if (p->seq_count != 1 || p->seqs[0].batch != 1) return all;
    const int64_t first = stw_cp_chunk_of(p->desc.order, p->seqs[0].rows[1], b, p->shards, 0).count;
    const int sees_first = set_from(p, b, 1, set + 1) < p->shards, sees_second = set_from(p, b, 2, set + 1) < p->shards;
    if (sees_first == sees_second) return all;
    return sees_first ? (stw_cp_chunk){0, first} : (stw_cp_chunk){first, all.count - first};
}

/* A move of these rows of a set: of dK's sums, then of dV's. */
static int64_t add_sum_move(maker *m, int64_t tick, int64_t b, int64_t peer, int sends, stw_cp_chunk rows) {
    const stw_cp_plan *p = m->p;
    const size_t number = stw_dtype_size(p->number), wide_k = (size_t)(p->heads_kv * p->attn.head_dim_qk) * number,
                 wide_v = (size_t)(p->heads_kv * p->attn.head_dim_v) * number;
    const size_t first = (size_t)rows.first, count = (size_t)rows.count, all = (size_t)stw_cp_block_rows(p, b);
    const int64_t added = add_move(m, tick, peer, sends, 1, count * (wide_k + wide_v));
    if (added < 0 || count == all) return added;
    stw_cp_piece *piece = m->moves[added].move.piece;
    piece[0] = (stw_cp_piece){first * wide_k, count * wide_k};
    piece[1] = (stw_cp_piece){all * wide_k + first * wide_v, count * wide_v};
    return added;
}

/* The ways of the sets of block b's sums, which end with the owner. */
static int move_sums(maker *m, int64_t b) {
    stw_cp_plan *p = m->p;
    int64_t step = (p->shard - b + p->shards) % p->shards;
    if (step && step_from(p, b, BOTH_CHUNKS, step) == step) {
        int64_t before = set_to(p, b, BOTH_CHUNKS, step - 2), next = set_from(p, b, BOTH_CHUNKS, step + 2);
        span slot = {.first = step, .last = step + 1, .slot = &m->sum_slot_of[step], .receipt = -1};
        const stw_cp_chunk rows = set_rows(p, b, (int)((step + 1) % STW_CP_SETS));
        m->starts[step] = before <= 0;
        if (before > 0) {
            slot.first = before + 1;
            slot.receipt = add_sum_move(m, slot.first, b, (b + before) % p->shards, 0, rows);
            if (slot.receipt < 0) return 0;
        }
        slot.sent = add_sum_move(m, step + 1, b, next < p->shards ? (b + next) % p->shards : b, 1, rows);
        return slot.sent >= 0 && add_span(m, 1, &slot);
    }
    for (int set = 0; set < STW_CP_SETS && !step; ++set) { /* the set of odd steps first */
        int64_t last = set_to(p, b, BOTH_CHUNKS, p->shards - 1 - (p->shards - set) % STW_CP_SETS);
        if (last <= 0) continue;
        span slot = {.first = last + 1, .last = p->shards, .slot = &m->home[set], .sent = -1};
        p->home_rows[set] = set_rows(p, b, set);
        slot.receipt = add_sum_move(m, slot.first, b, (b + last) % p->shards, 0, p->home_rows[set]);
        if (slot.receipt < 0 || !add_span(m, 1, &slot)) return 0;
    }
    return 1;
}

/* ---- all-gather: blocks lie in slots by their numbers, whole ---- */

static void place_gathered(maker *m) {
    stw_cp_plan *p = m->p;
    for (int64_t step = 0; step < p->shards; ++step) {
        int64_t b = (p->shard - step + p->shards) % p->shards;
        m->slot_of[step] = m->sum_slot_of[step] = b;
        m->starts[step] = 1;
    }
    p->slot_count = p->sum_count = (int32_t)p->shards;
}

static int place_ring(maker *m) {
    stw_cp_plan *p = m->p;
    for (int64_t b = 0; b < p->shards; ++b) {
        if (!move_block(m, b)) return 0;
        if (p->kind == STW_PLAN_ATTN_BWD && !move_sums(m, b)) return 0;
    }
    m->starts[0] = m->starts[p->shards] = 1;
    m->sum_slot_of[0] = m->sum_slot_of[p->shards] = STW_CP_OWN;
    return place_spans(m, 0) && place_spans(m, 1);
}

/* Moves by their ticks, in a tick in the order in which they were added: that is the same on both ends. */
static int order_moves(maker *m) {
    size_t ticks = (size_t)m->tick_max + 2;
    m->first_move = calloc(ticks, sizeof *m->first_move);
    m->order = calloc((size_t)m->move_count + 1, sizeof *m->order);
    if (!m->first_move || !m->order) return 0;
    for (int64_t i = 0; i < m->move_count; ++i) m->first_move[m->moves[i].tick + 1]++;
    for (size_t t = 1; t < ticks; ++t) m->first_move[t] += m->first_move[t - 1];
    for (int64_t i = 0; i < m->move_count; ++i) m->order[m->first_move[m->moves[i].tick]++] = i;
    for (size_t t = ticks - 1; t > 0; --t) m->first_move[t] = m->first_move[t - 1];
    m->first_move[0] = 0;
    return 1;
}

/* ---- what is sent beside the moves ---- */

/* Blocks and their sums; the transport's own functions move slots. */
static uint64_t gathered_bytes(const stw_cp_plan *p) {
    const stw_cp_transport *wire = &p->cp->wire;
    int alike = p->all_see_all && p->equal_blocks;
    uint64_t others = (uint64_t)p->shards - 1, bytes = 0;
    size_t block = stw_cp_block_bytes(p, stw_cp_block_rows(p, p->shard));
    size_t sum = stw_cp_sum_bytes(p, stw_cp_block_rows(p, p->shard));
    int sums = p->kind == STW_PLAN_ATTN_BWD, whole_sums = alike && wire->reduce_scatter;
    if (alike && wire->all_gather) bytes += others * stw_cp_slot_size(block);
    if (sums && whole_sums) bytes += others * stw_cp_slot_size(sum);
    for (int64_t n = 0; n < p->shards; ++n) {
        if (n == p->shard) continue;
        if (!(alike && wire->all_gather) && stw_cp_needs(p, n, p->shard)) bytes += block;
        if (sums && !whole_sums && stw_cp_needs(p, p->shard, n)) bytes += stw_cp_sum_bytes(p, stw_cp_block_rows(p, n));
    }
    return bytes;
}

uint64_t stw_cp_other_bytes(const stw_cp_plan *p) {
    const stw_attn_desc *d = &p->attn;
    uint64_t bytes = 0, numbers = 0;
    if (p->schedule == STW_CP_ALL_GATHER) bytes += gathered_bytes(p);
    if (p->split > 1) bytes += stw_cp_exchange_bytes(p);
    if (p->kind != STW_PLAN_ATTN_BWD) return bytes;
    if (d->outputs & STW_OUT_DSINK) numbers += (uint64_t)d->heads_q;
    if (d->outputs & STW_OUT_DBIAS && !d->bias.query) numbers += (uint64_t)p->dbias_count;
    return bytes + (uint64_t)(p->cp->size - 1) * numbers * stw_dtype_size(p->number);
}

/* ---- ticks ---- */

static stw_status add_tick(maker *m, int64_t t) {
    stw_cp_plan *p = m->p;
    stw_cp_tick tick = {.part = p->part_count, .move = p->move_count};
    stw_status status = STW_OK;
    tick.step = (int32_t)step_at(p, t);
    tick.is_last = t == p->shards && p->cuts_own;
    if (tick.step < p->shards) {
        int64_t b = (p->shard - tick.step + p->shards) % p->shards, base = 0;
        tick.slot = (int32_t)m->slot_of[tick.step];
        tick.sum_slot = (int32_t)m->sum_slot_of[t];
        tick.starts_sums = (int32_t)m->starts[t];
        tick.block_rows = stw_cp_block_rows(p, b);
        tick.sums = (stw_cp_chunk){0, tick.block_rows};
        if (tick.step && p->kind == STW_PLAN_ATTN_BWD && p->schedule != STW_CP_ALL_GATHER)
            tick.sums = set_rows(p, b, (tick.step + 1) % STW_CP_SETS);
        m->written = 0;
        for (int64_t s = 0; s < p->seq_count && !status; ++s) {
            const stw_cp_seq *seq = &p->seqs[s];
            status = sequence_parts(m, &tick, b, (int32_t)s, base);
            base += seq->batch * stw_cp_rows_of(p->desc.order, seq->rows[1], b, p->shards);
        }
        if (tick.parts && tick.step != m->last_step && (tick.step || !m->own_ran)) p->steps_run++;
        if (tick.parts) m->last_step = tick.step;
        m->own_ran |= tick.parts && !tick.step;
    }
    if (m->written == tick.sums.count && tick.parts) tick.starts_sums = 0; /* their first parts write all of them */
    if (!tick.step && tick.sum_slot == STW_CP_OWN) { /* two ticks may write them: stw_cp_plan.starts_own */
        m->own_written += m->written;
        tick.starts_sums = 0;
    }
    for (int64_t i = m->first_move[t]; i < m->first_move[t + 1] && !status; ++i) {
        stw_cp_move *added = stw_cp_grow(&p->moves, &p->move_count, sizeof *added);
        if (!added) return stw_fail(STW_E_NO_MEMORY, "%s: no memory", p->call);
        *added = m->moves[m->order[i]].move;
        tick.moves++;
    }
    int must_start = p->kind == STW_PLAN_ATTN_BWD && tick.starts_sums; /* zeros that are sent or added */
    if (status || (!tick.parts && !tick.moves && !must_start)) return status;
    stw_cp_tick *added = stw_cp_grow(&p->ticks, &p->tick_count, sizeof *added);
    if (!added) return stw_fail(STW_E_NO_MEMORY, "%s: no memory", p->call);
    *added = tick;
    return STW_OK;
}

/* The largest work of a shard over the mean, less 1. */
static double imbalance_of(const stw_cp_plan *p) {
    double most = 0, sum = 0;
    for (int64_t n = 0; n < p->shards; ++n) {
        double work = 0;
        for (int64_t s = 0; s < p->seq_count; ++s)
            for (int at = 0; at < 2; ++at) {
                const stw_cp_seq *seq = &p->seqs[s];
                stw_cp_chunk q = stw_cp_chunk_of(p->desc.order, seq->rows[0], n, p->shards, at);
                work += (double)stw_cp_pairs(seq, stw_cp_used(seq, 0, q), (stw_cp_chunk){0, seq->used[1]});
            }
        sum += work;
        if (work > most) most = work;
    }
    return sum > 0 ? most * (double)p->shards / sum - 1 : 0;
}

/* The last of the shards n, n + 1, ... that all need block b; n - 1 where n does not. Chunks without rows end a run. */
static int64_t needed_to(const stw_cp_plan *p, int64_t b, int64_t n) {
    int64_t shards = p->shards, found = user_from(p, b, BOTH_CHUNKS, n) == n ? n : n - 1;
    for (int64_t s = 0; s < p->seq_count && found >= n; ++s)
        for (int keys = 0; keys < KEY_CHUNKS; ++keys) {
            int64_t run[2];
            if (p->seqs[s].rows[0] < 2 * shards || !seen_by(p, &p->seqs[s], b, keys, run)) continue;
            if (p->desc.order == STW_CP_CONTIGUOUS) {
                if (run[0] / 2 <= n) found = larger(found, run[1] / 2);
                continue;
            }
            if (run[0] <= n && run[1] >= n) found = larger(found, smaller(run[1], shards - 1));
            int64_t mirror =
                2 * shards - 1 - n; /* the chunk of n's in the other half; those of later shards precede it */
            if (run[0] <= mirror && run[1] >= mirror) found = larger(found, 2 * shards - 1 - larger(run[0], shards));
        }
    return found;
}

static void look_at_all(stw_cp_plan *p) {
    p->all_see_all = p->equal_blocks = 1;
    for (int64_t b = 0; b < p->shards; ++b) {
        p->equal_blocks &= stw_cp_block_rows(p, b) == stw_cp_block_rows(p, 0);
        for (int64_t n = 0, last; n < p->shards && p->all_see_all; n = last + 1) {
            last = needed_to(p, b, n);
            p->all_see_all = last >= n;
        }
    }
}

stw_status stw_cp_schedule_make(stw_cp_plan *p) {
    maker m = {.p = p, .tick_max = p->shards + 1, .last_step = -1, .home = {-1, -1}};
    size_t count = (size_t)m.tick_max + 1;
    m.slot_of = calloc(count, sizeof *m.slot_of);
    m.sum_slot_of = calloc(count, sizeof *m.sum_slot_of);
    m.starts = calloc(count, sizeof *m.starts);
    int complete = m.slot_of && m.sum_slot_of && m.starts;
    if (complete) {
        p->imbalance = imbalance_of(p);
        if (p->schedule == STW_CP_ALL_GATHER) {
            look_at_all(p);
            place_gathered(&m);
        } else {
            complete = place_ring(&m);
        }
        complete = complete && order_moves(&m);
    }
    for (int set = 0; set < STW_CP_SETS; ++set) p->home[set] = (int32_t)m.home[set];
    stw_status status = complete ? STW_OK : stw_fail(STW_E_NO_MEMORY, "%s: no memory", p->call);
    for (int64_t t = 0; t < m.tick_max && !status; ++t) status = add_tick(&m, t);
    p->starts_own = p->kind == STW_PLAN_ATTN_BWD && p->schedule != STW_CP_ALL_GATHER &&
                    m.own_written != stw_cp_block_rows(p, p->shard);
    p->steps_skipped = p->shards - p->steps_run;
    p->sent_bytes += stw_cp_other_bytes(p);
    free(m.slot_of);
    free(m.sum_slot_of);
    free(m.starts);
    free(m.moves);
    free(m.first_move);
    free(m.order);
    free(m.spans[0]);
    free(m.spans[1]);
    return status;
}
