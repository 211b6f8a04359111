/* SPDX-License-Identifier: MIT
 *
 * The list of a run's cases: every line once. */
#include "conform.h"

#include <stdlib.h>
#include <string.h>

/* The slot of a line: where it is, or the free one where it belongs. */
static size_t *find_slot(const conform_list *list, const char *line) {
    size_t slots = 2 * list->capacity, at = 5381;
    for (const char *c = line; *c; ++c) at = at * 33 ^ (unsigned char)*c;
    for (at %= slots; list->slots[at] && strcmp(list->cases[list->slots[at] - 1].line, line);) at = (at + 1) % slots;
    return &list->slots[at];
}

static int grow(conform_list *list) {
    size_t capacity = list->capacity ? list->capacity * 2 : 1024;
    size_t *slots = calloc(2 * capacity, sizeof *slots);
    conform_case *grown = slots ? realloc(list->cases, capacity * sizeof *grown) : NULL;
    if (grown) list->cases = grown;
    if (!grown) {
        free(slots);
        return 0;
    }
    free(list->slots);
    list->slots = slots;
    list->capacity = capacity;
    for (size_t i = 0; i < list->count; ++i) *find_slot(list, list->cases[i].line) = i + 1;
    return 1;
}

int conform_list_add(conform_list *list, int row, const char *line) {
    if (list->count == list->capacity && !grow(list)) return 0;
    size_t *slot = find_slot(list, line);
    if (*slot) {
        list->repeated++;
        return 1;
    }
    conform_case *c = &list->cases[list->count++];
    c->row = row;
    snprintf(c->line, sizeof c->line, "%s", line);
    *slot = list->count;
    return 1;
}

void conform_list_free(conform_list *list) {
    free(list->cases);
    free(list->slots);
    memset(list, 0, sizeof *list);
}

/* The data of a line is its own: another line has other numbers. */
int64_t conform_seed_of(const char *line) {
    const char *own = strstr(line, ":seed");
    uint64_t hash = UINT64_C(14695981039346656037);
    if (own && atoll(own + 5)) return atoll(own + 5);
    for (const char *c = line; *c; ++c) hash = (hash ^ (unsigned char)*c) * UINT64_C(1099511628211);
    return (int64_t)(hash >> 8);
}
