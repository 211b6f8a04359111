/* SPDX-License-Identifier: MIT
 *
 * Hopper's own instructions, one function each: mbarriers, tensor loads (TMA), matrix products of a warpgroup (wgmma)
 * and what orders them. Included by Hopper's own main loops and by jagged_product_sm90.h.
 *
 * A tile in shared memory is panels of 64 columns, one after the other. A panel's row is 128 bytes; its 16-byte
 * pieces are exchanged by the row's number modulo 8 (the 128-byte swizzle of TMA and wgmma). A panel starts at a
 * multiple of 1024 bytes. Addresses of shared memory are 32-bit; matrix descriptors count them in units of 16 bytes. */
#ifndef STW_CUDA_MMA_SM90_H
#define STW_CUDA_MMA_SM90_H

#include "common/device/device.h"
#include "tensor_map.h"

#ifndef DEV_METHOD
#define DEV_METHOD __device__ __forceinline__
#endif

DEV_FN uint32_t sm90_shared_address(const void *shared) { return (uint32_t)__cvta_generic_to_shared(shared); }

/* dev_thread and dev_lane, read anew: in rare paths, so that no register holds them over the main loop. */
DEV_FN int sm90_thread_anew() {
    int x;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(x));
    return x;
}
DEV_FN int sm90_lane_anew() {
    int x;
    asm volatile("mov.u32 %0, %%laneid;" : "=r"(x));
    return x;
}

/* Bytes of zeros or ones, by the signs of x's bytes that the digits of `which` name: 8 the lowest, to 11. */
DEV_FN uint32_t sm90_signs(uint32_t x, uint32_t which) {
    uint32_t y;
    asm("prmt.b32 %0, %1, 0, %2;" : "=r"(y) : "r"(x), "r"(which));
    return y;
}

/* True for one lane of a converged warp, which gives an instruction for all of them. */
DEV_FN bool sm90_elect() {
    uint32_t chosen;
    asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(chosen));
    return chosen != 0;
}

/* ---- mbarriers ---- */

/* Eight bytes of shared memory. A phase ends when all arrivals and all announced bytes have come. */
struct sm90_mbarrier {
    uint32_t at;

    DEV_METHOD void init(int arrivals) const {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(arrivals) : "memory");
    }
    DEV_METHOD void arrive() const { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory"); }
    /* Arrives, and announces bytes. */
    DEV_METHOD void expect(uint32_t bytes) const {
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
    }
    /* Until the phase of that parity has ended. */
    DEV_METHOD void wait(uint32_t parity) const {
        asm volatile("{\n.reg .pred p;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra done;\n"
                     "bra again;\ndone:\n}" ::"r"(at),
                     "r"(parity)
                     : "memory");
    }
};
/* TMA sees mbarriers that were initialised before. */
DEV_FN void sm90_fence_mbarrier_init() {
    asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async;" ::: "memory");
}

/* ---- copies that count their bytes at an mbarrier ---- */

/* Rows [row, row + the map's box) of a head, all panels; what lies outside the tensor becomes zeros. The map's
 * dimensions are column in a panel, row, panel, head, batch. */
DEV_FN void sm90_tma_load_panels(uint32_t to, const stw_tensor_map *map, int row, int head, int batch,
                                 sm90_mbarrier barrier) {
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], "
                 "[%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(to),
                 "l"(map), "r"(barrier.at), "r"(0), "r"(row), "r"(0), "r"(head), "r"(batch)
                 : "memory");
}
/* The same of one panel, from column `col` of a map without panels: column, row, head, batch. */
DEV_FN void sm90_tma_load_panel(uint32_t to, const stw_tensor_map *map, int col, int row, int head, int batch,
                                sm90_mbarrier barrier) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], "
                 "[%1, {%3, %4, %5, %6}], [%2];" ::"r"(to),
                 "l"(map), "r"(barrier.at), "r"(col), "r"(row), "r"(head), "r"(batch)
                 : "memory");
}
/* Consecutive bytes, a multiple of 16. */
DEV_FN void sm90_bulk_load(uint32_t to, const void *from, uint32_t bytes, sm90_mbarrier barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier.at)
                 : "memory");
}
/* Adds consecutive f32 numbers of shared memory to sums, `bytes` a multiple of 16. The thread that asks may wait until
 * all of these additions have read shared memory, or until all are done. */
