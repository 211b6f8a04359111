/* SPDX-License-Identifier: MIT
 *
 * The check of a jagged descriptor at plan time: every rule of jagged_bwd.h that needs no pointer, each with
 * a text that names the field, the value seen and what would be accepted. What each op uses: common/jagged_ops.def.
 */
#include "jagged_problem.h"
#include "refusal.h"

#include "common/dtype.h"
#include "common/jagged_ops.h"

#include <math.h>

#define OUTER_INNER (STW_JFIELD_OUTER | STW_JFIELD_INNER)
#define ALONG       (OUTER_INNER | STW_JFIELD_DIM | STW_JFIELD_DIM_SIZE)
#define WEIGHT_BIAS (STW_JFIELD_WEIGHT | STW_JFIELD_BIAS)
#define ROWS_FLAGS  (STW_JAGGED_HAS_USED | STW_JAGGED_FULL)
#define MATMUL_FLAGS                                                                                                   \
    (ROWS_FLAGS | STW_JAGGED_X_TRANSPOSED | STW_JAGGED_OTHER_TRANSPOSED | STW_JAGGED_GRAD_TRANSPOSED |                 \
     STW_JAGGED_X_BASES | STW_JAGGED_OTHER_BASES | STW_JAGGED_GRAD_BASES)
#define BIT(dim) (1u << STW_DIM_##dim)
#define DX       STW_JAGGED_DX
#define ALL_ROWS (STW_JAGGED_DX | STW_JAGGED_DWEIGHT | STW_JAGGED_DBIAS)

static const stw_jagged_op_info ops[] = {
#define STW_JAGGED_OP(ID, name, outputs, flags, fields, dims, any_dtype)                                               \
    [STW_JAGGED_##ID] = {"jagged_" #name, outputs, flags, fields, dims, any_dtype},
#define STW_JAGGED_POINTWISE(ID, name, fields, any_dtype)                                                              \
    STW_JAGGED_OP(ID, name, DX, ROWS_FLAGS, OUTER_INNER | (fields), 0, any_dtype)
#include "common/jagged_ops.def"
#undef STW_JAGGED_OP
#undef STW_JAGGED_POINTWISE
};

const stw_jagged_op_info *stw_jagged_op_of(stw_jagged_op op) {
    return (unsigned)op < sizeof ops / sizeof ops[0] && ops[op].name ? &ops[op] : NULL;
}

#define REFUSE_AS(status, ...) return stw_fail(status, "jagged_bwd: " __VA_ARGS__)
#define REFUSE(...)            REFUSE_AS(STW_E_INVALID, __VA_ARGS__)

static stw_status check_range(const char *field, int64_t value, int64_t low, int64_t high) {
    if (value >= low && value <= high) return STW_OK;
    REFUSE_AS(stw_range_status(value, low), "%s %lld is not in %lld..%lld", field, (long long)value, (long long)low,
              (long long)high);
}

/* A field that this op does not use. */
static stw_status check_unused(const stw_jagged_op_info *op, uint32_t field, const char *name, int set,
                               long long value) {
    if (op->fields & field || !set) return STW_OK;
    REFUSE("%s %lld is set, but %s does not use it: accepted 0", name, value, op->name);
}

static stw_status check_unused_fields(const stw_jagged_desc *d, const stw_jagged_op_info *op) {
    const struct {
        uint32_t field;
        const char *name;
        int64_t value;
    } rows[] = {
        {STW_JFIELD_OUTER, "outer", d->outer},
        {STW_JFIELD_INNER, "inner", d->inner},
        {STW_JFIELD_DIM, "dim", d->dim},
        {STW_JFIELD_DIM_SIZE, "dim_size", d->dim_size},
        {STW_JFIELD_DIM_SIZE, "dim_after", d->dim_after},
        {STW_JFIELD_INDEX, "index", d->index},
        {STW_JFIELD_FEATURES, "out_features", d->out_features},
        {STW_JFIELD_PADDED, "padded", d->padded},
        {STW_JFIELD_SHAPE, "shape_rank", d->shape_rank},
        {STW_JFIELD_SHAPE, "grad_rank", d->grad_rank},
        {STW_JFIELD_SHAPE | STW_JFIELD_MATMUL, "grad_storage", d->grad_storage},
        {STW_JFIELD_MATMUL, "other_storage", d->other_storage},
        {STW_JFIELD_MATMUL, "dother_dtype", d->dother_dtype},
        {STW_JFIELD_MATMUL, "ragged_axes", d->ragged_axes},
        {STW_JFIELD_MATMUL, "axis[1].size", d->axis[1].size},
        {STW_JFIELD_MATMUL, "axis[1].total", d->axis[1].total},
        {STW_JFIELD_MATMUL, "axis[2].size", d->axis[2].size},
        {STW_JFIELD_MATMUL, "axis[2].total", d->axis[2].total},
        {STW_JFIELD_MATMUL, "x_elements", d->x_elements},
        {STW_JFIELD_MATMUL, "other_elements", d->other_elements},
        {STW_JFIELD_MATMUL, "grad_elements", d->grad_elements},
        {STW_JFIELD_WEIGHT, "weight_dtype", d->weight_dtype},
        {STW_JFIELD_WEIGHT, "dweight_dtype", d->dweight_dtype},
        {STW_JFIELD_BIAS, "dbias_dtype", d->dbias_dtype},
    };
    stw_status status = STW_OK;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0] && !status; ++i)
        status = check_unused(op, rows[i].field, rows[i].name, rows[i].value != 0, (long long)rows[i].value);
    if (!status) status = check_unused(op, STW_JFIELD_ATTN, "attn", d->attn != NULL, 1);
    if (!status && !(op->fields & STW_JFIELD_THRESHOLD) && !(d->threshold == 0.0))
        REFUSE("threshold %g is set, but %s does not use it: accepted 0", d->threshold, op->name);
    return status;
}

