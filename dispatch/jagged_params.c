/* SPDX-License-Identifier: MIT
 *
 * From the public structs of a jagged operation to the parameter block of the kernels: the shape part at plan
 * time, the pointers at each call. Also how large each tensor is and which a call uses. */
#include "attn_problem.h"
#include "jagged_problem.h"

#include "common/dtype.h"
#include "common/jagged_data.h"
#include "common/jagged_ops.h"

/* ---- plan time ---- */

static uint32_t features_of(const stw_jagged_desc *d) {
    uint32_t features = d->flags & STW_JAGGED_HAS_USED ? STW_JFEAT_USED : 0;
    if (d->flags & STW_JAGGED_FULL) features |= STW_JFEAT_FULL;
    if (d->flags & STW_JAGGED_HAS_GAMMA) features |= STW_JFEAT_GAMMA;
    if (d->index_dtype == STW_I64) features |= STW_JFEAT_INDEX64;
    return features;
}

static stw_jagged_matrix_param matrix_of(const stw_jagged_desc *d, uint32_t rows, uint32_t cols, uint32_t transposed,
                                         uint32_t bases, stw_jagged_storage storage, int64_t elements,
                                         uint32_t gradient) {
    return (stw_jagged_matrix_param){.elements = elements,
                                     .rows = rows,
                                     .cols = cols,
                                     .transposed = (d->flags & transposed) != 0,
                                     .spread = storage == STW_STORAGE_JAGGED,
                                     .has_bases = (d->flags & bases) != 0,
                                     .ordered = (d->outputs & gradient) != 0};
}

/* The products of a component shape's extents before and after its -1. */
static void split_shape(int32_t rank, const int64_t *shape, int64_t *outer_out, int64_t *inner_out) {
    int64_t *product = outer_out;
    *outer_out = *inner_out = 1;
    for (int i = 0; i < rank; ++i) {
        if (shape[i] == -1) product = inner_out;
        else *product *= shape[i];
    }
}

static void fill_dim(const stw_jagged_desc *d, stw_jagged_params *p) {
    p->dim = d->dim;
    p->dim_before = p->dim_after = 1;
    if (d->dim == STW_DIM_OUTER || d->dim == STW_DIM_INNER) {
        int64_t whole = d->dim == STW_DIM_OUTER ? d->outer : d->inner;
        p->dim_size = d->dim_size;
        p->dim_after = d->dim_after;
        p->dim_before = whole / d->dim_after / d->dim_size;
    }
}

void stw_jagged_params_fill(const stw_jagged_desc *d, stw_jagged_params *p) {
    *p = (stw_jagged_params){.op = d->op,
                             .components = d->components,
                             .dtype = d->dtype,
                             .weight_dtype = d->weight_dtype,
                             .dx_dtype = d->dx_dtype,
                             .dother_dtype = d->dother_dtype,
                             .dweight_dtype = d->dweight_dtype,
                             .dbias_dtype = d->dbias_dtype,
                             .outputs = d->outputs,
                             .accumulate = d->accumulate,
                             .features = features_of(d),
                             .index = d->index,
                             .out_features = d->out_features,
                             .padded = d->padded,
                             .threshold = d->threshold,
                             .outer = d->outer,
                             .inner = d->inner};
    int matmul = d->op == STW_JAGGED_MATMUL, jagged = d->storage == STW_STORAGE_JAGGED;
    uint32_t ragged = matmul ? d->ragged_axes : d->op == STW_JAGGED_ATTENTION ? 3u : 1u;
    for (uint32_t i = 0; i < 3; ++i)
        p->axis[i] = (stw_jagged_axis_param){
            .size = d->axis[i].size, .total = d->axis[i].total, .ragged = ragged >> i & 1u, .axis_number = i};
    if (d->op == STW_JAGGED_ATTENTION) {
        p->axis[STW_AXIS_Q].size = d->attn->max_seq_q;
        p->axis[STW_AXIS_Q].total = d->attn->total_q;
        p->axis[STW_AXIS_KV].size = d->attn->max_seq_kv;
        p->axis[STW_AXIS_KV].total = d->attn->total_kv;
    }
    p->slabs = jagged ? d->outer : 1;
    p->rows_outer = jagged ? 1 : d->outer;
    p->grad_outer = d->outer;
    p->grad_inner = d->op == STW_JAGGED_LINEAR ? d->out_features : d->inner;
    if (d->op == STW_JAGGED_RESHAPE) {
        split_shape(d->grad_rank, d->grad_shape, &p->grad_outer, &p->grad_inner);
        jagged = d->grad_storage == STW_STORAGE_JAGGED;
    }
    p->grad_slabs = jagged ? p->grad_outer : 1;
    p->grad_rows_outer = jagged ? 1 : p->grad_outer;
    fill_dim(d, p);
    if (!matmul) return;
    p->x_matrix = matrix_of(d, STW_AXIS_M, STW_AXIS_K, STW_JAGGED_X_TRANSPOSED, STW_JAGGED_X_BASES, d->storage,
                            d->x_elements, STW_JAGGED_DX);
    p->other_matrix = matrix_of(d, STW_AXIS_K, STW_AXIS_N, STW_JAGGED_OTHER_TRANSPOSED, STW_JAGGED_OTHER_BASES,
                                d->other_storage, d->other_elements, STW_JAGGED_DOTHER);
    p->grad_matrix = matrix_of(d, STW_AXIS_M, STW_AXIS_N, STW_JAGGED_GRAD_TRANSPOSED, STW_JAGGED_GRAD_BASES,
                               d->grad_storage, d->grad_elements, 0);
}

