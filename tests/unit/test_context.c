/* SPDX-License-Identifier: MIT
 *
 * Choosing a backend: precedence of options over the environment, the memory-kind rules, explain. The GPU
 * backends are driven with fake drivers in tests/loader. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/extend.h"
#include "dispatch/context.h"

#include <stdlib.h>
#include <string.h>

static stw_env env_of(stw_backend backend, const char *arch) {
    stw_env env = {.backend = backend};
    strcpy(env.arch, arch);
    return env;
}

static stw_context_opts opts_of(stw_backend backend, stw_memory memory) {
    stw_context_opts opts = STW_INIT(stw_context_opts);
    opts.backend = backend;
    opts.memory = memory;
    return opts;
}

static const stw_candidate *candidate_of(const stw_choice *choice, stw_backend backend) {
    for (size_t i = 0; i < choice->count; ++i)
        if (choice->candidates[i].ops->backend == backend) return &choice->candidates[i];
    return NULL;
}

static void memory_kinds_limit_auto(void **state) {
    (void)state;
    stw_env env = env_of(STW_BACKEND_AUTO, "");
    static const struct {
        stw_memory memory;
        int gpu, cpu;
    } rows[] = {{STW_MEMORY_HOST, 0, 1}, {STW_MEMORY_DEVICE, 1, 0}, {STW_MEMORY_BUFFERS, 1, 1}};
    for (size_t i = 0; i < 3; ++i) {
        stw_context_opts opts = opts_of(STW_BACKEND_AUTO, rows[i].memory);
        stw_choice choice;
        assert_int_equal(stw_choose("t", &opts, &env, &choice), STW_OK);
        assert_int_equal(choice.automatic, 1);
        assert_int_equal(choice.candidates[choice.count - 1].ops->backend, STW_BACKEND_CPU); /* the last resort */
        assert_int_equal(candidate_of(&choice, STW_BACKEND_CPU)->allowed, rows[i].cpu);
        for (size_t c = 0; c + 1 < choice.count; ++c) {
            assert_int_equal(choice.candidates[c].allowed, rows[i].gpu);
            assert_int_equal(choice.candidates[c].reason[0] != 0, !rows[i].gpu);
        }
    }
}

static void options_win_over_the_environment(void **state) {
    (void)state;
    stw_env env = env_of(STW_BACKEND_HIP, "gfx942");
    stw_context_opts opts = opts_of(STW_BACKEND_CPU, STW_MEMORY_BUFFERS);
    stw_choice choice;
    assert_int_equal(stw_choose("t", &opts, &env, &choice), STW_OK);
    assert_int_equal(candidate_of(&choice, STW_BACKEND_CPU)->allowed, 1);
    assert_null(choice.request.forced_arch); /* the environment's arch is not the CPU's */
    opts.arch = "sm80";
    opts.backend = STW_BACKEND_AUTO;
    if (candidate_of(&choice, STW_BACKEND_CUDA)) {
        assert_int_equal(stw_choose("t", &opts, &env, &choice), STW_OK);
        assert_int_equal(candidate_of(&choice, STW_BACKEND_CUDA)->allowed, 1);
        assert_string_equal(choice.request.forced_arch, "sm80");
    }
    opts.arch = NULL;
    if (candidate_of(&choice, STW_BACKEND_HIP)) {
        assert_int_equal(stw_choose("t", &opts, &env, &choice), STW_OK);
        assert_int_equal(candidate_of(&choice, STW_BACKEND_HIP)->allowed, 1);
        assert_int_equal(candidate_of(&choice, STW_BACKEND_CPU)->allowed, 0);
        assert_string_equal(choice.request.forced_arch, "gfx942");
        opts.backend = STW_BACKEND_HIP; /* named twice alike: the arch of the environment still counts */
        assert_int_equal(stw_choose("t", &opts, &env, &choice), STW_OK);
        assert_string_equal(choice.request.forced_arch, "gfx942");
    }
}

static void named_backends_that_memory_rules_out_are_refused(void **state) {
    (void)state;
    stw_choice choice;
    stw_env cpu = env_of(STW_BACKEND_CPU, ""), none = env_of(STW_BACKEND_AUTO, "");
    stw_context_opts opts = opts_of(STW_BACKEND_AUTO, STW_MEMORY_DEVICE);
    assert_int_equal(stw_choose("t", &opts, &cpu, &choice), STW_E_INVALID);
    assert_non_null(strstr(stw_last_error(), "STERNWAY_BACKEND names cpu with memory STW_MEMORY_DEVICE"));
    opts.backend = STW_BACKEND_CPU;
    assert_int_equal(stw_choose("t", &opts, &none, &choice), STW_E_INVALID);
    assert_non_null(strstr(stw_last_error(), "opts.backend names cpu"));
    opts = opts_of(STW_BACKEND_CUDA, STW_MEMORY_HOST);
    stw_status status = stw_choose("t", &opts, &none, &choice);
    assert_true(status == STW_E_INVALID || status == STW_E_NO_IMAGE); /* the latter where CUDA is left out */
}

