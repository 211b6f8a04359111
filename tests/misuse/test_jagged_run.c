/* SPDX-License-Identifier: MIT
 *
 * Refusals of stw_jagged_bwd: each pointer missing, misaligned or aliased, plans of the other kind, args and
 * workspaces. Nothing in memory may change. And arguments that may be null. */
#include "jagged.h"

#include <stdio.h>
#include <string.h>

typedef struct pointer {
    const char *name;
    size_t offset;
    jbase from;
    int need, element; /* 1: required; 2: may be null. Bytes of an element: its alignment */
} pointer;

#define POINTER(field, ...) {#field, offsetof(stw_jagged_args, field), __VA_ARGS__}

static const pointer pointers[] = {
    POINTER(grad, J_MATMUL, 1, 4),
    POINTER(x, J_MATMUL, 1, 4),
    POINTER(other, J_MATMUL, 1, 4),
    POINTER(dx, J_MATMUL, 1, 4),
    POINTER(dother, J_MATMUL, 1, 4),
    POINTER(axis[0].offsets, J_MATMUL, 1, 8),
    POINTER(axis[2].offsets, J_MATMUL_MN, 1, 8),
    POINTER(grad_bases, J_MATMUL_MN, 1, 8),
    POINTER(grad, J_LINEAR, 1, 2),
    POINTER(x, J_LINEAR, 1, 2),
    POINTER(weight, J_LINEAR, 1, 2),
    POINTER(dx, J_LINEAR, 1, 2),
    POINTER(dweight, J_LINEAR, 1, 2),
    POINTER(dbias, J_LINEAR, 1, 2),
    POINTER(grad, J_SOFTMAX, 1, 4),
    POINTER(y, J_SOFTMAX, 1, 4),
    POINTER(dx, J_SOFTMAX, 1, 4),
    POINTER(grad, J_LOG_SOFTMAX, 1, 4),
    POINTER(y, J_LOG_SOFTMAX, 1, 4),
    POINTER(dx, J_LOG_SOFTMAX, 1, 4),
    POINTER(grad, J_SUM, 1, 4),
    POINTER(dx, J_SUM, 1, 4),
    POINTER(grad, J_SELECT, 1, 4),
    POINTER(grad, J_SELECT_RAG, 1, 4),
    POINTER(dx, J_SELECT, 1, 4),
    POINTER(grad, J_GELU, 1, 2),
    POINTER(x, J_GELU, 1, 2),
    POINTER(dx, J_GELU, 1, 2),
    POINTER(axis[0].offsets, J_GELU, 1, 8),
    POINTER(axis[0].used, J_GELU, 1, 8),
    POINTER(x, J_THRESHOLD, 1, 4),
    POINTER(axis[0].offsets, J_THRESHOLD, 1, 4),
    POINTER(axis[0].used, J_THRESHOLD, 1, 4),
    POINTER(grad, J_LAYER_NORM, 1, 4),
    POINTER(x, J_LAYER_NORM, 1, 4),
    POINTER(mean, J_LAYER_NORM, 1, 4),
    POINTER(rstd, J_LAYER_NORM, 1, 4),
    POINTER(weight, J_LAYER_NORM, 1, 4),
    POINTER(dx, J_LAYER_NORM, 1, 4),
    POINTER(dweight, J_LAYER_NORM, 1, 4),
    POINTER(dbias, J_LAYER_NORM, 1, 4),
    POINTER(grad, J_RMS_NORM, 1, 4),
    POINTER(x, J_RMS_NORM, 1, 4),
    POINTER(rstd, J_RMS_NORM, 1, 4),
    POINTER(weight, J_RMS_NORM, 1, 4),
    POINTER(dx, J_RMS_NORM, 1, 4),
    POINTER(dweight, J_RMS_NORM, 1, 4),
    POINTER(grad, J_RESHAPE, 1, 4),
    POINTER(dx, J_RESHAPE, 1, 4),
    POINTER(grad, J_TO_PADDED, 1, 4),
    POINTER(dx, J_TO_PADDED, 1, 4),
    POINTER(grad, J_FROM_PADDED, 1, 4),
    POINTER(dx, J_FROM_PADDED, 1, 4),
    POINTER(attn, J_ATTENTION, 1, 0),
    POINTER(axis[0].offsets, J_ATTENTION, 1, 8),
    POINTER(axis[1].offsets, J_ATTENTION, 1, 8),
    POINTER(status_out, J_GELU, 2, 4),
};
enum { POINTERS = sizeof pointers / sizeof pointers[0] };

