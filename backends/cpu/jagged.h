/* SPDX-License-Identifier: MIT
 *
 * What the files of the CPU's jagged operations share: the workspace of a call, the job all threads work on,
 * and runs: neighbouring rows of a nested buffer that are treated alike. Phases claim tasks by number until
 * none is left; what a task writes never depends on who does it. */
#ifndef STW_CPU_JAGGED_H
#define STW_CPU_JAGGED_H

#include "cpu.h"

#include "common/dtype.h"

/* Offsets in bytes into the workspace; parts of size 0 are not used. */
typedef struct stw_cpu_jagged_layout {
    size_t starts[3], used[3];    /* int64: the clean lengths of each ragged axis            */
    size_t prefix;                /* int64 [components + 1]: tasks before a component's       */
    size_t partials;              /* f32: sums of segments                                    */
    size_t columns;               /* f32: gamma                                               */
    size_t scratch, scratch_size; /* one a thread                                          */
    size_t total;
    int64_t segment_rows, segments; /* rows whose sums are one partial; upper bound of their number */
    int64_t partial_width;          /* floats of a partial, whole vectors                      */
    size_t weight_partials;         /* f32 [shares][N][K]: linear's dW                         */
    int64_t share_rows, shares;     /* rows of a share, 1 share: none is needed                */
} stw_cpu_jagged_layout;

typedef struct stw_cpu_jagged_job {
    stw_jagged_params p; /* with clean lengths */
    const stw_tile_ops *tile;
    stw_cpu_jagged_layout layout;
    char *workspace;
    uint32_t threads;
    atomic_uint_fast64_t next;
} stw_cpu_jagged_job;

/* The phases of an op, at most STW_CPU_JAGGED_PHASES. Each sets what it needs in the layout. */
#define STW_CPU_JAGGED_PHASES 5

stw_status stw_cpu_jagged_prepare(const stw_device *device, stw_jagged_work *work);
stw_status stw_cpu_jagged_bwd(const stw_device *device, const stw_jagged_work *work, const stw_jagged_params *params,
                              void *workspace, stw_stream stream, uint32_t cpu_threads);

static inline int64_t stw_cpu_jagged_claim(stw_cpu_jagged_job *job) { return (int64_t)atomic_fetch_add(&job->next, 1); }
static inline void *stw_cpu_jagged_part(const stw_cpu_jagged_job *job, size_t offset) {
    return job->workspace + offset;
}
static inline float *stw_cpu_jagged_scratch(const stw_cpu_jagged_job *job, uint32_t worker) {
    return (float *)(void *)(job->workspace + job->layout.scratch + worker * job->layout.scratch_size);
}

#define STW_CPU_JAGGED_LARGE 0x1p26 /* bytes of a dX in f32 */

/* Element types of dX; adding only into what accumulates. */
static inline stw_tile_types stw_cpu_jagged_types(const stw_jagged_params *p) {
    double bytes = (double)(p->slabs * p->rows_outer) * (double)p->axis[0].total * (double)p->inner * 4;
    return (stw_tile_types){p->dtype, p->dx_dtype, (p->accumulate & STW_JAGGED_DX) != 0, bytes >= STW_CPU_JAGGED_LARGE};
}
static inline const char *stw_at(const void *data, int64_t index, uint32_t dtype) {
    return (const char *)data + index * (int64_t)stw_dtype_size((stw_dtype)dtype);
}
static inline char *stw_at_out(void *data, int64_t index, uint32_t dtype) {
    return (char *)data + index * (int64_t)stw_dtype_size((stw_dtype)dtype);
}

/* Rows of a nested buffer; without components nothing reads them. */
static inline int64_t stw_cpu_jagged_rows(const stw_jagged_params *p) {
    return p->components ? p->slabs * p->axis[0].total * p->rows_outer : 0;
}

/* `count` rows from `row` on, alike: of one component and outer index (any, where `merge` is asked for and
 * nothing is unused), all valid or all a gap. */
typedef struct stw_cpu_stretch {
    int64_t row, count;
    int64_t component, o, r; /* of the first row */
    int valid;
} stw_cpu_stretch;

/* The first run at or after `row`, before `end`. 0: there is none. */
int stw_cpu_jagged_run(const stw_jagged_params *p, int64_t row, int64_t end, int merge, stw_cpu_stretch *run_out);

void stw_cpu_jagged_zero_at(void *out, int64_t first, int64_t count, uint32_t dtype);
/* Zeros in dX, unless it accumulates. Any element type. */
void stw_cpu_jagged_zero(const stw_jagged_params *p, int64_t first, int64_t count);

/* Phases. jagged_rows.c */
void stw_cpu_jagged_pointwise(void *job, uint32_t worker);
void stw_cpu_jagged_norm(void *job, uint32_t worker);           /* dX, and partials of dGamma, dBeta   */
void stw_cpu_jagged_columns_finish(void *job, uint32_t worker); /* dGamma, dBeta; linear's dbias       */
/* jagged_softmax.c; along the ragged dimension: sums, totals, results */
void stw_cpu_jagged_softmax_inner(void *job, uint32_t worker);
void stw_cpu_jagged_softmax_outer(void *job, uint32_t worker);
void stw_cpu_jagged_softmax_ragged(void *job, uint32_t worker);
void stw_cpu_jagged_softmax_totals(void *job, uint32_t worker);
void stw_cpu_jagged_softmax_apply(void *job, uint32_t worker);
/* the norms along the ragged dimension: sums of segments, results */
void stw_cpu_jagged_norm_ragged(void *job, uint32_t worker);
void stw_cpu_jagged_norm_apply(void *job, uint32_t worker);
/* jagged_moves.c: all that computes nothing; FROM_PADDED */
void stw_cpu_jagged_move(void *job, uint32_t worker);
void stw_cpu_jagged_scatter(void *job, uint32_t worker);
/* jagged_products.c */
#define STW_CPU_JAGGED_BM 256 /* its tiles */
#define STW_CPU_JAGGED_BN 256
size_t stw_cpu_jagged_product_scratch(void);
void stw_cpu_jagged_number_tiles(stw_cpu_jagged_job *job);
void stw_cpu_jagged_matmul(void *job, uint32_t worker);
void stw_cpu_jagged_linear_dx(void *job, uint32_t worker);
void stw_cpu_jagged_linear_dw(void *job, uint32_t worker);
void stw_cpu_jagged_linear_db(void *job, uint32_t worker); /* partials */
void stw_cpu_jagged_linear_finish(void *job, uint32_t worker);

#endif
