/* SPDX-License-Identifier: MIT
 *
 * The plans that a context keeps for stw_attn_bwd_once and stw_attn_fwd_once, over a table of backends that
 * is this program's own: which calls share a plan, what the backend gets, which plan makes place for a new
 * one, a plan in use, many threads, fork, and memory that runs out (the linker sends the library's malloc and
 * calloc here). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/size_class.h"
#include "dispatch/plan.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- memory that runs out ---- */

static atomic_int until_failure; /* the allocation of this number fails, counted from 1; 0: none */
static atomic_int allocations;

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);

static int fails_now(void) {
    ++allocations;
    return until_failure && --until_failure == 0;
}

void *__wrap_malloc(size_t bytes) { return fails_now() ? NULL : __real_malloc(bytes); }

void *__wrap_calloc(size_t count, size_t bytes) { return fails_now() ? NULL : __real_calloc(count, bytes); }

/* ---- the backend ---- */

static atomic_int prepared, runs, wrong_plans, opened;
static stw_status prepare_status;
static stw_attn_work run_work; /* of the last run call, as are: */
static stw_attn_params run_params;
static void (*during_run)(void); /* called by a run call, once */
static void (*during_prepare)(void);

static void call_once(void (**function)(void)) {
    void (*then)(void) = *function;
    if (!then) return; /* as in threads: nothing is written */
    *function = NULL;
    then();
}

static stw_status fake_open(const stw_open_request *request, stw_device *device_out) {
    (void)request;
    *device_out = (stw_device){.arch = stw_arch_find(STW_BACKEND_CUDA, "sm80"), .smem_max = 163 * 1024};
    ++opened;
    return STW_OK;
}

static void fake_close(stw_device *device) {
    (void)device;
    --opened;
}

static const char *fake_refusal(const stw_device *device, const stw_attn_work *work, const stw_variant *variant) {
    (void)device, (void)work, (void)variant;
    return NULL;
}

/* The plan's own mark: it tells a plan that was freed or belongs to another class. */
static uint64_t mark_of(const stw_attn_params *p, stw_plan_kind kind) {
    return (uint64_t)(p->heads_q * 1000 + stw_size_class(p->total_q) * 7 + kind);
}

static stw_status fake_prepare(const stw_device *device, stw_attn_work *work) {
    (void)device;
    if (prepare_status) return stw_fail(prepare_status, "attn_plan: refused by the test");
    ++prepared;
    work->workspace_size = (size_t)work->params.total_q * 256;
    snprintf(work->note, sizeof work->note, "%llu", (unsigned long long)mark_of(&work->params, work->kind));
    call_once(&during_prepare);
    return STW_OK;
}

static stw_status fake_run(const stw_device *device, const stw_attn_work *work, const stw_attn_params *params,
                           void *workspace, stw_stream stream, uint32_t cpu_threads) {
    (void)cpu_threads;
    (void)device, (void)workspace, (void)stream;
    ++runs;
    if (strtoull(work->note, NULL, 10) != mark_of(params, work->kind)) ++wrong_plans;
    call_once(&during_run);
    return STW_OK;
}

/* The same by one thread. */
static stw_status kept_run(const stw_device *device, const stw_attn_work *work, const stw_attn_params *params,
                           void *workspace, stw_stream stream, uint32_t cpu_threads) {
    (void)cpu_threads;
    run_work = *work;
    run_params = *params;
    return fake_run(device, work, params, workspace, stream, cpu_threads);
}

static stw_backend_ops fake = {.backend = STW_BACKEND_CUDA,
                               .open = fake_open,
                               .close = fake_close,
                               .variant_refusal = fake_refusal,
                               .attn_prepare = fake_prepare,
                               .attn_bwd = kept_run,
                               .attn_fwd = kept_run};

const stw_backend_ops *const stw_backends[] = {&fake, &stw_cpu_backend};
const size_t stw_backend_count = 2;

static int prepare(void **state) {
    (void)state;
    until_failure = prepared = runs = wrong_plans = allocations = 0;
    prepare_status = STW_OK;
    during_run = during_prepare = NULL;
    fake.attn_bwd = kept_run;
    unsetenv("STERNWAY_TUNING");
    unsetenv("STERNWAY_VARIANT");
    return 0;
}

static int finish(void **state) {
    const int left = opened; /* none: every device was closed */
    opened = 0;
    return prepare(state) || left;
}

