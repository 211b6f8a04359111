/* SPDX-License-Identifier: MIT
 *
 * The fake libcuda.so.1, captures and graphs: work that a capturing stream is given becomes a node with copies of its
 * parameters. While this thread captures in a mode that is not relaxed, or any thread in the global mode, calls that
 * wait or allocate fail, as the real driver's do. */
#include "cuda.h"

#include "backends/cuda/tensor_map.h"

enum {
    INVALID_VALUE = 1,
    ILLEGAL_STATE = 401,
    UNSUPPORTED = 900,
    ARGUMENT = 1280,
    NODES = 64,
    GLOBAL = 0,
    RELAXED = 2
};

typedef struct node {
    fake_work work; /* the parameters of a kernel lie in `argument` and `maps` */
    _Alignas(64) char argument[ARGUMENT];
    stw_sm90_maps maps;
} node;

struct fake_graph {
    int mode, count;
    node *nodes[NODES];
};

static _Thread_local int captures; /* of this thread that are not relaxed */
static int global_captures;        /* of all threads */

int cuStreamBeginCapture_v2(void *stream, int mode);
int cuStreamEndCapture(void *stream, void **graph_out);
int cuGraphGetNodes(void *graph, void **nodes, size_t *count);
int cuGraphInstantiateWithFlags(void **exec_out, void *graph, unsigned long long flags);
int cuGraphLaunch(void *exec, void *stream);
int cuGraphExecDestroy(void *exec);
int cuGraphDestroy(void *graph);

int fake_unsafe(void) { return captures || __atomic_load_n(&global_captures, __ATOMIC_RELAXED) ? UNSUPPORTED : 0; }

static void count_capture(int mode, int change) {
    if (mode != RELAXED) captures += change;
    if (mode == GLOBAL) __atomic_fetch_add(&global_captures, change, __ATOMIC_RELAXED);
}

int fake_capture(struct fake_graph *graph, const fake_work *work) {
    node *made = graph->count < NODES ? aligned_alloc(64, sizeof *made) : NULL;
    if (!made) abort();
    made->work = *work;
    if (work->function)
        memcpy(made->argument, work->argument, ARGUMENT); /* at most so long: tests/sm80_emu/machine.cpp */
    if (work->maps) memcpy(&made->maps, work->maps, sizeof made->maps);
    graph->nodes[graph->count++] = made;
    return 0;
}

static int replay(const node *n) {
    fake_work work = n->work;
    if (work.function) work.argument = n->argument;
    if (work.maps) work.maps = &n->maps;
    return fake_do(&work);
}

int cuStreamBeginCapture_v2(void *stream, int mode) {
    struct fake_graph **capturing = fake_capturing(stream);
    if ((uintptr_t)stream <= 2) return UNSUPPORTED; /* the default streams */
    if (!capturing || mode < GLOBAL || mode > RELAXED) return INVALID_VALUE;
    if (*capturing) return ILLEGAL_STATE;
    *capturing = calloc(1, sizeof **capturing);
    if (!*capturing) abort();
    (*capturing)->mode = mode;
    count_capture(mode, 1);
    return 0;
}

int cuStreamEndCapture(void *stream, void **graph_out) {
    struct fake_graph **capturing = fake_capturing(stream);
    if (!capturing || !*capturing) return ILLEGAL_STATE;
    count_capture((*capturing)->mode, -1);
    *graph_out = *capturing;
    *capturing = NULL;
    return 0;
}

int cuGraphGetNodes(void *graph, void **nodes, size_t *count) {
    if (nodes) return INVALID_VALUE; /* nobody looks at them */
    *count = (size_t)((struct fake_graph *)graph)->count;
    return 0;
}

/* A copy: either may be destroyed first. */
int cuGraphInstantiateWithFlags(void **exec_out, void *graph, unsigned long long flags) {
    if (flags) return INVALID_VALUE;
    struct fake_graph *copy = calloc(1, sizeof *copy);
    if (!copy) abort();
    const struct fake_graph *from = graph;
    for (int i = 0; i < from->count; ++i) {
        copy->nodes[i] = aligned_alloc(64, sizeof *copy->nodes[i]);
        if (!copy->nodes[i]) abort();
        *copy->nodes[i] = *from->nodes[i];
    }
    copy->count = from->count;
    *exec_out = copy;
    return 0;
}

int cuGraphLaunch(void *exec, void *stream) {
    if (!fake_capturing(stream)) return INVALID_VALUE;
    const struct fake_graph *graph = exec;
    for (int i = 0; i < graph->count; ++i) {
        int error = replay(graph->nodes[i]);
        if (error) return error;
    }
    return 0;
}

int cuGraphDestroy(void *graph) {
    struct fake_graph *g = graph;
    for (int i = 0; i < g->count; ++i) free(g->nodes[i]);
    free(g);
    return 0;
}

int cuGraphExecDestroy(void *exec) { return cuGraphDestroy(exec); }
