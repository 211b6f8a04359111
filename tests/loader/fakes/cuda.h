/* SPDX-License-Identifier: MIT
 *
 * What the two halves of the fake libcuda.so.1 share. */
#ifndef STW_TESTS_LOADER_FAKES_CUDA_H
#define STW_TESTS_LOADER_FAKES_CUDA_H

#include "fake.h"

#include <stdint.h>

enum { FAKE_CUDA_HANDLE = 1000 }; /* CUdevice of ordinal 0: a handle is not an ordinal */

typedef struct cuda_device {
    char name[128];
    int major, minor, sms, smem;
    unsigned long long memory;
} cuda_device;

int fake_cuda_device_at(int ordinal, cuda_device *device);
int fake_cuda_started(void); /* 0, or 3: CUDA_ERROR_NOT_INITIALIZED */

/* The second argument of a kernel of Hopper's own main loop (cuda_maps.c). */
int fake_maps_are_good(const void *maps); /* all four were encoded here, where they lie now or were copied from */
void fake_maps_log(const void *maps);

#endif