static void bad_options_are_refused(void **state) {
    (void)state;
    const stw_context_opts good = opts_of(STW_BACKEND_CPU, STW_MEMORY_HOST);
    struct {
        stw_context_opts opts;
        const char *text;
        stw_status status;
    } rows[8];
    size_t n = 0;
#define BAD(field, value, says, why)                                                                                   \
    rows[n].opts = good, rows[n].opts.field = value, rows[n].text = says, rows[n].status = why, ++n
    BAD(backend, (stw_backend)4, "backend 4", STW_E_INVALID);
    BAD(backend, (stw_backend)-1, "backend -1", STW_E_INVALID);
    BAD(memory, (stw_memory)0, "memory 0 is not set", STW_E_INVALID);
    BAD(memory, (stw_memory)4, "memory 4", STW_E_INVALID);
    BAD(flags, 2u, "flags 0x2", STW_E_INVALID);
    BAD(device, 1, "device 1 is set without", STW_E_INVALID);
    BAD(arch, "sm80", "arch sm80 is unknown to backend cpu: cpu", STW_E_INVALID);
    BAD(cpu_threads, 1025, "cpu_threads 1025", STW_E_INVALID);
#undef BAD
    for (size_t i = 0; i < n; ++i) {
        stw_context *context = (stw_context *)&rows[0];
        assert_int_equal(stw_context_create(&rows[i].opts, &context), rows[i].status);
        assert_ptr_equal(context, &rows[0]); /* untouched */
        assert_non_null(strstr(stw_last_error(), rows[i].text));
    }
    stw_context_opts far = good;
    stw_context *context;
    far.flags = STW_CONTEXT_HAS_DEVICE;
    far.device = 1;
    assert_int_equal(stw_context_create(&far, &context), STW_E_NO_DEVICE);
    assert_int_equal(stw_context_create(&good, NULL), STW_E_INVALID);
    assert_int_equal(stw_context_create(NULL, &context), STW_E_INVALID);
}

static void bad_environment_is_refused_by_name(void **state) {
    (void)state;
    stw_context_opts opts = opts_of(STW_BACKEND_AUTO, STW_MEMORY_HOST);
    stw_context *context = NULL;
    setenv("STERNWAY_BACKEND", "gpu", 1);
    assert_int_equal(stw_context_create(&opts, &context), STW_E_INVALID);
    assert_non_null(strstr(stw_last_error(), "STERNWAY_BACKEND=gpu"));
    setenv("STERNWAY_BACKEND", "cpu", 1);
    setenv("STERNWAY_TUNING", "/nonexistent/rules", 1);
    assert_int_equal(stw_context_create(&opts, &context), STW_E_INVALID);
    assert_null(context);
    unsetenv("STERNWAY_TUNING");
    assert_int_equal(stw_context_create(&opts, &context), STW_OK);
    assert_string_equal(stw_context_arch(context), "cpu");
    stw_context_destroy(context);
    unsetenv("STERNWAY_BACKEND");
}

static void the_environment_s_device_is_a_gpu_s(void **state) {
    (void)state;
    stw_context_opts opts = opts_of(STW_BACKEND_AUTO, STW_MEMORY_HOST);
    stw_context *context = NULL;
    setenv("STERNWAY_DEVICE", "3", 1);
    assert_int_equal(stw_context_create(&opts, &context), STW_OK);
    stw_context_destroy(context);
    unsetenv("STERNWAY_DEVICE");
    opts.flags = STW_CONTEXT_HAS_DEVICE; /* but one asked for by the caller is meant */
    opts.device = 3;
    assert_int_equal(stw_context_create(&opts, &context), STW_E_NO_DEVICE);
    assert_non_null(strstr(stw_last_error(), "device 3 is asked for and the CPU is device 0"));
}

static void success_leaves_the_last_error(void **state) {
    (void)state;
    stw_context_opts opts = opts_of(STW_BACKEND_AUTO, STW_MEMORY_BUFFERS);
    stw_context *context = NULL;
    assert_int_equal(stw_context_create(NULL, &context), STW_E_INVALID);
    char before[1024];
    strcpy(before, stw_last_error());
    assert_int_equal(stw_context_create(&opts, &context), STW_OK); /* GPU backends fail on the way */
    assert_string_equal(stw_last_error(), before);
    stw_context_destroy(context);
}

