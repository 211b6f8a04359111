/* SPDX-License-Identifier: MIT
 *
 * Jagged operations that compute nothing: sum, select, reshape, to and from padded. A task is a block of rows
 * of dX; each run of rows in it is copied, filled or zeroed. Any element type; only f16, bf16 and f32 are
 * converted or added. */
#include "jagged.h"

#include <string.h>

#define TASK_ELEMENTS (1 << 15)

static size_t element(const stw_jagged_params *p) { return stw_dtype_size((stw_dtype)p->dtype); }

static int is_raw(const stw_jagged_params *p) { return p->dx_dtype == p->dtype && !(p->accumulate & STW_JAGGED_DX); }

/* dX[to ..] <- G[from ..] */
static void copy(const stw_cpu_jagged_job *job, int64_t to, int64_t from, int64_t count) {
    const stw_jagged_params *p = &job->p;
    if (is_raw(p)) memcpy(stw_at_out(p->dx, to, p->dtype), stw_at(p->grad, from, p->dtype), (size_t)count * element(p));
    else
        job->tile->convert(stw_at_out(p->dx, to, p->dx_dtype), stw_at(p->grad, from, p->dtype), count,
                           stw_cpu_jagged_types(p));
}

/* dX[to ..] <- G[from], `count` times */
static void fill(const stw_cpu_jagged_job *job, int64_t to, int64_t from, int64_t count) {
    const stw_jagged_params *p = &job->p;
    if (!is_raw(p)) {
        job->tile->fill(stw_at_out(p->dx, to, p->dx_dtype), stw_load_f32(p->grad, from, (stw_dtype)p->dtype), count,
                        stw_cpu_jagged_types(p));
        return;
    }
    size_t size = element(p);
    uint64_t pattern = 0;
    for (size_t i = 0; i < sizeof pattern; i += size)
        memcpy((char *)&pattern + i, stw_at(p->grad, from, p->dtype), size);
    job->tile->repeat(stw_at_out(p->dx, to, p->dtype), pattern, (size_t)count * size, stw_cpu_jagged_types(p).large);
}

/* ---- sum and select ---- */

/* A row's `before` x `size` x `after` elements from before x after of G. */
static void spread_row(const stw_cpu_jagged_job *job, int64_t row) {
    const stw_jagged_params *p = &job->p;
    int64_t after = p->dim_after, size = p->dim_size;
    int64_t to = row * p->inner, from = row * p->dim_before * after;
    for (int64_t i = 0; i < p->dim_before; ++i, to += size * after, from += after) {
        if (p->op == STW_JAGGED_SELECT) {
            stw_cpu_jagged_zero(p, to, p->index * after);
            copy(job, to + p->index * after, from, after);
            stw_cpu_jagged_zero(p, to + (p->index + 1) * after, (size - 1 - p->index) * after);
        } else if (after == 1) {
            fill(job, to, from, size);
        } else {
            for (int64_t s = 0; s < size; ++s) copy(job, to + s * after, from, after);
        }
    }
}

static void spread_inner(const stw_cpu_jagged_job *job, const stw_cpu_stretch *run) {
    for (int64_t i = 0; i < run->count; ++i) spread_row(job, run->row + i);
}

static void spread_ragged(const stw_cpu_jagged_job *job, const stw_cpu_stretch *run) {
    const stw_jagged_params *p = &job->p;
    int64_t from = (run->component * p->outer + run->o) * p->inner, to = run->row * p->inner;
    if (p->op == STW_JAGGED_SELECT) {
        int64_t index = p->index < 0 ? p->index + p->axis[0].used_clean[run->component] : p->index;
        int64_t at = stw_clamp_i64(index - run->r, 0, run->count);
        stw_cpu_jagged_zero(p, to, at * p->inner);
        if (at == run->count || index < run->r) {
            stw_cpu_jagged_zero(p, to + at * p->inner, (run->count - at) * p->inner);
            return;
        }
        copy(job, to + at * p->inner, from, p->inner);
        stw_cpu_jagged_zero(p, to + (at + 1) * p->inner, (run->count - at - 1) * p->inner);
    } else if (p->inner == 1) {
        fill(job, to, from, run->count);
    } else {
        for (int64_t i = 0; i < run->count; ++i) copy(job, to + i * p->inner, from, p->inner);
    }
}

static void spread_outer(const stw_cpu_jagged_job *job, const stw_cpu_stretch *run) {
    const stw_jagged_params *p = &job->p;
    int64_t after = p->dim_after, size = p->dim_size, first = p->axis[0].starts[run->component];
    int64_t length = p->axis[0].starts[run->component + 1] - first;
    int64_t o = run->o / (after * size) * after + run->o % after;
    int64_t rows_outer = p->rows_outer > 1 ? p->outer / size : 1;
    int64_t row = p->slabs > 1 ? o * p->axis[0].total + first + run->r : first * rows_outer + o * length + run->r;
    if (p->op == STW_JAGGED_SUM || run->o / after % size == p->index)
        copy(job, run->row * p->inner, row * p->inner, run->count * p->inner);
    else stw_cpu_jagged_zero(p, run->row * p->inner, run->count * p->inner);
}

