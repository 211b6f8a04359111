/* SPDX-License-Identifier: MIT
 *
 * Attention over ranks inside dispatch. A rank (n, l) is rank l of the `split` ranks that share one shard n of
 * `shards`: ring and all-gather have split 1, Ulysses has one shard, 2-D has both. Stages of a call:
 *   1. delta of this rank's rows, from its own tensors (backward; under the first moves where split is 1). Where
 *      nothing but gradients is asked for on a GPU, the statistics that parts make of it instead (cp_dq.c)
 *   2. split > 1: an all-to-all of q, k, v, dO, LSE and delta, after which the rank has all rows of its shard and
 *      heads/split heads. With one shard, Ulysses, the backward goes on by groups of these heads (cp_heads.c) without
 *      what follows here
 *   3. ticks: a tick starts the moves of the next ones, runs its parts, each a chunk of q against a chunk of keys by
 *      a plan of attn_bwd.h, and waits for the moves
 *   4. split > 1: the way back of dQ, dK and dV; then the caller's tensors are written
 * Which rank sends what in which tick follows from the descriptor alone, so no rank asks another.
 *
 * On a GPU nothing waits on the host: kernels go to the caller's stream, what is sent to a stream of the plan's own.
 * begin orders that one after the caller's, in a tick also the caller's after the point where a message may start;
 * wait orders the caller's after all of it. On the CPU wait is the transport's. */
#ifndef STW_DISPATCH_CP_H
#define STW_DISPATCH_CP_H

#include "plan.h"

#include "common/dtype.h"

enum { STW_CP_SIZE_MAX = 65536, STW_CP_TEXT = 256 };

struct stw_cp {
    stw_cp_transport wire;
    char name[32];
    int32_t rank, size;
    int open;                 /* a group has begun and not ended */
    char broken[STW_CP_TEXT]; /* the first failure, the transport's or ours in the middle of a call, or "" */
};

/* ---- the wire (cp_wire.c): each call adds the peer and the transport's words to a failure, and remembers it. `who`
 * opens the text, `what` is being moved. */

typedef struct stw_cp_calling {
    stw_cp *cp;
    const char *who, *what;
    const stw_context *context; /* null: none was given, at plan time */
    const stw_cp_side *side;
    stw_stream stream; /* the caller's */
    int32_t step;      /* counted from 1; 0: none to tell */
} stw_cp_calling;

/* What is sent goes by a stream of its own: a GPU's. */
static inline int stw_cp_is_apart(const stw_cp_calling *c) { return c->side && c->side->stream; }

/* `status` of a call that may have sent something: after a failure this rank is out of step with the others. */
stw_status stw_cp_call_ended(const stw_cp_calling *calling, stw_status status);
stw_status stw_cp_usable(const stw_cp_calling *c);
/* What is sent comes after what the caller's stream has got. `first`: on a GPU what that gets next comes after the
 * point where it may start, and all that was sent before. A main loop's CTAs stay until no work tile is left, and a
 * message whose kernel came later would wait for all of them. */
stw_status stw_cp_begin(const stw_cp_calling *c, int first);
stw_status stw_cp_send(const stw_cp_calling *c, const void *from, size_t bytes, int32_t peer);
stw_status stw_cp_recv(const stw_cp_calling *c, void *to, size_t bytes, int32_t peer);
stw_status stw_cp_end(const stw_cp_calling *c);
stw_status stw_cp_wait(const stw_cp_calling *c);
/* `to` is [size][bytes]. */
stw_status stw_cp_gather(const stw_cp_calling *c, const void *from, void *to, size_t bytes);

/* By the transport's own function, which is there: `count` numbers a rank. */
stw_status stw_cp_reduce(const stw_cp_calling *c, const void *from, void *to, size_t count, stw_dtype dtype);

/* The same of all_to_all, without the wait: blocks of `bytes`, one a rank. */
stw_status stw_cp_all_to_all(const stw_cp_calling *c, const void *from, void *to, size_t bytes);

/* ---- shards (cp_shard.c) ---- */

typedef struct stw_cp_chunk {
    int64_t first, count;
} stw_cp_chunk;

/* Chunk `at` (0 or 1) of shard n of `shards` of a sequence of `rows` rows. */
stw_cp_chunk stw_cp_chunk_of(stw_cp_order order, int64_t rows, int64_t n, int64_t shards, int at);
static inline int64_t stw_cp_rows_of(stw_cp_order order, int64_t rows, int64_t n, int64_t shards) {
    return stw_cp_chunk_of(order, rows, n, shards, 0).count + stw_cp_chunk_of(order, rows, n, shards, 1).count;
}

