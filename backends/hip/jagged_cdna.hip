/* SPDX-License-Identifier: MIT
 *
 * The HIP images of the jagged operations. Compiled once an architecture, with STW_VARIANT_TABLE naming its table; the
 * kernels are common/kernels/jagged*.h. */
#include "backends/hip/leaf.h"
#include "common/device/device.h"

#include "common/device/copy.h"
#include "common/device/mma.h"
#include "common/device/reduce.h"

#include "backends/hip/jagged_leaf.h"

extern DEV_LDS char dev_shared[] __attribute__((aligned(1024)));

#define JAG_KERNEL(name, threads, call)                                                                                \
    DEV_KERNEL(threads) name(DEV_ARGUMENT stw_jagged_launch launch) { call; }
#define JAG_KERNEL_BLOCKS(name, threads, blocks, call) JAG_KERNEL(name, threads, call)
/* The argument where the runtime put it: a parameter is copied to scratch where members are chosen at run time. */
#define JAG_KERNEL_PRODUCT(name, threads, blocks, call)                                                                \
    DEV_KERNEL(threads) name(DEV_ARGUMENT stw_jagged_launch) {                                                         \
        const stw_jagged_launch &launch = *(const stw_jagged_launch *)__builtin_amdgcn_kernarg_segment_ptr();          \
        call;                                                                                                          \
    }

#include "common/kernels/jagged.h"
