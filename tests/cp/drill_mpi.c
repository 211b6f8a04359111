/* SPDX-License-Identifier: MIT
 *
 * A rank that stays away, over sternway/cp_mpi.h: the others get STW_E_DRIVER with words within their timeout, and none
 * STW_OK. Prints a line a rank; the last rank is the one that does not come. */
#include "sternway/cp_mpi.h"

#include <string.h>
#include <unistd.h>

enum { ROWS = 16, HEADS = 2, DIM = 16 };

static stw_status run(const stw_cp_mpi *mpi, stw_cp *cp, stw_context *context, double *seconds_out) {
    static float tensors[8][ROWS * HEADS * DIM], lse[ROWS * HEADS];
    stw_attn_desc attn = STW_INIT(stw_attn_desc);
    stw_cp_desc desc = STW_INIT(stw_cp_desc);
    stw_cp_plan *plan = NULL;
    attn.dtype = STW_F32;
    attn.batch = 1;
    attn.heads_q = attn.heads_kv = HEADS;
    attn.head_dim_qk = attn.head_dim_v = DIM;
    attn.max_seq_q = attn.max_seq_kv = ROWS;
    stw_layout_bshd(&attn);
    desc.attn = &attn;
    desc.seq_q = desc.seq_kv = ROWS * mpi->size;
    desc.order = STW_CP_ZIGZAG;
    desc.schedule = STW_CP_RING;
    stw_status status = stw_cp_attn_bwd_plan(cp, context, &desc, &plan);
    if (status) return status;
    size_t size = stw_cp_plan_workspace_size(plan);
    void *workspace = malloc(size);
    stw_attn_args args = STW_INIT(stw_attn_args);
    args.q = tensors[0];
    args.k = tensors[1];
    args.v = tensors[2];
    args.out = tensors[3];
    args.dout = tensors[4];
    args.dq = tensors[5];
    args.dk = tensors[6];
    args.dv = tensors[7];
    args.lse = lse;
    double begun = MPI_Wtime();
    status = mpi->rank == mpi->size - 1 ? STW_E_DRIVER : stw_cp_attn_bwd(plan, &args, workspace, size, NULL);
    *seconds_out = MPI_Wtime() - begun;
    free(workspace);
    stw_cp_plan_destroy(plan);
    return status;
}

int main(void) {
    stw_cp_mpi mpi;
    stw_cp *cp = NULL;
    stw_context *context = NULL;
    stw_context_opts opts = STW_INIT(stw_context_opts);
    double seconds = 0;
    MPI_Init(NULL, NULL);
    opts.backend = STW_BACKEND_CPU;
    opts.memory = STW_MEMORY_HOST;
    opts.cpu_threads = 1;
    if (stw_cp_mpi_open(MPI_COMM_WORLD, 1.5, &mpi) != MPI_SUCCESS || stw_context_create(&opts, &context) ||
        stw_cp_create(&mpi.transport, mpi.rank, mpi.size, &cp))
        MPI_Abort(MPI_COMM_WORLD, 2);
    stw_status status = run(&mpi, cp, context, &seconds);
    int away = mpi.rank == mpi.size - 1;
    int good = status == STW_E_DRIVER &&
               (away || (strstr(stw_last_error(), "MPI: the others did not come within 1.5 s") && seconds < 30));
    printf("rank %d: %s\n", mpi.rank, away ? "stays away" : stw_last_error());
    fflush(stdout);
    if (away) sleep(6); /* the others' time is up by then */
    stw_cp_destroy(cp);
    stw_context_destroy(context);
    _exit(!good); /* messages are on their way that nobody takes: MPI_Finalize might wait for them */
}