/* One sequence of the whole problem, or all `batch` ones of a dense problem of equal lengths. */
typedef struct stw_cp_seq {
    int64_t index, batch;
    int64_t rows[2], used[2]; /* of the whole sequence: q, keys                              */
    int64_t low, high;        /* visible keys j of row i: low <= j - i <= high               */
    int64_t shift;
    int64_t held[2];  /* rows that this rank holds of it                                     */
    int64_t first[2]; /* the first of them in this rank's tensors; a batch has `held` rows   */
    int64_t own[2];   /* the same in this rank's shard (split > 1: more rows, fewer heads)   */
    int64_t base[2];
    int64_t start; /* of its keys in the whole pack                                       */
} stw_cp_seq;

/* Pairs of rows [q.first, +count) and keys [k.first, +count) that see each other. */
int64_t stw_cp_pairs(const stw_cp_seq *seq, stw_cp_chunk q, stw_cp_chunk k);
/* Whether there is one. */
int stw_cp_sees(const stw_cp_seq *seq, stw_cp_chunk q, stw_cp_chunk k);
/* Of a chunk the rows that are used. */
stw_cp_chunk stw_cp_used(const stw_cp_seq *seq, int kv, stw_cp_chunk chunk);

/* ---- plans ---- */

/* A plan of attn_bwd.h and what it was made of. */
typedef struct stw_cp_engine {
    stw_attn_desc desc;
    uint32_t features; /* STW_FEAT_* beside the descriptor's */
    stw_plan *plan;
} stw_cp_engine;

/* A chunk of q against a chunk of keys. Rows count in the sequence's rows of this shard's q and in the block's keys. */
typedef struct stw_cp_part {
    int32_t engine, seq;
    int32_t alone; /* has_alone: the engine that takes no part in sums of dQ */
    int64_t q_row, q_rows, k_rows;
    int64_t k_row;      /* from the start of the block, and of its sums */
    int64_t q_at, k_at; /* positions of the first row and key, without the offsets */
} stw_cp_part;

typedef struct stw_cp_piece {
    size_t at, bytes;
} stw_cp_piece;

/* A message of a tick, or two of different pieces. */
typedef struct stw_cp_move {
    int32_t peer;
    uint8_t sends, sums; /* sums: dK and dV, else K and V  */
    int32_t slot;        /* STW_CP_OWN: this rank's own block */
    size_t bytes;
    stw_cp_piece piece[2]; /* of the slot; the second may be empty */
} stw_cp_move;
/* This rank's own block, and the sums of its own parts, which stay here. */
enum { STW_CP_OWN = -1 };
/* Sums of a block in the two sets in which the other ranks make them. */
enum { STW_CP_SETS = 2 };

typedef struct stw_cp_tick {
    int32_t step, is_last;  /* is_last: the second tick of the own block   */
    int32_t slot, sum_slot; /* of the parts                                */
    int32_t starts_sums;    /* the sums are set to zero before: no part writes all of them */
    int64_t block_rows;     /* keys of the block and of the sums: where V and dV begin */
    stw_cp_chunk sums;      /* rows of the sums that are in use                        */
    int64_t part, parts, move, moves;
} stw_cp_tick;

/* A call that makes delta and dSink of rows of q. Its engine has one key where they see a key, else none. */
typedef struct stw_cp_rows {
    int32_t engine, seq;
    int64_t row;
} stw_cp_rows;

/* Sums of dQ of a sequence's rows of this shard, and their statistics (cp_dq.c). Places count numbers from
 * at.dq_sums. */
typedef struct stw_cp_dq_sums {
    int32_t engine; /* whose last kernel makes dQ of them                  */
    int32_t starts; /* keeps_stats: whose first kernel makes both          */
    int64_t place;  /* of the first sum                                    */
    int64_t stats;  /* keeps_stats: of the first statistics                */
    int64_t head;   /* sums of a head                                      */
} stw_cp_dq_sums;

/* Places in the workspace. */
typedef struct stw_cp_places {
    size_t delta, dsink, dsinks, scratch;                      /* backward                       */
    size_t q, k, v, dout, lse, shard_delta;                    /* split > 1: of the shard        */
    size_t sent, received;                                     /* split > 1: messages            */
    size_t sent_back, received_back, sent_rows, received_rows; /* by heads: within the two above */
    size_t own, slots, own_sums, sum_slots, other_sums;        /* stage 3                        */
    size_t dq, dq_sums, dk, dv, dbias, dbiases;                /* its results: of the shard      */
    size_t wide_q, wide_kv, wide_bias, wide_slopes, out_part, lse_part, out_sum, lse_sum,
        out; /* forward                 */
    size_t total;
} stw_cp_places;

