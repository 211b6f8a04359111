/* SPDX-License-Identifier: MIT
 *
 * Bad values behind offsets, used lengths, indices and base offsets: the CPU backend refuses the call, names
 * the entry, sets the bits of *status_out and writes nothing else; with status_out null it refuses all the
 * same. Host mirrors: refused by every backend before anything runs. */
#include "jagged.h"

#include <stdio.h>
#include <string.h>

enum what { OFFSETS, USED, OFFSETS_2, BASES };

typedef struct bad {
    const char *name;
    jbase from;
    enum what at;
    int64_t values[4];
    int32_t bits;
    const char *words[5];
} bad;

/* Correct: offsets 1 4 4 9 (total 10, max 5), used 2 0 5; J_SELECT_RAG: 0 3 5 9, used 3 2 3; bases 2 11 12 of
 * 40 elements, 9, 0 and 25 long. */
static const bad rows[] = {
    {"a negative start", J_GELU, OFFSETS, {-1, 4, 4, 9}, 0x1, {"offsets[0]", "-1"}},
    {"a decrease", J_GELU, OFFSETS, {1, 4, 3, 9}, 0x1, {"offsets[2]", "3", "4"}},
    {"a decreasing end", J_GELU, OFFSETS, {1, 4, 4, 2}, 0x1, {"offsets[3]", "2"}},
    {"an end above total", J_GELU, OFFSETS, {1, 4, 6, 11}, 0x1, {"offsets[3]", "11", "10"}},
    {"a start above total", J_GELU, OFFSETS, {1, 4, 12, 12}, 0x1, {"offsets[2]", "12", "10"}},
    {"the largest int64", J_GELU, OFFSETS, {1, 4, 4, INT64_MAX}, 0x1, {"offsets[3]", "9223372036854775807"}},
    {"the smallest int64", J_GELU, OFFSETS, {INT64_MIN, 4, 4, 9}, 0x1, {"offsets[0]", "-9223372036854775808"}},
    {"the largest int32", J_THRESHOLD, OFFSETS, {1, 4, 4, INT32_MAX}, 0x1, {"offsets[3]", "2147483647"}},
    {"the smallest int32", J_THRESHOLD, OFFSETS, {INT32_MIN, 4, 4, 9}, 0x1, {"offsets[0]", "-2147483648"}},
    {"a component above size", J_GELU, OFFSETS, {0, 2, 2, 10}, 0x10, {"offsets", "8", "5"}},
    {"a negative length", J_GELU, USED, {2, -1, 5, 0}, 0x10, {"used[1]", "-1"}},
    {"a length above the component's", J_GELU, USED, {4, 0, 5, 0}, 0x10, {"used[0]", "4", "3"}},
    {"a length of an empty component", J_GELU, USED, {2, 1, 5, 0}, 0x10, {"used[1]", "1", "0"}},
    {"the largest length", J_GELU, USED, {2, 0, INT64_MAX, 0}, 0x10, {"used[2]", "9223372036854775807"}},
    {"a decrease", J_LINEAR, OFFSETS, {4, 1, 4, 9}, 0x1, {"offsets[1]", "1"}},
    {"a decrease", J_SOFTMAX, OFFSETS, {4, 1, 4, 9}, 0x1, {"offsets[1]", "1"}},
    {"a decrease", J_SUM, OFFSETS, {4, 1, 4, 9}, 0x1, {"offsets[1]", "1"}},
    {"a decrease", J_SELECT, OFFSETS, {4, 1, 4, 9}, 0x1, {"offsets[1]", "1"}},
    {"a decrease", J_LAYER_NORM, OFFSETS, {4, 1, 4, 9}, 0x1, {"offsets[1]", "1"}},
    {"a decrease", J_RMS_NORM, OFFSETS, {4, 1, 4, 9}, 0x1, {"offsets[1]", "1"}},
    {"a decrease", J_LOG_SOFTMAX, OFFSETS, {4, 1, 4, 9}, 0x1, {"offsets[1]", "1"}},
    {"a decrease", J_RESHAPE, OFFSETS, {4, 1, 4, 9}, 0x1, {"offsets[1]", "1"}},
    {"a decrease", J_TO_PADDED, OFFSETS, {4, 1, 4, 9}, 0x1, {"offsets[1]", "1"}},
    {"a decrease", J_FROM_PADDED, OFFSETS, {4, 1, 4, 9}, 0x1, {"offsets[1]", "1"}},
    {"a decrease", J_MATMUL, OFFSETS, {4, 1, 4, 9}, 0x1, {"offsets[1]", "1"}},
    {"a decrease on n", J_MATMUL_MN, OFFSETS_2, {4, 1, 4, 9}, 0x4, {"offsets[1]", "1"}},
    {"a component above n's size", J_MATMUL_MN, OFFSETS_2, {0, 0, 0, 7}, 0x40, {"offsets", "7", "5"}},
    {"an index that a component lacks", J_SELECT_RAG, USED, {3, 0, 3, 0}, 0x100, {"index", "0", "component", "1"}},
    {"a negative base", J_MATMUL_MN, BASES, {-1, 11, 12, 0}, 0x200, {"grad_bases[0]", "-1"}},
    {"a base past the end", J_MATMUL_MN, BASES, {2, 11, 16, 0}, 0x200, {"grad_bases[2]", "16", "40"}},
    {"the largest base", J_MATMUL_MN, BASES, {2, 11, INT64_MAX, 0}, 0x200, {"grad_bases[2]"}},
};

