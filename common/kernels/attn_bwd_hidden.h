/* SPDX-License-Identifier: MIT
 *
 * Interval and block masks in the shared main loop. What attn_hidden_blocks.h has found of a work tile's keys tells in
 * O(1) which query block comes next, all between being hidden (skipped), and whether it is touched: a step of a
 * touched one sets P of hidden pairs to 0, and dS with it. Any other step knows nothing of masks. Nothing of this is
 * kept over a step: no registers and no shared memory are left for 32 bytes, and L1 holds them.
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

DEV_FN bool attn_has_masks(const stw_attn_launch &l) {
    return (l.p.features & (STW_FEAT_INTERVALS | STW_FEAT_BLOCK_MASK)) != 0;
}

/* Number of tile `tile` of a kv head among those of all heads of the intervals. */
DEV_FN int64_t attn_hidden_at(const stw_attn_launch &l, int64_t tile, int kv_head) {
    return (l.interval_heads > 1 ? stw_quotient(kv_head, l.head_parts) : 0) * l.hidden_tiles + tile;
}

/* What intervals hide of a tile. */
DEV_FN stw_hidden_block attn_hidden_block_of(const stw_attn_launch &l, int64_t tile, int kv_head) {
    const char *from = (const char *)(l.hidden_blocks + attn_hidden_at(l, tile, kv_head));
    const dev_vector all = dev_load_vector(from), any = dev_load_vector(from + 16);
    stw_hidden_block k;
    DEV_UNROLL_FOR (int x = 0; x < 2; ++x) {
        k.all_first[x] = (int)all.word[x];
        k.all_end[x] = (int)all.word[2 + x];
        k.any_first[x] = (int)any.word[x];
        k.any_end[x] = (int)any.word[2 + x];
    }
    return k;
}
static_assert(sizeof(stw_hidden_block) == 32 && offsetof(stw_hidden_block, any_first) == 16, "two vectors");
static_assert(sizeof(stw_hidden_rows) == 16, "a vector");

/* Blocks of a block mask over tile `tile` that query head h sees in mask row `row`. */
enum { ATTN_SEES_FIRST = 1, ATTN_SEES_LAST = 2 };
DEV_FN const uint32_t *attn_hidden_words(const stw_attn_launch &l, int64_t tile, int h) {
    return l.hidden_bits + ((l.block_heads > 1 ? h : 0) * l.hidden_tiles + tile) * 2 * l.hidden_words;
}
DEV_FN int attn_hidden_sees(const stw_attn_launch &l, int64_t tile, int h, int row) {
    const uint32_t *words = attn_hidden_words(l, tile, h) + row / 32;
    return (words[0] >> row % 32 & 1 ? ATTN_SEES_FIRST : 0) |
           (words[l.hidden_words] >> row % 32 & 1 ? ATTN_SEES_LAST : 0);
}

