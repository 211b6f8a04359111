/* SPDX-License-Identifier: MIT
 *
 * Jagged operations on the CPU: plan time (types, instruction set, workspace), the run call (the caller's
 * lengths checked and made clean, then the op's phases on all threads), and runs of rows. Called through
 * backend.c. */
#include "jagged.h"

#include "common/jagged_data.h"

#include <stdio.h>
#include <string.h>

#define PART_ALIGN ((size_t)64)

/* ---- plan time ---- */

/* The widest instruction set of this CPU, or that of a forced variant of attention's table, whose names have
 * it as their second word; of the two AVX-512 variants the second stands for AVX-512 without its bf16. One
 * that was asked for by name is never replaced: STW_E_INVALID where there is none of that name, else
 * STW_E_UNSUPPORTED. */
static stw_status find_loop(const char *forced, const stw_attn_loop **loop_out) {
    static const struct {
        const stw_attn_loop *loop;
        const char *forced;
    } rows[] = {{&stw_attn_loop_avx512_bf16, "avx512_64x128"},
                {&stw_attn_loop_avx512, "avx512"},
                {&stw_attn_loop_avx2, "avx2"},
                {&stw_attn_loop_portable, "portable"}};
    const char *reason = NULL;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
        if (forced && forced[0] && !strstr(forced, rows[i].forced)) continue;
        *loop_out = rows[i].loop;
        if (stw_cpu_tile_ops(rows[i].loop, &reason)) return STW_OK;
    }
    return reason ? stw_fail(STW_E_UNSUPPORTED, "jagged_bwd: variant %s: %s", forced ? forced : "of the CPU", reason)
                  : stw_fail(STW_E_INVALID, "jagged_bwd: STERNWAY_VARIANT %s is no variant of the CPU", forced);
}

static size_t take(size_t *total, size_t bytes) {
    size_t at = *total;
    *total = (at + bytes + PART_ALIGN - 1) / PART_ALIGN * PART_ALIGN;
    return at;
}

static void layout_lengths(const stw_jagged_params *p, stw_cpu_jagged_layout *l) {
    for (int i = 0; i < 3; ++i) {
        size_t components = p->axis[i].ragged ? (size_t)p->components + 1 : 0;
        l->starts[i] = take(&l->total, 8 * components);
        l->used[i] = take(&l->total, 8 * components);
    }
}

static int64_t whole_vectors(int64_t n, const stw_tile_ops *tile) { return stw_ceil_div(n, tile->lanes) * tile->lanes; }

static void layout_norm(const stw_jagged_params *p, const stw_tile_ops *tile, stw_cpu_jagged_layout *l) {
    int64_t lines = stw_cpu_jagged_rows(p) * p->dim_before;
    int sums = (int)((p->outputs & STW_JAGGED_DWEIGHT) != 0) + (int)((p->outputs & STW_JAGGED_DBIAS) != 0);
    l->partial_width = whole_vectors(p->dim_size, tile);
    l->segment_rows = 256;
    l->segments = stw_ceil_div(lines, l->segment_rows);
    l->partials = take(&l->total, 4 * (size_t)(sums * l->partial_width * l->segments));
    l->columns = take(&l->total, p->features & STW_JFEAT_GAMMA ? 4 * (size_t)l->partial_width : 0);
}

/* Segments of about 32768 elements; their number depends on nothing but the shape. */
static void layout_softmax(const stw_jagged_params *p, const stw_tile_ops *tile, stw_cpu_jagged_layout *l) {
    l->segment_rows = stw_clamp_i64((1 << 15) / stw_max_i64(1, p->inner), 16, 1 << 15);
    l->segments = p->axis[0].total / l->segment_rows + p->components + 1;
    l->partial_width = whole_vectors(p->inner, tile);
    int long_ones = p->dim == STW_DIM_RAGGED && stw_cpu_jagged_rows(p) &&
                    stw_min_i64(p->axis[0].size, p->axis[0].total) > l->segment_rows;
    l->partials = take(&l->total, long_ones ? 4 * (size_t)(p->outer * l->segments * l->partial_width) : 0);
    l->scratch_size = 2 * 1024 * sizeof(float);
}

/* Norms along the ragged dimension: the same segments, with two sums in double. */
static void layout_ragged_norm(const stw_jagged_params *p, stw_cpu_jagged_layout *l) {
    l->segment_rows = stw_clamp_i64((1 << 15) / stw_max_i64(1, p->inner), 16, 1 << 15);
    l->segments = p->axis[0].total / l->segment_rows + p->components + 1;
    l->partial_width = 2 * (int64_t)(sizeof(double) / sizeof(float));
    l->partials = take(&l->total, stw_cpu_jagged_rows(p) ? 4 * (size_t)(p->outer * l->segments * l->partial_width) : 0);
}

