/* SPDX-License-Identifier: MIT
 *
 * Products of tiles in shared memory into accumulators in registers. */
#ifndef STW_COMMON_DEVICE_MMA_H
#define STW_COMMON_DEVICE_MMA_H

#include "tile.h"

/* acc += A B over K. An operand tile whose rows are k says so with *_BY_K; otherwise k runs along its rows:
 *     A B^T: neither;  A^T B (both stored with k as rows): both;  A B: B_BY_K. */
template <bool A_BY_K, bool B_BY_K, int K, class Split, class TileA, class TileB>
DEV_FN void dev_multiply(dev_acc<Split> &acc, const typename TileA::type *a, const typename TileB::type *b, int wave,
                         int lane) {
    typedef leaf_mma<typename TileA::type> mma;
    int m0 = Split::row0(wave), n0 = Split::col0(wave);
    DEV_UNROLL for (int k = 0; k < K; k += mma::K) {
        typename mma::a_frag fa[Split::MT];
        DEV_UNROLL for (int m = 0; m < Split::MT; ++m)
            mma::template load_a<A_BY_K, TileA>(fa[m], a, m0 + m * LEAF_MMA_M, k, lane);
        DEV_UNROLL for (int n = 0; n < Split::NT; n += mma::B_TILES) {
            typename mma::b_frag fb;
            mma::template load_b<B_BY_K, TileB>(fb, b, n0 + n * LEAF_MMA_N, k, lane);
            DEV_UNROLL for (int part = 0; part < mma::B_TILES; ++part)
                DEV_UNROLL for (int m = 0; m < Split::MT; ++m) mma::product(acc.v[m][n + part], fa[m], fb, part);
        }
    }
}

#endif
