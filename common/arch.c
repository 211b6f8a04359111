/* SPDX-License-Identifier: MIT
 *
 * The registry of architectures (common/arch.def) as a table. */
#include "arch.h"

#include <string.h>

const stw_arch stw_archs[] = {
#define STW_ARCH(name, backend, wave, smem_kb, description) {#name, STW_BACKEND_##backend, wave, smem_kb, description},
#include "arch.def"
#undef STW_ARCH
};
const size_t stw_arch_count = sizeof stw_archs / sizeof stw_archs[0];

const stw_arch *stw_arch_find(stw_backend backend, const char *name) {
    for (size_t i = 0; i < stw_arch_count; ++i)
        if ((backend == STW_BACKEND_AUTO || backend == stw_archs[i].backend) && !strcmp(stw_archs[i].name, name))
            return &stw_archs[i];
    return NULL;
}

const char *stw_backend_name(stw_backend backend) {
    switch (backend) {
    case STW_BACKEND_AUTO: return "auto";
    case STW_BACKEND_CPU: return "cpu";
    case STW_BACKEND_CUDA: return "cuda";
    case STW_BACKEND_HIP: return "hip";
    }
    return "?";
}
