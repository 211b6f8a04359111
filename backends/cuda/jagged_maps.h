/* SPDX-License-Identifier: MIT
 *
 * The second argument of the products of jagged_product_sm90.h: its tensor maps, made on the host for each call
 * (jagged_sm90.c). */
#ifndef STW_CUDA_JAGGED_MAPS_H
#define STW_CUDA_JAGGED_MAPS_H

#include "backends/cuda/tensor_map.h"

typedef struct stw_jagged_maps {
    stw_tensor_map a, b, c;
} stw_jagged_maps;

#endif
