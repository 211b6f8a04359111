/* SPDX-License-Identifier: MIT
 *
 * Attention over ranks inside dispatch: chunks and what they see against counting, the comparison of descriptors byte
 * by byte, and where the ticks of all ranks meet: each message that one rank sends another receives in the same tick.
 * */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "dispatch/cp.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- chunks ---- */

static void chunks_cover_all_rows(void **state) {
    (void)state;
    for (int64_t rows = 0; rows < 40; ++rows)
        for (int32_t size = 1; size < 9; ++size)
            for (int order = STW_CP_CONTIGUOUS; order <= STW_CP_ZIGZAG; ++order) {
                int held[40] = {0};
                for (int32_t rank = 0; rank < size; ++rank) {
                    int64_t first[2], count[2];
                    assert_int_equal(stw_cp_shard((stw_cp_order)order, rows, rank, size, first, count), STW_OK);
                    if (order == STW_CP_CONTIGUOUS) assert_int_equal(first[0] + count[0], first[1]);
                    for (int at = 0; at < 2; ++at)
                        for (int64_t i = 0; i < count[at]; ++i) held[first[at] + i]++;
                }
                for (int64_t i = 0; i < rows; ++i) assert_int_equal(held[i], 1);
            }
}

static void zigzag_pairs_first_with_last(void **state) {
    int64_t first[2], count[2];
    (void)state;
    assert_int_equal(stw_cp_shard(STW_CP_ZIGZAG, 80, 1, 4, first, count), STW_OK);
    assert_int_equal(first[0], 10);
    assert_int_equal(first[1], 60);
    assert_int_equal(count[0], 10);
    assert_int_equal(count[1], 10);
}

static void pairs_are_counted(void **state) {
    (void)state;
    unsigned random = 7;
    for (int n = 0; n < 4000; ++n) {
        int64_t v[6];
        for (int i = 0; i < 6; ++i) {
            random = random * 1664525u + 1013904223u;
            v[i] = random >> 16;
        }
        const stw_cp_seq seq = {.batch = 1 + n % 2, .low = v[0] % 40 - 30, .high = v[1] % 40 - 12};
        const stw_cp_chunk q = {v[2] % 20, v[3] % 14}, k = {v[4] % 20, v[5] % 14};
        int64_t counted = 0;
        for (int64_t i = q.first; i < q.first + q.count; ++i)
            for (int64_t j = k.first; j < k.first + k.count; ++j) counted += j - i >= seq.low && j - i <= seq.high;
        assert_int_equal(stw_cp_sees(&seq, q, k), counted > 0);
        if (seq.low <= seq.high) assert_int_equal(stw_cp_pairs(&seq, q, k), counted * seq.batch);
    }
}

/* ---- the comparison ---- */

static unsigned char captured[16384];
static size_t captured_bytes;

static int no_group(void *user) {
    (void)user;
    return 0;
}
static int no_send(void *user, const void *from, size_t bytes, int32_t peer, stw_stream stream) {
    (void)user, (void)from, (void)bytes, (void)peer, (void)stream;
    return 0;
}
static int no_recv(void *user, void *to, size_t bytes, int32_t peer, stw_stream stream) {
    (void)user, (void)to, (void)bytes, (void)peer, (void)stream;
    return 0;
}
static int no_end(void *user, stw_stream stream) {
    (void)user, (void)stream;
    return 0;
}
static int capture(void *user, const void *from, void *to, size_t bytes, stw_stream stream) {
    (void)stream;
    assert_true(bytes <= sizeof captured);
    memcpy(captured, from, captured_bytes = bytes);
    for (int32_t r = 0; r < *(const int32_t *)user; ++r) memcpy((char *)to + (size_t)r * bytes, from, bytes);
    return 0;
}

static stw_cp *make_cp(int32_t rank, int32_t *size) {
    stw_cp_transport wire = STW_INIT(stw_cp_transport);
    stw_cp *cp = NULL;
    wire.name = "capture";
    wire.user = size;
    wire.group_begin = no_group;
    wire.send = no_send;
    wire.recv = no_recv;
    wire.group_end = no_end;
    wire.all_gather = capture;
    assert_int_equal(stw_cp_create(&wire, rank, *size, &cp), STW_OK);
    return cp;
}

static const struct {
    const char *name;
    size_t offset, size;
} own_fields[] = {
#define STW_CP_OWN(field) {#field, offsetof(stw_attn_desc, field), sizeof((stw_attn_desc *)0)->field},
#include "dispatch/cp_fields.def"
};

static int is_own(size_t at) {
    /* no field: between a form of four bytes and strides of eight */
    if (at >= offsetof(stw_attn_desc, interval_form) + sizeof(stw_attn_intervals) &&
        at < offsetof(stw_attn_desc, intervals))
        return 1;
    for (size_t i = 0; i < sizeof own_fields / sizeof own_fields[0]; ++i)
        if (at >= own_fields[i].offset && at < own_fields[i].offset + own_fields[i].size) return 1;
    return 0;
}

