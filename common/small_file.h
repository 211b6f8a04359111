/* SPDX-License-Identifier: MIT
 *
 * Small text files of /proc and /sys, read whole with a bound, and their `key value` lines. Nothing is
 * trusted: a key counts once, values are decimal, every line ends in a newline. */
#ifndef STW_COMMON_SMALL_FILE_H
#define STW_COMMON_SMALL_FILE_H

#include <stddef.h>
#include <stdint.h>

typedef struct stw_small_file {
    size_t length;
    int error;        /* errno of the failed read, EFBIG when it does not fit, 0 */
    char data[16384]; /* ends in a 0 */
} stw_small_file;

/* 1 when all of it was read; else 0 with `error` set and what there was in `data`. */
int stw_small_file_read(const char *path, stw_small_file *file);

typedef enum stw_field { STW_FIELD_ABSENT, STW_FIELD_MALFORMED, STW_FIELD_READ } stw_field;

/* The value of the line "key 123\n", at most `maximum`; `value_out` is set only on STW_FIELD_READ. */
stw_field stw_small_file_number(const stw_small_file *file, const char *key, uint64_t maximum, uint64_t *value_out);

/* Copies `length` bytes cut to `capacity`, other than printable ASCII as '?', without trailing blanks. */
void stw_small_file_text(const char *from, size_t length, char *to, size_t capacity);

#endif
