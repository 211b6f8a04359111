/* SPDX-License-Identifier: MIT
 *
 * The vocabulary of common/device alone: products of tiles in LDS, in every orientation of the operands. 32 x 64
 * results of K = 64 by four waves, from matrices in global memory whose rows lie without gaps. */
#include "backends/hip/leaf.h"
#include "common/device/device.h"

#include "common/device/copy.h"
#include "common/device/mma.h"

extern DEV_LDS char dev_shared[] __attribute__((aligned(1024)));

struct product_arguments {
    const void *a, *b;
    float *c;
};

template <class T, bool A_BY_K, bool B_BY_K> DEV_FN void product(const product_arguments &p) {
    enum { M = 32, N = 64, K = 64, THREADS = 256 };
    typedef dev_tile<T, A_BY_K ? K : M, A_BY_K ? M : K> tile_a;
    typedef dev_tile<T, B_BY_K ? K : N, B_BY_K ? N : K> tile_b;
    typedef dev_split<T, M, N, 4> split;
    T *a = (T *)(void *)dev_shared, *b = (T *)(void *)(dev_shared + tile_a::BYTES);
    int t = (int)dev_thread();
    dev_row_copy<tile_a, THREADS>::whole(a, (const T *)p.a, tile_a::COLS, tile_a::COLS, t);
    dev_row_copy<tile_b, THREADS>::part(b, (const T *)p.b, tile_b::COLS, 0, 0, tile_b::ROWS, tile_b::COLS, true, t);
    dev_copy_commit();
    dev_copy_wait();
    dev_barrier();
    int wave = (int)dev_wave(), lane = (int)dev_lane();
    dev_acc<split> acc;
    dev_acc<split>::clear(acc);
    dev_multiply<A_BY_K, B_BY_K, K, split, tile_a, tile_b>(acc, a, b, wave, lane);
    DEV_UNROLL_FOR (int m = 0; m < split::MT; ++m)
        DEV_UNROLL_FOR (int n = 0; n < split::NT; ++n)
            DEV_UNROLL_FOR (int i = 0; i < LEAF_ACC; ++i) {
                int row = split::row0(wave) + m * LEAF_MMA_M + leaf_slot_row(lane, leaf_acc_slot(i));
                int col = split::col0(wave) + n * LEAF_MMA_N + leaf_acc_col(lane, i);
                p.c[row * N + col] = acc.v[m][n][i];
            }
}

#define PRODUCT(type, T)                                                                                               \
    DEV_KERNEL(256) product_##type##_rows(product_arguments p) { product<T, false, false>(p); }                        \
    DEV_KERNEL(256) product_##type##_k(product_arguments p) { product<T, true, true>(p); }                             \
    DEV_KERNEL(256) product_##type##_mixed(product_arguments p) { product<T, false, true>(p); }
PRODUCT(f16, dev_f16)
PRODUCT(bf16, dev_bf16)
PRODUCT(f32, float)
