/* SPDX-License-Identifier: MIT
 *
 * `sternway conform --merge`: the reports of many nodes as one. Each file is checked as if it came from
 * anywhere (conform_merge_read.c); a result counts once however often it was reported; what contradicts
 * itself is an error of the merge. Called by conform.c. */
#include "merge.h"

#include <search.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
} merge;

static void note(merge *m, cJSON *to, const char *where, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

static void note(merge *m, cJSON *to, const char *where, const char *format, ...) {
    char text[1500], whole[2000];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    snprintf(whole, sizeof whole, "%s: %s", where, text);
    if (to == m->errors) stw_tool_error("conform", where, "%s", text);
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
            else
                note(m, m->errors, f->name, "contradicts %s: the same run %s, another content", other->name,
                     f->id);
            return;
        }
        const cJSON *a = cJSON_GetObjectItemCaseSensitive(f->document, "images"),
                    *b = cJSON_GetObjectItemCaseSensitive(other->document, "images");
        if (!strcmp(f->arch, other->arch) &&
            (strcmp(f->version, other->version) || !cJSON_Compare(a, b, 1))) {
            note(m, m->errors, f->name, "contradicts %s: results of %s from another build of the library",
                 other->name, f->arch);
            return;
        }
    }
}

/* ---- results --------------------------------------------------------------------------------------------
 */

static int compare_seen(const void *a, const void *b) {
    return strcmp(((const seen *)a)->key, ((const seen *)b)->key);
}

static int compare_text(const void *a, const void *b) {
    return strcmp(a, b);
}

static void free_seen(void *node) {
    free(((seen *)node)->key);
    free(node);
}

static int strength(const char *outcome) {
    return !strcmp(outcome, "FAIL") ? 2 : !strcmp(outcome, "ok") ? 1 : 0;
}

/* The tree's own entry of that key; `fresh` says whether it was put there now. NULL: no memory. */
static seen *find_or_add(merge *m, const conform_file *f, cJSON *item, int *fresh) {
    seen *entry = calloc(1, sizeof *entry);
    if (entry && asprintf(&entry->key, "%s|%s|%s", f->node, f->arch, conform_case_key(item)) < 0)
        entry->key = NULL;
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
    if (!at || *at != key) free(key);
}

static void sign_case(const conform_file *f, cJSON *item) {
    cJSON_AddStringToObject(item, "node", f->node);
    cJSON_AddStringToObject(item, "arch", f->arch);
}

/* A result that an earlier report of the node has as well: counted once, the graver outcome of the two. */
static void take_again(merge *m, const conform_file *f, seen *before, cJSON *item) {
    const char *now = conform_item_text(item, "outcome"), *then = conform_item_text(before->item, "outcome");
    if (strength(now) && strength(then) && strcmp(now, then))
        note(m, m->errors, f->name, "contradicts %s: %s on %s of %s is %s here and %s there",
             before->from->name, conform_item_text(item, "problem"), conform_item_text(item, "variant"),
             f->node, now, then);
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
        note(m, m->notes, f->name, "%zu results of node %s on %s are in %s as well: counted once", again,
             f->node, f->arch, other->name);
    const cJSON *error;
    cJSON_ArrayForEach(error, cJSON_GetObjectItemCaseSensitive(f->document, "errors")) {
        note(m, m->errors, f->name, "the run says: %s", cJSON_GetStringValue(error));
    }
    if (f->exit_status && !f->failed &&
        !cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(f->document, "errors")))
        note(m, m->errors, f->name, "the run ended with status %d", f->exit_status);
}

/* ---- what it says ---------------------------------------------------------------------------------------
 */

static void tally_case(conform_tally *tally, const cJSON *item) {
    const char *outcome = conform_item_text(item, "outcome"), *problem = conform_item_text(item, "problem");
    const cJSON *grad;
    conform_tally_add(tally, strength(outcome) == 2   ? STW_CASE_FAIL
                             : strength(outcome) == 1 ? STW_CASE_OK
                                                      : STW_CASE_SKIP);
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

typedef struct arch_count {
    const char *arch;
    size_t problems;
} arch_count;

static void count_of_arch(const void *node, VISIT which, void *user) {
    arch_count *count = user;
    const char *key = *(char *const *)node;
    size_t length = strlen(count->arch);
    if (which == postorder || which == leaf)
        count->problems += !strncmp(key, count->arch, length) && key[length] == '|';
}

static size_t distinct_problems(const merge *m, const char *arch) {
    arch_count count = {arch, 0};
    twalk_r(m->problems, count_of_arch, &count);
    return count.problems;
}

static void tally_nodes(merge *m) {
    const cJSON *item;
    char name[CONFORM_NAME_MAX];
    cJSON_ArrayForEach(item, m->cases) {
        const char *outcome = conform_item_text(item, "outcome");
        snprintf(name, sizeof name, "%s %s", conform_item_text(item, "node"),
                 conform_item_text(item, "arch"));
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
               conform_item_text(item, "row"), conform_item_text(item, "problem"),
               conform_item_text(item, "variant"), conform_item_text(item, "text"));
    }
    for (int i = 0; i < m->count; ++i) {
        if (!is_first(m, &m->files[i], 0)) continue;
        conform_tallies features = features_of(m, NULL, m->files[i].arch);
        snprintf(title, sizeof title, "feature on %.40s", m->files[i].arch);
        conform_tallies_print(title, &features);
        free(features.rows);
    }
    conform_tallies_print("node and arch", &m->nodes);
    cJSON_ArrayForEach(item, m->notes) {
        printf("%s\n", cJSON_GetStringValue(item));
    }
    for (int i = 0; i < m->count; ++i)
        if (is_first(m, &m->files[i], 0))
            printf("%zu distinct problems ran on %s\n", distinct_problems(m, m->files[i].arch),
                   m->files[i].arch);
    printf("%d reports of %zu nodes and archs\n", reports, m->nodes.count);
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
    int exit = m->failed || cJSON_GetArraySize(m->errors) ? STW_EXIT_FAILED : STW_EXIT_OK;
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
    int exit =
        m.files && m.cases && m.errors && m.notes ? merge_files(&m, require, outputs) : STW_EXIT_FAILED;
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
