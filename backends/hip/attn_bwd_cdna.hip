/* SPDX-License-Identifier: MIT
 *
 * The HIP images: every row of common/tuning/attn_bwd.gfx*.def becomes kernels of the shared tiled source, and rows
 * `cdna*` become kernels of CDNA's own main loop, too.
 * Compiled once an architecture, with STW_VARIANT_TABLE naming its table; entry names are put together again by
 * backends/gpu/attn_tiled.c. */
#include "backends/hip/leaf.h"
#include "common/device/device.h"

#include "common/device/copy.h"
#include "common/device/mask.h"
#include "common/device/mma.h"
#include "common/device/reduce.h"

extern DEV_LDS char dev_shared[] __attribute__((aligned(1024)));

#include "common/kernels/attn_bwd.h"
#include "common/kernels/attn_dbias_reduce.h"
#include "common/kernels/attn_bwd_preprocess.h"
#include "common/kernels/attn_bwd_postprocess.h"
#include "common/kernels/attn_fwd.h"
#include "common/kernels/attn_hidden_blocks.h"
#include "common/kernels/attn_stage.h"
#include "common/kernels/dropout_mask.h"

#include "attn_bwd_cdna_parts.h"
#include "attn_cdna_modes.h"

#define KERNEL(name, threads, call)                                                                                    \
    DEV_KERNEL(threads) name(DEV_ARGUMENT stw_attn_launch) {                                                           \
        const stw_attn_launch &launch = *(const stw_attn_launch *)cdna_launch_again();                                 \
        call;                                                                                                          \
    }
