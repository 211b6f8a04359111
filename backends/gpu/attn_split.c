/* SPDX-License-Identifier: MIT
 *
 * How work is split among multiprocessors, one cost model for every main loop. A work tile, a key block of a kv head,
 * walks the query blocks of all query heads of its group: where there are few of them most of the device would be idle.
 * The unit is a step of the main loop. What else costs steps: stw_attn_costs. */
#include "backends/gpu/attn_tiled.h"
#include "common/size_class.h"
#include "sternway/attn_bwd.h"

#include <math.h>

/* Measured on one H200: docs/performance/appendix/sm90.md. */
stw_attn_costs stw_attn_costs_of_h200(uint32_t head_dim) {
    return (stw_attn_costs){.tile = 1.5, .part = 7.0 * head_dim / 128.0, .share = 0.0027};
}

/* More work tiles than this a CTA are never split. */
#define TILES_ENOUGH 8
/* Parts at most that keep sums short; rows of which parts are multiples. */
#define PARTS_FOR_SUMS 8
#define BLOCK          128

typedef struct work {
    double tiles, mean, longest; /* work tiles; their steps */
} work;

static double larger(double a, double b) { return a > b ? a : b; }

static stw_attn_params largest_of(const stw_attn_params *p) {
    stw_attn_params largest = *p;
    int packed_q = (p->features & STW_FEAT_PACKED_Q) != 0, packed_kv = (p->features & STW_FEAT_PACKED_KV) != 0;
    largest.batch = stw_packed_class(packed_q && packed_kv, p->batch);
    largest.max_seq_q = stw_packed_class(packed_q, p->max_seq_q);
    largest.total_q = stw_packed_class(packed_q, p->total_q);
    largest.max_seq_kv = stw_packed_class(packed_kv, p->max_seq_kv);
    largest.total_kv = stw_packed_class(packed_kv, p->total_kv);
    return largest;
}

/* Rows of a usual sequence and of the longest one that is likely. */
static void lengths(int packed, int64_t batch, int64_t most, int64_t total, double *mean, double *longest) {
    *mean = *longest = (double)most;
    if (!packed || batch < 1) return;
    *mean = (double)total / (double)batch;
    if (*mean > *longest) *mean = *longest;
    if (*longest > 4 * *mean) *longest = 4 * *mean;
}

static work work_of(const stw_variant *tile, uint32_t bn, const stw_attn_params *p) {
    const uint32_t both = STW_FEAT_WINDOW_LEFT | STW_FEAT_WINDOW_RIGHT;
    int packed_q = (p->features & STW_FEAT_PACKED_Q) != 0, packed_kv = (p->features & STW_FEAT_PACKED_KV) != 0;
    double rows, rows_most, keys, keys_most, group = (double)p->group;
    lengths(packed_q, p->batch, p->max_seq_q, p->total_q, &rows, &rows_most);
    lengths(packed_kv, p->batch, p->max_seq_kv, p->total_kv, &keys, &keys_most);
    double blocks = rows / tile->bm, blocks_most = rows_most / tile->bm;
    double tiles = (double)p->heads_kv * (double)p->batch * (double)stw_blocks_of((int64_t)keys, bn);
    work w = {larger(tiles, 1), blocks, blocks_most};
    if ((p->features & both) == both) {
        double band = ((double)p->window_left + (double)p->window_right + bn) / tile->bm + 1;
        if (band < w.mean) w.mean = band;
        if (band < w.longest) w.longest = band;
    } else if (p->features & both && keys <= 2 * rows) {
        w.mean /= 2;
    }
    w.mean *= group;
    w.longest *= group;
    return w;
}

/* Steps until all is done, with parts of a work tile. Where work tiles are alike they write their sums at a time; else
 * most of them beside steps of others. */
static double cost(const work *w, double ctas, double parts, const stw_attn_costs *costs) {
    int alike = w->longest == w->mean;
    double each = costs->tile + (parts > 1 ? costs->part / (alike ? 2 : 4) : 0), rounds = w->tiles * parts / ctas;
    double mean = larger(w->mean / parts, 2) + each, longest = larger(w->longest / parts, 2) + each;
    double tail = rounds > 1 ? (mean + costs->tail * (longest - mean)) / 4 : 0;
    double steps = alike ? (double)(int64_t)(rounds + 0.999) * mean : larger(longest, rounds * mean + tail);
    return parts > 1 ? (steps + 1 + rounds * costs->part / 2) * (1 + costs->share * parts) : steps;
}