struct stw_cp_plan {
    stw_cp *cp;
    stw_context *context;
    stw_cp_side side; /* of the context's device */
    stw_plan_kind kind;
    const char *call;
    stw_cp_desc desc;      /* attn null                                            */
    stw_attn_desc attn;    /* checked, defaults resolved                         */
    stw_attn_params bound; /* for the check of a call's pointers              */
    stw_cp_schedule schedule;
    const char *rule;                   /* the words of the rule that chose, or NULL: by name   */
    int32_t split, shards, lane, shard; /* this rank is `lane` of its shard   */
    int32_t groups;                     /* by heads: those of this rank go in so many groups; else 1 */
    int cuts_own;                       /* the own block's second chunk of keys has a tick after all others */
    stw_dtype number;                   /* f32, or f64                                          */
    stw_dtype partial;                  /* of the forward's parts: wider than O */
    stw_cp_seq *seqs;
    int64_t seq_count;
    int64_t rows[2];           /* of this rank's tensors                          */
    int64_t shard_rows[2];     /* of its shard                                    */
    int64_t heads_q, heads_kv; /* that it computes, of all groups             */
    int64_t block_max;         /* keys of the longest block                       */
    int64_t dbias_extent[4], dbias_count;
    stw_cp_engine *engines;
    int32_t *engine_table; /* engine + 1 by hash of its descriptor, 0 where there is none */
    size_t engine_room;    /* of the table                                                */
    stw_cp_part *parts;
    stw_cp_move *moves;
    stw_cp_tick *ticks;
    stw_cp_rows *row_calls;
    stw_cp_dq_sums *dq_sums; /* of each sequence; null: each part makes its own and adds f32 dQ */
    int64_t dq_numbers;      /* of all                                                          */
    uint32_t dq_order[4];    /* stw_attn_work.dq_order of all parts                             */
    int keeps_stats;         /* with dq_sums: parts read statistics of rows that are made once  */
    int has_alone;           /* calls of tensors off 16 bytes do without sums                   */
    int64_t engine_count, part_count, move_count, tick_count, row_count;
    int32_t slot_count, sum_count;
    size_t engine_workspace;
    stw_cp_places at;
    int starts_own; /* sums of the own block, by heads all results, start as zeros: no part writes all of them */
    int32_t home[STW_CP_SETS];           /* the slot to which a set of this shard's sums comes home, or -1   */
    stw_cp_chunk home_rows[STW_CP_SETS]; /* the rows of the block that it has                         */
    int all_see_all, equal_blocks;       /* all-gather: by the transport's own functions where both hold */
    int equal_messages;                  /* Ulysses: each rank has as many rows, so messages are of one size */
    int64_t steps_run, steps_skipped;
    double imbalance;    /* largest work of a rank over the mean, less 1 */
    uint64_t sent_bytes; /* by this rank, a call                        */
};

/* Compares this rank's problem with the others'; `local` is what this rank found. (cp_compare.c) */
stw_status stw_cp_agree(const stw_cp_calling *calling, stw_plan_kind kind, const stw_cp_desc *desc,
                        const stw_attn_desc *attn, stw_status local);

/* Adds the parts, moves and ticks of this rank (cp_schedule.c). */
stw_status stw_cp_schedule_make(stw_cp_plan *plan);
/* A plan for this descriptor and these STW_FEAT_*, an old one where there is. (cp_plan.c) */
stw_status stw_cp_engine_get(stw_cp_plan *plan, const stw_attn_desc *desc, uint32_t features, int32_t *engine_out);
/* Those of rows of a sequence that see a key. (cp_plan.c) */
stw_cp_chunk stw_cp_seeing_rows(const stw_cp_seq *seq, stw_cp_chunk rows);
/* Rows of a tensor of our own, [rows][heads][dim]. */
stw_attn_strides stw_cp_own_rows(int64_t batch_rows, int64_t heads, int64_t dim);
/* Of a part. `block`: rows between two batches in the block and in its sums. */
stw_attn_desc stw_cp_backward_desc(const stw_cp_plan *plan, const stw_cp_seq *seq, int64_t q_rows, int64_t k_rows,
                                   int64_t block);

