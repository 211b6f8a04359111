/* SPDX-License-Identifier: MIT
 *
 * From a jagged problem to kernels, grids and workspace. See jagged_launch.h; the kernels are
 * common/kernels/jagged*.h, their arguments common/params/jagged_launch.h. */
#include "backends/gpu/jagged_launch.h"

#include "common/dtype.h"
#include "common/jagged_ops.h"

#include <stdio.h>
#include <string.h>

static uint32_t element_of(const stw_jagged_params *p) { return (uint32_t)stw_dtype_size((stw_dtype)p->dtype); }

static uint32_t vector_of(const stw_jagged_params *p) { return STW_JAGGED_VECTOR(element_of(p)); }

/* Positions of the buffers; without components nothing reads them. */
static int64_t positions_of(const stw_jagged_params *p) { return p->components ? p->axis[0].total : 0; }

static int64_t rows_of_slab(const stw_jagged_params *p) { return positions_of(p) * p->rows_outer; }

const char *stw_jagged_refusal(const stw_jagged_params *p) {
    if (p->op == STW_JAGGED_ATTENTION) return NULL;
    if (!stw_dtype_valid((stw_dtype)p->dtype)) return "GPUs have f16, bf16 and f32, the CPU backend has the others";
    return NULL;
}

/* ---- size classes of lines ---- */

/* The smallest that holds a line in registers, and keeps column sums if `sums`; NULL: none. */
static const stw_jagged_line *line_class_of(const stw_jagged_params *p, const stw_jagged_table *t, int sums) {
    for (size_t i = 0; i < t->line_count; ++i)
        if ((t->lines[i].sums || !sums) &&
            (int64_t)t->lines[i].lanes * t->lines[i].vectors * vector_of(p) >= p->dim_size)
            return &t->lines[i];
    return NULL;
}

static int64_t lines_of(const stw_jagged_params *p) { return p->slabs * rows_of_slab(p) * p->dim_before; }

/* ---- column sums ---- */

typedef struct column_plan {
    int64_t columns, parts, rows, blocks;
    uint32_t lanes;
} column_plan;

/* Threads side by side over the vectors of `columns`: a power of 2, 32 at most. */
static uint32_t lanes_over(const stw_jagged_params *p, int64_t columns) {
    uint32_t lanes = 1;
    while (lanes < 32 && (int64_t)lanes * vector_of(p) < columns) lanes *= 2;
    return lanes;
}

static int norm_keeps_sums(const stw_jagged_params *p, const stw_jagged_table *t) {
    return stw_jagged_is_norm(p->op) && (p->outputs & (STW_JAGGED_DWEIGHT | STW_JAGGED_DBIAS)) &&
           (p->outputs & (STW_JAGGED_DX | STW_JAGGED_DWEIGHT)) && line_class_of(p, t, 1);
}

static column_plan columns_of(const stw_jagged_params *p, const stw_jagged_table *t) {
    column_plan c = {.columns = p->op == STW_JAGGED_LINEAR ? p->out_features : p->dim_size};
    int64_t lines = lines_of(p);
    c.lanes = lanes_over(p, c.columns);
    c.blocks = stw_blocks_of(c.columns, (int64_t)c.lanes * vector_of(p));
    if (norm_keeps_sums(p, t)) {
        const stw_jagged_line *class = line_class_of(p, t, 1);
        c.parts = stw_smaller(STW_JAGGED_NORM_BLOCKS, stw_blocks_of(lines, STW_JAGGED_THREADS / class->lanes));
        return c;
    }
    c.parts = stw_smaller(STW_JAGGED_SUM_PARTS, stw_blocks_of(lines, STW_JAGGED_SUM_ROWS));
    c.rows = c.parts ? stw_blocks_of(lines, c.parts) : 0;
    return c;
}

static int has_columns(const stw_jagged_params *p) {
    if (p->op == STW_JAGGED_LINEAR) return (p->outputs & STW_JAGGED_DBIAS) != 0;
    return stw_jagged_is_norm(p->op) && (p->outputs & (STW_JAGGED_DWEIGHT | STW_JAGGED_DBIAS));
}

/* ---- sums along the ragged dimension ---- */

static int is_segmented(const stw_jagged_params *p) { return stw_jagged_is_softmax(p->op) && p->dim == STW_DIM_RAGGED; }

/* None without positions. */
static int64_t segment_parts(const stw_jagged_params *p) {
    return positions_of(p) ? p->axis[0].total / STW_JAGGED_SEGMENT_ROWS + p->components + 1 : 0;
}

