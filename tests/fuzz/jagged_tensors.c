/* SPDX-License-Identifier: MIT
 *
 * The memory of jagged_tensors.h. */
#include "jagged_tensors.h"

typedef struct binder {
    arena *memory;
    const stw_jagged_desc *d;
    reader content;
    double elements; /* so far; above JAGGED_CAP nothing is allocated any more */
    int *data_bad;
} binder;

static size_t size_of(stw_dtype dtype) {
    static const unsigned char sizes[] = {0, 2, 2, 4, 8, 1, 1, 2, 4, 8};
    return sizes[dtype];
}

static int64_t or_one(int64_t size) { return size ? size : 1; }

static void *add(binder *b, const char *name, double elements, stw_dtype dtype, arena_kind kind) {
    b->elements += elements;
    if (!(b->elements <= JAGGED_CAP)) return NULL;
    return arena_add(b->memory, name, elements, size_of(dtype), kind);
}

static void *input(binder *b, const char *name, double elements, stw_dtype dtype) {
    unsigned char *data = add(b, name, elements, dtype, ARENA_INPUT);
    if (!data) return NULL;
    const size_t bytes = (size_t)elements * size_of(dtype);
    reader r = b->content;
    for (size_t i = 0; i < bytes; ++i) {
        if (r.at == r.end) r = b->content;
        data[i] = r.at < r.end ? *r.at++ : 0x3C;
    }
    return data;
}

static void *integers(binder *b, const char *name, const int64_t *values, int64_t count, stw_dtype dtype) {
    char *data = add(b, name, (double)count, dtype, ARENA_INPUT);
    if (!data) return NULL;
    for (int64_t n = 0; n < count; ++n) {
        const int32_t narrow = (int32_t)values[n];
        memcpy(data + (size_t)n * size_of(dtype), dtype == STW_I32 ? (const void *)&narrow : &values[n],
               size_of(dtype));
    }
    return data;
}

typedef struct axis_lengths {
    int64_t start[9], used[9]; /* component by component; at most 8 */
} axis_lengths;

/* Components as long as axis.size and the total allow, then empty ones. */
static void bind_axis(binder *b, stw_jagged_offsets *to, int64_t size, int64_t total, int with_used, axis_lengths *l) {
    const stw_jagged_desc *d = b->d;
    memset(l, 0, sizeof *l);
    for (int64_t n = 0; n < d->components; ++n) {
        const int64_t left = total - l->start[n], length = left < size ? left : size;
        const int64_t some = (d->flags & STW_JAGGED_FULL) || n % 3 ? length : (length + 1) / 2;
        l->start[n + 1] = l->start[n] + some;
        l->used[n] = with_used ? some * (n % 2 + 1) / 2 : some;
    }
    if ((d->flags & STW_JAGGED_FULL) && d->components && l->start[d->components] != total) *b->data_bad = 1;
    to->offsets = integers(b, "offsets", l->start, d->components + 1, d->index_dtype);
    if (with_used) to->used = integers(b, "used", l->used, d->components, d->index_dtype);
}

static double nested(const stw_jagged_desc *d, double outer, double inner) {
    return outer * (double)d->axis[0].total * inner;
}

static stw_dtype or_own(stw_dtype dtype, stw_dtype own) { return dtype ? dtype : own; }

static int is_norm(const stw_jagged_desc *d) { return d->op == STW_JAGGED_LAYER_NORM || d->op == STW_JAGGED_RMS_NORM; }

static int wants(const stw_jagged_desc *d, uint32_t bit) {
    const uint32_t bias = d->op == STW_JAGGED_RMS_NORM ? 0 : STW_JAGGED_DBIAS;
    const uint32_t all = d->op == STW_JAGGED_MATMUL   ? STW_JAGGED_DX | STW_JAGGED_DOTHER
                         : d->op == STW_JAGGED_LINEAR ? STW_JAGGED_DX | STW_JAGGED_DWEIGHT | STW_JAGGED_DBIAS
                         : is_norm(d) && (d->flags & STW_JAGGED_HAS_GAMMA) ? STW_JAGGED_DX | STW_JAGGED_DWEIGHT | bias
                                                                           : STW_JAGGED_DX;
    return ((d->outputs ? d->outputs : all) & bit) != 0;
}

