/* SPDX-License-Identifier: MIT
 *
 * Masks made on the host (attn_masks.h): which pairs they leave, against the words of their documentation. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "sternway/sternway.h"

enum { KEYS = 300 };
static int32_t bounds[KEYS * 4];

/* As stw_attn_intervals says it. */
static int hides(stw_attn_intervals form, int64_t i, int64_t j) {
    static const int counts[] = {0, 1, 2, 2, 3, 4};
    const int32_t *c = bounds + j * counts[form];
    if (form == STW_INTERVALS_FROM) return i >= c[0];
    if (form == STW_INTERVALS_RANGE) return c[0] <= i && i < c[1];
    if (form == STW_INTERVALS_RANGE_BELOW) return (c[0] <= i && i < c[1]) || i < c[2];
    if (form == STW_INTERVALS_TWO_RANGES) return (c[0] <= i && i < c[1]) || (c[2] <= i && i < c[3]);
    return i >= c[0] || i < c[1];
}

static void documents(void **state) {
    (void)state;
    int32_t ids[KEYS];
    for (int j = 0; j < KEYS; ++j) ids[j] = j < 7 ? 4 : j < 8 ? 9 : j < 200 ? 4 : 5;
    const stw_attn_intervals forms[] = {STW_INTERVALS_FROM, STW_INTERVALS_FROM_BELOW};
    for (int f = 0; f < 2; ++f) {
        assert_int_equal(stw_mask_documents(ids, KEYS, forms[f], bounds), STW_OK);
        for (int i = 0; i < KEYS; ++i)
            for (int j = 0; j < KEYS; ++j) {
                int same = (i < 7) == (j < 7) && (i < 8) == (j < 8) && (i < 200) == (j < 200);
                if (f || j <= i) assert_int_equal(!hides(forms[f], i, j), same);
            }
        assert_int_equal(stw_mask_chunks(130, KEYS, forms[f], bounds), STW_OK);
        for (int i = 0; i < KEYS; ++i)
            for (int j = 0; j < KEYS; ++j)
                if (f || j <= i) assert_int_equal(!hides(forms[f], i, j), i / 130 == j / 130);
    }
}

static void prefix_sliding_padding(void **state) {
    (void)state;
    assert_int_equal(stw_mask_prefix(20, KEYS, bounds), STW_OK);
    for (int i = 0; i < KEYS; ++i)
        for (int j = 0; j < KEYS; ++j) assert_int_equal(!hides(STW_INTERVALS_FROM_BELOW, i, j), j < 20 || j <= i);
    assert_int_equal(stw_mask_sliding(9, 3, KEYS, bounds), STW_OK);
    for (int i = 0; i < KEYS; ++i)
        for (int j = 0; j <= i; ++j) assert_int_equal(!hides(STW_INTERVALS_FROM, i, j), j < 3 || i - j <= 9);
    assert_int_equal(stw_mask_padding(5, 100, 50, KEYS, bounds), STW_OK);
    for (int i = 0; i < 50; ++i)
        for (int j = 0; j < KEYS; ++j) assert_int_equal(!hides(STW_INTERVALS_RANGE, i, j), j >= 5 && j < 105);
}

/* A trunk with two branches, the first with two leaves, and a second tree. */
static void tree(void **state) {
    (void)state;
    static const int32_t parent[] = {-1, 0, 1, 1, 0, -1}, starts[] = {0, 50, 60, 65, 90, 140, 150};
    assert_int_equal(stw_mask_tree(parent, starts, 6, bounds), STW_OK);
    for (int i = 0; i < 150; ++i)
        for (int j = 0; j <= i; ++j) {
            int row = 0, key = 0;
            while (i >= starts[row + 1]) ++row;
            while (j >= starts[key + 1]) ++key;
            for (; row > key; row = parent[row]) {
            }
            assert_int_equal(!hides(STW_INTERVALS_FROM, i, j), row == key);
        }
}

/* Each node of a long chain is below the one before it; quadratic work would take half a minute. */
static void deep_tree(void **state) {
    (void)state;
    enum { NODES = 1 << 18 };
    static int32_t parent[NODES], starts[NODES + 1], ends[NODES];
    for (int n = 0; n < NODES; ++n) parent[n] = n - 1, starts[n + 1] = n + 1;
    assert_int_equal(stw_mask_tree(parent, starts, NODES, ends), STW_OK);
    for (int n = 0; n < NODES; ++n) assert_int_equal(ends[n], NODES);
}

static int in_band(void *user, int64_t i, int64_t j) { return i - j < *(const int *)user && j <= i; }
static int in_blocks(void *user, int64_t i, int64_t j) {
    (void)user;
    return i / 128 != j / 128;
}

static void blocks(void **state) {
    (void)state;
    uint8_t made[9], of_intervals[9];
    int width = 100, exact = 7;
    assert_int_equal(stw_mask_blocks(in_band, &width, KEYS, KEYS, made, &exact), STW_OK);
    assert_int_equal(exact, 0);
    static const uint8_t expected[9] = {1, 0, 0, 1, 1, 0, 0, 1, 1};
    assert_memory_equal(made, expected, 9);
    assert_int_equal(stw_mask_blocks(in_blocks, NULL, KEYS, KEYS, made, &exact), STW_OK);
    assert_int_equal(exact, 1);
    for (int n = 0; n < 9; ++n) assert_int_equal(made[n], n % 4 != 0);
    assert_int_equal(stw_mask_chunks(128, KEYS, STW_INTERVALS_FROM_BELOW, bounds), STW_OK);
    assert_int_equal(stw_mask_blocks_of_intervals(STW_INTERVALS_FROM_BELOW, bounds, KEYS, KEYS, of_intervals), STW_OK);
    for (int n = 0; n < 9; ++n) assert_int_equal(of_intervals[n], n % 4 == 0);
}

