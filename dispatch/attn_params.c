/* SPDX-License-Identifier: MIT
 *
 * From the public structs to the parameter block of the kernels: the shape part at plan time, the pointers
 * at each call. Masks become one window about the diagonal, defaults become values. */
#include "attn_problem.h"

#include "common/attn_packed.h"
#include "common/philox.h"
#include "common/dtype.h"

#include <math.h>

/* ---- plan time ---- */

static void fill_tensors(const stw_attn_desc *d, stw_plan_kind kind, stw_attn_params *p) {
    for (size_t i = 0; i < STW_TENSOR_ROWS; ++i) {
        const stw_tensor_row *row = &stw_tensor_rows[i];
        if (stw_tensor_use_of(row, d, kind) == STW_USE_NONE) continue;
        const stw_attn_strides *s = stw_tensor_strides(row, d);
        int through_pack = stw_tensor_through_pack(row, d);
        *stw_tensor_param_of(p, row) =
            (stw_tensor_param){.batch = through_pack ? 0 : s->batch, .head = s->head, .seq = s->seq};
    }
    if (stw_desc_has_bias(d)) p->bias = (stw_bias_param){NULL, d->bias.batch, d->bias.head, d->bias.query, d->bias.key};
    if (d->outputs & STW_OUT_DBIAS)
        p->dbias = (stw_bias_param){NULL, d->dbias.batch, d->dbias.head, d->dbias.query, d->dbias.key};
    if (d->interval_form)
        p->intervals = (stw_interval_param){.batch = d->intervals.batch, /* numbered through the pack: 0 */
                                            .head = d->intervals.head,
                                            .key = d->intervals.key,
                                            .bound = d->intervals.bound};
    if (d->flags & STW_ATTN_BLOCK_MASK)
        p->block_mask = (stw_block_mask_param){.batch = d->block_mask.batch,
                                               .head = d->block_mask.head,
                                               .query = d->block_mask.query,
                                               .key = d->block_mask.key};
}

/* Causal masks and windows are the same two bounds on j - (i + shift). */
static void fill_mask(const stw_attn_desc *d, stw_attn_params *p) {
    if (d->flags & STW_ATTN_HAS_WINDOW_LEFT) {
        p->features |= STW_FEAT_WINDOW_LEFT;
        p->window_left = d->window_left;
    }
    if (d->flags & STW_ATTN_HAS_WINDOW_RIGHT) {
        p->features |= STW_FEAT_WINDOW_RIGHT;
        p->window_right = d->window_right;
    }
    if (d->mask != STW_MASK_NONE) { /* j <= i + shift: a window of 0 to the right */
        p->features |= STW_FEAT_WINDOW_RIGHT;
        p->window_right = 0;
    }
    if (d->flags & STW_ATTN_HAS_SHIFT || d->mask == STW_MASK_CAUSAL_TOP_LEFT) {
        p->features |= STW_FEAT_FIXED_SHIFT;
        p->fixed_shift = d->flags & STW_ATTN_HAS_SHIFT ? d->diagonal_shift : 0;
    }
}

/* mem_eff: the smallest word whose number in (0, 1], as common/philox.h makes it, exceeds p. */
static uint32_t first_kept_word(float p) {
    uint32_t low = 0, high = 0xFFFFFFFFu;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (stw_dropout_uniform(middle) > p) high = middle;
        else low = middle + 1;
    }
    return low;
}

static void fill_dropout(const stw_attn_desc *d, stw_attn_params *p) {
    p->dropout_p = d->dropout_p;
    p->dropout_map = d->dropout_map;
    p->dropout_threshold = d->dropout_map == STW_DROPOUT_MEM_EFF ? first_kept_word((float)d->dropout_p)
                                                                 : (uint32_t)floor(d->dropout_p * 4294967296.0);
    p->dropout_byte = (uint32_t)floor((double)(1.0f - (float)d->dropout_p) * 255.0);
    p->dropout_scale = (float)(1.0 / (1.0 - d->dropout_p));
    if (d->dropout_p > 0.0) p->features |= STW_FEAT_DROPOUT;
}