static stw_context *context_of(void) {
    stw_context_opts opts = STW_INIT(stw_context_opts);
    stw_context *context = NULL;
    opts.backend = STW_BACKEND_CUDA;
    opts.memory = STW_MEMORY_DEVICE;
    assert_int_equal(stw_context_create(&opts, &context), STW_OK);
    return context;
}

/* ---- calls ---- */

static _Alignas(256) char memory[8192], workspace[4 << 20];

static stw_attn_desc desc_of(int64_t heads, int64_t batch, int64_t longest, int64_t total) {
    stw_attn_desc desc = STW_INIT(stw_attn_desc);
    desc.dtype = STW_F16;
    desc.batch = batch;
    desc.heads_q = desc.heads_kv = heads;
    desc.head_dim_qk = desc.head_dim_v = 64;
    desc.max_seq_q = desc.max_seq_kv = longest;
    desc.total_q = desc.total_kv = total;
    if (stw_layout_thd(&desc)) abort();
    return desc;
}

static stw_attn_args args_of(void) {
    stw_attn_args args = STW_INIT(stw_attn_args);
    args.q = memory, args.k = memory + 256, args.v = memory + 512, args.out = memory + 768;
    args.dout = memory + 1024, args.lse = (float *)(void *)(memory + 1280);
    args.dq = memory + 1536, args.dk = memory + 1792, args.dv = memory + 2048;
    args.dbias = memory + 4096, args.bias = memory + 4352;
    args.cu_seqlens_q = args.cu_seqlens_kv = (const int32_t *)(const void *)(memory + 2304);
    return args;
}

static stw_status bwd(stw_context *context, const stw_attn_desc *desc) {
    const stw_attn_args args = args_of();
    return stw_attn_bwd_once(context, desc, &args, workspace, sizeof workspace, NULL);
}

static stw_status fwd(stw_context *context, const stw_attn_desc *desc) {
    const stw_attn_args args = args_of();
    return stw_attn_fwd_once(context, desc, &args, workspace, sizeof workspace, NULL);
}

/* The call is fine; 1 when it was planned. */
static int plans_anew(stw_context *context, const stw_attn_desc *desc) {
    const int before = prepared;
    assert_int_equal(bwd(context, desc), STW_OK);
    return prepared - before;
}

/* ---- classes ---- */

static void calls_of_a_class_share_a_plan(void **state) {
    (void)state;
    stw_context *context = context_of();
    stw_attn_desc desc = desc_of(4, 50, 500, 1000);
    assert_int_equal(plans_anew(context, &desc), 1);
    for (int64_t n = 961; n <= 1024; ++n) { /* of 4 leading bits, rounded up, 1000 is 1024 and 50 is 52 */
        desc = desc_of(4, 49 + n % 4, 481 + n % 32, n);
        assert_int_equal(plans_anew(context, &desc), 0);
        const stw_attn_params *p = &run_params, *planned = &run_work.params;
        assert_true(p->batch == desc.batch && p->max_seq_q == desc.max_seq_q && p->max_seq_kv == desc.max_seq_kv &&
                    p->total_q == n && p->total_kv == n);
        assert_int_equal(p->lse.head, n); /* [H,T] */
        assert_true(planned->batch == 52 && planned->max_seq_q == 512 && planned->total_kv == 1024);
    }
    desc = desc_of(4, 50, 500, 1025);
    assert_int_equal(plans_anew(context, &desc), 1);
    desc = desc_of(4, 50, 513, 1000);
    assert_int_equal(plans_anew(context, &desc), 1);
    desc = desc_of(4, 53, 500, 1000);
    assert_int_equal(plans_anew(context, &desc), 1);
    desc = desc_of(2, 50, 500, 1000);
    assert_int_equal(plans_anew(context, &desc), 1);
    assert_int_equal(fwd(context, &desc), STW_OK); /* the forward's own */
    assert_int_equal(prepared, 6);
    assert_int_equal(fwd(context, &desc), STW_OK);
    assert_int_equal(prepared, 6);
    assert_int_equal(wrong_plans, 0);
    stw_context_destroy(context);
}

/* What callers leave in unused fields, and compiled against other headers behind the end, is not part of a class. */
static void unused_fields_do_not_tell_calls_apart(void **state) {
    (void)state;
    stw_context *context = context_of();
    struct {
        stw_attn_desc desc;
        char tail[16]; /* of a newer header, zero */
    } newer = {.desc = desc_of(4, 50, 500, 1000)};
    const stw_attn_desc clean = newer.desc;
    stw_attn_desc noisy = clean;
    assert_int_equal(plans_anew(context, &clean), 1);
    newer.desc.struct_size = sizeof newer;
    assert_int_equal(plans_anew(context, &newer.desc), 0);
    noisy.dlse.head = 7; /* of no tensor of this call */
    assert_int_equal(plans_anew(context, &noisy), 0);
    stw_context_destroy(context);
}

