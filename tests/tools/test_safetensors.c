/* SPDX-License-Identifier: MIT
 *
 * Unit tests of tools/base/safetensors.h: parsing from memory, every size limit at its edge, every prefix and
 * every single-byte change of a valid file, writing and reading back. Refusals by text are in
 * test_malformed.py. */
#include "tools/base/safetensors.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

/* Exactly `size` bytes on the heap, so that the sanitizers see a read behind them. */
static unsigned char *exact(const void *data, size_t size) {
    unsigned char *copy = malloc(size ? size : 1);
    assert_non_null(copy);
    if (size) memcpy(copy, data, size);
    return copy;
}

static size_t build(unsigned char *out, const char *header, const void *data, size_t data_size) {
    size_t length = strlen(header);
    for (int i = 0; i < 8; ++i) out[i] = (unsigned char)((uint64_t)length >> 8 * i);
    memcpy(out + 8, header, length);
    if (data_size) memcpy(out + 8 + length, data, data_size);
    return 8 + length + data_size;
}

static int parse_copy(const void *data, size_t size) {
    char error[STW_ST_ERROR_MAX];
    stw_safetensors file;
    unsigned char *copy = exact(data, size);
    int status = stw_safetensors_parse(copy, size, &file, error);
    assert_int_equal(status != 0, error[0] != 0);
    if (!status)
        for (size_t i = 0; i < file.tensor_count; ++i) {
            const stw_st_tensor *t = &file.tensors[i];
            assert_true((const unsigned char *)t->data >= copy + 8);
            assert_true((const unsigned char *)t->data + t->bytes <= copy + size);
        }
    stw_safetensors_close(&file);
    free(copy);
    return status;
}

static const char valid_header[] = "{\"__metadata__\":{\"mask\":\"none\",\"a.b\":\"\"},"
                                   "\"x\":{\"dtype\":\"F32\",\"shape\":[2,1],\"data_offsets\":[2,10]},"
                                   "\"b.y\":{\"dtype\":\"BF16\",\"shape\":[],\"data_offsets\":[0,2]},"
                                   "\"none\":{\"dtype\":\"I64\",\"shape\":[3,0],\"data_offsets\":[2,2]}}  ";
static const unsigned char valid_data[10] = {0x80, 0x3F, 0, 0, 0x80, 0x3F, 0, 0, 0, 0x40};

static void parses(void **state) {
    (void)state;
    char error[STW_ST_ERROR_MAX];
    unsigned char bytes[1024];
    size_t size = build(bytes, valid_header, valid_data, sizeof valid_data);
    stw_safetensors file;
    assert_int_equal(stw_safetensors_parse(bytes, size, &file, error), 0);
    assert_int_equal(file.tensor_count, 3);
    assert_int_equal(file.pair_count, 2);
    assert_string_equal(file.pairs[0].key, "mask");
    assert_string_equal(file.pairs[0].value, "none");
    assert_string_equal(file.pairs[1].value, "");
    const stw_st_tensor *x = &file.tensors[0], *y = &file.tensors[1], *none = &file.tensors[2];
    assert_string_equal(x->name, "x");
    assert_int_equal(x->type, STW_ST_F32);
    assert_int_equal(x->rank, 2);
    assert_int_equal(x->shape[0], 2);
    assert_int_equal(x->elements, 2);
    float values[2];
    memcpy(values, x->data, sizeof values);
    assert_true(values[0] == 1.0f && values[1] == 2.0f);
    assert_int_equal(y->rank, 0);
    assert_int_equal(y->elements, 1);
    assert_int_equal(y->bytes, 2);
    assert_int_equal(none->elements, 0);
    assert_int_equal(none->bytes, 0);
    stw_safetensors_close(&file);
    stw_safetensors_close(&file); /* harmless */
}

static void every_prefix_is_refused(void **state) {
    (void)state;
    unsigned char bytes[1024];
    size_t size = build(bytes, valid_header, valid_data, sizeof valid_data);
    for (size_t cut = 0; cut < size; ++cut) assert_int_not_equal(parse_copy(bytes, cut), 0);
    assert_int_equal(parse_copy(bytes, size), 0);
}

