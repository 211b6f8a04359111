/* SPDX-License-Identifier: MIT
 *
 * The threads of one CPU context. A job is a function that every thread taking part calls once and that
 * claims its work itself; the caller takes part. Nobody ever waits for the pool: whoever finds it busy (or
 * is in a child of fork, where its threads do not exist) runs the job alone. Used by attn_bwd.c and
 * attn_fwd.c, opened by backend.c. */
#ifndef STW_CPU_POOL_H
#define STW_CPU_POOL_H

#include "sternway/base.h"

#include <stdatomic.h>

typedef struct stw_pool stw_pool;

/* `worker`: 0 for the caller, else 1..threads-1; no two threads inside a job share it. */
typedef void (*stw_pool_fn)(void *job, uint32_t worker);

/* A pool of `threads` threads, the caller's included: threads - 1 are started, asleep while idle.
 * Errors: STW_E_NO_MEMORY. */
stw_status stw_pool_create(uint32_t threads, stw_pool **pool_out);
void stw_pool_destroy(stw_pool *pool);

/* Takes the pool for several jobs in a row. 1: the caller's until stw_pool_release. 0: busy or gone. */
int stw_pool_try_acquire(stw_pool *pool);
void stw_pool_release(stw_pool *pool);

#define STW_POOL_SPIN 2000u /* pauses awake before a thread inside a call sleeps: 50 us on an EPYC */

/* A futex: sleeps while the word holds the value, or wakes for no reason; wakes all that sleep on the word. */
void stw_pool_sleep(atomic_uint *word, uint32_t while_value);
void stw_pool_wake(atomic_uint *word);

/* Runs fn on at most `threads` threads and returns when all of them have. With pool = NULL: alone. */
void stw_pool_run(stw_pool *pool, uint32_t threads, stw_pool_fn fn, void *job);

#endif
