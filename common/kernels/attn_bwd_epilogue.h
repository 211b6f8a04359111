/* SPDX-License-Identifier: MIT
 *
 * Epilogue of a work tile: its rows of dK or dV, from registers to the caller's tensor. Sums for keys in use, zeros up
 * to the sequence's end. */
#ifndef STW_COMMON_KERNELS_ATTN_BWD_EPILOGUE_H
#define STW_COMMON_KERNELS_ATTN_BWD_EPILOGUE_H

#include "common/kernels/attn_bwd_scheduler.h"

/* Rows go from registers to the tensor, and leave K and V alone. */
template <class C> struct attn_epilogue_direct {
    enum { SHORT = sizeof(typename C::T) == 2 };
    enum { G = !LEAF_GATHERS || !SHORT ? 0 : C::key_split::NT % 4 ? 2 : 4, yes = G != 0 || C::keys::TERMS != 1 };
    static_assert(G == 0 || C::key_split::NT % G == 0, "tiles of registers go together");
};

/* Whole vectors of a row, from tiles of registers side by side. */
template <class C, int G>
DEV_FN void attn_epilogue_vectors(const attn_work_tile &u, const dev_acc<typename C::key_split> &acc,
                                  const stw_tensor_param &to, int cols, float scale, int wave, int lane) {
    typedef typename C::T T;
    typedef typename C::key_split S;
    int used = (int)stw_clamp_i64(u.seq.kv.used - u.j0, 0, C::BN), end = (int)stw_smaller(C::BN, u.seq.kv.rows - u.j0);
    int col = S::col0(wave) + leaf_gathered_col<G>(lane);
    T *first = (T *)to.data + dev_row(to, u.b, u.kv_head, u.seq.kv.first + u.j0) + col;
    DEV_UNROLL_FOR (int m = 0; m < S::MT; ++m)
        DEV_UNROLL_FOR (int slot = 0; slot < LEAF_ACC_ROWS; ++slot) {
            int row = S::row0(wave) + m * LEAF_MMA_M + leaf_slot_row(lane, slot);
            T *at = first + row * to.seq;
            DEV_UNROLL_FOR (int n = 0; n < S::NT; n += G) {
                uint32_t w[G];
                DEV_UNROLL_FOR (int g = 0; g < G; ++g) {
                    const float *x = acc.v[m][n + g] + 2 * slot;
                    w[g] = row < used ? dev_pack(T(), x[0] * scale, x[1] * scale) : 0u;
                }
                leaf_gather<G>(w, lane);
                if (row < end && col + n * LEAF_MMA_N < cols) dev_store_words<G>(at + n * LEAF_MMA_N, w);
            }
        }
}

/* The same by way of a tile of shared memory. */
template <class C>
DEV_FN void attn_epilogue_rows(const attn_work_tile &u, const dev_acc<typename C::key_split> &acc,
                               const stw_tensor_param &to, int cols, float scale, char *smem, int wave, int lane) {
    typedef typename C::T T;
    typedef typename C::key_split S;
    typedef dev_row_copy<typename C::keys, C::THREADS> copy;
    T *tile = (T *)smem;
    dev_barrier(); /* nobody reads the tile's former content any more */
    DEV_UNROLL_FOR (int m = 0; m < S::MT; ++m)
        DEV_UNROLL_FOR (int n = 0; n < S::NT; ++n) {
            float x[LEAF_ACC];
            DEV_UNROLL_FOR (int i = 0; i < LEAF_ACC; ++i) x[i] = acc.v[m][n][i] * scale;
            leaf_store_acc<typename C::keys>(tile, S::row0(wave) + m * LEAF_MMA_M, S::col0(wave) + n * LEAF_MMA_N, x,
                                             lane);
        }
    dev_barrier();
    int used = (int)stw_clamp_i64(u.seq.kv.used - u.j0, 0, C::BN), end = (int)stw_smaller(C::BN, u.seq.kv.rows - u.j0);
    int row = copy::row((int)dev_thread()), col = copy::col((int)dev_thread());
    if (col >= cols) return;
    T *at = (T *)to.data + dev_row(to, u.b, u.kv_head, u.seq.kv.first + u.j0 + row) + col;
    const dev_vector zero = {{0, 0, 0, 0}};
    DEV_UNROLL_FOR (int i = 0; i < copy::COUNT; ++i, at += copy::STEP * to.seq, row += copy::STEP)
        if (row < end) dev_store_vector(at, row < used ? dev_load_vector(tile + C::keys::at(row, col)) : zero);
}

