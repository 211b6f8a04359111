/* SPDX-License-Identifier: MIT */
/** @file
 * Sternway: a transport of attn_cp.h over MPI, for CPU clusters. It is compiled by the user against the MPI at hand,
 * whose binary interface no library of ours could know: include it in one file of a program that is built with mpicc.
 * C11.
 *
 *     stw_cp_mpi mpi;
 *     stw_cp *cp;
 *     stw_cp_mpi_open(MPI_COMM_WORLD, 60.0, &mpi);
 *     stw_cp_create(&mpi.transport, mpi.rank, mpi.size, &cp);
 *
 * Messages are posted by MPI_Isend and MPI_Irecv and completed by MPI_Testall, and a rank that waits longer than
 * its timeout fails. Large messages are cut into pieces of 1 GiB. */
#ifndef STERNWAY_CP_MPI_H
#define STERNWAY_CP_MPI_H

#include "attn_cp.h"

#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

/* Columns of comments are kept by hand: */
/* clang-format off */

#if defined(__GNUC__)
#define STW_CP_MPI_FN static inline __attribute__((unused)) /**< of functions that a file may leave unused */
#else
#define STW_CP_MPI_FN static inline
#endif

/** Errors of this transport beside MPI's own, which are positive. */
enum {
    STW_CP_MPI_TIMEOUT = -1, /**< the others did not come within the timeout */
    STW_CP_MPI_MEMORY = -2   /**< no memory for a request                    */
};

/** One communicator. The struct may not move between stw_cp_mpi_open() and stw_cp_mpi_close(). */
typedef struct stw_cp_mpi {
    stw_cp_transport transport; /**< for stw_cp_create()                                                    */
    int rank;                   /**< of this process                                                        */
    int size;                   /**< ranks                                                                  */
    MPI_Comm comm;              /**< a duplicate of the caller's: messages never meet, errors return        */
    double timeout_s;           /**< seconds                                                                */
    MPI_Request *requests;      /**< that are not complete                                                  */
    int count;                  /**< of them                                                                */
    int room;                   /**< that the array has                                                     */
    char text[MPI_MAX_ERROR_STRING]; /**< of the last error                                                 */
} stw_cp_mpi;

/* A further request, MPI_REQUEST_NULL; NULL without memory. */
static inline MPI_Request *stw_cp_mpi_request(stw_cp_mpi *mpi) {
    if (mpi->count == mpi->room) {
        int room = mpi->room ? 2 * mpi->room : 32;
        MPI_Request *larger = (MPI_Request *)realloc(mpi->requests, (size_t)room * sizeof *larger);
        if (!larger) return NULL;
        mpi->requests = larger;
        mpi->room = room;
    }
    mpi->requests[mpi->count] = MPI_REQUEST_NULL;
    return &mpi->requests[mpi->count++];
}

static inline int stw_cp_mpi_post(stw_cp_mpi *mpi, void *data, size_t bytes, int peer, int sends) {
    const size_t most = (size_t)1 << 30;
    for (size_t at = 0; at < bytes; at += most) {
        int size = (int)(bytes - at < most ? bytes - at : most);
        MPI_Request *request = stw_cp_mpi_request(mpi);
        if (!request) return STW_CP_MPI_MEMORY;
        int error = sends ? MPI_Isend((char *)data + at, size, MPI_BYTE, peer, 0, mpi->comm, request)
                          : MPI_Irecv((char *)data + at, size, MPI_BYTE, peer, 0, mpi->comm, request);
        if (error != MPI_SUCCESS) return error;
    }
    return 0;
}

static inline int stw_cp_mpi_begin(void *user) {
    (void)user;
    return 0;
}

static inline int stw_cp_mpi_end(void *user, stw_stream stream) {
    stw_cp_mpi *mpi = (stw_cp_mpi *)user;
    int done; /* lets MPI start what it was given */
    (void)stream;
    return mpi->count ? MPI_Testall(mpi->count, mpi->requests, &done, MPI_STATUSES_IGNORE) : 0;
}