static void set_pointer(stw_jagged_args *args, size_t offset, const void *value) {
    memcpy((char *)args + offset, &value, sizeof value);
}

static char *get_pointer(const stw_jagged_args *args, size_t offset) {
    char *value;
    memcpy(&value, (const char *)args + offset, sizeof value);
    return value;
}

/* The last part of the name: "offsets" of axis[0].offsets. */
static const char *last_name(const char *name) {
    const char *dot = strrchr(name, '.');
    return dot ? dot + 1 : name;
}

static void each_pointer(void **state) {
    (void)state;
    for (int which = 0; which < J_COUNT; ++which) {
        jfixture f;
        jfixture_open(&f, (jbase)which);
        for (int n = 0; n < POINTERS; ++n) {
            const pointer *row = &pointers[n];
            char what[80];
            if (row->from != (jbase)which) continue;
            stw_jagged_args args = f.args;
            snprintf(what, sizeof what, "problem %d, null %s", which, row->name);
            if (row->need == 1) {
                set_pointer(&args, row->offset, NULL);
                text_forget();
                refused(what, jfixture_run(&f, &args), STW_E_INVALID, "jagged_bwd",
                        WORDS(last_name(row->name), "null"));
                jfixture_unchanged(&f, what, 0);
            }
            for (int off = 1; off < row->element; off += off) {
                snprintf(what, sizeof what, "problem %d, %s off by %d", which, row->name, off);
                set_pointer(&args, row->offset, get_pointer(&f.args, row->offset) + off);
                text_forget();
                refused(what, jfixture_run(&f, &args), STW_E_INVALID, "jagged_bwd",
                        WORDS(last_name(row->name), "aligned"));
                jfixture_unchanged(&f, what, 0);
            }
        }
        jfixture_still_works(&f);
        jfixture_close(&f);
    }
    no_complaints();
}

static const char *const outputs[] = {"dx", "dother", "dweight", "dbias"};

static int is_output(const pointer *p) {
    for (int n = 0; n < 4; ++n)
        if (!strcmp(p->name, outputs[n])) return 1;
    return 0;
}

/* Every output on the first element of every other tensor of its call. */
static void aliased_outputs(void **state) {
    (void)state;
    for (int which = 0; which < J_ATTENTION; ++which) {
        jfixture f;
        jfixture_open(&f, (jbase)which);
        for (int o = 0; o < POINTERS; ++o) {
            if (pointers[o].from != (jbase)which || !is_output(&pointers[o])) continue;
            for (int n = 0; n < POINTERS; ++n) {
                if (pointers[n].from != (jbase)which || n == o || strchr(pointers[n].name, '[')) continue;
                stw_jagged_args args = f.args;
                char what[80];
                snprintf(what, sizeof what, "problem %d, %s = %s", which, pointers[o].name, pointers[n].name);
                set_pointer(&args, pointers[o].offset, get_pointer(&f.args, pointers[n].offset));
                text_forget();
                refused(what, jfixture_run(&f, &args), STW_E_INVALID, "jagged_bwd",
                        WORDS(pointers[o].name, pointers[n].name));
                jfixture_unchanged(&f, what, 0);
            }
            if (f.need) { /* where the call begins to use it */
                stw_jagged_args args = f.args;
                set_pointer(&args, pointers[o].offset, (void *)(((uintptr_t)f.workspace + 255) / 256 * 256));
                text_forget();
                refused("in the workspace", jfixture_run(&f, &args), STW_E_INVALID, "jagged_bwd",
                        WORDS(pointers[o].name, "workspace"));
            }
        }
        jfixture_still_works(&f);
        jfixture_close(&f);
    }
    no_complaints();
}

