/* SPDX-License-Identifier: MIT
 *
 * What is cuBLASLt's own of the fake library (fake_lt.c): names, numbers, layouts. Its work is done at once.
 */
#ifndef FAKE_LT_VENDOR_H
#define FAKE_LT_VENDOR_H

#include <stddef.h>
#include <stdint.h>

#define LT(name) cublasLt##name

enum { SUCCESS = 0, ALLOC_FAILED = 3, INVALID_VALUE = 7, INTERNAL_ERROR = 14, NOT_SUPPORTED = 15 };
enum { COMPUTE_32F = 68, TRANSB = 4, NO_TRANSPOSE = 0, TRANSPOSE = 1 };
enum { WORKSPACE_MOST = 32 << 20, WORKSPACE = 512 };

typedef struct lt_algorithm {
    uint64_t data[8];
} lt_algorithm;

typedef struct lt_result {
    lt_algorithm algorithm;
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
} lt_result;

/* Reduction in order, four alignments of 16 bytes. */
static inline int lt_preference_fits(int attribute, uint64_t value, size_t size) {
    if (attribute == 1) return size == 8;
    if (attribute == 3) return size == 4 && value == 2;
    return attribute >= 5 && attribute <= 8 && size == 4 && value == 16;
}

static inline int lt_start(void) { return SUCCESS; }
static inline int lt_load(void) { return SUCCESS; }
static inline int lt_do(void *stream, void (*work)(void *), void *data) {
    (void)stream;
    work(data);
    return SUCCESS;
}
enum { ONE_STREAM = 0 };

#endif
