/* SPDX-License-Identifier: MIT
 *
 * The HIP images of the jagged operations. Compiled once an architecture, with STW_VARIANT_TABLE naming its table; the
 * kernels are common/kernels/jagged*.inl. */
#include "common/device/device.h"

#include "common/device/copy.h"
#include "common/device/mma.h"
#include "common/device/reduce.h"

#include "backends/hip/jagged_leaf.h"

extern DEV_LDS char dev_shared[] __attribute__((aligned(1024)));

#define JAG_KERNEL(name, threads, call)                                                                      \
    DEV_KERNEL(threads) name(DEV_ARGUMENT stw_jagged_launch launch) { call; }
#define JAG_KERNEL_BLOCKS(name, threads, blocks, call) JAG_KERNEL(name, threads, call)

#include "common/kernels/jagged.inl"
