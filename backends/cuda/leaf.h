/* SPDX-License-Identifier: MIT
 *
 * NVIDIA's leaf of the device vocabulary: threads, waves (warps), barriers, shuffles, atomics, ordering and
 * number formats. Included first by each image; matrix products and copies are in
 * mma_sm80.h, mma_f32_sm80.h and copy_sm80.h. */
#ifndef STW_CUDA_LEAF_H
#define STW_CUDA_LEAF_H

#include <stddef.h>
#include <stdint.h>

#define STW_SHARED_FN static __device__ __forceinline__
#define DEV_FN        static __device__ __forceinline__
#define DEV_METHOD    __device__ __forceinline__ /* of a struct's object; DEV_FN there: of the struct */
#define DEV_WAVE      32
#define DEV_UNROLL_FOR _Pragma("unroll") for
#define DEV_ROLLED _Pragma("unroll 1")
#define DEV_ROLLED_FOR _Pragma("unroll 1") for
#define DEV_UNROLL_2_FOR _Pragma("unroll 2") for
#define LEAF_QUEUES       1 /* CTAs may take several work tiles */
#define LEAF_PARTS        1 /* work tiles may be parts, */
#define LEAF_SHARED_PARTS 1 /* those of the shared loop, too */
#define LEAF_FLUSHES      0 /* matrix products take subnormal numbers as they are */
/* Negated statistics hold -LSE times this, as exponentials of base 2 take it. */
#define LEAF_STATS_LOG2E(params) DEV_LOG2E
/* `blocks` of its CTAs shall fit the registers of a multiprocessor. */
#define DEV_KERNEL_BLOCKS(threads, blocks) extern "C" __global__ void __launch_bounds__(threads, blocks)
#define DEV_KERNEL(threads)                DEV_KERNEL_BLOCKS(threads, 1)
#define DEV_ARGUMENT                       const __grid_constant__

/* 16-bit storage types: distinct types, so that products know which instruction to take. */
struct dev_f16 {
    uint16_t bits;
};
struct dev_bf16 {
    uint16_t bits;
};

DEV_FN uint32_t dev_thread() { return threadIdx.x; }
DEV_FN uint32_t dev_threads() { return blockDim.x; }
DEV_FN uint32_t dev_lane() { return threadIdx.x % DEV_WAVE; }
/* Number of the CTA in a grid folded over x and y. */
DEV_FN int64_t dev_cta() { return (int64_t)blockIdx.y * gridDim.x + blockIdx.x; }

/* The number of this thread's wave, in a register all its lanes share. */
DEV_FN uint32_t dev_wave() { return __shfl_sync(0xFFFFFFFFu, threadIdx.x / DEV_WAVE, 0); }

/* A value that all lanes of the wave have, in a register they share. */
DEV_FN int dev_uniform(int x) { return (int)__reduce_or_sync(0xFFFFFFFFu, (unsigned)x); }
DEV_FN int64_t dev_uniform(int64_t x) {
    uint32_t low = __reduce_or_sync(0xFFFFFFFFu, (unsigned)x),
             high = __reduce_or_sync(0xFFFFFFFFu, (unsigned)(x >> 32));
    return (int64_t)((uint64_t)high << 32 | low);
}
/* Whether x has one of these bits in any lane of the wave. */
DEV_FN bool dev_any_lane_has(uint32_t x, uint32_t bits) { return (__reduce_or_sync(0xFFFFFFFFu, x) & bits) != 0; }
/* The value itself, which the compiler keeps rather than computing it anew. */
DEV_FN int dev_keep(int x) {
    asm volatile("" : "+r"(x));
    return x;
}

/* Instructions on the two sides stay there: ptxas schedules within a basic block, and one ends here. `never` is false,
 * which the compiler does not know. */
DEV_FN void dev_part(bool never) {
    if (never) asm volatile("trap;");
}

DEV_FN void dev_barrier() { __syncthreads(); }
/* Programmatic dependent launch: the next kernel of a call may be launched while this one runs, and waits, before it
 * touches memory, until this one has ended and what it wrote can be seen. In an ordinary launch neither does
 * anything. */
#if __CUDA_ARCH__ >= 900
DEV_FN void dev_let_next_begin() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
DEV_FN void dev_await_previous() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
#else
DEV_FN void dev_let_next_begin() {}
DEV_FN void dev_await_previous() {}
#endif
/* A barrier in two halves (mbarrier): a wave arrives when it has read what others will overwrite, goes on, and waits
 * where it is about to overwrite. Eight bytes of shared memory; `phase` counts the waits from 0. One lane arrives for
 * its wave; with STW_EVERY_LANE_ARRIVES each does, slower, which racecheck can follow (docs/conformance/sm80.md). */
