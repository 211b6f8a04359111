/* SPDX-License-Identifier: MIT
 *
 * One tile of the attention matrix: packing its operands, and P and dS from its dot products. Rows that see no
 * key, keys that no row sees and rows past the used lengths are packed as zeros, since memory may hold anything
 * there, NaN included. Called by attn_main.c, attn_bias.c and attn_fwd.c. */
#include "cpu.h"

#include "common/dtype.h"

#include <math.h>
#include <string.h>

/* Rows [first, first + rows) of one head into a tile; outside [low, end) zeros. */
static void load_live(const stw_cpu_job *job, float *to, uint32_t width, const stw_tensor_param *from, int64_t b,
                      int64_t h, int64_t base, stw_range live, int64_t first, uint32_t rows, uint32_t cols) {
    int64_t low = stw_clamp_i64(live.first - first, 0, rows), end = stw_clamp_i64(live.end - first, low, rows);
    size_t row_bytes = width * sizeof(float);
    uint32_t dtype = job->p->dtype;
    memset(to, 0, (size_t)low * row_bytes);
    if (low < end)
        job->tile->load_rows(to + (size_t)low * width, width, width, stw_cpu_row(from, dtype, b, h, base + first + low),
                             from->seq, (uint32_t)(end - low), cols, dtype);
    memset(to + (size_t)end * width, 0, (size_t)(rows - end) * row_bytes);
}

void stw_cpu_load_keys(const stw_cpu_job *job, const stw_cpu_scratch *t, const stw_cpu_tile *at, int64_t kv_head) {
    const stw_attn_params *p = job->p;
    const stw_cpu_layout *l = &job->layout;
    const stw_cpu_seq *seq = at->seq;
    stw_range live = {seq->k_low, seq->k_end};
    load_live(job, t->k, l->width_k, &p->k, seq->b, kv_head, seq->kv.first, live, at->j0, l->bn, p->head_dim_qk);
    job->tile->transpose(t->k_cols, l->bn, t->k, l->width_k, l->bn, l->width_k);
    float *v = t->dv; /* free until the sums begin */
    load_live(job, v, l->width_v, &p->v, seq->b, kv_head, seq->kv.first, live, at->j0, l->bn, p->head_dim_v);
    job->tile->transpose(t->v_cols, l->bn, v, l->width_v, l->bn, l->width_v);
}

void stw_cpu_load_rows(const stw_cpu_job *job, float *to, uint32_t width, const stw_tensor_param *from,
                       const stw_cpu_tile *at, uint32_t cols) {
    stw_range live = {at->seq->q_low, at->seq->q_end};
    load_live(job, to, width, from, at->seq->b, at->h, at->seq->q.first, live, at->i0, at->rows, cols);
}

static const float *strided_row(const stw_tensor_param *t, int packed, const stw_cpu_seq *seq, int64_t h, int64_t i) {
    return (const float *)t->data + seq->b * t->batch + h * t->head + ((packed ? seq->q.first : 0) + i) * t->seq;
}

void stw_cpu_load_queries(const stw_cpu_job *job, const stw_cpu_scratch *t, const stw_cpu_tile *at) {
    const stw_attn_params *p = job->p;
    const stw_cpu_layout *l = &job->layout;
    const stw_cpu_seq *seq = at->seq;
    stw_cpu_load_rows(job, t->q, l->width_k, &p->q, at, p->head_dim_qk);
    stw_cpu_load_rows(job, t->dout, l->width_v, &p->dout, at, p->head_dim_v);
    const float *lse = strided_row(&p->lse, (p->features & STW_FEAT_PACKED_LSE) != 0, seq, at->h, at->i0);
    for (uint32_t r = 0; r < at->rows; ++r) {
        t->lse[r] = lse[r * p->lse.seq];
        if (!isinf(t->lse[r])) continue; /* P = dS = 0, and operands too: 0 * NaN is NaN */
        memset(t->q + (size_t)r * l->width_k, 0, l->width_k * sizeof(float));
        memset(t->dout + (size_t)r * l->width_v, 0, l->width_v * sizeof(float));
    }
    const float *delta = stw_cpu_part(job, l->delta) + at->h * l->q_rows + seq->q_row + at->i0;
    memcpy(t->delta, delta, at->rows * sizeof(float));
}

/* A bound of the mask's band relative to a tile, clamped so that 32-bit columns cannot overflow. */
static int64_t near_bound(int64_t bound, int64_t shift) {
    return stw_clamp_i64(bound + shift, -(INT64_C(1) << 30), INT64_C(1) << 30);
}

#define EDGE_STRIP 16 /* a multiple of every GEMM_MR and of the lanes */

void stw_cpu_tile_cut(stw_cpu_tile *at) {
    at->low = near_bound(at->seq->band.low, at->i0 - at->j0);
    at->high = near_bound(at->seq->band.high, at->i0 - at->j0);
    int whole = at->low <= 1 - (int64_t)at->rows && at->high >= (int64_t)at->cols - 1;
    at->strip = whole ? (at->rows > at->cols ? at->rows : at->cols) : EDGE_STRIP;
}

/* Keys that rows [r, r + n) see, from a multiple of EDGE_STRIP; rows that see keys [c, c + n). */
static stw_range keys_of_rows(const stw_cpu_tile *at, int64_t r, int64_t n) {
    stw_range keys = {stw_clamp_i64(r + at->low, 0, at->cols), stw_clamp_i64(r + n + at->high, 0, at->cols)};
    keys.first -= keys.first % EDGE_STRIP;
    return keys;
}

