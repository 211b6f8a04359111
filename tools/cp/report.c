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
