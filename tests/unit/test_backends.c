/* SPDX-License-Identifier: MIT
 *
 * Dispatch over a table of backends that is this program's own: a GPU backend made here, which opens, fails
 * and refuses as told, in front of the CPU's; no HIP. And what contexts and plans do when memory runs out:
 * the linker sends the library's malloc and calloc here. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/extend.h"
#include "dispatch/plan.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- memory that runs out, and a broken table ---- */

static int until_failure; /* the allocation of this number fails, counted from 1; 0: none */
static const stw_attn_table *table_instead;

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
const stw_attn_table *__real_stw_attn_table_find(const char *arch);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
const stw_attn_table *__wrap_stw_attn_table_find(const char *arch);

static int fails_now(void) { return until_failure && --until_failure == 0; }

void *__wrap_malloc(size_t bytes) { return fails_now() ? NULL : __real_malloc(bytes); }

void *__wrap_calloc(size_t count, size_t bytes) { return fails_now() ? NULL : __real_calloc(count, bytes); }

const stw_attn_table *__wrap_stw_attn_table_find(const char *arch) {
    return table_instead ? table_instead : __real_stw_attn_table_find(arch);
}

/* ---- a log that another thread writes to ---- */

static int log_is_busy;

int __real_pthread_mutex_trylock(pthread_mutex_t *lock);
int __wrap_pthread_mutex_trylock(pthread_mutex_t *lock);

int __wrap_pthread_mutex_trylock(pthread_mutex_t *lock) {
    return log_is_busy ? EBUSY : __real_pthread_mutex_trylock(lock);
}

/* ---- the backend ---- */

static stw_status open_status; /* what the next open gives */
static int opened;             /* devices that are open */
static int refuse_unaligned, refuse_all;
static const char *refused_variant; /* alone, to unaligned tensors */
static const char *prepare_note;
static size_t prepare_workspace;
static stw_status lengths_status;

/* What the last run call got. */
static int runs, conversions;
static void *run_workspace;
static stw_attn_params run_params;

static stw_status gpu_open(const stw_open_request *request, stw_device *device_out) {
    (void)request;
    if (open_status) return stw_fail(open_status, "gpu: refused by the test");
    *device_out = (stw_device){.arch = stw_arch_find(STW_BACKEND_CUDA, "sm80"), .smem_max = 163 * 1024};
    strcpy(device_out->name, "a GPU of the test");
    ++opened;
    return STW_OK;
}

static void gpu_close(stw_device *device) {
    (void)device;
    --opened;
}

static const char *gpu_refusal(const stw_device *device, const stw_attn_work *work, const stw_variant *variant) {
    (void)device;
    if (refuse_all) return "refused by the test";
    if (work->unaligned && (refuse_unaligned || (refused_variant && !strcmp(variant->id, refused_variant))))
        return "unaligned tensors are refused by the test";
    return NULL;
}

static stw_status gpu_prepare(const stw_device *device, stw_attn_work *work) {
    (void)device;
    if (prepare_note) snprintf(work->note, sizeof work->note, "%s", prepare_note);
    work->workspace_size = prepare_workspace;
    return STW_OK;
}

static stw_status gpu_bwd(const stw_device *device, const stw_attn_work *work, const stw_attn_params *params,
                          void *workspace, stw_stream stream, uint32_t cpu_threads) {
    (void)cpu_threads;
    (void)device, (void)work, (void)stream;
    ++runs;
    run_workspace = workspace;
    run_params = *params;
    return STW_OK;
}

static stw_status gpu_jagged_prepare(const stw_device *device, stw_jagged_work *work) {
    (void)device;
    strcpy(work->variant, "jagged kernels of the test");
    return STW_OK;
}

static stw_status gpu_jagged_bwd(const stw_device *device, const stw_jagged_work *work, const stw_jagged_params *params,
                                 void *workspace, stw_stream stream, uint32_t cpu_threads) {
    (void)cpu_threads;
    (void)device, (void)work, (void)params, (void)workspace, (void)stream;
    ++conversions;
    return lengths_status ? stw_fail(lengths_status, "gpu: the lengths are refused by the test") : STW_OK;
}

static stw_backend_ops gpu = {.backend = STW_BACKEND_CUDA,
                              .open = gpu_open,
                              .close = gpu_close,
                              .variant_refusal = gpu_refusal,
                              .attn_prepare = gpu_prepare,
                              .attn_bwd = gpu_bwd,
                              .jagged_prepare = gpu_jagged_prepare,
                              .jagged_bwd = gpu_jagged_bwd};

const stw_backend_ops *const stw_backends[] = {&gpu, &stw_cpu_backend};
const size_t stw_backend_count = 2;

static int prepare(void **state) {
    (void)state;
    open_status = lengths_status = STW_OK;
    refuse_unaligned = refuse_all = runs = conversions = until_failure = 0;
    refused_variant = prepare_note = NULL;
    prepare_workspace = 0;
    table_instead = NULL;
    gpu.jagged_prepare = gpu_jagged_prepare;
    static const char *const names[] = {"STERNWAY_BACKEND", "STERNWAY_TUNING", "STERNWAY_SMEM_MAX", "STERNWAY_LOG",
                                        "STERNWAY_VARIANT"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; ++i) unsetenv(names[i]);
    return 0;
}

