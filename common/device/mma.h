/* SPDX-License-Identifier: MIT
 *
 * Products of tiles in shared memory, added to accumulators in registers. The name says which operand is transposed, as
 * the tiles are stored:
 *
 *     mma_ABt(acc, a, b)   acc[M, N] += A[M, K] B[N, K]^T     S = Q K^T, dP = dO V^T
 *     mma_AB (acc, a, b)   acc[M, N] += A[M, K] B[K, N]       dQ = dS K
 *     mma_AtB(acc, a, b)   acc[M, N] += A[K, M]^T B[K, N]     dV = P^T dO, dK = dS^T Q
 *
 * The caller may give work to overlap with a product: `overlap.step(k, steps)` runs after the matrix instructions of
 * each step of K, since memory operations and exponentials are slow in one burst. Types of such work are named *_side.
 * The type also says how sums are made: ROUNDED 0, as the matrix unit adds; 1, each step's sum rounded to nearest; 2,
 * subnormal operands count. */
#ifndef STW_COMMON_DEVICE_MMA_H
#define STW_COMMON_DEVICE_MMA_H

#include "tile.h"

/* No work overlaps. */
struct dev_nothing {
    enum { ROUNDED = 0 };
    DEV_METHOD void step(int, int) {}
};

/* No work, and sums rounded to nearest: for results that are not rounded to 16 bits afterwards. */
struct dev_rounded {
    enum { ROUNDED = 1 };
    DEV_METHOD void step(int, int) {}
};

/* The matrix unit takes subnormal operands and sums of type T for zero. */
template <class T> struct dev_flushes {
    enum { yes = LEAF_FLUSHES && sizeof(T) == 2 && !dev_is_f16<T>::yes };
};
/* No work, and subnormal operands and sums count there. Slow. */
struct dev_unflushed {
    enum { ROUNDED = 2 };
    DEV_METHOD void step(int, int) {}
};

/* The general form: an operand whose tile has k as its rows says so with *_BY_K. */
template <bool A_BY_K, bool B_BY_K, int K, class Split, class TileA, class TileB, class Side>
DEV_FN void dev_multiply_overlap(dev_acc<Split> &acc, const typename TileA::type *a, const typename TileB::type *b,
                                 Side &side, int wave, int lane) {
    typedef leaf_mma<typename TileA::type> mma;
    enum { AHEAD = sizeof(typename TileA::type) == 2 ? 2 : 1, GROUPS = Split::NT / mma::B_TILES };
    int m0 = Split::row0(wave), n0 = Split::col0(wave);
    dev_acc<Split> rest; /* small products of f32 in parts */
    typename mma::a_frag fa[AHEAD][Split::MT];
    typename mma::b_frag fb[AHEAD][GROUPS];
    DEV_UNROLL_FOR (int k = 1 - AHEAD; k < K / mma::K; ++k) {
        int next = k + AHEAD - 1; /* the operands of the next step are read before this step's products */
        if (next < K / mma::K) {
            DEV_UNROLL_FOR (int m = 0; m < Split::MT; ++m)
                mma::template load_a<A_BY_K, TileA>(fa[next % AHEAD][m], a, m0 + m * LEAF_MMA_M, next * mma::K, lane);
            DEV_UNROLL_FOR (int g = 0; g < GROUPS; ++g)
                mma::template load_b<B_BY_K, TileB>(fb[next % AHEAD][g], b, n0 + g * mma::B_TILES * LEAF_MMA_N,
                                                    next * mma::K, lane);
        }
        if (k < 0) continue;
        if constexpr (TileB::TERMS != 1) {
            mma::products(acc.v, rest.v, fa[k % AHEAD], fb[k % AHEAD], k == 0, k + 1 == K / mma::K);
        } else {
            DEV_UNROLL_FOR (int n = 0; n < Split::NT; ++n)
                DEV_UNROLL_FOR (int m = 0; m < Split::MT; ++m)
                    if constexpr (Side::ROUNDED == 2)
                        mma::product_unflushed(acc.v[m][n], fa[k % AHEAD][m], fb[k % AHEAD][n / mma::B_TILES],
                                               n % mma::B_TILES);
                    else if (Side::ROUNDED)
                        mma::product_rounded(acc.v[m][n], fa[k % AHEAD][m], fb[k % AHEAD][n / mma::B_TILES],
                                             n % mma::B_TILES);
                    else mma::product(acc.v[m][n], fa[k % AHEAD][m], fb[k % AHEAD][n / mma::B_TILES], n % mma::B_TILES);
        }
        side.step(k, K / mma::K);
    }
}

/* The general form without work that overlaps. */
template <bool A_BY_K, bool B_BY_K, int K, class Split, class TileA, class TileB>
DEV_FN void dev_multiply(dev_acc<Split> &acc, const typename TileA::type *a, const typename TileB::type *b, int wave,
                         int lane) {
    dev_nothing nothing;
    dev_multiply_overlap<A_BY_K, B_BY_K, K, Split, TileA, TileB>(acc, a, b, nothing, wave, lane);
}