#define BWD(id, type, T, hd, bm, bn, stages, warps, mode, MODE, kb)                                                    \
    static_assert(STW_BWD_SMEM(sizeof(T), hd, bm, bn, stages) <= kb * 1024u, "smem_kb of " #id);                       \
    KERNEL(stw_attn_bwd_##id##_##type##mode, warps *DEV_WAVE,                                                          \
           (attn_bwd_main<attn_config<T, hd, bm, bn, stages, warps>, MODE>(launch, dev_shared)))
#define FWD(id, type, T, hd, bm, bn, warps, kb)                                                                        \
    static_assert(STW_FWD_SMEM(sizeof(T), hd, bm, bn) <= kb * 1024u, "smem_kb of " #id);                               \
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
/* CDNA's own loop, 16-bit; waves: of a SIMD. The shared kernels of a row come before its own. */
#define CDNA_SHARED(id, hd, bm, bn, stages, warps, kb)                                                                 \
    static_assert(bm == 32 && warps == 4, "sums of dQ lie in one order for both kinds of kernels");                    \
    ROW_full(id, hd, bm, bn, stages, warps, kb)
#define CDNA_CONFIG(T, waves, ...)                                                                                     \
    static_assert(attn_cdna<T, __VA_ARGS__>::IN_AGPRS == (waves == 1), "one wave a SIMD where AGPRS hold operands");   \
    __attribute__((amdgpu_waves_per_eu(waves, waves)))
#define CDNA(id, type, T, waves, mode, ...)                                                                            \
    CDNA_CONFIG(T, waves, __VA_ARGS__)                                                                                 \
    KERNEL(stw_attn_bwd_##id##_##type##_##mode, 256, (attn_cdna_main<attn_cdna<T, __VA_ARGS__>>(launch, dev_shared)))
#define CDNA_EXACT(id, type, T, mode, ...)                                                                             \
    __attribute__((amdgpu_waves_per_eu(1, 1)))                                                                         \
    KERNEL(stw_attn_bwd_##id##_##type##_##mode, 256, (attn_cdna_exact<attn_cdna<T, __VA_ARGS__>>(launch, dev_shared)))
/* The column of a head dim (attn_cdna_modes.h), after `make`. */
#define CDNA_COLUMN_32(make, d32, ...)                          make##d32
#define CDNA_COLUMN_64(make, d32, d64, ...)                     make##d64
#define CDNA_COLUMN_96(make, d32, d64, d96, ...)                make##d96
#define CDNA_COLUMN_128(make, d32, d64, d96, d128, ...)         make##d128
#define CDNA_COLUMN_192(make, d32, d64, d96, d128, d192, ...)   make##d192
#define CDNA_COLUMN_256(make, d32, d64, d96, d128, d192, d256)  make##d256
#define CDNA_IN(mode, MODE, d32, d64, d96, d128, d192, d256, id, type, T, hd)                                          \
    CDNA_COLUMN_##hd(CDNA_IN_, d32, d64, d96, d128, d192, d256)(mode, MODE, id, type, T, hd)
#define CDNA_IN_none(mode, MODE, id, type, T, hd)
#define CDNA_IN_one(mode, MODE, id, type, T, hd) CDNA(id, type, T, 1, mode, hd, hd, MODE)
#define CDNA_IN_two(mode, MODE, id, type, T, hd) CDNA(id, type, T, 2, mode, hd, hd, MODE)
#define EXACT_IN(mode, MODE, d32, d64, d96, d128, d192, d256, id, type, T, hd)                                         \
    CDNA_COLUMN_##hd(EXACT_IN_, d32, d64, d96, d128, d192, d256)(mode, MODE, id, type, T, hd)
#define EXACT_IN_none(mode, MODE, id, type, T, hd)
#define EXACT_IN_one(mode, MODE, id, type, T, hd)
#define EXACT_IN_two(mode, MODE, id, type, T, hd) CDNA_EXACT(id, type, T, mode##_exact, hd, hd, MODE)
#define CDNA_MAIN(id, type, T, hd)                                                                                     \
    CDNA(id, type, T, (hd > 64 ? 1 : 2), plain, hd, hd, CDNA_PLAIN)                                                    \
    CDNA(id, type, T, (hd > 64 ? 1 : 2), ordered, hd, hd, CDNA_ORDERED)                                                \
    STW_CDNA_MODES(CDNA_IN, id, type, T, hd)
#define CDNA_BEHIND(id, type, T, hd)                                                                                   \
    CDNA_EXACT(id, type, T, exact, hd) STW_CDNA_MODES(EXACT_IN, id, type, T, hd)
/* bf16 alone: f16's `every` has its exact steps within, without scratch. */
#define CDNA_EVERY_BEHIND(id, hd)                                                                                      \
    CDNA_EXACT(id, bf16, dev_bf16, every_exact, hd, hd, CDNA_EVERYTHING)
#define CDNA_EVERY_ORDERED(id, type, T, hd) CDNA(id, type, T, 1, every_ordered, hd, hd, CDNA_EVERYTHING_ORDERED)
#define CDNA_TALL(id, type, T, hd)                                                                                     \
    CDNA(id, type, T, 1, tall, hd, STW_CDNA_TALL_V, CDNA_PLAIN)                                                        \
    CDNA(id, type, T, 1, tall_ordered, hd, STW_CDNA_TALL_V, CDNA_ORDERED)
#define CDNA_WHOLE(id, type, T, hd)                                                                                    \
    CDNA_MAIN(id, type, T, hd) CDNA(id, type, T, 1, every, hd, hd, CDNA_EVERYTHING)
#define CDNA_BOTH(make, id, hd) make(id, f16, dev_f16, hd) make(id, bf16, dev_bf16, hd)
#define ROW_cdna(id, hd, bm, bn, stages, warps, kb)                                                                    \
    CDNA_SHARED(id, hd, bm, bn, stages, warps, kb) CDNA_BOTH(CDNA_WHOLE, id, hd)
#define ROW_cdna_tall(id, hd, bm, bn, stages, warps, kb)                                                               \
    ROW_cdna(id, hd, bm, bn, stages, warps, kb) CDNA_BOTH(CDNA_TALL, id, hd)
/* gfx950's: the kernels `bias` and `every` take every feature. */
#define CDNA_FEW(id, type, T, hd)                                                                                      \
    CDNA(id, type, T, (hd > 64 ? 1 : 2), plain, hd, hd, CDNA_PLAIN)                                                    \
    CDNA(id, type, T, (hd > 64 ? 1 : 2), ordered, hd, hd, CDNA_ORDERED)                                                \
    CDNA(id, type, T, 1, bias, hd, hd, CDNA_BIAS)                                                                      \
    CDNA(id, type, T, 1, every, hd, hd, CDNA_EVERYTHING)
#define ROW_cdna_few(id, hd, bm, bn, stages, warps, kb)                                                                \
    CDNA_SHARED(id, hd, bm, bn, stages, warps, kb) CDNA_BOTH(CDNA_FEW, id, hd)
#define ROW_cdna_exact(id, hd, bm, bn, stages, warps, kb)                                                              \
    CDNA_SHARED(id, hd, bm, bn, stages, warps, kb)                                                                     \
    CDNA_BOTH(CDNA_WHOLE, id, hd) CDNA_BOTH(CDNA_BEHIND, id, hd) CDNA_EVERY_BEHIND(id, hd)                             \
    CDNA_BOTH(CDNA_EVERY_ORDERED, id, hd)
#define ROW_cdna_exact_tall(id, hd, bm, bn, stages, warps, kb)                                                         \
    ROW_cdna_exact(id, hd, bm, bn, stages, warps, kb) CDNA_BOTH(CDNA_TALL, id, hd)
#define ROW_cdna_f32(id, hd, bm, bn, stages, warps, kb)                                                                \
    static_assert(bm == attn_cdna_f32<hd>::BM, "both kinds of kernels have the same query blocks");                    \
    ROW_f32(id, hd, bm, bn, stages, warps, kb)                                                                         \
    CDNA_F32(id, plain, hd, CDNA_PLAIN) CDNA_F32(id, ordered, hd, CDNA_ORDERED)                                        \
    CDNA_F32(id, every, hd, CDNA_EVERYTHING) CDNA_F32(id, every_ordered, hd, CDNA_EVERYTHING_ORDERED)
#define CDNA_F32(id, mode, hd, MODE)                                                                                   \
    __attribute__((amdgpu_waves_per_eu(1, 1)))                                                                         \
    KERNEL(stw_attn_bwd_##id##_f32_##mode, 256, (attn_cdna_main<attn_cdna_f32<hd, MODE>>(launch, dev_shared)))
#define ROW_f32(id, hd, bm, bn, stages, warps, kb) BWD(id, f32, float, hd, bm, bn, stages, warps, _full, ATTN_ALL, kb)
#define ROW_fwd(id, hd, bm, bn, stages, warps, kb)                                                                     \
    FWD(id, f16, dev_f16, hd, bm, bn, warps, kb) FWD(id, bf16, dev_bf16, hd, bm, bn, warps, kb)
#define ROW_fwd_f32(id, hd, bm, bn, stages, warps, kb) FWD(id, f32, float, hd, bm, bn, warps, kb)
/* clang-format on */

#define STW_VARIANT(id, hd, bm, bn, stages, warps, smem_kb, loop) ROW_##loop(id, hd, bm, bn, stages, warps, smem_kb)
#define STW_RULE(conditions, id)
#include STW_VARIANT_TABLE

#define BIAS(name, type, T, hd, bm, bn, warps)                                                                         \
    KERNEL(                                                                                                            \
        stw_attn_dbias_reduce_##name##_##type, warps *DEV_WAVE,                                                        \
        (attn_dbias_reduce<attn_config<T, hd, bm, bn, STW_BIAS_STAGES_64(sizeof(T), hd), warps>>(launch, dev_shared)))
#define BIAS_2(name, hd, bm, bn, warps)                                                                                \
    BIAS(name, f16, dev_f16, hd, bm, bn, warps) BIAS(name, bf16, dev_bf16, hd, bm, bn, warps)
#define BIAS_4(name, hd, bm, bn, warps)             BIAS(name, f32, float, hd, bm, bn, warps)
#define BIAS_TILE(name, element, hd, bm, bn, warps) BIAS_##element(name, hd, bm, bn, warps)
STW_DBIAS_TILES_64(BIAS_TILE)

/* Two waves a SIMD: sums of products lie in ordinary registers then, where they are read. */
/* clang-format off */
#define CDNA_ROWS(type, T, hd)                                                                                         \
    __attribute__((amdgpu_waves_per_eu(2)))                                                                            \
    KERNEL(stw_attn_bwd_preprocess_cdna_hd##hd##_##type, ATTN_ROW_THREADS,                                             \
           (attn_cdna_preprocess<attn_cdna_rows<T, hd>, false>(launch, dev_shared)))                                   \
    __attribute__((amdgpu_waves_per_eu(2)))                                                                            \
    KERNEL(stw_attn_bwd_preprocess_cdna_ordered_hd##hd##_##type, ATTN_ROW_THREADS,                                     \
           (attn_cdna_preprocess<attn_cdna_rows<T, hd>, true>(launch, dev_shared)))                                    \
    KERNEL(stw_attn_bwd_postprocess_cdna_hd##hd##_##type, ATTN_ROW_THREADS,                                            \
           (attn_cdna_finish<attn_cdna_rows<T, hd>>(launch, dev_shared)))
/* clang-format on */
#define CDNA_ROWS_2(hd) CDNA_ROWS(f16, dev_f16, hd) CDNA_ROWS(bf16, dev_bf16, hd)
CDNA_ROWS_2(32)
CDNA_ROWS_2(64)
CDNA_ROWS_2(96)
CDNA_ROWS_2(128)
CDNA_ROWS_2(192)
CDNA_ROWS_2(256)

KERNEL(stw_attn_bwd_preprocess_f16, ATTN_ROW_THREADS, attn_bwd_preprocess<dev_f16>(launch, dev_shared))
KERNEL(stw_attn_bwd_preprocess_bf16, ATTN_ROW_THREADS, attn_bwd_preprocess<dev_bf16>(launch, dev_shared))
KERNEL(stw_attn_bwd_preprocess_f32, ATTN_ROW_THREADS, attn_bwd_preprocess<float>(launch, dev_shared))
KERNEL(stw_attn_bwd_postprocess, ATTN_ROW_THREADS, attn_bwd_postprocess(launch, dev_shared))
KERNEL(stw_attn_bwd_postprocess_parts, ATTN_ROW_THREADS, attn_cdna_finish_any(launch, dev_shared))
KERNEL(stw_attn_hidden_blocks, ATTN_ROW_THREADS, attn_hidden_blocks(launch))
KERNEL(stw_attn_dropout_mask, ATTN_MASK_THREADS, attn_dropout_mask(launch, dev_shared))

#define STAGE(bytes, T)                                                                                                \
    DEV_KERNEL(ATTN_STAGE_THREADS) stw_attn_stage_##bytes(DEV_ARGUMENT stw_attn_stages all) { attn_stage<T>(all); }
STAGE(2, uint16_t)
STAGE(4, uint32_t)
