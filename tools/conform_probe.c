/* SPDX-License-Identifier: MIT
 *
 * What conform runs on: opens the target once in a child process (the parent must not start a driver before
 * it forks; where it never forks, in the parent) and tries each variant of the arch's tuning table on a small
 * problem. */
#include "conform.h"

#include "dispatch/tables.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct finding { /* written by the child */
    stw_status status;
    char text[1024];
    conform_target target;
} finding;

static stw_status try_variant(const conform_target *target, const char *variant, char *text,
                              size_t capacity) {
    stw_context *context = NULL;
    stw_plan *plan = NULL;
    stw_problem problem;
    stw_status status = stw_problem_parse("attn_bwd:f32:b1h1s16d16", &problem);
    if (!status) status = conform_open(target, variant, 0, &context);
    if (!status) status = stw_attn_bwd_plan(context, &problem.desc, &plan);
    if (status) snprintf(text, capacity, "%s: %s", stw_status_name(status), stw_last_error());
    stw_plan_destroy(plan);
    stw_context_destroy(context);
    return status;
}

static void add_variant(conform_target *target, const char *id) {
    if (target->variant_count == CONFORM_VARIANT_MAX) return;
    snprintf(target->variants[target->variant_count++], sizeof target->variants[0], "%s", id);
}

static void find_variants(conform_target *target) {
    const stw_attn_table *table = stw_attn_table_find(target->arch);
    char reason[400];
    for (size_t i = 0; table && i < table->variant_count; ++i) {
        const char *id = table->variants[i].id;
        if (!try_variant(target, id, reason, sizeof reason))
            add_variant(target, id);
        else if (target->refused_count < CONFORM_VARIANT_MAX)
            snprintf(target->refused[target->refused_count++], sizeof target->refused[0], "%.40s: %.160s", id,
                     reason);
    }
}

static void look(finding *f, const char *wanted) {
    stw_context *context = NULL;
    f->status = conform_open(&f->target, "", 0, &context);
    if (f->status) {
        snprintf(f->text, sizeof f->text, "%s: %s", stw_status_name(f->status), stw_last_error());
        return;
    }
    snprintf(f->target.arch, sizeof f->target.arch, "%s", stw_context_arch(context));
    stw_context_destroy(context);
    if (!wanted)
        add_variant(&f->target, "");
    else if (!strcmp(wanted, "all"))
        find_variants(&f->target);
    else if ((f->status = try_variant(&f->target, wanted, f->text, sizeof f->text)) == STW_OK)
        add_variant(&f->target, wanted);
}

stw_status conform_probe(conform_target *target, const char *wanted, char *why, size_t capacity) {
    finding *f = mmap(NULL, sizeof *f, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int ended = 0;
    if (f == MAP_FAILED) return STW_E_NO_MEMORY;
    f->target = *target;
    f->status = STW_E_INTERNAL;
    snprintf(f->text, sizeof f->text, "the process that opened the device died");
    fflush(stdout);
    pid_t pid = target->here ? -1 : fork();
    if (target->here) look(f, wanted);
    if (pid == 0) {
        look(f, wanted);
        _exit(0);
    }
    if (pid > 0) waitpid(pid, &ended, 0);
    stw_status status = f->status;
    snprintf(why, capacity, "%s", f->text);
    f->target.opts.arch = NULL; /* conform_open sets it from target->arch */
    if (!status) *target = f->target;
    munmap(f, sizeof *f);
    return status;
}
