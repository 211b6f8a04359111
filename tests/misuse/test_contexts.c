/* SPDX-License-Identifier: MIT
 *
 * Misuse of contexts, devices, buffers, streams, copies, and of the calls that write a text. */
#include "misuse.h"

#include <stdlib.h>
#include <string.h>

#define OPT(field, value) SET_IN(stw_context_opts, field, value)

static const struct {
    const char *what;
    stw_status status;
    const char *words[4];
    set sets[3];
} rows[] = {
    {"memory not chosen", STW_E_INVALID, {"memory", "0"}, {OPT(memory, 0)}},
    {"memory out of range", STW_E_INVALID, {"memory", "4"}, {OPT(memory, 4)}},
    {"backend out of range", STW_E_INVALID, {"backend", "4"}, {OPT(backend, 4)}},
    {"backend negative", STW_E_INVALID, {"backend"}, {OPT(backend, -1)}},
    {"unknown flags", STW_E_INVALID, {"flags", "0x2"}, {OPT(flags, 2)}},
    {"threads negative", STW_E_INVALID, {"cpu_threads", "-1"}, {OPT(cpu_threads, -1)}},
    {"threads above 1024", STW_E_INVALID, {"cpu_threads", "1025", "1024"}, {OPT(cpu_threads, 1025)}},
    {"CPU with device memory", STW_E_INVALID, {"memory"}, {OPT(memory, STW_MEMORY_DEVICE)}},
    {"CUDA with host memory", STW_E_INVALID, {"memory"}, {OPT(backend, STW_BACKEND_CUDA)}},
    {"HIP with host memory", STW_E_INVALID, {"memory"}, {OPT(backend, STW_BACKEND_HIP)}},
    {"struct_size 0", STW_E_INVALID, {"struct_size", "0"}, {OPT(struct_size, 0)}},
    {"struct_size short", STW_E_INVALID, {"struct_size"}, {OPT(struct_size, sizeof(stw_context_opts) - 4)}},
    {"struct_size garbage", STW_E_INVALID, {"struct_size"}, {OPT(struct_size, SIZE_MAX)}},
};

static stw_context_opts good_opts(void) {
    stw_context_opts opts = STW_INIT(stw_context_opts);
    opts.backend = STW_BACKEND_CPU;
    opts.memory = STW_MEMORY_HOST;
    return opts;
}

static void options(void **state) {
    (void)state;
    stw_context *const untouched = (stw_context *)(uintptr_t)0xA5A5;
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; ++r) {
        stw_context_opts opts = good_opts();
        apply(&opts, rows[r].sets, 3);
        stw_context *context = untouched;
        text_forget();
        refused(rows[r].what, stw_context_create(&opts, &context), rows[r].status, "context_create", rows[r].words);
        if (context != untouched) complain("%s: context_out was written", rows[r].what);
    }
    stw_context_opts opts = good_opts();
    stw_context *context = untouched;
    opts.arch = "sm99";
    text_forget();
    refused("an unknown arch", stw_context_create(&opts, &context), STW_E_INVALID, "context_create",
            WORDS("arch", "sm99", "cpu"));
    opts.backend = STW_BACKEND_AUTO; /* then every backend's are named */
    refused("an arch of no backend", stw_context_create(&opts, &context), STW_E_INVALID, "context_create",
            WORDS("arch", "sm99", "sm90", "gfx942"));
    opts = good_opts();
    opts.flags = STW_CONTEXT_HAS_DEVICE;
    opts.device = -1;
    refused("a negative device", stw_context_create(&opts, &context), STW_E_INVALID, "context_create",
            WORDS("device", "-1"));
    opts.device = 1; /* there is one CPU device, 0 */
    refused("a second CPU", stw_context_create(&opts, &context), STW_E_NO_DEVICE, "context_create",
            WORDS("device", "1"));
    struct {
        stw_context_opts opts;
        uint8_t tail[8];
    } newer = {good_opts(), {1}};
    newer.opts.struct_size = sizeof newer;
    refused("a tail", stw_context_create(&newer.opts, &context), STW_E_UNSUPPORTED, "context_create",
            WORDS("struct_size"));
    refused("null opts", stw_context_create(NULL, &context), STW_E_INVALID, "context_create", WORDS("opts", "null"));
    refused("null context_out", stw_context_create(&newer.opts, NULL), STW_E_INVALID, "context_create",
            WORDS("context_out", "null"));
    assert_ptr_equal(context, untouched);
    stw_context_destroy(NULL);
    stw_plan_destroy(NULL);
    opts = good_opts();
    assert_int_equal(stw_context_create(&opts, &context), STW_OK);
    assert_string_equal(stw_context_arch(context), "cpu");
    stw_context_destroy(context);
    no_complaints();
}

