/* SPDX-License-Identifier: MIT
 *
 * `sternway conform --merge`: the reports of many nodes as one. Each file is checked as if it came from
 * anywhere; a result counts once however often it was reported; what contradicts itself is an error of the
 * merge. Called by conform.c. */
#include "report.h"

#include <errno.h>
#include <math.h>
#include <search.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A report as a file. */
typedef struct conform_file {
    const char *name;
    cJSON *document;                        /* NULL: damaged */
    const char *id, *node, *arch, *version; /* in the document */
    int exit_status, is_copy;
    size_t failed, first_with; /* cases; problems that no file before this one had on the arch */
} conform_file;

/* ---- reading, trusting nothing: every field that the merge uses is there and of its type, the totals are
 * those of the cases, no result is in it twice. */

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

/* A string of an object; "" where there is none. */
static const char *conform_item_text(const cJSON *item, const char *key) {
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(item, key));
    return text ? text : "";
}

/* A ratio of an object as a report has it, infinite ones included; -1: none. */
static double conform_item_ratio(const cJSON *item, const char *key) {
    const cJSON *ratio = cJSON_GetObjectItemCaseSensitive(item, key);
    if (cJSON_IsNumber(ratio) && ratio->valuedouble >= 0) return ratio->valuedouble;
    return cJSON_IsString(ratio) && !strcmp(ratio->valuestring, "inf") ? INFINITY : -1;
}

/* What tells a result from every other of its node and arch; valid until the next call. */
static const char *conform_case_key(const cJSON *item) {
    static char key[2 * CONFORM_LINE_MAX];
    const cJSON *device = cJSON_GetObjectItemCaseSensitive(item, "device");
    snprintf(key, sizeof key, "%.60s|%.500s|%.24s|%.60s|%.60s|%.0f", conform_item_text(item, "row"),
             conform_item_text(item, "problem"), conform_item_text(item, "seed"), conform_item_text(item, "variant"),
             conform_item_text(item, "forced"), cJSON_IsNumber(device) ? device->valuedouble : -1);
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
        if (which == STW_VERIFY_SKIP && conform_item_text(item, "text")[0]) return 0;
        return refuse(r, "case %d has no problem", number);
    }
    if (strlen(problem) >= CONFORM_LINE_MAX)
        return refuse(r, "case %d: a problem of %zu characters", number, strlen(problem));
    if (!conform_item_text(item, "row")[0] || !cJSON_IsString(cJSON_GetObjectItemCaseSensitive(item, "variant")))
        return refuse(r, "case %d has no row or variant", number);
    if (strncmp(problem, "pool:", 5) && !conform_item_text(item, "seed")[0])
        return refuse(r, "case %d has no seed", number);
    const cJSON *device = cJSON_GetObjectItemCaseSensitive(item, "device");
    if (device && !is_count(device)) return refuse(r, "case %d: \"device\" is no number", number);
    return check_ratios(r, item, number);
}

static int compare_text(const void *a, const void *b) { return strcmp(a, b); }

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
        size_t more = i == STW_VERIFY_FAIL && errors && totals[i] == outcomes[i] + 1;
        if (totals[i] != outcomes[i] + more)
            return refuse(r, "\"%s\" is %zu, its cases are %zu", names[i], totals[i], outcomes[i]);
    }
    if (count_of(r, f->document, "exit_status", &status)) return -1;
    if (status > 255) return refuse(r, "\"exit_status\" is %zu", status);
    if (!status && (totals[STW_VERIFY_FAIL] || errors || !totals[STW_VERIFY_OK]))
        return refuse(r, "exit status 0 with %zu passed, %zu failed, %d errors", totals[0], totals[1], errors);
    f->exit_status = (int)status;
    f->failed = totals[STW_VERIFY_FAIL];
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
    if (!f->id[0] || !f->node[0] || !f->version[0] || strlen(f->node) >= CONFORM_NODE_MAX || strlen(f->arch) > 31)
        return refuse(r, "no id, node, arch or version");
    return strings(r, f->document, "errors") || strings(r, f->document, "images");
}

