/* SPDX-License-Identifier: MIT
 *
 * AMD's leaf of the device vocabulary, for gfx90a, gfx942 and gfx950: threads, waves of 64, barriers, shuffles,
 * atomics, ordering and number formats, from the compiler's builtins alone: no ROCm header, no device library. Included
 * first by each image; mathematics, copies and matrix products are in math_gfx9.h, copy_gfx9.h and
 * mma_gfx9.h. */
#ifndef STW_HIP_LEAF_H
#define STW_HIP_LEAF_H

#include <stddef.h>
#include <stdint.h>

#define STW_SHARED_FN     static __attribute__((device)) inline __attribute__((always_inline))
#define DEV_FN            static __attribute__((device)) inline __attribute__((always_inline))
#define DEV_METHOD        __attribute__((device)) inline __attribute__((always_inline)) /* of a struct's object */
#define DEV_WAVE          64
#define LEAF_QUEUES       0 /* CTAs take one work tile: scalar registers would be spilled */
#define LEAF_PARTS        1 /* work tiles may be parts, */
#define LEAF_SHARED_PARTS 0 /* those of the shared loop are whole */
#if defined(__gfx90a__)
#define LEAF_FLUSHES 1 /* matrix products of f16 and bf16 take subnormal operands for zero, and give none */
#else
#define LEAF_FLUSHES 0
#endif
/* Negated statistics hold -LSE times this, as exponentials of base 2 take it. A bias is added before the factor. */
#define LEAF_STATS_LOG2E(params) ((params).features & STW_FEAT_BIAS ? 1.0f : DEV_LOG2E)
#define DEV_UNROLL_FOR _Pragma("unroll") for
#define DEV_ROLLED _Pragma("unroll 1")
#define DEV_ROLLED_FOR _Pragma("unroll 1") for
#define DEV_UNROLL_2_FOR _Pragma("unroll 2") for
#define DEV_GLOBAL __attribute__((address_space(1)))
#define DEV_SHARED __attribute__((address_space(3)))
#define DEV_LDS    __attribute__((shared))
#define DEV_KERNEL(threads)                                                                                            \
    extern "C" __attribute__((global)) __attribute__((amdgpu_flat_work_group_size(threads, threads))) void
#define DEV_ARGUMENT const

#include "common/params/attn_launch.h" /* STW_GRID_X_HIP */

/* Selected: an index that is not known would put the words into scratch memory. */
#define STW_WORD_OF(words, k)                                                                                          \
    ((k) & 2 ? ((k) & 1 ? (words).word[3] : (words).word[2]) : ((k) & 1 ? (words).word[1] : (words).word[0]))

/* 16-bit storage types: distinct types, so that products know which instruction to take. */
struct dev_f16 {
    uint16_t bits;
};
struct dev_bf16 {
    uint16_t bits;
};

typedef uint32_t leaf_u2 __attribute__((ext_vector_type(2)));
typedef uint32_t leaf_u4 __attribute__((ext_vector_type(4)));
typedef float leaf_f4 __attribute__((ext_vector_type(4)));
typedef _Float16 leaf_h2 __attribute__((ext_vector_type(2)));

DEV_FN uint32_t dev_thread() { return __builtin_amdgcn_workitem_id_x(); }
DEV_FN uint32_t dev_threads() { return __builtin_amdgcn_workgroup_size_x(); }
DEV_FN uint32_t dev_lane() { return __builtin_amdgcn_workitem_id_x() % DEV_WAVE; }
/* Number of the CTA (HIP: workgroup) in a grid folded over x and y, as backends/gpu/attn_tiled.c folds it. */
DEV_FN int64_t dev_cta() {
    return (int64_t)__builtin_amdgcn_workgroup_id_y() * STW_GRID_X_HIP + __builtin_amdgcn_workgroup_id_x();
}

/* The number of this thread's wave, in a register all its lanes share. */
DEV_FN uint32_t dev_wave() { return __builtin_amdgcn_readfirstlane(__builtin_amdgcn_workitem_id_x() / DEV_WAVE); }

/* A value that all lanes of the wave have, in a register they share. */
DEV_FN int dev_uniform(int x) { return __builtin_amdgcn_readfirstlane(x); }
DEV_FN int64_t dev_uniform(int64_t x) {
    uint32_t low = (uint32_t)__builtin_amdgcn_readfirstlane((int)x);
    uint32_t high = (uint32_t)__builtin_amdgcn_readfirstlane((int)(x >> 32));
    return (int64_t)((uint64_t)high << 32 | low);
}
/* Whether x has one of these bits in any lane of the wave. */
DEV_FN bool dev_any_lane_has(uint32_t x, uint32_t bits) { return __builtin_amdgcn_ballot_w64((x & bits) != 0) != 0; }
/* The value itself, which the compiler keeps rather than computing it anew. */
DEV_FN int dev_keep(int x) {
    asm volatile("" : "+v"(x));
    return x;
}

