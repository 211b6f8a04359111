/* SPDX-License-Identifier: MIT
 *
 * The document of a run or a merge (document.c) as JUnit's XML, which CI systems show: a test suite a
 * feature, a test case a result, what went wrong with the run as a whole in a suite of its own. Called
 * through conform_outputs_write. */
#include "report.h"

#include <stdio.h>
#include <string.h>

/* XML 1.0 has no way to write most control characters; other bytes could be no UTF-8. */
static void put(FILE *to, const char *text) {
    for (; *text; ++text) switch (*text) {
        case '&': fputs("&amp;", to); break;
        case '<': fputs("&lt;", to); break;
        case '>': fputs("&gt;", to); break;
        case '"': fputs("&quot;", to); break;
        default: fputc((unsigned char)*text < 0x20 || (unsigned char)*text >= 0x7F ? '?' : *text, to);
        }
}

static void put_attribute(FILE *to, const char *name, const char *text) {
    fprintf(to, " %s=\"", name);
    put(to, text);
    fputc('"', to);
}

/* A result of the run as a whole has no row. */
static const char *row_of(const cJSON *item) {
    const char *row = stw_tool_json_text(item, "row");
    return row[0] ? row : "run";
}

/* Cases of a merge name node and arch themselves. */
static const char *own_or(const cJSON *item, const cJSON *document, const char *key) {
    const char *own = stw_tool_json_text(item, key);
    return own[0] ? own : stw_tool_json_text(document, key);
}

static void put_outcome(FILE *to, const cJSON *item, const cJSON *document) {
    const char *outcome = stw_tool_json_text(item, "outcome"), *seed = stw_tool_json_text(item, "seed");
    if (!strcmp(outcome, "skip")) {
        fputs("      <skipped", to);
        put_attribute(to, "message", stw_tool_json_text(item, "text"));
        fputs("/>\n", to);
    } else if (!strcmp(outcome, "FAIL")) {
        fputs("      <failure type=\"conform\"", to);
        put_attribute(to, "message", stw_tool_json_text(item, "text"));
        fputc('>', to);
        if (seed[0]) {
            const char *problem = stw_tool_json_text(item, "problem");
            fputs("replay: sternway conform --arch ", to);
            put(to, own_or(item, document, "arch"));
            fputs(" --variant ", to);
            put(to, stw_tool_json_text(item, "forced")[0] ? stw_tool_json_text(item, "forced") : "auto");
            fputc(' ', to);
            put(to, problem);
            if (!strstr(problem, ":seed")) fprintf(to, ":seed%s", seed);
        }
        fputs("</failure>\n", to);
    }
}

static void put_case(FILE *to, const cJSON *item, const cJSON *document) {
    char name[160];
    fputs("    <testcase", to);
    snprintf(name, sizeof name, "%s.%s.%s", own_or(item, document, "node"), own_or(item, document, "arch"),
             row_of(item));
    put_attribute(to, "classname", name);
    fputs(" name=\"", to);
    put(to, stw_tool_json_text(item, "problem")[0] ? stw_tool_json_text(item, "problem")
                                                   : stw_tool_json_text(item, "text"));
    if (stw_tool_json_text(item, "variant")[0]) fputc(' ', to);
    put(to, stw_tool_json_text(item, "variant"));
    if (cJSON_GetObjectItemCaseSensitive(item, "device"))
        fprintf(to, " device %.0f", stw_tool_json_number(item, "device"));
    fprintf(to, "\" time=\"%.6f\">\n", stw_tool_json_number(item, "seconds"));
    put_outcome(to, item, document);
    fputs("    </testcase>\n", to);
}

typedef struct counts {
    size_t tests, failures, skipped;
    double seconds;
} counts;

static counts count(const cJSON *cases, const char *row) {
    counts n = {0};
    const cJSON *item;
    cJSON_ArrayForEach(item, cases) {
        if (row && strcmp(row_of(item), row)) continue;
        n.tests++;
        n.failures += !strcmp(stw_tool_json_text(item, "outcome"), "FAIL");
        n.skipped += !strcmp(stw_tool_json_text(item, "outcome"), "skip");
        n.seconds += stw_tool_json_number(item, "seconds");
    }
    return n;
}

static void put_suite(FILE *to, const cJSON *document, const char *row) {
    const cJSON *item, *cases = cJSON_GetObjectItemCaseSensitive(document, "cases");
    counts n = count(cases, row);
    if (!n.tests) return;
    fputs("  <testsuite", to);
    put_attribute(to, "name", row);
    fprintf(to, " tests=\"%zu\" failures=\"%zu\" errors=\"0\" skipped=\"%zu\" time=\"%.6f\">\n", n.tests, n.failures,
            n.skipped, n.seconds);
    cJSON_ArrayForEach(item, cases) {
        if (!strcmp(row_of(item), row)) put_case(to, item, document);
    }
    fputs("  </testsuite>\n", to);
}

static void put_errors(FILE *to, const cJSON *errors) {
    const cJSON *item;
    int n = cJSON_GetArraySize(errors);
    if (!n) return;
    fprintf(to, "  <testsuite name=\"errors\" tests=\"%d\" failures=\"0\" errors=\"%d\" skipped=\"0\" time=\"0\">\n", n,
            n);
    cJSON_ArrayForEach(item, errors) {
        fputs("    <testcase classname=\"run\" name=\"the run as a whole\" time=\"0\"><error", to);
        put_attribute(to, "message", cJSON_GetStringValue(item) ? cJSON_GetStringValue(item) : "");
        fputs("/></testcase>\n", to);
    }
    fputs("  </testsuite>\n", to);
}

int conform_junit_write(FILE *to, const void *user) {
    const cJSON *document = user, *feature;
    const cJSON *errors = cJSON_GetObjectItemCaseSensitive(document, "errors");
    counts all = count(cJSON_GetObjectItemCaseSensitive(document, "cases"), NULL);
    size_t wrong = (size_t)cJSON_GetArraySize(errors);
    fputs("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n", to);
    fprintf(to,
            "<testsuites name=\"%s\" tests=\"%zu\" failures=\"%zu\" errors=\"%zu\" skipped=\"%zu\" "
            "time=\"%.6f\">\n",
            CONFORM_REPORT_KIND, all.tests + wrong, all.failures, wrong, all.skipped, all.seconds);
    cJSON_ArrayForEach(feature, cJSON_GetObjectItemCaseSensitive(document, "features")) {
        if (strcmp(stw_tool_json_text(feature, "name"), "run"))
            put_suite(to, document, stw_tool_json_text(feature, "name"));
    }
    put_suite(to, document, "run");
    put_errors(to, errors);
    fputs("</testsuites>\n", to);
    return ferror(to);
}
