/* SPDX-License-Identifier: MIT
 *
 * The tile operations of one instruction set. CMakeLists.txt compiles this file once for each, with
 * STW_TILE_TABLE = the table's name and STW_TILE_LOOP = the word of the tuning table's `loop` column. */
#include "tile.h"

#include "sternway/attn_bwd.h"
#include "tile_vec.h"

#include "tile_math.inl"

#include "tile_copy.inl"
#include "tile_dropout.inl"
#include "tile_f64.inl"
#include "tile_gemm.inl"
#include "tile_grad.inl"
#include "tile_jagged.inl"
#include "tile_slopes.inl"

#include "tile_log_softmax.inl"
#if defined(__AVX512BF16__)
#include "tile_scores.inl"
#endif

const stw_tile_ops STW_TILE_TABLE = {
    .loop = STW_TILE_LOOP,
    .lanes = LANES,
    .load_rows = tile_load_rows,
    .transpose = tile_transpose,
    .store_rows = tile_store_rows,
    .add_rows = tile_add_rows,
    .dot_rows = tile_dot_rows,
    .matmul = tile_matmul,
    .matmul_at = tile_matmul_at,
    .matmul_f64 = tile_matmul_f64,
    .grad = tile_grad,
    .softmax = tile_softmax,
    .scale_rows = tile_scale_rows,
    .dropout = tile_dropout,
#define STW_JAGGED_POINTWISE(ID, name, fields, any_dtype) .pointwise[STW_JAGGED_##ID] = tile_##name,
#include "common/jagged_pointwise.def"
#undef STW_JAGGED_POINTWISE
    .convert = tile_convert,
    .fill = tile_fill,
    .repeat = tile_repeat,
    .dot = tile_dot,
    .add_columns = tile_add_columns,
    .sum_parts = tile_sum_parts,
    .softmax_line = tile_softmax_line,
    .softmax_lines = tile_softmax_lines,
    .total = tile_total,
    .log_softmax_line = tile_log_softmax_line,
    .log_softmax_lines = tile_log_softmax_lines,
    .norm_sums = tile_norm_sums,
    .norm_line = tile_norm_line,
    .norm_columns = tile_norm_columns,
#if defined(__AVX512BF16__)
    .pair_rows = tile_pair_rows,
    .pair_terms = tile_pair_terms,
    .matmul_pairs = tile_matmul_pairs,
#endif
};
