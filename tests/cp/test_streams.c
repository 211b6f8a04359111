/* SPDX-License-Identifier: MIT
 *
 * The order of streams in calls over ranks, without a GPU: the CPU backend behind a table whose calls are written down
 * and done when somebody waits, the caller's stream as early as events allow, or the side's. Whatever lacks an
 * event reads what is not there yet, or overwrites what is still read, and rows of cp-conform come out wrong. */
#include "dispatch/context.h"
#include "tests/cp/ranks.h"

#include <stdlib.h>

typedef enum deed_kind { ATTN_BWD, ATTN_FWD, STAGE, CAST, MERGE, COPY, EXCHANGE, RECORD, AWAIT } deed_kind;

typedef struct part {
    void *at;
    size_t bytes;
    int32_t peer, sends;
} part;

typedef struct deed {
    deed_kind kind;
    const stw_attn_work *work;
    stw_attn_params params;
    stw_attn_stage stages[STW_STAGES_MAX];
    uint32_t count;
    void *workspace, *to;
    const void *from;
    size_t bytes;
    stw_cp_cast cast;
    stw_cp_merge merge;
    part *parts;
    int64_t part_count, event;
} deed;

typedef struct stream {
    deed *deeds;
    int64_t count, done, room;
} stream;

/* What a rank has written down: 0 the caller's stream, 1 the side's. */
typedef struct lazy {
    stream streams[2];
    part *parts; /* of the group that is open */
    int64_t part_count, events;
    stw_cp_transport inner;
    const stw_device *device;
    stw_status status;
    int moves; /* exchanges while the caller's stream had more to do */
} lazy;

enum { EVENTS = 1 << 16 };
static _Thread_local lazy *self;
static _Thread_local unsigned char *seen; /* which events have been recorded */
static char side_handle, caller_handle;
static int side_first;

static deed *add(stw_stream handle, deed_kind kind) {
    stream *s = &self->streams[handle == &side_handle];
    if (s->count == s->room) {
        s->room = s->room ? 2 * s->room : 64;
        s->deeds = realloc(s->deeds, (size_t)s->room * sizeof *s->deeds);
        if (!s->deeds) abort();
    }
    deed *d = &s->deeds[s->count++];
    memset(d, 0, sizeof *d);
    d->kind = kind;
    return d;
}

static stw_status exchange(const deed *d) {
    const stw_cp_transport *w = &self->inner;
    int error = w->group_begin(w->user);
    for (int64_t i = 0; i < d->part_count && !error; ++i) {
        const part *p = &d->parts[i];
        error = p->sends ? w->send(w->user, p->at, p->bytes, p->peer, NULL)
                         : w->recv(w->user, p->at, p->bytes, p->peer, NULL);
    }
    if (!error) error = w->group_end(w->user, NULL);
    if (!error) error = w->wait(w->user, NULL);
    return error ? stw_fail(STW_E_DRIVER, "%s", w->error_text(w->user, error)) : STW_OK;
}

static stw_status perform(const deed *d) {
    const stw_backend_ops *cpu = &stw_cpu_backend;
    const stw_device *device = self->device;
    switch (d->kind) {
    case ATTN_BWD: return cpu->attn_bwd(device, d->work, &d->params, d->workspace, NULL, 1);
    case ATTN_FWD: return cpu->attn_fwd(device, d->work, &d->params, d->workspace, NULL, 1);
    case STAGE: return cpu->stage(device, d->work, &d->params, d->stages, d->count, d->workspace, NULL, 1);
    case CAST: return cpu->cp_cast(device, NULL, &d->cast, NULL);
    case MERGE: return cpu->cp_merge(device, NULL, &d->merge, NULL);
    case COPY: return cpu->copy(device, d->to, d->from, d->bytes, NULL);
    case EXCHANGE: self->moves += self->streams[0].done < self->streams[0].count; return exchange(d);
    case RECORD: seen[d->event] = 1; return STW_OK;
    case AWAIT: return STW_OK;
    }
    return STW_E_INTERNAL;
}

static int can_go(const stream *s) {
    return s->done < s->count && (s->deeds[s->done].kind != AWAIT || seen[s->deeds[s->done].event]);
}

static stw_status synchronize(const stw_device *device, stw_stream handle) {
    (void)device, (void)handle;
    for (;;) {
        int first = can_go(&self->streams[side_first]) ? side_first : !side_first;
        stream *s = &self->streams[first];
        if (!can_go(s)) break;
        const deed *d = &s->deeds[s->done++];
        stw_status status = self->status && d->kind != RECORD ? STW_OK : perform(d);
        if (status) self->status = status;
        free(d->parts);
    }
    for (int i = 0; i < 2; ++i) {
        if (self->streams[i].done < self->streams[i].count) abort(); /* an event that nobody records */
        self->streams[i].done = self->streams[i].count = 0;
    }
    return self->status;
}

/* ---- the table ---- */

