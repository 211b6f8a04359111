/* SPDX-License-Identifier: MIT
 *
 * One problem of `sternway run` on a context: plan, copy in, run, copy back. The same calls on every
 * backend: all tensors live in stw_buffer_alloc memory (STW_MEMORY_BUFFERS). */
#include "run.h"

#include "tools/base/stop.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct run_job {
    run_problem *problem;
    stw_context *context;
    stw_stream stream;
    stw_plan *backward, *forward;
    void *workspace;
    size_t workspace_size;
    int32_t *status_out;
    stw_attn_args args;
} run_job;

/* The library's refusal of the step `what`, as the problem's error. */
static int refuse(run_job *job, stw_status status) {
    return run_refuse(job->problem, stw_tool_exit_of(status), "%s (%s)", stw_last_error(), stw_status_name(status));
}

static void set_pointer(stw_attn_args *args, run_slot slot, void *pointer) {
    memcpy((char *)args + run_slot_rows[slot].pointer, &pointer, sizeof pointer);
}

stw_attn_args run_host_args(const run_problem *problem) {
    stw_attn_args args = problem->values;
    for (int slot = 0; slot < RUN_SLOTS; ++slot)
        if (problem->arrays[slot].used) set_pointer(&args, (run_slot)slot, problem->arrays[slot].host);
    return args;
}

static int make_plans(run_job *job) {
    run_problem *p = job->problem;
    stw_status status = stw_attn_bwd_plan(job->context, &p->desc, &job->backward);
    if (!status && p->compute_forward) status = stw_attn_fwd_plan(job->context, &p->desc, &job->forward);
    if (status) return refuse(job, status);
    p->plan_text = stw_tool_plan_text(job->backward);
    if (p->compute_forward) p->forward_text = stw_tool_plan_text(job->forward);
    if (!p->plan_text || (p->compute_forward && !p->forward_text)) return refuse(job, STW_E_INTERNAL);
    snprintf(p->arch, sizeof p->arch, "%s", stw_context_arch(job->context));
    job->workspace_size = stw_plan_workspace_size(job->backward);
    size_t forward = job->forward ? stw_plan_workspace_size(job->forward) : 0;
    if (forward > job->workspace_size) job->workspace_size = forward;
    return 0;
}

static int copy_in(run_job *job) {
    run_problem *p = job->problem;
    const int32_t zero = 0;
    job->args = p->values;
    stw_status status = stw_stream_create(job->context, &job->stream);
    for (int slot = 0; slot < RUN_SLOTS && !status; ++slot) {
        run_array *array = &p->arrays[slot];
        if (!array->used) continue;
        status = stw_buffer_alloc(job->context, array->capacity, &array->buffer);
        if (!status) status = stw_copy(job->context, array->buffer, array->host, array->capacity, job->stream);
        set_pointer(&job->args, (run_slot)slot, array->buffer);
    }
    void *word = NULL;
    if (!status) status = stw_buffer_alloc(job->context, sizeof zero, &word);
    job->status_out = word;
    if (!status) status = stw_copy(job->context, word, &zero, sizeof zero, job->stream);
    job->args.status_out = word;
    if (!status && job->workspace_size) status = stw_buffer_alloc(job->context, job->workspace_size, &job->workspace);
    if (!status) status = stw_stream_synchronize(job->context, job->stream);
    return status ? refuse(job, status) : 0;
}

