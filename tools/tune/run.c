/* SPDX-License-Identifier: MIT
 *
 * Measuring for `sternway tune` (tune.h): contexts of every variant, and one problem on each of them,
 * verified on samples first, then timed in turn so that a change of clock meets all alike. */
#include "tune.h"

#include "common/arch.h"
#include "tools/base/stop.h"

#include <dlfcn.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- estimates: without an AMD GPU, on the emulator of tests/cdna_emu, which counts wave instructions, variants
 * are ranked by an estimate of SIMD cycles. It is no time and is never called one: caches, memory, clocks and
 * waiting are not in it. */

/* Sets target->counts where the opened device is the emulator of tests/cdna_emu. It asks only a library that the
 * process has loaded already: nothing is started here. */
static void tune_estimate_open(tune_target *target) {
    void *library = dlopen("libamdhip64.so.7", RTLD_LAZY | RTLD_NOLOAD);
    void *symbol = library ? dlsym(library, "cdna_emu_counts") : NULL;
    memcpy(&target->counts, &symbol, sizeof symbol);
    if (library) dlclose(library);
    if (strcmp(target->named.backend, "hip")) target->counts = NULL;
}

/* Order of the emulator's counters. */
enum { SCALAR, VECTOR, TRANSCENDENTAL, MATRIX, LDS, MEMORY, CONSTANT, CONTROL, MATRIX_CYCLES };

/* Estimates a variant from the counters before and after one run of it. A SIMD issues an instruction of a wave every
 * 4 cycles, one of the transcendental functions every 16; products run beside that for as long as the ISA documents
 * say. With perfect overlap the longer of the two remains; workgroups that cannot fill a CU leave SIMDs idle. */
static void tune_estimate(const uint64_t before[9], const uint64_t after[9], double fill, tune_timing *timing) {
    double count[9];
    for (int i = 0; i < 9; ++i) count[i] = (double)(after[i] - before[i]);
    timing->matrix = count[MATRIX_CYCLES] / fill;
    timing->issue = (4 * (count[SCALAR] + count[VECTOR] + count[MATRIX] + count[LDS] + count[MEMORY] + count[CONSTANT] +
                          count[CONTROL]) +
                     16 * count[TRANSCENDENTAL]) /
                    fill;
    timing->median = fmax(timing->matrix, timing->issue);
    timing->spread = 0;
    timing->runs = 1;
}

#define BATCHES_MAX 200
#define BATCHES_MIN 5

/* ---- the device ---------------------------------------------------------------------------------------- */

/* Multiprocessors of the backend's first device (of several GPUs all are alike, or the model is a little off). */
static uint32_t units_of(const char *backend) {
    stw_device_info infos[64];
    size_t count = 0;
    for (size_t i = 0; i < 64; ++i) infos[i] = STW_INIT(stw_device_info);
    if (stw_devices(infos, 64, &count)) return 0;
    for (size_t i = 0; i < count && i < 64; ++i)
        if (!strcmp(stw_backend_name(infos[i].backend), backend)) return infos[i].compute_units;
    return 0;
}

stw_status tune_open(const stw_context_opts *opts, tune_target *target_out) {
    unsetenv("STERNWAY_VARIANT");
    stw_status status = stw_context_create(opts, &target_out->rules);
    if (status) return status;
    target_out->table = stw_tool_table_find(stw_context_arch(target_out->rules));
    for (size_t i = 0; i < target_out->table->variant_count && i < TUNE_VARIANTS_MAX && !status; ++i) {
        setenv("STERNWAY_VARIANT", target_out->table->variants[i].id, 1);
        status = stw_context_create(opts, &target_out->forced[i]);
    }
    unsetenv("STERNWAY_VARIANT");
    if (status) tune_close(target_out);
    else stw_tool_name_device(target_out->rules, &target_out->named);
    if (!status) {
        target_out->units = units_of(target_out->named.backend);
        tune_estimate_open(target_out);
    }
    return status;
}

void tune_close(tune_target *target) {
    for (size_t i = 0; i < TUNE_VARIANTS_MAX; ++i) stw_context_destroy(target->forced[i]);
    stw_context_destroy(target->rules);
}

/* ---- which variants ------------------------------------------------------------------------------------ */

/* The plan says which variant the rules choose, and whether the environment makes it deterministic. */
static stw_status ask_rules(const tune_target *target, tune_point *point, char chosen[64]) {
    stw_plan *plan = NULL;
    char word[32];
    stw_status status = stw_attn_bwd_plan(target->rules, &point->desc, &plan);
    if (status) return status;
    char *text = stw_tool_plan_text(plan);
    stw_tool_plan_field(text, "variant", chosen, 64);
    stw_tool_plan_field(text, "deterministic", word, sizeof word);
    point->deterministic = !strcmp(word, "yes");
    free(text);
    stw_plan_destroy(plan);
    return text ? STW_OK : STW_E_NO_MEMORY;
}

/* Plans every variant; the chosen one comes first. */
static void plan_variants(const tune_target *target, const char *chosen, tune_point *point) {
    for (size_t i = 0; i < target->table->variant_count && i < TUNE_VARIANTS_MAX; ++i) {
        stw_plan *plan = NULL;
        if (stw_attn_bwd_plan(target->forced[i], &point->desc, &plan)) continue;
        tune_timing *timing = &point->timings[point->count++];
        *timing = (tune_timing){.variant = &target->table->variants[i], .plan = plan};
        if (strcmp(timing->variant->id, chosen)) continue;
        tune_timing first = point->timings[0];
        point->timings[0] = *timing;
        *timing = first;
    }
}

