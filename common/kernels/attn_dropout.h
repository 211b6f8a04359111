/* SPDX-License-Identifier: MIT
 *
 * Dropout's decisions for a wave's part of a tile, as bits in registers. A Philox call decides several elements. Where
 * the tile lies on the map's grid no call is made twice: lanes that share a call's elements share the calls and
 * exchange bits. common/philox.h says what the bits are. */
#ifndef STW_COMMON_KERNELS_ATTN_DROPOUT_H
#define STW_COMMON_KERNELS_ATTN_DROPOUT_H

#include "common/device/mask.h"

/* Element e of a lane, in the order (m, n, value), is bit e. */
template <class S> struct attn_dropout {
    enum { COUNT = S::MT * S::NT, WORDS = (COUNT * LEAF_ACC + 31) / 32 };
    uint32_t word[WORDS];
    DEV_METHOD bool at(int e) const { return (word[e / 32] & (1u << e % 32)) != 0; }
    DEV_METHOD void all() {
        DEV_UNROLL_FOR (int w = 0; w < WORDS; ++w) word[w] = ~0u;
    }
    DEV_FN void all(attn_dropout &k) { k.all(); }
};

/* Sternway's own map (STW_DROPOUT_PHILOX), for tiles that start at a multiple of four rows of it: the four words of a
 * call belong to four rows. NVIDIA's fragments have these rows in four lanes, so each lane makes the calls of one value
 * of the fragments, and the lanes exchange bits. On AMD the rows are one lane's own. The calls run under a product,
 * whose memory operations leave time for them. */
template <class S> struct attn_dropout_philox {
    enum { COUNT = S::MT * S::NT, WORDS = (COUNT * 4 + 31) / 32, ROUNDED = 0 };
    static_assert(LEAF_ACC == 4, "a call a fragment");
    uint32_t nibble[WORDS]; /* of fragment f: the call's four bits */
    uint32_t row, col, head, offset, key0, key1, threshold;
    DEV_FN bool fits(const stw_attn_params &p, const stw_dropout_stream &stream, int64_t i0) {
        return p.dropout_map == STW_DROPOUT_PHILOX && ((i0 + stream.q_offset) & 3) == 0;
    }
    DEV_FN attn_dropout_philox of(const stw_attn_params &p, const stw_dropout_stream &s, int64_t i0, int64_t j0,
                                  int wave, int lane) {
        attn_dropout_philox k;
        int mine = leaf_row_of_four(lane);
        k.row = (uint32_t)((uint64_t)(i0 + s.q_offset + S::row0(wave) + leaf_slot_row(lane, leaf_acc_slot(mine))) >> 2);
        k.col = (uint32_t)(j0 + s.kv_offset + S::col0(wave) + leaf_acc_col(lane, mine));
        k.head = (uint32_t)dev_uniform((int)s.head);
        k.offset = (uint32_t)dev_uniform((int)s.offset);
        k.key0 = (uint32_t)dev_uniform((int)s.seed);
        k.key1 = (uint32_t)dev_uniform((int)((uint32_t)(s.seed >> 32) ^ (uint32_t)(s.offset >> 32)));
        k.threshold = p.dropout_threshold;
        DEV_UNROLL_FOR (int w = 0; w < WORDS; ++w) k.nibble[w] = 0;
        return k;
    }
    DEV_METHOD uint32_t call(int m, int n) const {
        stw_philox_words w =
            stw_philox4x32(10, row + m * (LEAF_MMA_M / 4), col + n * LEAF_MMA_N, head, offset, key0, key1);
        uint32_t bits = 0;
        DEV_UNROLL_FOR (int i = 0; i < 4; ++i) bits |= w.word[i] >= threshold ? 1u << i : 0u;
        return bits;
    }
    /* Those of fragments `first` to `end`. */
    DEV_METHOD void some(int first, int end) {
        DEV_UNROLL_FOR (int f = 0; f < COUNT; ++f)
            if (f >= first && f < end) nibble[f / 8] |= call(f / S::NT, f % S::NT) << f % 8 * 4;
    }
    DEV_METHOD void step(int k, int steps) { some(COUNT * k / steps, COUNT * (k + 1) / steps); }
    DEV_METHOD void every() {
        DEV_UNROLL_FOR (int w = 0; w < WORDS; ++w)
            DEV_UNROLL_2_FOR (int f = w * 8; f < COUNT && f < w * 8 + 8; ++f)
                nibble[w] |= call(f / S::NT, f % S::NT) << f % 8 * 4;
    }
    DEV_METHOD void give(attn_dropout<S> &to, int lane) const {
        int mine = leaf_row_of_four(lane);
        DEV_UNROLL_FOR (int w = 0; w < WORDS; ++w) {
            to.word[w] = LEAF_FOUR_LANES == 1 ? nibble[w] : 0;
            DEV_UNROLL_FOR (int i = 0; i < 4; ++i) /* calls of the lane with row i */
                if (LEAF_FOUR_LANES != 1)
                    to.word[w] |= (dev_shuffle(nibble[w], leaf_lane_of_four(lane, i)) >> mine & 0x11111111u) << i;
        }
    }
};

