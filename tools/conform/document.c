/* SPDX-License-Identifier: MIT
 *
 * The JSON document of a run (docs/schema/conform.md): what ran where, every case with its errors, features,
 * totals; and the files that a run or a merge leaves. Called by conform.c and merge.c. */
#include "report.h"

#include "tools/verify/jagged.h"
#include "tools/base/replace_file.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define IMAGES_MAX 64

/* JSON has no infinity, which the error of a result that is none has. */
static void add_ratio(cJSON *item, const char *name, double ratio) {
    if (isfinite(ratio)) cJSON_AddNumberToObject(item, name, ratio);
    else cJSON_AddStringToObject(item, name, "inf");
}

/* ---- cases -------------------------------------------------------------------------------------------- */

void conform_document_case(cJSON *cases, const conform_case *c, const char *forced, const stw_verify_result *r) {
    cJSON *item = cJSON_CreateObject();
    char seed[24];
    cJSON_AddStringToObject(item, "outcome", conform_outcomes[r->outcome]);
    cJSON_AddStringToObject(item, "row", conform_row_name(c->row));
    cJSON_AddStringToObject(item, "problem", c->line);
    cJSON_AddStringToObject(item, "variant", r->variant);
    if (forced[0]) cJSON_AddStringToObject(item, "forced", forced);
    if (strncmp(c->line, "pool:", 5)) { /* a string: doubles do not hold every int64 */
        snprintf(seed, sizeof seed, "%lld", (long long)conform_seed_of(c->line));
        cJSON_AddStringToObject(item, "seed", seed);
        cJSON_AddNumberToObject(item, "seconds", (double)(int64_t)(1e6 * r->seconds) / 1e6);
    }
    if (r->on_device) cJSON_AddNumberToObject(item, "device", r->on_device - 1);
    for (int g = 0; g < STW_GRAD_COUNT; ++g) {
        int max = !(r->max_ratio[g] < 0), rms = !(r->rms_ratio[g] < 0);
        if (!max && !rms) continue;
        cJSON *errors = cJSON_AddObjectToObject(item, jagged_names_of(c->line)[g]);
        if (max) add_ratio(errors, "max_ratio", r->max_ratio[g]);
        if (rms) add_ratio(errors, "rms_ratio", r->rms_ratio[g]);
    }
    if (r->text[0]) cJSON_AddStringToObject(item, "text", r->text);
    cJSON_AddItemToArray(cases, item);
}

static void add_worst(cJSON *item, const char *name, double ratio, const char *of, const char *problem) {
    if (ratio < 0) return;
    cJSON *worst = cJSON_AddObjectToObject(item, name);
    add_ratio(worst, "ratio", ratio);
    cJSON_AddStringToObject(worst, "of", of);
    cJSON_AddStringToObject(worst, "problem", problem);
}

cJSON *conform_document_tallies(const conform_tallies *tallies) {
    cJSON *rows = cJSON_CreateArray();
    for (size_t i = 0; i < tallies->count; ++i) {
        const conform_tally *row = &tallies->rows[i];
        cJSON *item = cJSON_CreateObject();
        cJSON_AddStringToObject(item, "name", row->name);
        cJSON_AddNumberToObject(item, "passed", (double)row->passed);
        cJSON_AddNumberToObject(item, "failed", (double)row->failed);
        cJSON_AddNumberToObject(item, "skipped", (double)row->skipped);
        add_worst(item, "max", row->max_ratio, row->max_of, row->max_problem);
        add_worst(item, "rms", row->rms_ratio, row->rms_of, row->rms_problem);
        cJSON_AddItemToArray(rows, item);
    }
    return rows;
}

/* ---- the head ----------------------------------------------------------------------------------------- */

const char *conform_node_name(const char *given) {
    static char name[CONFORM_NODE_MAX];
    char host[256] = "";
    if (!given && gethostname(host, sizeof host - 1)) snprintf(host, sizeof host, "unknown");
    if (given && (!given[0] || strlen(given) >= sizeof name)) return NULL;
    snprintf(name, sizeof name, "%.*s", (int)sizeof name - 1, given ? given : host);
    for (char *c = name; *c; ++c) {
        if (isalnum((unsigned char)*c) || strchr("._-", *c)) continue;
        if (given) return NULL;
        *c = '-';
    }
    return name;
}

