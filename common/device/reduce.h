/* SPDX-License-Identifier: MIT
 *
 * Sums and maxima over the lanes of a wave, always in the same order. */
#ifndef STW_COMMON_DEVICE_REDUCE_H
#define STW_COMMON_DEVICE_REDUCE_H

#include "device.h"

/* Over all lanes; every lane gets the sum. */
template <class F> DEV_FN F dev_wave_sum(F x) {
    DEV_UNROLL_FOR (int mask = DEV_WAVE / 2; mask > 0; mask /= 2) x += dev_shuffle_xor(x, mask);
    return x;
}

DEV_FN float dev_wave_max(float x) {
    DEV_UNROLL_FOR (int mask = DEV_WAVE / 2; mask > 0; mask /= 2) x = fmaxf(x, dev_shuffle_xor(x, mask));
    return x;
}

/* Over the lanes that hold one row of an accumulator. */
DEV_FN float dev_row_sum(float x) {
    DEV_UNROLL_FOR (int mask = 1; mask < DEV_WAVE; mask *= 2)
        if (mask & LEAF_ROW_LANES) x += dev_shuffle_xor(x, mask);
    return x;
}
DEV_FN float dev_row_max(float x) {
    DEV_UNROLL_FOR (int mask = 1; mask < DEV_WAVE; mask *= 2)
        if (mask & LEAF_ROW_LANES) x = fmaxf(x, dev_shuffle_xor(x, mask));
    return x;
}

#endif
