/* SPDX-License-Identifier: MIT
 *
 * Replacing a file whole (replace_file.h). */
#include "replace_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char *refuse_target(char *target, const char *text, char *error) {
    snprintf(error, STW_REPLACE_ERROR_MAX, "cannot be written: %s", text);
    free(target);
    return NULL;
}

/* The regular file that `path` names or would name, links resolved. */
static char *find_target(const char *path, char error[STW_REPLACE_ERROR_MAX]) {
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
    return target;
}

#define NAME_KEPT 200 /* characters of the target's name in that of the file beside it; names have 255 */

/* A new file in the folder of `target`, with a name that no other process has or had: NAME.XXXXXX.part. Its descriptor,
 * or -1 with the reason in `error`; *beside_out is to be freed. */
static int open_beside(const char *target, char **beside_out, char error[STW_REPLACE_ERROR_MAX]) {
    const char *slash = strrchr(target, '/');
    int folder = slash ? (int)(slash - target) + 1 : 0;
    if (asprintf(beside_out, "%.*s%.*s.XXXXXX.part", folder, target, NAME_KEPT, target + folder) < 0)
        *beside_out = NULL;
    int fd = *beside_out ? mkostemps(*beside_out, 5, O_CLOEXEC) : -1;
    int reason = errno;
    if (fd >= 0) return fd;
    free(*beside_out);
    *beside_out = NULL;
    snprintf(error, STW_REPLACE_ERROR_MAX, "cannot be written: folder %.*s: %s", folder > 1 ? folder - 1 : 1,
             folder ? target : ".", strerror(reason));
    return -1;
}

char *stw_replace_target(const char *path, char error[STW_REPLACE_ERROR_MAX]) {
    char *target = find_target(path, error), *beside;
    int fd = target ? open_beside(target, &beside, error) : -1;
    if (fd < 0) {
        free(target);
        return NULL;
    }
    close(fd);
    unlink(beside);
    free(beside);
    return target;
}

/* Owner and permissions of the file that is replaced; those of a new one where there is none. */
static int set_mode(int fd, const char *target) {
    struct stat old;
    if (stat(target, &old)) {
        mode_t mask = umask(0);
        umask(mask);
        return fchmod(fd, 0666 & ~mask);
    }
    int kept = !fchown(fd, old.st_uid, old.st_gid); /* another's group must not be able to do what its own was */
    return fchmod(fd, old.st_mode & (kept ? 0777 : 0707));
}

int stw_replace_file(const char *given, int (*write)(FILE *to, const void *user), const void *user,
                     char error[STW_REPLACE_ERROR_MAX]) {
    char *beside = NULL, *path = find_target(given, error);
    int fd = path ? open_beside(path, &beside, error) : -1;
    if (fd < 0) {
        free(path);
        return -1;
    }
    int status = set_mode(fd, path);
    FILE *to = status ? NULL : fdopen(fd, "wb");
    status = to ? write(to, user) : -1;
    if (!status) status = fflush(to);
    int reason = errno;
    if ((to ? fclose(to) : close(fd)) && !status) {
        reason = errno;
        status = -1;
    }
    if (!status && rename(beside, path)) {
        reason = errno;
        status = -1;
    }
    if (status) {
        unlink(beside);
        snprintf(error, STW_REPLACE_ERROR_MAX, "cannot be written: %s", strerror(reason));
    }
    free(beside);
    free(path);
    return status;
}