/* A field of stw_attn_desc that is neither compared nor listed as each rank's own is found here. */
static void every_byte_is_compared(void **state) {
    int32_t size = 1;
    unsigned char first[sizeof captured];
    stw_cp *cp = make_cp(0, &size);
    const stw_cp_desc desc = STW_INIT(stw_cp_desc);
    stw_attn_desc attn = STW_INIT(stw_attn_desc);
    (void)state;
    attn.dtype = STW_F32;
    assert_int_equal(stw_cp_agree(&(stw_cp_calling){.cp = cp, .who = "test", .what = "the comparison of descriptors"},
                                  STW_PLAN_ATTN_BWD, &desc, &attn, STW_OK),
                     STW_OK);
    memcpy(first, captured, captured_bytes);
    for (size_t at = 0; at < sizeof attn; ++at) {
        stw_attn_desc changed = attn;
        if (is_own(at)) continue;
        ((unsigned char *)&changed)[at] ^= 1;
        assert_int_equal(
            stw_cp_agree(&(stw_cp_calling){.cp = cp, .who = "test", .what = "the comparison of descriptors"},
                         STW_PLAN_ATTN_BWD, &desc, &changed, STW_OK),
            STW_OK);
        if (!memcmp(first, captured, captured_bytes)) fail_msg("byte %zu of stw_attn_desc is not compared", at);
    }
    stw_cp_destroy(cp);
}

static int gather_nothing(void *user, const void *from, void *to, size_t bytes, stw_stream stream) {
    (void)user, (void)from, (void)to, (void)bytes, (void)stream;
    return 0;
}

/* A gather that has moved nothing yet shows zeros, which read as what all agree on. */
static void a_refusal_stays(void **state) {
    int32_t size = 2;
    stw_cp *cp = make_cp(1, &size);
    const stw_cp_desc desc = STW_INIT(stw_cp_desc);
    const stw_attn_desc attn = STW_INIT(stw_attn_desc);
    (void)state;
    cp->wire.all_gather = gather_nothing;
    assert_int_equal(stw_cp_agree(&(stw_cp_calling){.cp = cp, .who = "test", .what = "the comparison of descriptors"},
                                  STW_PLAN_ATTN_BWD, &desc, &attn, stw_fail(STW_E_INVALID, "test: no")),
                     STW_E_INVALID);
    assert_string_equal(stw_last_error(), "test: no");
    stw_cp_destroy(cp);
}

/* A failure that is not the transport's, in the middle of a call: the ranks are out of step from there on. */
static void a_call_that_ends_in_its_middle(void **state) {
    int32_t size = 1;
    stw_cp *cp = make_cp(0, &size);
    const stw_cp_calling calling = {.cp = cp, .who = "test"};
    (void)state;
    assert_int_equal(stw_cp_call_ended(&calling, STW_OK), STW_OK);
    assert_int_equal(stw_cp_usable(&calling), STW_OK);
    assert_int_equal(stw_cp_call_ended(&calling, stw_fail(STW_E_INVALID, "a part: no")), STW_E_INVALID);
    assert_int_equal(stw_cp_call_ended(&calling, stw_fail(STW_E_INVALID, "another: no")), STW_E_INVALID);
    assert_int_equal(stw_cp_usable(&calling), STW_E_DRIVER);
    assert_string_equal(stw_last_error(),
                        "test: the transport has failed before: an earlier call ended in its middle: a part: no");
    stw_cp_destroy(cp);
}

/* ---- ticks ---- */

static stw_cp_plan *plan_of_batch(stw_context *context, int64_t batch, int32_t rank, int32_t *size,
                                  stw_cp_schedule schedule, stw_cp_order order, int64_t window, stw_cp **cp_out) {
    stw_attn_desc attn = STW_INIT(stw_attn_desc);
    stw_cp_desc desc = STW_INIT(stw_cp_desc);
    stw_cp_plan *plan = NULL;
    int64_t first[2], count[2];
    *cp_out = make_cp(rank, size);
    assert_int_equal(stw_cp_shard(order, 100, rank, *size, first, count), STW_OK);
    attn.dtype = STW_BF16;
    attn.batch = batch;
    attn.heads_q = attn.heads_kv = 4;
    attn.head_dim_qk = attn.head_dim_v = 16;
    attn.max_seq_q = attn.max_seq_kv = count[0] + count[1];
    attn.mask = STW_MASK_CAUSAL_TOP_LEFT;
    if (window) attn.flags |= STW_ATTN_HAS_WINDOW_LEFT, attn.window_left = window;
    assert_int_equal(stw_layout_bshd(&attn), STW_OK);
    desc.attn = &attn;
    desc.seq_q = desc.seq_kv = 100;
    desc.order = order;
    desc.schedule = schedule;
    desc.ranks_per_node = 2;
    if (stw_cp_attn_bwd_plan(*cp_out, context, &desc, &plan)) fail_msg("%s", stw_last_error());
    return plan;
}

static stw_cp_plan *plan_of(stw_context *context, int32_t rank, int32_t *size, stw_cp_schedule schedule,
                            stw_cp_order order, int64_t window, stw_cp **cp_out) {
    return plan_of_batch(context, 2, rank, size, schedule, order, window, cp_out);
}

