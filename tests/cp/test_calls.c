/* SPDX-License-Identifier: MIT
 *
 * What the calls of attn_cp.h refuse, by their texts, what all ranks hear of one's refusal, and what they describe. */
#include "tests/cp/ranks.h"

#include <stdlib.h>

static void assert_text(const char *text, const char *wanted) {
    if (!strstr(text, wanted)) fail_msg("\"%s\" does not hold \"%s\"", text, wanted);
}

static int nothing(void *user) {
    (void)user;
    return 0;
}
static int send_nothing(void *user, const void *from, size_t bytes, int32_t peer, stw_stream stream) {
    (void)user, (void)from, (void)bytes, (void)peer, (void)stream;
    return 0;
}
static int recv_nothing(void *user, void *to, size_t bytes, int32_t peer, stw_stream stream) {
    (void)user, (void)to, (void)bytes, (void)peer, (void)stream;
    return 0;
}
static int end_nothing(void *user, stw_stream stream) {
    (void)user, (void)stream;
    return 0;
}

static stw_cp_transport whole_transport(void) {
    stw_cp_transport t = STW_INIT(stw_cp_transport);
    t.name = "test";
    t.group_begin = nothing;
    t.send = send_nothing;
    t.recv = recv_nothing;
    t.group_end = end_nothing;
    return t;
}

static void refused(const stw_cp_transport *t, int32_t rank, int32_t size, const char *text) {
    stw_cp *cp = (stw_cp *)1;
    assert_int_equal(stw_cp_create(t, rank, size, &cp), STW_E_INVALID);
    assert_ptr_equal(cp, (stw_cp *)1);
    assert_text(stw_last_error(), text);
}

static void create_refuses(void **state) {
    stw_cp_transport t = whole_transport(), bad;
    (void)state;
    refused(NULL, 0, 1, "cp_create: transport is null");
    refused(&t, 0, 0, "cp_create: size 0 is not in 1..65536");
    refused(&t, 0, 65537, "cp_create: size 65537 is not in 1..65536");
    refused(&t, -1, 2, "cp_create: rank -1 is not in 0..1 (size 2)");
    refused(&t, 2, 2, "cp_create: rank 2 is not in 0..1 (size 2)");
    bad = t, bad.name = NULL, refused(&bad, 0, 1, "cp_create: transport.name is null");
    bad = t, bad.name = "a name of more than 31 characters", refused(&bad, 0, 1, "transport.name has 33 characters");
    bad = t, bad.group_begin = NULL, refused(&bad, 0, 1, "cp_create: transport.group_begin is null");
    bad = t, bad.send = NULL, refused(&bad, 0, 1, "cp_create: transport.send is null");
    bad = t, bad.recv = NULL, refused(&bad, 0, 1, "cp_create: transport.recv is null");
    bad = t, bad.group_end = NULL, refused(&bad, 0, 1, "cp_create: transport.group_end is null");
    bad = t, bad.struct_size = 8, refused(&bad, 0, 1, "cp_create: transport.struct_size 8");
    assert_int_equal(stw_cp_create(&t, 0, 1, NULL), STW_E_INVALID);
    assert_text(stw_last_error(), "cp_create: cp_out is null");
    stw_cp_destroy(NULL);
}

static void shard_refuses(void **state) {
    int64_t first[2] = {-7, -7}, count[2] = {-7, -7};
    (void)state;
    const struct {
        int order;
        int64_t rows;
        int32_t rank, size;
        const char *text;
    } rows[] = {{0, 8, 0, 1, "order 0 is none of"}, {3, 8, 0, 1, "order 3 is none of"},
                {1, -1, 0, 1, "rows -1 is not in"}, {1, INT64_C(1) << 31, 0, 1, "rows 2147483648 is not in"},
                {1, 8, 0, 0, "size 0 is not in"},   {2, 8, 4, 4, "rank 4 is not in 0..3 (size 4)"}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
        assert_int_equal(
            stw_cp_shard((stw_cp_order)rows[i].order, rows[i].rows, rows[i].rank, rows[i].size, first, count),
            STW_E_INVALID);
        assert_text(stw_last_error(), rows[i].text);
    }
    assert_int_equal(stw_cp_shard(STW_CP_ZIGZAG, 8, 0, 1, NULL, count), STW_E_INVALID);
    assert_int_equal(first[0], -7);
    assert_int_equal(count[1], -7);
}

