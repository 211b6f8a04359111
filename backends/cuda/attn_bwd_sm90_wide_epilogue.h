/* SPDX-License-Identifier: MIT
 *
 * The end of a work tile in attn_bwd_sm90_wide.h, whose dK and dV stand transposed in registers: a warp's 16 columns
 * of all keys, from the accumulators to the caller's tensor. */
#ifndef STW_CUDA_ATTN_BWD_SM90_WIDE_EPILOGUE_H
#define STW_CUDA_ATTN_BWD_SM90_WIDE_EPILOGUE_H

#include "attn_bwd_sm90_epilogue.h"
#include "attn_bwd_sm90_wide_config.h"

/* Sums for keys in use, zeros up to the sequence's end. Columns col0 to col0 + 15; whole vectors go by way of `mine`,
 * 1 KB of shared memory of the warp, 16 keys at a time; other rows go element by element. */
template <class C>
DEV_FN void sm90_wide_store(const attn_work_tile &tile, const float (&x)[C::BN / 2], const stw_tensor_param &t,
                            uint32_t dtype, bool vectors, int cols, float scale, char *mine, int col0) {
    typedef typename C::T T;
    enum { KEYS = 16, VECTOR = 8 };
    const int lane = sm90_lane_anew();
    const int used = (int)stw_clamp_i64(tile.seq.kv.used - tile.j0, 0, C::BN);
    const int end = (int)stw_clamp_i64(tile.seq.kv.rows - tile.j0, 0, C::BN);
    const int64_t base = dev_row(t, tile.b, tile.kv_head, tile.seq.kv.first + tile.j0);
    if (!vectors) {
        DEV_UNROLL_FOR (int i = 0; i < C::BN / 2; ++i) {
            const int key = i / 4 * 8 + lane % 4 * 2 + i % 2, col = col0 + lane / 4 + i % 4 / 2 * 8;
            if (key < end && col < cols)
                dev_store_any(t.data, base + key * t.seq + col, dtype, key < used ? x[i] * scale : 0.0f);
        }
        return;
    }
    const uint32_t put = sm90_shared_address(mine) + (lane / 16 * 8 + lane % 8) * 32 + lane / 8 % 2 * 16;
    const int col = col0 + lane % 2 * VECTOR;
    T *const to = (T *)t.data + base + col;
    const dev_vector zero = {{0, 0, 0, 0}};
    DEV_UNROLL_FOR (int c = 0; c < C::BN / KEYS; ++c) {
        uint32_t w[4];
        DEV_UNROLL_FOR (int i = 0; i < 4; ++i)
            w[i] = dev_pack(T(), x[8 * c + 2 * i] * scale, x[8 * c + 2 * i + 1] * scale);
        __syncwarp();
        sm90_stmatrix_trans(put + c % 2 * 512, w);
        __syncwarp();
        const int key = KEYS * c + lane / 2;
        const dev_vector v = dev_load_vector(mine + c % 2 * 512 + lane * 16);
        if (key < end && col < cols) dev_store_vector(to + key * t.seq, key < used ? v : zero);
    }
}

/* The same in f32, to any address and added to what is there if `adds`. Eight columns of a key are a sector. */
template <class C>
DEV_FN void sm90_wide_store_f32(const attn_work_tile &tile, const float (&x)[C::BN / 2], const stw_tensor_param &t,
                                bool adds, int cols, float scale, int col0) {
    enum { TOGETHER = 4 }; /* loads under way */
    const int lane = sm90_lane_anew();
    const int used = (int)stw_clamp_i64(tile.seq.kv.used - tile.j0, 0, C::BN);
    const int end = adds ? used : (int)stw_clamp_i64(tile.seq.kv.rows - tile.j0, 0, C::BN);
    const int key0 = lane % 4 * 2, col = col0 + lane / 4;
    float *const to = (float *)t.data + dev_row(t, tile.b, tile.kv_head, tile.seq.kv.first + tile.j0 + key0) + col;
    DEV_UNROLL_FOR (int first = 0; first < C::BN / 2; first += TOGETHER) {
        float there[TOGETHER];
        DEV_UNROLL_FOR (int e = 0; e < TOGETHER; ++e) {
            const int i = first + e, key = i / 4 * 8 + i % 2, far = i % 4 / 2 * 8;
            there[e] = 0.0f;
            if (adds && key0 + key < end && col + far < cols) there[e] = to[key * t.seq + far];
        }
        DEV_UNROLL_FOR (int e = 0; e < TOGETHER; ++e) {
            const int i = first + e, key = i / 4 * 8 + i % 2, far = i % 4 / 2 * 8;
            const float sum = key0 + key < used ? x[i] * scale : 0.0f;
            if (key0 + key < end && col + far < cols) to[key * t.seq + far] = there[e] + sum;
        }
    }
}

/* The same of a part, to its place `to` in the workspace, in the order of attn_bwd_postprocess_parts.h: there a key
 * block lies in the accumulators of eight warps, STW_SM90_WIDE_PART_ROWS of them over the keys, the others over
 * STW_SM90_WIDE_PART_COLS columns. */
template <class C> DEV_FN void sm90_wide_store_part(float *to, const float (&x)[C::BN / 2], bool adds, int col0) {
    enum {
        TOGETHER = 4,
        WARPS = 8,
        ACROSS = WARPS / STW_SM90_WIDE_PART_ROWS(C::HD),
        COLS = (int)STW_SM90_WIDE_PART_COLS / ACROSS, /* of a warp */
        ROWS = C::BN * ACROSS / WARPS,
        MATRIX = WARPS * DEV_WAVE * 4 /* floats of all threads' registers of 16 keys and 8 columns */
    };
    static_assert(COLS % 16 == 0 && ROWS % 16 == 0, "a warp here has 16 columns of one there");
    const int lane = sm90_lane_anew();
    to += col0 % COLS / 8 * MATRIX + (col0 / COLS * DEV_WAVE + lane % 4 * 8 + lane / 8) * 4 + lane / 4 % 2;
    DEV_UNROLL_FOR (int first = 0; first < C::BN / 2; first += TOGETHER) {
        float there[TOGETHER];
        auto place = [&](int i) {
            const int key = i / 4 * 8, far = i % 4 / 2, of = key % ROWS;
            return to + (of / 16 * (COLS / 8) + far) * MATRIX + key / ROWS * ACROSS * DEV_WAVE * 4 + i % 2 * 16 +
                   of / 8 % 2 * 2;
        };
        DEV_UNROLL_FOR (int e = 0; e < TOGETHER; ++e) there[e] = adds ? *place(first + e) : 0.0f;
        DEV_UNROLL_FOR (int e = 0; e < TOGETHER; ++e) *place(first + e) = there[e] + x[first + e];
    }
}

#endif
