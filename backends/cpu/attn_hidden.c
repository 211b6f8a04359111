/* SPDX-License-Identifier: MIT
 *
 * Masks in memory on the CPU: which tiles intervals and a block mask leave out, which they cut. A phase of its own
 * makes what a block of keys hides, 32 bytes of the workspace a block, once for all heads that share the mask. Called
 * by every other phase. */
#include "cpu.h"

#include <string.h>

static int64_t mask_head(const stw_cpu_job *job, int64_t h) {
    return job->layout.mask_heads > 1 ? h / job->p->group : 0;
}

static stw_hidden_block *hidden_block(const stw_cpu_job *job, const stw_cpu_seq *seq, int64_t head, int64_t block) {
    stw_hidden_block *blocks = (stw_hidden_block *)(void *)(job->workspace + job->layout.hidden);
    return &blocks[head * job->layout.k_blocks + seq->k_block + block];
}

static stw_hidden_rows rows_of_key(const stw_attn_params *p, const stw_cpu_seq *seq, int64_t kv_head, int64_t j) {
    return stw_hidden_rows_of(p, &seq->q, stw_interval_at(p, &seq->kv, seq->b, kv_head, j));
}

void stw_cpu_hidden_phase(void *data, uint32_t worker) {
    stw_cpu_job *job = data;
    const stw_attn_params *p = job->p;
    const stw_cpu_layout *l = &job->layout;
    stw_cpu_grid grid = stw_cpu_grid_of(p, 1, 0, l->bn);
    int64_t head, block;
    (void)worker;
    grid.heads = l->mask_heads;
    if (!p->intervals.data) return; /* a side without rows */
    while (stw_cpu_claim_block(job, &grid, &head, &block)) {
        stw_cpu_seq seq = stw_cpu_seq_of(p, l, head / l->mask_heads);
        stw_hidden_block hidden = stw_hidden_block_of_none();
        int64_t end = stw_min_i64((block + 1) * l->bn, seq.kv.used);
        for (int64_t j = block * l->bn; j < end; ++j) {
            stw_hidden_rows rows = rows_of_key(p, &seq, head % l->mask_heads, j);
            stw_hidden_block_add(&hidden, &rows);
        }
        *hidden_block(job, &seq, head % l->mask_heads, block) = hidden;
    }
}

stw_cpu_sight stw_cpu_sight_of(const stw_cpu_job *job, const stw_cpu_seq *seq, int64_t h, int64_t q_block,
                               int64_t k_block) {
    const stw_attn_params *p = job->p;
    int64_t bm = job->layout.bm, bn = job->layout.bn, i0 = q_block * bm, i1 = stw_min_i64(i0 + bm, seq->q.used);
    if (p->features & STW_FEAT_BLOCK_MASK && !stw_block_mask_at(p, seq->b, h, i0, k_block * bn)) return STW_CPU_HIDDEN;
    if (!(p->features & STW_FEAT_INTERVALS)) return STW_CPU_OPEN;
    const stw_hidden_block *hidden = hidden_block(job, seq, mask_head(job, h), k_block);
    if (stw_hidden_block_hides_all(hidden, i0, i1)) return STW_CPU_HIDDEN;
    return stw_hidden_block_hides_none(hidden, i0, i1) ? STW_CPU_OPEN : STW_CPU_PARTIAL;
}

/* The end of the interval that hides all of row i from the key block; i: none does. */
static int64_t behind_hidden(const stw_cpu_job *job, const stw_cpu_seq *seq, int64_t h, int64_t k_block, int64_t i) {
    if (!(job->p->features & STW_FEAT_INTERVALS)) return i;
    const stw_hidden_block *hidden = hidden_block(job, seq, mask_head(job, h), k_block);
    for (int x = 0; x < 2; ++x)
        if (hidden->all_first[x] <= i && hidden->all_end[x] > i) return hidden->all_end[x];
    return i;
}

int64_t stw_cpu_next_query_block(const stw_cpu_job *job, const stw_cpu_seq *seq, int64_t h, int64_t k_block,
                                 int64_t block, int64_t end) {
    int64_t bm = job->layout.bm;
    while (block < end && stw_cpu_sight_of(job, seq, h, block, k_block) == STW_CPU_HIDDEN)
        block = stw_max_i64(block + 1, behind_hidden(job, seq, h, k_block, block * bm) / bm);
    return stw_min_i64(block, end);
}

int64_t stw_cpu_nearest_key_block(const stw_cpu_job *job, const stw_cpu_seq *seq, int64_t h, int64_t q_block,
                                  stw_range range, int64_t block, int64_t step) {
    for (; block >= range.first && block < range.end; block += step)
        if (stw_cpu_sight_of(job, seq, h, q_block, block) != STW_CPU_HIDDEN) return block;
    return -1;
}

void stw_cpu_load_hidden(const stw_cpu_job *job, int32_t *to, stw_cpu_tile *at) {
    const stw_cpu_layout *l = &job->layout;
    const stw_cpu_seq *seq = at->seq;
    at->hidden = NULL;
    if (stw_cpu_sight_of(job, seq, at->h, at->i0 / l->bm, at->j0 / l->bn) != STW_CPU_PARTIAL) return;
    memset(to, 0, 4 * (size_t)l->bn * sizeof *to);
    for (uint32_t c = 0; c < at->cols; ++c) {
        stw_hidden_rows rows = rows_of_key(job->p, seq, at->h / job->p->group, at->j0 + c);
        for (int x = 0; x < 2; ++x) {
            to[(size_t)(2 * x) * l->bn + c] = rows.first[x];
            to[(size_t)(2 * x + 1) * l->bn + c] = rows.end[x];
        }
    }
    at->hidden = to;
}
