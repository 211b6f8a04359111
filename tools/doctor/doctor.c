/* SPDX-License-Identifier: MIT
 *
 * `sternway doctor`: one report for an issue: what `info` says, the system, what is chosen and why nothing else
 * is, a self test, and what looks wrong. Built as JSON; the text is printed from it. */
#include "doctor.h"

#include <stdlib.h>
#include <string.h>

static const cJSON *part(const cJSON *object, const char *key) { return cJSON_GetObjectItemCaseSensitive(object, key); }

static void print_field(const char *name, const char *text) {
    int column = printf("  %-13s ", name);
    stw_tool_fold(stdout, text[0] ? text : "not known", column, column, INFO_WIDTH);
}

static void print_system(const cJSON *system) {
    const cJSON *row;
    char text[400];
    puts("system:");
    print_field("kernel", stw_tool_json_text(system, "kernel"));
    print_field("distribution", stw_tool_json_text(system, "distribution"));
    print_field("C library", stw_tool_json_text(system, "libc"));
    snprintf(text, sizeof text, "%s, %.0f cores allowed", stw_tool_json_text(system, "cpu"),
             stw_tool_json_number(system, "cores_allowed"));
    print_field("processor", text[0] == ',' ? text + 2 : text);
    snprintf(text, sizeof text, "%.1f GiB, %.1f available", stw_tool_json_number(system, "memory_bytes") / 0x1p30,
             stw_tool_json_number(system, "memory_available_bytes") / 0x1p30);
    print_field("memory", text);
    cJSON_ArrayForEach(row, part(system, "libraries")) {
        snprintf(text, sizeof text, "%s: %s", stw_tool_json_text(row, "name"),
                 cJSON_IsTrue(part(row, "found")) ? "found" : "none");
        print_field("library", text);
    }
    cJSON_ArrayForEach(row, part(system, "device_files")) {
        snprintf(text, sizeof text, "%s: %s", stw_tool_json_text(row, "path"),
                 cJSON_IsTrue(part(row, "exists")) ? stw_tool_json_text(row, "state") : "none");
        print_field("device file", text);
    }
}

static void print_variables(const cJSON *report) {
    const cJSON *row;
    int count = cJSON_GetArraySize(part(report, "unknown_variables"));
    puts("environment:");
    cJSON_ArrayForEach(row, part(part(report, "info"), "environment")) {
        if (!cJSON_IsTrue(part(row, "set"))) continue;
        ++count;
        int column = printf("  %s=", stw_tool_json_text(row, "name"));
        stw_tool_fold(stdout, stw_tool_json_text(row, "value"), column, column, INFO_WIDTH);
    }
    cJSON_ArrayForEach(row, part(report, "unknown_variables"))
        stw_tool_fold(stdout, row->valuestring, printf("  "), 4, INFO_WIDTH);
    if (!count) puts("  no STERNWAY_ variable is set");
}

static void print_choice(const cJSON *report) {
    const cJSON *explain = part(report, "explain"), *row;
    puts("backends, for a usual problem:");
    stw_tool_fold(stdout,
                  explain ? stw_tool_json_text(explain, "problem") : stw_tool_json_text(report, "explain_error"),
                  printf("  "), 4, INFO_WIDTH);
    cJSON_ArrayForEach(row, part(explain, "backends")) {
        int chosen = cJSON_IsTrue(part(row, "chosen"));
        int column = printf("  %-4s %s", stw_tool_json_text(row, "backend"), chosen ? "chosen" : "not chosen: ");
        if (chosen && stw_tool_json_text(part(explain, "plan"), "variant")[0]) column += printf(", variant ");
        stw_tool_fold(stdout,
                      chosen ? stw_tool_json_text(part(explain, "plan"), "variant") : stw_tool_json_text(row, "reason"),
                      column, 7, INFO_WIDTH);
    }
}

static void print_test(const cJSON *row) {
    const cJSON *failure;
    char text[1200];
    const char *arch = stw_tool_json_text(row, "arch"), *error = stw_tool_json_text(row, "error");
    snprintf(text, sizeof text, "%.0f passed, %.0f failed, %.0f skipped, %.1f s%s%s",
             stw_tool_json_number(row, "passed"), stw_tool_json_number(row, "failed"),
             stw_tool_json_number(row, "skipped"), stw_tool_json_number(row, "seconds"), error[0] ? ": " : "", error);
    stw_tool_fold(stdout, text, printf("  %-7s ", arch[0] ? arch : "?"), 10, INFO_WIDTH);
    cJSON_ArrayForEach(failure, part(row, "failures")) {
        snprintf(text, sizeof text, "FAIL %s %s: %s", stw_tool_json_text(failure, "problem"),
                 stw_tool_json_text(failure, "variant"), stw_tool_json_text(failure, "text"));
        stw_tool_fold(stdout, text, printf("          "), 12, INFO_WIDTH);
    }
}

static void print_tests(const cJSON *tests) {
    const cJSON *row;
    puts("self test:");
    if (!cJSON_GetArraySize(tests)) puts("  not run");
    cJSON_ArrayForEach(row, tests) print_test(row);
}

