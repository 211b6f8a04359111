/* SPDX-License-Identifier: MIT
 *
 * Main phase of the backward pass. A work tile (struct work_tile) is one block of keys of one (batch, kv head):
 *
 *     keys  +----+        for each query head of the group, each query block that meets the keys:
 *      j0   |####|          S = Q K^T, dP = dO V^T, P and dS (attn_tiles.c)
 *           +----+          dV += P^T dO, dK += dS^T Q     in tiles of its own: no other work tile adds there
 *     queries i0..          dQ[i0..] += dS K               in the order of the key blocks
 *
 * Results do not depend on the number of threads, because key blocks add to a query block's dQ in ascending
 * order. A semaphore of each (head, query block) holds the last key block that has added. A work tile first
 * computes dS K, then waits for the nearest key block before it that the queries see. Those of a head are claimed
 * in ascending order, so a running thread always has the one to add next: there is no deadlock. Tiles that masks
 * in memory hide are left out (attn_hidden.c). Called by attn_bwd.c. */
#include "cpu.h"

#include <string.h>

typedef struct work_tile {
    stw_cpu_tile at;
    int64_t kv_head, block; /* key block */
    int loaded;             /* keys are packed                       */
    int started;            /* dk and dv hold sums: a tile was added */
} work_tile;

#define TURN_SLEEPER 0x80000000u /* a thread sleeps until the semaphore changes */

/* Waits until the semaphore is `mine`: spins for a short time, then sleeps. */
static void acquire_dq_semaphore(atomic_uint *turn, uint32_t mine) {
    uint32_t now, spins = 0;
    while (((now = atomic_load_explicit(turn, memory_order_acquire)) & ~TURN_SLEEPER) != mine) {
        if (spins < STW_POOL_SPIN) {
            ++spins;
#if defined(__x86_64__)
            __builtin_ia32_pause();
#endif
        } else if (now & TURN_SLEEPER || atomic_compare_exchange_strong(turn, &now, now | TURN_SLEEPER)) {
            stw_pool_sleep(turn, now | TURN_SLEEPER);
        }
    }
}

/* Sets the semaphore and wakes the thread that sleeps on it, if there is one. */
static void release_dq_semaphore(atomic_uint *turn, uint32_t next) {
    if (atomic_exchange_explicit(turn, next, memory_order_acq_rel) & TURN_SLEEPER) stw_pool_wake(turn);
}

/* Waits until all key blocks before this one that the queries see have added, then adds the tile's dQ. The last of them
 * writes the output from the sum. */
static void add_dq(const stw_cpu_job *job, const stw_cpu_scratch *t, const work_tile *u, int64_t q_block) {
    const stw_attn_params *p = job->p;
    const stw_cpu_layout *l = &job->layout;
    const stw_cpu_seq *seq = u->at.seq;
    stw_range range = stw_cpu_key_blocks(seq, l, q_block);
    atomic_uint *turns = (atomic_uint *)(void *)(job->workspace + l->turns);
    atomic_uint *turn = &turns[u->at.h * l->q_blocks + seq->q_block + q_block];
    int64_t before = stw_cpu_nearest_key_block(job, seq, u->at.h, q_block, range, u->block - 1, -1);
    int64_t behind = stw_cpu_nearest_key_block(job, seq, u->at.h, q_block, range, u->block + 1, 1);
    void *out = stw_cpu_row(&p->dq, p->dq_dtype, seq->b, u->at.h, seq->q.first + u->at.i0);
    float *sum = out;
    int64_t stride = p->dq.seq;
    if (l->separate_dq) {
        stride = p->head_dim_qk;
        sum = stw_cpu_part(job, l->dq) + (u->at.h * l->q_rows + seq->q_row + u->at.i0) * stride;
    }
    acquire_dq_semaphore(turn, (uint32_t)(before + 1));
    job->tile->add_rows(sum, stride, before >= 0, t->dq, l->width_k, u->at.rows, p->head_dim_qk);
    if (behind < 0)
        job->tile->store_rows(out, p->dq.seq, p->dq_dtype, (p->accumulate & STW_OUT_DQ) != 0, sum, (size_t)stride,
                              u->at.rows, p->head_dim_qk, p->scale);
    release_dq_semaphore(turn, (uint32_t)(u->block + 1));
}

