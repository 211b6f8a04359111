/* SPDX-License-Identifier: MIT
 *
 * What intervals and block masks of a case hold (draw_* of a PROBLEM line). Every draw is two hidden ranges of rows a
 * key: `above`, which the forms' first bounds say, and `below`, which their last ones do. A form leaves out what it has
 * no bound for. */
#include "verify.h"

#include <string.h>

#include "common/attn_packed.h"
#include "common/params/attn_hidden.h"

typedef struct range {
    int64_t first, end;
} range;

/* The masks of one sequence and mask head, key after key. */
typedef struct drawing {
    const stw_verify_case *c;
    uint64_t stream;
    int64_t rows, keys; /* that bounds may name; that are drawn */
    int64_t shift;      /* key of row 0's diagonal              */
    int64_t length;     /* of documents, chunks, prefix, window */
    int64_t part;       /* of documents: which                  */
    range keys_of_part;
} drawing;

static int64_t clamp(int64_t value, int64_t low, int64_t high) {
    return value < low ? low : value > high ? high : value;
}

static int64_t below(const drawing *w, uint64_t index, int64_t bound) {
    return bound <= 0 ? 0
                      : (int64_t)(stw_verify_random((uint64_t)w->c->problem.seed, w->stream, index) % (uint64_t)bound);
}

/* The row whose diagonal is key j. */
static int64_t row_of(const drawing *w, int64_t j) { return clamp(j - w->shift, 0, w->rows); }

/* Groups of neighbouring keys hide alike, but for a row or two: so that tiles are empty, full and partial. */
static void draw_random(const drawing *w, int64_t j, range *above, range *under) {
    static const int64_t groups[] = {1, 7, 32, 130, 300};
    uint64_t group = (uint64_t)(j / groups[below(w, 0, 5)]) * 8 + 8;
    int64_t kind = below(w, group, 9), from = below(w, group + 1, w->rows + 1), to = below(w, group + 2, w->rows + 1);
    if (kind == 0) return;
    if (kind == 1) *above = (range){0, w->rows}; /* a key that nobody sees */
    else if (kind == 2) *above = (range){to, from}, *under = (range){from, to};
    else if (kind == 3) *under = (range){0, to};
    else if (kind == 4) *above = (range){clamp(from + j % 3, 0, w->rows), w->rows};
    else {
        *above = (range){from, clamp(from + to / 2 + j % 2, from, w->rows)};
        *under = (range){below(w, group + 3, w->rows + 1) / 2, below(w, group + 4, w->rows + 1)};
    }
}

/* Lengths from 1 to twice w->length, less one; the keys are asked in order. */
static void find_document(drawing *w, int64_t j, int exact) {
    while (w->keys_of_part.end <= j) {
        w->keys_of_part.first = w->keys_of_part.end;
        w->keys_of_part.end += exact ? w->length : 1 + below(w, (uint64_t)w->part++, 2 * w->length - 1);
    }
}

/* The end of the rows that see node j: a trunk with branches of 4 * length keys. The first half of a branch is seen by
 * all of it, each quarter behind by itself. */
static int64_t end_of_subtree(const drawing *w, int64_t j) {
    int64_t branch = 4 * w->length, within = (j - w->length) % branch, start = j - within;
    if (j < w->length) return w->rows;
    return row_of(w, start + (within < 2 * w->length ? 4 : within < 3 * w->length ? 3 : 4) * w->length);
}

static void draw_key(drawing *w, int64_t j, range *above, range *under) {
    range own = {row_of(w, j), w->rows}, all = {0, w->rows};
    switch (w->c->problem.draw) {
    case STW_DRAW_RANDOM: draw_random(w, j, above, under); break;
    case STW_DRAW_DOCUMENTS:
    case STW_DRAW_CHUNK:
        find_document(w, j, w->c->problem.draw == STW_DRAW_CHUNK);
        above->first = row_of(w, w->keys_of_part.end);
        under->end = row_of(w, w->keys_of_part.first);
        break;
    case STW_DRAW_PREFIX: under->end = j < w->length ? 0 : own.first; break;
    case STW_DRAW_TREE:
        above->first = end_of_subtree(w, j);
        under->end = own.first;
        break;
    case STW_DRAW_SLIDING:
        above->first = j < 4 ? w->rows : row_of(w, j + w->length);
        under->end = own.first;
        break;
    case STW_DRAW_PADDING:
        if (j < w->length / 2 || j >= w->keys - w->length / 2) *above = all, *under = all;
        break;
    case STW_DRAW_CAUSAL: under->end = own.first; break;
    case STW_DRAW_DEAD: *above = *under = (range){w->rows / 3, 2 * w->rows / 3}; break;
    case STW_DRAW_OPEN: break;
    case STW_DRAW_HIDDEN: *above = *under = all; break;
    }
}

