/* SPDX-License-Identifier: MIT
 *
 * Contexts: creation over the candidates of choose.c, reference counting, and the portable memory and
 * stream calls, which go straight to the backend. */
#include "context.h"

#include "common/extend.h"
#include "common/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

stw_status stw_context_open(const stw_choice *choice, const stw_candidate *candidate, const stw_env *env,
                            stw_context **context_out) {
    stw_context *context = calloc(1, sizeof *context);
    if (!context) return stw_fail(STW_E_NO_MEMORY, "context_create: no memory");
    stw_status status = candidate->ops->open(&choice->request, &context->device);
    if (status) {
        free(context);
        return status;
    }
    status = stw_rules_load(context->device.arch->name, env->tuning, &context->rules);
    if (status) {
        candidate->ops->close(&context->device);
        free(context);
        return status;
    }
    if (env->smem_max && env->smem_max < (int64_t)context->device.smem_max)
        context->device.smem_max = (uint32_t)env->smem_max;
    context->ops = candidate->ops;
    context->memory = choice->memory;
    context->env = *env;
    atomic_init(&context->references, 1);
    *context_out = context;
    return STW_OK;
}

/* Which of two failures tells more about this machine: the later it happened the more. */
static int failure_rank(stw_status status) {
    switch (status) {
    case STW_E_NO_DRIVER: return 1;
    case STW_E_NO_DEVICE: return 2;
    case STW_E_NO_IMAGE: return 3;
    default: return 4;
    }
}

/* 1 for the first caller of a process whose warnings go anywhere. */
static int warn_once(atomic_flag *told) { return stw_log_enabled(STW_LOG_WARN) && !atomic_flag_test_and_set(told); }

/* `auto` wanted a GPU and none could be taken. */
static void warn_of_cpu(const char *reasons) {
    static atomic_flag told = ATOMIC_FLAG_INIT;
    if (warn_once(&told))
        stw_log(STW_LOG_WARN,
                "context: the CPU backend is used: %s (STERNWAY_BACKEND=cpu asks for it without this line)", reasons);
}

static void warn_of_unknown_variables(void) {
    static atomic_flag told = ATOMIC_FLAG_INIT;
    char line[256];
    size_t index = 0;
    if (!warn_once(&told)) return;
    for (stw_text text; text = stw_text_in(line, sizeof line), stw_env_unknown_here(&index, &text);)
        stw_log(STW_LOG_WARN, "environment: %s", line);
}

/* Tries the candidates in order, collecting the reasons of those that fail. */
static stw_status open_first(const stw_choice *choice, const stw_env *env, stw_context **context_out) {
    stw_status worst = choice->request.device ? STW_E_NO_DEVICE : STW_E_NO_DRIVER;
    char lines[900], before[1024];
    int tried = 0;
    snprintf(before, sizeof before, "%s", stw_last_error());
    stw_text reasons = stw_text_in(lines, sizeof lines);
    for (size_t i = 0; i < choice->count; ++i) {
        const stw_candidate *candidate = &choice->candidates[i];
        if (!candidate->allowed) {
            stw_text_add(&reasons, "%s%s: %s", reasons.length ? "; " : "", stw_backend_name(candidate->ops->backend),
                         candidate->reason);
            continue;
        }
        stw_status status = stw_context_open(choice, candidate, env, context_out);
        if (status == STW_OK) {
            if (tried && candidate->ops->backend == STW_BACKEND_CPU) warn_of_cpu(lines);
            return stw_fail(STW_OK, "%s", before); /* a call that succeeds leaves the last error */
        }
        tried = 1;
        if (!choice->automatic || status == STW_E_NO_MEMORY || status == STW_E_INVALID) return status;
        if (failure_rank(status) > failure_rank(worst)) worst = status;
        stw_text_add(&reasons, "%s%s", reasons.length ? "; " : "", stw_last_error());
    }
    return stw_fail(worst, "context_create: no backend is usable: %s", lines);
}

stw_status stw_context_create(const stw_context_opts *opts, stw_context **context_out) {
    stw_context_opts full;
    stw_env env;
    stw_choice choice;
    if (!context_out) return stw_fail(STW_E_INVALID, "context_create: context_out is null");
    stw_status status = stw_extend("context_create: opts", opts, &full, sizeof full, STW_SIZE_CONTEXT_OPTS_0_1);
    if (!status) status = stw_env_read(&env);
    if (!status) status = stw_choose("context_create", &full, &env, &choice);
    if (status) return status;
    stw_log_configure(&env);
    warn_of_unknown_variables();
    stw_context *context = NULL;
    status = open_first(&choice, &env, &context);
    if (status) return status;
    stw_log(STW_LOG_INFO, "context: %s, %s, %u compute units", context->device.arch->name, context->device.name,
            context->device.compute_units);
    *context_out = context;
    return STW_OK;
}

void stw_context_retain(stw_context *context) {
    atomic_fetch_add_explicit(&context->references, 1, memory_order_relaxed);
}

void stw_context_release(stw_context *context) {
    if (atomic_fetch_sub_explicit(&context->references, 1, memory_order_acq_rel) != 1) return;
    stw_plan_cache_end(&context->plans);
    stw_rules_free(&context->rules);
    context->ops->close(&context->device);
    free(context);
}

void stw_context_destroy(stw_context *context) {
    if (context) stw_context_release(context);
}

const char *stw_context_arch(const stw_context *context) { return context ? context->device.arch->name : ""; }

/* ---- portable memory and streams ---- */

static stw_status require(const char *who, const char *what, const void *pointer) {
    return pointer ? STW_OK : stw_fail(STW_E_INVALID, "%s: %s is null", who, what);
}

stw_status stw_buffer_alloc(stw_context *context, size_t bytes, void **pointer_out) {
    stw_status status = require("buffer_alloc", "context", context);
    if (!status) status = require("buffer_alloc", "pointer_out", pointer_out);
    if (status) return status;
    if (bytes > (size_t)PTRDIFF_MAX)
        return stw_fail(STW_E_INVALID, "buffer_alloc: bytes %zu is above %td", bytes, PTRDIFF_MAX);
    return context->ops->buffer_alloc(&context->device, bytes, pointer_out);
}

stw_status stw_buffer_free(stw_context *context, void *pointer) {
    stw_status status = require("buffer_free", "context", context);
    if (status || !pointer) return status;
    return context->ops->buffer_free(&context->device, pointer);
}

stw_status stw_copy(stw_context *context, void *to, const void *from, size_t bytes, stw_stream stream) {
    stw_status status = require("copy", "context", context);
    if (!status && bytes) status = require("copy", "to", to);
    if (!status && bytes) status = require("copy", "from", from);
    if (status || !bytes) return status;
    return context->ops->copy(&context->device, to, from, bytes, stream);
}

stw_status stw_stream_create(stw_context *context, stw_stream *stream_out) {
    stw_status status = require("stream_create", "context", context);
    if (!status) status = require("stream_create", "stream_out", stream_out);
    return status ? status : context->ops->stream_create(&context->device, stream_out);
}

stw_status stw_stream_synchronize(stw_context *context, stw_stream stream) {
    stw_status status = require("stream_synchronize", "context", context);
    return status ? status : context->ops->stream_synchronize(&context->device, stream);
}

stw_status stw_stream_destroy(stw_context *context, stw_stream stream) {
    stw_status status = require("stream_destroy", "context", context);
    return status ? status : context->ops->stream_destroy(&context->device, stream);
}
