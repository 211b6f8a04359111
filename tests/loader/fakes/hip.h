/* SPDX-License-Identifier: MIT
 *
 * What the two halves of the fake libamdhip64 share. */
#ifndef STW_TESTS_LOADER_FAKES_HIP_H
#define STW_TESTS_LOADER_FAKES_HIP_H

#include "fake.h"

#include <stdint.h>

typedef struct hip_device {
    char name[128], arch[64], pci[32];
    int cus, lds;
    unsigned long long memory;
} hip_device;

int fake_hip_device_at(int ordinal, hip_device *device);
int fake_hip_version(void); /* FAKE_HIP_VERSION or 60342131 */
int fake_hip_started(void); /* 0, or 3: hipErrorNotInitialized */

/* Remembers an error for hipGetLastError, and gives it. */
int fake_hip_error(int error);

#endif