/* One matrix of matmul: elements, and legal bases where it has any. */
static double matrix(binder *b, const axis_lengths *l, int rows, int cols, uint32_t bases_flag, int64_t elements,
                     const int64_t **bases) {
    const stw_jagged_desc *d = b->d;
    const int ragged_rows = d->ragged_axes >> rows & 1, ragged_cols = d->ragged_axes >> cols & 1;
    const double outer = (double)or_one(d->outer);
    const double r = (double)(ragged_rows ? d->axis[rows].total : d->axis[rows].size);
    const double c = (double)(ragged_cols ? d->axis[cols].total : d->axis[cols].size);
    if (!(d->flags & bases_flag)) return outer * r * c * (ragged_rows || ragged_cols ? 1 : (double)d->components);
    int64_t at = 0, starts[8] = {0};
    for (int64_t n = 0; n < d->components; ++n) {
        const int64_t height = ragged_rows ? l[rows].start[n + 1] - l[rows].start[n] : d->axis[rows].size;
        const int64_t width = ragged_cols ? l[cols].start[n + 1] - l[cols].start[n] : d->axis[cols].size;
        starts[n] = at;
        if (outer * (double)height * (double)width > JAGGED_CAP) {
            b->elements = JAGGED_CAP + 1.0;
            return 0;
        }
        at += (int64_t)outer * height * width;
    }
    *bases = integers(b, "bases", starts, d->components, STW_I64);
    if (at > elements) b->elements = JAGGED_CAP + 1.0; /* they do not fit: nothing legal to run */
    return (double)elements;
}

static void bind_matmul(binder *b, stw_jagged_args *a, axis_lengths *l) {
    const stw_jagged_desc *d = b->d;
    for (int n = 1; n < 3; ++n)
        if (d->ragged_axes >> n & 1)
            bind_axis(b, &a->axis[n], d->axis[n].size, d->axis[n].total,
                      (d->flags & STW_JAGGED_HAS_USED) && (n == 2 || !(d->ragged_axes & 5)), &l[n]);
    const double x = matrix(b, l, STW_AXIS_M, STW_AXIS_K, STW_JAGGED_X_BASES, d->x_elements, &a->x_bases);
    const double other =
        matrix(b, l, STW_AXIS_K, STW_AXIS_N, STW_JAGGED_OTHER_BASES, d->other_elements, &a->other_bases);
    const double grad = matrix(b, l, STW_AXIS_M, STW_AXIS_N, STW_JAGGED_GRAD_BASES, d->grad_elements, &a->grad_bases);
    a->grad = input(b, "grad", grad, d->dtype);
    if (wants(d, STW_JAGGED_DOTHER)) a->x = input(b, "x", x, d->dtype);
    if (wants(d, STW_JAGGED_DX)) a->other = input(b, "other", other, d->dtype);
    if (wants(d, STW_JAGGED_DX)) a->dx = add(b, "dx", x, or_own(d->dx_dtype, d->dtype), ARENA_OUTPUT);
    if (wants(d, STW_JAGGED_DOTHER))
        a->dother = add(b, "dother", other, or_own(d->dother_dtype, d->dtype), ARENA_OUTPUT);
}

static double product(const int64_t *shape, int rank) {
    double p = 1;
    for (int n = 0; n < rank; ++n)
        if (shape[n] != -1) p *= (double)shape[n];
    return p;
}

/* Elements of the gradient of sum and select. */
static double reduced_grad(const stw_jagged_desc *d) {
    const double outer = (double)or_one(d->outer), inner = (double)or_one(d->inner);
    const double whole = d->dim == STW_DIM_OUTER ? outer : inner;
    const double after = (double)or_one(d->dim_after), size = d->dim_size ? (double)d->dim_size : whole / after;
    if (d->dim == STW_DIM_RAGGED) return (double)d->components * outer * inner;
    if (d->dim == STW_DIM_COMPONENT) /* as large as lengths that are spoilt later can make it */
        return outer * inner * (double)(d->axis[0].size < d->axis[0].total ? d->axis[0].size : d->axis[0].total);
    return nested(d, outer, inner) / size;
}

static void bind_weights(binder *b, stw_jagged_args *a, double outer, double inner) {
    const stw_jagged_desc *d = b->d;
    const stw_dtype own = or_own(d->weight_dtype, d->dtype);
    const int ragged = d->dim == STW_DIM_RAGGED;
    const double M = d->dim_size ? (double)d->dim_size : inner, N = (double)d->out_features;
    const int linear = d->op == STW_JAGGED_LINEAR;
    const double lines = ragged ? (double)d->components * outer : nested(d, outer, inner / M);
    const double weight = linear ? N * inner : M;
    a->grad = input(b, "grad", nested(d, outer, linear ? N : inner), d->dtype);
    a->x = input(b, "x", nested(d, outer, inner), d->dtype);
    if (linear || d->flags & STW_JAGGED_HAS_GAMMA) a->weight = input(b, "weight", weight, own);
    if (!linear) {
        if (d->op == STW_JAGGED_LAYER_NORM) a->mean = input(b, "mean", lines, STW_F32);
        a->rstd = input(b, "rstd", lines, STW_F32);
    }
    if (wants(d, STW_JAGGED_DX))
        a->dx = add(b, "dx", nested(d, outer, inner), or_own(d->dx_dtype, d->dtype), ARENA_OUTPUT);
    if (wants(d, STW_JAGGED_DWEIGHT))
        a->dweight = add(b, "dweight", weight, or_own(d->dweight_dtype, own), ARENA_OUTPUT);
    if (wants(d, STW_JAGGED_DBIAS))
        a->dbias = add(b, "dbias", linear ? N : M, or_own(d->dbias_dtype, own), ARENA_OUTPUT);
}