static void plans_and_args(void **state) {
    (void)state;
    jfixture f;
    jfixture_open(&f, J_GELU);
    text_forget();
    refused("null plan", stw_jagged_bwd(NULL, &f.args, f.workspace, f.need, NULL), STW_E_INVALID, "jagged_bwd",
            WORDS("plan", "null"));
    refused("null args", jfixture_run(&f, NULL), STW_E_INVALID, "jagged_bwd", WORDS("args", "null"));
    const size_t first = offsetof(stw_jagged_args, cpu_threads); /* 0.1's size */
    const size_t sizes[] = {0, 1, 8, first - 8, first - 1, SIZE_MAX};
    for (size_t n = 0; n < sizeof sizes / sizeof sizes[0]; ++n) {
        stw_jagged_args args = f.args;
        args.struct_size = sizes[n];
        refused("struct_size", jfixture_run(&f, &args), STW_E_INVALID, "jagged_bwd", WORDS("struct_size"));
    }
    struct {
        stw_jagged_args args;
        uint8_t tail[8];
    } newer = {f.args, {0, 0, 0, 0, 0, 0, 0, 1}};
    newer.args.struct_size = sizeof newer;
    refused("a tail", jfixture_run(&f, &newer.args), STW_E_UNSUPPORTED, "jagged_bwd", WORDS("struct_size"));
    jfixture_unchanged(&f, "args", 0);
    newer.tail[7] = 0;
    if (jfixture_run(&f, &newer.args)) complain("a zero tail: %s", stw_last_error());
    jfixture_still_works(&f);
    jfixture_close(&f);
    no_complaints();
}

/* A plan of attention in the jagged call, and the reverse. */
static void plans_of_the_other_kind(void **state) {
    (void)state;
    jfixture f;
    stw_plan *attn = NULL;
    jfixture_open(&f, J_ATTENTION);
    assert_int_equal(stw_attn_bwd_plan(f.context, &f.attn, &attn), STW_OK);
    text_forget();
    refused("a plan of attention", stw_jagged_bwd(attn, &f.args, f.workspace, f.need, NULL), STW_E_INVALID,
            "jagged_bwd", WORDS("plan", "stw_attn_bwd_plan"));
    stw_attn_args args = f.attn_args;
    int32_t starts[4] = {1, 4, 4, 9};
    args.cu_seqlens_q = args.cu_seqlens_kv = starts;
    refused("a jagged plan", stw_attn_bwd(f.plan, &args, f.workspace, f.need, NULL), STW_E_INVALID, "attn_bwd",
            WORDS("plan", "stw_jagged_bwd_plan"));
    refused("a jagged plan", stw_attn_fwd(f.plan, &args, f.workspace, f.need, NULL), STW_E_INVALID, "attn_fwd",
            WORDS("plan", "stw_jagged_bwd_plan"));
    unsigned char mask[2 * 5 * 5 * 3];
    refused("a jagged plan", stw_dropout_mask(f.plan, &args, mask, NULL), STW_E_INVALID, "dropout_mask", WORDS("plan"));
    jfixture_unchanged(&f, "plans", 0);
    stw_plan_destroy(attn);
    jfixture_still_works(&f);
    jfixture_close(&f);
    no_complaints();
}

