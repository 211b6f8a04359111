/* SPDX-License-Identifier: MIT
 *
 * Ranks of a test: threads over the command's transport in memory, each with a context of its own. */
#ifndef STW_TESTS_CP_RANKS_H
#define STW_TESTS_CP_RANKS_H

#include "tools/cp/cp.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { RANKS_MAX = 8 };

typedef struct test_rank {
    cp_rank rank;
    void *user;
    void (*work)(struct test_rank *rank);
    stw_status status; /* what the work left */
    char text[1024];
    pthread_t thread;
} test_rank;

/* What a call gave, with its text: threads have no asserts. */
static inline stw_status note(test_rank *r, stw_status status) {
    r->status = status;
    snprintf(r->text, sizeof r->text, "%s", status ? stw_last_error() : "");
    return status;
}

static inline void *rank_main(void *user) {
    test_rank *r = user;
    stw_context_opts opts = STW_INIT(stw_context_opts);
    opts.backend = STW_BACKEND_CPU;
    opts.memory = STW_MEMORY_HOST;
    opts.cpu_threads = 1;
    if (note(r, stw_context_create(&opts, &r->rank.context))) return NULL;
    if (!note(r, stw_cp_create(&r->rank.wire, r->rank.rank, r->rank.size, &r->rank.cp))) r->work(r);
    stw_cp_destroy(r->rank.cp);
    stw_context_destroy(r->rank.context);
    return NULL;
}

/* Runs `work` on all ranks; `wrap` (or NULL) changes a rank's transport. */
static inline void run_ranks(test_rank *ranks, int32_t size, double timeout_s, void (*work)(test_rank *), void *user,
                             void (*wrap)(test_rank *)) {
    cp_local *local = cp_local_create(size, timeout_s);
    assert_non_null(local);
    for (int32_t r = 0; r < size; ++r) {
        memset(&ranks[r], 0, sizeof ranks[r]);
        ranks[r].rank = (cp_rank){.wire = cp_local_transport(local, r), .rank = r, .size = size};
        ranks[r].user = user;
        ranks[r].work = work;
        if (wrap) wrap(&ranks[r]);
        assert_int_equal(pthread_create(&ranks[r].thread, NULL, rank_main, &ranks[r]), 0);
    }
    for (int32_t r = 0; r < size; ++r) pthread_join(ranks[r].thread, NULL);
    cp_local_destroy(local);
}

/* A causal f32 problem of one head pair and 8 rows a rank, whose tensors are all of one value. */
typedef struct small_problem {
    stw_attn_desc attn;
    stw_cp_desc desc;
    float q[8][2][16], k[8][2][16], v[8][2][16], out[8][2][16], dout[8][2][16], lse[2][8], dq[8][2][16], dk[8][2][16],
        dv[8][2][16];
} small_problem;

static inline void small_fill(small_problem *p, int32_t size) {
    float *all[] = {&p->q[0][0][0], &p->k[0][0][0], &p->v[0][0][0], &p->out[0][0][0], &p->dout[0][0][0]};
    memset(p, 0, sizeof *p);
    p->attn = STW_INIT(stw_attn_desc);
    p->attn.dtype = STW_F32;
    p->attn.batch = 1;
    p->attn.heads_q = p->attn.heads_kv = 2;
    p->attn.head_dim_qk = p->attn.head_dim_v = 16;
    p->attn.max_seq_q = p->attn.max_seq_kv = 8;
    p->attn.mask = STW_MASK_CAUSAL_TOP_LEFT;
    stw_layout_bshd(&p->attn);
    p->desc = STW_INIT(stw_cp_desc);
    p->desc.attn = &p->attn;
    p->desc.seq_q = p->desc.seq_kv = 8 * size;
    p->desc.order = STW_CP_ZIGZAG;
    p->desc.schedule = STW_CP_RING;
    for (int t = 0; t < 5; ++t)
        for (int n = 0; n < 8 * 2 * 16; ++n) all[t][n] = 0.25f * (float)((n * 7 + t * 3) % 9 - 4);
    for (int n = 0; n < 16; ++n) (&p->lse[0][0])[n] = 3;
}

static inline stw_attn_args small_args(small_problem *p) {
    stw_attn_args a = STW_INIT(stw_attn_args);
    a.q = p->q;
    a.k = p->k;
    a.v = p->v;
    a.out = p->out;
    a.dout = p->dout;
    a.lse = &p->lse[0][0];
    a.dq = p->dq;
    a.dk = p->dk;
    a.dv = p->dv;
    return a;
}

#endif
