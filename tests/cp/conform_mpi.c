/* SPDX-License-Identifier: MIT
 *
 * cp-conform with a process a rank, over sternway/cp_mpi.h: the same rows, checks and lines as `sternway cp-conform`.
 *     mpirun -n 4 sternway-cp-conform-mpi [-f TEXT] [-s SEED] [--json]
 * With --cp it is `sternway bench --cp`: PROBLEMs verified and timed, its table.
 *     mpirun -n 4 sternway-cp-conform-mpi --cp [--order NAME] [--schedule NAME] [--seconds S] [--json] [PROBLEM...]
 * --json: one document, by rank 0. */
#include "sternway/cp_mpi.h"
#include "tools/bench/bench.h"
#include "tools/cp/document.h"

#include <getopt.h>
#include <string.h>
#include <unistd.h>

static int usage(void) {
    fputs("usage: mpirun -n N sternway-cp-conform-mpi [-f TEXT] [-s SEED] [-t SECONDS] [--json]\n"
          "       mpirun -n N sternway-cp-conform-mpi --cp [--order NAME] [--schedule NAME] [--seconds S] [--json] "
          "[PROBLEM...]\n",
          stderr);
    return 2;
}

/* Rank 0 has the reference; the others take its data. */
static stw_status build(const cp_row *row, int64_t seed, cp_rank *rank, cp_whole *whole) {
    stw_status status = cp_whole_build(row->problem, seed, rank->rank == 0, rank->context, whole);
    if (!status) MPI_Bcast(whole->c.host, (int)whole->c.bytes, MPI_BYTE, 0, MPI_COMM_WORLD);
    return status;
}

/* 1 where rank 0 or another failed. `rows`: of a document, or NULL. */
static int run_row(const cp_row *row, int64_t seed, cp_rank *rank, cJSON *rows, cp_counts *counts) {
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
    if (rows) cp_document_add(rows, &result, counts);
    else cp_report(&result, counts);
    return any;
}

static int bench_problem(const char *line, stw_cp_order order, stw_cp_schedule schedule, double seconds, cp_rank *rank,
                         bench_report *report) {
    const cp_row row = {line, order, schedule, schedule == STW_CP_2D, 0};
    cp_whole whole;
    cp_times times;
    stw_status status = cp_whole_build_large(line, rank->rank == 0, rank->context, &whole);
    if (status) {
        fprintf(stderr, "rank %d: %s: %s\n", rank->rank, line, stw_status_name(status));
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    MPI_Bcast(whole.c.host, (int)whole.c.bytes, MPI_BYTE, 0, MPI_COMM_WORLD);
    cp_bench(rank, &row, &whole, seconds, &times);
    const int failed = times.result.outcome != STW_VERIFY_OK;
    if (!rank->rank && report->format != BENCH_JSON) cp_bench_report(&times, rank->size);
    else if (failed)
        fprintf(stderr, "rank %d: %s: %s\n", rank->rank, line, times.result.text); /* beside the document */
    else if (!rank->rank) bench_cp_row(report, &row, &whole, &times, rank->size);
    cp_whole_free(&whole);
    return failed;
}

static int name_of(const char *text, const char *const *names, int count) {
    int i = 0;
    while (i < count && strcmp(text, names[i]) != 0) ++i;
    return i;
}

int main(int argc, char **argv) {
    static const char *const orders[] = {"contiguous", "zigzag"};
    static const char *const schedules[] = {"auto", "ring", "all-gather", "ulysses", "2-D"};
    static const struct option long_options[] = {{"cp", no_argument, NULL, 'c'},
                                                 {"order", required_argument, NULL, 'o'},
                                                 {"schedule", required_argument, NULL, 'p'},
                                                 {"seconds", required_argument, NULL, 'e'},
                                                 {"filter", required_argument, NULL, 'f'},
                                                 {"seed", required_argument, NULL, 's'},
                                                 {"timeout", required_argument, NULL, 't'},
                                                 {"ranks", required_argument, NULL, 'n'},
                                                 {"json", no_argument, NULL, 'j'},
                                                 {NULL, 0, NULL, 0}};
    const char *filter = NULL;
    int64_t seed = 0;
    double timeout_s = 60, seconds = 1;
    int bench = 0, order = 1, schedule = 0, json = 0;
    for (int option; (option = getopt_long(argc, argv, "f:s:t:n:", long_options, NULL)) != -1;) {
        if (option == 'f') filter = optarg;
        else if (option == 's') seed = atoll(optarg);
        else if (option == 't') timeout_s = atof(optarg);
        else if (option == 'c') bench = 1;
        else if (option == 'j') json = 1;
        else if (option == 'o') order = name_of(optarg, orders, 2);
        else if (option == 'p') schedule = name_of(optarg, schedules, 5);
        else if (option == 'e') seconds = atof(optarg);
        else if (option != 'n') return usage(); /* mpirun says how many ranks there are */
    }
    if (order > 1 || schedule > 4 || (bench && optind == argc)) return usage();
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
    bench_report report = {.format = json ? BENCH_JSON : BENCH_TABLE};
    cJSON *rows = NULL;
    stw_tool_name_device(rank.context, &report.named);
    if (json && !rank.rank && !bench) rows = cp_document_rows();
    if (json && !rank.rank && bench) bench_report_begin(&report);
    if (!json && !rank.rank && bench) cp_bench_header();
    for (int i = optind; i < argc && bench; ++i)
        failed |= bench_problem(argv[i], (stw_cp_order)(STW_CP_CONTIGUOUS + order), (stw_cp_schedule)schedule, seconds,
                                &rank, &report);
    for (int i = 0; i < cp_row_count && !bench; ++i) {
        char name[200];
        cp_row_name(&cp_rows[i], name, sizeof name);
        if (!filter || strstr(name, filter)) failed |= run_row(&cp_rows[i], seed, &rank, rows, &counts);
    }
    if (rows) failed |= cp_document_end(rows, &counts, mpi.size);
    else if (!rank.rank && !bench) failed |= cp_report_end(&counts, mpi.size, "MPI");
    if (json && !rank.rank && bench) bench_report_end(&report, NULL);
    stw_cp_destroy(rank.cp);
    stw_context_destroy(rank.context);
    stw_cp_mpi_close(&mpi);
    MPI_Finalize();
    return failed;
}
