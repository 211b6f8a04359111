/* SPDX-License-Identifier: MIT
 *
 * Refusals of the run calls: each pointer missing, misaligned or aliased, plans of the other kind,
 * workspaces, used lengths without their flag, offsets out of range. Nothing in memory may change. */
#include "misuse.h"

#include <stdio.h>
#include <string.h>

/* A pointer of stw_attn_args: who needs it, and the size of its elements. */
typedef struct pointer {
    const char *name;
    size_t offset;
    slot at;
    base from;             /* a problem that uses it                            */
    int backward, forward; /* 1: required; 2: optional, but its alignment counts */
    int element;
} pointer;

#define POINTER(name, ...) {#name, offsetof(stw_attn_args, name), SLOT_##name, __VA_ARGS__}

static const pointer pointers[] = {
    POINTER(q, FULL, 1, 1, 4),
    POINTER(k, FULL, 1, 1, 4),
    POINTER(v, FULL, 1, 1, 4),
    POINTER(q, HALF, 1, 1, 2),
    POINTER(dv, HALF, 1, 0, 2),
    POINTER(out, FULL, 1, 1, 4),
    POINTER(dout, FULL, 1, 0, 4),
    POINTER(lse, FULL, 1, 2, 4),
    POINTER(dlse, FULL, 1, 0, 4),
    POINTER(delta, FULL, 1, 0, 4),
    POINTER(bias, FULL, 1, 1, 4),
    POINTER(alibi_slopes, FULL, 1, 1, 4),
    POINTER(sink, FULL, 1, 1, 4),
    POINTER(cu_seqlens_q, PACKED, 1, 1, 4),
    POINTER(cu_seqlens_kv, PACKED, 1, 1, 4),
    POINTER(used_q, PACKED, 2, 2, 4),
    POINTER(used_kv, FULL, 2, 2, 4),
    POINTER(q_offsets, FULL, 2, 2, 8),
    POINTER(k_offsets, FULL, 2, 2, 8),
    POINTER(dropout_seed_ptr, FULL, 2, 2, 8),
    POINTER(dropout_offset_ptr, FULL, 2, 2, 8),
    POINTER(intervals, FULL, 1, 1, 4),
    POINTER(block_mask, FULL, 1, 1, 1),
    POINTER(dq, FULL, 1, 0, 4),
    POINTER(dk, FULL, 1, 0, 4),
    POINTER(dv, FULL, 1, 0, 4),
    POINTER(dbias, FULL, 1, 0, 4),
    POINTER(dsink, FULL, 1, 0, 4),
    POINTER(status_out, FULL, 2, 2, 4),
};
enum { POINTERS = sizeof pointers / sizeof pointers[0] };

static void set_pointer(stw_attn_args *args, size_t offset, void *value) {
    memcpy((char *)args + offset, &value, sizeof value);
}

static stw_status call(fixture *f, int forward, const stw_attn_args *args) {
    stw_plan *plan = forward ? f->fwd : f->bwd;
    void *workspace = fixture_at(f, SLOT_workspace);
    const stw_status status = (forward ? stw_attn_fwd : stw_attn_bwd)(plan, args, workspace, WORKSPACE_BYTES, NULL);
    if (!status) return status;
    char words[512]; /* without a plan a refusal has the same behind the call's name */
    snprintf(words, sizeof words, "%s", stw_last_error());
    const stw_status once =
        (forward ? stw_attn_fwd_once : stw_attn_bwd_once)(f->context, &f->desc, args, workspace, WORKSPACE_BYTES, NULL);
    if (once != status || strcmp(strchr(words, ':'), strchr(stw_last_error(), ':')))
        complain("without a plan: %s: %s, with one: %s", stw_status_name(once), stw_last_error(), words);
    return status;
}

static const char *const functions[2] = {"attn_bwd", "attn_fwd"};

