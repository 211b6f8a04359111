/* SPDX-License-Identifier: MIT
 *
 * `sternway cp-conform`: attention over ranks against the float64 reference of the whole problem. A row is a PROBLEM,
 * an order and a schedule. Each rank cuts its shard out of the whole problem's arena (tools/verify), runs the public
 * API and sends its results to rank 0, which puts them together and judges them as those of one device. Ranks are
 * threads over local.c here, and processes over sternway/cp_mpi.h in tests/cp. */
#ifndef STW_TOOLS_CP_H
#define STW_TOOLS_CP_H

#include "tools/verify/verify.h"

/* This rank and its wire. On a GPU the problem's tensors lie on the device. */
typedef struct cp_rank {
    stw_cp_transport wire, results; /* results: a wire of host memory for what rank 0 puts together; none: the wire */
    int32_t rank, size;
    stw_cp *cp;
    stw_context *context;
    int on_device;
    stw_stream stream; /* of the context; NULL on the CPU */
} cp_rank;

typedef struct cp_row {
    const char *problem;
    stw_cp_order order;
    stw_cp_schedule schedule;
    int node;   /* ranks_per_node is the largest divisor of size below it that heads allow: 2-D */
    int groups; /* head_groups is the largest divisor of a rank's heads of keys up to it; 0: by rule */
} cp_row;

extern const cp_row cp_rows[];
extern const int cp_row_count;

/* What a row gave, on rank 0; elsewhere the outcome alone. */
typedef struct cp_result {
    stw_verify_outcome outcome;
    char text[640], schedule[16], name[200];
    double ratio[STW_GRAD_COUNT]; /* RMS over that of the single device's own, or -1 */
    double out_ratio, imbalance;
} cp_result;

/* "zigzag ring PROBLEM". */
void cp_row_name(const cp_row *row, char *text, size_t capacity);

/* The whole problem, on each rank the same. `owner`: this rank builds the reference, too (the others may lack it). */
typedef struct cp_whole {
    stw_verify_case c;
    stw_verify_result single; /* of stw_attn_bwd on one device: its own errors */
    double out_error;         /* RMS of O of stw_attn_fwd on one device        */
    int32_t *cu[2], *used[2]; /* [B+1], [B]; null where there are none         */
} cp_whole;
stw_status cp_whole_build(const char *problem, int64_t seed, int owner, stw_context *context, cp_whole *whole_out);
void cp_whole_free(cp_whole *whole);

/* The same without the reference: on rank 0 out, lse and a given delta are what the library makes on `context`. */
stw_status cp_whole_build_large(const char *problem, int owner, stw_context *context, cp_whole *whole_out);

/* ---- shard.c ---- */

/* What a rank holds. `data`: its tensors in host memory, NULL where the problem has none. */
typedef struct cp_shard {
    const cp_whole *whole;
    int32_t rank, size;
    stw_cp_order order;
    stw_attn_desc desc; /* of this rank */
    int64_t rows[2];
    unsigned char *data[STW_VERIFY_TENSOR_COUNT];
    unsigned char *seen[STW_VERIFY_TENSOR_COUNT]; /* cp_check: as the calls get it, `data` or its copy on the device */
    size_t bytes[STW_VERIFY_TENSOR_COUNT];
} cp_shard;
/* Cuts a shard out of the whole; `whole`, `rank`, `size` and `order` are set. 0 without memory. */
int cp_shard_make(cp_shard *shard);
void cp_shard_free(cp_shard *shard);
stw_cp_desc cp_shard_desc(const cp_shard *shard, const cp_row *row);
/* Of tensors that lie at `data`. */
stw_attn_args cp_shard_args(const cp_shard *shard, unsigned char *const data[]);
/* One tensor of all ranks into rank 0's arena; collective. */
void cp_collect(cp_rank *rank, const cp_shard *own, stw_verify_tensor id, unsigned char *after, cp_result *result);
/* Sends `from`, or receives into `to` where that is null, host memory; 1 where it went. */
int cp_move_bytes(cp_rank *rank, const void *from, void *to, size_t bytes, int32_t peer);
/* Marks a row as failed with a text, unless it failed before. */
void cp_fail(cp_result *result, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Schedule and imbalance of a plan's text. */
void cp_note_plan(const stw_cp_plan *plan, cp_result *result);

/* Runs one row on this rank; collective. */
void cp_check(cp_rank *rank, const cp_row *row, const cp_whole *whole, cp_result *result_out);

/* ---- bench.c ---- */

/* Times of one problem over ranks; on rank 0 complete. */
typedef struct cp_times {
    cp_result result;
    stw_verify_result check; /* of sampled rows */
    const char *not_verified;
    char transport[32];
    int runs;
    double quartiles[3];                   /* seconds of a call, of the rank that takes longest */
    double compute, communication, single; /* medians: no message moves; messages alone; one device alone */
    double sent_most, sent_all;            /* bytes of a call: of the rank that sends most, of all  */
    double workspace;                      /* bytes, of the rank that needs most                    */
    double overlap;                        /* share of `communication` that the call hides, 0 to 1  */
    double efficiency;                     /* single / (ranks * time)                               */
} cp_times;
/* Verifies a problem on sampled rows and times it for `seconds`; collective. */
void cp_bench(cp_rank *rank, const cp_row *row, const cp_whole *whole, double seconds, cp_times *times_out);
void cp_bench_header(void);
/* A line; 1 where it failed. */
int cp_bench_report(const cp_times *times, int32_t size);

/* ---- ranks.c: ranks of one process ---- */

/* Makes context and stw_cp of each rank in a thread of its own, the device of its number on GPUs, and runs `work` on
 * all. `devices`: on GPUs 0: over NCCL or RCCL; else over memory, rank r on device r % devices. Returns 1, or 0 with
 * the text of the first rank that could not be made. */
typedef void (*cp_work_fn)(cp_rank *rank, void *user);
int cp_run_ranks(int32_t size, const stw_context_opts *opts, int32_t devices, double timeout_s, cp_work_fn work,
                 void *user, char text_out[320]);

/* ---- conform.c ---- */

/* Ranks that a launcher has started: the program that holds an MPI takes over, with these arguments. Returns 0 where
 * there is no launcher, 1 where that program is not there, and has said so. */
int cp_become_mpi_program(const char *command, char **argv);

/* ---- report.c ---- */

typedef struct cp_counts {
    int ran, skipped, failed;
} cp_counts;
/* A line; 1 where the row failed. */
int cp_report(const cp_result *result, cp_counts *counts);
/* The last line; 1 where a row failed or none ran. */
int cp_report_end(const cp_counts *counts, int32_t size, const char *transport);

/* ---- local.c: ranks of one process ---- */

/* `size` ranks that share memory; a rank that waits longer than `timeout_s` for another fails. */
typedef struct cp_local cp_local;
cp_local *cp_local_create(int32_t size, double timeout_s);
void cp_local_destroy(cp_local *local);
stw_cp_transport cp_local_transport(cp_local *local, int32_t rank);
/* The same between devices, in the order of streams: everything has moved when a group ends. */
stw_cp_transport cp_local_device_transport(cp_local *local, int32_t rank, stw_context *context);

#endif
