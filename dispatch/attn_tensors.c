/* SPDX-License-Identifier: MIT
 *
 * The tensors of common/attn_tensors.def as a table: where each lives in the descriptor, the arguments and the
 * parameter block, its extents and how a call uses it; and the stw_layout_* helpers over that list. */
#include "attn_problem.h"

#include "common/attn_packed.h"
#include "common/dtype.h"
#include "common/params/attn_hidden.h"

#include <string.h>

enum { SIDE_Q, SIDE_KV, COLS_QK = 'd', COLS_V = 'v', COLS_ROW = '1' };

const stw_tensor_row stw_tensor_rows[STW_TENSOR_ROWS] = {
#define ROW(name, dim_offset, side, cols, broadcast)                                                                   \
    {#name,                                                                                                            \
     offsetof(stw_attn_desc, name),                                                                                    \
     offsetof(stw_attn_args, name),                                                                                    \
     offsetof(stw_attn_params, name),                                                                                  \
     dim_offset,                                                                                                       \
     SIDE_##side,                                                                                                      \
     COLS_##cols,                                                                                                      \
     broadcast},
#define STW_ATTN_TENSOR(name, side, cols, broadcast, ...) ROW(name, 0, side, cols, broadcast)
#define STW_ATTN_INPUT(name, side, cols, broadcast, ...)                                                               \
    ROW(name, offsetof(stw_attn_desc, dim.name), side, cols, broadcast)
#include "common/attn_tensors.def"
#undef ROW
};

stw_tensor_use stw_tensor_use_of(const stw_tensor_row *row, const stw_attn_desc *d, stw_plan_kind kind) {
    int is_forward = kind == STW_PLAN_ATTN_FWD;
    switch (row - stw_tensor_rows) {
#define STW_ATTN_TENSOR(name, side, cols, broadcast, dtype, forward, backward, written)                                \
    case STW_TENSOR_AT_##name: return is_forward ? forward : backward;
#include "common/attn_tensors.def"
    }
    __builtin_unreachable(); /* GCOVR_EXCL_LINE: every row has its case */
}

stw_dtype stw_tensor_dtype(const stw_tensor_row *row, const stw_attn_desc *d) {
    switch (row - stw_tensor_rows) {
#define STW_ATTN_TENSOR(name, side, cols, broadcast, dtype_of, ...)                                                    \
    case STW_TENSOR_AT_##name: return dtype_of;
#include "common/attn_tensors.def"
    }
    __builtin_unreachable(); /* GCOVR_EXCL_LINE: every row has its case */
}

int stw_tensor_through_pack(const stw_tensor_row *row, const stw_attn_desc *desc) {
    return stw_attn_is_packed(desc, row->kv) && !(row->dim == '1' && stw_tensor_strides(row, desc)->batch != 0);
}

stw_tensor_extents stw_tensor_extents_of(const stw_tensor_row *row, const stw_attn_desc *desc) {
    int64_t total = row->kv ? desc->total_kv : desc->total_q;
    int64_t max_seq = row->kv ? desc->max_seq_kv : desc->max_seq_q;
    int through_pack = stw_tensor_through_pack(row, desc);
    return (stw_tensor_extents){
        .batch = through_pack ? 1 : desc->batch,
        .heads = row->kv ? desc->heads_kv : desc->heads_q,
        .rows = through_pack ? total : max_seq,
        .dim = row->dim == '1'   ? 1
               : row->dim == 'd' ? desc->head_dim_qk
                                 : desc->head_dim_v,
    };
}

const char *stw_plan_kind_name(stw_plan_kind kind) {
    return kind == STW_PLAN_JAGGED_BWD ? "jagged_bwd" : kind == STW_PLAN_ATTN_FWD ? "attn_fwd" : "attn_bwd";
}

/* ---- layouts ---- */

typedef enum layout_kind { LAYOUT_BSHD, LAYOUT_BHSD, LAYOUT_THD } layout_kind;