/* ---- types ---- */

static stw_status resolve_output_dtype(const char *field, stw_dtype *dtype, stw_dtype input) {
    if (*dtype == STW_DTYPE_NONE) *dtype = input;
    if (*dtype == input || (*dtype == STW_F32 && stw_dtype_valid(input))) return STW_OK;
    REFUSE_AS(stw_dtype_status(*dtype), "%s %d is neither the tensor's type %s %d%s", field, (int)*dtype,
              stw_dtype_name(input), (int)input, stw_dtype_valid(input) ? " nor f32 3" : "");
}

static stw_status check_dtypes(stw_jagged_desc *d, const stw_jagged_op_info *op) {
    int known = stw_dtype_valid(d->dtype) || (op->any_dtype && d->dtype >= STW_F64 && d->dtype <= STW_I64);
    if (!known)
        REFUSE_AS(stw_dtype_status(d->dtype), "dtype %d of %s: accepted f16 1, bf16 2, f32 3%s", (int)d->dtype,
                  op->name, op->any_dtype ? ", f64 4, i8 5, u8 6, i16 7, i32 8, i64 9" : "");
    stw_status status = resolve_output_dtype("dx_dtype", &d->dx_dtype, d->dtype);
    if (status) return status;
    if (op->fields & STW_JFIELD_MATMUL) return resolve_output_dtype("dother_dtype", &d->dother_dtype, d->dtype);
    if (!(op->fields & STW_JFIELD_WEIGHT)) return STW_OK;
    if (d->weight_dtype == STW_DTYPE_NONE) d->weight_dtype = d->dtype;
    int norm = stw_jagged_is_norm(d->op), wider = norm && d->weight_dtype == STW_F32;
    if (d->weight_dtype != d->dtype && !wider)
        REFUSE_AS(stw_dtype_status(d->weight_dtype), "weight_dtype %d of %s is not dtype %s %d%s", (int)d->weight_dtype,
                  op->name, stw_dtype_name(d->dtype), (int)d->dtype, norm ? " or f32 3" : "");
    status = resolve_output_dtype("dweight_dtype", &d->dweight_dtype, d->weight_dtype);
    return status ? status : resolve_output_dtype("dbias_dtype", &d->dbias_dtype, d->weight_dtype);
}

static stw_status check_outputs(stw_jagged_desc *d, const stw_jagged_op_info *op) {
    const struct {
        uint32_t bit;
        const char *name;
        stw_dtype dtype;
    } rows[] = {{STW_JAGGED_DX, "dx", d->dx_dtype},
                {STW_JAGGED_DOTHER, "dother", d->dother_dtype},
                {STW_JAGGED_DWEIGHT, "dweight", d->dweight_dtype},
                {STW_JAGGED_DBIAS, "dbias", d->dbias_dtype}};
    if (d->outputs & ~op->outputs)
        REFUSE("outputs 0x%x has bits that %s has not: accepted of 0x%x", d->outputs, op->name, op->outputs);
    if (!d->outputs) d->outputs = stw_jagged_is_norm(d->op) && !(d->flags & STW_JAGGED_HAS_GAMMA) ? DX : op->outputs;
    if (d->accumulate & ~d->outputs)
        REFUSE("accumulate 0x%x names outputs that are not asked for (outputs 0x%x)", d->accumulate, d->outputs);
    for (int i = 0; i < 4; ++i)
        if (d->accumulate & rows[i].bit && rows[i].dtype != STW_F32)
            REFUSE_AS(STW_E_UNSUPPORTED, "accumulate into %s of type %s: only f32 outputs accumulate (%s_dtype)",
                      rows[i].name, stw_dtype_name(rows[i].dtype), rows[i].name);
    if (d->flags & ~op->flags)
        REFUSE("flags 0x%x has bits that %s does not take: accepted of 0x%x", d->flags, op->name, op->flags);
    if ((d->flags & STW_JAGGED_FULL) && (d->flags & STW_JAGGED_HAS_USED))
        REFUSE("flags has both STW_JAGGED_FULL and STW_JAGGED_HAS_USED: full is without used lengths");
    return STW_OK;
}

