/* SPDX-License-Identifier: MIT
 *
 * The sm90 image: the arch's own main loop, for every row of common/tuning/attn_bwd.sm90.def with loop `sm90` and
 * both 16-bit types a kernel for deterministic mode and one without. What stands before and behind the main loop, and
 * all other rows, come from the sm80 image. */
#include "backends/cuda/leaf.h"
#include "common/device/device.h"

#include "common/device/copy.h"
#include "common/device/mask.h"
#include "common/device/mma.h"
#include "common/device/reduce.h"

extern __shared__ char dev_shared[] __attribute__((aligned(1024)));

#include "common/kernels/attn_bwd.h"

#include "attn_bwd_sm90.h"
#include "attn_bwd_sm90_short.h"

#define KERNEL(id, type, T, hd, mode, ordered)                                                                         \
    DEV_KERNEL(256)                                                                                                    \
    stw_attn_bwd_##id##_##type##_##mode(DEV_ARGUMENT stw_attn_launch launch, DEV_ARGUMENT stw_sm90_maps maps) {        \
        attn_bwd_sm90<sm90_config<T, hd>, ordered>(launch, maps, dev_shared);                                          \
    }
#define BOTH(id, type, T, hd) KERNEL(id, type, T, hd, plain, false) KERNEL(id, type, T, hd, ordered, true)
#define ROW_sm90(id, hd, bm, bn, kb)                                                                                   \
    static_assert(bm == STW_SM90_BM(hd) && STW_SM90_SMEM(hd) <= kb * 1024u, "bm and smem_kb of " #id);                 \
    BOTH(id, bf16, dev_bf16, hd) BOTH(id, f16, dev_f16, hd)

#define SHORT(id, type, T, hd, bn)                                                                                     \
    DEV_KERNEL_BLOCKS(2 * bn, SM90_SHORT_CTAS(hd, bn))                                                                 \
    stw_attn_bwd_##id##_##type(DEV_ARGUMENT stw_attn_launch launch, DEV_ARGUMENT stw_sm90_maps maps) {                 \
        attn_bwd_sm90_short<sm90_short_config<T, hd, bn / 64>>(launch, maps, dev_shared);                              \
    }
#define ROW_sm90_short(id, hd, bm, bn, kb)                                                                             \
    static_assert(bm == bn && STW_SM90_SHORT_SMEM(hd, bn) <= kb * 1024u, "bm and smem_kb of " #id);                    \
    SHORT(id, bf16, dev_bf16, hd, bn) SHORT(id, f16, dev_f16, hd, bn)

#define STW_VARIANT(id, hd, bm, bn, stages, warps, smem_kb, loop) ROW_##loop(id, hd, bm, bn, smem_kb)
#define STW_RULE(conditions, id)
#define STW_SM90_OWN
#include "common/tuning/attn_bwd.sm90.def"
