/* SPDX-License-Identifier: MIT
 *
 * One f64 tile of the attention matrix. Operands are packed with zeros for all that is not part of the
 * problem, as in attn_tiles.c. Then each row goes from dot products to P and dS, or to the forward's online
 * softmax; P and dS of masked pairs and of S = -inf are 0. Called by attn_f64_bwd.c and attn_f64_fwd.c. */
#include "attn_f64.h"

#include <math.h>
#include <string.h>

#define PART_ALIGN ((size_t)64)

size_t stw_f64_scratch_of(const stw_attn_work *work, const stw_cpu_layout *l, char *base, stw_f64_scratch *out) {
    size_t bm = l->bm, bn = l->bn, dk = l->width_k, dv = l->width_v, tile = bm * bn;
    size_t backward = work->kind == STW_PLAN_ATTN_BWD, total = 0;
    int with_dropout = (work->params.features & STW_FEAT_DROPOUT) != 0;
    int with_intervals = (work->params.features & STW_FEAT_INTERVALS) != 0;
    const struct {
        size_t place, count;
    } parts[] = {{offsetof(stw_f64_scratch, k), bn * dk},
                 {offsetof(stw_f64_scratch, k_cols), dk * bn},
                 {offsetof(stw_f64_scratch, v), bn * dv},
                 {offsetof(stw_f64_scratch, v_cols), backward * dv * bn},
                 {offsetof(stw_f64_scratch, q), bm * dk},
                 {offsetof(stw_f64_scratch, dout), bm * dv},
                 {offsetof(stw_f64_scratch, s), tile},
                 {offsetof(stw_f64_scratch, dp), backward * tile},
                 {offsetof(stw_f64_scratch, raw), backward * tile},
                 {offsetof(stw_f64_scratch, dq), backward * bm * dk},
                 {offsetof(stw_f64_scratch, dk), backward * bn * dk},
                 {offsetof(stw_f64_scratch, dv), backward * bn * dv},
                 {offsetof(stw_f64_scratch, sum), l->bias_summed ? tile : 0},
                 {offsetof(stw_f64_scratch, lse), bm},
                 {offsetof(stw_f64_scratch, delta), bm},
                 {offsetof(stw_f64_scratch, fix), bm},
                 {offsetof(stw_f64_scratch, keep), with_dropout ? tile : 0},
                 {offsetof(stw_f64_scratch, hidden), with_intervals ? 4 * bn : 0}};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; ++i) {
        if (out) {
            void *part = base + total;
            memcpy((char *)out + parts[i].place, &part, sizeof part);
        }
        total += (parts[i].count * sizeof(double) + PART_ALIGN - 1) / PART_ALIGN * PART_ALIGN;
    }
    return total;
}

stw_f64_scratch stw_f64_scratch_of_worker(const stw_cpu_job *job, uint32_t worker) {
    stw_f64_scratch t;
    stw_f64_scratch_of(job->work, &job->layout,
                       job->workspace + job->layout.scratch + worker * job->layout.scratch_size, &t);
    return t;
}

stw_cpu_tile stw_f64_tile_at(const stw_cpu_job *job, const stw_cpu_seq *seq, int64_t h, int64_t q_block,
                             int64_t k_block) {
    const stw_cpu_layout *l = &job->layout;
    stw_cpu_tile at = {.seq = seq, .h = h, .i0 = q_block * l->bm, .j0 = k_block * l->bn};
    at.rows = (uint32_t)stw_clamp_i64(seq->q.used - at.i0, 0, l->bm);
    at.cols = (uint32_t)stw_clamp_i64(seq->kv.used - at.j0, 0, l->bn);
    stw_cpu_tile_cut(&at);
    return at;
}

/* ---- packing ------------------------------------------------------------------------------------------*/

/* Rows first.. of one head into a tile; rows outside [live) and columns past `cols` become zeros. */
static void load_live(double *to, uint32_t width, const stw_tensor_param *from, int64_t b, int64_t h, int64_t base,
                      stw_range live, int64_t first, uint32_t rows, uint32_t cols) {
    for (uint32_t r = 0; r < rows; ++r, to += width) {
        int64_t row = first + r;
        uint32_t count = row >= live.first && row < live.end ? cols : 0;
        if (count) memcpy(to, stw_cpu_row(from, STW_F64, b, h, base + row), count * sizeof(double));
        memset(to + count, 0, (width - count) * sizeof(double));
    }
}

static void transpose(double *to, size_t to_pitch, const double *from, size_t pitch, uint32_t rows, uint32_t cols) {
    for (uint32_t r = 0; r < rows; ++r)
        for (uint32_t c = 0; c < cols; ++c) to[c * to_pitch + r] = from[r * pitch + c];
}