static void bind_rows(binder *b, stw_jagged_args *a) {
    const stw_jagged_desc *d = b->d;
    double outer = (double)or_one(d->outer), inner = (double)or_one(d->inner);
    const double dense = (double)d->components * outer * (double)d->padded * inner;
    if (d->op == STW_JAGGED_LINEAR || is_norm(d)) {
        bind_weights(b, a, outer, inner);
        return;
    }
    if (d->op == STW_JAGGED_RESHAPE) {
        outer = product(d->shape, d->shape_rank);
        inner = 1;
    }
    double grad = nested(d, outer, inner), dx = grad;
    if (d->op == STW_JAGGED_SUM || d->op == STW_JAGGED_SELECT) grad = reduced_grad(d);
    if (d->op == STW_JAGGED_TO_PADDED) grad = dense;
    if (d->op == STW_JAGGED_FROM_PADDED) dx = dense;
    a->grad = input(b, "grad", grad, d->dtype);
    if (d->op == STW_JAGGED_SOFTMAX || d->op == STW_JAGGED_LOG_SOFTMAX)
        a->y = input(b, "y", nested(d, outer, inner), d->dtype);
    if (d->op >= STW_JAGGED_GELU && d->op <= STW_JAGGED_THRESHOLD)
        a->x = input(b, "x", nested(d, outer, inner), d->dtype);
    a->dx = add(b, "dx", dx, or_own(d->dx_dtype, d->dtype), ARENA_OUTPUT);
}

static void bind_attention(binder *b, stw_jagged_args *a, stw_attn_args *to, axis_lengths *l) {
    const stw_attn_desc *d = b->d->attn;
    const int used = (d->flags & STW_ATTN_HAS_USED_LENGTHS) != 0;
    const double wide_q = (double)d->total_q * (double)d->heads_q, wide_k = (double)d->total_kv * (double)d->heads_kv;
    bind_axis(b, &a->axis[STW_AXIS_Q], d->max_seq_q, d->total_q, used, &l[0]);
    bind_axis(b, &a->axis[STW_AXIS_KV], d->max_seq_kv, d->total_kv, used, &l[1]);
    *to = STW_INIT(stw_attn_args);
    to->q = input(b, "q", wide_q * (double)d->head_dim_qk, d->dtype);
    to->k = input(b, "k", wide_k * (double)d->head_dim_qk, d->dtype);
    to->v = input(b, "v", wide_k * (double)d->head_dim_v, d->dtype);
    to->out = input(b, "out", wide_q * (double)d->head_dim_v, d->dtype);
    to->dout = input(b, "dout", wide_q * (double)d->head_dim_v, d->dtype);
    to->lse = input(b, "lse", wide_q, STW_F32);
    to->dq = add(b, "dq", wide_q * (double)d->head_dim_qk, d->dtype, ARENA_OUTPUT);
    to->dk = add(b, "dk", wide_k * (double)d->head_dim_qk, d->dtype, ARENA_OUTPUT);
    to->dv = add(b, "dv", wide_k * (double)d->head_dim_v, d->dtype, ARENA_OUTPUT);
    a->attn = to;
}

int jagged_bind(arena *memory, const stw_jagged_desc *desc, reader content, stw_jagged_args *args,
                stw_attn_args *attn_args, int *data_bad) {
    binder b = {memory, desc, content, 0, data_bad};
    axis_lengths l[3];
    memset(l, 0, sizeof l);
    *args = STW_INIT(stw_jagged_args);
    *data_bad = 0;
    if (desc->components > 8) return 0;
    /* the CPU's attention walks over all blocks that the largest sequence could have */
    if (desc->attn && (desc->attn->max_seq_q > 4096 || desc->attn->max_seq_kv > 4096)) return 0;
    int32_t *status = arena_add(memory, "status_out", 1, 4, ARENA_STATUS);
    if (desc->op == STW_JAGGED_ATTENTION) {
        bind_attention(&b, args, attn_args, l);
        attn_args->status_out = status;
        return b.elements <= JAGGED_CAP;
    }
    args->status_out = status;
    if (desc->op != STW_JAGGED_MATMUL || desc->ragged_axes & 1)
        bind_axis(&b, &args->axis[0], desc->axis[0].size, desc->axis[0].total, (desc->flags & STW_JAGGED_HAS_USED) != 0,
                  &l[0]);
    if (desc->op == STW_JAGGED_MATMUL) bind_matmul(&b, args, l);
    else bind_rows(&b, args);
    for (int64_t n = 0; n < desc->components && desc->dim == STW_DIM_RAGGED && desc->op == STW_JAGGED_SELECT; ++n)
        *data_bad |= desc->index >= l[0].used[n] || desc->index < -l[0].used[n];
    return b.elements <= JAGGED_CAP;
}