/* The strides that follow from a class's sizes: each changes with total or max, and so differs within it. */
static void strides_that_follow_from_sizes(void **state) {
    (void)state;
    stw_context *context = context_of();
    static const int64_t totals[] = {1000, 990, 1024};
    for (int i = 0; i < 3; ++i) {
        const int64_t total = totals[i], longest = total / 2;
        stw_attn_desc desc = desc_of(4, 50, longest, total);
        stw_attn_strides *const wide[] = {&desc.q,  &desc.k,    &desc.v,  &desc.out,
                                          &desc.dq, &desc.dout, &desc.dk, &desc.dv};
        for (int t = 0; t < 8; ++t) *wide[t] = (stw_attn_strides){0, total * 64, 64}; /* [H,T,D] */
        desc.lse = (stw_attn_strides){4 * longest, longest, 1};                       /* [B,H,max] */
        desc.bias_dtype = STW_F16;
        desc.bias = (stw_bias_strides){0, longest * longest, longest, 1};
        assert_int_equal(plans_anew(context, &desc), i == 0);
        assert_int_equal(run_params.q.head, total * 64);
        assert_int_equal(run_params.dv.head, total * 64);
        assert_int_equal(run_params.lse.batch, 4 * longest);
        assert_int_equal(run_params.lse.head, longest);
        assert_int_equal(run_params.bias.head, longest * longest);
        desc.bias.head = 0; /* a broadcast is another class */
        assert_int_equal(plans_anew(context, &desc), i == 0);
        desc.lse = (stw_attn_strides){0, total, 1};
        assert_int_equal(plans_anew(context, &desc), i == 0);
        for (int t = 0; t < 8; ++t) *wide[t] = (stw_attn_strides){0, total * 65, 65}; /* rows off 16 bytes */
        assert_int_equal(plans_anew(context, &desc), 1);
    }
    stw_context_destroy(context);
}

/* Sizes of a dense side are what they are. */
static void dense_sides_are_exact(void **state) {
    (void)state;
    stw_context *context = context_of();
    for (int64_t longest = 1000; longest < 1003; ++longest) {
        stw_attn_desc desc = desc_of(4, 50, longest, 1000);
        desc.total_q = desc.total_kv = 0;
        assert_int_equal(stw_layout_bshd(&desc), STW_OK);
        assert_int_equal(plans_anew(context, &desc), 1);
        assert_int_equal(run_work.params.max_seq_q, longest);
        desc.total_q = 1000; /* q alone is packed: keys and batch are exact */
        assert_int_equal(stw_layout_thd(&desc), STW_OK);
        assert_int_equal(plans_anew(context, &desc), 1);
        assert_int_equal(run_work.params.max_seq_q, 1024);
        assert_int_equal(run_work.params.max_seq_kv, longest);
        assert_int_equal(run_work.params.batch, 50);
        desc.total_kv = 1000, desc.total_q = 0;
        assert_int_equal(stw_layout_thd(&desc), STW_OK);
        assert_int_equal(plans_anew(context, &desc), 1);
        assert_int_equal(run_work.params.max_seq_q, longest);
        assert_int_equal(run_work.params.max_seq_kv, 1024);
        assert_int_equal(run_work.params.batch, 50);
    }
    stw_context_destroy(context);
}