/* The place of a tick in the order of all ranks: steps, then the second tick of the own block. */
static int64_t time_of(const stw_cp_plan *p, const stw_cp_tick *tick) { return tick->is_last ? p->shards : tick->step; }

static int sends_at(const stw_cp_plan *p, int64_t time, int32_t peer, int sends, size_t *bytes, int most) {
    int count = 0;
    for (int64_t t = 0; t < p->tick_count; ++t)
        for (int64_t i = 0; i < p->ticks[t].moves && time_of(p, &p->ticks[t]) == time; ++i) {
            const stw_cp_move *move = &p->moves[p->ticks[t].move + i];
            if (move->peer == peer && move->sends == sends && count < most) bytes[count++] = move->bytes;
        }
    return count;
}

static void check_meeting(stw_context *context, int32_t size, stw_cp_schedule schedule, stw_cp_order order,
                          int64_t window, int64_t batch) {
    stw_cp_plan *plans[8];
    stw_cp *cps[8];
    for (int32_t r = 0; r < size; ++r)
        plans[r] = plan_of_batch(context, batch, r, &size, schedule, order, window, &cps[r]);
    for (int64_t time = 0; time <= size; ++time)
        for (int32_t from = 0; from < size; ++from)
            for (int32_t to = 0; to < size; ++to) {
                size_t sent[16], got[16];
                int count = sends_at(plans[from], time, to, 1, sent, 16);
                assert_int_equal(sends_at(plans[to], time, from, 0, got, 16), count);
                for (int i = 0; i < count; ++i) assert_int_equal(sent[i], got[i]);
            }
    for (int32_t r = 0; r < size; ++r) {
        stw_cp_plan_destroy(plans[r]);
        stw_cp_destroy(cps[r]);
    }
}

static stw_context *make_context(void) {
    stw_context_opts opts = STW_INIT(stw_context_opts);
    stw_context *context = NULL;
    opts.backend = STW_BACKEND_CPU;
    opts.memory = STW_MEMORY_HOST;
    opts.cpu_threads = 1;
    assert_int_equal(stw_context_create(&opts, &context), STW_OK);
    return context;
}

static void moves_meet(void **state) {
    stw_context *context = make_context();
    (void)state;
    for (int order = STW_CP_CONTIGUOUS; order <= STW_CP_ZIGZAG; ++order)
        for (int64_t window = 0; window <= 40; window += 5) {
            for (int32_t size = 2; size <= 7; ++size)
                for (int64_t batch = 1; batch <= 2; ++batch)
                    check_meeting(context, size, STW_CP_RING, (stw_cp_order)order, window, batch);
            check_meeting(context, 4, STW_CP_2D, (stw_cp_order)order, window, 1);
            check_meeting(context, 8, STW_CP_2D, (stw_cp_order)order, window, 1);
        }
    stw_context_destroy(context);
}

/* The way of a block by looking at all shards: K and V come from the last shard before this one that needs them, and go
 * on to the next; no slot is written while it is in use. */
static void check_ways(const stw_cp_plan *p) {
    int64_t *until = calloc((size_t)p->slot_count + 1, sizeof *until);
    for (int64_t b = 0; b < p->shards; ++b) {
        int64_t step = (p->shard - b + p->shards) % p->shards, before = 0, next = p->shards, got = 0, sent = 0;
        int on_the_way = !step || stw_cp_needs(p, p->shard, b);
        for (int64_t s = 1; s < step; ++s)
            if (stw_cp_needs(p, (b + s) % p->shards, b)) before = s;
        for (int64_t s = p->shards - 1; s > step; --s)
            if (stw_cp_needs(p, (b + s) % p->shards, b)) next = s;
        for (int64_t t = 0; t < p->tick_count; ++t)
            for (int64_t i = 0; i < p->ticks[t].moves; ++i) {
                const stw_cp_move *move = &p->moves[p->ticks[t].move + i];
                int64_t time = time_of(p, &p->ticks[t]);
                got += !move->sums && !move->sends && step && time == before &&
                       move->peer == stw_cp_peer(p, (b + before) % p->shards);
                sent +=
                    !move->sums && move->sends && time == step && move->peer == stw_cp_peer(p, (b + next) % p->shards);
            }
        if (on_the_way && step) assert_true(got >= 1);
        if (on_the_way && next < p->shards) assert_true(sent >= 1);
    }
    for (int64_t t = 0; t < p->tick_count; ++t)
        for (int64_t i = 0; i < p->ticks[t].moves; ++i) {
            const stw_cp_move *move = &p->moves[p->ticks[t].move + i];
            if (move->sums || move->sends) continue;
            assert_true(move->slot >= 0 && move->slot < p->slot_count);
            assert_true(until[move->slot] <= time_of(p, &p->ticks[t]));
            for (int64_t later = t; later < p->tick_count; ++later) /* the step that reads it: the first of this slot */
                if (p->ticks[later].parts && p->ticks[later].slot == move->slot &&
                    time_of(p, &p->ticks[later]) > time_of(p, &p->ticks[t])) {
                    until[move->slot] = time_of(p, &p->ticks[later]) + 1;
                    break;
                }
        }
    free(until);
}

