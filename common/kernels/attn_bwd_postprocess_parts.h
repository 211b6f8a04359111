/* SPDX-License-Identifier: MIT
 *
 * Last kernel of the backward pass where work tiles are parts with places of their own (stw_attn_split_of): dQ and
 * dSink as in attn_bwd_postprocess.h, and past their CTAs dK and dV, whose parts are added in a fixed order. */
#ifndef STW_COMMON_KERNELS_ATTN_BWD_POSTPROCESS_PARTS_H
#define STW_COMMON_KERNELS_ATTN_BWD_POSTPROCESS_PARTS_H

#include "common/kernels/attn_bwd_list.h"
#include "common/kernels/attn_bwd_postprocess.h"

/* STW_PART_TILES tiles of registers of every thread: of dK or dV of a key block and a kv head. */
struct attn_part_place {
    int64_t kv_head, entry; /* the first of the key block's entries */
    int of_dv, chunk;
    DEV_FN attn_part_place of(const stw_attn_launch &l, int64_t number) {
        attn_part_place at;
        const int64_t chunks = stw_attn_part_chunks(l.bn, l.part_cols, l.warps),
                      blocks = stw_quotient(l.part_entries, l.row_parts), kind = stw_quotient(number, chunks),
                      key = kind / 2;
        at.chunk = (int)(number - kind * chunks);
        at.of_dv = (int)(kind & 1);
        at.kv_head = stw_quotient(key, blocks);
        at.entry = (key - at.kv_head * blocks) * (int)l.row_parts;
        return at;
    }
};

/* This thread's sums of all parts, by heads and then by query blocks. */
DEV_FN void attn_postprocess_sum_parts(float (&x)[STW_PART_TILES][LEAF_ACC], const stw_attn_launch &l,
                                       const float *sums, int64_t each, int threads) {
    DEV_UNROLL_FOR (int i = 0; i < (int)STW_PART_TILES; ++i)
        DEV_UNROLL_FOR (int e = 0; e < LEAF_ACC; ++e) x[i][e] = 0.0f;
    for (int h = 0; h < (int)l.head_parts; ++h, sums += l.part_entries * each)
        for (int r = 0; r < (int)l.row_parts; ++r) {
            dev_vector y[STW_PART_TILES];
            DEV_UNROLL_FOR (int i = 0; i < (int)STW_PART_TILES; ++i)
                y[i] = dev_load_vector(sums + r * each + i * threads * LEAF_ACC);
            DEV_UNROLL_FOR (int i = 0; i < (int)STW_PART_TILES; ++i)
                DEV_UNROLL_FOR (int e = 0; e < LEAF_ACC; ++e) x[i][e] += dev_of_bits(y[i].word[e]);
        }
}

