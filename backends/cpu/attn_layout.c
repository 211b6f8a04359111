/* SPDX-License-Identifier: MIT
 *
 * Sizes and offsets: the workspace of a call, the tiles of a thread, sequences cut into blocks. Called by
 * backend.c at plan time and by every phase. */
#include "attn_f64.h"

#define PART_ALIGN ((size_t)64)

static size_t take(size_t *total, size_t bytes) {
    size_t at = *total;
    *total = (at + bytes + PART_ALIGN - 1) / PART_ALIGN * PART_ALIGN;
    return at;
}

static uint32_t round_up(uint32_t value, uint32_t step) { return (value + step - 1) / step * step; }

/* The bias is broadcast along a dimension: stride 0, and not one element. (Along an empty one dBias has one.) */
static int broadcast(int64_t stride, int64_t extent) { return stride == 0 && extent != 1; }

static void layout_bias(stw_cpu_layout *l, const stw_attn_params *p) {
    if (!(p->outputs & STW_OUT_DBIAS)) return;
    l->bias_summed = broadcast(p->dbias.batch, p->batch) || broadcast(p->dbias.head, p->heads_q) ||
                     broadcast(p->dbias.query, p->max_seq_q) || broadcast(p->dbias.key, p->max_seq_kv);
    l->bias_direct = !l->bias_summed;
}

stw_cpu_layout stw_cpu_layout_of(const stw_attn_work *work, const stw_tile_ops *tile, uint32_t threads) {
    const stw_attn_params *p = &work->params;
    int f64 = p->dtype == STW_F64;
    stw_cpu_layout l = {.bm = f64 ? STW_F64_BM : work->variant->bm, .bn = f64 ? STW_F64_BN : work->variant->bn};
    int packed = (p->features & STW_FEAT_PACKED_Q) != 0;
    l.width_k = round_up(p->head_dim_qk, tile->lanes);
    l.width_v = round_up(p->head_dim_v, tile->lanes);
    l.q_rows = packed ? p->total_q : p->batch * p->max_seq_q;
    l.q_blocks = stw_query_blocks_most(p, l.bm);
    if (work->kind == STW_PLAN_ATTN_BWD) {
        size_t heads = (size_t)p->heads_q, rows = heads * (size_t)l.q_rows, blocks = heads * (size_t)l.q_blocks;
        layout_bias(&l, p);
        l.separate_dq = !f64 && (p->dq_dtype != STW_F32 || (p->accumulate & STW_OUT_DQ));
        l.delta = take(&l.total, rows * (f64 ? sizeof(double) : sizeof(float)));
        l.turns = take(&l.total, f64 ? 0 : blocks * sizeof(uint32_t));
        l.sink = take(&l.total, p->outputs & STW_OUT_DSINK ? blocks * sizeof(double) : 0);
        int in_workspace = (p->outputs & STW_OUT_DQ) && l.separate_dq;
        l.dq = take(&l.total, in_workspace ? rows * p->head_dim_qk * sizeof(float) : 0);
    }
    l.mask_heads = p->intervals.head ? p->heads_kv : 1;
    l.k_blocks = p->features & STW_FEAT_PACKED_KV ? p->total_kv / l.bn + p->batch
                                                  : p->batch * stw_blocks_of(p->max_seq_kv, l.bn);
    size_t listed = p->features & STW_FEAT_INTERVALS ? (size_t)(l.mask_heads * l.k_blocks) : 0;
    l.hidden = take(&l.total, listed * sizeof(stw_hidden_block));
    l.scratch_size = f64 ? stw_f64_scratch_of(work, &l, NULL, NULL) : stw_cpu_scratch_of(p, &l, NULL, NULL);
    l.scratch = take(&l.total, l.scratch_size * threads);
    return l;
}