static void *array_of(jfixture *f, enum what at) {
    const void *const arrays[] = {f->args.axis[0].offsets, f->args.axis[0].used, f->args.axis[2].offsets,
                                  f->args.grad_bases};
    return (void *)(uintptr_t)arrays[at];
}

static void put(jfixture *f, enum what at, const int64_t *values, void *to) {
    const int count = at == OFFSETS || at == OFFSETS_2 ? 4 : 3;
    for (int n = 0; n < count; ++n) {
        if (f->desc.index_dtype == STW_I32 && at != BASES) ((int32_t *)to)[n] = (int32_t)values[n];
        else ((int64_t *)to)[n] = values[n];
    }
}

static void every_row(void **state) {
    (void)state;
    for (size_t n = 0; n < sizeof rows / sizeof rows[0]; ++n) {
        const bad *row = &rows[n];
        jfixture f;
        char what[100];
        snprintf(what, sizeof what, "problem %d, %s (row %zu)", (int)row->from, row->name, n);
        jfixture_open(&f, row->from);
        void *array = array_of(&f, row->at);
        int64_t kept[4];
        const size_t bytes = (row->at == OFFSETS || row->at == OFFSETS_2 ? 4 : 3) *
                             (f.desc.index_dtype == STW_I32 ? sizeof(int32_t) : sizeof(int64_t));
        memcpy(kept, array, bytes);
        put(&f, row->at, row->values, array);
        arena_keep(&f.memory);
        text_forget();
        refused(what, jfixture_run(&f, &f.args), STW_E_INVALID, "jagged_bwd", row->words);
        jfixture_unchanged(&f, what, 1);
        if (*jfixture_status(&f) != row->bits)
            complain("%s: status_out is 0x%x, not 0x%x", what, (unsigned)*jfixture_status(&f), (unsigned)row->bits);
        stw_jagged_args silent = f.args;
        silent.status_out = NULL;
        memset(jfixture_status(&f), ARENA_POISON, 4);
        text_forget();
        refused(what, jfixture_run(&f, &silent), STW_E_INVALID, "jagged_bwd", row->words);
        jfixture_unchanged(&f, what, 0);
        memcpy(array, kept, bytes);
        jfixture_still_works(&f);
        jfixture_close(&f);
    }
    no_complaints();
}

/* The same values in the host mirrors, with good ones on the device: refused too, by the mirror's name. */
static void mirrors(void **state) {
    (void)state;
    for (size_t n = 0; n < sizeof rows / sizeof rows[0]; ++n) {
        const bad *row = &rows[n];
        jfixture f;
        char what[100];
        int64_t values[4] = {0};
        if (row->at == BASES || row->bits == 0x100) continue;
        snprintf(what, sizeof what, "problem %d, %s in a mirror (row %zu)", (int)row->from, row->name, n);
        jfixture_open(&f, row->from);
        stw_jagged_args args = f.args;
        put(&f, row->at, row->values, values);
        stw_jagged_offsets *axis = &args.axis[row->at == OFFSETS_2 ? 2 : 0];
        if (row->at == USED) {
            axis->used_host = values;
            axis->offsets_host = axis->offsets;
        } else {
            axis->offsets_host = values;
        }
        text_forget();
        refused(what, jfixture_run(&f, &args), STW_E_INVALID, "jagged_bwd", WORDS(row->words[1]));
        if (!strstr(stw_last_error(), row->at == USED ? "used_host" : "offsets_host"))
            complain("%s: the text does not name the mirror: \"%s\"", what, stw_last_error());
        jfixture_unchanged(&f, what, 1);
        jfixture_still_works(&f);
        jfixture_close(&f);
    }
    no_complaints();
}

