/* SPDX-License-Identifier: MIT
 *
 * Calls over ranks on a fake CUDA driver: which of the driver's functions a call asks and in which order, what becomes
 * of each one's failure, and that a plan gives back what it took. ctest sets LD_LIBRARY_PATH and FAKE_CUDA_DEVICES. */
#include "sternway/sternway.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static char log_path[] = "/tmp/sternway_cp_calls_XXXXXX";
static int fails, groups; /* the transport's next group_end; how many began */

static void note(const char *line) {
    FILE *file = fopen(log_path, "a");
    if (!file) abort();
    fprintf(file, "wire:%s\n", line);
    fclose(file);
}

static int group_begin(void *user) {
    (void)user;
    groups++;
    note("group_begin");
    return 0;
}
static int send_bytes(void *user, const void *from, size_t bytes, int32_t peer, stw_stream stream) {
    (void)user, (void)from, (void)bytes, (void)peer;
    note(stream ? "send" : "send in the caller's stream");
    return 0;
}
static int recv_bytes(void *user, void *to, size_t bytes, int32_t peer, stw_stream stream) {
    (void)user, (void)to, (void)bytes, (void)peer;
    note(stream ? "recv" : "recv in the caller's stream");
    return 0;
}
static int group_end(void *user, stw_stream stream) {
    (void)user, (void)stream;
    note("group_end");
    return fails;
}
/* The other rank's descriptor is this one's. */
static int all_gather(void *user, const void *from, void *to, size_t bytes, stw_stream stream) {
    (void)user, (void)stream;
    note("all_gather");
    for (int r = 0; r < 2; ++r) memcpy((char *)to + (size_t)r * bytes, from, bytes);
    return 0;
}
static int wait_on_host(void *user, stw_stream stream) {
    (void)user, (void)stream;
    return 0;
}

typedef struct setting {
    stw_context *context;
    stw_cp *cp;
    stw_cp_plan *plan;
    stw_attn_args args;
    void *buffers[10], *workspace;
    size_t size;
    stw_status status; /* of the plan */
} setting;

enum { ROWS = 64, HEADS = 2, DIM = 64 };

typedef enum call { BACKWARD, FORWARD } call;

static stw_status run(setting *s, call which) {
    return which == FORWARD ? stw_cp_attn_fwd(s->plan, &s->args, s->workspace, s->size, NULL)
                            : stw_cp_attn_bwd(s->plan, &s->args, s->workspace, s->size, NULL);
}

/* `rows`, `keys`: of this rank, in two chunks. */
static void set_up_lengths(setting *s, call which, int waits, int64_t rows, int64_t keys, stw_attn_mask mask) {
    stw_cp_transport wire = STW_INIT(stw_cp_transport);
    stw_context_opts opts = STW_INIT(stw_context_opts);
    stw_attn_desc attn = STW_INIT(stw_attn_desc);
    stw_cp_desc desc = STW_INIT(stw_cp_desc);
    memset(s, 0, sizeof *s);
    opts.backend = STW_BACKEND_CUDA;
    opts.memory = STW_MEMORY_DEVICE;
    if (stw_context_create(&opts, &s->context)) fail_msg("%s", stw_last_error());
    wire.name = "written down";
    wire.group_begin = group_begin;
    wire.send = send_bytes;
    wire.recv = recv_bytes;
    wire.group_end = group_end;
    wire.all_gather = all_gather;
    if (waits) wire.wait = wait_on_host;
    assert_int_equal(stw_cp_create(&wire, 0, 2, &s->cp), STW_OK);
    attn.dtype = STW_BF16;
    attn.batch = 1;
    attn.heads_q = attn.heads_kv = HEADS;
    attn.head_dim_qk = attn.head_dim_v = DIM;
    attn.max_seq_q = rows;
    attn.max_seq_kv = keys;
    attn.mask = mask;
    assert_int_equal(stw_layout_bshd(&attn), STW_OK);
    desc.attn = &attn;
    desc.seq_q = 2 * rows;
    desc.seq_kv = 2 * keys;
    desc.order = STW_CP_ZIGZAG;
    desc.schedule = STW_CP_RING;
    s->status = which == FORWARD ? stw_cp_attn_fwd_plan(s->cp, s->context, &desc, &s->plan)
                                 : stw_cp_attn_bwd_plan(s->cp, s->context, &desc, &s->plan);
    if (s->status) return;
    s->size = stw_cp_plan_workspace_size(s->plan);
    for (int i = 0; i < 10; ++i)
        assert_int_equal(stw_buffer_alloc(s->context, (size_t)(rows * HEADS * DIM * 4), &s->buffers[i]), STW_OK);
    assert_int_equal(stw_buffer_alloc(s->context, s->size, &s->workspace), STW_OK);
    stw_attn_args a = STW_INIT(stw_attn_args);
    a.q = s->buffers[0];
    a.k = s->buffers[1];
    a.v = s->buffers[2];
    a.out = s->buffers[3];
    a.dout = s->buffers[4];
    a.lse = s->buffers[5];
    a.dq = s->buffers[6];
    a.dk = s->buffers[7];
    a.dv = s->buffers[8];
    s->args = a;
}