/* The same of sums: a set comes from the shard before this one, at an even distance, that needs the block, and goes to
 * the next one or home; the owner gets each set that there is; what a step or the end reads is not written before. */
static void check_sets(const stw_cp_plan *p) {
    for (int64_t b = 0; b < p->shards; ++b) {
        const int64_t step = (p->shard - b + p->shards) % p->shards;
        int64_t before = 0, next = p->shards, last[STW_CP_SETS] = {0, 0}, got = 0, sent = 0, expected = 0;
        for (int64_t s = 1; s < p->shards; ++s) {
            if (!stw_cp_needs(p, (b + s) % p->shards, b)) continue;
            last[1 - s % 2] = s;
            if (s % 2 != step % 2) continue;
            if (s < step) before = s;
            if (s > step && next == p->shards) next = s;
        }
        const int adds = step && stw_cp_needs(p, p->shard, b);
        const int64_t to = next < p->shards ? (b + next) % p->shards : b;
        for (int64_t t = 0; t < p->tick_count; ++t)
            for (int64_t i = 0; i < p->ticks[t].moves; ++i) {
                const stw_cp_move *move = &p->moves[p->ticks[t].move + i];
                const int64_t time = time_of(p, &p->ticks[t]);
                if (!move->sums) continue;
                if (move->sends) sent += adds && time == step + 1 && move->peer == stw_cp_peer(p, to);
                else if (step)
                    got +=
                        adds && before && time == before + 1 && move->peer == stw_cp_peer(p, (b + before) % p->shards);
                else
                    for (int set = 0; set < STW_CP_SETS; ++set)
                        got += last[set] && time == last[set] + 1 && move->slot == p->home[set] &&
                               move->peer == stw_cp_peer(p, (b + last[set]) % p->shards);
            }
        if (adds) assert_true(sent >= 1);
        expected = step ? adds && before : (last[0] > 0) + (last[1] > 0);
        assert_true(got >= expected);
        if (!step)
            for (int set = 0; set < STW_CP_SETS; ++set) assert_int_equal(p->home[set] >= 0, last[set] > 0);
    }
    int64_t *until = calloc((size_t)p->sum_count + 1, sizeof *until); /* the time from which a slot is free */
    int *holds = calloc((size_t)p->sum_count + 1, sizeof *holds);     /* a set that nobody has read yet     */
    for (int64_t t = 0; t < p->tick_count; ++t) {
        const stw_cp_tick *tick = &p->ticks[t];
        const int64_t time = time_of(p, tick), b = (p->shard - tick->step + p->shards) % p->shards;
        int64_t before = 0;
        for (int64_t s = 1; s < tick->step; ++s)
            if (s % 2 == tick->step % 2 && stw_cp_needs(p, (b + s) % p->shards, b)) before = s;
        if (tick->step && tick->parts) {
            assert_int_equal(holds[tick->sum_slot], before > 0);
            holds[tick->sum_slot] = 0;
            until[tick->sum_slot] = time + 2; /* it is sent in the tick behind */
        }
        for (int64_t i = 0; i < tick->moves; ++i) {
            const stw_cp_move *move = &p->moves[tick->move + i];
            if (!move->sums || move->sends) continue;
            assert_true(move->slot >= 0 && move->slot < p->sum_count);
            assert_true(until[move->slot] <= time && !holds[move->slot]);
            holds[move->slot] = 1;
        }
    }
    for (int set = 0; set < STW_CP_SETS; ++set)
        if (p->home[set] >= 0) assert_true(holds[p->home[set]]);
    free(until);
    free(holds);
}

static void blocks_go_to_who_needs_them(void **state) {
    stw_context *context = make_context();
    (void)state;
    for (int order = STW_CP_CONTIGUOUS; order <= STW_CP_ZIGZAG; ++order)
        for (int64_t window = 0; window <= 60; window += 3)
            for (int32_t size = 2; size <= 70; size += size < 9 ? 1 : 61) { /* 70: chunks without rows */
                stw_cp *cp;
                int32_t rank = (int32_t)(window % size);
                stw_cp_plan *plan =
                    plan_of_batch(context, 1 + window % 2, rank, &size, STW_CP_RING, (stw_cp_order)order, window, &cp);
                check_ways(plan);
                check_sets(plan);
                stw_cp_plan_destroy(plan);
                stw_cp_destroy(cp);
            }
    stw_context_destroy(context);
}

/* All-gather may use the transport's own functions where every rank needs every block. */
static void all_see_all_is_found(void **state) {
    stw_context *context = make_context();
    (void)state;
    for (int order = STW_CP_CONTIGUOUS; order <= STW_CP_ZIGZAG; ++order)
        for (int64_t window = 0; window <= 102; window += 6)
            for (int32_t size = 1; size <= 60; size += size < 7 ? 1 : 53) {
                stw_cp *cp;
                stw_cp_plan *plan = plan_of(context, 0, &size, STW_CP_ALL_GATHER, (stw_cp_order)order, window, &cp);
                int all = 1;
                for (int64_t b = 0; b < size; ++b)
                    for (int64_t n = 0; n < size; ++n) all &= stw_cp_needs(plan, n, b);
                assert_int_equal(plan->all_see_all, all);
                stw_cp_plan_destroy(plan);
                stw_cp_destroy(cp);
            }
    stw_context_destroy(context);
}

