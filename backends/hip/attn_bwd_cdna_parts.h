/* SPDX-License-Identifier: MIT
 *
 * Last kernel of the backward pass where work tiles of CDNA's own main loop may be parts (stw_attn_split_of): dQ as in
 * attn_bwd_cdna_rows.h, or with dSink as in attn_bwd_postprocess.h, and past their workgroups dK and dV. Sums of a
 * part lie by rows (attn_cdna_part_output) and are added in a fixed order. */
#ifndef STW_HIP_ATTN_BWD_CDNA_PARTS_H
#define STW_HIP_ATTN_BWD_CDNA_PARTS_H

#include "attn_bwd_cdna_rows.h"
#include "attn_bwd_cdna_scheduler.h"

#include "common/kernels/attn_bwd_postprocess.h"

/* Sums that a workgroup adds, of dK or dV of a key block: 2048 neighbours, a thread's four columns of a row twice. */
enum { CDNA_PART_SUMS = 2048, CDNA_PART_STEP = 4 * (int)STW_ROW_THREADS };

/* A column of a row. */
template <class T> DEV_FN void attn_cdna_put_one(T, const attn_cdna_output &o, uint32_t at, float x) {
    __builtin_amdgcn_raw_buffer_store_b16((uint16_t)cdna_operand(T(), leaf_f2{x, 0.0f}), o.to, at, 0, 0);
}
DEV_FN void attn_cdna_put_one(float, const attn_cdna_output &o, uint32_t at, float x) {
    x += __builtin_bit_cast(float, __builtin_amdgcn_raw_buffer_load_b32(o.sum, at, 0, 0));
    __builtin_amdgcn_raw_buffer_store_b32(__builtin_bit_cast(uint32_t, x), o.to, at, 0, 0);
}

/* The sums of this thread, rows `at / cols`, into the tensor. T: its type. */
template <class T>
DEV_FN void attn_cdna_finish_part(const attn_cdna_output &o, const leaf_f4 (&x)[2], uint32_t first, uint32_t width,
                                  int end) {
    DEV_UNROLL_FOR (int i = 0; i < 2; ++i) {
        const uint32_t at = first + i * CDNA_PART_STEP, row = at / width, col = at - row * width;
        const uint32_t to = (row * (uint32_t)o.stride + col) * (uint32_t)sizeof(T);
        const leaf_f2 low = x[i].xy * o.scale, high = x[i].zw * o.scale;
        const leaf_f4 sums = {low.x, low.y, high.x, high.y};
        const bool live = (int)row < end && (int)col < o.cols;
        if (o.cols % 4) {
            DEV_UNROLL_FOR (int e = 0; e < 4; ++e)
                attn_cdna_put_one(T(), o, live && (int)col + e < o.cols ? to + (uint32_t)(e * sizeof(T)) : CDNA_NOWHERE,
                                  sums[e]);
        } else attn_cdna_put(T(), o, live ? to : CDNA_NOWHERE, sums);
    }
}

DEV_FN void attn_cdna_sum_parts(int64_t number) {
    cdna_launch l = cdna_launch_again();
    const int64_t chunks = l->bn * l->part_cols / CDNA_PART_SUMS, blocks = stw_quotient(l->part_entries, l->row_parts);
    const int64_t kind = stw_quotient(number, chunks), key = kind >> 1, kv_head = stw_quotient(key, blocks);
    const int64_t entry = (key - kv_head * blocks) * (int)l->row_parts; /* the first of the key block's entries */
    const bool of_dv = kind & 1;
    const uint32_t output = of_dv ? STW_OUT_DV : STW_OUT_DK, dtype = of_dv ? l->p.dv_dtype : l->p.dk_dtype;
    if (!(l->p.outputs & output)) return;
    if ((l->p.features & STW_FEAT_PACKED_KV) && entry >= stw_quotient((int64_t)l->listed[0], l->p.heads_kv)) return;
    const attn_key_block &k = ((const attn_key_block *)l->key_blocks)[entry];
    const uint32_t width = l->part_cols, first = (uint32_t)(number - kind * chunks) * CDNA_PART_SUMS + 4 * dev_thread();
    /* all parts: by heads, and of each by query blocks */
    const int64_t each = 2 * (int64_t)(l->bn * width);
    const float *sums =
        l->part_sums + (kv_head * (int)l->head_parts * l->part_entries + entry) * each + (of_dv ? each / 2 : 0) + first;
    leaf_f4 x[2] = {{0, 0, 0, 0}, {0, 0, 0, 0}};
    DEV_ROLLED_FOR (uint32_t h = 0; h < l->head_parts; ++h, sums += l->part_entries * each)
        DEV_ROLLED_FOR (uint32_t r = 0; r < l->row_parts; ++r)
            DEV_UNROLL_FOR (int i = 0; i < 2; ++i)
                x[i] += *(const DEV_GLOBAL leaf_f4 *)(sums + r * each + i * CDNA_PART_STEP);
    cdna_tensor &t = of_dv ? l->p.dv : l->p.dk;
    const int cols = (int)(of_dv ? l->p.head_dim_v : l->p.head_dim_qk), stride = (int)t.seq;
    const int64_t j0 = dev_uniform(k.j0), row = dev_uniform(k.seq.kv.first) + j0;
    const bool adds = dtype == STW_F32 && (l->p.accumulate & output);
    const int used = (int)stw_clamp_i64(dev_uniform(k.seq.kv.used) - j0, 0, l->bn);
    const int end = adds ? used : (int)stw_clamp_i64(dev_uniform(k.seq.kv.rows) - j0, 0, l->bn);
    const int element = dtype == STW_F32 ? 4 : 2, bytes = cdna_extent(end, stride, (uint32_t)cols) * (element / 2);
    const char *to = (const char *)t.data + cdna_row(t, dev_uniform(k.b), kv_head, row) * element;
    const attn_cdna_output o = {
        cdna_buffer_of(to, bytes),           cdna_buffer_of(to, adds ? bytes : 0), stride, cols, used,
        (leaf_f2)(of_dv ? 1.0f : l->p.scale)};
    if (dtype == STW_F32) attn_cdna_finish_part<float>(o, x, first, width, end);
    else if (dtype == STW_BF16) attn_cdna_finish_part<dev_bf16>(o, x, first, width, end);
    else attn_cdna_finish_part<dev_f16>(o, x, first, width, end);
}

/* Workgroups before those of parts. */
DEV_FN int64_t attn_cdna_before_parts(const stw_attn_launch &l) {
    if (!l.part_sums) return l.work_tiles;
    const int64_t heads = stw_quotient(l.p.heads_kv, l.head_parts), blocks = stw_quotient(l.part_entries, l.row_parts);
    return l.work_tiles - heads * blocks * 2 * (l.bn * l.part_cols / CDNA_PART_SUMS);
}

/* The kernels: of 16-bit dQ with whole rows, and of any other, where there are parts. */
template <class C> DEV_FN void attn_cdna_finish(const stw_attn_launch &l, char *smem) {
    const int64_t before = attn_cdna_before_parts(l);
    if (dev_cta() < before) attn_cdna_postprocess<C>(l, smem);
    else if (dev_cta() < l.work_tiles) attn_cdna_sum_parts(dev_cta() - before);
}
DEV_FN void attn_cdna_finish_any(const stw_attn_launch &l, char *smem) {
    const int64_t before = attn_cdna_before_parts(l);
    if (dev_cta() < before) attn_bwd_postprocess(l, smem);
    else if (dev_cta() < l.work_tiles) attn_cdna_sum_parts(dev_cta() - before);
}

#endif
