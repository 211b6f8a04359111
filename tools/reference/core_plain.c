/* SPDX-License-Identifier: MIT
 *
 * The backward formula compiled for the machine's base instruction set: see core.h. */
#define STW_REF_TABLE(type) stw_ref_core_##type
#include "core_types.inl"