/* The first query block of head h, from `block` on and before `end`, that sees a key by the block mask; or `end`. */
template <class C>
DEV_FN int attn_hidden_next_block(const stw_attn_launch &l, int64_t tile, int h, int block, int end) {
    static_assert(STW_MASK_BLOCK % C::BM == 0, "a query block lies in one block of the mask");
    enum { SHARE = STW_MASK_BLOCK / C::BM };
    const uint32_t *words = attn_hidden_words(l, tile, h);
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

/* The first query block of head h, from `block` on and before `end`, that masks do not hide from all keys of u; or
 * `end`. */
template <class C>
DEV_FN int attn_hidden_jump(const stw_attn_launch &l, const attn_key_block &u, int kv_head, int h, int block, int end) {
    const uint32_t used = (uint32_t)dev_uniform(u.seq.q.used);
    int was = -1;
    DEV_ROLLED while (block < end && block != was) {
        was = block;
        if (l.interval_heads) {
            const stw_hidden_block k = attn_hidden_block_of(l, u.index, kv_head);
            DEV_UNROLL_FOR (int x = 0; x < 2; ++x) {
                const uint32_t i0 = (uint32_t)block * C::BM, i1 = i0 + C::BM < used ? i0 + C::BM : used,
                               first = (uint32_t)k.all_first[x], last = (uint32_t)k.all_end[x];
                if (first <= i0 && last >= i1) block = last >= used ? end : (int)(last / C::BM);
            }
        }
        if (l.block_heads && block < end) block = attn_hidden_next_block<C>(l, u.index, h, block, end);
    }
    return dev_uniform(block < end ? block : end);
}

/* Keys from the first one of u to the end of the mask's block that has its tile's first key; u may be a part of the
 * tile. */
DEV_FN int attn_hidden_border(const stw_attn_launch &l, const attn_key_block &u) {
    const int j0 = u.block * (int)l.bn;
    return STW_MASK_BLOCK - j0 % STW_MASK_BLOCK - (int)(u.j0 - j0);
}

/* Whether pairs of query block `block` of head h with the keys of u are to be tested. */
template <class C>
DEV_FN bool attn_hidden_touches(const stw_attn_launch &l, const attn_key_block &u, int kv_head, int h, int block) {
    bool touched = false;
    if (l.interval_heads) {
        const stw_hidden_block k = attn_hidden_block_of(l, u.index, kv_head);
        const int64_t i0 = (int64_t)block * C::BM;
        touched = !stw_hidden_block_hides_none(&k, i0, i0 + C::BM);
    }
    if (l.block_heads && !touched) {
        const int sees = attn_hidden_sees(l, u.index, h, block / (STW_MASK_BLOCK / C::BM)),
                  border = attn_hidden_border(l, u);
        touched = (border > 0 && !(sees & ATTN_SEES_FIRST)) || (border < C::BN && !(sees & ATTN_SEES_LAST));
    }
    return dev_uniform((int)touched) != 0;
}

/* Deterministic mode: the key block before that of u that adds to query block `block`, counted from 1; 0: there is
 * none. One wave; many key blocks at a time. Key blocks between the two do not add: all of their pairs with this query
 * block are hidden, by the rule of attn_hidden_jump. */
template <class C>
DEV_FN uint32_t attn_hidden_before(const stw_attn_launch &l, const attn_key_block &u, int kv_head, int h, int block,
                                   int lane) {
    const int64_t i0 = (int64_t)block * C::BM, i1 = stw_smaller(i0 + C::BM, u.seq.q.used);
    const int first = (int)stw_key_blocks(&u.seq, C::BM, C::BN, block).first;
    DEV_ROLLED_FOR (int top = u.block - 1; top >= first; top -= DEV_WAVE) {
        const int k = top - lane;
        const int64_t tile = (int64_t)u.index - (u.block - k);
        uint32_t found = k >= first ? (uint32_t)k + 1 : 0;
        if (found && l.interval_heads) {
            const stw_hidden_block hidden = attn_hidden_block_of(l, tile, kv_head);
            if (stw_hidden_block_hides_all(&hidden, i0, i1)) found = 0;
        }
        if (found && l.block_heads && !attn_hidden_sees(l, tile, h, block / (STW_MASK_BLOCK / C::BM))) found = 0;
        DEV_UNROLL_FOR (int mask = DEV_WAVE / 2; mask > 0; mask /= 2) {
            const uint32_t other = dev_shuffle(found, lane ^ mask);
            if (other > found) found = other;
        }
        if (found) return found;
    }
    return 0;
}

/* P of hidden pairs of query block `block` of head h becomes 0, in registers. */
template <class C, class S>
DEV_FN void attn_hidden_apply(dev_acc<S> &p, const stw_attn_launch &l, const attn_key_block &u, int kv_head, int h,
                              int block, int wave, int lane) {
    const int sees = l.block_heads ? attn_hidden_sees(l, u.index, h, block / (STW_MASK_BLOCK / C::BM))
                                   : (int)ATTN_SEES_FIRST | ATTN_SEES_LAST,
              border = attn_hidden_border(l, u), i0 = block * C::BM + S::row0(wave);
    const stw_hidden_rows *keys =
        l.hidden_keys + attn_hidden_at(l, u.index, kv_head) * l.bn + (u.j0 - (int64_t)u.block * l.bn);
    DEV_UNROLL_FOR (int n = 0; n < S::NT; ++n)
        DEV_UNROLL_FOR (int i = 0; i < LEAF_ACC; ++i) {
            const int col = S::col0(wave) + n * LEAF_MMA_N + leaf_acc_col(lane, i);
            const bool shown = sees & (col < border ? ATTN_SEES_FIRST : ATTN_SEES_LAST);
            dev_vector rows = {{0, 0, 0, 0}};
            if (l.interval_heads) rows = dev_load_vector(keys + col);
            DEV_UNROLL_FOR (int m = 0; m < S::MT; ++m) {
                const uint32_t row = (uint32_t)(i0 + m * LEAF_MMA_M + leaf_slot_row(lane, leaf_acc_slot(i)));
                if (!shown || row - rows.word[0] < rows.word[2] - rows.word[0] ||
                    row - rows.word[1] < rows.word[3] - rows.word[1])
                    p.v[m][n][i] = 0.0f;
            }
        }
}

#endif
