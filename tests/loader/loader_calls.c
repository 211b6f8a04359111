/* SPDX-License-Identifier: MIT
 *
 * loader_tool's commands that plan and run on a fake GPU, through the public calls only:
 *   hip               what follows is on the HIP device, not the CUDA one
 *   plain, dropout    what follows is without dropout: Hopper's own main loop; with it and a large softcap, as at first
 *   work [TIMES]      the whole life of a context, a line for each call: "CALL STATUS text"; a call whose
 *                     input an earlier failure has taken away is not made. Several rounds in one process.
 *   foreign           tensors and a stream of a second device, host memory: one line each
 *   gone              a destroyed stream in every call that takes one, and the same call with a good one
 *                     (HIP's fake)
 *   kinds             managed and page-locked memory as a tensor and as the workspace (HIP's fake)
 *   flags             memory of hipExtMallocWithFlags, and managed, as an array that is read and as one that
 *                     is written
 *   mapped            the same of memory of hipMemMap, for writing and for reading alone, and of pageable memory
 *   lost              launches, loses the device at the next call, and goes on
 *   child             runs, forks, and runs in the child
 *   overhead          nanoseconds of a run call, of one with every tensor, of a plan call, of 3000 cycles,
 *                     and of stw_attn_bwd_once of a class that was met
 *   first             microseconds of the first context, plan and run of the process
 */
#include "loader_calls.h"

#include "sternway/sternway.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { Q, K, V, OUT, DOUT, LSE, DQ, DK, DV, MASK, WORKSPACE, BUFFERS, BYTES = 1 << 20 };

static stw_backend backend = STW_BACKEND_CUDA;
static int without_dropout;

typedef struct life {
    stw_context *context;
    stw_plan *bwd, *fwd;
    stw_stream stream;
    void *buffer[BUFFERS];
} life;

static int say(const char *call, stw_status status) {
    printf("%s %s %s\n", call, stw_status_name(status), status ? stw_last_error() : "");
    return status == STW_OK;
}

static stw_attn_desc desc_of(void) {
    stw_attn_desc desc = STW_INIT(stw_attn_desc);
    desc.dtype = STW_BF16;
    desc.batch = 1;
    desc.heads_q = desc.heads_kv = 2;
    desc.head_dim_qk = desc.head_dim_v = 128;
    desc.max_seq_q = 65;
    desc.max_seq_kv = 130; /* more keys than Hopper's kernels of short sequences take */
    desc.dropout_p = without_dropout ? 0 : 0.25;
    /* beside dropout: CDNA's own main loop takes it, Hopper's takes none so large, and the shared kernels run */
    desc.softcap = without_dropout ? 0 : backend == STW_BACKEND_HIP ? 9 : 1024;
    stw_layout_bshd(&desc);
    return desc;
}

static stw_attn_args args_of(const life *l) {
    stw_attn_args args = STW_INIT(stw_attn_args);
    args.q = l->buffer[Q];
    args.k = l->buffer[K];
    args.v = l->buffer[V];
    args.out = l->buffer[OUT];
    args.dout = l->buffer[DOUT];
    args.lse = l->buffer[LSE];
    args.dq = l->buffer[DQ];
    args.dk = l->buffer[DK];
    args.dv = l->buffer[DV];
    return args;
}

static stw_status context_on(int device, stw_context **context_out) {
    stw_context_opts opts = STW_INIT(stw_context_opts);
    opts.memory = STW_MEMORY_DEVICE;
    opts.backend = backend;
    opts.flags = STW_CONTEXT_HAS_DEVICE;
    opts.device = device;
    return stw_context_create(&opts, context_out);
}

static void end(life *l) {
    for (int i = 0; i < BUFFERS; ++i)
        if (l->buffer[i]) say("free", stw_buffer_free(l->context, l->buffer[i]));
    if (l->stream) say("stream_destroy", stw_stream_destroy(l->context, l->stream));
    stw_plan_destroy(l->bwd);
    stw_plan_destroy(l->fwd);
    stw_context_destroy(l->context);
}

