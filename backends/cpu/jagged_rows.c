/* SPDX-License-Identifier: MIT
 *
 * Jagged operations that work row by row: the pointwise ones, layer norm, RMS norm. */
#include "jagged.h"

#include <math.h>
#include <string.h>

/* ---- pointwise: a task is a span of elements ---- */

#define SPAN (1 << 15)

/* f64 and integers: x <= threshold is compared exactly. */
#define WIDE_THRESHOLD(type, limit_type, limit)                                                                        \
    do {                                                                                                               \
        const type *x = (const type *)p->x + first, *g = (const type *)p->grad + first;                                \
        type *out = (type *)p->dx + first;                                                                             \
        limit_type most = (limit);                                                                                     \
        for (int64_t i = 0; i < count; ++i) out[i] = x[i] <= most ? (type)0 : g[i];                                    \
    } while (0)

/* The largest integer that is not above the threshold, within int64. */
static int64_t whole_threshold(double threshold) {
    double whole = floor(threshold);
    if (whole >= 0x1p63) return INT64_MAX;
    return whole < -0x1p63 ? INT64_MIN : (int64_t)whole;
}

static void wide_threshold(const stw_jagged_params *p, int64_t first, int64_t count) {
    int64_t whole = whole_threshold(p->threshold);
    if (p->dtype != STW_F64 && p->threshold < -0x1p63) { /* below every integer */
        size_t element = stw_dtype_size((stw_dtype)p->dtype);
        memcpy((char *)p->dx + (size_t)first * element, (const char *)p->grad + (size_t)first * element,
               (size_t)count * element);
        return;
    }
    switch (p->dtype) {
    case STW_F64: WIDE_THRESHOLD(double, double, p->threshold); break;
    case STW_I8: WIDE_THRESHOLD(int8_t, int64_t, whole); break;
    case STW_U8: WIDE_THRESHOLD(uint8_t, int64_t, whole); break;
    case STW_I16: WIDE_THRESHOLD(int16_t, int64_t, whole); break;
    case STW_I32: WIDE_THRESHOLD(int32_t, int64_t, whole); break;
    default: WIDE_THRESHOLD(int64_t, int64_t, whole); break;
    }
}

static void pointwise_span(const stw_cpu_jagged_job *job, stw_tile_pointwise function, int64_t from, int64_t end) {
    const stw_jagged_params *p = &job->p;
    stw_cpu_stretch run;
    int64_t last_row = stw_ceil_div(end, p->inner);
    for (int64_t row = from / p->inner; stw_cpu_jagged_run(p, row, last_row, 1, &run); row = run.row + run.count) {
        int64_t first = stw_max_i64(run.row * p->inner, from);
        int64_t count = stw_min_i64((run.row + run.count) * p->inner, end) - first;
        if (!run.valid) stw_cpu_jagged_zero(p, first, count);
        else if (!stw_dtype_valid((stw_dtype)p->dtype)) wide_threshold(p, first, count);
        else
            function(stw_at_out(p->dx, first, p->dx_dtype), stw_at(p->x, first, p->dtype),
                     stw_at(p->grad, first, p->dtype), count, (float)p->threshold, stw_cpu_jagged_types(p));
    }
}

void stw_cpu_jagged_pointwise(void *data, uint32_t worker) {
    stw_cpu_jagged_job *job = data;
    stw_tile_pointwise function = job->tile->pointwise[job->p.op];
    int64_t elements = stw_cpu_jagged_rows(&job->p) * job->p.inner;
    (void)worker;
    for (;;) {
        int64_t from = stw_cpu_jagged_claim(job) * SPAN;
        if (from >= elements) return;
        pointwise_span(job, function, from, stw_min_i64(from + SPAN, elements));
    }
}

/* ---- layer norm, RMS norm (without mean): a task is a segment of lines, whose sums are one partial ---- */

static void norm_line(const stw_cpu_jagged_job *job, const float *gamma, int64_t line, float *dgamma, float *dbeta) {
    const stw_jagged_params *p = &job->p;
    int64_t size = p->dim_size, first = line * size;
    const void *g = stw_at(p->grad, first, p->dtype);
    if (!(p->outputs & (STW_JAGGED_DX | STW_JAGGED_DWEIGHT))) {
        job->tile->norm_columns(NULL, dbeta, NULL, g, 0, 0, size, p->dtype);
        return;
    }
    const void *x = stw_at(p->x, first, p->dtype);
    int rms = p->op == STW_JAGGED_RMS_NORM;
    stw_tile_norm norm = {.gamma = gamma, .mean = rms ? 0 : p->mean[line], .rstd = p->rstd[line]};
    if (p->outputs & STW_JAGGED_DX) {
        double sums[2];
        int all = dgamma && (dbeta || rms);
        job->tile->norm_sums(x, g, &norm, size, p->dtype, sums, all ? dgamma : NULL, all ? dbeta : NULL);
        norm.average_g = rms ? 0 : (float)(sums[0] / (double)size);
        norm.average_gh = (float)(sums[1] / (double)size);
        job->tile->norm_line(stw_at_out(p->dx, first, p->dx_dtype), x, g, &norm, size, stw_cpu_jagged_types(p));
        if (all) return;
    }
    if (dgamma || dbeta) job->tile->norm_columns(dgamma, dbeta, x, g, norm.mean, norm.rstd, size, p->dtype);
}