template <class S, class A, class B, class Overlap>
DEV_FN void mma_ABt(dev_acc<S> &acc, dev_smem_tile<A> a, dev_smem_tile<B> b, Overlap &overlap, int wave, int lane) {
    static_assert((int)A::COLS == (int)B::COLS, "both have k as columns");
    dev_multiply_overlap<false, false, A::COLS, S, A, B>(acc, a.data, b.data, overlap, wave, lane);
}
template <class S, class A, class B>
DEV_FN void mma_ABt(dev_acc<S> &acc, dev_smem_tile<A> a, dev_smem_tile<B> b, int wave, int lane) {
    dev_nothing nothing;
    mma_ABt(acc, a, b, nothing, wave, lane);
}

template <class S, class A, class B, class Overlap>
DEV_FN void mma_AB(dev_acc<S> &acc, dev_smem_tile<A> a, dev_smem_tile<B> b, Overlap &overlap, int wave, int lane) {
    static_assert((int)A::COLS == (int)B::ROWS, "k: columns of A, rows of B");
    dev_multiply_overlap<false, true, A::COLS, S, A, B>(acc, a.data, b.data, overlap, wave, lane);
}
template <class S, class A, class B>
DEV_FN void mma_AB(dev_acc<S> &acc, dev_smem_tile<A> a, dev_smem_tile<B> b, int wave, int lane) {
    dev_nothing nothing;
    mma_AB(acc, a, b, nothing, wave, lane);
}

template <class S, class A, class B, class Overlap>
DEV_FN void mma_AtB(dev_acc<S> &acc, dev_smem_tile<A> a, dev_smem_tile<B> b, Overlap &overlap, int wave, int lane) {
    static_assert((int)A::ROWS == (int)B::ROWS, "both have k as rows");
    dev_multiply_overlap<true, true, A::ROWS, S, A, B>(acc, a.data, b.data, overlap, wave, lane);
}

/* dev_multiply where the matrix unit truncates what it adds (16-bit operands on NVIDIA): the sums of two steps, a few
 * columns at a time, start from 0 and are added to `acc` rounded to nearest. */
template <bool A_BY_K, bool B_BY_K, int K, class Split, class TileA, class TileB>
DEV_FN void dev_multiply_added(dev_acc<Split> &acc, const typename TileA::type *a, const typename TileB::type *b,
                               int wave, int lane) {
    typedef leaf_mma<typename TileA::type> mma;
    enum { STEPS = 2, GROUPS = Split::NT / mma::B_TILES };
    static_assert(K % (STEPS * mma::K) == 0, "whole pairs of steps");
    int m0 = Split::row0(wave), n0 = Split::col0(wave);
    DEV_ROLLED_FOR (int k = 0; k < K; k += STEPS * mma::K) {
        typename mma::a_frag fa[STEPS][Split::MT];
        DEV_UNROLL_FOR (int s = 0; s < STEPS; ++s)
            DEV_UNROLL_FOR (int m = 0; m < Split::MT; ++m)
                mma::template load_a<A_BY_K, TileA>(fa[s][m], a, m0 + m * LEAF_MMA_M, k + s * mma::K, lane);
        DEV_UNROLL_FOR (int g = 0; g < GROUPS; ++g) {
            typename mma::b_frag fb[STEPS];
            DEV_UNROLL_FOR (int s = 0; s < STEPS; ++s)
                mma::template load_b<B_BY_K, TileB>(fb[s], b, n0 + g * mma::B_TILES * LEAF_MMA_N, k + s * mma::K, lane);
            float fresh[mma::B_TILES][Split::MT][LEAF_ACC];
            DEV_UNROLL_FOR (int n = 0; n < mma::B_TILES; ++n)
                DEV_UNROLL_FOR (int m = 0; m < Split::MT; ++m)
                    DEV_UNROLL_FOR (int i = 0; i < LEAF_ACC; ++i) fresh[n][m][i] = 0.0f;
            DEV_UNROLL_FOR (int s = 0; s < STEPS; ++s)
                DEV_UNROLL_FOR (int n = 0; n < mma::B_TILES; ++n)
                    DEV_UNROLL_FOR (int m = 0; m < Split::MT; ++m) mma::product(fresh[n][m], fa[s][m], fb[s], n);
            DEV_UNROLL_FOR (int n = 0; n < mma::B_TILES; ++n)
                DEV_UNROLL_FOR (int m = 0; m < Split::MT; ++m)
                    DEV_UNROLL_FOR (int i = 0; i < LEAF_ACC; ++i) acc.v[m][g * mma::B_TILES + n][i] += fresh[n][m][i];
        }
    }
}

#endif