static stw_status attention(deed_kind kind, const stw_attn_work *work, const stw_attn_params *params, void *workspace,
                            stw_stream handle) {
    deed *d = add(handle, kind);
    d->work = work;
    d->params = *params;
    d->workspace = workspace;
    return STW_OK;
}
static stw_status attn_bwd(const stw_device *device, const stw_attn_work *work, const stw_attn_params *params,
                           void *workspace, stw_stream handle, uint32_t threads) {
    (void)device, (void)threads;
    return attention(ATTN_BWD, work, params, workspace, handle);
}
static stw_status attn_fwd(const stw_device *device, const stw_attn_work *work, const stw_attn_params *params,
                           void *workspace, stw_stream handle, uint32_t threads) {
    (void)device, (void)threads;
    return attention(ATTN_FWD, work, params, workspace, handle);
}
static stw_status stage(const stw_device *device, const stw_attn_work *work, const stw_attn_params *params,
                        const stw_attn_stage *stages, uint32_t count, void *workspace, stw_stream handle,
                        uint32_t threads) {
    (void)device, (void)threads;
    deed *d = add(handle, STAGE);
    d->work = work;
    d->params = *params;
    d->workspace = workspace;
    d->count = count;
    memcpy(d->stages, stages, count * sizeof *stages);
    return STW_OK;
}
static stw_status copy(const stw_device *device, void *to, const void *from, size_t bytes, stw_stream handle) {
    (void)device;
    deed *d = add(handle, COPY);
    d->to = to;
    d->from = from;
    d->bytes = bytes;
    return STW_OK;
}
static stw_status cp_open(const stw_device *device, stw_cp_side *side_out) {
    (void)device;
    memset(side_out, 0, sizeof *side_out);
    side_out->stream = &side_handle;
    return STW_OK;
}
static stw_status cp_cast(const stw_device *device, const stw_cp_side *side, const stw_cp_cast *cast,
                          stw_stream handle) {
    (void)device, (void)side;
    add(handle, CAST)->cast = *cast;
    return STW_OK;
}
static stw_status cp_merge(const stw_device *device, const stw_cp_side *side, const stw_cp_merge *merge,
                           stw_stream handle) {
    (void)device, (void)side;
    add(handle, MERGE)->merge = *merge;
    return STW_OK;
}
static stw_status cp_order(const stw_device *device, const stw_cp_side *side, int joins, stw_stream before,
                           stw_stream after) {
    (void)device, (void)side, (void)joins;
    int64_t event = self->events++;
    if (event >= EVENTS) abort();
    add(before, RECORD)->event = event;
    add(after, AWAIT)->event = event;
    return STW_OK;
}
static stw_status stream_create(const stw_device *device, stw_stream *stream_out) {
    (void)device;
    *stream_out = &caller_handle;
    return STW_OK;
}

/* ---- the transport: in the order of the stream that it is given, and without a wait ---- */

static int group_begin(void *user) {
    (void)user;
    return 0;
}
static int remember(void *at, size_t bytes, int32_t peer, int sends) {
    self->parts = realloc(self->parts, (size_t)(self->part_count + 1) * sizeof *self->parts);
    if (!self->parts) abort();
    self->parts[self->part_count++] = (part){at, bytes, peer, sends};
    return 0;
}
static int send_bytes(void *user, const void *from, size_t bytes, int32_t peer, stw_stream handle) {
    (void)user, (void)handle;
    return remember((void *)(uintptr_t)from, bytes, peer, 1);
}
static int recv_bytes(void *user, void *to, size_t bytes, int32_t peer, stw_stream handle) {
    (void)user, (void)handle;
    return remember(to, bytes, peer, 0);
}
static int group_end(void *user, stw_stream handle) {
    (void)user;
    deed *d = add(handle, EXCHANGE);
    d->parts = self->parts;
    d->part_count = self->part_count;
    self->parts = NULL;
    self->part_count = 0;
    return 0;
}

static int all_gather(void *user, const void *from, void *to, size_t bytes, stw_stream handle) {
    const cp_rank *rank = user;
    deed *d = add(handle, COPY);
    d->to = (char *)to + (size_t)rank->rank * bytes;
    d->from = from;
    d->bytes = bytes;
    for (int32_t peer = 0; peer < rank->size; ++peer) {
        if (peer == rank->rank) continue;
        send_bytes(user, from, bytes, peer, handle);
        recv_bytes(user, (char *)to + (size_t)peer * bytes, bytes, peer, handle);
    }
    return group_end(user, handle);
}

/* ---- rows ---- */

typedef struct worker {
    cp_rank rank;
    cp_local *local;
    const cp_row *row;
    const cp_whole *whole;
    cp_result result;
    int moves;
    pthread_t thread;
} worker;

