/* SPDX-License-Identifier: MIT
 *
 * The HIP images of attention over ranks, once an architecture. The kernels are common/kernels/cp.h. */
#include "backends/hip/leaf.h"
#include "common/device/device.h"

#define CP_KERNEL(name, threads, parameter, call)                                                                      \
    DEV_KERNEL(threads) name(DEV_ARGUMENT parameter argument) { call; }

#include "common/kernels/cp.h"
