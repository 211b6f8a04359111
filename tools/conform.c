/* SPDX-License-Identifier: MIT
 *
 * `sternway conform`: the command line of the conformance suite, one line a case, totals. The rows are in
 * conform_rows.c, the running in conform_run.c, one case in case*.c. */
#include "conform.h"
#include "jagged_case.h"

#include "dispatch/arch.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define ENLARGED_FREE  4 /* results that may need 8 data sets in any run, and one in so many further */
#define ENLARGED_SHARE 500
#define FILTERS_MAX    8

enum {
    KEY_REQUIRE = 500,
    KEY_VARIANT,
    KEY_QUICK,
    KEY_LONG,
    KEY_LIST,
    KEY_JSON,
    KEY_REPEAT,
    KEY_LARGE,
    KEY_SOAK
};

typedef struct settings {
    stw_tool_device device;
    const char *require, *variant, *filters[FILTERS_MAX];
    int filter_count, jobs, list, json, large, repeat;
    int64_t soak, seed, cases;
    double scale;
    char **given;
    int given_count;
} settings;

typedef struct totals {
    const settings *s;
    const conform_target *target;
    cJSON *json; /* array of cases, or NULL */
    size_t passed, failed, skipped, seen, enlarged, invalid;
    char why[512]; /* the first skip's reason */
    conform_pools *pools;
    size_t *row_cases, *row_failed;
} totals;

static const struct argp_option options[] = {
    STW_TOOL_DEVICE_OPTIONS,
    {"require", KEY_REQUIRE, "ARCH", 0, "fail when this arch ran no case", 0},
    {"filter", 'f', "PATTERN", 0,
     "only cases whose `ROW PROBLEM` holds this text; *, ?, [] as in file names; !PATTERN: those without; "
     "given several times, all must hold",
     0},
    {"jobs", 'j', "N", 0, "processes (default: the cores); 0: all in this one, for debuggers", 0},
    {"seed", 's', "N", 0, "other data for every case", 0},
    {"variant", KEY_VARIANT, "ID", 0, "one variant of the tuning table, `all` (CPU: the default) or `auto`",
     0},
    {"quick", KEY_QUICK, NULL, 0, "about a quarter of the cases", 0},
    {"long", KEY_LONG, NULL, 0, "more than 5000 cases", 0},
    {"cases", 'n', "N", 0, "only N of the cases, spread over the rows", 0},
    {"list", KEY_LIST, NULL, 0, "print the rows and their number of cases", 0},
    {"repeat", KEY_REPEAT, "N", 0, "repeat every case N times, bit for bit (default 1)", 0},
    {"large", KEY_LARGE, NULL, 0, "problems of more than 2^31 elements, where memory allows", 0},
    {"soak", KEY_SOAK, "N", 0, "N random problems instead of the rows", 0},
    {"json", KEY_JSON, NULL, 0, "one JSON document instead of lines", 0},
    {0}};

static int64_t number(const char *text, struct argp_state *state, int64_t low, int64_t high) {
    char *end;
    long long value = strtoll(text, &end, 10);
    if (!*text || *end || value < low || value > high)
        argp_error(state, "'%.40s' is not a number from %lld to %lld", text, (long long)low, (long long)high);
    return value;
}

