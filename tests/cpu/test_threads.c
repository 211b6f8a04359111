/* SPDX-License-Identifier: MIT
 *
 * Which threads a call uses: args.cpu_threads, seen in the system's counts of every worker, and workers that
 * sleep when there is no call. Bits for any number of threads of a context are test_calls.c's. */
#include "tests/cpu/harness.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

/* Work for every thread in every phase, turns included: several key blocks a head, a broadcast dBias. */
static fixture busy_fixture(stw_dtype dtype) {
    fixture f = fixture_start();
    f.desc.dtype = dtype;
    f.desc.max_seq_q = 171;
    f.desc.max_seq_kv = 403;
    f.desc.head_dim_qk = 37;
    f.desc.head_dim_v = 19;
    f.desc.flags = STW_ATTN_SINK | STW_ATTN_DLSE;
    f.desc.bias_dtype = dtype;
    f.bias_broadcast = 5;
    f.desc.outputs = harness_all_outputs(&f);
    fixture_build(&f);
    return f;
}

/* Switches of a context's workers, by thread: one that sleeps on makes none. */
enum { MOST_WORKERS = 16 };
typedef struct switches {
    long thread[MOST_WORKERS], count[MOST_WORKERS];
    int threads;
} switches;

static switches strangers; /* threads that are no workers: this one's, a sanitizer's */

static int is_stranger(long thread) {
    for (int i = 0; i < strangers.threads; ++i)
        if (strangers.thread[i] == thread) return 1;
    return 0;
}

static switches switches_now(void) {
    switches s = {.threads = 0};
    DIR *tasks = opendir("/proc/self/task");
    assert_non_null(tasks);
    for (struct dirent *task; (task = readdir(tasks)) != NULL;) {
        char path[300], line[128];
        long thread = atol(task->d_name), voluntary = 0, other = 0;
        if (thread <= 0 || is_stranger(thread)) continue;
        snprintf(path, sizeof path, "/proc/self/task/%s/status", task->d_name);
        FILE *file = fopen(path, "re");
        assert_non_null(file);
        while (fgets(line, sizeof line, file)) {
            sscanf(line, "voluntary_ctxt_switches: %ld", &voluntary);
            sscanf(line, "nonvoluntary_ctxt_switches: %ld", &other);
        }
        fclose(file);
        assert_true(s.threads < MOST_WORKERS);
        s.thread[s.threads] = thread;
        s.count[s.threads++] = voluntary + other;
    }
    closedir(tasks);
    return s;
}

/* A context of so many threads, whose workers are the only threads that are counted. */
static stw_context *counted_context(int threads) {
    stw_context_destroy(harness_context(NULL, 2)); /* what starts with the first thread is there now */
    strangers.threads = 0;
    strangers = switches_now();
    return harness_context(NULL, threads);
}

static int woken_since(const switches *before) {
    switches now = switches_now();
    int woken = 0;
    assert_int_equal(now.threads, before->threads);
    for (int i = 0; i < now.threads; ++i)
        for (int j = 0; j < before->threads; ++j)
            woken += now.thread[i] == before->thread[j] && now.count[i] != before->count[j];
    return woken;
}

/* Waits until all workers sleep: their counts stand still. */
static switches switches_at_rest(void) {
    switches now = switches_now();
    for (int still = 0, tries = 0; still < 5 && tries < 1000; ++tries) {
        usleep(10000);
        still = woken_since(&now) ? 0 : still + 1;
        now = switches_now();
    }
    return now;
}

/* args.cpu_threads: the same bits whatever it is, and no worker wakes that the call may not use. */
static void threads_of_a_call(void **state) {
    (void)state;
    enum { POOL = 6 };
    stw_context *context = counted_context(POOL);
    for (int dtype = STW_F32; dtype <= STW_F64; ++dtype) {
        size_t bytes;
        fixture f = busy_fixture((stw_dtype)dtype);
        harness_run(context, &f);
        unsigned char *expected = harness_snapshot(&f, &bytes);
        static const int32_t limits[] = {1, 2, 3, POOL, 1024};
        for (size_t n = 0; n < sizeof limits / sizeof *limits; ++n) {
            switches before = switches_at_rest();
            assert_int_equal(before.threads, POOL - 1);
            f.args.cpu_threads = limits[n];
            harness_poison_outputs(&f);
            harness_run(context, &f);
            unsigned char *got = harness_snapshot(&f, &bytes);
            if (memcmp(expected, got, bytes)) fail_msg("cpu_threads %d: other bits", limits[n]);
            free(got);
            usleep(50000); /* a worker woken for nothing has run by then */
            int woken = woken_since(&before);
            if (woken >= limits[n]) fail_msg("cpu_threads %d woke %d workers", limits[n], woken);
        }
        free(expected);
        fixture_free(&f);
    }
    stw_context_destroy(context);
}

/* Workers sleep as soon as a call is over: they take no processor time from the caller's own threads. */
static void idle_workers_sleep(void **state) {
    (void)state;
    stw_context *context = counted_context(4);
    fixture f = busy_fixture(STW_F32);
    harness_run(context, &f);
    switches_at_rest();
    struct timespec before, after;
    assert_int_equal(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before), 0);
    usleep(200000);
    assert_int_equal(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after), 0);
    double spent = (double)(after.tv_sec - before.tv_sec) + 1e-9 * (double)(after.tv_nsec - before.tv_nsec);
    if (spent > 0.02) fail_msg("%.3f s of processor time in 0.2 s without a call", spent);
    fixture_free(&f);
    stw_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_of_a_call),
        cmocka_unit_test(idle_workers_sleep),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
