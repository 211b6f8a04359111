/* SPDX-License-Identifier: MIT
 *
 * What a plan says that a rank sends is what a call sends, counted on the way to the transport in memory: every
 * schedule, both calls, by sends alone and by a transport that has its own collectives. A block of a collective counts
 * once for each rank that gets it from another. */
#include "tests/cp/ranks.h"

#include <stdlib.h>

typedef struct counting {
    stw_cp_transport inner;
    int32_t rank, size;
    uint64_t sent;
    int gathers, reductions, exchanges;
} counting;

static counting counts[RANKS_MAX];
static int has_collectives;

static int group_begin(void *user) {
    const counting *c = user;
    return c->inner.group_begin(c->inner.user);
}
static int send_bytes(void *user, const void *from, size_t bytes, int32_t peer, stw_stream stream) {
    counting *c = user;
    c->sent += bytes;
    return c->inner.send(c->inner.user, from, bytes, peer, stream);
}
static int recv_bytes(void *user, void *to, size_t bytes, int32_t peer, stw_stream stream) {
    const counting *c = user;
    return c->inner.recv(c->inner.user, to, bytes, peer, stream);
}
static int group_end(void *user, stw_stream stream) {
    const counting *c = user;
    return c->inner.group_end(c->inner.user, stream);
}
static int wait_all(void *user, stw_stream stream) {
    const counting *c = user;
    return c->inner.wait(c->inner.user, stream);
}
static const char *error_text(void *user, int error) {
    const counting *c = user;
    return c->inner.error_text(c->inner.user, error);
}

/* Blocks of `bytes`: the one for rank r at from + r * step. */
static int blocks(counting *c, const char *from, size_t step, char *to, size_t bytes) {
    int error = group_begin(c);
    memcpy(to + (size_t)c->rank * bytes, from + (size_t)c->rank * step, bytes);
    for (int32_t r = 0; r < c->size && !error; ++r) {
        if (r == c->rank) continue;
        error = send_bytes(c, from + (size_t)r * step, bytes, r, NULL);
        if (!error) error = recv_bytes(c, to + (size_t)r * bytes, bytes, r, NULL);
    }
    if (!error) error = group_end(c, NULL);
    return error ? error : wait_all(c, NULL);
}
static int all_gather(void *user, const void *from, void *to, size_t bytes, stw_stream stream) {
    counting *c = user;
    (void)stream;
    c->gathers++;
    return blocks(c, from, 0, to, bytes);
}
static int all_to_all(void *user, const void *from, void *to, size_t bytes, stw_stream stream) {
    counting *c = user;
    (void)stream;
    c->exchanges++;
    return blocks(c, from, bytes, to, bytes);
}
static int reduce_scatter(void *user, const void *from, void *to, size_t count, stw_dtype dtype, stw_stream stream) {
    counting *c = user;
    size_t bytes = count * (dtype == STW_F64 ? 8 : 4);
    char *all = malloc((size_t)c->size * bytes + 1);
    int error = blocks(c, from, bytes, all, bytes);
    (void)stream;
    c->reductions++;
    for (size_t n = 0; n < count && !error; ++n) {
        double sum = 0;
        for (size_t r = 0; r < (size_t)c->size; ++r) {
            float value;
            double wide;
            memcpy(&value, all + r * bytes + n * 4, 4);
            if (dtype == STW_F64) memcpy(&wide, all + r * bytes + n * 8, 8);
            sum += dtype == STW_F64 ? wide : (double)value;
        }
        if (dtype == STW_F64) ((double *)to)[n] = sum;
        else ((float *)to)[n] = (float)sum;
    }
    free(all);
    return error;
}

static void wrap(test_rank *r) {
    counting *c = &counts[r->rank.rank];
    *c = (counting){.inner = r->rank.wire, .rank = r->rank.rank, .size = r->rank.size};
    stw_cp_transport *w = &r->rank.wire;
    w->user = c;
    w->group_begin = group_begin;
    w->send = send_bytes;
    w->recv = recv_bytes;
    w->group_end = group_end;
    w->wait = wait_all;
    w->error_text = error_text;
    if (!has_collectives) return;
    w->all_gather = all_gather;
    w->reduce_scatter = reduce_scatter;
    w->all_to_all = all_to_all;
}

typedef struct problem {
    const char *name;
    stw_cp_schedule schedule;
    stw_cp_order order;
    int64_t rows, keys, window; /* window 0: none */
    int causal, sink, bias;     /* bias: [1, H, 1, keys] with its gradient */
    uint32_t outputs;           /* 0: all */
} problem;

enum { HEADS_Q = 8, HEADS_KV = 4, DIM = 8, DIM_V = 16, BATCH = 2, RANKS = 4, MOST = 160, NODE = 2 };