/* ---- workspace ---- */

typedef struct layout {
    size_t starts[3], used[3], tiles[2], slots[2], bases[3], gaps, sums, sums_too, product_sums, total;
} layout;

static size_t take(layout *w, int64_t bytes) {
    size_t at = w->total;
    w->total = (at + (size_t)bytes + 255) / 256 * 256;
    return at;
}

static layout layout_of(const stw_jagged_params *p, const stw_jagged_table *t) {
    layout w = {0};
    if (p->op == STW_JAGGED_ATTENTION) return w;
    for (int i = 0; i < 3; ++i) {
        if (!p->axis[i].ragged) continue;
        w.starts[i] = take(&w, (p->components + 1) * 8);
        w.used[i] = take(&w, p->components * 8);
    }
    w.gaps = take(&w, 4);
    if (has_columns(p)) {
        column_plan c = columns_of(p, t);
        w.sums = take(&w, p->op == STW_JAGGED_RMS_NORM ? 0 : c.parts * c.columns * 4); /* it has no dBeta */
        w.sums_too = take(&w, stw_jagged_is_norm(p->op) ? c.parts * c.columns * 4 : 0);
    }
    if (stw_jagged_is_ragged_norm(p->op, p->dim)) {
        w.sums = take(&w, p->outer * segment_parts(p) * 4);
        w.sums_too = take(&w, p->outer * segment_parts(p) * 4);
    }
    if (is_segmented(p)) w.sums = take(&w, p->outer * segment_parts(p) * p->inner * 4);
    const stw_jagged_matrix_param *matrices[] = {&p->x_matrix, &p->other_matrix, &p->grad_matrix};
    stw_jagged_tile tile = stw_jagged_tile_of(p, t);
    int64_t most = 0;
    for (uint32_t product = 0; product < 4; ++product) {
        stw_jagged_cut cut = stw_jagged_cut_of(p, product, t);
        if (!cut.wanted) continue;
        most = stw_larger(most, cut.slots);
        if (product > STW_JPRODUCT_DB) continue;
        w.tiles[product] = take(&w, (p->components + 1) * 8);
        w.slots[product] = take(&w, (p->components + 1) * 8);
    }
    for (int i = 0; i < 3 && p->op == STW_JAGGED_MATMUL; ++i)
        if (matrices[i]->has_bases) w.bases[i] = take(&w, p->components * 8);
    w.product_sums = take(&w, most * tile.bm * tile.bn * 4);
    return w;
}

/* ---- steps ---- */

typedef struct builder {
    const stw_jagged_params *p;
    const stw_jagged_table *t;
    uint32_t processors;
    stw_jagged_steps *steps;
} builder;

static void add_step(const builder *b, stw_jagged_kind kind, const char *family, const char *size_class, int typed,
                     int64_t work_tiles, uint32_t block, uint32_t smem) {
    int64_t most = b->t->wave == 64 ? STW_GRID_X_HIP : STW_GRID_X_CUDA;
    if (work_tiles <= 0) return;
    stw_jagged_step *step = &b->steps->step[b->steps->count++];
    *step = (stw_jagged_step){.kind = kind, .work_tiles = work_tiles, .block = block, .smem = smem};
    snprintf(step->entry, sizeof step->entry, "stw_jagged_%s%s%s%s%s", family, size_class ? "_" : "",
             size_class ? size_class : "", typed ? "_" : "", typed ? stw_dtype_name((stw_dtype)b->p->dtype) : "");
    step->grid_x = (uint32_t)stw_smaller(work_tiles, most);
    step->grid_y = (uint32_t)stw_blocks_of(work_tiles, most);
}

static int64_t chunks_of(const stw_jagged_params *p, int64_t slab) {
    return slab ? stw_blocks_of(slab + vector_of(p) - 1, STW_JAGGED_CHUNK(element_of(p))) : 0;
}

static int64_t slab_of(const stw_jagged_params *p) {
    if (p->op == STW_JAGGED_FROM_PADDED) return p->components * p->outer * p->padded * p->inner;
    return rows_of_slab(p) * p->inner;
}

static int64_t slabs_of(const stw_jagged_params *p) { return p->op == STW_JAGGED_FROM_PADDED ? 1 : p->slabs; }

static void add_map(const builder *b) {
    stw_jagged_map map = stw_jagged_map_of(b->p);
    if (map.rows)
        add_step(b, STW_JSTEP_MAP_ROWS, "map_rows", NULL, 1, slabs_of(b->p) * stw_blocks_of(slab_of(b->p), map.span),
                 STW_JAGGED_THREADS, 0);
    else
        add_step(b, STW_JSTEP_MAP, "map", NULL, 1, slabs_of(b->p) * chunks_of(b->p, slab_of(b->p)), STW_JAGGED_THREADS,
                 64);
}

