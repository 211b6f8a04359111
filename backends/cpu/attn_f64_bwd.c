/* SPDX-License-Identifier: MIT
 *
 * The phases of an f64 backward call. Preprocess makes delta of every row and the parts of dSink. Then each
 * block of queries, each block of keys and each tile of a broadcast dBias is one task. A task alone writes its
 * part and sums in ascending order: the same bits for any number of threads. Called by attn_bwd.c. */
#include "attn_f64.h"

#include <math.h>
#include <string.h>

/* ---- preprocess: delta and dSink -------------------------------------------------------------------------*/

static double delta_of_row(const stw_attn_params *p, const stw_cpu_seq *seq, int64_t h, int64_t i) {
    double sum = 0;
    if (p->features & STW_FEAT_GIVEN_DELTA)
        return *stw_f64_number(&p->delta, p->features & STW_FEAT_PACKED_DELTA, seq, h, i);
    if (i >= seq->q_low && i < seq->q_end) { /* O and dO of rows that see no key are not read */
        const double *out = stw_cpu_row(&p->out, STW_F64, seq->b, h, seq->q.first + i);
        const double *dout = stw_cpu_row(&p->dout, STW_F64, seq->b, h, seq->q.first + i);
        for (uint32_t d = 0; d < p->head_dim_v; ++d) sum += out[d] * dout[d];
    }
    if (p->features & STW_FEAT_DLSE) sum -= *stw_f64_number(&p->dlse, p->features & STW_FEAT_PACKED_DLSE, seq, h, i);
    return sum;
}

/* Without a sink, and where LSE is infinite, the row's term is 0. */
static double sink_of_row(const stw_attn_params *p, const stw_cpu_seq *seq, int64_t h, int64_t i, double delta) {
    double sink = stw_f64_of_head(p->sink, h);
    double lse = *stw_f64_number(&p->lse, p->features & STW_FEAT_PACKED_LSE, seq, h, i);
    return sink == -INFINITY || isinf(lse) ? 0 : -exp(sink - lse) * delta;
}

static void rows_block(const stw_cpu_job *job, const stw_cpu_seq *seq, int64_t h, int64_t block) {
    const stw_attn_params *p = job->p;
    const stw_cpu_layout *l = &job->layout;
    int64_t i0 = block * l->bm, end = stw_min_i64(i0 + l->bm, seq->q.rows);
    double sink = 0;
    for (int64_t i = i0; i < end; ++i) {
        double delta = i < seq->q.used ? delta_of_row(p, seq, h, i) : 0;
        *stw_f64_delta(job, seq, h, i) = delta;
        if (p->features & STW_FEAT_WRITE_DELTA)
            *stw_f64_number(&p->delta, p->features & STW_FEAT_PACKED_DELTA, seq, h, i) = delta;
        if (p->outputs & STW_OUT_DSINK && i < seq->q.used) sink += sink_of_row(p, seq, h, i, delta);
    }
    double *parts = (double *)(void *)(job->workspace + l->sink);
    if (p->outputs & STW_OUT_DSINK && i0 < end) parts[h * l->q_blocks + seq->q_block + block] = sink;
}

void stw_f64_rows_phase(void *data, uint32_t worker) {
    stw_cpu_job *job = data;
    const stw_attn_params *p = job->p;
    stw_cpu_grid grid = stw_cpu_grid_of(p, 0, 0, job->layout.bm);
    int64_t head, block;
    (void)worker;
    while (stw_cpu_claim_block(job, &grid, &head, &block)) {
        stw_cpu_seq seq = stw_cpu_seq_of(p, &job->layout, head / p->heads_q);
        rows_block(job, &seq, head % p->heads_q, block);
    }
}

/* ---- queries: dQ, and dBias of a bias that is not broadcast -------------------------------------------*/

static double *bias_row(const stw_attn_params *p, const stw_cpu_tile *at, int64_t i) {
    return (double *)p->dbias.data + at->seq->b * p->dbias.batch + at->h * p->dbias.head + i * p->dbias.query;
}

static void store_bias(const stw_cpu_job *job, const stw_f64_scratch *t, const stw_cpu_tile *at) {
    const stw_attn_params *p = job->p;
    int add = (p->accumulate & STW_OUT_DBIAS) != 0;
    for (uint32_t r = 0; r < at->rows; ++r) {
        double *to = bias_row(p, at, at->i0 + r) + at->j0;
        const double *from = t->raw + (size_t)r * job->layout.bn;
        for (uint32_t c = 0; c < at->cols; ++c) to[c] = add ? to[c] + from[c] : from[c];
    }
}

static void zero_bias(const stw_cpu_job *job, const stw_cpu_tile *at) {
    const stw_attn_params *p = job->p;
    int64_t end = stw_min_i64(at->i0 + job->layout.bm, p->max_seq_q);
    for (int64_t i = at->i0; i < end; ++i) memset(bias_row(p, at, i), 0, (size_t)p->max_seq_kv * sizeof(double));
}