static void workspaces(void **state) {
    (void)state;
    int needed = 0;
    for (int which = 0; which < J_COUNT; ++which) {
        jfixture f;
        char text[32];
        jfixture_open(&f, (jbase)which);
        snprintf(text, sizeof text, "%zu", f.need);
        needed += f.need > 0;
        for (size_t off = 0; f.need && off < 256; ++off) { /* from 255 bytes in front of a multiple of 256 */
            text_forget();
            refused("one byte short",
                    stw_jagged_bwd(f.plan, &f.args, (char *)f.workspace + off, f.need - off - 1, NULL), STW_E_WORKSPACE,
                    "jagged_bwd", WORDS("workspace_size", text));
        }
        if (f.need) {
            refused("null workspace", stw_jagged_bwd(f.plan, &f.args, NULL, f.need, NULL), STW_E_WORKSPACE,
                    "jagged_bwd", WORDS("workspace", "null", text));
            refused("size 0", stw_jagged_bwd(f.plan, &f.args, f.workspace, 0, NULL), STW_E_WORKSPACE, "jagged_bwd",
                    WORDS("workspace_size", "0", text));
        }
        jfixture_unchanged(&f, "workspaces", 0);
        jfixture_still_works(&f);
        for (int off = 1; f.need && off < 256; ++off) { /* without the bytes in front: they would be skipped */
            f.workspace = (char *)f.workspace + 1;
            --f.need;
            jfixture_still_works(&f);
        }
        jfixture_close(&f);
    }
    assert_true(needed > 0); /* else nothing was tested */
    no_complaints();
}

/* Flags and arguments that contradict each other; arguments that the op has not. */
static void flags_and_arguments(void **state) {
    (void)state;
    jfixture f;
    jfixture_open(&f, J_MATMUL); /* without HAS_USED */
    stw_jagged_args args = f.args;
    int64_t lengths[4] = {0};
    text_forget();
    args.axis[0].used = lengths;
    refused("used without its flag", jfixture_run(&f, &args), STW_E_INVALID, "jagged_bwd",
            WORDS("used", "STW_JAGGED_HAS_USED"));
    args = f.args;
    args.axis[1].offsets = lengths;
    refused("offsets of a constant axis", jfixture_run(&f, &args), STW_E_INVALID, "jagged_bwd",
            WORDS("axis[1]", "ragged"));
    for (int field = 0; field < 3; ++field) { /* nor any other array of it */
        static const size_t fields[] = {offsetof(stw_jagged_args, axis[1].used),
                                        offsetof(stw_jagged_args, axis[1].offsets_host),
                                        offsetof(stw_jagged_args, axis[1].used_host)};
        args = f.args;
        set_pointer(&args, fields[field], lengths);
        refused("lengths of a constant axis", jfixture_run(&f, &args), STW_E_INVALID, "jagged_bwd",
                WORDS("axis[1]", "ragged"));
    }
    args = f.args;
    args.x_bases = lengths;
    refused("bases without their flag", jfixture_run(&f, &args), STW_E_INVALID, "jagged_bwd",
            WORDS("x_bases", "STW_JAGGED_X_BASES"));
    args = f.args;
    args.other_bases = lengths;
    refused("bases without their flag", jfixture_run(&f, &args), STW_E_INVALID, "jagged_bwd",
            WORDS("other_bases", "STW_JAGGED_OTHER_BASES"));
    stw_attn_args stray = STW_INIT(stw_attn_args);
    args = f.args;
    args.attn = &stray;
    refused("attn in another op", jfixture_run(&f, &args), STW_E_INVALID, "jagged_bwd", WORDS("attn", "attention"));
    args = f.args;
    args.axis[0].used_host = lengths;
    refused("used_host without used", jfixture_run(&f, &args), STW_E_INVALID, "jagged_bwd", WORDS("used_host"));
    jfixture_unchanged(&f, "flags", 0);
    jfixture_still_works(&f);
    jfixture_close(&f);

    jfixture_open(&f, J_GELU); /* with HAS_USED */
    args = f.args;
    args.axis[0].used_host = f.args.axis[0].used;
    refused("used_host without offsets_host", jfixture_run(&f, &args), STW_E_INVALID, "jagged_bwd",
            WORDS("axis[0]", "used_host", "offsets_host"));
    jfixture_unchanged(&f, "mirrors", 0);
    args = f.args;
    args.y = f.args.dx; /* no tensor of this op: not looked at */
    if (jfixture_run(&f, &args)) complain("a pointer that is not used: %s", stw_last_error());
    jfixture_still_works(&f);
    jfixture_close(&f);

    jfixture_open(&f, J_ATTENTION);
    stw_attn_args attn;
    int32_t starts[4] = {1, 4, 4, 9};
    args = f.args;
    args.attn = &attn;
    static const struct {
        const char *what;
        size_t offset;
    } own[] = {{"cu_seqlens_q of its own", offsetof(stw_attn_args, cu_seqlens_q)},
               {"cu_seqlens_kv of its own", offsetof(stw_attn_args, cu_seqlens_kv)},
               {"used_q of its own", offsetof(stw_attn_args, used_q)},
               {"used_kv of its own", offsetof(stw_attn_args, used_kv)}};
    for (size_t n = 0; n < sizeof own / sizeof own[0]; ++n) {
        const void *value = starts;
        attn = f.attn_args;
        memcpy((char *)&attn + own[n].offset, &value, sizeof value);
        refused(own[n].what, jfixture_run(&f, &args), STW_E_INVALID, "jagged_bwd", WORDS("attn", "null"));
    }
    attn = f.attn_args;
    attn.cpu_threads = 2;
    refused("cpu_threads of its own", jfixture_run(&f, &args), STW_E_INVALID, "jagged_bwd",
            WORDS("attn", "cpu_threads 2", "args.cpu_threads"));
    args.cpu_threads = -1;
    refused("cpu_threads", jfixture_run(&f, &args), STW_E_INVALID, "jagged_bwd", WORDS("cpu_threads", "-1", "0..1024"));
    args.cpu_threads = 0;
    attn = f.attn_args;
    attn.dq = NULL; /* found behind the lengths that become int32 */
    refused("a pointer of attn", jfixture_run(&f, &args), STW_E_INVALID, "attn_bwd", WORDS("dq", "null"));
    args = f.args;
    args.grad = f.attn_args.dout;
    refused("a gradient beside attn's", jfixture_run(&f, &args), STW_E_INVALID, "jagged_bwd", WORDS("grad", "null"));
    jfixture_unchanged(&f, "attention", 0);
    jfixture_still_works(&f);
    jfixture_close(&f);
    no_complaints();
}

