/* SPDX-License-Identifier: MIT
 *
 * backends/cuda/leaf.h for the emulator: the same vocabulary on fibers of the host. The products come from the
 * project's own headers, without their PTX (without_asm.py); what PTX did is at the end of this file. */
#ifndef STW_TESTS_SM80_EMU_LEAF_H
#define STW_TESTS_SM80_EMU_LEAF_H

#include <cmath>
#include <cstdlib>
#include <cstring>

#include "tests/sm80_emu/machine.h"

#define STW_SHARED_FN            static inline
#define DEV_FN                   static inline
#define DEV_METHOD               inline
#define DEV_WAVE                 32
#define LEAF_QUEUES              1
#define LEAF_PARTS               1
#define LEAF_FLUSHES             0
#define LEAF_SHARED_PARTS        1
#define LEAF_STATS_LOG2E(params) DEV_LOG2E
#define DEV_UNROLL_FOR for
#define DEV_UNROLL_2_FOR for
#define DEV_ROLLED
#define DEV_ROLLED_FOR for
#define DEV_KERNEL_BLOCKS(threads, blocks) extern "C" __attribute__((visibility("default"))) void
#define DEV_KERNEL(threads)                DEV_KERNEL_BLOCKS(threads, 1)
#define DEV_ARGUMENT                       const
#define __shared__

struct dev_f16 {
    uint16_t bits;
};
struct dev_bf16 {
    uint16_t bits;
};

DEV_FN float __uint_as_float(uint32_t x) { return __builtin_bit_cast(float, x); }
DEV_FN uint32_t __float_as_uint(float x) { return __builtin_bit_cast(uint32_t, x); }

DEV_FN uint32_t dev_thread() { return emu_self->number; }
DEV_FN uint32_t dev_threads() { return emu_now.threads; }
DEV_FN uint32_t dev_lane() { return emu_self->number % DEV_WAVE; }
DEV_FN int64_t dev_cta() { return (int64_t)emu_now.block_y * emu_now.x + emu_now.block_x; }
/* On the GPU these ask all lanes of the warp. */
template <class X> DEV_FN X emu_uniform(X x, emu_place at) {
    emu_meet(&x, at, [at](void *const *lanes) {
        for (int i = 1; i < EMU_LANES; ++i)
            if (*(X *)lanes[i] != *(X *)lanes[0]) emu_fail_at(at, "lanes of a warp differ in what they should share");
    });
    return x;
}
DEV_FN uint32_t dev_wave(emu_place at = emu_place::here()) { return emu_uniform(emu_self->number / DEV_WAVE, at); }
DEV_FN int dev_uniform(int x, emu_place at = emu_place::here()) { return emu_uniform(x, at); }
DEV_FN int64_t dev_uniform(int64_t x, emu_place at = emu_place::here()) { return emu_uniform(x, at); }
DEV_FN int dev_keep(int x) { return x; }
DEV_FN void dev_part(bool) {}

DEV_FN void dev_barrier() { emu_barrier(); }
DEV_FN void dev_let_next_begin() {}
DEV_FN void dev_await_previous() {}
DEV_FN void dev_wave_sync(emu_place at = emu_place::here()) {
    emu_meet(nullptr, at, [](void *const *) {});
}
struct dev_two_halves {
    uint16_t waves, arrived;
    uint32_t phases;
};
DEV_FN void dev_halves_init(dev_two_halves *b, int waves) { *b = {(uint16_t)waves, 0, 0}; }
DEV_FN void dev_halves_arrive(dev_two_halves *b) {
    dev_wave_sync();
    if (dev_lane() == 0 && ++b->arrived == b->waves) b->arrived = 0, ++b->phases;
}
DEV_FN void dev_halves_arrive_behind_product(dev_two_halves *b) { dev_halves_arrive(b); }
DEV_FN void dev_halves_wait(dev_two_halves *b, int phase) {
    while ((int)b->phases <= phase) emu_yield();
}

template <class X> struct emu_shuffle {
    X mine, got;
    int from;
    static X run(X x, int from, emu_place at) {
        emu_shuffle s = {x, x, from & 31};
        emu_meet(&s, at, [](void *const *lanes) {
            for (int i = 0; i < EMU_LANES; ++i) {
                emu_shuffle &to = *(emu_shuffle *)lanes[i];
                to.got = ((emu_shuffle *)lanes[to.from])->mine;
            }
        });
        return s.got;
    }
};
DEV_FN float dev_shuffle_xor(float x, int mask, emu_place at = emu_place::here()) {
    return emu_shuffle<float>::run(x, (int)dev_lane() ^ mask, at);
}
DEV_FN double dev_shuffle_xor(double x, int mask, emu_place at = emu_place::here()) {
    return emu_shuffle<double>::run(x, (int)dev_lane() ^ mask, at);
}
DEV_FN uint32_t dev_shuffle_xor(uint32_t x, int mask, emu_place at = emu_place::here()) {
    return emu_shuffle<uint32_t>::run(x, (int)dev_lane() ^ mask, at);
}
DEV_FN bool dev_any_lane_has(uint32_t x, uint32_t bits, emu_place at = emu_place::here()) {
    for (int mask = 1; mask < DEV_WAVE; mask *= 2) x |= dev_shuffle_xor(x, mask, at);
    return (x & bits) != 0;
}
DEV_FN uint32_t dev_shuffle(uint32_t x, int lane, emu_place at = emu_place::here()) {
    return emu_shuffle<uint32_t>::run(x, lane, at);
}