/* ---- plans of one rank ---- */

typedef struct change {
    void (*make)(small_problem *p);
    stw_status status;
    const char *text;
} change;

static int32_t lengths[3] = {0, 5, 8}, bad_lengths[3] = {1, 5, 8}, falling[3] = {0, 5, 4}, used_too_long[1] = {9};

static void no_order(small_problem *p) { p->desc.order = (stw_cp_order)0; }
static void bad_schedule(small_problem *p) { p->desc.schedule = (stw_cp_schedule)5; }
static void bad_node(small_problem *p) { p->desc.ranks_per_node = -1; }
static void bad_groups(small_problem *p) { p->desc.head_groups = -1; }
static void odd_groups(small_problem *p) {
    p->desc.schedule = STW_CP_ULYSSES;
    p->desc.head_groups = 3;
}
static void other_rows(small_problem *p) { p->desc.seq_q = 9; }
static void other_keys(small_problem *p) { p->desc.seq_kv = 7; }
static void negative_rows(small_problem *p) { p->desc.seq_kv = -1; }
static void too_many_rows(small_problem *p) { p->desc.seq_kv = INT64_C(1) << 31; }
static void no_attn(small_problem *p) { p->desc.attn = NULL; }
static void bad_heads(small_problem *p) { p->attn.heads_kv = 3; }
static void lengths_of_dense(small_problem *p) { p->desc.cu_seqlens_q = lengths; }
static void no_lengths(small_problem *p) {
    p->attn.total_q = p->attn.total_kv = 8;
    p->desc.seq_q = 0;
}
static void both_lengths(small_problem *p) {
    p->attn.total_q = p->attn.total_kv = 8;
    p->desc.cu_seqlens_q = lengths;
}
static void pack(small_problem *p, const int32_t *cu) {
    p->attn.batch = 2;
    p->attn.total_q = p->attn.total_kv = 8;
    p->desc.seq_q = p->desc.seq_kv = 0;
    p->desc.cu_seqlens_q = p->desc.cu_seqlens_kv = cu;
    stw_layout_thd(&p->attn);
}
static void gap_in_front(small_problem *p) { pack(p, bad_lengths); }
static void falling_lengths(small_problem *p) { pack(p, falling); }
static void short_maximum(small_problem *p) {
    pack(p, lengths);
    p->attn.max_seq_q = 4;
}
static void other_total(small_problem *p) {
    pack(p, lengths);
    p->attn.total_kv = 9;
}
static void used_without_flag(small_problem *p) { p->desc.used_q = lengths; }
static void flag_without_used(small_problem *p) { p->attn.flags |= STW_ATTN_HAS_USED_LENGTHS; }
static void used_beyond(small_problem *p) {
    p->attn.flags |= STW_ATTN_HAS_USED_LENGTHS;
    p->desc.used_kv = used_too_long;
}
static void far_offset(small_problem *p) { p->desc.k_offset = (INT64_C(1) << 40) + 1; }
static void other_map(small_problem *p) {
    p->attn.dropout_p = 0.5;
    p->attn.dropout_map = STW_DROPOUT_FLASH2;
}
static void intervals(small_problem *p) {
    p->attn.interval_form = STW_INTERVALS_FROM;
    stw_layout_bshd(&p->attn);
}
static void unknown_form(small_problem *p) { p->attn.interval_form = (stw_attn_intervals)6; }
static void intervals_of_a_shard(small_problem *p) {
    p->attn.batch = 2;
    intervals(p);
    p->attn.intervals.batch = 3;
}
static void block_mask(small_problem *p) {
    p->attn.flags |= STW_ATTN_BLOCK_MASK;
    stw_layout_bshd(&p->attn);
}
static void blocks_of_a_shard(small_problem *p) {
    p->attn.max_seq_q = p->attn.max_seq_kv = p->desc.seq_q = p->desc.seq_kv = 300;
    block_mask(p);
    p->attn.block_mask.query = 2;
}
static void bias_of_ulysses(small_problem *p) {
    p->attn.bias_dtype = STW_F32;
    p->desc.schedule = STW_CP_ULYSSES;
}
static void unknown_node(small_problem *p) { p->desc.schedule = STW_CP_2D; }
static void narrow_bias(small_problem *p) {
    p->attn.bias_dtype = STW_F32;
    p->attn.outputs = STW_OUT_DBIAS;
    p->attn.dbias.query = 3;
    p->attn.dbias.head = 24;
}