static void environment(void **state) {
    (void)state;
    static const struct {
        const char *name, *value;
    } bad[] = {
        {"STERNWAY_BACKEND", "gpu"},      {"STERNWAY_BACKEND", "cuda:"},
        {"STERNWAY_BACKEND", "cpu:sm80"}, {"STERNWAY_BACKEND", "cpu:cpu2"},
        {"STERNWAY_DEVICE", "-1"},        {"STERNWAY_DEVICE", "0x"},
        {"STERNWAY_DETERMINISTIC", "2"},  {"STERNWAY_DETERMINISTIC", "yes"},
        {"STERNWAY_CPU_THREADS", "-1"},   {"STERNWAY_CPU_THREADS", "1025"},
        {"STERNWAY_CPU_THREADS", "many"}, {"STERNWAY_LOG", "loud"},
        {"STERNWAY_SMEM_MAX", "-64"},     {"STERNWAY_TUNING", "/nonexistent/rows"},
        {"STERNWAY_VARIANT", "no_such"},
    };
    for (size_t n = 0; n < sizeof bad / sizeof bad[0]; ++n) {
        stw_context_opts opts = STW_INIT(stw_context_opts);
        opts.memory = STW_MEMORY_HOST;
        stw_context *context = NULL;
        stw_plan *plan = NULL;
        setenv(bad[n].name, bad[n].value, 1);
        text_forget();
        stw_status status = stw_context_create(&opts, &context);
        /* the table's variants are known to the plan call only */
        const stw_attn_desc desc = base_desc(DENSE);
        if (!status) status = stw_attn_bwd_plan(context, &desc, &plan);
        unsetenv(bad[n].name);
        refused(bad[n].name, status, STW_E_INVALID, "", WORDS(bad[n].name, bad[n].value));
        stw_plan_destroy(plan);
        stw_context_destroy(context);
    }
    no_complaints();
}

static void memory_and_streams(void **state) {
    (void)state;
    fixture f;
    fixture_open(&f, DENSE);
    void *const untouched = (void *)(uintptr_t)0xA5A5, *pointer = untouched;
    text_forget();
    refused("null context", stw_buffer_alloc(NULL, 8, &pointer), STW_E_INVALID, "buffer_alloc",
            WORDS("context", "null"));
    refused("null pointer_out", stw_buffer_alloc(f.context, 8, NULL), STW_E_INVALID, "buffer_alloc",
            WORDS("pointer_out", "null"));
    refused("too much", stw_buffer_alloc(f.context, SIZE_MAX / 2, &pointer), STW_E_NO_MEMORY, "buffer_alloc",
            WORDS("9223372036854775807"));
    refused("no size at all", stw_buffer_alloc(f.context, SIZE_MAX - 3, &pointer), STW_E_INVALID, "buffer_alloc",
            WORDS("18446744073709551612"));
    assert_ptr_equal(pointer, untouched);
    refused("null context", stw_buffer_free(NULL, f.arena), STW_E_INVALID, "buffer_free", WORDS("context", "null"));
    char a[8] = "unmoved", b[8] = "kept";
    refused("null context", stw_copy(NULL, a, b, 8, NULL), STW_E_INVALID, "copy", WORDS("context", "null"));
    refused("null to", stw_copy(f.context, NULL, b, 8, NULL), STW_E_INVALID, "copy", WORDS("to", "null"));
    refused("null from", stw_copy(f.context, a, NULL, 8, NULL), STW_E_INVALID, "copy", WORDS("from", "null"));
    assert_string_equal(a, "unmoved");
    assert_int_equal(stw_copy(f.context, NULL, NULL, 0, NULL), STW_OK);
    stw_stream stream = untouched;
    refused("null context", stw_stream_create(NULL, &stream), STW_E_INVALID, "stream_create", WORDS("context", "null"));
    refused("null stream_out", stw_stream_create(f.context, NULL), STW_E_INVALID, "stream_create",
            WORDS("stream_out", "null"));
    assert_ptr_equal(stream, untouched);
    refused("null context", stw_stream_synchronize(NULL, NULL), STW_E_INVALID, "stream_synchronize",
            WORDS("context", "null"));
    refused("null context", stw_stream_destroy(NULL, NULL), STW_E_INVALID, "stream_destroy", WORDS("context", "null"));
    assert_int_equal(stw_buffer_free(f.context, NULL), STW_OK);
    assert_int_equal(stw_buffer_alloc(f.context, 0, &pointer), STW_OK);
    assert_non_null(pointer);
    assert_true((uintptr_t)pointer % 256 == 0);
    assert_int_equal(stw_buffer_free(f.context, pointer), STW_OK);
    no_complaints();
    fixture_still_works(&f);
    fixture_close(&f);
}