size_t stw_cpu_scratch_of(const stw_attn_params *p, const stw_cpu_layout *l, char *base, stw_cpu_scratch *out) {
    size_t total = 0, bm = l->bm, bn = l->bn, dk = l->width_k, dv = l->width_v, tile = bm * bn;
    int with_bias = l->bias_direct || l->bias_summed, with_dropout = (p->features & STW_FEAT_DROPOUT) != 0;
    int with_intervals = (p->features & STW_FEAT_INTERVALS) != 0;
    size_t sizes[] = {bn * dk,
                      dk * bn,
                      dv * bn,
                      bn * dk,
                      bn * dv,
                      bm * dk,
                      bm * dv,
                      bm * dk,
                      tile,
                      tile,
                      with_bias ? tile : 0,
                      l->bias_summed ? tile : 0,
                      with_dropout ? tile : 0,
                      with_intervals ? 4 * bn : 0,
                      bm,
                      bm,
                      bm};
    size_t at[sizeof sizes / sizeof sizes[0]];
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; ++i) at[i] = take(&total, sizes[i] * sizeof(float));
    if (out) {
        float **parts[] = {&out->k,    &out->k_cols, &out->v_cols, &out->dk,    &out->dv,  &out->q,
                           &out->dout, &out->dq,     &out->s,      &out->dp,    &out->raw, &out->sum,
                           NULL,       NULL,         &out->lse,    &out->delta, &out->fix};
        for (size_t i = 0; i < sizeof at / sizeof at[0]; ++i)
            if (parts[i]) *parts[i] = (float *)(void *)(base + at[i]);
        out->keep = (uint32_t *)(void *)(base + at[12]);
        out->hidden = (int32_t *)(void *)(base + at[13]);
    }
    return total;
}

stw_cpu_seq stw_cpu_seq_of(const stw_attn_params *p, const stw_cpu_layout *l, int64_t b) {
    stw_attn_seq seq = stw_attn_seq_of(p, l->bm, b);
    stw_range keys = stw_visible_keys(&seq);
    return (stw_cpu_seq){.b = b,
                         .q = seq.q,
                         .kv = seq.kv,
                         .band = seq.band,
                         .q_low = seq.q_low,
                         .q_end = seq.q_end,
                         .k_low = keys.first,
                         .k_end = keys.end,
                         .q_row = (p->features & STW_FEAT_PACKED_Q) ? seq.q.first : b * p->max_seq_q,
                         .q_block = seq.q_block,
                         .k_block = (p->features & STW_FEAT_PACKED_KV) ? seq.kv.first / l->bn + b
                                                                       : b * stw_blocks_of(p->max_seq_kv, l->bn)};
}

static int64_t rows_of(const stw_attn_params *p, int keys, int64_t b) {
    return keys ? stw_seq_kv(p, b).rows : stw_seq_q(p, b).rows;
}

int64_t stw_cpu_next_seq(const stw_attn_params *p, int keys, int64_t b) {
    if (!stw_cpu_longest(p, keys)) return p->batch;
    if (!(p->features & (keys ? STW_FEAT_PACKED_KV : STW_FEAT_PACKED_Q))) return b;
    while (b < p->batch && !rows_of(p, keys, b)) ++b;
    return b;
}

stw_cpu_grid stw_cpu_grid_of(const stw_attn_params *p, int keys, int padded, int64_t size) {
    int64_t longest = !padded ? stw_cpu_longest(p, keys) : keys ? p->max_seq_kv : p->max_seq_q;
    return (stw_cpu_grid){keys, padded, keys ? p->heads_kv : p->heads_q, stw_ceil_div(longest, size), size};
}

int stw_cpu_claim_block(stw_cpu_job *job, const stw_cpu_grid *grid, int64_t *head_out, int64_t *block_out) {
    const stw_attn_params *p = job->p;
    int64_t of_seq = grid->heads * grid->blocks, tasks = stw_cpu_tasks(p->batch, of_seq);
    for (;;) {
        int64_t task = stw_cpu_claim(job);
        if (task >= tasks) return 0;
        int64_t head = task / grid->blocks, block = task % grid->blocks, b = head / grid->heads;
        int64_t rows = grid->padded ? INT64_MAX : rows_of(p, grid->keys, b);
        *head_out = head;
        *block_out = block;
        if (block * grid->size < rows) return 1;
        if (rows) stw_cpu_skip(&job->next, (head + 1) * grid->blocks);
        else stw_cpu_skip(&job->next, stw_cpu_tasks(stw_cpu_next_seq(p, grid->keys, b), of_seq));
    }
}

/* What the blocks that meet depend on. */
static stw_attn_seq shared_of(const stw_cpu_seq *s) {
    return (stw_attn_seq){s->q, s->kv, s->band, s->q_block, s->q_low, s->q_end};
}

stw_range stw_cpu_key_blocks(const stw_cpu_seq *s, const stw_cpu_layout *l, int64_t block) {
    stw_attn_seq seq = shared_of(s);
    return stw_key_blocks(&seq, l->bm, l->bn, block);
}

stw_range stw_cpu_query_blocks(const stw_cpu_seq *s, const stw_cpu_layout *l, int64_t block) {
    stw_attn_seq seq = shared_of(s);
    return stw_query_blocks(&seq, l->bm, l->bn, block);
}