/* Seconds of this thread that a plan over 4096 ranks takes: 0.03, and 1.1 where each rank is looked at for each block
 * (2026-11-24, a machine of two cores). */
static void plans_are_linear_in_ranks(void **state) {
    stw_context *context = make_context();
    int32_t size = 4096;
    (void)state;
    for (int schedule = STW_CP_RING; schedule <= STW_CP_ALL_GATHER; ++schedule) {
        stw_cp *cp = make_cp(size / 2, &size);
        stw_attn_desc attn = STW_INIT(stw_attn_desc);
        stw_cp_desc desc = STW_INIT(stw_cp_desc);
        stw_cp_plan *plan = NULL;
        struct timespec begun, done;
        attn.dtype = STW_BF16;
        attn.batch = attn.heads_q = attn.heads_kv = 1;
        attn.head_dim_qk = attn.head_dim_v = 8;
        attn.max_seq_q = attn.max_seq_kv = 64;
        attn.mask = STW_MASK_CAUSAL_TOP_LEFT;
        assert_int_equal(stw_layout_bshd(&attn), STW_OK);
        desc.attn = &attn;
        desc.seq_q = desc.seq_kv = 64 * (int64_t)size;
        desc.order = STW_CP_ZIGZAG;
        desc.schedule = (stw_cp_schedule)schedule;
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begun);
        assert_int_equal(stw_cp_attn_bwd_plan(cp, context, &desc, &plan), STW_OK);
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &done);
        double took = (double)(done.tv_sec - begun.tv_sec) + 1e-9 * (double)(done.tv_nsec - begun.tv_nsec);
        assert_int_equal(plan->steps_run, size);
        if (!(took < 0.5)) fail_msg("%.3f s", took);
        stw_cp_plan_destroy(plan);
        stw_cp_destroy(cp);
    }
    stw_context_destroy(context);
}

/* Of contiguous shards of 25 rows under a window of 5 keys each rank needs its own keys and the last of its
 * neighbour's: K and V come from one rank alone, and so do the sums, to which the owner adds when they are home. */
static void what_sees_nothing_is_not_sent(void **state) {
    stw_context *context = make_context();
    int32_t size = 4;
    stw_cp *cp;
    (void)state;
    stw_cp_plan *plan = plan_of(context, 2, &size, STW_CP_RING, STW_CP_CONTIGUOUS, 5, &cp);
    const size_t block = 2 * 25 * 4 * 32 * 2, sums = 2 * 25 * 4 * 32 * 4;
    assert_int_equal(plan->steps_run, 2);
    assert_int_equal(plan->steps_skipped, 2);
    assert_int_equal(plan->sent_bytes, block + sums); /* its own to rank 3, of rank 1's the sums home */
    stw_cp_plan_destroy(plan);
    stw_cp_destroy(cp);
    plan = plan_of(context, 0, &size, STW_CP_RING, STW_CP_CONTIGUOUS, 0, &cp); /* causal: sees its own keys alone */
    assert_int_equal(plan->steps_run, 1);
    assert_int_equal(plan->sent_bytes, block); /* its own to rank 1 */
    stw_cp_plan_destroy(plan);
    stw_cp_destroy(cp);
    /* of one sequence the second chunk's sums alone, of 13 keys, in two pieces: rank 2 sees no others of rank 1 */
    plan = plan_of_batch(context, 1, 2, &size, STW_CP_RING, STW_CP_CONTIGUOUS, 5, &cp);
    assert_int_equal(plan->sent_bytes, block / 2 + 13 * 4 * 32 * 4);
    for (int64_t i = 0, rows = 13; i < plan->move_count; ++i) {
        if (!plan->moves[i].sums || !plan->moves[i].sends) continue;
        assert_int_equal(plan->moves[i].piece[0].at, 12 * 4 * 16 * 4);
        assert_int_equal(plan->moves[i].piece[0].bytes, rows * 4 * 16 * 4);
        assert_int_equal(plan->moves[i].piece[1].at, (25 + 12) * 4 * 16 * 4);
        assert_int_equal(plan->moves[i].piece[1].bytes, rows * 4 * 16 * 4);
    }
    stw_cp_plan_destroy(plan);
    stw_cp_destroy(cp);
    stw_context_destroy(context);
}

static stw_status open_apart(const stw_device *device, stw_cp_side *side_out) {
    (void)device;
    *side_out = (stw_cp_side){.stream = side_out}; /* any address */
    return STW_OK;
}

static int wait_on_host(void *user, stw_stream stream) {
    (void)user, (void)stream;
    return 0;
}