static const change changes[] = {
    {no_order, STW_E_INVALID, "cp_attn_bwd_plan: order 0 is none of contiguous 1, zigzag 2"},
    {bad_schedule, STW_E_INVALID, "cp_attn_bwd_plan: schedule 5 is none of"},
    {bad_node, STW_E_INVALID, "cp_attn_bwd_plan: ranks_per_node -1 is not in"},
    {bad_groups, STW_E_INVALID, "cp_attn_bwd_plan: head_groups -1 is below 0"},
    {odd_groups, STW_E_INVALID, "cp_attn_bwd_plan: head_groups 3 does not divide the 2 heads of keys that a rank"},
    {other_rows, STW_E_INVALID, "attn.max_seq_q is 8, but rank 0 of 1 holds 9 rows in zigzag order"},
    {other_keys, STW_E_INVALID, "attn.max_seq_kv is 8, but rank 0 of 1 holds 7 rows in zigzag order"},
    {negative_rows, STW_E_INVALID, "cp_attn_bwd_plan: seq_kv -1 is not in"},
    {too_many_rows, STW_E_UNSUPPORTED, "cp_attn_bwd_plan: seq_kv 2147483648 is not in"},
    {no_attn, STW_E_INVALID, "cp_attn_bwd_plan: desc.attn is null"},
    {bad_heads, STW_E_INVALID, "heads_q 2 is not a multiple of heads_kv 3"},
    {lengths_of_dense, STW_E_INVALID, "cu_seqlens_q is given, but attn's side is not packed"},
    {no_lengths, STW_E_INVALID, "cu_seqlens_q is null, but attn's side is packed"},
    {both_lengths, STW_E_INVALID, "seq_q 8 is set, but attn's side is packed"},
    {gap_in_front, STW_E_INVALID, "cu_seqlens_q[0] is 1"},
    {falling_lengths, STW_E_INVALID, "cu_seqlens_q[2] is 4"},
    {short_maximum, STW_E_INVALID, "attn.max_seq_q 4 is below the 5 rows that rank 0 holds of a sequence"},
    {other_total, STW_E_INVALID, "attn.total_kv is 9, but rank 0 of 1 holds 8 rows"},
    {used_without_flag, STW_E_INVALID, "given without STW_ATTN_HAS_USED_LENGTHS"},
    {flag_without_used, STW_E_INVALID, "both null with STW_ATTN_HAS_USED_LENGTHS"},
    {used_beyond, STW_E_INVALID, "used_kv[0] is 9, accepted: 0..8"},
    {far_offset, STW_E_INVALID, "k_offset 1099511627777 is beyond"},
    {other_map, STW_E_UNSUPPORTED, "attn.dropout_map flash2 2 counts positions of one call"},
    {unknown_form, STW_E_INVALID, "interval_form 6 is none of"},
    {intervals_of_a_shard, STW_E_INVALID, "attn.intervals.batch stride 3 is below what 8 keys take"},
    {blocks_of_a_shard, STW_E_INVALID, "attn.block_mask.query stride 2 is below what 3 blocks of keys take"},
    {bias_of_ulysses, STW_E_UNSUPPORTED, "schedule ulysses: a bias lies with the rows of its rank"},
    {unknown_node, STW_E_UNSUPPORTED, "schedule 2-D: ranks_per_node is not known"},
    {narrow_bias, STW_E_INVALID, "dbias"},
};

static void refuse_plans(test_rank *r) {
    const change *c = r->user;
    small_problem p;
    stw_cp_plan *plan = NULL;
    small_fill(&p, r->rank.size);
    c->make(&p);
    note(r, stw_cp_attn_bwd_plan(r->rank.cp, r->rank.context, &p.desc, &plan));
    stw_cp_plan_destroy(plan);
}

static void plan_refuses(void **state) {
    test_rank ranks[RANKS_MAX];
    (void)state;
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; ++i) {
        run_ranks(ranks, 1, 10, refuse_plans, (void *)(uintptr_t)&changes[i], NULL);
        assert_text(ranks[0].text, changes[i].text);
        assert_int_equal(ranks[0].status, changes[i].status);
    }
}

/* ---- ranks that differ ---- */