/* Bounds of every form, alike in a block of keys. A block of pairs is 0 where one interval hides all of it. */
static void blocks_of_every_form(void **state) {
    (void)state;
    static const int counts[] = {0, 1, 2, 2, 3, 4};
    static const int32_t places[] = {-5, 0, 40, 128, 200, 256, 300, 400};
    unsigned random = 7;
    for (int n = 0; n < 600; ++n) {
        const stw_attn_intervals form = (stw_attn_intervals)(STW_INTERVALS_FROM + n % 5);
        const int count = counts[form];
        uint8_t made[9];
        for (int x = 0; x < KEYS * count; ++x) {
            random = random * 1664525u + 1013904223u;
            bounds[x] = x / count % 128 ? bounds[x - count] : places[random >> 29];
        }
        assert_int_equal(stw_mask_blocks_of_intervals(form, bounds, KEYS, KEYS, made), STW_OK);
        for (int m = 0; m < 9; ++m) {
            const int first = m / 3 * 128, end = first < 256 ? first + 128 : KEYS;
            const int32_t *c = bounds + m % 3 * 128 * count;
            int hidden[2] = {0, 0};
            for (int i = first; i < end; ++i) {
                int open = form == STW_INTERVALS_FROM || form == STW_INTERVALS_FROM_BELOW;
                int one = i >= c[0] && (open || i < c[1]);
                hidden[0] += one;
                hidden[1] += one ? 0 : hides(form, i, m % 3 * 128);
            }
            if (hidden[0] + hidden[1] < end - first) assert_int_equal(made[m], 1);
            else if (hidden[0] == end - first || !hidden[0]) assert_int_equal(made[m], 0);
        }
    }
}

#define REFUSED(call, words)                                                                                           \
    do {                                                                                                               \
        assert_int_equal(call, STW_E_INVALID);                                                                         \
        if (!strstr(stw_last_error(), words)) fail_msg("%s", stw_last_error());                                        \
    } while (0)

static void refusals(void **state) {
    (void)state;
    int32_t ids[2] = {0, 0};
    uint8_t made[9];
    static const int32_t late[] = {-1, 0, -1, 1}, starts[] = {0, 1, 2, 3, 4}, down[] = {0, 3, 2}, from[] = {1, 2};
    REFUSED(stw_mask_documents(ids, -1, STW_INTERVALS_FROM, bounds), "keys -1");
    REFUSED(stw_mask_documents(NULL, 2, STW_INTERVALS_FROM, bounds), "ids is null");
    REFUSED(stw_mask_documents(ids, 2, STW_INTERVALS_FROM, NULL), "null");
    REFUSED(stw_mask_documents(ids, 2, STW_INTERVALS_RANGE, bounds), "form 2");
    REFUSED(stw_mask_chunks(0, 2, STW_INTERVALS_FROM, bounds), "chunk 0");
    REFUSED(stw_mask_chunks(1, 2, STW_INTERVALS_NONE, bounds), "form 0");
    REFUSED(stw_mask_prefix(3, 2, bounds), "prefix 3 is not in 0..2");
    REFUSED(stw_mask_tree(late, starts, 4, bounds), "parent[3] is 1");
    REFUSED(stw_mask_tree(late, down, 2, bounds), "starts[2] is 2, below entry 1, 3");
    REFUSED(stw_mask_tree(late, from, 1, bounds), "starts[0] is 1");
    REFUSED(stw_mask_tree(NULL, starts, 4, bounds), "null");
    REFUSED(stw_mask_sliding(-1, 0, 2, bounds), "window -1");
    REFUSED(stw_mask_sliding(0, -1, 2, bounds), "sinks -1");
    REFUSED(stw_mask_padding(3, 0, 1, 2, bounds), "first 3");
    REFUSED(stw_mask_padding(1, 2, 1, 2, bounds), "length 2");
    REFUSED(stw_mask_padding(1, 1, -1, 2, bounds), "rows -1");
    REFUSED(stw_mask_blocks(NULL, NULL, 1, 1, made, NULL), "sees is null");
    REFUSED(stw_mask_blocks(in_blocks, NULL, -1, 1, made, NULL), "rows -1");
    REFUSED(stw_mask_blocks(in_blocks, NULL, 1, 1, NULL, NULL), "null");
    REFUSED(stw_mask_blocks_of_intervals(STW_INTERVALS_NONE, bounds, 1, 1, made), "form 0");
    REFUSED(stw_mask_blocks_of_intervals(STW_INTERVALS_FROM, NULL, 1, 1, made), "null");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(documents), cmocka_unit_test(prefix_sliding_padding),
        cmocka_unit_test(tree),      cmocka_unit_test(deep_tree),
        cmocka_unit_test(blocks),    cmocka_unit_test(blocks_of_every_form),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
