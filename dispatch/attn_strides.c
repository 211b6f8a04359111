/* SPDX-License-Identifier: MIT
 *
 * The check of every stride a call uses: no negative ones, broadcasts only where they are allowed, no span
 * beyond 2^63 bytes, no gradient that overlaps itself. */
#include "attn_problem.h"

#include "common/attn_packed.h"
#include "common/dtype.h"
#include "common/params/attn_hidden.h"

/* One dimension of a tensor. */
typedef struct dimension {
    const char *name;
    int64_t extent, stride;
} dimension;

typedef struct tensor {
    const char *who, *name;
    dimension dims[5];
    int count;
    int64_t element; /* bytes */
    int may_broadcast, output;
} tensor;

static stw_status check_dimensions(const tensor *t) {
    const int64_t most = (INT64_MAX - 1) / t->element;
    int64_t span = 1;
    for (int i = 0; i < t->count; ++i) {
        const dimension *dim = &t->dims[i];
        int64_t reach;
        if (dim->stride < 0)
            return stw_fail(STW_E_UNSUPPORTED, "%s: %s.%s stride %lld is negative: accepted 0 and more", t->who,
                            t->name, dim->name, (long long)dim->stride);
        if (dim->extent > 1 && dim->stride == 0 && !t->may_broadcast)
            return stw_fail(t->output ? STW_E_INVALID : STW_E_UNSUPPORTED,
                            "%s: %s.%s stride is 0 over %lld elements: %s may not be broadcast "
                            "(of the inputs only q, k, v, out, dout, bias, dlse, intervals and block_mask may)",
                            t->who, t->name, dim->name, (long long)dim->extent, t->name);
        if (dim->extent > 1 && (__builtin_mul_overflow(dim->extent - 1, dim->stride, &reach) ||
                                __builtin_add_overflow(span, reach, &span)))
            span = INT64_MAX;
        if (span > most) /* INT64_MAX: an overflow */
            return stw_fail(STW_E_INVALID, "%s: %s.%s stride %lld over %lld elements spans more than 2^63 bytes",
                            t->who, t->name, dim->name, (long long)dim->stride, (long long)dim->extent);
    }
    return STW_OK;
}

/* Every element of an output has a place of its own when, with the dimensions in the order of their strides,
 * each stride steps over all that the smaller ones reach. No extent is 0 here. */
static stw_status check_overlap(const tensor *t) {
    dimension sorted[5];
    int count = 0;
    for (int i = 0; i < t->count; ++i) {
        if (t->dims[i].extent == 1 || (t->may_broadcast && t->dims[i].stride == 0)) continue;
        int at = count++;
        for (; at > 0 && sorted[at - 1].stride > t->dims[i].stride; --at) sorted[at] = sorted[at - 1];
        sorted[at] = t->dims[i];
    }
    int64_t reach = 0; /* offset of the last element so far; check_dimensions has bounded it */
    for (int i = 0; i < count; ++i) {
        if (sorted[i].stride <= reach)
            return stw_fail(STW_E_INVALID,
                            "%s: %s.%s stride %lld makes elements of %s overlap: at least %lld is needed", t->who,
                            t->name, sorted[i].name, (long long)sorted[i].stride, t->name, (long long)reach + 1);
        reach += (sorted[i].extent - 1) * sorted[i].stride;
    }
    return STW_OK;
}

static stw_status check_tensor(const tensor *t) {
    for (int i = 0; i < t->count; ++i)
        if (t->dims[i].extent == 0) return STW_OK; /* an empty tensor's strides are never used */
    stw_status status = check_dimensions(t);
    return status || !t->output ? status : check_overlap(t);
}

static stw_status check_row(const stw_tensor_row *row, const stw_attn_desc *desc, stw_plan_kind kind) {
    stw_tensor_use use = stw_tensor_use_of(row, desc, kind);
    if (use == STW_USE_NONE) return STW_OK;
    stw_tensor_extents e = stw_tensor_extents_of(row, desc);
    const stw_attn_strides *s = stw_tensor_strides(row, desc);
    int output = use == STW_USE_OUTPUT || use == STW_USE_OUTPUT_OPTIONAL;
    int ignored = row->dim != '1' && stw_attn_is_packed(desc, row->kv);
    int64_t dim = stw_tensor_dim_stride(row, desc);
    if (output && e.dim > 1 && dim != 1)
        return stw_fail(STW_E_UNSUPPORTED, "%s: %s.head_dim stride %lld: an output's is 1", stw_plan_kind_name(kind),
                        row->name, (long long)dim);
    tensor t = {
        .who = stw_plan_kind_name(kind),
        .name = row->name,
        .dims = {{"batch", e.batch, ignored ? 0 : s->batch},
                 {"head", e.heads, s->head},
                 {"seq", e.rows, s->seq},
                 {"head_dim", e.dim, dim}},
        .count = row->dim == '1' ? 3 : 4,
        .element = (int64_t)stw_dtype_size(stw_tensor_dtype(row, desc)),
        .may_broadcast = row->may_broadcast && !output,
        .output = output,
    };
    return check_tensor(&t);
}

