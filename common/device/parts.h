/* SPDX-License-Identifier: MIT
 *
 * f32 matrices in shared memory as three bf16 tiles, one behind the other (leaf: LEAF_PARTS, leaf_split_pair): split
 * once when they arrive, then read by matrix loads like any 16-bit operand. For matrix units without f32. */
#ifndef STW_COMMON_DEVICE_PARTS_H
#define STW_COMMON_DEVICE_PARTS_H

#include "tile.h"

#ifndef STW_PARTS_AHEAD
#define STW_PARTS_AHEAD 3
#endif

/* Rows of a matrix on their way: each of THREADS threads holds COUNT vectors of four elements. */
template <class Tile, int THREADS> struct dev_parts_rows {
    enum { VECTORS = Tile::COLS / 4, STEP = THREADS / VECTORS, COUNT = Tile::ROWS / STEP };
    static_assert(THREADS % VECTORS == 0 && Tile::ROWS % STEP == 0, "a thread keeps its column");
    dev_vector v[COUNT];

    /* The tensor's rows from `first` on, of which [low, end) are live; `from` is its row 0. `vectors`: rows are whole
     * vectors of 16 bytes. [i0, i1): which of the thread's vectors. */
    DEV_FN void load(dev_vector *v, int i0, int i1, const float *from, int64_t stride, int64_t first, int64_t low,
                     int64_t end, int cols, bool vectors) {
        int row = (int)dev_thread() / VECTORS + i0 * STEP, col = (int)dev_thread() % VECTORS * 4;
        int live_low = (int)stw_clamp_i64(low - first, 0, Tile::ROWS), live_end = (int)stw_clamp_i64(end - first, 0, Tile::ROWS);
        if (col >= cols) live_end = 0;
        const float *x = from + (first + row) * stride + col;
        DEV_UNROLL for (int i = 0; i < i1 - i0; ++i, x += STEP * stride) {
            bool live = row + i * STEP >= live_low && row + i * STEP < live_end;
            v[i] = dev_vector{{0, 0, 0, 0}};
            if (live && vectors) v[i] = dev_load_vector(x);
            if (live && !vectors)
                DEV_UNROLL for (int e = 0; e < 4; ++e)
                    if (col + e < cols) v[i].word[e] = __builtin_bit_cast(uint32_t, x[e]);
        }
    }
    DEV_FN void store(const dev_vector *v, int i0, int i1, dev_bf16 *tile) {
        int row = (int)dev_thread() / VECTORS + i0 * STEP, col = (int)dev_thread() % VECTORS * 4;
        DEV_UNROLL for (int i = 0; i < i1 - i0; ++i) {
            float x[4];
            uint32_t low[LEAF_PARTS], high[LEAF_PARTS];
            DEV_UNROLL for (int e = 0; e < 4; ++e) x[e] = __builtin_bit_cast(float, v[i].word[e]);
            leaf_split_four(x, low, high);
            DEV_UNROLL for (int part = 0; part < LEAF_PARTS; ++part)
                dev_store_half(tile + part * (Tile::BYTES / 2) + Tile::at(row + i * STEP, col), low[part], high[part]);
        }
    }
};

/* All of a matrix, a few vectors at a time. */
template <class Tile, int THREADS> DEV_FN void dev_load_parts(dev_bf16 *tile, const float *from, int64_t stride, int64_t first,
                                                              int64_t low, int64_t end, int cols, bool vectors) {
    typedef dev_parts_rows<Tile, THREADS> rows;
    enum { STEP = rows::COUNT < 4 ? (int)rows::COUNT : 4 };
    static_assert(rows::COUNT % STEP == 0, "whole steps");
    DEV_ROLLED for (int i = 0; i < rows::COUNT; i += STEP) {
        dev_vector v[STEP];
        rows::load(v, i, i + STEP, from, stride, first, low, end, cols, vectors);
        rows::store(v, i, i + STEP, tile);
    }
}