/* 1 when everything is there to run with. */
static int start(life *l) {
    stw_attn_desc desc = desc_of();
    memset(l, 0, sizeof *l);
    int fine = say("context", context_on(0, &l->context));
    if (!fine) return 0;
    fine &= say("bwd_plan", stw_attn_bwd_plan(l->context, &desc, &l->bwd));
    fine &= say("fwd_plan", stw_attn_fwd_plan(l->context, &desc, &l->fwd));
    for (int i = 0; i < BUFFERS; ++i) fine &= say("alloc", stw_buffer_alloc(l->context, BYTES, &l->buffer[i]));
    return fine & say("stream", stw_stream_create(l->context, &l->stream));
}

static int run(const life *l, stw_stream stream) {
    stw_attn_args args = args_of(l);
    return say("bwd", stw_attn_bwd(l->bwd, &args, l->buffer[WORKSPACE], BYTES, stream));
}

static stw_status once(const life *l, const stw_attn_desc *desc) {
    stw_attn_args args = args_of(l);
    return stw_attn_bwd_once(l->context, desc, &args, l->buffer[WORKSPACE], BYTES, l->stream);
}

/* A function of the fake library that is loaded. */
static void *fake_function(const char *library, const char *name) {
    void *handle = dlopen(library, RTLD_NOW | RTLD_NOLOAD), *function = handle ? dlsym(handle, name) : NULL;
    if (handle) dlclose(handle);
    return function;
}

/* The current context or device of this thread, as the fake has it: the library never leaves one behind. */
static void say_current(void) {
    int changed = 0, device = 0, error = 0;
    if (backend == STW_BACKEND_HIP) {
        void (*state)(int *, int *);
        static const char *const names[] = {"libamdhip64.so.8", "libamdhip64.so.7", "libamdhip64.so.6",
                                            "libamdhip64.so.5"};
        void *symbol = NULL;
        for (int i = 0; i < 4 && !symbol; ++i) symbol = fake_function(names[i], "hipFakeState");
        memcpy(&state, &symbol, sizeof state);
        if (symbol) state(&device, &error);
        changed = device != atoi(getenv("FAKE_HIP_CURRENT") ? getenv("FAKE_HIP_CURRENT") : "0");
        if (error) printf("last error %d is left\n", error);
    } else {
        void *context = NULL, *symbol = fake_function("libcuda.so.1", "cuCtxGetCurrent");
        int (*get)(void **);
        memcpy(&get, &symbol, sizeof get);
        if (symbol) get(&context);
        changed = context != NULL;
    }
    printf("current %s\n", changed ? "changed" : "as before");
}

static void work(void) {
    life l;
    char host[64] = "to the device and back", back[64] = "";
    if (start(&l)) {
        stw_attn_args args = args_of(&l);
        int copied = say("copy", stw_copy(l.context, l.buffer[Q], host, sizeof host, l.stream));
        say("fwd", stw_attn_fwd(l.fwd, &args, l.buffer[WORKSPACE], BYTES, l.stream));
        run(&l, l.stream);
        run(&l, NULL);
        if (!without_dropout) say("mask", stw_dropout_mask(l.bwd, &args, l.buffer[MASK], l.stream));
        copied &= say("copy", stw_copy(l.context, back, l.buffer[Q], sizeof back, l.stream));
        copied &= say("synchronize", stw_stream_synchronize(l.context, l.stream));
        if (copied && memcmp(host, back, sizeof host)) printf("other bytes came back\n");
    }
    say_current();
    end(&l);
}

static void foreign(void) {
    life l, other = {0};
    if (!start(&l) || !say("context", context_on(1, &other.context))) return;
    void *there = NULL;
    char here[64];
    say("alloc", stw_buffer_alloc(other.context, BYTES, &there));
    say("stream", stw_stream_create(other.context, &other.stream));
    stw_attn_args args = args_of(&l), bad = args;
    void *workspace = l.buffer[WORKSPACE];
    bad.dq = there;
    say("dq", stw_attn_bwd(l.bwd, &bad, workspace, BYTES, l.stream));
    bad = args;
    bad.k = here;
    say("k", stw_attn_bwd(l.bwd, &bad, workspace, BYTES, l.stream));
    bad = args;
    bad.dropout_seed_ptr = there;
    say("seed", stw_attn_bwd(l.bwd, &bad, workspace, BYTES, l.stream));
    say("workspace", stw_attn_bwd(l.bwd, &args, there, BYTES, l.stream));
    say("stream", stw_attn_bwd(l.bwd, &args, workspace, BYTES, other.stream));
    say("mask", stw_dropout_mask(l.bwd, &args, there, l.stream));
    say("fwd", stw_attn_fwd(l.fwd, &bad, workspace, BYTES, other.stream));
    run(&l, l.stream);
    say("free", stw_buffer_free(l.context, here));
    say("free", stw_buffer_free(other.context, there));
    say("stream_destroy", stw_stream_destroy(other.context, other.stream));
    stw_context_destroy(other.context);
    end(&l);
}