#ifdef STW_EVERY_LANE_ARRIVES
enum { HALVES_LANES = 1 };
#else
enum { HALVES_LANES = DEV_WAVE };
#endif
struct dev_two_halves {
    uint64_t word;
};
DEV_FN void dev_halves_init(dev_two_halves *b, int waves) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"((uint32_t)__cvta_generic_to_shared(b)),
                 "r"(waves * (DEV_WAVE / HALVES_LANES))
                 : "memory");
}
DEV_FN void dev_halves_arrive(dev_two_halves *b) {
    __syncwarp();
    if (threadIdx.x % HALVES_LANES == 0)
        asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared.b64 state, [%0];\n}" ::"r"(
                         (uint32_t)__cvta_generic_to_shared(b))
                     : "memory");
}
/* The same after a product: its mma.sync is where the lanes meet, and all have read their operands then. */
DEV_FN void dev_halves_arrive_behind_product(dev_two_halves *b) {
    asm volatile("{\n.reg .b64 state;\n.reg .pred first;\nsetp.eq.u32 first, %1, 0;\n@first mbarrier.arrive.shared.b64 "
                 "state, [%0];\n}" ::"r"((uint32_t)__cvta_generic_to_shared(b)),
                 "r"(threadIdx.x % HALVES_LANES)
                 : "memory");
}
DEV_FN void dev_halves_wait(dev_two_halves *b, int phase) {
    uint32_t done;
    do {
        asm volatile("{\n.reg .pred p;\nmbarrier.test_wait.parity.shared.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                     : "=r"(done)
                     : "r"((uint32_t)__cvta_generic_to_shared(b)), "r"(phase & 1)
                     : "memory");
    } while (!done);
}
DEV_FN void dev_wave_sync() { __syncwarp(); }
DEV_FN float dev_shuffle_xor(float x, int mask) { return __shfl_xor_sync(0xFFFFFFFFu, x, mask); }
DEV_FN double dev_shuffle_xor(double x, int mask) { return __shfl_xor_sync(0xFFFFFFFFu, x, mask); }
DEV_FN uint32_t dev_shuffle_xor(uint32_t x, int mask) { return __shfl_xor_sync(0xFFFFFFFFu, x, mask); }
DEV_FN uint32_t dev_shuffle(uint32_t x, int lane) { return __shfl_sync(0xFFFFFFFFu, x, lane); }

/* Adds to memory in any order; no result. */
DEV_FN void dev_add(float *to, float x) {
    asm volatile("red.relaxed.gpu.global.add.f32 [%0], %1;" ::"l"(to), "f"(x) : "memory");
}
/* The same where subnormal numbers count: the addition above takes them, and makes them, zero. Slow. */
DEV_FN void dev_add_exact(float *to, float x) {
    uint32_t *bits = (uint32_t *)(void *)to, seen = *(volatile uint32_t *)bits, was = ~seen;
    while (x != 0.0f && seen != was) {
        was = seen;
        seen = atomicCAS(bits, was, __float_as_uint(__uint_as_float(was) + x));
    }
}
/* Value i of the accumulator tile f of thread t among THREADS, in sums laid out in the order of the registers: a
 * wave's addition touches whole lines, and one instruction adds four values where the GPU can. */
