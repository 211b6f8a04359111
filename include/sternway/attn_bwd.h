/* SPDX-License-Identifier: MIT
 *
 * Sternway: attention. One descriptor (the shape class: chooses kernel and workspace at plan time),
 * one argument block (the pointers of one call), backward, forward with LSE, dropout mask.
 *
 * NOTATION. Q[B,Hq,Sq,D], K[B,Hk,Sk,D], V[B,Hk,Sk,Dv], O and dO[B,Hq,Sq,Dv], LSE[B,Hq,Sq]; query head
 * h reads key/value head h / (Hq/Hk). For query row i and key j of one (batch, head):
 *
 *     S    = softcap(scale * Q K^T) + bias + alibi    softcap(x) = c*tanh(x/c), off when c = 0;
 *                                                     the bias is NOT multiplied by scale
 *     P    = exp(S - LSE)                             LSE: f32, natural log, of the final S and the sink,
 *                                                     before dropout
 *     D_i  = rowsum(dO_i * O_i) - dLSE_i              "delta"; dLSE optional
 *     dV   = (P.Z)^T dO                               Z: dropout factor, 0 or 1/(1-p)
 *     dP   = (dO V^T).Z
 *     dS   = P.(dP - D)
 *     dBias= dS                                       summed over every broadcast dimension of the bias
 *     dQ   = scale * dS' K,  dK = scale * dS'^T Q     dS' = dS*(1 - tanh^2) under softcap, else dS
 *     dSink_h = - sum_{b,i} exp(sink_h - LSE_i) * D_i
 *
 * (FlashAttention-2, arXiv 2307.08691, algorithm 2; dLSE, sink and softcap by the chain rule.) All sums
 * are f32; P and dS are rounded to the input type only as matrix operands; GQA sums dK and dV over the
 * group in f32 and rounds once.
 *
 * POSITIONS. i and j below are positions in the whole problem: the local row in its sequence plus the
 * caller's q/k offset. Lq, Lk are the used lengths of the sequence. shift = diagonal_shift with
 * STW_ATTN_HAS_SHIFT; otherwise 0 under STW_MASK_CAUSAL_TOP_LEFT and Lk - Lq in all other cases.
 *
 * NEVER LEFT OPEN. A masked pair, S = -inf, and a row whose LSE is -inf or +inf select P = dS = 0: such a
 * row adds nothing to dQ, dK, dV, dBias. A row that no key can see has D_i = -dLSE_i, and its dSink term
 * stays. Keys that no query sees, empty sequences and empty batches give gradients of zero. Rows past the
 * used length up to the sequence's end are written as zeros in the gradients and in delta; the forward writes
 * zeros to their O and -inf to their LSE (rows that see no key: O zero, LSE the sink or -inf). Other gaps of
 * a packed layout are not touched. What lies in rows outside the problem (NaN included) never reaches a
 * result: rows past the used lengths, keys that masks and lengths hide from every query, O and dO of rows
 * that they leave without a key. A bias of -inf hides no row in this sense: an infinity or NaN in a row that
 * somebody could see may reach other rows of the same tile (0 * inf). */
#ifndef STERNWAY_ATTN_BWD_H
#define STERNWAY_ATTN_BWD_H

#include "base.h"

