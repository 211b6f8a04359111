/* SPDX-License-Identifier: MIT
 *
 * The sm80 image: every row of common/tuning/attn_bwd.sm80.def becomes kernels of the shared tiled source.
 * Compiled to a cubin and PTX by the build; entry names are put together again by backends/gpu/attn_tiled.c. */
#include "backends/cuda/leaf.h"
#include "common/device/device.h"

#include "common/device/copy.h"
#include "common/device/mask.h"
#include "common/device/mma.h"
#include "common/device/reduce.h"

extern __shared__ char dev_shared[] __attribute__((aligned(1024)));

#include "common/kernels/attn_bwd.h"
#include "common/kernels/attn_dbias_reduce.h"
#include "common/kernels/attn_bwd_preprocess.h"
#include "common/kernels/attn_bwd_postprocess.h"
#include "common/kernels/attn_bwd_postprocess_parts.h"
#include "common/kernels/attn_fwd.h"
#include "common/kernels/attn_hidden_blocks.h"
#include "common/kernels/attn_stage.h"
#include "common/kernels/dropout_mask.h"

#define KERNEL(name, threads, call)                                                                                    \
    DEV_KERNEL(threads) name(DEV_ARGUMENT stw_attn_launch launch) { call; }
#define BWD(id, type, T, hd, bm, bn, stages, warps, mode, MODE, kb)                                                    \
    static_assert(STW_BWD_SMEM(dev_stored<T>::BYTES, hd, bm, bn, stages) <= kb * 1024u, "smem_kb of " #id);            \
    KERNEL(stw_attn_bwd_##id##_##type##mode, warps *DEV_WAVE,                                                          \
           (attn_bwd_main<attn_config<T, hd, bm, bn, stages, warps>, MODE>(launch, dev_shared)))
#define FWD(id, type, T, hd, bm, bn, warps, kb)                                                                        \
    static_assert(STW_FWD_SMEM(dev_stored<T>::BYTES, hd, bm, bn) <= kb * 1024u, "smem_kb of " #id);                    \
    KERNEL(stw_attn_fwd_##id##_##type, warps *DEV_WAVE,                                                                \
           (attn_fwd<attn_fwd_config<T, hd, bm, bn, warps>>(launch, dev_shared)))

/* Rows side by side. */
/* clang-format off */
#define ROW_full(id, hd, bm, bn, stages, warps, kb)                                                                    \
    BWD(id, f16, dev_f16, hd, bm, bn, stages, warps, _full, ATTN_ALL, kb)                                              \
    BWD(id, bf16, dev_bf16, hd, bm, bn, stages, warps, _full, ATTN_ALL, kb)
#define ROW_split(id, hd, bm, bn, stages, warps, kb)                                                                   \
    ROW_full(id, hd, bm, bn, stages, warps, kb)                                                                        \
    BWD(id, f16, dev_f16, hd, bm, bn, stages, warps, _plain, ATTN_PLAIN, kb)                                           \
    BWD(id, bf16, dev_bf16, hd, bm, bn, stages, warps, _plain, ATTN_PLAIN, kb)
#define ROW_split_ordered(id, hd, bm, bn, stages, warps, kb)                                                           \
    ROW_split(id, hd, bm, bn, stages, warps, kb)                                                                       \
    BWD(id, f16, dev_f16, hd, bm, bn, stages, warps, _ordered, ATTN_ORDERED, kb)                                       \
    BWD(id, bf16, dev_bf16, hd, bm, bn, stages, warps, _ordered, ATTN_ORDERED, kb)
#define ROW_split_four(id, hd, bm, bn, stages, warps, kb)                                                              \
    ROW_split(id, hd, bm, bn, stages, warps, kb)                                                                       \
    BWD(id, f16, dev_f16, hd, bm, bn, stages, warps, _drop, ATTN_DROPS, kb)                                            \
    BWD(id, bf16, dev_bf16, hd, bm, bn, stages, warps, _drop, ATTN_DROPS, kb)                                          \
    BWD(id, f16, dev_f16, hd, bm, bn, stages, warps, _bias, ATTN_BIASED, kb)                                           \
    BWD(id, bf16, dev_bf16, hd, bm, bn, stages, warps, _bias, ATTN_BIASED, kb)                                         \
    BWD(id, f16, dev_f16, hd, bm, bn, stages, warps, _softcap, ATTN_CAPPED, kb)                                        \
    BWD(id, bf16, dev_bf16, hd, bm, bn, stages, warps, _softcap, ATTN_CAPPED, kb)                                      \
    BWD(id, f16, dev_f16, hd, bm, bn, stages, warps, _alibi, ATTN_SLOPED, kb)                                          \
    BWD(id, bf16, dev_bf16, hd, bm, bn, stages, warps, _alibi, ATTN_SLOPED, kb)                                        \
    BWD(id, f16, dev_f16, hd, bm, bn, stages, warps, _hidden, ATTN_HIDDEN, kb)                                         \
    BWD(id, bf16, dev_bf16, hd, bm, bn, stages, warps, _hidden, ATTN_HIDDEN, kb)
#define ROW_f32(id, hd, bm, bn, stages, warps, kb) BWD(id, f32, float, hd, bm, bn, stages, warps, _full, ATTN_ALL, kb)
#define ROW_f32_split(id, hd, bm, bn, stages, warps, kb)                                                               \
    ROW_f32(id, hd, bm, bn, stages, warps, kb) BWD(id, f32, float, hd, bm, bn, stages, warps, _plain, ATTN_PLAIN, kb)
#define ROW_fwd(id, hd, bm, bn, stages, warps, kb)                                                                     \
    FWD(id, f16, dev_f16, hd, bm, bn, warps, kb) FWD(id, bf16, dev_bf16, hd, bm, bn, warps, kb)
#define ROW_fwd_f32(id, hd, bm, bn, stages, warps, kb) FWD(id, f32, float, hd, bm, bn, warps, kb)
/* clang-format on */

#define STW_VARIANT(id, hd, bm, bn, stages, warps, smem_kb, loop) ROW_##loop(id, hd, bm, bn, stages, warps, smem_kb)
#define STW_RULE(conditions, id)
#include "common/tuning/attn_bwd.sm80.def"

#define BIAS(name, type, T, hd, bm, bn, warps)                                                                         \
    KERNEL(stw_attn_dbias_reduce_##name##_##type, warps *DEV_WAVE,                                                     \
           (attn_dbias_reduce<attn_config<T, hd, bm, bn, 1, warps>>(launch, dev_shared)))
#define BIAS_2(name, hd, bm, bn, warps)                                                                                \
    BIAS(name, f16, dev_f16, hd, bm, bn, warps) BIAS(name, bf16, dev_bf16, hd, bm, bn, warps)
#define BIAS_4(name, hd, bm, bn, warps)             BIAS(name, f32, float, hd, bm, bn, warps)
#define BIAS_TILE(name, element, hd, bm, bn, warps) BIAS_##element(name, hd, bm, bn, warps)
STW_DBIAS_TILES(BIAS_TILE)

#define DBIAS_PLAIN(name, type, T, hd, bm, bn, stages, warps, blocks)                                                  \
    DEV_KERNEL_BLOCKS(warps *DEV_WAVE, blocks)                                                                         \
    stw_attn_dbias_reduce_##name##_##type(DEV_ARGUMENT stw_attn_launch launch) {                                       \
        attn_dbias_reduce_plain<attn_dbias_config<T, hd, bm, bn, stages, warps>>(launch, dev_shared);                  \
    }
#define DBIAS_PLAIN_2(name, hd, bm, bn, stages, warps, blocks)                                                         \
    DBIAS_PLAIN(name, f16, dev_f16, hd, bm, bn, stages, warps, blocks)                                                 \
    DBIAS_PLAIN(name, bf16, dev_bf16, hd, bm, bn, stages, warps, blocks)
STW_DBIAS_PLAIN_TILES(DBIAS_PLAIN_2)

KERNEL(stw_attn_bwd_preprocess_f16, ATTN_ROW_THREADS, attn_bwd_preprocess<dev_f16>(launch, dev_shared))
KERNEL(stw_attn_bwd_preprocess_bf16, ATTN_ROW_THREADS, attn_bwd_preprocess<dev_bf16>(launch, dev_shared))
KERNEL(stw_attn_bwd_preprocess_f32, ATTN_ROW_THREADS, attn_bwd_preprocess<float>(launch, dev_shared))
KERNEL(stw_attn_bwd_postprocess, ATTN_ROW_THREADS, attn_bwd_postprocess(launch, dev_shared))
KERNEL(stw_attn_bwd_postprocess_parts, ATTN_ROW_THREADS, attn_bwd_postprocess_parts(launch, dev_shared))
KERNEL(stw_attn_hidden_blocks, ATTN_ROW_THREADS, attn_hidden_blocks(launch))
KERNEL(stw_attn_dropout_mask, ATTN_MASK_THREADS, attn_dropout_mask(launch, dev_shared))

#define STAGE(bytes, T)                                                                                                \
    DEV_KERNEL(ATTN_STAGE_THREADS) stw_attn_stage_##bytes(DEV_ARGUMENT stw_attn_stages all) { attn_stage<T>(all); }
STAGE(2, uint16_t)
STAGE(4, uint32_t)
