/* SPDX-License-Identifier: MIT
 *
 * Hopper's own instructions, one function each: barriers in shared memory that count bytes, tensor loads (TMA), matrix
 * products of a warpgroup (wgmma) and what orders them. Included by attn_bwd_sm90.h alone.
 *
 * A tile in shared memory is panels of 64 columns, one behind the other; a panel's row is 128 bytes, its 16-byte
 * pieces permuted by the row's number modulo 8 (the 128-byte swizzle of TMA and wgmma). Panels start at multiples of
 * 1024 bytes. Addresses of shared memory are 32-bit; those in descriptors are counted in 16 bytes ("units").
 *
 *     rows are M or N, columns are K ("along"):  8 rows further 64 units, 16 columns further 2 units in a panel
 *     rows are K, columns are N ("across"):      8 rows further 64 units, 64 columns further a panel */
#ifndef STW_CUDA_MMA_SM90_H
#define STW_CUDA_MMA_SM90_H

#include "common/device/device.h"
#include "tensor_map.h"

DEV_FN uint32_t sm90_address(const void *shared) { return (uint32_t)__cvta_generic_to_shared(shared); }

/* dev_thread and dev_lane, read anew: in rare paths, so that no register holds them over the main loop. */
DEV_FN int sm90_thread() {
    int x;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(x));
    return x;
}
DEV_FN int sm90_lane() {
    int x;
    asm volatile("mov.u32 %0, %%laneid;" : "=r"(x));
    return x;
}

/* One lane of a wave whose lanes are together, for instructions that the wave gives once. */
DEV_FN bool sm90_elect() {
    uint32_t chosen;
    asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(chosen));
    return chosen != 0;
}

/* ---- barriers: eight bytes of shared memory; a phase ends when `arrivals` and all announced bytes have come ---- */

DEV_FN void sm90_barrier_init(uint32_t barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
/* Initialised barriers are seen by the units that copy. */
DEV_FN void sm90_barriers_ready() {
    asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async;" ::: "memory");
}
/* Arrives, and announces bytes. */
DEV_FN void sm90_barrier_expect(uint32_t barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
/* Until the phase of that parity has ended. */
DEV_FN void sm90_barrier_wait(uint32_t barrier, uint32_t parity) {
    asm volatile("{\n.reg .pred p;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra done;\nbra "
                 "again;\ndone:\n}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}

/* ---- copies that count their bytes at a barrier ---- */

/* Rows [row, row + the map's box) of a head, all panels; what lies outside the tensor becomes zeros. The map's
 * dimensions are column in a panel, row, panel, head, batch. */
DEV_FN void sm90_load_panels(uint32_t to, const stw_tensor_map *map, int row, int head, int batch, uint32_t barrier) {
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, "
                 "%5, %6, %7}], [%2];" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(0), "r"(row), "r"(0), "r"(head), "r"(batch)
                 : "memory");
}
/* The same of one panel, from column `col` of a map without panels: column, row, head, batch. */
DEV_FN void sm90_load_panel(uint32_t to, const stw_tensor_map *map, int col, int row, int head, int batch,
                            uint32_t barrier) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, "
                 "%5, %6}], [%2];" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(col), "r"(row), "r"(head), "r"(batch)
                 : "memory");
}
/* Consecutive bytes, a multiple of 16. */
DEV_FN void sm90_load_bytes(uint32_t to, const void *from, uint32_t bytes, uint32_t barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}
/* What this thread wrote to shared memory is seen by products and copies that follow a barrier. */
DEV_FN void sm90_fence_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/* Four 8x8 tiles of 16-bit numbers, transposed: lane l gives the address of row l % 8 of tile l / 8. */
DEV_FN void sm90_store_transposed(uint32_t to, const uint32_t w[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(w[0]),
                 "r"(w[1]), "r"(w[2]), "r"(w[3])
                 : "memory");
}

/* The same, as they are. */
DEV_FN void sm90_store_tiles(uint32_t to, const uint32_t w[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(w[0]), "r"(w[1]),
                 "r"(w[2]), "r"(w[3])
                 : "memory");
}

/* Two words of shared memory, now. */
DEV_FN uint2 sm90_peek(uint32_t at) {
    uint2 x;
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(x.x), "=r"(x.y) : "r"(at) : "memory");
    return x;
}
/* A word of memory that other blocks of threads read and write; the fence orders it beside what this lane has seen
 * through barriers. */
DEV_FN void sm90_fence_memory() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }
DEV_FN void sm90_store_relaxed(uint32_t *to, uint32_t x) {
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(x) : "memory");
}
DEV_FN uint32_t sm90_load_relaxed(const uint32_t *from) {
    uint32_t x;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(from) : "memory");
    return x;
}
/* Adds to four sums in memory. */
DEV_FN void sm90_add_four(float *to, const float *x) {
    asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(x[0]), "f"(x[1]), "f"(x[2]),
                 "f"(x[3])
                 : "memory");
}
/* The same, if `live`, which all threads agree on: without a branch. */
DEV_FN void sm90_add_four_if(bool live, float *to, const float *x) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %5, 0;\n@p red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};\n}" ::
            "l"(to),
        "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3]), "r"((int)live)
        : "memory");
}

/* The rest of this file's memory operations have uniform control flow: in divergent code ptxas moves what all lanes
 * share out of the uniform registers, and the main loop pays for it. */