/* Bounds are positions: rows plus the sequence's offset, and nothing below 0. */
static void put_bounds(stw_verify_case *c, int64_t b, int64_t at, range above, range under) {
    const stw_attn_desc *d = &c->problem.desc;
    int64_t bounds[4] = {above.first, above.end, under.first, under.end};
    if (d->interval_form == STW_INTERVALS_FROM_BELOW) bounds[1] = under.end;
    if (d->interval_form == STW_INTERVALS_RANGE_BELOW) bounds[2] = under.end;
    int count = d->interval_form == STW_INTERVALS_FROM                                                    ? 1
                : d->interval_form == STW_INTERVALS_RANGE || d->interval_form == STW_INTERVALS_FROM_BELOW ? 2
                : d->interval_form == STW_INTERVALS_RANGE_BELOW                                           ? 3
                                                                                                          : 4;
    for (int n = 0; n < count; ++n) {
        int32_t bound = (int32_t)clamp(bounds[n] + c->q[b].offset, 0, INT32_MAX);
        memcpy(c->host + c->offset[STW_VERIFY_INTERVALS] + (size_t)(at + n * d->intervals.bound) * sizeof bound, &bound,
               sizeof bound);
    }
}

/* Rows that the bounds of sequence b may name: where sequences share them, those of the shortest. */
static int64_t rows_of(const stw_verify_case *c, int64_t b) {
    const stw_attn_desc *d = &c->problem.desc;
    int64_t rows = c->q[b].rows;
    if (d->intervals.batch || stw_attn_intervals_through_pack(d)) return rows;
    for (int64_t other = 0; other < d->batch; ++other) rows = c->q[other].rows < rows ? c->q[other].rows : rows;
    return rows;
}

static void fill_intervals(stw_verify_case *c, int64_t b, int64_t head) {
    const stw_attn_desc *d = &c->problem.desc;
    const stw_interval_strides *s = &d->intervals;
    int through_pack = stw_attn_intervals_through_pack(d);
    drawing w = {.c = c, .stream = 300 + (uint64_t)(b * d->heads_kv + head), .rows = rows_of(c, b)};
    w.keys = c->kv[b].used;
    w.shift = w.keys - c->q[b].used;
    if (d->flags & STW_ATTN_HAS_SHIFT) w.shift = d->diagonal_shift;
    else if (d->mask == STW_MASK_CAUSAL_TOP_LEFT) w.shift = 0;
    w.shift += c->q[b].offset - c->kv[b].offset;
    w.length = c->problem.draw_length ? c->problem.draw_length : w.keys / 4 + 1;
    for (int64_t j = 0; j < w.keys; ++j) {
        range above = {w.rows, w.rows}, under = {0, 0};
        draw_key(&w, j, &above, &under);
        int64_t key = through_pack ? (c->kv[b].first + j) * s->key : b * s->batch + j * s->key;
        put_bounds(c, b, key + head * s->head, above, under);
    }
}

static int block_is_visible(const stw_verify_case *c, uint64_t index, int64_t query, int64_t key) {
    switch (c->problem.draw) {
    case STW_DRAW_OPEN: return 1;
    case STW_DRAW_HIDDEN: return 0;
    case STW_DRAW_DOCUMENTS:
    case STW_DRAW_CHUNK: return query == key;
    case STW_DRAW_CAUSAL: return key <= query;
    default: return stw_verify_random((uint64_t)c->problem.seed, 299, index) % 3 != 0;
    }
}

static void fill_block_mask(stw_verify_case *c) {
    const stw_attn_desc *d = &c->problem.desc;
    const stw_block_mask_strides *s = &d->block_mask;
    int64_t queries = (d->max_seq_q + STW_MASK_BLOCK - 1) / STW_MASK_BLOCK;
    int64_t keys = (d->max_seq_kv + STW_MASK_BLOCK - 1) / STW_MASK_BLOCK;
    for (int64_t b = 0; b < (s->batch ? d->batch : d->batch > 0); ++b)
        for (int64_t h = 0; h < (s->head ? d->heads_q : 1); ++h)
            for (int64_t n = 0; n < queries * keys; ++n) {
                int64_t at = b * s->batch + h * s->head + n / keys * s->query + n % keys * s->key;
                uint64_t index = (uint64_t)((b * d->heads_q + h) * queries * keys + n);
                c->host[c->offset[STW_VERIFY_BLOCK_MASK] + (size_t)at] =
                    block_is_visible(c, index, n / keys, n % keys) ? (unsigned char)(1 + index % 255) : 0;
            }
}

