/* SPDX-License-Identifier: MIT
 *
 * What CDNA's own main loop (attn_bwd_cdna.h) and row kernels (attn_bwd_cdna_rows.h) need beyond the device
 * vocabulary: accesses to LDS by width, buffers that bound every access, matrix operands made of pairs of f32, and
 * the means to hold the compiler to the order of instructions that is written. Included by them alone. */
#ifndef STW_HIP_CDNA_H
#define STW_HIP_CDNA_H

#include "common/device/device.h"

typedef unsigned short leaf_us2 __attribute__((ext_vector_type(2)));
typedef float leaf_f2 __attribute__((ext_vector_type(2)));
typedef DEV_SHARED unsigned char cdna_lds;
typedef __amdgpu_buffer_rsrc_t cdna_buffer;
typedef const __attribute__((address_space(4))) stw_attn_launch *cdna_launch;

template <class X> DEV_FN void cdna_put(cdna_lds *to, X x) { *(DEV_SHARED X *)to = x; }
DEV_FN leaf_u4 cdna_get(cdna_lds *from) { return *(DEV_SHARED leaf_u4 *)from; }

/* Nothing is scheduled across. */
#define CDNA_FENCE() __builtin_amdgcn_sched_barrier(0)
/* A barrier for LDS alone: loads from and additions to global memory stay under way. */
DEV_FN void cdna_barrier() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup", "local");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup", "local");
}
/* The same value, of which the compiler knows nothing: in a vector register, in scalar ones. */
template <class X> DEV_FN X cdna_opaque(X x) {
    asm volatile("" : "+v"(x));
    return x;
}
template <class X> DEV_FN X cdna_opaque_scalar(X x) {
    asm volatile("" : "+s"(x));
    return x;
}
/* Holds an accumulator where it is (ACC: in the AGPRs) up to this point: the compiler would copy it out, and wait for
 * it, where it is made. */
template <bool ACC> DEV_FN void cdna_keep(leaf_f4 &x) {
    if constexpr (ACC) asm volatile("" : "+a"(x));
    else asm volatile("" : "+v"(x));
}
/* One wait for both. */
DEV_FN void cdna_arrived(leaf_u4 &x, leaf_u4 &y) { asm volatile("" : "+v"(x), "+v"(y)); }
/* The kernel's argument, read again from here on: it occupies no scalar registers through the loops. */
DEV_FN cdna_launch cdna_launch_again() {
    return cdna_opaque_scalar((cdna_launch)__builtin_amdgcn_kernarg_segment_ptr());
}

/* Offset of nothing: loads give zero there, stores are dropped. Buffers are smaller. */
#define CDNA_NOWHERE 0x80000000u
DEV_FN cdna_buffer cdna_buffer_of(const void *base, int bytes, int flags = 0x20000) {
    return __builtin_amdgcn_make_buffer_rsrc((void *)base, 0, bytes > 0 ? bytes : 0, flags);
}
/* Bytes of `rows` rows of `cols` 16-bit elements. */
DEV_FN int cdna_extent(int64_t rows, int64_t stride, uint32_t cols) {
    return rows > 0 ? (((int)rows - 1) * (int)stride + (int)cols) * 2 : 0;
}
/* First element of a row, in elements from the tensor's. */
DEV_FN int64_t cdna_row(const __attribute__((address_space(4))) stw_tensor_param &t, int64_t b, int64_t h,
                        int64_t row) {
    return b * t.batch + h * t.head + row * t.seq;
}

/* x * y, but 0 where x or y is 0, whatever the other is: P = 0 of a pair out of sight. */
__attribute__((device)) float cdna_times(float x, float y) __asm("llvm.amdgcn.fmul.legacy");

/* Halves of two words: (low of a, low of b), (high, high). */
DEV_FN uint32_t cdna_lows(uint32_t a, uint32_t b) { return __builtin_amdgcn_perm(b, a, 0x05040100u); }
DEV_FN uint32_t cdna_highs(uint32_t a, uint32_t b) { return __builtin_amdgcn_perm(b, a, 0x07060302u); }

/* Whether one of many bf16 is not 0 but below 2^-100 (attn_bwd_subnormal.h): the least of twice their sizes less 1, by
 * halves of the words, where 0 is the largest number of all. */
struct cdna_least {
    leaf_us2 x;
    DEV_FN void add(cdna_least &least, uint32_t word) {
        leaf_us2 y;
        asm("v_pk_mad_u16 %0, %1, 2, -1 op_sel_hi:[1,0,0]" : "=v"(y) : "v"(word));
        least.x = __builtin_elementwise_min(least.x, y);
    }
    /* Over the lanes. */
    DEV_FN bool flushed(const cdna_least &least) {
        const unsigned short end = 2 * ATTN_FLUSHED - 1;
        return __builtin_amdgcn_ballot_w64(least.x.x < end || least.x.y < end) != 0;
    }
};

/* P and dS as operands, and results. bf16: to nearest, ties away from zero, which gfx942 adds to both numbers in one
 * instruction (the largest NaN would overflow: none is made, see attn_preprocess_row). */
DEV_FN uint32_t cdna_operand(dev_bf16, leaf_f2 x) {
#if defined(__gfx90a__)
    leaf_u2 u = __builtin_bit_cast(leaf_u2, x) + 0x8000u;
#else
    leaf_u2 u = __builtin_bit_cast(leaf_u2, __builtin_bit_cast(uint64_t, x) + UINT64_C(0x0000800000008000));
#endif
    return cdna_highs(u.x, u.y);
}
DEV_FN uint32_t cdna_operand(dev_f16, leaf_f2 x) { return dev_pack_f16(x.x, x.y); }
/* A product; EXACT: nothing is taken for zero, slowly. */
template <bool EXACT, class T> DEV_FN leaf_f4 cdna_product(T, leaf_u2 a, leaf_u2 b, leaf_f4 c) {
    if constexpr (EXACT) {
        c = leaf_mma_16_unflushed(T(), a, b, c);
        CDNA_FENCE();
        return c;
    } else return leaf_mma_16(T(), a, b, c);
}
DEV_FN leaf_f2 cdna_pair(dev_bf16, uint32_t x) {
    return leaf_f2{__builtin_bit_cast(float, x << 16), __builtin_bit_cast(float, x & 0xffff0000u)};
}
DEV_FN leaf_f2 cdna_pair(dev_f16, uint32_t x) {
    return leaf_f2{dev_from_f16((uint16_t)x), dev_from_f16((uint16_t)(x >> 16))};
}

#endif
