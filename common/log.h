/* SPDX-License-Identifier: MIT
 *
 * The log: plans, contexts and fallbacks are reported here, never run calls. The level and the file come
 * from the environment when a context is created; the caller's function (stw_set_log) wins over the file. */
#ifndef STW_COMMON_LOG_H
#define STW_COMMON_LOG_H

#include "common/env.h"

/* Puts level and file of this environment in force (the last context created decides). A file that cannot
 * be opened is reported once on standard error and the log goes there. */
void stw_log_configure(const stw_env *env);

/* 1 when a line of this level would go anywhere: ask before building an expensive text. */
int stw_log_enabled(stw_log_level level);

void stw_log(stw_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