/* ---- by heads (cp_heads.c) ---- */

/* Where heads go in groups by rule, a call has at least this many rows of keys times heads of them: a thousand work
 * tiles of 128 keys, eight for each of 132 multiprocessors, so that the last ones leave few idle. */
enum { STW_CP_GROUP_ROWS = 131072 };

/* The backward where all ranks exchange heads: Ulysses, and 2-D of one node. */
static inline int stw_cp_goes_by_heads(const stw_cp_plan *p) {
    return p->kind == STW_PLAN_ATTN_BWD && p->split > 1 && p->shards == 1;
}
/* Of dQ, dK or dV as parts leave it: what the caller gets where one part makes all of it (what he adds to is in numbers
 * anyway), else numbers to sum. */
static inline stw_dtype stw_cp_result_dtype(const stw_cp_plan *p, uint32_t bit) {
    const stw_attn_desc *d = &p->attn;
    if (!stw_cp_goes_by_heads(p)) return p->number;
    return bit == STW_OUT_DQ ? d->dq_dtype : bit == STW_OUT_DK ? d->dk_dtype : d->dv_dtype;
}
/* As many groups as the descriptor asks for, or the rule: of a rank with so many heads of k, whose calls have so many
 * rows of keys. */
int32_t stw_cp_groups_of(const stw_cp_plan *plan, int64_t heads_kv, int64_t call_rows);
/* Adds the parts, a tick a group. */
stw_status stw_cp_heads_make(stw_cp_plan *plan);

/* ---- masks in memory (cp_masks.c) ---- */

static inline int stw_cp_has_masks(const stw_cp_plan *p) {
    return p->attn.interval_form != STW_INTERVALS_NONE || p->attn.flags & STW_ATTN_BLOCK_MASK;
}
/* Strides of the whole problem's masks, and chunks of whole blocks. */
stw_status stw_cp_masks_check(const stw_cp_plan *plan);

/* ---- sums of dQ that parts share (cp_dq.c) ---- */

/* Before the schedule: fills dq_sums where the problem allows it. */
stw_status stw_cp_dq_plan(stw_cp_plan *plan);
/* After it: keeps_stats is 0 or dq_sums null again where a part does not fit, and the schedule must be made anew. */
stw_status stw_cp_dq_judge(stw_cp_plan *plan);
/* Bytes that this rank sends beside the moves: heads (stages 2 and 4), all-gather's blocks, sums over all ranks. */
uint64_t stw_cp_other_bytes(const stw_cp_plan *plan);
/* Grows an array of `count` elements by one zeroed element. */
void *stw_cp_grow(void *array_pointer, int64_t *count, size_t size);

/* Bytes of a block of K and V, and of its sums, of so many keys. */
static inline size_t stw_cp_block_bytes(const stw_cp_plan *p, int64_t keys) {
    return (size_t)(keys * p->heads_kv * (p->attn.head_dim_qk + p->attn.head_dim_v)) * stw_dtype_size(p->attn.dtype);
}
static inline size_t stw_cp_sum_bytes(const stw_cp_plan *p, int64_t keys) {
    return (size_t)(keys * p->heads_kv * (p->attn.head_dim_qk + p->attn.head_dim_v)) * stw_dtype_size(p->number);
}
/* The number in which the forward sums: double, and long double of f64 problems. */
static inline uint32_t stw_cp_wide_dtype(const stw_cp_plan *p) {
    return p->number == STW_F64 ? STW_CP_LONG_DOUBLE : (uint32_t)STW_F64;
}
static inline size_t stw_cp_wide_size(const stw_cp_plan *p) {
    return p->number == STW_F64 ? sizeof(long double) : sizeof(double);
}
/* The forward's parts need the bias in another type than the caller's. */
static inline int stw_cp_has_wide_bias(const stw_cp_plan *p) {
    return p->attn.bias_dtype && p->attn.bias_dtype != STW_U8 && p->attn.bias_dtype != p->partial;
}
/* Keys of block b. */
int64_t stw_cp_block_rows(const stw_cp_plan *plan, int64_t b);
/* Where messages of one exchange begin, and what the transport's own functions move: whole lines. */
static inline size_t stw_cp_message_size(size_t bytes) { return (bytes + 15) / 16 * 16; }
static inline size_t stw_cp_slot_size(size_t bytes) { return (bytes + 255) / 256 * 256; }
/* Whether shard n sees anything of block b. */
int stw_cp_needs(const stw_cp_plan *plan, int64_t n, int64_t b);
static inline int32_t stw_cp_peer(const stw_cp_plan *plan, int64_t shard) {
    return (int32_t)(shard * plan->split + plan->lane);
}