DEV_FN void sm90_bulk_add(float *to, uint32_t from, uint32_t bytes) {
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;\n"
                 "cp.async.bulk.commit_group;" ::"l"(to),
                 "r"(from), "r"(bytes)
                 : "memory");
}
DEV_FN void sm90_bulk_wait_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
DEV_FN void sm90_bulk_wait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
/* Products and TMA after a barrier see what this thread has written to shared memory. */
DEV_FN void sm90_fence_async_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/* ---- shared memory ---- */

/* Four 8x8 matrices of 16-bit numbers: lane l gives the address of row l % 8 of matrix l / 8. */
DEV_FN void sm90_stmatrix(uint32_t to, const uint32_t w[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(w[0]), "r"(w[1]),
                 "r"(w[2]), "r"(w[3])
                 : "memory");
}
/* The same, each transposed. */
DEV_FN void sm90_stmatrix_trans(uint32_t to, const uint32_t w[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(w[0]),
                 "r"(w[1]), "r"(w[2]), "r"(w[3])
                 : "memory");
}
/* Two of them: lanes 0 to 15 give addresses. */
DEV_FN void sm90_stmatrix_trans_two(uint32_t to, const uint32_t *w) {
    asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(to), "r"(w[0]), "r"(w[1])
                 : "memory");
}
/* The way back: four matrices, each transposed. */
DEV_FN void sm90_ldmatrix_trans(uint32_t w[4], uint32_t from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
                 : "r"(from)
                 : "memory");
}
/* Asynchronously the first `bytes` of 16 and zeros behind them; 0: nothing is read. dev_copy_wait waits. */
DEV_FN void sm90_copy_bytes(uint32_t to, const void *from, int bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
DEV_FN uint4 sm90_load_shared_vector(uint32_t at) {
    uint4 x;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "r"(at)
                 : "memory");
    return x;
}
DEV_FN void sm90_store_shared_vector(uint32_t at, uint4 x) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w)
                 : "memory");
}
DEV_FN void sm90_store_shared_four(uint32_t to, const float *x) {
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to), "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3])
                 : "memory");
}
/* Two words of shared memory, at this place in the order of instructions. */
DEV_FN uint2 sm90_load_shared_words(uint32_t at) {
    uint2 x;
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(x.x), "=r"(x.y) : "r"(at) : "memory");
    return x;
}

DEV_FN uint32_t sm90_load_shared_word(uint32_t at) {
    uint32_t x;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(at) : "memory");
    return x;
}
DEV_FN void sm90_store_shared_word(uint32_t at, uint32_t x) {
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(at), "r"(x) : "memory");
}

/* Stores a vector that no kernel of the call reads: its line is the first to leave L2. */
DEV_FN void sm90_store_result(void *to, dev_vector v) {
    __stcs((uint4 *)to, make_uint4(v.word[0], v.word[1], v.word[2], v.word[3]));
}

/* ---- global memory that several CTAs read and write ---- */

/* Orders a semaphore's word beside what this lane has seen through barriers. */
DEV_FN void sm90_fence_gpu() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }
DEV_FN void sm90_store_relaxed(uint32_t *to, uint32_t x) {
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(x) : "memory");
}
DEV_FN uint32_t sm90_load_relaxed(const uint32_t *from) {
    uint32_t x;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(from) : "memory");
    return x;
}
DEV_FN void sm90_global_max(uint32_t *to, uint32_t x) {
    asm volatile("red.relaxed.gpu.global.max.u32 [%0], %1;" ::"l"(to), "r"(x) : "memory");
}
/* Of the device, at most: those that CTAs may run on are not more. */
DEV_FN uint32_t sm90_multiprocessors() {
    uint32_t count;
    asm("mov.u32 %0, %%nsmid;" : "=r"(count));
    return count;
}
/* Brings a line of 128 bytes to L2. */
DEV_FN void sm90_prefetch(const void *at) { asm volatile("prefetch.global.L2 [%0];" ::"l"(at)); }
/* Adds to four sums. */
DEV_FN void sm90_add_four(float *to, const float *x) {
    asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(x[0]), "f"(x[1]), "f"(x[2]),
                 "f"(x[3])
                 : "memory");
}
DEV_FN void sm90_store_four(float *to, const float *x) {
    asm volatile("st.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3])
                 : "memory");
}
/* The same if `live`: without a branch. */
DEV_FN void sm90_add_four_if(bool live, float *to, const float *x) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %5, 0;\n"
                 "@p red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};\n}" ::"l"(to),
                 "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3]), "r"((int)live)
                 : "memory");
}

