/* SPDX-License-Identifier: MIT
 *
 * Bounded reading of small system files. The rules are in small_file.h. */
#include "common/small_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

int stw_small_file_read(const char *path, stw_small_file *file) {
    file->length = 0;
    file->error = 0;
    file->data[0] = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY); /* a FIFO must not hold us */
    if (fd < 0) {
        file->error = errno;
        return 0;
    }
    size_t room = sizeof file->data - 1;
    for (;;) {
        ssize_t got = read(fd, file->data + file->length, room - file->length);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) file->error = errno;
        if (got <= 0) break;
        file->length += (size_t)got;
        if (file->length == room) {
            file->error = EFBIG;
            break;
        }
    }
    close(fd);
    file->data[file->length] = 0;
    return !file->error;
}

/* Digits from `at` up to a newline. A value cut short by the end of the file would read as another one. */
static stw_field parse_number(const char *at, const char *end, uint64_t maximum, uint64_t *value_out) {
    uint64_t value = 0;
    const char *digit = at;
    for (; digit < end && *digit >= '0' && *digit <= '9'; ++digit) {
        uint64_t next = (uint64_t)(*digit - '0');
        if (value > (UINT64_MAX - next) / 10) return STW_FIELD_MALFORMED;
        value = value * 10 + next;
    }
    if (digit == at || digit == end || *digit != '\n' || value > maximum) return STW_FIELD_MALFORMED;
    *value_out = value;
    return STW_FIELD_READ;
}

stw_field stw_small_file_number(const stw_small_file *file, const char *key, uint64_t maximum, uint64_t *value_out) {
    size_t key_length = strlen(key);
    const char *end = file->data + file->length;
    for (const char *line = file->data; line < end;) {
        if ((size_t)(end - line) > key_length && !memcmp(line, key, key_length) && line[key_length] == ' ')
            return parse_number(line + key_length + 1, end, maximum, value_out);
        const char *newline = memchr(line, '\n', (size_t)(end - line));
        if (!newline) break;
        line = newline + 1;
    }
    return STW_FIELD_ABSENT;
}

void stw_small_file_text(const char *from, size_t length, char *to, size_t capacity) {
    size_t kept = length < capacity ? length : capacity - 1;
    for (size_t i = 0; i < kept; ++i) to[i] = from[i] >= ' ' && from[i] <= '~' ? from[i] : '?';
    while (kept && to[kept - 1] == ' ') --kept;
    to[kept] = 0;
}
