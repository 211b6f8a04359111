/* SPDX-License-Identifier: MIT
 *
 * `sternway bench --compare FILE` (bench.h): problems measured now beside those of an older document. Slower
 * or faster is what the quartiles of both tell apart; where they overlap, it is the same. */
#include "bench.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FILE_MAX ((size_t)64 << 20)

const char *const bench_verdict_names[] = {"same", "faster", "slower"};

/* ---- reading ------------------------------------------------------------------------------------------- */

static char *read_whole(const char *path, const char **problem_out) {
    FILE *file = fopen(path, "re");
    char *text = NULL;
    size_t capacity = 0, size = 0, got = 1;
    *problem_out = file ? NULL : strerror(errno);
    while (file && got && !*problem_out) {
        if (size + 1 >= capacity) {
            char *larger = realloc(text, capacity = capacity ? 2 * capacity : 65536);
            if (!larger || size > FILE_MAX) *problem_out = larger ? "longer than 64 MiB" : "out of memory";
            text = larger ? larger : text;
            if (*problem_out) break;
        }
        got = fread(text + size, 1, capacity - size - 1, file);
        size += got;
        if (ferror(file)) *problem_out = strerror(errno);
    }
    if (file) fclose(file);
    if (!*problem_out && text) text[size] = 0;
    if (!*problem_out && text && memchr(text, 0, size)) *problem_out = "not a JSON document";
    return text;
}

static int is_time(const cJSON *row, const char *key) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(row, key);
    return cJSON_IsNumber(item) && item->valuedouble >= 0 && isfinite(item->valuedouble);
}

/* What is wrong with the document, or NULL; *row_out: with which problem. */
static const char *fault_of(const cJSON *document, int *row_out) {
    static const char *const texts[] = {"sternway", "backend", "arch", "device", "driver", "date"};
    const cJSON *rows = cJSON_GetObjectItemCaseSensitive(document, "problems"), *row;
    *row_out = -1;
    if (!document) return "not a JSON document, or cut off";
    for (size_t i = 0; i < sizeof texts / sizeof *texts; ++i)
        if (!cJSON_IsString(cJSON_GetObjectItemCaseSensitive(document, texts[i])))
            return "not what `sternway bench --json` writes: sternway, backend, arch, device, driver or date "
                   "is "
                   "missing";
    if (!cJSON_IsArray(rows)) return "not what `sternway bench --json` writes: problems is missing";
    cJSON_ArrayForEach(row, rows) {
        ++*row_out;
        if (!cJSON_IsString(cJSON_GetObjectItemCaseSensitive(row, "problem"))) return "problem is missing";
        if (!is_time(row, "low_ms") || !is_time(row, "median_ms") || !is_time(row, "high_ms"))
            return "low_ms, median_ms or high_ms is no time";
        if (stw_tool_json_number(row, "low_ms") > stw_tool_json_number(row, "median_ms") ||
            stw_tool_json_number(row, "median_ms") > stw_tool_json_number(row, "high_ms"))
            return "low_ms, median_ms and high_ms are not in order";
    }
    *row_out = -1;
    return NULL;
}

int bench_compare_open(const char *path, bench_old *old) {
    const char *problem;
    int row = -1;
    memset(old, 0, sizeof *old);
    char *text = read_whole(path, &problem);
    if (!problem) {
        old->document = cJSON_ParseWithOpts(text, NULL, 1);
        stw_tool_json_clean(old->document);
        problem = fault_of(old->document, &row);
    }
    free(text);
    if (problem && row >= 0) stw_tool_error("bench", path, "problems[%d]: %s", row, problem);
    else if (problem) stw_tool_error("bench", path, "%s", problem);
    if (problem) {
        bench_compare_close(old);
        return STW_EXIT_USAGE;
    }
    old->path = path;
    old->rows = cJSON_CreateArray();
    old->added = cJSON_CreateArray();
    return STW_EXIT_OK;
}

void bench_compare_close(bench_old *old) {
    cJSON_Delete(old->document);
    cJSON_Delete(old->rows);
    cJSON_Delete(old->added);
    memset(old, 0, sizeof *old);
}

/* ---- comparing ----------------------------------------------------------------------------------------- */

static const cJSON *find(const cJSON *rows, const char *line) {
    const cJSON *row;
    cJSON_ArrayForEach(row, rows) {
        if (!strcmp(cJSON_GetObjectItemCaseSensitive(row, "problem")->valuestring, line)) return row;
    }
    return NULL;
}

static bench_verdict verdict_of(double worst, double best) {
    return worst > 1 ? BENCH_FASTER : best < 1 ? BENCH_SLOWER : BENCH_SAME;
}

