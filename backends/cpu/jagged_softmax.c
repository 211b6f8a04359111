/* SPDX-License-Identifier: MIT
 *
 * Softmax along any dimension of a component, dX = y*(g - sum(g*y)), and its logarithm, dX = g - e^y*sum(g). Lines of
 * neighbours are done one by one; lines with a stride are columns, done many at a time: term s of all columns is
 * `count` neighbours at first + s*stride. Along the ragged dimension long components are cut into segments, whose sums
 * are partials of the workspace: three phases (sums, totals, results), the same whoever does them. Norms along the
 * ragged dimension go by the same segments. */
#include "jagged.h"

#define COLUMNS 1024 /* worked on together: sums of f32 in the L1 cache */
#define TERMS   64   /* of one running sum                                      */

typedef struct columns {
    int64_t first, stride, terms, count;
} columns;

static int is_log(const stw_jagged_params *p) { return p->op == STW_JAGGED_LOG_SOFTMAX; }

/* sums[0..count) <- column sums; `part` is as large. Both padded to lanes. */
static void sum_columns(const stw_cpu_jagged_job *job, const columns *c, float *sums, float *part) {
    const stw_jagged_params *p = &job->p;
    int64_t width = stw_ceil_div(c->count, job->tile->lanes) * job->tile->lanes;
    for (int64_t i = 0; i < width; ++i) sums[i] = 0;
    for (int64_t from = 0; from < c->terms; from += TERMS) {
        int64_t end = stw_min_i64(from + TERMS, c->terms);
        for (int64_t i = 0; i < width; ++i) part[i] = 0;
        for (int64_t s = from; s < end; ++s) {
            int64_t at = c->first + s * c->stride;
            job->tile->add_columns(part, stw_at(p->grad, at, p->dtype), is_log(p) ? NULL : stw_at(p->y, at, p->dtype),
                                   c->count, p->dtype);
        }
        for (int64_t i = 0; i < width; ++i) sums[i] += part[i];
    }
}

/* dX of `count` neighbours from `first` on. */
static void apply_line(const stw_cpu_jagged_job *job, int64_t first, const float *sums, float sum, int64_t count) {
    const stw_jagged_params *p = &job->p;
    const void *y = stw_at(p->y, first, p->dtype), *g = stw_at(p->grad, first, p->dtype);
    void *out = stw_at_out(p->dx, first, p->dx_dtype);
    (is_log(p) ? job->tile->log_softmax_line : job->tile->softmax_line)(out, y, g, sums, sum, count,
                                                                        stw_cpu_jagged_types(p));
}

static void apply_columns(const stw_cpu_jagged_job *job, const columns *c, const float *sums) {
    for (int64_t s = 0; s < c->terms; ++s) apply_line(job, c->first + s * c->stride, sums, 0, c->count);
}

static void do_columns(const stw_cpu_jagged_job *job, columns all, float *scratch) {
    columns c = all;
    for (int64_t from = 0; from < all.count; from += COLUMNS) {
        c.first = all.first + from;
        c.count = stw_min_i64(COLUMNS, all.count - from);
        sum_columns(job, &c, scratch, scratch + COLUMNS);
        apply_columns(job, &c, scratch);
    }
}

static void do_lines(const stw_cpu_jagged_job *job, int64_t first, int64_t lines, int64_t size) {
    const stw_jagged_params *p = &job->p;
    const void *y = stw_at(p->y, first, p->dtype), *g = stw_at(p->grad, first, p->dtype);
    void *out = stw_at_out(p->dx, first, p->dx_dtype);
    (is_log(p) ? job->tile->log_softmax_lines : job->tile->softmax_lines)(out, y, g, lines, size,
                                                                          stw_cpu_jagged_types(p));
}

/* ---- along inner: a task is a block of rows ---- */

static void inner_rows(const stw_cpu_jagged_job *job, const stw_cpu_stretch *run, float *scratch) {
    const stw_jagged_params *p = &job->p;
    int64_t block = p->dim_size * p->dim_after, blocks = run->count * p->dim_before;
    if (p->dim_after == 1) {
        do_lines(job, run->row * p->inner, blocks, p->dim_size);
        return;
    }
    for (int64_t i = 0; i < blocks; ++i) {
        columns c = {run->row * p->inner + i * block, p->dim_after, p->dim_size, p->dim_after};
        do_columns(job, c, scratch);
    }
}

