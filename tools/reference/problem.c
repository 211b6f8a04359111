/* SPDX-License-Identifier: MIT
 *
 * Positions, masks, addresses and checks of the oracle: see problem.h. Nothing here is fast; each rule
 * reads as the sentence of the public header that it follows. */
#include "problem.h"

#include "common/attn_packed.h"
#include "common/dtype.h"

#include <math.h>

static int ref_sizes_valid(const stw_attn_desc *d) {
    if (!stw_dtype_of_attn(d->dtype)) return 0;
    if (d->batch < 0 || d->max_seq_q < 0 || d->max_seq_kv < 0 || d->total_q < 0 || d->total_kv < 0) return 0;
    if (d->heads_q < 1 || d->heads_kv < 1 || d->heads_q % d->heads_kv) return 0;
    if (d->head_dim_qk < 1 || d->head_dim_qk > 256 || d->head_dim_v < 1 || d->head_dim_v > 256) return 0;
    if (!(d->dropout_p >= 0 && d->dropout_p < 1)) return 0;
    if ((d->flags & STW_ATTN_HAS_SCALE) && !isfinite(d->scale)) return 0;
    if (!(d->softcap >= 0) || isinf(d->softcap)) return 0;
    return 1;
}

static int ref_starts_valid(const int32_t *cu_seqlens, int64_t batch, int64_t total, int64_t max_seq) {
    if (!cu_seqlens || cu_seqlens[0] < 0 || cu_seqlens[batch] > total) return 0;
    for (int64_t b = 0; b < batch; ++b) {
        int64_t length = (int64_t)cu_seqlens[b + 1] - cu_seqlens[b];
        if (length < 0 || length > max_seq) return 0;
    }
    return 1;
}

static int ref_lengths_valid(const stw_ref_problem *p) {
    const stw_attn_desc *d = p->desc;
    if (p->packed_q && !ref_starts_valid(p->args->cu_seqlens_q, d->batch, d->total_q, d->max_seq_q)) return 0;
    if (p->packed_kv && !ref_starts_valid(p->args->cu_seqlens_kv, d->batch, d->total_kv, d->max_seq_kv)) return 0;
    for (int64_t b = 0; b < d->batch; ++b) {
        stw_ref_side q = stw_ref_side_q(p, b), kv = stw_ref_side_kv(p, b);
        if (q.used < 0 || q.used > q.rows || kv.used < 0 || kv.used > kv.rows) return 0;
    }
    return 1;
}

static int ref_pointers_valid(const stw_ref_problem *p, int backward) {
    const stw_attn_desc *d = p->desc;
    const stw_attn_args *a = p->args;
    if (p->rows_q && !a->q) return 0;
    if (p->rows_kv && (!a->k || !a->v)) return 0;
    if (d->bias_dtype != STW_DTYPE_NONE && p->rows_q && p->rows_kv && !a->bias) return 0;
    if (d->interval_form != STW_INTERVALS_NONE && p->rows_q && p->rows_kv && !a->intervals) return 0;
    if ((d->flags & STW_ATTN_BLOCK_MASK) && p->rows_q && p->rows_kv && !a->block_mask) return 0;
    if ((d->flags & STW_ATTN_ALIBI) && !a->alibi_slopes) return 0;
    if ((d->flags & STW_ATTN_SINK) && !a->sink) return 0;
    if (!backward || !p->rows_q) return 1;
    if (!a->dout || !a->lse) return 0;
    if (!a->out && !(d->flags & STW_ATTN_GIVEN_DELTA)) return 0;
    if ((d->flags & STW_ATTN_GIVEN_DELTA) && !a->delta) return 0;
    if ((d->flags & STW_ATTN_DLSE) && (!a->dlse || (d->flags & STW_ATTN_GIVEN_DELTA))) return 0;
    return 1;
}

stw_status stw_ref_problem_init(stw_ref_problem *p, const stw_attn_desc *desc, const stw_attn_args *args,
                                int backward) {
    if (!desc || !args || !ref_sizes_valid(desc)) return STW_E_INVALID;
    p->desc = desc;
    p->args = args;
    p->packed_q = stw_attn_is_packed(desc, 0);
    p->packed_kv = stw_attn_is_packed(desc, 1);
    p->rows_q = p->packed_q ? desc->total_q : desc->batch * desc->max_seq_q;
    p->rows_kv = p->packed_kv ? desc->total_kv : desc->batch * desc->max_seq_kv;
    p->group = desc->heads_q / desc->heads_kv;
    p->heads_total = desc->heads_total ? desc->heads_total : desc->heads_q;
    p->scale = (desc->flags & STW_ATTN_HAS_SCALE) ? (double)desc->scale : 1 / sqrt((double)desc->head_dim_qk);
    p->softcap = (double)desc->softcap;
    if (desc->dtype == STW_F64 && desc->scale_f64 != 0) p->scale = desc->scale_f64;
    if (desc->dtype == STW_F64 && desc->softcap_f64 != 0) p->softcap = desc->softcap_f64;
    p->seed = args->dropout_seed_ptr ? *args->dropout_seed_ptr : args->dropout_seed;
    p->offset = args->dropout_offset_ptr ? *args->dropout_offset_ptr : args->dropout_offset;
    p->outputs = desc->outputs ? desc->outputs : STW_OUT_DQ | STW_OUT_DK | STW_OUT_DV;
    p->bias_extent[0] = desc->bias.batch ? desc->batch : 1;
    p->bias_extent[1] = desc->bias.head ? desc->heads_q : 1;
    p->bias_extent[2] = desc->bias.query ? desc->max_seq_q : 1;
    p->bias_extent[3] = desc->bias.key ? desc->max_seq_kv : 1;
    if ((p->outputs & STW_OUT_DBIAS) && !stw_dtype_of_attn(desc->bias_dtype)) return STW_E_INVALID;
    if ((p->outputs & STW_OUT_DSINK) && !(desc->flags & STW_ATTN_SINK)) return STW_E_INVALID;
    return ref_lengths_valid(p) && ref_pointers_valid(p, backward) ? STW_OK : STW_E_INVALID;
}

