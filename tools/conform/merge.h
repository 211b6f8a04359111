/* SPDX-License-Identifier: MIT
 *
 * Private to conform_merge.c and conform_merge_read.c: a report as a file. */
#ifndef STW_TOOLS_CONFORM_MERGE_H
#define STW_TOOLS_CONFORM_MERGE_H

#include "report.h"

typedef struct conform_file {
    const char *name;
    cJSON *document;                        /* NULL: damaged */
    const char *id, *node, *arch, *version; /* in the document */
    int exit_status, is_copy;
    size_t failed;
} conform_file;

/* Reads and checks the file called f->name. Nonzero: damaged or not there, with the reason in `why`. */
int conform_file_read(conform_file *f, char *why, size_t capacity);

/* A string of an object; "" where there is none. */
const char *conform_item_text(const cJSON *item, const char *key);

/* A ratio of an object as a report has it, infinite ones included; -1: none. */
double conform_item_ratio(const cJSON *item, const char *key);

/* What tells a result from every other of its node and arch; valid until the next call. */
const char *conform_case_key(const cJSON *item);

#endif
