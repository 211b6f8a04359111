/* SPDX-License-Identifier: MIT
 *
 * stw_attn_bwd_once and stw_attn_fwd_once on the kernels: a call through the plan of its class, made for
 * other sizes, has the bits of a call through its own plan, and gradients are right by the reference. The
 * backend is that of STERNWAY_BACKEND (cuda:sm80, hip:gfx942, ...), emulated or real; without a GPU it is
 * skipped. */
#include "tools/verify/verify.h"

#include "common/size_class.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define OK(call)                                                                                                       \
    do {                                                                                                               \
        stw_status status = (call);                                                                                    \
        if (status) fail_msg("%s: " #call ": %s", line, stw_last_error());                                             \
    } while (0)

static stw_context *context;

/* Deterministic, so that bits compare. No size is its class's largest. */
static const char *const problems[] = {
    "attn_bwd:bf16:b17h2k1s45x51d64:thd:tq500:tk600:det",
    "attn_bwd:f16:b19h2s130x140d64:thd:tq700:tk710:causal_br:used:det",
    "attn_bwd:bf16:b17h2s33x35d128:thd:tq300:tk310:dropout0.3:map_mem_eff:det",
    "attn_bwd:f16:b17h2s37d64:thd:tq330:tk330:dropout0.2:map_flash2:det",
    "attn_bwd:bf16:b17h2s35x37d64:thd:tq300:tk310:bias_1hqk:grads_qkvbs:sink:det",
    "attn_bwd:f32:b17h1s33x50d40:thd:tq300:tk430:lse_local:dlse:dropout0.2:det",
    "attn_bwd:bf16:b17h2s45d64:thd:bhsd:tq500:tk500:wl9:wr3:det",
    "attn_bwd:bf16:b17h2s45x51d64:thd:tq500:tk600", /* alike on an emulator alone: is judged */
    "attn_fwd:bf16:b17h2k1s45x51d64:thd:tq500:tk600:causal_br",
    "attn_fwd:f32:b17h2s33x35d40:thd:tq300:tk310:lse_local:sink",
};

/* Plans the class for its largest sizes, where strides that hold for this call's sizes allow them. */
static void plan_the_class(const stw_attn_desc *of, int forward) {
    stw_attn_desc desc = *of;
    size_t size;
    desc.batch = stw_size_class(of->batch);
    desc.max_seq_q = stw_size_class(of->max_seq_q);
    desc.max_seq_kv = stw_size_class(of->max_seq_kv);
    desc.total_q = stw_size_class(of->total_q);
    desc.total_kv = stw_size_class(of->total_kv);
    assert_true(desc.batch > of->batch && desc.max_seq_q > of->max_seq_q && desc.total_q > of->total_q);
    (forward ? stw_attn_fwd_once_workspace : stw_attn_bwd_once_workspace)(context, &desc, &size);
}

/* Forwards are judged by `sternway conform`. */
static void store_and_judge(const char *line, const stw_verify_case *c, stw_verify_device *device,
                            unsigned char *after) {
    stw_verify_result result;
    int guards = 0;
    OK(stw_verify_device_store(device, after, 0xFF, &guards));
    assert_true(guards);
    assert_memory_not_equal(after, c->host, c->bytes);
    if (c->problem.op == STW_PROBLEM_ATTN_FWD) return;
    stw_verify_result_clear(&result);
    stw_verify_check_outputs(c, after, &result);
    if (result.outcome != STW_VERIFY_OK) fail_msg("%s: %s", line, result.text);
}

static void same_bits(const char *line) {
    stw_problem problem;
    stw_verify_case c;
    stw_verify_device device;
    stw_plan *plan = NULL;
    size_t size = 0;
    if (stw_problem_parse(line, &problem)) fail_msg("%s: no PROBLEM", line);
    problem.seed = 21;
    OK(stw_verify_build(&problem, &c));
    const stw_attn_desc *desc = &c.problem.desc;
    const int forward = problem.op == STW_PROBLEM_ATTN_FWD;
    plan_the_class(desc, forward);
    OK((forward ? stw_attn_fwd_once_workspace : stw_attn_bwd_once_workspace)(context, desc, &size));
    OK((forward ? stw_attn_fwd_plan : stw_attn_bwd_plan)(context, desc, &plan));
    assert_true(size >= stw_plan_workspace_size(plan));
    OK(stw_verify_device_open(context, c.bytes, size, &device));
    unsigned char *own = malloc(c.bytes), *shared = malloc(c.bytes);
    assert_true(own && shared);
    const stw_attn_args args = stw_verify_args(&c, device.arena);
    OK(stw_verify_device_load(&device, c.host, 0xFF));
    OK((forward ? stw_attn_fwd : stw_attn_bwd)(plan, &args, device.workspace, size, device.stream));
    store_and_judge(line, &c, &device, own);
    OK(stw_verify_device_load(&device, c.host, 0xFF));
    OK((forward ? stw_attn_fwd_once : stw_attn_bwd_once)(context, desc, &args, device.workspace, size, device.stream));
    store_and_judge(line, &c, &device, shared);
    const int ordered = forward || desc->deterministic == STW_DETERMINISTIC_ON;
    if (ordered && memcmp(own, shared, c.bytes)) fail_msg("%s: other bits", line);
    free(own);
    free(shared);
    stw_verify_device_close(&device);
    stw_plan_destroy(plan);
    stw_verify_free(&c);
}

static void calls_of_a_class(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof problems / sizeof problems[0]; ++i) same_bits(problems[i]);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(calls_of_a_class)};
    stw_context_opts opts = STW_INIT(stw_context_opts);
    opts.memory = STW_MEMORY_BUFFERS;
    const stw_status status = stw_context_create(&opts, &context);
    if (status || !strcmp(stw_context_arch(context), "cpu")) {
        printf("skip: %s\n", status ? stw_last_error() : "no GPU; on the CPU: tests/cpu");
        if (!status) stw_context_destroy(context);
        return 77;
    }
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    stw_context_destroy(context);
    return failed;
}
