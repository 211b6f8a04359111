/* SPDX-License-Identifier: MIT
 *
 * One attention problem inside dispatch: the list of its tensors as data, the check of a descriptor, and
 * the parameter block made from it. Shared by plan, run, layout and explain. */
#ifndef STW_DISPATCH_ATTN_PROBLEM_H
#define STW_DISPATCH_ATTN_PROBLEM_H

#include "backends/backend.h"

typedef enum stw_tensor_use {
    STW_USE_NONE = 0,
    STW_USE_INPUT,
    STW_USE_INPUT_OPTIONAL, /* may be null */
    STW_USE_OUTPUT,
    STW_USE_OUTPUT_OPTIONAL
} stw_tensor_use;

/* A tensor with batch, head and row strides. */
typedef struct stw_tensor_row {
    const char *name;
    size_t desc_offset;    /* of its stw_attn_strides in stw_attn_desc   */
    size_t args_offset;    /* of its pointer in stw_attn_args            */
    size_t params_offset;  /* of its stw_tensor_param in stw_attn_params */
    size_t dim_offset;     /* of its head_dim stride in stw_attn_desc, or 0: always 1 */
    uint8_t kv;            /* rows and heads of the key/value side       */
    uint8_t dim;           /* 'd' head_dim_qk, 'v' head_dim_v, '1' none (one number a row) */
    uint8_t may_broadcast; /* as an input */
} stw_tensor_row;

/* Places in the table. */
enum {
#define STW_ATTN_TENSOR(name, ...) STW_TENSOR_AT_##name,
#include "common/attn_tensors.def"
    STW_TENSOR_ROWS
};
extern const stw_tensor_row stw_tensor_rows[STW_TENSOR_ROWS];

/* How calls of this kind use the tensor. `desc` is checked (defaults resolved). */
stw_tensor_use stw_tensor_use_of(const stw_tensor_row *row, const stw_attn_desc *desc, stw_plan_kind kind);
stw_dtype stw_tensor_dtype(const stw_tensor_row *row, const stw_attn_desc *desc);

/* Extents of the tensor: batch (1 when the strides' batch is not used), heads, rows, head dim. */
typedef struct stw_tensor_extents {
    int64_t batch, heads, rows, dim;
} stw_tensor_extents;
stw_tensor_extents stw_tensor_extents_of(const stw_tensor_row *row, const stw_attn_desc *desc);

static inline const stw_attn_strides *stw_tensor_strides(const stw_tensor_row *row, const stw_attn_desc *desc) {
    return (const stw_attn_strides *)((const char *)desc + row->desc_offset);
}

/* Of a row with a dim_offset: its field of stw_attn_desc.dim, meant or not. */
static inline int64_t stw_tensor_dim_field(const stw_tensor_row *row, const stw_attn_desc *desc) {
    return *(const int64_t *)(const void *)((const char *)desc + row->dim_offset);
}

/* Along head_dim. */
static inline int64_t stw_tensor_dim_stride(const stw_tensor_row *row, const stw_attn_desc *desc) {
    return row->dim_offset && desc->flags & STW_ATTN_HAS_DIM_STRIDES ? stw_tensor_dim_field(row, desc) : 1;
}

/* Rows are numbered through the pack; those of the LSE family only without a batch stride. */
int stw_tensor_through_pack(const stw_tensor_row *row, const stw_attn_desc *desc);

static inline stw_tensor_param *stw_tensor_param_of(stw_attn_params *params, const stw_tensor_row *row) {
    return (stw_tensor_param *)(void *)((char *)params + row->params_offset);
}

static inline int stw_desc_has_bias(const stw_attn_desc *desc) { return desc->bias_dtype != STW_DTYPE_NONE; }

/* "attn_bwd", "attn_fwd" or "jagged_bwd": what opens error texts. */
const char *stw_plan_kind_name(stw_plan_kind kind);

/* Checks a descriptor of full size and resolves its defaults in place (gradient types, outputs, scale,
 * heads_total). Everything of docs/specification.md section 4 that can be said at plan time. Errors: refusal.h. */
stw_status stw_attn_check(stw_attn_desc *desc, stw_plan_kind kind);
/* The sizes' part of it; `who` opens the text. */
stw_status stw_attn_check_sizes(const char *who, const stw_attn_desc *desc);
/* The same of a caller's own descriptor, for helpers that fill it in: it may be null or too short. */
stw_status stw_attn_check_given(const char *who, const stw_attn_desc *desc);
/* The strides' part of it (attn_strides.c). */
stw_status stw_attn_check_strides(const stw_attn_desc *desc, stw_plan_kind kind);
/* Of these those of intervals and block mask. */
stw_status stw_attn_check_masks(const stw_attn_desc *desc, stw_plan_kind kind);

/* The shape part of the parameter block; pointers null. `desc` is checked. */
void stw_attn_params_fill(const stw_attn_desc *desc, stw_plan_kind kind, int deterministic,
                          stw_attn_params *params_out);

/* A call's cpu_threads; `who` opens the text. Errors: STW_E_INVALID. */
stw_status stw_check_cpu_threads(const char *who, int32_t cpu_threads);

/* The pointers of a call into a copy of the plan's block. Errors: STW_E_INVALID naming the pointer. */
stw_status stw_attn_params_bind(const stw_attn_params *shape, stw_plan_kind kind, const stw_attn_args *args,
                                stw_attn_params *params_out);

/* A tensor of `bytes` bytes, or null, and the workspace: STW_E_INVALID where they overlap. */
stw_status stw_check_outside_workspace(const char *who, const char *name, const void *pointer, size_t bytes,
                                       const void *workspace, size_t workspace_bytes);
/* The same of all tensors of a bound block; of one with gaps and of a pack only the start: what lies between rows, or
 * past those that there are, may be the workspace. A dQ there would be read as semaphores, which wait for ever. */
stw_status stw_attn_check_workspace(const char *who, const stw_attn_params *params, stw_plan_kind kind,
                                    const void *workspace, size_t bytes);

/* Finds the inputs that are copied first and their places; work->params gets the copies' strides. `copies`: as in
 * stw_backend_ops. `desc` is checked, work's kind and params are filled. (attn_stage.c) */
void stw_attn_stages_plan(const stw_attn_desc *desc, unsigned copies, stw_attn_work *work);
/* The copies of a call into stages[STW_STAGES_MAX]; returns how many. */
uint32_t stw_attn_stages_bind(const stw_attn_work *work, const stw_attn_params *params, char *workspace,
                              stw_attn_stage *stages);

/* Only lengths, offsets and seeds, for the dropout mask call. */
stw_status stw_attn_params_bind_positions(const stw_attn_params *shape, const stw_attn_args *args,
                                          stw_attn_params *params_out);

#endif
