/* SPDX-License-Identifier: MIT
 *
 * Which query rows a CTA of the first, last and forward kernels works on. Dense rows: by arithmetic. Packed ones: tiles
 * are numbered through the pack (stw_attn_seq.q_block), so that a grid is as large as the pack, not as the longest
 * sequence might be; whose tile it is, all threads look up together. */
#ifndef STW_COMMON_KERNELS_ATTN_TILES_H
#define STW_COMMON_KERNELS_ATTN_TILES_H

#include "common/device/device.h"

struct attn_tile {
    int64_t b, h, block; /* tile `block` of the sequence */
    bool live;
};

/* The sequence with tile number `tile` among the pack's, of `rows` rows each, or -1. Numbers ascend with sequences:
 * each thread looks at a sample until it has one sequence, one step for batches up to the number of threads. `found`:
 * shared memory. */
DEV_FN int64_t attn_sequence_of_tile(const stw_attn_params &p, int64_t rows, int64_t tile, int32_t *found) {
    const int64_t t = dev_thread(), threads = dev_threads();
    int64_t first = 0, count = p.batch;
    auto begin = [&](int64_t b) { return stw_quotient(stw_clamp_i64(p.cu_seqlens_q[b], 0, p.total_q), rows) + b; };
    DEV_ROLLED while (count > threads) {
        const int64_t step = stw_blocks_of(count, threads), b = first + t * step, end = first + count;
        if (t == 0) *found = (int32_t)first;
        dev_barrier();
        if (b < end && begin(b) <= tile && (b + step >= end || begin(b + step) > tile)) *found = (int32_t)b;
        dev_barrier();
        first = *found;
        count = stw_smaller(step, end - first);
        dev_barrier();
    }
    if (t == 0) *found = -1;
    dev_barrier();
    if (t < count) {
        const int64_t b = first + t;
        const stw_seq_span q = stw_seq_q(&p, b);
        const int64_t at = stw_quotient(q.first, rows) + b;
        if (tile >= at && tile < at + stw_blocks_of(q.rows, rows)) *found = (int32_t)b;
    }
    dev_barrier();
    return *found;
}

/* The same for all threads. `found`: see above; in use until the next barrier. */
DEV_FN attn_tile attn_tile_of(const stw_attn_params &p, int64_t rows, int64_t work_tile, int32_t *found) {
    attn_tile at;
    if (stw_tiles_through_pack(&p, rows)) {
        const int64_t tiles = stw_tiles_of_pack(&p, rows);
        at.h = stw_quotient(work_tile, tiles);
        const int64_t tile = work_tile - at.h * tiles;
        at.b = dev_uniform((int)attn_sequence_of_tile(p, rows, tile, found));
        at.live = at.b >= 0;
        at.block = at.live ? tile - (stw_quotient(stw_seq_q(&p, at.b).first, rows) + at.b) : 0;
        return at;
    }
    const int64_t blocks = stw_blocks_of(p.max_seq_q, rows), head = stw_quotient(work_tile, blocks);
    at.block = work_tile - head * blocks;
    at.b = stw_quotient(head, p.heads_q);
    at.h = head - at.b * p.heads_q;
    at.live = true;
    return at;
}

#endif