/* Reads and checks the file called f->name. Nonzero: damaged or not there, with the reason in `why`. */
static int conform_file_read(conform_file *f, char *why, size_t capacity) {
    const reader r = {why, capacity};
    size_t size = 0, outcomes[3] = {0};
    const char *end = NULL;
    char *text = read_all(f->name, &size);
    if (!text) {
        snprintf(why, capacity, "cannot be read: %s", strerror(errno));
        return -1;
    }
    f->document = cJSON_ParseWithLengthOpts(text, size + 1, &end, 1);
    stw_tool_json_clean(f->document);
    int bad = f->document ? 0 : refuse(&r, "no JSON from byte %zu of %zu on", end ? (size_t)(end - text) : 0, size);
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

/* ---- merging ---- */

typedef struct seen { /* a result that is in the merge; what tsearch keeps */
    char *key;
    cJSON *item;
    const conform_file *from;
} seen;

typedef struct merge {
    conform_file *files;
    int count, bad;           /* bad: no memory */
    void *results, *problems; /* trees: of seen, of keys */
    cJSON *cases, *errors, *notes;
    conform_tallies nodes;
    size_t passed, failed, skipped;
    size_t wrong; /* errors; their texts may be missing where memory is */
} merge;

static void note(merge *m, cJSON *to, const char *where, const char *format, ...) __attribute__((format(printf, 4, 5)));

static void note(merge *m, cJSON *to, const char *where, const char *format, ...) {
    char text[1500], whole[2000];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    snprintf(whole, sizeof whole, "%s: %s", where, text);
    stw_tool_clean(whole);
    if (to == m->errors) {
        stw_tool_error("conform", where, "%s", text);
        ++m->wrong;
    }
    cJSON_AddItemToArray(to, cJSON_CreateString(whole));
}

/* ---- reports against each other -------------------------------------------------------------------------
 */

/* The same run in two files, and builds that differ. */
static void compare_heads(merge *m, conform_file *f) {
    for (conform_file *other = m->files; other < f; ++other) {
        if (!other->document || other->is_copy) continue;
        if (!strcmp(f->id, other->id)) {
            f->is_copy = 1;
            if (cJSON_Compare(f->document, other->document, 1))
                note(m, m->notes, f->name, "the same report as %s: counted once", other->name);
            else note(m, m->errors, f->name, "contradicts %s: the same run %s, another content", other->name, f->id);
            return;
        }
        const cJSON *a = cJSON_GetObjectItemCaseSensitive(f->document, "images"),
                    *b = cJSON_GetObjectItemCaseSensitive(other->document, "images");
        if (!strcmp(f->arch, other->arch) && (strcmp(f->version, other->version) || !cJSON_Compare(a, b, 1))) {
            note(m, m->errors, f->name, "contradicts %s: results of %s from another build of the library", other->name,
                 f->arch);
            return;
        }
    }
}

/* ---- results --------------------------------------------------------------------------------------------
 */

static int compare_seen(const void *a, const void *b) { return strcmp(((const seen *)a)->key, ((const seen *)b)->key); }

static void free_seen(void *node) {
    free(((seen *)node)->key);
    free(node);
}

static int strength(const char *outcome) { return !strcmp(outcome, "FAIL") ? 2 : !strcmp(outcome, "ok") ? 1 : 0; }

/* The tree's own entry of that key; `fresh` says whether it was put there now. NULL: no memory. */
static seen *find_or_add(merge *m, const conform_file *f, cJSON *item, int *fresh) {
    seen *entry = calloc(1, sizeof *entry);
    if (entry && asprintf(&entry->key, "%s|%s|%s", f->node, f->arch, conform_case_key(item)) < 0) entry->key = NULL;
    if (!entry || !entry->key) {
        free(entry);
        return NULL;
    }
    entry->item = item;
    entry->from = f;
    seen **at = tsearch(entry, &m->results, compare_seen);
    *fresh = at && *at == entry;
    if (!*fresh) free_seen(entry);
    return at ? *at : NULL;
}

static void count_problem(merge *m, const conform_file *f, const cJSON *item) {
    const char *problem = conform_item_text(item, "problem");
    char *key = NULL;
    if (!strncmp(problem, "pool:", 5) || !strcmp(conform_item_text(item, "outcome"), "skip")) return;
    if (asprintf(&key, "%s|%s", f->arch, problem) < 0) {
        m->bad = 1;
        return;
    }
    char **at = tsearch(key, &m->problems, compare_text);
    if (!at) m->bad = 1;
    if (at && *at == key) ++m->files[f - m->files].first_with;
    else free(key);
}

static void sign_case(const conform_file *f, cJSON *item) {
    cJSON_AddStringToObject(item, "node", f->node);
    cJSON_AddStringToObject(item, "arch", f->arch);
}

/* A result that an earlier report of the node has as well: counted once, the graver outcome of the two. */
static void take_again(merge *m, const conform_file *f, seen *before, cJSON *item) {
    const char *now = conform_item_text(item, "outcome"), *then = conform_item_text(before->item, "outcome");
    if (strength(now) && strength(then) && strcmp(now, then))
        note(m, m->errors, f->name, "contradicts %s: %s on %s of %s is %s here and %s there", before->from->name,
             conform_item_text(item, "problem"), conform_item_text(item, "variant"), f->node, now, then);
    if (strength(now) > strength(then)) { /* in its place: the order of the cases stays */
        sign_case(f, item);
        cJSON_ReplaceItemViaPointer(m->cases, before->item, item);
        before->item = item;
        before->from = f;
    } else {
        cJSON_Delete(item);
    }
}

static void take_file(merge *m, conform_file *f) {
    cJSON *cases = cJSON_GetObjectItemCaseSensitive(f->document, "cases"), *item;
    const conform_file *other = NULL;
    size_t again = 0;
    while ((item = cases->child) != NULL) {
        cJSON_DetachItemViaPointer(cases, item);
        int fresh = 1;
        seen *entry = conform_item_text(item, "problem")[0] ? find_or_add(m, f, item, &fresh) : NULL;
        if (conform_item_text(item, "problem")[0] && !entry) m->bad = 1;
        if (entry && !fresh) {
            again++;
            other = entry->from;
            take_again(m, f, entry, item);
            continue;
        }
        if (entry) count_problem(m, f, item);
        sign_case(f, item);
        cJSON_AddItemToArray(m->cases, item);
    }
    if (again)
        note(m, m->notes, f->name, "%zu results of node %s on %s are in %s as well: counted once", again, f->node,
             f->arch, other->name);
    const cJSON *error;
    cJSON_ArrayForEach(error, cJSON_GetObjectItemCaseSensitive(f->document, "errors")) {
        note(m, m->errors, f->name, "the run says: %s", cJSON_GetStringValue(error));
    }
    if (f->exit_status && !f->failed && !cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(f->document, "errors")))
        note(m, m->errors, f->name, "the run ended with status %d", f->exit_status);
}

