/* SPDX-License-Identifier: MIT
 *
 * The verdict of a case (verify.h): what a judged gradient adds to its result, and near misses. Eight evaluations
 * are a small sample of what rounding does to a small f32 problem: a case beyond the rule by less than a factor
 * 2 is judged on further data. */
#include "verify.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void stw_verify_result_clear(stw_verify_result *result_out) {
    memset(result_out, 0, sizeof *result_out);
    result_out->outcome = STW_VERIFY_OK;
    result_out->out_ratio = result_out->lse_ratio = -1;
    for (int g = 0; g < STW_GRAD_COUNT; ++g) result_out->max_ratio[g] = result_out->rms_ratio[g] = -1;
}

int stw_verify_fail(stw_verify_result *result, const char *format, ...) {
    if (result->outcome == STW_VERIFY_FAIL) return 0;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(result->text, sizeof result->text, format, arguments);
    va_end(arguments);
    result->outcome = STW_VERIFY_FAIL;
    return 0;
}

void stw_verify_fail_buffers(stw_verify_result *result, stw_status status) {
    int failed_before = result->outcome == STW_VERIFY_FAIL;
    stw_verify_fail(result, "buffers: %s: %s", stw_status_name(status), stw_last_error());
    if (status == STW_E_NO_MEMORY && !failed_before) result->outcome = STW_VERIFY_SKIP;
}

/* "variant: NAME" of the plan's description. */
void stw_verify_note_variant(const stw_plan *plan, stw_verify_result *result) {
    char text[4096];
    if (stw_plan_describe(plan, text, sizeof text, NULL)) return;
    const char *at = strstr(text, "\nvariant: ");
    if (at) snprintf(result->variant, sizeof result->variant, "%.*s", (int)strcspn(at + 10, "\n"), at + 10);
}

void stw_verify_note_accuracy(stw_verify_result *result, int which, const char *name, const stw_accuracy *a) {
    stw_pool_add(&result->pool[which], a);
    result->accuracy[which] = *a;
    result->max_ratio[which] = a->max_error > 0 ? a->max_error / a->max_allowed : 0;
    if (!a->small) result->rms_ratio[which] = a->rms_error > 0 ? a->rms_error / a->rms_allowed : 0;
    if (a->pass) return;
    int near = isfinite(a->max_error) && a->max_error <= 2 * a->max_allowed &&
               (a->small || a->rms_error <= 2 * a->rms_allowed);
    int already = result->outcome == STW_VERIFY_FAIL;
    stw_verify_fail(
        result, "%s: max error %.3g (allowed %.3g), rms %.3g (allowed %.3g), worst element %lld: %.9g not %.9g", name,
        a->max_error, a->max_allowed, a->rms_error, a->rms_allowed, (long long)a->worst, a->worst_value, a->worst_ref);
    if (near && (!already || result->near)) result->near = 1, result->outcome = STW_VERIFY_OK;
    else result->near = 0;
}

static void merge(stw_verify_result *sum, const stw_verify_result *more) {
    if (more->outcome == STW_VERIFY_FAIL && !more->near) {
        *sum = *more;
        return;
    }
    for (int g = 0; g < STW_GRAD_COUNT; ++g) {
        stw_accuracy *a = &sum->accuracy[g];
        const stw_accuracy *b = &more->accuracy[g];
        a->elements += b->elements;
        a->live += b->live;
        a->square_sum += b->square_sum;
        a->baseline_square_sum += b->baseline_square_sum;
        a->max_error = fmax(a->max_error, b->max_error);
        a->max_allowed = fmax(a->max_allowed, b->max_allowed);
        sum->pool[g].elements += more->pool[g].elements;
        sum->pool[g].square_sum += more->pool[g].square_sum;
        sum->pool[g].baseline_square_sum += more->pool[g].baseline_square_sum;
    }
}

static void judge_merged(stw_verify_result *sum, const char *const *names) {
    sum->outcome = STW_VERIFY_OK;
    for (int g = 0; g < STW_GRAD_COUNT; ++g) {
        const stw_accuracy *a = &sum->accuracy[g];
        stw_accuracy_pool pool = {a->square_sum, a->baseline_square_sum, a->elements};
        double rms = 0;
        if (!a->elements) continue;
        int pass = a->baseline_square_sum > 0 ? stw_pool_pass(&pool, &rms) : 1;
        if (a->live < STW_SAMPLE_ELEMENTS) pass = 1; /* small as one tensor, too: its row's pool judges the RMS */
        sum->max_ratio[g] = a->max_error > 0 ? a->max_error / a->max_allowed : 0;
        sum->rms_ratio[g] = rms;
        if (!pass || !(a->max_error <= a->max_allowed))
            stw_verify_fail(sum, "%s: on all data sets max error %.3g (allowed %.3g), rms %.3f of what is allowed",
                            names[g], a->max_error, a->max_allowed, rms);
    }
}

/* Data of a gradient that missed: further ones may hide all pairs, where lengths are drawn too. */
static int has_live(const stw_verify_result *missed, const stw_verify_result *more) {
    if (more->outcome == STW_VERIFY_FAIL) return 1;
    for (int g = 0; g < STW_GRAD_COUNT; ++g)
        if (missed->accuracy[g].elements && !missed->accuracy[g].pass && more->accuracy[g].live) return 1;
    return 0;
}

void stw_verify_enlarge(stw_verify_again_fn again, void *user, int64_t seed, stw_context *context,
                        const char *const *names, stw_verify_result *result) {
    for (int n = 1, sets = 1; sets < STW_VERIFY_DATA_SETS && n < STW_VERIFY_SEEDS && result->near; ++n) {
        stw_verify_result more;
        stw_verify_result_clear(&more);
        again(user, (seed + 2 * n) & (INT64_MAX >> 2), context, &more);
        sets += has_live(result, &more);
        merge(result, &more);
    }
    if (!result->near) return;
    char first[sizeof result->text];
    snprintf(first, sizeof first, "%s", result->text);
    judge_merged(result, names);
    if (result->outcome == STW_VERIFY_OK)
        snprintf(result->text, sizeof result->text, "%d data sets; the first: %.440s", STW_VERIFY_DATA_SETS, first);
    result->data_sets = STW_VERIFY_DATA_SETS;
}
