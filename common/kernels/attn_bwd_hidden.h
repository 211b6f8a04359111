/* SPDX-License-Identifier: MIT
 *
 * Interval and block masks in the shared main loop. Of a work tile one thread derives from attn_hidden_blocks.h which
 * query blocks its steps skip, two ranges at most for intervals, and which the intervals touch, two ranges again; bits
 * say the same of a block mask. A step of a touched query block sets P of hidden pairs to 0, and dS with it; any other
 * step knows nothing of masks.
 *
 *     keys     +----+
 *              |    |  rows of an earlier document: skipped
 *              |   /|  documents change: touched
 *              |####|  every pair is seen but for the band
 *              |    |  skipped
 *              +----+ */
#ifndef STW_COMMON_KERNELS_ATTN_BWD_HIDDEN_H
#define STW_COMMON_KERNELS_ATTN_BWD_HIDDEN_H

#include "common/device/tile.h"
#include "common/kernels/attn_bwd_list.h"

/* What masks hide of a work tile. Lies in shared memory behind the work tiles. */
struct alignas(16) attn_hidden_tile {
    int skip_first[2], skip_end[2];       /* query blocks that intervals hide all pairs of              */
    int touched_first[2], touched_end[2]; /* those that they hide some pairs of                         */
    const stw_hidden_rows *keys;          /* of the work tile's first key                               */
    uint32_t tile;                        /* its number among tiles of l.bn keys                        */
    int border;                           /* keys from its first one to the block mask's next block     */
};
static_assert(sizeof(attn_hidden_tile) == STW_HIDDEN_TILE_BYTES, "host and device agree on its place");

DEV_FN bool attn_has_masks(const stw_attn_launch &l) {
    return (l.p.features & (STW_FEAT_INTERVALS | STW_FEAT_BLOCK_MASK)) != 0;
}

template <class C> DEV_FN attn_hidden_tile &attn_hidden_of(char *smem) {
    return *(attn_hidden_tile *)(void *)(smem + C::AT_HIDDEN);
}

/* One thread. Work tiles may be smaller than l.bn keys, which theirs are a part of. */
template <class C>
DEV_FN void attn_hidden_enter(attn_hidden_tile &t, const stw_attn_launch &l, const attn_key_block &u, int kv_head) {
    const stw_attn_params &p = l.p;
    const int64_t block = stw_quotient(u.j0, l.bn), j0 = block * l.bn, used = u.seq.q.used,
                  tile = stw_hidden_tile(&p, &u.seq.kv, l.bn, u.b) + block;
    t.tile = (uint32_t)tile;
    t.border = (int)((stw_quotient(j0, STW_MASK_BLOCK) + 1) * STW_MASK_BLOCK - u.j0);
    DEV_UNROLL_FOR (int x = 0; x < 2; ++x) t.skip_first[x] = t.skip_end[x] = t.touched_first[x] = t.touched_end[x] = 0;
    if (!(p.features & STW_FEAT_INTERVALS)) return;
    const int64_t head = l.interval_heads > 1 ? stw_quotient(kv_head, l.head_parts) : 0,
                  at = head * l.hidden_tiles + tile;
    const stw_hidden_block k = l.hidden_blocks[at];
    t.keys = l.hidden_keys + at * l.bn + (u.j0 - j0);
    DEV_UNROLL_FOR (int x = 0; x < 2; ++x) {
        t.skip_first[x] = (int)stw_blocks_of(k.all_first[x], C::BM);
        t.skip_end[x] = (int)(k.all_end[x] >= used ? stw_blocks_of(used, C::BM) : stw_quotient(k.all_end[x], C::BM));
        if (k.any_first[x] >= k.any_end[x]) continue;
        t.touched_first[x] = (int)stw_quotient(k.any_first[x], C::BM);
        t.touched_end[x] = (int)stw_blocks_of(k.any_end[x], C::BM);
    }
}

/* Bits of the block mask over tile number `tile`, of head h. */
DEV_FN const uint32_t *attn_hidden_words(const stw_attn_launch &l, int64_t tile, int h) {
    return l.hidden_bits + ((l.block_heads > 1 ? h : 0) * l.hidden_tiles + tile) * 2 * l.hidden_words;
}

/* The first query block of head h, from `block` on and before `end`, that sees a key by the block mask; or `end`. */
template <class C>
DEV_FN int attn_hidden_next_block(const attn_hidden_tile &t, const stw_attn_launch &l, int h, int block, int end) {
    static_assert(STW_MASK_BLOCK % C::BM == 0, "a query block lies in one block of the mask");
    enum { SHARE = STW_MASK_BLOCK / C::BM };
    const uint32_t *words = attn_hidden_words(l, t.tile, h);
    int row = block / SHARE, w = row / 32;
    const int count = (int)l.hidden_words;
    uint32_t x = (words[w] | words[count + w]) >> row % 32;
    if (x & 1) return block;
    DEV_ROLLED while (!x) {
        if (++w >= count) return end;
        x = words[w] | words[count + w];
        row = w * 32;
    }
    DEV_ROLLED for (; !(x & 1); x >>= 1)++ row;
    return row * SHARE;
}