void stw_cpu_jagged_softmax_inner(void *data, uint32_t worker) {
    stw_cpu_jagged_job *job = data;
    const stw_jagged_params *p = &job->p;
    float *scratch = stw_cpu_jagged_scratch(job, worker);
    int64_t rows = stw_cpu_jagged_rows(p), block = stw_max_i64(1, (1 << 14) / stw_max_i64(1, p->inner));
    for (;;) {
        int64_t from = stw_cpu_jagged_claim(job) * block, end = stw_min_i64(from + block, rows);
        stw_cpu_stretch run;
        if (from >= rows) return;
        for (int64_t row = from; stw_cpu_jagged_run(p, row, end, 1, &run); row = run.row + run.count) {
            if (run.valid) inner_rows(job, &run, scratch);
            else stw_cpu_jagged_zero(p, run.row * p->inner, run.count * p->inner);
        }
    }
}

/* ---- along outer and the ragged dimension: a task is a segment of a component's positions ---- */

/* Segments of component b are numbered from here on; at least one of them for every component. */
static int64_t first_slot(const stw_cpu_jagged_job *job, int64_t b) {
    return job->p.axis[0].starts[b] / job->layout.segment_rows + b;
}

typedef struct segment {
    int64_t group, slot, b;                     /* group: o, or the index beside the worked dimension    */
    int64_t first, length, used, r0, r1, count; /* count: segments of the component  */
} segment;

/* The segment of a task; 0: that number is not used. */
static int segment_of(const stw_cpu_jagged_job *job, int64_t task, segment *s) {
    const stw_jagged_params *p = &job->p;
    int64_t rows = job->layout.segment_rows, slots = job->layout.segments, low = 0, high = p->components;
    s->group = task / slots;
    s->slot = task - s->group * slots;
    if (!high || s->slot < first_slot(job, 0)) return 0;
    while (high - low > 1) { /* the last component that starts at or before the slot */
        int64_t middle = low + (high - low) / 2;
        if (first_slot(job, middle) <= s->slot) low = middle;
        else high = middle;
    }
    stw_jagged_span span = stw_jagged_span_of(&p->axis[0], low);
    s->b = low;
    s->first = span.first;
    s->length = span.rows;
    s->used = span.used;
    s->count = stw_ceil_div(span.rows, rows);
    s->r0 = (s->slot - first_slot(job, low)) * rows;
    s->r1 = stw_min_i64(s->r0 + rows, span.rows);
    return s->r0 < span.rows;
}

/* The first segment after an unused number; layout.segments: the group has none. */
static int64_t next_slot(const stw_cpu_jagged_job *job, int64_t slot) {
    const int64_t *starts = job->p.axis[0].starts, components = job->p.components;
    int64_t low = 0, high = components;
    while (low < high) { /* components that start at or before the slot */
        int64_t middle = low + (high - low) / 2;
        if (first_slot(job, middle) <= slot) low = middle + 1;
        else high = middle;
    }
    int64_t behind = starts[low]; /* all rows before it are of earlier components */
    for (high = components; low < high;) {
        int64_t middle = low + (high - low) / 2;
        if (starts[middle + 1] > behind) high = middle;
        else low = middle + 1;
    }
    return low < components ? first_slot(job, low) : job->layout.segments;
}

/* The next segment of any group, of all threads' claims. 0: none is left. */
static int claim_segment(stw_cpu_jagged_job *job, int64_t groups, segment *s) {
    int64_t slots = job->layout.segments;
    int64_t tasks = stw_cpu_jagged_rows(&job->p) ? stw_cpu_tasks(groups, slots) : 0;
    for (;;) {
        int64_t task = stw_cpu_jagged_claim(job);
        if (task >= tasks) return 0;
        if (segment_of(job, task, s)) return 1;
        stw_cpu_skip(&job->next, s->group * slots + next_slot(job, s->slot));
    }
}

