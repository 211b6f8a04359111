/* SPDX-License-Identifier: MIT
 *
 * Tensor maps (TMA descriptors) of a call of Hopper's own main loop. Called by backends/gpu/launch.c in each
 * run call, through stw_gpu_ops: work of the driver on the host alone. */
#include "backends/cuda/tensor_map.h"
#include "backends/cuda/device.h"
#include "common/params/attn_launch.h"

_Static_assert(sizeof(stw_hopper_maps) <= STW_GPU_MAPS_BYTES, "room in a run call");

enum { PANEL = 64, KEYS = 128 }; /* columns of a panel, rows of a block of keys */
#define LOG2E 1.44269504088896340736f

typedef struct extent {
    int64_t rows, heads, batch;
} extent;

/* A stride that the driver accepts where it is never used: one element along that dimension. */
static uint64_t stride_of(int64_t stride, int64_t count) {
    return count > 1 ? (uint64_t)stride * 2 : 16;
}

/* The driver takes no map of a tensor without rows, which no unit loads from: one row, at `elsewhere`. */
static int encode(const stw_cuda_functions *cuda, const stw_tensor_param *t, const void *elsewhere,
                  uint32_t cols, extent e, uint32_t width, uint32_t box_rows, uint32_t dtype,
                  stw_mapped_tensor *out) {
    uint64_t start = (uintptr_t)(e.rows ? t->data : elsewhere), rows = e.rows ? (uint64_t)e.rows : 1;
    out->panels = cols == width ? (int32_t)(cols / PANEL) : 0;
    uint64_t head = stride_of(t->head, e.heads), batch = stride_of(t->batch, e.batch),
             row = stride_of(t->seq, e.rows);
    uint32_t ones[5] = {1, 1, 1, 1, 1};
    if (out->panels) {
        uint64_t dims[5] = {PANEL, rows, cols / PANEL, (uint64_t)e.heads, (uint64_t)e.batch},
                 strides[4] = {row, PANEL * 2, head, batch};
        uint32_t box[5] = {PANEL, box_rows, cols / PANEL, 1, 1};
        return cuda->cuTensorMapEncodeTiled(&out->map, dtype, 5, start, dims, strides, box, ones, 0,
                                            STW_CUDA_SWIZZLE_128, STW_CUDA_L2_256, 0);
    }
    uint64_t dims[4] = {cols, rows, (uint64_t)e.heads, (uint64_t)e.batch}, strides[3] = {row, head, batch};
    uint32_t box[4] = {PANEL, box_rows, 1, 1};
    return cuda->cuTensorMapEncodeTiled(&out->map, dtype, 4, start, dims, strides, box, ones, 0,
                                        STW_CUDA_SWIZZLE_128, STW_CUDA_L2_256, 0);
}

stw_status stw_cuda_encode_maps(stw_gpu *gpu, const struct stw_attn_launch *launch, void *maps_out) {
    stw_cuda_state *state = (stw_cuda_state *)gpu;
    const stw_attn_params *p = &launch->p;
    stw_hopper_maps *maps = maps_out;
    uint32_t dtype = p->dtype == STW_BF16 ? STW_CUDA_MAP_BF16 : STW_CUDA_MAP_F16;
    int packed_q = (p->features & STW_FEAT_PACKED_Q) != 0,
        packed_kv = (p->features & STW_FEAT_PACKED_KV) != 0;
    extent q = {packed_q ? p->total_q : p->max_seq_q, p->heads_q, packed_q ? 1 : p->batch};
    extent kv = {packed_kv ? p->total_kv : p->max_seq_kv, p->heads_kv, packed_kv ? 1 : p->batch};
    const stw_cuda_functions *cuda = state->cuda;
    uint32_t d = p->head_dim_qk, dv = p->head_dim_v, width = launch->width, bm = launch->bm;
    const void *some = launch->stats;
    maps->factor = p->scale * LOG2E;
    int error = encode(cuda, &p->q, some, d, q, width, bm, dtype, &maps->q);
    if (!error) error = encode(cuda, &p->dout, some, dv, q, width, bm, dtype, &maps->dout);
    if (!error) error = encode(cuda, &p->k, some, d, kv, width, KEYS, dtype, &maps->k);
    if (!error) error = encode(cuda, &p->v, some, dv, kv, width, KEYS, dtype, &maps->v);
    return stw_cuda_check(state, STW_E_DRIVER, "cuTensorMapEncodeTiled", error);
}
