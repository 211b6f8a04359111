/* SPDX-License-Identifier: MIT
 *
 * The image table built from rows as the build writes them (images.def), and its hash. */
#include "backends/gpu/image.h"

#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static void rows_are_found(void **state) {
    (void)state;
    assert_int_equal(stw_images.count, 4);
    const stw_image *cubin = stw_image_find(&stw_images, STW_BACKEND_CUDA, "sm80", STW_IMAGE_CUBIN);
    assert_ptr_equal(cubin, &stw_images.rows[0]);
    assert_int_equal(cubin->end - cubin->begin, 10);
    assert_memory_equal(cubin->begin, "sm80 cubin", 10);
    const stw_image *ptx = stw_image_find(&stw_images, STW_BACKEND_CUDA, "sm80", STW_IMAGE_PTX);
    assert_ptr_equal(ptx, &stw_images.rows[1]);
    assert_ptr_equal(stw_image_find(&stw_images, STW_BACKEND_CUDA, "sm80", STW_IMAGE_PTX | STW_IMAGE_CUBIN), cubin);
    assert_ptr_equal(stw_image_find(&stw_images, STW_BACKEND_HIP, "gfx942", STW_IMAGE_CODE_OBJECT),
                     &stw_images.rows[3]);
    assert_null(stw_image_find(&stw_images, STW_BACKEND_HIP, "sm80", STW_IMAGE_CUBIN));
    assert_null(stw_image_find(&stw_images, STW_BACKEND_CUDA, "sm80", STW_IMAGE_CODE_OBJECT));
    assert_null(stw_image_find(&stw_images, STW_BACKEND_CUDA, "sm8", STW_IMAGE_CUBIN));
    assert_null(stw_image_find(&stw_images, STW_BACKEND_AUTO, "", STW_IMAGE_CUBIN)); /* the row behind the end */
}

/* Attention's rows, and behind them those of the other sets, which are images_sm90.def's here. */
static void all_are_counted(void **state) {
    (void)state;
    const stw_image_set *set = NULL;
    assert_int_equal(stw_jagged_images.count, 2);
    assert_int_equal(stw_cp_images.count, 2);
    for (size_t i = 0; i < 8; ++i) {
        const stw_image_set *expected = i < 4 ? &stw_images : i < 6 ? &stw_jagged_images : &stw_cp_images;
        assert_ptr_equal(stw_image_at(i, &set), &expected->rows[i < 4 ? i : i % 2]);
        assert_ptr_equal(set, expected);
    }
    assert_null(stw_image_at(8, &set));
    assert_string_equal(stw_cp_images.ops, "ranks");
    assert_string_equal(stw_images.ops, "attention");
    assert_string_equal(stw_jagged_images.ops, "jagged");
}

static void list_is_text(void **state) {
    (void)state;
    char line[128], cut[12];
    stw_text text = stw_text_in(line, sizeof line);
    stw_image_list(&stw_images, &text);
    assert_string_equal(line, "sm80 cubin, sm80 ptx, sm90 cubin, gfx942 code object");
    text = stw_text_in(cut, sizeof cut);
    stw_image_list(&stw_images, &text);
    assert_string_equal(cut, "sm80 cubin,");
    assert_string_equal(stw_image_kind_name((stw_image_kind)3), "?");
    stw_image_set none = {stw_images.rows, 0, "attention"};
    text = stw_text_in(line, sizeof line);
    stw_image_list(&none, &text);
    assert_string_equal(line, "none");
}

/* Published FNV-1a vectors: "", "a", "foobar". */
static void hash_is_fnv1a(void **state) {
    (void)state;
    const unsigned char *a = (const unsigned char *)"a", *foobar = (const unsigned char *)"foobar";
    assert_true(stw_image_hash(a, a) == 0xcbf29ce484222325u);
    assert_true(stw_image_hash(a, a + 1) == 0xaf63dc4c8601ec8cu);
    assert_true(stw_image_hash(foobar, foobar + 6) == 0x85944171f73967e8u);
}

static void damage_is_seen(void **state) {
    (void)state;
    for (size_t i = 0; i < stw_images.count; ++i) assert_true(stw_image_intact(&stw_images.rows[i]));
    unsigned char bytes[10];
    memcpy(bytes, "sm80 cubin", 10);
    stw_image copy = stw_images.rows[0];
    copy.begin = bytes;
    copy.end = bytes + 10;
    assert_true(stw_image_intact(&copy));
    for (int bit = 0; bit < 80; ++bit) {
        bytes[bit / 8] ^= (unsigned char)(1 << bit % 8);
        assert_false(stw_image_intact(&copy));
        bytes[bit / 8] ^= (unsigned char)(1 << bit % 8);
    }
    copy.end -= 1;
    assert_false(stw_image_intact(&copy));
}

/* "abcabcabcabcabcX": three literals, a match of twelve that repeats itself, and a last literal. */
static const unsigned char packed[] = {'S', 'T', 'W', 'P',  'A', 'C', 'K', '1', 16, 0, 0,    0,  0,
                                       0,   0,   0,   0x37, 'a', 'b', 'c', 3,   0,  0, 0x10, 'X'};

static int unpacks(const unsigned char *bytes, size_t count, unsigned char *out) {
    const stw_image image = {.begin = bytes, .end = bytes + count};
    return stw_image_size(&image) <= 64 && stw_image_unpack(&image, out);
}

static void packed_images_come_back(void **state) {
    (void)state;
    unsigned char out[64];
    assert_true(unpacks(packed, sizeof packed, out));
    assert_memory_equal(out, "abcabcabcabcabcX", 16);
    assert_true(unpacks((const unsigned char *)"sm80 cubin", 10, out)); /* not packed: as it is */
    assert_memory_equal(out, "sm80 cubin", 10);
}

/* Whatever the bytes are, nothing past them is read or past the size written; too few or too many are seen. */
static void damaged_packing_is_seen(void **state) {
    (void)state;
    for (size_t count = 16; count < sizeof packed; ++count) {
        unsigned char *bytes = malloc(count), *out = malloc(16); /* the sanitizers see their ends */
        memcpy(bytes, packed, count);
        assert_false(unpacks(bytes, count, out));
        free(bytes);
        free(out);
    }
    for (size_t at = 16; at < sizeof packed; ++at)
        for (int value = 0; value < 256; ++value) {
            unsigned char *bytes = malloc(sizeof packed), *out = malloc(16);
            memcpy(bytes, packed, sizeof packed);
            bytes[at] = (unsigned char)value;
            int good = unpacks(bytes, sizeof packed, out);
            if (good) assert_true(value == packed[at] || (at >= 17 && at <= 20) || at == 24); /* literals, a distance */
            free(bytes);
            free(out);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_found),
        cmocka_unit_test(all_are_counted),
        cmocka_unit_test(list_is_text),
        cmocka_unit_test(hash_is_fnv1a),
        cmocka_unit_test(damage_is_seen),
        cmocka_unit_test(packed_images_come_back),
        cmocka_unit_test(damaged_packing_is_seen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