/* Two sums. */
DEV_FN void sm90_add_two_if(bool live, float *to, const float *x) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %3, 0;\n"
                 "@p red.relaxed.gpu.global.add.v2.f32 [%0], {%1, %2};\n}" ::"l"(to),
                 "f"(x[0]), "f"(x[1]), "r"((int)live)
                 : "memory");
}

/* The two functions that follow keep control flow uniform: divergent code makes ptxas move what all lanes share out of
 * the uniform registers, and the main loop pays for it. */

/* dev_add_exact of all lanes of a warp: by compare-and-swap, since additions flush subnormal sums. */
DEV_FN void sm90_add_exact(float *to, float x) {
    uint32_t was = *(volatile uint32_t *)(void *)to;
    bool pending = x != 0.0f;
    while (__any_sync(0xFFFFFFFFu, pending)) {
        uint32_t seen = was;
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %4, 0;\n"
                     "@p atom.relaxed.gpu.global.cas.b32 %0, [%1], %2, %3;\n}"
                     : "+r"(seen)
                     : "l"(to), "r"(was), "r"(__float_as_uint(__uint_as_float(was) + x)), "r"((int)pending)
                     : "memory");
        pending = pending && seen != was;
        was = seen;
    }
}
/* Sixteen bytes of zeros to shared memory, if `live`. */
DEV_FN void sm90_zero_vector_if(bool live, uint32_t to) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %2, 0;\n@p st.shared.v4.b32 [%0], {%1, %1, %1, %1};\n}" ::"r"(to),
                 "r"(0), "r"((int)live)
                 : "memory");
}

/* All threads of the CTA, on a barrier of its own: code that some warps skip would meet __syncthreads. */
template <int THREADS = 256> DEV_FN void sm90_cta_sync() { asm volatile("bar.sync 1, %0;" ::"n"(THREADS) : "memory"); }
DEV_FN void sm90_warpgroup_sync(int group) { asm volatile("bar.sync %0, 128;" ::"r"(2 + group) : "memory"); }
/* Warpgroups that move registers from one to another: this one has COUNT a thread from here on. */
template <int COUNT> DEV_FN void sm90_give_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <int COUNT> DEV_FN void sm90_take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

/* ---- matrix products ---- */

/* Products read registers as they are before this. */
DEV_FN void sm90_mma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
/* Ends a group of products. */
DEV_FN void sm90_mma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
/* Until at most LEFT groups are under way. */
template <int LEFT> DEV_FN void sm90_mma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}
/* Reads of x stay after the last wait. */
template <int N> DEV_FN void sm90_pin(float (&x)[N]) {
    DEV_UNROLL_FOR (int i = 0; i < N; ++i) asm volatile("" : "+f"(x[i])::"memory");
}
/* The wait for the product x, after which at most LEFT groups were begun. */
template <int LEFT, int N> DEV_FN void sm90_mma_wait(float (&x)[N]) {
    sm90_mma_wait<LEFT>();
    sm90_pin(x);
}
/* An address keeps its registers until here: ptxas would use them again at once, and wait until additions have read
 * them. */
DEV_FN void sm90_hold(const void *x) { asm volatile("" ::"l"(x) : "memory"); }

/* A ROWS x COLS matrix in shared memory, as an operand. `at`: where it begins, in units; NEXT_PANEL: units to the
 * next 64 columns. 8 rows further are 64 units, 16 columns further 2 units. */
