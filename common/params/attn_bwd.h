/* SPDX-License-Identifier: MIT
 *
 * The parameter block of every attention kernel: the only contract between host and device code.
 * dispatch/attn_params.c fills the shape part at plan time, and the pointers of a call;
 * CPU tiles, CUDA and HIP kernels read it. Plain fixed-width fields, the same layout for every
 * compiler, asserted at the end. Strides are in elements. */
#ifndef STW_COMMON_PARAMS_ATTN_BWD_H
#define STW_COMMON_PARAMS_ATTN_BWD_H

#include "sternway/attn_bwd.h" /* the values of stw_dtype, STW_OUT_*, stw_dropout_map and STW_DATA_* */

#include <stddef.h>
#include <stdint.h>

/* Qualifier of the small functions that host and device share; common/device/device.h sets its own. */
#ifndef STW_SHARED_FN
#define STW_SHARED_FN static inline
#endif

/* Bits of stw_attn_params.features: what this problem uses, so that kernels test one word. */
#define STW_FEAT_WINDOW_LEFT      0x0001u /* window_left is a bound                                       */
#define STW_FEAT_WINDOW_RIGHT     0x0002u /* window_right is a bound (causal masks set it, at most 0)     */
#define STW_FEAT_FIXED_SHIFT      0x0004u /* shift = fixed_shift; else Lk - Lq                            */
#define STW_FEAT_BIAS             0x0008u
#define STW_FEAT_ALIBI            0x0010u
#define STW_FEAT_ALIBI_COLUMN     0x0020u
#define STW_FEAT_SOFTCAP          0x0040u
#define STW_FEAT_SINK             0x0080u
#define STW_FEAT_DLSE             0x0100u
#define STW_FEAT_DROPOUT          0x0200u
#define STW_FEAT_GIVEN_DELTA      0x0400u
#define STW_FEAT_WRITE_DELTA      0x0800u
#define STW_FEAT_DETERMINISTIC    0x1000u
#define STW_FEAT_PACKED_Q         0x2000u /* cu_seqlens_q numbers the rows of q, out, dout, dq            */
#define STW_FEAT_PACKED_KV        0x4000u
#define STW_FEAT_PACKED_LSE       0x8000u /* lse rows are numbered through the pack                       */
#define STW_FEAT_PACKED_DLSE      0x10000u
#define STW_FEAT_PACKED_DELTA     0x20000u
#define STW_FEAT_USED_LENGTHS     0x40000u  /* used_q and/or used_kv are given                             */
#define STW_FEAT_INTERVALS        0x80000u  /* interval_form is not STW_INTERVALS_NONE                      */
#define STW_FEAT_PACKED_INTERVALS 0x100000u /* keys of intervals are numbered through the pack          */
#define STW_FEAT_BLOCK_MASK       0x200000u
/* Attention over ranks rounds f32 dK and dV to the inputs' 16 bits later, so main loops need not drain their sums. */
#define STW_FEAT_ROUNDED_SUMS 0x400000u
/* Also of attention over ranks, on GPUs: a call adds to sums of dQ that other calls add to as well, and neither zeroes
 * nor converts them. dq is where its first row lies among them, dq.head how many numbers a head takes. */
#define STW_FEAT_KEPT_DQ 0x20000000u
/* The call after these: its last kernel alone, which makes dQ of the sums. They are its workspace. */
#define STW_FEAT_FINISHED_DQ 0x40000000u
/* The call before these: its first kernel alone, which makes the statistics of all rows and zeroes the sums, in its
 * workspace. With KEPT_STATS the calls after it read these statistics: delta is where those of their first row lie. */
#define STW_FEAT_STARTED_DQ 0x80000000u
#define STW_FEAT_KEPT_STATS 0x800000u

/* Rows of q go on with zeros up to a multiple of 16 bytes; times 2, 4, 8, 16: those of k, v, out, dout (the order of
 * common/attn_tensors.def). Copies in the workspace do. */
#define STW_FEAT_PADDED 0x1000000u

