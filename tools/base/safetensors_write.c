/* SPDX-License-Identifier: MIT
 *
 * Writing safetensors (safetensors.h): the results of `sternway run -o`. The same tensors always give the
 * same bytes. */
#include "replace_file.h"
#include "safetensors.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int wider_first(const void *a, const void *b) {
    const stw_st_tensor *x = a, *y = b;
    unsigned x_bits = stw_st_type_bits(x->type), y_bits = stw_st_type_bits(y->type);
    if (x_bits != y_bits) return x_bits > y_bits ? -1 : 1;
    return strcmp(x->name, y->name);
}

/* Fills elements, bytes and offsets. */
static void place(stw_st_tensor *tensors, size_t count) {
    uint64_t offset = 0;
    for (size_t i = 0; i < count; ++i) {
        stw_st_tensor *tensor = &tensors[i];
        tensor->elements = 1;
        for (int d = 0; d < tensor->rank; ++d) tensor->elements *= (uint64_t)tensor->shape[d];
        tensor->bytes = tensor->elements * stw_st_type_bits(tensor->type) / 8;
        tensor->offset = offset;
        offset += tensor->bytes;
    }
}

static int add_entry(cJSON *tree, const stw_st_tensor *tensor) {
    cJSON *entry = cJSON_AddObjectToObject(tree, tensor->name);
    cJSON *shape, *offsets;
    if (!entry || !cJSON_AddStringToObject(entry, "dtype", stw_st_type_name(tensor->type))) return -1;
    if (!(shape = cJSON_AddArrayToObject(entry, "shape"))) return -1;
    for (int d = 0; d < tensor->rank; ++d)
        if (!cJSON_AddItemToArray(shape, cJSON_CreateNumber((double)tensor->shape[d]))) return -1;
    if (!(offsets = cJSON_AddArrayToObject(entry, "data_offsets"))) return -1;
    if (!cJSON_AddItemToArray(offsets, cJSON_CreateNumber((double)tensor->offset))) return -1;
    return cJSON_AddItemToArray(offsets, cJSON_CreateNumber((double)(tensor->offset + tensor->bytes))) ? 0
                                                                                                       : -1;
}

/* The JSON header, allocated by cJSON; NULL when memory ran out. */
static char *print_header(const stw_st_tensor *tensors, size_t tensor_count, const stw_st_pair *pairs,
                          size_t pair_count) {
    cJSON *tree = cJSON_CreateObject();
    int status = tree ? 0 : -1;
    if (!status && pair_count) {
        cJSON *metadata = cJSON_AddObjectToObject(tree, "__metadata__");
        for (size_t i = 0; i < pair_count; ++i)
            if (!cJSON_AddStringToObject(metadata, pairs[i].key, pairs[i].value)) status = -1;
    }
    for (size_t i = 0; i < tensor_count && !status; ++i) status = add_entry(tree, &tensors[i]);
    char *text = status ? NULL : cJSON_PrintUnformatted(tree);
    cJSON_Delete(tree);
    return text;
}

typedef struct content {
    const char *header;
    const stw_st_tensor *tensors;
    size_t count;
} content;

static int write_all(FILE *to, const void *user) {
    const content *c = user;
    size_t length = strlen(c->header), padding = (8 - length % 8) % 8;
    unsigned char size[8];
    for (int i = 0; i < 8; ++i) size[i] = (unsigned char)((uint64_t)(length + padding) >> 8 * i);
    if (fwrite(size, 8, 1, to) != 1 || fwrite(c->header, 1, length, to) != length) return -1;
    if (padding && fwrite("        ", 1, padding, to) != padding) return -1;
    for (size_t i = 0; i < c->count; ++i)
        if (c->tensors[i].bytes &&
            fwrite(c->tensors[i].data, 1, c->tensors[i].bytes, to) != c->tensors[i].bytes)
            return -1;
    return 0;
}

_Static_assert(STW_ST_ERROR_MAX >= STW_REPLACE_ERROR_MAX, "one error text serves both");

int stw_safetensors_write(const char *path, const stw_st_tensor *tensors, size_t tensor_count,
                          const stw_st_pair *pairs, size_t pair_count, char error[STW_ST_ERROR_MAX]) {
    stw_st_tensor *sorted = calloc(tensor_count + 1, sizeof *sorted);
    char *header = NULL;
    int status = -1;
    error[0] = 0;
    if (sorted) {
        if (tensor_count) memcpy(sorted, tensors, tensor_count * sizeof *sorted);
        qsort(sorted, tensor_count, sizeof *sorted, wider_first);
        place(sorted, tensor_count);
        header = print_header(sorted, tensor_count, pairs, pair_count);
    }
    if (header)
        status = stw_replace_file(path, write_all, &(content){header, sorted, tensor_count}, error);
    else
        snprintf(error, STW_ST_ERROR_MAX, "out of memory");
    cJSON_free(header);
    free(sorted);
    return status;
}
