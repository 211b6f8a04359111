/* SPDX-License-Identifier: MIT
 *
 * The last-error text of each thread, and bounded text building. */
#include "status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local char last_error[1024];

stw_status stw_fail(stw_status status, const char *format, ...) {
    char text[sizeof last_error]; /* the arguments may point into last_error */
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    memcpy(last_error, text, sizeof last_error);
    return status;
}

const char *stw_failure_text(void) { return last_error; }

stw_text stw_text_in(char *data, size_t capacity) {
    stw_text text = {data, data ? capacity : 0, 0};
    if (text.capacity) data[0] = 0;
    return text;
}

void stw_text_add(stw_text *text, const char *format, ...) {
    size_t room = text->capacity > text->length ? text->capacity - text->length : 0;
    va_list arguments;
    va_start(arguments, format);
    int added = vsnprintf(room ? text->data + text->length : NULL, room, format, arguments);
    va_end(arguments);
    if (added > 0) text->length += (size_t)added;
}
