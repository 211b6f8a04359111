/* SPDX-License-Identifier: MIT
 *
 * The feature list of specification section 2 as functions that set one small problem each; read by the tests of
 * the oracle that hold for every feature. */
#ifndef STW_TESTS_REFERENCE_SETUPS_H
#define STW_TESTS_REFERENCE_SETUPS_H

#include "tests/reference/fixture.h"

typedef struct setup {
    const char *name;
    void (*apply)(fixture *f); /* before fixture_build */
} setup;

extern const setup setups[];
extern const int setups_count;

/* All of B2 packed with a gap before, padding inside and a gap behind; used by other tests too. */
void setup_packed(fixture *f);
void setup_used_lengths(fixture *f);

#endif