static inline int stw_cp_mpi_send(void *user, const void *from, size_t bytes, int32_t peer, stw_stream stream) {
    (void)stream;
    return stw_cp_mpi_post((stw_cp_mpi *)user, (void *)(uintptr_t)from, bytes, peer, 1);
}

static inline int stw_cp_mpi_recv(void *user, void *to, size_t bytes, int32_t peer, stw_stream stream) {
    (void)stream;
    return stw_cp_mpi_post((stw_cp_mpi *)user, to, bytes, peer, 0);
}

/* Until all is complete or the time is up. What is not is cancelled, as far as the MPI can: sends, and receives that
 * have met theirs, may stay under way, so after a timeout tensors and workspace live until the communicator is gone. */
static inline int stw_cp_mpi_wait(void *user, stw_stream stream) {
    stw_cp_mpi *mpi = (stw_cp_mpi *)user;
    double until = MPI_Wtime() + mpi->timeout_s;
    int error = 0, done = mpi->count == 0;
    (void)stream;
    while (!done && !error) {
        error = MPI_Testall(mpi->count, mpi->requests, &done, MPI_STATUSES_IGNORE);
        if (!done && !error && MPI_Wtime() > until) error = STW_CP_MPI_TIMEOUT;
        if (!done) sched_yield(); /* there may be more ranks than cores */
    }
    for (int i = 0; error && i < mpi->count; ++i)
        if (mpi->requests[i] != MPI_REQUEST_NULL) {
            MPI_Cancel(&mpi->requests[i]);
            MPI_Request_free(&mpi->requests[i]);
        }
    mpi->count = 0;
    return error;
}

static inline const char *stw_cp_mpi_error_text(void *user, int error) {
    stw_cp_mpi *mpi = (stw_cp_mpi *)user;
    int length = 0;
    if (error == STW_CP_MPI_TIMEOUT) {
        snprintf(mpi->text, sizeof mpi->text, "the others did not come within %g s", mpi->timeout_s);
        return mpi->text;
    }
    if (error == STW_CP_MPI_MEMORY) return "no memory for a request";
    if (MPI_Error_string(error, mpi->text, &length) != MPI_SUCCESS) return "an error without a text";
    return mpi->text;
}

/** Makes a transport of a communicator. Collective: it duplicates `comm`.
 * @param comm       the caller's; its own error handler stays as it is
 * @param timeout_s  seconds after which a rank gives up waiting for another
 * @param mpi_out    filled, for stw_cp_mpi_close()
 * @return MPI_SUCCESS or MPI's error. */
STW_CP_MPI_FN int stw_cp_mpi_open(MPI_Comm comm, double timeout_s, stw_cp_mpi *mpi_out) {
    stw_cp_transport transport = STW_INIT(stw_cp_transport);
    int error = MPI_Comm_dup(comm, &mpi_out->comm);
    if (error == MPI_SUCCESS) error = MPI_Comm_set_errhandler(mpi_out->comm, MPI_ERRORS_RETURN);
    if (error == MPI_SUCCESS) error = MPI_Comm_rank(mpi_out->comm, &mpi_out->rank);
    if (error == MPI_SUCCESS) error = MPI_Comm_size(mpi_out->comm, &mpi_out->size);
    if (error != MPI_SUCCESS) return error;
    transport.name = "MPI";
    transport.user = mpi_out;
    transport.group_begin = stw_cp_mpi_begin;
    transport.send = stw_cp_mpi_send;
    transport.recv = stw_cp_mpi_recv;
    transport.group_end = stw_cp_mpi_end;
    transport.wait = stw_cp_mpi_wait;
    transport.error_text = stw_cp_mpi_error_text;
    mpi_out->transport = transport;
    mpi_out->timeout_s = timeout_s;
    mpi_out->requests = NULL;
    mpi_out->count = mpi_out->room = 0;
    return MPI_SUCCESS;
}

/** Gives it back, after stw_cp_destroy() and before MPI_Finalize(). Collective.
 * @param mpi  of stw_cp_mpi_open() */
STW_CP_MPI_FN void stw_cp_mpi_close(stw_cp_mpi *mpi) {
    free(mpi->requests);
    MPI_Comm_free(&mpi->comm);
}

#endif
