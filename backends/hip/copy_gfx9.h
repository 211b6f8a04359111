/* SPDX-License-Identifier: MIT
 *
 * Copies from global to shared memory on gfx9: through registers, 16 bytes a thread. The compiler issues the
 * loads of an unrolled loop before its stores; there is nothing to wait for beyond the barrier. Included by
 * leaf.h alone. */
#ifndef STW_HIP_COPY_GFX9_H
#define STW_HIP_COPY_GFX9_H

/* `live` false: 16 zero bytes; `from` is then any address that can be read. */
DEV_FN void dev_copy_vector(void *to, const void *from, bool live) {
    leaf_u4 x = *(const DEV_GLOBAL leaf_u4 *)(const DEV_GLOBAL void *)from, zero = {0, 0, 0, 0};
    *(DEV_SHARED leaf_u4 *)(DEV_SHARED void *)to = live ? x : zero;
}
DEV_FN void dev_copy_commit() {}
DEV_FN void dev_copy_wait() {}
template <int COUNT> DEV_FN void dev_copy_wait_but() {}

#endif
