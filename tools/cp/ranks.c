/* SPDX-License-Identifier: MIT
 *
 * Ranks that are threads of this process: cp-conform and bench --cp. On the CPU they share memory by local.c. On GPUs
 * rank r opens device r; their wire is local.c's too, or a communicator of NCCL or RCCL that the command makes itself,
 * since it has no caller. */
#include "cp.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Values and types of nccl.h and rccl.h. */
typedef struct comm_id {
    char bytes[128];
} comm_id;

typedef struct wires {
    cp_local *local;
    void *library;
    comm_id id;
    int (*init)(void **comm, int size, comm_id id, int rank);
    int (*destroy)(void *comm);
    stw_status (*transport)(void *comm, stw_cp_transport *transport_out);
} wires;

typedef struct worker {
    cp_rank rank;
    stw_context_opts opts;
    const wires *wires;
    int over_memory; /* on a GPU */
    void *comm;
    cp_work_fn work;
    void *user;
    char text[256];
    pthread_t thread;
} worker;

static int open_vendor(wires *w, int hip, char text[320]) {
    const char *name = hip ? "librccl.so.1" : "libnccl.so.2";
    int (*unique)(comm_id *id) = NULL;
    w->library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (w->library) {
        *(void **)&unique = dlsym(w->library, "ncclGetUniqueId");
        *(void **)&w->init = dlsym(w->library, "ncclCommInitRank");
        *(void **)&w->destroy = dlsym(w->library, "ncclCommDestroy");
    }
    w->transport = hip ? stw_cp_transport_rccl : stw_cp_transport_nccl;
    if (unique && w->init && w->destroy && !unique(&w->id)) return 1;
    snprintf(text, 320, "%s: %.200s", name,
             w->library ? "ncclGetUniqueId, ncclCommInitRank or ncclCommDestroy is missing or fails" : dlerror());
    return 0;
}

/* The first of these libraries that loads, or NULL. */
static void *load(const char *const *names) {
    void *library = NULL;
    for (; *names && !library; ++names) library = dlopen(*names, RTLD_NOW | RTLD_LOCAL);
    return library;
}

/* A communicator is of the device that is current in its thread, and the library leaves none so. Numbers are the
 * driver's, as those of a context. */
static int make_current(stw_backend backend, int32_t device) {
    static const char *const cuda[] = {"libcuda.so.1", NULL};
    static const char *const hip[] = {"libamdhip64.so.8", "libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5",
                                      NULL};
    int (*get)(int *device, int ordinal) = NULL, (*retain)(void **context, int device) = NULL;
    int (*set_context)(void *context) = NULL, (*set_device)(int device) = NULL, handle = 0;
    void *context = NULL, *library = load(backend == STW_BACKEND_HIP ? hip : cuda);
    if (!library) return 0;
    *(void **)&set_device = dlsym(library, "hipSetDevice");
    *(void **)&get = dlsym(library, "cuDeviceGet");
    *(void **)&retain = dlsym(library, "cuDevicePrimaryCtxRetain");
    *(void **)&set_context = dlsym(library, "cuCtxSetCurrent");
    if (set_device) return !set_device(device);
    return get && retain && set_context && !get(&handle, device) && !retain(&context, handle) && !set_context(context);
}

static stw_status open_wire(worker *w) {
    if (w->over_memory) {
        w->rank.wire = cp_local_device_transport(w->wires->local, w->rank.rank, w->rank.context);
        return stw_stream_create(w->rank.context, &w->rank.stream);
    }
    if (!w->wires->library) return STW_OK;
    w->rank.wire = STW_INIT(stw_cp_transport);
    if (!make_current(w->opts.backend, w->rank.rank) ||
        w->wires->init(&w->comm, w->rank.size, w->wires->id, w->rank.rank)) {
        snprintf(w->text, sizeof w->text, "rank %d: no communicator of %d ranks on device %d", w->rank.rank,
                 w->rank.size, w->rank.rank);
        return STW_E_DRIVER;
    }
    stw_status status = stw_stream_create(w->rank.context, &w->rank.stream);
    return status ? status : w->wires->transport(w->comm, &w->rank.wire);
}

static void *work(void *user) {
    worker *w = user;
    stw_status status = stw_context_create(&w->opts, &w->rank.context);
    if (!status) status = open_wire(w);
    if (!status) status = stw_cp_create(&w->rank.wire, w->rank.rank, w->rank.size, &w->rank.cp);
    if (!status) w->work(&w->rank, w->user);
    else if (!w->text[0]) snprintf(w->text, sizeof w->text, "rank %d: %.220s", w->rank.rank, stw_last_error());
    stw_cp_destroy(w->rank.cp);
    if (w->comm) w->wires->destroy(w->comm);
    if (w->rank.stream) stw_stream_destroy(w->rank.context, w->rank.stream);
    stw_context_destroy(w->rank.context);
    return NULL;
}

int cp_run_ranks(int32_t size, const stw_context_opts *opts, int32_t devices, double timeout_s, cp_work_fn work_fn,
                 void *user, char text[320]) {
    int on_gpu = opts->backend == STW_BACKEND_CUDA || opts->backend == STW_BACKEND_HIP;
    wires all = {.local = cp_local_create(size, timeout_s)};
    worker *workers = calloc((size_t)size, sizeof *workers);
    int32_t started = 0;
    snprintf(text, 320, "%s", all.local && workers ? "" : "no memory");
    if (on_gpu && !devices && !text[0]) (void)open_vendor(&all, opts->backend == STW_BACKEND_HIP, text);
    for (int32_t r = 0; r < size && !text[0]; ++r) {
        worker *w = &workers[r];
        *w = (worker){.opts = *opts, .wires = &all, .work = work_fn, .user = user};
        w->rank = (cp_rank){.wire = cp_local_transport(all.local, r), .rank = r, .size = size};
        w->rank.on_device = on_gpu;
        w->over_memory = on_gpu && devices;
        if (on_gpu) {
            w->opts.flags |= STW_CONTEXT_HAS_DEVICE;
            w->opts.device = devices ? r % devices : r;
        }
        if (pthread_create(&w->thread, NULL, work, w)) {
            snprintf(text, 320, "no thread for rank %d", r); /* the others' time runs out */
            break;
        }
        started++;
    }
    for (int32_t r = 0; r < started; ++r) pthread_join(workers[r].thread, NULL);
    for (int32_t r = 0; r < started && !text[0]; ++r) snprintf(text, 320, "%s", workers[r].text);
    free(workers);
    cp_local_destroy(all.local); /* the library of a vendor stays: it does not like to be unloaded */
    return !text[0];
}