static void set_up_rows(setting *s, call which, int waits, int64_t rows, stw_attn_mask mask) {
    set_up_lengths(s, which, waits, rows, rows, mask);
}

static void set_up(setting *s, call which, int waits) { set_up_rows(s, which, waits, ROWS, STW_MASK_NONE); }

static void tear_down(setting *s) {
    for (int i = 0; i < 10; ++i)
        if (s->buffers[i]) stw_buffer_free(s->context, s->buffers[i]);
    if (s->workspace) stw_buffer_free(s->context, s->workspace);
    stw_cp_plan_destroy(s->plan);
    stw_cp_destroy(s->cp);
    stw_context_destroy(s->context);
}

static char text[1 << 18];

/* The log's lines, which begin anew. */
static const char *take_log(void) {
    FILE *file = fopen(log_path, "r");
    size_t length = file ? fread(text, 1, sizeof text - 1, file) : 0;
    text[length] = 0;
    if (file) fclose(file);
    if (truncate(log_path, 0)) abort();
    return text;
}

static int count(const char *log, const char *word) {
    int found = 0;
    char line[96];
    snprintf(line, sizeof line, ":%s\n", word);
    for (const char *at = log; (at = strstr(at, line)) != NULL; at += strlen(line)) ++found;
    return found;
}

static void a_call_asks_in_order(void **state) {
    setting s;
    (void)state;
    set_up(&s, BACKWARD, 0);
    if (s.status) fail_msg("%s", stw_last_error());
    const char *log = take_log();
    assert_int_equal(count(log, "cuStreamCreateWithPriority"), 1);
    assert_int_equal(count(log, "cuEventCreate"), 2);
    groups = 0;
    if (run(&s, BACKWARD)) fail_msg("%s", stw_last_error());
    log = take_log();
    static const char *const never[] = {"cuStreamSynchronize",        "cuMemAlloc_v2", "cuMemFree_v2",
                                        "cuStreamCreateWithPriority", "cuEventCreate", "cuMemcpyAsync",
                                        "cuModuleGetFunction",        "cuFuncLoad",    "cuStreamDestroy_v2",
                                        "cuEventDestroy_v2"};
    for (size_t i = 0; i < sizeof never / sizeof never[0]; ++i)
        if (count(log, never[i])) fail_msg("a call asks for %s", never[i]);
    /* the first tick: K and V; the last one: sums home */
    assert_int_equal(groups, 2);
    assert_null(strstr(log, "in the caller's stream"));
    assert_int_equal(count(log, "cuEventRecord"), 3 * groups);
    assert_int_equal(count(log, "cuStreamWaitEvent"), 3 * groups);
    /* a group begins behind an event of the caller's stream, whose kernels come behind the point where it may start
     * and which waits for it behind the tick's kernels */
    int hidden = 0;
    const char *begin = log;
    while ((begin = strstr(begin, "wire:group_begin\n")) != NULL) {
        char before[512];
        size_t back = (size_t)(begin - log) < sizeof before - 1 ? (size_t)(begin - log) : sizeof before - 1;
        snprintf(before, back + 1, "%s", begin - back);
        const char *record = strstr(before, "cuEventRecord"), *wait = strstr(before, "cuStreamWaitEvent");
        if (!record || !wait || strstr(wait, "launch ")) fail_msg("no event before a group: %s", before);
        if (!strstr(wait + 1, "cuStreamWaitEvent")) fail_msg("kernels do not let a group pass: %s", before);
        const char *end = strstr(begin, "wire:group_end\n"), *joined = strstr(end, ":cuEventRecord\n");
        assert_non_null(joined);
        for (const char *at = end; (at = strstr(at, ":launch stw_attn")) != NULL && at < joined; ++at) hidden++;
        begin = joined;
    }
    if (hidden < 4) fail_msg("%d kernels of attention run beside what is sent", hidden);
    tear_down(&s);
    log = take_log();
    assert_int_equal(count(log, "cuStreamDestroy_v2"), 1);
    assert_int_equal(count(log, "cuEventDestroy_v2"), 2);
}

