/* SPDX-License-Identifier: MIT
 *
 * Interval and block masks in CDNA's own main loop (attn_bwd_cdna.h), kernels CDNA_HIDDEN, or with other features
 * CDNA_BIAS (attn_bwd_cdna_features.h). What attn_hidden_blocks.h has found of a work tile's keys tells of 64 query
 * blocks at a time which are hidden and which are touched. The scheduler goes over stretches of blocks that are not
 * hidden and enters each anew, since rows come a step ahead. Steps of touched blocks test pairs (CDNA_ANY); the others
 * are those of kernels that know no masks. C: attn_cdna, the shapes. Lane l is (n, g) = (l % 16, l / 16). */
#ifndef STW_HIP_ATTN_BWD_CDNA_HIDDEN_H
#define STW_HIP_ATTN_BWD_CDNA_HIDDEN_H

#include "attn_bwd_cdna_features.h"

/* Pairs of a step that are hidden are bits of a lane: 16 half + 4 i + r of its query 4 g + r and tile i. */
template <class C> struct attn_cdna_feature<C, CDNA_HIDDEN> {
    const stw_hidden_rows *keys;      /* of the work tile; null: no intervals     */
    const DEV_GLOBAL uint32_t *words; /* of the head's block mask; null: none     */
    int count, border;                /* words; keys of the mask's first block    */
    uint32_t bits;                    /* of a step                                */

    DEV_METHOD void set(const attn_work_tile &, cdna_launch, int) {}
    DEV_METHOD void lift() {}
    DEV_METHOD void enter_head(const attn_work_tile &u, cdna_launch launch, int h, int, int) {
        const stw_attn_launch &l = *(const stw_attn_launch *)launch;
        const int64_t tile = dev_uniform((int)u.index);
        keys = l.interval_heads ? l.hidden_keys + attn_hidden_at(l, tile, dev_uniform(u.kv_head)) * C::BN : nullptr;
        words = l.block_heads ? (const DEV_GLOBAL uint32_t *)attn_hidden_words(l, tile, h) : nullptr;
        count = (int)l.hidden_words;
        border = STW_MASK_BLOCK - dev_uniform(u.block) * C::BN % STW_MASK_BLOCK;
    }
    DEV_METHOD void enter_step(int block, int thread) {
        const int lane = thread & 63, key0 = C::KEYS * dev_uniform(thread >> 6) + (lane & 15);
        const uint32_t row0 = (uint32_t)(C::BM * block + 4 * (lane >> 4));
        const cdna_buffer from = cdna_buffer_of(keys, keys ? C::BN * (int)sizeof(*keys) : 0); /* nothing: zeros */
        leaf_u4 rows[C::TILES];
        DEV_UNROLL_FOR (int i = 0; i < C::TILES; ++i)
            rows[i] = __builtin_amdgcn_raw_buffer_load_b128(from, (key0 + 16 * i) * (int)sizeof(*keys), 0, 0);
        uint32_t first = ~0u, last = ~0u;
        if (words) {
            const int row = block / (STW_MASK_BLOCK / C::BM);
            first = words[row / 32] >> row % 32, last = words[count + row / 32] >> row % 32;
        }
        bits = 0;
        DEV_UNROLL_FOR (int i = 0; i < C::TILES; ++i) {
            const leaf_u4 x = rows[i];
            uint32_t hidden = 0;
            DEV_UNROLL_FOR (int half = 0; half < C::BM / 16; ++half)
                DEV_UNROLL_FOR (int r = 0; r < 4; ++r) {
                    const uint32_t row = row0 + (uint32_t)(16 * half + r);
                    hidden |= row - x[0] < x[2] - x[0] || row - x[1] < x[3] - x[1] ? 1u << (16 * half + r) : 0u;
                }
            if (!((key0 + 16 * i < border ? first : last) & 1)) hidden = 0x000f000fu;
            bits |= hidden << 4 * i;
        }
    }
    DEV_METHOD bool hides(int half, int i, int r) const { return (bits & 1u << (half % 2 * 16 + 4 * i + r)) != 0; }
};

template <class C> DEV_FN attn_cdna_feature<C, CDNA_HIDDEN> &cdna_masks_of(attn_cdna_feature<C, CDNA_HIDDEN> &feature) {
    return feature;
}
template <class C> DEV_FN attn_cdna_feature<C, CDNA_HIDDEN> &cdna_masks_of(attn_cdna_feature<C, CDNA_BIAS> &feature) {
    return feature.masks;
}

/* Of query block `block`, which may differ from lane to lane: all pairs with the work tile's keys are hidden; some may
 * be. The first is the rule of attn_hidden_jump. `behind`: of the key block so many after the work tile's; then `some`
 * means nothing. */
struct attn_cdna_hidden {
    bool all, some;
};
template <class C>
DEV_FN attn_cdna_hidden attn_cdna_hidden_of(const attn_cdna_feature<C, CDNA_HIDDEN> &feature, const attn_work_tile &u,
                                            int block, int behind = 0) {
    const stw_attn_launch &l = *(const stw_attn_launch *)cdna_launch_again();
    attn_cdna_hidden is = {false, false};
    if (feature.keys) {
        const stw_hidden_block k = attn_hidden_block_of(l, dev_uniform((int)u.index) + behind, dev_uniform(u.kv_head));
        const int64_t i0 = (int64_t)block * C::BM;
        is.all = stw_hidden_block_hides_all(&k, i0, stw_smaller(i0 + C::BM, u.seq.q.used)) != 0;
        is.some = !stw_hidden_block_hides_none(&k, i0, i0 + C::BM);
    }
    const int row = block / (STW_MASK_BLOCK / C::BM);
    if (feature.words && row / 32 < feature.count) {
        const DEV_GLOBAL uint32_t *words = feature.words + (row / 32 + 2 * behind * feature.count);
        const bool first = words[0] >> row % 32 & 1, last = words[feature.count] >> row % 32 & 1;
        is.all |= !first && !last;
        is.some |= !first || (feature.border < C::BN && !last);
    }
    return is;
}

/* Deterministic mode: the key block that adds to query block `block` before this one, or the one past the last of all
 * (attn_cdna_turn): the next that masks do not hide from all of its rows. */
template <class C>
DEV_FN uint32_t attn_cdna_awaited(const attn_cdna_feature<C, CDNA_HIDDEN> &feature, const attn_work_tile &u,
                                  int block) {
    const int end = (int)stw_key_blocks(&u.seq, C::BM, C::BN, block).end, mine = dev_uniform(u.block);
    int behind = 1;
    DEV_ROLLED while (mine + behind < end && attn_cdna_hidden_of<C>(feature, u, block, behind).all)++ behind;
    return (uint32_t)(mine + behind);
}

/* From `block` on, before `end`: the first query block that is hidden, or that is not. */
template <bool HIDDEN, class C>
DEV_FN int attn_cdna_next(const attn_cdna_feature<C, CDNA_HIDDEN> &feature, const attn_work_tile &u, int block, int end,
                          int lane) {
    DEV_ROLLED for (; block < end; block += 64) {
        const uint64_t found =
            __builtin_amdgcn_ballot_w64(attn_cdna_hidden_of<C>(feature, u, block + lane).all == HIDDEN);
        if (found) return (int)stw_smaller(block + __builtin_ctzll(found), end);
    }
    return end;
}

#endif
