/* SPDX-License-Identifier: MIT
 *
 * The sm90 image: the arch's own main loops, for every row of common/tuning/attn_bwd.sm90.def and both 16-bit types.
 *
 *     loop         kernels of a row and type
 *     sm90         one for each mode, since a kernel that asks for deterministic mode is 2 to 6% slower in the other:
 *                  plain, f32 outputs, all that is asked of outputs, ALiBi, softcap, masks in memory. One for both:
 *                  dropout, a bias, each feature with f32 or few outputs, dropout with ALiBi or a bias, an f32 bias
 *                  or a gradient of every pair, and all of it at once. For all rows: the kernels that list what
 *                  masks leave
 *     sm90_wide,   plain, and its twin; for either mode: ALiBi and softcap, all that is asked of outputs; sm90_wide
 *     sm90_tall    alone: dropout, also with such outputs, a bias, masks in memory, all of it at once, also with dBias
 *                  of every pair under a softcap
 *     sm90_short, few16, few64: one
 *
 * What comes before and after the main loop of `sm90` with the usual options is here, too; with others, and for all
 * other rows, it comes from the sm80 image. */
/* A word of a Philox call by number, without an array in memory. */
#define STW_WORD_OF(words, k)                                                                                          \
    ((k) & 2 ? ((k) & 1 ? (words).word[3] : (words).word[2]) : ((k) & 1 ? (words).word[1] : (words).word[0]))

#include "backends/cuda/leaf.h"
#include "common/device/device.h"

#include "common/device/copy.h"
#include "common/device/mask.h"
#include "common/device/mma.h"
#include "common/device/reduce.h"

extern __shared__ char dev_shared[] __attribute__((aligned(1024)));

#include "common/kernels/attn_bwd.h"

#include "attn_bwd_sm90.h"
#include "attn_bwd_sm90_few.h"
#include "attn_bwd_sm90_rows.h"
#include "attn_bwd_sm90_short.h"
#include "attn_bwd_sm90_wide_kernel.h"

DEV_KERNEL(ATTN_ROW_THREADS) stw_attn_bwd_visible_sm90(DEV_ARGUMENT stw_attn_launch launch) {
    sm90_list_visible(launch);
}
DEV_KERNEL(ATTN_ROW_THREADS) stw_attn_bwd_order_sm90(DEV_ARGUMENT stw_attn_launch launch) { sm90_list_order(launch); }

#define KERNEL(id, type, T, hd, mode, ordered, OUT, FEATURE)                                                           \
    DEV_KERNEL((sm90_knows<FEATURE>::DROPOUT ? 384 : 256))                                                             \
    stw_attn_bwd_##id##_##type##_##mode(DEV_ARGUMENT stw_attn_launch launch, DEV_ARGUMENT stw_sm90_maps maps) {        \
        attn_bwd_sm90<sm90_config<T, hd, SM90_OUT_##OUT>, ordered, FEATURE>(launch, maps, dev_shared);                 \
    }
#define BOTH(id, type, T, hd)                                                                                          \
    KERNEL(id, type, T, hd, plain, false, PLAIN, SM90_PLAIN)                                                           \
    KERNEL(id, type, T, hd, ordered, true, PLAIN, SM90_PLAIN)                                                          \
    KERNEL(id, type, T, hd, outputs, false, F32, SM90_PLAIN)                                                           \
    KERNEL(id, type, T, hd, outputs_ordered, true, F32, SM90_PLAIN)                                                    \
    KERNEL(id, type, T, hd, general, false, GENERAL, SM90_PLAIN)                                                       \
    KERNEL(id, type, T, hd, general_ordered, true, GENERAL, SM90_PLAIN)                                                \
    KERNEL(id, type, T, hd, alibi, false, PLAIN, SM90_ALIBI)                                                           \
    KERNEL(id, type, T, hd, alibi_ordered, true, PLAIN, SM90_ALIBI)                                                    \
    KERNEL(id, type, T, hd, alibi_outputs, SM90_ORDER_ASKED, F32, SM90_ALIBI)                                          \
    KERNEL(id, type, T, hd, softcap, false, PLAIN, SM90_SOFTCAP)                                                       \
    KERNEL(id, type, T, hd, softcap_ordered, true, PLAIN, SM90_SOFTCAP)                                                \
    KERNEL(id, type, T, hd, softcap_outputs, SM90_ORDER_ASKED, F32, SM90_SOFTCAP)                                      \
    KERNEL(id, type, T, hd, dropout, SM90_ORDER_ASKED, PLAIN, SM90_DROPOUT)                                            \
    KERNEL(id, type, T, hd, dropout_outputs, SM90_ORDER_ASKED, F32, SM90_DROPOUT)                                      \
    KERNEL(id, type, T, hd, dropout_alibi, SM90_ORDER_ASKED, PLAIN, SM90_DROPOUT_ALIBI)                                \
    KERNEL(id, type, T, hd, dropout_bias, SM90_ORDER_ASKED, PLAIN, SM90_DROPOUT_BIAS)                                  \
    KERNEL(id, type, T, hd, bias, SM90_ORDER_ASKED, PLAIN, SM90_BIAS)                                                  \
    KERNEL(id, type, T, hd, bias_outputs, SM90_ORDER_ASKED, F32, SM90_BIAS)                                            \
    KERNEL(id, type, T, hd, bias_more, SM90_ORDER_ASKED, PLAIN, SM90_BIAS_MORE)                                        \
    KERNEL(id, type, T, hd, masks, false, PLAIN, SM90_MASKS)                                                           \
    KERNEL(id, type, T, hd, masks_ordered, true, PLAIN, SM90_MASKS)                                                    \
    KERNEL(id, type, T, hd, masks_outputs, SM90_ORDER_ASKED, F32, SM90_MASKS)                                          \
    KERNEL(id, type, T, hd, all, SM90_ORDER_ASKED, F32, SM90_ALL)
