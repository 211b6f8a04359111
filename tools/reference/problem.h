/* SPDX-License-Identifier: MIT
 *
 * The oracle's reading of a problem: what the public descriptor and arguments say, one plain function for
 * each rule of include/sternway/attn_bwd.h. Written from that header alone, so that an error in the
 * dispatch layer's parameter block cannot hide here. Used by heads.c, backward.c, forward.c, accuracy.c. */
#ifndef STW_TOOLS_REFERENCE_PROBLEM_H
#define STW_TOOLS_REFERENCE_PROBLEM_H

#include "sternway/sternway.h"

/* One side (q or kv) of one sequence. */
typedef struct stw_ref_side {
    int64_t first;  /* packed: row of its start in the pack; dense: 0 */
    int64_t rows;   /* up to the sequence's end                       */
    int64_t used;   /* that take part                                 */
    int64_t offset; /* position of row 0 in the whole problem         */
} stw_ref_side;

typedef struct stw_ref_problem {
    const stw_attn_desc *desc;
    const stw_attn_args *args;
    int packed_q, packed_kv;
    int64_t rows_q, rows_kv; /* rows of a result: batch*max_seq, or total */
    int64_t group;           /* query heads a key/value head              */
    int64_t bias_extent[4];  /* 1 where the bias is broadcast             */
    int64_t heads_total;
    double scale, softcap;
    uint64_t seed, offset; /* of dropout */
    uint32_t outputs;
} stw_ref_problem;

/* Also checks that everything the loops will read is there. */
stw_status stw_ref_problem_init(stw_ref_problem *problem, const stw_attn_desc *desc, const stw_attn_args *args,
                                int backward);

stw_ref_side stw_ref_side_q(const stw_ref_problem *problem, int64_t b);
stw_ref_side stw_ref_side_kv(const stw_ref_problem *problem, int64_t b);

/* The shift of POSITIONS, without offsets. */
int64_t stw_ref_shift(const stw_ref_problem *problem, const stw_ref_side *q, const stw_ref_side *kv);

/* Masks and windows allow local row i to see local key j (both used). */
int stw_ref_visible(const stw_ref_problem *problem, const stw_ref_side *q, const stw_ref_side *kv, int64_t i,
                    int64_t j);

/* Intervals and block mask allow query head h of sequence b to see local (i, j). */
int stw_ref_unhidden(const stw_ref_problem *problem, const stw_ref_side *q, const stw_ref_side *kv, int64_t b,
                     int64_t h, int64_t i, int64_t j);
/* There are such masks. */
int stw_ref_hides(const stw_ref_problem *problem);

/* Dropout keeps the element (local b, h, i, j). */
int stw_ref_keeps(const stw_ref_problem *problem, const stw_ref_side *q, const stw_ref_side *kv, int64_t b, int64_t h,
                  int64_t i, int64_t j);

/* Index of element 0 of local row i: of a tensor of the q or kv side, and of lse, dlse, delta. */
int64_t stw_ref_row_index(const stw_attn_strides *strides, int packed, const stw_ref_side *side, int64_t b, int64_t h,
                          int64_t i);
int64_t stw_ref_lse_index(const stw_ref_problem *problem, const stw_attn_strides *strides, const stw_ref_side *q,
                          int64_t b, int64_t h, int64_t i);

/* Row of a result that local row i is: b*max_seq + i, or first + i. */
int64_t stw_ref_result_row(int packed, int64_t max_seq, const stw_ref_side *side, int64_t b, int64_t i);

#endif