/* A rule inside a class cuts it, so that a call gets the variant that a plan of its own would get. */
static void rules_cut_classes(void **state) {
    (void)state;
    char path[] = "/tmp/stw_once_XXXXXX";
    FILE *file = fdopen(mkstemp(path), "w");
    assert_non_null(file);
    fputs("STW_RULE(\"op=bwd seq_q>=490 seq_q<=500\", sm80_64x128_hd64)\n"
          "STW_RULE(\"op=bwd seq_kv<=250\", sm80_64x64_hd128)\n"
          "STW_RULE(\"op=bwd batch_heads>=201\", sm80_64x128_hd128)\n",
          file);
    assert_int_equal(fclose(file), 0);
    setenv("STERNWAY_TUNING", path, 1);
    stw_context *context = context_of();
    unlink(path);
    static const int64_t longest[] = {481, 489, 490, 495, 500, 501, 512, 241, 250, 251, 256};
    for (size_t i = 0; i < sizeof longest / sizeof longest[0]; ++i)
        for (int64_t batch = 49; batch <= 52; ++batch) { /* of 4 heads: 196 to 208 */
            const stw_attn_desc desc = desc_of(4, batch, longest[i], 1000);
            stw_plan *plan = NULL;
            assert_int_equal(stw_attn_bwd_plan(context, &desc, &plan), STW_OK);
            assert_int_equal(bwd(context, &desc), STW_OK);
            assert_ptr_equal(run_work.variant, plan->work.variant);
            assert_true(run_work.params.max_seq_q >= longest[i] && run_work.params.batch >= batch);
            stw_plan_destroy(plan);
        }
    const stw_attn_desc desc = desc_of(4, 50, 485, 1000);
    assert_int_equal(bwd(context, &desc), STW_OK);
    assert_int_equal(run_work.params.max_seq_q, 489);
    assert_int_equal(run_work.params.batch, 50); /* 200 heads */
    stw_context_destroy(context);
}

/* ---- errors ---- */

static void refusals(void **state) {
    (void)state;
    stw_context *context = context_of();
    const stw_attn_desc desc = desc_of(4, 50, 500, 1000);
    stw_attn_desc bad = desc;
    stw_attn_args args = args_of();
    size_t size = 77;
    assert_int_equal(bwd(NULL, &desc), STW_E_INVALID);
    assert_string_equal(stw_last_error(), "attn_bwd_once: context is null");
    assert_int_equal(fwd(NULL, &desc), STW_E_INVALID);
    assert_string_equal(stw_last_error(), "attn_fwd_once: context is null");
    assert_int_equal(bwd(context, NULL), STW_E_INVALID);
    assert_string_equal(stw_last_error(), "attn_bwd_once: desc is null");
    assert_int_equal(stw_attn_fwd_once_workspace(context, NULL, &size), STW_E_INVALID);
    assert_string_equal(stw_last_error(), "attn_fwd_once_workspace: desc is null");
    assert_int_equal(stw_attn_bwd_once_workspace(context, &desc, NULL), STW_E_INVALID);
    assert_string_equal(stw_last_error(), "attn_bwd_once_workspace: size_out is null");
    bad.head_dim_v = 0;
    assert_int_equal(bwd(context, &bad), STW_E_INVALID);
    assert_non_null(strstr(stw_last_error(), "attn_bwd: head_dim_v 0 "));
    assert_int_equal(prepared, 0);
    prepare_status = STW_E_UNSUPPORTED;
    assert_int_equal(stw_attn_bwd_once_workspace(context, &desc, &size), STW_E_UNSUPPORTED);
    assert_string_equal(stw_last_error(), "attn_plan: refused by the test");
    assert_int_equal(size, 77);
    prepare_status = STW_OK;
    assert_int_equal(stw_attn_bwd_once(context, &desc, NULL, workspace, sizeof workspace, NULL), STW_E_INVALID);
    assert_string_equal(stw_last_error(), "attn_bwd_once: args is null");
    args.dk = NULL;
    assert_int_equal(stw_attn_bwd_once(context, &desc, &args, workspace, sizeof workspace, NULL), STW_E_INVALID);
    assert_non_null(strstr(stw_last_error(), "args.dk is null"));
    args = args_of();
    assert_int_equal(stw_attn_bwd_once(context, &desc, &args, NULL, 0, NULL), STW_E_WORKSPACE);
    assert_non_null(strstr(stw_last_error(), "attn_bwd_once: workspace "));
    assert_int_equal(runs, 0);
    /* within a class each call is checked by its own sizes: here heads overlap in the larger one */
    bad = desc;
    bad.dq = (stw_attn_strides){0, 1000 * 64, 64};
    assert_int_equal(bwd(context, &bad), STW_OK);
    bad.total_q = 1001;
    assert_int_equal(bwd(context, &bad), STW_E_INVALID);
    assert_non_null(strstr(stw_last_error(), "attn_bwd: dq.head stride 64000 "));
    assert_int_equal(stw_attn_fwd_once_workspace(context, &desc, &size), STW_OK);
    assert_true(size >= 1024 * 256);
    stw_context_destroy(context);
}

/* ---- which plan makes place ---- */

static stw_attn_desc of_heads(int64_t heads) { return desc_of(heads, 2, 8, 16); }