/* Contiguous strides for one tensor; 0 on overflow. */
static int strides_fill(stw_attn_strides *strides, stw_tensor_extents e, int per_row, int packed, layout_kind kind) {
    int64_t batch;
    int head_outside = per_row || (kind == LAYOUT_BHSD && !packed); /* [.., H, S(, D)] */
    int64_t inner = head_outside ? e.rows : e.heads, outer = head_outside ? e.heads : e.rows;
    int64_t row = e.dim, plane = inner * row; /* sizes are checked: a batch is below 2^59 elements */
    strides->head = head_outside ? plane : row;
    strides->seq = head_outside ? row : plane;
    strides->batch = packed ? 0 : plane * outer;
    return !__builtin_mul_overflow(plane * outer, e.batch, &batch);
}

/* One mask for all heads, the last dimension contiguous; those that the descriptor has not stay as they are. */
static void masks_fill(stw_attn_desc *d) {
    int64_t bounds = stw_interval_bounds(d->interval_form); /* products of two extents: below 2^62 */
    int64_t query_blocks = stw_blocks_of(d->max_seq_q, STW_MASK_BLOCK);
    int64_t key_blocks = stw_blocks_of(d->max_seq_kv, STW_MASK_BLOCK);
    if (bounds)
        d->intervals = (stw_interval_strides){
            .batch = stw_attn_is_packed(d, 1) ? 0 : d->max_seq_kv * bounds, .key = bounds, .bound = 1};
    if (d->flags & STW_ATTN_BLOCK_MASK)
        d->block_mask = (stw_block_mask_strides){query_blocks * key_blocks, 0, key_blocks, 1};
}

static stw_status layout_fill(const char *who, stw_attn_desc *desc, layout_kind kind) {
    stw_status status = stw_attn_check_given(who, desc);
    if (status) return status;
    if (kind == LAYOUT_THD && !stw_attn_is_packed(desc, 0) && !stw_attn_is_packed(desc, 1))
        return stw_fail(STW_E_INVALID,
                        "%s: total_q %lld and total_kv %lld: a packed layout needs one of them above 0, or "
                        "STW_ATTN_PACKED_Q or _KV in flags",
                        who, (long long)desc->total_q, (long long)desc->total_kv);
    size_t size = desc->struct_size < sizeof *desc ? desc->struct_size : sizeof *desc; /* an older caller's */
    stw_attn_desc filled = {0};
    memcpy(&filled, desc, size);
    int fits = 1;
    for (size_t i = 0; i < STW_TENSOR_ROWS; ++i) {
        const stw_tensor_row *row = &stw_tensor_rows[i];
        stw_attn_strides *strides = (stw_attn_strides *)((char *)&filled + row->desc_offset);
        *strides = (stw_attn_strides){0}; /* a packed side then numbers rows through the pack */
        int packed = stw_attn_is_packed(desc, row->kv);
        fits &= strides_fill(strides, stw_tensor_extents_of(row, &filled), row->dim == '1', packed, kind);
    }
    stw_bias_strides bias = {.key = 1, .query = desc->max_seq_kv};
    fits &= !__builtin_mul_overflow(desc->max_seq_q, desc->max_seq_kv, &bias.head);
    fits &= !__builtin_mul_overflow(bias.head, desc->heads_q, &bias.batch);
    if (!fits) return stw_fail(STW_E_INVALID, "%s: a stride of these sizes is above 2^63", who);
    filled.bias = filled.dbias = bias;
    masks_fill(&filled);
    if (filled.flags & STW_ATTN_HAS_DIM_STRIDES) filled.dim = (stw_attn_dim_strides){1, 1, 1, 1, 1};
    memcpy(desc, &filled, size);
    return STW_OK;
}

stw_status stw_layout_bshd(stw_attn_desc *desc) { return layout_fill("layout_bshd", desc, LAYOUT_BSHD); }
stw_status stw_layout_bhsd(stw_attn_desc *desc) { return layout_fill("layout_bhsd", desc, LAYOUT_BHSD); }
stw_status stw_layout_thd(stw_attn_desc *desc) { return layout_fill("layout_thd", desc, LAYOUT_THD); }
