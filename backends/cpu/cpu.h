/* SPDX-License-Identifier: MIT
 *
 * What the files of the CPU backend share: the opened device, the workspace of a call, sequences cut into
 * blocks, and the job that all threads of a call work on. */
#ifndef STW_CPU_CPU_H
#define STW_CPU_CPU_H

#include "backends/backend.h"
#include "pool.h"
#include "tile.h"

#include "common/dtype.h"
#include "common/params/attn_hidden.h"

#include <stdatomic.h>

typedef struct stw_cpu_state {
    stw_pool *pool;
    uint32_t threads;
} stw_cpu_state;

/* An instruction set that tile.c is compiled for: the `loop` of the CPU's variants. */
typedef struct stw_cpu_loop {
    const stw_tile_ops *tile; /* NULL: this build has none          */
    int (*runs)(void);        /* whether this CPU has it; NULL: any */
    const char *lacks;        /* what to say otherwise              */
} stw_cpu_loop;

extern const stw_attn_loop stw_attn_loop_avx512_bf16, stw_attn_loop_avx512, stw_attn_loop_avx2, stw_attn_loop_portable;

/* The tile operations of a loop, or NULL when this CPU (or build) lacks them: reason_out. */
const stw_tile_ops *stw_cpu_tile_ops(const stw_attn_loop *loop, const char **reason_out);

/* ---- workspace -------------------------------------------------------------------------------------
 * Offsets in bytes; a size of 0 where a part is not needed. The last part is one scratch a thread. */
typedef struct stw_cpu_layout {
    int64_t q_rows;   /* numbered rows of q over all sequences                          */
    int64_t q_blocks; /* numbered query blocks of one head (upper bound)                */
    uint32_t bm, bn;
    uint32_t width_k, width_v; /* head dims padded to lanes                             */
    size_t delta;              /* f32 or f64 [heads_q][q_rows]: delta                   */
    size_t turns;              /* semaphores, u32 [heads_q][q_blocks]: added key blocks */
    size_t dq;                 /* f32 [heads_q][q_rows][head_dim_qk]: dQ so far         */
    size_t sink;               /* f64 [heads_q][q_blocks]: dSink of each block          */
    size_t hidden;             /* stw_hidden_block [mask_heads][k_blocks]               */
    int64_t mask_heads;        /* of intervals: heads_kv, or 1 where all share one      */
    int64_t k_blocks;          /* numbered key blocks of one head (upper bound)         */
    size_t scratch, scratch_size;
    size_t total;
    int separate_dq; /* dQ is summed in the workspace, not in the output             */
    int bias_direct; /* the bias is not broadcast: the main phase writes dBias       */
    int bias_summed; /* the bias is broadcast: dBias has its own phase               */
} stw_cpu_layout;

/* Also of f64 problems, whose tiles have their own size and scratch (attn_f64.h). */
stw_cpu_layout stw_cpu_layout_of(const stw_attn_work *work, const stw_tile_ops *tile, uint32_t threads);

/* A thread's tiles. */
typedef struct stw_cpu_scratch {
    float *k, *k_cols, *v_cols; /* keys [bn][dk], transposed [dk][bn], [dv][bn]           */
    float *dk, *dv;             /* sums of the work tile [bn][dk], [bn][dv]               */
    float *q, *dout, *dq;       /* [bm][dk], [bm][dv], [bm][dk]                           */
    float *s, *dp, *raw, *sum;  /* [bm][bn]; raw and sum only for dBias                   */
    uint32_t *keep;             /* [bm][bn]                                               */
    int32_t *hidden;            /* [4][bn]: first and end of each interval of the keys    */
    float *lse, *delta, *fix;   /* [bm]                                                   */
} stw_cpu_scratch;

/* Bytes of one scratch; fills *out with pointers into `base` when it is not null. */
size_t stw_cpu_scratch_of(const stw_attn_params *p, const stw_cpu_layout *layout, char *base, stw_cpu_scratch *out);

/* ---- sequences -------------------------------------------------------------------------------------
 * common/params/attn_seq.h has the arithmetic; here is what the CPU asks it once a sequence. */