static void gone(void) {
    life l;
    stw_stream stream = NULL;
    char host[8] = "";
    if (!start(&l) || !say("stream", stw_stream_create(l.context, &stream))) return;
    say("stream_destroy", stw_stream_destroy(l.context, stream));
    stw_attn_args args = args_of(&l);
    const stw_stream tried[] = {stream, l.stream, host /* never one */, l.stream};
    for (int i = 0; i < 4; ++i) {
        printf("%s\n", i % 2 ? "good" : "bad");
        run(&l, tried[i]);
        say("fwd", stw_attn_fwd(l.fwd, &args, l.buffer[WORKSPACE], BYTES, tried[i]));
        say("mask", stw_dropout_mask(l.bwd, &args, l.buffer[MASK], tried[i]));
        say("copy", stw_copy(l.context, l.buffer[Q], host, sizeof host, tried[i]));
        say("synchronize", stw_stream_synchronize(l.context, tried[i]));
        if (i % 2 == 0) say("stream_destroy", stw_stream_destroy(l.context, tried[i]));
    }
    say_current();
    end(&l);
}

static void kinds(void) {
    life l;
    char managed = 'M', host = 'H';
    if (!start(&l)) return;
    stw_copy(l.context, l.buffer[Q], &managed, 1, l.stream);
    run(&l, l.stream);
    stw_copy(l.context, l.buffer[WORKSPACE], &managed, 1, l.stream);
    run(&l, l.stream);
    stw_copy(l.context, l.buffer[Q], &host, 1, l.stream);
    run(&l, l.stream);
    end(&l);
}

static void mark_arrays(const char *marks, int count) {
    static const char plain = 0;
    static const int arrays[] = {Q, LSE /* the forward's */, DQ, MASK, WORKSPACE};
    life l;
    if (!start(&l)) return;
    stw_attn_args args = args_of(&l);
    for (int m = 0; m < count; ++m) {
        printf("%c\n", marks[m]);
        for (int i = 0; i < 5; ++i) {
            stw_copy(l.context, l.buffer[arrays[i]], &marks[m], 1, l.stream);
            run(&l, l.stream);
            say("fwd", stw_attn_fwd(l.fwd, &args, NULL, 0, l.stream));
            say("mask", stw_dropout_mask(l.bwd, &args, l.buffer[MASK], l.stream));
            stw_copy(l.context, l.buffer[arrays[i]], &plain, 1, l.stream);
        }
    }
    end(&l);
}

static void flags(void) { mark_arrays("FUCXM", 5); }
static void mapped(void) { mark_arrays("VRP", 3); }

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

/* What a call that is refused says, each time the same, and whether it is slower than the slowest yet: the
 * fastest of some tries, since the machine may be busy. */
#define REFUSED(slowest, status, name, call)                                                                           \
    do {                                                                                                               \
        double fastest = 1e12, took;                                                                                   \
        say(name, call);                                                                                               \
        for (int i = 0; i < 20; ++i) {                                                                                 \
            took = now();                                                                                              \
            if ((call) != (status)) printf("%s: another status the next time\n", name);                                \
            took = now() - took, fastest = took < fastest ? took : fastest;                                            \
        }                                                                                                              \
        slowest = fastest > slowest ? fastest : slowest;                                                               \
    } while (0)