void stw_verify_fill_masks(stw_verify_case *c) {
    const stw_attn_desc *d = &c->problem.desc;
    for (int64_t b = 0; c->present[STW_VERIFY_INTERVALS] && b < d->batch; ++b)
        for (int64_t h = 0; h < (d->intervals.head ? d->heads_kv : 1); ++h) fill_intervals(c, b, h);
    if (c->present[STW_VERIFY_BLOCK_MASK]) fill_block_mask(c);
}

/* ---- how much of a problem its masks leave ---- */

/* The same sequences and masks with nothing else: head dims of 1, no bias. */
static stw_status masks_alone(const stw_problem *problem, stw_problem *alone) {
    const uint32_t kept = STW_ATTN_HAS_WINDOW_LEFT | STW_ATTN_HAS_WINDOW_RIGHT | STW_ATTN_HAS_SHIFT |
                          STW_ATTN_HAS_USED_LENGTHS | STW_ATTN_PACKED_Q | STW_ATTN_PACKED_KV | STW_ATTN_BLOCK_MASK;
    *alone = *problem;
    stw_attn_desc *d = &alone->desc;
    const stw_problem_layout layout = {.mask_heads = d->intervals.head || d->block_mask.head};
    d->dtype = STW_F16;
    d->dq_dtype = d->dk_dtype = d->dv_dtype = d->dbias_dtype = d->bias_dtype = STW_DTYPE_NONE;
    d->head_dim_qk = d->head_dim_v = 1;
    d->flags &= kept;
    d->outputs = d->accumulate = 0;
    alone->data = STW_DATA_NORMAL;
    alone->skew = 0;
    return stw_problem_set_strides(d, &layout);
}

typedef enum sight { HIDDEN, CUT, OPEN } sight;

/* Of mask, window and used lengths: rows i0..i1-1, keys j0..j1-1. */
static sight sight_of_band(const stw_verify_case *c, int64_t b, int64_t i0, int64_t i1, int64_t j0, int64_t j1) {
    int64_t low[2], end[2];
    stw_verify_visible(c, b, i0, &low[0], &end[0]);
    stw_verify_visible(c, b, i1 - 1, &low[1], &end[1]);
    if (j0 >= end[1] || j1 <= low[0]) return HIDDEN;
    return j0 >= low[1] && j1 <= end[0] && low[0] < end[0] ? OPEN : CUT;
}

/* Of one sequence and query head: adds its tiles. */
static void count_tiles(const stw_verify_case *c, const stw_attn_params *p, int64_t b, int64_t h, int64_t counts[3]) {
    const stw_attn_desc *d = &c->problem.desc;
    const stw_verify_span *rows = &c->q[b], *keys = &c->kv[b];
    const stw_seq_span q = {rows->first, rows->rows, rows->used, rows->offset};
    const stw_seq_span kv = {keys->first, keys->rows, keys->used, keys->offset};
    for (int64_t j0 = 0; j0 < keys->used; j0 += STW_MASK_BLOCK) {
        int64_t j1 = j0 + STW_MASK_BLOCK < keys->used ? j0 + STW_MASK_BLOCK : keys->used;
        stw_hidden_block hidden = stw_hidden_block_of_none();
        for (int64_t j = j0; j < j1 && p->interval_form; ++j) {
            stw_hidden_rows of_key =
                stw_hidden_rows_of(p, &q, stw_interval_at(p, &kv, b, h / (d->heads_q / d->heads_kv), j));
            stw_hidden_block_add(&hidden, &of_key);
        }
        for (int64_t i0 = 0; i0 < rows->used; i0 += STW_MASK_BLOCK) {
            int64_t i1 = i0 + STW_MASK_BLOCK < rows->used ? i0 + STW_MASK_BLOCK : rows->used;
            sight seen = sight_of_band(c, b, i0, i1, j0, j1);
            if (p->interval_form && stw_hidden_block_hides_all(&hidden, i0, i1)) seen = HIDDEN;
            if (p->block_mask.data && !stw_block_mask_at(p, b, h, i0, j0)) seen = HIDDEN;
            if (seen == OPEN && p->interval_form && !stw_hidden_block_hides_none(&hidden, i0, i1)) seen = CUT;
            ++counts[seen];
        }
    }
}