static void the_one_used_longest_ago_makes_place(void **state) {
    (void)state;
    stw_context *context = context_of();
    stw_attn_desc desc;
    for (int64_t heads = 1; heads <= STW_PLAN_CACHE_SLOTS; ++heads) {
        desc = of_heads(heads);
        assert_int_equal(plans_anew(context, &desc), 1);
    }
    for (int64_t heads = 1; heads <= STW_PLAN_CACHE_SLOTS; ++heads) { /* all are there */
        desc = of_heads(heads);
        if (heads != 5) assert_int_equal(plans_anew(context, &desc), 0);
    }
    desc = of_heads(100);
    assert_int_equal(plans_anew(context, &desc), 1);
    desc = of_heads(5);
    assert_int_equal(plans_anew(context, &desc), 1); /* it was the oldest */
    desc = of_heads(100);
    assert_int_equal(plans_anew(context, &desc), 0);
    assert_int_equal(wrong_plans, 0);
    assert_int_equal(atomic_load(&context->references), 1); /* kept plans hold none */
    stw_context_destroy(context);
}

static stw_context *busy_context;
static int64_t busy_heads;

/* A call inside a call: its plan is in use, so are those around it. */
static void another_call(void) {
    if (busy_heads > STW_PLAN_CACHE_SLOTS + 3) return;
    during_run = another_call;
    const stw_attn_desc desc = of_heads(busy_heads++);
    assert_int_equal(bwd(busy_context, &desc), STW_OK);
}

/* More calls at a time than there are slots: those beyond keep no plan, and no plan in use is freed. */
static void plans_in_use_stay(void **state) {
    (void)state;
    busy_context = context_of();
    busy_heads = 1;
    fake.attn_bwd = fake_run;
    another_call();
    during_run = NULL;
    assert_int_equal(runs, STW_PLAN_CACHE_SLOTS + 3);
    assert_int_equal(wrong_plans, 0);
    stw_attn_desc desc = of_heads(1);
    assert_int_equal(plans_anew(busy_context, &desc), 0);
    desc = of_heads(STW_PLAN_CACHE_SLOTS + 1);
    assert_int_equal(plans_anew(busy_context, &desc), 1);
    stw_context_destroy(busy_context);
}

static void the_same_call(void) {
    const stw_attn_desc desc = of_heads(3);
    assert_int_equal(bwd(busy_context, &desc), STW_OK);
}

/* Another thread has kept a plan of the class while this one made its own: one stays. */
static void plan_made_meanwhile(void **state) {
    (void)state;
    busy_context = context_of();
    during_prepare = the_same_call;
    the_same_call();
    assert_int_equal(prepared, 2);
    assert_int_equal(wrong_plans, 0);
    assert_int_equal(atomic_load(&busy_context->plans.kept), 1);
    the_same_call();
    assert_int_equal(prepared, 2);
    stw_context_destroy(busy_context);
}

static void classes_of_one_hash(void **state) {
    (void)state;
    stw_context *context = context_of();
    const stw_attn_desc desc = of_heads(3);
    assert_int_equal(bwd(context, &desc), STW_OK);
    stw_plan_class class = {.shape = &run_work, .params = run_work.params};
    stw_plan_class_seal(&class);
    stw_plan_slot *slot = stw_plan_cache_take(&context->plans, &class);
    assert_non_null(slot);
    stw_plan_cache_give(slot);
    class.params.heads_q = 4;
    assert_null(stw_plan_cache_take(&context->plans, &class));
    class.params.heads_q = 3;
    stw_attn_work other = run_work;
    class.shape = &other;
    other.kind = STW_PLAN_ATTN_FWD;
    assert_null(stw_plan_cache_take(&context->plans, &class));
    other.kind = STW_PLAN_ATTN_BWD;
    other.scale = 0.5; /* numbers of f64 problems, which the parameter block does not hold */
    assert_null(stw_plan_cache_take(&context->plans, &class));
    other.scale = 0;
    other.softcap = 3;
    assert_null(stw_plan_cache_take(&context->plans, &class));
    other.softcap = 0;
    other.stage_count = 1; /* and copies of inputs */
    assert_null(stw_plan_cache_take(&context->plans, &class));
    assert_int_equal(atomic_load(&slot->users), 0);
    stw_context_destroy(context);
}