/* What a subset of outputs does not need may be null, and its result is the full call's. */
static void what_may_be_null(void **state) {
    (void)state;
    static const struct {
        jbase from;
        uint32_t outputs;
        const char *null[5]; /* arguments; those of `pointers` */
    } subsets[] = {
        {J_LINEAR, STW_JAGGED_DX, {"x", "dweight", "dbias"}},
        {J_LINEAR, STW_JAGGED_DWEIGHT, {"weight", "dx", "dbias"}},
        {J_LINEAR, STW_JAGGED_DBIAS, {"x", "weight", "dx", "dweight"}},
        {J_MATMUL, STW_JAGGED_DX, {"x", "dother"}},
        {J_MATMUL, STW_JAGGED_DOTHER, {"other", "dx"}},
        {J_LAYER_NORM, STW_JAGGED_DX, {"dweight", "dbias"}},
        {J_LAYER_NORM, STW_JAGGED_DWEIGHT, {"weight", "dx", "dbias"}},
        {J_LAYER_NORM, STW_JAGGED_DBIAS, {"x", "weight", "dx", "dweight"}},
        {J_RMS_NORM, STW_JAGGED_DX, {"dweight"}},
        {J_RMS_NORM, STW_JAGGED_DWEIGHT, {"weight", "dx"}},
    };
    for (size_t n = 0; n < sizeof subsets / sizeof subsets[0]; ++n) {
        jfixture f;
        jfixture_open(&f, subsets[n].from);
        stw_jagged_desc desc = f.desc;
        stw_jagged_args args = f.args;
        stw_plan *plan = NULL;
        desc.outputs = subsets[n].outputs;
        for (int p = 0; p < POINTERS; ++p)
            for (int i = 0; i < 5 && subsets[n].null[i]; ++i)
                if (pointers[p].from == f.which && !strcmp(pointers[p].name, subsets[n].null[i]))
                    set_pointer(&args, pointers[p].offset, NULL);
        args.status_out = NULL;
        assert_int_equal(stw_jagged_bwd_plan(f.context, &desc, &plan), STW_OK);
        assert_true(stw_plan_workspace_size(plan) <= f.need);
        if (stw_jagged_bwd(plan, &args, f.workspace, f.need, NULL)) complain("subset %zu: %s", n, stw_last_error());
        for (int b = 0; b < f.memory.count; ++b) {
            const arena_block *block = &f.memory.list[b];
            const void *const wanted[] = {args.dx, args.dother, args.dweight, args.dbias};
            for (int i = 0; i < 4; ++i)
                if (wanted[i] && block->data == wanted[i] &&
                    memcmp(block->data, f.good + (size_t)b * J_BLOCK, block->bytes))
                    complain("subset %zu: %s is not that of the full call", n, block->name);
        }
        stw_plan_destroy(plan);
        jfixture_close(&f);
    }
    no_complaints();
}

