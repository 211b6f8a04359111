/* SPDX-License-Identifier: MIT
 *
 * The oracle: attention forward and backward as plain float64 loops over the formula of
 * include/sternway/attn_bwd.h, and the same in f32 with rounded operands (the baseline of the accuracy
 * rule); of f64 problems long double and f64. Takes the public descriptor and host pointers, shares no code with
 * dispatch or the CPU tiles beyond dtype.h and philox.h's cipher and maps. Linked into the command and the tests, not
 * into the library.
 */
#ifndef STW_TOOLS_REFERENCE_H
#define STW_TOOLS_REFERENCE_H

#include "sternway/sternway.h"

/* Dense results in double. Shapes: dq, dk, dv as [rows][heads][head_dim], where rows is batch*max_seq
 * (dense: row b*max_seq + i) or total (packed: row cu[b] + i); delta and lse [heads_q][rows_q];
 * out [rows_q][heads_q][head_dim_v]; dbias: one double per element of the bias's own shape in order
 * [B|1][H|1][Sq|1][Sk|1] (dimensions broadcast by stride 0 have extent 1); dsink [heads_q].
 * Rows that the call must not touch hold NaN. accumulate is ignored: these are the added amounts. */
typedef struct stw_ref_result {
    double *out, *lse;                            /* forward  */
    double *dq, *dk, *dv, *dbias, *dsink, *delta; /* backward */
    /* the formula on absolute values, for the rule where the reference is 0 throughout; backward only */
    double *abs_dq, *abs_dk, *abs_dv, *abs_dbias, *abs_dsink;
    int64_t rows_q, rows_kv;
    int64_t bias_extent[4];
    unsigned char *row_q, *row_kv; /* [rows_q], [rows_kv]: one stw_ref_row each */
} stw_ref_result;

/* What a row of the q or kv side is to the problem. A NaN in a result is "untouched" only in rows that say
 * so here; elsewhere it is a NaN that the inputs made. */
typedef enum stw_ref_row {
    STW_REF_ROW_UNTOUCHED = 0, /* outside every sequence: the call may not write it           */
    STW_REF_ROW_LIVE = 1,      /* takes part in at least one visible pair                     */
    STW_REF_ROW_ZERO = 2       /* used but part of no visible pair, or padding: exactly zero  */
} stw_ref_row;

/* How the baseline evaluates: permutation seed 0..3 of keys, queries and head dim; exp2 form or exp. */
typedef struct stw_ref_mode {
    int f32;       /* 0: float64, nothing rounded. 1: f32 arithmetic, P and dS rounded as operands,
                      every output rounded once to its type. f64 problems: long double and f64 */
    uint32_t seed; /* order of summation (f32)                   */
    int exp2_form; /* exp2(fma(S, log2e, -LSE*log2e))  (f32)     */
} stw_ref_mode;

/* Both return STW_OK, STW_E_NO_MEMORY or STW_E_INVALID (a descriptor outside the documentation is the
 * caller's defect: callers plan first). Results are allocated; free with stw_ref_free. All pointers in args
 * are host memory; device-pointer seeds and offsets are read. */
stw_status stw_ref_attn_fwd(const stw_attn_desc *desc, const stw_attn_args *args, stw_ref_result *result_out);
stw_status stw_ref_attn_bwd(const stw_attn_desc *desc, const stw_attn_args *args, const stw_ref_mode *mode,
                            stw_ref_result *result_out);
void stw_ref_free(stw_ref_result *result);

#endif
