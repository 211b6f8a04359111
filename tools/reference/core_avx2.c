/* SPDX-License-Identifier: MIT
 *
 * The backward formula compiled with -mavx2 -mfma, chosen at run time where the processor has them: see
 * core.h. Only faster; tests/reference checks that results are bitwise those of core_plain.c. */
#define STW_REF_TABLE(type) stw_ref_core_##type##_avx2
#include "core_types.inl"
