/* SPDX-License-Identifier: MIT
 *
 * Preprocess of the backward pass, one task a block of query rows: delta = rowsum(dO*O) - dLSE, the block's
 * part of dSink, and zeros where no tile will write. Those are rows of dQ that see no key or lie past the used
 * length, and dBias outside the tiles that the main phase visits. Called by attn_bwd.c. */
#include "cpu.h"

#include <math.h>
#include <string.h>

typedef struct rows_task {
    const stw_cpu_seq *seq;
    int64_t h, block, i0;
    int64_t used, rows, padded; /* ends of the block: used length, sequence, max_seq_q */
} rows_task;

static float *float_at(const stw_tensor_param *t, uint32_t packed, const rows_task *k, int64_t i) {
    int64_t row = (packed ? k->seq->q.first : 0) + i;
    return (float *)t->data + k->seq->b * t->batch + k->h * t->head + row * t->seq;
}

static void compute_delta(const stw_cpu_job *job, const rows_task *k, float *delta) {
    const stw_attn_params *p = job->p;
    int64_t n = k->used - k->i0;
    if (p->features & STW_FEAT_GIVEN_DELTA) {
        for (int64_t r = 0; r < n; ++r)
            delta[r] = *float_at(&p->delta, p->features & STW_FEAT_PACKED_DELTA, k, k->i0 + r);
        return;
    }
    int64_t low = stw_clamp_i64(k->seq->q_low, k->i0, k->used), end = stw_clamp_i64(k->seq->q_end, low, k->used);
    memset(delta, 0, (size_t)n * sizeof(float)); /* O and dO of rows that see no key are not read */
    if (low < end) {
        int64_t row = k->seq->q.first + low;
        job->tile->dot_rows(delta + (low - k->i0), stw_cpu_row(&p->dout, p->dtype, k->seq->b, k->h, row), p->dout.seq,
                            stw_cpu_row(&p->out, p->dtype, k->seq->b, k->h, row), p->out.seq, (uint32_t)(end - low),
                            p->head_dim_v, p->dtype);
    }
    if (p->features & STW_FEAT_DLSE)
        for (int64_t r = 0; r < n; ++r)
            delta[r] -= *float_at(&p->dlse, p->features & STW_FEAT_PACKED_DLSE, k, k->i0 + r);
}

/* Without a sink, and where LSE is infinite, the row's term is 0. */
static double sink_of_block(const stw_cpu_job *job, const rows_task *k, const float *delta) {
    const stw_attn_params *p = job->p;
    float sink = p->sink[k->h];
    double sum = 0;
    if (sink == -INFINITY) return 0;
    for (int64_t i = k->i0; i < k->used; ++i) {
        float lse = *float_at(&p->lse, p->features & STW_FEAT_PACKED_LSE, k, i);
        if (!isinf(lse)) sum -= exp((double)sink - (double)lse) * (double)delta[i - k->i0];
    }
    return sum;
}

static void zero_dq(const stw_cpu_job *job, const rows_task *k) {
    const stw_attn_params *p = job->p;
    stw_range range = stw_cpu_key_blocks(k->seq, &job->layout, k->block);
    int64_t seen = stw_cpu_nearest_key_block(job, k->seq, k->h, k->block, range, range.first, 1);
    int64_t first = seen < 0 ? k->i0 : k->used;
    size_t bytes = (p->dq_dtype == STW_F32 ? 4 : 2) * (size_t)p->head_dim_qk;
    for (int64_t i = first; i < k->rows; ++i)
        memset(stw_cpu_row(&p->dq, p->dq_dtype, k->seq->b, k->h, k->seq->q.first + i), 0, bytes);
}

static void zero_bias(const stw_cpu_job *job, const rows_task *k) {
    const stw_attn_params *p = job->p;
    stw_range range = stw_cpu_key_blocks(k->seq, &job->layout, k->block);
    int64_t size = p->dbias_dtype == STW_F32 ? 4 : 2;
    int64_t first = range.first * job->layout.bn, end = stw_min_i64(range.end * job->layout.bn, k->seq->kv.used);
    char *base = (char *)p->dbias.data + (k->seq->b * p->dbias.batch + k->h * p->dbias.head) * size;
    for (int64_t i = k->i0; i < k->padded; ++i) {
        char *row = base + i * p->dbias.query * size;
        if (i < k->used && first < end) {
            memset(row, 0, (size_t)(first * size));
            memset(row + end * size, 0, (size_t)((p->max_seq_kv - end) * size));
        } else {
            memset(row, 0, (size_t)(p->max_seq_kv * size));
        }
    }
}

static void rows_block(const stw_cpu_job *job, const rows_task *k) {
    const stw_attn_params *p = job->p;
    const stw_cpu_layout *l = &job->layout;
    if (k->i0 < k->rows) {
        int64_t at = k->h * l->q_blocks + k->seq->q_block + k->block;
        atomic_uint *turns = (atomic_uint *)(void *)(job->workspace + l->turns);
        atomic_store_explicit(&turns[at], 0, memory_order_relaxed);
        float *delta = stw_cpu_part(job, l->delta) + k->h * l->q_rows + k->seq->q_row + k->i0;
        int wanted = (p->outputs & ~STW_OUT_DV) || (p->features & STW_FEAT_WRITE_DELTA);
        if (wanted && k->i0 < k->used) compute_delta(job, k, delta);
        if (p->features & STW_FEAT_WRITE_DELTA)
            for (int64_t i = k->i0; i < k->rows; ++i)
                *float_at(&p->delta, p->features & STW_FEAT_PACKED_DELTA, k, i) = i < k->used ? delta[i - k->i0] : 0;
        if (p->outputs & STW_OUT_DSINK)
            ((double *)(void *)(job->workspace + l->sink))[at] = sink_of_block(job, k, delta);
        if ((p->outputs & STW_OUT_DQ) && !(p->accumulate & STW_OUT_DQ)) zero_dq(job, k);
    }
    if (stw_cpu_zeros_bias(job)) zero_bias(job, k);
}

void stw_cpu_rows_phase(void *data, uint32_t worker) {
    stw_cpu_job *job = data;
    const stw_attn_params *p = job->p;
    int64_t bm = job->layout.bm, head, first;
    int zeros = stw_cpu_zeros_bias(job);
    stw_cpu_grid grid = stw_cpu_grid_of(p, 0, zeros, bm);
    (void)worker;
    grid.size *= grid.blocks; /* a task is all blocks of one (batch, head) */
    grid.blocks = grid.blocks ? 1 : 0;
    while (stw_cpu_claim_block(job, &grid, &head, &first)) {
        stw_cpu_seq seq = stw_cpu_seq_of(p, &job->layout, head / p->heads_q);
        int64_t blocks = stw_ceil_div(zeros ? p->max_seq_q : seq.q.rows, bm);
        for (int64_t block = 0; block < blocks; ++block) {
            int64_t i0 = block * bm, i1 = i0 + bm;
            rows_task k = {&seq,
                           head % p->heads_q,
                           block,
                           i0,
                           stw_clamp_i64(seq.q.used, i0, i1),
                           stw_clamp_i64(seq.q.rows, i0, i1),
                           stw_min_i64(p->max_seq_q, i1)};
            rows_block(job, &k);
        }
    }
}
