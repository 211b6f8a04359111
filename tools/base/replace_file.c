/* SPDX-License-Identifier: MIT
 *
 * Replacing a file whole (replace_file.h). */
#include "replace_file.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char *refuse_target(char *target, const char *text, char *error) {
    snprintf(error, STW_REPLACE_ERROR_MAX, "cannot be written: %s", text);
    free(target);
    return NULL;
}

char *stw_replace_target(const char *path, char error[STW_REPLACE_ERROR_MAX]) {
    struct stat at;
    char *target = NULL;
    if (!stat(path, &at)) {
        if (!S_ISREG(at.st_mode)) return refuse_target(NULL, "not a regular file", error);
        target = realpath(path, NULL); /* a link stays one: its target is replaced */
    } else if (errno != ENOENT) {
        return refuse_target(NULL, strerror(errno), error);
    } else if (!lstat(path, &at)) {
        return refuse_target(NULL, "a symbolic link to nothing, not a regular file", error);
    } else {
        target = strdup(path);
    }
    if (!target) return refuse_target(NULL, strerror(errno), error);
    char *slash = strrchr(target, '/');
    if (!(slash ? slash[1] : target[0])) return refuse_target(target, "not the name of a file", error);
    char *folder = slash ? strndup(target, slash == target ? 1 : (size_t)(slash - target)) : strdup(".");
    int bad = !folder || access(folder, W_OK | X_OK);
    int reason = errno;
    if (bad)
        snprintf(error, STW_REPLACE_ERROR_MAX, "cannot be written: folder %.300s: %s", folder ? folder : "",
                 strerror(reason));
    free(folder);
    if (!bad) return target;
    free(target);
    return NULL;
}

int stw_replace_file(const char *given, int (*write)(FILE *to, const void *user), const void *user,
                     char error[STW_REPLACE_ERROR_MAX]) {
    char *path = stw_replace_target(given, error);
    if (!path) return -1;
    char *beside = malloc(strlen(path) + 32);
    if (!beside) {
        free(path);
        snprintf(error, STW_REPLACE_ERROR_MAX, "out of memory");
        return -1;
    }
    sprintf(beside, "%s.%ld.part", path, (long)getpid());
    FILE *to = fopen(beside, "wbx");
    int status = to ? write(to, user) : -1;
    if (!status) status = fflush(to);
    int reason = errno;
    if (to && fclose(to) && !status) {
        reason = errno;
        status = -1;
    }
    if (!status && rename(beside, path)) {
        reason = errno;
        status = -1;
    }
    if (status) {
        if (to) unlink(beside);
        snprintf(error, STW_REPLACE_ERROR_MAX, "cannot be written: %s", strerror(reason));
    }
    free(beside);
    free(path);
    return status;
}