typedef struct stw_cpu_seq {
    int64_t b;
    stw_seq_span q, kv;
    stw_band band;
    int64_t q_low, q_end; /* rows that see a key    */
    int64_t k_low, k_end; /* keys that a row sees   */
    int64_t q_row;        /* number of row 0        */
    int64_t q_block;      /* number of query block 0 */
    int64_t k_block;      /* number of key block 0   */
} stw_cpu_seq;

stw_cpu_seq stw_cpu_seq_of(const stw_attn_params *p, const stw_cpu_layout *layout, int64_t b);

/* Key blocks that query block `block` meets, and the other way round. Both are contiguous: the band is. */
stw_range stw_cpu_key_blocks(const stw_cpu_seq *seq, const stw_cpu_layout *layout, int64_t block);
stw_range stw_cpu_query_blocks(const stw_cpu_seq *seq, const stw_cpu_layout *layout, int64_t block);

static inline int64_t stw_min_i64(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t stw_max_i64(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t stw_ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/* No sequence of this side is longer. On a packed side that is at most the pack, whatever max_seq says. */
static inline int64_t stw_cpu_longest(const stw_attn_params *p, int keys) {
    int64_t max_seq = keys ? p->max_seq_kv : p->max_seq_q, total = keys ? p->total_kv : p->total_q;
    return p->features & (keys ? STW_FEAT_PACKED_KV : STW_FEAT_PACKED_Q) ? stw_min_i64(max_seq, total) : max_seq;
}

/* The first sequence from b on that has rows on this side; p->batch: none has. */
int64_t stw_cpu_next_seq(const stw_attn_params *p, int keys, int64_t b);

/* Address of element 0 of a row; `row` counts from the sequence's start. */
static inline void *stw_cpu_row(const stw_tensor_param *t, uint32_t dtype, int64_t b, int64_t h, int64_t row) {
    size_t size = stw_dtype_size((stw_dtype)dtype);
    return (char *)t->data + (b * t->batch + h * t->head + row * t->seq) * (int64_t)size;
}

/* ---- one call ---------------------------------------------------------------------------------------*/
typedef struct stw_cpu_job {
    const stw_attn_work *work;
    const stw_attn_params *p;
    const stw_tile_ops *tile;
    stw_cpu_layout layout;
    char *workspace;
    uint32_t threads;
    atomic_uint_fast64_t next; /* task to be claimed next */
} stw_cpu_job;

/* Threads that work on a call which may have `cpu_threads` (0: all of the context's). */
uint32_t stw_cpu_threads_of(const stw_device *device, uint32_t cpu_threads);

/* Runs the phases of a call: `phases` one after the other, each on at most job->threads threads. */
void stw_cpu_run(const stw_device *device, stw_cpu_job *job, const stw_pool_fn *phases, uint32_t count);

/* The same for any job: where it counts its tasks and how many threads work on it. */
typedef struct stw_cpu_progress {
    atomic_uint_fast64_t *next;
    uint32_t *threads;
} stw_cpu_progress;
void stw_cpu_run_phases(const stw_device *device, uint32_t threads, void *job, const stw_cpu_progress *progress,
                        const stw_pool_fn *phases, uint32_t count);

static inline int64_t stw_cpu_claim(stw_cpu_job *job) { return (int64_t)atomic_fetch_add(&job->next, 1); }

/* The tasks below `to` that nobody has claimed are empty: no thread claims them one by one. */
static inline void stw_cpu_skip(atomic_uint_fast64_t *next, int64_t to) {
    uint_fast64_t now = atomic_load(next);
    while (now < (uint_fast64_t)to && !atomic_compare_exchange_weak(next, &now, (uint_fast64_t)to)) {
    }
}

#define STW_CPU_TASKS_MAX (INT64_MAX / 2) /* and so many claims more: nobody lives that long */
/* a x b tasks, at most STW_CPU_TASKS_MAX: of so many nearly all are empty. */
static inline int64_t stw_cpu_tasks(int64_t a, int64_t b) {
    int64_t tasks;
    return __builtin_mul_overflow(a, b, &tasks) || tasks > STW_CPU_TASKS_MAX ? STW_CPU_TASKS_MAX : tasks;
}

/* A task is a block of `size` rows, `blocks` of them a (sequence, head). */
typedef struct stw_cpu_grid {
    int keys, padded; /* of keys, else of query rows; every sequence counts as max_seq rows */
    int64_t heads, blocks, size;
} stw_cpu_grid;
/* Blocks of the longest sequence. */
stw_cpu_grid stw_cpu_grid_of(const stw_attn_params *p, int keys, int padded, int64_t size);
/* The next block that has rows, and number b * heads + h of its head. 0: none is left. */
int stw_cpu_claim_block(stw_cpu_job *job, const stw_cpu_grid *grid, int64_t *head_out, int64_t *block_out);

/* The next output tile of a broadcast dBias: everything that adds to it. 0: none is left. */
typedef struct stw_cpu_bias_task {
    stw_range batch, head, query_block, key_block;
} stw_cpu_bias_task;
int stw_cpu_claim_bias(stw_cpu_job *job, stw_cpu_bias_task *task_out);
/* The task's first sequence from b on that reaches its blocks; task->batch.end: none does. */
int64_t stw_cpu_next_bias_seq(const stw_cpu_job *job, const stw_cpu_bias_task *task, int64_t b, stw_cpu_seq *seq_out);

/* dBias is not broadcast and has elements, which are zeroed where no tile writes. The strides of one without elements
 * are unchecked: an address made of them may overflow. */
static inline int stw_cpu_zeros_bias(const stw_cpu_job *job) {
    return job->layout.bias_direct && !(job->p->accumulate & STW_OUT_DBIAS) && job->p->max_seq_kv > 0;
}

static inline float *stw_cpu_part(const stw_cpu_job *job, size_t offset) {
    return (float *)(void *)(job->workspace + offset);
}

/* Phases. */
void stw_cpu_hidden_phase(void *job, uint32_t worker); /* what intervals hide, block by block */
void stw_cpu_rows_phase(void *job, uint32_t worker);   /* delta, dSink parts, zeros           */
void stw_cpu_main_phase(void *job, uint32_t worker);   /* dK, dV, dQ, direct dBias            */
void stw_cpu_bias_phase(void *job, uint32_t worker);   /* broadcast dBias                     */
void stw_cpu_fwd_phase(void *job, uint32_t worker);
void stw_cpu_mask_phase(void *job, uint32_t worker);

/* The same of f64 problems (attn_f64_*.c). */
void stw_f64_rows_phase(void *job, uint32_t worker);    /* delta, dSink parts                  */
void stw_f64_queries_phase(void *job, uint32_t worker); /* dQ, direct dBias                    */
void stw_f64_keys_phase(void *job, uint32_t worker);    /* dK, dV                              */
void stw_f64_bias_phase(void *job, uint32_t worker);    /* broadcast dBias                     */
void stw_f64_fwd_phase(void *job, uint32_t worker);

/* ---- tiles of the backward pass, shared by the main and the bias phase -------------------------------*/
typedef struct stw_cpu_tile {
    const stw_cpu_seq *seq;
    int64_t h;      /* query head                      */
    int64_t i0, j0; /* first row and key               */
    uint32_t rows, cols;
    int64_t low, high;     /* pair (r, c) is visible iff low <= c - r <= high            */
    uint32_t strip;        /* rows or keys of one product: fewer where the mask's edge cuts the tile */
    const int32_t *hidden; /* of its keys, [4][bn]; null: intervals hide no pair             */
} stw_cpu_tile;

/* ---- masks in memory (attn_hidden.c). Tiles divide STW_MASK_BLOCK, so that a block mask cuts none. ----------------*/
typedef enum stw_cpu_sight {
    STW_CPU_HIDDEN,  /* the tile has no visible pair */
    STW_CPU_PARTIAL, /* pairs are tested             */
    STW_CPU_OPEN     /* nothing is hidden            */
} stw_cpu_sight;

/* What intervals and block mask leave of the tile of a query head. */
stw_cpu_sight stw_cpu_sight_of(const stw_cpu_job *job, const stw_cpu_seq *seq, int64_t h, int64_t q_block,
                               int64_t k_block);
/* The first query block from `block` to before `end` that sees key block k_block; `end`: none does. */
int64_t stw_cpu_next_query_block(const stw_cpu_job *job, const stw_cpu_seq *seq, int64_t h, int64_t k_block,
                                 int64_t block, int64_t end);
/* The nearest key block of `range` from `block` on, in steps of +1 or -1, that query block q_block sees; -1: none. */
int64_t stw_cpu_nearest_key_block(const stw_cpu_job *job, const stw_cpu_seq *seq, int64_t h, int64_t q_block,
                                  stw_range range, int64_t block, int64_t step);
/* Hidden rows of the tile's keys into at->hidden, `to` in the scratch; null where its pairs are not tested. */
void stw_cpu_load_hidden(const stw_cpu_job *job, int32_t *to, stw_cpu_tile *at);

/* Sets low, high and strip from the rest. */
void stw_cpu_tile_cut(stw_cpu_tile *at);

/* Packs keys j0.. (k, k_cols, v_cols), zeroed where nobody sees them. */
void stw_cpu_load_keys(const stw_cpu_job *job, const stw_cpu_scratch *t, const stw_cpu_tile *at, int64_t kv_head);
/* Packs rows i0.. of one tensor of the query side. */
void stw_cpu_load_rows(const stw_cpu_job *job, float *to, uint32_t width, const stw_tensor_param *from,
                       const stw_cpu_tile *at, uint32_t cols);
/* Packs rows i0.. of q, dout, lse, delta, zeroed where they see nothing. */
void stw_cpu_load_queries(const stw_cpu_job *job, const stw_cpu_scratch *t, const stw_cpu_tile *at);
/* s <- P.Z, dp <- dS', raw (when wanted) <- dS. */
void stw_cpu_grad_tile(const stw_cpu_job *job, const stw_cpu_scratch *t, const stw_cpu_tile *at, float *raw);
/* sum[keys][dim] (+)= pairs^T x, and to[rows][dim] <- pairs x, over the visible pairs. */
void stw_cpu_sum_to_keys(const stw_cpu_job *job, const stw_cpu_tile *at, const float *pairs, const float *x, float *sum,
                         uint32_t width, uint32_t dim, int add);
void stw_cpu_sum_to_queries(const stw_cpu_job *job, const stw_cpu_tile *at, const float *pairs, const float *x,
                            float *to, uint32_t width, uint32_t dim);
/* The logits' part of a tile operation: band, bias, ALiBi, dropout. */
stw_tile_logits stw_cpu_logits(const stw_cpu_job *job, const stw_cpu_scratch *t, const stw_cpu_tile *at);

/* Refuses cu_seqlens, used lengths and offsets that are out of range; sets status_out either way. */
stw_status stw_cpu_check_data(const char *function, const stw_attn_params *p);

/* Refuses bounds alone, of a dense problem whose sequences are numbered from `sequence` on. */
stw_status stw_cpu_cp_intervals(const char *who, const stw_attn_params *params, int64_t sequence);

stw_status stw_cpu_attn_bwd(const stw_device *device, const stw_attn_work *work, const stw_attn_params *params,
                            void *workspace, stw_stream stream, uint32_t cpu_threads);
stw_status stw_cpu_attn_fwd(const stw_device *device, const stw_attn_work *work, const stw_attn_params *params,
                            void *workspace, stw_stream stream, uint32_t cpu_threads);
stw_status stw_cpu_stage(const stw_device *device, const stw_attn_work *work, const stw_attn_params *params,
                         const stw_attn_stage *stages, uint32_t count, void *workspace, stw_stream stream,
                         uint32_t cpu_threads);
stw_status stw_cpu_dropout_mask(const stw_device *device, const stw_attn_work *work, const stw_attn_params *params,
                                stw_stream stream, uint32_t cpu_threads);

/* cp.c */
stw_status stw_cpu_cp_open(const stw_device *device, stw_cp_side *side_out);
void stw_cpu_cp_close(const stw_device *device, stw_cp_side *side);
stw_status stw_cpu_cp_check(const stw_device *device, const char *who, stw_plan_kind kind,
                            const stw_attn_params *params, const void *workspace, stw_stream stream);
stw_status stw_cpu_cp_cast(const stw_device *device, const stw_cp_side *side, const stw_cp_cast *cast,
                           stw_stream stream);
stw_status stw_cpu_cp_merge(const stw_device *device, const stw_cp_side *side, const stw_cp_merge *merge,
                            stw_stream stream);
stw_status stw_cpu_cp_order(const stw_device *device, const stw_cp_side *side, int joins, stw_stream before,
                            stw_stream after);

#endif