static void differ(test_rank *r) {
    small_problem p;
    stw_cp_plan *plan = NULL;
    small_fill(&p, r->rank.size);
    int which = *(const int *)r->user;
    static const int32_t others[3] = {0, 12, 24}, own[3] = {0, 11, 24};
    if (which == 9) { /* packs of two sequences, cut elsewhere on rank 2 */
        pack(&p, r->rank.rank == 2 ? own : others);
        int64_t first[2], count[2], rows = 0;
        for (int b = 0; b < 2; ++b) {
            const int32_t *cu = p.desc.cu_seqlens_q;
            stw_cp_shard(STW_CP_ZIGZAG, cu[b + 1] - cu[b], r->rank.rank, r->rank.size, first, count);
            rows += count[0] + count[1];
        }
        p.attn.total_q = p.attn.total_kv = rows;
    }
    if (which == 11) block_mask(&p); /* chunks of 4 rows */
    if (r->rank.rank == 2) {
        if (which == 10) intervals(&p);
        if (which == 0) p.attn.window_left = 3, p.attn.flags |= STW_ATTN_HAS_WINDOW_LEFT;
        if (which == 1) p.attn.scale = 0.5f, p.attn.flags |= STW_ATTN_HAS_SCALE;
        if (which == 2) p.desc.order = STW_CP_CONTIGUOUS;
        if (which == 3) p.attn.heads_kv = 1, stw_layout_bshd(&p.attn);
        if (which == 4) p.attn.dtype = STW_I64;
        if (which == 5) {
            note(r, stw_cp_attn_bwd_plan(r->rank.cp, NULL, &p.desc, &plan));
            return;
        }
        if (which == 6) p.attn.dk_dtype = STW_F32, p.attn.dropout_p = 0.125;
        if (which == 7) stw_layout_bhsd(&p.attn); /* each rank's own */
        if (which == 8) {
            note(r, stw_cp_attn_fwd_plan(r->rank.cp, r->rank.context, &p.desc, &plan));
            stw_cp_plan_destroy(plan);
            return;
        }
    }
    note(r, stw_cp_attn_bwd_plan(r->rank.cp, r->rank.context, &p.desc, &plan));
    if (plan && !r->status && which == 0) r->status = STW_OK;
    stw_cp_plan_destroy(plan);
}

static void ranks_hear_of_it(void **state) {
    static const struct {
        stw_status status;
        const char *others, *own;
    } wanted[] = {
        {STW_E_INVALID, "attn.flags is 1 on rank 0 and 3 on rank 2", "attn.flags is 1 on rank 0 and 3 on rank 2"},
        {STW_E_INVALID, "attn.scale is 0.25 on rank 0 and 0.5 on rank 2: all ranks give the same", "attn.scale"},
        {STW_E_INVALID, "order is 2 on rank 0 and 1 on rank 2", "order is 2 on rank 0 and 1 on rank 2"},
        {STW_E_INVALID, "attn.heads_kv is 2 on rank 0 and 1 on rank 2", "attn.heads_kv"},
        {STW_E_UNSUPPORTED, "cp_attn_bwd_plan: rank 2 refuses: attn_bwd: dtype 9", "attn_bwd: dtype 9"},
        {STW_E_INVALID, "cp_attn_bwd_plan: rank 2 refuses: cp_attn_bwd_plan: context is null", "context is null"},
        {STW_E_INVALID, "attn.dropout_p is 0 on rank 0 and 0.125 on rank 2", "attn.dropout_p"},
        {STW_OK, "", ""},
        {STW_E_INVALID, "the call (backward 1, forward 2) is 1 on rank 0 and 2 on rank 2",
         "cp_attn_fwd_plan: the call"},
        {STW_E_INVALID, "cu_seqlens_q is a list of hash ", "cu_seqlens_q is a list of hash "},
        {STW_E_INVALID, "attn.interval_form is 0 on rank 0 and 1 on rank 2", "attn.interval_form is 0 on rank 0 and 1"},
        {STW_E_UNSUPPORTED, "sequence 0 has 24 rows of q: with 3 shards accepted are multiples of 768",
         "sequence 0 has 24 rows of q: with 3 shards accepted are multiples of 768"},
    };
    test_rank ranks[RANKS_MAX];
    (void)state;
    for (int which = 0; which < 12; ++which) {
        run_ranks(ranks, 3, 10, differ, &which, NULL);
        for (int r = 0; r < 3; ++r) {
            assert_text(ranks[r].text, r == 2 ? wanted[which].own : wanted[which].others);
            assert_int_equal(ranks[r].status, wanted[which].status);
        }
    }
}