static int finish(void **state) {
    const int left = opened; /* none: every device was closed */
    opened = 0;
    return prepare(state) || left;
}

static stw_context_opts opts_of(stw_backend backend, stw_memory memory) {
    stw_context_opts opts = STW_INIT(stw_context_opts);
    opts.backend = backend;
    opts.memory = memory;
    opts.cpu_threads = 1;
    return opts;
}

static stw_context *context_of(stw_backend backend) {
    stw_context_opts opts = opts_of(backend, backend == STW_BACKEND_CPU ? STW_MEMORY_HOST : STW_MEMORY_DEVICE);
    stw_context *context = NULL;
    assert_int_equal(stw_context_create(&opts, &context), STW_OK);
    return context;
}

static stw_attn_desc attn_desc(void) {
    stw_attn_desc desc = STW_INIT(stw_attn_desc);
    desc.dtype = STW_F16;
    desc.batch = 2;
    desc.heads_q = desc.heads_kv = 1;
    desc.head_dim_qk = desc.head_dim_v = 64;
    desc.max_seq_q = desc.max_seq_kv = 300;
    assert_int_equal(stw_layout_bshd(&desc), STW_OK);
    return desc;
}

static stw_jagged_desc gelu_desc(void) {
    stw_jagged_desc desc = STW_INIT(stw_jagged_desc);
    desc.op = STW_JAGGED_GELU;
    desc.dtype = STW_F32;
    desc.index_dtype = STW_I64;
    desc.components = 3;
    desc.axis[0].size = 5;
    desc.axis[0].total = 10;
    desc.inner = 6;
    return desc;
}

/* Nested q, k, v of so many components; `attn` is where its own descriptor goes. */
static stw_jagged_desc nested_desc(stw_attn_desc *attn, int64_t components, stw_dtype index_dtype) {
    stw_jagged_desc desc = STW_INIT(stw_jagged_desc);
    *attn = attn_desc();
    attn->batch = components;
    attn->total_q = attn->total_kv = 10;
    assert_int_equal(stw_layout_thd(attn), STW_OK);
    desc.op = STW_JAGGED_ATTENTION;
    desc.index_dtype = index_dtype;
    desc.components = components;
    desc.attn = attn;
    return desc;
}

/* ---- which backend ---- */

static void names(void **state) {
    (void)state;
    assert_string_equal(stw_backend_name(STW_BACKEND_AUTO), "auto");
    assert_string_equal(stw_backend_name(STW_BACKEND_CPU), "cpu");
    assert_string_equal(stw_backend_name(STW_BACKEND_CUDA), "cuda");
    assert_string_equal(stw_backend_name(STW_BACKEND_HIP), "hip");
    assert_string_equal(stw_backend_name((stw_backend)9), "?");
}

static void a_backend_that_the_build_leaves_out(void **state) {
    (void)state;
    stw_context *const untouched = (stw_context *)&gpu, *context = untouched;
    stw_context_opts opts = opts_of(STW_BACKEND_HIP, STW_MEMORY_BUFFERS);
    assert_int_equal(stw_context_create(&opts, &context), STW_E_NO_IMAGE);
    assert_string_equal(stw_last_error(), "context_create: opts.backend names hip, which this build leaves out "
                                          "(STERNWAY_HIP=OFF)");
    opts.backend = STW_BACKEND_AUTO;
    opts.arch = "gfx942";
    assert_int_equal(stw_context_create(&opts, &context), STW_E_NO_IMAGE);
    assert_string_equal(stw_last_error(), "context_create: opts.arch names hip, which this build leaves out "
                                          "(STERNWAY_HIP=OFF)");
    opts.arch = NULL;
    setenv("STERNWAY_BACKEND", "hip", 1);
    assert_int_equal(stw_context_create(&opts, &context), STW_E_NO_IMAGE);
    assert_string_equal(stw_last_error(), "context_create: STERNWAY_BACKEND names hip, which this build leaves out "
                                          "(STERNWAY_HIP=OFF)");
    assert_ptr_equal(context, untouched);
}

/* Without a backend by name the CPU stands in for a GPU that fails to open, where it can read the tensors;
 * else the GPU's own failure is told. */
