/* SPDX-License-Identifier: MIT */
/* stat(), lstat(), fstat() as glibc before 2.33 had them in every program: calls of __xstat and its sisters, which
 * newer ones keep for such programs. */
#include <sys/stat.h>

#define VERSION_OF_STRUCT 1 /* _STAT_VER of x86-64 */

int __xstat(int version, const char *path, struct stat *info);
int __lxstat(int version, const char *path, struct stat *info);
int __fxstat(int version, int fd, struct stat *info);

#pragma GCC visibility push(hidden)
int stat(const char *path, struct stat *info) { return __xstat(VERSION_OF_STRUCT, path, info); }

int lstat(const char *path, struct stat *info) { return __lxstat(VERSION_OF_STRUCT, path, info); }

int fstat(int fd, struct stat *info) { return __fxstat(VERSION_OF_STRUCT, fd, info); }
#pragma GCC visibility pop