/* Whatever comes out, it stays inside the buffer (parse_copy looks) and nothing leaks. */
static void every_changed_byte_is_survived(void **state) {
    (void)state;
    static const unsigned char replacements[] = {0, '"', '{', '}', '[', '\\', '9', '-', 0x80, 0xFF};
    unsigned char bytes[1024];
    size_t size = build(bytes, valid_header, valid_data, sizeof valid_data), refused = 0;
    for (size_t at = 0; at < size - sizeof valid_data; ++at)
        for (size_t r = 0; r < sizeof replacements; ++r) {
            unsigned char before = bytes[at];
            bytes[at] = replacements[r];
            refused += parse_copy(bytes, size) != 0;
            bytes[at] = before;
        }
    assert_true(refused > size);
}

/* One tensor of a shape, type and offsets, over `data_size` bytes of data. */
static int parse_one(const char *type, const char *shape, const char *offsets, size_t data_size) {
    char header[512];
    unsigned char bytes[1024] = {0};
    snprintf(header, sizeof header, "{\"t\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%s]}}", type, shape,
             offsets);
    unsigned char zeros[64] = {0};
    return parse_copy(bytes, build(bytes, header, zeros, data_size));
}

static void sizes_at_their_edges(void **state) {
    (void)state;
    assert_int_equal(parse_one("F32", "2", "0,8", 8), 0);
    assert_int_not_equal(parse_one("F32", "2", "0,8", 7), 0);
    assert_int_not_equal(parse_one("F32", "2", "0,8", 9), 0);
    assert_int_not_equal(parse_one("F32", "2", "0,7", 8), 0);
    assert_int_equal(parse_one("F4", "4", "0,2", 2), 0);
    assert_int_not_equal(parse_one("F4", "3", "0,2", 2), 0);
    assert_int_equal(parse_one("F6_E2M3", "4", "0,3", 3), 0);
    assert_int_equal(parse_one("U8", "1,1,1,1,1,1,1,3", "0,3", 3), 0);
    assert_int_not_equal(parse_one("U8", "1,1,1,1,1,1,1,1,3", "0,3", 3), 0);
    assert_int_equal(parse_one("F64", "0,9007199254740992,9007199254740992", "0,0", 0), 0);
    assert_int_not_equal(parse_one("U8", "4294967296,4294967296", "0,0", 0), 0); /* 2^64: 0 if it wrapped */
    assert_int_not_equal(parse_one("F64", "2305843009213693952", "0,0", 0), 0);  /* 2^61 * 64 bits       */
    assert_int_not_equal(parse_one("U8", "9007199254740993", "0,0", 0), 0);
    assert_int_not_equal(parse_one("U8", "1", "1099511627776,1099511627777", 1), 0);
    assert_int_not_equal(parse_one("U8", "-0.5", "0,1", 1), 0);
}

static void every_type_has_its_size(void **state) {
    (void)state;
    const struct {
        const char *name;
        unsigned bits;
    } rows[] = {{"F64", 64}, {"F32", 32},    {"F16", 16},    {"BF16", 16}, {"I64", 64}, {"I32", 32},
                {"I16", 16}, {"I8", 8},      {"U64", 64},    {"U32", 32},  {"U16", 16}, {"U8", 8},
                {"BOOL", 8}, {"F8_E4M3", 8}, {"F8_E5M2", 8}, {"F4", 4}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
        char offsets[32];
        snprintf(offsets, sizeof offsets, "0,%u", rows[i].bits * 2 / 8);
        assert_int_equal(parse_one(rows[i].name, "2", offsets, rows[i].bits * 2 / 8), 0);
    }
    assert_string_equal(stw_st_type_name((stw_st_type)99), "?");
    assert_int_equal(stw_st_type_bits((stw_st_type)99), 0);
}

static void names_in_utf8(void **state) {
    (void)state;
    const struct {
        const char *name;
        int accepted;
    } rows[] = {{"caf\xC3\xA9", 1},
                {"\xF0\x9F\x98\x80", 1},
                {"\xEF\xBF\xBD", 1},
                {"\\u00e9", 1},
                {"\xC3", 0},
                {"\xC0\x80", 0},
                {"\xE0\x80\x80", 0},
                {"\xED\xA0\x80", 0},
                {"\xF4\x90\x80\x80", 0},
                {"\xF5\x80\x80\x80", 0},
                {"\x80", 0},
                {"\\u0000", 0},
                {"\\\\u0000", 1},
                {"\\ud800", 0},
                {"\\n", 0}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
        char header[256];
        unsigned char bytes[512];
        snprintf(header, sizeof header, "{\"%s\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}",
                 rows[i].name);
        assert_int_equal(parse_copy(bytes, build(bytes, header, NULL, 0)) == 0, rows[i].accepted);
    }
}