static void select_component(const stw_cpu_jagged_job *job, const stw_cpu_stretch *run) {
    const stw_jagged_params *p = &job->p;
    int64_t from = (run->o * p->axis[0].used_clean[run->component] + run->r) * p->inner;
    if (run->component == p->index) copy(job, run->row * p->inner, from, run->count * p->inner);
    else stw_cpu_jagged_zero(p, run->row * p->inner, run->count * p->inner);
}

/* ---- reshape and to_padded ---- */

static void reshape(const stw_cpu_jagged_job *job, const stw_cpu_stretch *run) {
    const stw_jagged_params *p = &job->p;
    int64_t used = p->axis[0].used_clean[run->component], first = p->axis[0].starts[run->component];
    int64_t length = p->axis[0].starts[run->component + 1] - first;
    int64_t at = (run->o * used + run->r) * p->inner, to = run->row * p->inner;
    for (int64_t left = run->count * p->inner; left > 0;) { /* stretches of one outer index of G */
        int64_t row = at / p->grad_inner, within = at - row * p->grad_inner, o = row / used, r = row - o * used;
        int64_t count = stw_min_i64(left, (used - r) * p->grad_inner - within);
        int64_t from = stw_jagged_row_number(p->axis[0].total, p->grad_rows_outer, first, length, o, r);
        copy(job, to, from * p->grad_inner + within, count);
        at += count, to += count, left -= count;
    }
}

static void from_padded_gradient(const stw_cpu_jagged_job *job, const stw_cpu_stretch *run) {
    const stw_jagged_params *p = &job->p;
    int64_t there = stw_clamp_i64(p->padded - run->r, 0, run->count), to = run->row * p->inner;
    int64_t from = ((run->component * p->outer + run->o) * p->padded + run->r) * p->inner;
    if (there) copy(job, to, from, there * p->inner);
    stw_cpu_jagged_zero(p, to + there * p->inner, (run->count - there) * p->inner);
}

typedef void (*run_fn)(const stw_cpu_jagged_job *job, const stw_cpu_stretch *run);

static run_fn function_of(const stw_jagged_params *p) {
    if (p->op == STW_JAGGED_RESHAPE) return reshape;
    if (p->op == STW_JAGGED_TO_PADDED) return from_padded_gradient;
    switch (p->dim) {
    case STW_DIM_OUTER: return spread_outer;
    case STW_DIM_RAGGED: return spread_ragged;
    case STW_DIM_COMPONENT: return select_component;
    default: return spread_inner;
    }
}

void stw_cpu_jagged_move(void *data, uint32_t worker) {
    stw_cpu_jagged_job *job = data;
    const stw_jagged_params *p = &job->p;
    run_fn function = function_of(p);
    int64_t rows = stw_cpu_jagged_rows(p), block = stw_max_i64(1, TASK_ELEMENTS / stw_max_i64(1, p->inner));
    (void)worker;
    for (;;) {
        int64_t from = stw_cpu_jagged_claim(job) * block, end = stw_min_i64(from + block, rows);
        stw_cpu_stretch run;
        if (from >= rows) return;
        for (int64_t row = from; stw_cpu_jagged_run(p, row, end, function == spread_inner, &run);
             row = run.row + run.count) {
            if (run.valid) function(job, &run);
            else stw_cpu_jagged_zero(p, run.row * p->inner, run.count * p->inner);
        }
    }
}

/* ---- from_padded: dX is dense [components, outer, padded, inner] ---- */

/* Positions r0..r1 of (component, o). */
static void scatter(const stw_cpu_jagged_job *job, int64_t b, int64_t o, int64_t r0, int64_t r1) {
    const stw_jagged_params *p = &job->p;
    stw_jagged_span span = stw_jagged_span_of(&p->axis[0], b);
    int64_t to = ((b * p->outer + o) * p->padded + r0) * p->inner;
    int64_t there = stw_clamp_i64(span.used - r0, 0, r1 - r0);
    int64_t row = stw_jagged_row_number(p->axis[0].total, p->rows_outer, span.first, span.rows, o, r0);
    if (there) copy(job, to, row * p->inner, there * p->inner);
    stw_cpu_jagged_zero(p, to + there * p->inner, (r1 - r0 - there) * p->inner);
}

void stw_cpu_jagged_scatter(void *data, uint32_t worker) {
    stw_cpu_jagged_job *job = data;
    const stw_jagged_params *p = &job->p;
    int64_t rows = p->components * p->outer * p->padded;
    int64_t block = stw_max_i64(1, TASK_ELEMENTS / stw_max_i64(1, p->inner));
    (void)worker;
    for (;;) {
        int64_t row = stw_cpu_jagged_claim(job) * block, end = stw_min_i64(row + block, rows);
        if (row >= rows) return;
        while (row < end) {
            int64_t pair = row / p->padded, r = row - pair * p->padded;
            int64_t behind = stw_min_i64(p->padded, r + end - row);
            scatter(job, pair / p->outer, pair % p->outer, r, behind);
            row += behind - r;
        }
    }
}