/* Runs once, to completion; the bits of status_out are bad values in cu_seqlens, used lengths or offsets. */
static int run_once(run_job *job, int forward, double *seconds_out) {
    int32_t bad = 0;
    double start = stw_tool_seconds();
    stw_status status = forward
                            ? stw_attn_fwd(job->forward, &job->args, job->workspace, job->workspace_size, job->stream)
                            : stw_attn_bwd(job->backward, &job->args, job->workspace, job->workspace_size, job->stream);
    if (!status) status = stw_stream_synchronize(job->context, job->stream);
    *seconds_out = stw_tool_seconds() - start;
    if (!status) status = stw_copy(job->context, &bad, job->status_out, sizeof bad, job->stream);
    if (!status) status = stw_stream_synchronize(job->context, job->stream);
    if (status) return refuse(job, status);
    if (bad)
        return run_refuse(job->problem, STW_EXIT_USAGE, "values out of range in%s%s%s%s%s%s",
                          bad & STW_DATA_CU_SEQLENS_Q ? " cu_seqlens_q" : "",
                          bad & STW_DATA_CU_SEQLENS_KV ? " cu_seqlens_k" : "", bad & STW_DATA_USED_Q ? " used_q" : "",
                          bad & STW_DATA_USED_KV ? " used_k" : "", bad & STW_DATA_OFFSETS ? " q_offsets/k_offsets" : "",
                          bad & STW_DATA_INTERVALS ? " intervals" : "");
    return 0;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static int run_all(run_job *job, const run_options *options) {
    run_problem *p = job->problem;
    int status = 0;
    if (p->compute_forward) status = run_once(job, 1, &p->forward_seconds);
    double *seconds = status ? NULL : calloc((size_t)options->repeat, sizeof *seconds);
    if (status) return status;
    if (!seconds) return run_refuse(p, STW_EXIT_FAILED, "no memory for %d times", options->repeat);
    int runs = 0;
    while (runs < options->repeat && !status && !(runs && stw_tool_stopped()))
        status = run_once(job, 0, &seconds[runs++]);
    qsort(seconds, (size_t)runs, sizeof *seconds, by_value);
    p->seconds = 0.5 * (seconds[runs / 2] + seconds[(runs - 1) / 2]);
    p->runs = runs;
    free(seconds);
    return status;
}

/* Rows of a packed tensor before the first and behind the last sequence are nobody's: zero in the results. */
static void clear_gaps(run_problem *p, run_slot slot, int side) {
    run_array *array = &p->arrays[slot];
    if (!array->used || array->rank != 3 || array->shape[0] == 0) return;
    size_t row = array->bytes / (size_t)array->shape[0];
    memset(array->host, 0, row * (size_t)p->first_row[side]);
    memset((char *)array->host + row * (size_t)p->end_row[side], 0, row * (size_t)(array->shape[0] - p->end_row[side]));
}

static int copy_back(run_job *job) {
    run_problem *p = job->problem;
    stw_status status = STW_OK;
    for (int slot = 0; slot < RUN_SLOTS && !status; ++slot) {
        run_array *array = &p->arrays[slot];
        int computed = p->compute_forward && (slot == RUN_OUT || slot == RUN_LSE);
        if (!array->used || (slot < RUN_INPUTS && !computed) || !array->bytes) continue;
        status = stw_copy(job->context, array->host, array->buffer, array->bytes, job->stream);
    }
    if (!status) status = stw_stream_synchronize(job->context, job->stream);
    if (status) return refuse(job, status);
    clear_gaps(p, RUN_DQ, 0);
    clear_gaps(p, RUN_DK, 1);
    clear_gaps(p, RUN_DV, 1);
    return 0;
}

static void release(run_job *job) {
    stw_context *context = job->context;
    for (int slot = 0; slot < RUN_SLOTS; ++slot) {
        stw_buffer_free(context, job->problem->arrays[slot].buffer);
        job->problem->arrays[slot].buffer = NULL;
    }
    stw_buffer_free(context, job->workspace);
    stw_buffer_free(context, job->status_out);
    if (job->stream) stw_stream_destroy(context, job->stream);
    stw_plan_destroy(job->backward);
    stw_plan_destroy(job->forward);
}

int run_execute(run_problem *problem, stw_context *context, const run_options *options) {
    run_job job = {.problem = problem, .context = context};
    int status = make_plans(&job);
    if (!status) status = run_fill(problem);
    if (!status) status = copy_in(&job);
    if (!status) status = run_all(&job, options);
    if (!status) status = copy_back(&job);
    release(&job);
    return status;
}