static void failures_to_open(void **state) {
    (void)state;
    static const stw_status failures[] = {STW_E_NO_DRIVER, STW_E_NO_DEVICE, STW_E_NO_IMAGE, STW_E_UNSUPPORTED};
    for (size_t i = 0; i < sizeof failures / sizeof failures[0]; ++i) {
        stw_context *context = NULL;
        stw_context_opts opts = opts_of(STW_BACKEND_AUTO, STW_MEMORY_BUFFERS);
        open_status = failures[i];
        assert_int_equal(stw_context_create(&opts, &context), STW_OK);
        assert_string_equal(stw_context_arch(context), "cpu");
        stw_context_destroy(context);
        context = NULL;
        opts.memory = STW_MEMORY_DEVICE;
        assert_int_equal(stw_context_create(&opts, &context), failures[i]);
        assert_non_null(strstr(stw_last_error(), "no backend is usable: gpu: refused by the test; cpu: "));
        assert_null(context);
    }
    static const stw_status final[] = {STW_E_NO_MEMORY, STW_E_INVALID}; /* no other backend is tried */
    for (size_t i = 0; i < 2; ++i) {
        stw_context *context = NULL;
        const stw_context_opts opts = opts_of(STW_BACKEND_AUTO, STW_MEMORY_BUFFERS);
        open_status = final[i];
        assert_int_equal(stw_context_create(&opts, &context), final[i]);
        assert_string_equal(stw_last_error(), "gpu: refused by the test");
        assert_null(context);
    }
}

/* A GPU refuses f64 at plan time, also one that `auto` chose: nothing falls back on its own. */
static void f64_is_the_cpu_s_alone(void **state) {
    (void)state;
    stw_attn_desc desc = attn_desc();
    desc.dtype = STW_F64;
    for (int automatic = 0; automatic < 2; ++automatic) {
        stw_plan *plan = NULL;
        stw_context *context = context_of(automatic ? STW_BACKEND_AUTO : STW_BACKEND_CUDA);
        assert_int_equal(stw_attn_bwd_plan(context, &desc, &plan), STW_E_UNSUPPORTED);
        assert_string_equal(stw_last_error(), "attn_bwd: dtype f64: backend cuda takes f16, bf16, f32; the "
                                              "CPU backend takes f64");
        assert_int_equal(stw_attn_fwd_plan(context, &desc, &plan), STW_E_UNSUPPORTED);
        assert_null(plan);
        stw_context_destroy(context);
    }
    stw_plan *plan = NULL;
    stw_context *context = context_of(STW_BACKEND_CPU);
    assert_int_equal(stw_attn_bwd_plan(context, &desc, &plan), STW_OK);
    stw_plan_destroy(plan);
    stw_context_destroy(context);
}

static void empty_arch_and_device_0_are_the_defaults(void **state) {
    (void)state;
    stw_context *context = NULL;
    stw_context_opts opts = opts_of(STW_BACKEND_CPU, STW_MEMORY_HOST);
    opts.arch = "";
    opts.flags = STW_CONTEXT_HAS_DEVICE; /* the CPU's only device, by number */
    assert_int_equal(stw_context_create(&opts, &context), STW_OK);
    assert_string_equal(stw_context_arch(context), "cpu");
    stw_context_destroy(context);
}

/* STERNWAY_SMEM_MAX takes shared memory away and gives none. */
static void less_shared_memory(void **state) {
    (void)state;
    static const struct {
        const char *kilobytes;
        uint32_t bytes;
    } rows[] = {{"100", 100 * 1024}, {"163", 163 * 1024}, {"1024", 163 * 1024}};
    const stw_attn_desc desc = attn_desc();
    for (size_t i = 0; i < 3; ++i) {
        setenv("STERNWAY_SMEM_MAX", rows[i].kilobytes, 1);
        stw_context *context = context_of(STW_BACKEND_CUDA);
        stw_plan *plan = NULL;
        assert_int_equal(context->device.smem_max, rows[i].bytes);
        assert_int_equal(stw_attn_bwd_plan(context, &desc, &plan), STW_OK);
        assert_true(plan->work.variant->smem_kb * 1024 <= rows[i].bytes);
        stw_plan_destroy(plan);
        stw_context_destroy(context);
    }
}

/* ---- plans and explain ---- */

static void explain_says_what_the_next_backend_would_run(void **state) {
    (void)state;
    const stw_context_opts opts = opts_of(STW_BACKEND_AUTO, STW_MEMORY_BUFFERS);
    const stw_attn_desc desc = attn_desc();
    const stw_jagged_desc jagged = gelu_desc();
    static char text[16384];
    size_t needed = 0;
    assert_int_equal(stw_explain_attn(&opts, &desc, text, sizeof text, &needed), STW_OK);
    assert_int_equal(needed, strlen(text) + 1);
    assert_non_null(strstr(text, "cuda: chosen\n"));
    assert_non_null(strstr(text, "cpu: not chosen: a backend before it is usable; it would run cpu_"));
    assert_int_equal(stw_explain_jagged(&opts, &jagged, text, sizeof text, NULL), STW_OK);
    assert_non_null(strstr(text, "cuda: chosen\n"));
    assert_non_null(strstr(text, "variant: jagged kernels of the test\n"));
    assert_non_null(strstr(text, "cpu: not chosen: a backend before it is usable; it would run "));
    assert_int_equal(opened, 0);
}