static void store_bias(const stw_cpu_job *job, const stw_cpu_scratch *t, const stw_cpu_tile *at) {
    const stw_attn_params *p = job->p;
    int64_t size = p->dbias_dtype == STW_F32 ? 4 : 2;
    char *to = (char *)p->dbias.data +
               (at->seq->b * p->dbias.batch + at->h * p->dbias.head + at->i0 * p->dbias.query + at->j0) * size;
    job->tile->store_rows(to, p->dbias.query, p->dbias_dtype, (p->accumulate & STW_OUT_DBIAS) != 0, t->raw,
                          job->layout.bn, at->rows, at->cols, 1.0f);
}

/* dBias of a tile that is left out. */
static void zero_bias(const stw_cpu_job *job, const stw_cpu_tile *at, int64_t q_block) {
    const stw_attn_params *p = job->p;
    int64_t size = p->dbias_dtype == STW_F32 ? 4 : 2,
            end = stw_min_i64((q_block + 1) * job->layout.bm, at->seq->q.used);
    char *base = (char *)p->dbias.data + (at->seq->b * p->dbias.batch + at->h * p->dbias.head + at->j0) * size;
    for (int64_t i = q_block * job->layout.bm; i < end; ++i)
        memset(base + i * p->dbias.query * size, 0, at->cols * (size_t)size);
}

static void run_tile(const stw_cpu_job *job, const stw_cpu_scratch *t, work_tile *u, int64_t q_block) {
    const stw_attn_params *p = job->p;
    const stw_cpu_layout *l = &job->layout;
    stw_cpu_tile *at = &u->at;
    at->i0 = q_block * l->bm;
    at->rows = (uint32_t)stw_min_i64(l->bm, at->seq->q.used - at->i0);
    stw_cpu_tile_cut(at);
    if (!u->loaded) stw_cpu_load_keys(job, t, at, u->kv_head);
    u->loaded = 1;
    stw_cpu_load_hidden(job, t->hidden, at);
    stw_cpu_load_queries(job, t, at);
    stw_cpu_grad_tile(job, t, at, l->bias_direct ? t->raw : NULL);
    if (l->bias_direct) store_bias(job, t, at);
    if (p->outputs & STW_OUT_DV)
        stw_cpu_sum_to_keys(job, at, t->s, t->dout, t->dv, l->width_v, p->head_dim_v, u->started);
    if (p->outputs & STW_OUT_DK)
        stw_cpu_sum_to_keys(job, at, t->dp, t->q, t->dk, l->width_k, p->head_dim_qk, u->started);
    u->started = 1;
    if (p->outputs & STW_OUT_DQ) {
        stw_cpu_sum_to_queries(job, at, t->dp, t->k, t->dq, l->width_k, p->head_dim_qk);
        add_dq(job, t, u, q_block);
    }
}

/* The work tile's rows of dK or dV: sums for keys within the used length, zeros from there to the sequence's end. */
static void store_keys(const stw_cpu_job *job, const work_tile *u, const stw_tensor_param *to, uint32_t dtype, int add,
                       const float *sum, uint32_t width, uint32_t cols, float scale) {
    const stw_cpu_seq *seq = u->at.seq;
    int64_t used = u->started ? u->at.cols : 0, end = stw_min_i64(job->layout.bn, seq->kv.rows - u->at.j0);
    int64_t row = seq->kv.first + u->at.j0;
    if (used)
        job->tile->store_rows(stw_cpu_row(to, dtype, seq->b, u->kv_head, row), to->seq, dtype, add, sum, width,
                              (uint32_t)used, cols, scale);
    if (add) return;
    for (int64_t i = used; i < end; ++i)
        memset(stw_cpu_row(to, dtype, seq->b, u->kv_head, row + i), 0, (dtype == STW_F32 ? 4 : 2) * (size_t)cols);
}