/* ---- run calls ---- */

static void refuse_runs(test_rank *r) {
    small_problem p;
    stw_cp_plan *plan = NULL;
    char *workspace;
    int which = *(const int *)r->user;
    static int32_t bounds[9] = {8, 8, 8, 8, 8, 8, 9, 8, 8};
    small_fill(&p, r->rank.size);
    if (which >= 10 && which < 13) intervals(&p);
    if (which == 13) block_mask(&p);
    if (note(r, stw_cp_attn_bwd_plan(r->rank.cp, r->rank.context, &p.desc, &plan))) return;
    size_t size = stw_cp_plan_workspace_size(plan);
    workspace = malloc(size);
    stw_attn_args args = small_args(&p);
    int64_t offsets[1] = {0};
    if (which == 0) args.dout = NULL;
    if (which == 1) args.q_offset = 8;
    if (which == 2) args.k_offsets = offsets;
    if (which == 3) size = 100;
    if (which == 4) args.dq = args.dk;
    if (which == 5) args.dv = workspace;
    if (which == 6) args.cpu_threads = -1;
    if (which == 11) args.intervals = (const int32_t *)(const void *)((const char *)bounds + 1);
    if (which == 12) args.intervals = bounds;
    if (which == 7) note(r, stw_cp_attn_fwd(plan, &args, workspace, size, NULL));
    else if (which == 8) note(r, stw_cp_attn_bwd(NULL, &args, workspace, size, NULL));
    else if (which == 9) note(r, stw_cp_attn_bwd(plan, NULL, workspace, size, NULL));
    else note(r, stw_cp_attn_bwd(plan, &args, workspace, size, NULL));
    const float *dk = &p.dk[0][0][0];
    for (int n = 0; n < 8 * 2 * 16; ++n)
        if (dk[n] != 0) r->status = STW_E_INTERNAL; /* something was written */
    free(workspace);
    stw_cp_plan_destroy(plan);
}

static void run_refuses(void **state) {
    static const struct {
        stw_status status;
        const char *text;
    } wanted[] = {
        {STW_E_INVALID, "args.dout is null"},
        {STW_E_INVALID, "cp_attn_bwd: args.q_offset is 8, accepted 0"},
        {STW_E_INVALID, "cp_attn_bwd: args.k_offsets is given"},
        {STW_E_WORKSPACE, "cp_attn_bwd: workspace_size 100"},
        {STW_E_INVALID, "args.dq and args.dk are the same memory"},
        {STW_E_INVALID, "args.dv"},
        {STW_E_INVALID, "args.cpu_threads -1"},
        {STW_E_INVALID, "cp_attn_fwd: the plan was made by stw_cp_attn_bwd_plan"},
        {STW_E_INVALID, "cp_attn_bwd: plan is null"},
        {STW_E_INVALID, "cp_attn_bwd: args is null"},
        {STW_E_INVALID, "args.intervals is null"},
        {STW_E_INVALID, "is not aligned to its elements of 4 bytes"},
        {STW_E_INVALID, "cp_attn_bwd: intervals: bound 0 of key 6 of sequence 0, head 0, is 9, accepted: 0..8"},
        {STW_E_INVALID, "args.block_mask is null"}};
    test_rank ranks[RANKS_MAX];
    (void)state;
    for (int which = 0; which < 14; ++which) {
        run_ranks(ranks, 1, 10, refuse_runs, &which, NULL);
        assert_text(ranks[0].text, wanted[which].text);
        assert_int_equal(ranks[0].status, wanted[which].status);
    }
}

/* ---- descriptions ---- */

static void describe_it(test_rank *r) {
    small_problem p;
    stw_cp_plan *plan = NULL;
    size_t needed = 0;
    small_fill(&p, r->rank.size);
    p.desc.schedule = (stw_cp_schedule)(*(const int *)r->user);
    p.desc.ranks_per_node = 2;
    if (note(r, stw_cp_attn_bwd_plan(r->rank.cp, r->rank.context, &p.desc, &plan))) return;
    note(r, stw_cp_plan_describe(plan, r->text, sizeof r->text, &needed));
    if (!r->status) stw_cp_plan_describe(plan, r->text, sizeof r->text, NULL);
    if (needed < 200) r->status = STW_E_INTERNAL;
    if (stw_cp_plan_describe(plan, NULL, 3, NULL) != STW_E_INVALID) r->status = STW_E_INTERNAL;
    stw_cp_plan_destroy(plan);
}