static error_t parse(int key, char *text, struct argp_state *state) {
    settings *s = state->input;
    switch (key) {
    case STW_KEY_BACKEND: s->device.backend = text; break;
    case STW_KEY_ARCH: s->device.arch = text; break;
    case KEY_REQUIRE: s->require = text; break;
    case 'f':
        if (s->filter_count == FILTERS_MAX) argp_error(state, "more than %d filters", FILTERS_MAX);
        s->filters[s->filter_count++] = text;
        break;
    case 'j': s->jobs = (int)number(text, state, 0, 64); break;
    case 's': s->seed = number(text, state, 0, INT64_MAX / 4); break;
    case KEY_VARIANT: s->variant = text; break;
    case KEY_QUICK:
    case KEY_LONG:
        if (s->scale != 1 && (s->scale < 1) != (key == KEY_QUICK))
            argp_error(state, "--quick and --long exclude each other");
        s->scale = key == KEY_QUICK ? 0.25 : 4.5;
        break;
    case 'n': s->cases = number(text, state, 1, 1000000); break;
    case KEY_LIST: s->list = 1; break;
    case KEY_REPEAT: s->repeat = (int)number(text, state, 1, 1000000); break;
    case KEY_LARGE: s->large = 1; break;
    case KEY_SOAK: s->soak = number(text, state, 1, 1000000000); break;
    case KEY_JSON: s->json = 1; break;
    case ARGP_KEY_ARGS:
        s->given = state->argv + state->next;
        s->given_count = state->argc - state->next;
        break;
    default: return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

/* ---- the list ------------------------------------------------------------------------------------------ */

static int add_given(const settings *s, conform_list *list) {
    for (int i = 0; i < s->given_count; ++i) {
        if (jagged_any_parse(s->given[i]) || strlen(s->given[i]) >= CONFORM_LINE_MAX) {
            stw_tool_error("conform", s->given[i], "%s", stw_tool_last_error());
            return STW_EXIT_USAGE;
        }
        if (!conform_list_add(list, s->large ? CONFORM_ROW_LARGE : -1, s->given[i])) return STW_EXIT_FAILED;
    }
    return STW_EXIT_OK;
}

static int add_soak(const settings *s, conform_list *list) {
    for (uint64_t round = 0; list->count < (size_t)s->soak; ++round)
        if (!conform_list_pairs(list, (int)conform_row_count - 1, round + 1000 * (uint64_t)(s->seed + 1)))
            return 0;
    list->count = (size_t)s->soak;
    return 1;
}

/* What all filters let through, then N cases spread evenly; other data with --seed. */
static void choose(const settings *s, conform_list *list) {
    size_t kept = 0;
    for (size_t i = 0; i < list->count; ++i)
        if (conform_is_wanted(&list->cases[i], s->filters, s->filter_count))
            list->cases[kept++] = list->cases[i];
    list->count = kept;
    if (s->cases && (size_t)s->cases < kept) {
        for (size_t i = 0; i < (size_t)s->cases; ++i)
            list->cases[i] = list->cases[i * kept / (size_t)s->cases];
        list->count = (size_t)s->cases;
    }
    for (size_t i = 0; s->seed && i < list->count; ++i) {
        size_t length = strlen(list->cases[i].line);
        if (strstr(list->cases[i].line, ":seed")) continue;
        snprintf(list->cases[i].line + length, CONFORM_LINE_MAX - length, ":seed%lld",
                 (long long)(s->seed + (int64_t)i));
    }
}

static int make_list(const settings *s, conform_list *list) {
    int exit = add_given(s, list);
    if (exit || list->count) return exit;
    int rows = !s->large && !s->soak;
    int good = s->large ? conform_list_large(list) : s->soak ? add_soak(s, list) : 1;
    for (size_t row = 0; rows && good && row < conform_row_count; ++row)
        good = conform_list_row(list, (int)row, s->scale);
    if (!good) return STW_EXIT_FAILED;
    choose(s, list);
    return STW_EXIT_OK;
}

/* ---- reporting -------------------------------------------------------------------------------------- */

static const char *const outcome_names[] = {"ok", "FAIL", "skip"};

/* "max=0.43:dk rms=0.81:dq": the tensor closest to its bound. */
static void add_worst(stw_text *text, const char *name, const double *ratio, const char *const *grads) {
    int worst = 0;
    for (int g = 1; g < STW_GRAD_COUNT; ++g)
        if (ratio[g] > ratio[worst]) worst = g;
    if (ratio[worst] >= 0)
        stw_text_add(text, " %s=%.3f:%s", name, ratio[worst], grads[worst]);
    else
        stw_text_add(text, " %s=-", name);
}

static void add_json(totals *t, const conform_case *c, const stw_case_result *r) {
    cJSON *item = cJSON_CreateObject();
    cJSON_AddStringToObject(item, "outcome", outcome_names[r->outcome]);
    cJSON_AddStringToObject(item, "row", conform_row_name(c->row));
    cJSON_AddStringToObject(item, "problem", c->line);
    cJSON_AddStringToObject(item, "variant", r->variant);
    for (int g = 0; g < STW_GRAD_COUNT; ++g) {
        if (r->max_ratio[g] < 0) continue;
        cJSON *errors = cJSON_AddObjectToObject(item, jagged_names_of(c->line)[g]);
        cJSON_AddNumberToObject(errors, "max_ratio", r->max_ratio[g]);
        if (r->rms_ratio[g] >= 0) cJSON_AddNumberToObject(errors, "rms_ratio", r->rms_ratio[g]);
    }
    if (r->text[0]) cJSON_AddStringToObject(item, "text", r->text);
    cJSON_AddItemToArray(t->json, item);
}

static void print_case(const conform_case *c, const stw_case_result *r) {
    char figures[160];
    stw_text text = stw_text_in(figures, sizeof figures);
    add_worst(&text, "max", r->max_ratio, jagged_names_of(c->line));
    add_worst(&text, "rms", r->rms_ratio, jagged_names_of(c->line));
    if (r->out_ratio >= 0) stw_text_add(&text, " out=%.3f", r->out_ratio);
    if (r->lse_ratio >= 0) stw_text_add(&text, " lse=%.3f", r->lse_ratio);
    printf("%s %s %s %s%s%s%s\n", outcome_names[r->outcome], conform_row_name(c->row), c->line,
           r->variant[0] ? r->variant : "-", figures, r->text[0] ? " : " : "", r->text);
}

static void report(void *user, const conform_case *c, int variant, const stw_case_result *r) {
    totals *t = user;
    if (r->invalid && t->s->given_count) { /* the command line is wrong, not the library */
        if (!variant) stw_tool_error("conform", c->line, "%s", r->text);
        t->invalid++;
        return;
    }
    if (r->outcome == STW_CASE_SKIP && !t->why[0]) snprintf(t->why, sizeof t->why, "%s", r->text);
    size_t row = c->row >= 0 ? (size_t)c->row : conform_row_count;
    t->seen++;
    t->passed += r->outcome == STW_CASE_OK;
    t->failed += r->outcome == STW_CASE_FAIL;
    t->skipped += r->outcome == STW_CASE_SKIP;
    t->enlarged += r->data_sets > 1;
    t->row_cases[row]++;
    t->row_failed[row] += r->outcome == STW_CASE_FAIL;
    conform_pools_add(t->pools, c->row, variant, r);
    if (t->json)
        add_json(t, c, r);
    else
        print_case(c, r);
}

/* A pool counts as a result of its own, and not as a case that was seen. */
static void report_pool(void *user, const conform_case *c, int variant, const stw_case_result *r) {
    totals *t = user;
    (void)variant;
    t->passed += r->outcome == STW_CASE_OK;
    t->failed += r->outcome == STW_CASE_FAIL;
    t->enlarged += r->data_sets > 1;
    if (t->json)
        add_json(t, c, r);
    else
        print_case(c, r);
}

static void skip(totals *t, const char *what) {
    t->skipped++;
    if (!t->why[0]) snprintf(t->why, sizeof t->why, "%.*s", (int)sizeof t->why - 1, what);
    if (!t->json) {
        printf("skip %s\n", what);
    } else {
        cJSON *item = cJSON_CreateObject();
        cJSON_AddStringToObject(item, "outcome", "skip");
        cJSON_AddStringToObject(item, "text", what);
        cJSON_AddItemToArray(t->json, item);
    }
}

static int finish(totals *t, const conform_list *list, int exit) {
    int missing = t->s->require && (strcmp(t->s->require, t->target->arch) || t->seen == 0);
    size_t ran = t->passed + t->failed;
    /* A larger sample is for the odd small problem; a backend that lives on it is not accurate. */
    if (t->enlarged > ENLARGED_FREE + t->seen / ENLARGED_SHARE) {
        stw_tool_error("conform", NULL, "%zu of %zu results needed 8 data sets: more than 1 in %d",
                       t->enlarged, t->seen, ENLARGED_SHARE);
        t->failed++;
    }
    if (!exit && t->invalid) exit = STW_EXIT_USAGE;
    if (!exit && !ran) {
        stw_tool_error("conform", NULL, "nothing ran: %s", t->why[0] ? t->why : "every case was left out");
        exit = STW_EXIT_FAILED;
    }
    if (missing) stw_tool_error("conform", NULL, "--require %s: that arch ran no case", t->s->require);
    if (t->json) {
        cJSON *document = cJSON_CreateObject();
        cJSON_AddStringToObject(document, "arch", t->target->arch);
        cJSON_AddNumberToObject(document, "distinct_problems", ran ? (double)list->count : 0);
        cJSON_AddNumberToObject(document, "passed", (double)t->passed);
        cJSON_AddNumberToObject(document, "failed", (double)t->failed);
        cJSON_AddNumberToObject(document, "skipped", (double)t->skipped);
        cJSON_AddItemToObject(document, "cases", t->json);
        stw_tool_print_json(document);
    } else {
        if (ran)
            printf("%zu distinct problems on %d variants of %s\n", list->count, t->target->variant_count,
                   t->target->arch);
        if (t->enlarged) printf("%zu results judged on 8 data sets instead of one\n", t->enlarged);
        printf("%zu passed, %zu failed, %zu skipped\n", t->passed, t->failed, t->skipped);
    }
    return exit ? exit : t->failed || missing ? STW_EXIT_FAILED : STW_EXIT_OK;
}

/* ---- the command ------------------------------------------------------------------------------------ */

/* Opens the target; 0 when it is not there (counted as skipped) or was misnamed (*exit_out). */
static int find_target(const settings *s, conform_target *target, totals *t, int *exit_out) {
    char why[1024], what[1200];
    const char *wanted = s->variant && !strcmp(s->variant, "auto") ? NULL : s->variant;
    if (!s->variant && (!target->arch[0] || !strcmp(target->arch, "cpu"))) wanted = "all";
    stw_status status = conform_probe(target, wanted, why, sizeof why);
    if (status == STW_E_INVALID) { /* no such arch or variant; the text names those there are */
        stw_tool_error("conform", NULL, "%s", why);
        *exit_out = STW_EXIT_USAGE;
        return 0;
    }
    if (status) {
        snprintf(what, sizeof what, "arch %s: %s", target->arch[0] ? target->arch : "auto", why);
        skip(t, what);
        return 0;
    }
    const stw_arch *arch = stw_arch_find(STW_BACKEND_AUTO, target->arch);
    if (arch) target->opts.backend = arch->backend;
    for (int i = 0; i < target->refused_count; ++i) {
        snprintf(what, sizeof what, "variant %s", target->refused[i]);
        skip(t, what);
    }
    if (!target->variant_count) skip(t, "no variant of the table runs here");
    return target->variant_count > 0;
}

static int run_target(const settings *s, const conform_list *list) {
    conform_target target = {.opts = s->device.opts, .here = s->jobs == 0};
    conform_options run = {s->large && s->jobs ? 1 : s->jobs, {.repeats = s->repeat, .forward = 1}};
    size_t rows = conform_row_count + 1;
    totals t = {.s = s, .target = &target, .json = s->json ? cJSON_CreateArray() : NULL};
    snprintf(target.arch, sizeof target.arch, "%s", s->device.arch_text);
    t.row_cases = calloc(rows, sizeof *t.row_cases);
    t.row_failed = calloc(rows, sizeof *t.row_failed);
    int exit = t.row_cases && t.row_failed ? STW_EXIT_OK : STW_EXIT_FAILED;
    if (!exit && find_target(s, &target, &t, &exit)) {
        run.check.bitwise = !strcmp(target.arch, "cpu");
        t.pools = conform_pools_new(target.variant_count);
        if (!t.pools || !conform_run(list, &target, &run, report, &t)) exit = STW_EXIT_FAILED;
        if (t.pools) conform_pools_report(t.pools, list, &target, &run, report_pool, &t);
    }
    exit = finish(&t, list, exit);
    free(t.pools);
    free(t.row_cases);
    free(t.row_failed);
    return exit;
}

int stw_tool_conform(int argc, char **argv) {
    static const struct argp argp = {options,
                                     parse,
                                     "[PROBLEM...]",
                                     "Runs every feature against the float64 reference under the accuracy "
                                     "rule, on every variant of the tuning "
                                     "table. A line a case: outcome, row, PROBLEM, variant, and for the "
                                     "worst tensor the largest error and the RMS "
                                     "as parts of what is allowed. A PROBLEM given here is replayed "
                                     "alone.\vLast line: N passed, N failed, N skipped.",
                                     NULL,
                                     NULL,
                                     NULL};
    settings s = {.scale = 1, .repeat = 1, .jobs = -1};
    conform_list list = {0};
    int exit = stw_tool_parse(&argp, argc, argv, &s);
    if (!exit) exit = stw_tool_device_opts("conform", &s.device);
    if (s.jobs < 0) s.jobs = (int)sysconf(_SC_NPROCESSORS_ONLN);
    if (s.jobs > 64) s.jobs = 64;
    if (!exit && s.require && !stw_arch_find(STW_BACKEND_AUTO, s.require)) {
        stw_tool_error("conform", NULL, "--require %.40s is not the name of an arch", s.require);
        exit = STW_EXIT_USAGE;
    }
    if (!exit) exit = make_list(&s, &list);
    if (exit && s.json) stw_tool_print_json_error(exit);
    if (!exit && s.list)
        conform_print_rows(&list);
    else if (!exit && !list.count) {
        stw_tool_error("conform", NULL, "no case matches");
        exit = STW_EXIT_USAGE;
    } else if (!exit)
        exit = run_target(&s, &list);
    free(list.cases);
    return exit;
}