/* FlashAttention-2's map was made from these fragments: a call's sixteen bytes are a lane's elements in sixteen rows
 * and 32 columns. The tile's corner lies on that grid. */
template <class S>
DEV_FN void attn_dropout_flash2(attn_dropout<S> &k, const stw_attn_params &p, const stw_dropout_stream &s, int64_t i0,
                                int64_t j0, int wave, int lane) {
    uint64_t subsequence = s.offset + s.head * 32u + (uint32_t)lane;
    uint32_t key0 = (uint32_t)dev_uniform((int)s.seed), key1 = (uint32_t)dev_uniform((int)(s.seed >> 32));
    int c0 = S::col0(wave);
    DEV_UNROLL_FOR (int w = 0; w < attn_dropout<S>::WORDS; ++w) k.word[w] = 0;
    DEV_UNROLL_FOR (int m = 0; m < S::MT; ++m) {
        stw_philox_words words = {{0, 0, 0, 0}};
        DEV_UNROLL_FOR (int n = 0; n < S::NT; ++n) {
            int col = c0 + n * LEAF_MMA_N, f = m * S::NT + n;
            if (n == 0 || col % 32 == 0)
                words = stw_philox4x32(7, (uint32_t)subsequence, (uint32_t)(subsequence >> 32),
                                       (uint32_t)((uint64_t)(i0 + S::row0(wave) + m * LEAF_MMA_M) >> 4),
                                       (uint32_t)((uint64_t)(j0 + col) >> 5), key0, key1);
            int quarter = col / 8 % 4;
            uint32_t bytes = quarter == 0   ? words.word[0]
                             : quarter == 1 ? words.word[1]
                             : quarter == 2 ? words.word[2]
                                            : words.word[3];
            DEV_UNROLL_FOR (int i = 0; i < 4; ++i)
                k.word[f / 8] |= (bytes >> (8 * i) & 0xFFu) <= p.dropout_byte ? 1u << (f % 8 * 4 + i) : 0u;
        }
    }
}

/* The same under a product, sixteen rows a step, for waves whose columns begin on the grid. The bytes of a word are
 * compared two at a time: 256 + dropout_byte - byte has bit 8 where the element is kept. */