void stw_f64_load_keys(const stw_cpu_job *job, const stw_f64_scratch *t, const stw_cpu_tile *at) {
    const stw_attn_params *p = job->p;
    const stw_cpu_layout *l = &job->layout;
    const stw_cpu_seq *seq = at->seq;
    stw_range live = {seq->k_low, seq->k_end};
    int64_t h = at->h / p->group;
    load_live(t->k, l->width_k, &p->k, seq->b, h, seq->kv.first, live, at->j0, l->bn, p->head_dim_qk);
    load_live(t->v, l->width_v, &p->v, seq->b, h, seq->kv.first, live, at->j0, l->bn, p->head_dim_v);
    transpose(t->k_cols, l->bn, t->k, l->width_k, l->bn, p->head_dim_qk);
    if (job->work->kind == STW_PLAN_ATTN_BWD) transpose(t->v_cols, l->bn, t->v, l->width_v, l->bn, p->head_dim_v);
}

void stw_f64_load_q(const stw_cpu_job *job, const stw_f64_scratch *t, const stw_cpu_tile *at) {
    const stw_cpu_seq *seq = at->seq;
    load_live(t->q, job->layout.width_k, &job->p->q, seq->b, at->h, seq->q.first, (stw_range){seq->q_low, seq->q_end},
              at->i0, at->rows, job->p->head_dim_qk);
}

void stw_f64_load_queries(const stw_cpu_job *job, const stw_f64_scratch *t, const stw_cpu_tile *at) {
    const stw_attn_params *p = job->p;
    const stw_cpu_layout *l = &job->layout;
    const stw_cpu_seq *seq = at->seq;
    stw_f64_load_q(job, t, at);
    load_live(t->dout, l->width_v, &p->dout, seq->b, at->h, seq->q.first, (stw_range){seq->q_low, seq->q_end}, at->i0,
              at->rows, p->head_dim_v);
    for (uint32_t r = 0; r < at->rows; ++r) {
        t->lse[r] = *stw_f64_number(&p->lse, p->features & STW_FEAT_PACKED_LSE, seq, at->h, at->i0 + r);
        if (!isinf(t->lse[r])) continue; /* P = dS = 0, and operands too: 0 * NaN is NaN */
        memset(t->q + (size_t)r * l->width_k, 0, l->width_k * sizeof(double));
        memset(t->dout + (size_t)r * l->width_v, 0, l->width_v * sizeof(double));
    }
    memcpy(t->delta, stw_f64_delta(job, seq, at->h, at->i0), at->rows * sizeof(double));
}

void stw_f64_store_rows(const stw_tensor_param *to, int64_t b, int64_t h, int64_t first, const double *src,
                        size_t pitch, int64_t rows, uint32_t cols, double scale, int add) {
    for (int64_t r = 0; r < rows; ++r, src += pitch) {
        double *row = stw_cpu_row(to, STW_F64, b, h, first + r);
        for (uint32_t c = 0; c < cols; ++c) row[c] = add ? row[c] + src[c] * scale : src[c] * scale;
    }
}

void stw_f64_zero_rows(const stw_tensor_param *to, int64_t b, int64_t h, int64_t first, int64_t rows, uint32_t cols) {
    for (int64_t r = 0; r < rows; ++r) memset(stw_cpu_row(to, STW_F64, b, h, first + r), 0, cols * sizeof(double));
}

/* ---- logits -------------------------------------------------------------------------------------------*/

/* How the dot products of a tile become S. */
typedef struct logits {
    const stw_attn_params *p;
    const stw_cpu_tile *at;
    double scale, softcap, slope, keep_scale;
    const uint32_t *keep;
} logits;

/* Elements of the bias, of any type that an f64 problem has. */
static double bias_at(const stw_attn_params *p, int64_t index) {
    if (p->bias_dtype == STW_U8) return ((const unsigned char *)p->bias.data)[index] ? 0.0 : -(double)INFINITY;
    return stw_load_f64(p->bias.data, index, (stw_dtype)p->bias_dtype);
}

static logits logits_of(const stw_cpu_job *job, const stw_f64_scratch *t, const stw_cpu_tile *at) {
    const stw_attn_params *p = job->p;
    const stw_cpu_seq *seq = at->seq;
    logits x = {.p = p,
                .at = at,
                .scale = job->work->scale,
                .softcap = job->work->softcap,
                .keep_scale = 1 / (1 - p->dropout_p)};
    if (p->features & STW_FEAT_ALIBI)
        x.slope = stw_f64_of_head(p->alibi_slopes, seq->b * p->alibi_stride_batch + at->h);
    if (p->features & STW_FEAT_DROPOUT) {
        stw_dropout_stream stream = stw_dropout_stream_of(p, seq->b, at->h, seq->q, seq->kv);
        job->tile->dropout(t->keep, job->layout.bn, p, &stream, at->i0, at->j0, at->rows, at->cols);
        x.keep = t->keep;
    }
    return x;
}