/* dW of few tiles is shared out by rows as well. */
static void layout_linear(const stw_jagged_params *p, const stw_tile_ops *tile, stw_cpu_jagged_layout *l) {
    int64_t rows = stw_cpu_jagged_rows(p), elements = p->out_features * p->inner;
    int64_t tiles = stw_ceil_div(p->out_features, STW_CPU_JAGGED_BM) * stw_ceil_div(p->inner, STW_CPU_JAGGED_BN);
    int64_t wanted = stw_ceil_div(32, tiles);
    l->share_rows = stw_max_i64(1024, stw_ceil_div(rows, wanted));
    l->shares = stw_max_i64(1, stw_ceil_div(rows, l->share_rows));
    if (!(p->outputs & STW_JAGGED_DWEIGHT)) l->shares = 1;
    l->weight_partials = take(&l->total, l->shares > 1 ? 4 * (size_t)(l->shares * elements) : 0);
    l->partial_width = whole_vectors(p->out_features, tile);
    l->segment_rows = 256;
    l->segments = stw_ceil_div(rows, l->segment_rows);
    int bias = (p->outputs & STW_JAGGED_DBIAS) != 0;
    l->partials = take(&l->total, bias ? 4 * (size_t)(l->partial_width * l->segments) : 0);
    l->scratch_size = stw_cpu_jagged_product_scratch();
}

static stw_cpu_jagged_layout layout_of(const stw_jagged_params *p, const stw_tile_ops *tile, uint32_t threads) {
    stw_cpu_jagged_layout l = {0};
    layout_lengths(p, &l);
    if (stw_jagged_is_ragged_norm(p->op, p->dim)) layout_ragged_norm(p, &l);
    else if (stw_jagged_is_norm(p->op)) layout_norm(p, tile, &l);
    if (stw_jagged_is_softmax(p->op)) layout_softmax(p, tile, &l);
    if (p->op == STW_JAGGED_LINEAR) layout_linear(p, tile, &l);
    if (p->op == STW_JAGGED_MATMUL) {
        l.prefix = take(&l.total, 8 * ((size_t)p->components + 1));
        l.scratch_size = stw_cpu_jagged_product_scratch();
    }
    l.scratch = take(&l.total, l.scratch_size * threads);
    return l;
}

/* ---- an op's phases ---- */

typedef struct op_phases {
    stw_pool_fn phase[STW_CPU_JAGGED_PHASES];
} op_phases;

static op_phases softmax_phases(const stw_jagged_params *p, const stw_cpu_jagged_layout *l) {
    if (p->dim == STW_DIM_INNER) return (op_phases){{stw_cpu_jagged_softmax_inner}};
    if (p->dim == STW_DIM_OUTER) return (op_phases){{stw_cpu_jagged_softmax_outer}};
    int long_ones = stw_min_i64(p->axis[0].size, p->axis[0].total) > l->segment_rows;
    return (op_phases){{stw_cpu_jagged_softmax_ragged, long_ones ? stw_cpu_jagged_softmax_totals : NULL,
                        long_ones ? stw_cpu_jagged_softmax_apply : NULL}};
}

static op_phases phases_of(const stw_jagged_params *p, const stw_cpu_jagged_layout *l) {
    int weight = (p->outputs & STW_JAGGED_DWEIGHT) != 0, bias = (p->outputs & STW_JAGGED_DBIAS) != 0;
    switch (p->op) {
    case STW_JAGGED_MATMUL: return (op_phases){{stw_cpu_jagged_matmul}};
    case STW_JAGGED_LINEAR:
        return (op_phases){{stw_cpu_jagged_linear_dx, weight ? stw_cpu_jagged_linear_dw : NULL,
                            l->shares > 1 ? stw_cpu_jagged_linear_finish : NULL, bias ? stw_cpu_jagged_linear_db : NULL,
                            bias ? stw_cpu_jagged_columns_finish : NULL}};
    case STW_JAGGED_SOFTMAX:
    case STW_JAGGED_LOG_SOFTMAX: return softmax_phases(p, l);
    case STW_JAGGED_LAYER_NORM:
    case STW_JAGGED_RMS_NORM:
        if (p->dim == STW_DIM_RAGGED) return (op_phases){{stw_cpu_jagged_norm_ragged, stw_cpu_jagged_norm_apply}};
        return (op_phases){{stw_cpu_jagged_norm, weight || bias ? stw_cpu_jagged_columns_finish : NULL}};
    case STW_JAGGED_FROM_PADDED: return (op_phases){{stw_cpu_jagged_scatter}};
    default:
        if (stw_jagged_is_pointwise(p->op)) return (op_phases){{stw_cpu_jagged_pointwise}};
        return (op_phases){{stw_cpu_jagged_move}};
    }
}

