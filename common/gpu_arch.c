/* SPDX-License-Identifier: MIT
 *
 * Arch names of NVIDIA and AMD devices, and which images run where. */
#include "common/gpu_arch.h"

#include <stdio.h>
#include <string.h>

#define ARCH_CAPACITY 32

int stw_arch_of_cc(int major, int minor, char out[32]) {
    out[0] = 0;
    if (major < 1 || major > 99 || minor < 0 || minor > 9) return 0;
    snprintf(out, ARCH_CAPACITY, "sm%d%d", major, minor);
    return 1;
}

int stw_arch_of_gfx_version(uint64_t version, char out[32]) {
    out[0] = 0;
    uint64_t major = version / 10000, minor = version / 100 % 100, stepping = version % 100;
    if (major < 1 || major > 99 || minor > 15 || stepping > 15) return 0;
    snprintf(out, ARCH_CAPACITY, "gfx%u%x%x", (unsigned)major, (unsigned)minor, (unsigned)stepping);
    return 1;
}

int stw_arch_of_gcn_name(const char *name, size_t size, char out[32]) {
    out[0] = 0;
    if (size < 4 || memcmp(name, "gfx", 3)) return 0;
    size_t length = 3;
    while (length < size &&
           ((name[length] >= '0' && name[length] <= '9') || (name[length] >= 'a' && name[length] <= 'f')))
        ++length;
    /* a name that runs out of its field, or into something else, is a struct of another layout */
    if (length < 6 || length >= ARCH_CAPACITY || length == size || (name[length] && name[length] != ':'))
        return 0;
    memcpy(out, name, length);
    out[length] = 0;
    return 1;
}

const char *const *stw_cuda_rows_of_cc(int major) {
    static const char *const none[] = {NULL}, *const ampere[] = {"sm80", NULL},
                             *const hopper[] = {"sm90", "sm80", NULL};
    return major < 8 ? none : major == 9 ? hopper : ampere;
}

const stw_image *stw_cuda_image(const stw_image_set *set, int major, const char *forced) {
    for (const char *const *row = stw_cuda_rows_of_cc(major); *row; ++row) {
        if (forced && strcmp(forced, *row)) continue;
        int native = (*row)[2] - '0' == major; /* rows are "smMm" with one digit of major version */
        const stw_image *image = native ? stw_image_find(set, STW_BACKEND_CUDA, *row, STW_IMAGE_CUBIN) : NULL;
        if (!image) image = stw_image_find(set, STW_BACKEND_CUDA, *row, STW_IMAGE_PTX);
        if (image) return image;
    }
    return NULL;
}