static int count_launches(const char *log, const char *kernel) {
    char line[64];
    int found = 0;
    snprintf(line, sizeof line, ":launch %s", kernel);
    for (const char *at = log; (at = strstr(at, line)) != NULL; at += strlen(line)) ++found;
    return found;
}

/* Three parts: both chunks of rows against this rank's first chunk of keys, the second one against all keys of the
 * other rank, and against this rank's second chunk. Their query blocks are whole, and they add to sums that one kernel
 * ahead of all of them zeroes and one behind them makes dQ of. Chunks of 32 rows are no whole blocks, and of tensors
 * off 16 bytes other kernels make sums of another order: there each part has its last kernel, and delta is made of each
 * chunk of rows. */
static void parts_share_sums_of_dq(void **state) {
    enum { PARTS = 3 };
    static const char last[] = "stw_attn_bwd_postprocess", before[] = "stw_attn_bwd_preprocess",
                      key_sums[] = "stw_attn_bwd_postprocess_parts"; /* of work tiles in parts: dK and dV */
    static char described[1 << 14];
    (void)state;
    for (int whole = 0; whole < 2; ++whole) {
        setting s;
        set_up_rows(&s, BACKWARD, 0, whole ? 512 : 64, STW_MASK_CAUSAL_TOP_LEFT);
        if (s.status) fail_msg("%s", stw_last_error());
        assert_int_equal(stw_cp_plan_describe(s.plan, described, sizeof described, NULL), STW_OK);
        assert_int_equal(strstr(described, "\ndq: calls add to sums") != NULL, whole);
        for (int off = 0; off < 2; ++off) {
            take_log();
            s.args.q = (char *)s.buffers[0] + (off ? 2 : 0);
            if (run(&s, BACKWARD)) fail_msg("%s", stw_last_error());
            const char *log = take_log();
            const int shares = whole && !off,
                      lasts = count_launches(log, last) - shares * count_launches(log, key_sums);
            assert_int_equal(lasts, shares ? 1 : PARTS);
            assert_int_equal(count_launches(log, before), PARTS + (shares ? 1 : 2));
            const char *end = strstr(log, last);
            for (const char *next = end; next; next = strstr(end + 1, last)) end = next;
            if (shares) assert_null(strstr(end, before));
        }
        tear_down(&s);
    }
    take_log();
}

/* A row that sees no key of the whole problem has an LSE that nobody may read: then parts make statistics of their
 * own, which know what they see. */
