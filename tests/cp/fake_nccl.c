/* SPDX-License-Identifier: MIT
 *
 * A fake libnccl.so.2 and librccl.so.1 on host memory: a communicator is a struct fake_comm of the test, whose
 * transport moves the bytes. As NCCL's, calls outside a group are a group of one, and a group is complete for the host
 * at its end (the real one: for the stream). Numbers of types are repeated from nccl.h on purpose. */
#include "tests/cp/fake_nccl.h"

#include <stdlib.h>
#include <string.h>

#pragma GCC diagnostic ignored "-Wmissing-prototypes" /* they are the vendor's */

enum { SUCCESS = 0, INVALID_ARGUMENT = 4, INT8 = 0, FLOAT32 = 7, FLOAT64 = 8, SUM = 0 };

static _Thread_local int depth;
static _Thread_local struct fake_comm *open_comm; /* of this thread's group */

static int enter(struct fake_comm *comm) {
    comm->calls++;
    if (comm->fails_at && comm->calls == comm->fails_at) return 2; /* ncclSystemError */
    if (open_comm) return open_comm == comm ? SUCCESS : INVALID_ARGUMENT;
    open_comm = comm;
    return comm->wire.group_begin(comm->wire.user);
}

static int leave(void) {
    struct fake_comm *comm = open_comm;
    if (depth || !comm) return SUCCESS;
    open_comm = NULL;
    int error = comm->wire.group_end(comm->wire.user, NULL);
    return error ? error : comm->wire.wait(comm->wire.user, NULL);
}

int ncclGroupStart(void) {
    depth++;
    return SUCCESS;
}
int ncclGroupEnd(void) {
    if (!depth) return INVALID_ARGUMENT;
    depth--;
    return leave();
}
int ncclSend(const void *from, size_t count, int type, int peer, void *handle, void *stream) {
    struct fake_comm *comm = handle;
    int error = type == INT8 && stream == comm->stream ? enter(comm) : INVALID_ARGUMENT;
    if (!error) error = comm->wire.send(comm->wire.user, from, count, peer, NULL);
    return error ? error : leave();
}
int ncclRecv(void *to, size_t count, int type, int peer, void *handle, void *stream) {
    struct fake_comm *comm = handle;
    int error = type == INT8 && stream == comm->stream ? enter(comm) : INVALID_ARGUMENT;
    if (!error) error = comm->wire.recv(comm->wire.user, to, count, peer, NULL);
    return error ? error : leave();
}
int ncclAllGather(const void *from, void *to, size_t count, int type, void *handle, void *stream) {
    struct fake_comm *comm = handle;
    (void)stream;
    int error = type == INT8 ? enter(comm) : INVALID_ARGUMENT;
    comm->gathers++;
    memmove((char *)to + (size_t)comm->rank * count, from, count);
    for (int peer = 0; peer < comm->size && !error; ++peer) {
        if (peer == comm->rank) continue;
        error = comm->wire.send(comm->wire.user, from, count, peer, NULL);
        if (!error) error = comm->wire.recv(comm->wire.user, (char *)to + (size_t)peer * count, count, peer, NULL);
    }
    return error ? error : leave();
}
int ncclReduceScatter(const void *from, void *to, size_t count, int type, int op, void *handle, void *stream) {
    struct fake_comm *comm = handle;
    size_t size = type == FLOAT64 ? 8 : 4, bytes = count * size;
    char *all = calloc((size_t)comm->size, bytes + 1);
    int error =
        op == SUM && (type == FLOAT32 || type == FLOAT64) && stream == comm->stream ? enter(comm) : INVALID_ARGUMENT;
    comm->reductions++;
    for (int peer = 0; peer < comm->size && !error; ++peer) {
        const char *part = (const char *)from + (size_t)peer * bytes;
        if (peer == comm->rank) memcpy(all + (size_t)peer * bytes, part, bytes);
        else {
            error = comm->wire.send(comm->wire.user, part, bytes, peer, NULL);
            if (!error) error = comm->wire.recv(comm->wire.user, all + (size_t)peer * bytes, bytes, peer, NULL);
        }
    }
    if (!error) error = leave();
    for (size_t n = 0; n < count && !error; ++n) {
        double sum = 0;
        for (int peer = 0; peer < comm->size; ++peer)
            sum += type == FLOAT64 ? ((double *)(void *)(all + (size_t)peer * bytes))[n]
                                   : (double)((float *)(void *)(all + (size_t)peer * bytes))[n];
        if (type == FLOAT64) ((double *)to)[n] = sum;
        else ((float *)to)[n] = (float)sum;
    }
    free(all);
    return error;
}
const char *ncclGetErrorString(int error) { return error == 2 ? "unhandled system error" : "another error"; }
int ncclCommGetAsyncError(void *handle, int *error_out) {
    struct fake_comm *comm = handle;
    *error_out = comm->async_error;
    return SUCCESS;
}