template <class S> struct attn_dropout_flash2_side {
    enum { COUNT = S::MT * S::NT, ROUNDED = 0, FITS = LEAF_ACC_PAIRS && S::N == 32 && S::MT % 2 == 0 };
    uint32_t pairs[attn_dropout<S>::WORDS]; /* of fragment f: bits 2 f and 2 f + 1 of both halves: rows 0 and 8 */
    uint32_t c0, c1, row, col, key0, key1, limit;
    DEV_FN bool fits(const stw_attn_params &p, int64_t i0, int64_t j0) {
        return FITS && p.dropout_map == STW_DROPOUT_FLASH2 && ((i0 | j0) & 15) == 0 && (j0 & 31) == 0;
    }
    DEV_FN attn_dropout_flash2_side of(const stw_attn_params &p, const stw_dropout_stream &s, int64_t i0, int64_t j0,
                                       int wave, int lane) {
        attn_dropout_flash2_side k;
        uint64_t subsequence = s.offset + s.head * 32u + (uint32_t)lane;
        k.c0 = (uint32_t)subsequence;
        k.c1 = (uint32_t)(subsequence >> 32);
        k.row = (uint32_t)((uint64_t)(i0 + S::row0(wave)) >> 4);
        k.col = (uint32_t)((uint64_t)(j0 + S::col0(wave)) >> 5);
        k.key0 = (uint32_t)dev_uniform((int)s.seed);
        k.key1 = (uint32_t)dev_uniform((int)(s.seed >> 32));
        k.limit = p.dropout_byte * 0x00010001u + 0x01000100u;
        DEV_UNROLL_FOR (int w = 0; w < attn_dropout<S>::WORDS; ++w) k.pairs[w] = 0;
        return k;
    }
    DEV_FN uint32_t moved(uint32_t x, int right) { return right >= 0 ? x >> right : x << -right; }
    DEV_METHOD void step(int k, int steps) {
        DEV_UNROLL_FOR (int m = 0; m < S::MT; ++m) {
            if (m < S::MT * k / steps || m >= S::MT * (k + 1) / steps) continue;
            stw_philox_words words = stw_philox4x32(7, c0, c1, row + m, col, key0, key1);
            DEV_UNROLL_FOR (int n = 0; n < S::NT; ++n) {
                int f = (m * S::NT + n) % 8 * 2;
                uint32_t first = limit - (words.word[n % 4] & 0x00FF00FFu),
                         second = limit - (words.word[n % 4] >> 8 & 0x00FF00FFu);
                pairs[(m * S::NT + n) / 8] |=
                    (moved(first, 8 - f) & 0x00010001u << f) | (moved(second, 7 - f) & 0x00020002u << f);
            }
        }
    }
    DEV_METHOD void give(attn_dropout<S> &to) const {
        DEV_UNROLL_FOR (int w = 0; w < attn_dropout<S>::WORDS; ++w)
            to.word[w] = spread(pairs[w] & 0xFFFFu) | spread(pairs[w] >> 16) << 2;
    }
    DEV_FN uint32_t spread(uint32_t x) { /* pairs of bits to every second pair */
        x = (x | x << 8) & 0x00FF00FFu;
        x = (x | x << 4) & 0x0F0F0F0Fu;
        return (x | x << 2) & 0x33333333u;
    }
};

/* Decisions of the next step's tile, made under a product of this step, as a map's own type has them: of Philox the
 * first half, of flash's map all. */
template <class S> struct attn_dropout_next {
    enum { NOTHING, PHILOX, FLASH2, HALF = S::MT * S::NT / 2 };
    uint32_t word[attn_dropout<S>::WORDS];
    int made;
};

/* A half of Philox's calls under a product. */
template <class S, int HALF> struct attn_dropout_philox_half {
    enum { COUNT = attn_dropout_next<S>::HALF, ROUNDED = 0 };
    attn_dropout_philox<S> &calls;
    DEV_METHOD void step(int k, int steps) {
        calls.some(HALF * COUNT + COUNT * k / steps, HALF * COUNT + COUNT * (k + 1) / steps);
    }
};

/* The memory-efficient kernels' map: a call decides four consecutive keys of a row, which two neighbouring lanes hold;
 * each lane makes the calls of one of its two rows. Rows begin at multiples of four. */
