/* SPDX-License-Identifier: MIT
 *
 * What the fuzz targets share: the entry that libFuzzer (or corpus_main.c) calls, a check that survives
 * NDEBUG, and a reader that turns bytes into small or wild numbers. */
#ifndef STW_TESTS_FUZZ_H
#define STW_TESTS_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define FUZZ_CHECK(condition, ...)                                                                                     \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #condition);                                            \
            fprintf(stderr, __VA_ARGS__);                                                                              \
            fputc('\n', stderr);                                                                                       \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)

typedef struct reader {
    const uint8_t *at, *end;
} reader;

static inline uint8_t read_byte(reader *r) { return r->at < r->end ? *r->at++ : 0; }

static inline uint64_t read_word(reader *r) {
    uint64_t word = 0;
    for (int i = 0; i < 8; ++i) word = word << 8 | read_byte(r);
    return word;
}

/* low .. low + span - 1 for most bytes; any 64 bits for a few. */
static inline int64_t read_number(reader *r, int64_t low, int span) {
    const uint8_t byte = read_byte(r);
    return byte < 250 ? low + byte % span : (int64_t)read_word(r);
}

/* The input as a text: its bytes up to the first zero. The caller frees it. */
static inline char *read_text(const uint8_t *data, size_t size) {
    char *text = malloc(size + 1);
    if (!text) abort();
    if (size) memcpy(text, data, size);
    text[size] = 0;
    return text;
}

#endif