/* ---- what it says ---------------------------------------------------------------------------------------
 */

static void tally_case(conform_tally *tally, const cJSON *item) {
    const char *outcome = conform_item_text(item, "outcome"), *problem = conform_item_text(item, "problem");
    const cJSON *grad;
    conform_tally_add(tally, strength(outcome) == 2   ? STW_VERIFY_FAIL
                             : strength(outcome) == 1 ? STW_VERIFY_OK
                                                      : STW_VERIFY_SKIP);
    cJSON_ArrayForEach(grad, item) {
        if (!cJSON_IsObject(grad)) continue;
        conform_tally_ratio(tally, 0, conform_item_ratio(grad, "max_ratio"), grad->string, problem);
        conform_tally_ratio(tally, 1, conform_item_ratio(grad, "rms_ratio"), grad->string, problem);
    }
}

/* Features of the cases of a node (NULL: all) and an arch (NULL: all). */
static conform_tallies features_of(const merge *m, const char *node, const char *arch) {
    conform_tallies features = {0};
    const cJSON *item;
    cJSON_ArrayForEach(item, m->cases) {
        if (node && strcmp(conform_item_text(item, "node"), node)) continue;
        if (arch && strcmp(conform_item_text(item, "arch"), arch)) continue;
        const char *row = conform_item_text(item, "row");
        tally_case(conform_tally_of(&features, row[0] ? row : "run"), item);
    }
    return features;
}

static int is_first(const merge *m, const conform_file *f, int by_node) {
    if (!f->document || f->is_copy) return 0;
    for (const conform_file *other = m->files; other < f; ++other)
        if (other->document && !other->is_copy && !strcmp(f->arch, other->arch) &&
            (!by_node || !strcmp(f->node, other->node)))
            return 0;
    return 1;
}

static size_t distinct_problems(const merge *m, const char *arch) {
    size_t count = 0;
    for (int i = 0; i < m->count; ++i)
        if (m->files[i].first_with && !strcmp(m->files[i].arch, arch)) count += m->files[i].first_with;
    return count;
}

static void tally_nodes(merge *m) {
    const cJSON *item;
    char name[CONFORM_NAME_MAX];
    cJSON_ArrayForEach(item, m->cases) {
        const char *outcome = conform_item_text(item, "outcome");
        snprintf(name, sizeof name, "%s %s", conform_item_text(item, "node"), conform_item_text(item, "arch"));
        tally_case(conform_tally_of(&m->nodes, name), item);
        m->failed += strength(outcome) == 2;
        m->passed += strength(outcome) == 1;
        m->skipped += strength(outcome) == 0;
    }
}

static void print_merge(const merge *m, int reports) {
    char title[64];
    const cJSON *item;
    cJSON_ArrayForEach(item, m->cases) {
        if (strength(conform_item_text(item, "outcome")) != 2) continue;
        printf("FAIL %s %s %s %s %s : %s\n", conform_item_text(item, "node"), conform_item_text(item, "arch"),
               conform_item_text(item, "row"), conform_item_text(item, "problem"), conform_item_text(item, "variant"),
               conform_item_text(item, "text"));
    }
    for (int i = 0; i < m->count; ++i) {
        if (!is_first(m, &m->files[i], 0)) continue;
        conform_tallies features = features_of(m, NULL, m->files[i].arch);
        snprintf(title, sizeof title, "feature on %.40s", m->files[i].arch);
        conform_tallies_print(title, &features);
        free(features.rows);
    }
    conform_tallies_print("node and arch", &m->nodes);
    cJSON_ArrayForEach(item, m->notes) { printf("%s\n", cJSON_GetStringValue(item)); }
    for (int i = 0; i < m->count; ++i)
        if (is_first(m, &m->files[i], 0)) {
            size_t ran = distinct_problems(m, m->files[i].arch);
            printf("%zu distinct problem%s ran on %s\n", ran, STW_TOOL_S(ran), m->files[i].arch);
        }
    printf("%d report%s of %zu node%s and arch%s\n", reports, STW_TOOL_S(reports), m->nodes.count,
           STW_TOOL_S(m->nodes.count), STW_TOOL_S(m->nodes.count));
    printf("%zu passed, %zu failed, %zu skipped\n", m->passed, m->failed, m->skipped);
}