/* dX by lines. */
static void add_lines(const builder *b, const char *family) {
    const stw_jagged_line *class = line_class_of(b->p, b->t, 0);
    int64_t lines = lines_of(b->p),
            work_tiles = class ? stw_blocks_of(lines, STW_JAGGED_THREADS / class->lanes) : lines;
    if (b->p->dim_size)
        add_step(b, STW_JSTEP_LINES, family, class ? class->name : "long", 1, work_tiles, STW_JAGGED_THREADS, 256);
}

/* Over the ragged dimension and inner. */
static void add_ragged_norm(const builder *b) {
    int64_t work_tiles = b->p->outer * segment_parts(b->p);
    add_step(b, STW_JSTEP_NORM_SEGMENTS, "norm_ragged_part", NULL, 1, work_tiles, STW_JAGGED_THREADS, 256);
    add_step(b, STW_JSTEP_NORM_SEGMENTS, "norm_ragged_end", NULL, 1, work_tiles, STW_JAGGED_THREADS, 256);
}

static void add_norm(const builder *b) {
    const stw_jagged_params *p = b->p;
    if (p->dim == STW_DIM_RAGGED) {
        add_ragged_norm(b);
        return;
    }
    column_plan c = columns_of(p, b->t);
    int sums = norm_keeps_sums(p, b->t), rms = p->op == STW_JAGGED_RMS_NORM;
    const char *columns = rms ? "rms_norm_columns" : p->outputs & STW_JAGGED_DWEIGHT ? "norm_columns" : "columns";
    if (sums)
        add_step(b, STW_JSTEP_NORM_SUMS, rms ? "rms_norm_sums" : "norm_sums", line_class_of(p, b->t, 1)->name, 1,
                 c.parts, STW_JAGGED_THREADS, STW_JAGGED_THREADS * 4);
    else if (p->outputs & STW_JAGGED_DX) add_lines(b, rms ? "rms_norm" : "norm");
    if (!sums && has_columns(p))
        add_step(b, STW_JSTEP_COLUMNS, columns, NULL, 1, c.parts * c.blocks, STW_JAGGED_THREADS, STW_JAGGED_SUM_SMEM);
}

static void add_softmax(const builder *b) {
    const stw_jagged_params *p = b->p;
    int log = p->op == STW_JAGGED_LOG_SOFTMAX;
    if (is_segmented(p)) {
        int64_t per_part = stw_blocks_of(p->inner, (int64_t)lanes_over(p, p->inner) * vector_of(p));
        int64_t work_tiles = p->outer * segment_parts(p) * per_part;
        int64_t sums = p->outer * p->components * stw_blocks_of(p->inner, STW_JAGGED_THREADS);
        add_step(b, STW_JSTEP_SEGMENTS, log ? "log_segment_part" : "segment_part", NULL, 1, work_tiles,
                 STW_JAGGED_THREADS, STW_JAGGED_SUM_SMEM);
        add_step(b, STW_JSTEP_SEGMENT_SUM, "segment_sum", NULL, 0, work_tiles ? sums : 0, STW_JAGGED_THREADS, 0);
        add_step(b, STW_JSTEP_SEGMENTS, log ? "log_segment_end" : "segment_end", NULL, 1, work_tiles,
                 STW_JAGGED_THREADS, 0);
    } else if (p->dim == STW_DIM_INNER && p->dim_after == 1) {
        add_lines(b, log ? "log_softmax" : "softmax");
    } else {
        int64_t whole = positions_of(p) * p->outer * p->inner;
        if (p->dim_size)
            add_step(b, STW_JSTEP_STRIDED, log ? "log_softmax_strided" : "softmax_strided", NULL, 1,
                     stw_blocks_of(whole / p->dim_size, STW_JAGGED_THREADS), STW_JAGGED_THREADS, 0);
    }
}

static const char *pointwise_name(uint32_t op) {
    static const char *const names[STW_JAGGED_OPS] = {
#define STW_JAGGED_POINTWISE(ID, name, fields, any_dtype) [STW_JAGGED_##ID] = #name,
#include "common/jagged_pointwise.def"
#undef STW_JAGGED_POINTWISE
    };
    return names[op];
}