const cJSON *bench_compare(bench_old *old, const bench_result *r, double *ratio_out, bench_verdict *verdict_out) {
    if (!old->path) return NULL;
    const cJSON *before = find(cJSON_GetObjectItemCaseSensitive(old->document, "problems"), r->line);
    if (!before) {
        cJSON_AddItemToArray(old->added, cJSON_CreateString(r->line));
        return NULL;
    }
    /* No clock tells two times of 0 apart; and a ratio needs something below its line. */
    const double least = 1e-9;
    double median = fmax(r->quartiles[1] * 1e3, least);
    double ratios[3] = {fmax(stw_tool_json_number(before, "low_ms"), least) / fmax(r->quartiles[2] * 1e3, least),
                        fmax(stw_tool_json_number(before, "median_ms"), least) / median,
                        fmax(stw_tool_json_number(before, "high_ms"), least) / fmax(r->quartiles[0] * 1e3, least)};
    *ratio_out = ratios[1];
    *verdict_out = verdict_of(ratios[0], ratios[2]);
    old->slower += *verdict_out == BENCH_SLOWER;
    ++old->compared;
    for (int i = 0; i < 3; ++i) old->log_ratio[i] += log(ratios[i]);
    cJSON *row = cJSON_CreateObject();
    cJSON_AddStringToObject(row, "problem", r->line);
    cJSON_AddNumberToObject(row, "old_median_ms", stw_tool_json_number(before, "median_ms"));
    cJSON_AddNumberToObject(row, "median_ms", r->quartiles[1] * 1e3);
    cJSON_AddNumberToObject(row, "speedup", ratios[1]);
    cJSON_AddStringToObject(row, "verdict", bench_verdict_names[*verdict_out]);
    cJSON_AddItemToArray(old->rows, row);
    return before;
}

static void add_difference(cJSON *to, const char *what, const char *before, const char *now) {
    char text[400];
    if (!strcmp(before, now)) return;
    snprintf(text, sizeof text, "%s: %.120s then, %.120s now", what, before[0] ? before : "(not known)",
             now[0] ? now : "(not known)");
    cJSON_AddItemToArray(to, cJSON_CreateString(text));
}

static void add_total(cJSON *to, const bench_old *old, int *slower_out) {
    double ratio[3];
    for (int i = 0; i < 3; ++i) ratio[i] = exp(old->log_ratio[i] / old->compared);
    bench_verdict verdict = verdict_of(ratio[0], ratio[2]);
    cJSON_AddNumberToObject(to, "speedup", ratio[1]);
    cJSON_AddNumberToObject(to, "speedup_low", ratio[0]);
    cJSON_AddNumberToObject(to, "speedup_high", ratio[2]);
    cJSON_AddStringToObject(to, "verdict", bench_verdict_names[verdict]);
    *slower_out = old->slower > 0 || verdict == BENCH_SLOWER;
}

cJSON *bench_compare_end(bench_old *old, const stw_tool_named *now, int *slower_out) {
    static const char *const copied[] = {"sternway", "arch", "device", "driver", "date"};
    const cJSON *before = old->document, *row;
    char version[32];
    uint32_t v = stw_version();
    if (!old->path) return NULL;
    snprintf(version, sizeof version, "%u.%u.%u", v / 10000, v / 100 % 100, v % 100);
    const char *values[] = {version, now->arch, now->device, now->driver};
    cJSON *c = cJSON_CreateObject();
    cJSON_AddStringToObject(c, "file", old->path);
    cJSON *differences = cJSON_CreateArray();
    for (size_t i = 0; i < sizeof copied / sizeof *copied; ++i) {
        const char *text = cJSON_GetObjectItemCaseSensitive(before, copied[i])->valuestring;
        cJSON_AddStringToObject(c, copied[i], text);
        if (i < 4) add_difference(differences, i ? copied[i] : "version", text, values[i]);
    }
    cJSON_AddItemToObject(c, "differences", differences);
    cJSON *missing = cJSON_CreateArray();
    cJSON_ArrayForEach(row, cJSON_GetObjectItemCaseSensitive(before, "problems")) {
        const char *line = cJSON_GetObjectItemCaseSensitive(row, "problem")->valuestring;
        if (!find(old->rows, line)) cJSON_AddItemToArray(missing, cJSON_CreateString(line));
    }
    cJSON_AddItemToObject(c, "problems", old->rows);
    cJSON_AddItemToObject(c, "missing", missing);
    cJSON_AddItemToObject(c, "added", old->added);
    old->rows = old->added = NULL;
    if (old->compared) add_total(c, old, slower_out);
    bench_compare_close(old);
    return c;
}