/* Base offsets of tensors whose gradient is asked for must not overlap; those of inputs may. */
static void overlapping_bases(void **state) {
    (void)state;
    jfixture f;
    jfixture_open(&f, J_MATMUL_MN);
    stw_jagged_desc desc = f.desc;
    desc.flags |= STW_JAGGED_X_BASES;
    desc.x_elements = 40; /* components of 12, 0 and 20 elements */
    stw_plan *plan = NULL;
    assert_int_equal(stw_jagged_bwd_plan(f.context, &desc, &plan), STW_OK);
    const size_t need = stw_plan_workspace_size(plan);
    void *workspace = arena_add(&f.memory, "second workspace", (double)need, 1, ARENA_WORKSPACE);
    stw_jagged_args args = f.args;
    int64_t overlap[3] = {0, 12, 11}, backwards[3] = {20, 20, 0}, good[3] = {0, 12, 20};
    const int64_t *const bases[] = {overlap, backwards};
    for (int n = 0; n < 2; ++n) {
        args.x_bases = bases[n];
        text_forget();
        refused("overlapping bases of x", stw_jagged_bwd(plan, &args, workspace, need, NULL), STW_E_INVALID,
                "jagged_bwd", WORDS(n ? "x_bases[1]" : "x_bases[2]"));
        jfixture_unchanged(&f, "overlapping bases of x", 1);
        if (*args.status_out != STW_JAGGED_DATA_BASES)
            complain("overlapping bases of x: status_out 0x%x", (unsigned)*args.status_out);
    }
    args.x_bases = good;
    int64_t grad_overlap[3] = {2, 0, 2};
    args.grad_bases = grad_overlap;
    if (stw_jagged_bwd(plan, &args, workspace, need, NULL)) complain("shared gradients: %s", stw_last_error());
    stw_plan_destroy(plan);
    jfixture_close(&f);
    no_complaints();
}

/* A promise of STW_JAGGED_FULL that the offsets break. */
static void full_is_a_promise(void **state) {
    (void)state;
    static const int64_t broken[][4] = {{1, 4, 4, 10}, {0, 4, 4, 9}};
    for (int n = 0; n < 2; ++n) {
        jfixture f;
        stw_plan *plan = NULL;
        jfixture_open(&f, J_LINEAR);
        stw_jagged_desc desc = f.desc;
        desc.flags = STW_JAGGED_FULL;
        desc.axis[0].size = 10;
        assert_int_equal(stw_jagged_bwd_plan(f.context, &desc, &plan), STW_OK);
        const size_t need = stw_plan_workspace_size(plan);
        void *workspace = arena_add(&f.memory, "second workspace", (double)need, 1, ARENA_WORKSPACE);
        put(&f, OFFSETS, broken[n], array_of(&f, OFFSETS));
        arena_keep(&f.memory);
        stw_jagged_args args = f.args;
        args.axis[0].used = NULL;
        text_forget();
        refused("a broken promise", stw_jagged_bwd(plan, &args, workspace, need, NULL), STW_E_INVALID, "jagged_bwd",
                WORDS("offsets", "STW_JAGGED_FULL"));
        jfixture_unchanged(&f, "a broken promise", 1);
        stw_plan_destroy(plan);
        jfixture_close(&f);
    }
    no_complaints();
}

/* Attention reports its own bits, from the axes. */
static void attention(void **state) {
    (void)state;
    static const struct {
        int axis;
        int64_t values[4];
        int32_t bits;
    } bad_axes[] = {{0, {1, 4, 3, 9}, STW_DATA_CU_SEQLENS_Q},
                    {0, {1, 4, 4, 11}, STW_DATA_CU_SEQLENS_Q},
                    {1, {-1, 4, 4, 9}, STW_DATA_CU_SEQLENS_KV},
                    {1, {0, 0, 0, INT64_C(1) << 32}, STW_DATA_CU_SEQLENS_KV},
                    {1, {0, 0, 0, 9}, STW_DATA_CU_SEQLENS_KV}};
    for (size_t n = 0; n < sizeof bad_axes / sizeof bad_axes[0]; ++n) {
        jfixture f;
        jfixture_open(&f, J_ATTENTION);
        memcpy((void *)(uintptr_t)f.args.axis[bad_axes[n].axis].offsets, bad_axes[n].values, 32);
        arena_keep(&f.memory);
        text_forget();
        const stw_status status = jfixture_run(&f, &f.args);
        if (status != STW_E_INVALID) complain("attention row %zu: %s", n, stw_status_name(status));
        jfixture_unchanged(&f, "attention", 1);
        if (*jfixture_status(&f) != bad_axes[n].bits)
            complain("attention row %zu: status_out 0x%x, not 0x%x: \"%s\"", n, (unsigned)*jfixture_status(&f),
                     (unsigned)bad_axes[n].bits, stw_last_error());
        jfixture_close(&f);
    }
    no_complaints();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_row),         cmocka_unit_test(mirrors),   cmocka_unit_test(overlapping_bases),
        cmocka_unit_test(full_is_a_promise), cmocka_unit_test(attention),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