stw_status stw_cpu_jagged_prepare(const stw_device *device, stw_jagged_work *work) {
    const stw_cpu_state *state = device->state;
    stw_status status = find_loop(work->forced_variant, &work->loop);
    if (status) return status;
    const stw_tile_ops *tile = work->loop->cpu->tile;
    if (work->params.op == STW_JAGGED_ATTENTION) {
        snprintf(work->variant, sizeof work->variant, "lengths");
        return STW_OK;
    }
    work->workspace_size = layout_of(&work->params, tile, state->threads).total;
    snprintf(work->variant, sizeof work->variant, "cpu_%s", tile->loop);
    snprintf(work->note, sizeof work->note, "up to %u thread%s; same bits for any number", state->threads,
             state->threads == 1 ? "" : "s");
    return STW_OK;
}

/* ---- a call ---- */

static stw_status check_data(const stw_jagged_params *p) {
    int32_t bits = 0;
    stw_status status = STW_OK;
    for (int i = 0; i < 3 && !status; ++i)
        if (p->axis[i].ragged) status = stw_jagged_check_axis(&p->axis[i], "", p->components, p->features, &bits);
    if (p->status_out) *p->status_out = bits;
    return status;
}

static void make_clean(stw_cpu_jagged_job *job) {
    for (int i = 0; i < 3; ++i) {
        stw_jagged_axis_param *a = &job->p.axis[i];
        if (!a->ragged) continue;
        a->starts = stw_cpu_jagged_part(job, job->layout.starts[i]);
        a->used_clean = stw_cpu_jagged_part(job, job->layout.used[i]);
        stw_jagged_make_clean(a, job->p.components, job->p.features);
        for (int64_t b = 0; b < job->p.components; ++b)
            if (a->used_clean[b] < a->starts[b + 1] - a->starts[b]) job->p.features |= STW_JFEAT_ANY_GAPS;
    }
    const stw_jagged_axis_param *rows = &job->p.axis[0];
    if (rows->ragged && rows->starts[0] == rows->starts[job->p.components])
        job->p.slabs = 0; /* none is of a component */
}

/* A length that does not fit becomes a value that the packed problem refuses. */
static int32_t narrow(int64_t value) { return value == (int32_t)value ? (int32_t)value : INT32_MIN; }

/* int64 lengths of attention, for the packed problem, whose own check refuses wrong ones and sets its own
 * bits of *status_out. Without components there may be no array. */
static void convert_lengths(const stw_jagged_params *p) {
    for (int i = 0; i < 2; ++i) {
        const stw_jagged_axis_param *a = &p->axis[i];
        for (int64_t b = 0; p->offsets32[i] && b <= p->components; ++b)
            p->offsets32[i][b] = p->components ? narrow(stw_jagged_index(a->offsets, b, p->features)) : 0;
        for (int64_t b = 0; p->used32[i] && b < p->components; ++b)
            p->used32[i][b] = narrow(stw_jagged_index(a->used, b, p->features));
    }
}

/* What needs clean lengths: bases, and the index of a ragged dimension; and the op's tables. */
static stw_status check_after(stw_cpu_jagged_job *job) {
    stw_jagged_params *p = &job->p;
    int32_t bits = 0;
    stw_status status = STW_OK;
    const stw_jagged_matrix_param *matrices[] = {&p->x_matrix, &p->other_matrix, &p->grad_matrix};
    static const char *const names[] = {"x_bases", "other_bases", "grad_bases"};
    for (int i = 0; i < 3 && !status; ++i)
        if (matrices[i]->bases) status = stw_jagged_check_bases(p, matrices[i], names[i], &bits);
    int along = p->op == STW_JAGGED_SELECT && p->dim == STW_DIM_RAGGED;
    for (int64_t b = 0; along && !status && b < p->components; ++b) {
        int64_t used = p->axis[0].used_clean[b];
        if (p->index >= -used && p->index < used) continue;
        bits |= STW_JAGGED_DATA_INDEX;
        status = stw_fail(STW_E_INVALID, "jagged_bwd: index %lld is out of range: component %lld has %lld positions",
                          (long long)p->index, (long long)b, (long long)used);
    }
    if (p->status_out && bits) *p->status_out = bits;
    if (status) return status;
    if (p->op == STW_JAGGED_MATMUL) stw_cpu_jagged_number_tiles(job);
    if (stw_jagged_is_norm(p->op) && p->features & STW_JFEAT_GAMMA && p->weight && p->weight_dtype != STW_F32) {
        float *gamma = stw_cpu_jagged_part(job, job->layout.columns);
        for (int64_t i = 0; i < p->dim_size; ++i) gamma[i] = stw_load_f32(p->weight, i, (stw_dtype)p->weight_dtype);
    }
    return STW_OK;
}

