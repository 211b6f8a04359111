/* SPDX-License-Identifier: MIT
 *
 * What users read of a choice: stw_plan_describe; stw_explain_attn, _attn_fwd and _jagged, for every backend whether
 * it is chosen or why not, by running the same code as context creation (choose.c, context.c) and planning (plan.c). */
#include "plan.h"

#include "common/extend.h"

#include <stdio.h>
#include <string.h>

/* The problem: one of the two. */
typedef struct subject {
    const stw_attn_desc *attn;
    stw_plan_kind kind; /* of attn */
    const stw_jagged_desc *jagged;
} subject;

static stw_status build(stw_context *context, const subject *s, stw_text *why, stw_plan **plan_out) {
    return s->attn ? stw_plan_build(context, s->attn, s->kind, 0, why, plan_out)
                   : stw_jagged_plan_build(context, s->jagged, plan_out);
}

/* Plans on one candidate. 1 = it takes the problem. */
static int explain_candidate(const stw_choice *choice, const stw_candidate *candidate, const stw_env *env,
                             const subject *problem, int already_chosen, stw_text *text) {
    const char *name = stw_backend_name(candidate->ops->backend);
    stw_context *context = NULL;
    stw_plan *plan = NULL;
    if (!candidate->allowed) {
        stw_text_add(text, "%s: not chosen: %s\n", name, candidate->reason);
        return 0;
    }
    stw_status status = stw_context_open(choice, candidate, env, &context);
    if (status) {
        stw_text_add(text, "%s: not chosen: %s (%s)\n", name, stw_last_error(), stw_status_name(status));
        return 0;
    }
    char lines[16384]; /* a line a rule; a tuning file with hundreds of them is cut */
    stw_text why = stw_text_in(lines, sizeof lines);
    lines[0] = 0;
    status = build(context, problem, &why, &plan);
    if (status) {
        stw_text_add(text, "%s: %s refuses the problem: %s (%s)\n", name, context->device.arch->name, stw_last_error(),
                     stw_status_name(status));
    } else if (already_chosen) {
        stw_text_add(text, "%s: not chosen: a backend before it is usable; it would run %s\n", name,
                     plan->jagged ? plan->jagged->work.variant : plan->work.variant->id);
    } else {
        stw_text_add(text, "%s: chosen\n", name);
        if (plan->jagged) stw_jagged_plan_text(plan, text);
        else stw_plan_text(plan, text);
    }
    for (char *line = lines; !status && !already_chosen && line && *line;) {
        char *end = strchr(line, '\n');
        if (end) *end = 0;
        stw_text_add(text, "  %s\n", line);
        line = end ? end + 1 : NULL;
    }
    stw_plan_destroy(plan);
    stw_context_destroy(context);
    return !already_chosen; /* auto stops at the first backend that opens, whatever it says of the problem */
}

/* Backends that are not in the table. */
static void explain_left_out(const stw_choice *choice, stw_text *text) {
    for (int backend = STW_BACKEND_CUDA; backend <= STW_BACKEND_HIP; ++backend) {
        int built = 0;
        for (size_t i = 0; i < choice->count; ++i) built |= choice->candidates[i].ops->backend == (stw_backend)backend;
        if (!built)
            stw_text_add(text, "%s: not chosen: this build leaves it out (STERNWAY_%s=OFF)\n",
                         stw_backend_name((stw_backend)backend), backend == STW_BACKEND_CUDA ? "CUDA" : "HIP");
    }
}