/* Where messages have a stream of their own, a transport that waits on the host is refused without an exchange. */
static void host_transports_are_refused_on_gpus(void **state) {
    stw_context *context = make_context();
    const stw_backend_ops *cpu = context->ops;
    stw_backend_ops gpu = *cpu;
    int32_t size = 1;
    stw_cp *cp = make_cp(0, &size);
    stw_attn_desc attn = STW_INIT(stw_attn_desc);
    stw_cp_desc desc = STW_INIT(stw_cp_desc);
    stw_cp_plan *plan = NULL;
    (void)state;
    attn.dtype = STW_BF16;
    attn.batch = attn.heads_q = attn.heads_kv = 1;
    attn.head_dim_qk = attn.head_dim_v = 8;
    desc.attn = &attn;
    desc.order = STW_CP_ZIGZAG;
    gpu.backend = STW_BACKEND_CUDA;
    gpu.cp_open = open_apart;
    cp->wire.wait = wait_on_host;
    context->ops = &gpu;
    assert_int_equal(stw_cp_attn_bwd_plan(cp, context, &desc, &plan), STW_E_UNSUPPORTED);
    assert_non_null(strstr(stw_last_error(), "waits on the host, and the context is of backend cuda"));
    assert_int_equal(stw_cp_attn_fwd_plan(cp, context, &desc, &plan), STW_E_UNSUPPORTED);
    context->ops = cpu;
    assert_int_equal(stw_cp_attn_bwd_plan(cp, context, &desc, &plan), STW_OK);
    stw_cp_plan_destroy(plan);
    stw_cp_destroy(cp);
    stw_context_destroy(context);
}

/* ---- masks in memory ---- */

static const struct stw_cp_strides {
    stw_interval_strides intervals;
    stw_block_mask_strides blocks;
} whole_masks = {{2 * 2048 * 4, 2048 * 4, 4, 1}, {8 * 256, 256, 16, 1}}; /* of 2048 rows and keys, 8 heads on 4 */

static stw_cp_plan *plan_with_masks(stw_context *context, int32_t rank, int32_t *size, stw_cp_schedule schedule,
                                    stw_cp_order order, stw_cp **cp_out) {
    stw_attn_desc attn = STW_INIT(stw_attn_desc);
    stw_cp_desc desc = STW_INIT(stw_cp_desc);
    stw_cp_plan *plan = NULL;
    *cp_out = make_cp(rank, size);
    attn.dtype = STW_BF16;
    attn.batch = 2;
    attn.heads_q = 8;
    attn.heads_kv = 4;
    attn.head_dim_qk = attn.head_dim_v = 16;
    attn.max_seq_q = attn.max_seq_kv = 2048 / *size;
    attn.interval_form = STW_INTERVALS_TWO_RANGES;
    attn.flags = STW_ATTN_BLOCK_MASK;
    assert_int_equal(stw_layout_bshd(&attn), STW_OK);
    attn.intervals = whole_masks.intervals;
    attn.block_mask = whole_masks.blocks;
    desc.attn = &attn;
    desc.seq_q = desc.seq_kv = 2048;
    desc.order = order;
    desc.schedule = schedule;
    desc.ranks_per_node = 2;
    if (stw_cp_attn_bwd_plan(*cp_out, context, &desc, &plan)) fail_msg("%s", stw_last_error());
    return plan;
}

