/* SPDX-License-Identifier: MIT
 *
 * The end of a work tile in sm90's main loop for wide heads: a warp's 16 rows of its half of dK's or dV's columns, from
 * the accumulators to the caller's tensor. */
#ifndef STW_CUDA_ATTN_BWD_SM90_WIDE_EPILOGUE_H
#define STW_CUDA_ATTN_BWD_SM90_WIDE_EPILOGUE_H

#include "attn_bwd_sm90_wide_config.h"

/* Sums for keys in use, zeros up to the sequence's end. Whole vectors go by way of `mine`, 2 KB of shared memory of the
 * warp, a run of columns at a time; other rows go element by element. */
template <class C, int COLS>
DEV_FN void sm90_wide_store(const attn_work_tile &tile, const float (&x)[4 * sm90_wide_half<COLS>::PIECES],
                            const stw_tensor_param &t, uint32_t dtype, bool vectors, int cols, float scale, char *mine,
                            int group, int warp) {
    typedef typename C::T T;
    typedef sm90_wide_half<COLS> half;
    enum { ROWS = 16, VECTOR = 8 };
    const int lane = sm90_lane_anew();
    const int64_t j0 = tile.j0 + ROWS * warp;
    const int used = (int)stw_clamp_i64(tile.seq.kv.used - j0, 0, ROWS);
    const int end = (int)stw_clamp_i64(tile.seq.kv.rows - j0, 0, ROWS);
    const int64_t base = dev_row(t, tile.b, tile.kv_head, tile.seq.kv.first + j0);
    const uint32_t put = sm90_shared_address(mine) + lane % 16 * 128;
    const int row = lane / 8, piece = lane % 8;
    const dev_vector zero = {{0, 0, 0, 0}};
    DEV_UNROLL_FOR (int first = 0; first < half::PIECES; first += 8) { /* runs of columns, pieces of 8 */
        const int col0 = half::column(group, first / 8);
        if (!vectors) {
            DEV_UNROLL_FOR (int i = 4 * first; i < 4 * half::PIECES && i < 4 * first + 32; ++i) {
                const int r = lane / 4 + i % 4 / 2 * 8, col = col0 + (i / 4 - first) * 8 + lane % 4 * 2 + i % 2;
                if (r < end && col < cols)
                    dev_store_any(t.data, base + r * t.seq + col, dtype, r < used ? x[i] * scale : 0.0f);
            }
            continue;
        }
        __syncwarp();
        DEV_UNROLL_FOR (int c = first; c < half::PIECES && c < first + 8; c += 2) {
            uint32_t w[4];
            DEV_UNROLL_FOR (int i = 0; i < 4; ++i)
                w[i] = dev_pack(T(), x[4 * c + 2 * i] * scale, x[4 * c + 2 * i + 1] * scale);
            sm90_stmatrix(put + (((c - first) + lane / 16) ^ lane % 8) * 16, w);
        }
        __syncwarp();
        T *to = (T *)t.data + base + row * t.seq + col0 + piece * VECTOR;
        DEV_UNROLL_FOR (int i = 0; i < ROWS; i += 4) {
            dev_vector v = dev_load_vector(mine + (row + i) * 128 + (piece ^ (row + i) % 8) * 16);
            if (row + i < end && first + piece < half::PIECES && col0 + piece * VECTOR < cols)
                dev_store_vector(to + i * t.seq, row + i < used ? v : zero);
        }
    }
}

#endif