/* Instructions on the two sides stay there; clang 14 (ROCm 5.2) orders them as it likes. */
DEV_FN void dev_part(bool) {
#if __has_builtin(__builtin_amdgcn_sched_barrier)
    __builtin_amdgcn_sched_barrier(0);
#endif
}

/* Kernels of one call never overlap here. */
DEV_FN void dev_let_next_begin() {}
DEV_FN void dev_await_previous() {}
DEV_FN void dev_barrier() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
/* A barrier in two halves: there is no such thing here, so the waves wait for each other in the second. */
struct dev_two_halves {
    uint64_t word;
};
DEV_FN void dev_halves_init(dev_two_halves *, int) {}
DEV_FN void dev_halves_arrive(dev_two_halves *) {}
DEV_FN void dev_halves_arrive_behind_product(dev_two_halves *) {}
DEV_FN void dev_halves_wait(dev_two_halves *, int) { dev_barrier(); }

/* A wave's accesses to shared memory are carried out in their order: only the compiler must keep it. */
DEV_FN void dev_wave_sync() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
    __builtin_amdgcn_wave_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
}
DEV_FN uint32_t dev_shuffle(uint32_t x, int lane) { return (uint32_t)__builtin_amdgcn_ds_bpermute(lane * 4, (int)x); }
DEV_FN float dev_shuffle_xor(float x, int mask) {
    return __builtin_bit_cast(float, dev_shuffle(__builtin_bit_cast(uint32_t, x), (int)dev_lane() ^ mask));
}
DEV_FN double dev_shuffle_xor(double x, int mask) {
    leaf_u2 half = __builtin_bit_cast(leaf_u2, x);
    int lane = (int)dev_lane() ^ mask;
    half.x = dev_shuffle(half.x, lane);
    half.y = dev_shuffle(half.y, lane);
    return __builtin_bit_cast(double, half);
}

/* Adds to memory; the result is not wanted, the order is not defined. The build says -munsafe-fp-atomics: the
 * instruction of coarse-grained device memory, which workspaces are. */
