/* SPDX-License-Identifier: MIT
 *
 * The struct_size rule (include/sternway/base.h): a caller's struct of any age becomes one of ours. */
#ifndef STW_COMMON_EXTEND_H
#define STW_COMMON_EXTEND_H

#include "common/status.h"
#include "sternway/sternway.h"

/* Sizes of the structs in release 0.1, the smallest a caller can have; pinned for ever (tests/abi). */
#define STW_SIZE_CONTEXT_OPTS_0_1 40
#define STW_SIZE_ATTN_DESC_0_1    528
#define STW_SIZE_ATTN_ARGS_0_1    240
#define STW_SIZE_JAGGED_DESC_0_1  360
#define STW_SIZE_JAGGED_ARGS_0_1  232
#define STW_SIZE_DEVICE_INFO_0_1  368
#define STW_SIZE_IMAGE_INFO_0_1   96
#define STW_SIZE_CP_TRANSPORT_0_1 96
#define STW_SIZE_CP_DESC_0_1      96

/* Copies the caller's struct of `*(size_t *)from` bytes into the `size` bytes at `to`, zeros behind a
 * shorter one, and sets the copy's struct_size. `minimum`: the size of the first release. Errors, with
 * `who` ("attn_bwd_plan: desc") opening the text: STW_E_INVALID (null, too small, absurd), and
 * STW_E_UNSUPPORTED (a longer struct with something non-zero in the tail). */
stw_status stw_extend(const char *who, const void *from, void *to, size_t size, size_t minimum);

/* Output arrays (stw_devices, stw_embedded_images): every element carries the caller's struct_size, which is
 * also the distance between elements. Checks them all. Errors: STW_E_INVALID; `what` names the struct. */
stw_status stw_extend_check_array(const char *who, const char *what, const void *infos, size_t capacity, size_t size,
                                  size_t minimum, size_t *stride_out);

/* Writes one of our structs into such an element: an older caller's is shorter, a newer one's tail is zeroed. */
void stw_extend_store(void *element, size_t stride, const void *info, size_t size);

#endif
