/* SPDX-License-Identifier: MIT
 *
 * Running maxima and sums over the components, by one CTA: for the first step of a call. */
#ifndef STW_COMMON_KERNELS_JAGGED_SCAN_H
#define STW_COMMON_KERNELS_JAGGED_SCAN_H

#include "common/device/device.h"
#include "common/params/jagged_launch.h"

enum { JAG_SCAN = STW_JAGGED_PREPARE_THREADS };

/* Shared memory of the scans. */
struct jag_scan {
    int64_t value[JAG_SCAN], group[32], carry;
    int32_t status, gaps;
};

static_assert(sizeof(jag_scan) <= STW_JAGGED_PREPARE_SMEM, "room for the scans");

struct jag_larger {
    DEV_FN int64_t of(int64_t a, int64_t b) { return a > b ? a : b; }
};
struct jag_plus {
    DEV_FN int64_t of(int64_t a, int64_t b) { return a + b; }
};

/* What Op makes of all values before this thread's one, s.carry included, which becomes that of all. All threads. */
template <class Op> DEV_FN int64_t jag_exclusive_scan(jag_scan &s, int64_t x) {
    int t = (int)dev_thread();
    s.value[t] = x;
    dev_barrier();
    if (t < 32) {
        int64_t sum = s.value[t * 32];
        for (int i = 1; i < 32; ++i) sum = Op::of(sum, s.value[t * 32 + i]);
        s.group[t] = sum;
    }
    dev_barrier();
    if (t == 0) {
        int64_t sum = s.carry;
        for (int i = 0; i < 32; ++i) {
            int64_t next = Op::of(sum, s.group[i]);
            s.group[i] = sum;
            sum = next;
        }
        s.carry = sum;
    }
    dev_barrier();
    if (t < 32) {
        int64_t sum = s.group[t];
        for (int i = 0; i < 32; ++i) {
            int64_t next = Op::of(sum, s.value[t * 32 + i]);
            s.value[t * 32 + i] = sum;
            sum = next;
        }
    }
    dev_barrier();
    int64_t before = s.value[t];
    dev_barrier();
    return before;
}

/* A fresh scan. */
DEV_FN void jag_start(jag_scan &s, int64_t carry) {
    dev_barrier();
    if (dev_thread() == 0) s.carry = carry;
    dev_barrier();
}

#endif