static void run_queries(const stw_cpu_job *job, const stw_f64_scratch *t, const stw_cpu_seq *seq, int64_t h,
                        int64_t block) {
    const stw_attn_params *p = job->p;
    const stw_cpu_layout *l = &job->layout;
    int with_dq = (p->outputs & STW_OUT_DQ) != 0, add_dq = (p->accumulate & STW_OUT_DQ) != 0;
    stw_range keys = stw_cpu_key_blocks(seq, l, block);
    stw_cpu_tile at = stw_f64_tile_at(job, seq, h, block, keys.first);
    if (stw_cpu_zeros_bias(job)) zero_bias(job, &at);
    if (keys.first < keys.end) stw_f64_load_queries(job, t, &at);
    int started = 0;
    for (int64_t b = keys.first; b < keys.end; ++b) {
        if (stw_cpu_sight_of(job, seq, h, block, b) == STW_CPU_HIDDEN) continue;
        at = stw_f64_tile_at(job, seq, h, block, b);
        stw_f64_load_keys(job, t, &at);
        stw_cpu_load_hidden(job, t->hidden, &at);
        stw_f64_grad_tile(job, t, &at);
        if (l->bias_direct) store_bias(job, t, &at);
        if (with_dq)
            job->tile->matmul_f64(at.rows, p->head_dim_qk, at.cols, t->dp, l->bn, 1, t->k, l->width_k, t->dq,
                                  l->width_k, started);
        started = 1;
    }
    if (!with_dq) return;
    int64_t first = seq->q.first + at.i0, summed = started ? at.rows : 0;
    stw_f64_store_rows(&p->dq, seq->b, h, first, t->dq, l->width_k, summed, p->head_dim_qk, job->work->scale, add_dq);
    if (!add_dq)
        stw_f64_zero_rows(&p->dq, seq->b, h, first + summed, stw_clamp_i64(seq->q.rows - at.i0, 0, l->bm) - summed,
                          p->head_dim_qk);
}

void stw_f64_queries_phase(void *data, uint32_t worker) {
    stw_cpu_job *job = data;
    const stw_attn_params *p = job->p;
    int zeros = stw_cpu_zeros_bias(job); /* past the sequences' ends, too */
    stw_cpu_grid grid = stw_cpu_grid_of(p, 0, zeros, job->layout.bm);
    int64_t head, block;
    stw_f64_scratch t = stw_f64_scratch_of_worker(job, worker);
    while (stw_cpu_claim_block(job, &grid, &head, &block)) {
        stw_cpu_seq seq = stw_cpu_seq_of(p, &job->layout, head / p->heads_q);
        run_queries(job, &t, &seq, head % p->heads_q, block);
    }
}

/* ---- keys: dK and dV ----------------------------------------------------------------------------------*/

/* Rows of dK or dV: sums for keys within the used length, zeros from there to the sequence's end. */
static void store_keys(const stw_cpu_job *job, const stw_cpu_tile *at, const stw_tensor_param *to, int add,
                       const double *sum, uint32_t width, uint32_t cols, double scale, int summed) {
    const stw_cpu_seq *seq = at->seq;
    int64_t used = summed ? at->cols : 0, first = seq->kv.first + at->j0, h = at->h / job->p->group;
    stw_f64_store_rows(to, seq->b, h, first, sum, width, used, cols, scale, add);
    if (!add)
        stw_f64_zero_rows(to, seq->b, h, first + used, stw_min_i64(job->layout.bn, seq->kv.rows - at->j0) - used, cols);
}

static void run_keys(const stw_cpu_job *job, const stw_f64_scratch *t, const stw_cpu_seq *seq, int64_t kv_head,
                     int64_t block) {
    const stw_attn_params *p = job->p;
    const stw_cpu_layout *l = &job->layout;
    stw_range queries = stw_cpu_query_blocks(seq, l, block);
    stw_cpu_tile at = stw_f64_tile_at(job, seq, kv_head * p->group, queries.first, block);
    int summed = 0;
    if (queries.first < queries.end) stw_f64_load_keys(job, t, &at);
    for (int64_t h = kv_head * p->group; h < (kv_head + 1) * p->group; ++h)
        for (int64_t q = queries.first;
             (q = stw_cpu_next_query_block(job, seq, h, block, q, queries.end)) < queries.end; ++q, summed = 1) {
            at = stw_f64_tile_at(job, seq, h, q, block);
            stw_cpu_load_hidden(job, t->hidden, &at);
            stw_f64_load_queries(job, t, &at);
            stw_f64_grad_tile(job, t, &at);
            if (p->outputs & STW_OUT_DV)
                job->tile->matmul_f64(at.cols, p->head_dim_v, at.rows, t->s, 1, l->bn, t->dout, l->width_v, t->dv,
                                      l->width_v, summed);
            if (p->outputs & STW_OUT_DK)
                job->tile->matmul_f64(at.cols, p->head_dim_qk, at.rows, t->dp, 1, l->bn, t->q, l->width_k, t->dk,
                                      l->width_k, summed);
        }
    if (p->outputs & STW_OUT_DK)
        store_keys(job, &at, &p->dk, (p->accumulate & STW_OUT_DK) != 0, t->dk, l->width_k, p->head_dim_qk,
                   job->work->scale, summed);
    if (p->outputs & STW_OUT_DV)
        store_keys(job, &at, &p->dv, (p->accumulate & STW_OUT_DV) != 0, t->dv, l->width_v, p->head_dim_v, 1, summed);
}