template <class S>
DEV_FN void attn_dropout_mem_eff(attn_dropout<S> &k, const stw_attn_params &p, const stw_dropout_stream &s, int64_t i0,
                                 int64_t j0, int wave, int lane) {
    int mine = lane & 1;
    uint32_t key0 = (uint32_t)dev_uniform((int)s.seed), key1 = (uint32_t)dev_uniform((int)(s.seed >> 32));
    uint64_t row = (uint64_t)(i0 + S::row0(wave) + leaf_slot_row(lane, leaf_acc_slot(2 * mine)));
    uint64_t first = s.base + row * s.row_stride + (uint64_t)(j0 + S::col0(wave) + (leaf_acc_col(lane, 0) & ~3));
    DEV_UNROLL_FOR (int w = 0; w < attn_dropout<S>::WORDS; ++w) {
        uint32_t own = 0;
        DEV_UNROLL_2_FOR (int f = w * 8; f < attn_dropout<S>::COUNT && f < w * 8 + 8; ++f) {
            uint64_t counter =
                (first + (uint64_t)(f / S::NT * LEAF_MMA_M) * s.row_stride + (uint64_t)(f % S::NT * LEAF_MMA_N)) >> 2;
            stw_philox_words words =
                stw_philox4x32(10, (uint32_t)counter, (uint32_t)(counter >> 32), 0u, 0u, key0, key1);
            DEV_UNROLL_FOR (int i = 0; i < 4; ++i)
                own |= words.word[i] >= p.dropout_threshold ? 1u << (f % 8 * 4 + i) : 0u;
        }
        uint32_t other = dev_shuffle(own, lane ^ 1), upper = mine ? other : own, lower = mine ? own : other;
        k.word[w] = (upper >> (2 * mine) & 0x33333333u) | (lower >> (2 * mine) & 0x33333333u) << 2;
    }
}

/* Any map, any position. */
template <class S>
DEV_FN void attn_dropout_fill(attn_dropout<S> &k, const stw_attn_params &p, const stw_dropout_stream &stream,
                              const dev_mask &mask, int64_t i0, int64_t j0, int wave, int lane) {
    enum { COUNT = attn_dropout<S>::COUNT, WORDS = attn_dropout<S>::WORDS };
    if (attn_dropout_philox<S>::fits(p, stream, i0)) {
        attn_dropout_philox<S> calls = attn_dropout_philox<S>::of(p, stream, i0, j0, wave, lane);
        calls.every();
        calls.give(k, lane);
    } else if (LEAF_ACC_PAIRS && p.dropout_map == STW_DROPOUT_FLASH2 && ((i0 | j0) & 15) == 0 && (j0 & 31) == 0) {
        attn_dropout_flash2<S>(k, p, stream, i0, j0, wave, lane);
    } else if (LEAF_ACC_PAIRS && p.dropout_map == STW_DROPOUT_MEM_EFF && (float)p.dropout_p < 1.0f &&
               ((stream.base | stream.row_stride | (uint64_t)j0) & 3) == 0) {
        attn_dropout_mem_eff<S>(k, p, stream, i0, j0, wave, lane);
    } else {
        DEV_UNROLL_FOR (int w = 0; w < WORDS; ++w) {
            k.word[w] = 0;
            DEV_ROLLED_FOR (int e = w * 32; e < COUNT * LEAF_ACC && e < w * 32 + 32; ++e) {
                int i = e % LEAF_ACC, n = e / LEAF_ACC % S::NT, m = e / (LEAF_ACC * S::NT);
                int row = S::row0(wave) + m * LEAF_MMA_M + leaf_slot_row(lane, leaf_acc_slot(i));
                int col = S::col0(wave) + n * LEAF_MMA_N + leaf_acc_col(lane, i);
                if (row < mask.rows && col < mask.cols && stw_dropout_keep(&p, &stream, i0 + row, j0 + col))
                    k.word[w] |= 1u << (e - w * 32);
            }
        }
    }
}

#endif
