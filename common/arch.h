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

/* Numbers of the rows: &stw_archs[STW_ARCH_ROW_sm80] is that of sm80. A row is known by its address. */
enum {
#define STW_ARCH(name, backend, wave, smem_kb, description) STW_ARCH_ROW_##name,
#include "arch.def"
#undef STW_ARCH
};

extern const stw_arch stw_archs[];
extern const size_t stw_arch_count;

/* The row of that name (and backend, unless AUTO), or NULL. */
const stw_arch *stw_arch_find(stw_backend backend, const char *name);

/* "cpu", "cuda", "hip", "auto". */
const char *stw_backend_name(stw_backend backend);

#endif
