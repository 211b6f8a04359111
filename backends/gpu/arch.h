/* SPDX-License-Identifier: MIT
 *
 * From what a device says of itself to an arch name, and to the image that runs on it: pure functions
 * over text and numbers, shared by the probe and the GPU backends. */
#ifndef STW_GPU_ARCH_H
#define STW_GPU_ARCH_H

#include "backends/gpu/image.h"
#include "common/arch.h"

/* The CUDA row whose image has every kernel, as PTX for newer GPUs too; images of other rows add their own
 * kernels. */
#define STW_CUDA_SHARED_ARCH (&stw_archs[STW_ARCH_ROW_sm80])

/* Compute capability 8.9 -> "sm89", 12.0 -> "sm120". 0 for numbers that are none, with out = "". */
int stw_arch_of_cc(int major, int minor, char out[32]);

/* gfx_target_version of the kernel driver: 90010 -> "gfx90a", 110000 -> "gfx1100". 0 for numbers that
 * are none, with out = "". */
int stw_arch_of_gfx_version(uint64_t version, char out[32]);

/* gcnArchName of the HIP runtime without its features: "gfx90a:sramecc+:xnack-" -> "gfx90a". `size`
 * bounds the field. 0 when it is no such name, with out = "". */
int stw_arch_of_gcn_name(const char *name, size_t size, char out[32]);

/* The CUDA rows of common/arch.def whose kernels run on that compute capability, best first: those of its
 * major version that are not newer, newest first, then STW_CUDA_SHARED_ARCH. NULL from the first index on
 * that has none: 9.0 has sm90, sm80, NULL; 12.0 has sm80, NULL; 7.5 has NULL. */
const stw_arch *stw_cuda_row_of_cc(int major, int minor, size_t index);

/* The image for that compute capability: of the first row above that has one, the cubin where the major version is
 * the same, else PTX, which is made for newer GPUs and does not load on those of the row. `forced`: only that row,
 * or NULL. */
const stw_image *stw_cuda_image(const stw_image_set *set, int major, int minor, const stw_arch *forced);

#endif