static void devices(void **state) {
    (void)state;
    size_t count = 77;
    text_forget();
    refused("null infos", stw_devices(NULL, 3, &count), STW_E_INVALID, "devices", WORDS("infos", "null"));
    assert_int_equal(count, 77);
    assert_int_equal(stw_devices(NULL, 0, &count), STW_OK);
    assert_true(count >= 1);
    stw_device_info infos[2] = {STW_INIT(stw_device_info), STW_INIT(stw_device_info)};
    infos[0].struct_size = 4;
    refused("struct_size", stw_devices(infos, 1, &count), STW_E_INVALID, "devices", WORDS("struct_size", "4"));
    infos[0].struct_size = sizeof infos[0];
    infos[1].struct_size = 8; /* all alike */
    refused("struct_size", stw_devices(infos, 2, &count), STW_E_INVALID, "devices", WORDS("struct_size", "8"));
    no_complaints();
}

static void images(void **state) {
    (void)state;
    size_t count = 77;
    stw_image_info infos[64];
    for (size_t n = 0; n < 64; ++n) infos[n] = STW_INIT(stw_image_info);
    text_forget();
    refused("null count_out", stw_embedded_images(infos, 1, NULL), STW_E_INVALID, "embedded_images",
            WORDS("count_out", "null"));
    refused("null infos", stw_embedded_images(NULL, 3, &count), STW_E_INVALID, "embedded_images",
            WORDS("infos", "null"));
    infos[0].struct_size = 4;
    refused("struct_size", stw_embedded_images(infos, 1, &count), STW_E_INVALID, "embedded_images",
            WORDS("struct_size", "4"));
    infos[0].struct_size = sizeof infos[0];
    assert_int_equal(count, 77);
    assert_string_equal(infos[0].arch, "");
    no_complaints();
    assert_int_equal(stw_embedded_images(NULL, 0, &count), STW_OK);
    assert_true(count < 64);
    size_t again = 77; /* room for all but one: the last is not written, and the count is that of all */
    assert_int_equal(stw_embedded_images(infos, count ? count - 1 : 0, &again), STW_OK);
    assert_int_equal(again, count);
    for (size_t n = 0; n < count; ++n) assert_int_equal(infos[n].arch[0] != 0, n + 1 < count);
    assert_int_equal(stw_embedded_images(infos, 64, &again), STW_OK);
    assert_int_equal(again, count);
    size_t jagged = 0;
    for (size_t n = 0; n < 64; ++n) {
        assert_int_equal(infos[n].arch[0] != 0, n < count);
        jagged += !strcmp(infos[n].ops, "jagged");
        if (n < count) assert_true(infos[n].intact);
    }
    assert_int_equal(jagged != 0, count != 0); /* every arch has images of both */
}

