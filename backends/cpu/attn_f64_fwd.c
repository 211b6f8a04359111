/* SPDX-License-Identifier: MIT
 *
 * Forward of f64 problems: out and LSE with an online softmax, one task a block of query rows. Called through
 * attn_fwd.c. */
#include "attn_f64.h"

#include <math.h>
#include <string.h>

static void scale_row(double *row, uint32_t cols, double factor) {
    for (uint32_t c = 0; c < cols; ++c) row[c] *= factor;
}

static void add_keys(const stw_cpu_job *job, const stw_f64_scratch *t, stw_cpu_tile *at) {
    const stw_cpu_layout *l = &job->layout;
    stw_f64_load_keys(job, t, at);
    stw_cpu_load_hidden(job, t->hidden, at);
    stw_f64_softmax_tile(job, t, at);
    for (uint32_t r = 0; r < at->rows; ++r) scale_row(t->dout + (size_t)r * l->width_v, job->p->head_dim_v, t->fix[r]);
    job->tile->matmul_f64(at->rows, job->p->head_dim_v, at->cols, t->s, l->bn, 1, t->v, l->width_v, t->dout, l->width_v,
                          1);
}

/* The row's LSE from its maximum and sum, with the sink; *factor_out is what the row of O is multiplied with. */
static double finish_row(double maximum, double sum, double sink, double *factor_out) {
    double top = sink > maximum ? sink : maximum;
    *factor_out = 0;
    if (top == -INFINITY && !isnan(sum)) return -INFINITY;
    double shrink = maximum == -INFINITY ? 1 : exp(maximum - top);
    double total = sum * shrink + (sink == -INFINITY ? 0 : exp(sink - top));
    *factor_out = shrink / total;
    return top + log(total);
}

/* `rows` of the sequence in this block, the used ones first. */
static void write_rows(const stw_cpu_job *job, const stw_f64_scratch *t, const stw_cpu_tile *at, int64_t rows) {
    const stw_attn_params *p = job->p;
    const stw_cpu_seq *seq = at->seq;
    double sink = p->features & STW_FEAT_SINK ? stw_f64_of_head(p->sink, at->h) : -INFINITY;
    for (int64_t r = 0; r < rows; ++r) {
        double lse = -INFINITY;
        if (r < at->rows) {
            lse = finish_row(t->lse[r], t->delta[r], sink, &t->fix[r]);
            scale_row(t->dout + (size_t)r * job->layout.width_v, p->head_dim_v, t->fix[r]);
        }
        if (p->lse.data) *stw_f64_number(&p->lse, p->features & STW_FEAT_PACKED_LSE, seq, at->h, at->i0 + r) = lse;
    }
    int64_t first = seq->q.first + at->i0;
    stw_f64_store_rows(&p->out, seq->b, at->h, first, t->dout, job->layout.width_v, at->rows, p->head_dim_v, 1, 0);
    stw_f64_zero_rows(&p->out, seq->b, at->h, first + at->rows, rows - at->rows, p->head_dim_v);
}

static void run_task(const stw_cpu_job *job, const stw_f64_scratch *t, const stw_cpu_seq *seq, int64_t h,
                     int64_t q_block) {
    const stw_cpu_layout *l = &job->layout;
    stw_range keys = stw_cpu_key_blocks(seq, l, q_block);
    stw_cpu_tile at = stw_f64_tile_at(job, seq, h, q_block, keys.first);
    for (uint32_t r = 0; r < l->bm; ++r) {
        t->lse[r] = -INFINITY;
        t->delta[r] = 0;
    }
    memset(t->dout, 0, (size_t)l->bm * l->width_v * sizeof(double));
    if (keys.first < keys.end) stw_f64_load_q(job, t, &at);
    for (int64_t block = keys.first; block < keys.end; ++block) {
        if (stw_cpu_sight_of(job, seq, h, q_block, block) == STW_CPU_HIDDEN) continue;
        at = stw_f64_tile_at(job, seq, h, q_block, block);
        add_keys(job, t, &at);
    }
    write_rows(job, t, &at, stw_clamp_i64(seq->q.rows - at.i0, 0, l->bm));
}

void stw_f64_fwd_phase(void *data, uint32_t worker) {
    stw_cpu_job *job = data;
    const stw_attn_params *p = job->p;
    stw_cpu_grid grid = stw_cpu_grid_of(p, 0, 0, job->layout.bm);
    int64_t head, block;
    stw_f64_scratch t = stw_f64_scratch_of_worker(job, worker);
    while (stw_cpu_claim_block(job, &grid, &head, &block)) {
        stw_cpu_seq seq = stw_cpu_seq_of(p, &job->layout, head / p->heads_q);
        run_task(job, &t, &seq, head % p->heads_q, block);
    }
}
