/* SPDX-License-Identifier: MIT
 *
 * Private to this folder: doctor.c is the command and prints in 80 columns, system.c says what the system has,
 * private.c takes out what is nobody's business, trial.c starts the drivers, rates.c tests and times for minutes,
 * findings.c says what looks wrong. */
#ifndef STW_TOOLS_DOCTOR_H
#define STW_TOOLS_DOCTOR_H

#include "tools/info/info.h"
#include "tools/verify/verify.h"

/* The document of docs/schema/doctor.json grows by these, in this order. */
void doctor_add_system(cJSON *report);
void doctor_add_unknown_variables(cJSON *report);
void doctor_add_choice(cJSON *report); /* what a usual problem runs on: the first that starts a driver */
void doctor_add_trial(cJSON *report);  /* problems on what was chosen and on the CPU                    */
void doctor_add_conformance(cJSON *report, double minutes); /* --minutes: the suite, as far as it gets */
void doctor_add_rates(cJSON *report);                       /* --minutes: a few problems timed         */
void doctor_add_findings(cJSON *report);

/* trial.c: a problem whose result is wrong, as a row of `failures`. */
void doctor_add_failure(cJSON *failures, const char *line, const stw_verify_result *result);

/* Shortens every text of the report: no folders but those of the system's devices, no values that name people's. */
void doctor_make_private(cJSON *report);

#endif