static void texts(void **state) {
    (void)state;
    fixture f;
    fixture_open(&f, DENSE);
    char text[16] = "unwritten";
    size_t needed = 77;
    const stw_context_opts opts = good_opts();
    text_forget();
    refused("null plan", stw_plan_describe(NULL, text, sizeof text, &needed), STW_E_INVALID, "plan_describe",
            WORDS("plan", "null"));
    refused("null text", stw_plan_describe(f.bwd, NULL, 5, &needed), STW_E_INVALID, "plan_describe",
            WORDS("text", "null"));
    refused("null opts", stw_explain_attn(NULL, &f.desc, text, sizeof text, &needed), STW_E_INVALID, "explain_attn",
            WORDS("opts", "null"));
    refused("null desc", stw_explain_attn(&opts, NULL, text, sizeof text, &needed), STW_E_INVALID, "explain_attn",
            WORDS("desc", "null"));
    refused("null text", stw_explain_attn(&opts, &f.desc, NULL, 5, &needed), STW_E_INVALID, "explain_attn",
            WORDS("text", "null"));
    refused("null opts", stw_explain_attn_fwd(NULL, &f.desc, text, sizeof text, &needed), STW_E_INVALID,
            "explain_attn_fwd", WORDS("opts", "null"));
    refused("null desc", stw_explain_attn_fwd(&opts, NULL, text, sizeof text, &needed), STW_E_INVALID,
            "explain_attn_fwd", WORDS("desc", "null"));
    refused("null text", stw_explain_attn_fwd(&opts, &f.desc, NULL, 5, &needed), STW_E_INVALID, "explain_attn_fwd",
            WORDS("text", "null"));
    stw_jagged_desc jagged = STW_INIT(stw_jagged_desc);
    refused("null opts", stw_explain_jagged(NULL, &jagged, text, sizeof text, &needed), STW_E_INVALID, "explain_jagged",
            WORDS("opts", "null"));
    refused("null desc", stw_explain_jagged(&opts, NULL, text, sizeof text, &needed), STW_E_INVALID, "explain_jagged",
            WORDS("desc", "null"));
    refused("null text", stw_explain_jagged(&opts, &jagged, NULL, 5, &needed), STW_E_INVALID, "explain_jagged",
            WORDS("text", "null"));
    assert_string_equal(text, "unwritten");
    assert_int_equal(needed, 77);
    assert_int_equal(stw_plan_describe(f.bwd, NULL, 0, &needed), STW_OK);
    assert_true(needed > 16);
    assert_int_equal(stw_plan_describe(f.bwd, text, sizeof text, NULL), STW_OK); /* cut, and ended */
    assert_int_equal(strlen(text), sizeof text - 1);

    stw_attn_desc refused_desc = f.desc; /* a refusal of the problem is part of the text */
    refused_desc.heads_kv = 3;
    char full[8192];
    assert_int_equal(stw_explain_attn(&opts, &refused_desc, full, sizeof full, NULL), STW_OK);
    assert_non_null(strstr(full, "heads_kv 3"));
    assert_int_equal(stw_explain_attn(&opts, &f.desc, NULL, 0, &needed), STW_OK); /* the size alone */
    assert_int_equal(stw_explain_attn(&opts, &f.desc, full, sizeof full, NULL), STW_OK);
    assert_int_equal(needed, strlen(full) + 1);
    assert_non_null(strstr(full, "\nproblem: attn_bwd:"));
    assert_int_equal(stw_explain_attn_fwd(&opts, &f.desc, NULL, 0, &needed), STW_OK);
    assert_int_equal(stw_explain_attn_fwd(&opts, &f.desc, full, sizeof full, NULL), STW_OK);
    assert_int_equal(needed, strlen(full) + 1);
    assert_non_null(strstr(full, "\nproblem: attn_fwd:"));
    assert_int_equal(stw_explain_jagged(&opts, &jagged, NULL, 0, &needed), STW_OK);
    assert_int_equal(stw_explain_jagged(&opts, &jagged, full, sizeof full, NULL), STW_OK);
    assert_int_equal(needed, strlen(full) + 1);
    assert_non_null(strstr(full, "op 0")); /* a refusal of the problem is part of this text too */
    setenv("STERNWAY_BACKEND", "gpu", 1);  /* and so is one of the environment */
    assert_int_equal(stw_explain_attn(&opts, &f.desc, full, sizeof full, NULL), STW_OK);
    unsetenv("STERNWAY_BACKEND");
    assert_non_null(strstr(full, "no backend: "));
    assert_non_null(strstr(full, "STERNWAY_BACKEND=gpu"));
    assert_int_equal(stw_plan_workspace_size(NULL), 0);
    assert_string_equal(stw_status_name((stw_status)99), "STW_E_?");
    assert_string_equal(stw_status_name((stw_status)-1), "STW_E_?");
    no_complaints();
    fixture_close(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(options), cmocka_unit_test(environment), cmocka_unit_test(memory_and_streams),
        cmocka_unit_test(devices), cmocka_unit_test(images),      cmocka_unit_test(texts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
