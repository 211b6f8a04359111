/* SPDX-License-Identifier: MIT
 *
 * placeholder */
#include "tool.h"
int stw_tool_bench(int argc, char **argv) { (void)argc; (void)argv; return 1; }
