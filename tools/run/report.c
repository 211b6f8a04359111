/* SPDX-License-Identifier: MIT
 *
 * What `sternway run` says of a problem: as text and as JSON. */
#include "run.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

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
    printf("    %-8s %s, arch %s (%s), variant %s\n             why: %s\n", label, backend, arch, device,
           variant, why);
}

static void print_gradient(const run_problem *p, int g) {
    const run_array *array = &p->arrays[RUN_DQ + g];
    const run_result *result = &p->results[g];
    const stw_accuracy *a = &result->accuracy;
    if (!array->used) return;
    run_norm norm = norm_of(array);
    printf("    %-8s norm %.4e  largest %.4e", stw_grad_names[g], norm.norm, norm.largest);
    if (result->given) {
        printf("  max error %.2e, allowed %.2e", a->max_error, a->max_allowed);
        if (a->rms_allowed > 0)
            printf("  rms %.2e, allowed %.2e%s", a->rms_error, a->rms_allowed, a->small ? " (pooled)" : "");
        printf("  %s", a->pass ? "pass" : "FAIL");
        if (!a->pass && a->worst >= 0)
            printf("\n             element %lld is %.9g, the reference %.9g", (long long)a->worst,
                   a->worst_value, a->worst_ref);
    }
    putchar('\n');
}

void run_print(const run_problem *p, const run_options *options) {
    char line[1024];
    stw_tool_plan_field(p->plan_text, "problem", line, sizeof line);
    printf("  %s%s%s\n", p->name, p->name[0] ? ": " : "", line);
    print_plan_line(p->plan_text, "backend");
    if (p->compute_forward) {
        print_plan_line(p->forward_text, "forward");
        printf("    out and lse are absent: computed in %.3f ms\n", 1e3 * p->forward_seconds);
    }
    printf("    time     %.3f ms", 1e3 * p->seconds);
    if (options->repeat > 1) printf(" (median of %d)", options->repeat);
    putchar('\n');
    for (int g = 0; g < STW_GRAD_COUNT; ++g) print_gradient(p, g);
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
    cJSON_AddStringToObject(row, "name", stw_grad_names[g]);
    cJSON_AddStringToObject(row, "dtype", stw_st_type_name(array->type));
    cJSON *shape = cJSON_AddArrayToObject(row, "shape");
    for (int d = 0; d < array->rank; ++d)
        cJSON_AddItemToArray(shape, cJSON_CreateNumber((double)array->shape[d]));
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
