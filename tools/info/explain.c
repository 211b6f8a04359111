/* SPDX-License-Identifier: MIT
 *
 * `sternway explain PROBLEM`: what stw_explain_attn, _attn_fwd or _jagged says of a PROBLEM line. */
#include "info.h"

#include "tools/problem/jagged.h"
#include "tools/verify/verify.h"
#include "common/arch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct explain_request {
    stw_tool_device device;
    const char *problem;
    int json;
} explain_request;

enum { KEY_MEMORY = 256, KEY_JSON };

static const struct argp_option options[] = {
    STW_TOOL_DEVICE_OPTIONS,
    {"memory", KEY_MEMORY, "KIND", 0, "where the tensors live: host, device or buffers (the default)", 0},
    {"json", KEY_JSON, NULL, 0, "one JSON document on standard output (docs/schema/explain.json)", 0},
    {0}};

static const struct {
    const char *name;
    stw_memory memory;
} memories[] = {{"host", STW_MEMORY_HOST}, {"device", STW_MEMORY_DEVICE}, {"buffers", STW_MEMORY_BUFFERS}};

static error_t parse_memory(const char *text, stw_memory *memory_out, struct argp_state *state) {
    for (size_t i = 0; i < sizeof memories / sizeof memories[0]; ++i) {
        if (strcmp(text, memories[i].name)) continue;
        *memory_out = memories[i].memory;
        return 0;
    }
    argp_error(state, "--memory %s: host, device or buffers is accepted", text);
    return EINVAL;
}