static void a_hit_allocates_nothing(void **state) {
    (void)state;
    stw_context *context = context_of();
    const stw_attn_desc desc = of_heads(3);
    size_t size;
    assert_int_equal(bwd(context, &desc), STW_OK);
    assert_int_equal(fwd(context, &desc), STW_OK);
    allocations = 0;
    until_failure = 1;
    assert_int_equal(bwd(context, &desc), STW_OK);
    assert_int_equal(fwd(context, &desc), STW_OK);
    assert_int_equal(stw_attn_bwd_once_workspace(context, &desc, &size), STW_OK);
    assert_int_equal(allocations, 0);
    const stw_attn_desc other = of_heads(4);
    assert_int_equal(bwd(context, &other), STW_E_NO_MEMORY); /* the plan: its only allocation */
    assert_non_null(strstr(stw_last_error(), "no memory"));
    assert_int_equal(bwd(context, &other), STW_OK);
    stw_context_destroy(context);
}

/* ---- threads and fork ---- */

enum { THREADS = 64, CLASSES = STW_PLAN_CACHE_SLOTS + 40 };
static int rounds = 300; /* calls of each thread */

static void *hammer(void *data) {
    stw_context *context = data;
    static atomic_uint number;
    uint64_t random = 88172645463325252u + 977 * ++number;
    for (int n = 0; n < rounds; ++n) {
        random ^= random << 13, random ^= random >> 7, random ^= random << 17;
        const stw_attn_desc desc = of_heads(1 + (int64_t)(random % (n & 64 ? CLASSES : 8)));
        if (random >> 63 ? bwd(context, &desc) : fwd(context, &desc)) ++wrong_plans;
    }
    return NULL;
}

static void many_threads(void **state) {
    (void)state;
    stw_context *context = context_of();
    pthread_t threads[THREADS];
    fake.attn_bwd = fake.attn_fwd = fake_run;
    for (int i = 0; i < THREADS; ++i) assert_int_equal(pthread_create(&threads[i], NULL, hammer, context), 0);
    for (int i = 0; i < THREADS; ++i) pthread_join(threads[i], NULL);
    fake.attn_fwd = kept_run;
    assert_int_equal(runs, THREADS * rounds);
    assert_int_equal(wrong_plans, 0);
    for (size_t i = 0; i < STW_PLAN_CACHE_SLOTS; ++i) assert_int_equal(atomic_load(&context->plans.slot[i].users), 0);
    stw_context_destroy(context);
}

/* Forked while another thread replaces a plan: that slot is out of use in the child, and nothing waits. */
static void forked_in_the_middle(void **state) {
    (void)state;
    stw_context *context = context_of();
    stw_attn_desc desc = of_heads(3);
    assert_int_equal(bwd(context, &desc), STW_OK);
    atomic_store(&context->plans.slot[0].users, 1u << 31);
    stw_plan *torn = context->plans.slot[0].plan;
    assert_int_equal(plans_anew(context, &desc), 1);
    assert_int_equal(plans_anew(context, &desc), 0);
    fflush(NULL);
    pid_t pid = fork();
    if (!pid) {
        alarm(60);
        int wrong = plans_anew(context, &desc) != 0;
        for (int64_t heads = 4; heads < 4 + STW_PLAN_CACHE_SLOTS; ++heads) {
            desc = of_heads(heads);
            wrong |= plans_anew(context, &desc) != 1;
        }
        wrong |= context->plans.slot[0].plan != torn;
        stw_context_destroy(context); /* leaves that plan alone */
        free(torn);
        _exit(wrong);
    }
    int status = -1;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    atomic_store(&context->plans.slot[0].users, 0);
    stw_context_destroy(context);
}

/* An argument: so many calls a thread, and the test of threads alone. */
int main(int argc, char **argv) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, prepare, finish)
    const struct CMUnitTest tests[] = {
        TEST(calls_of_a_class_share_a_plan),
        TEST(unused_fields_do_not_tell_calls_apart),
        TEST(strides_that_follow_from_sizes),
        TEST(dense_sides_are_exact),
        TEST(rules_cut_classes),
        TEST(refusals),
        TEST(the_one_used_longest_ago_makes_place),
        TEST(plans_in_use_stay),
        TEST(plan_made_meanwhile),
        TEST(classes_of_one_hash),
        TEST(a_hit_allocates_nothing),
        TEST(many_threads),
        TEST(forked_in_the_middle),
    };
    const struct CMUnitTest threads[] = {TEST(many_threads)};
    if (argc > 1) rounds = atoi(argv[1]);
    return argc > 1 ? cmocka_run_group_tests(threads, NULL, NULL) : cmocka_run_group_tests(tests, NULL, NULL);
}