/* Registers for four CTAs a multiprocessor: bytes under way are what these kernels need. */
#define ROWS(type, T, hd)                                                                                              \
    DEV_KERNEL_BLOCKS(ATTN_ROW_THREADS, 4)                                                                             \
    stw_attn_bwd_preprocess_sm90_hd##hd##_##type(DEV_ARGUMENT stw_attn_launch launch) {                                \
        sm90_preprocess<sm90_rows<T, hd>>(launch, dev_shared);                                                         \
    }                                                                                                                  \
    DEV_KERNEL_BLOCKS(ATTN_ROW_THREADS, 4)                                                                             \
    stw_attn_bwd_postprocess_sm90_hd##hd##_##type(DEV_ARGUMENT stw_attn_launch launch) {                               \
        sm90_postprocess<sm90_rows<T, hd>>(launch, dev_shared);                                                        \
    }
#define ROW_sm90(id, hd, bm, bn, kb)                                                                                   \
    static_assert(bm == STW_SM90_BM(hd) && STW_SM90_SMEM(hd) <= kb * 1024u, "bm and smem_kb of " #id);                 \
    BOTH(id, bf16, dev_bf16, hd) BOTH(id, f16, dev_f16, hd) ROWS(bf16, dev_bf16, hd) ROWS(f16, dev_f16, hd)
#define WIDE_KERNEL(id, type, config, mode, ordered)                                                                   \
    DEV_KERNEL(config::THREADS + 128)                                                                                  \
    stw_attn_bwd_##id##_##type##_##mode(DEV_ARGUMENT stw_attn_launch launch, DEV_ARGUMENT stw_sm90_maps maps) {        \
        attn_bwd_sm90_wide<config, ordered>(launch, maps, dev_shared);                                                 \
    }
