/* SPDX-License-Identifier: MIT
 *
 * Which backends a context may use: explicit options, then the environment, then the memory kind. One
 * function for stw_context_create and stw_explain_attn, so that what explain says is what happens.
 *
 * Precedence: opts.backend over opts.arch's backend over STERNWAY_BACKEND over `auto`. A backend named by
 * any of them is never replaced by another. */
#include "context.h"

#include <stdio.h>
#include <string.h>

/* Of a kind that refuses a backend: buffers refuse none. */
static const char *memory_name(stw_memory memory) {
    return memory == STW_MEMORY_HOST ? "STW_MEMORY_HOST" : "STW_MEMORY_DEVICE";
}

/* NULL, or why tensors in this kind of memory rule the backend out. */
static const char *memory_refusal(stw_memory memory, stw_backend backend) {
    if (memory == STW_MEMORY_HOST && backend != STW_BACKEND_CPU)
        return "the tensors are in host memory (STW_MEMORY_HOST), which only the CPU backend reads";
    if (memory == STW_MEMORY_DEVICE && backend == STW_BACKEND_CPU)
        return "the tensors are in a GPU's memory (STW_MEMORY_DEVICE), which the CPU backend cannot read";
    return NULL;
}

static stw_status check_opts(const char *who, const stw_context_opts *opts) {
    if ((unsigned)opts->backend > STW_BACKEND_HIP)
        return stw_fail(STW_E_INVALID, "%s: backend %d is none of auto 0, cpu 1, cuda 2, hip 3", who,
                        (int)opts->backend);
    if (opts->memory < STW_MEMORY_HOST || opts->memory > STW_MEMORY_BUFFERS)
        return stw_fail(STW_E_INVALID,
                        "%s: memory %d is not set: STW_MEMORY_HOST 1, STW_MEMORY_DEVICE 2 or "
                        "STW_MEMORY_BUFFERS 3 says where the tensors live",
                        who, (int)opts->memory);
    if (opts->flags & ~STW_CONTEXT_HAS_DEVICE)
        return stw_fail(STW_E_INVALID, "%s: flags 0x%x has unknown bits: only STW_CONTEXT_HAS_DEVICE 0x1 is known", who,
                        opts->flags);
    if ((opts->flags & STW_CONTEXT_HAS_DEVICE) && opts->device < 0)
        return stw_fail(STW_E_INVALID, "%s: device %d is negative", who, opts->device);
    if (opts->device && !(opts->flags & STW_CONTEXT_HAS_DEVICE))
        return stw_fail(STW_E_INVALID, "%s: device %d is set without STW_CONTEXT_HAS_DEVICE", who, opts->device);
    if (opts->cpu_threads < 0 || opts->cpu_threads > STW_CPU_THREADS_MAX)
        return stw_fail(STW_E_INVALID, "%s: cpu_threads %d is not in 0..%d", who, opts->cpu_threads,
                        STW_CPU_THREADS_MAX);
    return STW_OK;
}

/* Fills backend, arch and the words that say who named the backend. */
static stw_status resolve_names(const char *who, const stw_context_opts *opts, const stw_env *env,
                                stw_backend *backend_out, char arch_out[32], const char **named_by_out) {
    *backend_out = opts->backend;
    *named_by_out = "opts.backend";
    arch_out[0] = 0;
    if (opts->arch && opts->arch[0]) {
        const stw_arch *arch = stw_arch_find(opts->backend, opts->arch);
        if (!arch) {
            char known[200];
            stw_text list = stw_text_in(known, sizeof known);
            for (size_t i = 0; i < stw_arch_count; ++i)
                if (opts->backend == STW_BACKEND_AUTO || opts->backend == stw_archs[i].backend)
                    stw_text_add(&list, "%s%s", list.length ? ", " : "", stw_archs[i].name);
            return stw_fail(STW_E_INVALID, "%s: arch %.40s is unknown%s%s: %s", who, opts->arch,
                            opts->backend ? " to backend " : "", opts->backend ? stw_backend_name(opts->backend) : "",
                            known);
        }
        snprintf(arch_out, 32, "%s", arch->name);
        if (opts->backend == STW_BACKEND_AUTO) *backend_out = arch->backend, *named_by_out = "opts.arch";
    } else if (env->backend != STW_BACKEND_AUTO &&
               (opts->backend == STW_BACKEND_AUTO || opts->backend == env->backend)) {
        *backend_out = env->backend;
        if (opts->backend == STW_BACKEND_AUTO) *named_by_out = "STERNWAY_BACKEND";
        if (env->arch[0] && !stw_arch_find(env->backend, env->arch))
            return stw_fail(STW_E_INVALID, "environment: STERNWAY_BACKEND=%s:%s: backend %s has no arch %s",
                            stw_backend_name(env->backend), env->arch, stw_backend_name(env->backend), env->arch);
        snprintf(arch_out, 32, "%s", env->arch);
    }
    return STW_OK;
}

stw_status stw_choose(const char *who, const stw_context_opts *opts, const stw_env *env, stw_choice *choice_out) {
    stw_backend named;
    const char *named_by;
    stw_choice *c = choice_out;
    stw_status status = check_opts(who, opts);
    memset(c, 0, sizeof *c);
    if (!status) status = resolve_names(who, opts, env, &named, c->arch, &named_by);
    if (status) return status;
    c->automatic = named == STW_BACKEND_AUTO;
    c->memory = opts->memory;
    int has_device = (opts->flags & STW_CONTEXT_HAS_DEVICE) != 0;
    c->request = (stw_open_request){.env = env,
                                    .device = has_device ? opts->device : env->device, /* of a GPU */
                                    .forced_arch = c->arch[0] ? c->arch : NULL,
                                    .cpu_threads = opts->cpu_threads ? opts->cpu_threads : env->cpu_threads};
    const char *of_named = c->automatic ? NULL : memory_refusal(opts->memory, named);
    if (of_named)
        return stw_fail(STW_E_INVALID, "%s: %s names %s with memory %s: %s", who, named_by, stw_backend_name(named),
                        memory_name(opts->memory), of_named);
    int named_is_built = c->automatic;
    for (size_t i = 0; i < stw_backend_count; ++i) {
        stw_backend backend = stw_backends[i]->backend;
        stw_candidate *candidate = &c->candidates[c->count++];
        candidate->ops = stw_backends[i];
        const char *refusal = memory_refusal(opts->memory, backend);
        if (!c->automatic && backend != named) {
            snprintf(candidate->reason, sizeof candidate->reason, "%s names %s", named_by, stw_backend_name(named));
        } else if (refusal) {
            snprintf(candidate->reason, sizeof candidate->reason, "%s", refusal);
        } else if (backend == STW_BACKEND_CPU && has_device && opts->device != 0) {
            if (backend == named)
                return stw_fail(STW_E_NO_DEVICE, "%s: device %d: the CPU is one device, 0", who, opts->device);
            snprintf(candidate->reason, sizeof candidate->reason, "device %d is asked for and the CPU is device 0",
                     opts->device);
        } else {
            candidate->allowed = 1;
        }
        named_is_built |= backend == named;
    }
    if (!named_is_built)
        return stw_fail(STW_E_NO_IMAGE, "%s: %s names %s, which this build leaves out (STERNWAY_%s=OFF)", who, named_by,
                        stw_backend_name(named), named == STW_BACKEND_CUDA ? "CUDA" : "HIP");
    return STW_OK;
}
