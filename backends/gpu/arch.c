/* SPDX-License-Identifier: MIT
 *
 * Arch names of NVIDIA and AMD devices, and which images run where. */
#include "backends/gpu/arch.h"

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
    if (length < 6 || length >= ARCH_CAPACITY || length == size || (name[length] && name[length] != ':')) return 0;
    memcpy(out, name, length);
    out[length] = 0;
    return 1;
}

/* "sm120" -> 120, which is 10 times the major version and the minor one; 0 for rows of other backends.
 * tests/loader/test_probe.c looks that CUDA rows have such names. */
static int number_of_row(const stw_arch *row) {
    int number = 0;
    if (row->backend != STW_BACKEND_CUDA) return 0;
    for (const char *digit = row->name + 2; *digit; ++digit) number = 10 * number + *digit - '0';
    return number;
}

const stw_arch *stw_cuda_row_of_cc(int major, int minor, size_t index) {
    const stw_arch *row = NULL;
    int below = 10 * major + minor + 1; /* each step takes the newest row below the one before */
    for (size_t step = 0; step <= index; ++step) {
        int best = 0;
        for (size_t i = 0; i < stw_arch_count; ++i) {
            int number = number_of_row(&stw_archs[i]);
            if (number / 10 != major || number >= below || number <= best || &stw_archs[i] == STW_CUDA_SHARED_ARCH)
                continue;
            best = number;
            row = &stw_archs[i];
        }
        if (!best) {
            return step == index && major >= number_of_row(STW_CUDA_SHARED_ARCH) / 10 ? STW_CUDA_SHARED_ARCH : NULL;
        }
        below = best;
    }
    return row;
}

const stw_image *stw_cuda_image(const stw_image_set *set, int major, int minor, const stw_arch *forced) {
    const stw_arch *row;
    for (size_t i = 0; (row = stw_cuda_row_of_cc(major, minor, i)) != NULL; ++i) {
        if (forced && forced != row) continue;
        int native = number_of_row(row) / 10 == major;
        const stw_image *image =
            stw_image_find(set, STW_BACKEND_CUDA, row->name, native ? STW_IMAGE_CUBIN : STW_IMAGE_PTX);
        if (image) return image;
    }
    return NULL;
}
