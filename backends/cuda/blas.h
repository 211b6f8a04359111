/* SPDX-License-Identifier: MIT
 *
 * Dense products of linear by cuBLASLt, which is loaded by name when the first plan could use it and is never
 * needed: where it is not, our own tiles run. Behind stw_gpu_ops.product_*. */
#ifndef STW_CUDA_BLAS_H
#define STW_CUDA_BLAS_H

#include "backends/cuda/device.h"

/* stw_gpu_ops */
stw_status stw_cuda_product_find(stw_gpu *gpu, const stw_gpu_shape *shape,
                                 const stw_gpu_product **product_out);
stw_status stw_cuda_product_run(stw_gpu *gpu, const stw_gpu_product *product,
                                const stw_gpu_operands *operands, stw_stream stream);

/* What the device's products hold. Between enter and leave, or in a process that ends. */
void stw_cuda_products_end(stw_gpu *gpu);

#endif
