/* SPDX-License-Identifier: MIT
 *
 * The jagged formulas in float64: the reference of the accuracy rule. Called by jagged.c. */
#include "jagged_shape.h"

#include "common/dtype.h"

#include <math.h>
#include <stdlib.h>

#define REAL double
#define EXP  exp
#define EXP2 exp2
#define ERF  erf
#define TANH tanh
#define RUN  jref_run_f64
#include "jagged_core.inl"
