/* SPDX-License-Identifier: MIT
 *
 * The rows of common/arch.def as data. */
#ifndef STW_COMMON_ARCH_H
#define STW_COMMON_ARCH_H

#include "sternway/base.h"

typedef struct stw_arch {
    const char *name;
    stw_backend backend;
    uint32_t wave;
    uint32_t smem_kb;
    const char *description;
} stw_arch;

extern const stw_arch stw_archs[];
extern const size_t stw_arch_count;

/* The row of that name (and backend, unless AUTO), or NULL. */
const stw_arch *stw_arch_find(stw_backend backend, const char *name);

/* "cpu", "cuda", "hip", "auto". */
const char *stw_backend_name(stw_backend backend);

#endif
