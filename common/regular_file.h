/* SPDX-License-Identifier: MIT
 *
 * Files that a variable of the environment names. A FIFO or a device is refused before it is opened: opening a FIFO
 * waits for the other end, opening a device may act on it. */
#ifndef STW_COMMON_REGULAR_FILE_H
#define STW_COMMON_REGULAR_FILE_H

#include <sys/stat.h>

/* 1: this file may be opened. */
typedef int (*stw_file_accepts)(const struct stat *info);

int stw_file_is_regular(const struct stat *info);

/* open() of a file that `accepts`, and that stays non-blocking. -1: *why_out is strerror's text or "it is a FIFO". */
int stw_file_open(const char *path, int flags, stw_file_accepts accepts, const char **why_out);

#endif
