/* SPDX-License-Identifier: MIT
 *
 * Which problems Hopper's own main loop takes (loop "wgmma"); every other one goes to the shared kernels.
 * Pure functions, used by backends/gpu/attn_tiled.c. */
#include "backends/gpu/attn_tiled.h"

#include "common/size_class.h"
#include "sternway/attn_bwd.h"

#include <string.h>

#define UNITS_MAX (INT64_C(1) << 31)

int stw_attn_is_hopper(const stw_attn_tile *tile) {
    return !strcmp(tile->loop, "wgmma");
}

/* A tensor load steps by multiples of 16 bytes, forwards or not at all, and counts rows in 32 bits. */
static int stride_fits(int64_t stride, int64_t count) {
    return count <= 1 || (stride >= 0 && stride % 8 == 0 && stride < INT64_C(1) << 39);
}

static int tensor_fits(const stw_tensor_param *t, int64_t rows, int64_t heads, int64_t batch) {
    return rows < INT64_C(1) << 30 && heads < INT64_C(1) << 30 && batch < INT64_C(1) << 30 &&
           stride_fits(t->seq, rows) && stride_fits(t->head, heads) && stride_fits(t->batch, batch);
}

/* Key blocks of the largest problem that shares this one's size classes. */
static int64_t key_blocks_of_class(const stw_attn_params *p) {
    int packed_q = (p->features & STW_FEAT_PACKED_Q) != 0,
        packed_kv = (p->features & STW_FEAT_PACKED_KV) != 0;
    stw_attn_params largest = {.features = p->features,
                               .batch = stw_packed_class(packed_q && packed_kv, p->batch),
                               .max_seq_kv = stw_packed_class(packed_kv, p->max_seq_kv),
                               .total_kv = stw_packed_class(packed_kv, p->total_kv)};
    return stw_key_blocks_most(&largest, 128);
}

const char *stw_attn_hopper_refusal(const stw_attn_params *p) {
    const uint32_t gradients = STW_OUT_DQ | STW_OUT_DK | STW_OUT_DV, f = p->features;
    int packed_q = (f & STW_FEAT_PACKED_Q) != 0, packed_kv = (f & STW_FEAT_PACKED_KV) != 0;
    int64_t rows = packed_q ? stw_size_class(p->total_q) : p->max_seq_q,
            keys = packed_kv ? stw_size_class(p->total_kv) : p->max_seq_kv;
    int64_t batch_q = packed_q ? 1 : p->batch, batch_kv = packed_kv ? 1 : p->batch;
    if (f & STW_FEAT_BIAS) return "it takes no bias";
    if (f & STW_FEAT_ALIBI) return "it takes no ALiBi";
    if (f & STW_FEAT_SOFTCAP) return "it takes no softcap";
    if (f & STW_FEAT_DROPOUT) return "it takes no dropout";
    if ((p->outputs & (gradients | STW_OUT_DBIAS)) != gradients) return "it makes dQ, dK and dV together";
    if (p->dk_dtype != p->dtype || p->dv_dtype != p->dtype) return "it makes dK and dV in the inputs' type";
    if (rows < 1 || keys < 1 || p->max_seq_q < 1 || p->max_seq_kv < 1 || p->batch < 1 || p->heads_kv < 1)
        return "it takes no empty tensors";
    if (stw_attn_sees_one_key(p)) return "rows see one key, and its sums of dP are truncated, not rounded";
    if (p->scale == 0.0f) return "it hides pairs by infinite scores, which a scale of 0 makes NaN";
    if (key_blocks_of_class(p) > (UNITS_MAX - 1) / p->heads_kv) return "it counts units in 31 bits";
    if (!tensor_fits(&p->q, rows, p->heads_q, batch_q) || !tensor_fits(&p->dout, rows, p->heads_q, batch_q) ||
        !tensor_fits(&p->k, keys, p->heads_kv, batch_kv) || !tensor_fits(&p->v, keys, p->heads_kv, batch_kv))
        return "tensor loads need strides of q, k, v and dout that are 0 or positive multiples of 16 bytes";
    return NULL;
}