/* ---- a call (cp_run.c) ---- */

/* Whose rows a tensor has. */
typedef enum stw_cp_rows_of_whom {
    STW_CP_CALLERS, /* this rank's, in the caller's layout    */
    STW_CP_RANKS,   /* this rank's, [rows][heads][dim]        */
    STW_CP_SHARDS   /* the shard's, [rows][heads][dim]        */
} stw_cp_rows_of_whom;

typedef struct stw_cp_tensor {
    char *data;
    stw_cp_rows_of_whom whose;
    stw_dtype dtype;
    int kv, packed;                /* packed: the caller's rows are numbered through the pack */
    int64_t batch, head, seq, dim; /* elements; those of our own: head and seq                */
    int64_t heads, width;
    int64_t more[STW_CP_SETS]; /* bytes from it to tensors of its layout that readers add to it; 0: none */
} stw_cp_tensor;

typedef struct stw_cp_run {
    const stw_cp_plan *plan;
    stw_attn_args args;
    char *workspace, *engine_workspace;
    int shares_dq; /* parts add to the plan's sums of dQ (cp_dq.c), and read its statistics where it keeps_stats */
    int32_t group; /* of heads, by heads: that which is computed   */
    stw_cp_calling wire;
    stw_cp_tensor q, k, v, out, dout, lse, dlse, delta, dq, dk, dv;              /* of this rank */
    stw_cp_tensor shard_q, shard_k, shard_v, shard_dout, shard_lse, shard_delta; /* what stage 3 reads */
} stw_cp_run;

/* Whether this call's parts share sums; where those of a part's first row lie, and its statistics; all of both before
 * the parts (keeps_stats); dQ of the shard's rows from the sums. */
int stw_cp_dq_is_shared(const stw_cp_run *run);
float *stw_cp_dq_at(const stw_cp_run *run, const stw_cp_part *part);
float *stw_cp_stats_at(const stw_cp_run *run, const stw_cp_part *part);
stw_status stw_cp_dq_start(const stw_cp_run *run);
stw_status stw_cp_dq_finish(const stw_cp_run *run, const stw_cp_tensor *dq);

/* Checks the call and finds its tensors. */
stw_status stw_cp_run_begin(const stw_cp_plan *plan, stw_plan_kind kind, const char *call, const stw_attn_args *args,
                            void *workspace, size_t size, stw_stream stream, stw_cp_run *run_out);
/* Row `row` of batch b of a sequence, in the order in which it is held; head 0. */
char *stw_cp_at(const stw_cp_tensor *t, const stw_cp_seq *seq, int64_t b, int64_t row);
stw_cp_tensor stw_cp_ours(char *data, stw_cp_rows_of_whom whose, int kv, int64_t heads, int64_t width, stw_dtype dtype);
/* A call's masks: given, and bounds in range where the backend can see them. (cp_masks.c) */
stw_status stw_cp_masks_bind(const stw_cp_run *run);
/* What a part's call gets of them. (cp_masks.c) */
void stw_cp_masks_at(const stw_cp_run *run, const stw_cp_part *part, stw_attn_args *args_out);
/* Positions, masks, dropout and threads of a part's call. */
void stw_cp_positions(const stw_cp_run *run, const stw_cp_part *part, stw_attn_args *args_out);

/* Elements, in the call's stream (cp_elements.c). `dtype`: also STW_CP_LONG_DOUBLE. */
stw_status stw_cp_cast_all(const stw_cp_run *run, const stw_cp_cast *cast);
stw_status stw_cp_set(const stw_cp_run *run, void *to, int64_t count, uint32_t dtype, double value);
stw_status stw_cp_convert(const stw_cp_run *run, void *to, uint32_t to_dtype, const void *from, uint32_t from_dtype,
                          int64_t count);
stw_status stw_cp_add(const stw_cp_run *run, void *to, const void *from, int64_t count, uint32_t dtype);
/* A row of a tensor at one of its heads, in `rows` ones of each of `batches` that are `batch` elements apart. */
typedef struct stw_cp_lines {
    const stw_cp_tensor *t;
    char *row;
    int64_t head, batch;
} stw_cp_lines;
/* `adds`: to what is there. */
stw_status stw_cp_copy_heads(const stw_cp_run *run, const stw_cp_lines *to, const stw_cp_lines *from, int64_t batches,
                             int64_t rows, int64_t heads, int adds);