/* Final S of row r and key c of the tile from the dot product; *slope_out: the derivative of softcap. */
static double logit(const logits *x, uint32_t r, uint32_t c, double dot, double *slope_out) {
    const stw_attn_params *p = x->p;
    const stw_cpu_seq *seq = x->at->seq;
    int64_t i = x->at->i0 + r, j = x->at->j0 + c;
    double s = dot * x->scale;
    *slope_out = 1;
    if (p->features & STW_FEAT_SOFTCAP) {
        double y = s / x->softcap, e = exp(-2 * fabs(y)); /* 1 - tanh^2 without cancellation */
        *slope_out = 4 * e / ((1 + e) * (1 + e));
        s = x->softcap * tanh(y);
    }
    if (p->features & STW_FEAT_BIAS)
        s += bias_at(p, seq->b * p->bias.batch + x->at->h * p->bias.head + i * p->bias.query + j * p->bias.key);
    if (p->features & STW_FEAT_ALIBI_COLUMN) s += x->slope * (double)(j + seq->kv.offset);
    else if (p->features & STW_FEAT_ALIBI) s -= x->slope * fabs((double)(i + seq->band.shift - j));
    return s;
}

static int is_behind_interval(const logits *x, size_t pitch, uint32_t r, uint32_t c) {
    const int32_t *hidden = x->at->hidden;
    if (!hidden) return 0;
    const stw_hidden_rows rows = {{hidden[c], hidden[2 * pitch + c]}, {hidden[pitch + c], hidden[3 * pitch + c]}};
    return stw_is_hidden(&rows, x->at->i0 + r);
}

/* Visible columns of row r. */
static stw_range span_of_row(const stw_cpu_tile *at, uint32_t r) {
    int64_t first = stw_clamp_i64(r + at->low, 0, at->cols);
    return (stw_range){first, stw_clamp_i64(r + at->high + 1, first, at->cols)};
}

/* ---- backward -----------------------------------------------------------------------------------------*/

static void grad_row(const logits *x, const stw_f64_scratch *t, size_t pitch, uint32_t r) {
    double *s = t->s + r * pitch, *dp = t->dp + r * pitch, *raw = t->raw + r * pitch;
    stw_range span = span_of_row(x->at, r);
    if (isinf(t->lse[r])) span.first = span.end;
    for (uint32_t c = 0; c < x->at->cols; ++c) {
        int visible = c >= span.first && c < span.end && !is_behind_interval(x, pitch, r, c);
        double slope, p, ds, part = visible ? logit(x, r, c, s[c], &slope) : -INFINITY;
        if (part == -INFINITY) {
            s[c] = dp[c] = raw[c] = 0;
            continue;
        }
        p = exp(part - t->lse[r]);
        int kept = !x->keep || x->keep[r * pitch + c];
        double z = x->keep ? x->keep_scale : 1;
        ds = p * ((kept ? dp[c] * z : 0) - t->delta[r]);
        s[c] = kept ? p * z : 0;
        raw[c] = ds;
        dp[c] = ds * slope;
    }
}

void stw_f64_grad_tile(const stw_cpu_job *job, const stw_f64_scratch *t, const stw_cpu_tile *at) {
    const stw_attn_params *p = job->p;
    const stw_cpu_layout *l = &job->layout;
    job->tile->matmul_f64(at->rows, at->cols, p->head_dim_qk, t->q, l->width_k, 1, t->k_cols, l->bn, t->s, l->bn, 0);
    job->tile->matmul_f64(at->rows, at->cols, p->head_dim_v, t->dout, l->width_v, 1, t->v_cols, l->bn, t->dp, l->bn, 0);
    logits x = logits_of(job, t, at);
    for (uint32_t r = 0; r < at->rows; ++r) grad_row(&x, t, l->bn, r);
}

/* ---- forward ------------------------------------------------------------------------------------------*/

static void softmax_row(const logits *x, const stw_f64_scratch *t, size_t pitch, uint32_t r) {
    double *s = t->s + r * pitch, slope, before = t->lse[r], most = before, total = 0;
    stw_range span = span_of_row(x->at, r);
    for (uint32_t c = 0; c < x->at->cols; ++c) {
        int visible = c >= span.first && c < span.end && !is_behind_interval(x, pitch, r, c);
        s[c] = visible ? logit(x, r, c, s[c], &slope) : -INFINITY;
        if (s[c] > most) most = s[c];
    }
    double base = most == -INFINITY ? 0 : most; /* all pairs so far are masked: every term is 0 */
    for (uint32_t c = 0; c < x->at->cols; ++c) {
        double p = s[c] == -INFINITY ? 0 : exp(s[c] - base);
        total += p;
        s[c] = !x->keep ? p : x->keep[r * pitch + c] ? p * x->keep_scale : 0;
    }
    t->fix[r] = before == -INFINITY ? 0 : exp(before - base);
    /* if S was -inf or NaN in all pairs so far, the sum is 0 or NaN and does not change */
    t->delta[r] = (before == -INFINITY ? t->delta[r] : t->delta[r] * t->fix[r]) + total;
    t->lse[r] = most;
}

void stw_f64_softmax_tile(const stw_cpu_job *job, const stw_f64_scratch *t, const stw_cpu_tile *at) {
    const stw_cpu_layout *l = &job->layout;
    job->tile->matmul_f64(at->rows, at->cols, job->p->head_dim_qk, t->q, l->width_k, 1, t->k_cols, l->bn, t->s, l->bn,
                          0);
    logits x = logits_of(job, t, at);
    for (uint32_t r = 0; r < at->rows; ++r) softmax_row(&x, t, l->bn, r);
}
