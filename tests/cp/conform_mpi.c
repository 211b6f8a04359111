/* SPDX-License-Identifier: MIT
 *
 * cp-conform with a process a rank, over sternway/cp_mpi.h: the same rows, checks and lines as `sternway cp-conform`.
 *     mpirun -n 4 sternway-cp-conform-mpi [-f TEXT] [-s SEED] */
#include "sternway/cp_mpi.h"
#include "tools/cp/cp.h"

#include <string.h>
#include <unistd.h>

static int usage(void) {
    fputs("usage: mpirun -n N sternway-cp-conform-mpi [-f TEXT] [-s SEED] [-t SECONDS]\n", stderr);
    return 2;
}

/* Rank 0 has the reference; the others take its data. */
static stw_status build(const cp_row *row, int64_t seed, cp_rank *rank, cp_whole *whole) {
    stw_status status = cp_whole_build(row->problem, seed, rank->rank == 0, rank->context, whole);
    if (!status) MPI_Bcast(whole->c.host, (int)whole->c.bytes, MPI_BYTE, 0, MPI_COMM_WORLD);
    return status;
}

/* 1 where rank 0 or another failed. */
static int run_row(const cp_row *row, int64_t seed, cp_rank *rank, cp_counts *counts) {
    cp_whole whole;
    cp_result result;
    stw_status status = build(row, seed, rank, &whole);
    if (status) {
        fprintf(stderr, "rank %d: %s: %s\n", rank->rank, row->problem, stw_status_name(status));
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    cp_check(rank, row, &whole, &result);
    cp_whole_free(&whole);
    int failed = result.outcome == STW_VERIFY_FAIL, any = 0;
    MPI_Allreduce(&failed, &any, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    if (failed && rank->rank) fprintf(stderr, "rank %d: %s\n", rank->rank, result.text);
    if (rank->rank) return any;
    if (any && !failed) {
        result.outcome = STW_VERIFY_FAIL;
        snprintf(result.text, sizeof result.text, "another rank failed");
    }
    cp_report(&result, counts);
    return any;
}

int main(int argc, char **argv) {
    const char *filter = NULL;
    int64_t seed = 0;
    double timeout_s = 60;
    for (int option; (option = getopt(argc, argv, "f:s:t:n:")) != -1;) {
        if (option == 'f') filter = optarg;
        else if (option == 's') seed = atoll(optarg);
        else if (option == 't') timeout_s = atof(optarg);
        else if (option != 'n') return usage(); /* mpirun says how many ranks there are */
    }
    MPI_Init(NULL, NULL);
    stw_cp_mpi mpi;
    cp_rank rank = {0};
    cp_counts counts = {0, 0, 0};
    stw_context_opts opts = STW_INIT(stw_context_opts);
    opts.backend = STW_BACKEND_CPU;
    opts.memory = STW_MEMORY_HOST;
    opts.cpu_threads = 1;
    if (stw_cp_mpi_open(MPI_COMM_WORLD, timeout_s, &mpi) != MPI_SUCCESS || stw_context_create(&opts, &rank.context) ||
        stw_cp_create(&mpi.transport, mpi.rank, mpi.size, &rank.cp)) {
        fprintf(stderr, "rank %d: %s\n", mpi.rank, stw_last_error());
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    rank.wire = mpi.transport;
    rank.rank = mpi.rank;
    rank.size = mpi.size;
    int failed = 0;
    for (int i = 0; i < cp_row_count; ++i) {
        char name[200];
        cp_row_name(&cp_rows[i], name, sizeof name);
        if (!filter || strstr(name, filter)) failed |= run_row(&cp_rows[i], seed, &rank, &counts);
    }
    if (!rank.rank) failed |= cp_report_end(&counts, mpi.size, "MPI");
    stw_cp_destroy(rank.cp);
    stw_context_destroy(rank.context);
    stw_cp_mpi_close(&mpi);
    MPI_Finalize();
    return failed;
}