/* Which column sums the op has: dGamma's come before dBeta's in a partial. */
static int has_weight_sums(const stw_jagged_params *p) {
    return stw_jagged_is_norm(p->op) && p->outputs & STW_JAGGED_DWEIGHT;
}
static int has_bias_sums(const stw_jagged_params *p) { return (p->outputs & STW_JAGGED_DBIAS) != 0; }

/* Where a segment's sums are. */
static void partial_of(const stw_cpu_jagged_job *job, int64_t segment, float **dgamma_out, float **dbeta_out) {
    float *at = stw_cpu_jagged_part(job, job->layout.partials);
    int64_t width = job->layout.partial_width;
    int weight = has_weight_sums(&job->p), bias = has_bias_sums(&job->p);
    at += segment * (weight + bias) * width;
    *dgamma_out = weight ? at : NULL;
    *dbeta_out = bias ? at + weight * width : NULL;
}

static const float *gamma_of(const stw_cpu_jagged_job *job) {
    const stw_jagged_params *p = &job->p;
    if (!(p->features & STW_JFEAT_GAMMA) || !(p->outputs & STW_JAGGED_DX)) return NULL;
    return p->weight_dtype == STW_F32 ? p->weight : stw_cpu_jagged_part(job, job->layout.columns);
}

static void norm_segment(const stw_cpu_jagged_job *job, int64_t segment, int64_t lines) {
    const stw_jagged_params *p = &job->p;
    const float *gamma = gamma_of(job);
    int64_t from = segment * job->layout.segment_rows, end = stw_min_i64(from + job->layout.segment_rows, lines);
    int64_t last_row = stw_ceil_div(end, p->dim_before);
    float *dgamma, *dbeta;
    stw_cpu_stretch run;
    partial_of(job, segment, &dgamma, &dbeta);
    for (int64_t i = 0; i < job->layout.partial_width; ++i) {
        if (dgamma) dgamma[i] = 0;
        if (dbeta) dbeta[i] = 0;
    }
    for (int64_t row = from / p->dim_before; stw_cpu_jagged_run(p, row, last_row, 1, &run); row = run.row + run.count) {
        int64_t first = stw_max_i64(run.row * p->dim_before, from);
        int64_t behind = stw_min_i64((run.row + run.count) * p->dim_before, end);
        if (run.valid)
            for (int64_t line = first; line < behind; ++line) norm_line(job, gamma, line, dgamma, dbeta);
        else if (p->outputs & STW_JAGGED_DX)
            stw_cpu_jagged_zero(p, first * p->dim_size, (behind - first) * p->dim_size);
    }
}

void stw_cpu_jagged_norm(void *data, uint32_t worker) {
    stw_cpu_jagged_job *job = data;
    int64_t lines = stw_cpu_jagged_rows(&job->p) * job->p.dim_before;
    (void)worker;
    for (;;) {
        int64_t segment = stw_cpu_jagged_claim(job);
        if (segment >= job->layout.segments) return;
        norm_segment(job, segment, lines);
    }
}

/* dGamma, dBeta, linear's dbias: the segments' sums in order, a task is a group of columns. */
#define COLUMNS 64

static void finish_columns(const stw_cpu_jagged_job *job, void *out, uint32_t dtype, int add, int64_t first,
                           int64_t count, int which) {
    double sums[COLUMNS] = {0};
    float *part[2];
    for (int64_t segment = 0; segment < job->layout.segments; ++segment) {
        partial_of(job, segment, &part[0], &part[1]);
        for (int64_t i = 0; i < count; ++i) sums[i] += (double)part[which][first + i];
    }
    for (int64_t i = 0; i < count; ++i) {
        double before = add ? (double)((const float *)out)[first + i] : 0;
        stw_store_f32(out, first + i, (stw_dtype)dtype, (float)(before + sums[i]));
    }
}

void stw_cpu_jagged_columns_finish(void *data, uint32_t worker) {
    stw_cpu_jagged_job *job = data;
    const stw_jagged_params *p = &job->p;
    int64_t columns = p->op == STW_JAGGED_LINEAR ? p->out_features : p->dim_size;
    (void)worker;
    for (;;) {
        int64_t first = stw_cpu_jagged_claim(job) * COLUMNS;
        if (first >= columns) return;
        int64_t count = stw_min_i64(COLUMNS, columns - first);
        if (has_weight_sums(p))
            finish_columns(job, p->dweight, p->dweight_dtype, (p->accumulate & STW_JAGGED_DWEIGHT) != 0, first, count,
                           0);
        if (has_bias_sums(p))
            finish_columns(job, p->dbias, p->dbias_dtype, (p->accumulate & STW_JAGGED_DBIAS) != 0, first, count, 1);
    }
}
