/* SPDX-License-Identifier: MIT
 *
 * Reading and writing safetensors (safetensors.h). cJSON parses the header; what the format asks beyond JSON is checked
 * here: types, shapes, offsets, sizes, names. Sizes are compared before anything is multiplied. */
#include "safetensors.h"

#include "replace_file.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const struct {
    const char *name;
    unsigned bits;
} types[STW_ST_TYPE_COUNT] = {
#define STW_ST_TYPE(name, bits) {#name, bits},
    STW_ST_TYPES(STW_ST_TYPE)
#undef STW_ST_TYPE
};

const char *stw_st_type_name(stw_st_type type) { return (unsigned)type < STW_ST_TYPE_COUNT ? types[type].name : "?"; }

unsigned stw_st_type_bits(stw_st_type type) { return (unsigned)type < STW_ST_TYPE_COUNT ? types[type].bits : 0; }

static int fail(char *error, const char *format, ...) __attribute__((format(printf, 2, 3)));

static int fail(char *error, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error, STW_ST_ERROR_MAX, format, arguments);
    va_end(arguments);
    return -1;
}

/* ---- text that may be shown ------------------------------------------------------------------- */

/* Length of the UTF-8 sequence at `at`, 0 when it is none (overlong and surrogates included). */
static size_t utf8_length(const unsigned char *at, size_t room) {
    if (at[0] < 0x80) return 1;
    size_t length = at[0] >= 0xF0 ? 4 : at[0] >= 0xE0 ? 3 : 2;
    if (at[0] < 0xC2 || at[0] > 0xF4 || length > room) return 0;
    for (size_t i = 1; i < length; ++i)
        if ((at[i] & 0xC0) != 0x80) return 0;
    if (at[0] == 0xE0 && at[1] < 0xA0) return 0;
    if (at[0] == 0xED && at[1] > 0x9F) return 0;
    if (at[0] == 0xF0 && at[1] < 0x90) return 0;
    if (at[0] == 0xF4 && at[1] > 0x8F) return 0;
    return length;
}

/* A zero would end a C string early and let two names look alike. */
static int check_header_text(const unsigned char *text, size_t length, char *error) {
    size_t backslashes = 0;
    for (size_t at = 0; at < length;) {
        size_t step = utf8_length(text + at, length - at);
        if (!step || text[at] == 0) return fail(error, "header: byte %zu is not UTF-8 text", at);
        if (text[at] == 'u' && backslashes % 2 && length - at >= 5 && !memcmp(text + at + 1, "0000", 4))
            return fail(error, "header: byte %zu: \\u0000 is not accepted", at - 1);
        backslashes = text[at] == '\\' ? backslashes + 1 : 0;
        at += step;
    }
    return 0;
}

static int has_control(const char *text) {
    for (; *text; ++text)
        if ((unsigned char)*text < 0x20 || *text == 0x7F) return 1;
    return 0;
}

/* ---- one tensor ------------------------------------------------------------------------------- */

/* A JSON number that is a whole number of 0..2^53. */
static int whole_number(const cJSON *item, uint64_t *value_out) {
    if (!cJSON_IsNumber(item) || !(item->valuedouble >= 0.0) || item->valuedouble > 9007199254740992.0) return 0;
    *value_out = (uint64_t)item->valuedouble;
    return (double)*value_out == item->valuedouble;
}

static int read_type(const cJSON *item, stw_st_tensor *tensor, char *error) {
    if (!cJSON_IsString(item)) return fail(error, "tensor '%.80s': dtype is not a string", tensor->name);
    for (int type = 0; type < STW_ST_TYPE_COUNT; ++type) {
        if (strcmp(item->valuestring, types[type].name)) continue;
        tensor->type = (stw_st_type)type;
        return 0;
    }
    return fail(error, "tensor '%.80s': dtype '%.40s' is not one of the format (F32, F16, BF16, I32, ...)",
                tensor->name, has_control(item->valuestring) ? "?" : item->valuestring);
}

static int read_shape(const cJSON *item, stw_st_tensor *tensor, char *error) {
    if (!cJSON_IsArray(item)) return fail(error, "tensor '%.80s': shape is not an array", tensor->name);
    for (const cJSON *size = item->child; size; size = size->next) {
        uint64_t value;
        if (!whole_number(size, &value))
            return fail(error, "tensor '%.80s': shape holds something other than a whole number of 0..2^53",
                        tensor->name);
        if (tensor->rank == STW_ST_RANK_MAX)
            return fail(error, "tensor '%.80s': shape has more than %d dimensions", tensor->name, STW_ST_RANK_MAX);
        tensor->shape[tensor->rank++] = (int64_t)value;
    }
    return 0;
}