static void print_rates(const cJSON *rates) {
    const cJSON *row;
    char text[1200];
    printf("times%s:\n", cJSON_IsTrue(part(rates, "measured")) ? "" : " (of no GPU: they say nothing)");
    if (stw_tool_json_text(rates, "error")[0])
        stw_tool_fold(stdout, stw_tool_json_text(rates, "error"), printf("  "), 4, INFO_WIDTH);
    cJSON_ArrayForEach(row, part(rates, "problems")) {
        snprintf(text, sizeof text, "%s, %s: %.3f ms, %.3f TFLOP/s, %.1f GB/s, %.0f MHz, memory %.0f MHz %s",
                 stw_tool_json_text(row, "problem"), stw_tool_json_text(row, "variant"),
                 stw_tool_json_number(row, "median_ms"), stw_tool_json_number(row, "tflops"),
                 stw_tool_json_number(row, "gbs"), stw_tool_json_number(row, "core_mhz"),
                 stw_tool_json_number(row, "memory_mhz"), stw_tool_json_text(row, "error"));
        stw_tool_fold(stdout, text, printf("  %-10s ", stw_tool_json_text(row, "what")), 13, INFO_WIDTH);
    }
}

static void print_long(const cJSON *report) {
    if (!part(report, "conformance")) return;
    printf("conformance suite, %.0f problems:\n", stw_tool_json_number(part(report, "conformance"), "cases"));
    print_test(part(report, "conformance"));
    print_rates(part(report, "rates"));
}

static void print_findings(const cJSON *findings) {
    const cJSON *row;
    int number = 0;
    if (!cJSON_GetArraySize(findings)) puts("nothing wrong found");
    else puts("what looks wrong, and what to do about it:");
    cJSON_ArrayForEach(row, findings) {
        int column = printf("%2d. ", ++number);
        stw_tool_fold(stdout, stw_tool_json_text(row, "what"), column, column, INFO_WIDTH);
        stw_tool_fold(stdout, stw_tool_json_text(row, "advice"), printf("    -> "), 7, INFO_WIDTH);
    }
}

/* ---- command ---- */

typedef struct doctor_request {
    int no_test, json;
    double minutes; /* 0: no conformance suite, nothing timed */
} doctor_request;

enum { KEY_NO_TEST = 256, KEY_JSON, KEY_MINUTES };

static const struct argp_option options[] = {
    {"no-test", KEY_NO_TEST, NULL, 0, "leave out the self test", 0},
    {"minutes", KEY_MINUTES, "N", 0, "the conformance suite for so long, then a few problems timed with clocks", 0},
    {"json", KEY_JSON, NULL, 0, "one JSON document on standard output (docs/schema/doctor.json)", 0},
    {0}};

static error_t parse_option(int key, char *text, struct argp_state *state) {
    doctor_request *request = state->input;
    switch (key) {
    case KEY_NO_TEST: request->no_test = 1; return 0;
    case KEY_JSON: request->json = 1; return 0;
    case KEY_MINUTES: {
        char *end;
        request->minutes = strtod(text, &end);
        if (!*text || *end || !(request->minutes > 0) || request->minutes > 1440)
            argp_error(state, "'%.40s' is no number of minutes up to 1440", text);
        return 0;
    }
    default: return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp parser = {
    options,
    parse_option,
    NULL,
    "One report for an issue: what `info` says, system, drivers and device files, the STERNWAY_ variables that are "
    "set, "
    "which backend a usual problem gets and why the others were not chosen, a self test of a few seconds, and last "
    "what "
    "looks wrong and what to do about it.\vIt names no host, no user and no folders. Drivers are started, each time in "
    "a "
    "process that may crash or hang.\nExit status: 0 when nothing wrong was found, else 1.",
    NULL,
    NULL,
    NULL};

/* What the library would warn of is in the report. */
static void say_nothing(void *user, stw_log_level level, const char *line) {
    (void)user;
    (void)level;
    (void)line;
}

static cJSON *make_report(const doctor_request *request) {
    cJSON *report = cJSON_CreateObject(), *info = cJSON_AddObjectToObject(report, "info");
    if (info_build(info, 1)) cJSON_AddStringToObject(report, "devices_error", stw_last_error());
    int refused = info_add_environment(info);
    doctor_add_system(report);
    doctor_add_unknown_variables(report);
    fflush(stdout);
    doctor_add_choice(report);
    if (!request->no_test && !refused && part(report, "explain")) doctor_add_trial(report);
    else cJSON_AddArrayToObject(report, "tests");
    if (request->minutes > 0 && !refused && part(report, "explain")) {
        doctor_add_conformance(report, request->minutes);
        doctor_add_rates(report);
    }
    doctor_add_findings(report);
    doctor_make_private(report);
    return report;
}

int stw_tool_doctor(int argc, char **argv) {
    doctor_request request = {0};
    if (stw_tool_parse(&parser, argc, argv, &request)) return STW_EXIT_USAGE;
    if (!getenv("STERNWAY_LOG")) stw_set_log(say_nothing, NULL);
    cJSON *report = make_report(&request);
    int wrong = cJSON_GetArraySize(part(report, "findings"));
    if (request.json) {
        stw_tool_print_json(report);
    } else {
        info_print(part(report, "info"), 1);
        print_system(part(report, "system"));
        print_variables(report);
        print_choice(report);
        print_tests(part(report, "tests"));
        print_long(report);
        print_findings(part(report, "findings"));
        cJSON_Delete(report);
    }
    return wrong ? STW_EXIT_FAILED : STW_EXIT_OK;
}
