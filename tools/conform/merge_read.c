/* SPDX-License-Identifier: MIT
 *
 * Reading a report for `conform --merge`, trusting nothing in it: every field that the merge uses is there
 * and of its type, the totals are those of the cases, no result is in it twice. Called by conform_merge.c. */
#include "merge.h"

#include <errno.h>
#include <math.h>
#include <search.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FILE_MAX ((size_t)1 << 30)

typedef struct reader {
    char *why;
    size_t capacity;
} reader;

static int refuse(const reader *r, const char *format, ...) __attribute__((format(printf, 2, 3)));

static int refuse(const reader *r, const char *format, ...) {
    char text[500];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    snprintf(r->why, r->capacity, "damaged: %s", text);
    return -1;
}

const char *conform_item_text(const cJSON *item, const char *key) {
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(item, key));
    return text ? text : "";
}

double conform_item_ratio(const cJSON *item, const char *key) {
    const cJSON *ratio = cJSON_GetObjectItemCaseSensitive(item, key);
    if (cJSON_IsNumber(ratio) && ratio->valuedouble >= 0) return ratio->valuedouble;
    return cJSON_IsString(ratio) && !strcmp(ratio->valuestring, "inf") ? INFINITY : -1;
}

const char *conform_case_key(const cJSON *item) {
    static char key[2 * CONFORM_LINE_MAX];
    const cJSON *device = cJSON_GetObjectItemCaseSensitive(item, "device");
    snprintf(key, sizeof key, "%.60s|%.500s|%.24s|%.60s|%.60s|%.0f", conform_item_text(item, "row"),
             conform_item_text(item, "problem"), conform_item_text(item, "seed"),
             conform_item_text(item, "variant"), conform_item_text(item, "forced"),
             cJSON_IsNumber(device) ? device->valuedouble : -1);
    return key;
}

/* ---- the file -------------------------------------------------------------------------------------------
 */

static char *read_all(const char *name, size_t *size_out) {
    FILE *from = fopen(name, "rb");
    char *text = NULL;
    size_t size = 0, capacity = 0;
    while (from && size < FILE_MAX) {
        if (size + 1 >= capacity) {
            capacity = capacity ? 2 * capacity : 1 << 16;
            char *grown = realloc(text, capacity);
            if (!grown) break;
            text = grown;
        }
        size_t more = fread(text + size, 1, capacity - size - 1, from);
        size += more;
        if (!more) break;
    }
    int good = from && text && !ferror(from) && feof(from);
    int reason = from && feof(from) ? 0 : errno;
    if (from) fclose(from);
    if (good) {
        text[size] = 0;
        *size_out = size;
        return text;
    }
    free(text);
    errno = reason ? reason : EFBIG;
    return NULL;
}

/* ---- fields ---------------------------------------------------------------------------------------------
 */

static int is_count(const cJSON *number) {
    return cJSON_IsNumber(number) && number->valuedouble >= 0 && number->valuedouble <= 1e12 &&
           floor(number->valuedouble) == number->valuedouble;
}

static int count_of(const reader *r, const cJSON *document, const char *key, size_t *out) {
    const cJSON *number = cJSON_GetObjectItemCaseSensitive(document, key);
    if (!is_count(number)) return refuse(r, "\"%s\" is no count", key);
    *out = (size_t)number->valuedouble;
    return 0;
}

static int strings(const reader *r, const cJSON *document, const char *key) {
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(document, key), *item;
    if (!cJSON_IsArray(list)) return refuse(r, "\"%s\" is no list", key);
    cJSON_ArrayForEach(item, list) {
        if (!cJSON_IsString(item)) return refuse(r, "\"%s\" is no list of texts", key);
    }
    return 0;
}

static int check_ratios(const reader *r, const cJSON *item, int number) {
    for (const cJSON *grad = item->child; grad; grad = grad->next)
        for (const cJSON *ratio = cJSON_IsObject(grad) ? grad->child : NULL; ratio; ratio = ratio->next)
            if (conform_item_ratio(grad, ratio->string) < 0)
                return refuse(r, "case %d: \"%s\" of %s is no ratio", number, ratio->string, grad->string);
    return 0;
}

/* Counts the outcomes. A result without a problem is a skip of the run: of an arch, a variant, a device. */
static int check_case(const reader *r, const cJSON *item, int number, size_t outcomes[3]) {
    const char *outcome = conform_item_text(item, "outcome"), *problem = conform_item_text(item, "problem");
    int which = 0;
    while (which < 3 && strcmp(outcome, conform_outcomes[which])) ++which;
    if (!cJSON_IsObject(item) || which == 3) return refuse(r, "case %d has no outcome", number);
    outcomes[which]++;
    if (!problem[0]) {
        if (which == STW_CASE_SKIP && conform_item_text(item, "text")[0]) return 0;
        return refuse(r, "case %d has no problem", number);
    }
    if (strlen(problem) >= CONFORM_LINE_MAX)
        return refuse(r, "case %d: a problem of %zu characters", number, strlen(problem));
    if (!conform_item_text(item, "row")[0] ||
        !cJSON_IsString(cJSON_GetObjectItemCaseSensitive(item, "variant")))
        return refuse(r, "case %d has no row or variant", number);
    if (strncmp(problem, "pool:", 5) && !conform_item_text(item, "seed")[0])
        return refuse(r, "case %d has no seed", number);
    const cJSON *device = cJSON_GetObjectItemCaseSensitive(item, "device");
    if (device && !is_count(device)) return refuse(r, "case %d: \"device\" is no number", number);
    return check_ratios(r, item, number);
}

