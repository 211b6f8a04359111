/* SPDX-License-Identifier: MIT
 *
 * The sm80 image of the jagged operations: a cubin for 8.x, and PTX with code of 9.0 for every newer GPU. The kernels
 * are common/kernels/jagged*.h, their sizes common/tuning/jagged.sm80.def. */
#include "backends/cuda/leaf.h"
#include "common/device/device.h"

#include "common/device/copy.h"
#include "common/device/mma.h"
#include "common/device/reduce.h"

#include "backends/cuda/jagged_leaf.h"

extern __shared__ char dev_shared[] __attribute__((aligned(1024)));

#define JAG_KERNEL(name, threads, call)                                                                                \
    DEV_KERNEL(threads) name(DEV_ARGUMENT stw_jagged_launch launch) { call; }
#define JAG_KERNEL_BLOCKS(name, threads, blocks, call)                                                                 \
    DEV_KERNEL_BLOCKS(threads, blocks) name(DEV_ARGUMENT stw_jagged_launch launch) { call; }
#define JAG_KERNEL_PRODUCT JAG_KERNEL_BLOCKS

#define STW_VARIANT_TABLE "common/tuning/jagged.sm80.def"
#include "common/kernels/jagged.h"