/* ---- one problem --------------------------------------------------------------------------------------- */

static void verify_all(const tune_target *target, stw_measure *m, tune_point *point) {
    uint32_t smem_kb = 0;
    uint64_t before[9], after[9];
    for (size_t i = 0; i < point->count; ++i)
        if (point->timings[i].variant->smem_kb > smem_kb) smem_kb = point->timings[i].variant->smem_kb;
    for (size_t i = 0; i < point->count; ++i) {
        tune_timing *t = &point->timings[i];
        stw_verify_result result;
        if (t->pruned) continue;
        if (stw_tool_stopped()) {
            point->stopped = 1;
            return;
        }
        stw_verify_result_clear(&result);
        if (target->counts) target->counts(before);
        const char *not_judged = stw_measure_verify(m, t->plan, &result);
        if (target->counts) {
            target->counts(after);
            tune_estimate(before, after, tune_model_fill(t->variant, smem_kb, 0), t);
        }
        if (result.outcome != STW_VERIFY_OK) {
            snprintf(t->text, sizeof t->text, "wrong: %.470s", result.text);
            ++point->wrong;
        } else if (not_judged) {
            snprintf(t->text, sizeof t->text, "not verified: %s", not_judged);
        }
        if (t->text[0]) t->runs = 0;
    }
}

/* Batches of every verified variant in turn, until each has had its time. */
static stw_status time_all(const stw_measure *m, double seconds, tune_point *point) {
    double(*times)[BATCHES_MAX] = calloc(point->count, sizeof *times);
    int *calls = calloc(point->count, sizeof *calls), count = 0;
    stw_status status = times && calls ? STW_OK : STW_E_NO_MEMORY;
    size_t timed = 0;
    for (size_t i = 0; i < point->count && !status; ++i) {
        if (point->timings[i].text[0]) continue;
        status = stw_measure_batch(m, point->timings[i].plan, &calls[i]);
        ++timed;
    }
    double end = stw_tool_seconds() + seconds * (double)timed;
    while (!status && timed && count < BATCHES_MAX && (count < BATCHES_MIN || stw_tool_seconds() < end)) {
        if (stw_tool_stopped()) point->stopped = 1;
        if (point->stopped) break;
        for (size_t i = 0; i < point->count && !status; ++i) {
            if (!calls[i]) continue;
            double begin = stw_tool_seconds();
            status = stw_measure_run(m, point->timings[i].plan, calls[i]);
            times[i][count] = (stw_tool_seconds() - begin) / calls[i];
        }
        ++count;
    }
    for (size_t i = 0; i < point->count && !status && !point->stopped; ++i) {
        if (!calls[i]) continue;
        double quartiles[3];
        stw_measure_quartiles(times[i], count, quartiles);
        point->timings[i].runs = count * calls[i];
        point->timings[i].median = quartiles[1];
        point->timings[i].spread = quartiles[2] - quartiles[0];
    }
    free(times);
    free(calls);
    return status;
}

static int refuse(const char *line, int exit_status, const char *text, tune_point *point) {
    stw_tool_error("tune", line, "%s", text);
    tune_point_free(point);
    return exit_status;
}

int tune_measure(const tune_target *target, const char *line, double seconds, tune_point *point_out) {
    stw_problem problem;
    stw_measure m;
    stw_verify_result result;
    char chosen[64];
    size_t workspace = 0;
    memset(point_out, 0, sizeof *point_out);
    if (stw_problem_parse(line, &problem)) return refuse(line, STW_EXIT_USAGE, stw_tool_last_error(), point_out);
    if (problem.op != STW_PROBLEM_ATTN_BWD)
        return refuse(line, STW_EXIT_USAGE, "tune takes attn_bwd problems", point_out);
    stw_problem_print(&problem, point_out->line, sizeof point_out->line);
    point_out->desc = problem.desc;
    stw_status status = ask_rules(target, point_out, chosen);
    if (status) return refuse(line, stw_tool_exit_of(status), stw_last_error(), point_out);
    point_out->timings = calloc(target->table->variant_count, sizeof *point_out->timings);
    if (!point_out->timings) return refuse(line, STW_EXIT_FAILED, "out of memory", point_out);
    plan_variants(target, chosen, point_out);
    if (!target->all) tune_model_prune(target, point_out);
    for (size_t i = 0; i < point_out->count; ++i) {
        size_t bytes = stw_plan_workspace_size(point_out->timings[i].plan);
        workspace = bytes > workspace ? bytes : workspace;
    }
    stw_verify_result_clear(&result);
    status = stw_measure_open(&problem, target->rules, workspace, &m, &result);
    if (status) return refuse(line, stw_tool_exit_of(status), result.text, point_out);
    point_out->flop = stw_measure_flop(&m);
    verify_all(target, &m, point_out);
    if (!target->counts && !point_out->stopped) status = time_all(&m, seconds, point_out);
    stw_measure_close(&m);
    if (point_out->stopped) {
        tune_point_free(point_out);
        point_out->stopped = 1;
        return STW_EXIT_OK;
    }
    if (status) return refuse(line, STW_EXIT_FAILED, stw_last_error(), point_out);
    for (size_t i = 0; i < point_out->count; ++i) {
        stw_plan_destroy(point_out->timings[i].plan);
        point_out->timings[i].plan = NULL;
    }
    return STW_EXIT_OK;
}

void tune_point_free(tune_point *point) {
    for (size_t i = 0; i < point->count; ++i) stw_plan_destroy(point->timings[i].plan);
    free(point->timings);
    memset(point, 0, sizeof *point);
}