static void each_pointer(void **state) {
    (void)state;
    fixture all[BASE_COUNT];
    for (int b = 0; b < BASE_COUNT; ++b) fixture_open(&all[b], (base)b);
    for (int n = 0; n < POINTERS; ++n) {
        const pointer *row = &pointers[n];
        fixture *f = &all[row->from];
        for (int forward = 0; forward < 2; ++forward) {
            const int need = forward ? row->forward : row->backward;
            stw_attn_args args = f->args;
            char what[60];
            if (need == 1) {
                snprintf(what, sizeof what, "null %s", row->name);
                set_pointer(&args, row->offset, NULL);
                text_forget();
                refused(what, call(f, forward, &args), STW_E_INVALID, functions[forward], WORDS(row->name, "null"));
                fixture_unchanged(f, 0);
            }
            for (int off = 1; need && off < row->element; off += off) {
                snprintf(what, sizeof what, "%s off by %d", row->name, off);
                set_pointer(&args, row->offset, (char *)fixture_at(f, row->at) + off);
                text_forget();
                refused(what, call(f, forward, &args), STW_E_INVALID, functions[forward], WORDS(row->name, "aligned"));
                fixture_unchanged(f, 0);
            }
        }
    }
    no_complaints();
    for (int b = 0; b < BASE_COUNT; ++b) {
        fixture_still_works(&all[b]);
        fixture_close(&all[b]);
    }
}

/* Every output on the first element of every other tensor of the call. */
static void aliased_outputs(void **state) {
    (void)state;
    fixture f;
    fixture_open(&f, FULL);
    static const slot outputs[] = {SLOT_dq, SLOT_dk, SLOT_dv, SLOT_dbias, SLOT_dsink, SLOT_delta};
    for (size_t o = 0; o < sizeof outputs / sizeof outputs[0]; ++o) {
        const pointer *out = NULL;
        for (int n = 0; n < POINTERS; ++n)
            if (pointers[n].at == outputs[o] && pointers[n].from == FULL) out = &pointers[n];
        for (int n = 0; n < POINTERS; ++n) {
            if (pointers[n].from != FULL || pointers[n].at == out->at) continue;
            stw_attn_args args = f.args;
            char what[60];
            snprintf(what, sizeof what, "%s = %s", out->name, pointers[n].name);
            set_pointer(&args, out->offset, fixture_at(&f, pointers[n].at));
            text_forget();
            refused(what, call(&f, 0, &args), STW_E_INVALID, "attn_bwd", WORDS(out->name, pointers[n].name));
            fixture_unchanged(&f, 0);
        }
    }
    /* at the workspace, in it, and before it, with the end in it */
    for (size_t o = 0; o < sizeof outputs / sizeof outputs[0]; ++o)
        for (int at = -64; at <= 64; at += 64) {
            if (at < 0 && outputs[o] != SLOT_dq && outputs[o] != SLOT_dk && outputs[o] != SLOT_dv) continue;
            stw_attn_args args = f.args;
            const pointer *out = pointers;
            while (out->at != outputs[o] || out->from != FULL) ++out;
            set_pointer(&args, out->offset, (char *)fixture_at(&f, SLOT_workspace) + at);
            text_forget();
            refused("in the workspace", call(&f, 0, &args), STW_E_INVALID, "attn_bwd", WORDS(out->name, "workspace"));
            fixture_unchanged(&f, 0);
        }
    stw_attn_args args = f.args;
    args.out = fixture_at(&f, SLOT_q);
    text_forget();
    refused("forward out = q", call(&f, 1, &args), STW_E_INVALID, "attn_fwd", WORDS("out", "q"));
    args = f.args;
    args.lse = fixture_at(&f, SLOT_out);
    refused("forward lse = out", call(&f, 1, &args), STW_E_INVALID, "attn_fwd", WORDS("out", "lse"));
    fixture_unchanged(&f, 0);
    no_complaints();
    fixture_still_works(&f);
    fixture_close(&f);
}