/* ---- sizes ---- */

#define SIZE_MAX_48 ((INT64_C(1) << 48) - 1)

static stw_status check_axis(const char *name, const stw_jagged_axis *axis, int ragged) {
    char field[32];
    stw_text text = stw_text_in(field, sizeof field);
    stw_text_add(&text, "axis[%s].size", name);
    stw_status status = check_range(field, axis->size, 0, SIZE_MAX_48);
    if (status) return status;
    text = stw_text_in(field, sizeof field);
    stw_text_add(&text, "axis[%s].total", name);
    if (!ragged && axis->total)
        REFUSE("%s %lld is set, but the axis is not ragged: accepted 0", field, (long long)axis->total);
    return check_range(field, axis->total, 0, SIZE_MAX_48);
}

static stw_status check_storage(const char *field, stw_jagged_storage storage) {
    if ((unsigned)storage <= STW_STORAGE_JAGGED) return STW_OK;
    REFUSE("%s %d is neither components 0 nor jagged 1", field, (int)storage);
}

static stw_status check_sizes(stw_jagged_desc *d, const stw_jagged_op_info *op) {
    stw_status status;
    int matmul = (op->fields & STW_JFIELD_MATMUL) != 0;
    if (!d->outer && !(op->fields & STW_JFIELD_SHAPE)) d->outer = 1;
    if (!d->inner && !(op->fields & STW_JFIELD_SHAPE)) d->inner = 1;
    if ((status = check_range("components", d->components, 0, INT32_MAX)) ||
        (status = check_axis("0", &d->axis[0], !matmul || d->ragged_axes & 1u)) ||
        (status = check_axis("1", &d->axis[1], d->ragged_axes & 2u)) ||
        (status = check_axis("2", &d->axis[2], d->ragged_axes & 4u)) ||
        (status = check_range("outer", d->outer, 0, SIZE_MAX_48)) ||
        (status = check_range("inner", d->inner, 0, SIZE_MAX_48)) ||
        (status = check_range("padded", d->padded, 0, SIZE_MAX_48)) ||
        (status = check_storage("storage", d->storage)) || (status = check_storage("grad_storage", d->grad_storage)) ||
        (status = check_storage("other_storage", d->other_storage)))
        return status;
    if (op->fields & STW_JFIELD_FEATURES) return check_range("out_features", d->out_features, 1, SIZE_MAX_48);
    if (op->fields & STW_JFIELD_THRESHOLD && !isfinite(d->threshold))
        REFUSE("threshold %g is not finite", d->threshold);
    return STW_OK;
}