static void fill_features(const stw_attn_desc *d, stw_plan_kind kind, int deterministic, stw_attn_params *p) {
    int backward = kind == STW_PLAN_ATTN_BWD, packed_q = stw_attn_is_packed(d, 0);
    const struct {
        int on;
        uint32_t feature;
    } rows[] = {
        {stw_desc_has_bias(d), STW_FEAT_BIAS},
        {d->flags & STW_ATTN_ALIBI, STW_FEAT_ALIBI},
        {d->flags & STW_ATTN_ALIBI_COLUMN, STW_FEAT_ALIBI_COLUMN},
        {d->softcap > 0.0f || d->softcap_f64 > 0.0, STW_FEAT_SOFTCAP},
        {d->flags & STW_ATTN_SINK, STW_FEAT_SINK},
        {backward && d->flags & STW_ATTN_DLSE, STW_FEAT_DLSE},
        {backward && d->flags & STW_ATTN_GIVEN_DELTA, STW_FEAT_GIVEN_DELTA},
        {backward && d->flags & STW_ATTN_WRITE_DELTA, STW_FEAT_WRITE_DELTA},
        {deterministic, STW_FEAT_DETERMINISTIC},
        {packed_q, STW_FEAT_PACKED_Q},
        {stw_attn_is_packed(d, 1), STW_FEAT_PACKED_KV},
        {packed_q && !d->lse.batch, STW_FEAT_PACKED_LSE},
        {packed_q && !d->dlse.batch, STW_FEAT_PACKED_DLSE},
        {packed_q && !d->delta.batch, STW_FEAT_PACKED_DELTA},
        {d->flags & STW_ATTN_HAS_USED_LENGTHS, STW_FEAT_USED_LENGTHS},
        {d->interval_form != STW_INTERVALS_NONE, STW_FEAT_INTERVALS},
        {stw_attn_intervals_through_pack(d), STW_FEAT_PACKED_INTERVALS},
        {d->flags & STW_ATTN_BLOCK_MASK, STW_FEAT_BLOCK_MASK},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i)
        if (rows[i].on) p->features |= rows[i].feature;
}

void stw_attn_params_fill(const stw_attn_desc *d, stw_plan_kind kind, int deterministic, stw_attn_params *params_out) {
    stw_attn_params p = {
        .alibi_stride_batch = d->alibi_stride_batch,
        .batch = d->batch,
        .heads_q = d->heads_q,
        .heads_kv = d->heads_kv,
        .group = d->heads_q / d->heads_kv,
        .max_seq_q = d->max_seq_q,
        .max_seq_kv = d->max_seq_kv,
        .total_q = d->total_q,
        .total_kv = d->total_kv,
        .batch_offset = d->batch_offset,
        .head_offset = d->head_offset,
        .heads_total = d->heads_total,
        .scale = d->scale,
        .softcap = d->softcap,
        .head_dim_qk = (uint32_t)d->head_dim_qk,
        .head_dim_v = (uint32_t)d->head_dim_v,
        .dtype = d->dtype,
        .bias_dtype = d->bias_dtype,
        .dq_dtype = d->dq_dtype,
        .dk_dtype = d->dk_dtype,
        .dv_dtype = d->dv_dtype,
        .dbias_dtype = d->dbias_dtype,
        .outputs = d->outputs,
        .accumulate = d->accumulate,
        .interval_form = d->interval_form,
    };
    fill_tensors(d, kind, &p);
    fill_mask(d, &p);
    fill_dropout(d, &p);
    fill_features(d, kind, deterministic, &p);
    *params_out = p;
}

/* ---- call time ---- */

/* The call being bound: every pointer is checked through here. */
typedef struct binding {
    const char *who;
    const stw_attn_params *p;
    const void *inputs[24], *outputs[8]; /* of tensors that hold elements, for the aliasing check */
    const char *input_names[24], *output_names[8];
    int input_count, output_count;
} binding;

/* The arrays stay uninitialised: clearing their 64 words would cost time in each call. */
static void begin_binding(binding *b, const char *who, const stw_attn_params *p) {
    b->who = who;
    b->p = p;
    b->input_count = b->output_count = 0;
}

