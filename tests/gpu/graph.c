/* SPDX-License-Identifier: MIT
 *
 * Capture and replay; see graph.h. */
#include "graph.h"

gpu_graph gpu_capture(const gpu_case *g, int mode, stw_status *status_out) {
    gpu_graph made = {0};
    GPU_TRY(cuStreamCreate, &made.stream, GPU_STREAM_NON_BLOCKING);
    GPU_TRY(cuStreamBeginCapture_v2, made.stream, mode);
    *status_out = gpu_case_run(g, made.stream);
    GPU_TRY(cuStreamEndCapture, made.stream, &made.graph);
    GPU_TRY(cuGraphGetNodes, made.graph, NULL, &made.nodes);
    if (!*status_out) GPU_TRY(cuGraphInstantiateWithFlags, &made.exec, made.graph, 0);
    return made;
}

void gpu_graph_close(gpu_graph *graph) {
    if (graph->exec) GPU_TRY(cuGraphExecDestroy, graph->exec);
    GPU_TRY(cuGraphDestroy, graph->graph);
    GPU_TRY(cuStreamDestroy_v2, graph->stream);
}

void gpu_replay(gpu_case *g, const gpu_graph *graph, const stw_verify_case *data, int poison, const char *what) {
    gpu_case_load(g, data, poison);
    GPU_TRY(cuGraphLaunch, graph->exec, graph->stream);
    gpu_case_store(g, graph->stream);
    gpu_case_judge(g, data, what);
}
