/* SPDX-License-Identifier: MIT
 *
 * How many cores this process may run on. */
#ifndef STW_COMMON_CORES_H
#define STW_COMMON_CORES_H

#include <sched.h>
#include <unistd.h>

/* At least 1. Those that are online where the kernel does not tell which are allowed: more than a cpu_set_t
 * holds. */
static inline long stw_cores_allowed(void) {
    cpu_set_t allowed;
    long cores =
        sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? CPU_COUNT(&allowed) : sysconf(_SC_NPROCESSORS_ONLN);
    return cores > 0 ? cores : 1;
}

#endif
