/* SPDX-License-Identifier: MIT
 *
 * Build-time tool of cmake/image.cmake: prints the row of backends/gpu/image.c for each embedded image, with the
 * hash that backends/gpu/image.c itself computes.
 *   image_rows OUTPUT (BACKEND ARCH KIND SYMBOL FILE)... */
#include "backends/gpu/image.h"

#include <stdio.h>
#include <stdlib.h>

enum { FIELDS = 5 };

static unsigned char *read_whole(const char *path, size_t *size_out) {
    FILE *file = fopen(path, "rb");
    unsigned char *bytes = NULL;
    size_t capacity = 0, size = 0;
    while (file) {
        if (size == capacity) {
            capacity = capacity ? 2 * capacity : 1 << 20;
            unsigned char *more = realloc(bytes, capacity);
            if (!more) break;
            bytes = more;
        }
        size_t got = fread(bytes + size, 1, capacity - size, file);
        size += got;
        if (!got && !ferror(file)) {
            fclose(file);
            *size_out = size;
            return bytes;
        }
        if (!got) break;
    }
    perror(path);
    exit(1);
}

int main(int count, char **words) {
    FILE *out = count > 1 && (count - 2) % FIELDS == 0 ? fopen(words[1], "w") : NULL;
    if (!out) {
        fprintf(stderr, "usage: image_rows OUTPUT (BACKEND ARCH KIND SYMBOL FILE)...\n");
        return 1;
    }
    fprintf(out, "/* Made by cmake/image_rows: the images of this build. */\n");
    for (char **row = words + 2; row < words + count; row += FIELDS) {
        size_t size;
        unsigned char *bytes = read_whole(row[4], &size);
        unsigned long long hash = stw_image_hash(bytes, bytes + size);
        fprintf(out, "STW_IMAGE(%s, %s, %s, %s, 0x%016llx)\n", row[0], row[1], row[2], row[3], hash);
        free(bytes);
    }
    return fclose(out) ? 1 : 0;
}
