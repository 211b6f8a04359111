/* SPDX-License-Identifier: MIT
 *
 * NVIDIA's leaf of the device vocabulary: threads, waves (warps), barriers, shuffles, atomics, ordering and
 * number formats. Included by common/device/device.h alone; matrix products and copies are in
 * mma_sm80.h, mma_f32_sm80.h and copy_sm80.h. */
#ifndef STW_CUDA_LEAF_H
#define STW_CUDA_LEAF_H

#define STW_SHARED_FN static __device__ __forceinline__
#define DEV_FN        static __device__ __forceinline__
#define DEV_SLOW_FN   static __device__ __noinline__
#define DEV_WAVE      32
#define DEV_UNROLL    _Pragma("unroll")
#define DEV_ROLLED    _Pragma("unroll 1")
#define DEV_KERNEL_BLOCKS(threads, blocks) extern "C" __global__ void __launch_bounds__(threads, blocks)
#define DEV_KERNEL(threads) DEV_KERNEL_BLOCKS(threads, 1)
#define DEV_ARGUMENT const __grid_constant__

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
/* Number of the block in a grid folded over x and y. */
DEV_FN int64_t dev_unit() { return (int64_t)blockIdx.y * gridDim.x + blockIdx.x; }
DEV_FN int64_t dev_units() { return (int64_t)gridDim.y * gridDim.x; }

/* The number of this thread's wave, in a register all its lanes share. */
DEV_FN uint32_t dev_wave() { return __shfl_sync(0xFFFFFFFFu, threadIdx.x / DEV_WAVE, 0); }

DEV_FN void dev_barrier() { __syncthreads(); }
DEV_FN void dev_wave_sync() { __syncwarp(); }
DEV_FN float dev_shuffle_xor(float x, int mask) { return __shfl_xor_sync(0xFFFFFFFFu, x, mask); }
DEV_FN double dev_shuffle_xor(double x, int mask) { return __shfl_xor_sync(0xFFFFFFFFu, x, mask); }
DEV_FN uint32_t dev_shuffle(uint32_t x, int lane) { return __shfl_sync(0xFFFFFFFFu, x, lane); }

/* Adds to memory; the result is not wanted, the order is not defined. */
DEV_FN void dev_add(float *to, float x) { asm volatile("red.relaxed.gpu.global.add.f32 [%0], %1;" ::"l"(to), "f"(x) : "memory"); }
/* The same where subnormal numbers count: the addition above takes them, and makes them, zero. Slow. */
DEV_FN void dev_add_exact(float *to, float x) {
    uint32_t *bits = (uint32_t *)(void *)to, seen = *(volatile uint32_t *)bits, was = ~seen;
    while (x != 0.0f && seen != was) {
        was = seen;
        seen = atomicCAS(bits, was, __float_as_uint(__uint_as_float(was) + x));
    }
}
DEV_FN uint32_t dev_fetch_add(uint32_t *to, uint32_t x) { return atomicAdd(to, x); }
DEV_FN void dev_or(int32_t *to, int32_t x) { atomicOr(to, x); }
DEV_FN void dev_fence() { __threadfence(); }
DEV_FN uint32_t dev_load_acquire(const uint32_t *from) {
    uint32_t x;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(from) : "memory");
    return x;
}
DEV_FN void dev_store_release(uint32_t *to, uint32_t x) {
    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(x) : "memory");
}

/* 2^x within 2 ulp, tiny results flushed: for operands that are rounded to 16 bits. */
DEV_FN float dev_exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
DEV_FN float dev_exp(float x) { return expf(x); }
DEV_FN float dev_log(float x) { return logf(x); }

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
