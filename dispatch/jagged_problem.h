/* SPDX-License-Identifier: MIT
 *
 * One jagged problem inside dispatch: what each op uses, the check of a descriptor, how many elements a
 * tensor has, and the parameter block. Shared by plan, run and explain. */
#ifndef STW_DISPATCH_JAGGED_PROBLEM_H
#define STW_DISPATCH_JAGGED_PROBLEM_H

#include "backends/backend.h"

/* Fields of the descriptor that not every op uses. */
#define STW_JFIELD_OUTER     0x001u
#define STW_JFIELD_INNER     0x002u
#define STW_JFIELD_DIM       0x004u
#define STW_JFIELD_DIM_SIZE  0x008u
#define STW_JFIELD_INDEX     0x010u
#define STW_JFIELD_FEATURES  0x020u
#define STW_JFIELD_PADDED    0x040u
#define STW_JFIELD_THRESHOLD 0x080u
#define STW_JFIELD_SHAPE     0x100u
#define STW_JFIELD_MATMUL    0x200u
#define STW_JFIELD_WEIGHT    0x400u
#define STW_JFIELD_ATTN      0x800u
#define STW_JFIELD_BIAS      0x1000u

typedef struct stw_jagged_op_info {
    const char *name; /* of PROBLEM lines: "jagged_softmax" */
    uint32_t outputs; /* that the op has                    */
    uint32_t flags;   /* STW_JAGGED_* that it takes         */
    uint32_t fields;  /* STW_JFIELD_*                       */
    uint32_t dims;    /* 1u << STW_DIM_* accepted           */
    int any_dtype;    /* f64 and integers too               */
} stw_jagged_op_info;

/* NULL: no op of that number. */
const stw_jagged_op_info *stw_jagged_op_of(stw_jagged_op op);

/* Checks a descriptor of full size and resolves its defaults in place (types, outputs, outer, inner,
 * dim_size, dim_after). Errors: refusal.h. ATTENTION: attn is checked by its own plan. */
stw_status stw_jagged_check(stw_jagged_desc *desc);

/* The tensors of a call: common/jagged_tensors.def. */
typedef enum stw_jagged_tensor {
#define STW_JAGGED_TENSOR(ID, name, dtype, elements, used, output) STW_JTENSOR_##ID,
#include "common/jagged_tensors.def"
#undef STW_JAGGED_TENSOR
    STW_JTENSOR_COUNT
} stw_jagged_tensor;

/* Elements of a tensor's buffer, from a parameter block: an upper bound where lengths decide. Products beyond
 * 2^60 give 2^60. */
int64_t stw_jagged_elements(const stw_jagged_params *params, stw_jagged_tensor tensor);

/* 1 when calls of the block use the tensor. */
int stw_jagged_uses(const stw_jagged_params *params, stw_jagged_tensor tensor);

#define STW_JAGGED_ELEMENTS_MAX (INT64_C(1) << 60)

/* The shape part of the parameter block; pointers null. `desc` is checked. */
void stw_jagged_params_fill(const stw_jagged_desc *desc, stw_jagged_params *params_out);

/* The pointers of a call into a copy of the plan's block, host mirrors checked. Errors: STW_E_INVALID. */
stw_status stw_jagged_params_bind(const stw_jagged_params *shape, const stw_jagged_args *args,
                                  stw_jagged_params *params_out);

/* STW_E_INVALID where a tensor of the bound block, or status_out, overlaps the workspace: with STW_JAGGED_FULL
 * anywhere, else with its start, since sizes are upper bounds. */
stw_status stw_jagged_check_workspace(const stw_jagged_args *args, const stw_jagged_params *params,
                                      const void *workspace, size_t bytes);

#endif