/* Global additions take subnormal numbers, and make them, zero. */
DEV_FN float emu_flushed(float x) { return fabsf(x) < 0x1p-126f ? copysignf(0.0f, x) : x; }
DEV_FN void dev_add(float *to, float x) { *to = emu_flushed(emu_flushed(*to) + emu_flushed(x)); }
DEV_FN void dev_add_exact(float *to, float x) { *to += x; }
DEV_FN int dev_sum_at(int f, int i, int t, int threads) { return (f * threads + t) * 4 + i; }
DEV_FN void dev_load_acc(float x[4], const float *sums, int f, int t, int threads) {
    for (int i = 0; i < 4; ++i) x[i] = sums[dev_sum_at(f, i, t, threads)];
}
template <int THREADS> DEV_FN void dev_add_acc(float *to, int f, const float x[4]) {
    for (int i = 0; i < 4; ++i) dev_add(to + dev_sum_at(f, i, (int)dev_thread(), THREADS), x[i]);
}
DEV_FN uint64_t dev_fetch_add(uint64_t *to, uint64_t x) {
    uint64_t was = *to;
    *to += x;
    return was;
}
DEV_FN uint64_t dev_shared_fetch_add(uint64_t *to, uint64_t x) { return dev_fetch_add(to, x); }
DEV_FN void dev_or(int32_t *to, int32_t x) { *to |= x; }
DEV_FN void dev_global_or(int32_t *to, int32_t x) { *to |= x; }
DEV_FN void dev_fence() {}
DEV_FN uint32_t dev_load_acquire(const uint32_t *from) {
    emu_spin(from); /* who asks again waits for others */
    return *from;
}
DEV_FN void dev_store_release(uint32_t *to, uint32_t x) { *to = x; }
DEV_FN float dev_usual_nan(float x) { return x; }

DEV_FN float dev_exp2_fast(float x) { return emu_flushed(exp2f(emu_flushed(x))); }
DEV_FN float dev_exp(float x) { return expf(x); }
DEV_FN double dev_exp(double x) { return exp(x); }
DEV_FN double dev_log(double x) { return log(x); }

