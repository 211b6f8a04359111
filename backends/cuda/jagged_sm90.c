/* SPDX-License-Identifier: MIT
 *
 * The host side of Hopper's products of linear: the tensor maps of a call. Kernels: jagged_product_sm90.h. */
#include "backends/cuda/device.h"
#include "backends/cuda/jagged_maps.h"
#include "common/params/jagged_launch.h"

_Static_assert(sizeof(stw_jagged_maps) <= STW_GPU_MAPS_BYTES, "room in a run call");

/* A matrix of `rows` rows, loaded or stored by boxes of box_rows x 64. */
static int encode(const stw_cuda_functions *cuda, const void *data, int64_t rows, int64_t cols, uint32_t box_rows,
                  uint32_t dtype, stw_tensor_map *map_out) {
    uint64_t dims[2] = {(uint64_t)cols, (uint64_t)rows}, strides[1] = {(uint64_t)cols * 2};
    uint32_t box[2] = {64, box_rows}, ones[2] = {1, 1};
    return cuda->cuTensorMapEncodeTiled(map_out, dtype, 2, (uintptr_t)data, dims, strides, box, ones, 0,
                                        STW_CUDA_SWIZZLE_128, STW_CUDA_L2_256, 0);
}

stw_status stw_cuda_encode_product(stw_gpu *gpu, const stw_jagged_params *p, int dx, void *maps_out) {
    stw_cuda_state *state = (stw_cuda_state *)gpu;
    const stw_cuda_functions *cuda = state->cuda;
    stw_jagged_maps *maps = maps_out;
    uint32_t dtype = p->dtype == STW_BF16 ? STW_CUDA_MAP_BF16 : STW_CUDA_MAP_F16;
    int64_t rows = p->axis[0].total * p->outer, n = p->out_features, k = p->inner;
    int error = encode(cuda, p->grad, rows, n, dx ? STW_JAGGED_OWN_BM : STW_JAGGED_OWN_BK, dtype, &maps->a);
    if (!error) error = encode(cuda, dx ? p->weight : p->x, dx ? n : rows, k, STW_JAGGED_OWN_BK, dtype, &maps->b);
    if (!error) error = encode(cuda, dx ? p->dx : p->dweight, dx ? rows : n, k, 64, dtype, &maps->c);
    return stw_cuda_check(state, STW_E_DRIVER, "cuTensorMapEncodeTiled", error);
}
