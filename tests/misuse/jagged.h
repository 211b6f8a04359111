/* SPDX-License-Identifier: MIT
 *
 * Small nested problems, one an op, that the jagged misuse tests start from; complaints, texts and rows of
 * assignments are misuse.h's. Three components (one empty), lengths 3, 0, 5 in a buffer of 10 positions that
 * begins with a gap. Written from include/sternway/jagged_bwd.h alone. */
#ifndef STW_TESTS_MISUSE_JAGGED_H
#define STW_TESTS_MISUSE_JAGGED_H

#include "misuse.h"

#include "tests/jagged/arena.h"

typedef enum jbase {
    J_MATMUL,     /* m ragged: x [m,4], other dense [4,5], grad [m,5]                           */
    J_MATMUL_MN,  /* m and n ragged, k = 4: grad by bases                                       */
    J_LINEAR,     /* bf16: X [r,6], W [7,6]                                                     */
    J_SOFTMAX,    /* [2, r, 6] along 3 of inner's 3 x 2                                         */
    J_SUM,        /* along outer                                                                */
    J_SELECT,     /* [2, r, 6], index 1 of inner's 3                                            */
    J_SELECT_RAG, /* index 0 along the ragged dimension of lengths 3, 2, 3                      */
    J_GELU,       /* f16                                                                        */
    J_THRESHOLD,  /* int32 offsets                                                              */
    J_LAYER_NORM, /* gamma                                                                      */
    J_RESHAPE,    /* [2, r, 6] from [-1, 3, 4]                                                  */
    J_TO_PADDED,
    J_FROM_PADDED,
    J_ATTENTION,
    J_LOG_SOFTMAX, /* as J_SOFTMAX                                                              */
    J_RMS_NORM,    /* gamma                                                                     */
    J_COUNT
} jbase;

enum { J_BLOCK = 2048 }; /* bytes of every tensor: more than any problem here needs */

typedef struct jfixture {
    jbase which;
    stw_context *context;
    stw_jagged_desc desc;
    stw_jagged_args args;
    stw_attn_desc attn;
    stw_attn_args attn_args;
    arena memory;
    stw_plan *plan;
    void *workspace;
    size_t need;         /* bytes of workspace */
    unsigned char *good; /* all outputs as the correct call leaves them */
} jfixture;

void jfixture_open(jfixture *f, jbase which); /* plans and runs it: fails the test if that is refused */
void jfixture_close(jfixture *f);
stw_status jfixture_run(jfixture *f, const stw_jagged_args *args);
void jfixture_unchanged(jfixture *f, const char *what, int but_status_out);
void jfixture_still_works(jfixture *f); /* the correct call gives the same bits as at the beginning */

/* The descriptor alone. `attn` is where an attention problem's own descriptor goes. */
stw_jagged_desc jbase_desc(jbase which, stw_attn_desc *attn);
int32_t *jfixture_status(jfixture *f);

#define JSET(field, value)      SET_IN(stw_jagged_desc, field, value)
#define JSET_REAL(field, value) {offsetof(stw_jagged_desc, field), SET_F64, 0, value}
#define JSET_FLAG(bits)         {offsetof(stw_jagged_desc, flags), SET_OR, bits, 0}
#define JSET_PTR(field)         {offsetof(stw_jagged_desc, field), SET_U64, 0, 0}

#endif
