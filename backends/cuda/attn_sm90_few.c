/* SPDX-License-Identifier: MIT
 *
 * The host side of sm90's loop for few query rows and many keys (loops `few16`, `few64`): which problems it takes and
 * how many keys a work tile has. Kernels: attn_bwd_sm90_few.h. */
#include "backends/cuda/attn_bwd_sm90_few_sizes.h"
#include "backends/gpu/attn_tiled.h"
#include "sternway/attn_bwd.h"

#define WORK_TILES_MAX (INT64_C(1) << 31)
/* Keys of a sum of dQ, at most: the matrix unit truncates its sums. */
#define SUM_KEYS 8192
/* Steps that the begin and the end of a work tile cost, and its turn to add in deterministic mode. */
#define TILE_STEPS 3
#define TURN_STEPS 1

static int stride_fits(int64_t stride) { return stride % 8 == 0; }

static int tensor_fits(const stw_tensor_param *t, uint32_t cols) {
    return stride_fits(t->seq) && stride_fits(t->head) && stride_fits(t->batch) && cols % 8 == 0;
}

static const char *refusal_of(const stw_attn_params *p, int64_t rows, const char *too_many) {
    const uint32_t gradients = STW_OUT_DQ | STW_OUT_DK | STW_OUT_DV, f = p->features;
    if (f & (STW_FEAT_BIAS | STW_FEAT_ALIBI | STW_FEAT_SOFTCAP | STW_FEAT_DROPOUT))
        return "it takes no bias, ALiBi, softcap and dropout";
    if (stw_attn_masks(p)) return "it takes no interval and block masks";
    if (f & (STW_FEAT_PACKED_Q | STW_FEAT_PACKED_KV)) return "it takes dense tensors";
    if (!(p->outputs & gradients)) return "it makes dQ, dK and dV";
    if ((p->outputs & STW_OUT_DK && p->dk_dtype != p->dtype) || (p->outputs & STW_OUT_DV && p->dv_dtype != p->dtype))
        return "it makes dK and dV in the inputs' type";
    if (p->max_seq_q < 1 || p->max_seq_kv < 1 || p->batch < 1 || p->heads_kv < 1) return "it takes no empty tensors";
    if (p->max_seq_q > rows || p->group > rows || p->max_seq_q * p->group > rows) return too_many;
    if (stw_attn_sees_one_key(p)) return "rows see one key, and its sums of dP are truncated, not rounded";
    if (stw_key_blocks_most(p, STW_SM90_FEW_KEYS) > (WORK_TILES_MAX - 1) / p->heads_kv)
        return "it counts work tiles in 31 bits";
    if (!tensor_fits(&p->q, p->head_dim_qk) || !tensor_fits(&p->dout, p->head_dim_v) ||
        !tensor_fits(&p->k, p->head_dim_qk) || !tensor_fits(&p->v, p->head_dim_v))
        return "it loads 16 bytes at a time: strides and head dims of q, k, v and dout are multiples of 8 elements";
    return NULL;
}

static const char *refusal_16(const stw_attn_params *p) {
    return refusal_of(p, 16, "all query heads of a kv head have more than 16 rows");
}

static const char *refusal_64(const stw_attn_params *p) {
    return refusal_of(p, 64, "all query heads of a kv head have more than 64 rows");
}

/* Keys of a work tile: slices of a head such that the last of them end together. */
static uint32_t keys_of(const stw_attn_params *p, uint32_t smem) {
    const int64_t ctas = (int64_t)(p->units ? p->units : 1) * (228 * 1024 / (smem + 1024)),
                  steps = stw_blocks_of(p->max_seq_kv, STW_SM90_FEW_KEYS), heads = p->batch * p->heads_kv;
    const int64_t most = SUM_KEYS / (int64_t)STW_SM90_FEW_KEYS,
                  turn = p->features & STW_FEAT_DETERMINISTIC ? TURN_STEPS : 0;
    int64_t best = most, lowest = INT64_MAX;
    for (int64_t parts = 1; parts <= steps && parts <= 128; ++parts) {
        const int64_t each = stw_blocks_of(steps, parts), slices = stw_blocks_of(steps, each);
        if (each > most && parts < 128) continue;
        const int64_t cost = stw_blocks_of(heads * slices, ctas) * (each + TILE_STEPS) + slices * turn;
        if (cost >= lowest) continue;
        lowest = cost;
        best = stw_smaller(each, most);
    }
    return (uint32_t)best * STW_SM90_FEW_KEYS;
}

static void plan(const stw_variant *tile, const stw_attn_params *p, uint32_t wave, stw_attn_choice *out) {
    (void)wave;
    const uint32_t smem = STW_SM90_FEW_SMEM(tile->head_dim, tile->bm);
    *out = (stw_attn_choice){
        .mode = "plain",
        .early = 1,
        .bn = keys_of(p, smem),
        .width = tile->head_dim,
        .smem = smem,
        .dq_rows = (uint32_t)stw_split_rows((int)tile->bm, (int)tile->head_dim, (int)STW_SM90_FEW_WARPS, 16),
        .vectors = STW_STATS_NEGATED,
        .queued = STW_QUEUED};
}

#define UNALIGNED .unaligned = "it loads 16 bytes at a time, at multiples of 16"
STW_ATTN_LOOP(few16, .call = STW_CALL_BWD, UNALIGNED, .refusal = refusal_16, .plan = plan);
STW_ATTN_LOOP(few64, .call = STW_CALL_BWD, UNALIGNED, .refusal = refusal_64, .plan = plan);