/* No components, and no elements: every tensor but whole outputs may be null. */
static void nothing_at_all(void **state) {
    (void)state;
    for (int which = 0; which < J_ATTENTION; ++which) {
        jfixture f;
        jfixture_open(&f, (jbase)which);
        stw_jagged_desc desc = f.desc;
        stw_jagged_args args = f.args;
        stw_plan *plan = NULL;
        int64_t zero = 0;
        if (desc.dim == STW_DIM_COMPONENT) continue;
        desc.components = desc.axis[0].total = desc.grad_elements = 0;
        if (which == J_MATMUL_MN) desc.axis[2].total = 0;
        args.grad = args.x = args.y = NULL;
        args.dx = NULL;
        args.mean = args.rstd = NULL;
        if (which == J_MATMUL || which == J_MATMUL_MN) args.other = args.dother = NULL;
        args.grad_bases = NULL;
        args.axis[0].offsets = &zero;
        if (which == J_MATMUL_MN) args.axis[2].offsets = &zero;
        args.axis[0].used = NULL;
        desc.flags &= ~STW_JAGGED_HAS_USED;
        if (stw_jagged_bwd_plan(f.context, &desc, &plan)) {
            complain("problem %d of nothing: %s", which, stw_last_error());
        } else {
            const size_t need = stw_plan_workspace_size(plan);
            assert_true(need <= f.need);
            if (stw_jagged_bwd(plan, &args, need ? f.workspace : NULL, need, NULL))
                complain("problem %d of nothing: %s", which, stw_last_error());
            for (int n = 0; n < 2 && args.dweight; ++n) { /* 42 weights or 6, of 2 or 4 bytes; 7 or 6 of bias */
                const unsigned char *data = n ? args.dbias : args.dweight;
                const size_t bytes = which == J_LINEAR ? (n ? 14 : 84) : 24;
                for (size_t i = 0; i < J_BLOCK; ++i)
                    if (data[i] != (i < bytes ? 0 : ARENA_POISON)) {
                        complain("problem %d of nothing: byte %zu of a weight gradient", which, i);
                        break;
                    }
            }
        }
        stw_plan_destroy(plan);
        jfixture_close(&f);
    }
    no_complaints();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_pointer),     cmocka_unit_test(aliased_outputs),
        cmocka_unit_test(plans_and_args),   cmocka_unit_test(plans_of_the_other_kind),
        cmocka_unit_test(workspaces),       cmocka_unit_test(flags_and_arguments),
        cmocka_unit_test(what_may_be_null), cmocka_unit_test(nothing_at_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
