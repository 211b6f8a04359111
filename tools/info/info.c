/* SPDX-License-Identifier: MIT
 *
 * `sternway info`: what this build holds, what this machine has, what the environment says. The report is
 * built once as JSON; the plain text is printed from it, so that both always say the same. */
#include "info.h"

#include <stdio.h>

/* ---- text, in 80 columns: only a word that is longer passes them ---- */

static int is_true(const cJSON *row, const char *key) {
    return cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(row, key));
}

static void print_build(const cJSON *build) {
    const char *commit = stw_tool_json_text(build, "commit"), *without = stw_tool_json_text(build, "without");
    char text[1024];
    snprintf(text, sizeof text, "commit %s, %s, %s", commit[0] ? commit : "not known",
             stw_tool_json_text(build, "date"), stw_tool_json_text(build, "compiler"));
    stw_tool_fold(stdout, text, printf("build: "), 7, INFO_WIDTH);
    if (without[0]) stw_tool_fold(stdout, without, printf("left out: "), 10, INFO_WIDTH);
}

static void print_archs(const cJSON *archs) {
    const cJSON *row;
    puts("archs:");
    cJSON_ArrayForEach(row, archs) {
        int column = printf("  %-8s %-5s %-18s ", stw_tool_json_text(row, "name"), stw_tool_json_text(row, "backend"),
                            is_true(row, "in_this_build") ? "in this build" : "not in this build");
        stw_tool_fold(stdout, stw_tool_json_text(row, "description"), column, column, INFO_WIDTH);
    }
}

static void print_images(const cJSON *images, int verify) {
    const cJSON *row;
    puts("device images:");
    if (!cJSON_GetArraySize(images)) puts(verify ? "  none: there are none to verify" : "  none");
    cJSON_ArrayForEach(row, images) {
        printf("  %-8s %-11s %-9s %9.0f bytes  hash %s%s\n", stw_tool_json_text(row, "arch"),
               stw_tool_json_text(row, "kind"), stw_tool_json_text(row, "ops"), stw_tool_json_number(row, "bytes"),
               stw_tool_json_text(row, "hash"),
               !verify                  ? ""
               : is_true(row, "intact") ? "  intact"
                                        : "  DAMAGED");
    }
}

static void print_cuda(const cJSON *cuda) {
    const char *binaries = stw_tool_json_text(cuda, "binaries_need_driver");
    if (!cuda) return;
    printf("  made by CUDA %s: binaries run on drivers from %s%s on,\n"
           "  ptx on drivers of CUDA %s and newer\n",
           stw_tool_json_text(cuda, "release"), binaries[0] ? "" : "its major release", binaries,
           stw_tool_json_text(cuda, "ptx_needs_driver_of_cuda"));
}

static void print_drivers(const cJSON *drivers) {
    const cJSON *row;
    puts("drivers (not started):");
    cJSON_ArrayForEach(row, drivers) {
        char text[1024];
        int column = printf("  %-4s ", stw_tool_json_text(row, "backend"));
        stw_tool_fold(stdout, stw_tool_json_text(row, "library")[0] ? stw_tool_json_text(row, "path") : "none", column,
                      column, INFO_WIDTH);
        int n = snprintf(text, sizeof text, "%s%s%s%s%s%s", stw_tool_json_text(row, "cuda")[0] ? "CUDA " : "",
                         stw_tool_json_text(row, "cuda"),
                         stw_tool_json_text(row, "cuda")[0] && stw_tool_json_text(row, "version")[0] ? ", " : "",
                         stw_tool_json_text(row, "version")[0] ? "version " : "", stw_tool_json_text(row, "version"),
                         stw_tool_json_text(row, "kernel_module")[0] ? ", kernel module " : "");
        snprintf(text + n, sizeof text - (size_t)n, "%s", stw_tool_json_text(row, "kernel_module"));
        const char *said = text[0] == ',' ? text + 2 : text;
        if (said[0]) printf("%*s", column, ""), stw_tool_fold(stdout, said, column, column, INFO_WIDTH);
        snprintf(text, sizeof text, "%s%s",
                 is_true(row, "usable") ? "" : "not usable: ", stw_tool_json_text(row, "note"));
        if (text[0]) printf("%*s", column, ""), stw_tool_fold(stdout, text, column, column, INFO_WIDTH);
    }
}

