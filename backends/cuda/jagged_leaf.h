/* SPDX-License-Identifier: MIT
 *
 * NVIDIA's leaf for the jagged kernels alone: what backends/cuda/leaf.h does not have. Included by jagged_sm80.cu,
 * after the device vocabulary (tests/sm80_emu has its own). */
#ifndef STW_CUDA_JAGGED_LEAF_H
#define STW_CUDA_JAGGED_LEAF_H

/* 1/x within 1 ulp; of infinity 0. */
DEV_FN float dev_reciprocal_fast(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

#endif
