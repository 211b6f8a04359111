/* SPDX-License-Identifier: MIT
 *
 * Masks in memory over ranks. Each rank has intervals and block mask of the whole problem, and a part's call gets them
 * from its first row and key on. Bounds are positions, so the part's q offset makes them its own; blocks of a block
 * mask are counted from the sequence's first row, so chunks begin at multiples of STW_MASK_BLOCK. */
#include "cp.h"

#include "common/attn_packed.h"
#include "common/params/attn_seq.h"

/* ---- the plan ---- */

static int64_t longest(const stw_cp_plan *p, int kv) {
    int64_t rows = kv ? p->desc.seq_kv : p->desc.seq_q;
    for (int64_t s = 0; s < p->seq_count; ++s)
        if (p->seqs[s].rows[kv] > rows) rows = p->seqs[s].rows[kv];
    return rows;
}

/* Whether rows of a mask lie in each other: those of a layout of a shard's sizes do. A stride of 0 is a broadcast. */
static int overlaps(int64_t rows, int64_t row, int64_t columns, int64_t column) {
    return rows > 1 && columns > 1 && row && column && row <= (columns - 1) * column && column <= (rows - 1) * row;
}

static stw_status check_strides(const stw_cp_plan *p) {
    stw_attn_desc whole = p->attn;
    whole.max_seq_q = longest(p, 0);
    whole.max_seq_kv = longest(p, 1);
    for (int64_t s = 0, keys = 0; s < p->seq_count && stw_attn_is_packed(&p->attn, 1); ++s)
        whole.total_kv = keys += p->seqs[s].rows[1];
    stw_status status = stw_attn_check_masks(&whole, p->kind);
    if (status) return status;
    const int64_t rows = stw_blocks_of(whole.max_seq_q, STW_MASK_BLOCK),
                  keys = stw_blocks_of(whole.max_seq_kv, STW_MASK_BLOCK);
    if (whole.interval_form && overlaps(whole.batch, whole.intervals.batch, whole.max_seq_kv, whole.intervals.key))
        return stw_fail(STW_E_INVALID,
                        "%s: attn.intervals.batch stride %lld is below what %lld keys take: over ranks each rank gives "
                        "the intervals of all keys of the whole problem",
                        p->call, (long long)whole.intervals.batch, (long long)whole.max_seq_kv);
    if (whole.flags & STW_ATTN_BLOCK_MASK && overlaps(rows, whole.block_mask.query, keys, whole.block_mask.key))
        return stw_fail(STW_E_INVALID,
                        "%s: attn.block_mask.query stride %lld is below what %lld blocks of keys take: over ranks each "
                        "rank gives the block mask of the whole problem",
                        p->call, (long long)whole.block_mask.query, (long long)keys);
    return STW_OK;
}

stw_status stw_cp_masks_check(const stw_cp_plan *p) {
    stw_status status = stw_cp_has_masks(p) ? check_strides(p) : STW_OK;
    const int64_t multiple = 2 * p->shards * STW_MASK_BLOCK;
    for (int64_t s = 0; s < p->seq_count && p->shards > 1 && p->attn.flags & STW_ATTN_BLOCK_MASK; ++s)
        for (int kv = 0; kv < 2 && !status; ++kv)
            if (p->seqs[s].rows[kv] % multiple)
                status = stw_fail(STW_E_UNSUPPORTED,
                                  "%s: attn.flags has STW_ATTN_BLOCK_MASK, and sequence %lld has %lld %s: with %lld "
                                  "shards accepted are multiples of %lld, so that chunks are whole blocks of %d",
                                  p->call, (long long)s, (long long)p->seqs[s].rows[kv], kv ? "keys" : "rows of q",
                                  (long long)p->shards, (long long)multiple, STW_MASK_BLOCK);
    return status;
}

/* ---- a call ---- */

static const int32_t *intervals_of(const stw_cp_run *run, const stw_cp_seq *seq, int64_t head, int64_t key) {
    const stw_attn_desc *d = &run->plan->attn;
    const int64_t first =
        stw_attn_intervals_through_pack(d) ? seq->start * d->intervals.key : seq->index * d->intervals.batch;
    return run->args.intervals + first + head * d->intervals.head + key * d->intervals.key;
}

static stw_status check_bounds(const stw_cp_run *run) {
    const stw_cp_plan *p = run->plan;
    const stw_attn_desc *d = &p->attn;
    stw_status status = STW_OK;
    if (!d->interval_form || !run->args.intervals || !p->context->ops->cp_intervals) return STW_OK;
    for (int64_t s = 0; s < p->seq_count && !status; ++s) {
        const stw_cp_seq *seq = &p->seqs[s];
        const stw_attn_params params = {.features = STW_FEAT_INTERVALS,
                                        .interval_form = d->interval_form,
                                        .batch = seq->batch,
                                        .heads_kv = d->heads_kv,
                                        .max_seq_q = seq->rows[0],
                                        .max_seq_kv = seq->used[1],
                                        .q_offset = p->desc.q_offset,
                                        .intervals = {.data = intervals_of(run, seq, 0, 0),
                                                      .batch = d->intervals.batch,
                                                      .head = d->intervals.head,
                                                      .key = d->intervals.key,
                                                      .bound = d->intervals.bound}};
        status = p->context->ops->cp_intervals(run->wire.who, &params, seq->index);
    }
    return status;
}

stw_status stw_cp_masks_bind(const stw_cp_run *run) {
    const stw_cp_plan *p = run->plan;
    const int blocks = (p->attn.flags & STW_ATTN_BLOCK_MASK) != 0;
    /* a rank may hold rows of q alone: its calls have keys of others */
    if (p->part_count && p->attn.interval_form && !run->args.intervals)
        return stw_fail(STW_E_INVALID, "%s: args.intervals is null, but this plan needs it", run->wire.who);
    if (p->part_count && blocks && !run->args.block_mask)
        return stw_fail(STW_E_INVALID, "%s: args.block_mask is null, but this plan needs it", run->wire.who);
    if (p->attn.interval_form && (uintptr_t)run->args.intervals % sizeof(int32_t))
        return stw_fail(STW_E_INVALID, "%s: args.intervals %p is not aligned to its elements of 4 bytes", run->wire.who,
                        (const void *)run->args.intervals);
    return check_bounds(run);
}

void stw_cp_masks_at(const stw_cp_run *run, const stw_cp_part *part, stw_attn_args *a) {
    const stw_cp_plan *p = run->plan;
    const stw_cp_seq *seq = &p->seqs[part->seq];
    const stw_block_mask_strides *s = &p->attn.block_mask;
    if (p->attn.interval_form) a->intervals = intervals_of(run, seq, stw_cp_first_head(run, 1), part->k_at);
    if (p->attn.flags & STW_ATTN_BLOCK_MASK)
        a->block_mask = run->args.block_mask + seq->index * s->batch + stw_cp_first_head(run, 0) * s->head +
                        part->q_at / STW_MASK_BLOCK * s->query + part->k_at / STW_MASK_BLOCK * s->key;
}