static void statistics_are_kept_where_all_rows_see(void **state) {
    static char described[1 << 14];
    (void)state;
    for (int all = 0; all < 2; ++all) {
        setting s;
        set_up_lengths(&s, BACKWARD, 0, 512, all ? 512 : 256, STW_MASK_CAUSAL_BOTTOM_RIGHT);
        if (s.status) fail_msg("%s", stw_last_error());
        assert_int_equal(stw_cp_plan_describe(s.plan, described, sizeof described, NULL), STW_OK);
        assert_non_null(strstr(described, "\ndq: calls add to sums"));
        assert_int_equal(strstr(described, "\nstatistics: one kernel") != NULL, all);
        tear_down(&s);
    }
    take_log();
}

/* Kernels are looked up once a context, also those that the device cannot launch early where a plan asks for it. */
static void a_second_plan_loads_no_kernel(void **state) {
    stw_context_opts opts = STW_INIT(stw_context_opts);
    stw_attn_desc attn = STW_INIT(stw_attn_desc);
    stw_context *context;
    (void)state;
    opts.backend = STW_BACKEND_CUDA;
    opts.memory = STW_MEMORY_DEVICE;
    if (stw_context_create(&opts, &context)) fail_msg("%s", stw_last_error());
    attn.dtype = STW_BF16;
    attn.batch = 1;
    attn.heads_q = attn.heads_kv = HEADS;
    attn.head_dim_qk = attn.head_dim_v = DIM;
    attn.max_seq_q = attn.max_seq_kv = 512;
    assert_int_equal(stw_layout_bshd(&attn), STW_OK);
    for (int i = 0; i < 2; ++i) {
        stw_plan *plan;
        take_log();
        if (stw_attn_bwd_plan(context, &attn, &plan)) fail_msg("%s", stw_last_error());
        const int loaded = count(take_log(), "cuModuleGetFunction");
        if (i ? loaded : !loaded) fail_msg("plan %d asks for %d kernels", i, loaded);
        stw_plan_destroy(plan);
    }
    stw_context_destroy(context);
    take_log();
}

/* The forward moves K and V alone, in tick 0, and merges its parts in the caller's stream: four of two chunks of q
 * against two of this rank's own keys, beside what is sent, and behind it two against the other rank's keys, which are
 * one run. */
static void a_forward_merges_its_parts(void **state) {
    static const char merge[] = ":launch stw_cp_merge_part\n";
    setting s;
    float host[16];
    (void)state;
    set_up(&s, FORWARD, 0);
    if (s.status) fail_msg("%s", stw_last_error());
    take_log();
    groups = 0;
    if (run(&s, FORWARD)) fail_msg("%s", stw_last_error());
    const char *log = take_log();
    assert_int_equal(groups, 1);
    assert_int_equal(count(log, "cuEventRecord"), 3);
    assert_int_equal(count(log, "cuStreamWaitEvent"), 3);
    const char *end = strstr(log, "wire:group_end\n"), *joined = end ? strstr(end, ":cuStreamWaitEvent\n") : NULL;
    assert_non_null(joined);
    int beside = 0, behind = 0;
    for (const char *at = log; (at = strstr(at, merge)) != NULL; at += sizeof merge - 1)
        if (at > joined) ++behind;
        else if (at > end) ++beside;
    assert_int_equal(beside, 4);
    assert_int_equal(behind, 2);
    assert_int_equal(count(log, "launch stw_cp_merge_part"), beside + behind);
    s.args.v = host;
    assert_int_equal(run(&s, FORWARD), STW_E_INVALID);
    assert_non_null(strstr(stw_last_error(), "cp_attn_fwd: v "));
    assert_null(strstr(take_log(), "launch "));
    tear_down(&s);
    take_log();
}

