/* SPDX-License-Identifier: MIT
 *
 * The context: one opened device, the environment and the rules in force. Plans hold a reference. */
#ifndef STW_DISPATCH_CONTEXT_H
#define STW_DISPATCH_CONTEXT_H

#include "plan_cache.h"
#include "select.h"

#include <stdatomic.h>

struct stw_context {
    atomic_int references; /* the caller's and one a plan */
    const stw_backend_ops *ops;
    stw_device device;
    stw_memory memory;
    stw_env env;
    stw_rules rules;
    stw_plan_cache plans; /* without references to the context */
};

void stw_context_retain(stw_context *context);
void stw_context_release(stw_context *context);

/* ---- choosing a backend (choose.c): options and environment to an ordered list of candidates ---- */

typedef struct stw_candidate {
    const stw_backend_ops *ops;
    int allowed; /* 0: `reason` says which option, variable or memory kind rules it out */
    char reason[256];
} stw_candidate;

#define STW_BACKEND_TABLE_MAX 3

typedef struct stw_choice {
    stw_candidate candidates[STW_BACKEND_TABLE_MAX]; /* in the order they are tried     */
    size_t count;
    int automatic; /* nobody named the backend: the next candidate may be tried   */
    stw_memory memory;
    stw_open_request request; /* env and forced_arch point into the arguments and below */
    char arch[32];
} stw_choice;

/* The backends of this build, in the order `auto` tries them (backends.c). */
extern const stw_backend_ops *const stw_backends[];
extern const size_t stw_backend_count;

/* Errors: STW_E_INVALID (options, or a named backend that the memory kind rules out). */
stw_status stw_choose(const char *who, const stw_context_opts *opts, const stw_env *env, stw_choice *choice_out);

/* Opens a candidate and builds a context around it. */
stw_status stw_context_open(const stw_choice *choice, const stw_candidate *candidate, const stw_env *env,
                            stw_context **context_out);

#endif
