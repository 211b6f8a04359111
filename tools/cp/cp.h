/* SPDX-License-Identifier: MIT
 *
 * `sternway cp-conform`: attention over ranks against the float64 reference of the whole problem. A row is a PROBLEM,
 * an order and a schedule. Each rank cuts its shard out of the whole problem's arena (tools/verify), runs the public
 * API and sends its results to rank 0, which puts them together and judges them as those of one device. Ranks are
 * threads over local.c here, and processes over sternway/cp_mpi.h in tests/cp. */
#ifndef STW_TOOLS_CP_H
#define STW_TOOLS_CP_H

#include "tools/verify/verify.h"

/* This rank and its wire. On a GPU the problem's tensors lie on the device, and results travel by another wire. */
typedef struct cp_rank {
    stw_cp_transport wire, results; /* results: of host memory; none: the wire */
    int32_t rank, size;
    stw_cp *cp;
    stw_context *context;
    int on_device;
    stw_stream stream;
} cp_rank;

typedef struct cp_row {
    const char *problem;
    stw_cp_order order;
    stw_cp_schedule schedule;
    int node; /* ranks_per_node is the largest divisor of size below it that heads allow: 2-D */
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

/* Runs one row on this rank; collective. */
void cp_check(cp_rank *rank, const cp_row *row, const cp_whole *whole, cp_result *result_out);

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

/* ---- nccl.c: communicators of this process, rank r on device r ---- */

typedef struct cp_nccl cp_nccl;
/* `backend` CUDA or HIP: libnccl.so.2 or librccl.so.1. NULL: `text` says why. */
cp_nccl *cp_nccl_create(stw_backend backend, int32_t size, char *text, size_t capacity);
void cp_nccl_destroy(cp_nccl *nccl);
stw_status cp_nccl_transport(const cp_nccl *nccl, int32_t rank, stw_cp_transport *transport_out);

#endif
