/* SPDX-License-Identifier: MIT
 *
 * See document.h. */
#include "document.h"

#include "tools/base/tool.h"

cJSON *cp_document_rows(void) { return cJSON_CreateArray(); }

void cp_document_add(cJSON *rows, const cp_result *r, cp_counts *counts) {
    static const char *const outcomes[] = {
        [STW_VERIFY_OK] = "ok", [STW_VERIFY_FAIL] = "fail", [STW_VERIFY_SKIP] = "skip"};
    cJSON *object = cJSON_CreateObject(), *ratios = cJSON_CreateObject();
    counts->ran += r->outcome == STW_VERIFY_OK;
    counts->failed += r->outcome == STW_VERIFY_FAIL;
    counts->skipped += r->outcome == STW_VERIFY_SKIP;
    cJSON_AddStringToObject(object, "row", r->name);
    cJSON_AddStringToObject(object, "outcome", outcomes[r->outcome]);
    cJSON_AddStringToObject(object, "schedule", r->schedule);
    cJSON_AddStringToObject(object, "text", r->text);
    for (int g = 0; g < STW_GRAD_COUNT; ++g)
        if (r->ratio[g] >= 0) cJSON_AddNumberToObject(ratios, stw_grad_names[g], r->ratio[g]);
    if (r->outcome == STW_VERIFY_OK) cJSON_AddNumberToObject(ratios, "out", r->out_ratio);
    cJSON_AddItemToObject(object, "error_over_single_device", ratios);
    cJSON_AddNumberToObject(object, "imbalance_percent", r->imbalance);
    cJSON_AddItemToArray(rows, object);
}

int cp_document_end(cJSON *rows, const cp_counts *counts, int32_t ranks) {
    cJSON *document = cJSON_CreateObject();
    cJSON_AddNumberToObject(document, "ranks", ranks);
    cJSON_AddNumberToObject(document, "ran", counts->ran);
    cJSON_AddNumberToObject(document, "skipped", counts->skipped);
    cJSON_AddNumberToObject(document, "failed", counts->failed);
    cJSON_AddItemToObject(document, "rows", rows);
    stw_tool_print_json(document);
    return counts->failed || !counts->ran;
}
