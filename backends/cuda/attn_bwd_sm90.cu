/* SPDX-License-Identifier: MIT
 *
 * The sm90 image: the arch's own main loop, for every row of common/tuning/attn_bwd.sm90.def with loop `sm90` and
 * both 16-bit types a kernel for deterministic mode and one without, each also GENERAL. What stands before and behind
 * the main loop, and all other rows, come from the sm80 image. */
#include "backends/cuda/leaf.h"
#include "common/device/device.h"

#include "common/device/copy.h"
#include "common/device/mask.h"
#include "common/device/mma.h"
#include "common/device/reduce.h"

extern __shared__ char dev_shared[] __attribute__((aligned(1024)));

#include "common/kernels/attn_bwd.h"

#include "attn_bwd_sm90.h"

#define KERNEL(id, type, T, hd, mode, ordered, general)                                                                \
    DEV_KERNEL(256)                                                                                                    \
    stw_attn_bwd_##id##_##type##_##mode(DEV_ARGUMENT stw_attn_launch launch, DEV_ARGUMENT stw_sm90_maps maps) {        \
        attn_bwd_sm90<sm90_config<T, hd, general>, ordered>(launch, maps, dev_shared);                                 \
    }
#define BOTH(id, type, T, hd)                                                                                          \
    KERNEL(id, type, T, hd, plain, false, false)                                                                       \
    KERNEL(id, type, T, hd, ordered, true, false)                                                                      \
    KERNEL(id, type, T, hd, general, false, true)                                                                      \
    KERNEL(id, type, T, hd, general_ordered, true, true)
#define ROW_sm90(id, hd, bm, kb)                                                                                       \
    static_assert(bm == STW_SM90_BM(hd) && STW_SM90_SMEM(hd) <= kb * 1024u, "bm and smem_kb of " #id);                 \
    BOTH(id, bf16, dev_bf16, hd) BOTH(id, f16, dev_f16, hd)

#define STW_VARIANT(id, hd, bm, bn, stages, warps, smem_kb, loop) ROW_##loop(id, hd, bm, smem_kb)
#define STW_RULE(conditions, id)
#define STW_SM90_OWN
#include "common/tuning/attn_bwd.sm90.def"
