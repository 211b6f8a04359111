/* SPDX-License-Identifier: MIT
 *
 * Thread pool. One word, `gate`, holds the whole state of a job: its number, whether it is open, and how
 * many workers are inside. Workers sleep on it (futex), join an open job once, and leave; the caller closes
 * the job when its own part is done, so a worker that wakes late finds it closed and nobody waits for it. A
 * worker never spins, and only those that a job may use are woken for it. */
#include "pool.h"

#include "common/status.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#define GATE_OPEN  0x8000u
#define GATE_COUNT 0x7FFFu
#define GATE_JOB   0x10000u /* one job further */

#define SLEEPERS 32u /* kinds of sleepers that a futex tells apart; workers from 32 on share the last */

typedef struct pool_worker {
    stw_pool *pool;
    pthread_t thread;
    uint32_t number;
} pool_worker;

struct stw_pool {
    _Alignas(64) atomic_uint gate;
    _Alignas(64) atomic_uint idle; /* 1 when no worker is inside a closed job: the caller waits on it */
    atomic_uint busy;
    atomic_int stop;
    stw_pool_fn fn;
    void *job;
    atomic_uint limit;
    uint32_t threads, fork_count;
    pool_worker workers[];
};

/* Counts forks on the child's side: a pool made under another count has no threads here. */
static uint32_t fork_count;
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;
static int fork_error;

static void after_fork_in_child(void) { ++fork_count; }
static void watch_forks(void) { fork_error = pthread_atfork(NULL, NULL, after_fork_in_child); }

void stw_pool_sleep(atomic_uint *word, uint32_t while_value) {
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, while_value, NULL, NULL, 0);
}

void stw_pool_wake(atomic_uint *word) { syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0); }

/* Worker `number` on the gate. */
static void sleep_as(atomic_uint *gate, uint32_t while_value, uint32_t number) {
    uint32_t kind = number < SLEEPERS ? number - 1 : SLEEPERS - 1;
    syscall(SYS_futex, gate, FUTEX_WAIT_BITSET_PRIVATE, while_value, NULL, NULL, 1u << kind);
}

/* Workers 1..threads-1; of those that share a kind, all. */
static void wake_below(atomic_uint *gate, uint32_t threads) {
    uint32_t kinds = threads <= SLEEPERS ? (1u << (threads - 1)) - 1 : ~0u;
    syscall(SYS_futex, gate, FUTEX_WAKE_BITSET_PRIVATE, INT_MAX, NULL, NULL, kinds);
}

static void leave(stw_pool *pool) {
    uint32_t left = atomic_fetch_sub(&pool->gate, 1) - 1;
    if (!(left & (GATE_OPEN | GATE_COUNT))) {
        atomic_store(&pool->idle, 1);
        stw_pool_wake(&pool->idle);
    }
}

static void *worker_main(void *argument) {
    pool_worker *self = argument;
    stw_pool *pool = self->pool;
    uint32_t last_job = 0; /* number of the job joined last; job numbers of open gates are never 0 twice */
    int joined_any = 0;
    for (;;) { /* stop is read after the gate: join_workers sets stop first, so nobody sleeps on the gate's last word */
        uint32_t gate = atomic_load(&pool->gate), job = gate / GATE_JOB;
        if (atomic_load(&pool->stop)) return NULL;
        int fresh = !joined_any || job != last_job;
        if ((gate & GATE_OPEN) && fresh && self->number < atomic_load(&pool->limit)) {
            if (!atomic_compare_exchange_strong(&pool->gate, &gate, gate + 1)) continue;
            last_job = job;
            joined_any = 1;
            pool->fn(pool->job, self->number);
            leave(pool);
            continue;
        }
        sleep_as(&pool->gate, gate, self->number);
    }
}

static void join_workers(stw_pool *pool, uint32_t started) {
    atomic_store(&pool->stop, 1);
    atomic_fetch_add(&pool->gate, GATE_JOB); /* a changed word: nobody falls asleep on the old one */
    stw_pool_wake(&pool->gate);
    for (uint32_t i = 0; i < started; ++i) pthread_join(pool->workers[i].thread, NULL);
}

stw_status stw_pool_create(uint32_t threads, stw_pool **pool_out) {
    pthread_once(&fork_once, watch_forks);
    if (fork_error) return stw_fail(STW_E_NO_MEMORY, "context_create: pthread_atfork failed (error %d)", fork_error);
    size_t bytes = sizeof(stw_pool) + (size_t)threads * sizeof(pool_worker);
    stw_pool *pool = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (!pool) return stw_fail(STW_E_NO_MEMORY, "context_create: no memory for a pool of %u threads", threads);
    atomic_init(&pool->gate, 0);
    atomic_init(&pool->idle, 1);
    atomic_init(&pool->busy, 0);
    atomic_init(&pool->stop, 0);
    atomic_init(&pool->limit, 0);
    pool->threads = threads;
    pool->fork_count = fork_count;
    sigset_t all, before; /* signals belong to the program's own threads */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    uint32_t started = 0;
    int error = 0;
    while (started + 1 < threads && !error) {
        pool_worker *worker = &pool->workers[started];
        worker->pool = pool;
        worker->number = started + 1;
        error = pthread_create(&worker->thread, NULL, worker_main, worker);
        if (!error) ++started;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error) {
        join_workers(pool, started);
        free(pool);
        return stw_fail(STW_E_NO_MEMORY,
                        "context_create: cpu_threads %u, but thread %u could not be started (error %d)", threads,
                        started + 2, error);
    }
    *pool_out = pool;
    return STW_OK;
}

void stw_pool_destroy(stw_pool *pool) {
    if (!pool) return;
    if (pool->fork_count == fork_count) join_workers(pool, pool->threads - 1);
    free(pool);
}

int stw_pool_try_acquire(stw_pool *pool) {
    if (pool->threads < 2 || pool->fork_count != fork_count) return 0;
    return !atomic_exchange(&pool->busy, 1);
}

void stw_pool_release(stw_pool *pool) { atomic_store(&pool->busy, 0); }

void stw_pool_run(stw_pool *pool, uint32_t threads, stw_pool_fn fn, void *job) {
    if (!pool || threads < 2) {
        fn(job, 0);
        return;
    }
    pool->fn = fn;
    pool->job = job;
    atomic_store(&pool->limit, threads);
    atomic_store(&pool->idle, 0);
    uint32_t gate = atomic_load(&pool->gate); /* closed and empty: only this thread changes it */
    atomic_store(&pool->gate, ((gate / GATE_JOB + 1) * GATE_JOB) | GATE_OPEN);
    wake_below(&pool->gate, threads);
    fn(job, 0);
    uint32_t inside = atomic_fetch_and(&pool->gate, ~GATE_OPEN) & GATE_COUNT;
    if (!inside) return;
    for (uint32_t i = 0; i < STW_POOL_SPIN && !atomic_load(&pool->idle); ++i) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
    }
    while (!atomic_load(&pool->idle)) stw_pool_sleep(&pool->idle, 0);
}