/* Every kind of call after the loss. */
static void lost(void) {
    life l;
    stw_attn_desc desc = desc_of();
    if (!start(&l)) return;
    run(&l, l.stream);
    say("once", once(&l, &desc));
    setenv("FAKE_FAIL", "cuStreamSynchronize:700,hipStreamSynchronize:700", 1);
    say("synchronize", stw_stream_synchronize(l.context, l.stream));
    setenv("FAKE_FAIL", "", 1);
    printf("-\n");
    fflush(stdout);
    char log[512];
    snprintf(log, sizeof log, "%s", getenv("FAKE_LOG"));
    setenv("FAKE_LOG", "/dev/full", 1); /* a driver call from here on aborts the process */
    double slowest = 0;
    stw_attn_args args = args_of(&l);
    stw_plan *plan = NULL;
    void *pointer = NULL;
    stw_stream stream = NULL;
    REFUSED(slowest, STW_E_DEVICE_LOST, "bwd", stw_attn_bwd(l.bwd, &args, l.buffer[WORKSPACE], BYTES, l.stream));
    REFUSED(slowest, STW_E_DEVICE_LOST, "fwd", stw_attn_fwd(l.fwd, &args, l.buffer[WORKSPACE], BYTES, l.stream));
    REFUSED(slowest, STW_E_DEVICE_LOST, "mask", stw_dropout_mask(l.bwd, &args, l.buffer[MASK], l.stream));
    REFUSED(slowest, STW_E_DEVICE_LOST, "once", once(&l, &desc));
    REFUSED(slowest, STW_E_DEVICE_LOST, "plan", stw_attn_bwd_plan(l.context, &desc, &plan));
    REFUSED(slowest, STW_E_DEVICE_LOST, "alloc", stw_buffer_alloc(l.context, BYTES, &pointer));
    REFUSED(slowest, STW_E_DEVICE_LOST, "free", stw_buffer_free(l.context, l.buffer[Q]));
    REFUSED(slowest, STW_E_DEVICE_LOST, "copy", stw_copy(l.context, l.buffer[Q], &l, 8, l.stream));
    REFUSED(slowest, STW_E_DEVICE_LOST, "stream", stw_stream_create(l.context, &stream));
    REFUSED(slowest, STW_E_DEVICE_LOST, "synchronize", stw_stream_synchronize(l.context, l.stream));
    REFUSED(slowest, STW_E_DEVICE_LOST, "stream_destroy", stw_stream_destroy(l.context, l.stream));
    setenv("FAKE_LOG", log, 1);
    printf("%s\n", slowest < 1e6 ? "under 1 ms" : "slow");
    stw_plan_destroy(l.bwd);
    stw_plan_destroy(l.fwd);
    stw_context_destroy(l.context); /* buffers and the stream died with the device */
}

static void child(void) {
    life l;
    stw_attn_desc desc = desc_of(), other = desc;
    other.batch = 3;
    if (!start(&l)) return;
    run(&l, l.stream);
    say("once", once(&l, &desc));
    fflush(stdout);
    pid_t pid = fork();
    if (!pid) {
        stw_stream stream = NULL;
        alarm(120);                         /* one that waits for a lock would wait for ever */
        setenv("FAKE_LOG", "/dev/full", 1); /* a driver call from here on aborts the process */
        double slowest = 0;
        stw_attn_args args = args_of(&l);
        REFUSED(slowest, STW_E_FORKED, "bwd", stw_attn_bwd(l.bwd, &args, l.buffer[WORKSPACE], BYTES, l.stream));
        REFUSED(slowest, STW_E_FORKED, "once", once(&l, &desc));
        REFUSED(slowest, STW_E_FORKED, "once", once(&l, &other)); /* not planned yet */
        REFUSED(slowest, STW_E_FORKED, "stream", stw_stream_create(l.context, &stream));
        printf("refused %s\n", slowest < 1e9 ? "under 1 s" : "slowly");
        end(&l);
        fflush(stdout);
        _exit(0);
    }
    int status = -1;
    waitpid(pid, &status, 0);
    printf("child %d\n", WIFEXITED(status) ? WEXITSTATUS(status) : -1);
    run(&l, l.stream);
    end(&l);
}

enum { BATCHES = 200, CALLS = 100 };

