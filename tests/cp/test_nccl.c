/* SPDX-License-Identifier: MIT
 *
 * The transports over NCCL and RCCL against a fake library: whole rows of cp-conform run through them, the collectives
 * are used where all ranks need all blocks, and NCCL's errors become a status with its words. The library is of the
 * name that is loaded on clusters: ctest sets LD_LIBRARY_PATH. */
#include "tests/cp/fake_nccl.h"
#include "tests/cp/ranks.h"

#include <stdlib.h>

typedef stw_status (*transport_fn)(void *comm, stw_cp_transport *transport_out);

static struct fake_comm comms[RANKS_MAX];
static transport_fn transport;
static int async_rank, failing_call;

static void wrap(test_rank *r) {
    struct fake_comm *comm = &comms[r->rank.rank];
    stw_cp_transport wire = STW_INIT(stw_cp_transport);
    *comm = (struct fake_comm){.wire = r->rank.wire, .rank = r->rank.rank, .size = r->rank.size};
    if (r->rank.rank == async_rank) comm->async_error = 6; /* ncclRemoteError */
    if (r->rank.rank == 1) comm->fails_at = failing_call;
    if (transport(comm, &wire)) fail_msg("%s", stw_last_error());
    r->rank.wire = wire;
}

static void check_row(test_rank *r) {
    const cp_whole *whole = ((void **)r->user)[0];
    const cp_row *row = ((void **)r->user)[1];
    cp_result result;
    cp_check(&r->rank, row, whole, &result);
    r->status = result.outcome == STW_VERIFY_OK ? STW_OK : STW_E_INTERNAL;
    snprintf(r->text, sizeof r->text, "%s: %s", result.name, result.text);
}

static stw_context *make_context(void) {
    stw_context_opts opts = STW_INIT(stw_context_opts);
    stw_context *context = NULL;
    opts.backend = STW_BACKEND_CPU;
    opts.memory = STW_MEMORY_HOST;
    assert_int_equal(stw_context_create(&opts, &context), STW_OK);
    return context;
}

static void rows_run(void **state) {
    static const cp_row rows[] = {
        {"attn_bwd:f32:b1h2s96d16:causal_br", STW_CP_ZIGZAG, STW_CP_RING, 0, 0},
        {"attn_bwd:bf16:b1h2s96d16", STW_CP_CONTIGUOUS, STW_CP_ALL_GATHER, 0, 0},
        {"attn_bwd:f64:b2h3s48d16:causal_br", STW_CP_ZIGZAG, STW_CP_ALL_GATHER, 0, 0},
        {"attn_bwd:f32:b2h3s40d16:sink:grads_qkvs", STW_CP_ZIGZAG, STW_CP_ULYSSES, 0, 0},
    };
    stw_context *context = make_context();
    transport = (transport_fn)*state;
    async_rank = -1;
    failing_call = 0;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
        test_rank ranks[RANKS_MAX];
        cp_whole whole;
        const void *both[] = {&whole, &rows[i]};
        assert_int_equal(cp_whole_build(rows[i].problem, 0, 1, context, &whole), STW_OK);
        run_ranks(ranks, 3, 30, check_row, (void *)(uintptr_t)both, wrap);
        for (int r = 0; r < 3; ++r)
            if (ranks[r].status) fail_msg("%s", ranks[r].text);
        int gathered = rows[i].schedule == STW_CP_ALL_GATHER; /* runs: 2 of the backward, 2 of the forward */
        assert_int_equal(comms[0].reductions, gathered ? 2 : 0);
        assert_int_equal(comms[0].gathers, 2 + (gathered ? 4 : 0) + (i == 3 ? 2 : 0)); /* plans, blocks, dSink */
        cp_whole_free(&whole);
    }
    stw_context_destroy(context);
}

static void plan_and_run(test_rank *r) {
    small_problem p;
    stw_cp_plan *plan = NULL;
    small_fill(&p, r->rank.size);
    if (note(r, stw_cp_attn_bwd_plan(r->rank.cp, r->rank.context, &p.desc, &plan))) return;
    stw_attn_args args = small_args(&p);
    size_t size = stw_cp_plan_workspace_size(plan);
    void *workspace = malloc(size);
    if (r->rank.rank == async_rank) comms[async_rank].async_error = 6;
    note(r, stw_cp_attn_bwd(plan, &args, workspace, size, NULL));
    free(workspace);
    stw_cp_plan_destroy(plan);
}

static void errors_have_words(void **state) {
    test_rank ranks[RANKS_MAX];
    transport = (transport_fn)*state;
    async_rank = -1;
    failing_call = 3; /* behind the gather of descriptors */
    run_ranks(ranks, 2, 0.3, plan_and_run, NULL, wrap);
    assert_int_equal(ranks[1].status, STW_E_DRIVER);
    if (!strstr(ranks[1].text, "CCL: unhandled system error")) fail_msg("%s", ranks[1].text);
    assert_int_equal(ranks[0].status, STW_E_DRIVER);
    failing_call = 0;
    async_rank = 1; /* a communicator that is dead before its first group */
    run_ranks(ranks, 2, 0.3, plan_and_run, NULL, wrap);
    assert_int_equal(ranks[1].status, STW_E_DRIVER);
    if (!strstr(ranks[1].text, "group_begin: ")) fail_msg("%s", ranks[1].text);
}

static void one_communicator_one_link(void **state) {
    stw_cp_transport a = STW_INIT(stw_cp_transport), b = STW_INIT(stw_cp_transport);
    int other;
    transport = (transport_fn)*state;
    assert_int_equal(transport(&comms[0], &a), STW_OK);
    assert_int_equal(transport(&comms[0], &b), STW_OK);
    assert_ptr_equal(a.user, b.user);
    assert_int_equal(transport(&other, &b), STW_OK);
    assert_ptr_not_equal(a.user, b.user);
    assert_null(a.wait); /* streams order it */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(rows_run, (void *)stw_cp_transport_nccl),
        cmocka_unit_test_prestate(rows_run, (void *)stw_cp_transport_rccl),
        cmocka_unit_test_prestate(errors_have_words, (void *)stw_cp_transport_nccl),
        cmocka_unit_test_prestate(errors_have_words, (void *)stw_cp_transport_rccl),
        cmocka_unit_test_prestate(one_communicator_one_link, (void *)stw_cp_transport_nccl),
    };
    return cmocka_run_group_tests_name("cp_nccl", tests, NULL, NULL);
}
