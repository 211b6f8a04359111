/* SPDX-License-Identifier: MIT
 *
 * core.inl for float and for double. Included by core_plain.c and core_avx2.c, which define
 * STW_REF_TABLE(type), the name of the function table of each. */
#include "core.h"

#include "common/dtype.h"

#include <math.h>
#include <string.h>

#define REAL           float
#define REAL_IS_F32    1
#define VECTOR_BYTES   32
#define NAME(x)        ref_f32_##x
#define MATH(function) function##f
#include "core.inl"
const stw_ref_core STW_REF_TABLE(f32) = {sizeof(float), ref_f32_backward, ref_f32_store};
#undef REAL
#undef REAL_IS_F32
#undef VECTOR_BYTES
#undef NAME
#undef MATH

#define REAL           double
#define REAL_IS_F32    0
#define VECTOR_BYTES   32
#define NAME(x)        ref_f64_##x
#define MATH(function) function
#include "core.inl"
const stw_ref_core STW_REF_TABLE(f64) = {sizeof(double), ref_f64_backward, ref_f64_store};
