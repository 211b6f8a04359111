/* SPDX-License-Identifier: MIT
 *
 * What cp-conform tells of a row, here and in the MPI program of tests/cp. */
#include "cp.h"

#include <stdio.h>
#include <string.h>

int cp_report(const cp_result *r, cp_counts *counts) {
    const char *words[] = {[STW_VERIFY_OK] = "ok  ", [STW_VERIFY_FAIL] = "FAIL", [STW_VERIFY_SKIP] = "skip"};
    printf("%s %s", words[r->outcome], r->name);
    if (r->outcome == STW_VERIFY_OK) {
        if (r->schedule[0] && !strstr(r->name, r->schedule)) printf(" (%s)", r->schedule);
        for (int g = 0; g < STW_GRAD_COUNT; ++g)
            if (r->ratio[g] >= 0) printf(" %s %.2f", stw_grad_names[g], r->ratio[g]);
        printf(" out %.2f imbalance %.1f%%\n", r->out_ratio, r->imbalance);
        counts->ran++;
    } else {
        printf(": %s\n", r->text);
        if (r->outcome == STW_VERIFY_FAIL) counts->failed++;
        else counts->skipped++;
    }
    fflush(stdout);
    return r->outcome == STW_VERIFY_FAIL;
}

int cp_report_end(const cp_counts *counts, int32_t size, const char *transport) {
    printf("%d ran, %d skipped, %d failed on %d ranks over %s; numbers are RMS errors over the single device's own\n",
           counts->ran, counts->skipped, counts->failed, size, transport);
    return counts->failed || !counts->ran;
}

void cp_bench_header(void) {
    printf("%10s %9s %9s %9s %7s %10s %9s %9s  %-10s %s\n", "median ms", "compute", "messages", "hidden", "one dev",
           "efficiency", "sent MB", "imbalance", "schedule", "problem");
}

int cp_bench_report(const cp_times *t, int32_t size) {
    if (t->result.outcome != STW_VERIFY_OK) {
        printf("FAIL %s: %s\n", t->result.name, t->result.text);
        return 1;
    }
    printf("%10.3f %9.3f %9.3f %8.0f%% %7.3f %9.1f%% %9.3f %8.2f%%  %-10s %s on %d ranks%s%s%s\n",
           t->quartiles[1] * 1e3, t->compute * 1e3, t->communication * 1e3, t->overlap * 100, t->single * 1e3,
           t->efficiency * 100, t->sent_most * 1e-6, t->result.imbalance, t->result.schedule, t->result.name, size,
           t->not_verified ? " (not verified: " : "", t->not_verified ? t->not_verified : "",
           t->not_verified ? ")" : "");
    fflush(stdout);
    return 0;
}