DEV_FN void attn_postprocess_keys(const stw_attn_launch &l, int64_t number) {
    enum { TILES = (int)STW_PART_TILES };
    const stw_attn_params &p = l.p;
    const attn_part_place at = attn_part_place::of(l, number);
    const int threads = (int)l.warps * DEV_WAVE, t = (int)dev_thread(), lane = (int)dev_lane();
    const uint32_t output = at.of_dv ? STW_OUT_DV : STW_OUT_DK;
    if (!(p.outputs & output) || t >= threads) return;
    if ((p.features & STW_FEAT_PACKED_KV) && at.entry >= stw_quotient((int64_t)l.listed[0], p.heads_kv)) return;
    const attn_key_block &k = ((const attn_key_block *)l.key_blocks)[at.entry];
    const stw_tensor_param &to = at.of_dv ? p.dv : p.dk;
    const uint32_t dtype = at.of_dv ? p.dv_dtype : p.dk_dtype;
    const bool add = (p.accumulate & output) != 0;
    const bool vectors = (l.vectors & (at.of_dv ? STW_VECTOR_DV : STW_VECTOR_DK)) != 0 && !add;
    const float scale = at.of_dv ? 1.0f : p.scale;
    /* where these tiles are: wave over the rows and columns of the key block */
    const int waves_c = (int)(l.warps / l.key_rows), wave_m = (int)(l.bn / l.key_rows);
    const int wave_n = (int)l.part_cols / waves_c, across = wave_n / LEAF_MMA_N, first = at.chunk * TILES;
    const int row0 = t / DEV_WAVE / waves_c * wave_m + first / across * LEAF_MMA_M;
    const int col0 = t / DEV_WAVE % waves_c * wave_n + first % across * LEAF_MMA_N;
    const int cols = (int)(at.of_dv ? p.head_dim_v : p.head_dim_qk);
    const int used = (int)stw_clamp_i64(k.seq.kv.used - k.j0, 0, l.bn);
    const int end = add ? used : (int)stw_clamp_i64(k.seq.kv.rows - k.j0, 0, l.bn);
    if (row0 >= end || col0 >= cols) return;
    const int64_t each = 2 * (int64_t)(l.bn * l.part_cols);
    const float *sums = l.part_sums + (at.kv_head * (int)l.head_parts * l.part_entries + at.entry) * each +
                        at.of_dv * (each / 2) + (int64_t)first * (threads * LEAF_ACC) + t * LEAF_ACC;
    float x[TILES][LEAF_ACC];
    attn_postprocess_sum_parts(x, l, sums, each, threads);
    const int64_t base = dev_row(to, k.b, at.kv_head, k.seq.kv.first + k.j0);
    DEV_UNROLL_FOR (int slot = 0; slot < LEAF_ACC_ROWS; ++slot) {
        const int row = row0 + leaf_slot_row(lane, slot), v = 2 * slot;
        const bool counts = row < used;
        if (vectors && dtype != STW_F32) {
            const int col = col0 + leaf_gathered_col<TILES>(lane);
            uint32_t w[TILES];
            DEV_UNROLL_FOR (int i = 0; i < TILES; ++i) {
                const float low = counts ? x[i][v] * scale : 0.0f, high = counts ? x[i][v + 1] * scale : 0.0f;
                w[i] = dtype == STW_BF16 ? dev_pack_bf16(low, high) : dev_pack_f16(low, high);
            }
            leaf_gather<TILES>(w, lane);
            if (row < end && col < cols) dev_store_words<TILES>((uint16_t *)to.data + base + row * to.seq + col, w);
            continue;
        }
        DEV_UNROLL_FOR (int i = 0; i < TILES; ++i) {
            const int col = col0 + i * LEAF_MMA_N + leaf_acc_col(lane, v);
            const int64_t place = base + row * to.seq + col;
            const float low = counts ? x[i][v] * scale : 0.0f, high = counts ? x[i][v + 1] * scale : 0.0f;
            if (row >= end || col >= cols) continue;
            if (vectors) {
                dev_store_any_pair(to.data, place, dtype, low, high);
                continue;
            }
            const float *was = (const float *)to.data + place;
            dev_store_any(to.data, place, dtype, add ? was[0] + low : low);
            if (col + 1 < cols) dev_store_any(to.data, place + 1, dtype, add ? was[1] + high : high);
        }
    }
}

/* The kernel. */
DEV_FN void attn_bwd_postprocess_parts(const stw_attn_launch &l, char *smem) {
    const int64_t heads = stw_quotient(l.p.heads_kv, l.head_parts), blocks = stw_quotient(l.part_entries, l.row_parts);
    const int64_t rows = l.work_tiles - heads * blocks * 2 * stw_attn_part_chunks(l.bn, l.part_cols, l.warps);
    if (dev_cta() < rows) {
        attn_bwd_postprocess(l, smem);
        return;
    }
    dev_await_previous();
    if (dev_cta() < l.work_tiles) attn_postprocess_keys(l, dev_cta() - rows);
}

#endif