void stw_f64_keys_phase(void *data, uint32_t worker) {
    stw_cpu_job *job = data;
    const stw_attn_params *p = job->p;
    stw_cpu_grid grid = stw_cpu_grid_of(p, 1, 0, job->layout.bn);
    int64_t head, block;
    stw_f64_scratch t = stw_f64_scratch_of_worker(job, worker);
    while (stw_cpu_claim_block(job, &grid, &head, &block)) {
        stw_cpu_seq seq = stw_cpu_seq_of(p, &job->layout, head / p->heads_kv);
        run_keys(job, &t, &seq, head % p->heads_kv, block);
    }
}

/* ---- broadcast dBias ----------------------------------------------------------------------------------*/

static void add_head(const stw_cpu_job *job, const stw_f64_scratch *t, const stw_cpu_bias_task *k,
                     const stw_cpu_seq *seq, int64_t h) {
    size_t bn = job->layout.bn;
    int64_t last = stw_min_i64(k->key_block.end, stw_ceil_div(seq->kv.used, job->layout.bn));
    for (int64_t kb = k->key_block.first; kb < last; ++kb) {
        stw_range meets = stw_cpu_query_blocks(seq, &job->layout, kb);
        int64_t first = stw_max_i64(meets.first, k->query_block.first);
        int64_t end = stw_min_i64(meets.end, k->query_block.end);
        int loaded = 0;
        for (int64_t qb = first; (qb = stw_cpu_next_query_block(job, seq, h, kb, qb, end)) < end; ++qb, loaded = 1) {
            stw_cpu_tile at = stw_f64_tile_at(job, seq, h, qb, kb);
            if (!loaded) stw_f64_load_keys(job, t, &at);
            stw_cpu_load_hidden(job, t->hidden, &at);
            stw_f64_load_queries(job, t, &at);
            stw_f64_grad_tile(job, t, &at);
            for (uint32_t r = 0; r < at.rows; ++r)
                for (uint32_t c = 0; c < at.cols; ++c) t->sum[r * bn + c] += t->raw[r * bn + c];
        }
    }
}

/* Sums the tile over its rows, its columns or both, where the bias has only one. */
static void fold(double *sum, const stw_cpu_layout *l, int rows, int cols) {
    for (uint32_t r = 1; rows && r < l->bm; ++r)
        for (uint32_t c = 0; c < l->bn; ++c) sum[c] += sum[(size_t)r * l->bn + c];
    for (uint32_t r = 0; cols && r < (rows ? 1 : l->bm); ++r)
        for (uint32_t c = 1; c < l->bn; ++c) sum[(size_t)r * l->bn] += sum[(size_t)r * l->bn + c];
}

static void run_bias(const stw_cpu_job *job, const stw_f64_scratch *t, const stw_cpu_bias_task *k) {
    const stw_attn_params *p = job->p;
    const stw_cpu_layout *l = &job->layout;
    memset(t->sum, 0, (size_t)l->bm * l->bn * sizeof(double));
    stw_cpu_seq seq;
    for (int64_t b = k->batch.first; (b = stw_cpu_next_bias_seq(job, k, b, &seq)) < k->batch.end; ++b)
        for (int64_t h = k->head.first; h < k->head.end; ++h) add_head(job, t, k, &seq, h);
    fold(t->sum, l, !p->dbias.query, !p->dbias.key);
    int64_t i0 = p->dbias.query ? k->query_block.first * l->bm : 0;
    int64_t j0 = p->dbias.key ? k->key_block.first * l->bn : 0;
    int64_t rows = p->dbias.query ? stw_min_i64(l->bm, p->max_seq_q - i0) : 1;
    int64_t cols = p->dbias.key ? stw_min_i64(l->bn, p->max_seq_kv - j0) : 1;
    int64_t b = p->dbias.batch ? k->batch.first : 0, h = p->dbias.head ? k->head.first : 0;
    const stw_tensor_param to = {(double *)p->dbias.data + j0, p->dbias.batch, p->dbias.head, p->dbias.query};
    stw_f64_store_rows(&to, b, h, i0, t->sum, l->bn, rows, (uint32_t)cols, 1, (p->accumulate & STW_OUT_DBIAS) != 0);
}

void stw_f64_bias_phase(void *data, uint32_t worker) {
    stw_cpu_job *job = data;
    stw_f64_scratch t = stw_f64_scratch_of_worker(job, worker);
    stw_cpu_bias_task k;
    while (stw_cpu_claim_bias(job, &k)) run_bias(job, &t, &k);
}
