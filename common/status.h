/* SPDX-License-Identifier: MIT
 *
 * Failing with a text: every refusal in the library goes through stw_fail, which keeps the message for
 * stw_last_error() of this thread. Format: "function: field value what would be accepted". */
#ifndef STW_COMMON_STATUS_H
#define STW_COMMON_STATUS_H

#include "sternway/base.h"

/* Stores the text of this thread's failure and returns `status` (STW_OK to put an earlier text back). */
stw_status stw_fail(stw_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The text of this thread's last failure, "" before the first. */
const char *stw_failure_text(void);

/* A growing text in a caller's buffer: cut at capacity, `length` counts what it wanted (without the 0). */
typedef struct stw_text {
    char *data;
    size_t capacity, length;
} stw_text;

stw_text stw_text_in(char *data, size_t capacity);
void stw_text_add(stw_text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