static void a_backend_without_jagged_operations(void **state) {
    (void)state;
    stw_context *context = context_of(STW_BACKEND_CUDA);
    stw_attn_desc attn;
    const stw_jagged_desc gelu = gelu_desc(), nested = nested_desc(&attn, 2, STW_I64);
    stw_plan *plan = NULL;
    gpu.jagged_prepare = NULL;
    assert_int_equal(stw_jagged_bwd_plan(context, &gelu, &plan), STW_E_UNSUPPORTED);
    assert_string_equal(stw_last_error(), "jagged_bwd_plan: backend cuda has no jagged operations");
    assert_int_equal(stw_jagged_bwd_plan(context, &nested, &plan), STW_E_UNSUPPORTED);
    assert_null(plan);
    stw_context_destroy(context);
    assert_int_equal(opened, 0); /* refused plans hold no reference */
}

static void unaligned_tensors(void **state) {
    (void)state;
    stw_context *context = context_of(STW_BACKEND_CUDA);
    const stw_attn_desc desc = attn_desc();
    stw_plan *plan = NULL;
    static char text[4000];
    assert_int_equal(stw_attn_bwd_plan(context, &desc, &plan), STW_OK);
    const stw_variant *first = plan->work.variant;
    assert_null(plan->work.unaligned_variant); /* the chosen one takes all */
    assert_int_equal(stw_plan_describe(plan, text, sizeof text, NULL), STW_OK);
    assert_non_null(strstr(text, "costs more: nothing\n"));
    assert_null(strstr(text, "note: "));
    stw_plan_destroy(plan);

    refused_variant = first->id;
    prepare_note = "of the test";
    assert_int_equal(stw_attn_bwd_plan(context, &desc, &plan), STW_OK);
    assert_ptr_equal(plan->work.variant, first);
    assert_non_null(plan->work.unaligned_variant);
    assert_ptr_not_equal(plan->work.unaligned_variant, first);
    assert_int_equal(plan->work.unaligned, 0);
    assert_int_equal(stw_plan_describe(plan, text, sizeof text, NULL), STW_OK);
    assert_non_null(strstr(text, "costs more: q, k, v or dout that start at no multiple of 16 bytes: sm80_"));
    assert_non_null(strstr(text, "note: of the test\n"));
    stw_plan_destroy(plan);

    refuse_unaligned = 1; /* every variant */
    assert_int_equal(stw_attn_bwd_plan(context, &desc, &plan), STW_OK);
    assert_ptr_equal(plan->work.variant, first);
    assert_null(plan->work.unaligned_variant);
    stw_plan_destroy(plan);

    plan = NULL;
    refuse_all = 1;
    assert_int_equal(stw_attn_bwd_plan(context, &desc, &plan), STW_E_UNSUPPORTED);
    assert_string_equal(stw_last_error(), "no rule of the tuning table of sm80 fits a f16 problem of head dim 64");
    assert_null(plan);
    stw_context_destroy(context);
}

static char logged[4000];

static void keep_line(void *user, stw_log_level level, const char *line) {
    (void)user;
    const size_t length = strlen(logged);
    if (level == STW_LOG_TRACE) snprintf(logged + length, sizeof logged - length, "%s\n", line);
}

static void assert_traced(const char *beginning) { assert_int_equal(strncmp(logged, beginning, strlen(beginning)), 0); }

/* The trace has a line a plan, with the problem in the grammar of PROBLEM lines. */
static void plans_are_traced(void **state) {
    (void)state;
    stw_attn_desc attn;
    const stw_attn_desc desc = attn_desc();
    const stw_jagged_desc gelu = gelu_desc(), nested = nested_desc(&attn, 2, STW_I64);
    stw_plan *plans[3] = {NULL, NULL, NULL};
    char expected[300];
    stw_set_log(keep_line, NULL);
    setenv("STERNWAY_LOG", "trace", 1);
    stw_context *context = context_of(STW_BACKEND_CUDA);
    logged[0] = 0;
    assert_int_equal(stw_attn_bwd_plan(context, &desc, &plans[0]), STW_OK);
    snprintf(expected, sizeof expected, ": sm80 %s, workspace 0 bytes\n", plans[0]->work.variant->id);
    assert_traced("plan: attn_bwd:f16:b2h1s300d64: ");
    assert_non_null(strstr(logged, expected));
    logged[0] = 0;
    assert_int_equal(stw_jagged_bwd_plan(context, &gelu, &plans[1]), STW_OK);
    assert_traced("plan: jagged_gelu:");
    assert_non_null(strstr(logged, ": sm80 jagged kernels of the test, workspace 0 bytes\n"));
    logged[0] = 0;
    assert_int_equal(stw_jagged_bwd_plan(context, &nested, &plans[2]), STW_OK);
    assert_traced("plan: jagged_attention:");
    snprintf(expected, sizeof expected, ", workspace %zu bytes\n", stw_plan_workspace_size(plans[2]));
    assert_non_null(strstr(logged, expected));
    for (int i = 0; i < 3; ++i) stw_plan_destroy(plans[i]);
    stw_context_destroy(context);
    unsetenv("STERNWAY_LOG");
    context = context_of(STW_BACKEND_CUDA); /* and without the variable none */
    logged[0] = 0;
    assert_int_equal(stw_attn_bwd_plan(context, &desc, &plans[0]), STW_OK);
    assert_int_equal(stw_jagged_bwd_plan(context, &gelu, &plans[1]), STW_OK);
    assert_string_equal(logged, "");
    stw_plan_destroy(plans[0]);
    stw_plan_destroy(plans[1]);
    stw_context_destroy(context);
    stw_set_log(NULL, NULL);
}

