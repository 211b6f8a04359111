/* SPDX-License-Identifier: MIT
 *
 * Classes of sizes that differ from call to call: what is planned for the largest size of a class serves all
 * of them. Whatever depends on a size by a threshold asks for its class, so that a plan decides as each of
 * its calls would. */
#ifndef STW_COMMON_SIZE_CLASS_H
#define STW_COMMON_SIZE_CLASS_H

#include <stdint.h>

/* Leading bits that tell classes apart: the largest size is less than an eighth above any other. */
#define STW_SIZE_CLASS_BITS 4

/* The largest size of the class of `size` >= 0; sizes of up to 4 bits are alone in theirs. */
static inline int64_t stw_size_class(int64_t size) {
    int bits = size ? 64 - __builtin_clzll((unsigned long long)size) : 0;
    if (bits <= STW_SIZE_CLASS_BITS) return size;
    int64_t step = INT64_C(1) << (bits - STW_SIZE_CLASS_BITS);
    return (size + step - 1) & -step;
}

/* Only sizes of packed sides have classes. */
static inline int64_t stw_packed_class(int packed, int64_t size) { return packed ? stw_size_class(size) : size; }

#endif