DEV_FN float dev_from_bf16(uint16_t bits) { return __uint_as_float((uint32_t)bits << 16); }
DEV_FN float dev_from_f16(uint16_t bits) { return (float)__builtin_bit_cast(_Float16, bits); }
DEV_FN uint16_t dev_to_bf16(float x) {
    uint32_t bits = __float_as_uint(x);
    return x != x ? (uint16_t)0x7FFF : (uint16_t)((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
}
DEV_FN uint16_t dev_to_f16(float x) { return __builtin_bit_cast(uint16_t, (_Float16)x); }
DEV_FN uint32_t dev_pack_bf16(float low, float high) { return dev_to_bf16(low) | (uint32_t)dev_to_bf16(high) << 16; }
DEV_FN uint32_t dev_pack_f16(float low, float high) { return dev_to_f16(low) | (uint32_t)dev_to_f16(high) << 16; }
DEV_FN float dev_float(dev_f16 x) { return dev_from_f16(x.bits); }
DEV_FN float dev_float(dev_bf16 x) { return dev_from_bf16(x.bits); }
DEV_FN float dev_float(float x) { return x; }
DEV_FN void dev_set(dev_f16 *to, float x) { to->bits = dev_to_f16(x); }
DEV_FN void dev_set(dev_bf16 *to, float x) { to->bits = dev_to_bf16(x); }
DEV_FN void dev_set(float *to, float x) { *to = x; }

/* Accesses of several elements at once: from their multiple on. */
template <class X> DEV_FN X *emu_aligned(X *at, size_t bytes) {
    if ((uintptr_t)at % bytes) emu_fail("a vector that is not aligned");
    return at;
}
template <class X> DEV_FN void dev_set_pair(X *to, float x, float y) {
    dev_set(emu_aligned(to, 2 * sizeof *to), x);
    dev_set(to + 1, y);
}
DEV_FN void dev_load_word_if(uint32_t *to, const void *from, bool live) {
    if (live) memcpy(to, emu_aligned((const char *)from, 4), 4);
}
struct alignas(16) dev_vector {
    uint32_t word[4];
};
DEV_FN dev_vector dev_load_vector(const void *from) {
    dev_vector v;
    memcpy(&v, emu_aligned((const char *)from, 16), 16);
    return v;
}
DEV_FN void dev_store_vector(void *to, dev_vector v) { memcpy(emu_aligned((char *)to, 16), &v, 16); }
DEV_FN void dev_store_half(void *to, uint32_t low, uint32_t high) {
    const uint32_t both[2] = {low, high};
    memcpy(emu_aligned((char *)to, 8), both, 8);
}

DEV_FN uint32_t leaf_shared_address(const void *p) { return (uint32_t)((const char *)p - dev_shared); }
DEV_FN void dev_copy_vector(void *to, const void *from, bool live) {
    if (emu_self->copies == EMU_COPIES) emu_fail("too many copies under way");
    emu_copy &copy = emu_self->copy[emu_self->copies++];
    copy = {emu_aligned((char *)to, 16), emu_self->copy_group, {}};
    if (live) memcpy(copy.data, emu_aligned((const char *)from, 16), 16);
    memset(to, 0xFF, 16);
}
DEV_FN void dev_copy_commit() { ++emu_self->copy_group; }
DEV_FN void emu_copies_arrive(int before_group) {
    int kept = 0;
    for (int i = 0; i < emu_self->copies; ++i) {
        if (emu_self->copy[i].group < before_group) memcpy(emu_self->copy[i].to, emu_self->copy[i].data, 16);
        else emu_self->copy[kept++] = emu_self->copy[i];
    }
    emu_self->copies = kept;
}
DEV_FN void dev_copy_wait() { emu_copies_arrive(emu_self->copy_group + 1); }
template <int COUNT> DEV_FN void dev_copy_wait_but() { emu_copies_arrive(emu_self->copy_group - COUNT); }

/* ldmatrix: lane 8m + r gives row r of matrix m; lane l gets elements 2(l%4) and the next of row l/4 of each. */
template <int COUNT, bool TURNED> struct emu_ldmatrix {
    uint32_t *to, at;
    static void run(uint32_t *to, uint32_t at) {
        emu_ldmatrix mine = {to, at};
        emu_meet(&mine, emu_place::here(), [](void *const *lanes) {
            uint16_t matrix[COUNT][8][8];
            for (int i = 0; i < COUNT * 8; ++i)
                memcpy(matrix[i / 8][i % 8], emu_aligned(dev_shared + ((emu_ldmatrix *)lanes[i])->at, 16), 16);
            for (int lane = 0; lane < EMU_LANES; ++lane)
                for (int m = 0; m < COUNT; ++m) {
                    int row = lane / 4, col = lane % 4 * 2;
                    uint32_t low = TURNED ? matrix[m][col][row] : matrix[m][row][col];
                    uint32_t high = TURNED ? matrix[m][col + 1][row] : matrix[m][row][col + 1];
                    ((emu_ldmatrix *)lanes[lane])->to[m] = low | high << 16;
                }
        });
    }
};
DEV_FN void leaf_ldmatrix(uint32_t r[4], uint32_t at) { emu_ldmatrix<4, false>::run(r, at); }
DEV_FN void leaf_ldmatrix_trans(uint32_t r[4], uint32_t at) { emu_ldmatrix<4, true>::run(r, at); }
DEV_FN void leaf_ldmatrix_two(uint32_t r[2], uint32_t at) { emu_ldmatrix<2, false>::run(r, at); }
DEV_FN void leaf_ldmatrix_two_trans(uint32_t r[2], uint32_t at) { emu_ldmatrix<2, true>::run(r, at); }

template <emu_format FORMAT> struct emu_mma {
    float *c;
    const uint32_t *a, *b;
    static void run(float *c, const uint32_t *a, const uint32_t *b) {
        emu_mma mine = {c, a, b};
        emu_meet(&mine, emu_place::here(), [](void *const *lanes) {
            float *sums[EMU_LANES];
            const uint32_t *left[EMU_LANES], *right[EMU_LANES];
            for (int i = 0; i < EMU_LANES; ++i) {
                sums[i] = ((emu_mma *)lanes[i])->c;
                left[i] = ((emu_mma *)lanes[i])->a;
                right[i] = ((emu_mma *)lanes[i])->b;
            }
            emu_matrix_product(FORMAT, sums, left, right);
        });
    }
};
DEV_FN void leaf_mma_f16(float c[4], const uint32_t a[4], const uint32_t b[2]) { emu_mma<EMU_F16>::run(c, a, b); }
DEV_FN void leaf_mma_bf16(float c[4], const uint32_t a[4], const uint32_t b[2]) { emu_mma<EMU_BF16>::run(c, a, b); }

#include "backends/cuda/mma_sm80.h"

#include "backends/cuda/mma_f32_sm80.h"

#endif
