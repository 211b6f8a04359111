/* SPDX-License-Identifier: MIT
 *
 * A problem over ranks in the document of `bench --cp --json`, whether these are threads or processes. */
#include "bench.h"

void bench_cp_row(bench_report *report, const cp_row *row, const cp_whole *whole, const cp_times *t, int32_t ranks) {
    const stw_measure counted = {.kind = STW_MEASURE_ATTN, .c = whole->c};
    double bytes = stw_measure_bytes(&counted), max_ratio = 0, rms_ratio = 0;
    cJSON *item = bench_row_of(row->problem, t->check.variant, t->runs, t->quartiles);
    cJSON *over = cJSON_CreateObject();
    bench_largest_ratios(&t->check, &max_ratio, &rms_ratio);
    cJSON_AddNumberToObject(item, "tflops", stw_measure_flop(&counted) / t->quartiles[1] * 1e-12);
    cJSON_AddNumberToObject(item, "gbs", bytes / t->quartiles[1] * 1e-9);
    cJSON_AddNumberToObject(item, "bytes", bytes);
    cJSON_AddNumberToObject(item, "max_ratio", max_ratio);
    cJSON_AddNumberToObject(item, "rms_ratio", rms_ratio);
    cJSON_AddNumberToObject(item, "workspace_bytes", t->workspace);
    cJSON_AddBoolToObject(item, "verified", !t->not_verified);
    if (t->not_verified) cJSON_AddStringToObject(item, "not_verified", t->not_verified);
    cJSON_AddNumberToObject(over, "ranks", ranks);
    cJSON_AddStringToObject(over, "transport", t->transport);
    cJSON_AddStringToObject(over, "order", row->order == STW_CP_ZIGZAG ? "zigzag" : "contiguous");
    cJSON_AddStringToObject(over, "schedule", t->result.schedule);
    cJSON_AddNumberToObject(over, "compute_ms", t->compute * 1e3);
    cJSON_AddNumberToObject(over, "communication_ms", t->communication * 1e3);
    cJSON_AddNumberToObject(over, "overlap", t->overlap);
    cJSON_AddNumberToObject(over, "single_ms", t->single * 1e3);
    cJSON_AddNumberToObject(over, "efficiency", t->efficiency);
    cJSON_AddNumberToObject(over, "sent_bytes", t->sent_most);
    cJSON_AddNumberToObject(over, "sent_bytes_all", t->sent_all);
    cJSON_AddNumberToObject(over, "imbalance_percent", t->result.imbalance);
    cJSON_AddItemToObject(item, "over_ranks", over);
    cJSON_AddItemToArray(report->rows, item);
}
