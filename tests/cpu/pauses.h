/* SPDX-License-Identifier: MIT
 *
 * Included before a source file by the compiler's command line: one atomic load in four is behind a pause of up to
 * 64 us, drawn by each thread for itself. */
#ifndef STW_TESTS_CPU_PAUSES_H
#define STW_TESTS_CPU_PAUSES_H

#include <stdatomic.h>
#include <stdint.h>
#include <time.h>

static inline void pause_at_times(void) {
    static atomic_uint threads;
    static _Thread_local uint32_t random;
    if (!random) random = 2654435761u * (atomic_fetch_add(&threads, 1) + 1);
    random = random * 1664525u + 1013904223u;
    if (random >> 30) return;
    const struct timespec time = {.tv_nsec = (random >> 12 & 63) * 1000};
    nanosleep(&time, NULL);
}

#undef atomic_load
#define atomic_load(from) (pause_at_times(), atomic_load_explicit(from, memory_order_seq_cst))

#endif
