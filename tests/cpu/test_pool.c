/* SPDX-License-Identifier: MIT
 *
 * The thread pool, compiled with pauses.h: it pauses before one atomic load in four, so threads that meet between two
 * loads once in a million runs meet there in hundreds. An alarm ends the test when a thread sleeps for ever. */
#include "backends/cpu/pool.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <unistd.h>

#include <cmocka.h>

enum { POOLS = 6000, CALLS = 4000, THREADS = 4, LIMIT_SECONDS = 20 };

static void hang(int signal) {
    static const char text[] = "FAIL a thread of the pool sleeps for ever\n";
    (void)signal;
    _exit(write(STDOUT_FILENO, text, sizeof text - 1) < 0 ? 2 : 1);
}

static void pools_end(void **state) {
    (void)state;
    for (int i = 0; i < POOLS; ++i) {
        stw_pool *pool;
        alarm(LIMIT_SECONDS);
        assert_int_equal(stw_pool_create(2, &pool), STW_OK);
        stw_pool_destroy(pool);
    }
}

typedef struct call {
    atomic_uint inside, joined[THREADS];
} call;

static void join(void *job, uint32_t thread) {
    call *c = job;
    atomic_fetch_add(&c->inside, 1);
    atomic_fetch_add(&c->joined[thread], 1);
    atomic_fetch_sub(&c->inside, 1);
}

/* Threads are asked for in turn from 2 to 4. */
static void calls_end_when_all_have_left(void **state) {
    (void)state;
    stw_pool *pool;
    unsigned others = 0;
    assert_int_equal(stw_pool_create(THREADS, &pool), STW_OK);
    for (uint32_t i = 0; i < CALLS; ++i) {
        const uint32_t asked = 2 + i % (THREADS - 1);
        call c = {0};
        alarm(LIMIT_SECONDS);
        assert_true(stw_pool_try_acquire(pool));
        stw_pool_run(pool, asked, join, &c);
        stw_pool_release(pool);
        assert_int_equal(c.inside, 0);
        assert_int_equal(c.joined[0], 1);
        for (uint32_t t = 1; t < THREADS; ++t) {
            assert_in_range(c.joined[t], 0, t < asked);
            others += c.joined[t];
        }
    }
    assert_true(others > 0);
    stw_pool_destroy(pool);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pools_end),
        cmocka_unit_test(calls_end_when_all_have_left),
    };
    signal(SIGALRM, hang);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