/* dim, dim_size, dim_after, index. */
static stw_status check_dim(stw_jagged_desc *d, const stw_jagged_op_info *op) {
    static const char *const names[] = {"none 0", "outer 1", "ragged 2", "inner 3", "component 4"};
    if (!(op->fields & STW_JFIELD_DIM)) return STW_OK;
    if ((unsigned)d->dim > STW_DIM_COMPONENT || !(op->dims & 1u << d->dim)) {
        int exists = d->dim > STW_DIM_NONE && d->dim <= STW_DIM_COMPONENT;
        stw_status refused = exists ? STW_E_UNSUPPORTED : STW_E_INVALID;
        if (stw_jagged_is_norm(d->op))
            REFUSE_AS(refused, "dim %d of %s: accepted none 0, ragged 2, inner 3", (int)d->dim, op->name);
        REFUSE_AS(refused, "dim %d of %s: accepted outer 1, ragged 2, inner 3%s", (int)d->dim, op->name,
                  op->dims & BIT(COMPONENT) ? ", component 4" : "");
    }
    if (stw_jagged_is_norm(d->op) && d->dim == STW_DIM_RAGGED) {
        if (d->flags & STW_JAGGED_HAS_GAMMA)
            REFUSE_AS(STW_E_UNSUPPORTED,
                      "flags has STW_JAGGED_HAS_GAMMA in %s with dim ragged 2: gamma would be ragged", op->name);
        if (d->outputs & ~DX)
            REFUSE_AS(STW_E_UNSUPPORTED, "outputs 0x%x of %s with dim ragged 2: accepted dX alone, 0x%x", d->outputs,
                      op->name, DX);
    } else if (stw_jagged_is_norm(d->op)) {
        d->dim = STW_DIM_INNER;
    }
    int constant = d->dim == STW_DIM_OUTER || d->dim == STW_DIM_INNER;
    if (!constant && (d->dim_size || d->dim_after))
        REFUSE("dim_size %lld, dim_after %lld with dim %s: accepted 0", (long long)d->dim_size, (long long)d->dim_after,
               names[d->dim]);
    if (constant) {
        int64_t whole = d->dim == STW_DIM_OUTER ? d->outer : d->inner;
        const char *field = d->dim == STW_DIM_OUTER ? "outer" : "inner";
        if (!d->dim_after) d->dim_after = 1;
        if (stw_jagged_is_norm(d->op) && d->dim_after != 1)
            REFUSE("dim_after %lld of %s: accepted 0 and 1", (long long)d->dim_after, op->name);
        if (d->dim_after < 0 || d->dim_size < 0 || d->dim_after > whole || whole % d->dim_after)
            REFUSE("dim_size %lld, dim_after %lld: accepted what divides %s %lld", (long long)d->dim_size,
                   (long long)d->dim_after, field, (long long)whole);
        if (!d->dim_size) d->dim_size = whole / d->dim_after;
        if (whole / d->dim_after % d->dim_size)
            REFUSE("dim_size %lld with dim_after %lld does not divide %s %lld", (long long)d->dim_size,
                   (long long)d->dim_after, field, (long long)whole);
    }
    if (!(op->fields & STW_JFIELD_INDEX) || d->dim == STW_DIM_RAGGED) return STW_OK;
    int64_t size = d->dim == STW_DIM_COMPONENT ? d->components : d->dim_size;
    if (d->index < -size || d->index >= size)
        REFUSE("index %lld is out of range: dim %s has %lld entries, accepted %lld..%lld", (long long)d->index,
               names[d->dim], (long long)size, -(long long)size, (long long)size - 1);
    if (d->index < 0) d->index += size;
    return STW_OK;
}

/* ---- reshape ---- */

static stw_status check_shape(const char *name, int32_t rank, const int64_t *shape, int64_t *outer_out,
                              int64_t *inner_out) {
    int64_t *product = outer_out;
    *outer_out = *inner_out = 1;
    if (rank < 1 || rank > STW_JAGGED_RANK_MAX)
        REFUSE_AS(stw_range_status(rank, 1), "%s_rank %d is not in 1..%d", name[0] == 's' ? "shape" : "grad", rank,
                  STW_JAGGED_RANK_MAX);
    for (int i = 0; i < rank; ++i) {
        if (shape[i] == -1 && product == inner_out)
            REFUSE("%s[%d] is a second -1: exactly one extent is ragged", name, i);
        if (shape[i] == -1) {
            product = inner_out;
        } else if (shape[i] < 1 || __builtin_mul_overflow(*product, shape[i], product) || *product > SIZE_MAX_48) {
            REFUSE_AS(stw_range_status(shape[i], 1),
                      "%s[%d] %lld: accepted -1 (ragged, once) and 1 or more, products below 2^48", name, i,
                      (long long)shape[i]);
        }
    }
    if (product == outer_out) REFUSE("%s has no -1: exactly one of its %d extents is ragged", name, rank);
    return STW_OK;
}

static stw_status check_reshape(stw_jagged_desc *d) {
    int64_t grad_outer, grad_inner;
    stw_status status = check_shape("shape", d->shape_rank, d->shape, &d->outer, &d->inner);
    if (!status) status = check_shape("grad_shape", d->grad_rank, d->grad_shape, &grad_outer, &grad_inner);
    if (status) return status;
    int64_t here, there;
    if (__builtin_mul_overflow(d->outer, d->inner, &here) || __builtin_mul_overflow(grad_outer, grad_inner, &there) ||
        here != there)
        REFUSE("shape has %lld x %lld elements a ragged position, grad_shape %lld x %lld: not the same number",
               (long long)d->outer, (long long)d->inner, (long long)grad_outer, (long long)grad_inner);
    return STW_OK;
}

/* ---- matmul ---- */