template <class T, int ROWS, int COLS, int NEXT_PANEL = ROWS * 8> struct sm90_operand {
    uint32_t at;

    DEV_FN uint64_t descriptor(uint32_t at, uint32_t panel) {
        return (uint64_t)(at | panel << 16) | (uint64_t)0x40000040u << 32;
    }
    /* For a product over its columns: k to k + 15 of them. */
    DEV_METHOD uint64_t columns(int k) const {
        return descriptor(at + (uint32_t)(k / 64 * (ROWS * 8) + k % 64 / 16 * 2), 1);
    }
    /* For a product over its rows. */
    DEV_METHOD uint64_t rows(int k) const { return descriptor(at + k * 8, NEXT_PANEL); }
};

#define SM90_EIGHT(x, i)                                                                                               \
    "+f"(x[i]), "+f"(x[i + 1]), "+f"(x[i + 2]), "+f"(x[i + 3]), "+f"(x[i + 4]), "+f"(x[i + 5]), "+f"(x[i + 6]),        \
        "+f"(x[i + 7])
#define SM90_8(x)     SM90_EIGHT(x, 0)
#define SM90_16(x)    SM90_8(x), SM90_EIGHT(x, 8)
#define SM90_20(x)    SM90_16(x), "+f"(x[16]), "+f"(x[17]), "+f"(x[18]), "+f"(x[19])
#define SM90_32(x)    SM90_16(x), SM90_EIGHT(x, 16), SM90_EIGHT(x, 24)
#define SM90_40(x)    SM90_32(x), SM90_EIGHT(x, 32)
#define SM90_48(x)    SM90_32(x), SM90_EIGHT(x, 32), SM90_EIGHT(x, 40)
#define SM90_64(x)    SM90_48(x), SM90_EIGHT(x, 48), SM90_EIGHT(x, 56)
#define SM90_96(x)    SM90_64(x), SM90_EIGHT(x, 64), SM90_EIGHT(x, 72), SM90_EIGHT(x, 80), SM90_EIGHT(x, 88)
#define SM90_NAMES_8  "%0,%1,%2,%3,%4,%5,%6,%7"
#define SM90_NAMES_16 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define SM90_NAMES_32                                                                                                  \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,"   \
    "%30,%31"
#define SM90_NAMES_20 SM90_NAMES_16 ",%16,%17,%18,%19"
#define SM90_NAMES_40 SM90_NAMES_32 ",%32,%33,%34,%35,%36,%37,%38,%39"
#define SM90_NAMES_48 SM90_NAMES_32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define SM90_NAMES_64 SM90_NAMES_48 ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define SM90_NAMES_96                                                                                                  \
    SM90_NAMES_64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,"  \
                  "%88,%89,%90,%91,%92,%93,%94,%95"

/* One instruction: x, 64 rows of a warpgroup and 2 * COUNT columns, = or += A B over 16 of K.
 *     ss: A and B from shared memory; K are A's and B's columns, or rows (ROWS_A 1, ROWS_B 1).
 *     rs: A from registers, laid out as accumulators of the same rows; K are B's rows. */
template <class T> struct sm90_mma;
#define SM90_SS(type, COUNT, cols, a, b, add, rows_a, rows_b)                                                          \
    template <int ROWS_B, int ROWS_A = 0>                                                                              \
    DEV_FN void ss(float(&x)[COUNT], uint64_t from_a, uint64_t from_b, bool adds) {                                    \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" add ", 0;\n"                                                 \
                     "wgmma.mma_async.sync.aligned.m64n" cols "k16.f32." type "." type " {" SM90_NAMES_##COUNT         \
                     "}, "                                                                                             \
                     "%" a ", %" b ", p, 1, 1, %" rows_a ", %" rows_b ";\n}"                                           \
                     : SM90_##COUNT(x)                                                                                 \
                     : "l"(from_a), "l"(from_b), "r"((int)adds), "n"(ROWS_A), "n"(ROWS_B));                            \
    }
#define SM90_RS(type, COUNT, cols, a0, a1, a2, a3, b)                                                                  \
    DEV_FN void rs(float(&x)[COUNT], const uint32_t *w, uint64_t from_b) {                                             \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" cols "k16.f32." type "." type " {" SM90_NAMES_##COUNT         \
                     "}, "                                                                                             \
                     "{%" a0 ",%" a1 ",%" a2 ",%" a3 "}, %" b ", 1, 1, 1, 1;"                                          \
                     : SM90_##COUNT(x)                                                                                 \
                     : "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]), "l"(from_b));                                       \
    }