static error_t parse_option(int key, char *text, struct argp_state *state) {
    explain_request *request = state->input;
    switch (key) {
    case STW_KEY_BACKEND: request->device.backend = text; return 0;
    case STW_KEY_ARCH: request->device.arch = text; return 0;
    case KEY_MEMORY: return parse_memory(text, &request->device.opts.memory, state);
    case KEY_JSON: request->json = 1; return 0;
    case ARGP_KEY_ARG:
        if (request->problem) argp_error(state, "one PROBLEM at a time");
        request->problem = text;
        return 0;
    case ARGP_KEY_NO_ARGS: argp_error(state, "a PROBLEM is needed"); return EINVAL;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp parser = {
    options,
    parse_option,
    "PROBLEM",
    "For every backend: chosen, or why not, and for the chosen one its kernel variant, tile and "
    "workspace.\vA PROBLEM is the line that the log prints for a plan, for example\n"
    "  attn_bwd:bf16:b4h32k8s4096d128:causal_br:dropout0.1\n"
    "  jagged_softmax:bf16:c8l400t1000i64:inner:used:i64\n"
    "Exit status: 0 when a backend takes the problem; else, and with the text all the same, what `run` would "
    "end "
    "with: 2 when the PROBLEM, an option or the environment is wrong or no backend does it, 1 when the "
    "machine failed.",
    NULL,
    NULL,
    NULL};

/* The text's lines, sorted: "no backend: ..." or "cuda: ..." of a backend, then for the chosen one "key:
 * value" of its plan and, indented, rules; jagged attention has a second plan. Keys of plans name no backend.
 */
typedef struct sorted_text {
    cJSON *chosen, *reason, *backends, *plan, *packed, *rules;
} sorted_text;

static int is_backend(const char *key) {
    static const stw_backend backends[] = {STW_BACKEND_CUDA, STW_BACKEND_HIP, STW_BACKEND_CPU};
    for (size_t i = 0; i < sizeof backends / sizeof backends[0]; ++i)
        if (!strcmp(stw_backend_name(backends[i]), key)) return 1;
    return 0;
}

static void sort_backend(sorted_text *sorted, const char *name, const char *words) {
    static const char not_chosen[] = "not chosen: ";
    int chosen = !strcmp(words, "chosen");
    if (!strncmp(words, not_chosen, sizeof not_chosen - 1)) words += sizeof not_chosen - 1;
    cJSON *row = cJSON_CreateObject();
    cJSON_AddStringToObject(row, "backend", name);
    cJSON_AddBoolToObject(row, "chosen", chosen);
    cJSON_AddStringToObject(row, "reason", chosen ? "" : words);
    cJSON_AddItemToArray(sorted->backends, row);
    if (chosen) sorted->chosen = cJSON_CreateString(name);
}

static void sort_line(sorted_text *sorted, const char *line) {
    const char *colon = strstr(line, ": ");
    char key[64];
    if (line[0] == ' ') {
        cJSON_AddItemToArray(sorted->rules, cJSON_CreateString(line + strspn(line, " ")));
        return;
    }
    if (!strcmp(line, "packed problem:")) sorted->packed = cJSON_CreateObject();
    if (!colon) return;
    snprintf(key, sizeof key, "%.*s", (int)(colon - line), line);
    if (is_backend(key)) sort_backend(sorted, key, colon + 2);
    else if (!strcmp(key, "no backend")) sorted->reason = cJSON_CreateString(colon + 2);
    else cJSON_AddStringToObject(sorted->packed ? sorted->packed : sorted->plan, key, colon + 2);
}

static sorted_text sort_text(const cJSON *lines) {
    sorted_text sorted = {.backends = cJSON_CreateArray(), .plan = cJSON_CreateObject(), .rules = cJSON_CreateArray()};
    const cJSON *line;
    cJSON_ArrayForEach(line, lines) sort_line(&sorted, line->valuestring);
    if (!sorted.chosen) sorted.chosen = cJSON_CreateNull();
    if (!sorted.reason) sorted.reason = cJSON_CreateString("");
    return sorted;
}

/* What is explained: one of the two. */
typedef struct subject {
    int is_jagged;
    stw_problem attn;
    stw_jagged_problem jagged;
} subject;

static stw_status read_subject(const char *line, subject *s) {
    s->is_jagged = stw_problem_is_jagged(line);
    if (!s->is_jagged) return stw_problem_parse(line, &s->attn);
    stw_status status = stw_problem_jagged_parse(line, &s->jagged);
    if (s->jagged.desc.op == STW_JAGGED_ATTENTION) s->jagged.desc.attn = &s->jagged.attn.desc;
    return status;
}

static stw_status explain(const stw_context_opts *opts, const subject *s, char *text, size_t capacity,
                          size_t *needed_out) {
    if (s->is_jagged) return stw_explain_jagged(opts, &s->jagged.desc, text, capacity, needed_out);
    return (s->attn.op == STW_PROBLEM_ATTN_FWD ? stw_explain_attn_fwd : stw_explain_attn)(opts, &s->attn.desc, text,
                                                                                          capacity, needed_out);
}

static char *explain_text(const stw_tool_device *device, const subject *s) {
    const stw_context_opts *opts = &device->opts;
    size_t needed = 0, capacity;
    char *text = NULL;
    do { /* the machine may have more to say the second time */
        capacity = needed + 4096;
        free(text);
        text = calloc(1, capacity);
        if (!text || explain(opts, s, text, capacity, &needed)) break;
    } while (needed > capacity);
    char *own = text ? stw_tool_own_words(device, text) : NULL;
    free(text);
    return own;
}

/* The exit status of a problem that no backend takes: that of the calls that were explained. */
static int refusal_status(const stw_context_opts *opts, const subject *s) {
    stw_context *context = NULL;
    stw_plan *plan = NULL;
    stw_status status = stw_context_create(opts, &context);
    if (!status)
        status = s->is_jagged                         ? stw_jagged_bwd_plan(context, &s->jagged.desc, &plan)
                 : s->attn.op == STW_PROBLEM_ATTN_FWD ? stw_attn_fwd_plan(context, &s->attn.desc, &plan)
                                                      : stw_attn_bwd_plan(context, &s->attn.desc, &plan);
    stw_plan_destroy(plan);
    stw_context_destroy(context);
    return stw_tool_exit_of(status);
}

char *info_explain_text(const stw_tool_device *device, const char *line) {
    subject *problem = calloc(1, sizeof *problem);
    char *text = problem && !read_subject(line, problem) ? explain_text(device, problem) : NULL;
    free(problem);
    return text;
}

cJSON *info_explain_document(const char *line, const char *text) {
    cJSON *document = cJSON_CreateObject();
    cJSON *lines = stw_tool_json_lines(text);
    sorted_text sorted = sort_text(lines);
    cJSON_AddStringToObject(document, "problem", line);
    cJSON_AddItemToObject(document, "chosen", sorted.chosen);
    cJSON_AddItemToObject(document, "reason", sorted.reason);
    cJSON_AddItemToObject(document, "backends", sorted.backends);
    cJSON_AddItemToObject(document, "plan", sorted.plan);
    if (sorted.packed) cJSON_AddItemToObject(document, "packed_plan", sorted.packed);
    cJSON_AddItemToObject(document, "rules", sorted.rules);
    cJSON_AddItemToObject(document, "text", lines);
    return document;
}

/* Folded on a terminal; whole elsewhere, where lines are searched. */
static void print_text(char *text) {
    for (char *save, *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save))
        stw_tool_print_line(line, 4);
}

/* What the problem's masks leave of its tiles: kernels leave out what is hidden, and test pairs of what is cut. 0: it
 * has no masks. */
static int masks_leave(const subject *s, double *visible_out, double *partial_out) {
    int64_t counts[3];
    if (s->is_jagged || (!s->attn.desc.interval_form && !(s->attn.desc.flags & STW_ATTN_BLOCK_MASK))) return 0;
    if (stw_verify_mask_share(&s->attn, counts)) return 0;
    double all = (double)(counts[0] + counts[1] + counts[2]);
    *visible_out = (double)(counts[1] + counts[2]) / all;
    *partial_out = (double)counts[1] / all;
    return all > 0;
}

static void print_masks(const subject *s) {
    double visible, partial;
    if (masks_leave(s, &visible, &partial))
        printf("tiles of 128x128, masks as drawn: %.2f%% visible, %.2f%% partial\n", 100 * visible, 100 * partial);
}

static cJSON *document_of(const char *line, const char *text, const subject *s) {
    cJSON *document = info_explain_document(line, text);
    double visible, partial;
    if (masks_leave(s, &visible, &partial)) {
        cJSON *tiles = cJSON_AddObjectToObject(document, "mask_tiles");
        cJSON_AddNumberToObject(tiles, "visible", visible);
        cJSON_AddNumberToObject(tiles, "partial", partial);
    }
    return document;
}

int stw_tool_explain(int argc, char **argv) {
    explain_request request = {0};
    request.device.opts.memory = STW_MEMORY_BUFFERS;
    if (stw_tool_parse(&parser, argc, argv, &request)) return STW_EXIT_USAGE;
    subject *problem = calloc(1, sizeof *problem);
    char *text = NULL;
    int status = problem ? stw_tool_device_opts("explain", &request.device) : STW_EXIT_FAILED;
    if (!status && read_subject(request.problem, problem)) {
        stw_tool_error("explain", NULL, "%s", stw_tool_last_error());
        status = STW_EXIT_USAGE;
    }
    if (!status) {
        text = explain_text(&request.device, problem);
        if (!text || !text[0]) {
            stw_tool_error("explain", NULL, "%s", stw_last_error());
            status = STW_EXIT_FAILED;
        }
    }
    int chosen = text && strstr(text, ": chosen\n");
    if (!status && request.json) {
        stw_tool_print_json(document_of(request.problem, text, problem));
    } else if (!status) {
        print_text(text);
        print_masks(problem);
    } else if (request.json) {
        stw_tool_print_json_error(status);
    }
    if (!status && !chosen) status = refusal_status(&request.device.opts, problem);
    free(text);
    free(problem);
    return status;
}