DEV_FN void dev_add(float *to, float x) {
    __hip_atomic_fetch_add((DEV_GLOBAL float *)to, x, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
/* The same where subnormal numbers count: the addition above may take them for zero. Slow. The first value to compare
 * with is a guess: a load under way where an early return joins a loop makes each of its steps wait for all memory. */
DEV_FN void dev_add_exact(float *to, float x) {
    DEV_GLOBAL uint32_t *bits = (DEV_GLOBAL uint32_t *)(void *)to;
    uint32_t seen = 0, next;
    if (x == 0.0f) return;
    do next = __builtin_bit_cast(uint32_t, __builtin_bit_cast(float, seen) + x);
    while (!__hip_atomic_compare_exchange_strong(bits, &seen, next, __ATOMIC_RELAXED, __ATOMIC_RELAXED,
                                                 __HIP_MEMORY_SCOPE_AGENT));
}
/* Value i of the accumulator tile f of thread t among `threads`, in sums laid out in the order of the registers: a
 * wave's addition covers 256 bytes without gaps. */
DEV_FN int dev_sum_at(int f, int i, int t, int threads) { return (f * 4 + i) * threads + t; }
DEV_FN void dev_load_acc(float x[4], const float *sums, int f, int t, int threads) {
    DEV_UNROLL_FOR (int i = 0; i < 4; ++i) x[i] = sums[dev_sum_at(f, i, t, threads)];
}
template <int THREADS> DEV_FN void dev_add_acc(float *to, int f, const float x[4]) {
    DEV_UNROLL_FOR (int i = 0; i < 4; ++i) dev_add(to + dev_sum_at(f, i, (int)dev_thread(), THREADS), x[i]);
}
DEV_FN uint64_t dev_fetch_add(uint64_t *to, uint64_t x) {
    return __hip_atomic_fetch_add((DEV_GLOBAL uint64_t *)to, x, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
/* Of shared memory. */
DEV_FN uint64_t dev_shared_fetch_add(uint64_t *to, uint64_t x) {
    return __hip_atomic_fetch_add((DEV_SHARED uint64_t *)to, x, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP);
}
DEV_FN void dev_or(int32_t *to, int32_t x) {
    __hip_atomic_fetch_or((DEV_SHARED int32_t *)to, x, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP);
}
DEV_FN void dev_global_or(int32_t *to, int32_t x) {
    __hip_atomic_fetch_or((DEV_GLOBAL int32_t *)to, x, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
DEV_FN void dev_shared_max(int32_t *to, int32_t x) {
    __hip_atomic_fetch_max((DEV_SHARED int32_t *)to, x, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP);
}
DEV_FN void dev_fence() { __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, "agent"); }
DEV_FN uint32_t dev_load_acquire(const uint32_t *from) {
    return __hip_atomic_load((const DEV_GLOBAL uint32_t *)from, __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_AGENT);
}
/* clang 19 and 22 write no wait after the write-back of a releasing store. */
DEV_FN void dev_store_release(uint32_t *to, uint32_t x) {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "agent");
    __builtin_amdgcn_s_waitcnt(0x0f70); /* vmcnt(0) */
    __hip_atomic_store((DEV_GLOBAL uint32_t *)to, x, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}

#include "math_gfx9.h"

/* x, or for any NaN the one whose low bits are 0. CDNA's loop rounds to bf16 by an addition, in which others overflow;
 * gfx950 has an instruction. */
#if defined(__gfx950__)
DEV_FN float dev_usual_nan(float x) { return x; }
#else
DEV_FN float dev_usual_nan(float x) { return x != x ? __builtin_nanf("") : x; }
#endif

DEV_FN float dev_from_bf16(uint16_t bits) { return __builtin_bit_cast(float, (uint32_t)bits << 16); }
DEV_FN float dev_from_f16(uint16_t bits) { return (float)__builtin_bit_cast(_Float16, bits); }
/* To nearest even; a NaN stays one. */
#if defined(__gfx950__)
DEV_FN uint32_t dev_pack_bf16(float low, float high) {
    typedef __bf16 pair __attribute__((ext_vector_type(2)));
    return __builtin_bit_cast(uint32_t, pair{(__bf16)low, (__bf16)high}); /* one instruction */
}
#else
/* In the upper half of the word. */
DEV_FN uint32_t leaf_round_bf16(float x) {
    uint32_t bits = __builtin_bit_cast(uint32_t, x);
    return x != x ? 0x7FC00000u : bits + 0x7FFFu + (bits >> 16 & 1u);
}
DEV_FN uint32_t dev_pack_bf16(float low, float high) {
    return __builtin_amdgcn_perm(leaf_round_bf16(high), leaf_round_bf16(low), 0x07060302u);
}
#endif
DEV_FN uint32_t dev_pack_f16(float low, float high) {
    leaf_h2 pair = {(_Float16)low, (_Float16)high};
    return __builtin_bit_cast(uint32_t, pair);
}
#if defined(__gfx950__)
DEV_FN uint16_t dev_to_bf16(float x) { return __builtin_bit_cast(uint16_t, (__bf16)x); }
#else
DEV_FN uint16_t dev_to_bf16(float x) { return (uint16_t)(leaf_round_bf16(x) >> 16); }
#endif
DEV_FN uint16_t dev_to_f16(float x) { return __builtin_bit_cast(uint16_t, (_Float16)x); }

DEV_FN float dev_float(dev_f16 x) { return dev_from_f16(x.bits); }
DEV_FN float dev_float(dev_bf16 x) { return dev_from_bf16(x.bits); }
DEV_FN float dev_float(float x) { return x; }
DEV_FN void dev_set(dev_f16 *to, float x) { to->bits = dev_to_f16(x); }
DEV_FN void dev_set(dev_bf16 *to, float x) { to->bits = dev_to_bf16(x); }
DEV_FN void dev_set(float *to, float x) { *to = x; }

/* Two neighbours at once; `to` is aligned to the pair. */
DEV_FN void dev_set_pair(dev_f16 *to, float x, float y) { *(uint32_t *)(void *)to = dev_pack_f16(x, y); }
DEV_FN void dev_set_pair(dev_bf16 *to, float x, float y) { *(uint32_t *)(void *)to = dev_pack_bf16(x, y); }
DEV_FN void dev_set_pair(float *to, float x, float y) {
    to[0] = x;
    to[1] = y;
}

/* *to = the word at `from` if `live`. */
DEV_FN void dev_load_word_if(uint32_t *to, const void *from, bool live) {
    if (live) *to = *(const uint32_t *)from;
}

struct alignas(16) dev_vector {
    uint32_t word[4];
};
DEV_FN dev_vector dev_load_vector(const void *from) { return __builtin_bit_cast(dev_vector, *(const leaf_u4 *)from); }
/* Of global memory. */
DEV_FN void dev_store_vector(void *to, dev_vector v) {
    *(DEV_GLOBAL leaf_u4 *)(DEV_GLOBAL void *)to = __builtin_bit_cast(leaf_u4, v);
}

/* Half a vector. */
DEV_FN void dev_store_half(void *to, uint32_t low, uint32_t high) {
    ((uint32_t *)to)[0] = low;
    ((uint32_t *)to)[1] = high;
}

#include "copy_gfx9.h"
#include "mma_gfx9.h"

#endif
