/* SPDX-License-Identifier: MIT
 *
 * Which status a refusal at plan time has (stw_status in base.h): STW_E_INVALID for what contradicts the
 * headers, STW_E_UNSUPPORTED for what a correct call of another library could ask and we cannot do. */
#ifndef STW_DISPATCH_REFUSAL_H
#define STW_DISPATCH_REFUSAL_H

#include "common/dtype.h"
#include "common/status.h"

/* Of a number outside low..high: below a `low` of 0 or 1 it has no meaning, beyond any other end it passes a limit. */
static inline stw_status stw_range_status(int64_t value, int64_t low) {
    return value < low && low >= 0 ? STW_E_INVALID : STW_E_UNSUPPORTED;
}

/* Of an element type that is not taken: one that exists could be asked for. */
static inline stw_status stw_dtype_status(stw_dtype dtype) {
    return stw_dtype_size(dtype) ? STW_E_UNSUPPORTED : STW_E_INVALID;
}

#endif
