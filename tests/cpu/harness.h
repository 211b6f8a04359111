/* SPDX-License-Identifier: MIT
 *
 * Runs a fixture (tests/reference/fixture.h) through the library on the CPU backend: a context for a
 * forced variant and a number of threads, poisoned and guarded workspace and outputs, and the judgement by
 * the accuracy rule. Used by every test of this folder. */
#ifndef STW_TESTS_CPU_HARNESS_H
#define STW_TESTS_CPU_HARNESS_H

#include "tests/reference/fixture.h"

/* A context with STERNWAY_VARIANT = variant (NULL: none) and so many threads. NULL when this CPU refuses
 * the variant. */
stw_context *harness_context(const char *variant, int threads);

/* All outputs that the fixture's features allow. */
uint32_t harness_all_outputs(const fixture *f);

/* Plans and runs the backward; checks the workspace's guards. Fails the test on any error. */
void harness_run(stw_context *context, const fixture *f);

/* Sets every output of the fixture back to 0xFF. */
void harness_poison_outputs(fixture *f);

/* NaN into what must never be read: K and V rows that no query sees, Q, O and dO rows that see no key,
 * bias entries of pairs that nobody sees. */
void harness_poison_unseen(fixture *f);

/* Judges all wanted gradients against `expectation`, pools small ones, and requires that memory outside the
 * gradients still holds 0xFF. `label` opens failure texts. */
void harness_judge(const fixture *f, const stw_expectation *expectation, stw_accuracy_pool *pool, const char *label);

/* A copy of all outputs, one after the other, and its size; freed by the caller. */
unsigned char *harness_snapshot(const fixture *f, size_t *bytes_out);

/* Every byte of the memory has the value. */
int harness_all_bytes(const void *data, size_t bytes, unsigned char value);

/* The variants of the CPU's tuning table, by id. */
extern const char *const harness_variants[];
extern const int harness_variant_count;

/* A context of two threads for every variant, NULL where this CPU lacks it: group set-up and tear-down. */
extern stw_context *harness_contexts[];
int harness_open(void **state);
int harness_close(void **state);

#endif
