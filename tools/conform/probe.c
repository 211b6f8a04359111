/* SPDX-License-Identifier: MIT
 *
 * What conform runs on: opens the target once in a child process (the parent must not start a driver before
 * it forks; where it never forks, in the parent) and tries each variant of the arch's tuning table on a small
 * problem. */
#include "conform.h"

#include "common/arch.h"
#include "tools/base/stop.h"
#include "tools/base/variants.h"

#include <signal.h>
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

static stw_status try_variant(const conform_target *target, const char *variant, char *text, size_t capacity) {
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

static void refuse(conform_target *target, const char *name, const char *reason) {
    if (target->refused_count == CONFORM_VARIANT_MAX) return;
    snprintf(target->refused[target->refused_count++], sizeof target->refused[0], "%.50s: %.150s", name, reason);
}

static void find_variants(conform_target *target) {
    const stw_tool_table *table = stw_tool_table_find(target->arch);
    char reason[400], name[64];
    for (size_t i = 0; table && i < table->variant_count; ++i) {
        const char *id = table->variants[i].id;
        if (!try_variant(target, id, reason, sizeof reason)) add_variant(target, id);
        else {
            snprintf(name, sizeof name, "variant %.48s", id);
            refuse(target, name, reason);
        }
    }
}

/* Opens a device (-1: the default) and finds out its arch; with an arch in the target, that one is meant. */
static stw_status open_device(const finding *f, int device, char arch[32]) {
    stw_context *context = NULL;
    conform_target target = f->target;
    if (device >= 0) {
        target.opts.flags |= STW_CONTEXT_HAS_DEVICE;
        target.opts.device = device;
    }
    stw_status status = conform_open(&target, "", 0, &context);
    if (!status) snprintf(arch, 32, "%s", stw_context_arch(context));
    stw_context_destroy(context);
    return status;
}

/* With `all`: every ordinal until there is none, without those of other archs, which are named. Any other
 * reason why a device cannot be used is one to stop: a broken one must not just be left out. */
static void find_all(finding *f) {
    char arch[32], name[40];
    for (int device = 0; device < CONFORM_DEVICES_MAX; ++device) {
        f->status = open_device(f, device, arch);
        snprintf(name, sizeof name, "device %d", device);
        if (f->status == STW_E_NO_DEVICE && (f->target.device_count || f->target.refused_count)) {
            f->status = STW_OK;
            return;
        }
        if (f->status == STW_E_NO_IMAGE) { /* of no arch that this build has kernels for */
            refuse(&f->target, name, stw_last_error());
        } else if (f->status) {
            snprintf(f->text, sizeof f->text, "device %d: %s: %s", device, stw_status_name(f->status),
                     stw_last_error());
            return;
        } else {
            f->target.devices[f->target.device_count++] = device;
        }
    }
    f->status = STW_OK;
}

static void find_devices(finding *f) {
    char arch[32];
    for (int i = 0; i < f->target.device_count; ++i) {
        f->status = open_device(f, f->target.devices[i], arch);
        if (f->status)
            snprintf(f->text, sizeof f->text, "device %d: %s: %s", f->target.devices[i], stw_status_name(f->status),
                     stw_last_error());
        if (f->status) return;
    }
}

/* Devices of another arch than the first's are left out by name, or refused where they were named. Before the
 * target has that arch as its own: from then on it is what every device is opened with. */
static void keep_one_arch(finding *f, const char *first) {
    conform_target *target = &f->target;
    char arch[32], name[40], reason[160];
    int kept = 0, given = target->device_count;
    for (int i = 0; i < given && !f->status; ++i) {
        f->status = open_device(f, target->devices[i], arch);
        if (f->status || !strcmp(arch, first)) {
            target->devices[kept++] = target->devices[i];
            continue;
        }
        snprintf(reason, sizeof reason, "%s, not %s as device %d: a run has one arch (--arch)", arch, first,
                 target->devices[0]);
        snprintf(name, sizeof name, "device %d", target->devices[i]);
        if (target->all_devices) {
            refuse(target, name, reason);
            continue;
        }
        f->status = STW_E_INVALID;
        snprintf(f->text, sizeof f->text, "%s: %s", name, reason);
    }
    target->device_count = kept;
}

/* Which arch the target is, and its devices. */
static void find_arch(finding *f) {
    conform_target *target = &f->target;
    int first = target->device_count ? target->devices[0] : target->all_devices ? 0 : -1;
    char arch[32];
    f->status = open_device(f, first, arch);
    if (f->status && !(f->status == STW_E_NO_IMAGE && target->all_devices)) {
        snprintf(f->text, sizeof f->text, "%s: %s", stw_status_name(f->status), stw_last_error());
        return;
    }
    /* Chosen for the first device, the backend is that of all: another must not take over for a device
     * that it happens to have. */
    const stw_arch *row = f->status ? NULL : stw_arch_find(STW_BACKEND_AUTO, arch);
    if (row) target->opts.backend = row->backend;
    if (target->all_devices) find_all(f);
    else find_devices(f);
    if (f->status) return;
    if (target->all_devices && !target->device_count) {
        f->status = STW_E_NO_IMAGE;
        snprintf(f->text, sizeof f->text, "STW_E_NO_IMAGE: %s", target->refused[0]);
        return;
    }
    if (target->device_count) f->status = open_device(f, target->devices[0], arch);
    if (!f->status) keep_one_arch(f, arch);
    snprintf(target->arch, sizeof target->arch, "%s", f->status ? "" : arch);
    if (target->device_count) { /* variants are looked for on the first */
        target->opts.flags |= STW_CONTEXT_HAS_DEVICE;
        target->opts.device = target->devices[0];
    }
}

static void look(finding *f, const char *wanted) {
    find_arch(f);
    if (f->status) return;
    if (!wanted) add_variant(&f->target, "");
    else if (!strcmp(wanted, "all")) find_variants(&f->target);
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
        stw_tool_stop_child();
        look(f, wanted);
        _exit(0);
    }
    if (pid > 0 && waitpid(pid, &ended, 0) < 0) { /* by a signal, which stops the command */
        kill(pid, SIGKILL);
        waitpid(pid, &ended, 0);
    }
    stw_status status = f->status;
    snprintf(why, capacity, "%s", f->text);
    f->target.opts.arch = NULL; /* conform_open sets it from target->arch */
    if (!status) *target = f->target;
    munmap(f, sizeof *f);
    return status;
}