#define WIDE_ALL(id, type)                                                                                             \
    WIDE_KERNEL(id, type, id##_##type, plain, false)                                                                   \
    WIDE_KERNEL(id, type, id##_##type, ordered, true)                                                                  \
    WIDE_KERNEL(id, type, id##_##type##_features, features, SM90_ORDER_ASKED)                                          \
    WIDE_KERNEL(id, type, id##_##type##_outputs, outputs, SM90_ORDER_ASKED)
#define WIDE(id, type, T, hd)                                                                                          \
    typedef sm90_wide_config<T, hd> id##_##type;                                                                       \
    typedef sm90_wide_config<T, hd, SM90_WIDE_FEATURES> id##_##type##_features;                                        \
    typedef sm90_wide_config<T, hd, SM90_WIDE_OUTPUTS> id##_##type##_outputs;                                          \
    typedef sm90_wide_config<T, hd, SM90_WIDE_DROPOUT> id##_##type##_dropout;                                          \
    typedef sm90_wide_config<T, hd, SM90_WIDE_BIAS> id##_##type##_bias;                                                \
    typedef sm90_wide_config<T, hd, SM90_WIDE_MASKS> id##_##type##_masks;                                              \
    WIDE_ALL(id, type)                                                                                                 \
    typedef sm90_wide_config<T, hd, SM90_WIDE_DROPOUT_OUTPUTS> id##_##type##_both;                                     \
    WIDE_KERNEL(id, type, id##_##type##_dropout, dropout, SM90_ORDER_ASKED)                                            \
    WIDE_KERNEL(id, type, id##_##type##_both, dropout_outputs, SM90_ORDER_ASKED)                                       \
    WIDE_KERNEL(id, type, id##_##type##_bias, bias, SM90_ORDER_ASKED)                                                  \
    WIDE_KERNEL(id, type, id##_##type##_masks, masks, SM90_ORDER_ASKED)                                                \
    typedef sm90_wide_config<T, hd, SM90_WIDE_ALL> id##_##type##_all;                                                  \
    WIDE_KERNEL(id, type, id##_##type##_all, all, SM90_ORDER_ASKED)                                                    \
    typedef sm90_wide_config<T, hd, SM90_WIDE_ALL_DBIAS> id##_##type##_all_dbias;                                      \
    WIDE_KERNEL(id, type, id##_##type##_all_dbias, all_dbias, SM90_ORDER_ASKED)
#define TALL(id, type, T)                                                                                              \
    typedef sm90_tall_config<T> id##_##type;                                                                           \
    typedef sm90_tall_config<T, SM90_WIDE_FEATURES> id##_##type##_features;                                            \
    typedef sm90_tall_config<T, SM90_WIDE_OUTPUTS> id##_##type##_outputs;                                              \
    WIDE_ALL(id, type)
#define ROW_sm90_wide(id, hd, bm, bn, kb)                                                                              \
    static_assert(bm == 64 && bn == STW_SM90_WIDE_KEYS(hd) &&                                                          \
                      STW_SM90_WIDE_SMEM(hd) + STW_SM90_WIDE_DROPPED_BYTES(hd) + STW_SM90_WIDE_SEEN_BYTES(hd) <=       \
                          kb * 1024u,                                                                                  \
                  "bm, bn and smem_kb of " #id);                                                                       \
    WIDE(id, bf16, dev_bf16, hd) WIDE(id, f16, dev_f16, hd)
#define ROW_sm90_tall(id, hd, bm, bn, kb)                                                                              \
    static_assert(hd == 192 && bm == 64 && STW_SM90_TALL_SMEM <= kb * 1024u, "bm and smem_kb of " #id);                \
    TALL(id, bf16, dev_bf16) TALL(id, f16, dev_f16)
#define SHORT(id, type, T, hd, bm, bn)                                                                                 \
    DEV_KERNEL_BLOCKS(2 * bn, SM90_SHORT_CTAS(hd, bm, bn))                                                             \
    stw_attn_bwd_##id##_##type(DEV_ARGUMENT stw_attn_launch launch, DEV_ARGUMENT stw_sm90_maps maps) {                 \
        attn_bwd_sm90_short<sm90_short_config<T, hd, bn / 64, bm>>(launch, maps, dev_shared);                          \
    }
#define ROW_sm90_short(id, hd, bm, bn, kb)                                                                             \
    static_assert(STW_SM90_SHORT_SMEM(hd, bm, bn) <= kb * 1024u, "bm and smem_kb of " #id);                            \
    SHORT(id, bf16, dev_bf16, hd, bm, bn) SHORT(id, f16, dev_f16, hd, bm, bn)

#define FEW_KERNEL(id, type, T, hd, rows)                                                                              \
    DEV_KERNEL_BLOCKS(STW_SM90_FEW_WARPS * 32, 228 * 1024 / (STW_SM90_FEW_SMEM(hd, rows) + 1024))                      \
    stw_attn_bwd_##id##_##type##_plain(DEV_ARGUMENT stw_attn_launch launch) {                                          \
        attn_bwd_sm90_few<few_config<T, hd, rows>>(launch, dev_shared);                                                \
    }
#define FEW(id, hd, bm, rows, kb)                                                                                      \
    static_assert(bm == rows && STW_SM90_FEW_SMEM(hd, rows) <= kb * 1024u, "bm and smem_kb of " #id);                  \
    FEW_KERNEL(id, bf16, dev_bf16, hd, rows) FEW_KERNEL(id, f16, dev_f16, hd, rows)
#define ROW_few16(id, hd, bm, bn, kb) FEW(id, hd, bm, 16, kb)
#define ROW_few64(id, hd, bm, bn, kb) FEW(id, hd, bm, 64, kb)

#define STW_VARIANT(id, hd, bm, bn, stages, warps, smem_kb, loop) ROW_##loop(id, hd, bm, bn, smem_kb)
#define STW_RULE(conditions, id)
#define STW_SM90_OWN
#include "common/tuning/attn_bwd.sm90.def"