static void plans_and_args(void **state) {
    (void)state;
    fixture f;
    fixture_open(&f, DENSE);
    void *workspace = fixture_at(&f, SLOT_workspace);
    uint8_t *mask = fixture_at(&f, SLOT_mask);
    text_forget();
    refused("null plan", stw_attn_bwd(NULL, &f.args, workspace, WORKSPACE_BYTES, NULL), STW_E_INVALID, "attn_bwd",
            WORDS("plan", "null"));
    refused("null plan", stw_attn_fwd(NULL, &f.args, workspace, WORKSPACE_BYTES, NULL), STW_E_INVALID, "attn_fwd",
            WORDS("plan", "null"));
    refused("null plan", stw_dropout_mask(NULL, &f.args, mask, NULL), STW_E_INVALID, "dropout_mask",
            WORDS("plan", "null"));
    refused("a forward plan", stw_attn_bwd(f.fwd, &f.args, workspace, WORKSPACE_BYTES, NULL), STW_E_INVALID, "attn_bwd",
            WORDS("plan", "stw_attn_fwd_plan"));
    refused("a backward plan", stw_attn_fwd(f.bwd, &f.args, workspace, WORKSPACE_BYTES, NULL), STW_E_INVALID,
            "attn_fwd", WORDS("plan", "stw_attn_bwd_plan"));
    refused("null args", call(&f, 0, NULL), STW_E_INVALID, "attn_bwd", WORDS("args", "null"));
    refused("null args", call(&f, 1, NULL), STW_E_INVALID, "attn_fwd", WORDS("args", "null"));
    refused("null args", stw_dropout_mask(f.bwd, NULL, mask, NULL), STW_E_INVALID, "dropout_mask",
            WORDS("args", "null"));
    refused("null mask", stw_dropout_mask(f.bwd, &f.args, NULL, NULL), STW_E_INVALID, "dropout_mask",
            WORDS("mask", "null"));
    const size_t first = offsetof(stw_attn_args, cpu_threads); /* 0.1's size */
    const size_t sizes[] = {0, 1, 8, first - 8, first - 1, SIZE_MAX};
    for (size_t n = 0; n < sizeof sizes / sizeof sizes[0]; ++n) {
        stw_attn_args args = f.args;
        args.struct_size = sizes[n];
        text_forget();
        refused("struct_size", call(&f, 0, &args), STW_E_INVALID, "attn_bwd", WORDS("struct_size"));
        refused("struct_size", call(&f, 1, &args), STW_E_INVALID, "attn_fwd", WORDS("struct_size"));
        refused("struct_size", stw_dropout_mask(f.bwd, &args, mask, NULL), STW_E_INVALID, "dropout_mask",
                WORDS("struct_size"));
    }
    struct {
        stw_attn_args args;
        uint8_t tail[8];
    } newer = {f.args, {0, 0, 0, 0, 0, 0, 0, 1}};
    newer.args.struct_size = sizeof newer;
    refused("a tail", call(&f, 0, &newer.args), STW_E_UNSUPPORTED, "attn_bwd", WORDS("struct_size"));
    fixture_unchanged(&f, 0);
    no_complaints();
    fixture_still_works(&f);
    fixture_close(&f);
}

static void workspaces(void **state) {
    (void)state;
    fixture f;
    fixture_open(&f, FULL);
    const size_t need = stw_plan_workspace_size(f.bwd);
    assert_true(need > 0); /* a problem that needs none would test nothing here */
    char *good = fixture_at(&f, SLOT_workspace), text[32];
    snprintf(text, sizeof text, "%zu", need);
    text_forget();
    refused("null workspace", stw_attn_bwd(f.bwd, &f.args, NULL, need, NULL), STW_E_WORKSPACE, "attn_bwd",
            WORDS("workspace", "null", text));
    refused("size 0", stw_attn_bwd(f.bwd, &f.args, good, 0, NULL), STW_E_WORKSPACE, "attn_bwd",
            WORDS("workspace_size", "0", text));
    for (size_t off = 0; off < 256; ++off) { /* what is left from the next multiple of 256 on counts */
        const size_t short_by_1 = need - 255 + (256 - off) % 256 - 1;
        text_forget();
        refused("one byte short behind the multiple of 256", stw_attn_bwd(f.bwd, &f.args, good + off, short_by_1, NULL),
                STW_E_WORKSPACE, "attn_bwd", WORDS("workspace_size", text));
    }
    refused("none left behind the multiple of 256", stw_attn_bwd(f.bwd, &f.args, good + 1, 254, NULL), STW_E_WORKSPACE,
            "attn_bwd", WORDS("workspace_size", "254", text));
    fixture_unchanged(&f, 0);
    no_complaints();
    fixture_still_works(&f);
    fixture_close(&f);
}