/* The macro is for constants, which the kernels are made with. */
static uint32_t product_smem(uint32_t stored, stw_jagged_tile t, stw_jagged_cut cut) {
    int a = cut.a_by_k, b = cut.b_by_k, n = (int)t.stages;
    return STW_JAGGED_PRODUCT_SMEM(stored, t.bm, t.bn, t.bk, n, a, b); /* GCOVR_EXCL_BR_LINE: constants */
}

/* Twice as many CTAs as multiprocessors take all work tiles. */
static void add_product(const builder *b, uint32_t product) {
    const stw_jagged_params *p = b->p;
    stw_jagged_cut cut = stw_jagged_cut_of(p, product, b->t);
    stw_jagged_tile tile = stw_jagged_tile_of(p, b->t);
    uint32_t element = element_of(p), stored = element == 4 && b->t->wave == 32 ? 6 : element;
    if (!cut.wanted || !cut.work_tiles) return;
    char form[] = {'0' + (char)cut.a_by_k, '0' + (char)cut.b_by_k, 0};
    int64_t blocks = 2 * (int64_t)b->processors;
    if (p->op == STW_JAGGED_LINEAR) blocks = stw_smaller(blocks, cut.work_tiles);
    uint32_t smem = product_smem(stored, tile, cut);
    add_step(b, STW_JSTEP_PRODUCT, "product", form, 1, blocks, tile.warps * b->t->wave, smem);
    b->steps->step[b->steps->count - 1].work_tiles = cut.work_tiles;
    b->steps->step[b->steps->count - 1].product = product;
    if (cut.parts < 2) return;
    add_step(b, STW_JSTEP_PRODUCT_END, "product_end", NULL, 1, 8 * (int64_t)b->processors, STW_JAGGED_THREADS, 256);
    b->steps->step[b->steps->count - 1].work_tiles = cut.work_tiles;
    b->steps->step[b->steps->count - 1].product = product;
}

static void add_op(const builder *b) {
    const stw_jagged_params *p = b->p;
    int64_t chunks = slabs_of(p) * chunks_of(p, slab_of(p));
    switch (p->op) {
    case STW_JAGGED_ATTENTION: break;
    case STW_JAGGED_SOFTMAX:
    case STW_JAGGED_LOG_SOFTMAX: add_softmax(b); break;
    case STW_JAGGED_LAYER_NORM:
    case STW_JAGGED_RMS_NORM: add_norm(b); break;
    case STW_JAGGED_MATMUL:
        add_product(b, STW_JPRODUCT_DA);
        add_product(b, STW_JPRODUCT_DB);
        break;
    case STW_JAGGED_LINEAR:
        add_product(b, STW_JPRODUCT_DX);
        add_product(b, STW_JPRODUCT_DW);
        if (has_columns(p))
            add_step(b, STW_JSTEP_COLUMNS, "columns", NULL, 1, columns_of(p, b->t).parts * columns_of(p, b->t).blocks,
                     STW_JAGGED_THREADS, STW_JAGGED_SUM_SMEM);
        break;
    case STW_JAGGED_SUM:
    case STW_JAGGED_SELECT:
    case STW_JAGGED_RESHAPE:
    case STW_JAGGED_TO_PADDED:
    case STW_JAGGED_FROM_PADDED: add_map(b); break;
    default: add_step(b, STW_JSTEP_POINTWISE, pointwise_name(p->op), NULL, 1, chunks, STW_JAGGED_THREADS, 64);
    }
    if (has_columns(p))
        add_step(b, STW_JSTEP_COLUMNS_END, "columns_end", NULL, 0, stw_blocks_of(columns_of(p, b->t).columns, 32),
                 STW_JAGGED_THREADS, STW_JAGGED_THREADS * 4);
}

void stw_jagged_steps_of(const stw_jagged_params *p, const stw_jagged_table *t, uint32_t processors,
                         stw_jagged_steps *steps_out) {
    memset(steps_out, 0, sizeof *steps_out);
    builder b = {p, t, processors, steps_out};
    add_step(&b, STW_JSTEP_PREPARE, "prepare", NULL, 0, 1, STW_JAGGED_PREPARE_THREADS, STW_JAGGED_PREPARE_SMEM);
    add_op(&b);
    steps_out->workspace = layout_of(p, t).total;
}

/* ---- the argument ---- */

