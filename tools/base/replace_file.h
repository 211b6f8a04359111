/* SPDX-License-Identifier: MIT
 *
 * Writing a file that a reader never sees half of: beside the target, then renamed. Used by
 * `sternway run -o` (safetensors.c) and `sternway tune -o`. */
#ifndef STW_TOOLS_BASE_REPLACE_FILE_H
#define STW_TOOLS_BASE_REPLACE_FILE_H

#include <stdio.h>

#define STW_REPLACE_ERROR_MAX 512

/* The regular file that writing to `path` would make or replace, links resolved; the caller frees it. NULL
 * where `path` is anything else than a regular file, or its folder takes no new file (one is made and removed); `error`
 * says so. */
char *stw_replace_target(const char *path, char error[STW_REPLACE_ERROR_MAX]);

/* Calls write(to, user), which returns 0 when all went into `to`, and puts the result in the place of `path`, with the
 * owner and the permissions of what it replaces. Returns 0, or -1 with a text in `error`; then nothing has changed. */
int stw_replace_file(const char *path, int (*write)(FILE *to, const void *user), const void *user,
                     char error[STW_REPLACE_ERROR_MAX]);

#endif