static void fill(test_rank *r, const problem *x, stw_attn_desc *attn, stw_cp_desc *desc) {
    int64_t first[2], count[2], rows[2];
    for (int kv = 0; kv < 2; ++kv) {
        stw_cp_shard(x->order, kv ? x->keys : x->rows, r->rank.rank, r->rank.size, first, count);
        rows[kv] = count[0] + count[1];
    }
    *attn = STW_INIT(stw_attn_desc);
    attn->dtype = STW_BF16;
    attn->batch = BATCH;
    attn->heads_q = HEADS_Q;
    attn->heads_kv = HEADS_KV;
    attn->head_dim_qk = DIM;
    attn->head_dim_v = DIM_V;
    attn->max_seq_q = rows[0];
    attn->max_seq_kv = rows[1];
    attn->mask = x->causal ? STW_MASK_CAUSAL_TOP_LEFT : STW_MASK_NONE;
    if (x->window) attn->flags |= STW_ATTN_HAS_WINDOW_LEFT, attn->window_left = x->window;
    attn->outputs = x->outputs ? x->outputs : STW_OUT_DQ | STW_OUT_DK | STW_OUT_DV;
    if (x->sink) attn->flags |= STW_ATTN_SINK, attn->outputs |= STW_OUT_DSINK;
    stw_layout_bshd(attn);
    if (x->bias) {
        attn->bias_dtype = STW_F32;
        attn->outputs |= STW_OUT_DBIAS;
        attn->bias = attn->dbias = (stw_bias_strides){.head = x->keys, .key = 1};
    }
    *desc = STW_INIT(stw_cp_desc);
    desc->attn = attn;
    desc->seq_q = x->rows;
    desc->seq_kv = x->keys;
    desc->order = x->order;
    desc->schedule = x->schedule;
    desc->ranks_per_node = NODE;
}

/* Zeros, which are a legal problem: an LSE of 0 and no bias. */
static stw_status call(test_rank *r, const stw_cp_plan *plan, int forward) {
    static _Thread_local char memory[12][BATCH * MOST * HEADS_Q * DIM_V * 4];
    stw_attn_args a = STW_INIT(stw_attn_args);
    size_t size = stw_cp_plan_workspace_size(plan);
    void *workspace = malloc(size + 1);
    memset(memory, 0, sizeof memory);
    a.q = memory[0];
    a.k = memory[1];
    a.v = memory[2];
    a.out = memory[3];
    a.dout = memory[4];
    a.lse = (float *)(void *)memory[5];
    a.dq = memory[6];
    a.dk = memory[7];
    a.dv = memory[8];
    a.sink = (const float *)(const void *)memory[9];
    a.dsink = (float *)(void *)(memory[9] + 1024);
    a.bias = memory[10];
    a.dbias = memory[11];
    stw_status status = note(r, forward ? stw_cp_attn_fwd(plan, &a, workspace, size, NULL)
                                        : stw_cp_attn_bwd(plan, &a, workspace, size, NULL));
    free(workspace);
    return status;
}

static void count_both(test_rank *r) {
    const problem *x = r->user;
    stw_attn_desc attn;
    stw_cp_desc desc;
    fill(r, x, &attn, &desc);
    for (int forward = 0; forward < 2; ++forward) {
        stw_cp_plan *plan = NULL;
        char text[4096];
        if (note(r, forward ? stw_cp_attn_fwd_plan(r->rank.cp, r->rank.context, &desc, &plan)
                            : stw_cp_attn_bwd_plan(r->rank.cp, r->rank.context, &desc, &plan)))
            return;
        counting *c = &counts[r->rank.rank];
        uint64_t before = c->sent;
        stw_status status = call(r, plan, forward);
        if (!status) status = note(r, stw_cp_plan_describe(plan, text, sizeof text, NULL));
        if (!status) {
            const char *line = strstr(text, "\nsent: ");
            unsigned long long said = line ? strtoull(line + 7, NULL, 10) : 0, counted = c->sent - before;
            snprintf(r->text, sizeof r->text, "%s, rank %d, %s: %llu bytes are sent, the plan says %llu", x->name,
                     r->rank.rank, forward ? "forward" : "backward", counted, said);
            if (!line || said != counted || (!counted && !forward)) status = r->status = STW_E_INTERNAL;
        }
        stw_cp_plan_destroy(plan);
        if (status) return;
    }
}