static stw_status check_bias(const stw_attn_desc *d, stw_plan_kind kind) {
    const int64_t extents[4] = {d->batch, d->heads_q, d->max_seq_q, d->max_seq_kv};
    static const char *const names[4] = {"batch", "head", "query", "key"};
    const int64_t bias[4] = {d->bias.batch, d->bias.head, d->bias.query, d->bias.key};
    const int64_t dbias[4] = {d->dbias.batch, d->dbias.head, d->dbias.query, d->dbias.key};
    int with_gradient = (d->outputs & STW_OUT_DBIAS) != 0;
    tensor t = {.who = stw_plan_kind_name(kind), .count = 4, .may_broadcast = 1};
    for (int gradient = 0; gradient <= with_gradient; ++gradient) {
        const int64_t *strides = gradient ? dbias : bias;
        t.name = gradient ? "dbias" : "bias";
        t.output = gradient;
        t.element = (int64_t)stw_dtype_size(gradient ? d->dbias_dtype : d->bias_dtype);
        for (int i = 0; i < 4; ++i) t.dims[i] = (dimension){names[i], extents[i], strides[i]};
        if (extents[3] > 1 && strides[3] != 0 && strides[3] != 1)
            return stw_fail(STW_E_UNSUPPORTED, "%s: %s.key stride %lld is neither 1 (contiguous) nor 0 (broadcast)",
                            t.who, t.name, (long long)strides[3]);
        stw_status status = check_tensor(&t);
        if (status) return status;
    }
    for (int i = 0; i < 4 && with_gradient; ++i)
        if (extents[i] > 1 && !bias[i] != !dbias[i])
            return stw_fail(STW_E_INVALID,
                            "%s: dbias.%s stride %lld and bias.%s stride %lld: dbias has the bias's own "
                            "shape, so both are 0 or neither is",
                            t.who, names[i], (long long)dbias[i], names[i], (long long)bias[i]);
    return STW_OK;
}

/* Masks that lie in memory: any stride may be 0. */
static stw_status check_intervals(const stw_attn_desc *d, stw_plan_kind kind) {
    if (d->interval_form == STW_INTERVALS_NONE) return STW_OK;
    int through_pack = stw_attn_intervals_through_pack(d);
    const stw_interval_strides *s = &d->intervals;
    const tensor t = {.who = stw_plan_kind_name(kind),
                      .name = "intervals",
                      .dims = {{"batch", through_pack ? 1 : d->batch, s->batch},
                               {"head", d->heads_kv, s->head},
                               {"key", through_pack ? d->total_kv : d->max_seq_kv, s->key},
                               {"bound", stw_interval_bounds(d->interval_form), s->bound}},
                      .count = 4,
                      .element = sizeof(int32_t),
                      .may_broadcast = 1};
    return check_tensor(&t);
}

static stw_status check_block_mask(const stw_attn_desc *d, stw_plan_kind kind) {
    if (!(d->flags & STW_ATTN_BLOCK_MASK)) return STW_OK;
    const stw_block_mask_strides *s = &d->block_mask;
    const tensor t = {.who = stw_plan_kind_name(kind),
                      .name = "block_mask",
                      .dims = {{"batch", d->batch, s->batch},
                               {"head", d->heads_q, s->head},
                               {"query", stw_blocks_of(d->max_seq_q, STW_MASK_BLOCK), s->query},
                               {"key", stw_blocks_of(d->max_seq_kv, STW_MASK_BLOCK), s->key}},
                      .count = 4,
                      .element = 1,
                      .may_broadcast = 1};
    return check_tensor(&t);
}

stw_status stw_attn_check_masks(const stw_attn_desc *desc, stw_plan_kind kind) {
    stw_status status = check_intervals(desc, kind);
    return status ? status : check_block_mask(desc, kind);
}

/* Sizes of workspaces and counters are products of these; none may pass 2^56, so that bytes fit easily. */
static stw_status check_products(const stw_attn_desc *d, stw_plan_kind kind) {
    int64_t rows_q = stw_attn_is_packed(d, 0) ? d->total_q : d->batch * d->max_seq_q;
    int64_t rows_kv = stw_attn_is_packed(d, 1) ? d->total_kv : d->batch * d->max_seq_kv;
    int64_t rows = rows_q > rows_kv ? rows_q : rows_kv, product;
    int64_t longest = d->max_seq_q > d->max_seq_kv ? d->max_seq_q : d->max_seq_kv;
    if (__builtin_mul_overflow(rows, d->heads_q * 256, &product) || product > INT64_C(1) << 56 ||
        __builtin_mul_overflow(d->batch * d->heads_q, longest, &product) || product > INT64_C(1) << 56)
        return stw_fail(STW_E_UNSUPPORTED,
                        "%s: batch %lld, heads_q %lld and %lld rows make a problem of more than 2^56 "
                        "elements",
                        stw_plan_kind_name(kind), (long long)d->batch, (long long)d->heads_q, (long long)rows);
    return STW_OK;
}

static stw_status check_dims(const stw_attn_desc *d, stw_plan_kind kind) {
    for (size_t i = 0; i < STW_TENSOR_ROWS && !(d->flags & STW_ATTN_HAS_DIM_STRIDES); ++i) {
        const stw_tensor_row *row = &stw_tensor_rows[i];
        if (row->dim_offset && stw_tensor_dim_field(row, d))
            return stw_fail(STW_E_INVALID, "%s: dim.%s %lld is set without STW_ATTN_HAS_DIM_STRIDES in flags",
                            stw_plan_kind_name(kind), row->name, (long long)stw_tensor_dim_field(row, d));
    }
    return STW_OK;
}

stw_status stw_attn_check_strides(const stw_attn_desc *desc, stw_plan_kind kind) {
    stw_status status = check_products(desc, kind);
    if (!status) status = check_dims(desc, kind);
    for (size_t i = 0; i < STW_TENSOR_ROWS && !status; ++i) status = check_row(&stw_tensor_rows[i], desc, kind);
    if (!status && stw_desc_has_bias(desc)) status = check_bias(desc, kind);
    if (!status) status = stw_attn_check_masks(desc, kind);
    return status;
}
