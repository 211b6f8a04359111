/* SPDX-License-Identifier: MIT
 *
 * One problem over ranks, verified and timed. The times of its halves come from the same plan: its wire is watched, and
 * may be silent (no message moves: compute alone) or played back (the messages of a call, with nothing between them:
 * communication alone). What the call takes less than both is what it hides. All of them take turns. */
#include "cp.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { RUNS_MAX = 200, RUNS_MIN = 3, SAMPLE_ROWS = 16 };

static double seconds_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* ---- a wire that is watched ---- */

typedef enum mode { PASS, RECORD, SILENT } mode;
typedef enum verb { BEGIN, SEND, RECV, END, WAIT, GATHER, REDUCE, EXCHANGE } verb;

typedef struct event {
    verb verb;
    const void *from;
    void *to;
    size_t bytes; /* REDUCE: numbers */
    int32_t peer;
    stw_dtype dtype;
    stw_stream stream;
} event;

typedef struct watched {
    stw_cp_transport inner;
    mode mode;
    event *events;
    size_t count, room;
    int no_memory;
} watched;

static int run_event(const stw_cp_transport *w, const event *e) {
    switch (e->verb) {
    case BEGIN: return w->group_begin(w->user);
    case SEND: return w->send(w->user, e->from, e->bytes, e->peer, e->stream);
    case RECV: return w->recv(w->user, e->to, e->bytes, e->peer, e->stream);
    case END: return w->group_end(w->user, e->stream);
    case WAIT: return w->wait(w->user, e->stream);
    case GATHER: return w->all_gather(w->user, e->from, e->to, e->bytes, e->stream);
    case REDUCE: return w->reduce_scatter(w->user, e->from, e->to, e->bytes, e->dtype, e->stream);
    default: return w->all_to_all(w->user, e->from, e->to, e->bytes, e->stream);
    }
}

static int watch(void *user, event e) {
    watched *w = user;
    if (w->mode == SILENT) return 0;
    if (w->mode == RECORD) {
        if (w->count == w->room) {
            size_t room = w->room ? 2 * w->room : 64;
            event *larger = realloc(w->events, room * sizeof *larger);
            if (larger) {
                w->events = larger;
                w->room = room;
            }
            w->no_memory |= !larger;
        }
        if (!w->no_memory) w->events[w->count++] = e;
    }
    return run_event(&w->inner, &e);
}

static int watch_begin(void *user) { return watch(user, (event){.verb = BEGIN}); }
static int watch_send(void *user, const void *from, size_t bytes, int32_t peer, stw_stream stream) {
    return watch(user, (event){.verb = SEND, .from = from, .bytes = bytes, .peer = peer, .stream = stream});
}
static int watch_recv(void *user, void *to, size_t bytes, int32_t peer, stw_stream stream) {
    return watch(user, (event){.verb = RECV, .to = to, .bytes = bytes, .peer = peer, .stream = stream});
}
static int watch_end(void *user, stw_stream stream) { return watch(user, (event){.verb = END, .stream = stream}); }
static int watch_wait(void *user, stw_stream stream) { return watch(user, (event){.verb = WAIT, .stream = stream}); }
static int watch_gather(void *user, const void *from, void *to, size_t bytes, stw_stream stream) {
    return watch(user, (event){.verb = GATHER, .from = from, .to = to, .bytes = bytes, .stream = stream});
}
static int watch_reduce(void *user, const void *from, void *to, size_t count, stw_dtype dtype, stw_stream stream) {
    return watch(user,
                 (event){.verb = REDUCE, .from = from, .to = to, .bytes = count, .dtype = dtype, .stream = stream});
}
static int watch_exchange(void *user, const void *from, void *to, size_t bytes, stw_stream stream) {
    return watch(user, (event){.verb = EXCHANGE, .from = from, .to = to, .bytes = bytes, .stream = stream});
}
static const char *watch_text(void *user, int error) {
    const watched *w = user;
    return w->inner.error_text ? w->inner.error_text(w->inner.user, error) : "an error";
}

static stw_cp_transport watched_transport(watched *w) {
    stw_cp_transport t = w->inner;
    t.user = w;
    t.group_begin = watch_begin;
    t.send = watch_send;
    t.recv = watch_recv;
    t.group_end = watch_end;
    if (t.wait) t.wait = watch_wait;
    if (t.all_gather) t.all_gather = watch_gather;
    if (t.reduce_scatter) t.reduce_scatter = watch_reduce;
    if (t.all_to_all) t.all_to_all = watch_exchange;
    t.error_text = watch_text;
    return t;
}

/* ---- one rank's part of a measurement ---- */

