/* SPDX-License-Identifier: MIT
 *
 * The JSON document of cp-conform (`--json`), for ranks that are threads or processes. */
#ifndef STW_TOOLS_CP_DOCUMENT_H
#define STW_TOOLS_CP_DOCUMENT_H

#include "cp.h"

#include <cjson/cJSON.h>

/* Rows of a document to come; cp_document_end owns them. */
cJSON *cp_document_rows(void);
void cp_document_add(cJSON *rows, const cp_result *result, cp_counts *counts);
/* Prints the document. 1 where a row failed or none ran. */
int cp_document_end(cJSON *rows, const cp_counts *counts, int32_t ranks);

#endif
