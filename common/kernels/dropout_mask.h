/* SPDX-License-Identifier: MIT
 *
 * The dropout mask as bytes, [batch, heads_q, max_seq_q, max_seq_kv]: 1 kept, 0 dropped or outside the used
 * lengths. A CTA for 16 rows of one head. One instance. */
#ifndef STW_COMMON_KERNELS_DROPOUT_MASK_H
#define STW_COMMON_KERNELS_DROPOUT_MASK_H

#include "common/kernels/attn_bwd_preprocess.h"

enum { ATTN_MASK_ROWS = 16, ATTN_MASK_THREADS = 256 };

DEV_FN void attn_dropout_mask(const stw_attn_launch &l, char *smem) {
    const stw_attn_params &p = l.p;
    int64_t work_tile = dev_cta(), strips = stw_blocks_of(p.max_seq_q, ATTN_MASK_ROWS);
    if (work_tile == l.work_tiles - 1) attn_check(p, smem, nullptr);
    if (work_tile >= l.work_tiles - 1) return;
    int64_t head = work_tile / strips, b = head / p.heads_q, i0 = work_tile % strips * ATTN_MASK_ROWS;
    stw_seq_span q = stw_seq_q(&p, b), kv = stw_seq_kv(&p, b);
    stw_dropout_stream stream = stw_dropout_stream_of(&p, b, head % p.heads_q, q, kv);
    for (int64_t i = i0; i < stw_smaller(i0 + ATTN_MASK_ROWS, p.max_seq_q); ++i) {
        uint8_t *row = p.mask_out + (head * p.max_seq_q + i) * p.max_seq_kv;
        for (int64_t j = dev_thread(); j < p.max_seq_kv; j += dev_threads()) {
            bool live = i < q.used && j < kv.used;
            row[j] = live && (!(p.features & STW_FEAT_DROPOUT) || stw_dropout_keep(&p, &stream, i, j)) ? 1 : 0;
        }
    }
}

#endif
