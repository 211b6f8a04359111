/* SPDX-License-Identifier: MIT
 *
 * Commands of loader_tool that plan and run. */
#ifndef STW_TESTS_LOADER_LOADER_CALLS_H
#define STW_TESTS_LOADER_LOADER_CALLS_H

/* 1 when `command` is one of them; it was then done `times` times (0 = once). */
int loader_call(const char *command, int times);

/* 1 when the first word is one of the commands of loader_problem.c; the others are its operands, "" where there is
 * none. */
int loader_problem(char **word);

#endif