/* ---- tensors ---- */

static int64_t product(int64_t a, int64_t b) {
    int64_t c;
    if (__builtin_mul_overflow(a, b, &c) || c > STW_JAGGED_ELEMENTS_MAX) return STW_JAGGED_ELEMENTS_MAX;
    return c;
}

static int64_t matrix_elements(const stw_jagged_params *p, const stw_jagged_matrix_param *m) {
    if (m->has_bases) return m->elements;
    const stw_jagged_axis_param *rows = &p->axis[m->rows], *cols = &p->axis[m->cols];
    int64_t area = product(rows->ragged ? rows->total : rows->size, cols->ragged ? cols->total : cols->size);
    int64_t matrices = rows->ragged || cols->ragged ? p->outer : product(p->components, p->outer);
    return product(area, matrices);
}

static int64_t nested_elements(const stw_jagged_params *p, int64_t inner) {
    return product(product(p->axis[0].total, p->outer), inner);
}

static int64_t grad_elements(const stw_jagged_params *p) {
    int64_t block = product(p->outer, p->inner);
    switch (p->op) {
    case STW_JAGGED_MATMUL: return matrix_elements(p, &p->grad_matrix);
    case STW_JAGGED_TO_PADDED: return product(product(p->components, p->padded), block);
    case STW_JAGGED_RESHAPE: return product(product(p->axis[0].total, p->grad_outer), p->grad_inner);
    case STW_JAGGED_SUM:
    case STW_JAGGED_SELECT:
        if (p->dim == STW_DIM_RAGGED) return product(p->components, block);
        if (p->dim == STW_DIM_COMPONENT) {
            int64_t most = p->axis[0].size < p->axis[0].total ? p->axis[0].size : p->axis[0].total;
            return product(most, block);
        }
        return nested_elements(p, p->inner) / p->dim_size;
    default: return nested_elements(p, p->grad_inner);
    }
}

/* Columns of gamma, dBias and so on. */
static int64_t columns_of(const stw_jagged_params *p) {
    return p->op == STW_JAGGED_LINEAR ? p->out_features : p->dim_size;
}

static int64_t x_elements(const stw_jagged_params *p) {
    return p->op == STW_JAGGED_MATMUL ? matrix_elements(p, &p->x_matrix) : nested_elements(p, p->inner);
}

static int64_t dx_elements(const stw_jagged_params *p) {
    if (p->op == STW_JAGGED_FROM_PADDED) return product(product(p->components, p->padded), product(p->outer, p->inner));
    return x_elements(p);
}

static int64_t other_elements(const stw_jagged_params *p) {
    return p->op == STW_JAGGED_MATMUL ? matrix_elements(p, &p->other_matrix) : 0;
}

static int64_t weight_elements(const stw_jagged_params *p) {
    return p->op == STW_JAGGED_LINEAR ? product(p->out_features, p->inner) : columns_of(p);
}

/* Of mean and rstd. */
static int64_t line_elements(const stw_jagged_params *p) {
    if (stw_jagged_is_norm(p->op) && p->dim == STW_DIM_RAGGED) return product(p->components, p->outer);
    return stw_jagged_is_norm(p->op) ? nested_elements(p, p->dim_before) : 0;
}

int64_t stw_jagged_elements(const stw_jagged_params *p, stw_jagged_tensor tensor) {
    switch (tensor) {
#define STW_JAGGED_TENSOR(ID, name, dtype, elements, used, output)                                                     \
    case STW_JTENSOR_##ID: return elements;
#include "common/jagged_tensors.def"
#undef STW_JAGGED_TENSOR
    default: __builtin_unreachable(); /* GCOVR_EXCL_LINE: every row has its case */
    }
}