/* The first query block of head h, from `block` on and before `end`, that is not skipped; or `end`. */
template <class C>
DEV_FN int attn_hidden_jump(const attn_hidden_tile &t, const stw_attn_launch &l, int h, int block, int end) {
    int was = -1;
    DEV_ROLLED while (block < end && block != was) {
        was = block;
        DEV_UNROLL_FOR (int x = 0; x < 2; ++x)
            if (block >= t.skip_first[x] && block < t.skip_end[x]) block = t.skip_end[x];
        if (l.block_heads && block < end) block = attn_hidden_next_block<C>(t, l, h, block, end);
    }
    return block < end ? block : end;
}

/* Whether pairs of query block `block` of head h are to be tested. */
template <class C>
DEV_FN bool attn_hidden_touches(const attn_hidden_tile &t, const stw_attn_launch &l, int h, int block) {
    bool touched = false;
    if (l.interval_heads)
        touched = (block >= t.touched_first[0] && block < t.touched_end[0]) ||
                  (block >= t.touched_first[1] && block < t.touched_end[1]);
    if (l.block_heads && !touched) {
        const uint32_t *words = attn_hidden_words(l, t.tile, h);
        const int row = block * C::BM / STW_MASK_BLOCK, w = row / 32;
        touched = (t.border > 0 && !(words[w] >> row % 32 & 1)) ||
                  (t.border < C::BN && !(words[l.hidden_words + w] >> row % 32 & 1));
    }
    return dev_uniform((int)touched) != 0;
}

/* All pairs of rows [i0, i1) of head h with tile number `tile` are hidden: the rule by which work tiles skip. */
DEV_FN bool attn_hidden_all(const stw_attn_launch &l, int64_t tile, int kv_head, int h, int64_t i0, int64_t i1) {
    if (l.interval_heads) {
        const int64_t head = l.interval_heads > 1 ? stw_quotient(kv_head, l.head_parts) : 0;
        if (stw_hidden_block_hides_all(l.hidden_blocks + head * l.hidden_tiles + tile, i0, i1)) return true;
    }
    if (!l.block_heads) return false;
    const uint32_t *words = attn_hidden_words(l, tile, h);
    const int row = (int)(i0 / STW_MASK_BLOCK), w = row / 32;
    return !((words[w] | words[l.hidden_words + w]) >> row % 32 & 1);
}

/* Deterministic mode: the key block before that of u that adds to query block `block`, counted from 1; 0: there is
 * none. One wave; many key blocks at a time. */
template <class C>
DEV_FN uint32_t attn_hidden_before(const stw_attn_launch &l, const attn_key_block &u, const attn_hidden_tile &t,
                                   int kv_head, int h, int block, int lane) {
    const int64_t i0 = (int64_t)block * C::BM, i1 = stw_smaller(i0 + C::BM, u.seq.q.used);
    const int first = (int)stw_key_blocks(&u.seq, C::BM, C::BN, block).first;
    DEV_ROLLED_FOR (int top = u.block - 1; top >= first; top -= DEV_WAVE) {
        const int k = top - lane;
        uint32_t found = 0;
        if (k >= first && !attn_hidden_all(l, (int64_t)t.tile - (u.block - k), kv_head, h, i0, i1))
            found = (uint32_t)k + 1;
        DEV_UNROLL_FOR (int mask = DEV_WAVE / 2; mask > 0; mask /= 2) {
            const uint32_t other = dev_shuffle(found, lane ^ mask);
            if (other > found) found = other;
        }
        if (found) return found;
    }
    return 0;
}

/* P of hidden pairs becomes 0, in registers. Rows of query block `block` of head h. */
template <class C, class S>
DEV_FN void attn_hidden_apply(dev_acc<S> &p, const attn_hidden_tile &t, const stw_attn_launch &l, int h, int block,
                              int wave, int lane) {
    bool of_first = true, of_last = true; /* the block mask shows the keys before the border, and behind it */
    if (l.block_heads) {
        const uint32_t *words = attn_hidden_words(l, t.tile, h);
        const int row = block * C::BM / STW_MASK_BLOCK, w = row / 32;
        of_first = words[w] >> row % 32 & 1;
        of_last = words[l.hidden_words + w] >> row % 32 & 1;
    }
    const int i0 = block * C::BM + S::row0(wave);
    DEV_UNROLL_FOR (int n = 0; n < S::NT; ++n)
        DEV_UNROLL_FOR (int i = 0; i < LEAF_ACC; ++i) {
            const int col = S::col0(wave) + n * LEAF_MMA_N + leaf_acc_col(lane, i);
            const bool shown = col < t.border ? of_first : of_last;
            dev_vector rows = {{0, 0, 0, 0}};
            if (l.interval_heads) rows = dev_load_vector(t.keys + col);
            DEV_UNROLL_FOR (int m = 0; m < S::MT; ++m) {
                const uint32_t row = (uint32_t)(i0 + m * LEAF_MMA_M + leaf_slot_row(lane, leaf_acc_slot(i)));
                if (!shown || row - rows.word[0] < rows.word[2] - rows.word[0] ||
                    row - rows.word[1] < rows.word[3] - rows.word[1])
                    p.v[m][n][i] = 0.0f;
            }
        }
}

#endif
