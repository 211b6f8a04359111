/* SPDX-License-Identifier: MIT
 *
 * What `sternway tune` shows of a problem's variants (tune.h): a table, comma-separated values or rows of the
 * JSON document (docs/schema/tune.json). On an emulator the columns are estimates and are called so. */
#include "tune.h"

#include <stdio.h>

/* How much faster than the variant of the rules in force; 0: not known. */
static double gain_of(const tune_point *point, const tune_timing *t) {
    return t->runs && point->timings[0].runs ? point->timings[0].median / t->median : 0;
}

static double tflops_of(const tune_point *point, const tune_timing *t) {
    return t->runs && t->median > 0 ? point->flop / t->median * 1e-12 : 0;
}

void tune_print_head(const tune_target *target, tune_format format) {
    if (format == TUNE_CSV)
        puts(target->counts ? "problem,arch,variant,chosen_now,estimate_cycles,matrix_cycles,issue_cycles,gain,text"
                            : "problem,arch,variant,chosen_now,runs,median_ms,iqr_ms,tflops,gain,text");
    if (format != TUNE_TABLE) return;
    if (target->counts)
        printf("%s is an emulator: estimates of SIMD cycles from its counts, no times\n"
               "%10s %9s %8s %7s  variant\n",
               target->named.device, "estimate M", "matrix M", "issue M", "gain");
    else printf("%10s %9s %8s %7s  variant\n", "median ms", "IQR ms", "TFLOP/s", "gain");
}

static void print_csv(const tune_target *target, const tune_point *point, size_t i) {
    const tune_timing *t = &point->timings[i];
    printf("%s,%s,%s,%s,", point->line, target->table->arch, t->variant->id, i ? "no" : "yes");
    if (target->counts) printf("%.0f,%.0f,%.0f,", t->runs ? t->median : 0, t->matrix, t->issue);
    else printf("%d,%.6f,%.6f,%.4f,", t->runs, t->median * 1e3, t->spread * 1e3, tflops_of(point, t));
    printf("%.4f,\"%s\"\n", gain_of(point, t), t->text);
}

static void print_row(const tune_target *target, const tune_point *point, size_t i, int is_best) {
    const tune_timing *t = &point->timings[i];
    if (!t->runs)
        printf("%10s %9s %8s %7s  %s%s: %s\n", "-", "-", "-", "-", t->variant->id, i ? "" : " (now)", t->text);
    else if (target->counts)
        printf("%10.4f %9.4f %8.4f %7.3f  %s%s%s\n", t->median * 1e-6, t->matrix * 1e-6, t->issue * 1e-6,
               gain_of(point, t), t->variant->id, i ? "" : " (now)", is_best ? " *" : "");
    else
        printf("%10.4f %9.4f %8.2f %7.3f  %s%s%s\n", t->median * 1e3, t->spread * 1e3, tflops_of(point, t),
               gain_of(point, t), t->variant->id, i ? "" : " (now)", is_best ? " *" : "");
}

void tune_print_point(const tune_target *target, tune_format format, const tune_point *point) {
    size_t best = tune_best(point);
    if (format == TUNE_TABLE) printf("%s\n", point->line);
    for (size_t i = 0; i < point->count; ++i)
        if (format == TUNE_CSV) print_csv(target, point, i);
        else print_row(target, point, i, i == best);
    fflush(stdout);
}

/* ---- JSON ---------------------------------------------------------------------------------------------- */

cJSON *tune_json_head(const tune_target *target) {
    const uint32_t v = stw_version();
    char version[32];
    snprintf(version, sizeof version, "%u.%u.%u", v / 10000, v / 100 % 100, v % 100);
    cJSON *document = cJSON_CreateObject();
    cJSON_AddStringToObject(document, "sternway", version);
    cJSON_AddStringToObject(document, "backend", target->named.backend);
    cJSON_AddStringToObject(document, "arch", target->table->arch);
    cJSON_AddStringToObject(document, "device", target->named.device);
    cJSON_AddStringToObject(document, "driver", target->named.driver);
    cJSON_AddStringToObject(document, "date", target->named.date);
    cJSON_AddBoolToObject(document, "estimated", target->counts != NULL);
    return document;
}

void tune_add_json(const tune_target *target, cJSON *points, const tune_point *point) {
    cJSON *item = cJSON_CreateObject();
    cJSON_AddStringToObject(item, "problem", point->line);
    cJSON *rows = cJSON_AddArrayToObject(item, "variants");
    for (size_t i = 0; i < point->count; ++i) {
        const tune_timing *t = &point->timings[i];
        cJSON *row = cJSON_CreateObject();
        cJSON_AddStringToObject(row, "variant", t->variant->id);
        cJSON_AddBoolToObject(row, "chosen_now", i == 0);
        cJSON_AddBoolToObject(row, "pruned", t->pruned);
        if (!target->counts) cJSON_AddNumberToObject(row, "runs", t->runs);
        if (!t->runs) {
            cJSON_AddStringToObject(row, "not_timed", t->text);
        } else if (target->counts) {
            cJSON_AddNumberToObject(row, "estimate_cycles", t->median);
            cJSON_AddNumberToObject(row, "matrix_cycles", t->matrix);
            cJSON_AddNumberToObject(row, "issue_cycles", t->issue);
        } else {
            cJSON_AddNumberToObject(row, "median_ms", t->median * 1e3);
            cJSON_AddNumberToObject(row, "iqr_ms", t->spread * 1e3);
            cJSON_AddNumberToObject(row, "tflops", tflops_of(point, t));
        }
        if (gain_of(point, t) > 0) cJSON_AddNumberToObject(row, "gain", gain_of(point, t));
        cJSON_AddItemToArray(rows, row);
    }
    cJSON_AddItemToArray(points, item);
}
