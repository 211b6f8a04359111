/* SPDX-License-Identifier: MIT
 *
 * The three dropout maps of stw_dropout_map in plain form: element by element from the words of the public
 * header, on top of the Philox cipher alone. common/philox.h holds the same maps as the kernels use them;
 * tests/reference compares the two. */
#include "problem.h"

#include "common/philox.h"

#include <math.h>

static int ref_keeps_philox(const stw_ref_problem *p, uint64_t head, int64_t row, int64_t key) {
    uint64_t i = (uint64_t)row;
    uint32_t key_low = (uint32_t)p->seed, key_high = (uint32_t)(p->seed >> 32) ^ (uint32_t)(p->offset >> 32);
    stw_philox_words draw = stw_philox4x32(10, (uint32_t)(i / 4), (uint32_t)(uint64_t)key, (uint32_t)head,
                                           (uint32_t)p->offset, key_low, key_high);
    return (double)draw.word[i % 4] >= floor(p->desc->dropout_p * 4294967296.0);
}

static int ref_keeps_mem_eff(const stw_ref_problem *p, uint64_t head, int64_t row_stride, int64_t i, int64_t j) {
    int packed = p->packed_q || p->packed_kv;
    uint64_t base = packed ? 0 : head * (uint64_t)p->desc->max_seq_q * (uint64_t)p->desc->max_seq_kv;
    uint64_t n = p->offset + base + (uint64_t)i * (uint64_t)row_stride + (uint64_t)j;
    stw_philox_words draw = stw_philox4x32(10, (uint32_t)(n / 4), (uint32_t)((n / 4) >> 32), 0, 0, (uint32_t)p->seed,
                                           (uint32_t)(p->seed >> 32));
    /* curand's uniform in (0, 1]: x * 2^-32 + 2^-33, every step rounded to f32 */
    float x = (float)draw.word[n % 4];
    float uniform = x * 0x1p-32f + 0x1p-33f;
    return uniform > (float)p->desc->dropout_p;
}

/* FlashAttention-2 hands each of 32 lanes 16 bytes of a 16x32 block. Looks for the lane and byte whose
 * place, by the header's formula, is (i, j). */
static int ref_keeps_flash2(const stw_ref_problem *p, uint64_t head, int64_t i, int64_t j) {
    int first_lane = (int)(i % 8) * 4; /* rows lane/4 and lane/4 + 8: only four lanes hold row i */
    for (int lane = first_lane; lane < first_lane + 4; ++lane) {
        for (int byte = 0; byte < 16; ++byte) {
            int a = byte / 8, t = byte / 4 % 2, c = byte % 4;
            int row = lane / 4 + 8 * (c >> 1), column = 16 * a + 8 * t + 2 * (lane % 4) + (c & 1);
            if (row != i % 16 || column != j % 32) continue;
            uint64_t sequence = p->offset + head * 32 + (uint64_t)lane;
            stw_philox_words draw =
                stw_philox4x32(7, (uint32_t)sequence, (uint32_t)(sequence >> 32), (uint32_t)(i / 16),
                               (uint32_t)(j / 32), (uint32_t)p->seed, (uint32_t)(p->seed >> 32));
            uint32_t bits = (draw.word[byte / 4] >> (8 * (byte % 4))) & 255u;
            float keep = 1.0f - (float)p->desc->dropout_p; /* FlashAttention-2 computes it in f32 */
            return (double)bits <= floor((double)keep * 255.0);
        }
    }
    return 0;
}

int stw_ref_keeps(const stw_ref_problem *p, const stw_ref_side *q, const stw_ref_side *kv, int64_t b, int64_t h,
                  int64_t i, int64_t j) {
    const stw_attn_desc *d = p->desc;
    uint64_t head = (uint64_t)(b + d->batch_offset) * (uint64_t)p->heads_total + (uint64_t)(h + d->head_offset);
    switch (d->dropout_map) {
    case STW_DROPOUT_MEM_EFF: return ref_keeps_mem_eff(p, head, kv->rows, i, j);
    case STW_DROPOUT_FLASH2: return ref_keeps_flash2(p, head, i, j);
    case STW_DROPOUT_PHILOX: break;
    }
    return ref_keeps_philox(p, head, i + q->offset, j + kv->offset);
}