/* A workspace of stw_plan_workspace_size() bytes at any address: the call gives the same bits and writes
 * nothing around it. At a multiple of 256 the size may be 255 less. */
static void workspaces_anywhere(void **state) {
    (void)state;
    fixture f;
    fixture_open(&f, FULL);
    const size_t need = stw_plan_workspace_size(f.bwd);
    for (size_t off = 0; off < 256; ++off) fixture_works_on(&f, 256 + off, need);
    fixture_works_on(&f, 256, need - 255);
    fixture_works_on(&f, 256 + 255, need - 254);
    fixture_close(&f);
}

/* The mask call looks at positions alone: their alignment counts there too. */
static void mask_positions(void **state) {
    (void)state;
    fixture f;
    fixture_open(&f, FULL);
    for (int n = 0; n < POINTERS; ++n) {
        const pointer *row = &pointers[n];
        stw_attn_args args = f.args;
        if (row->from != FULL || row->at < SLOT_used_q || row->at > SLOT_dropout_offset_ptr) continue;
        set_pointer(&args, row->offset, (char *)fixture_at(&f, row->at) + 1);
        text_forget();
        refused(row->name, stw_dropout_mask(f.bwd, &args, fixture_at(&f, SLOT_mask), NULL), STW_E_INVALID,
                "dropout_mask", WORDS(row->name, "aligned"));
    }
    fixture_unchanged(&f, 0);
    no_complaints();
    fixture_still_works(&f);
    fixture_close(&f);
}

/* 4 heads of (2^31 - 1)^2 positions: a problem that can be planned, with a mask that has no int64 size. */
static void a_mask_beyond_63_bits(void **state) {
    (void)state;
    fixture f;
    fixture_open(&f, DENSE);
    stw_attn_desc desc = f.desc;
    stw_plan *plan = NULL;
    desc.batch = 1;
    desc.max_seq_q = desc.max_seq_kv = INT32_MAX;
    assert_int_equal(stw_attn_bwd_plan(f.context, &desc, &plan), STW_OK);
    text_forget();
    refused("a huge mask", stw_dropout_mask(plan, &f.args, fixture_at(&f, SLOT_mask), NULL), STW_E_INVALID,
            "dropout_mask", WORDS("mask", "2147483647", "2^63"));
    stw_plan_destroy(plan);
    fixture_unchanged(&f, 0);
    no_complaints();
    fixture_still_works(&f);
    fixture_close(&f);
}

/* What the flag says and what the arguments hold must agree; offsets given by value have a range. */
static void used_lengths_and_offsets(void **state) {
    (void)state;
    fixture f;
    fixture_open(&f, DENSE);
    const int64_t beyond = (INT64_C(1) << 40) + 1;
    static const char *const names[2] = {"q_offset", "k_offset"};
    for (int forward = 0; forward < 2; ++forward) {
        stw_attn_args args = f.args;
        args.used_q = fixture_at(&f, SLOT_used_q);
        text_forget();
        refused("used_q without its flag", call(&f, forward, &args), STW_E_INVALID, functions[forward],
                WORDS("used_q", "STW_ATTN_HAS_USED_LENGTHS"));
        args.used_q = NULL;
        args.used_kv = fixture_at(&f, SLOT_used_kv);
        refused("used_kv without its flag", call(&f, forward, &args), STW_E_INVALID, functions[forward],
                WORDS("used_kv", "STW_ATTN_HAS_USED_LENGTHS"));
        for (int side = 0; side < 2; ++side) {
            args = f.args;
            *(side ? &args.k_offset : &args.q_offset) = beyond;
            refused(names[side], call(&f, forward, &args), STW_E_INVALID, functions[forward],
                    WORDS(names[side], "1099511627777"));
            *(side ? &args.k_offset : &args.q_offset) = INT64_MIN;
            refused(names[side], call(&f, forward, &args), STW_E_INVALID, functions[forward],
                    WORDS(names[side], "-9223372036854775808"));
            refused(names[side], stw_dropout_mask(f.bwd, &args, fixture_at(&f, SLOT_mask), NULL), STW_E_INVALID,
                    "dropout_mask", WORDS(names[side]));
        }
    }
    fixture_unchanged(&f, 0);
    fixture_still_works(&f);
    fixture_close(&f);
    fixture_open(&f, PACKED);
    stw_attn_args args = f.args;
    args.used_q = args.used_kv = NULL;
    text_forget();
    refused("the flag without lengths", call(&f, 0, &args), STW_E_INVALID, "attn_bwd",
            WORDS("used_q", "used_kv", "null"));
    fixture_unchanged(&f, 0);
    no_complaints();
    fixture_still_works(&f);
    fixture_close(&f);
}

