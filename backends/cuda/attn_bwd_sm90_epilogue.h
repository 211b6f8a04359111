/* SPDX-License-Identifier: MIT
 *
 * The end of a work tile in Hopper's main loop: a wave's 16 rows of dK or dV, from the accumulators to the caller's
 * tensor. Whole vectors go by way of 2 KB of shared memory of the wave, 64 columns at a time; everything else as in the
 * shared kernels (common/kernels/attn_bwd_epilogue.h). Included by attn_bwd_sm90.h. */
#ifndef STW_CUDA_ATTN_BWD_SM90_EPILOGUE_H
#define STW_CUDA_ATTN_BWD_SM90_EPILOGUE_H

/* What keys in use have, zeros up to the sequence's end. `mine`: the wave's place. */
template <class C>
DEV_FN void sm90_store_vectors(const attn_work_tile &u, const float (&x)[C::HD / 2], const stw_tensor_param &t,
                               int cols, float scale, char *mine, int wave, int lane) {
    typedef typename C::T T;
    enum { ROWS = 16, PANEL = 64, VECTOR = 8 };
    const int64_t j0 = u.j0 + ROWS * wave;
    const int used = (int)stw_clamp_i64(u.seq.kv.used - j0, 0, ROWS),
              end = (int)stw_clamp_i64(u.seq.kv.rows - j0, 0, ROWS);
    /* pieces of 16 bytes lie where dS has them: exchanged by the row's number modulo 8, so that no two lanes meet in a
     * bank */
    const uint32_t put = sm90_address(mine) + lane % 16 * 128;
    const int row = lane / 8, piece = lane % 8;
    T *to = (T *)t.data + dev_row(t, u.b, u.kv_head, u.seq.kv.first + j0 + row) + piece * VECTOR;
    const dev_vector zero = {{0, 0, 0, 0}};
    DEV_UNROLL_FOR (int panel = 0; panel < C::HD; panel += PANEL) {
        __syncwarp();
        DEV_UNROLL_FOR (int c = panel; c < panel + PANEL && c < C::HD; c += 16) {
            uint32_t w[4];
            DEV_UNROLL_FOR (int i = 0; i < 4; ++i)
                w[i] = dev_pack(T(), x[c / 2 + 2 * i] * scale, x[c / 2 + 2 * i + 1] * scale);
            sm90_store_tiles(put + (((c - panel) / 8 + lane / 16) ^ lane % 8) * 16, w);
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
DEV_FN void sm90_epilogue_store(const attn_work_tile &u, const float (&x)[C::HD / 2], const stw_tensor_param &t,
                                uint32_t dtype, bool vectors, int cols, float scale, char *mine, int wave, int lane) {
    typedef dev_acc<typename C::key_split> acc;
    static_assert(sizeof(acc) == sizeof x, "the accumulators of a warpgroup's product are tiles side by side");
    if (vectors) sm90_store_vectors<C>(u, x, t, cols, scale, mine, wave, lane);
    else attn_epilogue_elements<C>(u, (const acc &)x, t, dtype, false, false, cols, scale, wave, lane);
}

#endif
