/* SPDX-License-Identifier: MIT
 *
 * The last-error text of each thread, and bounded text building. Texts are values of a POSIX key: thread-local
 * variables of a library that dlopen brought take memory at their first use, and glibc ends the process where there is
 * none. */
#include "status.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TEXT_BYTES = 1024, PLACES = 16 };

/* Texts of the first threads that fail, which need no memory; the others' are malloc'ed. */
static char places[PLACES][TEXT_BYTES];
static atomic_bool taken[PLACES];
static char no_memory[] = "no memory for the text of this thread's error"; /* stands for a text, is never written */

static atomic_uint key_or_0; /* the key + 1 */

static void text_free(void *text) {
    for (int i = 0; i < PLACES; ++i)
        if (text == places[i]) {
            atomic_store(&taken[i], 0);
            return;
        }
    if (text != no_memory) free(text);
}

/* 0 where the process has no key left. */
static int key_get(pthread_key_t *key_out) {
    unsigned made = atomic_load(&key_or_0);
    if (!made) {
        pthread_key_t key;
        if (pthread_key_create(&key, text_free)) return 0;
        if (atomic_compare_exchange_strong(&key_or_0, &made, key + 1)) made = key + 1;
        else pthread_key_delete(key); /* another thread was faster; GCOVR_EXCL_LINE: a race of two first failures */
    }
    *key_out = made - 1;
    return 1;
}

/* The key must not call into a library that dlclose has removed. Texts of threads that live on are lost. */
__attribute__((destructor)) static void key_end(void) {
    unsigned made = atomic_exchange(&key_or_0, 0);
    if (made) pthread_key_delete(made - 1);
}

static char *text_new(void) {
    for (int i = 0; i < PLACES; ++i)
        if (!atomic_exchange(&taken[i], 1)) return places[i];
    char *text = malloc(TEXT_BYTES);
    return text ? text : no_memory;
}

/* This thread's text, to be written; NULL where there is no room for one. */
static char *text_of_thread(void) {
    pthread_key_t key;
    if (!key_get(&key)) return NULL;
    char *text = pthread_getspecific(key);
    if (text && text != no_memory) return text;
    text = text_new();
    if (pthread_setspecific(key, text))
        return text_free(text), (char *)NULL; /* a process's later keys take memory too */
    return text == no_memory ? NULL : text;
}

stw_status stw_fail(stw_status status, const char *format, ...) {
    char text[TEXT_BYTES]; /* the arguments may point into the thread's text */
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    char *kept = text_of_thread();
    if (kept) memcpy(kept, text, sizeof text);
    return status;
}

const char *stw_failure_text(void) {
    unsigned made = atomic_load(&key_or_0);
    const char *text = made ? pthread_getspecific(made - 1) : NULL;
    return text ? text : "";
}

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
