/* SPDX-License-Identifier: MIT
 *
 * Opening nothing that holds or acts. The rules are in regular_file.h. */
#include "common/regular_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

int stw_file_is_regular(const struct stat *info) { return S_ISREG(info->st_mode); }

static const char *kind_of(const struct stat *info) {
    switch (info->st_mode & S_IFMT) {
    case S_IFDIR: return "it is a directory";
    case S_IFIFO: return "it is a FIFO";
    case S_IFSOCK: return "it is a socket";
    default: return "it is a device";
    }
}

int stw_file_open(const char *path, int flags, stw_file_accepts accepts, const char **why_out) {
    struct stat info;
    if (!stat(path, &info) && !accepts(&info)) {
        *why_out = kind_of(&info);
        return -1;
    }
    int fd = open(path, flags | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0644);
    if (fd >= 0 && !fstat(fd, &info) && accepts(&info)) return fd;
    *why_out = fd < 0 ? strerror(errno) : kind_of(&info); /* another file took its place */
    if (fd >= 0) close(fd);
    return -1;
}
