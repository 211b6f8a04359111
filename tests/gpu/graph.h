/* SPDX-License-Identifier: MIT
 *
 * Capturing a case's call as a CUDA graph, and launching it. For the tests of this folder. */
#ifndef STW_TESTS_GPU_GRAPH_H
#define STW_TESTS_GPU_GRAPH_H

#include "gpu.h"

typedef struct gpu_graph {
    void *graph, *exec, *stream; /* stream: its own, where it was captured */
    size_t nodes;
} gpu_graph;

/* Captures one call of the case; status_out is that of the call. exec is there when it was STW_OK. */
gpu_graph gpu_capture(const gpu_case *g, int mode, stw_status *status_out);
void gpu_graph_close(gpu_graph *graph);

/* Loads `data` with `poison` in the workspace, launches the graph, downloads and judges. */
void gpu_replay(gpu_case *g, const gpu_graph *graph, const stw_verify_case *data, int poison, const char *what);

#endif