typedef struct bench {
    cp_rank *rank;
    cp_shard shard;
    unsigned char *there[STW_VERIFY_TENSOR_COUNT]; /* the shard's tensors in the context's memory */
    watched wire;
    stw_cp *cp;
    stw_cp_plan *plan;
    void *workspace;
    size_t workspace_bytes;
    stw_attn_args args;
    int forward;
    stw_plan *single; /* rank 0: of the whole problem on its device alone */
    stw_verify_device device;
    stw_attn_args single_args;
    cp_times *times;
} bench;

/* The largest value and the sum of all ranks, on each of them; also where all meet. */
static void combine(bench *b, double own, double *most_out, double *sum_out) {
    double both[2] = {own, own}, other;
    cp_rank *rank = b->rank;
    for (int32_t r = 1; r < rank->size; ++r) {
        if (rank->rank == r && !cp_move_bytes(rank, &own, NULL, sizeof own, 0))
            cp_fail(&b->times->result, "rank %d: times did not go", r);
        if (rank->rank) continue;
        if (!cp_move_bytes(rank, NULL, &other, sizeof other, r)) {
            cp_fail(&b->times->result, "the times of rank %d did not arrive", r);
            continue;
        }
        if (other > both[0]) both[0] = other;
        both[1] += other;
    }
    for (int32_t r = 1; r < rank->size; ++r)
        if ((!rank->rank && !cp_move_bytes(rank, both, NULL, sizeof both, r)) ||
            (rank->rank == r && !cp_move_bytes(rank, NULL, both, sizeof both, 0)))
            cp_fail(&b->times->result, "rank %d: the times of all did not move", rank->rank);
    if (most_out) *most_out = both[0];
    if (sum_out) *sum_out = both[1];
}

static int any_failed(bench *b) {
    double most = 0;
    combine(b, b->times->result.outcome == STW_VERIFY_OK ? 0 : 1, &most, NULL);
    if (most > 0) cp_fail(&b->times->result, "another rank failed");
    return most > 0;
}