static void written_files_are_read_back(void **state) {
    (void)state;
    char path[] = "/tmp/sternway-test-XXXXXX", error[STW_ST_ERROR_MAX];
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    const uint8_t small[3] = {1, 2, 3};
    const double wide[2] = {-0.5, 1e300};
    const stw_st_tensor tensors[] = {
        {.name = "small \"quoted\"", .type = STW_ST_U8, .rank = 1, .shape = {3}, .data = small},
        {.name = "wide", .type = STW_ST_F64, .rank = 2, .shape = {1, 2}, .data = wide},
        {.name = "empty", .type = STW_ST_F32, .rank = 2, .shape = {0, 7}, .data = NULL},
        {.name = "scalar", .type = STW_ST_F64, .rank = 0, .data = wide}};
    const stw_st_pair pairs[] = {{"key", "value\n"}};
    for (int round = 0; round < 2; ++round) { /* the second replaces the first */
        stw_safetensors file;
        assert_int_equal(stw_safetensors_write(path, tensors, 4, pairs, 1, error), 0);
        assert_int_equal(stw_safetensors_open(path, &file, error), 0);
        assert_int_equal(file.tensor_count, 4);
        assert_string_equal(file.pairs[0].value, "value\n");
        for (size_t i = 0; i < 4; ++i) {
            const stw_st_tensor *t = &file.tensors[i], *from = tensors;
            while (strcmp(from->name, t->name)) ++from;
            assert_int_equal(t->rank, from->rank);
            assert_memory_equal(t->shape, from->shape, (size_t)t->rank * sizeof t->shape[0]);
            if (t->bytes) assert_memory_equal(t->data, from->data, t->bytes);
            assert_int_equal((uintptr_t)t->data % (stw_st_type_bits(t->type) / 8), 0);
        }
        stw_safetensors_close(&file);
    }
    unlink(path);
}

/* A file that another process cuts off, or writes anew, after it was opened. */
static void what_was_read_stays(void **state) {
    (void)state;
    enum { COUNT = 100000 };
    char path[] = "/tmp/sternway-test-XXXXXX", error[STW_ST_ERROR_MAX];
    int fd = mkstemp(path);
    float *values = malloc(COUNT * sizeof *values);
    assert_true(fd >= 0 && values);
    for (int i = 0; i < COUNT; ++i) values[i] = (float)i;
    const stw_st_tensor tensor = {.name = "x", .type = STW_ST_F32, .rank = 1, .shape = {COUNT}, .data = values};
    stw_safetensors file;
    assert_int_equal(stw_safetensors_write(path, &tensor, 1, NULL, 0, error), 0);
    assert_int_equal(stw_safetensors_open(path, &file, error), 0);
    assert_int_equal(truncate(path, 8), 0);
    assert_memory_equal(file.tensors[0].data, values, COUNT * sizeof *values);
    stw_safetensors_close(&file);
    free(values);
    close(fd);
    unlink(path);
}

static void a_failed_write_leaves_the_old_file(void **state) {
    (void)state;
    char folder[] = "/tmp/sternway-test-XXXXXX", path[64], error[STW_ST_ERROR_MAX];
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/out", folder);
    assert_int_equal(mkdir(path, 0700), 0); /* cannot be replaced by a file */
    assert_int_not_equal(stw_safetensors_write(path, NULL, 0, NULL, 0, error), 0);
    assert_non_null(strstr(error, "cannot be written"));
    assert_int_equal(rmdir(path), 0);
    assert_int_equal(rmdir(folder), 0); /* nothing left beside it */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parses),
        cmocka_unit_test(every_prefix_is_refused),
        cmocka_unit_test(every_changed_byte_is_survived),
        cmocka_unit_test(sizes_at_their_edges),
        cmocka_unit_test(every_type_has_its_size),
        cmocka_unit_test(names_in_utf8),
        cmocka_unit_test(written_files_are_read_back),
        cmocka_unit_test(what_was_read_stays),
        cmocka_unit_test(a_failed_write_leaves_the_old_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