static cJSON *document_of(merge *m, int exit) {
    cJSON *document = cJSON_CreateObject();
    conform_tallies all = features_of(m, NULL, NULL);
    cJSON_AddStringToObject(document, "report", CONFORM_REPORT_KIND " --merge");
    cJSON_AddNumberToObject(document, "schema", CONFORM_SCHEMA);
    cJSON_AddNumberToObject(document, "exit_status", exit);
    cJSON_AddNumberToObject(document, "passed", (double)m->passed);
    cJSON_AddNumberToObject(document, "failed", (double)m->failed);
    cJSON_AddNumberToObject(document, "skipped", (double)m->skipped);
    cJSON_AddItemToObject(document, "errors", m->errors);
    cJSON_AddItemToObject(document, "notes", m->notes);
    cJSON_AddItemToObject(document, "features", conform_document_tallies(&all));
    cJSON *nodes = cJSON_AddArrayToObject(document, "nodes");
    for (int i = 0; i < m->count; ++i) {
        const conform_file *f = &m->files[i];
        if (!is_first(m, f, 1)) continue;
        conform_tallies features = features_of(m, f->node, f->arch);
        cJSON *node = cJSON_CreateObject();
        cJSON_AddStringToObject(node, "node", f->node);
        cJSON_AddStringToObject(node, "arch", f->arch);
        cJSON_AddNumberToObject(node, "distinct_problems_of_arch", (double)distinct_problems(m, f->arch));
        cJSON_AddItemToObject(node, "features", conform_document_tallies(&features));
        cJSON_AddItemToArray(nodes, node);
        free(features.rows);
    }
    cJSON_AddItemToObject(document, "cases", m->cases);
    m->cases = m->errors = m->notes = NULL;
    free(all.rows);
    return document;
}

static int merge_files(merge *m, const char *require, const conform_outputs *outputs) {
    int reports = 0;
    for (int i = 0; i < m->count; ++i) {
        conform_file *f = &m->files[i];
        char why[600];
        if (conform_file_read(f, why, sizeof why)) {
            note(m, m->errors, f->name, "%s", why);
            continue;
        }
        compare_heads(m, f);
        reports += !f->is_copy;
    }
    /* Only now: a copy is told by its whole content, and taking a report's cases empties it. */
    for (int i = 0; i < m->count; ++i)
        if (m->files[i].document && !m->files[i].is_copy) take_file(m, &m->files[i]);
    if (m->bad) note(m, m->errors, "merge", "out of memory");
    tally_nodes(m);
    if (!m->passed && !m->failed) note(m, m->errors, "merge", "nothing ran");
    if (require && !distinct_problems(m, require))
        note(m, m->errors, "merge", "--require %s: that arch ran no case", require);
    int exit = m->failed || m->wrong ? STW_EXIT_FAILED : STW_EXIT_OK;
    if (!outputs->json) print_merge(m, reports);
    return conform_outputs_write(outputs, document_of(m, exit), exit);
}

int conform_merge(char **files, int count, const char *require, const conform_outputs *outputs) {
    merge m = {.count = count};
    if (count < 1) {
        stw_tool_error("conform", NULL, "--merge needs the files of reports");
        return STW_EXIT_USAGE;
    }
    m.files = calloc((size_t)count, sizeof *m.files);
    m.cases = cJSON_CreateArray();
    m.errors = cJSON_CreateArray();
    m.notes = cJSON_CreateArray();
    for (int i = 0; m.files && i < count; ++i) m.files[i].name = files[i];
    int exit = m.files && m.cases && m.errors && m.notes ? merge_files(&m, require, outputs) : STW_EXIT_FAILED;
    for (int i = 0; m.files && i < count; ++i) cJSON_Delete(m.files[i].document);
    tdestroy(m.results, free_seen);
    tdestroy(m.problems, free);
    cJSON_Delete(m.cases);
    cJSON_Delete(m.errors);
    cJSON_Delete(m.notes);
    free(m.nodes.rows);
    free(m.files);
    return exit;
}