/* dev_add_exact of all lanes of the wave. */
DEV_FN void sm90_add_exact(float *to, float x) {
    uint32_t was = *(volatile uint32_t *)(void *)to;
    bool pending = x != 0.0f;
    while (__any_sync(0xFFFFFFFFu, pending)) {
        uint32_t seen = was;
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %4, 0;\n@p atom.relaxed.gpu.global.cas.b32 %0, [%1], %2, %3;\n}"
                     : "+r"(seen)
                     : "l"(to), "r"(was), "r"(__float_as_uint(__uint_as_float(was) + x)), "r"((int)pending)
                     : "memory");
        pending = pending && seen != was;
        was = seen;
    }
}

/* A vector of zeros to shared memory, if `live`. */
DEV_FN void sm90_clear_vector(uint32_t to, bool live) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %2, 0;\n@p st.shared.v4.b32 [%0], {%1, %1, %1, %1};\n}" ::"r"(to),
                 "r"(0), "r"((int)live)
                 : "memory");
}

/* All threads of the block, on a barrier of its own: __syncthreads would be met by code that some waves skip. */
DEV_FN void sm90_block_sync() { asm volatile("bar.sync 1, 256;" ::: "memory"); }
/* The threads of a warpgroup. */
DEV_FN void sm90_group_sync(int group) { asm volatile("bar.sync %0, 128;" ::"r"(2 + group) : "memory"); }

/* ---- products ---- */

/* Where an operand starts, in units; `panel`: units to the next 64 columns, for operands across. */
DEV_FN uint64_t sm90_operand(uint32_t at, uint32_t panel) {
    return (uint64_t)(at | panel << 16) | (uint64_t)0x40000040u << 32;
}

/* Registers that products use are as they were written. */
DEV_FN void sm90_products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
/* Ends a group of products. */
DEV_FN void sm90_products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
/* Until at most LEFT groups are under way. */
template <int LEFT> DEV_FN void sm90_products_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}
/* Reads of x stay behind the wait before. */
template <int N> DEV_FN void sm90_pin(float (&x)[N]) {
    DEV_UNROLL_FOR (int i = 0; i < N; ++i) asm volatile("" : "+f"(x[i])::"memory");
}

/* The registers of an address stay taken until here: ptxas would use them again at once, and wait until additions have
 * read them. */
DEV_FN void sm90_hold(const void *x) { asm volatile("" ::"l"(x) : "memory"); }

#define HOP_8(x, i)                                                                                                    \
    "+f"(x[i]), "+f"(x[i + 1]), "+f"(x[i + 2]), "+f"(x[i + 3]), "+f"(x[i + 4]), "+f"(x[i + 5]), "+f"(x[i + 6]),        \
        "+f"(x[i + 7])
#define SM90_32(x) HOP_8(x, 0), HOP_8(x, 8), HOP_8(x, 16), HOP_8(x, 24)
#define SM90_48(x) SM90_32(x), HOP_8(x, 32), HOP_8(x, 40)
#define SM90_64(x) SM90_48(x), HOP_8(x, 48), HOP_8(x, 56)
#define SM90_NAMES_32                                                                                                  \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%"  \
    "30,%31"
#define SM90_NAMES_48 SM90_NAMES_32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define SM90_NAMES_64 SM90_NAMES_48 ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"

/* acc (64 rows of a warpgroup, 2 * COUNT columns) = or += 16 columns of A times 16 of B: both from shared memory, A
 * along and B along (ACROSS 0) or across (1); or A from registers, as accumulators of the same rows hold them, and B
 * across. */
template <class T> struct sm90_mma;
#define SM90_BOTH(type, COUNT, cols, a, b, add, t)                                                                     \
    template <int ACROSS> DEV_FN void both(float(&x)[COUNT], uint64_t from_a, uint64_t from_b, bool sum) {             \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" add ", 0;\nwgmma.mma_async.sync.aligned.m64n" cols           \
                     "k16.f32." type "." type " {" SM90_NAMES_##COUNT "}, %" a ", %" b ", p, 1, 1, 0, %" t ";\n}"      \
                     : SM90_##COUNT(x)                                                                                 \
                     : "l"(from_a), "l"(from_b), "r"((int)sum), "n"(ACROSS));                                          \
    }
#define SM90_HELD(type, COUNT, cols, a0, a1, a2, a3, b)                                                                \
    DEV_FN void held(float(&x)[COUNT], const uint32_t *w, uint64_t from_b) {                                           \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" cols "k16.f32." type "." type " {" SM90_NAMES_##COUNT         \
                     "}, {%" a0 ",%" a1 ",%" a2 ",%" a3 "}, %" b ", 1, 1, 1, 1;"                                       \
                     : SM90_##COUNT(x)                                                                                 \
                     : "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]), "l"(from_b));                                       \
    }
#define SM90_MMA(T, type)                                                                                              \
    template <> struct sm90_mma<T> {                                                                                   \
        SM90_BOTH(type, 32, "64", "32", "33", "34", "35")                                                              \
        SM90_BOTH(type, 64, "128", "64", "65", "66", "67")                                                             \
        SM90_HELD(type, 32, "64", "32", "33", "34", "35", "36")                                                        \
        SM90_HELD(type, 48, "96", "48", "49", "50", "51", "52")                                                        \
        SM90_HELD(type, 64, "128", "64", "65", "66", "67", "68")                                                       \
    };
SM90_MMA(dev_bf16, "bf16")
SM90_MMA(dev_f16, "f16")

#endif