static stw_status call_once(bench *b) {
    stw_status status = (b->forward ? stw_cp_attn_fwd : stw_cp_attn_bwd)(b->plan, &b->args, b->workspace,
                                                                         b->workspace_bytes, b->rank->stream);
    return status ? status : stw_stream_synchronize(b->rank->context, b->rank->stream);
}
/* Messages may be in streams of the plan's own: all that they are in are waited for. */
static stw_status play_back(bench *b) {
    const watched *w = &b->wire;
    stw_stream waited = b->rank->stream;
    int error = 0;
    for (size_t i = 0; i < w->count && !error; ++i) error = run_event(&w->inner, &w->events[i]);
    stw_status status = error ? STW_E_DRIVER : stw_stream_synchronize(b->rank->context, waited);
    for (size_t i = 0; i < w->count && !status; ++i) {
        if (w->events[i].verb == BEGIN || w->events[i].stream == waited) continue;
        waited = w->events[i].stream;
        status = stw_stream_synchronize(b->rank->context, waited);
    }
    return status;
}
static stw_status call_single(bench *b) {
    if (!b->single) return STW_OK;
    stw_status status = (b->forward ? stw_attn_fwd : stw_attn_bwd)(b->single, &b->single_args, b->device.workspace,
                                                                   b->device.workspace_bytes, b->device.stream);
    return status ? status : stw_stream_synchronize(b->rank->context, b->device.stream);
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* What is timed. One device: on GPUs all ranks run the whole problem at once, each on its own; on the CPU rank 0. */
typedef enum timed { WHOLE, MESSAGES, KERNELS, ONE_DEVICE, TIMED } timed;

static stw_status run_timed(bench *b, timed what) {
    b->wire.mode = what == KERNELS ? SILENT : PASS;
    stw_status status = what == MESSAGES ? play_back(b) : what == ONE_DEVICE ? call_single(b) : call_once(b);
    b->wire.mode = PASS;
    return status;
}

/* Takes turns for so long, all ranks as often: clocks and heat are those of all kinds. The time of a run is that of the
 * rank that takes longest. 0: a rank failed. */
static int time_turns(bench *b, double seconds, double quartiles[TIMED][3]) {
    double times[TIMED][RUNS_MAX], total = 0;
    int count = 0;
    while (count < RUNS_MAX && (count < RUNS_MIN || total < seconds)) {
        for (timed what = WHOLE; what < TIMED; ++what) {
            combine(b, 0, NULL, NULL); /* all begin */
            double begun = seconds_now();
            stw_status status = run_timed(b, what);
            double took = seconds_now() - begun, most;
            if (status) cp_fail(&b->times->result, "rank %d: %s", b->rank->rank, stw_last_error());
            combine(b, status ? INFINITY : took, &most, NULL);
            if (!(most < INFINITY)) cp_fail(&b->times->result, "another rank failed");
            if (b->times->result.outcome != STW_VERIFY_OK) return 0;
            total += times[what][count] = most;
        }
        ++count;
    }
    for (int what = 0; what < TIMED; ++what) {
        qsort(times[what], (size_t)count, sizeof *times[what], by_value);
        for (int i = 0; i < 3; ++i) quartiles[what][i] = times[what][(count - 1) * (i + 1) / 4];
    }
    return count;
}

/* ---- opening ---- */

static stw_status copy_in(bench *b) {
    stw_context *context = b->rank->context;
    stw_status status = STW_OK;
    for (int id = 0; id < STW_VERIFY_TENSOR_COUNT && !status; ++id) {
        void *data = NULL;
        if (!b->shard.data[id]) continue;
        status = stw_buffer_alloc(context, b->shard.bytes[id] + 1, &data);
        b->there[id] = data;
        if (!status) status = stw_copy(context, data, b->shard.data[id], b->shard.bytes[id], b->rank->stream);
    }
    return status ? status : stw_stream_synchronize(context, b->rank->stream);
}

static stw_status copy_out(bench *b) {
    stw_status status = STW_OK;
    for (int id = 0; id < STW_VERIFY_TENSOR_COUNT && !status; ++id)
        if (b->there[id])
            status = stw_copy(b->rank->context, b->shard.data[id], b->there[id], b->shard.bytes[id], b->rank->stream);
    return status ? status : stw_stream_synchronize(b->rank->context, b->rank->stream);
}

static stw_status open_single(bench *b) {
    const stw_verify_case *c = &b->shard.whole->c;
    stw_context *context = b->rank->context;
    if (b->rank->rank && !strcmp(stw_context_arch(context), "cpu")) return STW_OK;
    stw_status status = (b->forward ? stw_attn_fwd_plan : stw_attn_bwd_plan)(context, &c->problem.desc, &b->single);
    if (!status) status = stw_verify_device_open(context, c->bytes, stw_plan_workspace_size(b->single), &b->device);
    if (status) {
        stw_plan_destroy(b->single);
        b->single = NULL;
        return status;
    }
    if (!b->rank->rank) stw_verify_note_variant(b->single, &b->times->check);
    b->single_args = stw_verify_args(c, b->device.arena);
    return stw_verify_device_load(&b->device, c->host, 0);
}

/* Plans are collective: each rank makes its own, whatever went wrong here before. */
static void open_bench(bench *b, const cp_row *row) {
    const stw_cp_desc desc = cp_shard_desc(&b->shard, row);
    stw_context *context = b->rank->context;
    b->wire.inner = b->rank->wire;
    const stw_cp_transport wire = watched_transport(&b->wire);
    stw_status status = stw_cp_create(&wire, b->rank->rank, b->rank->size, &b->cp);
    if (!status) status = (b->forward ? stw_cp_attn_fwd_plan : stw_cp_attn_bwd_plan)(b->cp, context, &desc, &b->plan);
    if (!status) {
        cp_note_plan(b->plan, &b->times->result);
        b->workspace_bytes = stw_cp_plan_workspace_size(b->plan);
        status = stw_buffer_alloc(context, b->workspace_bytes + 1, &b->workspace);
    }
    if (!status) status = copy_in(b);
    b->args = cp_shard_args(&b->shard, b->there);
    if (b->forward) b->args.out = b->there[STW_VERIFY_OUT];
    if (!status) status = open_single(b);
    if (status) cp_fail(&b->times->result, "rank %d: %s", b->rank->rank, stw_last_error());
}

static void close_bench(bench *b) {
    if (b->single) {
        stw_verify_device_close(&b->device);
        stw_plan_destroy(b->single);
    }
    for (int id = 0; id < STW_VERIFY_TENSOR_COUNT; ++id)
        if (b->there[id]) stw_buffer_free(b->rank->context, b->there[id]);
    if (b->workspace) stw_buffer_free(b->rank->context, b->workspace);
    stw_cp_plan_destroy(b->plan);
    stw_cp_destroy(b->cp);
    free(b->wire.events);
    cp_shard_free(&b->shard);
}

/* ---- one call, judged on rank 0 by samples of the last sequence that has rows ---- */

static void judge(bench *b, const unsigned char *after) {
    const stw_verify_case *c = &b->shard.whole->c;
    int64_t sequence = c->problem.desc.batch - 1;
    int judged = 0;
    while (sequence >= 0 && !(c->q[sequence].used > 0 && c->kv[sequence].used > 0)) --sequence;
    if (sequence >= 0)
        (b->forward ? stw_verify_sample_judge_forward : stw_verify_sample_judge)(c, after, sequence, SAMPLE_ROWS,
                                                                                 &b->times->check, &judged);
    if (!judged) b->times->not_verified = sequence < 0 ? "it is empty" : "its dropout map is not sampled";
    if (b->times->check.outcome == STW_VERIFY_FAIL) cp_fail(&b->times->result, "%s", b->times->check.text);
}

static void verify(bench *b) {
    static const stw_verify_tensor gradients[] = {STW_VERIFY_DQ, STW_VERIFY_DK, STW_VERIFY_DV, STW_VERIFY_DBIAS,
                                                  STW_VERIFY_DSINK};
    static const stw_verify_tensor results[] = {STW_VERIFY_OUT, STW_VERIFY_LSE};
    const stw_verify_tensor *outputs = b->forward ? results : gradients;
    size_t count = b->forward ? 2 : 5;
    const stw_verify_case *c = &b->shard.whole->c;
    stw_status status = call_once(b);
    if (!status) status = copy_out(b);
    if (status) cp_fail(&b->times->result, "rank %d: %s", b->rank->rank, stw_last_error());
    if (any_failed(b)) return;
    unsigned char *after = b->rank->rank ? NULL : malloc(c->bytes);
    if (after) memcpy(after, c->host, c->bytes);
    for (size_t i = 0; i < count; ++i)
        if (c->present[outputs[i]]) cp_collect(b->rank, &b->shard, outputs[i], after, &b->times->result);
    if (after) judge(b, after);
    else if (!b->rank->rank) cp_fail(&b->times->result, "no memory");
    free(after);
}

/* ---- the measurement ---- */

static double bytes_sent(const watched *w, int32_t size) {
    double bytes = 0;
    for (size_t i = 0; i < w->count; ++i) {
        const event *e = &w->events[i];
        if (e->verb == SEND) bytes += (double)e->bytes;
        if (e->verb == GATHER || e->verb == EXCHANGE) bytes += (double)e->bytes * (size - 1);
        if (e->verb == REDUCE) bytes += (double)(e->bytes * (e->dtype == STW_F64 ? 8 : 4)) * (size - 1);
    }
    return bytes;
}

static void measure(bench *b, double seconds) {
    cp_times *t = b->times;
    double quartiles[TIMED][3] = {{0}};
    b->wire.mode = RECORD;
    if (call_once(b) || b->wire.no_memory) cp_fail(&t->result, "rank %d: the recorded call fails", b->rank->rank);
    b->wire.mode = PASS;
    if (any_failed(b)) return;
    combine(b, bytes_sent(&b->wire, b->rank->size), &t->sent_most, &t->sent_all);
    combine(b, (double)b->workspace_bytes, &t->workspace, NULL);
    t->runs = time_turns(b, seconds, quartiles);
    if (!t->runs) return;
    memcpy(t->quartiles, quartiles[WHOLE], sizeof t->quartiles);
    t->communication = quartiles[MESSAGES][1];
    t->compute = quartiles[KERNELS][1];
    t->single = quartiles[ONE_DEVICE][1];
    if (t->communication > 0)
        t->overlap = fmin(fmax((t->compute + t->communication - t->quartiles[1]) / t->communication, 0), 1);
    if (t->quartiles[1] > 0) t->efficiency = t->single / (b->rank->size * t->quartiles[1]);
}

void cp_bench(cp_rank *rank, const cp_row *row, const cp_whole *whole, double seconds, cp_times *times_out) {
    bench b = {.rank = rank, .times = times_out};
    memset(times_out, 0, sizeof *times_out);
    stw_verify_result_clear(&times_out->check);
    cp_row_name(row, times_out->result.name, sizeof times_out->result.name);
    snprintf(times_out->transport, sizeof times_out->transport, "%s", rank->wire.name);
    b.shard = (cp_shard){.whole = whole, .rank = rank->rank, .size = rank->size, .order = row->order};
    b.forward = whole->c.problem.op == STW_PROBLEM_ATTN_FWD;
    if (!cp_shard_make(&b.shard)) cp_fail(&times_out->result, "rank %d: no memory", rank->rank);
    else open_bench(&b, row);
    if (!any_failed(&b)) verify(&b);
    if (!any_failed(&b)) measure(&b, seconds);
    (void)any_failed(&b);
    close_bench(&b);
}
