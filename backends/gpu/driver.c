/* SPDX-License-Identifier: MIT
 *
 * Load once, start once, refuse after fork. The rules are in driver.h. */
#include "backends/gpu/driver.h"

#include "common/lock.h"

#include <stdio.h>
#include <unistd.h>

/* UNLOADABLE is remembered, FAILED tried again. A load that fails is tried again whatever the loader says: where a
 * malloc of its search fails, it says "No such file or directory" too. */
enum { DRIVER_UNTOUCHED, DRIVER_BUSY, DRIVER_LOADED, DRIVER_READY, DRIVER_UNLOADABLE, DRIVER_FAILED };

/* Remembers the text before it publishes the state: a forked child may read it. */
static stw_status driver_failed(stw_driver *driver, int state, stw_status status, const char *text) {
    driver->status = status;
    snprintf(driver->text, sizeof driver->text, "%s", text);
    atomic_store(&driver->state, state);
    return status;
}

static stw_status driver_load(stw_driver *driver) {
    char reason[320];
    stw_text words = stw_text_in(reason, sizeof reason);
    if (!stw_dso_open(&driver->dso, driver->sonames, driver->soname_count, &words)) {
        stw_fail(STW_E_NO_DRIVER, "%s: no driver: %s", driver->who, reason);
        return driver_failed(driver, DRIVER_FAILED, STW_E_NO_DRIVER, stw_last_error());
    }
    words = stw_text_in(reason, sizeof reason); /* of the libraries that were not found before this one */
    stw_text absent = stw_text_in(driver->absent, sizeof driver->absent);
    if (!stw_dso_bind(&driver->dso, driver->rows, driver->row_count, driver->table, &words, &absent)) {
        char version[64] = "";
        stw_text about = stw_text_in(version, sizeof version);
        if (driver->describe) driver->describe(&about);
        stw_fail(STW_E_NO_DRIVER, "%s: %s%s lacks %s, which this library needs: install a newer driver", driver->who,
                 driver->dso.soname, version, reason);
        return driver_failed(driver, DRIVER_UNLOADABLE, STW_E_NO_DRIVER, stw_last_error());
    }
    atomic_store(&driver->state, DRIVER_LOADED);
    return STW_OK;
}

static stw_status driver_load_and_start(stw_driver *driver) {
    int state = atomic_load(&driver->state);
    if (state == DRIVER_READY) return STW_OK;
    if (state == DRIVER_UNLOADABLE) return stw_fail(driver->status, "%s", driver->text);
    atomic_store(&driver->state, DRIVER_BUSY);
    if (!driver->dso.handle) {
        stw_status status = driver_load(driver);
        if (status != STW_OK) return status;
    }
    stw_status status = driver->start();
    if (status != STW_OK) return driver_failed(driver, DRIVER_FAILED, status, stw_last_error());
    atomic_store(&driver->state, DRIVER_READY);
    return STW_OK;
}

int stw_driver_forked(const stw_driver *driver) {
    int pid = atomic_load(&driver->pid);
    return pid && pid != (int)getpid();
}

/* The lock may have been held by another thread at the fork: the child must not touch it. */
static stw_status driver_refuse_fork(stw_driver *driver) {
    int state = atomic_load(&driver->state);
    if (state == DRIVER_UNLOADABLE || state == DRIVER_FAILED) return stw_fail(driver->status, "%s", driver->text);
    return stw_fail(STW_E_FORKED,
                    "%s: process %d started the driver and then forked this process %d; a GPU is usable in a child "
                    "only when its parent has not used it before",
                    driver->who, atomic_load(&driver->pid), (int)getpid());
}

stw_status stw_driver_start(stw_driver *driver) {
    int nobody = 0;
    atomic_compare_exchange_strong(&driver->pid, &nobody, (int)getpid());
    if (stw_driver_forked(driver)) return driver_refuse_fork(driver);
    int cancel = stw_lock(&driver->lock);
    stw_status status = driver_load_and_start(driver);
    stw_unlock(&driver->lock, cancel);
    return status;
}