static void *work(void *user) {
    worker *w = user;
    lazy own = {.inner = cp_local_transport(w->local, w->rank.rank)};
    stw_context_opts opts = STW_INIT(stw_context_opts);
    opts.backend = STW_BACKEND_CPU;
    opts.memory = STW_MEMORY_BUFFERS;
    opts.cpu_threads = 1;
    stw_backend_ops ops = stw_cpu_backend;
    ops.attn_bwd = attn_bwd;
    ops.attn_fwd = attn_fwd;
    ops.stage = stage;
    ops.copy = copy;
    ops.cp_open = cp_open;
    ops.cp_cast = cp_cast;
    ops.cp_merge = cp_merge;
    ops.cp_order = cp_order;
    ops.stream_create = stream_create;
    ops.stream_synchronize = synchronize;
    self = &own;
    seen = calloc(1, EVENTS);
    w->result.outcome = STW_VERIFY_FAIL;
    if (!seen || stw_context_create(&opts, &w->rank.context)) return NULL;
    own.device = &w->rank.context->device;
    w->rank.context->ops = &ops;
    w->rank.on_device = 1;
    w->rank.stream = &caller_handle;
    w->rank.wire = STW_INIT(stw_cp_transport);
    w->rank.wire.name = "written down";
    w->rank.wire.user = &w->rank;
    w->rank.wire.group_begin = group_begin;
    w->rank.wire.send = send_bytes;
    w->rank.wire.recv = recv_bytes;
    w->rank.wire.group_end = group_end;
    w->rank.wire.all_gather = all_gather;
    if (!stw_cp_create(&w->rank.wire, w->rank.rank, w->rank.size, &w->rank.cp))
        cp_check(&w->rank, w->row, w->whole, &w->result);
    w->moves = own.moves;
    stw_cp_destroy(w->rank.cp);
    w->rank.context->ops = &stw_cpu_backend;
    stw_context_destroy(w->rank.context);
    for (int i = 0; i < 2; ++i) free(own.streams[i].deeds);
    free(own.parts);
    free(seen);
    return NULL;
}

static const cp_row rows[] = {
    {"attn_bwd:bf16:b1h4k2s96d16:causal_br", STW_CP_ZIGZAG, STW_CP_RING, 0, 0},
    {"attn_bwd:f32:b2h2s72d16:sink:dlse:grads_qkvs", STW_CP_CONTIGUOUS, STW_CP_RING, 0, 0},
    {"attn_bwd:f32:b1h2s80d16:causal_br:bias_b11k:grads_qkvb", STW_CP_ZIGZAG, STW_CP_ALL_GATHER, 0, 0},
    {"attn_bwd:f32:b1h2s80d16", STW_CP_ZIGZAG, STW_CP_ALL_GATHER, 0, 0}, /* all see all: one gather */
    {"attn_bwd:bf16:b4h4s60d16:thd:causal_br", STW_CP_ZIGZAG, STW_CP_ULYSSES, 0, 0},
    {"attn_bwd:bf16:b4h4s60d16:thd:causal_br", STW_CP_ZIGZAG, STW_CP_ULYSSES, 0, 2},
    {"attn_bwd:bf16:b1h16s70d16:used:dq_f32:acc_q", STW_CP_CONTIGUOUS, STW_CP_ULYSSES, 0, 4},
    {"attn_bwd:f32:b1h4k2s80d16:causal_br", STW_CP_ZIGZAG, STW_CP_2D, 2, 0},
};
enum { RANKS = 4 };

static void run_rows(void **state) {
    stw_context *context = NULL;
    stw_context_opts opts = STW_INIT(stw_context_opts);
    opts.backend = STW_BACKEND_CPU;
    opts.memory = STW_MEMORY_HOST;
    side_first = (int)(uintptr_t)*state;
    assert_int_equal(stw_context_create(&opts, &context), STW_OK);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
        worker workers[RANKS];
        cp_whole whole;
        cp_local *local = cp_local_create(RANKS, 60), *results = cp_local_create(RANKS, 60);
        assert_true(local && results);
        assert_int_equal(cp_whole_build(rows[i].problem, 0, 1, context, &whole), STW_OK);
        memset(workers, 0, sizeof workers);
        for (int32_t r = 0; r < RANKS; ++r) {
            workers[r].rank = (cp_rank){.results = cp_local_transport(results, r), .rank = r, .size = RANKS};
            workers[r].local = local;
            workers[r].row = &rows[i];
            workers[r].whole = &whole;
            assert_int_equal(pthread_create(&workers[r].thread, NULL, work, &workers[r]), 0);
        }
        for (int32_t r = 0; r < RANKS; ++r) pthread_join(workers[r].thread, NULL);
        for (int32_t r = 0; r < RANKS; ++r)
            if (workers[r].result.outcome != STW_VERIFY_OK)
                fail_msg("%s: rank %d: %s", workers[r].result.name, r, workers[r].result.text);
        if (i == 0 && side_first) assert_true(workers[1].moves > 4); /* the ring's, before kernels of the same tick */
        cp_whole_free(&whole);
        cp_local_destroy(local);
        cp_local_destroy(results);
    }
    stw_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(run_rows, (void *)0),
        cmocka_unit_test_prestate(run_rows, (void *)1),
    };
    return cmocka_run_group_tests_name("cp_streams", tests, NULL, NULL);
}