static int reads_lines(const stw_jagged_params *p) {
    return stw_jagged_is_norm(p->op) && p->outputs & (STW_JAGGED_DX | STW_JAGGED_DWEIGHT);
}

static int reads_x(const stw_jagged_params *p) {
    if (p->op == STW_JAGGED_MATMUL) return (p->outputs & STW_JAGGED_DOTHER) != 0;
    if (p->op == STW_JAGGED_LINEAR) return (p->outputs & STW_JAGGED_DWEIGHT) != 0;
    return reads_lines(p) || stw_jagged_is_pointwise(p->op);
}

static int reads_weight(const stw_jagged_params *p) {
    int norm = stw_jagged_is_norm(p->op) && p->features & STW_JFEAT_GAMMA;
    return p->outputs & STW_JAGGED_DX && (p->op == STW_JAGGED_LINEAR || norm);
}

int stw_jagged_uses(const stw_jagged_params *p, stw_jagged_tensor tensor) {
    switch (tensor) {
#define STW_JAGGED_TENSOR(ID, name, dtype, elements, used, output)                                                     \
    case STW_JTENSOR_##ID: return (used) != 0;
#include "common/jagged_tensors.def"
#undef STW_JAGGED_TENSOR
    default: __builtin_unreachable(); /* GCOVR_EXCL_LINE: every row has its case */
    }
}

/* ---- a call ---- */

typedef struct tensor_row {
    const char *name;
    size_t args, params; /* offsets of the pointer */
    int output;
} tensor_row;

