/* SPDX-License-Identifier: MIT
 *
 * What starts drivers (doctor.h), in child processes alone, for a driver may crash or hang: what a usual problem
 * runs on, by the text of `explain`, and 14 problems of the conformance suite on it and on the CPU. */
#include "doctor.h"

#include "common/arch.h"
#include "common/status.h"
#include "tools/conform/conform.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define USUAL_PROBLEM "attn_bwd:bf16:b4h32k8s4096d128:causal_br"
#define LIMIT_SECONDS 60

/* One of each: a lean loop of either head dim, a window, the wide features, a pack, a forward, nested operations. */
static const char *const problems[] = {
    "attn_bwd:bf16:b2h4k2s192d128:causal_br",     "attn_bwd:f16:b1h4s256d64",
    "attn_bwd:bf16:b1h2s130x259d64:wl64:wr16",    "attn_bwd:f32:b1h2s65d40:causal_tl:softcap20",
    "attn_bwd:bf16:b1h4k2s128d128:dropout0.1",    "attn_bwd:f16:b2h2s97x65d64:bias_1hqk",
    "attn_bwd:bf16:b1h2s160d128:causal_br:det",   "attn_bwd:bf16:b3h2s128x96d64:tq300:tk200",
    "attn_fwd:bf16:b1h4k2s200d128:causal_br",     "jagged_softmax:bf16:c6l50t150i40:inner:i64",
    "jagged_layer_norm:f16:c4l50t120i64:gamma",   "jagged_linear:bf16:c7l60t200i64f96",
    "jagged_log_softmax:f16:c6l50t150i40:ragged", "jagged_rms_norm:bf16:c4l50t120i64:ragged:i64"};

/* ---- what is chosen ---- */

typedef struct answer { /* written by the child */
    int explained;
    char text[16384];
} answer;

static void ask(answer *a) {
    stw_tool_device device = {.opts = STW_INIT(stw_context_opts)};
    device.opts.memory = STW_MEMORY_BUFFERS;
    char *text = info_explain_text(&device, USUAL_PROBLEM);
    a->explained = text && text[0];
    snprintf(a->text, sizeof a->text, "%s", a->explained ? text : stw_last_error());
    free(text);
}

void doctor_add_choice(cJSON *report) {
    answer *a = mmap(NULL, sizeof *a, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int ended = 0;
    if (a == MAP_FAILED) return;
    pid_t pid = fork();
    if (pid == 0) {
        alarm(LIMIT_SECONDS);
        ask(a);
        _exit(0);
    }
    if (pid < 0) snprintf(a->text, sizeof a->text, "no process could be started");
    else waitpid(pid, &ended, 0);
    if (WIFSIGNALED(ended) && WTERMSIG(ended) == SIGALRM)
        snprintf(a->text, sizeof a->text, "no answer of the drivers within %d seconds", LIMIT_SECONDS);
    else if (WIFSIGNALED(ended))
        snprintf(a->text, sizeof a->text, "the process that started the drivers died of signal %d", WTERMSIG(ended));
    if (a->explained && !ended) cJSON_AddItemToObject(report, "explain", info_explain_document(USUAL_PROBLEM, a->text));
    else cJSON_AddStringToObject(report, "explain_error", a->text);
    munmap(a, sizeof *a);
}

/* ---- problems ---- */

typedef struct trial {
    const char *arch;
    cJSON *failures;
    int passed, failed, skipped;
} trial;

void doctor_add_failure(cJSON *failures, const char *line, const stw_verify_result *result) {
    cJSON *row = cJSON_CreateObject();
    cJSON_AddStringToObject(row, "problem", line);
    cJSON_AddStringToObject(row, "variant", result->variant);
    cJSON_AddStringToObject(row, "text", result->text);
    cJSON_AddItemToArray(failures, row);
}

static void note(void *user, const conform_case *c, int variant, const stw_verify_result *result) {
    trial *t = user;
    (void)variant;
    int *count = result->outcome == STW_VERIFY_OK     ? &t->passed
                 : result->outcome == STW_VERIFY_SKIP ? &t->skipped
                                                      : &t->failed;
    ++*count;
    stw_tool_progress("doctor: %s: %d of %zu problems", t->arch, t->passed + t->failed + t->skipped,
                      sizeof problems / sizeof *problems);
    if (result->outcome == STW_VERIFY_FAIL) doctor_add_failure(t->failures, c->line, result);
}

static void run_trial(cJSON *rows, const conform_list *list, stw_backend backend) {
    conform_target target = {.opts = STW_INIT(stw_context_opts)};
    conform_options options = {.jobs = 1, .check = {.repeats = 1, .forward = 1}, .hang_seconds = LIMIT_SECONDS};
    char why[1024] = "";
    target.opts.backend = backend; /* AUTO: the environment's */
    double began = stw_tool_seconds();
    stw_status status = conform_probe(&target, NULL, why, sizeof why);
    trial t = {.arch = target.arch, .failures = cJSON_CreateArray()};
    int complete = !status && conform_run(list, &target, &options, note, &t);
    stw_tool_progress_end();
    cJSON *row = cJSON_CreateObject();
    cJSON_AddStringToObject(row, "arch", target.arch);
    cJSON_AddStringToObject(row, "error", status ? why : complete ? "" : "the run is not complete");
    cJSON_AddNumberToObject(row, "passed", t.passed);
    cJSON_AddNumberToObject(row, "failed", t.failed);
    cJSON_AddNumberToObject(row, "skipped", t.skipped);
    cJSON_AddNumberToObject(row, "seconds", stw_tool_seconds() - began);
    cJSON_AddItemToObject(row, "failures", t.failures);
    cJSON_AddItemToArray(rows, row);
}

void doctor_add_trial(cJSON *report) {
    cJSON *rows = cJSON_AddArrayToObject(report, "tests");
    const cJSON *explain = cJSON_GetObjectItemCaseSensitive(report, "explain");
    const char *chosen = stw_tool_json_text(explain, "chosen");
    conform_list list = {0};
    for (size_t i = 0; i < sizeof problems / sizeof *problems; ++i)
        if (!conform_list_add(&list, -1, problems[i])) return;
    if (chosen[0] && strcmp(chosen, "cpu")) run_trial(rows, &list, STW_BACKEND_AUTO);
    run_trial(rows, &list, STW_BACKEND_CPU);
    conform_list_free(&list);
}
