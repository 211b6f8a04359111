/* SPDX-License-Identifier: MIT
 *
 * Asynchronous copies into shared memory on sm80 and newer: 16 bytes a thread (cp.async), zeros where there
 * is nothing to read. Included by leaf.h alone. */
#ifndef STW_CUDA_COPY_SM80_H
#define STW_CUDA_COPY_SM80_H

DEV_FN uint32_t leaf_shared_address(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }

/* 16 bytes from global to shared memory; `live` false: 16 zero bytes, `from` is not read. */
DEV_FN void dev_copy_vector(void *to, const void *from, bool live) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(leaf_shared_address(to)), "l"(from),
                 "r"(live ? 16 : 0)
                 : "memory");
}
DEV_FN void dev_copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/* All of this thread's copies have arrived; a barrier makes them everyone's. */
DEV_FN void dev_copy_wait() { asm volatile("cp.async.wait_all;" ::: "memory"); }
/* All but those of the last COUNT groups. */
template <int COUNT> DEV_FN void dev_copy_wait_but() {
    asm volatile("cp.async.wait_group %0;" ::"n"(COUNT) : "memory");
}

#endif