/* Below this many operations one thread is faster than waking the others. */
#define ALONE_BELOW 65536.0

static uint32_t useful_threads(const stw_jagged_params *p, uint32_t threads) {
    double work = (double)stw_cpu_jagged_rows(p) * (double)p->inner;
    if (p->op == STW_JAGGED_FROM_PADDED)
        work = (double)p->components * (double)p->padded * (double)p->outer * (double)p->inner;
    if (p->op == STW_JAGGED_LINEAR) work *= (double)p->out_features;
    if (p->op == STW_JAGGED_MATMUL) {
        work = (double)p->outer * (double)p->components;
        for (int i = 0; i < 3; ++i) work *= (double)p->axis[i].size;
    }
    return work < ALONE_BELOW ? 1 : threads;
}

stw_status stw_cpu_jagged_bwd(const stw_device *device, const stw_jagged_work *work, const stw_jagged_params *params,
                              void *workspace, stw_stream stream, uint32_t cpu_threads) {
    const stw_cpu_state *state = device->state;
    (void)stream;
    if (params->op == STW_JAGGED_ATTENTION) {
        convert_lengths(params);
        return STW_OK;
    }
    stw_status status = check_data(params);
    if (status) return status;
    stw_cpu_jagged_job job = {.p = *params, .tile = work->loop->cpu->tile, .workspace = workspace};
    job.layout = layout_of(params, job.tile, state->threads);
    make_clean(&job);
    status = check_after(&job);
    if (status) return status;
    op_phases phases = phases_of(params, &job.layout);
    stw_cpu_progress progress = {&job.next, &job.threads};
    stw_cpu_run_phases(device, useful_threads(&job.p, stw_cpu_threads_of(device, cpu_threads)), &job, &progress,
                       phases.phase, STW_CPU_JAGGED_PHASES);
    return STW_OK;
}

/* ---- runs ---- */

/* Where nothing is unused, a slab's components are one run from the first start to the last. */
static int merged_run(const stw_jagged_params *p, int64_t row, int64_t end, stw_cpu_stretch *run) {
    const stw_jagged_axis_param *a = &p->axis[0];
    int64_t slab_rows = a->total * p->rows_outer;
    int64_t first = a->starts[0] * p->rows_outer, last = a->starts[p->components] * p->rows_outer;
    if (first >= last) return 0;
    int64_t slab = row / slab_rows, within = row - slab * slab_rows;
    if (within >= last) {
        ++slab;
        within = 0;
    }
    if (within < first) within = first;
    int64_t at = slab * slab_rows + within;
    if (slab >= p->slabs || at >= end) return 0;
    *run = (stw_cpu_stretch){.row = at, .count = stw_min_i64(end - at, last - within), .component = -1, .valid = 1};
    return 1;
}

int stw_cpu_jagged_run(const stw_jagged_params *p, int64_t row, int64_t end, int merge, stw_cpu_stretch *run) {
    const stw_jagged_axis_param *a = &p->axis[0];
    if (row >= end || p->components <= 0) return 0;
    if (merge && !(p->features & STW_JFEAT_ANY_GAPS)) return merged_run(p, row, end, run);
    int64_t slab_rows = a->total * p->rows_outer, slab = row / slab_rows, within = row - slab * slab_rows;
    if (within >= a->starts[p->components] * p->rows_outer) {
        ++slab;
        within = 0;
    }
    if (within < a->starts[0] * p->rows_outer) within = a->starts[0] * p->rows_outer;
    int64_t at = slab * slab_rows + within;
    if (slab >= p->slabs || at >= end || a->starts[0] == a->starts[p->components]) return 0;
    stw_jagged_row found = stw_jagged_row_of(p, at);
    int64_t length = a->starts[found.component + 1] - a->starts[found.component];
    int64_t used = a->used_clean[found.component];
    *run = (stw_cpu_stretch){.row = at,
                             .count = (found.valid ? used : length) - found.r,
                             .component = found.component,
                             .o = found.o,
                             .r = found.r,
                             .valid = found.valid != 0};
    run->count = stw_min_i64(run->count, end - at);
    return 1;
}

void stw_cpu_jagged_zero_at(void *out, int64_t first, int64_t count, uint32_t dtype) {
    if (count > 0) memset(stw_at_out(out, first, dtype), 0, (size_t)count * stw_dtype_size((stw_dtype)dtype));
}

void stw_cpu_jagged_zero(const stw_jagged_params *p, int64_t first, int64_t count) {
    if (!(p->accumulate & STW_JAGGED_DX)) stw_cpu_jagged_zero_at(p->dx, first, count, p->dx_dtype);
}