static void plans_say_what_is_sent(void **state) {
    static const problem problems[] = {
        {"ring", STW_CP_RING, STW_CP_ZIGZAG, 64, 64, 0, 1, 0, 0, 0},
        {"ring, unequal shards", STW_CP_RING, STW_CP_CONTIGUOUS, 61, 47, 0, 0, 0, 0, 0},
        {"ring, a window, dsink, dbias", STW_CP_RING, STW_CP_ZIGZAG, 90, 90, 9, 1, 1, 1, 0},
        {"all-gather", STW_CP_ALL_GATHER, STW_CP_ZIGZAG, 64, 64, 0, 1, 0, 0, 0},
        {"all-gather, unequal shards", STW_CP_ALL_GATHER, STW_CP_ZIGZAG, 61, 61, 0, 1, 1, 0, 0},
        {"all-gather, a window", STW_CP_ALL_GATHER, STW_CP_CONTIGUOUS, 128, 128, 5, 1, 0, 0, 0},
        {"all-gather, a bias", STW_CP_ALL_GATHER, STW_CP_CONTIGUOUS, 64, 64, 0, 0, 0, 1, 0},
        {"ulysses", STW_CP_ULYSSES, STW_CP_ZIGZAG, 64, 64, 0, 1, 0, 0, 0},
        {"ulysses, unequal shards", STW_CP_ULYSSES, STW_CP_ZIGZAG, 61, 47, 0, 1, 1, 0, 0},
        {"ulysses, dQ alone", STW_CP_ULYSSES, STW_CP_CONTIGUOUS, 64, 64, 0, 0, 0, 0, STW_OUT_DQ},
        {"ulysses, dV alone", STW_CP_ULYSSES, STW_CP_CONTIGUOUS, 61, 61, 0, 0, 0, 0, STW_OUT_DV},
        {"2-D", STW_CP_2D, STW_CP_ZIGZAG, 64, 64, 0, 1, 0, 0, 0},
        {"2-D, unequal shards, dsink", STW_CP_2D, STW_CP_CONTIGUOUS, 61, 47, 0, 0, 1, 0, 0},
        {"2-D, a window", STW_CP_2D, STW_CP_ZIGZAG, 128, 128, 11, 1, 0, 0, 0},
    };
    (void)state;
    for (has_collectives = 0; has_collectives < 2; ++has_collectives)
        for (size_t i = 0; i < sizeof problems / sizeof problems[0]; ++i) {
            test_rank ranks[RANKS_MAX];
            run_ranks(ranks, RANKS, 30, count_both, (void *)(uintptr_t)&problems[i], wrap);
            for (int32_t r = 0; r < RANKS; ++r)
                if (ranks[r].status) fail_msg("%s", ranks[r].text);
        }
}

/* ---- the transport's own collectives give the same results ---- */

static void check_row(test_rank *r) {
    const cp_whole *whole = ((void **)r->user)[0];
    const cp_row *row = ((void **)r->user)[1];
    cp_result result;
    cp_check(&r->rank, row, whole, &result);
    r->status = result.outcome == STW_VERIFY_OK ? STW_OK : STW_E_INTERNAL;
    snprintf(r->text, sizeof r->text, "%s: %s", result.name, result.text);
}

static void collectives_are_used(void **state) {
    static const struct {
        cp_row row;
        int exchanges, reductions, gathers; /* two backward runs and two forward ones, and two plans */
    } rows[] = {
        {{"attn_bwd:bf16:b2h8k4s48d16:causal_br", STW_CP_ZIGZAG, STW_CP_ULYSSES, 0, 0}, 10, 0, 2},
        {{"attn_bwd:bf16:b2h16k8s48d16:causal_br", STW_CP_ZIGZAG, STW_CP_ULYSSES, 0, 2}, 14, 0, 2}, /* two groups */
        {{"attn_bwd:f32:b1h4s30d16:causal_br", STW_CP_ZIGZAG, STW_CP_ULYSSES, 0, 0}, 0, 0, 2},      /* unequal shards */
        {{"attn_bwd:f32:b2h4s64d16:causal_br", STW_CP_ZIGZAG, STW_CP_ALL_GATHER, 0, 0}, 0, 2, 6},
        {{"attn_bwd:f64:b1h4s64d16:sink:grads_qkvs", STW_CP_CONTIGUOUS, STW_CP_ULYSSES, 0, 0}, 10, 0, 4},
        {{"attn_bwd:bf16:b2h8k4s64d16:causal_br", STW_CP_ZIGZAG, STW_CP_2D, 4, 0}, 0, 0, 2},
    };
    stw_context_opts opts = STW_INIT(stw_context_opts);
    stw_context *context = NULL;
    (void)state;
    opts.backend = STW_BACKEND_CPU;
    opts.memory = STW_MEMORY_HOST;
    assert_int_equal(stw_context_create(&opts, &context), STW_OK);
    has_collectives = 1;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
        test_rank ranks[RANKS_MAX];
        cp_whole whole;
        const void *both[] = {&whole, &rows[i].row};
        assert_int_equal(cp_whole_build(rows[i].row.problem, 0, 1, context, &whole), STW_OK);
        run_ranks(ranks, RANKS, 30, check_row, (void *)(uintptr_t)both, wrap);
        for (int32_t r = 0; r < RANKS; ++r) {
            if (ranks[r].status) fail_msg("%s", ranks[r].text);
            assert_int_equal(counts[r].exchanges, rows[i].exchanges);
            assert_int_equal(counts[r].reductions, rows[i].reductions);
            assert_int_equal(counts[r].gathers, rows[i].gathers);
        }
        cp_whole_free(&whole);
    }
    stw_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plans_say_what_is_sent),
        cmocka_unit_test(collectives_are_used),
    };
    return cmocka_run_group_tests_name("cp_bytes", tests, NULL, NULL);
}