static stw_status explain(const stw_context_opts *opts, const subject *problem, char *text, size_t capacity,
                          size_t *needed_out) {
    stw_env env;
    stw_choice choice;
    char before[1024]; /* a call that succeeds leaves the last error */
    snprintf(before, sizeof before, "%s", stw_last_error());
    stw_text out = stw_text_in(text, capacity);
    stw_status status = stw_env_read(&env);
    if (!status) status = stw_choose("context_create", opts, &env, &choice);
    if (status) {
        stw_text_add(&out, "no backend: %s (%s)\n", stw_last_error(), stw_status_name(status));
    } else {
        int chosen = 0;
        explain_left_out(&choice, &out);
        for (size_t i = 0; i < choice.count; ++i)
            chosen |= explain_candidate(&choice, &choice.candidates[i], &env, problem, chosen, &out);
        if (!chosen) stw_text_add(&out, "no backend is usable for this problem\n");
    }
    if (needed_out) *needed_out = out.length + 1;
    return stw_fail(STW_OK, "%s", before);
}

/* Where the caller wants the text. */
typedef struct caller_text {
    char *text;
    size_t capacity, *needed_out;
} caller_text;

/* The names in the texts of a refused call. */
typedef struct explain_names {
    const char *call, *opts, *desc;
} explain_names;

static stw_status explain_attn(const explain_names *names, stw_plan_kind kind, const stw_context_opts *opts,
                               const stw_attn_desc *desc, caller_text *to) {
    stw_context_opts own;
    stw_attn_desc full;
    if (!to->text && to->capacity)
        return stw_fail(STW_E_INVALID, "%s: text is null with capacity %zu", names->call, to->capacity);
    stw_status status = stw_extend(names->opts, opts, &own, sizeof own, STW_SIZE_CONTEXT_OPTS_0_1);
    if (!status) status = stw_extend(names->desc, desc, &full, sizeof full, STW_SIZE_ATTN_DESC_0_1);
    subject problem = {.attn = &full, .kind = kind};
    return status ? status : explain(&own, &problem, to->text, to->capacity, to->needed_out);
}

stw_status stw_explain_attn(const stw_context_opts *opts, const stw_attn_desc *desc, char *text, size_t capacity,
                            size_t *needed_out) {
    static const explain_names names = {"explain_attn", "explain_attn: opts", "explain_attn: desc"};
    caller_text to = {text, capacity, needed_out};
    return explain_attn(&names, STW_PLAN_ATTN_BWD, opts, desc, &to);
}

stw_status stw_explain_attn_fwd(const stw_context_opts *opts, const stw_attn_desc *desc, char *text, size_t capacity,
                                size_t *needed_out) {
    static const explain_names names = {"explain_attn_fwd", "explain_attn_fwd: opts", "explain_attn_fwd: desc"};
    caller_text to = {text, capacity, needed_out};
    return explain_attn(&names, STW_PLAN_ATTN_FWD, opts, desc, &to);
}

stw_status stw_explain_jagged(const stw_context_opts *opts, const stw_jagged_desc *desc, char *text, size_t capacity,
                              size_t *needed_out) {
    stw_context_opts own;
    stw_jagged_desc full;
    if (!text && capacity) return stw_fail(STW_E_INVALID, "explain_jagged: text is null with capacity %zu", capacity);
    stw_status status = stw_extend("explain_jagged: opts", opts, &own, sizeof own, STW_SIZE_CONTEXT_OPTS_0_1);
    if (!status) status = stw_extend("explain_jagged: desc", desc, &full, sizeof full, STW_SIZE_JAGGED_DESC_0_1);
    subject problem = {.jagged = &full};
    return status ? status : explain(&own, &problem, text, capacity, needed_out);
}

stw_status stw_plan_describe(const stw_plan *plan, char *text, size_t capacity, size_t *needed_out) {
    if (!plan) return stw_fail(STW_E_INVALID, "plan_describe: plan is null");
    if (!text && capacity) return stw_fail(STW_E_INVALID, "plan_describe: text is null with capacity %zu", capacity);
    stw_text out = stw_text_in(text, capacity);
    if (plan->jagged) stw_jagged_plan_text(plan, &out);
    else stw_plan_text(plan, &out);
    if (needed_out) *needed_out = out.length + 1;
    return STW_OK;
}
