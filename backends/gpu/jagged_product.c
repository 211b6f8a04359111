/* SPDX-License-Identifier: MIT
 *
 * How the products of matmul and linear are cut into work tiles: tiles of the result over parts of what is summed.
 * Parts depend on the problem alone, so that sums are the same on every device. */
#include "backends/gpu/jagged_launch.h"

#include "common/dtype.h"

stw_jagged_tile stw_jagged_tile_of(const stw_jagged_params *p, const stw_jagged_table *table) {
    for (size_t i = 0; i < table->tile_count; ++i)
        if (table->tiles[i].element == stw_dtype_size((stw_dtype)p->dtype)) return table->tiles[i];
    return table->tiles[0];
}

static int64_t rounded(int64_t x, int64_t step) { return stw_blocks_of(x, step) * step; }

/* A matmul's. */
static void cut_matmul(const stw_jagged_params *p, uint32_t product, stw_jagged_tile t, stw_jagged_cut *cut) {
    int da = product == STW_JPRODUCT_DA;
    int a = da ? p->grad_matrix.transposed : !p->x_matrix.transposed;
    int b = da ? p->other_matrix.transposed : !p->grad_matrix.transposed;
    int swapped = da ? p->x_matrix.transposed : p->other_matrix.transposed;
    const stw_jagged_axis_param *m = &p->axis[da ? STW_AXIS_M : STW_AXIS_K],
                                *n = &p->axis[da ? STW_AXIS_K : STW_AXIS_N],
                                *k = &p->axis[da ? STW_AXIS_N : STW_AXIS_M];
    cut->a_by_k = swapped ? b : a;
    cut->b_by_k = swapped ? a : b;
    cut->work_tiles = p->components ? 1 : 0;
    cut->parts = 1;
    cut->part_k = stw_larger(1, k->size);
    if (!k->ragged) return;
    if (swapped) {
        const stw_jagged_axis_param *left = m;
        m = n;
        n = left;
    }
    /* A component of more than one part has fewer than 2 * length / part of them. */
    int64_t tiles = p->outer * stw_blocks_of(m->size, t.bm) * stw_blocks_of(n->size, t.bn), part;
    if (__builtin_mul_overflow(2 * k->total, tiles, &part)) return;
    part = stw_larger(STW_JAGGED_PART_LEAST, rounded(stw_blocks_of(part, STW_JAGGED_WORK_TILES), t.bk));
    if (part >= k->size) return;
    cut->part_k = part;
    cut->parts = 2;
    cut->slots = 2 * k->total * tiles / part + 1;
}

static void cut_linear(const stw_jagged_params *p, uint32_t product, stw_jagged_tile t, const stw_jagged_table *table,
                       stw_jagged_cut *cut) {
    int64_t rows = p->components ? p->slabs * p->axis[0].total * p->rows_outer : 0, part;
    int dx = product == STW_JPRODUCT_DX;
    int64_t tiles = stw_blocks_of(dx ? rows : p->out_features, t.bm) * stw_blocks_of(p->inner, t.bn);
    cut->a_by_k = !dx;
    cut->b_by_k = 1;
    cut->parts = 1;
    cut->work_tiles = tiles;
    cut->part_k = stw_larger(1, dx ? p->out_features : rows);
    if (dx || __builtin_mul_overflow(rows, tiles, &part)) return;
    part = stw_larger(STW_JAGGED_PART_LEAST, rounded(stw_blocks_of(part, table->work_tiles), t.bk));
    if (table->most_k) part = stw_smaller(part, table->most_k);
    if (part >= rows) return;
    cut->part_k = part;
    cut->parts = stw_blocks_of(rows, part);
    cut->work_tiles = cut->slots = tiles * cut->parts;
}

stw_jagged_cut stw_jagged_cut_of(const stw_jagged_params *p, uint32_t product, const stw_jagged_table *table) {
    static const uint32_t outputs[] = {STW_JAGGED_DX, STW_JAGGED_DOTHER, STW_JAGGED_DX, STW_JAGGED_DWEIGHT};
    stw_jagged_cut cut = {0};
    stw_jagged_tile t = stw_jagged_tile_of(p, table);
    int matmul = product <= STW_JPRODUCT_DB;
    if (p->op != (matmul ? STW_JAGGED_MATMUL : STW_JAGGED_LINEAR) || !(p->outputs & outputs[product])) return cut;
    cut.wanted = 1;
    if (matmul) cut_matmul(p, product, t, &cut);
    else cut_linear(p, product, t, table, &cut);
    return cut;
}