/* Parts with which the workspace is at most 4 times dQ in f32, which deterministic mode promises. */
static double workspace_fit(const stw_attn_params *p, uint32_t bn) {
    double keys = (double)(stw_key_blocks_most(p, bn) * bn),
           rows = (double)(p->features & STW_FEAT_PACKED_Q ? p->total_q : p->batch * p->max_seq_q);
    return 1.25 * rows * (double)p->group / larger(keys, 1);
}

double stw_attn_rows_met(const stw_attn_params *params, uint32_t bn) {
    const uint32_t both = STW_FEAT_WINDOW_LEFT | STW_FEAT_WINDOW_RIGHT;
    const stw_attn_params p = largest_of(params);
    const double rows = (double)p.max_seq_q, band = (double)p.window_left + (double)p.window_right + bn + BLOCK;
    return (p.features & both) == both && band < rows ? band : rows;
}

stw_attn_split stw_attn_short_sums(const stw_attn_params *params, uint32_t bn, int64_t rows_most) {
    const stw_attn_params p = largest_of(params);
    double rows = stw_attn_rows_met(params, bn), parts_most = PARTS_FOR_SUMS;
    if (p.features & STW_FEAT_DETERMINISTIC) parts_most = larger(1, workspace_fit(&p, bn));
    /* the fewest parts, of those the most by heads; a sum is of whole blocks of each of its heads */
    stw_attn_split best = {0, 0};
    for (int64_t heads = 1; heads <= p.group && (double)heads <= parts_most; ++heads) {
        const int64_t blocks = p.group % heads ? 0 : rows_most / (BLOCK * (p.group / heads));
        if (!blocks) continue;
        const double parts = larger(1, ceil(rows / (double)(blocks * BLOCK)));
        if ((double)heads * parts > parts_most) continue;
        parts_most = (double)heads * parts;
        best = (stw_attn_split){(uint32_t)heads, (uint32_t)parts};
    }
    return best;
}

stw_attn_split stw_attn_split_of(const stw_variant *tile, uint32_t bn, const stw_attn_params *params, uint32_t ctas,
                                 int64_t rows_most, const stw_attn_costs *costs) {
    const stw_attn_params p = largest_of(params);
    stw_attn_split best = {1, 1};
    if (rows_most) best = stw_attn_short_sums(params, bn, rows_most);
    if (!best.heads) best = (stw_attn_split){1, 1}; /* refused before */
    const uint32_t least_rows = best.rows, least_heads = best.heads;
    if (p.batch < 1 || p.heads_kv < 1 || p.max_seq_q < 1 || p.max_seq_kv < 1) return best;
    const double fit = workspace_fit(&p, bn) / larger(costs->padded, 1);
    const work w = work_of(tile, bn, &p);
    const double most = (double)p.units * ctas;
    const uint32_t least = best.heads * best.rows;
    if (w.tiles * least >= most * TILES_ENOUGH) return best;
    double parts_most = most * TILES_ENOUGH / w.tiles;
    if (p.features & STW_FEAT_DETERMINISTIC && parts_most > fit) parts_most = fit;
    double lowest = cost(&w, most, least, costs) * 0.997;
    for (int64_t heads = (int64_t)larger(1, parts_most < (double)p.group ? parts_most : (double)p.group); heads;
         --heads) {
        if (p.group % heads) continue;
        for (int64_t rows = 1; (double)(rows * heads) <= parts_most; rows *= 2) {
            if ((double)rows > w.longest / (double)p.group) break;
            if (heads % least_heads || (uint32_t)rows < least_rows) continue; /* sums stay as short */
            double steps = cost(&w, most, (double)(rows * heads), costs);
            if (steps >= lowest) continue;
            lowest = steps;
            best.heads = (uint32_t)heads;
            best.rows = (uint32_t)rows;
        }
    }
    return best;
}