/* ---- attention of nested tensors: where its lengths lie ---- */

enum { WORKSPACE_AT = 1 << 21 }; /* behind all of the tensors, whose extents are real */
static _Alignas(256) char memory[1 << 22];

static stw_attn_args attn_args(void) {
    stw_attn_args args = STW_INIT(stw_attn_args);
    args.q = memory, args.k = memory + 256, args.v = memory + 512, args.out = memory + 768;
    args.dout = memory + 1024, args.lse = (float *)(void *)(memory + 1280);
    args.dq = memory + 1536, args.dk = memory + 1792, args.dv = memory + 2048;
    return args;
}

/* A backend gets the first multiple of 256 of whatever workspace there is, with the bytes it asked for. */
static void workspaces_are_placed(void **state) {
    (void)state;
    stw_context *context = context_of(STW_BACKEND_CUDA);
    const stw_attn_desc desc = attn_desc();
    const stw_attn_args args = attn_args();
    stw_plan *plan = NULL;
    char *boundary = memory + WORKSPACE_AT, expected[200];
    prepare_workspace = 700;
    assert_int_equal(stw_attn_bwd_plan(context, &desc, &plan), STW_OK);
    assert_int_equal(stw_plan_workspace_size(plan), 700 + 255);
    for (int before = 0; before < 256; ++before) {
        char *at = boundary - before;
        run_workspace = NULL;
        assert_int_equal(stw_attn_bwd(plan, &args, at, 700 + 255, NULL), STW_OK);
        assert_ptr_equal(run_workspace, boundary);
        run_workspace = NULL;
        assert_int_equal(stw_attn_bwd(plan, &args, at, 700 + (size_t)before, NULL), STW_OK);
        assert_ptr_equal(run_workspace, boundary);
        assert_int_equal(stw_attn_bwd(plan, &args, at, 699 + (size_t)before, NULL), STW_E_WORKSPACE);
        snprintf(expected, sizeof expected,
                 "attn_bwd: workspace_size %d at %p is below the %d bytes needed there: the 955 bytes of "
                 "stw_plan_workspace_size suffice anywhere",
                 699 + before, (void *)at, 700 + before);
        assert_string_equal(stw_last_error(), expected);
    }
    assert_int_equal(stw_attn_bwd(plan, &args, boundary - 10, 9, NULL), STW_E_WORKSPACE);
    assert_int_equal(stw_attn_bwd(plan, &args, NULL, 955, NULL), STW_E_WORKSPACE);
    assert_string_equal(stw_last_error(), "attn_bwd: workspace is null, but the plan needs 955 bytes");
    assert_int_equal(runs, 512);
    stw_plan_destroy(plan);
    stw_context_destroy(context);
}

/* A packed side whose tensors are all null: the backend sees a pack of 0 rows, with its offsets. */
static void null_packs_have_no_rows(void **state) {
    (void)state;
    stw_context *context = context_of(STW_BACKEND_CUDA);
    stw_attn_desc attn;
    (void)nested_desc(&attn, 2, STW_I32);
    for (int kv = 0; kv < 2; ++kv) {
        stw_attn_args args = attn_args();
        stw_plan *plan = NULL;
        args.cu_seqlens_q = args.cu_seqlens_kv = (const int32_t *)(const void *)memory;
        assert_int_equal(stw_attn_bwd_plan(context, &attn, &plan), STW_OK);
        if (kv) args.k = args.v = NULL, args.dk = args.dv = NULL;
        else args.q = args.dout = NULL, args.out = args.dq = NULL;
        assert_int_equal(stw_attn_bwd(plan, &args, NULL, 0, NULL), STW_OK);
        assert_int_equal(run_params.total_q, kv ? 10 : 0);
        assert_int_equal(run_params.total_kv, kv ? 0 : 10);
        assert_ptr_equal(run_params.q.data, args.q);
        assert_ptr_equal(run_params.dv.data, args.dv);
        assert_ptr_equal(run_params.cu_seqlens_q, memory);
        if (kv) args.v = memory;
        else args.out = memory;
        assert_int_equal(stw_attn_bwd(plan, &args, NULL, 0, NULL), STW_E_INVALID);
        assert_non_null(strstr(stw_last_error(), kv ? "args.k is null" : "args.q is null"));
        stw_plan_destroy(plan);
    }
    stw_context_destroy(context);
}

/* Runs a call; returns the lines that it logged. */
static const char *lines_of_call(const stw_plan *plan, int offset) {
    stw_attn_args args = attn_args();
    args.k = memory + 256 + offset;
    logged[0] = 0;
    assert_int_equal(stw_attn_bwd(plan, &args, NULL, 0, NULL), STW_OK);
    return logged;
}

