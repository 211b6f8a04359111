/* SPDX-License-Identifier: MIT
 *
 * Every function of functions.h as a kernel: result[i] of the three words input[3*i]. */
#include "functions.h"

#define FUNCTION_KERNEL(name, body)                                                                                    \
    extern "C" __attribute__((global)) void function_##name(const uint32_t *input, uint64_t *result) {                 \
        uint32_t i = __builtin_amdgcn_workgroup_id_x() * 256 + __builtin_amdgcn_workitem_id_x();                       \
        uint32_t a = input[3 * i], b = input[3 * i + 1], c = input[3 * i + 2];                                         \
        (void)b, (void)c;                                                                                              \
        result[i] = (uint64_t)(body);                                                                                  \
    }
FUNCTIONS(FUNCTION_KERNEL)
