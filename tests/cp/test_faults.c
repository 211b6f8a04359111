/* SPDX-License-Identifier: MIT
 *
 * A transport that fails: each of its calls in turn, on one rank. That rank gets a status with the transport's words,
 * the others one within their timeout, no rank STW_OK with half of a result, and the context computes on. */
#include "tests/cp/ranks.h"

#include <stdlib.h>

typedef struct faulty {
    stw_cp_transport inner;
    int64_t calls, fails_at; /* counted from 1; 0: never */
    int64_t open;            /* groups that have begun and not ended */
} faulty;

static faulty faults[RANKS_MAX];
static int fails(faulty *f) { return ++f->calls == f->fails_at; }
enum { FAULT = 77 };

static int group_begin(void *user) {
    faulty *f = user;
    int error = fails(f) ? FAULT : f->inner.group_begin(f->inner.user);
    f->open += !error; /* a group that did not begin does not end */
    return error;
}
static int send_bytes(void *user, const void *from, size_t bytes, int32_t peer, stw_stream stream) {
    faulty *f = user;
    return fails(f) ? FAULT : f->inner.send(f->inner.user, from, bytes, peer, stream);
}
static int recv_bytes(void *user, void *to, size_t bytes, int32_t peer, stw_stream stream) {
    faulty *f = user;
    return fails(f) ? FAULT : f->inner.recv(f->inner.user, to, bytes, peer, stream);
}
static int group_end(void *user, stw_stream stream) {
    faulty *f = user;
    --f->open;
    return fails(f) ? FAULT : f->inner.group_end(f->inner.user, stream);
}
static int wait_all(void *user, stw_stream stream) {
    faulty *f = user;
    int error = f->inner.wait(f->inner.user, stream); /* a wait that fails has let go of the messages, too */
    return fails(f) ? FAULT : error;
}
static const char *error_text(void *user, int error) {
    faulty *f = user;
    return error == FAULT ? "the cable is cut" : f->inner.error_text(f->inner.user, error);
}

static int64_t fault_at;
static void wrap(test_rank *r) {
    faulty *f = &faults[r->rank.rank];
    *f = (faulty){.inner = r->rank.wire, .fails_at = r->rank.rank == 1 ? fault_at : 0};
    r->rank.wire.user = f;
    r->rank.wire.group_begin = group_begin;
    r->rank.wire.send = send_bytes;
    r->rank.wire.recv = recv_bytes;
    r->rank.wire.group_end = group_end;
    r->rank.wire.wait = wait_all;
    r->rank.wire.error_text = error_text;
}

/* What one device makes of the rank's own rows, to see that the context lives. */
static stw_status run_alone(test_rank *r, small_problem *p) {
    stw_plan *plan = NULL;
    stw_status status = stw_attn_bwd_plan(r->rank.context, &p->attn, &plan);
    stw_attn_args args = small_args(p);
    size_t size = stw_plan_workspace_size(plan);
    void *workspace = malloc(size + 1);
    if (!status) status = stw_attn_bwd(plan, &args, workspace, size, NULL);
    free(workspace);
    stw_plan_destroy(plan);
    return status;
}

static void run_both(test_rank *r) {
    small_problem p;
    stw_cp_plan *plan = NULL;
    small_fill(&p, r->rank.size);
    p.desc.schedule = (stw_cp_schedule)(*(const int *)r->user);
    stw_status planned = note(r, stw_cp_attn_bwd_plan(r->rank.cp, r->rank.context, &p.desc, &plan));
    stw_attn_args args = small_args(&p);
    size_t size = stw_cp_plan_workspace_size(plan);
    void *workspace = malloc(size + 1);
    if (!planned) note(r, stw_cp_attn_bwd(plan, &args, workspace, size, NULL));
    if (r->status) { /* the next call says so, too, and sends nothing */
        char first[1024];
        snprintf(first, sizeof first, "%s", r->text);
        int64_t calls = faults[r->rank.rank].calls;
        stw_status again = planned ? stw_cp_attn_bwd_plan(r->rank.cp, r->rank.context, &p.desc, &plan)
                                   : stw_cp_attn_bwd(plan, &args, workspace, size, NULL);
        if (again != STW_E_DRIVER || !strstr(stw_last_error(), "the transport has failed before"))
            snprintf(r->text, sizeof r->text, "the second call: %s", stw_last_error());
        if (faults[r->rank.rank].calls != calls)
            snprintf(r->text, sizeof r->text, "the second call asked the transport");
    }
    if (run_alone(r, &p)) snprintf(r->text, sizeof r->text, "the context is dead: %s", stw_last_error());
    free(workspace);
    stw_cp_plan_destroy(plan);
}

static void each_call_fails(void **state) {
    test_rank ranks[RANKS_MAX];
    int schedule = (int)(uintptr_t)*state;
    int64_t calls;
    fault_at = 0;
    run_ranks(ranks, 2, 10, run_both, &schedule, wrap);
    for (int r = 0; r < 2; ++r) {
        if (ranks[r].status) fail_msg("%s", ranks[r].text);
    }
    calls = faults[1].calls;
    assert_true(calls > 8);
    for (fault_at = 1; fault_at <= calls; ++fault_at) {
        run_ranks(ranks, 2, 0.15, run_both, &schedule, wrap);
        assert_int_equal(ranks[1].status, STW_E_DRIVER);
        for (int r = 0; r < 2; ++r) assert_int_equal(faults[r].open, 0);
        if (!strstr(ranks[1].text, "test_faults") && !strstr(ranks[1].text, "threads: the cable is cut"))
            fail_msg("call %lld: %s", (long long)fault_at, ranks[1].text);
        if (ranks[0].status != STW_OK && ranks[0].status != STW_E_DRIVER) fail_msg("%s", ranks[0].text);
        if (ranks[0].status && !strstr(ranks[0].text, "threads: ")) fail_msg("%s", ranks[0].text);
    }
}

/* ---- a rank that does not come ---- */

static void leave(test_rank *r) {
    small_problem p;
    stw_cp_plan *plan = NULL;
    small_fill(&p, r->rank.size);
    if (note(r, stw_cp_attn_bwd_plan(r->rank.cp, r->rank.context, &p.desc, &plan))) return;
    stw_attn_args args = small_args(&p);
    size_t size = stw_cp_plan_workspace_size(plan);
    void *workspace = malloc(size);
    if (r->rank.rank != 2) note(r, stw_cp_attn_bwd(plan, &args, workspace, size, NULL));
    free(workspace);
    stw_cp_plan_destroy(plan);
}

static void a_rank_is_missing(void **state) {
    test_rank ranks[RANKS_MAX];
    (void)state;
    run_ranks(ranks, 3, 0.3, leave, NULL, NULL);
    for (int r = 0; r < 2; ++r) {
        assert_int_equal(ranks[r].status, STW_E_DRIVER);
        if (!strstr(ranks[r].text, "cp_attn_bwd: moves of step") ||
            (!strstr(ranks[r].text, "did not come in time") && !strstr(ranks[r].text, "another rank failed")))
            fail_msg("%s", ranks[r].text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(each_call_fails, (void *)STW_CP_RING),
        cmocka_unit_test_prestate(each_call_fails, (void *)STW_CP_ALL_GATHER),
        cmocka_unit_test_prestate(each_call_fails, (void *)STW_CP_ULYSSES),
        cmocka_unit_test(a_rank_is_missing),
    };
    return cmocka_run_group_tests_name("cp_faults", tests, NULL, NULL);
}
