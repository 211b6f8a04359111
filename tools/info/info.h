/* SPDX-License-Identifier: MIT
 *
 * Private to this folder: info.c is the command and prints in 80 columns, document.c says as JSON what the build and
 * the machine have, drivers.c which driver libraries there are. */
#ifndef STW_TOOLS_INFO_H
#define STW_TOOLS_INFO_H

#include "tools/base/tool.h"

/* docs/schema/info.json. `verify` adds whether each image is intact. Returns 0, or -1 when the devices could
 * not be listed. */
int info_build(cJSON *report, int verify);

/* What the environment says; 1: the library would refuse it, stw_tool_last_error() tells why. */
int info_add_environment(cJSON *report);

void info_add_drivers(cJSON *report);

#endif
