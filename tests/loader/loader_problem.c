/* SPDX-License-Identifier: MIT
 *
 * loader_tool's commands about one problem on the fake CUDA device, through the public calls. A problem is a
 * line of tools/problem/problem.h, taken for its descriptor; nothing reads what the tensors hold.
 *   why PROBLEM     stw_explain_attn's text: of a backward, why each variant is not taken
 *   plan PROBLEM    "plan STATUS text", then the lines of stw_plan_describe from "variant" on
 *   call PROBLEM [TENSOR BYTES [TIMES] | queries 0 | keys 0]
 *                   the same; "at NAME ADDRESS" of q, k, v, dout; "bwd STATUS text" of a backward call
 *                   (TENSOR starts so many bytes behind a multiple of 256; all tensors of that side are
 *                   null), or of so many alike, and what the library did in them: "took A allocations, L
 *                   locks; some before"
 *   once PROBLEM    the same, and once more without the plan: "once STATUS text", "took ..." The context has
 *                   met the class as a problem of a sequence more.
 * Lines of the log, where STERNWAY_LOG asks for them: "log LINE". */
#include "common/attn_packed.h"
#include "tools/problem/problem.h"
#include "loader_calls.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TENSORS = 9, ROOM = 16 << 20 }; /* a tensor, as long as the problem says: the workspace is apart from all */

/* The linker sends this program's own calls here, the library's among them; those of the fakes stay. */
static _Atomic int allocations, locks; /* of any thread */
void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *old, size_t bytes);
int __real_pthread_mutex_lock(pthread_mutex_t *lock);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *old, size_t bytes);
int __wrap_pthread_mutex_lock(pthread_mutex_t *lock);

void *__wrap_malloc(size_t bytes) {
    ++allocations;
    return __real_malloc(bytes);
}

void *__wrap_calloc(size_t count, size_t bytes) {
    ++allocations;
    return __real_calloc(count, bytes);
}

void *__wrap_realloc(void *old, size_t bytes) {
    ++allocations;
    return __real_realloc(old, bytes);
}

int __wrap_pthread_mutex_lock(pthread_mutex_t *lock) {
    ++locks;
    return __real_pthread_mutex_lock(lock);
}

static int say(const char *call, stw_status status) {
    printf("%s %s %s\n", call, stw_status_name(status), status ? stw_last_error() : "");
    return status == STW_OK;
}

static void describe(const stw_plan *plan) {
    char text[4000];
    stw_plan_describe(plan, text, sizeof text, NULL);
    const char *from = strstr(text, "variant: ");
    printf("%s", from ? from : "no variant\n");
}

/* The call once more, without a plan. */
static void call_once(stw_context *context, const stw_attn_desc *desc, const stw_attn_args *args) {
    stw_attn_desc other = *desc;
    void *workspace = NULL;
    size_t size = 0;
    ++other.batch;
    if (!say("ask", stw_attn_bwd_once_workspace(context, &other, &size)) ||
        !say("alloc", stw_buffer_alloc(context, size, &workspace)))
        return;
    int allocated = allocations, locked = locks;
    stw_status status = stw_attn_bwd_once(context, desc, args, workspace, size, NULL);
    allocated = allocations - allocated, locked = locks - locked;
    say("once", status);
    printf("took %d allocations, %d locks\n", allocated, locked);
    say("free", stw_buffer_free(context, workspace));
}

static void print_line(void *user, stw_log_level level, const char *line) {
    (void)user, (void)level;
    printf("log %s\n", line);
}

static void call(stw_context *context, const stw_plan *plan, const stw_attn_desc *desc, const char *name, int bytes,
                 int times) {
    stw_attn_args args = STW_INIT(stw_attn_args);
    static const char *const names[TENSORS] = {"q", "k", "v", "dout", "out", "lse", "dq", "dk", "dv"};
    char *at[TENSORS];
    void *memory = NULL, *workspace = NULL;
    if (!say("alloc", stw_buffer_alloc(context, 2 * TENSORS * ROOM, &memory)) ||
        !say("alloc", stw_buffer_alloc(context, stw_plan_workspace_size(plan), &workspace)))
        return;
    for (int i = 0; i < TENSORS; ++i) {
        at[i] = (char *)memory + i * ROOM + (strcmp(names[i], name) ? 0 : bytes);
        if (i < 4) printf("at %s %p\n", names[i], (void *)at[i]);
    }
    args.q = at[0], args.k = at[1], args.v = at[2], args.dout = at[3], args.out = at[4];
    args.lse = (float *)(void *)at[5], args.dq = at[6], args.dk = at[7], args.dv = at[8];
    if (!strcmp(name, "queries")) args.q = args.dout = NULL, args.out = args.dq = NULL;
    if (!strcmp(name, "keys")) args.k = args.v = NULL, args.dk = args.dv = NULL;
    int32_t *more = (int32_t *)(void *)((char *)memory + TENSORS * ROOM);
    if (stw_attn_is_packed(desc, 0)) args.cu_seqlens_q = more;
    if (stw_attn_is_packed(desc, 1)) args.cu_seqlens_kv = more + 1024;
    if (desc->flags & STW_ATTN_HAS_USED_LENGTHS) args.used_q = more + 2048, args.used_kv = more + 3072;
    int allocated = allocations, locked = locks;
    stw_status status = STW_OK;
    for (int i = 0; i < times && !status; ++i)
        status = stw_attn_bwd(plan, &args, workspace, stw_plan_workspace_size(plan), NULL);
    allocated = allocations - allocated, locked = locks - locked;
    say("bwd", status);
    printf("took %d allocations, %d locks; %s before\n", allocated, locked, allocations && locks ? "some" : "none");
    if (!strcmp(name, "once")) call_once(context, desc, &args);
    say("free", stw_buffer_free(context, memory));
    say("free", stw_buffer_free(context, workspace));
}

static void why(const stw_context_opts *opts, const stw_attn_desc *desc) {
    static char text[16384];
    say("explain", stw_explain_attn(opts, desc, text, sizeof text, NULL));
    printf("%s", text);
}

int loader_problem(char **word) {
    stw_context_opts opts = STW_INIT(stw_context_opts);
    stw_context *context = NULL;
    stw_plan *plan = NULL;
    stw_problem problem;
    int once = !strcmp(word[0], "once"), calls = once || !strcmp(word[0], "call"), asks = !strcmp(word[0], "why");
    if (!calls && !asks && strcmp(word[0], "plan")) return 0;
    opts.memory = STW_MEMORY_DEVICE;
    opts.backend = STW_BACKEND_CUDA;
    stw_set_log(print_line, NULL);
    if (!say("parse", stw_problem_parse(word[1], &problem))) return 1;
    if (asks) return why(&opts, &problem.desc), 1;
    if (say("context", stw_context_create(&opts, &context)) &&
        say("plan", problem.op == STW_PROBLEM_ATTN_FWD ? stw_attn_fwd_plan(context, &problem.desc, &plan)
                                                       : stw_attn_bwd_plan(context, &problem.desc, &plan))) {
        describe(plan);
        if (calls)
            call(context, plan, &problem.desc, word[once ? 0 : 2], atoi(word[3]), word[4][0] ? atoi(word[4]) : 1);
    }
    stw_plan_destroy(plan);
    stw_context_destroy(context);
    return 1;
}
