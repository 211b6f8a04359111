/* SPDX-License-Identifier: MIT
 *
 * Offsets and used lengths of a jagged call that the host can read: the check (the CPU backend's data, and
 * everybody's host mirrors) and the clean lengths made from checked or unchecked values
 * (common/params/jagged.h). Called by dispatch/jagged_params.c and backends/cpu. */
#ifndef STW_COMMON_JAGGED_DATA_H
#define STW_COMMON_JAGGED_DATA_H

#include "common/params/jagged.h"
#include "common/status.h"

/* Checks the arrays that axis->offsets and axis->used point at; the text names the entry, `suffix` follows
 * the array's name. Sets the axis's bits in *bits. Errors: STW_E_INVALID. */
stw_status stw_jagged_check_axis(const stw_jagged_axis_param *axis, const char *suffix, int64_t components,
                                 uint32_t features, int32_t *bits);

/* Fills axis->starts and axis->used_clean. */
void stw_jagged_make_clean(stw_jagged_axis_param *axis, int64_t components, uint32_t features);

/* Base offsets of a matrix operand against its buffer, with clean lengths. */
stw_status stw_jagged_check_bases(const stw_jagged_params *params, const stw_jagged_matrix_param *matrix,
                                  const char *name, int32_t *bits);

#endif
