/* SPDX-License-Identifier: MIT */
/** @file
 * Sternway: attention over many ranks (context parallelism). Each rank holds a shard of the sequences: its rows of
 * Q, K, V, O, dO and LSE, all heads of them. A call gives each rank its rows of dQ, dK and dV of the whole
 * problem. The wire is the caller's: NCCL, RCCL, MPI (cp_mpi.h) or a table of functions.
 *
 * SHARDS. Each sequence of S rows is cut into 2*size chunks, chunk c = rows [c*S/(2*size), (c+1)*S/(2*size)) rounded
 * down. STW_CP_CONTIGUOUS: rank r holds chunks 2r and 2r+1. STW_CP_ZIGZAG: rank r holds chunks r and 2*size-1-r, in
 * this order; under a causal mask all ranks then see the same number of pairs. Of a pack, each sequence is cut so,
 * and the shard is a pack of what the rank holds of each, in order. stw_cp_shard() tells the rows.
 *
 * SCHEDULES. Ring: K and V travel from rank to rank, and dK and dV follow in f32; a rank that sees nothing of a block
 * is passed over: it neither runs nor gets it. All-gather: each rank gathers all K and V, and dK and dV are reduced and
 * scattered in f32. Ulysses: an all-to-all gives each rank all rows of 1/size of the heads; in the backward they go in
 * groups, so that the rows of one and the gradients of another move under the kernels of a third, and no sum crosses
 * ranks. 2-D: an all-to-all among the ranks of a node, and a ring between the nodes. Rules choose one, and
 * stw_cp_plan_describe() names it and its rule.
 *
 * RESULTS. With D_i of the whole row (attn_bwd.h) each pair of chunks gives its exact part of dQ, dK and dV, and the
 * parts are summed in f32 in an order that depends on schedule, head_groups, rank and size alone: the same bits run
 * after run on the CPU backend, and on GPUs where those of stw_attn_bwd() are. Masks, ALiBi and dropout go by positions
 * of the whole problem, so they do not depend on the number of ranks. The forward computes parts in f32 (of f32
 * problems in f64 on the CPU) and merges them in f64:
 *
 *     LSE = log(exp(LSE_a) + exp(LSE_b)),  O = exp(LSE_a - LSE) * O_a + exp(LSE_b - LSE) * O_b
 *
 * MASKS. Each rank gives args.intervals and args.block_mask of the whole problem, the same on all ranks: bounds of all
 * keys, in the order of the sequence ([B, 1 or Hk, seq_kv, bounds], of a pack [T of the whole, bounds]), and bytes of
 * all blocks. Set desc.attn's strides of both by hand: stw_layout_*() knows the shard's sizes alone. Bounds count with
 * q_offset; those out of range are refused by name on the CPU, clamped on GPUs, where status_out stays 0. A block mask
 * asks for chunks of whole blocks: rows and keys of each sequence are multiples of 256 times the shards (ring,
 * all-gather: size; 2-D: nodes; Ulysses: any). Who works on what, and what is sent, goes by causal masks, windows and
 * lengths alone; what intervals and blocks hide is left out within each step.
 *
 * STREAMS. On a GPU a run call is asynchronous as stw_attn_bwd() is: it launches into the caller's stream, what is sent
 * goes to a stream of the plan's own, and events order the two, so that messages move under kernels. Nothing waits on
 * the host, and a graph capture takes the call where the transport's functions allow it. A plan's calls come one at a
 * time.
 *
 * COLLECTIVE CALLS. Plan and run calls are collective: all ranks of a stw_cp make the same ones in the same order,
 * one at a time. Ranks compare their descriptors at plan time, and all of them fail where one does. A failure of the
 * transport is STW_E_DRIVER with its text; the outputs of that call are invalid, later calls with this stw_cp fail
 * likewise, and the stw_context stays usable. */
#ifndef STERNWAY_ATTN_CP_H
#define STERNWAY_ATTN_CP_H

#include "attn_bwd.h"