/* The trace has one line of a plan's calls: the first that its pointers send to the other variant. */
static void slower_calls_are_traced_once(void **state) {
    (void)state;
    const stw_attn_desc desc = attn_desc();
    stw_plan *plan = NULL;
    char expected[300];
    stw_set_log(keep_line, NULL);
    setenv("STERNWAY_LOG", "trace", 1);
    stw_context *context = context_of(STW_BACKEND_CUDA);
    assert_int_equal(stw_attn_bwd_plan(context, &desc, &plan), STW_OK);
    assert_string_equal(lines_of_call(plan, 2), ""); /* one variant takes all */
    refused_variant = plan->work.variant->id;
    stw_plan_destroy(plan);
    assert_int_equal(stw_attn_bwd_plan(context, &desc, &plan), STW_OK);
    assert_string_equal(lines_of_call(plan, 0), "");
    assert_string_equal(lines_of_call(plan, 16), "");
    log_is_busy = 1; /* then it waits for nobody, and says so later */
    assert_string_equal(lines_of_call(plan, 2), "");
    log_is_busy = 0;
    snprintf(expected, sizeof expected,
             "call: attn_bwd:f16:b2h1s300d64: %s, not %s: q %p, k %p, v %p or dout %p is no multiple of 16 "
             "bytes\n",
             plan->work.unaligned_variant->id, plan->work.variant->id, (void *)memory, (void *)(memory + 264),
             (void *)(memory + 512), (void *)(memory + 1024));
    assert_string_equal(lines_of_call(plan, 8), expected);
    assert_string_equal(lines_of_call(plan, 2), "");
    stw_plan_destroy(plan);
    stw_context_destroy(context);

    unsetenv("STERNWAY_LOG");
    context = context_of(STW_BACKEND_CUDA); /* and without the variable none */
    assert_int_equal(stw_attn_bwd_plan(context, &desc, &plan), STW_OK);
    assert_non_null(plan->work.unaligned_variant);
    assert_string_equal(lines_of_call(plan, 2), "");
    stw_plan_destroy(plan);
    stw_context_destroy(context);
    stw_set_log(NULL, NULL);
}

/* The same of attention of nested tensors. */
static void slower_nested_calls_are_traced_once(void **state) {
    (void)state;
    stw_attn_desc attn;
    const stw_jagged_desc desc = nested_desc(&attn, 2, STW_I32);
    stw_attn_args own = attn_args();
    const int32_t offsets[3] = {0, 4, 10};
    stw_jagged_args args = STW_INIT(stw_jagged_args);
    stw_plan *plan = NULL;
    stw_set_log(keep_line, NULL);
    setenv("STERNWAY_LOG", "trace", 1);
    stw_context *context = context_of(STW_BACKEND_CUDA);
    assert_int_equal(stw_jagged_bwd_plan(context, &desc, &plan), STW_OK);
    refused_variant = plan->jagged->attn->work.variant->id;
    stw_plan_destroy(plan);
    assert_int_equal(stw_jagged_bwd_plan(context, &desc, &plan), STW_OK);
    own.dout = memory + 1024 + 2;
    args.attn = &own;
    args.axis[0].offsets = args.axis[1].offsets = offsets;
    for (int i = 0; i < 2; ++i) {
        logged[0] = 0;
        assert_int_equal(stw_jagged_bwd(plan, &args, NULL, 0, NULL), STW_OK);
        assert_int_equal(strncmp(logged, "call: attn_bwd:", 15) == 0, i == 0);
    }
    stw_plan_destroy(plan);
    stw_context_destroy(context);
    unsetenv("STERNWAY_LOG");
    stw_set_log(NULL, NULL);
}

/* int32 offsets go on as they are: no workspace, no conversion. */
static void narrow_lengths_are_passed_on(void **state) {
    (void)state;
    stw_context *context = context_of(STW_BACKEND_CUDA);
    stw_attn_desc attn;
    const stw_jagged_desc desc = nested_desc(&attn, 2, STW_I32);
    const stw_attn_args own = attn_args();
    const int32_t offsets[3] = {0, 4, 10};
    stw_jagged_args args = STW_INIT(stw_jagged_args);
    stw_plan *plan = NULL;
    args.attn = &own;
    args.axis[0].offsets = args.axis[1].offsets = offsets;
    assert_int_equal(stw_jagged_bwd_plan(context, &desc, &plan), STW_OK);
    assert_int_equal(stw_plan_workspace_size(plan), 0);
    assert_int_equal(stw_jagged_bwd(plan, &args, NULL, 0, NULL), STW_OK);
    assert_int_equal(runs, 1);
    assert_int_equal(conversions, 0);
    assert_null(run_workspace);
    assert_ptr_equal(run_params.cu_seqlens_q, offsets);
    assert_ptr_equal(run_params.cu_seqlens_kv, offsets);
    assert_null(run_params.used_q);
    stw_plan_destroy(plan);
    stw_context_destroy(context);
}

