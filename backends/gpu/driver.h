/* SPDX-License-Identifier: MIT
 *
 * A GPU driver of this process: loaded once, started once, never in a constructor, and refused in a
 * forked child, where drivers hang or crash. Each GPU backend owns one static stw_driver and calls
 * stw_driver_start at the head of open. */
#ifndef STW_GPU_DRIVER_H
#define STW_GPU_DRIVER_H

#include "common/dso.h"

#include <pthread.h>
#include <stdatomic.h>

typedef struct stw_driver {
    const char *who; /* "cuda": opens every text */
    const char *const *sonames;
    size_t soname_count;
    const stw_dso_row *rows;
    size_t row_count;
    void *table; /* struct of function pointers that the rows fill */
    /* Adds the version to a text about missing symbols, from functions that need no started driver; or NULL. */
    void (*describe)(stw_text *text);
    /* Starts the loaded driver: cuInit, hipInit. Has called stw_fail when it fails. */
    stw_status (*start)(void);

    /* state: zero at first, except the lock */
    pthread_mutex_t lock;
    atomic_int pid;    /* process that first touched the driver */
    atomic_int state;  /* enum in driver.c */
    stw_status status; /* of the last failure                   */
    char text[512];    /* of the last failure                   */
    char absent[256];  /* optional symbols that are not there   */
    stw_dso dso;
} stw_driver;

/* Loads on the first call, starts on the first call that succeeds. A driver that lacks a symbol is remembered for
 * ever; a library that did not load (no descriptor or memory was left, or it is not there) and a failed start (a fabric
 * manager may come up) are tried again by the next call. Thread-safe.
 * Errors: STW_E_NO_DRIVER, STW_E_FORKED (without a lock or a driver call), or what `start` says. */
stw_status stw_driver_start(stw_driver *driver);

/* 1 in a child of the process that touched the driver. */
int stw_driver_forked(const stw_driver *driver);

#endif
