/* SPDX-License-Identifier: MIT
 *
 * One (batch, query head) of a problem as small dense arrays: rows that take part, in order, as f64 (exact
 * for every input type). Nothing outside the used rows is read; O and dO of rows that see no key are not
 * read either. Filled by heads.c, evaluated by core.inl (backward) and forward.c. */
#ifndef STW_TOOLS_REFERENCE_HEADS_H
#define STW_TOOLS_REFERENCE_HEADS_H

#include "problem.h"

#define STW_REF_PAIR_VISIBLE 1u /* masks, windows and a bias of bytes allow it        */
#define STW_REF_PAIR_KEPT    2u /* dropout keeps it (set everywhere without dropout)  */

typedef struct stw_ref_head {
    int64_t queries, keys, dim, dim_v;
    double *q, *k, *v, *out, *dout; /* [queries or keys][dim or dim_v]              */
    double *lse, *dlse, *delta;     /* [queries]; dlse 0 without DLSE               */
    unsigned char *visible, *pair;  /* [queries][keys] of STW_REF_PAIR_*            */
    unsigned char *sees, *seen;     /* [queries], [keys]: part of any visible pair  */

    const void *bias; /* null: none, or one of bytes, which is in `pair` */
    stw_dtype bias_dtype;
    int64_t bias_first, bias_query, bias_key;    /* strides of the caller's bias               */
    int64_t dbias_first, dbias_query, dbias_key; /* in a result's dbias; 0 where broadcast     */
    int alibi, alibi_column;
    double slope;
    int64_t diagonal;   /* shift + q offset - k offset: local key of row i's diagonal is i + diagonal */
    int64_t key_offset; /* position of local key 0 */
    double scale, softcap, keep_scale, sink; /* sink -inf: there is none */
    int given_delta;
    stw_dtype dtype;
    stw_ref_side side_q, side_kv;
} stw_ref_head;

/* Allocates for the longest sequences; stw_ref_head_close frees, also after a failure. */
stw_status stw_ref_head_open(const stw_ref_problem *problem, stw_ref_head *head);
void stw_ref_head_close(stw_ref_head *head);

/* In this order, each for the one before: a sequence, its key/value head, its query head. */
void stw_ref_head_load_sequence(const stw_ref_problem *problem, stw_ref_head *head, int64_t b);
void stw_ref_head_load_kv(const stw_ref_problem *problem, stw_ref_head *head, int64_t b, int64_t h_kv);
void stw_ref_head_load_q(const stw_ref_problem *problem, stw_ref_head *head, int64_t b, int64_t h, int backward);

/* alibi at local (i, j), exact; 0 when off. */
long double stw_ref_head_alibi(const stw_ref_head *head, int64_t i, int64_t j);

#endif