static int read_offsets(const cJSON *item, stw_st_tensor *tensor, uint64_t data_size, char *error) {
    const cJSON *first = cJSON_IsArray(item) ? item->child : NULL;
    uint64_t begin, end;
    if (!first || !first->next || first->next->next || !whole_number(first, &begin) || !whole_number(first->next, &end))
        return fail(error, "tensor '%.80s': data_offsets is not a pair of whole numbers of 0..2^53", tensor->name);
    if (begin > end || end > data_size)
        return fail(error, "tensor '%.80s': data_offsets [%llu, %llu] do not lie in the %llu bytes of data",
                    tensor->name, (unsigned long long)begin, (unsigned long long)end, (unsigned long long)data_size);
    tensor->offset = begin;
    tensor->bytes = end - begin;
    return 0;
}

/* elements and bytes of the shape, against the bytes that the offsets give. */
static int check_size(stw_st_tensor *tensor, char *error) {
    uint64_t bits = types[tensor->type].bits, elements = 1;
    for (int d = 0; d < tensor->rank; ++d)
        if (tensor->shape[d] == 0) elements = 0;
    for (int d = 0; d < tensor->rank && elements; ++d) {
        if (__builtin_mul_overflow(elements, (uint64_t)tensor->shape[d], &elements))
            return fail(error, "tensor '%.80s': shape overflows 64 bits", tensor->name);
    }
    uint64_t all_bits;
    if (__builtin_mul_overflow(elements, bits, &all_bits))
        return fail(error, "tensor '%.80s': shape overflows 64 bits", tensor->name);
    if (all_bits % 8 || all_bits / 8 != tensor->bytes)
        return fail(error, "tensor '%.80s': data_offsets span %llu bytes, %llu elements of %s need %llu", tensor->name,
                    (unsigned long long)tensor->bytes, (unsigned long long)elements, types[tensor->type].name,
                    (unsigned long long)((all_bits + 7) / 8));
    tensor->elements = elements;
    return 0;
}

static int read_tensor(const cJSON *entry, stw_st_tensor *tensor, uint64_t data_size, char *error) {
    static const char *const names[3] = {"dtype", "shape", "data_offsets"};
    const cJSON *field[3] = {NULL, NULL, NULL};
    tensor->name = entry->string;
    if (has_control(tensor->name)) return fail(error, "header: a tensor's name holds a control character");
    if (!cJSON_IsObject(entry)) return fail(error, "tensor '%.80s': its entry is not an object", tensor->name);
    for (const cJSON *item = entry->child; item; item = item->next) {
        int which = 0;
        while (which < 3 && strcmp(item->string, names[which])) ++which;
        if (which == 3)
            return fail(error, "tensor '%.80s': field '%.40s' is not dtype, shape or data_offsets", tensor->name,
                        has_control(item->string) ? "?" : item->string);
        if (field[which]) return fail(error, "tensor '%.80s': %s is given twice", tensor->name, names[which]);
        field[which] = item;
    }
    for (int which = 0; which < 3; ++which)
        if (!field[which]) return fail(error, "tensor '%.80s': %s is missing", tensor->name, names[which]);
    if (read_type(field[0], tensor, error) || read_shape(field[1], tensor, error) ||
        read_offsets(field[2], tensor, data_size, error))
        return -1;
    return check_size(tensor, error);
}

/* ---- all of them ------------------------------------------------------------------------------ */

