/* SPDX-License-Identifier: MIT
 *
 * Mutexes whose holders call what pthread_cancel may end: drivers, the dynamic loader, write(). Cancellation waits
 * until the lock is given back. */
#ifndef STW_COMMON_LOCK_H
#define STW_COMMON_LOCK_H

#include <pthread.h>

/* Returns this thread's cancellation state, for stw_unlock. */
static inline int stw_lock(pthread_mutex_t *lock) {
    int before = PTHREAD_CANCEL_ENABLE;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    pthread_mutex_lock(lock);
    return before;
}

static inline void stw_unlock(pthread_mutex_t *lock, int before) {
    pthread_mutex_unlock(lock);
    pthread_setcancelstate(before, NULL);
}

#endif