#define STW_OUT_DQKV (STW_OUT_DQ | STW_OUT_DK | STW_OUT_DV) /* the three gradients of the main loop */

typedef struct stw_tensor_param {
    void *data;
    int64_t batch, head, seq;
} stw_tensor_param;

typedef struct stw_bias_param {
    void *data;
    int64_t batch, head, query, key;
} stw_bias_param;

typedef struct stw_interval_param {
    const int32_t *data;
    int64_t batch, head, key, bound;
} stw_interval_param;

typedef struct stw_block_mask_param {
    const uint8_t *data;
    int64_t batch, head, query, key;
} stw_block_mask_param;

typedef struct stw_attn_params {
    stw_tensor_param q, k, v, out, dout, dq, dk, dv; /* packed sides: batch stride 0 */
    stw_tensor_param lse, dlse, delta;
    stw_bias_param bias, dbias;
    stw_interval_param intervals; /* PACKED_INTERVALS: batch stride 0 */
    stw_block_mask_param block_mask;
    const float *alibi_slopes;
    const float *sink;
    float *dsink;
    const int32_t *cu_seqlens_q, *cu_seqlens_kv, *used_q, *used_kv; /* null: absent */
    const int64_t *q_offsets, *k_offsets;                           /* null: the values below */
    const uint64_t *dropout_seed_ptr, *dropout_offset_ptr;          /* null: the values below */
    int32_t *status_out;
    uint8_t *mask_out; /* dropout mask call only */

    int64_t q_offset, k_offset;
    uint64_t dropout_seed, dropout_offset;
    int64_t alibi_stride_batch;
    int64_t batch, heads_q, heads_kv, group; /* group = heads_q / heads_kv */
    int64_t max_seq_q, max_seq_kv, total_q, total_kv;
    int64_t window_left, window_right; /* i + shift - left <= j <= i + shift + right */
    int64_t fixed_shift;
    int64_t batch_offset, head_offset, heads_total;

    double dropout_p;
    uint32_t dropout_threshold; /* keep iff word >= it; philox: floor(p * 2^32); mem_eff: see attn_params.c */
    uint32_t dropout_byte;      /* flash2: keep iff byte <= floor(255 * (1 - p)), 1 - p in f32            */
    float dropout_scale;        /* 1 / (1 - p)                                              */
    float scale, softcap;       /* softcap 0 = off                                          */
    uint32_t dropout_map;       /* stw_dropout_map                                          */
    uint32_t head_dim_qk, head_dim_v;
    uint32_t dtype, bias_dtype, dq_dtype, dk_dtype, dv_dtype, dbias_dtype; /* stw_dtype      */
    uint32_t outputs, accumulate; /* STW_OUT_*                                                */
    uint32_t features;            /* STW_FEAT_*                                               */
    uint32_t units;               /* multiprocessors that a GPU's plan shares work among; 0: no matter */
    uint32_t interval_form;       /* stw_attn_intervals                                                     */
    uint32_t unused[3];           /* 0                                                                      */
} stw_attn_params;

STW_SHARED_FN int64_t stw_clamp_i64(int64_t value, int64_t low, int64_t high) {
    return value < low ? low : value > high ? high : value;
}

#define STW_POSITION_MAX (INT64_C(1) << 40) /* bound of offsets, windows and shifts */

#if defined(__cplusplus)
#define STW_PARAMS_ASSERT static_assert
#else
#define STW_PARAMS_ASSERT _Static_assert
#endif
STW_PARAMS_ASSERT(sizeof(void *) == 8, "device code and host code are 64-bit");
STW_PARAMS_ASSERT(sizeof(stw_tensor_param) == 32 && sizeof(stw_bias_param) == 40, "tensor parameters");
STW_PARAMS_ASSERT(sizeof(stw_interval_param) == 40 && sizeof(stw_block_mask_param) == 40, "parameters of masks");
STW_PARAMS_ASSERT(offsetof(stw_attn_params, bias) == 11 * 32, "tensors first");
STW_PARAMS_ASSERT(sizeof(stw_attn_params) == 864, "host and device agree on the parameter block");

#endif
