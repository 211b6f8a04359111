/* SPDX-License-Identifier: MIT
 *
 * A transport between threads of one process, for checks without an MPI at hand. It is no wire: what the ranks share is
 * the memory of one process. It is as strict as a wire can be: data move in `wait` and not before, what was sent is
 * read as late as it may be, and until then the receiver's memory holds NaN; a missing wait, a buffer that is
 * overwritten too early and messages whose sizes differ all show. Between devices data move at the end of a group, when
 * the stream has come to it, and the host waits: that is stream order, with nothing under anything. */
#include "cp.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { FAILED_SIZES = 1, FAILED_TIMEOUT, FAILED_MEMORY, FAILED_EARLIER, FAILED_DEVICE };

typedef struct message {
    const void *from;
    size_t bytes;
    int *taken; /* the sender's count of those that were taken */
    struct message *next;
} message;

typedef struct receipt {
    void *to;
    size_t bytes;
    int32_t peer;
} receipt;

typedef struct rank_state {
    cp_local *local;
    stw_context *context; /* null: host memory */
    int32_t rank;
    receipt *receipts;
    int64_t receipt_count, receipt_room;
    int sent, taken;
} rank_state;

struct cp_local {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int32_t size;
    double timeout_s;
    int failed; /* one rank's failure is all ranks' */
    rank_state *ranks;
    message **first, **last; /* [from * size + to] */
};

static int group_begin(void *user) {
    cp_local *l = ((const rank_state *)user)->local;
    pthread_mutex_lock(&l->lock);
    int failed = l->failed;
    pthread_mutex_unlock(&l->lock);
    return failed ? FAILED_EARLIER : 0;
}

static int send_bytes(void *user, const void *from, size_t bytes, int32_t peer, stw_stream stream) {
    rank_state *r = user;
    cp_local *l = r->local;
    message *m = calloc(1, sizeof *m);
    (void)stream;
    if (!m) return FAILED_MEMORY;
    *m = (message){from, bytes, &r->taken, NULL};
    pthread_mutex_lock(&l->lock);
    size_t queue = (size_t)r->rank * (size_t)l->size + (size_t)peer;
    if (l->last[queue]) l->last[queue]->next = m;
    else l->first[queue] = m;
    l->last[queue] = m;
    r->sent++;
    pthread_cond_broadcast(&l->changed);
    pthread_mutex_unlock(&l->lock);
    return 0;
}

static int recv_bytes(void *user, void *to, size_t bytes, int32_t peer, stw_stream stream) {
    rank_state *r = user;
    (void)stream;
    if (r->receipt_count == r->receipt_room) {
        int64_t room = r->receipt_room ? 2 * r->receipt_room : 16;
        receipt *larger = realloc(r->receipts, (size_t)room * sizeof *larger);
        if (!larger) return FAILED_MEMORY;
        r->receipts = larger;
        r->receipt_room = room;
    }
    if (!r->context) memset(to, 0xFF, bytes);
    r->receipts[r->receipt_count++] = (receipt){to, bytes, peer};
    return 0;
}

static int group_end(void *user, stw_stream stream) {
    (void)user;
    (void)stream;
    return 0;
}

/* Under the lock; 0 when the time is up. */
static int wait_for_change(cp_local *l, const struct timespec *until) {
    return pthread_cond_timedwait(&l->changed, &l->lock, until) != ETIMEDOUT;
}

static int take_one(rank_state *r, const receipt *wanted, const struct timespec *until) {
    cp_local *l = r->local;
    size_t queue = (size_t)wanted->peer * (size_t)l->size + (size_t)r->rank;
    while (!l->first[queue])
        if (l->failed || !wait_for_change(l, until)) return l->failed ? FAILED_EARLIER : FAILED_TIMEOUT;
    message *m = l->first[queue];
    l->first[queue] = m->next;
    if (!m->next) l->last[queue] = NULL;
    int error = m->bytes == wanted->bytes ? 0 : FAILED_SIZES;
    if (!error && !r->context) memcpy(wanted->to, m->from, m->bytes);
    if (!error && r->context &&
        (stw_copy(r->context, wanted->to, m->from, m->bytes, NULL) || stw_stream_synchronize(r->context, NULL)))
        error = FAILED_DEVICE;
    ++*m->taken;
    free(m);
    pthread_cond_broadcast(&l->changed);
    return error;
}

