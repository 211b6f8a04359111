/* SPDX-License-Identifier: MIT
 *
 * What `sternway run` says of a problem: as text, as JSON, and as a file of results. */
#include "run.h"

#include "tools/base/replace_file.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- `sternway run -o`: the results of all problems as one safetensors file, under their problems' names ---- */

/* out and lse only where they were computed. */
static int is_result(const run_problem *p, int slot) {
    if (!p->arrays[slot].used || p->error[0]) return 0;
    return slot >= RUN_INPUTS || (p->compute_forward && (slot == RUN_OUT || slot == RUN_LSE));
}

static int add_tensor(const run_problem *p, int slot, stw_st_tensor *tensor) {
    const run_array *array = &p->arrays[slot];
    char *name = NULL;
    const char *own = slot < RUN_DQ ? run_slot_rows[slot].name : run_gradient_name(p, slot - RUN_DQ);
    if (asprintf(&name, "%s%s%s", p->name, p->name[0] ? "." : "", own) < 0) return -1;
    *tensor = (stw_st_tensor){.name = name, .type = array->type, .rank = array->rank, .data = array->host};
    memcpy(tensor->shape, array->shape, (size_t)array->rank * sizeof array->shape[0]);
    return 0;
}

int run_check_output(const char *path, char **inputs, int input_count) {
    char error[STW_REPLACE_ERROR_MAX];
    struct stat output, input;
    char *target = stw_replace_target(path, error);
    if (!target) {
        stw_tool_error("run", path, "%s", error);
        return STW_EXIT_USAGE;
    }
    int exists = !stat(target, &output);
    free(target);
    for (int i = 0; exists && i < input_count; ++i) {
        if (stat(inputs[i], &input) || input.st_dev != output.st_dev || input.st_ino != output.st_ino) continue;
        stw_tool_error("run", path, "is the input %s; the output needs a file of its own", inputs[i]);
        return STW_EXIT_USAGE;
    }
    return STW_EXIT_OK;
}

int run_write(const char *path, const run_problem *problems, size_t count, const char *partial) {
    char error[STW_ST_ERROR_MAX] = "out of memory";
    stw_st_tensor *tensors = calloc(count * RUN_SLOTS + 1, sizeof *tensors);
    size_t used = 0;
    int status = tensors ? 0 : -1;
    for (size_t i = 0; i < count && !status; ++i)
        for (int slot = 0; slot < RUN_SLOTS && !status; ++slot) {
            if (!is_result(&problems[i], slot)) continue;
            status = add_tensor(&problems[i], slot, &tensors[used]);
            if (!status) ++used;
        }
    const stw_st_pair about[] = {
        {"about", "gradients of attention, by `sternway run`"}, {"format", "sternway"}, {"partial", partial}};
    if (!status) status = stw_safetensors_write(path, tensors, used, about, partial ? 3 : 2, error);
    if (status) stw_tool_error("run", path, "%s", error);
    for (size_t i = 0; i < used; ++i) free((void *)(uintptr_t)tensors[i].name);
    free(tensors);
    return status ? STW_EXIT_FAILED : STW_EXIT_OK;
}

/* ---- lines ---- */

typedef struct run_norm {
    double norm, largest;
} run_norm;

static run_norm norm_of(const run_array *array) {
    run_norm result = {0, 0};
    uint64_t elements = array->bytes / (stw_st_type_bits(array->type) / 8);
    double squares = 0;
    for (uint64_t i = 0; i < elements; ++i) {
        double value = run_load_float(array->host, array->type, i);
        squares += value * value;
        if (!(fabs(value) <= result.largest)) result.largest = fabs(value); /* NaN stays */
    }
    result.norm = sqrt(squares);
    return result;
}

static void print_plan_line(const char *text, const char *label) {
    char backend[32], arch[32], device[128], variant[96], why[512];
    stw_tool_plan_field(text, "backend", backend, sizeof backend);
    stw_tool_plan_field(text, "arch", arch, sizeof arch);
    stw_tool_plan_field(text, "device", device, sizeof device);
    stw_tool_plan_field(text, "variant", variant, sizeof variant);
    stw_tool_plan_field(text, "why", why, sizeof why);
    char line[1024];
    snprintf(line, sizeof line, "    %-8s %s, arch %s (%s), variant %s", label, backend, arch, device, variant);
    stw_tool_print_line(line, 13);
    snprintf(line, sizeof line, "             why: %s", why);
    if (why[0]) stw_tool_print_line(line, 13); /* nested operations have no rules */
}

/* An error as a part of what is allowed: none is allowed, and there is none. */
static double part_of(double error, double allowed) { return error == 0 ? 0 : error / allowed; }

/* Room for a bool and two figures in 80 columns. */
static int short_verdict(char *text, size_t capacity, const stw_accuracy *a) {
    int n =
        snprintf(text, capacity, "  %s  max %.3f", a->pass ? "pass" : "FAIL", part_of(a->max_error, a->max_allowed));
    if (a->rms_allowed > 0)
        n += snprintf(text + n, capacity - (size_t)n, "  rms %.3f%s", part_of(a->rms_error, a->rms_allowed),
                      a->small ? " (pooled)" : "");
    return n;
}

