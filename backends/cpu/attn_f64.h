/* SPDX-License-Identifier: MIT
 *
 * What the files of f64 attention share: the tiles of a thread and the operations on them. Blocks, bands,
 * claims and the workspace's layout are those of cpu.h. Every output element is summed by one owner: queries
 * own dQ, keys own dK and dV, and each recomputes S and dP (7 products a tile, not 5, and no semaphore). */
#ifndef STW_CPU_ATTN_F64_H
#define STW_CPU_ATTN_F64_H

#include "cpu.h"

/* Rows and keys of a tile: what a phase goes over again and again is 340 KB at head dim 128. */
#define STW_F64_BM 32
#define STW_F64_BN 64

typedef struct stw_f64_scratch {
    double *k, *k_cols;        /* keys [bn][dk], transposed [dk][bn]              */
    double *v, *v_cols;        /* [bn][dv], [dv][bn]                              */
    double *q, *dout;          /* [bm][dk], [bm][dv]; forward: dout is O so far   */
    double *s, *dp, *raw;      /* [bm][bn]                                        */
    double *dq, *dk, *dv;      /* sums [bm][dk], [bn][dk], [bn][dv]               */
    double *sum;               /* [bm][bn]: of a broadcast dBias                  */
    double *lse, *delta, *fix; /* [bm]; forward: maximum, sum and factor of a row */
    uint32_t *keep;            /* [bm][bn]                                        */
    int32_t *hidden;           /* [4][bn]                                         */
} stw_f64_scratch;

/* Bytes of one scratch; fills *out with pointers into `base` when it is not null. */
size_t stw_f64_scratch_of(const stw_attn_work *work, const stw_cpu_layout *layout, char *base, stw_f64_scratch *out);
/* The scratch of a worker of the job. */
stw_f64_scratch stw_f64_scratch_of_worker(const stw_cpu_job *job, uint32_t worker);

/* The tile of query block `q_block` and key block `k_block`, with its part of the band. */
stw_cpu_tile stw_f64_tile_at(const stw_cpu_job *job, const stw_cpu_seq *seq, int64_t h, int64_t q_block,
                             int64_t k_block);

/* Packs keys j0.. (k, k_cols, v, v_cols), zeroed where nobody sees them. */
void stw_f64_load_keys(const stw_cpu_job *job, const stw_f64_scratch *t, const stw_cpu_tile *at);
/* Packs rows i0.. of q, zeroed where they see nothing. */
void stw_f64_load_q(const stw_cpu_job *job, const stw_f64_scratch *t, const stw_cpu_tile *at);
/* Packs rows i0.. of q, dout, lse, delta, zeroed where they see nothing. */
void stw_f64_load_queries(const stw_cpu_job *job, const stw_f64_scratch *t, const stw_cpu_tile *at);

/* s <- P.Z, dp <- dS', raw <- dS of packed operands. */
void stw_f64_grad_tile(const stw_cpu_job *job, const stw_f64_scratch *t, const stw_cpu_tile *at);
/* s <- exp(S - maximum).Z; maximum, sum and fix (what the row of O so far is multiplied with) are updated. */
void stw_f64_softmax_tile(const stw_cpu_job *job, const stw_f64_scratch *t, const stw_cpu_tile *at);

/* Rows from local row `first` on <- src*scale, or += . */
void stw_f64_store_rows(const stw_tensor_param *to, int64_t b, int64_t h, int64_t first, const double *src,
                        size_t pitch, int64_t rows, uint32_t cols, double scale, int add);
void stw_f64_zero_rows(const stw_tensor_param *to, int64_t b, int64_t h, int64_t first, int64_t rows, uint32_t cols);

/* Element of lse, dlse or delta of local row i; `packed`: rows are numbered through the pack. */
static inline double *stw_f64_number(const stw_tensor_param *t, uint32_t packed, const stw_cpu_seq *seq, int64_t h,
                                     int64_t i) {
    int64_t row = (packed ? seq->q.first : 0) + i;
    return (double *)t->data + seq->b * t->batch + h * t->head + row * t->seq;
}

/* One of the parameter block's pointers to one number a head. */
static inline double stw_f64_of_head(const float *numbers, int64_t index) {
    return stw_load_f64(numbers, index, STW_F64);
}

/* D of every numbered row, in the workspace. */
static inline double *stw_f64_delta(const stw_cpu_job *job, const stw_cpu_seq *seq, int64_t h, int64_t i) {
    return (double *)(void *)(job->workspace + job->layout.delta) + h * job->layout.q_rows + seq->q_row + i;
}

#endif