static int by_offset(const void *a, const void *b) {
    const stw_st_tensor *x = *(const stw_st_tensor *const *)a, *y = *(const stw_st_tensor *const *)b;
    if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

static int by_name(const void *a, const void *b) {
    return strcmp((*(const stw_st_tensor *const *)a)->name, (*(const stw_st_tensor *const *)b)->name);
}

static int by_key(const void *a, const void *b) {
    return strcmp((*(const stw_st_pair *const *)a)->key, (*(const stw_st_pair *const *)b)->key);
}

/* Names differ, and the data lies back to back from the first byte to the last. */
static int check_order(stw_safetensors *file, const stw_st_tensor **sorted, uint64_t data_size, char *error) {
    size_t count = file->tensor_count;
    for (size_t i = 0; i < count; ++i) sorted[i] = &file->tensors[i];
    qsort(sorted, count, sizeof *sorted, by_name);
    for (size_t i = 1; i < count; ++i)
        if (!strcmp(sorted[i - 1]->name, sorted[i]->name))
            return fail(error, "tensor '%.80s': the name is given twice", sorted[i]->name);
    qsort(sorted, count, sizeof *sorted, by_offset);
    uint64_t end = 0;
    for (size_t i = 0; i < count; ++i) {
        if (sorted[i]->offset < end)
            return fail(error, "tensor '%.80s': its data overlaps that of '%.80s'", sorted[i]->name,
                        sorted[i - 1]->name);
        if (sorted[i]->offset > end)
            return fail(error, "tensor '%.80s': bytes %llu to %llu before its data belong to no tensor",
                        sorted[i]->name, (unsigned long long)end, (unsigned long long)sorted[i]->offset);
        end = sorted[i]->offset + sorted[i]->bytes;
    }
    if (end != data_size)
        return fail(error, "data: %llu bytes, the tensors use %llu", (unsigned long long)data_size,
                    (unsigned long long)end);
    return 0;
}

static int read_metadata(const cJSON *entry, stw_safetensors *file, char *error) {
    if (!cJSON_IsObject(entry)) return fail(error, "__metadata__ is not an object");
    for (const cJSON *item = entry->child; item; item = item->next) {
        if (has_control(item->string)) return fail(error, "__metadata__: a key holds a control character");
        if (!cJSON_IsString(item))
            return fail(error, "__metadata__: the value of '%.80s' is not a string", item->string);
        stw_st_pair *pair = &file->pairs[file->pair_count++];
        pair->key = item->string;
        pair->value = item->valuestring;
    }
    if (!file->pair_count) return 0;
    const stw_st_pair **sorted = calloc(file->pair_count, sizeof *sorted);
    if (!sorted) return fail(error, "out of memory");
    for (size_t i = 0; i < file->pair_count; ++i) sorted[i] = &file->pairs[i];
    qsort(sorted, file->pair_count, sizeof *sorted, by_key);
    int status = 0;
    for (size_t i = 1; i < file->pair_count && !status; ++i)
        if (!strcmp(sorted[i - 1]->key, sorted[i]->key))
            status = fail(error, "__metadata__: the key '%.80s' is given twice", sorted[i]->key);
    free(sorted);
    return status;
}

static int read_tree(const cJSON *tree, const unsigned char *data, uint64_t data_size, stw_safetensors *file,
                     char *error) {
    size_t entries = 0, pairs = 0;
    const cJSON *metadata = NULL;
    for (const cJSON *entry = tree->child; entry; entry = entry->next) {
        if (strcmp(entry->string, "__metadata__")) {
            ++entries;
            continue;
        }
        if (metadata) return fail(error, "__metadata__ is given twice");
        metadata = entry;
        for (const cJSON *item = entry->child; item; item = item->next) ++pairs;
    }
    file->tensors = calloc(entries + 1, sizeof *file->tensors);
    file->pairs = calloc(pairs + 1, sizeof *file->pairs);
    if (!file->tensors || !file->pairs) return fail(error, "out of memory");
    if (metadata && read_metadata(metadata, file, error)) return -1;
    for (const cJSON *entry = tree->child; entry; entry = entry->next) {
        if (entry == metadata) continue;
        stw_st_tensor *tensor = &file->tensors[file->tensor_count];
        if (read_tensor(entry, tensor, data_size, error)) return -1;
        tensor->data = data + tensor->offset;
        ++file->tensor_count;
    }
    const stw_st_tensor **sorted = calloc(entries + 1, sizeof *sorted);
    if (!sorted) return fail(error, "out of memory");
    int status = check_order(file, sorted, data_size, error);
    free(sorted);
    return status;
}

static int parse(const unsigned char *bytes, size_t size, stw_safetensors *file, char *error) {
    if (size < 8) return fail(error, "%zu bytes: too short for a safetensors file", size);
    if (size == 8 || bytes[8] != '{')
        return fail(error, "not a safetensors file: byte 8, where the header begins, is not '{'");
    uint64_t length = 0;
    for (int i = 7; i >= 0; --i) length = length << 8 | bytes[i];
    if (length > STW_ST_HEADER_MAX)
        return fail(error, "header: claims %llu bytes, at most %u are accepted", (unsigned long long)length,
                    STW_ST_HEADER_MAX);
    if (length > size - 8)
        return fail(error, "header: claims %llu bytes, the file has %zu after the length", (unsigned long long)length,
                    size - 8);
    const char *header = (const char *)bytes + 8;
    if (length < 2) return fail(error, "header: claims %llu bytes, the shortest has 2", (unsigned long long)length);
    if (check_header_text(bytes + 8, (size_t)length, error)) return -1;
    const char *end = NULL;
    cJSON *tree = cJSON_ParseWithLengthOpts(header, (size_t)length, &end, 0);
    file->tree = tree;
    if (!tree) {
        size_t at = end && end >= header && end <= header + length ? (size_t)(end - header) : 0;
        return fail(error, "header: not JSON, from byte %zu on", at);
    }
    for (; end < header + length; ++end)
        if (!strchr(" \t\r\n", *end))
            return fail(error, "header: something follows the JSON object at byte %zu", (size_t)(end - header));
    return read_tree(tree, bytes + 8 + length, size - 8 - length, file, error);
}

int stw_safetensors_parse(const void *data, size_t size, stw_safetensors *file_out, char error[STW_ST_ERROR_MAX]) {
    memset(file_out, 0, sizeof *file_out);
    error[0] = 0;
    int status = parse(data, size, file_out, error);
    if (status) stw_safetensors_close(file_out);
    return status;
}

/* ---- files ------------------------------------------------------------------------------------ */

/* Read and not mapped: a mapped page that another process has cut off meanwhile ends this one by SIGBUS. */
static int read_file(int fd, void **bytes_out, size_t *size_out, char *error) {
    struct stat info;
    if (fstat(fd, &info)) return fail(error, "%s", strerror(errno));
    if (S_ISDIR(info.st_mode)) return fail(error, "is a directory, not a safetensors file");
    if (!S_ISREG(info.st_mode)) return fail(error, "is not a regular file");
    if (info.st_size == 0) return fail(error, "is empty, not a safetensors file");
    size_t size = (size_t)info.st_size, done = 0;
    char *bytes = malloc(size);
    if (!bytes) return fail(error, "no memory for its %zu bytes", size);
    while (done < size) {
        ssize_t more = read(fd, bytes + done, size - done);
        if (more < 0 && errno == EINTR) continue;
        if (more <= 0) {
            int status = more ? fail(error, "%s", strerror(errno))
                              : fail(error, "was cut off at byte %zu of %zu while it was read", done, size);
            free(bytes);
            return status;
        }
        done += (size_t)more;
    }
    *bytes_out = bytes;
    *size_out = size;
    return 0;
}

int stw_safetensors_open(const char *path, stw_safetensors *file_out, char error[STW_ST_ERROR_MAX]) {
    memset(file_out, 0, sizeof *file_out);
    /* non-blocking, so that a FIFO is refused rather than waited for */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return fail(error, "%s", strerror(errno));
    void *bytes = NULL;
    size_t size = 0;
    int status = read_file(fd, &bytes, &size, error);
    close(fd);
    if (status) return status;
    status = stw_safetensors_parse(bytes, size, file_out, error);
    if (status) free(bytes);
    else file_out->bytes = bytes;
    return status;
}

void stw_safetensors_close(stw_safetensors *file) {
    free(file->tensors);
    free(file->pairs);
    cJSON_Delete(file->tree);
    free(file->bytes);
    memset(file, 0, sizeof *file);
}

/* ---- writing: the same tensors always give the same bytes ---- */

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
    return cJSON_AddItemToArray(offsets, cJSON_CreateNumber((double)(tensor->offset + tensor->bytes))) ? 0 : -1;
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
        if (c->tensors[i].bytes && fwrite(c->tensors[i].data, 1, c->tensors[i].bytes, to) != c->tensors[i].bytes)
            return -1;
    return 0;
}

_Static_assert(STW_ST_ERROR_MAX >= STW_REPLACE_ERROR_MAX, "one error text serves both");

int stw_safetensors_write(const char *path, const stw_st_tensor *tensors, size_t tensor_count, const stw_st_pair *pairs,
                          size_t pair_count, char error[STW_ST_ERROR_MAX]) {
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
    if (header) status = stw_replace_file(path, write_all, &(content){header, sorted, tensor_count}, error);
    else snprintf(error, STW_ST_ERROR_MAX, "out of memory");
    cJSON_free(header);
    free(sorted);
    return status;
}