#define SM90_MMA(T, type)                                                                                              \
    template <> struct sm90_mma<T> {                                                                                   \
        SM90_SS(type, 8, "16", "8", "9", "10", "11", "12")                                                             \
        SM90_SS(type, 16, "32", "16", "17", "18", "19", "20")                                                          \
        SM90_SS(type, 20, "40", "20", "21", "22", "23", "24")                                                          \
        SM90_SS(type, 32, "64", "32", "33", "34", "35", "36")                                                          \
        SM90_SS(type, 40, "80", "40", "41", "42", "43", "44")                                                          \
        SM90_SS(type, 48, "96", "48", "49", "50", "51", "52")                                                          \
        SM90_SS(type, 64, "128", "64", "65", "66", "67", "68")                                                         \
        SM90_SS(type, 96, "192", "96", "97", "98", "99", "100")                                                        \
        SM90_RS(type, 16, "32", "16", "17", "18", "19", "20")                                                          \
        SM90_RS(type, 32, "64", "32", "33", "34", "35", "36")                                                          \
        SM90_RS(type, 48, "96", "48", "49", "50", "51", "52")                                                          \
        SM90_RS(type, 64, "128", "64", "65", "66", "67", "68")                                                         \
    };
SM90_MMA(dev_bf16, "bf16")
SM90_MMA(dev_f16, "f16")

/* The products of the main loop, named as those of common/device/mma.h. Each is a group that runs until it is waited
 * for. acc has the 64 rows of this warpgroup. */

/* acc = A B^T. */
template <class T, int N, int ROWS_A, int ROWS_B, int K>
DEV_FN void mma_ABt(float (&acc)[N], sm90_operand<T, ROWS_A, K> a, sm90_operand<T, ROWS_B, K> b) {
    DEV_UNROLL_FOR (int k = 0; k < K; k += 16) sm90_mma<T>::template ss<0>(acc, a.columns(k), b.columns(k), k > 0);
    sm90_mma_commit();
}
/* acc = A B. */
template <class T, int N, int ROWS_A, int K, int COLS_B, int NEXT_PANEL>
DEV_FN void mma_AB(float (&acc)[N], sm90_operand<T, ROWS_A, K> a, sm90_operand<T, K, COLS_B, NEXT_PANEL> b) {
    DEV_UNROLL_FOR (int k = 0; k < K; k += 16) sm90_mma<T>::template ss<1>(acc, a.columns(k), b.rows(k), k > 0);
    sm90_mma_commit();
}
/* acc += A B with A in registers: 4 words a thread for 16 columns. */
template <class T, int N, int WORDS, int K, int COLS_B>
DEV_FN void mma_AB(float (&acc)[N], const uint32_t (&a)[WORDS], sm90_operand<T, K, COLS_B> b) {
    static_assert(WORDS == K / 4, "A has a column for each row of B");
    DEV_UNROLL_FOR (int k = 0; k < K; k += 16) sm90_mma<T>::rs(acc, a + k / 4, b.rows(k));
    sm90_mma_commit();
}
/* The part of it over rows FIRST to END of B. */
template <int FIRST, int END, class T, int N, int WORDS, int K, int COLS_B>
DEV_FN void mma_AB_rows(float (&acc)[N], const uint32_t (&a)[WORDS], sm90_operand<T, K, COLS_B> b) {
    DEV_UNROLL_FOR (int k = FIRST; k < END; k += 16) sm90_mma<T>::rs(acc, a + k / 4, b.rows(k));
    sm90_mma_commit();
}
/* acc += A^T B. */
template <class T, int N, int K, int COLS_A, int COLS_B>
DEV_FN void mma_AtB(float (&acc)[N], sm90_operand<T, K, COLS_A> a, sm90_operand<T, K, COLS_B> b) {
    DEV_UNROLL_FOR (int k = 0; k < K; k += 16) sm90_mma<T>::template ss<1, 1>(acc, a.rows(k), b.rows(k), true);
    sm90_mma_commit();
}

#endif
