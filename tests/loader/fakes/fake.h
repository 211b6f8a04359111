/* SPDX-License-Identifier: MIT
 *
 * What the fake driver libraries share. They are driven by the environment, read at every call:
 *   FAKE_LOG=FILE           every call adds "FOLDER:FUNCTION\n", FOLDER being the library's own
 *   FAKE_FAIL=F:CODE[:N]    function F returns CODE, always or on its Nth call; several by commas
 *   FAKE_FAST=1             neither, from the first call on: for measuring the library's own time */
#ifndef STW_TESTS_LOADER_FAKE_H
#define STW_TESTS_LOADER_FAKE_H

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FAKE_FUNCTIONS_MAX 64

static inline const char *fake_folder(void) {
    static char folder[512];
    Dl_info info;
    if (!folder[0] && dladdr((void *)folder, &info) && info.dli_fname) {
        char path[512];
        snprintf(path, sizeof path, "%s", info.dli_fname);
        char *slash = strrchr(path, '/');
        if (slash) *slash = 0;
        slash = strrchr(path, '/');
        snprintf(folder, sizeof folder, "%s", slash ? slash + 1 : path);
    }
    return folder;
}

static inline void fake_log(const char *function) {
    const char *path = getenv("FAKE_LOG");
    if (!path) return;
    char line[640];
    int length = snprintf(line, sizeof line, "%s:%s\n", fake_folder(), function);
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (fd < 0) return;
    if (write(fd, line, (size_t)length) != length) abort();
    close(fd);
}

/* Which call of `function` this is, from 1. */
static inline int fake_count(const char *function) {
    static struct {
        char name[64];
        int calls;
    } counts[FAKE_FUNCTIONS_MAX];
    for (int i = 0; i < FAKE_FUNCTIONS_MAX; ++i) {
        if (!counts[i].name[0]) snprintf(counts[i].name, sizeof counts[i].name, "%s", function);
        if (!strcmp(counts[i].name, function)) return ++counts[i].calls;
    }
    abort();
}

static pthread_mutex_t fake_lock = PTHREAD_MUTEX_INITIALIZER;

static inline int fake_fast(void) {
    static int fast = -1;
    if (fast < 0) fast = getenv("FAKE_FAST") != NULL;
    return fast;
}

/* Logs the call and gives the error it shall return. */
static inline int fake_call(const char *function) {
    if (fake_fast()) return 0;
    pthread_mutex_lock(&fake_lock);
    fake_log(function);
    int call = fake_count(function), code = 0, nth;
    pthread_mutex_unlock(&fake_lock);
    const char *plan = getenv("FAKE_FAIL");
    size_t length = strlen(function);
    while (plan && *plan) {
        if (!strncmp(plan, function, length) && plan[length] == ':') {
            int fields = sscanf(plan + length, ":%d:%d", &code, &nth);
            return fields == 1 || (fields == 2 && nth == call) ? code : 0;
        }
        plan = strchr(plan, ',');
        if (plan) ++plan;
    }
    return 0;
}

/* The `index`th record of FAKE_..._DEVICES ("a|b|c;a|b|c"), copied; 0 when there is none. */
static inline int fake_record(const char *variable, int index, char *record, size_t capacity) {
    const char *at = getenv(variable);
    for (int i = 0; at && *at; ++i) {
        size_t length = strcspn(at, ";");
        if (i == index) {
            snprintf(record, capacity, "%.*s", (int)length, at);
            return 1;
        }
        at += length + (at[length] == ';');
    }
    return 0;
}

static inline int fake_devices(const char *variable) {
    char record[512];
    int count = 0;
    while (fake_record(variable, count, record, sizeof record)) ++count;
    return count;
}

#endif
