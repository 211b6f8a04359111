/* SPDX-License-Identifier: MIT
 *
 * `sternway info`: what this build holds, what this machine has, what the environment says. The report is
 * built once as JSON; the plain text is printed from it, so that both always say the same. */
#include "info.h"

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
    if (request.json)
        stw_tool_print_json(report);
    else
        info_print(report, request.verify);
    if (refused) stw_tool_error("info", NULL, "%s", stw_tool_last_error());
    if (!request.json) cJSON_Delete(report);
    return damaged || failed || refused ? STW_EXIT_FAILED : STW_EXIT_OK;
}