/* Columns of comments are kept by hand: */
/* clang-format off */
#ifdef __cplusplus
extern "C" {
#endif

/* Distance between neighbours, in elements of the tensor; the last dimension (head_dim) is contiguous. */
typedef struct stw_attn_strides {
    int64_t batch; /* ignored by tensors of a packed side, but see the lse strides below */
    int64_t head;
    int64_t seq;
} stw_attn_strides;

/* Bias and its gradient, [B,H,Sq,Sk]; `key` is 1 or 0. A 0 broadcasts the bias over that dimension. */
typedef struct stw_bias_strides {
    int64_t batch;
    int64_t head;
    int64_t query;
    int64_t key;
} stw_bias_strides;

typedef enum stw_attn_mask {
    STW_MASK_NONE = 0,
    STW_MASK_CAUSAL_TOP_LEFT = 1,    /* j <= i (+ diagonal_shift)                    */
    STW_MASK_CAUSAL_BOTTOM_RIGHT = 2 /* j <= i + Lk - Lq (or + diagonal_shift)       */
} stw_attn_mask;

/* Which random bits decide on element (b, h, i, j); b and h include batch_offset and head_offset. All
 * keep the element with probability 1-p and scale what is kept by 1/(1-p). */
typedef enum stw_dropout_map {
    /* Philox4x32-10, word i%4 of counter (i/4, j, b*heads_total + h, offset low) under key (seed low,
     * seed high XOR offset high); keep iff word >= floor(p * 2^32). Positions of the whole problem,
     * i/4 and j modulo 2^32. */
    STW_DROPOUT_PHILOX = 0,
    /* PyTorch's memory-efficient kernel: n = offset + (b*heads_total + h)*Sq*Sk + i*Sk + j, local
     * positions (packed: n = offset + i*Lk' + j for every b and h, Lk' the sequence's own rows); word n%4
     * of Philox-10 counter n/4; keep iff curand_uniform > p, both f32. What PyTorch's forward does: its
     * backward numbers packed heads in another way (dispatch/DESIGN.md). */
    STW_DROPOUT_MEM_EFF = 1,
    /* FlashAttention-2: Philox of 7 rounds, key = seed, one byte an element, 16x32 blocks of positions
     * local to the sequence; keep iff byte <= floor(255*(1-p)), 1-p in f32. */
    STW_DROPOUT_FLASH2 = 2
} stw_dropout_map;

typedef enum stw_deterministic {
    STW_DETERMINISTIC_ENV = 0, /* STERNWAY_DETERMINISTIC, else off */
    STW_DETERMINISTIC_ON = 1,  /* bitwise the same run after run, every feature, or a refusal: never dropped */
    STW_DETERMINISTIC_OFF = 2
} stw_deterministic;

/* Bits of stw_attn_desc.outputs and .accumulate. */
#define STW_OUT_DQ    0x01u
#define STW_OUT_DK    0x02u
#define STW_OUT_DV    0x04u
#define STW_OUT_DBIAS 0x08u
#define STW_OUT_DSINK 0x10u

/* Bits of stw_attn_desc.flags. */
#define STW_ATTN_HAS_SCALE        0x0001u /* `scale` is meant, 0 included; else 1/sqrt(head_dim_qk)          */
#define STW_ATTN_HAS_WINDOW_LEFT  0x0002u /* j >= i + shift - window_left                                    */
#define STW_ATTN_HAS_WINDOW_RIGHT 0x0004u /* j <= i + shift + window_right                                   */
#define STW_ATTN_HAS_SHIFT        0x0008u /* diagonal_shift replaces the shift of POSITIONS                  */
#define STW_ATTN_HAS_USED_LENGTHS 0x0010u /* args.used_q, args.used_kv or both are given, else neither         */
#define STW_ATTN_GIVEN_DELTA      0x0020u /* args.delta is an input, already minus dLSE; args.out may be null */
#define STW_ATTN_WRITE_DELTA      0x0040u /* args.delta is an output                                         */
#define STW_ATTN_ALIBI            0x0080u /* S += -slope_h * |i + shift - j|                                 */
#define STW_ATTN_ALIBI_COLUMN     0x0100u /* with ALIBI: S += slope_h * j instead; LSE differs by slope*(i+shift) */
#define STW_ATTN_SINK             0x0200u /* a sink logit a head; LSE already includes it                    */
#define STW_ATTN_DLSE             0x0400u /* a gradient flows into LSE; excludes GIVEN_DELTA                 */

/* The shape class of a problem. One plan serves every call of its class; in a packed class every batch
 * within max_seq_*, total_* and batch. Sizes: batch, max_seq_* >= 0; heads 1..2^20, heads_q a multiple of
 * heads_kv; head_dim_* 1..256, unequal allowed; every extent < 2^31; no tensor spans 2^63 bytes,
 * and rows * heads_q stay below 2^48. */
typedef struct stw_attn_desc {
    size_t struct_size;
    stw_dtype dtype; /* of q, k, v, out, dout; required */
    /* Gradient types: NONE = as the input (dbias: as the bias), or STW_F32. */
    stw_dtype dq_dtype, dk_dtype, dv_dtype, dbias_dtype;
    stw_dtype bias_dtype; /* NONE = there is no bias; else `dtype` or STW_F32 */

    int64_t batch, heads_q, heads_kv, head_dim_qk, head_dim_v;
    int64_t max_seq_q, max_seq_kv; /* dense: the sizes; packed: upper bounds of one sequence            */
    int64_t total_q, total_kv;     /* > 0: that side is packed with cu_seqlens; upper bound of its rows */

    /* Strides of every tensor that the call uses; others are ignored. >= 0; a stride of 0 over an extent
     * above 1 is a broadcast and allowed for bias and dlse only. Gradients must not overlap themselves;
     * packed interleaved QKV and dQKV (disjoint elements of one buffer) are fine. Rows on 16-byte
     * boundaries select faster kernels; element alignment always works. stw_layout_*() fills all. */
    stw_attn_strides q, k, v, out, dout, dq, dk, dv;
    /* LSE, dLSE, delta: any strides (head, seq), last dimension is seq. Packed q: a batch stride of 0
     * means rows are numbered through the pack, [H,T] or [T,H]; else local rows of [B,H,max_seq_q]. */
    stw_attn_strides lse, dlse, delta;
    stw_bias_strides bias, dbias; /* local rows and keys, also when packed; dbias has the bias's own zeros */
    int64_t alibi_stride_batch;   /* slopes are [Hq] (0) or [B,Hq] (>= Hq)                               */

    uint32_t outputs;    /* STW_OUT_* wanted; 0 = dQ|dK|dV                                                */
    uint32_t accumulate; /* subset of outputs that is added to what is there (f32 only); nothing is zeroed */
    stw_attn_mask mask;
    uint32_t flags; /* STW_ATTN_* */
    int64_t window_left, window_right; /* 0..2^40, with their flags; leave a flag out for no bound         */
    int64_t diagonal_shift;            /* with HAS_SHIFT; any sign, |.| <= 2^40                            */
    float scale;                       /* with HAS_SCALE; finite                                           */
    float softcap;                     /* 0 = off; finite, > 0                                             */
    double dropout_p;                  /* [0, 1); 0 = off                                                  */
    stw_dropout_map dropout_map;
    stw_deterministic deterministic;
    int32_t splits; /* parts that the keys are worked on in parallel: 0 = heuristic, 1..64; 1 in deterministic mode.
                     * Checked, and a hint only: today's kernels always split the keys by their tiles */

    /* This call is a shard of a larger problem: added to the local b and h in dropout counters; h of the
     * ALiBi slopes and sink stays local (pass the shard's own slopes). heads_total 0 = heads_q. */
    int64_t batch_offset, head_offset, heads_total; /* < 2^31; philox: at most 2^32 heads in all          */
} stw_attn_desc;

/* The pointers of one call. Inputs are read only, outputs written only (accumulated ones read too), and
 * no output may overlap another tensor of the call (equal starts are refused, other overlaps are not seen). All tensors live where the context's memory kind
 * says; nothing is kept after the call's work is complete. */
typedef struct stw_attn_args {
    size_t struct_size;
    const void *q, *k, *v; /* [.,H,S,D] of desc.dtype                                                    */
    void *out;             /* backward: input (null allowed with GIVEN_DELTA); forward: output           */
    const void *dout;      /* backward                                                                   */
    float *lse;            /* backward: input; forward: output, or null                                  */
    const float *dlse;     /* with DLSE                                                                  */
    float *delta;          /* with GIVEN_DELTA (input) or WRITE_DELTA (output)                           */
    const void *bias;      /* with bias_dtype                                                            */
    const float *alibi_slopes; /* with ALIBI: [Hq] or [B,Hq]                                             */
    const float *sink;         /* with SINK: [Hq]; -inf switches a head's sink off                       */
    /* Packed sides: B+1 non-decreasing starts in rows, the last <= total_*; sequence b is rows
     * [cu[b], cu[b+1]). With HAS_USED_LENGTHS: [B], null = full. Values out of range are never followed
     * outside the buffers: see status_out. */
    const int32_t *cu_seqlens_q, *cu_seqlens_kv;
    const int32_t *used_q, *used_kv;
    /* Offsets of the local rows in the whole problem: one value a call, or [B] by pointer (then the value
     * is ignored). |.| <= 2^40. */
    const int64_t *q_offsets, *k_offsets;
    int64_t q_offset, k_offset;
    /* Dropout seed and offset: by value, or read from memory by the kernels (then graph replays see new
     * values); a non-null pointer wins. */
    const uint64_t *dropout_seed_ptr, *dropout_offset_ptr;
    uint64_t dropout_seed, dropout_offset;
    void *dq, *dk, *dv; /* gradients asked for in desc.outputs; others may be null */
    void *dbias;        /* the bias's own shape                                    */
    float *dsink;       /* [Hq], f32                                               */
    int32_t *status_out; /* optional: 0, or the STW_DATA_* bits of what was wrong in the values above */
} stw_attn_args;

/* Bits of *status_out. GPU backends clamp such values and go on (nothing is read back); the CPU backend
 * refuses the call with STW_E_INVALID and a text that names the entry. */
#define STW_DATA_CU_SEQLENS_Q  0x01 /* negative, decreasing, above total_q, or a length above max_seq_q   */
#define STW_DATA_CU_SEQLENS_KV 0x02
#define STW_DATA_USED_Q        0x04 /* negative or above the sequence's length                            */
#define STW_DATA_USED_KV       0x08
#define STW_DATA_OFFSETS       0x10 /* beyond +-2^40                                                      */

/* Fill every stride of a descriptor whose sizes are set: contiguous [B,S,H,D], [B,H,S,D], or packed
 * [T,H,D] (for packed sides; a dense side gets [B,S,H,D]). LSE-shaped tensors are [B,H,S] or [H,T];
 * the bias and dbias [B,H,max_seq_q,max_seq_kv]. Errors: STW_E_INVALID (sizes, overflow). */
STW_API stw_status stw_layout_bshd(stw_attn_desc *desc);
STW_API stw_status stw_layout_bhsd(stw_attn_desc *desc);
STW_API stw_status stw_layout_thd(stw_attn_desc *desc);

/* Checks the descriptor and chooses kernels. Planning is the support query: what a plan accepts, the run
 * calls do. Errors: STW_E_INVALID names the field; STW_E_UNSUPPORTED; STW_E_NO_MEMORY. The forward plan
 * ignores what only the backward uses. A plan runs from many threads at once, each call with its own
 * workspace. */
STW_API stw_status stw_attn_bwd_plan(stw_context *context, const stw_attn_desc *desc, stw_plan **plan_out);
STW_API stw_status stw_attn_fwd_plan(stw_context *context, const stw_attn_desc *desc, stw_plan **plan_out);
STW_API void stw_plan_destroy(stw_plan *plan); /* NULL is fine; never while a call with it is being issued */

/* Bytes of workspace a call of this plan needs; 0 = none. Device memory on GPU backends. */
STW_API size_t stw_plan_workspace_size(const stw_plan *plan);

/* Variant, tile, arch, workspace and why, as lines of text. `needed_out` (optional) gets the size with the
 * final zero; a text that does not fit is cut. text may be null with capacity 0. */
STW_API stw_status stw_plan_describe(const stw_plan *plan, char *text, size_t capacity, size_t *needed_out);

/* Run. `workspace`: 256-byte aligned, at least the plan's size, any content; the caller's, free again when
 * the stream has passed the call. GPU: asynchronous in `stream`, no allocation, no synchronisation,
 * capturable in a graph. CPU: complete on return, threads shared with the context's other calls.
 * Errors: STW_E_INVALID (a pointer is missing or misaligned, a plan of the other kind),
 * STW_E_WORKSPACE, STW_E_DRIVER, STW_E_DEVICE_LOST, STW_E_FORKED. */
STW_API stw_status stw_attn_bwd(const stw_plan *plan, const stw_attn_args *args, void *workspace,
                                size_t workspace_size, stw_stream stream);
STW_API stw_status stw_attn_fwd(const stw_plan *plan, const stw_attn_args *args, void *workspace,
                                size_t workspace_size, stw_stream stream);

/* Writes the dropout mask that the plan's calls use with these args (lengths, offsets, seed): uint8
 * [B, Hq, max_seq_q, max_seq_kv], 1 = kept, 0 = dropped or outside the used lengths; all of it is
 * written. Attention masks do not enter. Either kind of plan; no workspace. */
STW_API stw_status stw_dropout_mask(const stw_plan *plan, const stw_attn_args *args, uint8_t *mask,
                                    stw_stream stream);

/* For every backend: chosen, or why not, and for the chosen one the plan's description. Returns STW_OK
 * whenever the text could be written; a refusal of the problem is part of the text. */
STW_API stw_status stw_explain_attn(const stw_context_opts *opts, const stw_attn_desc *desc, char *text,
                                    size_t capacity, size_t *needed_out);

#ifdef __cplusplus
}
#endif
#endif