/* What common/params/attn_hidden.h wants of a case. */
static stw_attn_params params_of(const stw_verify_case *c) {
    const stw_attn_desc *d = &c->problem.desc;
    const stw_attn_args args = stw_verify_args(c, c->host);
    return (stw_attn_params){
        .intervals = {args.intervals, d->intervals.batch, d->intervals.head, d->intervals.key, d->intervals.bound},
        .block_mask = {args.block_mask, d->block_mask.batch, d->block_mask.head, d->block_mask.query,
                       d->block_mask.key},
        .features = stw_attn_intervals_through_pack(d) ? STW_FEAT_PACKED_INTERVALS : 0,
        .interval_form = d->interval_form};
}

stw_status stw_verify_mask_share(const stw_problem *problem, int64_t counts[3]) {
    stw_problem alone;
    stw_verify_case c;
    stw_status status = masks_alone(problem, &alone);
    if (!status) status = stw_verify_build_inputs(&alone, &c);
    if (status) return status;
    const stw_attn_desc *d = &c.problem.desc;
    const stw_attn_params p = params_of(&c);
    counts[0] = counts[1] = counts[2] = 0;
    for (int64_t b = 0; b < d->batch; ++b)
        for (int64_t h = 0; h < d->heads_q; ++h) count_tiles(&c, &p, b, h, counts);
    stw_verify_free(&c);
    return STW_OK;
}

static int64_t rows_in_both(int64_t first, int64_t end, int64_t other_first, int64_t other_end) {
    int64_t low = first > other_first ? first : other_first, high = end < other_end ? end : other_end;
    return high > low ? high - low : 0;
}

/* Of rows [i0, i1) those that no interval hides from a key. */
static int64_t rows_unhidden(const stw_hidden_rows *h, int64_t i0, int64_t i1) {
    int64_t first = h->first[0] > h->first[1] ? h->first[0] : h->first[1];
    int64_t end = h->end[0] < h->end[1] ? h->end[0] : h->end[1]; /* of what both hide */
    return i1 - i0 - rows_in_both(i0, i1, h->first[0], h->end[0]) - rows_in_both(i0, i1, h->first[1], h->end[1]) +
           (end > first ? rows_in_both(i0, i1, first, end) : 0);
}

/* Of one sequence and query head. Rows that mask and window let see a key are neighbours, and move on with the keys. */
static double pairs_of_head(const stw_verify_case *c, const stw_attn_params *p, int64_t b, int64_t h) {
    const stw_attn_desc *d = &c->problem.desc;
    const stw_verify_span *rows = &c->q[b], *keys = &c->kv[b];
    const stw_seq_span q = {rows->first, rows->rows, rows->used, rows->offset};
    const stw_seq_span kv = {keys->first, keys->rows, keys->used, keys->offset};
    int64_t i0 = 0, i1 = 0, low, end;
    double pairs = 0;
    for (int64_t j = 0; j < keys->used; ++j) {
        for (; i0 < rows->used; ++i0) {
            stw_verify_visible(c, b, i0, &low, &end);
            if (end > j) break;
        }
        for (i1 = i1 > i0 ? i1 : i0; i1 < rows->used; ++i1) {
            stw_verify_visible(c, b, i1, &low, &end);
            if (low > j) break;
        }
        stw_hidden_rows hidden = {{0, 0}, {0, 0}};
        if (p->interval_form)
            hidden = stw_hidden_rows_of(p, &q, stw_interval_at(p, &kv, b, h / (d->heads_q / d->heads_kv), j));
        for (int64_t i = i0, next; i < i1; i = next) {
            next = p->block_mask.data ? (i / STW_MASK_BLOCK + 1) * STW_MASK_BLOCK : i1;
            if (next > i1) next = i1;
            if (p->block_mask.data && !stw_block_mask_at(p, b, h, i, j)) continue;
            pairs += (double)rows_unhidden(&hidden, i, next);
        }
    }
    return pairs;
}

double stw_verify_pairs(const stw_verify_case *c) {
    const stw_attn_desc *d = &c->problem.desc;
    const stw_attn_params p = params_of(c);
    int64_t alike = d->heads_q; /* query heads side by side with the same masks */
    if (p.interval_form && d->intervals.head) alike = d->heads_q / d->heads_kv;
    if (p.block_mask.data && d->block_mask.head) alike = 1;
    double pairs = 0;
    for (int64_t b = 0; b < d->batch; ++b)
        for (int64_t h = 0; h < d->heads_q; h += alike) pairs += pairs_of_head(c, &p, b, h) * (double)alike;
    return pairs;
}