/* int64 ones become int32 in the workspace; a failure of that ends the call. */
static void wide_lengths_are_converted(void **state) {
    (void)state;
    stw_context *context = context_of(STW_BACKEND_CUDA);
    stw_attn_desc attn;
    const stw_jagged_desc desc = nested_desc(&attn, 2, STW_I64);
    const stw_attn_args own = attn_args();
    const int64_t offsets[3] = {0, 4, 10};
    char *workspace = memory + WORKSPACE_AT;
    stw_jagged_args args = STW_INIT(stw_jagged_args);
    stw_plan *plan = NULL;
    args.attn = &own;
    args.axis[0].offsets = args.axis[1].offsets = offsets;
    assert_int_equal(stw_jagged_bwd_plan(context, &desc, &plan), STW_OK);
    const size_t need = stw_plan_workspace_size(plan);
    assert_int_equal(stw_jagged_bwd(plan, &args, workspace, need, NULL), STW_OK);
    assert_int_equal(runs, 1);
    assert_int_equal(conversions, 1);
    const char *at_q = (const char *)run_params.cu_seqlens_q, *at_kv = (const char *)run_params.cu_seqlens_kv;
    assert_true(at_q >= workspace && at_kv >= at_q + sizeof(int32_t[3]));
    assert_true(at_kv + sizeof(int32_t[3]) <= workspace + need);
    lengths_status = STW_E_INVALID;
    assert_int_equal(stw_jagged_bwd(plan, &args, workspace, need, NULL), STW_E_INVALID);
    assert_string_equal(stw_last_error(), "gpu: the lengths are refused by the test");
    assert_int_equal(runs, 1);
    stw_plan_destroy(plan);
    stw_context_destroy(context);
}

/* Without components there need be no offsets, yet the packed problem has some: zeros, in the workspace. */
static void no_components(void **state) {
    (void)state;
    for (int used = 0; used < 2; ++used) {
        stw_context *context = context_of(STW_BACKEND_CUDA);
        stw_attn_desc attn;
        const stw_jagged_desc desc = nested_desc(&attn, 0, STW_I32);
        const stw_attn_args own = attn_args();
        stw_jagged_args args = STW_INIT(stw_jagged_args);
        stw_plan *plan = NULL;
        args.attn = &own;
        runs = conversions = 0;
        if (used) attn.flags |= STW_ATTN_HAS_USED_LENGTHS;
        assert_int_equal(stw_jagged_bwd_plan(context, &desc, &plan), STW_OK);
        assert_true(stw_plan_workspace_size(plan) >= 2 * sizeof(int32_t));
        assert_int_equal(stw_jagged_bwd(plan, &args, memory + WORKSPACE_AT, stw_plan_workspace_size(plan), NULL),
                         STW_OK);
        assert_int_equal(runs, 1);
        assert_int_equal(conversions, 1);
        assert_non_null(run_params.cu_seqlens_q);
        assert_non_null(run_params.cu_seqlens_kv);
        assert_int_equal(run_params.used_q != NULL, used);
        assert_int_equal(run_params.used_kv != NULL, used);
        stw_plan_destroy(plan);
        stw_context_destroy(context);
    }
}

/* ---- what runs out ---- */

/* Makes the first, the second, ... allocation fail until the call needs no more: each failure is told and
 * leaves nothing behind. How many there were. */
static int each_allocation_fails(stw_status (*call)(void *), void *argument) {
    for (int n = 1; n < 100; ++n) {
        until_failure = n;
        stw_status status = call(argument);
        const int survived = until_failure > 0;
        until_failure = 0;
        if (survived) {
            assert_int_equal(status, STW_OK);
            return n - 1;
        }
        assert_int_equal(status, STW_E_NO_MEMORY);
        assert_non_null(strstr(stw_last_error(), "memory"));
        assert_int_equal(opened, 0);
    }
    fail_msg("100 allocations");
    return 0;
}

static stw_status create_and_destroy(void *argument) {
    stw_context *const untouched = (stw_context *)&gpu, *context = untouched;
    stw_status status = stw_context_create(argument, &context);
    if (status) assert_ptr_equal(context, untouched);
    else stw_context_destroy(context);
    return status;
}

static void contexts_without_memory(void **state) {
    (void)state;
    char path[] = "/tmp/stw_backends_XXXXXX";
    int file = mkstemp(path);
    assert_true(file >= 0);
    close(file); /* no rules: a tuning file all the same */
    static const stw_backend backends[] = {STW_BACKEND_CUDA, STW_BACKEND_CPU, STW_BACKEND_AUTO};
    for (size_t i = 0; i < 3; ++i) {
        stw_context_opts opts = opts_of(backends[i], STW_MEMORY_BUFFERS);
        const int without = each_allocation_fails(create_and_destroy, &opts);
        setenv("STERNWAY_TUNING", path, 1);
        const int with = each_allocation_fails(create_and_destroy, &opts);
        unsetenv("STERNWAY_TUNING");
        assert_true(without >= 2);           /* the context and its rules */
        assert_int_equal(with, without + 1); /* and the file's text */
    }
    unlink(path);
}