/* Ulysses by rule: the backward on one node, in two groups of 131072 keys times heads a call at least, no window. */
static void rules_look_at_groups(void **state) {
    static const struct {
        const char *what;
        int64_t seq, heads, window;
        int32_t size, per_node, head_groups, packs;
        stw_plan_kind kind;
        stw_cp_schedule schedule;
        int32_t groups;
    } rows[] = {
        {"two groups", 65536, 8, 0, 2, 0, 0, 0, STW_PLAN_ATTN_BWD, STW_CP_ULYSSES, 2},
        {"eight groups at most", 65536, 64, 0, 2, 2, 0, 0, STW_PLAN_ATTN_BWD, STW_CP_ULYSSES, 8},
        {"one head a rank", 1 << 20, 8, 0, 8, 0, 0, 0, STW_PLAN_ATTN_BWD, STW_CP_RING, 1},
        {"three heads, which two do not divide", 100000, 6, 0, 2, 0, 0, 0, STW_PLAN_ATTN_BWD, STW_CP_RING, 1},
        {"few keys", 32768, 8, 0, 2, 0, 0, 0, STW_PLAN_ATTN_BWD, STW_CP_RING, 1},
        {"few keys, asked for", 32768, 8, 0, 2, 0, 4, 0, STW_PLAN_ATTN_BWD, STW_CP_ULYSSES, 4},
        {"one group, asked for", 65536, 8, 0, 2, 0, 1, 0, STW_PLAN_ATTN_BWD, STW_CP_RING, 1},
        {"a window", 65536, 8, 100, 2, 0, 0, 0, STW_PLAN_ATTN_BWD, STW_CP_RING, 1},
        {"the forward", 65536, 8, 0, 2, 0, 0, 0, STW_PLAN_ATTN_FWD, STW_CP_RING, 1},
        {"a pack of 64", 65536, 8, 0, 2, 0, 0, 64, STW_PLAN_ATTN_BWD, STW_CP_RING, 1},
        {"more than a node", 65536, 24, 0, 6, 4, 0, 0, STW_PLAN_ATTN_BWD, STW_CP_RING, 1},
        {"ten ranks", 1 << 20, 40, 0, 10, 0, 0, 0, STW_PLAN_ATTN_BWD, STW_CP_RING, 1},
    };
    stw_context *context = make_context();
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
        int32_t size = rows[i].size, starts[65];
        int64_t first[2], count[2], rows_here = 0;
        const int64_t sequences = rows[i].packs ? rows[i].packs : 1;
        stw_attn_desc attn = STW_INIT(stw_attn_desc);
        stw_cp_desc desc = STW_INIT(stw_cp_desc);
        stw_cp_plan *plan = NULL;
        stw_cp *cp = make_cp(0, &size);
        for (int32_t s = 0; s <= rows[i].packs; ++s) starts[s] = (int32_t)(s * rows[i].seq / sequences);
        assert_int_equal(stw_cp_shard(STW_CP_ZIGZAG, rows[i].seq / sequences, 0, size, first, count), STW_OK);
        rows_here = count[0] + count[1];
        attn.dtype = STW_BF16;
        attn.batch = sequences;
        attn.heads_q = attn.heads_kv = rows[i].heads;
        attn.head_dim_qk = attn.head_dim_v = 16;
        attn.max_seq_q = attn.max_seq_kv = rows_here;
        attn.mask = STW_MASK_CAUSAL_TOP_LEFT;
        if (rows[i].window) attn.flags |= STW_ATTN_HAS_WINDOW_LEFT, attn.window_left = rows[i].window;
        if (rows[i].packs) {
            attn.flags |= STW_ATTN_PACKED_Q | STW_ATTN_PACKED_KV;
            attn.total_q = attn.total_kv = sequences * rows_here;
            assert_int_equal(stw_layout_thd(&attn), STW_OK);
            desc.cu_seqlens_q = desc.cu_seqlens_kv = starts;
        } else {
            assert_int_equal(stw_layout_bshd(&attn), STW_OK);
            desc.seq_q = desc.seq_kv = rows[i].seq;
        }
        desc.attn = &attn;
        desc.order = STW_CP_ZIGZAG;
        desc.ranks_per_node = rows[i].per_node;
        desc.head_groups = rows[i].head_groups;
        if ((rows[i].kind == STW_PLAN_ATTN_BWD ? stw_cp_attn_bwd_plan : stw_cp_attn_fwd_plan)(cp, context, &desc,
                                                                                              &plan))
            fail_msg("%s: %s", rows[i].what, stw_last_error());
        if (plan->schedule != rows[i].schedule || plan->groups != rows[i].groups)
            fail_msg("%s: schedule %d in %d groups", rows[i].what, (int)plan->schedule, plan->groups);
        stw_cp_plan_destroy(plan);
        stw_cp_destroy(cp);
    }
    stw_context_destroy(context);
}

/* Each part gets the masks of its own rows, keys and heads, and no part has rows or keys of two chunks that do not
 * follow each other: then their bounds would not. */
static void parts_get_their_masks(void **state) {
    static const stw_cp_schedule schedules[] = {STW_CP_RING, STW_CP_ALL_GATHER, STW_CP_ULYSSES, STW_CP_2D};
    static const int32_t bounds[1];
    static const uint8_t blocks[1];
    stw_context *context = make_context();
    int32_t size = 4;
    (void)state;
    for (int order = STW_CP_CONTIGUOUS; order <= STW_CP_ZIGZAG; ++order)
        for (int n = 0; n < 4 * 4; ++n) {
            stw_cp *cp;
            stw_cp_plan *plan = plan_with_masks(context, n % 4, &size, schedules[n / 4], (stw_cp_order)order, &cp);
            stw_cp_run run = {.plan = plan};
            int64_t pairs = 0;
            run.args.intervals = bounds;
            run.args.block_mask = blocks;
            for (int64_t i = 0; i < plan->part_count; ++i) {
                const stw_cp_part *part = &plan->parts[i];
                const int64_t chunk = 2048 / 2 / plan->shards;
                stw_attn_args args = STW_INIT(stw_attn_args);
                stw_cp_positions(&run, part, &args);
                assert_int_equal(args.q_offset, part->q_at);
                assert_int_equal((intptr_t)args.intervals - (intptr_t)bounds,
                                 4 * (plan->lane * plan->heads_kv * 8192 + part->k_at * 4));
                assert_int_equal((intptr_t)args.block_mask - (intptr_t)blocks,
                                 plan->lane * plan->heads_q * 256 + part->q_at / 128 * 16 + part->k_at / 128);
                assert_int_equal(part->q_at % 128, 0);
                assert_int_equal(part->k_at % 128, 0);
                if (order == STW_CP_ZIGZAG && plan->shards > 1) /* the middle chunks alone are neighbours */
                    assert_true((part->q_rows == chunk || part->q_at == 1024 - chunk) &&
                                (part->k_rows == chunk || part->k_at == 1024 - chunk));
                pairs += part->q_rows * part->k_rows;
            }
            assert_int_equal(pairs, 2048 / plan->shards * 2048);
            stw_cp_plan_destroy(plan);
            stw_cp_destroy(cp);
        }
    stw_context_destroy(context);
}

