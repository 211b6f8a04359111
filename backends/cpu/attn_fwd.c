/* SPDX-License-Identifier: MIT
 *
 * Forward: out and LSE with an online softmax, one task a block of query rows. It is simple rather than fast:
 * it exists so that users and the tool can make the inputs of the backward pass. Called through backend.c. */
#include "cpu.h"

#include <math.h>
#include <string.h>

typedef struct fwd_task {
    stw_cpu_tile at;
    int64_t rows; /* of the sequence in this block: used ones first */
} fwd_task;

static void add_keys(const stw_cpu_job *job, const stw_cpu_scratch *t, stw_cpu_tile *at, int64_t block) {
    const stw_attn_params *p = job->p;
    const stw_cpu_layout *l = &job->layout;
    const stw_tile_ops *ops = job->tile;
    at->j0 = block * l->bn;
    at->cols = (uint32_t)stw_min_i64(l->bn, at->seq->kv.used - at->j0);
    stw_cpu_tile_cut(at);
    stw_cpu_load_keys(job, t, at, at->h / p->group);
    stw_cpu_load_hidden(job, t->hidden, at);
    ops->matmul(at->rows, at->cols, p->head_dim_qk, t->q, l->width_k, t->k_cols, l->bn, t->s, l->bn, 0);
    stw_tile_softmax softmax = {stw_cpu_logits(job, t, at), t->lse, t->delta, t->fix};
    ops->softmax(&softmax);
    ops->scale_rows(t->dout, l->width_v, at->rows, p->head_dim_v, t->fix);
    ops->matmul(at->rows, p->head_dim_v, at->cols, t->s, l->bn, t->dv, l->width_v, t->dout, l->width_v, 1);
}

/* The row's LSE from its maximum and sum, with the sink; *factor_out is what the row of O is multiplied with. */
static float finish_row(float maximum, float sum, float sink, float *factor_out) {
    double top = maximum, total = sum;
    *factor_out = 0;
    if (sink > maximum) top = sink;
    if (top == -INFINITY && !isnan(sum)) return -INFINITY;
    double shrink = maximum == -INFINITY ? 1 : exp((double)maximum - top);
    total = total * shrink + (sink == -INFINITY ? 0 : exp((double)sink - top));
    *factor_out = (float)(shrink / total);
    return (float)(top + log(total));
}

static void write_rows(const stw_cpu_job *job, const stw_cpu_scratch *t, const fwd_task *k) {
    const stw_attn_params *p = job->p;
    const stw_cpu_seq *seq = k->at.seq;
    int packed = (p->features & STW_FEAT_PACKED_LSE) != 0;
    float sink = p->features & STW_FEAT_SINK ? p->sink[k->at.h] : -INFINITY;
    for (int64_t r = 0; r < k->rows; ++r) {
        float lse = -INFINITY;
        if (r < k->at.rows) lse = finish_row(t->lse[r], t->delta[r], sink, &t->fix[r]);
        int64_t row = (packed ? seq->q.first : 0) + k->at.i0 + r;
        if (p->lse.data) ((float *)p->lse.data)[seq->b * p->lse.batch + k->at.h * p->lse.head + row * p->lse.seq] = lse;
    }
    job->tile->scale_rows(t->dout, job->layout.width_v, k->at.rows, p->head_dim_v, t->fix);
    int64_t first = seq->q.first + k->at.i0;
    job->tile->store_rows(stw_cpu_row(&p->out, p->dtype, seq->b, k->at.h, first), p->out.seq, p->dtype, 0, t->dout,
                          job->layout.width_v, k->at.rows, p->head_dim_v, 1.0f);
    for (int64_t r = k->at.rows; r < k->rows; ++r)
        memset(stw_cpu_row(&p->out, p->dtype, seq->b, k->at.h, first + r), 0,
               (p->dtype == STW_F32 ? 4 : 2) * (size_t)p->head_dim_v);
}

static void run_task(const stw_cpu_job *job, const stw_cpu_scratch *t, fwd_task *k, int64_t q_block) {
    const stw_cpu_layout *l = &job->layout;
    stw_range keys = stw_cpu_key_blocks(k->at.seq, l, q_block);
    for (uint32_t r = 0; r < l->bm; ++r) {
        t->lse[r] = -INFINITY;
        t->delta[r] = 0;
    }
    memset(t->dout, 0, (size_t)l->bm * l->width_v * sizeof(float));
    if (keys.first < keys.end) stw_cpu_load_rows(job, t->q, l->width_k, &job->p->q, &k->at, job->p->head_dim_qk);
    for (int64_t block = keys.first; block < keys.end; ++block)
        if (stw_cpu_sight_of(job, k->at.seq, k->at.h, q_block, block) != STW_CPU_HIDDEN)
            add_keys(job, t, &k->at, block);
    write_rows(job, t, k);
}

void stw_cpu_fwd_phase(void *data, uint32_t worker) {
    stw_cpu_job *job = data;
    const stw_attn_params *p = job->p;
    const stw_cpu_layout *l = &job->layout;
    stw_cpu_grid grid = stw_cpu_grid_of(p, 0, 0, l->bm);
    int64_t head, block;
    stw_cpu_scratch t;
    stw_cpu_scratch_of(p, l, job->workspace + l->scratch + worker * l->scratch_size, &t);
    while (stw_cpu_claim_block(job, &grid, &head, &block)) {
        int64_t i0 = block * l->bm;
        stw_cpu_seq seq = stw_cpu_seq_of(p, l, head / p->heads_q);
        fwd_task k = {.at = {.seq = &seq, .h = head % p->heads_q, .i0 = i0}};
        k.at.rows = (uint32_t)stw_clamp_i64(seq.q.used - i0, 0, l->bm);
        k.rows = stw_clamp_i64(seq.q.rows - i0, 0, l->bm);
        run_task(job, &t, &k, block);
    }
}

stw_status stw_cpu_attn_fwd(const stw_device *device, const stw_attn_work *work, const stw_attn_params *params,
                            void *workspace, stw_stream stream, uint32_t cpu_threads) {
    (void)stream;
    stw_status status = stw_cpu_check_data("attn_fwd", params);
    if (status) return status;
    const char *reason;
    stw_cpu_job job = {.work = work,
                       .p = params,
                       .tile = stw_cpu_tile_ops(work->variant->loop, &reason),
                       .workspace = workspace,
                       .threads = stw_cpu_threads_of(device, cpu_threads)};
    job.layout = stw_cpu_layout_of(work, job.tile, ((const stw_cpu_state *)device->state)->threads);
    const stw_pool_fn phases[] = {params->features & STW_FEAT_INTERVALS ? stw_cpu_hidden_phase : NULL,
                                  params->dtype == STW_F64 ? stw_f64_fwd_phase : stw_cpu_fwd_phase};
    stw_cpu_run(device, &job, phases, 2);
    return STW_OK;
}