stw_ref_side stw_ref_side_q(const stw_ref_problem *p, int64_t b) {
    const stw_attn_args *a = p->args;
    stw_ref_side side = {.rows = p->desc->max_seq_q};
    if (p->packed_q) {
        side.first = a->cu_seqlens_q[b];
        side.rows = a->cu_seqlens_q[b + 1] - side.first;
    }
    side.used = (p->desc->flags & STW_ATTN_HAS_USED_LENGTHS) && a->used_q ? a->used_q[b] : side.rows;
    side.offset = a->q_offsets ? a->q_offsets[b] : a->q_offset;
    return side;
}

stw_ref_side stw_ref_side_kv(const stw_ref_problem *p, int64_t b) {
    const stw_attn_args *a = p->args;
    stw_ref_side side = {.rows = p->desc->max_seq_kv};
    if (p->packed_kv) {
        side.first = a->cu_seqlens_kv[b];
        side.rows = a->cu_seqlens_kv[b + 1] - side.first;
    }
    side.used = (p->desc->flags & STW_ATTN_HAS_USED_LENGTHS) && a->used_kv ? a->used_kv[b] : side.rows;
    side.offset = a->k_offsets ? a->k_offsets[b] : a->k_offset;
    return side;
}

int64_t stw_ref_shift(const stw_ref_problem *p, const stw_ref_side *q, const stw_ref_side *kv) {
    if (p->desc->flags & STW_ATTN_HAS_SHIFT) return p->desc->diagonal_shift;
    return p->desc->mask == STW_MASK_CAUSAL_TOP_LEFT ? 0 : kv->used - q->used;
}

int stw_ref_visible(const stw_ref_problem *p, const stw_ref_side *q, const stw_ref_side *kv, int64_t i, int64_t j) {
    const stw_attn_desc *d = p->desc;
    int64_t diagonal = i + q->offset + stw_ref_shift(p, q, kv), key = j + kv->offset;
    if (d->mask != STW_MASK_NONE && key > diagonal) return 0;
    if ((d->flags & STW_ATTN_HAS_WINDOW_LEFT) && key < diagonal - d->window_left) return 0;
    if ((d->flags & STW_ATTN_HAS_WINDOW_RIGHT) && key > diagonal + d->window_right) return 0;
    return 1;
}

int stw_ref_hides(const stw_ref_problem *p) {
    return p->desc->interval_form != STW_INTERVALS_NONE || (p->desc->flags & STW_ATTN_BLOCK_MASK);
}

/* stw_attn_intervals, a line a form. */
static int ref_between(const stw_attn_desc *d, const int32_t *bounds, int64_t i) {
    const int64_t step = d->intervals.bound;
#define BOUND(n) ((int64_t)bounds[(n) * step])
    switch (d->interval_form) {
    case STW_INTERVALS_NONE: return 0;
    case STW_INTERVALS_FROM: return i >= BOUND(0);
    case STW_INTERVALS_RANGE: return BOUND(0) <= i && i < BOUND(1);
    case STW_INTERVALS_FROM_BELOW: return i >= BOUND(0) || i < BOUND(1);
    case STW_INTERVALS_RANGE_BELOW: return (BOUND(0) <= i && i < BOUND(1)) || i < BOUND(2);
    case STW_INTERVALS_TWO_RANGES: return (BOUND(0) <= i && i < BOUND(1)) || (BOUND(2) <= i && i < BOUND(3));
    }
#undef BOUND
    return 0;
}

int stw_ref_unhidden(const stw_ref_problem *p, const stw_ref_side *q, const stw_ref_side *kv, int64_t b, int64_t h,
                     int64_t i, int64_t j) {
    const stw_attn_desc *d = p->desc;
    if (d->interval_form != STW_INTERVALS_NONE) {
        const stw_interval_strides *s = &d->intervals;
        int64_t key = stw_attn_intervals_through_pack(d) ? (kv->first + j) * s->key : b * s->batch + j * s->key;
        if (ref_between(d, p->args->intervals + key + h / p->group * s->head, i + q->offset)) return 0;
    }
    if (!(d->flags & STW_ATTN_BLOCK_MASK)) return 1;
    const stw_block_mask_strides *s = &d->block_mask;
    return p->args
               ->block_mask[b * s->batch + h * s->head + i / STW_MASK_BLOCK * s->query + j / STW_MASK_BLOCK * s->key] !=
           0;
}

int64_t stw_ref_row_index(const stw_attn_strides *s, int packed, const stw_ref_side *side, int64_t b, int64_t h,
                          int64_t i) {
    return h * s->head + (packed ? (side->first + i) * s->seq : b * s->batch + i * s->seq);
}

int64_t stw_ref_lse_index(const stw_ref_problem *p, const stw_attn_strides *s, const stw_ref_side *q, int64_t b,
                          int64_t h, int64_t i) {
    int through_pack = p->packed_q && s->batch == 0;
    return stw_ref_row_index(s, through_pack, q, b, h, i);
}

int64_t stw_ref_result_row(int packed, int64_t max_seq, const stw_ref_side *side, int64_t b, int64_t i) {
    return packed ? side->first + i : b * max_seq + i;
}