static stw_status check_matrix(const stw_jagged_desc *d, const char *name, uint32_t bases_flag, const char *flag_name,
                               int rows, int cols, stw_jagged_storage storage, int64_t elements) {
    int ragged = (int)(d->ragged_axes >> rows & 1u) + (int)(d->ragged_axes >> cols & 1u);
    int bases = (d->flags & bases_flag) != 0;
    if (ragged == 2 && !bases)
        REFUSE("%s has two ragged extents: %s in flags and args.%s_bases say where its components start", name,
               flag_name, name);
    if (storage == STW_STORAGE_JAGGED && (ragged != 1 || bases))
        REFUSE("%s's storage is jagged 1 with %d ragged extents%s: accepted with one, without bases", name, ragged,
               bases ? " and bases" : "");
    if (!bases && elements) REFUSE("%s_elements %lld is set without %s in flags", name, (long long)elements, flag_name);
    return bases ? check_range(name[0] == 'x'   ? "x_elements"
                               : name[0] == 'o' ? "other_elements"
                                                : "grad_elements",
                               elements, 0, STW_JAGGED_ELEMENTS_MAX - 1)
                 : STW_OK;
}

static stw_status check_matmul(const stw_jagged_desc *d) {
    stw_status status;
    if (d->ragged_axes & ~7u) REFUSE("ragged_axes 0x%x: accepted bits of 0x7 (m, k, n)", d->ragged_axes);
    if (!d->ragged_axes && d->flags & STW_JAGGED_HAS_USED)
        REFUSE("flags has STW_JAGGED_HAS_USED, but ragged_axes is 0: no axis has lengths");
    if ((status = check_matrix(d, "x", STW_JAGGED_X_BASES, "STW_JAGGED_X_BASES", STW_AXIS_M, STW_AXIS_K, d->storage,
                               d->x_elements)) ||
        (status = check_matrix(d, "other", STW_JAGGED_OTHER_BASES, "STW_JAGGED_OTHER_BASES", STW_AXIS_K, STW_AXIS_N,
                               d->other_storage, d->other_elements)))
        return status;
    return check_matrix(d, "grad", STW_JAGGED_GRAD_BASES, "STW_JAGGED_GRAD_BASES", STW_AXIS_M, STW_AXIS_N,
                        d->grad_storage, d->grad_elements);
}

/* No tensor beyond 2^60 elements: addresses are computed without further care. */
static stw_status check_elements(const stw_jagged_desc *d) {
    static const char *const names[] = {"grad", "x",  "y",      "other",   "weight", "mean",
                                        "rstd", "dx", "dother", "dweight", "dbias"};
    stw_jagged_params params;
    stw_jagged_params_fill(d, &params);
    for (int t = 0; t < STW_JTENSOR_COUNT; ++t)
        if (stw_jagged_elements(&params, (stw_jagged_tensor)t) >= STW_JAGGED_ELEMENTS_MAX)
            REFUSE_AS(STW_E_UNSUPPORTED, "%s of these sizes has 2^60 elements or more", names[t]);
    return STW_OK;
}

static stw_status check_attention(const stw_jagged_desc *d) {
    if (d->dtype || d->dx_dtype || d->outputs || d->accumulate || d->flags || d->storage || d->axis[0].size ||
        d->axis[0].total)
        REFUSE("dtype, dx_dtype, outputs, accumulate, flags, storage and axis[0] of jagged_attention: "
               "accepted 0, "
               "those of attn count");
    if (!d->attn) REFUSE("attn is null: jagged_attention needs the descriptor of a packed problem");
    return check_range("components", d->components, 0, INT32_MAX);
}

stw_status stw_jagged_check(stw_jagged_desc *d) {
    const stw_jagged_op_info *op = stw_jagged_op_of(d->op);
    if (!op) REFUSE("op %d is none of STW_JAGGED_*: 1..%d", (int)d->op, STW_JAGGED_OPS - 1);
    if (d->index_dtype != STW_I32 && d->index_dtype != STW_I64)
        REFUSE("index_dtype %d is neither i32 %d nor i64 %d", (int)d->index_dtype, STW_I32, STW_I64);
    stw_status status = check_unused_fields(d, op);
    if (status) return status;
    if (op->fields & STW_JFIELD_ATTN) return check_attention(d);
    if ((status = check_dtypes(d, op)) || (status = check_outputs(d, op)) || (status = check_sizes(d, op)) ||
        (status = check_dim(d, op)))
        return status;
    if (op->fields & STW_JFIELD_SHAPE && (status = check_reshape(d))) return status;
    if (op->fields & STW_JFIELD_MATMUL && (status = check_matmul(d))) return status;
    return check_elements(d);
}
