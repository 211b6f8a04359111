/* SPDX-License-Identifier: MIT
 *
 * What is hipBLASLt's own of the fake library (fake_lt.c): names, numbers, layouts, and the manners of the
 * real one that its callers must know. Linked with the emulator's runtime, as the real one is with ROCm's. */
#ifndef FAKE_LT_VENDOR_H
#define FAKE_LT_VENDOR_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#define LT(name) hipblasLt##name
#define LT_VERSIONED

enum { SUCCESS = 0, ALLOC_FAILED = 2, INVALID_VALUE = 3, INTERNAL_ERROR = 6, NOT_SUPPORTED = 7 };
enum { COMPUTE_32F = 2, TRANSB = 1, NO_TRANSPOSE = 111, TRANSPOSE = 112 };
enum { WORKSPACE_MOST = 0, WORKSPACE = 0 };

typedef struct lt_algorithm {
    uint8_t data[16];
    size_t workspace_most;
} lt_algorithm;

typedef struct lt_result {
    lt_algorithm algorithm;
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
} lt_result;

static inline int lt_preference_fits(int attribute, uint64_t value, size_t size) {
    (void)value;
    return attribute == 1 && size == 8;
}

int hipMalloc(void **pointer_out, size_t bytes);
int hipFree(void *pointer);
int hipStreamSynchronize(void *stream);
int hipLaunchHostFunc(void *stream, void (*work)(void *), void *data);

/* A handle has flags in device memory; without them the process ends. */
static inline int lt_start(void) {
    void *flags = NULL;
    if (hipMalloc(&flags, 34 << 20) || hipStreamSynchronize(NULL) || hipFree(flags)) exit(EXIT_FAILURE);
    return SUCCESS;
}
/* The first product of a kind loads code. */
static inline int lt_load(void) {
    void *code = NULL;
    return hipMalloc(&code, 4096) || hipFree(code) ? INTERNAL_ERROR : SUCCESS;
}
static inline int lt_do(void *stream, void (*work)(void *), void *data) {
    return hipLaunchHostFunc(stream, work, data) ? INTERNAL_ERROR : SUCCESS;
}
enum { ONE_STREAM = 1 };

#endif