/* Version, and the hashes of the arch's images: two reports of one arch must stand on the same build. */
static void add_build(cJSON *document, const char *arch) {
    stw_image_info images[IMAGES_MAX];
    size_t count = 0;
    char text[40];
    uint32_t version = stw_version();
    snprintf(text, sizeof text, "%u.%u.%u", version / 10000, version / 100 % 100, version % 100);
    cJSON_AddStringToObject(document, "version", text);
    cJSON *list = cJSON_AddArrayToObject(document, "images");
    for (size_t i = 0; i < IMAGES_MAX; ++i) images[i] = STW_INIT(stw_image_info);
    if (stw_embedded_images(images, IMAGES_MAX, &count)) return;
    for (size_t i = 0; i < count && i < IMAGES_MAX; ++i) {
        if (strcmp(images[i].arch, arch)) continue;
        snprintf(text, sizeof text, "%016llx", (unsigned long long)images[i].hash);
        cJSON_AddItemToArray(list, cJSON_CreateString(text));
    }
}

/* What tells this run from every other: node, process, time. */
static void add_run(cJSON *document, const conform_report *report) {
    char id[128], started[32];
    struct timespec now;
    struct tm utc;
    double seconds = stw_tool_seconds() - report->began;
    clock_gettime(CLOCK_REALTIME, &now);
    time_t began = now.tv_sec - (time_t)seconds;
    strftime(started, sizeof started, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&began, &utc));
    snprintf(id, sizeof id, "%s-%ld-%lld.%09ld", report->node, (long)getpid(), (long long)now.tv_sec, now.tv_nsec);
    cJSON_AddStringToObject(document, "id", id);
    cJSON_AddStringToObject(document, "node", report->node);
    cJSON_AddStringToObject(document, "started", started);
    cJSON_AddNumberToObject(document, "seconds", (double)(int64_t)(1e3 * seconds) / 1e3);
    cJSON *command = cJSON_AddArrayToObject(document, "command");
    for (char **word = report->command; word && *word; ++word) cJSON_AddItemToArray(command, cJSON_CreateString(*word));
}

cJSON *conform_document(conform_report *report, int exit_status) {
    const conform_target *target = report->target;
    cJSON *document = cJSON_CreateObject();
    cJSON_AddStringToObject(document, "report", CONFORM_REPORT_KIND);
    cJSON_AddNumberToObject(document, "schema", CONFORM_SCHEMA);
    add_run(document, report);
    cJSON_AddStringToObject(document, "arch", target->arch);
    add_build(document, target->arch);
    cJSON_AddNumberToObject(document, "exit_status", exit_status);
    if (report->partial[0]) cJSON_AddStringToObject(document, "partial", report->partial);
    cJSON_AddNumberToObject(document, "distinct_problems",
                            report->passed + report->failed ? (double)report->cases_seen : 0);
    cJSON_AddNumberToObject(document, "passed", (double)report->passed);
    cJSON_AddNumberToObject(document, "failed", (double)report->failed);
    cJSON_AddNumberToObject(document, "skipped", (double)report->skipped);
    cJSON_AddItemToObject(document, "errors", report->errors);
    cJSON_AddItemToObject(document, "features", conform_document_tallies(&report->features));
    cJSON_AddItemToObject(document, "devices", conform_document_tallies(&report->devices));
    cJSON_AddItemToObject(document, "cases", report->cases);
    report->errors = report->cases = NULL;
    return document;
}

/* ---- where it goes ------------------------------------------------------------------------------------ */

int conform_outputs_check(const conform_outputs *outputs) {
    const char *files[2] = {outputs->report, outputs->junit};
    char *targets[2] = {NULL, NULL}, error[STW_REPLACE_ERROR_MAX];
    int exit = STW_EXIT_OK;
    for (int i = 0; i < 2 && !exit; ++i) {
        if (!files[i]) continue;
        targets[i] = stw_replace_target(files[i], error);
        if (targets[i]) continue;
        stw_tool_error("conform", files[i], "%s", error);
        exit = STW_EXIT_USAGE;
    }
    if (!exit && targets[0] && targets[1] && !strcmp(targets[0], targets[1])) {
        stw_tool_error("conform", files[0], "--report and --junit name the same file");
        exit = STW_EXIT_USAGE;
    }
    free(targets[0]);
    free(targets[1]);
    return exit;
}

static int write_json(FILE *to, const void *document) {
    char *text = cJSON_Print(document);
    int bad = !text || !stw_tool_json_is_whole() || fputs(text, to) < 0 || fputc('\n', to) < 0;
    cJSON_free(text);
    return bad;
}

int conform_outputs_write(const conform_outputs *outputs, cJSON *document, int exit) {
    char error[STW_REPLACE_ERROR_MAX];
    if (outputs->report && stw_replace_file(outputs->report, write_json, document, error)) {
        stw_tool_error("conform", outputs->report, "%s", error);
        exit = exit ? exit : STW_EXIT_FAILED;
    }
    if (outputs->junit && stw_replace_file(outputs->junit, conform_junit_write, document, error)) {
        stw_tool_error("conform", outputs->junit, "%s", error);
        exit = exit ? exit : STW_EXIT_FAILED;
    }
    if (outputs->json) stw_tool_print_json(document);
    else cJSON_Delete(document);
    return exit;
}
