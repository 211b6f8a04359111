/* SPDX-License-Identifier: MIT
 *
 * What the parts of the fake libcuda.so.1 share. */
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

/* Work of a stream: a kernel, else bytes that are copied from `from` or, where that is NULL, become `value`. */
typedef struct fake_work {
    const char *function;
    unsigned grid_x, grid_y, block, smem;
    const void *argument, *maps; /* a kernel's first parameter, and its second or NULL */
    char *to;
    const char *from;
    size_t bytes;
    unsigned char value;
    int logged; /* with its maps */
} fake_work;
int fake_do(const fake_work *work);

/* Captures (cuda_graphs.c) */
struct fake_graph;
struct fake_graph **fake_capturing(void *stream); /* the graph that a stream captures; NULL: another context's stream */
int fake_capture(struct fake_graph *graph, const fake_work *work); /* adds a node; returns 0 */
int fake_unsafe(void);                                             /* the error of calls that a capture forbids, or 0 */

/* The second argument of a kernel of Hopper's own main loop (cuda_maps.c). */
int fake_maps_are_good(const void *maps); /* all four were encoded here, where they lie now or were copied from */
void fake_maps_log(const void *maps);

#endif
