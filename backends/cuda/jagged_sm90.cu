/* SPDX-License-Identifier: MIT
 *
 * The sm90 image of the jagged operations: linear's products of 16-bit types. All other kernels are those of the sm80
 * image. */
#include "backends/cuda/leaf.h"
#include "common/device/device.h"

#include "common/device/copy.h"
#include "common/device/mma.h"
#include "common/device/reduce.h"

#include "backends/cuda/jagged_leaf.h"
#include "common/params/jagged_launch.h"

extern __shared__ char dev_shared[] __attribute__((aligned(1024)));

#include "backends/cuda/jagged_product_sm90.h"

#define KERNEL(form, type, T, a_by_k)                                                                                  \
    extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(384, 1)                                     \
        stw_jagged_wgmma_##form##_##type(DEV_ARGUMENT stw_jagged_launch launch, DEV_ARGUMENT stw_jagged_maps maps) {   \
        jag_multiply_sm90<T, a_by_k>(launch, maps, dev_shared);                                                        \
    }
KERNEL(01, bf16, dev_bf16, false)
KERNEL(11, bf16, dev_bf16, true)
KERNEL(01, f16, dev_f16, false)
KERNEL(11, f16, dev_f16, true)