/* ---- memory that runs out ---- */

static int64_t allocations, refused_at; /* counted from 1; 0: none is refused */
void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *old, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *old, size_t size);
static int refuse(void) { return ++allocations == refused_at; }
void *__wrap_malloc(size_t size) { return refuse() ? NULL : __real_malloc(size); }
void *__wrap_calloc(size_t count, size_t size) { return refuse() ? NULL : __real_calloc(count, size); }
void *__wrap_realloc(void *old, size_t size) { return refuse() ? NULL : __real_realloc(old, size); }

/* Each allocation of a plan fails once: a status, no leak (the sanitizers look), and the next plan is made. */
static void each_allocation_fails(void **state) {
    stw_context *context = make_context();
    int32_t size = 3;
    int64_t tried = 0;
    stw_status status = STW_E_NO_MEMORY;
    (void)state;
    stw_cp *cp = make_cp(1, &size);
    stw_attn_desc attn = STW_INIT(stw_attn_desc);
    stw_cp_desc desc = STW_INIT(stw_cp_desc);
    attn.dtype = STW_F32;
    attn.batch = 1;
    attn.heads_q = attn.heads_kv = 2;
    attn.head_dim_qk = attn.head_dim_v = 8;
    attn.max_seq_q = attn.max_seq_kv = 10;
    attn.bias_dtype = STW_F32;
    attn.outputs = STW_OUT_DQ | STW_OUT_DK | STW_OUT_DV | STW_OUT_DBIAS;
    assert_int_equal(stw_layout_bshd(&attn), STW_OK);
    attn.bias = attn.dbias = (stw_bias_strides){600, 300, 30, 1};
    desc.attn = &attn;
    desc.seq_q = desc.seq_kv = 30;
    desc.order = STW_CP_ZIGZAG;
    desc.schedule = STW_CP_RING;
    while (status) {
        stw_cp_plan *plan = NULL;
        allocations = 0;
        refused_at = ++tried;
        status = stw_cp_attn_bwd_plan(cp, context, &desc, &plan);
        refused_at = 0;
        if (status && status != STW_E_NO_MEMORY) fail_msg("allocation %lld: %s", (long long)tried, stw_last_error());
        if (status) assert_null(plan);
        stw_cp_plan_destroy(plan);
    }
    assert_true(tried > 20);
    stw_cp_destroy(cp);
    stw_cp_transport wire = STW_INIT(stw_cp_transport);
    wire.name = "none";
    wire.group_begin = no_group;
    wire.send = no_send;
    wire.recv = no_recv;
    wire.group_end = no_end;
    allocations = 0;
    refused_at = 1;
    status = stw_cp_create(&wire, 0, 1, &cp);
    refused_at = 0;
    assert_int_equal(status, STW_E_NO_MEMORY);
    stw_context_destroy(context);
}

/* 8192 rows a rank and more: the figure that the documents promise. */
static void zigzag_is_balanced(void **state) {
    (void)state;
    for (int32_t size = 2; size <= 64; size *= 2) {
        int64_t rows = 8192 * (int64_t)size + 77;
        const stw_cp_seq seq = {.batch = 1, .low = -(INT64_C(1) << 60), .high = 0};
        double most = 0, sum = 0;
        for (int32_t r = 0; r < size; ++r) {
            int64_t work = 0;
            for (int at = 0; at < 2; ++at)
                work += stw_cp_pairs(&seq, stw_cp_chunk_of(STW_CP_ZIGZAG, rows, r, size, at), (stw_cp_chunk){0, rows});
            sum += (double)work;
            if ((double)work > most) most = (double)work;
        }
        assert_true(most * size / sum < 1.03);
        assert_true(sum == (double)rows * (double)(rows + 1) / 2);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chunks_cover_all_rows),
        cmocka_unit_test(zigzag_pairs_first_with_last),
        cmocka_unit_test(pairs_are_counted),
        cmocka_unit_test(every_byte_is_compared),
        cmocka_unit_test(a_refusal_stays),
        cmocka_unit_test(a_call_that_ends_in_its_middle),
        cmocka_unit_test(moves_meet),
        cmocka_unit_test(blocks_go_to_who_needs_them),
        cmocka_unit_test(all_see_all_is_found),
        cmocka_unit_test(plans_are_linear_in_ranks),
        cmocka_unit_test(what_sees_nothing_is_not_sent),
        cmocka_unit_test(zigzag_is_balanced),
        cmocka_unit_test(host_transports_are_refused_on_gpus),
        cmocka_unit_test(parts_get_their_masks),
        cmocka_unit_test(rules_look_at_groups),
        cmocka_unit_test(each_allocation_fails),
    };
    return cmocka_run_group_tests_name("cp", tests, NULL, NULL);
}
