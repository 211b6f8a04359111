/* SPDX-License-Identifier: MIT */
/** @file
 * Sternway: the descriptor of an attention problem: masks, dropout maps, flags, sizes, types and strides;
 * it chooses kernels and workspace at plan time. The notation, the formulas and the calls are in attn_bwd.h,
 * which includes this file. */
#ifndef STERNWAY_ATTN_DESC_H
#define STERNWAY_ATTN_DESC_H

#include "base.h"

/* Columns of comments are kept by hand: */
/* clang-format off */
#ifdef __cplusplus
extern "C" {
#endif

/** Distance between neighbours, in elements of the tensor; the last dimension (head_dim) is contiguous, but see
 * stw_attn_dim_strides. */
typedef struct stw_attn_strides {
    int64_t batch; /**< ignored by tensors of a packed side, but see stw_attn_desc.lse */
    int64_t head;  /**< from one head to the next                                      */
    int64_t seq;   /**< from one row to the next                                       */
} stw_attn_strides;

/** Distance between neighbours along head_dim of the inputs, with STW_ATTN_HAS_DIM_STRIDES; 0 is a broadcast.
 * An input with another than 1 is copied into the workspace first, without the dimensions that are broadcast.
 * GPU backends also copy an input whose rows are broadcast, to as many rows: all of them at one address are slow. */
typedef struct stw_attn_dim_strides {
    int64_t q;    /**< of q               */
    int64_t k;    /**< as q               */
    int64_t v;    /**< as q               */
    int64_t out;  /**< forward: 1         */
    int64_t dout; /**< as q               */
} stw_attn_dim_strides;

/** Bias and its gradient, [B,H,Sq,Sk]; `key` is 1 or 0. A 0 broadcasts the bias over that dimension. */
typedef struct stw_bias_strides {
    int64_t batch; /**< from one batch (packed: sequence) to the next */
    int64_t head;  /**< from one query head to the next               */
    int64_t query; /**< from one query row to the next                */
    int64_t key;   /**< 1 or 0                                        */
} stw_bias_strides;

/** Intervals of query rows that do not see a key, [B, 1 or Hk, Sk, bounds] of int32; see stw_attn_intervals. Any
 * strides >= 0, 0 is a broadcast. Packed keys: a batch stride of 0 means keys are numbered through the pack, else
 * local keys. */
typedef struct stw_interval_strides {
    int64_t batch; /**< from one batch (packed: sequence) to the next                          */
    int64_t head;  /**< from one key head to the next; 0: one mask for all heads               */
    int64_t key;   /**< from one key to the next                                               */
    int64_t bound; /**< from one bound of a key to its next                                    */
} stw_interval_strides;

/** Blocks of STW_MASK_BLOCK query rows and keys that are hidden: see stw_attn_desc.block_mask. */
typedef struct stw_block_mask_strides {
    int64_t batch; /**< from one batch (packed: sequence) to the next                          */
    int64_t head;  /**< from one query head to the next; 0: one mask for all heads             */
    int64_t query; /**< from one block of rows to the next                                     */
    int64_t key;   /**< from one block of keys to the next                                     */
} stw_block_mask_strides;

/** Which query rows do not see key j, by the bounds c0, c1, ... of that key; i is the row's position, local row +
 * q offset. They come on top of `mask` and windows. An interval that ends before it begins hides nothing. These are the
 * column forms of FlashMask: lower-triangle start and end, upper-triangle start and end. */
typedef enum stw_attn_intervals {
    STW_INTERVALS_NONE = 0,        /**< there is no such mask                                  */
    STW_INTERVALS_FROM = 1,        /**< 1 bound: i >= c0                                       */
    STW_INTERVALS_RANGE = 2,       /**< 2 bounds: c0 <= i < c1                                 */
    STW_INTERVALS_FROM_BELOW = 3,  /**< 2 bounds: i >= c0 or i < c1                            */
    STW_INTERVALS_RANGE_BELOW = 4, /**< 3 bounds: c0 <= i < c1 or i < c2                       */
    STW_INTERVALS_TWO_RANGES = 5   /**< 4 bounds: c0 <= i < c1 or c2 <= i < c3                 */
} stw_attn_intervals;

/** Which keys j a query i sees; windows come on top. */
typedef enum stw_attn_mask {
    STW_MASK_NONE = 0,               /**< all                                             */
    STW_MASK_CAUSAL_TOP_LEFT = 1,    /**< j <= i (+ diagonal_shift)                       */
    STW_MASK_CAUSAL_BOTTOM_RIGHT = 2 /**< j <= i + Lk - Lq (or + diagonal_shift)          */
} stw_attn_mask;

/** Which random bits decide on element (b, h, i, j); b and h include batch_offset and head_offset. All
 * keep the element with probability 1-p and scale what is kept by 1/(1-p). */
typedef enum stw_dropout_map {
    /** Philox4x32-10, word i%4 of counter (i/4, j, b*heads_total + h, offset low) under key (seed low,
     * seed high XOR offset high); keep iff word >= floor(p * 2^32). Positions of the whole problem,
     * i/4 and j modulo 2^32. */
    STW_DROPOUT_PHILOX = 0,
    /** PyTorch's memory-efficient kernel: n = offset + (b*heads_total + h)*Sq*Sk + i*Sk + j, local
     * positions (packed: n = offset + i*Lk' + j for every b and h, Lk' the sequence's own rows); word n%4
     * of Philox-10 counter n/4; keep iff curand_uniform > p, both f32. What PyTorch's forward does: its
     * backward numbers packed heads in another way (dispatch/DESIGN.md). */
    STW_DROPOUT_MEM_EFF = 1,
    /** FlashAttention-2: Philox of 7 rounds, key = seed, one byte an element, 16x32 blocks of positions
     * local to the sequence; keep iff byte <= floor(255*(1-p)), 1-p in f32. */
    STW_DROPOUT_FLASH2 = 2
} stw_dropout_map;

/** Whether the same call gives the same bits. */
typedef enum stw_deterministic {
    STW_DETERMINISTIC_ENV = 0, /**< STERNWAY_DETERMINISTIC, else off */
    STW_DETERMINISTIC_ON = 1,  /**< bitwise the same, every feature, or a refusal: never dropped */
    STW_DETERMINISTIC_OFF = 2  /**< in whatever order is fastest */
} stw_deterministic;

/** @name Bits of stw_attn_desc.outputs and .accumulate
 * @{ */
#define STW_OUT_DQ    0x01u /**< the gradient of q                            */
#define STW_OUT_DK    0x02u /**< the gradient of k                            */
#define STW_OUT_DV    0x04u /**< the gradient of v                            */
#define STW_OUT_DBIAS 0x08u /**< the gradient of the bias, in its own shape   */
#define STW_OUT_DSINK 0x10u /**< the gradient of the sink logits              */
/** @} */

/** @name Bits of stw_attn_desc.flags
 * @{ */
#define STW_ATTN_HAS_SCALE        0x0001u /**< `scale` is meant, 0 included; else 1/sqrt(head_dim_qk) */
#define STW_ATTN_HAS_WINDOW_LEFT  0x0002u /**< j >= i + shift - window_left */
#define STW_ATTN_HAS_WINDOW_RIGHT 0x0004u /**< j <= i + shift + window_right */
#define STW_ATTN_HAS_SHIFT        0x0008u /**< diagonal_shift replaces the shift of POSITIONS */
#define STW_ATTN_HAS_USED_LENGTHS 0x0010u /**< args.used_q, args.used_kv or both are given, else neither */
#define STW_ATTN_GIVEN_DELTA      0x0020u /**< args.delta is given, less dLSE already; args.out may be null */
#define STW_ATTN_WRITE_DELTA      0x0040u /**< args.delta is an output */
#define STW_ATTN_ALIBI            0x0080u /**< S += -slope_h * |i + shift - j| */
#define STW_ATTN_ALIBI_COLUMN     0x0100u /**< with ALIBI: S += slope_h * j; LSE differs by slope*(i+shift) */
#define STW_ATTN_SINK             0x0200u /**< a sink logit a head; LSE already includes it */
#define STW_ATTN_DLSE             0x0400u /**< a gradient flows into LSE; excludes GIVEN_DELTA */
#define STW_ATTN_PACKED_Q         0x0800u /**< q is packed with cu_seqlens_q, a pack of 0 rows included */
#define STW_ATTN_PACKED_KV        0x1000u /**< k and v are packed with cu_seqlens_kv, 0 rows included */
#define STW_ATTN_HAS_DIM_STRIDES  0x2000u /**< `dim` is meant, zeros included; else head_dim is contiguous */
#define STW_ATTN_ANY_ADDRESS      0x4000u /**< inputs start off 16 bytes: GPUs copy all where that is faster */
#define STW_ATTN_BLOCK_MASK       0x8000u /**< args.block_mask hides blocks of STW_MASK_BLOCK rows and keys */
/** @} */

/** Rows and keys of a block of STW_ATTN_BLOCK_MASK. */
#define STW_MASK_BLOCK 128

/** The shape class of a problem. One plan serves every call of its class; in a packed class every batch
 * within max_seq_*, total_* and batch. Sizes: batch, max_seq_* >= 0; heads 1..2^20, heads_q a multiple of
 * heads_kv; head_dim_* 1..256, unequal allowed; every extent < 2^31; no tensor spans 2^63 bytes. heads_q times the
 * rows of either side (all sequences) is at most 2^48, and batch * heads_q * the larger max_seq_* at most 2^56. */
typedef struct stw_attn_desc {
    size_t struct_size; /**< sizeof(stw_attn_desc) */
    /** Of q, k, v, out, dout; required. STW_F64 (CPU backend only) makes everything f64: gradients, bias, and
     * what the float pointers of stw_attn_args point to. */
    stw_dtype dtype;
    stw_dtype dq_dtype; /**< gradient types: NONE = as the input, or STW_F32 (not with f64 inputs) */
    stw_dtype dk_dtype; /**< as dq_dtype */
    stw_dtype dv_dtype; /**< as dq_dtype */
    stw_dtype dbias_dtype;  /**< NONE = as the bias, or STW_F32 (not with f64 inputs); NONE for a bias of STW_U8 */
    /** NONE = there is no bias; else `dtype` or STW_F32 (not with f64 inputs), or STW_U8: a mask of bytes, 0 hides
     * the pair and any other value lets it be seen. It has no gradient. */
    stw_dtype bias_dtype;

    int64_t batch;       /**< B; packed: upper bound of the sequences             */
    int64_t heads_q;     /**< Hq, a multiple of heads_kv                          */
    int64_t heads_kv;    /**< Hk                                                  */
    int64_t head_dim_qk; /**< D, of q and k                                       */
    int64_t head_dim_v;  /**< Dv, of v, out and dout                              */
    int64_t max_seq_q;   /**< dense: Sq; packed: upper bound of one sequence      */
    int64_t max_seq_kv;  /**< dense: Sk; packed: upper bound of one sequence      */
    int64_t total_q;     /**< packed: upper bound of q's rows; > 0 means PACKED_Q without the flag, too */
    int64_t total_kv;    /**< packed: upper bound of k's and v's rows; > 0 means PACKED_KV likewise */

    /** Strides of every tensor that the call uses; others are ignored. >= 0; a stride of 0 over an extent
     * above 1 is a broadcast and allowed for the inputs q, k, v, out, dout, bias and dlse. Gradients must not
     * overlap themselves; packed interleaved QKV and dQKV (disjoint elements of one buffer) are fine. Rows on
     * 16-byte boundaries are faster: GPUs copy others; element alignment always works. stw_layout_*() fills all. */
    stw_attn_strides q;
    stw_attn_strides k;    /**< as q */
    stw_attn_strides v;    /**< as q */
    stw_attn_strides out;  /**< as q */
    stw_attn_strides dout; /**< as q */
    stw_attn_strides dq;   /**< as q */
    stw_attn_strides dk;   /**< as q */
    stw_attn_strides dv;   /**< as q */
    /** LSE, dLSE, delta: any strides (head, seq), last dimension is seq. Packed q: a batch stride of 0
     * means rows are numbered through the pack, [H,T] or [T,H]; else local rows of [B,H,max_seq_q]. */
    stw_attn_strides lse;
    stw_attn_strides dlse;  /**< as lse */
    stw_attn_strides delta; /**< as lse */
    stw_bias_strides bias;  /**< local rows and keys, also when packed */
    stw_bias_strides dbias; /**< as bias, and with the bias's own zeros */
    int64_t alibi_stride_batch; /**< slopes are [Hq] (0) or [B,Hq] (>= Hq) */

    uint32_t outputs;    /**< STW_OUT_* wanted; 0 = dQ|dK|dV */
    /** Subset of outputs that is added to what is there (f32; f64 with f64 inputs); nothing is zeroed. */
    uint32_t accumulate;
    stw_attn_mask mask;     /**< windows: `flags`                                          */
    uint32_t flags;         /**< STW_ATTN_*                                                */
    int64_t window_left;    /**< 0..2^40, with its flag; leave the flag out for no bound   */
    int64_t window_right;   /**< as window_left                                            */
    int64_t diagonal_shift; /**< with HAS_SHIFT; any sign, |.| <= 2^40                     */
    float scale;            /**< with HAS_SCALE; finite                                    */
    float softcap;          /**< 0 = off; finite, > 0                                      */
    double dropout_p;       /**< [0, 1); 0 = off                                           */
    stw_dropout_map dropout_map;     /**< which elements are dropped                       */
    stw_deterministic deterministic; /**< the same bits run after run                      */

    /** This call is a shard of a larger problem: added to the local b and h in dropout counters; h of the
     * ALiBi slopes and sink stays local (pass the shard's own slopes). heads_total 0 = heads_q.
     * < 2^31; philox: at most 2^32 heads in all. */
    int64_t batch_offset;
    int64_t head_offset; /**< see batch_offset */
    int64_t heads_total; /**< see batch_offset */
    stw_attn_dim_strides dim; /**< with HAS_DIM_STRIDES */

    /** Of an f64 problem: where it is not 0, it is taken instead of `scale`, with or without HAS_SCALE.
     * Finite. (Without either the scale is 1/sqrt(head_dim_qk) in f64.) */
    double scale_f64;
    double softcap_f64; /**< likewise instead of `softcap`; finite, > 0 */

    stw_attn_intervals interval_form; /**< which bounds a key has; NONE: args.intervals is not looked at */
    stw_interval_strides intervals;   /**< of args.intervals                                             */
    /** Of args.block_mask, with BLOCK_MASK: bytes [B, 1 or Hq, ceil(max_seq_q/128), ceil(max_seq_kv/128)], 0 hides the
     * block and any other value leaves it to the other masks. Local rows and keys, also when packed; any strides >= 0,
     * 0 is a broadcast. */
    stw_block_mask_strides block_mask;
} stw_attn_desc;

/** Fills every stride of a descriptor whose sizes are set: contiguous [B,S,H,D]. LSE-shaped tensors are
 * [B,H,S] or [H,T]; the bias and dbias [B,H,max_seq_q,max_seq_kv]. With interval_form: intervals [B,1,Sk,bounds] or
 * [1,1,T,bounds]; with BLOCK_MASK: block_mask [B,1,blocks of rows,blocks of keys]. With HAS_DIM_STRIDES each of `dim`
 * is 1. alibi_stride_batch stays as it is.
 * @param desc  its sizes, flags and interval_form are read, its strides are set
 * @return STW_OK, STW_E_INVALID (sizes, overflow) or STW_E_UNSUPPORTED (a size above its limit). */
STW_API stw_status stw_layout_bshd(stw_attn_desc *desc);
/** As stw_layout_bshd(), but [B,H,S,D].
 * @param desc  its sizes are read, its strides are set
 * @return STW_OK, STW_E_INVALID (sizes, overflow) or STW_E_UNSUPPORTED (a size above its limit). */
STW_API stw_status stw_layout_bhsd(stw_attn_desc *desc);
/** As stw_layout_bshd(), but [T,H,D] for packed sides; a dense side gets [B,S,H,D].
 * @param desc  its sizes are read, its strides are set
 * @return STW_OK, STW_E_INVALID (sizes, overflow) or STW_E_UNSUPPORTED (a size above its limit). */
STW_API stw_status stw_layout_thd(stw_attn_desc *desc);

/** Sets the mask to what FlashAttention 2 makes of its pair of windows, in flash-attn and in PyTorch's
 * _flash_attention_forward and _backward, dense and packed (csrc/flash_attn/flash_api.cpp): a size that is
 * negative or not below max_seqlen_k is no bound; causal puts 0 on the right; beside a bound, one that is
 * absent is max_seqlen_k, which on the right hides keys where there are more queries. Diagonals end
 * bottom-right, at used lengths: seqused_k is args.used_kv with STW_ATTN_HAS_USED_LENGTHS, and has no part in
 * this. With STW_ATTN_ALIBI in flags, STW_ATTN_ALIBI_COLUMN is set where their kernels take that form and
 * cleared elsewhere.
 * @param desc               its sizes are read: max_seq_q and max_seq_kv are their max_seqlen_q and
 *                           max_seqlen_k (dense: Sq and Sk). mask, window_left, window_right, diagonal_shift
 *                           and their flags are set; a bound that hides nothing is left out
 * @param causal             not 0: their causal, is_causal
 * @param window_size_left   theirs; PyTorch's None: -1
 * @param window_size_right  as window_size_left
 * @return STW_OK or STW_E_INVALID (desc is null or too short, sizes). */
STW_API stw_status stw_attn_mask_from_flash(stw_attn_desc *desc, int causal, int64_t window_size_left,
                                            int64_t window_size_right);

#ifdef __cplusplus
}
#endif
#endif