/* One pointer: present unless optional, on a boundary of its element, remembered. */
static stw_status take(binding *b, const char *name, const void *pointer, size_t element, stw_tensor_use use) {
    int optional = use == STW_USE_INPUT_OPTIONAL || use == STW_USE_OUTPUT_OPTIONAL;
    if (!pointer)
        return optional ? STW_OK : stw_fail(STW_E_INVALID, "%s: args.%s is null, but this plan needs it", b->who, name);
    if ((uintptr_t)pointer % element)
        return stw_fail(STW_E_INVALID, "%s: args.%s %p is not aligned to its elements of %zu bytes", b->who, name,
                        pointer, element);
    if (use == STW_USE_OUTPUT || use == STW_USE_OUTPUT_OPTIONAL) {
        b->output_names[b->output_count] = name;
        b->outputs[b->output_count++] = pointer;
    } else {
        b->input_names[b->input_count] = name;
        b->inputs[b->input_count++] = pointer;
    }
    return STW_OK;
}

static stw_status check_aliases(const binding *b) {
    for (int i = 0; i < b->output_count; ++i) {
        for (int j = 0; j < i; ++j)
            if (b->outputs[i] == b->outputs[j])
                return stw_fail(STW_E_INVALID, "%s: args.%s and args.%s are the same memory: outputs may not overlap",
                                b->who, b->output_names[j], b->output_names[i]);
        for (int j = 0; j < b->input_count; ++j)
            if (b->outputs[i] == b->inputs[j])
                return stw_fail(STW_E_INVALID,
                                "%s: args.%s and args.%s are the same memory: an output may not overlap "
                                "an input",
                                b->who, b->output_names[i], b->input_names[j]);
    }
    return STW_OK;
}

/* What a tensor's use and type follow from (attn_tensors.def), from the parameter block alone. It is made twice a call,
 * not once a tensor, which took 0.3 us of a run call on an EPYC whose `rep stosb` is slow. */
static stw_attn_desc asked_of(const stw_attn_params *p) {
    stw_attn_desc d = {.outputs = p->outputs,
                       .dtype = (stw_dtype)p->dtype,
                       .dq_dtype = (stw_dtype)p->dq_dtype,
                       .dk_dtype = (stw_dtype)p->dk_dtype,
                       .dv_dtype = (stw_dtype)p->dv_dtype};
    if (p->features & STW_FEAT_GIVEN_DELTA) d.flags |= STW_ATTN_GIVEN_DELTA;
    if (p->features & STW_FEAT_WRITE_DELTA) d.flags |= STW_ATTN_WRITE_DELTA;
    if (p->features & STW_FEAT_DLSE) d.flags |= STW_ATTN_DLSE;
    return d;
}

static size_t element_of(const stw_tensor_row *row, const stw_attn_desc *asked) {
    return stw_dtype_size(stw_tensor_dtype(row, asked));
}

static void *pointer_of(const stw_tensor_row *row, const stw_attn_args *args) {
    void *pointer;
    __builtin_memcpy(&pointer, (const char *)args + row->args_offset, sizeof pointer);
    return pointer;
}

/* A side whose tensors are all null; LSE, dLSE and delta are not asked. */
static int side_is_null(int kv, const stw_attn_desc *asked, stw_plan_kind kind, const stw_attn_args *args) {
    for (size_t i = 0; i < STW_TENSOR_ROWS; ++i) {
        const stw_tensor_row *row = &stw_tensor_rows[i];
        if (row->kv != kv || row->dim == '1' || stw_tensor_use_of(row, asked, kind) == STW_USE_NONE) continue;
        if (pointer_of(row, args)) return 0;
    }
    return 1;
}

static stw_status bind_tensors(binding *b, stw_plan_kind kind, const stw_attn_args *args, stw_attn_params *p) {
    const stw_attn_desc asked = asked_of(p);
    if (p->features & STW_FEAT_PACKED_Q && side_is_null(0, &asked, kind, args)) p->total_q = 0;
    if (p->features & STW_FEAT_PACKED_KV && side_is_null(1, &asked, kind, args)) p->total_kv = 0;
    for (size_t i = 0; i < STW_TENSOR_ROWS; ++i) {
        const stw_tensor_row *row = &stw_tensor_rows[i];
        stw_tensor_use use = stw_tensor_use_of(row, &asked, kind);
        if (use == STW_USE_NONE || !stw_rows_of_side(p, row->kv)) continue;
        void *pointer = pointer_of(row, args);
        stw_status status = take(b, row->name, pointer, element_of(row, &asked), use);
        if (status) return status;
        stw_tensor_param_of(p, row)->data = pointer;
    }
    return STW_OK;
}

