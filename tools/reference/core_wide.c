/* SPDX-License-Identifier: MIT
 *
 * The backward formula in long double (x86-64: 64 significant bits, Arm: 113), for f64 problems: see core.h.
 */
#include "core.h"

#include "common/dtype.h"

#include <math.h>
#include <string.h>

#define REAL           long double
#define REAL_IS_F32    0
#define VECTOR_BYTES   0 /* no vectors of it */
#define NAME(x)        ref_wide_##x
#define MATH(function) function##l
#include "core.inl"
const stw_ref_core stw_ref_core_wide = {sizeof(long double), ref_wide_backward, ref_wide_store};
