/* SPDX-License-Identifier: MIT
 *
 * The jagged kernels of an image, the same for both vendors: one for each family, element type and size class. The
 * including file defines JAG_KERNEL(name, threads, call), JAG_KERNEL_BLOCKS (`blocks` CTAs a multiprocessor),
 * JAG_KERNEL_PRODUCT (the same, and the kernel chooses among members of its argument at run time), STW_VARIANT_TABLE
 * and dev_shared. backends/gpu/jagged_launch.c puts the same entry names together. */
#ifndef STW_COMMON_KERNELS_JAGGED_H
#define STW_COMMON_KERNELS_JAGGED_H

#include "common/params/jagged_launch.h"

#include "common/kernels/jagged_lines.h"
#include "common/kernels/jagged_map.h"
#include "common/kernels/jagged_math.h"
#include "common/kernels/jagged_pointwise.h"
#include "common/kernels/jagged_prepare.h"
#include "common/kernels/jagged_product.h"
#include "common/kernels/jagged_rows.h"
#include "common/kernels/jagged_sums.h"

JAG_KERNEL(stw_jagged_prepare, STW_JAGGED_PREPARE_THREADS, jag_prepare(launch, dev_shared))
JAG_KERNEL(stw_jagged_columns_end, STW_JAGGED_THREADS, jag_columns_end(launch, dev_shared))
JAG_KERNEL(stw_jagged_segment_sum, STW_JAGGED_THREADS, jag_segment_sum(launch))