static void threads_of_a_call(void **state) {
    (void)state;
    fixture f;
    fixture_open(&f, FULL);
    static const struct {
        int32_t value;
        const char *word;
    } bad[] = {{-1, "-1"}, {1025, "1025"}, {INT32_MIN, "-2147483648"}};
    text_forget();
    for (size_t n = 0; n < sizeof bad / sizeof bad[0]; ++n) {
        stw_attn_args args = f.args;
        args.cpu_threads = bad[n].value;
        for (int forward = 0; forward < 2; ++forward)
            refused("cpu_threads", call(&f, forward, &args), STW_E_INVALID, functions[forward],
                    WORDS("cpu_threads", bad[n].word, "0..1024"));
        refused("cpu_threads", stw_dropout_mask(f.bwd, &args, fixture_at(&f, SLOT_mask), NULL), STW_E_INVALID,
                "dropout_mask", WORDS("cpu_threads", bad[n].word, "0..1024"));
    }
    fixture_unchanged(&f, 0);
    no_complaints();
    fixture_still_works(&f);
    fixture_close(&f);
}

/* In f64 problems the float pointers are of doubles, and aligned as such. */
static void numbers_of_f64_problems(void **state) {
    (void)state;
    fixture f;
    fixture_open(&f, FULL);
    stw_attn_desc desc = f.desc;
    stw_plan *plan = NULL;
    desc.dtype = desc.bias_dtype = STW_F64;
    assert_int_equal(stw_attn_bwd_plan(f.context, &desc, &plan), STW_OK);
    text_forget();
    static const slot numbers[] = {SLOT_lse, SLOT_dlse, SLOT_delta, SLOT_alibi_slopes, SLOT_sink, SLOT_dsink};
    for (int n = 0; n < POINTERS; ++n)
        for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; ++i) {
            stw_attn_args args = f.args;
            if (pointers[n].at != numbers[i]) continue;
            set_pointer(&args, pointers[n].offset, (char *)fixture_at(&f, numbers[i]) + 4);
            refused(pointers[n].name, stw_attn_bwd(plan, &args, fixture_at(&f, SLOT_workspace), WORKSPACE_BYTES, NULL),
                    STW_E_INVALID, "attn_bwd", WORDS(pointers[n].name, "aligned", "8 bytes"));
        }
    stw_plan_destroy(plan);
    fixture_unchanged(&f, 0);
    no_complaints();
    fixture_still_works(&f);
    fixture_close(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_pointer),          cmocka_unit_test(aliased_outputs),
        cmocka_unit_test(plans_and_args),        cmocka_unit_test(workspaces),
        cmocka_unit_test(workspaces_anywhere),   cmocka_unit_test(mask_positions),
        cmocka_unit_test(a_mask_beyond_63_bits), cmocka_unit_test(used_lengths_and_offsets),
        cmocka_unit_test(threads_of_a_call),     cmocka_unit_test(numbers_of_f64_problems),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