/* What is known beside arch and name, and whether and how it is used. */
static void print_device(const cJSON *row) {
    char text[512];
    int column = printf("  %-4s %.0f  %-7s ", stw_tool_json_text(row, "backend"), stw_tool_json_number(row, "device"),
                        stw_tool_json_text(row, "arch")[0] ? stw_tool_json_text(row, "arch") : "?"),
        n = 0;
    stw_tool_fold(stdout, stw_tool_json_text(row, "name")[0] ? stw_tool_json_text(row, "name") : "(name not known)",
                  column, column, INFO_WIDTH);
    text[0] = 0;
    if (stw_tool_json_number(row, "compute_units") > 0)
        n += snprintf(text + n, sizeof text - (size_t)n, ", %.0f units", stw_tool_json_number(row, "compute_units"));
    if (stw_tool_json_number(row, "memory_bytes") > 0)
        n += snprintf(text + n, sizeof text - (size_t)n, ", %.1f GiB",
                      stw_tool_json_number(row, "memory_bytes") / 0x1p30);
    if (stw_tool_json_text(row, "table")[0])
        n += snprintf(text + n, sizeof text - (size_t)n, ", table attn_bwd.%s.def", stw_tool_json_text(row, "table"));
    if (stw_tool_json_text(row, "uuid")[0])
        n += snprintf(text + n, sizeof text - (size_t)n, ", %s", stw_tool_json_text(row, "uuid"));
    if (n) printf("%*s", column, ""), stw_tool_fold(stdout, text + 2, column, column, INFO_WIDTH);
    snprintf(text, sizeof text, "%s%s%s", is_true(row, "usable") ? "" : "not usable",
             is_true(row, "usable") || !stw_tool_json_text(row, "note")[0] ? "" : ": ",
             stw_tool_json_text(row, "note"));
    if (text[0]) printf("%*s", column, ""), stw_tool_fold(stdout, text, column, column, INFO_WIDTH);
}

void info_print(const cJSON *report, int verify) {
    const cJSON *row;
    printf("sternway %s\n", stw_tool_json_text(report, "version"));
    print_build(cJSON_GetObjectItemCaseSensitive(report, "build"));
    print_archs(cJSON_GetObjectItemCaseSensitive(report, "archs"));
    print_images(cJSON_GetObjectItemCaseSensitive(report, "images"), verify);
    print_cuda(cJSON_GetObjectItemCaseSensitive(report, "cuda"));
    print_drivers(cJSON_GetObjectItemCaseSensitive(report, "drivers"));
    puts("devices:");
    cJSON_ArrayForEach(row, cJSON_GetObjectItemCaseSensitive(report, "devices")) print_device(row);
    printf("cpu instruction sets:");
    cJSON_ArrayForEach(row, cJSON_GetObjectItemCaseSensitive(report, "cpu_instruction_sets"))
        printf(" %s", row->valuestring);
    putchar('\n');
}

static void print_environment(const cJSON *report) {
    const cJSON *row;
    puts("environment (* = set):");
    cJSON_ArrayForEach(row, cJSON_GetObjectItemCaseSensitive(report, "environment")) {
        const int help = 35; /* the column it begins in, on a line of its own behind a long value */
        int column = printf("%c %-23s %-8s ", is_true(row, "set") ? '*' : ' ', stw_tool_json_text(row, "name"),
                            stw_tool_json_text(row, "value")[0] ? stw_tool_json_text(row, "value") : "-");
        if (column > help) printf("\n%*s", column = help, "");
        stw_tool_fold(stdout, stw_tool_json_text(row, "help"), column, help, INFO_WIDTH);
    }
}

/* ---- command ---- */

typedef struct info_request {
    int verify, json;
} info_request;

enum { KEY_VERIFY = 256, KEY_JSON };

static const struct argp_option options[] = {
    {"verify", KEY_VERIFY, NULL, 0, "check the hash of every embedded image", 0},
    {"json", KEY_JSON, NULL, 0, "one JSON document on standard output (docs/schema/info.json)", 0},
    {0}};

static error_t parse_option(int key, char *text, struct argp_state *state) {
    info_request *request = state->input;
    (void)text;
    switch (key) {
    case KEY_VERIFY: request->verify = 1; return 0;
    case KEY_JSON: request->json = 1; return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp parser = {
    options,
    parse_option,
    NULL,
    "Version, archs and device images of this build, driver libraries and devices of this machine (no driver "
    "is "
    "started), CPU instruction sets, environment in force.\vExit status: 1 when --verify finds a damaged "
    "image, or "
    "when the library would refuse the environment: a value that is not understood, a tuning file that "
    "cannot be read, "
    "a variant that no backend usable here has.",
    NULL,
    NULL,
    NULL};

/* Names the images that --verify found damaged; returns how many. */
static int report_damaged(const cJSON *report) {
    const cJSON *row;
    int damaged = 0;
    cJSON_ArrayForEach(row, cJSON_GetObjectItemCaseSensitive(report, "images")) {
        if (!cJSON_IsFalse(cJSON_GetObjectItemCaseSensitive(row, "intact"))) continue;
        stw_tool_error("info", NULL, "embedded image %s %s of %s is damaged", stw_tool_json_text(row, "arch"),
                       stw_tool_json_text(row, "kind"), stw_tool_json_text(row, "ops"));
        ++damaged;
    }
    return damaged;
}

int stw_tool_info(int argc, char **argv) {
    info_request request = {0};
    if (stw_tool_parse(&parser, argc, argv, &request)) return STW_EXIT_USAGE;
    cJSON *report = cJSON_CreateObject();
    int failed = info_build(report, request.verify), damaged = report_damaged(report);
    int refused = info_add_environment(report);
    if (request.json) stw_tool_print_json(report);
    else info_print(report, request.verify), print_environment(report);
    if (refused) stw_tool_error("info", NULL, "%s", stw_tool_last_error());
    if (!request.json) cJSON_Delete(report);
    return damaged || failed || refused ? STW_EXIT_FAILED : STW_EXIT_OK;
}