static void each_failure_is_told(void **state) {
    static const struct {
        const char *function;
        int plans; /* what fails: the plan, else the call */
    } rows[] = {
        {"cuEventRecord", 0}, {"cuStreamWaitEvent", 0}, {"cuLaunchKernel", 0}, {"cuStreamCreateWithPriority", 1},
        {"cuEventCreate", 1}, {"cuMemAlloc_v2", 1},     {"cuMemcpyAsync", 1},  {"cuStreamSynchronize", 1},
        {"cuEventRecord", 1}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
        setting s;
        char plan[64];
        snprintf(plan, sizeof plan, "%s:304", rows[i].function); /* CUDA_ERROR_OPERATING_SYSTEM */
        if (rows[i].plans) setenv("FAKE_FAIL", plan, 1);
        set_up(&s, BACKWARD, 0);
        if (!rows[i].plans) {
            if (s.status) fail_msg("%s", stw_last_error());
            setenv("FAKE_FAIL", plan, 1);
            s.status = run(&s, BACKWARD);
        }
        if (s.status != STW_E_DRIVER || !strstr(stw_last_error(), rows[i].function))
            fail_msg("%s: %s: %s", rows[i].function, stw_status_name(s.status), stw_last_error());
        unsetenv("FAKE_FAIL");
        if (!rows[i].plans) { /* this rank is out of step with the others */
            assert_int_equal(run(&s, BACKWARD), STW_E_DRIVER);
            assert_non_null(strstr(stw_last_error(), "the transport has failed before"));
        }
        tear_down(&s);
        const char *log = take_log();
        static const char create[] = "cuStreamCreateWithPriority";
        int created = count(log, create) - !strcmp(rows[i].function, create);
        assert_int_equal(count(log, "cuStreamDestroy_v2"), created);
    }
}

/* What a group that fails has begun may still run: the caller's stream waits for it. */
static void a_failed_group_is_joined(void **state) {
    setting s;
    (void)state;
    set_up(&s, BACKWARD, 0);
    take_log();
    fails = 1;
    stw_status status = run(&s, BACKWARD);
    fails = 0;
    assert_int_equal(status, STW_E_DRIVER);
    const char *end = strstr(take_log(), "wire:group_end\n");
    assert_non_null(end);
    assert_non_null(strstr(end, "cuEventRecord"));
    assert_non_null(strstr(end, "cuStreamWaitEvent"));
    assert_null(strstr(end, "launch "));
    tear_down(&s);
    take_log();
}

static void host_transports_and_host_memory_are_refused(void **state) {
    setting s;
    float host[16];
    (void)state;
    set_up(&s, BACKWARD, 1);
    assert_int_equal(s.status, STW_E_UNSUPPORTED);
    assert_non_null(strstr(stw_last_error(), "transport written down waits on the host"));
    tear_down(&s);
    set_up(&s, BACKWARD, 0);
    take_log();
    s.args.k = host;
    assert_int_equal(run(&s, BACKWARD), STW_E_INVALID);
    assert_non_null(strstr(stw_last_error(), "cp_attn_bwd: k "));
    assert_null(strstr(take_log(), "launch "));
    tear_down(&s);
    take_log();
}

int main(int argc, char **argv) {
    static const struct CMUnitTest once[] = {cmocka_unit_test(a_second_plan_loads_no_kernel)};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_call_asks_in_order),
        cmocka_unit_test(parts_share_sums_of_dq),
        cmocka_unit_test(statistics_are_kept_where_all_rows_see),
        cmocka_unit_test(a_second_plan_loads_no_kernel),
        cmocka_unit_test(a_forward_merges_its_parts),
        cmocka_unit_test(each_failure_is_told),
        cmocka_unit_test(a_failed_group_is_joined),
        cmocka_unit_test(host_transports_and_host_memory_are_refused),
    };
    int fd = mkstemp(log_path);
    if (fd < 0) return 1;
    close(fd);
    setenv("FAKE_LOG", log_path, 1);
    const int is_once = argc > 1 && !strcmp(argv[1], "once");
    int failed = is_once ? cmocka_run_group_tests_name("cuda_kernels_once", once, NULL, NULL)
                         : cmocka_run_group_tests_name("cp_gpu_calls", tests, NULL, NULL);
    unsetenv("FAKE_LOG");
    unlink(log_path);
    return failed;
}