static int64_t element_at(const stw_jagged_params *p, const segment *s, int64_t o, int64_t r) {
    return stw_jagged_row_number(p->axis[0].total, p->rows_outer, s->first, s->length, o, r) * p->inner;
}

/* Zeros in the positions of a segment that are not used. */
static void zero_rest(const stw_jagged_params *p, const segment *s, int64_t o) {
    int64_t from = stw_max_i64(s->r0, s->used);
    if (from < s->r1) stw_cpu_jagged_zero(p, element_at(p, s, o, from), (s->r1 - from) * p->inner);
}

static void outer_segment(const stw_cpu_jagged_job *job, const segment *s, float *scratch) {
    const stw_jagged_params *p = &job->p;
    int64_t before = s->group / p->dim_after, beside = s->group % p->dim_after;
    int64_t o = before * p->dim_size * p->dim_after + beside, used = stw_min_i64(s->r1, s->used);
    int64_t first = element_at(p, s, o, s->r0);
    int64_t stride = p->dim_size > 1 ? element_at(p, s, o + p->dim_after, s->r0) - first : 0;
    if (s->r0 < used) do_columns(job, (columns){first, stride, p->dim_size, (used - s->r0) * p->inner}, scratch);
    for (int64_t i = 0; i < p->dim_size; ++i) zero_rest(p, s, o + i * p->dim_after);
}

void stw_cpu_jagged_softmax_outer(void *data, uint32_t worker) {
    stw_cpu_jagged_job *job = data;
    float *scratch = stw_cpu_jagged_scratch(job, worker);
    segment s;
    while (claim_segment(job, job->p.dim_before * job->p.dim_after, &s)) outer_segment(job, &s, scratch);
}

/* Columns of the part of a segment that is used. */
static columns ragged_columns(const stw_cpu_jagged_job *job, const segment *s) {
    const stw_jagged_params *p = &job->p;
    int64_t used = stw_clamp_i64(s->used - s->r0, 0, s->r1 - s->r0);
    return (columns){element_at(p, s, s->group, s->r0), p->inner, used, p->inner};
}

static float *partial_at(const stw_cpu_jagged_job *job, int64_t group, int64_t slot) {
    float *partials = stw_cpu_jagged_part(job, job->layout.partials);
    return partials + (group * job->layout.segments + slot) * job->layout.partial_width;
}

/* One column of neighbours: a component of one segment is a line. */
static void ragged_alone(const stw_cpu_jagged_job *job, const segment *s, float *scratch) {
    const stw_jagged_params *p = &job->p;
    columns c = ragged_columns(job, s);
    if (p->inner == 1 && c.terms > 0) {
        do_lines(job, c.first, 1, c.terms);
    } else {
        do_columns(job, c, scratch);
    }
    zero_rest(p, s, s->group);
}

static void ragged_sums(const stw_cpu_jagged_job *job, const segment *s, float *scratch) {
    columns all = ragged_columns(job, s), c = all;
    float *partial = partial_at(job, s->group, s->slot);
    if (job->p.inner == 1) {
        const stw_jagged_params *p = &job->p;
        const void *y = stw_at(p->y, c.first, p->dtype), *g = stw_at(p->grad, c.first, p->dtype);
        partial[0] =
            (float)(is_log(p) ? job->tile->total(g, c.terms, p->dtype) : job->tile->dot(g, y, c.terms, p->dtype));
        return;
    }
    for (int64_t from = 0; from < all.count; from += COLUMNS) {
        c.first = all.first + from;
        c.count = stw_min_i64(COLUMNS, all.count - from);
        sum_columns(job, &c, scratch, scratch + COLUMNS);
        for (int64_t i = 0; i < c.count; ++i) partial[from + i] = scratch[i];
    }
}

/* Components of one segment are finished here; of longer ones, the sums of each segment. */
void stw_cpu_jagged_softmax_ragged(void *data, uint32_t worker) {
    stw_cpu_jagged_job *job = data;
    float *scratch = stw_cpu_jagged_scratch(job, worker);
    segment s;
    while (claim_segment(job, job->p.outer, &s)) {
        if (s.count == 1) ragged_alone(job, &s, scratch);
        else ragged_sums(job, &s, scratch);
    }
}

