/* SPDX-License-Identifier: MIT
 *
 * The tensors of a descriptor as data and the strides that a layout of problem.h gives them. */
#include "problem_layout.h"

#include <string.h>

#include "attn_packed.h"
#include "params/attn_hidden.h"

#define TENSOR(field, kind, output, flags, backward)                                                                   \
    {#field, kind, offsetof(stw_attn_desc, field), output, flags, backward, 0}
#define INPUT(field, kind, backward)                                                                                   \
    {#field, kind, offsetof(stw_attn_desc, field), 0, 0, backward, offsetof(stw_attn_desc, dim.field)}

/* By hand: a tool's own account of the descriptor, so that a wrong row of common/attn_tensors.def is noticed. */
const stw_problem_tensor stw_problem_tensors[] = {
    INPUT(q, STW_TENSOR_Q, 0),
    INPUT(k, STW_TENSOR_K, 0),
    INPUT(v, STW_TENSOR_V, 0),
    INPUT(out, STW_TENSOR_OUT, 0),
    INPUT(dout, STW_TENSOR_OUT, 1),
    TENSOR(dq, STW_TENSOR_Q, STW_OUT_DQ, 0, 1),
    TENSOR(dk, STW_TENSOR_K, STW_OUT_DK, 0, 1),
    TENSOR(dv, STW_TENSOR_V, STW_OUT_DV, 0, 1),
    TENSOR(lse, STW_TENSOR_LSE, 0, 0, 0),
    TENSOR(dlse, STW_TENSOR_LSE, 0, STW_ATTN_DLSE, 1),
    TENSOR(delta, STW_TENSOR_LSE, 0, STW_ATTN_GIVEN_DELTA | STW_ATTN_WRITE_DELTA, 1),
    TENSOR(bias, STW_TENSOR_BIAS, 0, 0, 0),
    TENSOR(dbias, STW_TENSOR_BIAS, STW_OUT_DBIAS, 0, 1),
    TENSOR(intervals, STW_TENSOR_INTERVALS, 0, 0, 0),
    TENSOR(block_mask, STW_TENSOR_BLOCKS, 0, STW_ATTN_BLOCK_MASK, 0),
};
enum {
    ROWS_OF_DEF = 4 /* bias, dbias, intervals, block_mask */
#define STW_ATTN_TENSOR(name, ...) +1
#include "common/attn_tensors.def"
};
_Static_assert(sizeof stw_problem_tensors / sizeof *stw_problem_tensors == ROWS_OF_DEF, "common/attn_tensors.def");
const size_t stw_problem_tensor_count = sizeof stw_problem_tensors / sizeof *stw_problem_tensors;
const size_t stw_problem_bias = 11;

const stw_problem_flag stw_problem_flags[] = {
    {"alibi", STW_ATTN_ALIBI},
    {"alibi_col", STW_ATTN_ALIBI_COLUMN},
    {"sink", STW_ATTN_SINK},
    {"dlse", STW_ATTN_DLSE},
    {"delta_in", STW_ATTN_GIVEN_DELTA},
    {"delta_out", STW_ATTN_WRITE_DELTA},
    {"used", STW_ATTN_HAS_USED_LENGTHS},
    {"any_address", STW_ATTN_ANY_ADDRESS},
    {"blockmask", STW_ATTN_BLOCK_MASK},
};
const size_t stw_problem_flag_count = sizeof stw_problem_flags / sizeof *stw_problem_flags;

const char *const stw_problem_order_names[3] = {"bshd", "bhsd", "qkv"};
const char *const stw_problem_form_names[6] = {
    "", "intervals_from", "intervals_range", "intervals_from_below", "intervals_range_below", "intervals_two"};
const char *const stw_problem_lse_names[3] = {"lse_rows", "lse_heads", "lse_local"};
const char *const stw_problem_grad_names[4] = {
#define STW_ATTN_GRADIENT(name, BIT) #name,
#include "common/attn_tensors.def"
};
const char stw_problem_output_letters[6] = "qkvbs";

const char *stw_problem_op_name(stw_problem_op op) { return op == STW_PROBLEM_ATTN_FWD ? "attn_fwd" : "attn_bwd"; }

const int64_t *stw_problem_strides_of(const stw_attn_desc *desc, const stw_problem_tensor *tensor) {
    return (const int64_t *)(const void *)((const char *)desc + tensor->offset);
}

/* a * b + c; clears *fits when that is outside 63 bits. */
static int64_t combine(int64_t a, int64_t b, int64_t c, int *fits) {
    int64_t product, sum;
    if (__builtin_mul_overflow(a, b, &product) || __builtin_add_overflow(product, c, &sum)) {
        *fits = 0;
        return 0;
    }
    return sum;
}

static int64_t at_least_1(int64_t value) { return value > 1 ? value : 1; }

static int is_query_side(stw_tensor_kind kind) { return kind != STW_TENSOR_K && kind != STW_TENSOR_V; }

static int is_packed(const stw_attn_desc *d, stw_tensor_kind kind) {
    return stw_attn_is_packed(d, !is_query_side(kind));
}

static int64_t dim_of(const stw_attn_desc *d, stw_tensor_kind kind) {
    return kind == STW_TENSOR_V || kind == STW_TENSOR_OUT ? d->head_dim_v : d->head_dim_qk;
}

static void rows_strides(const stw_attn_desc *d, stw_tensor_kind kind, const stw_problem_layout *layout, int64_t s[3],
                         int *fits) {
    int packed = is_packed(d, kind), query = is_query_side(kind);
    int64_t heads = query ? d->heads_q : d->heads_kv, gap = layout->gap;
    int64_t rows = at_least_1(query ? (packed ? d->total_q : d->max_seq_q) : (packed ? d->total_kv : d->max_seq_kv));
    int64_t width = combine(dim_of(d, kind), 1, gap, fits);
    if (layout->order == STW_ORDER_BHSD) {
        s[2] = width;
        s[1] = combine(rows, width, gap, fits);
        s[0] = combine(heads, s[1], gap, fits);
    } else if (layout->order == STW_ORDER_QKV && kind != STW_TENSOR_OUT) {
        int64_t both = combine(d->heads_q, 1, d->heads_kv, fits);
        int64_t widths = combine(both, combine(d->head_dim_qk, 1, gap, fits), 0, fits);
        s[1] = width;
        s[2] = combine(d->heads_kv, combine(d->head_dim_v, 1, gap, fits), widths, fits);
        s[0] = combine(at_least_1(d->max_seq_q > d->max_seq_kv ? d->max_seq_q : d->max_seq_kv), s[2], 0, fits);
    } else {
        s[1] = width;
        s[2] = combine(heads, width, gap, fits);
        s[0] = combine(rows, s[2], gap, fits);
    }
    if (packed) s[0] = 0;
}

static void lse_strides(const stw_attn_desc *d, const stw_problem_layout *layout, int64_t s[3], int *fits) {
    int packed = stw_attn_is_packed(d, 0) && layout->lse != STW_LSE_LOCAL;
    int64_t rows = at_least_1(packed ? d->total_q : d->max_seq_q);
    if (layout->lse == STW_LSE_HEADS) {
        s[1] = 1;
        s[2] = combine(d->heads_q, 1, layout->gap, fits);
        s[0] = combine(rows, s[2], 0, fits);
    } else {
        s[2] = 1;
        s[1] = combine(rows, 1, layout->gap, fits);
        s[0] = combine(d->heads_q, s[1], 0, fits);
    }
    if (packed) s[0] = 0;
}

static void bias_strides(const stw_attn_desc *d, const stw_problem_layout *layout, int64_t s[4], int *fits) {
    unsigned b = layout->broadcast;
    int64_t keys = b & STW_BROADCAST_K ? 1 : at_least_1(d->max_seq_kv);
    int64_t queries = b & STW_BROADCAST_Q ? 1 : at_least_1(d->max_seq_q);
    s[3] = 1;
    s[2] = combine(keys, 1, layout->gap, fits);
    s[1] = combine(queries, s[2], 0, fits);
    s[0] = combine(b & STW_BROADCAST_H ? 1 : d->heads_q, s[1], 0, fits);
    for (int i = 0; i < 4; ++i)
        if (b & (1u << i)) s[i] = 0;
}

static void intervals_strides(const stw_attn_desc *d, const stw_problem_layout *layout, int64_t s[4], int *fits) {
    int packed = stw_attn_is_packed(d, 1);
    int64_t keys = at_least_1(packed ? d->total_kv : d->max_seq_kv);
    s[3] = 1;
    s[2] = stw_interval_bounds(d->interval_form);
    s[1] = layout->mask_heads ? combine(keys, s[2], 0, fits) : 0;
    s[0] = packed ? 0 : combine(layout->mask_heads ? d->heads_kv : 1, combine(keys, s[2], 0, fits), 0, fits);
}

static void block_strides(const stw_attn_desc *d, const stw_problem_layout *layout, int64_t s[4], int *fits) {
    int64_t rows = stw_blocks_of(at_least_1(d->max_seq_q), STW_MASK_BLOCK);
    s[3] = 1;
    s[2] = stw_blocks_of(at_least_1(d->max_seq_kv), STW_MASK_BLOCK);
    s[1] = layout->mask_heads ? combine(rows, s[2], 0, fits) : 0;
    s[0] = combine(layout->mask_heads ? d->heads_q : 1, combine(rows, s[2], 0, fits), 0, fits);
}

int stw_problem_strides_of_layout(stw_attn_desc *desc, const stw_problem_layout *layout) {
    int fits = 1;
    for (size_t t = 0; t < stw_problem_tensor_count; ++t) {
        const stw_problem_tensor *tensor = &stw_problem_tensors[t];
        int64_t *s = (int64_t *)(void *)((char *)desc + tensor->offset);
        if (tensor->kind == STW_TENSOR_BIAS) {
            if (desc->bias_dtype == STW_DTYPE_NONE) memset(s, 0, sizeof(stw_bias_strides));
            else bias_strides(desc, layout, s, &fits);
        } else if (tensor->kind == STW_TENSOR_INTERVALS) {
            if (desc->interval_form == STW_INTERVALS_NONE) memset(s, 0, sizeof(stw_interval_strides));
            else intervals_strides(desc, layout, s, &fits);
        } else if (tensor->kind == STW_TENSOR_BLOCKS) {
            if (!(desc->flags & STW_ATTN_BLOCK_MASK)) memset(s, 0, sizeof(stw_block_mask_strides));
            else block_strides(desc, layout, s, &fits);
        } else if (tensor->kind == STW_TENSOR_LSE) lse_strides(desc, layout, s, &fits);
        else rows_strides(desc, tensor->kind, layout, s, &fits);
    }
    return fits;
}

int64_t stw_problem_dim_stride(const stw_attn_desc *desc, const stw_problem_tensor *tensor) {
    if (!tensor->dim || !(desc->flags & STW_ATTN_HAS_DIM_STRIDES)) return 1;
    return *(const int64_t *)(const void *)((const char *)desc + tensor->dim);
}

static int is_used(const stw_attn_desc *d, const stw_problem_tensor *tensor, stw_problem_op op) {
    if (tensor->backward && op == STW_PROBLEM_ATTN_FWD) return 0;
    uint32_t outputs = d->outputs ? d->outputs : STW_OUT_DQ | STW_OUT_DK | STW_OUT_DV;
    if (tensor->output && !(outputs & tensor->output)) return 0;
    if (tensor->flags && !(d->flags & tensor->flags)) return 0;
    if (tensor->kind == STW_TENSOR_INTERVALS) return d->interval_form != STW_INTERVALS_NONE;
    return tensor->kind != STW_TENSOR_BIAS || d->bias_dtype != STW_DTYPE_NONE;
}

int stw_problem_strides_match(const stw_attn_desc *desc, const stw_attn_desc *model, const stw_problem_tensor *tensor,
                              stw_problem_op op) {
    if (!is_used(desc, tensor, op)) return 1;
    const int64_t *a = stw_problem_strides_of(desc, tensor), *b = stw_problem_strides_of(model, tensor);
    int query = is_query_side(tensor->kind), packed = is_packed(desc, tensor->kind);
    int64_t heads = query ? desc->heads_q : desc->heads_kv;
    int64_t rows = query ? desc->max_seq_q : desc->max_seq_kv;
    if (tensor->dim && dim_of(desc, tensor->kind) > 1 &&
        stw_problem_dim_stride(desc, tensor) != stw_problem_dim_stride(model, tensor))
        return 0;
    if (stw_problem_has_four_strides(tensor->kind)) return memcmp(a, b, 4 * sizeof *a) == 0;
    if (packed && tensor->kind == STW_TENSOR_LSE) { /* a zero means: numbered through the pack */
        if ((a[0] == 0) != (b[0] == 0) || (desc->batch > 1 && a[0] != b[0])) return 0;
    } else if (!packed && desc->batch > 1 && a[0] != b[0]) return 0;
    if (heads > 1 && a[1] != b[1]) return 0;
    return (!packed && rows <= 1) || a[2] == b[2];
}