static int compare_text(const void *a, const void *b) {
    return strcmp(a, b);
}

static int check_twice(const reader *r, const cJSON *item, int number, void **tree) {
    if (!conform_item_text(item, "problem")[0]) return 0;
    char *key = strdup(conform_case_key(item));
    char **at = key ? tsearch(key, tree, compare_text) : NULL;
    if (at && *at == key) return 0;
    free(key);
    return at ? refuse(r, "case %d is there twice: %s", number, conform_item_text(item, "problem"))
              : refuse(r, "out of memory");
}

static int check_cases(const reader *r, const cJSON *document, size_t outcomes[3]) {
    const cJSON *cases = cJSON_GetObjectItemCaseSensitive(document, "cases"), *item;
    void *tree = NULL;
    int number = 0, bad = cJSON_IsArray(cases) ? 0 : refuse(r, "\"cases\" is no list");
    cJSON_ArrayForEach(item, cases) {
        if (!bad) bad = check_case(r, item, number, outcomes);
        if (!bad) bad = check_twice(r, item, number, &tree);
        ++number;
    }
    tdestroy(tree, free);
    return bad;
}

/* Totals and exit status are those of the cases. Beyond these, the run as a whole can have failed, once, and
 * then says why. */
static int check_totals(const reader *r, conform_file *f, const size_t outcomes[3]) {
    static const char *const names[3] = {"passed", "failed", "skipped"};
    size_t totals[3], status = 0;
    int errors = cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(f->document, "errors"));
    for (int i = 0; i < 3; ++i) {
        if (count_of(r, f->document, names[i], &totals[i])) return -1;
        size_t more = i == STW_CASE_FAIL && errors && totals[i] == outcomes[i] + 1;
        if (totals[i] != outcomes[i] + more)
            return refuse(r, "\"%s\" is %zu, its cases are %zu", names[i], totals[i], outcomes[i]);
    }
    if (count_of(r, f->document, "exit_status", &status)) return -1;
    if (status > 255) return refuse(r, "\"exit_status\" is %zu", status);
    if (!status && (totals[STW_CASE_FAIL] || errors || !totals[STW_CASE_OK]))
        return refuse(r, "exit status 0 with %zu passed, %zu failed, %d errors", totals[0], totals[1],
                      errors);
    f->exit_status = (int)status;
    f->failed = totals[STW_CASE_FAIL];
    return 0;
}

static int check_head(const reader *r, conform_file *f) {
    const cJSON *schema = cJSON_GetObjectItemCaseSensitive(f->document, "schema");
    if (!strcmp(conform_item_text(f->document, "report"), CONFORM_REPORT_KIND " --merge"))
        return refuse(r, "a merge, not a report: name the reports it was made of");
    if (strcmp(conform_item_text(f->document, "report"), CONFORM_REPORT_KIND))
        return refuse(r, "no report of sternway conform");
    if (!cJSON_IsNumber(schema) || schema->valuedouble != CONFORM_SCHEMA)
        return refuse(r, "its schema is not %d, which this command reads", CONFORM_SCHEMA);
    f->id = conform_item_text(f->document, "id");
    f->node = conform_item_text(f->document, "node");
    f->arch = conform_item_text(f->document, "arch");
    f->version = conform_item_text(f->document, "version");
    if (!f->id[0] || !f->node[0] || !f->version[0] || strlen(f->node) >= CONFORM_NODE_MAX ||
        strlen(f->arch) > 31)
        return refuse(r, "no id, node, arch or version");
    return strings(r, f->document, "errors") || strings(r, f->document, "images");
}

int conform_file_read(conform_file *f, char *why, size_t capacity) {
    const reader r = {why, capacity};
    size_t size = 0, outcomes[3] = {0};
    const char *end = NULL;
    char *text = read_all(f->name, &size);
    if (!text) {
        snprintf(why, capacity, "cannot be read: %s", strerror(errno));
        return -1;
    }
    f->document = cJSON_ParseWithLengthOpts(text, size + 1, &end, 1);
    int bad =
        f->document ? 0 : refuse(&r, "no JSON from byte %zu of %zu on", end ? (size_t)(end - text) : 0, size);
    if (!bad && strlen(text) != size) bad = refuse(&r, "a zero byte at %zu", strlen(text));
    if (!bad && !cJSON_IsObject(f->document)) bad = refuse(&r, "no JSON object");
    if (!bad) bad = check_head(&r, f);
    if (!bad) bad = check_cases(&r, f->document, outcomes);
    if (!bad) bad = check_totals(&r, f, outcomes);
    free(text);
    if (!bad) return 0;
    cJSON_Delete(f->document);
    f->document = NULL;
    return -1;
}