/* Totals of long components, in the place of their first segment's sums. */
void stw_cpu_jagged_softmax_totals(void *data, uint32_t worker) {
    stw_cpu_jagged_job *job = data;
    segment s;
    (void)worker;
    while (claim_segment(job, job->p.outer, &s)) {
        if (s.count == 1 || s.r0) continue;
        for (int64_t i = 0; i < job->p.inner; ++i) {
            double total = 0;
            for (int64_t n = 0; n < s.count; ++n) total += (double)partial_at(job, s.group, s.slot + n)[i];
            partial_at(job, s.group, s.slot)[i] = (float)total;
        }
    }
}

void stw_cpu_jagged_softmax_apply(void *data, uint32_t worker) {
    stw_cpu_jagged_job *job = data;
    const stw_jagged_params *p = &job->p;
    segment s;
    (void)worker;
    while (claim_segment(job, p->outer, &s)) {
        if (s.count == 1) continue;
        columns c = ragged_columns(job, &s);
        const float *sums = partial_at(job, s.group, first_slot(job, s.b));
        if (p->inner == 1) {
            apply_line(job, c.first, NULL, sums[0], c.terms);
        } else {
            apply_columns(job, &c, sums);
        }
        zero_rest(p, &s, s.group);
    }
}

/* ---- layer norm and RMS norm over the ragged dimension and inner: a line is all that a component uses ---- */

/* The line's statistics, and where a segment's part of it starts; its elements are neighbours. */
static stw_tile_norm ragged_line(const stw_cpu_jagged_job *job, const segment *s, int64_t *first_out,
                                 int64_t *count_out) {
    const stw_jagged_params *p = &job->p;
    int64_t line = s->b * p->outer + s->group;
    *first_out = element_at(p, s, s->group, s->r0);
    *count_out = stw_clamp_i64(s->used - s->r0, 0, s->r1 - s->r0) * p->inner;
    if (!*count_out) return (stw_tile_norm){.rstd = 0};
    return (stw_tile_norm){.mean = p->op == STW_JAGGED_RMS_NORM ? 0 : p->mean[line], .rstd = p->rstd[line]};
}

void stw_cpu_jagged_norm_ragged(void *data, uint32_t worker) {
    stw_cpu_jagged_job *job = data;
    const stw_jagged_params *p = &job->p;
    int64_t first, count;
    segment s;
    (void)worker;
    while (claim_segment(job, p->outer, &s)) {
        stw_tile_norm norm = ragged_line(job, &s, &first, &count);
        double *sums = (double *)(void *)partial_at(job, s.group, s.slot);
        sums[0] = sums[1] = 0;
        if (count)
            job->tile->norm_sums(stw_at(p->x, first, p->dtype), stw_at(p->grad, first, p->dtype), &norm, count,
                                 p->dtype, sums, NULL, NULL);
    }
}

/* Each segment adds up the sums of its component, all in the same order. */
void stw_cpu_jagged_norm_apply(void *data, uint32_t worker) {
    stw_cpu_jagged_job *job = data;
    const stw_jagged_params *p = &job->p;
    int64_t first, count;
    segment s;
    (void)worker;
    while (claim_segment(job, p->outer, &s)) {
        stw_tile_norm norm = ragged_line(job, &s, &first, &count);
        double total[2] = {0, 0}, size = (double)s.used * (double)p->inner;
        for (int64_t n = 0; n < s.count; ++n) {
            const double *sums = (const double *)(const void *)partial_at(job, s.group, first_slot(job, s.b) + n);
            total[0] += sums[0];
            total[1] += sums[1];
        }
        norm.average_g = p->op == STW_JAGGED_RMS_NORM || !count ? 0 : (float)(total[0] / size);
        norm.average_gh = count ? (float)(total[1] / size) : 0;
        if (count)
            job->tile->norm_line(stw_at_out(p->dx, first, p->dx_dtype), stw_at(p->x, first, p->dtype),
                                 stw_at(p->grad, first, p->dtype), &norm, count, stw_cpu_jagged_types(p));
        zero_rest(p, &s, s.group);
    }
}
