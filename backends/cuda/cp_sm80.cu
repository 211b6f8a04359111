/* SPDX-License-Identifier: MIT
 *
 * The sm80 image of attention over ranks: a cubin for 8.x, and PTX with code of 9.0 for every newer GPU. The kernels
 * are common/kernels/cp.h. */
#include "backends/cuda/leaf.h"
#include "common/device/device.h"

#define CP_KERNEL(name, threads, parameter, call)                                                                      \
    DEV_KERNEL(threads) name(DEV_ARGUMENT parameter argument) { call; }

#include "common/kernels/cp.h"
