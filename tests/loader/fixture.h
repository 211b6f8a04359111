/* SPDX-License-Identifier: MIT
 *
 * nvml.txt of a recorded machine: what NVML says there, one line a device, name|8.0|uuid|memory bytes.
 * Read by the probe test and by the fake NVML library, so both tell the same story. */
#ifndef STW_TESTS_LOADER_FIXTURE_H
#define STW_TESTS_LOADER_FIXTURE_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FIXTURE_NVML_MAX 64

typedef struct fixture_nvml {
    char name[96], uuid[48];
    int major, minor;
    unsigned long long memory;
} fixture_nvml;

/* The number of records, or -1 without the file. */
static inline int fixture_nvml_read(const char *path, fixture_nvml *records) {
    FILE *file = fopen(path, "r");
    int count = 0;
    if (!file) return -1;
    while (count < FIXTURE_NVML_MAX &&
           fscanf(file, " %95[^|]|%d.%d|%47[^|]|%llu", records[count].name, &records[count].major,
                  &records[count].minor, records[count].uuid, &records[count].memory) == 5)
        ++count;
    fclose(file);
    return count;
}

#endif
