/* SPDX-License-Identifier: MIT
 *
 * The backend table: what this build holds, in the order `auto` tries them. */
#include "context.h"

const stw_backend_ops *const stw_backends[] = {
#ifdef STW_WITH_CUDA
    &stw_cuda_backend,
#endif
#ifdef STW_WITH_HIP
    &stw_hip_backend,
#endif
    &stw_cpu_backend,
};
const size_t stw_backend_count = sizeof stw_backends / sizeof stw_backends[0];

_Static_assert(sizeof stw_backends / sizeof stw_backends[0] <= STW_BACKEND_TABLE_MAX, "candidates hold every backend");