/* Of this rank's messages those that nobody took: their memory is the sender's again. Under the lock. */
static void forget_messages(rank_state *r) {
    cp_local *l = r->local;
    for (int32_t to = 0; to < l->size; ++to) {
        size_t queue = (size_t)r->rank * (size_t)l->size + (size_t)to;
        for (message *m = l->first[queue], *next; m; m = next) {
            next = m->next;
            free(m);
        }
        l->first[queue] = l->last[queue] = NULL;
    }
    r->taken = r->sent;
}

static int wait_all(void *user, stw_stream stream) {
    rank_state *r = user;
    cp_local *l = r->local;
    struct timespec until;
    int error = 0;
    (void)stream;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += (time_t)l->timeout_s;
    until.tv_nsec += (long)((l->timeout_s - (double)(time_t)l->timeout_s) * 1e9);
    if (until.tv_nsec >= 1000000000) until.tv_nsec -= 1000000000, until.tv_sec++;
    pthread_mutex_lock(&l->lock);
    for (int64_t i = 0; i < r->receipt_count && !error; ++i) error = take_one(r, &r->receipts[i], &until);
    while (!error && r->taken < r->sent)
        if (l->failed || !wait_for_change(l, &until)) error = l->failed ? FAILED_EARLIER : FAILED_TIMEOUT;
    r->receipt_count = 0;
    if (error) {
        forget_messages(r);
        l->failed = 1;
        pthread_cond_broadcast(&l->changed);
    }
    pthread_mutex_unlock(&l->lock);
    return error;
}

/* Between devices: what the stream has got so far is done, NaN lies where something is to arrive, then it does. */
static int group_end_on_device(void *user, stw_stream stream) {
    rank_state *r = user;
    int error = 0;
    for (int64_t i = 0; i < r->receipt_count && !error; ++i) {
        void *nan = malloc(r->receipts[i].bytes);
        if (!nan) return FAILED_MEMORY;
        memset(nan, 0xFF, r->receipts[i].bytes);
        if (stw_copy(r->context, r->receipts[i].to, nan, r->receipts[i].bytes, stream) ||
            stw_stream_synchronize(r->context, stream))
            error = FAILED_DEVICE;
        free(nan);
    }
    if (!error && stw_stream_synchronize(r->context, stream)) error = FAILED_DEVICE;
    return error ? error : wait_all(user, stream);
}

static const char *error_text(void *user, int error) {
    static const char *const texts[] = {
        "",          "the sizes of a message differ", "another rank did not come in time",
        "no memory", "another rank failed",           "the device failed"};
    (void)user;
    return texts[error];
}

cp_local *cp_local_create(int32_t size, double timeout_s) {
    cp_local *l = calloc(1, sizeof *l);
    if (!l) return NULL;
    l->size = size;
    l->timeout_s = timeout_s;
    l->ranks = calloc((size_t)size, sizeof *l->ranks);
    l->first = calloc((size_t)size * (size_t)size, sizeof(message *));
    l->last = calloc((size_t)size * (size_t)size, sizeof(message *));
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->changed, NULL);
    if (!l->ranks || !l->first || !l->last) {
        cp_local_destroy(l);
        return NULL;
    }
    for (int32_t r = 0; r < size; ++r) l->ranks[r] = (rank_state){.local = l, .rank = r};
    return l;
}

void cp_local_destroy(cp_local *l) {
    if (!l) return;
    for (size_t queue = 0; l->first && queue < (size_t)l->size * (size_t)l->size; ++queue)
        for (message *m = l->first[queue], *next; m; m = next) {
            next = m->next;
            free(m);
        }
    for (int32_t r = 0; l->ranks && r < l->size; ++r) free(l->ranks[r].receipts);
    pthread_mutex_destroy(&l->lock);
    pthread_cond_destroy(&l->changed);
    free(l->ranks);
    free(l->first);
    free(l->last);
    free(l);
}

stw_cp_transport cp_local_transport(cp_local *l, int32_t rank) {
    stw_cp_transport wire = STW_INIT(stw_cp_transport);
    wire.name = "threads";
    wire.user = &l->ranks[rank];
    wire.group_begin = group_begin;
    wire.send = send_bytes;
    wire.recv = recv_bytes;
    wire.group_end = group_end;
    wire.wait = wait_all;
    wire.error_text = error_text;
    return wire;
}

stw_cp_transport cp_local_device_transport(cp_local *l, int32_t rank, stw_context *context) {
    stw_cp_transport wire = cp_local_transport(l, rank);
    l->ranks[rank].context = context;
    wire.name = "threads of one process";
    wire.group_end = group_end_on_device;
    wire.wait = NULL;
    return wire;
}