static void buffers_streams_and_copies(void **state) {
    (void)state;
    stw_context_opts opts = opts_of(STW_BACKEND_CPU, STW_MEMORY_BUFFERS);
    stw_context *context;
    assert_int_equal(stw_context_create(&opts, &context), STW_OK);
    void *buffer = NULL, *empty = NULL;
    stw_stream stream = NULL;
    char in[300], out[300] = {0};
    memset(in, 7, sizeof in);
    assert_int_equal(stw_buffer_alloc(context, sizeof in, &buffer), STW_OK);
    assert_int_equal((uintptr_t)buffer % 256, 0);
    assert_int_equal(stw_buffer_alloc(context, 0, &empty), STW_OK);
    assert_non_null(empty);
    assert_int_equal(stw_stream_create(context, &stream), STW_OK);
    assert_int_equal(stw_copy(context, buffer, in, sizeof in, stream), STW_OK);
    assert_int_equal(stw_copy(context, out, buffer, sizeof in, stream), STW_OK);
    assert_int_equal(stw_stream_synchronize(context, stream), STW_OK);
    assert_memory_equal(in, out, sizeof in);
    assert_int_equal(stw_copy(context, NULL, NULL, 0, stream), STW_OK);
    assert_int_equal(stw_copy(context, NULL, in, 1, stream), STW_E_INVALID);
    assert_int_equal(stw_copy(NULL, out, in, 1, stream), STW_E_INVALID);
    void *untouched = in;
    assert_int_equal(stw_buffer_alloc(context, SIZE_MAX, &untouched), STW_E_INVALID);
    assert_int_equal(stw_buffer_alloc(context, PTRDIFF_MAX, &untouched), STW_E_NO_MEMORY);
    assert_ptr_equal(untouched, in);
    assert_int_equal(stw_stream_destroy(context, stream), STW_OK);
    assert_int_equal(stw_buffer_free(context, buffer), STW_OK);
    assert_int_equal(stw_buffer_free(context, empty), STW_OK);
    assert_int_equal(stw_buffer_free(context, NULL), STW_OK);
    stw_context_destroy(context);
    stw_context_destroy(NULL);
    assert_string_equal(stw_context_arch(NULL), "");
}

static void a_plan_keeps_its_context(void **state) {
    (void)state;
    stw_context_opts opts = opts_of(STW_BACKEND_CPU, STW_MEMORY_HOST);
    stw_context *context;
    stw_plan *plan;
    assert_int_equal(stw_context_create(&opts, &context), STW_OK);
    stw_attn_desc desc = STW_INIT(stw_attn_desc);
    desc.dtype = STW_F32;
    desc.batch = desc.heads_q = desc.heads_kv = 1;
    desc.head_dim_qk = desc.head_dim_v = 8;
    desc.max_seq_q = desc.max_seq_kv = 3;
    assert_int_equal(stw_layout_bshd(&desc), STW_OK);
    assert_int_equal(stw_attn_bwd_plan(context, &desc, &plan), STW_OK);
    stw_context_destroy(context);
    char text[2000];
    size_t needed;
    assert_int_equal(stw_plan_describe(plan, text, sizeof text, &needed), STW_OK);
    assert_int_equal(needed, strlen(text) + 1);
    assert_non_null(strstr(text, "variant: cpu_"));
    assert_int_equal(stw_plan_describe(plan, text, 10, &needed), STW_OK);
    assert_int_equal(strlen(text), 9); /* cut, and the size told */
    assert_true(needed > 10);
    assert_int_equal(stw_plan_describe(plan, NULL, 0, &needed), STW_OK);
    stw_plan_destroy(plan);
}

static void explain_names_every_backend(void **state) {
    (void)state;
    stw_context_opts opts = opts_of(STW_BACKEND_AUTO, STW_MEMORY_HOST);
    stw_attn_desc desc = STW_INIT(stw_attn_desc);
    desc.dtype = STW_BF16;
    desc.batch = 1;
    desc.heads_q = 12;
    desc.heads_kv = 4;
    desc.head_dim_qk = desc.head_dim_v = 64;
    desc.max_seq_q = desc.max_seq_kv = 3;
    char text[8000];
    assert_int_equal(stw_layout_bshd(&desc), STW_OK);
    desc.heads_kv = 5;
    assert_int_equal(stw_explain_attn(&opts, &desc, text, sizeof text, NULL), STW_OK);
    assert_non_null(strstr(text, "attn_bwd: heads_q 12 is not a multiple of heads_kv 5"));
    for (size_t i = 0; i < stw_backend_count; ++i)
        assert_non_null(strstr(text, stw_backend_name(stw_backends[i]->backend)));
    desc.heads_kv = 4;
    assert_int_equal(stw_layout_bshd(&desc), STW_OK);
    assert_int_equal(stw_explain_attn(&opts, &desc, text, sizeof text, NULL), STW_OK);
    assert_non_null(strstr(text, "cpu: chosen"));
    opts.memory = STW_MEMORY_DEVICE;
    opts.backend = STW_BACKEND_CPU;
    assert_int_equal(stw_explain_attn(&opts, &desc, text, sizeof text, NULL), STW_OK);
    assert_non_null(strstr(text, "no backend: "));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_kinds_limit_auto),
        cmocka_unit_test(options_win_over_the_environment),
        cmocka_unit_test(named_backends_that_memory_rules_out_are_refused),
        cmocka_unit_test(bad_options_are_refused),
        cmocka_unit_test(bad_environment_is_refused_by_name),
        cmocka_unit_test(the_environment_s_device_is_a_gpu_s),
        cmocka_unit_test(success_leaves_the_last_error),
        cmocka_unit_test(buffers_streams_and_copies),
        cmocka_unit_test(a_plan_keeps_its_context),
        cmocka_unit_test(explain_names_every_backend),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
