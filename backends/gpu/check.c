/* SPDX-License-Identifier: MIT
 *
 * What a run call asks the driver before it launches: is each array memory of this device, is the stream
 * one of this device. A wrong pointer would fail inside the kernel and take the whole process's device with
 * it, so every array is asked for. */
#include "backends/gpu/gpu.h"

#include <stddef.h>

/* One pointer of the parameter block. rows: which side's emptiness makes it irrelevant; written: bits of the
 * calls that write it. */
typedef struct pointer_row {
    const char *name;
    size_t at;
    enum { ROWS_Q, ROWS_KV, ROWS_BOTH, ROWS_NONE } rows;
    unsigned written;
} pointer_row;

enum { BWD = 1 << STW_CALL_BWD, FWD = 1 << STW_CALL_FWD, MASK = 1 << STW_CALL_DROPOUT_MASK };
static const pointer_row pointer_rows[] = {
#define STW_ATTN_TENSOR(name, side, cols, broadcast, dtype, forward, backward, written)                                \
    {#name, offsetof(stw_attn_params, name.data), ROWS_##side, written},
#define STW_ATTN_EXTRA(name, member, side, element, present, use, written)                                             \
    {#name, offsetof(stw_attn_params, member), ROWS_##side, written},
#include "common/attn_tensors.def"
    {"mask", offsetof(stw_attn_params, mask_out), ROWS_BOTH, MASK}, /* of the dropout mask call alone */
#define STW_ATTN_POSITION(name, bound, element, use, written)                                                          \
    {#name, offsetof(stw_attn_params, name), ROWS_NONE, written},
#include "common/attn_tensors.def"
};
enum { POINTERS = sizeof pointer_rows / sizeof pointer_rows[0] };

stw_status stw_gpu_check_call(stw_gpu *gpu, const char *who, stw_attn_call call, const stw_attn_params *params,
                              const void *workspace, stw_stream stream) {
    stw_status status = gpu->ops->check_stream(gpu, who, stream);
    int holds_q = stw_rows_of_side(params, 0) > 0, holds_kv = stw_rows_of_side(params, 1) > 0;
    const int holds[] = {[ROWS_Q] = holds_q, [ROWS_KV] = holds_kv, [ROWS_BOTH] = holds_q && holds_kv, [ROWS_NONE] = 1};
    for (size_t i = 0; i < POINTERS && !status; ++i) {
        const pointer_row *row = &pointer_rows[i];
        const void *pointer = *(const void *const *)((const char *)params + row->at);
        if (pointer && holds[row->rows])
            status = gpu->ops->check_pointer(gpu, who, row->name, pointer, (row->written >> call & 1) != 0);
    }
    if (!status && workspace) status = gpu->ops->check_pointer(gpu, who, "workspace", workspace, 1);
    return status;
}
