/* SPDX-License-Identifier: MIT
 *
 * The log: plans, contexts and fallbacks are reported here; of run calls only a plan's first one that its
 * pointers send to slower kernels, and that by stw_log_try. The level and the file come
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

/* The same for run calls, which wait for nobody: 0 when another thread is at the log; nothing was written. */
int stw_log_try(stw_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