/* Columns of comments are kept by hand: */
/* clang-format off */
#ifdef __cplusplus
extern "C" {
#endif

/** The caller's wire, as functions. Each returns 0, or an error that error_text explains. Memory is that of the
 * context of the plan, at plan time too; it may not be reused before `wait`. On a GPU functions put what they do into
 * `stream`, which is never the caller's, and return: `wait` is null, and a transport that has one is refused. Ranks
 * count from 0 to size-1. */
typedef struct stw_cp_transport {
    size_t struct_size; /**< sizeof(stw_cp_transport)                                                        */
    const char *name;   /**< for texts: "MPI"; required, copied, at most 31 characters                       */
    void *user;         /**< handed to the functions; the caller's, valid until stw_cp_destroy()             */
    /** Opens a group: sends and receives up to group_end are posted together. Required. */
    int (*group_begin)(void *user);
    /** Sends `bytes` > 0 bytes to `peer` (never this rank). Messages between two ranks arrive in order. Required. */
    int (*send)(void *user, const void *from, size_t bytes, int32_t peer, stw_stream stream);
    /** Receives what `peer` sends: the sizes agree. Required. */
    int (*recv)(void *user, void *to, size_t bytes, int32_t peer, stw_stream stream);
    /** Starts the group in `stream`; may return before anything has moved. Required. */
    int (*group_end)(void *user, stw_stream stream);
    /** Returns when all that was started is complete: groups, all_gather, reduce_scatter, all_to_all, of which several
     * may be under way. Null: each is when its function returns. It is also called after a failure of another function.
     * Where it fails, messages that could not be taken back may still use the call's memory: that lives on until the
     * communicator is gone. */
    int (*wait)(void *user, stw_stream stream);
    /** `bytes` > 0 bytes of each rank to all: `to` is [size][bytes]. Null: done by groups of sends. */
    int (*all_gather)(void *user, const void *from, void *to, size_t bytes, stw_stream stream);
    /** Sums `from`, [size][count] numbers of STW_F32 or STW_F64, over the ranks; `to` gets this rank's [count]. The
     * same bits run after run. Null: done by groups of sends, and added in the order of the ranks. */
    int (*reduce_scatter)(void *user, const void *from, void *to, size_t count, stw_dtype dtype, stw_stream stream);
    /** `from` is [size][bytes], a block a receiver; `to` is [size][bytes], a block a sender. Ulysses, where each rank
     * holds as many rows. Null: by groups. */
    int (*all_to_all)(void *user, const void *from, void *to, size_t bytes, stw_stream stream);
    /** Words for an error. Null: its number is told. The text is read before the next call. */
    const char *(*error_text)(void *user, int error);
} stw_cp_transport;

typedef struct stw_cp stw_cp; /**< this rank among the others */
/** One problem class over the ranks, ready to run. It owns a stream and two events, so its calls come one at a time. */
typedef struct stw_cp_plan stw_cp_plan;

/** Makes this rank known. Nothing is sent; the transport's ranks are the caller's, none is made here.
 * @param transport  read, not kept, but for `user`
 * @param rank       0..size-1
 * @param size       1..65536
 * @param cp_out     for stw_cp_destroy(), which comes after that of its plans
 * @return STW_OK, STW_E_INVALID (a null function, rank, size), STW_E_NO_MEMORY. */
STW_API stw_status stw_cp_create(const stw_cp_transport *transport, int32_t rank, int32_t size, stw_cp **cp_out);
/** Ends it. Nothing is sent.
 * @param cp  NULL is fine */
STW_API void stw_cp_destroy(stw_cp *cp);

/** A transport over the caller's own communicator of NCCL. libnccl.so.2 is loaded by that name, the copy that is in the
 * process already where there is one; no communicator is made. Calls are stream-ordered, so a communicator whose
 * peer has died fails within its own timeout: see ncclCommGetAsyncError, which the transport asks before each group.
 * @param comm           an ncclComm_t; the caller's, valid until stw_cp_destroy()
 * @param transport_out  filled, struct_size set by the caller
 * @return STW_OK, STW_E_INVALID, STW_E_NO_DRIVER (the library or a function of it is missing). */
STW_API stw_status stw_cp_transport_nccl(void *comm, stw_cp_transport *transport_out);
/** As stw_cp_transport_nccl(), of RCCL: librccl.so.1.
 * @param comm,transport_out as for stw_cp_transport_nccl()
 * @return as stw_cp_transport_nccl() */
STW_API stw_status stw_cp_transport_rccl(void *comm, stw_cp_transport *transport_out);

/** Which chunks a rank holds; see SHARDS. Must be chosen, there is no default. */
typedef enum stw_cp_order {
    STW_CP_CONTIGUOUS = 1, /**< chunks 2r and 2r+1: rows without a gap                                       */
    STW_CP_ZIGZAG = 2      /**< chunks r and 2*size-1-r: the same work for all ranks under a causal mask     */
} stw_cp_order;

/** How the ranks share the work; see SCHEDULES. */
typedef enum stw_cp_schedule {
    STW_CP_AUTO = 0,       /**< the first rule that fits                                                     */
    STW_CP_RING = 1,       /**< any problem                                                                  */
    STW_CP_ALL_GATHER = 2, /**< any problem; workspace for all K, V, dK and dV                               */
    STW_CP_ULYSSES = 3,    /**< heads_kv a multiple of size, no bias                                         */
    STW_CP_2D = 4          /**< heads_kv a multiple of ranks_per_node, which divides size; no bias           */
} stw_cp_schedule;

/** The problem over the ranks. All ranks give the same, but for sizes and strides of their shards. */
typedef struct stw_cp_desc {
    size_t struct_size; /**< sizeof(stw_cp_desc) */
    /** This rank's shard as it lies in memory: max_seq_* (dense) or total_* (packed: exactly) are the rows that this
     * rank holds (stw_cp_shard()), batch and heads are those of the whole. The mask and its shift are those of the
     * whole: Lq and Lk are whole lengths. A bias has this rank's rows and all keys: [B,Hq,rows here,seq_kv]
     * (packed: rows and keys of a sequence), and so has its gradient; that of a bias that is broadcast over rows is
     * the sum over the ranks, on each of them. dSink too. dropout_map: STW_DROPOUT_PHILOX. Intervals and a
     * block mask are those of the whole problem, see MASKS. Read, not kept. */
    const stw_attn_desc *attn;
    int64_t seq_q;  /**< dense: Sq of the whole problem, 0..2^31-1; packed: 0 */
    int64_t seq_kv; /**< as seq_q, of the keys */
    /** Packed sides: B+1 starts of the whole problem's sequences, from 0 on, in host memory; else null. A plan of a
     * pack is for these lengths; args.cu_seqlens_* are not looked at. Read, not kept, as all that follows. */
    const int32_t *cu_seqlens_q;
    const int32_t *cu_seqlens_kv; /**< as cu_seqlens_q */
    /** With STW_ATTN_HAS_USED_LENGTHS: [B] used rows of the whole problem's sequences, in host memory; null = full.
     * args.used_* are not looked at. */
    const int32_t *used_q;
    const int32_t *used_kv; /**< as used_q */
    int64_t q_offset; /**< of the whole problem in a larger one, |.| <= 2^40; those of the args must be 0 and null */
    int64_t k_offset; /**< as q_offset */
    stw_cp_order order;       /**< required                                                                  */
    stw_cp_schedule schedule; /**< one that is named is never replaced                                       */
    int32_t ranks_per_node;   /**< ranks [n*ranks_per_node, (n+1)*ranks_per_node) share node n; 0 = not known */
    /** Ulysses' backward: groups in which a rank's heads go, a divisor of heads_kv/size; 0: by rule. With STW_CP_AUTO 2
     * or more ask for Ulysses where its rule fits. Others do not look at it. */
    int32_t head_groups;
} stw_cp_desc;

/** The rows of one sequence that a rank holds, in the order in which it holds them.
 * @param order      of the chunks
 * @param rows       of the sequence, 0..2^31-1
 * @param rank,size  as in stw_cp_create()
 * @param first_out  gets the first row of both chunks
 * @param count_out  gets their rows; the shard has the sum
 * @return STW_OK or STW_E_INVALID. */
STW_API stw_status stw_cp_shard(stw_cp_order order, int64_t rows, int32_t rank, int32_t size, int64_t first_out[2],
                                int64_t count_out[2]);

/** Checks the problem, compares it with the other ranks' in one exchange of some hundred bytes a rank, and makes the
 * schedule. Collective: where it fails on one rank it fails on all, and the text names the rank and the field.
 * @param cp        this rank; may have any number of plans
 * @param context   where it computes: any backend; of a GPU the plan holds a stream and two events until its end
 * @param desc      the problem; read, not kept
 * @param plan_out  for stw_cp_plan_destroy()
 * @return STW_OK; STW_E_INVALID names the field; STW_E_UNSUPPORTED the limit, or a transport with `wait` on a GPU;
 * STW_E_NO_MEMORY; STW_E_DRIVER: the transport. What fails before the exchange can run (the device's own calls, such a
 * transport) fails on this rank alone. */
STW_API stw_status stw_cp_attn_bwd_plan(stw_cp *cp, stw_context *context, const stw_cp_desc *desc,
                                        stw_cp_plan **plan_out);
/** The same for the forward, which ignores what only the backward uses. O and LSE are outputs.
 * @param cp,context,desc,plan_out as for stw_cp_attn_bwd_plan()
 * @return as stw_cp_attn_bwd_plan() */
STW_API stw_status stw_cp_attn_fwd_plan(stw_cp *cp, stw_context *context, const stw_cp_desc *desc,
                                        stw_cp_plan **plan_out);
/** Gives a plan back. Nothing is sent.
 * @param plan  NULL is fine */
STW_API void stw_cp_plan_destroy(stw_cp_plan *plan);

/** What to allocate.
 * @param plan  a plan or NULL
 * @return bytes of workspace that a call needs at any address, of the context's memory; of NULL 0. Differs by rank. */
STW_API size_t stw_cp_plan_workspace_size(const stw_cp_plan *plan);

/** Schedule and the rule that chose it, rank, steps that run and are left out, bytes that this rank sends, imbalance of
 * the ranks' work, what overlaps, workspace and kernels, as lines "name: value" of text.
 * @param plan,text,capacity,needed_out as for stw_plan_describe()
 * @return STW_OK or STW_E_INVALID. */
STW_API stw_status stw_cp_plan_describe(const stw_cp_plan *plan, char *text, size_t capacity, size_t *needed_out);

/** Runs the backward of the whole problem. Collective. What is wrong with the arguments is refused before anything is
 * sent; other ranks then fail by their transport's own timeout.
 * @param plan            of stw_cp_attn_bwd_plan()
 * @param args            the shard's pointers: those of stw_attn_bwd() for plan.attn
 * @param workspace       at any address, any content; the caller's
 * @param workspace_size  at least stw_cp_plan_workspace_size()'s
 * @param stream          as for stw_attn_bwd()
 * @return STW_OK: all of the outputs are written. STW_E_INVALID, STW_E_WORKSPACE: nothing is. STW_E_DRIVER: the
 * transport failed, and what was being written is invalid. Others as stw_attn_bwd(). */
STW_API stw_status stw_cp_attn_bwd(const stw_cp_plan *plan, const stw_attn_args *args, void *workspace,
                                   size_t workspace_size, stw_stream stream);
/** Runs the forward of the whole problem. Collective.
 * @param plan            of stw_cp_attn_fwd_plan()
 * @param args,workspace,workspace_size,stream as for stw_cp_attn_bwd()
 * @return as stw_cp_attn_bwd() */
STW_API stw_status stw_cp_attn_fwd(const stw_cp_plan *plan, const stw_attn_args *args, void *workspace,
                                   size_t workspace_size, stw_stream stream);

#ifdef __cplusplus
}
#endif
#endif