void stw_jagged_launch_of(const stw_jagged_params *p, const stw_jagged_table *t, void *workspace,
                          stw_jagged_launch *launch_out) {
    stw_jagged_launch l = {.p = *p};
    layout w = layout_of(p, t);
    char *base = workspace;
    for (int i = 0; i < 3; ++i) {
        if (!p->axis[i].ragged) continue;
        l.p.axis[i].starts = (int64_t *)(void *)(base + w.starts[i]);
        l.p.axis[i].used_clean = (int64_t *)(void *)(base + w.used[i]);
    }
    l.gaps = (int32_t *)(void *)(base + w.gaps);
    int ragged_norm = stw_jagged_is_ragged_norm(p->op, p->dim);
    if (has_columns(p) || is_segmented(p) || ragged_norm) l.sums = (float *)(void *)(base + w.sums);
    if ((has_columns(p) && stw_jagged_is_norm(p->op)) || ragged_norm) l.sums_too = (float *)(void *)(base + w.sums_too);
    stw_jagged_tile tile = stw_jagged_tile_of(p, t);
    l.tile_m = tile.bm;
    l.tile_n = tile.bn;
    for (uint32_t d = 0; d < 2 && p->op == STW_JAGGED_MATMUL; ++d) {
        l.part_of[d] = stw_jagged_cut_of(p, d, t).part_k;
        l.tiles[d] = (int64_t *)(void *)(base + w.tiles[d]);
        l.slots[d] = (int64_t *)(void *)(base + w.slots[d]);
    }
    for (int i = 0; i < 3; ++i) l.bases[i] = (int64_t *)(void *)(base + w.bases[i]);
    l.product_sums = (float *)(void *)(base + w.product_sums);
    *launch_out = l;
}

static void launch_sums(stw_jagged_kind kind, const stw_jagged_table *t, stw_jagged_launch *l) {
    const stw_jagged_params *p = &l->p;
    if (kind == STW_JSTEP_SEGMENTS || kind == STW_JSTEP_SEGMENT_SUM) {
        l->columns = p->inner;
        l->column_lanes = lanes_over(p, p->inner);
        l->parts = segment_parts(p);
        l->column_blocks = stw_blocks_of(p->inner, kind == STW_JSTEP_SEGMENTS ? (int64_t)l->column_lanes * vector_of(p)
                                                                              : STW_JAGGED_THREADS);
        return;
    }
    column_plan c = columns_of(p, t);
    l->columns = c.columns;
    l->column_lanes = c.lanes;
    l->column_blocks = c.blocks;
    l->parts = c.parts;
    l->rows = c.rows;
}

void stw_jagged_launch_step(stw_jagged_kind kind, int64_t work_tiles, int64_t blocks, uint32_t product,
                            const stw_jagged_table *t, stw_jagged_launch *l) {
    const stw_jagged_params *p = &l->p;
    l->work_tiles = work_tiles;
    l->blocks = blocks;
    switch (kind) {
    case STW_JSTEP_POINTWISE:
    case STW_JSTEP_MAP:
        l->slab = slab_of(p);
        l->chunks = chunks_of(p, l->slab);
        l->run = stw_jagged_map_of(p).run;
        l->divide = l->run > 1 ? UINT64_MAX / (uint64_t)l->run + 1 : 0;
        break;
    case STW_JSTEP_MAP_ROWS:
        l->slab = slab_of(p);
        l->span = stw_jagged_map_of(p).span;
        l->chunks = stw_blocks_of(l->slab, l->span);
        break;
    case STW_JSTEP_NORM_SUMS:
    case STW_JSTEP_COLUMNS:
    case STW_JSTEP_COLUMNS_END:
    case STW_JSTEP_SEGMENTS:
    case STW_JSTEP_SEGMENT_SUM: launch_sums(kind, t, l); /* fallthrough */
    case STW_JSTEP_LINES:
        l->lines = rows_of_slab(p) * p->dim_before;
        l->line_size = (float)p->dim_size;
        break;
    case STW_JSTEP_NORM_SEGMENTS:
        l->parts = segment_parts(p);
        l->column_blocks = l->column_lanes = 1;
        break;
    case STW_JSTEP_STRIDED: l->lines = p->axis[0].total * p->outer * p->inner / p->dim_size; break;
    case STW_JSTEP_PRODUCT:
    case STW_JSTEP_PRODUCT_END: {
        stw_jagged_cut cut = stw_jagged_cut_of(p, product, t);
        stw_jagged_tile tile = stw_jagged_tile_of(p, t);
        l->product = product;
        l->tile_m = tile.bm;
        l->tile_n = tile.bn;
        l->part_k = cut.part_k;
        l->parts = cut.parts;
        l->lines = rows_of_slab(p);
        break;
    }
    case STW_JSTEP_PREPARE: break;
    }
}
