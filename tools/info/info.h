/* SPDX-License-Identifier: MIT
 *
 * Of this folder, and for `doctor`: info.c is the command and prints in 80 columns, document.c says as JSON what
 * the build and the machine have, drivers.c which driver libraries there are, explain.c what a PROBLEM runs on. */
#ifndef STW_TOOLS_INFO_H
#define STW_TOOLS_INFO_H

#include "tools/base/tool.h"

/* docs/schema/info.json. `verify` adds whether each image is intact. Returns 0, or -1 when the devices could
 * not be listed. */
int info_build(cJSON *report, int verify);

/* What the environment says; 1: the library would refuse it, stw_tool_last_error() tells why. */
int info_add_environment(cJSON *report);

void info_add_drivers(cJSON *report);

#define INFO_WIDTH 80
/* Prints all of the report but the environment. */
void info_print(const cJSON *report, int verify);

/* What `explain` prints of a PROBLEM line, allocated; NULL: stw_last_error() or stw_tool_last_error() tells why. Starts
 * drivers. */
char *info_explain_text(const stw_tool_device *device, const char *line);
cJSON *info_explain_document(const char *line, const char *text); /* docs/schema/explain.json */

#endif