/* An accumulator, split, into tiles at (row0, col0). */
template <class Tile> DEV_FN void dev_store_parts(dev_bf16 *tile, int row0, int col0, const float c[LEAF_ACC], int lane) {
    static_assert(LEAF_ACC_PAIRS, "values 2k and 2k + 1 are neighbours in a row");
    DEV_UNROLL for (int i = 0; i < LEAF_ACC; i += 2) {
        uint32_t parts[LEAF_PARTS];
        leaf_split(c[i], c[i + 1], parts);
        int at = Tile::at(row0 + leaf_slot_row(lane, leaf_acc_slot(i)), col0 + leaf_acc_col(lane, i));
        DEV_UNROLL for (int part = 0; part < LEAF_PARTS; ++part)
            *(uint32_t *)(void *)(tile + part * (Tile::BYTES / 2) + at) = parts[part];
    }
}

/* As dev_multiply. The products of first parts are added step by step in f32 arithmetic, the others stay in the
 * matrix unit till the end, in several sums where a wave has few tiles: a product waits for the one before it in its
 * sum. A last group of columns may be half a group: what is read behind it is not used. */
template <bool A_BY_K, bool B_BY_K, int K, class Split, class TileA, class TileB>
DEV_FN void dev_multiply_parts(dev_acc<Split> &acc, const dev_bf16 *a, const dev_bf16 *b, int wave, int lane) {
    typedef leaf_mma<dev_bf16> mma;
    enum {
        PAIR = mma::B_TILES,
        GROUPS = (Split::NT + PAIR - 1) / PAIR,
        TILES = Split::MT * Split::NT,
        CHAINS = TILES >= 4 ? 1 : TILES >= 2 ? 2 : 4,
        AHEAD = Split::MT + GROUPS <= STW_PARTS_AHEAD ? 2 : 1 /* operands of the next step are read before this step's products */
    };
    int m0 = Split::row0(wave), n0 = Split::col0(wave);
    dev_acc<Split> rest[CHAINS];
    DEV_UNROLL for (int c = 0; c < CHAINS; ++c) dev_acc<Split>::clear(rest[c]);
    typename mma::a_frag fa[AHEAD][Split::MT][LEAF_PARTS];
    typename mma::b_frag fb[AHEAD][GROUPS][LEAF_PARTS];
    DEV_UNROLL for (int k = 1 - AHEAD; k < K / mma::K; ++k) {
        int next = k + AHEAD - 1;
        DEV_UNROLL for (int part = 0; part < LEAF_PARTS && next < K / mma::K; ++part) {
            DEV_UNROLL for (int m = 0; m < Split::MT; ++m)
                mma::template load_a<A_BY_K, TileA>(fa[next % AHEAD][m][part], a + part * (TileA::BYTES / 2), m0 + m * LEAF_MMA_M,
                                                    next * mma::K, lane);
            DEV_UNROLL for (int g = 0; g < GROUPS; ++g)
                mma::template load_b<B_BY_K, TileB>(fb[next % AHEAD][g][part], b + part * (TileB::BYTES / 2),
                                                    n0 + g * PAIR * LEAF_MMA_N, next * mma::K, lane);
        }
        if (k < 0) continue;
        DEV_UNROLL for (int g = 0; g < GROUPS; ++g) {
            float large[Split::MT][PAIR][LEAF_ACC] = {};
            DEV_UNROLL for (int product = 0; product < LEAF_PRODUCTS; ++product)
                DEV_UNROLL for (int m = 0; m < Split::MT; ++m)
                    DEV_UNROLL for (int i = 0; i < PAIR; ++i)
                        if (g * PAIR + i < Split::NT)
                            leaf_parts_product(product, large[m][i], rest[product % CHAINS].v[m][g * PAIR + i],
                                               fa[k % AHEAD][m], fb[k % AHEAD][g], i);
            DEV_UNROLL for (int m = 0; m < Split::MT; ++m)
                DEV_UNROLL for (int i = 0; i < PAIR; ++i)
                    DEV_UNROLL for (int e = 0; e < LEAF_ACC; ++e)
                        if (g * PAIR + i < Split::NT) acc.v[m][g * PAIR + i][e] += large[m][i][e];
        }
    }
    DEV_UNROLL for (int m = 0; m < Split::MT; ++m)
        DEV_UNROLL for (int n = 0; n < Split::NT; ++n)
            DEV_UNROLL for (int i = 0; i < LEAF_ACC; ++i) {
                float sum = rest[0].v[m][n][i];
                DEV_UNROLL for (int c = 1; c < CHAINS; ++c) sum += rest[c].v[m][n][i];
                acc.v[m][n][i] += sum;
            }
}

#endif