#if __CUDA_ARCH__ >= 900
DEV_FN int dev_sum_at(int f, int i, int t, int threads) { return (f * threads + t) * 4 + i; }
template <int THREADS> DEV_FN void dev_add_acc(float *to, int f, const float x[4]) {
    asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(
                     to + dev_sum_at(f, 0, (int)dev_thread(), THREADS)),
                 "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3])
                 : "memory");
}
DEV_FN void dev_load_acc(float x[4], const float *sums, int f, int t, int threads) {
    float4 v = *(const float4 *)(const void *)(sums + dev_sum_at(f, 0, t, threads));
    x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
}
#else
DEV_FN void dev_load_acc(float x[4], const float *sums, int f, int t, int threads) {
    DEV_UNROLL_FOR (int i = 0; i < 4; ++i) x[i] = sums[(f * 4 + i) * threads + t];
}
DEV_FN int dev_sum_at(int f, int i, int t, int threads) { return (f * 4 + i) * threads + t; }
template <int THREADS> DEV_FN void dev_add_acc(float *to, int f, const float x[4]) {
    DEV_UNROLL_FOR (int i = 0; i < 4; ++i) dev_add(to + dev_sum_at(f, i, (int)dev_thread(), THREADS), x[i]);
}
#endif
DEV_FN uint64_t dev_fetch_add(uint64_t *to, uint64_t x) {
    return atomicAdd((unsigned long long *)to, (unsigned long long)x);
}
/* Of shared memory. */
DEV_FN uint64_t dev_shared_fetch_add(uint64_t *to, uint64_t x) {
    return atomicAdd((unsigned long long *)to, (unsigned long long)x);
}
DEV_FN void dev_or(int32_t *to, int32_t x) { atomicOr(to, x); } /* of shared memory */
DEV_FN void dev_global_or(int32_t *to, int32_t x) { atomicOr(to, x); }
DEV_FN void dev_fence() { __threadfence(); }
DEV_FN uint32_t dev_load_acquire(const uint32_t *from) {
    uint32_t x;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(from) : "memory");
    return x;
}
DEV_FN void dev_store_release(uint32_t *to, uint32_t x) {
    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(x) : "memory");
}
/* Conversions keep any NaN. */
DEV_FN float dev_usual_nan(float x) { return x; }

/* 2^x within 2 ulp, subnormal results flushed: for operands that are rounded to 16 bits. */
DEV_FN float dev_exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
DEV_FN float dev_exp(float x) { return expf(x); }
DEV_FN double dev_exp(double x) { return exp(x); }
DEV_FN double dev_log(double x) { return log(x); }

DEV_FN float dev_from_bf16(uint16_t bits) { return __uint_as_float((uint32_t)bits << 16); }
DEV_FN float dev_from_f16(uint16_t bits) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
}
DEV_FN uint32_t dev_pack_bf16(float low, float high) {
    uint32_t bits;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
    return bits;
}
DEV_FN uint32_t dev_pack_f16(float low, float high) {
    uint32_t bits;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
    return bits;
}
DEV_FN uint16_t dev_to_bf16(float x) { return (uint16_t)dev_pack_bf16(x, x); }
DEV_FN uint16_t dev_to_f16(float x) { return (uint16_t)dev_pack_f16(x, x); }

DEV_FN float dev_float(dev_f16 x) { return dev_from_f16(x.bits); }
DEV_FN float dev_float(dev_bf16 x) { return dev_from_bf16(x.bits); }
DEV_FN float dev_float(float x) { return x; }
DEV_FN void dev_set(dev_f16 *to, float x) { to->bits = dev_to_f16(x); }
DEV_FN void dev_set(dev_bf16 *to, float x) { to->bits = dev_to_bf16(x); }
DEV_FN void dev_set(float *to, float x) { *to = x; }

/* Two neighbours at once; `to` is aligned to the pair. */
DEV_FN void dev_set_pair(dev_f16 *to, float x, float y) { *(uint32_t *)(void *)to = dev_pack_f16(x, y); }
DEV_FN void dev_set_pair(dev_bf16 *to, float x, float y) { *(uint32_t *)(void *)to = dev_pack_bf16(x, y); }
DEV_FN void dev_set_pair(float *to, float x, float y) { *(float2 *)(void *)to = make_float2(x, y); }

/* *to = the word at `from` if `live`; no branch, so that what follows may be scheduled over the wait. */
DEV_FN void dev_load_word_if(uint32_t *to, const void *from, bool live) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %2, 0;\n@p ld.global.nc.b32 %0, [%1];\n}"
                 : "+r"(*to)
                 : "l"(from), "r"((int)live));
}

struct alignas(16) dev_vector {
    uint32_t word[4];
};
DEV_FN dev_vector dev_load_vector(const void *from) {
    uint4 x = *(const uint4 *)from;
    return dev_vector{{x.x, x.y, x.z, x.w}};
}
DEV_FN void dev_store_vector(void *to, dev_vector v) {
    *(uint4 *)to = make_uint4(v.word[0], v.word[1], v.word[2], v.word[3]);
}

/* Half a vector. */
DEV_FN void dev_store_half(void *to, uint32_t low, uint32_t high) { *(uint2 *)to = make_uint2(low, high); }

#include "copy_sm80.h"
#include "mma_sm80.h"
#include "mma_f32_sm80.h"

#endif
