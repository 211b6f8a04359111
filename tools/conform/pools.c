/* SPDX-License-Identifier: MIT
 *
 * RMS of small tensors, pooled by row of the suite, variant and gradient. A pool of few elements is a small
 * sample of what rounding does: one that misses the rule by less than a factor 2 is made larger by running
 * its cases on further data, and judged by the same rule (dispatch/DESIGN.md has the reasons). Called by
 * conform.c. */
#include "conform.h"
#include "tools/base/stop.h"
#include "tools/verify/jagged.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NEAR 2.0

struct conform_pools {
    int variants;
    stw_accuracy_pool pool[]; /* [row][variant][gradient]; the last row: cases of no row */
};

conform_pools *conform_pools_new(int variants) {
    size_t count = (conform_row_count + 1) * (size_t)variants * STW_GRAD_COUNT;
    conform_pools *p = calloc(1, sizeof *p + count * sizeof p->pool[0]);
    if (p) p->variants = variants;
    return p;
}

static stw_accuracy_pool *pool_of(conform_pools *p, int row, int variant, int grad) {
    size_t at = row >= 0 ? (size_t)row : conform_row_count;
    return &p->pool[(at * (size_t)p->variants + (size_t)variant) * STW_GRAD_COUNT + (size_t)grad];
}

static void add(stw_accuracy_pool *to, const stw_accuracy_pool *from) {
    to->square_sum += from->square_sum;
    to->baseline_square_sum += from->baseline_square_sum;
    to->elements += from->elements;
}

void conform_pools_add(conform_pools *p, int row, int variant, const stw_verify_result *result) {
    for (int g = 0; g < STW_GRAD_COUNT; ++g) add(pool_of(p, row, variant, g), &result->pool[g]);
}

/* ---- a larger sample ---------------------------------------------------------------------------------- */

typedef struct further {
    stw_accuracy_pool sum;
    int grad, lived;               /* results with an element of this gradient that is not 0 */
    char failed[CONFORM_LINE_MAX]; /* a case that failed by itself                           */
} further;

static void add_further(void *user, const conform_case *c, int variant, const stw_verify_result *result) {
    further *f = user;
    (void)variant;
    add(&f->sum, &result->pool[f->grad]);
    f->lived += result->pool[f->grad].elements > 0;
    if (result->outcome == STW_VERIFY_FAIL && !f->failed[0]) snprintf(f->failed, sizeof f->failed, "%s", c->line);
}

/* The row's cases with other seeds, from the one numbered `first` on. Those whose line names one keep it: they are no
 * further data. */
static int list_further(const conform_list *list, int row, int first, conform_list *out) {
    for (size_t i = 0; i < list->count; ++i) {
        const char *line = list->cases[i].line;
        if (list->cases[i].row != row || strstr(line, ":seed")) continue;
        for (int n = first; n < first + STW_VERIFY_DATA_SETS - 1; ++n) {
            char other[CONFORM_LINE_MAX];
            int length = snprintf(other, sizeof other, "%s:seed%zu", line, 1000 * (i + 1) + (size_t)n);
            if (length >= (int)sizeof other) continue;
            if (!conform_list_add(out, row, other)) return 0;
        }
    }
    return 1;
}

/* Runs them on the one variant, and judges old and further data together. Lengths are drawn with the data: where these
 * leave nothing to judge, further seeds are tried, as for a single case (verdict.c). */
static int enlarge(conform_pools *p, const conform_list *list, int row, int variant, int grad,
                   const conform_target *target, const conform_options *options, stw_verify_result *result) {
    conform_target one = *target;
    conform_options run = *options;
    further f = {.sum = *pool_of(p, row, variant, grad), .grad = grad, .lived = 1};
    one.variant_count = 1;
    memcpy(one.variants[0], target->variants[variant], sizeof one.variants[0]);
    run.check = (stw_verify_options){0};
    int good, seeds = 1;
    do {
        conform_list cases = {0};
        good =
            list_further(list, row, seeds, &cases) && cases.count && conform_run(&cases, &one, &run, add_further, &f);
        conform_list_free(&cases);
        seeds += STW_VERIFY_DATA_SETS - 1;
    } while (good && f.lived < STW_VERIFY_DATA_SETS && seeds < STW_VERIFY_SEEDS);
    double first = result->rms_ratio[grad], ratio = 0;
    int pass = good && stw_pool_pass(&f.sum, &ratio) && !f.failed[0];
    if (good) {
        result->rms_ratio[grad] = ratio;
        result->data_sets = seeds;
        snprintf(result->text, sizeof result->text, "%lld elements of %d data sets; the first: rms %.3f%s%s",
                 (long long)f.sum.elements, seeds, first, f.failed[0] ? "; failed: " : "", f.failed);
    }
    return pass;
}

/* Of the row's operations: dx, dother, ... or dq, dk, ...; given lines may be of both and get attention's. */
static const char *const *names_of(int row) {
    const char *const *options = row >= 0 ? conform_rows[row].options : NULL;
    return jagged_names_of(options ? options[0] : "");
}

/* ---- the report --------------------------------------------------------------------------------------- */

void conform_pools_report(conform_pools *p, const conform_list *list, const conform_target *target,
                          const conform_options *options, conform_report_fn report, void *user) {
    int large = list->count && list->cases[0].row == CONFORM_ROW_LARGE;
    for (size_t row = 0; row <= conform_row_count; ++row)
        for (int v = 0; v < p->variants; ++v)
            for (int g = 0; g < STW_GRAD_COUNT; ++g) {
                int number = row < conform_row_count ? (int)row : large ? CONFORM_ROW_LARGE : -1;
                const stw_accuracy_pool *pool = pool_of(p, number, v, g);
                double ratio = 0;
                if (!pool->elements) continue;
                int pass = stw_pool_pass(pool, &ratio);
                stw_verify_result r;
                conform_case c = {.row = number};
                stw_verify_result_clear(&r);
                snprintf(c.line, sizeof c.line, "pool:%s:%lld_elements", names_of(number)[g],
                         (long long)pool->elements);
                snprintf(r.variant, sizeof r.variant, "%s", target->variants[v]);
                r.rms_ratio[g] = ratio;
                if (!pass && ratio < NEAR && pool->elements < STW_SAMPLE_ELEMENTS && number >= 0)
                    pass = enlarge(p, list, number, v, g, target, options, &r);
                r.outcome = pass ? STW_VERIFY_OK : STW_VERIFY_FAIL;
                if (!pass && number >= 0 && !r.text[0]) /* a pool has no PROBLEM of its own to be replayed by */
                    snprintf(r.text, sizeof r.text, "all of the row again: --filter '%s *'", conform_row_name(number));
                if (stw_tool_stopped()) return; /* some of its cases did not run */
                report(user, &c, v, &r);
            }
}