/* Element by element: other types, added sums, rows that are not whole vectors. */
template <class C>
DEV_FN void attn_epilogue_elements(const attn_work_tile &u, const dev_acc<typename C::key_split> &acc,
                                   const stw_tensor_param &to, uint32_t dtype, bool add, bool vectors, int cols,
                                   float scale, int wave, int lane) {
    typedef typename C::key_split S;
    int used = (int)stw_clamp_i64(u.seq.kv.used - u.j0, 0, C::BN), end = (int)stw_smaller(C::BN, u.seq.kv.rows - u.j0);
    int64_t base = dev_row(to, u.b, u.kv_head, u.seq.kv.first + u.j0);
    DEV_UNROLL_FOR (int m = 0; m < S::MT; ++m)
        DEV_UNROLL_FOR (int n = 0; n < S::NT; ++n)
            DEV_UNROLL_FOR (int i = 0; i < LEAF_ACC; ++i) {
                int row = S::row0(wave) + m * LEAF_MMA_M + leaf_slot_row(lane, leaf_acc_slot(i));
                int col = S::col0(wave) + n * LEAF_MMA_N + leaf_acc_col(lane, i);
                int64_t at = base + row * to.seq + col;
                if (row >= (add ? used : end) || col >= cols) continue;
                float x = row < used ? acc.v[m][n][i] * scale : 0.0f;
                if (LEAF_ACC_PAIRS && vectors && !add) {
                    float y = row < used ? acc.v[m][n][i ^ 1] * scale : 0.0f;
                    if (!(i & 1)) dev_store_any_pair(to.data, at, dtype, x, y);
                } else {
                    dev_store_any(to.data, at, dtype, add ? ((const float *)to.data)[at] + x : x);
                }
            }
}

/* Sums of a part to the workspace, as they are in registers. */
template <class C>
DEV_FN void attn_epilogue_part(const attn_work_tile &u, const dev_acc<typename C::key_split> &acc,
                               const stw_attn_launch &l, int of_dv, float scale) {
    typedef typename C::key_split S;
    float *to = l.part_sums + (((int64_t)u.kv_head * l.part_entries + u.index) * 2 + of_dv) * (C::BN * C::HD) +
                (int)dev_thread() * LEAF_ACC;
    DEV_UNROLL_FOR (int m = 0; m < S::MT; ++m)
        DEV_UNROLL_FOR (int n = 0; n < S::NT; ++n) {
            const float *x = acc.v[m][n];
            dev_store_vector(to + (m * S::NT + n) * (C::THREADS * LEAF_ACC),
                             dev_vector{{dev_bits(x[0] * scale), dev_bits(x[1] * scale), dev_bits(x[2] * scale),
                                         dev_bits(x[3] * scale)}});
        }
}

/* Rows of dK or dV by the way that fits. `tile`: shared memory for attn_epilogue_rows. */
template <class C>
DEV_FN void attn_epilogue_store(const attn_work_tile &u, const dev_acc<typename C::key_split> &acc,
                                const stw_tensor_param &to, uint32_t own_dtype, uint32_t dtype, bool add, bool vectors,
                                int cols, float scale, char *tile, int wave, int lane) {
    enum { G = attn_epilogue_direct<C>::G };
    if (C::keys::TERMS == 1 && vectors && !add && dtype == own_dtype) {
        if constexpr (G != 0) attn_epilogue_vectors<C, G>(u, acc, to, cols, scale, wave, lane);
        else attn_epilogue_rows<C>(u, acc, to, cols, scale, tile, wave, lane);
    } else attn_epilogue_elements<C>(u, acc, to, dtype, add, vectors, cols, scale, wave, lane);
}

#endif
