/* SPDX-License-Identifier: MIT
 *
 * What a communicator of the fake NCCL is. */
#ifndef STW_TESTS_CP_FAKE_NCCL_H
#define STW_TESTS_CP_FAKE_NCCL_H

#include "sternway/sternway.h"

struct fake_comm {
    stw_cp_transport wire; /* that moves the bytes     */
    int rank, size;
    int async_error;     /* of ncclCommGetAsyncError */
    int calls, fails_at; /* the call that fails      */
    int gathers, reductions;
    void *stream; /* that every call must be in */
};

#endif
