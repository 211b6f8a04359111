/* SPDX-License-Identifier: MIT
 *
 * The kernel driver's files of the emulated GPU, for `sternway info`, which starts no runtime: preloaded, it
 * turns /sys/class/kfd into a folder that CMakeLists.txt has written, CDNA_EMU_KFD. Nothing else is touched. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

#define FOLDER "/sys/class/kfd"

/* Where `path` really lies; `room` holds it. */
static const char *place(const char *path, char *room, size_t capacity) {
    const char *kfd = getenv("CDNA_EMU_KFD");
    if (!kfd || strncmp(path, FOLDER "/", sizeof FOLDER)) return path;
    snprintf(room, capacity, "%s%s", kfd, path + sizeof FOLDER - 1);
    return room;
}

DIR *opendir(const char *path) {
    char room[4096];
    DIR *(*next)(const char *);
    *(void **)&next = dlsym(RTLD_NEXT, "opendir");
    return next(place(path, room, sizeof room));
}

int open(const char *path, int flags, ...) {
    char room[4096];
    int (*next)(const char *, int, ...);
    *(void **)&next = dlsym(RTLD_NEXT, "open");
    va_list more;
    va_start(more, flags);
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0;
    va_end(more);
    return next(place(path, room, sizeof room), flags, mode);
}