static const tensor_row tensors[STW_JTENSOR_COUNT] = {
#define STW_JAGGED_TENSOR(ID, name, dtype, elements, used, output)                                                     \
    {#name, offsetof(stw_jagged_args, name), offsetof(stw_jagged_params, name), output},
#include "common/jagged_tensors.def"
#undef STW_JAGGED_TENSOR
};

static size_t element_of(const stw_jagged_params *p, int tensor) {
    const uint32_t dtypes[STW_JTENSOR_COUNT] = {
#define STW_JAGGED_TENSOR(ID, name, dtype, elements, used, output) dtype,
#include "common/jagged_tensors.def"
#undef STW_JAGGED_TENSOR
    };
    return stw_dtype_size((stw_dtype)dtypes[tensor]);
}

static stw_status check_pointer(const char *name, const void *pointer, size_t element) {
    if (!pointer) return stw_fail(STW_E_INVALID, "jagged_bwd: args.%s is null", name);
    if ((uintptr_t)pointer % element)
        return stw_fail(STW_E_INVALID, "jagged_bwd: args.%s %p is not aligned to its elements of %zu bytes", name,
                        pointer, element);
    return STW_OK;
}

static const void *pointer_at(const stw_jagged_args *args, const tensor_row *row) {
    const void *pointer;
    __builtin_memcpy(&pointer, (const char *)args + row->args, sizeof pointer);
    return pointer;
}

static stw_status bind_tensors(const stw_jagged_args *args, stw_jagged_params *p) {
    for (int t = 0; t < STW_JTENSOR_COUNT; ++t) {
        if (!stw_jagged_uses(p, (stw_jagged_tensor)t) || !stw_jagged_elements(p, (stw_jagged_tensor)t)) continue;
        const void *pointer = pointer_at(args, &tensors[t]);
        stw_status status = check_pointer(tensors[t].name, pointer, element_of(p, t));
        if (status) return status;
        if (tensors[t].output && pointer == args->status_out)
            return stw_fail(STW_E_INVALID, "jagged_bwd: args.%s and args.status_out are the same memory",
                            tensors[t].name);
        for (int other = 0; other < t && tensors[t].output; ++other)
            if (pointer_at(args, &tensors[other]) == pointer && stw_jagged_uses(p, (stw_jagged_tensor)other))
                return stw_fail(STW_E_INVALID,
                                "jagged_bwd: args.%s and args.%s are the same memory: an output may not overlap "
                                "another tensor",
                                tensors[other].name, tensors[t].name);
        __builtin_memcpy((char *)p + tensors[t].params, &pointer, sizeof pointer);
    }
    return STW_OK;
}

stw_status stw_jagged_check_workspace(const stw_jagged_args *args, const stw_jagged_params *p, const void *workspace,
                                      size_t bytes) {
    stw_status status = STW_OK;
    for (int t = 0; t < STW_JTENSOR_COUNT && !status; ++t) {
        if (!stw_jagged_uses(p, (stw_jagged_tensor)t)) continue;
        int64_t elements = stw_jagged_elements(p, (stw_jagged_tensor)t);
        if (elements > 1 && !(p->features & STW_JFEAT_FULL)) elements = 1; /* an upper bound */
        status =
            stw_check_outside_workspace("jagged_bwd", tensors[t].name, elements ? pointer_at(args, &tensors[t]) : NULL,
                                        (size_t)elements * element_of(p, t), workspace, bytes);
    }
    return status ? status
                  : stw_check_outside_workspace("jagged_bwd", "status_out", args->status_out, 4, workspace, bytes);
}

static stw_status bind_axis(const stw_jagged_offsets *given, stw_jagged_params *p, int i, int *used_out) {
    stw_jagged_axis_param *axis = &p->axis[i];
    size_t element = p->features & STW_JFEAT_INDEX64 ? 8 : 4;
    char name[32];
    stw_text text = stw_text_in(name, sizeof name);
    stw_text_add(&text, "axis[%d].offsets", i);
    if (!axis->ragged) {
        if (!given->offsets && !given->used && !given->offsets_host && !given->used_host) return STW_OK;
        return stw_fail(STW_E_INVALID, "jagged_bwd: args.axis[%d] is given, but that axis is not ragged", i);
    }
    if (!p->components) return STW_OK; /* nothing is read */
    stw_status status = check_pointer(name, given->offsets, element);
    if (status) return status;
    axis->offsets = given->offsets;
    axis->used = given->used;
    if (!given->used && given->used_host)
        return stw_fail(STW_E_INVALID, "jagged_bwd: args.axis[%d].used_host is given without used", i);
    if (given->used) {
        *used_out = 1;
        text = stw_text_in(name, sizeof name);
        stw_text_add(&text, "axis[%d].used", i);
        status = check_pointer(name, given->used, element);
    }
    if (status || (!given->offsets_host && !given->used_host)) return status;
    if (!given->offsets_host)
        return stw_fail(STW_E_INVALID, "jagged_bwd: args.axis[%d].used_host is given without offsets_host", i);
    stw_jagged_axis_param host = *axis;
    int32_t bits = 0;
    host.offsets = given->offsets_host;
    host.used = given->used_host;
    return stw_jagged_check_axis(&host, "_host", p->components, p->features, &bits);
}

static stw_status bind_axes(const stw_jagged_args *args, stw_jagged_params *p) {
    int used = 0;
    for (int i = 0; i < 3; ++i) {
        stw_status status = bind_axis(&args->axis[i], p, i, &used);
        if (status) return status;
    }
    if (!p->components || p->op == STW_JAGGED_ATTENTION || used == ((p->features & STW_JFEAT_USED) != 0)) return STW_OK;
    return used ? stw_fail(STW_E_INVALID, "jagged_bwd: args.axis[].used is given, but the plan lacks "
                                          "STW_JAGGED_HAS_USED")
                : stw_fail(STW_E_INVALID, "jagged_bwd: args.axis[].used is null for every axis, but the plan has "
                                          "STW_JAGGED_HAS_USED");
}

static stw_status bind_bases(const char *name, const char *flag, const int64_t *bases, const stw_jagged_params *p,
                             stw_jagged_matrix_param *m) {
    if (!m->has_bases && bases)
        return stw_fail(STW_E_INVALID, "jagged_bwd: args.%s is given, but the plan lacks STW_JAGGED_%s", name, flag);
    if (!m->has_bases || !p->components) return STW_OK;
    m->bases = bases;
    return check_pointer(name, bases, sizeof *bases);
}

stw_status stw_jagged_params_bind(const stw_jagged_params *shape, const stw_jagged_args *args, stw_jagged_params *p) {
    *p = *shape;
    stw_status status;
    if ((status = bind_axes(args, p)) || (status = bind_tensors(args, p)) ||
        (status = bind_bases("x_bases", "X_BASES", args->x_bases, p, &p->x_matrix)) ||
        (status = bind_bases("other_bases", "OTHER_BASES", args->other_bases, p, &p->other_matrix)) ||
        (status = bind_bases("grad_bases", "GRAD_BASES", args->grad_bases, p, &p->grad_matrix)))
        return status;
    if (args->attn && p->op != STW_JAGGED_ATTENTION)
        return stw_fail(STW_E_INVALID, "jagged_bwd: args.attn is given, but the plan is not of attention");
    if (args->status_out && (uintptr_t)args->status_out % 4)
        return stw_fail(STW_E_INVALID, "jagged_bwd: args.status_out %p is not aligned to 4 bytes",
                        (void *)args->status_out);
    p->status_out = args->status_out;
    return STW_OK;
}