/* The fastest of many batches: what the code costs without the machine's other work. */
static double fastest_run(const stw_plan *plan, const stw_attn_args *args, void *workspace, stw_stream stream) {
    double fastest = 1e12;
    for (int batch = 0; batch < BATCHES; ++batch) {
        double before = now();
        for (int i = 0; i < CALLS; ++i)
            if (stw_attn_bwd(plan, args, workspace, BYTES, stream)) return 1e12;
        double took = (now() - before) / CALLS;
        fastest = took < fastest ? took : fastest;
    }
    return fastest;
}

static double fastest_plan(stw_context *context, const stw_attn_desc *desc) {
    double fastest = 1e12;
    for (int batch = 0; batch < BATCHES; ++batch) {
        double before = now();
        for (int i = 0; i < CALLS; ++i) {
            stw_plan *plan = NULL;
            if (stw_attn_bwd_plan(context, desc, &plan)) return 1e12;
            stw_plan_destroy(plan);
        }
        double took = (now() - before) / CALLS;
        fastest = took < fastest ? took : fastest;
    }
    return fastest;
}

/* Everything that a call can point to: the most that is checked and bound. */
static stw_attn_desc rich_desc_of(int64_t total) {
    stw_attn_desc desc = desc_of();
    desc.total_q = desc.total_kv = total;
    desc.bias_dtype = STW_F32;
    desc.flags = STW_ATTN_ALIBI | STW_ATTN_SINK | STW_ATTN_DLSE | STW_ATTN_WRITE_DELTA | STW_ATTN_HAS_USED_LENGTHS;
    desc.outputs = STW_OUT_DQ | STW_OUT_DK | STW_OUT_DV | STW_OUT_DBIAS | STW_OUT_DSINK;
    stw_layout_thd(&desc);
    return desc;
}

static stw_attn_args rich_args_of(const life *l) {
    stw_attn_args args = args_of(l);
    char *spare = l->buffer[MASK];
    void *const at[] = {spare,         spare + 4096,  spare + 8192,  spare + 12288, spare + 16384,
                        spare + 20480, spare + 24576, spare + 28672, spare + 32768, spare + 36864,
                        spare + 40960, spare + 45056, spare + 49152, spare + 53248, spare + 131072};
    args.dlse = at[0], args.delta = at[1], args.alibi_slopes = at[2], args.sink = at[3];
    args.cu_seqlens_q = at[4], args.cu_seqlens_kv = at[5], args.used_q = at[6], args.used_kv = at[7];
    args.q_offsets = at[8], args.k_offsets = at[9], args.dropout_seed_ptr = at[10];
    args.dropout_offset_ptr = at[11], args.dsink = at[12], args.status_out = at[13];
    args.bias = at[14], args.dbias = spare + 524288;
    return args;
}

static double fastest_rich_run(const life *l) {
    const stw_attn_desc desc = rich_desc_of(65);
    const stw_attn_args args = rich_args_of(l);
    stw_plan *plan = NULL;
    if (stw_attn_bwd_plan(l->context, &desc, &plan)) return 1e12;
    double fastest = fastest_run(plan, &args, l->buffer[WORKSPACE], l->stream);
    stw_plan_destroy(plan);
    return fastest;
}

/* Totals that differ from call to call and share a class, after so many others as there is room for. */
static double fastest_once(const life *l) {
    const stw_attn_args args = rich_args_of(l);
    stw_attn_desc desc;
    double fastest = 1e12;
    size_t size;
    for (int64_t n = 1; n < 64; ++n) {
        desc = rich_desc_of(1024 * n);
        if (stw_attn_bwd_once_workspace(l->context, &desc, &size)) return 1e12;
    }
    for (int batch = 0; batch < BATCHES; ++batch) {
        desc = rich_desc_of(65 + batch % 7);
        double before = now();
        for (int i = 0; i < CALLS; ++i)
            if (stw_attn_bwd_once(l->context, &desc, &args, l->buffer[WORKSPACE], BYTES, l->stream)) return 1e12;
        double took = (now() - before) / CALLS;
        fastest = took < fastest ? took : fastest;
    }
    return fastest;
}

/* Nanoseconds of 1000 multiplications each of which waits for the one before: 3 cycles each on any x86-64 of
 * today. */