static void plans_are_described(void **state) {
    static const char *const names[] = {"ring", "ring", "all-gather", "ulysses", "2-D"};
    test_rank ranks[RANKS_MAX];
    (void)state;
    for (int schedule = STW_CP_AUTO; schedule <= STW_CP_2D; ++schedule) {
        int32_t size = schedule == STW_CP_AUTO ? 1 : schedule == STW_CP_2D ? 4 : 2;
        char line[64];
        run_ranks(ranks, size, 10, describe_it, &schedule, NULL);
        snprintf(line, sizeof line, "\nschedule: %s\n", names[schedule]);
        for (int32_t r = 0; r < size; ++r) {
            assert_int_equal(ranks[r].status, STW_OK);
            assert_text(ranks[r].text, line);
            assert_text(ranks[r].text, schedule == STW_CP_AUTO ? "\nwhy: size 1" : "\nwhy: asked for by name\n");
            assert_text(ranks[r].text, "\nimbalance: 0.00 %\n");
            assert_text(ranks[r].text, "\noverlap: ");
            assert_text(ranks[r].text, "\nsent: ");
        }
    }
    /* ring of 2: rank 0 sends its K and V, and sums of rank 1's keys home */
    int ring = STW_CP_RING;
    run_ranks(ranks, 2, 10, describe_it, &ring, NULL);
    const int block = 2 * 8 * 2 * 16 * 4, sums = block;
    char line[64];
    snprintf(line, sizeof line, "\nsent: %d bytes by this rank\n", block + sums);
    assert_text(ranks[0].text, line);
}

static void null_is_fine(void **state) {
    (void)state;
    stw_cp_plan_destroy(NULL);
    assert_int_equal(stw_cp_plan_workspace_size(NULL), 0);
    assert_int_equal(stw_cp_plan_describe(NULL, NULL, 0, NULL), STW_E_INVALID);
    assert_int_equal(stw_cp_attn_bwd_plan(NULL, NULL, NULL, NULL), STW_E_INVALID);
    assert_text(stw_last_error(), "cp_attn_bwd_plan: cp is null");
}

static void nccl_refuses(void **state) {
    stw_cp_transport t = STW_INIT(stw_cp_transport), old = {.struct_size = 8};
    (void)state;
    assert_int_equal(stw_cp_transport_nccl(NULL, &t), STW_E_INVALID);
    assert_text(stw_last_error(), "cp_transport_nccl: comm is null");
    assert_int_equal(stw_cp_transport_rccl(&t, NULL), STW_E_INVALID);
    assert_text(stw_last_error(), "cp_transport_rccl: transport_out is null");
    assert_int_equal(stw_cp_transport_rccl(&t, &old), STW_E_INVALID);
    assert_text(stw_last_error(), "transport_out.struct_size 8 is too small");
    /* ctest's LD_LIBRARY_PATH has a libnccl.so.2 of nothing; the other library is seldom where tests run */
    const char *path = getenv("LD_LIBRARY_PATH");
    if (!path || !strstr(path, "nccl_empty")) return;
    assert_int_equal(stw_cp_transport_nccl(&t, &t), STW_E_NO_DRIVER);
    assert_text(stw_last_error(), "cp_transport_nccl: libnccl.so.2 lacks ncclGroupStart, ncclGroupEnd, ncclSend");
    stw_status status = stw_cp_transport_rccl(&t, &t);
    if (status) assert_int_equal(status, STW_E_NO_DRIVER);
    if (status) assert_text(stw_last_error(), "cp_transport_rccl: librccl.so.1 cannot be loaded: ");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(create_refuses), cmocka_unit_test(shard_refuses),    cmocka_unit_test(plan_refuses),
        cmocka_unit_test(run_refuses),    cmocka_unit_test(ranks_hear_of_it), cmocka_unit_test(plans_are_described),
        cmocka_unit_test(null_is_fine),   cmocka_unit_test(nccl_refuses),
    };
    return cmocka_run_group_tests_name("cp_calls", tests, NULL, NULL);
}
