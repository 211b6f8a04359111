/* SPDX-License-Identifier: MIT
 *
 * Communicators of NCCL or RCCL for the ranks of this process, rank r on device r. The library makes none: here the
 * command is the program that has them. */
#include "cp.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

struct cp_nccl {
    int (*destroy)(void *comm);
    stw_backend backend;
    int32_t size;
    void *comm[];
};

cp_nccl *cp_nccl_create(stw_backend backend, int32_t size, char *text, size_t capacity) {
    const char *soname = backend == STW_BACKEND_HIP ? "librccl.so.1" : "libnccl.so.2";
    cp_nccl *n = calloc(1, sizeof *n + (size_t)size * sizeof n->comm[0]);
    int *devices = calloc((size_t)size, sizeof *devices);
    void *library = dlopen(soname, RTLD_NOW | RTLD_GLOBAL);
    int (*init_all)(void **comms, int count, const int *devices) = NULL;
    const char *(*words)(int error) = NULL;
    int error = 0;
    if (library) {
        *(void **)&init_all = dlsym(library, "ncclCommInitAll");
        *(void **)&words = dlsym(library, "ncclGetErrorString");
        if (n) *(void **)&n->destroy = dlsym(library, "ncclCommDestroy");
    }
    if (!n || !devices) snprintf(text, capacity, "no memory");
    else if (!library) snprintf(text, capacity, "%s", dlerror());
    else if (!init_all || !words || !n->destroy) snprintf(text, capacity, "%s lacks ncclCommInitAll", soname);
    else {
        for (int32_t r = 0; r < size; ++r) devices[r] = r;
        error = init_all(n->comm, size, devices);
        if (error) snprintf(text, capacity, "ncclCommInitAll: %s", words(error));
        else {
            n->backend = backend;
            n->size = size;
            free(devices);
            return n;
        }
    }
    free(devices);
    free(n);
    return NULL;
}

void cp_nccl_destroy(cp_nccl *n) {
    for (int32_t r = 0; n && r < n->size; ++r) n->destroy(n->comm[r]);
    free(n);
}

stw_status cp_nccl_transport(const cp_nccl *n, int32_t rank, stw_cp_transport *transport_out) {
    if (n->backend == STW_BACKEND_HIP) return stw_cp_transport_rccl(n->comm[rank], transport_out);
    return stw_cp_transport_nccl(n->comm[rank], transport_out);
}