static int long_verdict(char *text, size_t capacity, const stw_accuracy *a) {
    int n = snprintf(text, capacity, "  max error %.2e, allowed %.2e", a->max_error, a->max_allowed);
    if (a->rms_allowed > 0)
        n += snprintf(text + n, capacity - (size_t)n, "  rms %.2e, allowed %.2e%s", a->rms_error, a->rms_allowed,
                      a->small ? " (pooled)" : "");
    return n + snprintf(text + n, capacity - (size_t)n, "  %s", a->pass ? "pass" : "FAIL");
}

static void print_gradient(const run_problem *p, int g, int verbose) {
    const run_array *array = &p->arrays[RUN_DQ + g];
    const run_result *result = &p->results[g];
    const stw_accuracy *a = &result->accuracy;
    char line[400];
    if (!array->used) return;
    run_norm norm = norm_of(array);
    int n = snprintf(line, sizeof line, "    %-8s norm %.4e", run_gradient_name(p, g), norm.norm);
    if (verbose || !result->given) n += snprintf(line + n, sizeof line - (size_t)n, "  largest %.4e", norm.largest);
    if (result->given) (verbose ? long_verdict : short_verdict)(line + n, sizeof line - (size_t)n, a);
    stw_tool_print_line(line, 13);
    if (!result->given || a->pass || a->worst < 0) return;
    snprintf(line, sizeof line, "             element %lld is %.9g, the reference %.9g", (long long)a->worst,
             a->worst_value, a->worst_ref);
    stw_tool_print_line(line, 13);
}

void run_print(const run_problem *p, const run_options *options) {
    char problem[1024], line[1200];
    stw_tool_plan_field(p->plan_text, "problem", problem, sizeof problem);
    snprintf(line, sizeof line, "  %.100s%s%s", p->name, p->name[0] ? ": " : "", problem);
    stw_tool_print_line(line, 4);
    print_plan_line(p->plan_text, "backend");
    if (p->compute_forward) {
        print_plan_line(p->forward_text, "forward");
        printf("    out and lse are absent: computed in %.3f ms\n", 1e3 * p->forward_seconds);
    }
    printf("    time     %.3f ms", 1e3 * p->seconds);
    if (options->repeat > 1) printf(" (median of %d)", p->runs);
    putchar('\n');
    for (int g = 0; g < STW_GRAD_COUNT; ++g) print_gradient(p, g, options->verbose);
}

static void add_field(cJSON *row, const run_problem *p, const char *key) {
    char text[1024];
    stw_tool_plan_field(p->plan_text, key, text, sizeof text);
    cJSON_AddStringToObject(row, key, text);
}

static cJSON *gradient_json(const run_problem *p, int g) {
    const run_array *array = &p->arrays[RUN_DQ + g];
    const stw_accuracy *a = &p->results[g].accuracy;
    run_norm norm = norm_of(array);
    cJSON *row = cJSON_CreateObject();
    cJSON_AddStringToObject(row, "name", run_gradient_name(p, g));
    cJSON_AddStringToObject(row, "dtype", stw_st_type_name(array->type));
    cJSON *shape = cJSON_AddArrayToObject(row, "shape");
    for (int d = 0; d < array->rank; ++d) cJSON_AddItemToArray(shape, cJSON_CreateNumber((double)array->shape[d]));
    cJSON_AddNumberToObject(row, "norm", norm.norm);
    cJSON_AddNumberToObject(row, "largest", norm.largest);
    if (!p->results[g].given) return row;
    cJSON *reference = cJSON_AddObjectToObject(row, "reference");
    cJSON_AddNumberToObject(reference, "max_error", a->max_error);
    cJSON_AddNumberToObject(reference, "max_allowed", a->max_allowed);
    cJSON_AddNumberToObject(reference, "rms_error", a->rms_error);
    cJSON_AddNumberToObject(reference, "rms_allowed", a->rms_allowed);
    cJSON_AddBoolToObject(reference, "rms_pooled", a->small && a->rms_allowed > 0);
    cJSON_AddBoolToObject(reference, "pass", a->pass);
    return row;
}

cJSON *run_json(const run_problem *p) {
    cJSON *row = cJSON_CreateObject();
    cJSON_AddStringToObject(row, "name", p->name);
    if (p->error[0]) {
        cJSON_AddStringToObject(row, "error", p->error);
        return row;
    }
    add_field(row, p, "problem");
    add_field(row, p, "backend");
    add_field(row, p, "arch");
    add_field(row, p, "device");
    add_field(row, p, "variant");
    add_field(row, p, "why");
    cJSON_AddNumberToObject(row, "milliseconds", 1e3 * p->seconds);
    cJSON_AddBoolToObject(row, "forward_computed", p->compute_forward);
    if (p->compute_forward) cJSON_AddNumberToObject(row, "forward_milliseconds", 1e3 * p->forward_seconds);
    cJSON *gradients = cJSON_AddArrayToObject(row, "gradients");
    for (int g = 0; g < STW_GRAD_COUNT; ++g)
        if (p->arrays[RUN_DQ + g].used) cJSON_AddItemToArray(gradients, gradient_json(p, g));
    return row;
}