/* CTAs a multiprocessor of a norm that makes dX alone: as many as its registers allow. */
#define JAG_NORM_BLOCKS(vectors) ((vectors) <= 2 ? 5 : 4)
/* Lines: sizes with and without column sums of layer_norm and rms_norm. */
#define JAG_LINES_0(name, lanes, vectors)                                                                              \
    JAG_TYPED(softmax_##name, STW_JAGGED_THREADS, (jag_softmax<JAG_T, false, lanes, vectors>(launch, dev_shared)))     \
    JAG_TYPED(log_softmax_##name, STW_JAGGED_THREADS, (jag_softmax<JAG_T, true, lanes, vectors>(launch, dev_shared)))  \
    JAG_TYPED_BLOCKS(norm_##name, STW_JAGGED_THREADS, JAG_NORM_BLOCKS(vectors),                                        \
                     (jag_norm<JAG_T, true, lanes, vectors>(launch, dev_shared)))                                      \
    JAG_TYPED_BLOCKS(rms_norm_##name, STW_JAGGED_THREADS, JAG_NORM_BLOCKS(vectors),                                    \
                     (jag_norm<JAG_T, false, lanes, vectors>(launch, dev_shared)))
#define JAG_LINES_1(name, lanes, vectors)                                                                              \
    JAG_LINES_0(name, lanes, vectors)                                                                                  \
    JAG_TYPED(norm_sums_##name, STW_JAGGED_THREADS, (jag_norm_sums<JAG_T, true, lanes, vectors>(launch, dev_shared)))  \
    JAG_TYPED(rms_norm_sums_##name, STW_JAGGED_THREADS,                                                                \
              (jag_norm_sums<JAG_T, false, lanes, vectors>(launch, dev_shared)))
#define JAG_LINES_2(name, lanes, vectors)                                                                              \
    JAG_LINES_0(name, lanes, vectors)                                                                                  \
    JAG_TYPED_BLOCKS(norm_sums_##name, STW_JAGGED_THREADS, 2,                                                          \
                     (jag_norm_sums<JAG_T, true, lanes, vectors>(launch, dev_shared)))                                 \
    JAG_TYPED_BLOCKS(rms_norm_sums_##name, STW_JAGGED_THREADS, 2,                                                      \
                     (jag_norm_sums<JAG_T, false, lanes, vectors>(launch, dev_shared)))
#define STW_JAGGED_LINE(name, lanes, vectors, sums) JAG_LINES_##sums(name, lanes, vectors)
/* Products: which operands have the summed index as their rows. */
#define JAG_PRODUCT(a_by_k, b_by_k, bm, bn, bk, stages, warps)                                                         \
    JAG_TYPED_PRODUCT(                                                                                                 \
        product_##a_by_k##b_by_k, warps *DEV_WAVE, 8 / warps,                                                          \
        (jag_multiply<jag_product_config<JAG_T, a_by_k, b_by_k, bm, bn, bk, stages, warps>>(launch, dev_shared)))
#define JAG_PRODUCTS(bm, bn, bk, stages, warps)                                                                        \
    JAG_PRODUCT(0, 0, bm, bn, bk, stages, warps)                                                                       \
    JAG_PRODUCT(0, 1, bm, bn, bk, stages, warps)                                                                       \
    JAG_PRODUCT(1, 0, bm, bn, bk, stages, warps)                                                                       \
    JAG_PRODUCT(1, 1, bm, bn, bk, stages, warps)                                                                       \
    JAG_TYPED_PRODUCT(product_end, STW_JAGGED_THREADS, 1, (jag_product_end<JAG_T>(launch, dev_shared)))
#define JAG_WIDE_2(bm, bn, bk, stages, warps)
#define JAG_WIDE_4(bm, bn, bk, stages, warps)   JAG_PRODUCTS(bm, bn, bk, stages, warps)
#define JAG_NARROW_2(bm, bn, bk, stages, warps) JAG_PRODUCTS(bm, bn, bk, stages, warps)
#define JAG_NARROW_4(bm, bn, bk, stages, warps)
#define STW_JAGGED_POINTWISE(ID, name, fields, any_dtype)                                                              \
    JAG_TYPED_BLOCKS(name, STW_JAGGED_THREADS, 3, (jag_pointwise<JAG_T, jag_##name>(launch, dev_shared)))
/* softmax, log_softmax: long lines, along the ragged dimension, lines whose elements do not follow each other. */
#define JAG_SOFTMAX(log_, LOG)                                                                                         \
    JAG_TYPED(log_##softmax_long, STW_JAGGED_THREADS, (jag_softmax_long<JAG_T, LOG>(launch, dev_shared)))              \
    JAG_TYPED(log_##segment_part, STW_JAGGED_THREADS, (jag_segment_part<JAG_T, LOG>(launch, dev_shared)))              \
    JAG_TYPED(log_##segment_end, STW_JAGGED_THREADS, (jag_segment_end<JAG_T, LOG>(launch)))                            \
    JAG_TYPED(log_##softmax_strided, STW_JAGGED_THREADS, (jag_softmax_strided<JAG_T, LOG>(launch)))
#define JAG_FAMILIES                                                                                                   \
    JAG_TYPED(map, STW_JAGGED_THREADS, (jag_map<JAG_T>(launch, dev_shared)))                                           \
    JAG_TYPED(map_rows, STW_JAGGED_THREADS, (jag_map_rows<JAG_T>(launch)))                                             \
    JAG_SOFTMAX(, false)                                                                                               \
    JAG_SOFTMAX(log_, true)                                                                                            \
    JAG_TYPED(norm_long, STW_JAGGED_THREADS, (jag_norm_long<JAG_T, true>(launch, dev_shared)))                         \
    JAG_TYPED(rms_norm_long, STW_JAGGED_THREADS, (jag_norm_long<JAG_T, false>(launch, dev_shared)))                    \
    JAG_TYPED(norm_ragged_part, STW_JAGGED_THREADS, (jag_norm_ragged_part<JAG_T>(launch, dev_shared)))                 \
    JAG_TYPED(norm_ragged_end, STW_JAGGED_THREADS, (jag_norm_ragged_end<JAG_T>(launch, dev_shared)))                   \
    JAG_TYPED(columns, STW_JAGGED_THREADS, (jag_columns<JAG_T, false, true>(launch, dev_shared)))                      \
    JAG_TYPED(norm_columns, STW_JAGGED_THREADS, (jag_columns<JAG_T, true, true>(launch, dev_shared)))                  \
    JAG_TYPED(rms_norm_columns, STW_JAGGED_THREADS, (jag_columns<JAG_T, true, false>(launch, dev_shared)))

/* Once a type: entry names end in its own. */
#define JAG_ENTRY_OF(name, type)       stw_jagged_##name##_##type
#define JAG_ENTRY(name, type)          JAG_ENTRY_OF(name, type)
#define JAG_TYPED(name, threads, call) JAG_KERNEL(JAG_ENTRY(name, JAG_TYPE), threads, call)
#define JAG_TYPED_BLOCKS(name, threads, blocks, call)                                                                  \
    JAG_KERNEL_BLOCKS(JAG_ENTRY(name, JAG_TYPE), threads, blocks, call)
#define JAG_TYPED_PRODUCT(name, threads, blocks, call)                                                                 \
    JAG_KERNEL_PRODUCT(JAG_ENTRY(name, JAG_TYPE), threads, blocks, call)

#define STW_JAGGED_PRODUCT(element, bm, bn, bk, stages, warps) JAG_NARROW_##element(bm, bn, bk, stages, warps)
#define JAG_TYPE                                               f16
#define JAG_T                                                  dev_f16
#include "common/jagged_pointwise.def"
JAG_FAMILIES
#include STW_VARIANT_TABLE
#undef JAG_TYPE
#undef JAG_T
#define JAG_TYPE bf16
#define JAG_T    dev_bf16
#include "common/jagged_pointwise.def"
JAG_FAMILIES
#include STW_VARIANT_TABLE
#undef JAG_TYPE
#undef JAG_T
#undef STW_JAGGED_PRODUCT
#define STW_JAGGED_PRODUCT(element, bm, bn, bk, stages, warps) JAG_WIDE_##element(bm, bn, bk, stages, warps)
#define JAG_TYPE                                               f32
#define JAG_T                                                  float
#include "common/jagged_pointwise.def"
JAG_FAMILIES
#include STW_VARIANT_TABLE

#endif
