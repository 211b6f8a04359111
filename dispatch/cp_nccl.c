/* SPDX-License-Identifier: MIT
 *
 * Transports over a communicator of the caller's: NCCL and RCCL, which have the same functions. The library is opened
 * once a process and stays: the caller's communicator is of the copy that is loaded already. */
#include "cp.h"

#include "common/dso.h"
#include "common/extend.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* Values of nccl.h and rccl.h, which are alike. */
enum { NCCL_SUCCESS = 0, NCCL_IN_PROGRESS = 7, NCCL_INT8 = 0, NCCL_FLOAT32 = 7, NCCL_FLOAT64 = 8, NCCL_SUM = 0 };

typedef struct functions {
    int (*group_start)(void);
    int (*group_end)(void);
    int (*send)(const void *from, size_t count, int type, int peer, void *comm, void *stream);
    int (*recv)(void *to, size_t count, int type, int peer, void *comm, void *stream);
    int (*all_gather)(const void *from, void *to, size_t count, int type, void *comm, void *stream);
    int (*reduce_scatter)(const void *from, void *to, size_t count, int type, int op, void *comm, void *stream);
    const char *(*error_text)(int error);
    int (*async_error)(void *comm, int *error_out);
} functions;

#define ROW(name, slot) {name, 1, offsetof(functions, slot)}
static const stw_dso_row rows[] = {
    ROW("ncclGroupStart", group_start),
    ROW("ncclGroupEnd", group_end),
    ROW("ncclSend", send),
    ROW("ncclRecv", recv),
    ROW("ncclAllGather", all_gather),
    ROW("ncclReduceScatter", reduce_scatter),
    ROW("ncclGetErrorString", error_text),
    ROW("ncclCommGetAsyncError", async_error),
};

/* What `user` of a transport points to: one a communicator, kept for the process. */
typedef struct link {
    const functions *call;
    void *comm;
    struct link *next;
} link;

typedef struct vendor {
    const char *call, *soname, *name;
    functions functions;
    stw_dso dso;
    link *links;
} vendor;

static vendor vendors[] = {{.call = "cp_transport_nccl", .soname = "libnccl.so.2", .name = "NCCL"},
                           {.call = "cp_transport_rccl", .soname = "librccl.so.1", .name = "RCCL"}};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int group_begin(void *user) {
    const link *l = user;
    int error = NCCL_SUCCESS, failed = l->call->async_error(l->comm, &error);
    if (failed || (error && error != NCCL_IN_PROGRESS)) return failed ? failed : error;
    return l->call->group_start();
}
static int group_end(void *user, stw_stream stream) {
    (void)stream;
    return ((const link *)user)->call->group_end();
}
static int send_bytes(void *user, const void *from, size_t bytes, int32_t peer, stw_stream stream) {
    const link *l = user;
    return l->call->send(from, bytes, NCCL_INT8, peer, l->comm, stream);
}
static int recv_bytes(void *user, void *to, size_t bytes, int32_t peer, stw_stream stream) {
    const link *l = user;
    return l->call->recv(to, bytes, NCCL_INT8, peer, l->comm, stream);
}
static int all_gather(void *user, const void *from, void *to, size_t bytes, stw_stream stream) {
    const link *l = user;
    return l->call->all_gather(from, to, bytes, NCCL_INT8, l->comm, stream);
}
static int reduce_scatter(void *user, const void *from, void *to, size_t count, stw_dtype dtype, stw_stream stream) {
    const link *l = user;
    int type = dtype == STW_F64 ? NCCL_FLOAT64 : NCCL_FLOAT32;
    return l->call->reduce_scatter(from, to, count, type, NCCL_SUM, l->comm, stream);
}
static const char *error_text(void *user, int error) { return ((const link *)user)->call->error_text(error); }

/* Under the lock. */
static stw_status open_vendor(vendor *v) {
    char reason_words[300], missing_words[300], absent_words[8];
    stw_text reason = stw_text_in(reason_words, sizeof reason_words);
    stw_text missing = stw_text_in(missing_words, sizeof missing_words),
             absent = stw_text_in(absent_words, sizeof absent_words);
    functions found;
    if (v->dso.handle) return STW_OK;
    if (!stw_dso_open(&v->dso, &v->soname, 1, &reason))
        return stw_fail(STW_E_NO_DRIVER, "%s: %s cannot be loaded: %s", v->call, v->soname, reason_words);
    if (!stw_dso_bind(&v->dso, rows, sizeof rows / sizeof rows[0], &found, &missing, &absent)) {
        stw_dso_close(&v->dso);
        return stw_fail(STW_E_NO_DRIVER, "%s: %s lacks %s", v->call, v->soname, missing_words);
    }
    v->functions = found;
    return STW_OK;
}

static stw_status link_of(vendor *v, void *comm, link **link_out) {
    for (*link_out = v->links; *link_out; *link_out = (*link_out)->next)
        if ((*link_out)->comm == comm) return STW_OK;
    link *made = calloc(1, sizeof *made);
    if (!made) return stw_fail(STW_E_NO_MEMORY, "%s: no memory", v->call);
    *made = (link){&v->functions, comm, v->links};
    *link_out = v->links = made;
    return STW_OK;
}

static stw_status transport(vendor *v, void *comm, stw_cp_transport *transport_out) {
    if (!comm) return stw_fail(STW_E_INVALID, "%s: comm is null", v->call);
    if (!transport_out) return stw_fail(STW_E_INVALID, "%s: transport_out is null", v->call);
    if (transport_out->struct_size < STW_SIZE_CP_TRANSPORT_0_1)
        return stw_fail(STW_E_INVALID, "%s: transport_out.struct_size %zu is too small: set it with STW_INIT", v->call,
                        transport_out->struct_size);
    link *l = NULL;
    pthread_mutex_lock(&lock);
    stw_status status = open_vendor(v);
    if (!status) status = link_of(v, comm, &l);
    pthread_mutex_unlock(&lock);
    if (status) return status;
    const stw_cp_transport made = {.struct_size = transport_out->struct_size,
                                   .name = v->name,
                                   .user = l,
                                   .group_begin = group_begin,
                                   .send = send_bytes,
                                   .recv = recv_bytes,
                                   .group_end = group_end,
                                   .all_gather = all_gather,
                                   .reduce_scatter = reduce_scatter,
                                   .error_text = error_text};
    size_t size = made.struct_size < sizeof made ? made.struct_size : sizeof made;
    memcpy(transport_out, &made, size);
    return STW_OK;
}

stw_status stw_cp_transport_nccl(void *comm, stw_cp_transport *transport_out) {
    return transport(&vendors[0], comm, transport_out);
}

stw_status stw_cp_transport_rccl(void *comm, stw_cp_transport *transport_out) {
    return transport(&vendors[1], comm, transport_out);
}