typedef struct problem {
    stw_backend backend;
    const stw_attn_desc *attn;
    const stw_jagged_desc *jagged;
} problem;

/* The context has its memory: the plan alone runs short of it. */
static stw_status plan_and_destroy(void *argument) {
    const problem *p = argument;
    const int at = until_failure;
    stw_plan *const untouched = (stw_plan *)&gpu, *plan = untouched;
    until_failure = 0;
    stw_context *context = context_of(p->backend);
    until_failure = at;
    stw_status status =
        p->attn ? stw_attn_bwd_plan(context, p->attn, &plan) : stw_jagged_bwd_plan(context, p->jagged, &plan);
    if (status) assert_ptr_equal(plan, untouched);
    else stw_plan_destroy(plan);
    assert_int_equal(atomic_load(&context->references), 1);
    stw_context_destroy(context);
    return status;
}

static void plans_without_memory(void **state) {
    (void)state;
    stw_attn_desc attn;
    const stw_attn_desc desc = attn_desc();
    const stw_jagged_desc gelu = gelu_desc(), nested = nested_desc(&attn, 2, STW_I64);
    for (int cpu = 0; cpu < 2; ++cpu) {
        problem problems[] = {{.attn = &desc}, {.jagged = &gelu}, {.jagged = &nested}};
        static const int least[] = {1, 2, 3}; /* a plan; its jagged part; the plan of the packed problem */
        for (size_t i = 0; i < 3; ++i) {
            problems[i].backend = cpu ? STW_BACKEND_CPU : STW_BACKEND_CUDA;
            assert_true(each_allocation_fails(plan_and_destroy, &problems[i]) >= least[i]);
        }
    }
}

/* A table whose second rule has a slip: found when a context is created, not when a problem meets it. */
static void a_rule_that_names_no_variant(void **state) {
    (void)state;
    const stw_attn_table *real = stw_attn_table_find("cpu");
    const stw_rule_row rows[] = {{"", real->variants[0].id}, {"head_dim<=64", "cpu_slip"}};
    const stw_attn_table broken = {"cpu", real->variants, real->variant_count, rows, 2};
    stw_context_opts opts = opts_of(STW_BACKEND_CPU, STW_MEMORY_HOST);
    stw_context *context = NULL;
    table_instead = &broken;
    assert_int_equal(stw_context_create(&opts, &context), STW_E_INTERNAL);
    assert_string_equal(stw_last_error(), "tuning table cpu: rule 2 names no variant");
    assert_null(context);
}

/* Hundreds of rules that do not fit: explain cuts the list of them and stays a text. */
static void explain_of_a_long_tuning_file(void **state) {
    (void)state;
    char path[] = "/tmp/stw_backends_XXXXXX";
    FILE *file = fdopen(mkstemp(path), "w");
    assert_non_null(file);
    for (int i = 0; i < 1000; ++i) fprintf(file, "STW_RULE(\"seq_q>=%d\", cpu_portable_32x32)\n", 1000000 + i);
    assert_int_equal(fclose(file), 0);
    const stw_context_opts opts = opts_of(STW_BACKEND_CPU, STW_MEMORY_HOST);
    const stw_attn_desc desc = attn_desc();
    static char text[40000];
    size_t needed = 0;
    setenv("STERNWAY_TUNING", path, 1);
    assert_int_equal(stw_explain_attn(&opts, &desc, text, sizeof text, &needed), STW_OK);
    unsetenv("STERNWAY_TUNING");
    unlink(path);
    assert_int_equal(needed, strlen(text) + 1);
    assert_non_null(strstr(text, "cpu: chosen\n"));
    assert_non_null(strstr(text, "seq_q>=1000100\" of STERNWAY_TUNING): seq_q is 300\n"));
    assert_null(strstr(text, "seq_q>=1000999"));
    assert_int_equal(text[strlen(text) - 1], '\n');
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, prepare, finish)
    const struct CMUnitTest tests[] = {
        TEST(names),
        TEST(a_backend_that_the_build_leaves_out),
        TEST(failures_to_open),
        TEST(f64_is_the_cpu_s_alone),
        TEST(empty_arch_and_device_0_are_the_defaults),
        TEST(less_shared_memory),
        TEST(explain_says_what_the_next_backend_would_run),
        TEST(a_backend_without_jagged_operations),
        TEST(unaligned_tensors),
        TEST(plans_are_traced),
        TEST(workspaces_are_placed),
        TEST(null_packs_have_no_rows),
        TEST(slower_calls_are_traced_once),
        TEST(slower_nested_calls_are_traced_once),
        TEST(narrow_lengths_are_passed_on),
        TEST(wide_lengths_are_converted),
        TEST(no_components),
        TEST(contexts_without_memory),
        TEST(plans_without_memory),
        TEST(a_rule_that_names_no_variant),
        TEST(explain_of_a_long_tuning_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
