/* SPDX-License-Identifier: MIT
 *
 * The jagged formulas in f32: the baselines of the accuracy rule. Called by jagged.c. */
#include "jagged_shape.h"

#include "common/dtype.h"

#include <math.h>
#include <stdlib.h>

#define REAL float
#define EXP  expf
#define EXP2 exp2f
#define ERF  erff
#define TANH tanhf
#define RUN  jref_run_f32
#include "jagged_core.inl"