static stw_range rows_of_keys(const stw_cpu_tile *at, int64_t c, int64_t n) {
    return (stw_range){stw_clamp_i64(c - at->high, 0, at->rows), stw_clamp_i64(c + n - at->low, 0, at->rows)};
}

/* to[rows][keys] <- x y, y[dim][keys], where pairs are visible. */
static void dot_products(const stw_cpu_job *job, const stw_cpu_tile *at, const float *x, uint32_t width, uint32_t dim,
                         const float *y, float *to) {
    size_t bn = job->layout.bn;
    for (uint32_t r = 0; r < at->rows; r += at->strip) {
        uint32_t n = at->rows - r < at->strip ? at->rows - r : at->strip;
        stw_range keys = keys_of_rows(at, r, n);
        if (keys.first < keys.end)
            job->tile->matmul(n, (uint32_t)(keys.end - keys.first), dim, x + (size_t)r * width, width, y + keys.first,
                              bn, to + r * bn + keys.first, bn, 0);
    }
}

void stw_cpu_sum_to_queries(const stw_cpu_job *job, const stw_cpu_tile *at, const float *pairs, const float *x,
                            float *to, uint32_t width, uint32_t dim) {
    size_t bn = job->layout.bn;
    for (uint32_t r = 0; r < at->rows; r += at->strip) {
        uint32_t n = at->rows - r < at->strip ? at->rows - r : at->strip;
        stw_range keys = keys_of_rows(at, r, n);
        if (keys.first < keys.end)
            job->tile->matmul(n, dim, (uint32_t)(keys.end - keys.first), pairs + r * bn + keys.first, bn,
                              x + (size_t)keys.first * width, width, to + (size_t)r * width, width, 0);
        else memset(to + (size_t)r * width, 0, (size_t)n * width * sizeof(float));
    }
}

void stw_cpu_sum_to_keys(const stw_cpu_job *job, const stw_cpu_tile *at, const float *pairs, const float *x, float *sum,
                         uint32_t width, uint32_t dim, int add) {
    size_t bn = job->layout.bn;
    for (uint32_t c = 0; c < at->cols; c += at->strip) {
        uint32_t n = at->cols - c < at->strip ? at->cols - c : at->strip;
        stw_range rows = rows_of_keys(at, c, n);
        if (rows.first < rows.end)
            job->tile->matmul_at(n, dim, (uint32_t)(rows.end - rows.first), pairs + (size_t)rows.first * bn + c, bn,
                                 x + (size_t)rows.first * width, width, sum + (size_t)c * width, width, add);
        else if (!add) memset(sum + (size_t)c * width, 0, (size_t)n * width * sizeof(float));
    }
}

stw_tile_logits stw_cpu_logits(const stw_cpu_job *job, const stw_cpu_scratch *t, const stw_cpu_tile *at) {
    const stw_attn_params *p = job->p;
    const stw_cpu_seq *seq = at->seq;
    stw_tile_logits logits = {.s = t->s,
                              .pitch = job->layout.bn,
                              .rows = at->rows,
                              .cols = at->cols,
                              .features = p->features,
                              .dtype = p->dtype,
                              .scale = p->scale,
                              .softcap = p->softcap,
                              .low = at->low,
                              .high = at->high,
                              .hidden = at->hidden,
                              .first_row = (int32_t)at->i0};
    if (p->features & STW_FEAT_BIAS) {
        int64_t size = (int64_t)stw_dtype_size((stw_dtype)p->bias_dtype);
        logits.bias =
            (const char *)p->bias.data +
            (seq->b * p->bias.batch + at->h * p->bias.head + at->i0 * p->bias.query + at->j0 * p->bias.key) * size;
        logits.bias_query = p->bias.query;
        logits.bias_key = (uint32_t)p->bias.key;
        logits.bias_dtype = p->bias_dtype;
    }
    if (p->features & STW_FEAT_ALIBI) {
        logits.slope = p->alibi_slopes[seq->b * p->alibi_stride_batch + at->h];
        logits.diagonal = (double)(at->i0 + seq->band.shift - at->j0);
        logits.first_key = (double)(at->j0 + seq->kv.offset);
    }
    if (p->features & STW_FEAT_DROPOUT) {
        stw_dropout_stream stream = stw_dropout_stream_of(p, seq->b, at->h, seq->q, seq->kv);
        job->tile->dropout(t->keep, job->layout.bn, p, &stream, at->i0, at->j0, at->rows, at->cols);
        logits.keep = t->keep;
        logits.keep_scale = p->dropout_scale;
    }
    return logits;
}

void stw_cpu_grad_tile(const stw_cpu_job *job, const stw_cpu_scratch *t, const stw_cpu_tile *at, float *raw) {
    const stw_attn_params *p = job->p;
    const stw_cpu_layout *l = &job->layout;
    dot_products(job, at, t->q, l->width_k, p->head_dim_qk, t->k_cols, t->s);
    if (p->outputs & (STW_OUT_DQ | STW_OUT_DK | STW_OUT_DBIAS))
        dot_products(job, at, t->dout, l->width_v, p->head_dim_v, t->v_cols, t->dp);
    stw_tile_grad grad = {stw_cpu_logits(job, t, at), t->dp, raw, t->lse, t->delta};
    job->tile->grad(&grad);
}
