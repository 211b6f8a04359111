/* SPDX-License-Identifier: MIT
 *
 * The end of a work tile in sm90's own main loop: a warp's 16 rows of dK or dV, from the accumulators to the caller's
 * tensor. Whole vectors go by way of 2 KB of shared memory of the warp, 64 columns at a time; everything else as in the
 * shared kernels (common/kernels/attn_bwd_epilogue.h). */
#ifndef STW_CUDA_ATTN_BWD_SM90_EPILOGUE_H
#define STW_CUDA_ATTN_BWD_SM90_EPILOGUE_H

#include "attn_bwd_sm90_config.h"

/* Sums for keys in use, zeros up to the sequence's end. `mine`: the warp's place. */
template <class C>
DEV_FN void sm90_store_vectors(const attn_work_tile &tile, const float (&x)[C::HD / 2], const stw_tensor_param &t,
                               int cols, float scale, char *mine, int wave, int lane) {
    typedef typename C::T T;
    enum { ROWS = 16, PANEL = 64, VECTOR = 8 };
    const int64_t j0 = tile.j0 + ROWS * wave;
    const int used = (int)stw_clamp_i64(tile.seq.kv.used - j0, 0, ROWS);
    const int end = (int)stw_clamp_i64(tile.seq.kv.rows - j0, 0, ROWS);
    /* pieces of 16 bytes are exchanged by the row's number modulo 8: no two lanes meet in a bank */
    const uint32_t put = sm90_shared_address(mine) + lane % 16 * 128;
    const int row = lane / 8, piece = lane % 8;
    T *to = (T *)t.data + dev_row(t, tile.b, tile.kv_head, tile.seq.kv.first + j0 + row) + piece * VECTOR;
    const dev_vector zero = {{0, 0, 0, 0}};
    DEV_UNROLL_FOR (int panel = 0; panel < C::HD; panel += PANEL) {
        __syncwarp();
        DEV_UNROLL_FOR (int c = panel; c < panel + PANEL && c < C::HD; c += 16) {
            uint32_t w[4];
            DEV_UNROLL_FOR (int i = 0; i < 4; ++i)
                w[i] = dev_pack(T(), x[c / 2 + 2 * i] * scale, x[c / 2 + 2 * i + 1] * scale);
            sm90_stmatrix(put + (((c - panel) / 8 + lane / 16) ^ lane % 8) * 16, w);
        }
        __syncwarp();
        DEV_UNROLL_FOR (int i = 0; i < ROWS; i += 4) {
            dev_vector v = dev_load_vector(mine + (row + i) * 128 + (piece ^ (row + i) % 8) * 16);
            if (row + i < end && panel + piece * VECTOR < cols)
                dev_store_vector(to + i * t.seq + panel, row + i < used ? v : zero);
        }
    }
}

template <class C>
DEV_FN void sm90_store_keys(const attn_work_tile &tile, const float (&x)[C::HD / 2], const stw_tensor_param &t,
                            uint32_t dtype, bool vectors, int cols, float scale, char *mine, int wave, int lane) {
    typedef dev_acc<typename C::key_split> acc;
    static_assert(sizeof(acc) == sizeof x, "the accumulators of a warpgroup's product are tiles side by side");
    if (vectors) sm90_store_vectors<C>(tile, x, t, cols, scale, mine, wave, lane);
    else attn_epilogue_elements<C>(tile, (const acc &)x, t, dtype, false, false, cols, scale, wave, lane);
}

/* What kernels that are GENERAL make of dK or dV, `output` of STW_OUT_*. Sums of a part go to the workspace as they are
 * in registers, for attn_bwd_postprocess_parts.h. */
template <class C>
DEV_FN void sm90_store_general(const attn_work_tile &tile, const float (&x)[C::HD / 2], const stw_attn_launch &l,
                               uint32_t output, char *mine, int wave, int lane) {
    typedef dev_acc<typename C::key_split> acc;
    const stw_attn_params &p = l.p;
    const bool of_dv = output == STW_OUT_DV;
    if (!(p.outputs & output)) return;
    if (l.part_sums) {
        float *to = l.part_sums +
                    (((int64_t)tile.kv_head * l.part_entries + tile.index) * 2 + of_dv) * (C::BN * C::HD) +
                    (wave * DEV_WAVE + lane) * 4;
        DEV_UNROLL_FOR (int i = 0; i < C::HD / 2; i += 4) sm90_store_four(to + i * C::THREADS, x + i);
        return;
    }
    const stw_tensor_param &t = of_dv ? p.dv : p.dk;
    const uint32_t dtype = of_dv ? p.dv_dtype : p.dk_dtype, cols = of_dv ? p.head_dim_v : p.head_dim_qk;
    const bool vectors = (l.vectors & (of_dv ? STW_VECTOR_DV : STW_VECTOR_DK)) != 0,
               adds = (p.accumulate & output) != 0;
    const float scale = of_dv ? 1.0f : p.scale;
    if (vectors && dtype == p.dtype) sm90_store_vectors<C>(tile, x, t, (int)cols, scale, mine, wave, lane);
    else attn_epilogue_elements<C>(tile, (const acc &)x, t, dtype, adds, vectors, (int)cols, scale, wave, lane);
}

#endif