static void run_work_tile(const stw_cpu_job *job, const stw_cpu_scratch *t, int64_t batch_head, int64_t block) {
    const stw_attn_params *p = job->p;
    const stw_cpu_layout *l = &job->layout;
    stw_cpu_seq seq = stw_cpu_seq_of(p, l, batch_head / p->heads_kv);
    work_tile u = {.at = {.seq = &seq, .j0 = block * l->bn}, .kv_head = batch_head % p->heads_kv, .block = block};
    if (u.at.j0 >= seq.kv.rows) return;
    u.at.cols = (uint32_t)stw_clamp_i64(seq.kv.used - u.at.j0, 0, l->bn);
    stw_range queries = stw_cpu_query_blocks(&seq, l, block);
    for (int64_t g = 0; g < p->group; ++g) {
        u.at.h = u.kv_head * p->group + g;
        for (int64_t q = queries.first; q < queries.end; ++q) {
            int64_t seen = stw_cpu_next_query_block(job, &seq, u.at.h, block, q, queries.end);
            for (; stw_cpu_zeros_bias(job) && q < seen; ++q) zero_bias(job, &u.at, q);
            q = seen;
            if (q < queries.end) run_tile(job, t, &u, q);
        }
    }
    if (p->outputs & STW_OUT_DK)
        store_keys(job, &u, &p->dk, p->dk_dtype, (p->accumulate & STW_OUT_DK) != 0, t->dk, l->width_k, p->head_dim_qk,
                   p->scale);
    if (p->outputs & STW_OUT_DV)
        store_keys(job, &u, &p->dv, p->dv_dtype, (p->accumulate & STW_OUT_DV) != 0, t->dv, l->width_v, p->head_dim_v,
                   1.0f);
}

/* The first task after a chunk of heads none of which has keys from row `row` on; 0: one of them has. */
static int64_t behind_chunk(const stw_attn_params *p, int64_t first, int64_t chunk, int64_t blocks, int64_t row) {
    int64_t behind = stw_min_i64(first + chunk, p->batch * p->heads_kv);
    for (int64_t b = first / p->heads_kv; b * p->heads_kv < behind; ++b)
        if (stw_seq_kv(p, b).rows > row) return 0;
    behind = stw_max_i64(behind, stw_cpu_next_seq(p, 1, behind / p->heads_kv) * p->heads_kv);
    return stw_cpu_tasks(behind / chunk, chunk * blocks);
}

/* Threads share a head only when there are fewer heads than threads. Work tiles are numbered by chunks of
 * as many heads as threads: the first key block of each of these heads, then the second ones, and so on. */
void stw_cpu_main_phase(void *data, uint32_t worker) {
    stw_cpu_job *job = data;
    const stw_attn_params *p = job->p;
    const stw_cpu_layout *l = &job->layout;
    int64_t heads = p->batch * p->heads_kv, blocks = stw_ceil_div(stw_cpu_longest(p, 1), l->bn);
    int64_t work_tiles = stw_cpu_tasks(heads, blocks);
    int64_t chunk = stw_max_i64(1, stw_min_i64(job->threads, heads));
    stw_cpu_scratch t;
    stw_cpu_scratch_of(p, l, job->workspace + l->scratch + worker * l->scratch_size, &t);
    for (;;) {
        int64_t task = stw_cpu_claim(job);
        if (task >= work_tiles) return;
        int64_t first = task / (chunk * blocks) * chunk, within = task % (chunk * blocks);
        int64_t width = stw_min_i64(chunk, heads - first), block = within / width;
        int64_t behind = within % width ? 0 : behind_chunk(p, first, chunk, blocks, block * l->bn);
        if (behind) stw_cpu_skip(&job->next, behind);
        else run_work_tile(job, &t, first + within % width, block);
    }
}