static double yardstick(void) {
    double fastest = 1e12;
    for (int batch = 0; batch < BATCHES; ++batch) {
        unsigned long product = (unsigned long)batch;
        double before = now();
        for (int i = 0; i < 1000; ++i) {
            product *= 0x9E3779B9ul;
            __asm__ volatile("" : "+r"(product)); /* each is made */
        }
        double took = now() - before;
        fastest = took < fastest ? took : fastest;
    }
    return fastest;
}

typedef struct checked {
    const char *data;
    int64_t stride[4];
    uint32_t rows, dtype, overlaps;
} checked;

/* What a run call does with its tensors, of 200: addresses, extents and overlaps of neighbours, and a copy. */
static uint32_t check_all(const checked *from, checked *to, int count) {
    uint32_t overlaps = 0;
    for (int i = 0; i < count; ++i) {
        const checked *t = from + i;
        int64_t extent = 0;
        __asm__ volatile("" ::: "memory"); /* each is read */
        if (!t->data || (uintptr_t)t->data & (t->dtype == 1 ? 3 : 1)) return UINT32_MAX;
        for (int d = 0; d < 4; ++d) {
            if (t->stride[d] < 0) return UINT32_MAX;
            extent += t->stride[d] * (t->rows + d);
            __asm__ volatile("" : "+r"(extent)); /* one at a time */
        }
        for (int j = i + 1; j < count && j < i + 4; ++j)
            if (from[j].data < t->data + extent && t->data < from[j].data + 1) overlaps |= 1u << (i & 31);
        to[i] = *t;
        to[i].overlaps |= overlaps;
    }
    return overlaps;
}

/* Nanoseconds of such a check: a processor of 3 GHz that makes fewer instructions a cycle, or whose core another
 * machine's work shares, has more than 1000. */
static double yardstick_of_checks(void) {
    enum { COUNT = 200 };
    static checked from[COUNT], to[COUNT];
    double fastest = 1e12;
    for (int i = 0; i < COUNT; ++i) from[i] = (checked){(const char *)from + 4096 * (i + 1), {1, 2, 3, 4}, 7, 1, 0};
    for (int batch = 0; batch < BATCHES; ++batch) {
        double before = now();
        if (check_all(from, to, COUNT)) return 1e12;
        double took = now() - before;
        fastest = took < fastest ? took : fastest;
    }
    return fastest;
}

static void overhead(void) {
    life l;
    stw_attn_desc desc = desc_of();
    if (!start(&l)) return;
    stw_attn_args args = args_of(&l);
    double plain = fastest_run(l.bwd, &args, l.buffer[WORKSPACE], l.stream), rich = fastest_rich_run(&l);
    double once = fastest_once(&l);
    printf("run %.0f rich %.0f once %.0f plan %.0f yardsticks %.0f %.0f\n", plain, rich, once,
           fastest_plan(l.context, &desc), yardstick(), yardstick_of_checks());
    end(&l);
}

/* Of this process alone: a busy machine does not make it longer. */
static double own_microseconds(void) {
    struct timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return (double)time.tv_sec * 1e6 + (double)time.tv_nsec * 1e-3;
}

static void first(void) {
    life l;
    double before = own_microseconds();
    if (!start(&l) || !run(&l, l.stream)) return;
    say("synchronize", stw_stream_synchronize(l.context, l.stream));
    printf("first %.0f us\n", own_microseconds() - before);
    end(&l);
}

int loader_call(const char *command, int times) {
    static const struct {
        const char *name;
        void (*run)(void);
    } rows[] = {{"work", work},     {"foreign", foreign}, {"gone", gone},   {"kinds", kinds},       {"flags", flags},
                {"mapped", mapped}, {"lost", lost},       {"child", child}, {"overhead", overhead}, {"first", first}};
    if (!strcmp(command, "hip")) return backend = STW_BACKEND_HIP, 1;
    if (!strcmp(command, "plain")) return without_dropout = 1;
    if (!strcmp(command, "dropout")) return without_dropout = 0, 1;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
        if (strcmp(rows[i].name, command)) continue;
        for (int n = 0; n < (times ? times : 1); ++n) rows[i].run();
        return 1;
    }
    return 0;
}