/* Rows [row, + count) of all batches of a sequence, all heads; `from` null: zero. */
stw_status stw_cp_copy_rows(const stw_cp_run *run, const stw_cp_tensor *to, const stw_cp_tensor *from,
                            const stw_cp_seq *seq, int64_t row, int64_t count, int adds);
/* All rows and heads of a tensor into another of the same rows. */
stw_status stw_cp_copy(const stw_cp_run *run, const stw_cp_tensor *to, const stw_cp_tensor *from, int adds);
/* Elements between two batches of a sequence. */
int64_t stw_cp_batch_stride(const stw_cp_tensor *t, const stw_cp_seq *seq);
/* The first head of q, or of k, that the calls of this group have. */
static inline int64_t stw_cp_first_head(const stw_cp_run *run, int kv) {
    const stw_cp_plan *p = run->plan;
    const int64_t heads = kv ? p->heads_kv : p->heads_q;
    return p->lane * heads + run->group * (heads / p->groups);
}
/* Stages 2 to 4 by heads (cp_heads.c). */
stw_status stw_cp_heads_run(stw_cp_run *run);
/* The slopes of a sequence's first head. */
const float *stw_cp_slopes(const stw_cp_run *run, const stw_cp_seq *seq);

/* ---- rows against heads (cp_exchange.c) ---- */

/* Stage 2 (in: from the rank's tensors to the shard's) or stage 4, of `count` tensors. */
typedef struct stw_cp_exchange {
    int in, count;
    int32_t group, groups; /* of a rank's heads */
    const stw_cp_tensor *const *from, *const *to;
    const int *adds;       /* back: to what the caller has; null: to none */
    size_t sent, received; /* where its messages begin among all          */
} stw_cp_exchange;

/* Before it is sent; what is for this rank itself, at any time; when it is there, after the wait. */
stw_status stw_cp_exchange_pack(const stw_cp_run *run, const stw_cp_exchange *x);
stw_status stw_cp_exchange_own(const stw_cp_run *run, const stw_cp_exchange *x);
stw_status stw_cp_exchange_unpack(const stw_cp_run *run, const stw_cp_exchange *x);
/* Starts `count` > 0 of them as one group of messages. */
stw_status stw_cp_exchange_start(stw_cp_run *run, const stw_cp_exchange *const *all, int count);
/* All of it, with nothing beside. */
stw_status stw_cp_exchange_all(stw_cp_run *run, const stw_cp_exchange *x);
/* Bytes of a row and head of q, and of the keys. */
void stw_cp_exchange_widths(const stw_cp_plan *p, size_t in_out[2], size_t back_out[2]);
/* Bytes of all messages of an exchange of a rank's heads over `groups`; `comes`: of the other ranks' rows, else this
 * one's. */
size_t stw_cp_exchange_room(const stw_cp_plan *p, const size_t widths[2], int32_t groups, int comes);
/* What this rank sends in a call. */
uint64_t stw_cp_exchange_bytes(const stw_cp_plan *p);

/* ---- blocks and ticks (cp_run.c) ---- */

/* Packs this shard's K and V into its block; all-gather: gets the other blocks. */
stw_status stw_cp_blocks(stw_cp_run *run);
/* Runs the ticks; `start` is what comes before the first part, under the first moves, `part` runs one part. */
typedef stw_status (*stw_cp_start_fn)(stw_cp_run *run);
typedef stw_status (*stw_cp_part_fn)(stw_cp_run *run, const stw_cp_tick *tick, const stw_cp_part *part);
stw_status stw_cp_ticks(stw_cp_run *run, stw_cp_start_fn start, stw_cp_part_fn part);
/* All-gather: the sums of this shard's block over all ranks. */
stw_status stw_cp_scatter_sums(stw_cp_run *run);
char *stw_cp_slot(const stw_cp_run *run, int32_t slot);
char *stw_cp_sum_slot(const stw_cp_run *run, int32_t slot);
/* `rows` of the sums of a block of `block` keys. */
stw_status stw_cp_zero_sums(const stw_cp_run *run, int32_t slot, int64_t block, stw_cp_chunk rows);
/* Sums `count` numbers at `data` over all ranks, in their order; `all` holds [size][count]. */
stw_status stw_cp_sum_over_ranks(stw_cp_run *run, char *data, char *all, int64_t count);

#endif
