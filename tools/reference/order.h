/* SPDX-License-Identifier: MIT
 *
 * Orders of summation and working buffers of core.inl; owned by order.c, used by backward.c. */
#ifndef STW_TOOLS_REFERENCE_ORDER_H
#define STW_TOOLS_REFERENCE_ORDER_H

#include "core.h"

/* Buffers for up to so many rows. The close functions also follow a failure (of a zeroed struct). */
stw_status stw_ref_order_open(stw_ref_order *order, int64_t queries, int64_t keys, int64_t dim, int64_t dim_v);
void stw_ref_order_close(stw_ref_order *order);
stw_status stw_ref_work_open(stw_ref_work *work, int64_t keys, int64_t dim, int64_t dim_v);
void stw_ref_work_close(stw_ref_work *work);

/* The order for the head's sequence: natural in float64, by mode->seed in f32. */
void stw_ref_order_set(stw_ref_order *order, const stw_ref_head *head, const stw_ref_mode *mode);

#endif
