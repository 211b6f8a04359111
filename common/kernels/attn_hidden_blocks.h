/* SPDX-License-Identifier: MIT
 *
 * What interval and block masks hide, found once a call: a wave for a tile of l.bn keys of one head of the mask. Of
 * intervals it writes which rows each key is hidden from, clamped, and what that says of the tile as a whole; of a
 * block mask the bytes over the tile as bits. Memory and time are O(Sk) for intervals. The shared main loop and CDNA's
 * skip and test by it; Hopper's own makes lists of its own. Runs after the first kernel, which has written status_out;
 * after the forward, which needs no lists, it only checks. */
#ifndef STW_COMMON_KERNELS_ATTN_HIDDEN_BLOCKS_H
#define STW_COMMON_KERNELS_ATTN_HIDDEN_BLOCKS_H

#include "common/device/device.h"

/* Which keys a tile is: block `block` of sequence b. */
struct attn_hidden_place {
    int64_t b, block;
    bool live;
};

/* Numbers of tiles ascend with sequences. Wrong lengths may leave numbers that no sequence has. */
DEV_FN attn_hidden_place attn_hidden_place_of(const stw_attn_launch &l, int64_t tile) {
    const stw_attn_params &p = l.p;
    attn_hidden_place at = {0, 0, true};
    if (p.features & STW_FEAT_PACKED_KV) {
        int64_t end = p.batch;
        DEV_ROLLED while (end - at.b > 1) {
            const int64_t middle = at.b + (end - at.b) / 2;
            if (stw_quotient(stw_clamp_i64(p.cu_seqlens_kv[middle], 0, p.total_kv), l.bn) + middle <= tile)
                at.b = middle;
            else end = middle;
        }
    } else at.b = stw_quotient(tile, stw_blocks_of(p.max_seq_kv, l.bn));
    const stw_seq_span kv = stw_seq_kv(&p, at.b);
    at.block = tile - stw_hidden_tile(&p, &kv, l.bn, at.b);
    at.live = at.block >= 0 && at.block < stw_blocks_of(kv.used, l.bn);
    return at;
}

/* Of all lanes, the smallest or the largest number; none is negative. */
DEV_FN int attn_wave_smallest(int x) {
    DEV_UNROLL_FOR (int mask = DEV_WAVE / 2; mask > 0; mask /= 2) {
        const int y = (int)dev_shuffle((uint32_t)x, (int)dev_lane() ^ mask);
        if (y < x) x = y;
    }
    return x;
}
DEV_FN int attn_wave_largest(int x) {
    DEV_UNROLL_FOR (int mask = DEV_WAVE / 2; mask > 0; mask /= 2) {
        const int y = (int)dev_shuffle((uint32_t)x, (int)dev_lane() ^ mask);
        if (y > x) x = y;
    }
    return x;
}

DEV_FN void attn_hidden_by_intervals(const stw_attn_launch &l, int64_t head, int64_t tile) {
    const stw_attn_params &p = l.p;
    const attn_hidden_place place = attn_hidden_place_of(l, tile);
    if (!place.live || !p.intervals.data) return; /* null: a side without rows */
    const stw_seq_span q = stw_seq_q(&p, place.b), kv = stw_seq_kv(&p, place.b);
    const int64_t j0 = place.block * l.bn, at = head * l.hidden_tiles + tile;
    stw_hidden_block k = stw_hidden_block_of_none();
    int wrong = 0;
    DEV_ROLLED_FOR (int c = (int)dev_lane(); c < (int)l.bn; c += DEV_WAVE) {
        stw_hidden_rows rows = {{0, 0}, {0, 0}};
        if (j0 + c < kv.used) {
            const int32_t *bounds = stw_interval_at(&p, &kv, place.b, head, j0 + c);
            rows = stw_hidden_rows_of(&p, &q, bounds);
            stw_hidden_block_add(&k, &rows);
            wrong |= stw_bounds_are_wrong(&p, &q, bounds);
        }
        if (l.hidden_keys)
            dev_store_vector(l.hidden_keys + at * l.bn + c,
                             dev_vector{{(uint32_t)rows.first[0], (uint32_t)rows.first[1], (uint32_t)rows.end[0],
                                         (uint32_t)rows.end[1]}});
    }
    DEV_UNROLL_FOR (int x = 0; x < 2; ++x) {
        k.all_first[x] = attn_wave_largest(k.all_first[x]);
        k.all_end[x] = attn_wave_smallest(k.all_end[x]);
        k.any_first[x] = attn_wave_smallest(k.any_first[x]);
        k.any_end[x] = attn_wave_largest(k.any_end[x]);
    }
    wrong = attn_wave_largest(wrong);
    if (dev_lane()) return;
    if (l.hidden_blocks) l.hidden_blocks[at] = k;
    if (wrong && p.status_out) dev_global_or(p.status_out, STW_DATA_INTERVALS);
}

/* A lane 32 blocks of rows. Rows that are not in use see nothing. */
DEV_FN void attn_hidden_by_blocks(const stw_attn_launch &l, int64_t head, int64_t tile) {
    const stw_attn_params &p = l.p;
    const attn_hidden_place place = attn_hidden_place_of(l, tile);
    if (!place.live || !p.block_mask.data) return;
    const stw_seq_span q = stw_seq_q(&p, place.b), kv = stw_seq_kv(&p, place.b);
    const int64_t j0 = place.block * l.bn, last = stw_smaller(j0 + l.bn, kv.used) - 1;
    uint32_t *to = l.hidden_bits + (head * l.hidden_tiles + tile) * 2 * l.hidden_words;
    DEV_ROLLED_FOR (int64_t w = dev_lane(); w < l.hidden_words; w += DEV_WAVE) {
        uint32_t of_first = 0, of_last = 0;
        DEV_ROLLED_FOR (int r = 0; r < 32; ++r) {
            const int64_t i = (w * 32 + r) * STW_MASK_BLOCK;
            if (i >= q.used) break;
            if (stw_block_mask_at(&p, place.b, head, i, j0)) of_first |= 1u << r;
            if (stw_block_mask_at(&p, place.b, head, i, last)) of_last |= 1u << r;
        }
        to[w] = of_first;
        to[l.hidden_words + w] = of_last;
    }
}

/* The kernel: a wave a task. */
DEV_FN void attn_hidden_blocks(const stw_attn_launch &l) {
    dev_let_next_begin();
    const int64_t intervals = l.interval_heads * l.hidden_tiles, blocks = l.block_heads * l.hidden_tiles;
    int64_t task = dev_cta() * (STW_ROW_THREADS / DEV_WAVE) + dev_wave();
    if (task < intervals) {
        const int64_t head = stw_quotient(task, l.hidden_tiles);
        attn_hidden_by_intervals(l, head, task - head * l.hidden_tiles);
        return;
    }
    task -= intervals;
    if (task >= blocks) return;
    const int64_t head = stw_quotient(task, l.hidden_tiles);
    attn_hidden_by_blocks(l, head, task - head * l.hidden_tiles);
}

#endif
