/* SPDX-License-Identifier: MIT
 *
 * Attention over ranks on a GPU, beside its calls of attention: the kernels of common/kernels/cp.h, the stream of what
 * is sent and its order with the caller's. A run call launches and records events: a graph capture takes it. */
#include "backends/gpu/gpu.h"

#include "common/dtype.h"

#include <string.h>

enum { KERNEL_CAST, KERNEL_MERGE, BLOCKS_MAX = 1 << 16 };

stw_status stw_gpu_cp_open(const stw_device *device, stw_cp_side *side_out) {
    static const char *const names[] = {"stw_cp_cast_elements", "stw_cp_merge_part"};
    stw_gpu *gpu = device->state;
    int before;
    memset(side_out, 0, sizeof *side_out);
    if (!gpu->cp_image)
        return stw_fail(STW_E_NO_IMAGE, "cp_plan: this build holds no kernels of attention over ranks for \"%s\"",
                        device->name);
    stw_status status = stw_gpu_enter(gpu, "cp_plan", &before);
    if (status) return status;
    for (int i = 0; i < 2 && !status; ++i) {
        const stw_gpu_entry entry = {.name = names[i], .image = STW_KERNEL_CP, .threads = STW_CP_THREADS};
        const stw_gpu_kernel *kernel = NULL;
        status = stw_gpu_kernel_find(gpu, &entry, &kernel);
        side_out->kernel[i] = kernel;
    }
    if (!status) status = gpu->ops->side_open(gpu, side_out);
    return stw_gpu_leave(gpu, before, status);
}

/* Nothing is reported from here: a driver that is shutting down refuses. */
void stw_gpu_cp_close(const stw_device *device, stw_cp_side *side) {
    stw_gpu *gpu = device->state;
    int before;
    if (side->stream && !stw_gpu_enter(gpu, "cp_plan_destroy", &before)) {
        gpu->ops->side_close(gpu, side);
        (void)stw_gpu_leave(gpu, before, STW_OK);
    }
    memset(side, 0, sizeof *side);
}

stw_status stw_gpu_cp_check(const stw_device *device, const char *who, stw_plan_kind kind,
                            const stw_attn_params *params, const void *workspace, stw_stream stream) {
    stw_gpu *gpu = device->state;
    int before;
    stw_status status = stw_gpu_enter(gpu, who, &before);
    if (status) return status;
    status = stw_gpu_check_call(gpu, who, kind == STW_PLAN_ATTN_FWD ? STW_CALL_FWD : STW_CALL_BWD, params, workspace,
                                stream);
    return stw_gpu_leave(gpu, before, status);
}

static stw_status launch(const stw_device *device, const stw_gpu_kernel *kernel, int64_t blocks, void *argument,
                         stw_stream stream) {
    stw_gpu *gpu = device->state;
    void *arguments[] = {argument};
    int before;
    stw_status status = stw_gpu_enter(gpu, "cp", &before);
    if (status) return status;
    return stw_gpu_leave(gpu, before, gpu->ops->launch(gpu, kernel, (uint32_t)blocks, 1, stream, arguments));
}

static int64_t blocks_of(int64_t threads) {
    int64_t blocks = (threads + STW_CP_THREADS - 1) / STW_CP_THREADS;
    return blocks < BLOCKS_MAX ? blocks : BLOCKS_MAX;
}

/* A copy of 16-bit elements as one of 32-bit words, where pairs of them lie together on both sides. */
static void copy_words(stw_cp_cast *c) {
    const uint32_t halves = STW_F16 == c->from_dtype || STW_BF16 == c->from_dtype;
    int64_t odd = c->extent[3] % (2 * STW_CP_VECTOR) | (c->to_stride[3] ^ 1) | (c->from_stride[3] ^ 1);
    if (!c->from || c->to_dtype != c->from_dtype || !halves || c->adds || c->more[0] || c->more[1]) return;
    for (int i = 0; i < 3; ++i) odd |= (c->to_stride[i] | c->from_stride[i]) & 1;
    if (odd || ((uintptr_t)c->to | (uintptr_t)c->from) % 4) return;
    c->extent[3] /= 2;
    for (int i = 0; i < 3; ++i) {
        c->to_stride[i] /= 2;
        c->from_stride[i] /= 2;
    }
    c->to_dtype = c->from_dtype = STW_F32;
}

/* Whether rows of that tensor are whole vectors, at multiples of what a vector's loads need. */
static int has_vectors(const void *data, const int64_t stride[4], uint32_t dtype) {
    size_t bytes = STW_CP_VECTOR * stw_dtype_size((stw_dtype)dtype);
    if (stride[3] != 1 || (uintptr_t)data % (bytes < 16 ? bytes : 16)) return 0;
    return stride[0] % STW_CP_VECTOR == 0 && stride[1] % STW_CP_VECTOR == 0 && stride[2] % STW_CP_VECTOR == 0;
}

stw_status stw_gpu_cp_cast(const stw_device *device, const stw_cp_side *side, const stw_cp_cast *cast,
                           stw_stream stream) {
    stw_cp_cast c = *cast;
    copy_words(&c);
    int64_t count = c.extent[0] * c.extent[1] * c.extent[2] * c.extent[3];
    if (!count) return STW_OK;
    int vectors = c.extent[3] % STW_CP_VECTOR == 0 && has_vectors(c.to, c.to_stride, c.to_dtype) &&
                  (!c.from || has_vectors(c.from, c.from_stride, c.from_dtype)) &&
                  (!c.more[0] || has_vectors(c.more[0], c.from_stride, c.from_dtype)) &&
                  (!c.more[1] || has_vectors(c.more[1], c.from_stride, c.from_dtype));
    c.vector = vectors ? STW_CP_VECTOR : 1;
    const int copies = vectors && c.from && c.from_dtype == STW_F32 && c.to_dtype == STW_F32 && !c.adds && !c.more[0];
    const int64_t ahead = copies ? STW_CP_AHEAD : 1; /* as the kernel has it */
    c.blocks = blocks_of((count / c.vector + ahead - 1) / ahead);
    return launch(device, side->kernel[KERNEL_CAST], c.blocks, &c, stream);
}

stw_status stw_gpu_cp_merge(const stw_device *device, const stw_cp_side *side, const stw_cp_merge *merge,
                            stw_stream stream) {
    const stw_gpu *gpu = device->state;
    stw_cp_merge m = *merge;
    int64_t lines = m.batches * m.rows * m.heads;
    if (!lines) return STW_OK;
    m.blocks = blocks_of(lines * gpu->ops->wave);
    return launch(device, side->kernel[KERNEL_MERGE], m.blocks, &m, stream);
}

stw_status stw_gpu_cp_order(const stw_device *device, const stw_cp_side *side, int joins, stw_stream before_stream,
                            stw_stream after) {
    stw_gpu *gpu = device->state;
    int before;
    stw_status status = stw_gpu_enter(gpu, "cp", &before);
    if (status) return status;
    return stw_gpu_leave(gpu, before, gpu->ops->order(gpu, side->event[joins], before_stream, after));
}