/* 1 when dbias, in the bias's own shape, holds an element. */
static int dbias_exists(const stw_attn_params *p) {
    return p->outputs & STW_OUT_DBIAS && (p->batch || !p->dbias.batch) && (p->max_seq_q || !p->dbias.query) &&
           (p->max_seq_kv || !p->dbias.key);
}

/* A pointer that is not one of the strided tensors. */
typedef struct extra {
    int used;
    const char *name;
    const void *pointer;
    size_t element;
    stw_tensor_use use;
} extra;

static stw_status take_extras(binding *b, const extra *rows, size_t count) {
    stw_status status = STW_OK;
    for (size_t i = 0; i < count && !status; ++i)
        if (rows[i].used) status = take(b, rows[i].name, rows[i].pointer, rows[i].element, rows[i].use);
    return status;
}

static stw_status bind_extras(binding *b, const stw_attn_args *args, const stw_attn_params *p) {
    int any = p->batch > 0;
    int scores = stw_rows_of_side(p, 0) && stw_rows_of_side(p, 1);
    size_t bias = stw_dtype_size((stw_dtype)p->bias_dtype), dbias = stw_dtype_size((stw_dtype)p->dbias_dtype);
    size_t number = stw_dtype_size(stw_dtype_of_rows((stw_dtype)p->dtype));
    const extra rows[] = {
#define STW_ATTN_EXTRA(name, member, side, element, present, use, written)                                             \
    {(present) != 0, #name, args->name, element, use},
#include "common/attn_tensors.def"
    };
    return take_extras(b, rows, sizeof rows / sizeof rows[0]);
}

/* Lengths, offsets and seeds: what the dropout mask call needs too. */
static stw_status take_positions(binding *b, const stw_attn_args *args) {
    const stw_attn_params *p = b->p;
    const extra rows[] = {
    /* without a sequence what is required is not looked at, and may be null */
#define STW_ATTN_POSITION(name, bound, element, use, written)                                                          \
    {(use) == STW_USE_INPUT ? p->batch > 0 && (bound) : 1, #name, args->name, element, use},
#include "common/attn_tensors.def"
    };
    return take_extras(b, rows, sizeof rows / sizeof rows[0]);
}

stw_status stw_check_cpu_threads(const char *who, int32_t cpu_threads) {
    if (cpu_threads >= 0 && cpu_threads <= STW_CPU_THREADS_MAX) return STW_OK;
    return stw_fail(STW_E_INVALID, "%s: args.cpu_threads %d is not in 0..%d (0 = as many as the context has)", who,
                    cpu_threads, STW_CPU_THREADS_MAX);
}

static stw_status check_values(const binding *b, const stw_attn_args *args) {
    const int64_t offsets[] = {args->q_offset, args->k_offset};
    for (int i = 0; i < 2; ++i)
        if (offsets[i] < -STW_POSITION_MAX || offsets[i] > STW_POSITION_MAX)
            return stw_fail(STW_E_INVALID, "%s: args.%s %lld is beyond +-2^40", b->who, i ? "k_offset" : "q_offset",
                            (long long)offsets[i]);
    int used = (b->p->features & STW_FEAT_USED_LENGTHS) != 0;
    if (used && !args->used_q && !args->used_kv)
        return stw_fail(STW_E_INVALID,
                        "%s: args.used_q and args.used_kv are both null, but the plan has "
                        "STW_ATTN_HAS_USED_LENGTHS",
                        b->who);
    if (!used && (args->used_q || args->used_kv))
        return stw_fail(STW_E_INVALID, "%s: args.%s is given, but the plan lacks STW_ATTN_HAS_USED_LENGTHS", b->who,
                        args->used_q ? "used_q" : "used_kv");
    return stw_check_cpu_threads(b->who, args->cpu_threads);
}

/* ---- the workspace, which no tensor may reach into ---- */

/* Bytes from the tensor's start on that are surely its own: all of a dense one without gaps, else one element, since
 * sizes of a pack are upper bounds. */
static size_t bytes_of(const stw_tensor_row *row, const stw_attn_params *p, const stw_attn_desc *asked) {
    const stw_tensor_param *t = stw_tensor_param_of((stw_attn_params *)(uintptr_t)p, row);
    uint64_t dim = row->dim == '1' ? 1 : row->dim == 'd' ? p->head_dim_qk : p->head_dim_v;
    uint64_t heads = (uint64_t)(row->kv ? p->heads_kv : p->heads_q), rows = (uint64_t)stw_rows_of_side(p, row->kv);
    uint64_t batch = (uint64_t)p->batch, elements = batch * heads * rows * dim;
    if (p->features & (row->kv ? STW_FEAT_PACKED_KV : STW_FEAT_PACKED_Q)) return element_of(row, asked);
    uint64_t last = (batch - 1) * (uint64_t)t->batch + (heads - 1) * (uint64_t)t->head + (rows - 1) * (uint64_t)t->seq;
    return (last + dim == elements ? elements : 1) * element_of(row, asked);
}

stw_status stw_check_outside_workspace(const char *who, const char *name, const void *pointer, size_t bytes,
                                       const void *workspace, size_t workspace_bytes) {
    uintptr_t at = (uintptr_t)pointer, taken = (uintptr_t)workspace;
    if (!pointer || !workspace || (at < taken ? bytes <= taken - at : at - taken >= workspace_bytes)) return STW_OK;
    return stw_fail(STW_E_INVALID, "%s: args.%s %p overlaps the workspace, %zu bytes at %p", who, name, pointer,
                    workspace_bytes, workspace);
}

stw_status stw_attn_check_workspace(const char *who, const stw_attn_params *p, stw_plan_kind kind,
                                    const void *workspace, size_t bytes) {
    const stw_attn_desc asked = asked_of(p);
    stw_status status = STW_OK;
    for (size_t i = 0; i < STW_TENSOR_ROWS && !status; ++i) {
        const stw_tensor_row *row = &stw_tensor_rows[i];
        if (stw_tensor_use_of(row, &asked, kind) == STW_USE_NONE || !stw_rows_of_side(p, row->kv)) continue;
        const void *data = stw_tensor_param_of((stw_attn_params *)(uintptr_t)p, row)->data;
        status = stw_check_outside_workspace(who, row->name, data, bytes_of(row, p, &asked), workspace, bytes);
    }
    const void *dbias = dbias_exists(p) ? p->dbias.data : NULL, *dsink = p->outputs & STW_OUT_DSINK ? p->dsink : NULL;
    if (!status) status = stw_check_outside_workspace(who, "dbias", dbias, 1, workspace, bytes);
    if (!status) status = stw_check_outside_workspace(who, "dsink", dsink, 1, workspace, bytes);
    if (!status) status = stw_check_outside_workspace(who, "status_out", p->status_out, 4, workspace, bytes);
    return status;
}

static void bind_positions(const stw_attn_args *args, stw_attn_params *p) {
#define STW_ATTN_POSITION(name, bound, element, use, written) p->name = bound ? args->name : NULL;
#include "common/attn_tensors.def"
    p->q_offset = args->q_offset;
    p->k_offset = args->k_offset;
    p->dropout_seed = args->dropout_seed;
    p->dropout_offset = args->dropout_offset;
}

stw_status stw_attn_params_bind_positions(const stw_attn_params *shape, const stw_attn_args *args,
                                          stw_attn_params *params_out) {
    binding b;
    begin_binding(&b, "dropout_mask", shape);
    *params_out = *shape;
    stw_status status = take_positions(&b, args);
    if (!status) status = check_values(&b, args);
    if (!status) bind_positions(args, params_out);
    return status;
}

stw_status stw_attn_params_bind(const stw_attn_params *shape, stw_plan_kind kind, const stw_attn_args *args,
                                stw_attn_params *params_out) {
    stw_attn_params *p = params_out;
    binding b;
    begin_binding(&b, stw_plan_kind_name(kind), shape);
    *p = *shape;
    stw_status status = bind_tensors(&b, kind, args, p);
    if (!status) status = bind_extras(&b, args, p);
    if (!status) status = take_positions(&b, args);
    if (!status) status = check_values(&b, args);
    if (!status) status = check_aliases(&b);
    if (status) return status;
#define STW_ATTN_EXTRA(name, member, side, element, present, use, written) p->member = (void *)(uintptr_t)args->name;
#include "common/attn_tensors.def"
    bind_positions(args, p);
    return STW_OK;
}
