/* SPDX-License-Identifier: MIT
 *
 * AMD's leaf for the jagged kernels alone: what backends/hip/leaf.h does not have. Included by jagged_cdna.hip, after
 * the device vocabulary. */
#ifndef STW_HIP_JAGGED_LEAF_H
#define STW_HIP_JAGGED_LEAF_H

/* 1/x within 1 ulp; of infinity 0. */
DEV_FN float dev_reciprocal_fast(float x) { return __builtin_amdgcn_rcpf(x); }

#endif
