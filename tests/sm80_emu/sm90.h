/* SPDX-License-Identifier: MIT
 *
 * Hopper's instructions for the emulator, under the names of backends/cuda/mma_sm90.h, whose operands and descriptors
 * are the project's own (without_asm.py); and those of CUDA's words that sm90's kernels use. */
#ifndef STW_TESTS_SM80_EMU_SM90_H
#define STW_TESTS_SM80_EMU_SM90_H

#include "backends/cuda/tensor_map.h"

struct int2 {
    int x, y;
};
struct uint2 {
    uint32_t x, y;
};
struct alignas(16) uint4 {
    uint32_t x, y, z, w;
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
DEV_FN float2 make_float2(float x, float y) { return {x, y}; }
DEV_FN uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }
DEV_FN int max(int x, int y) { return x > y ? x : y; }
DEV_FN int min(int x, int y) { return x < y ? x : y; }
DEV_FN uint32_t max(uint32_t x, uint32_t y) { return x > y ? x : y; }
DEV_FN uint32_t min(uint32_t x, uint32_t y) { return x < y ? x : y; }
template <class X> DEV_FN X __ldg(const X *from) { return *from; }
DEV_FN uint32_t __cvta_generic_to_shared(const void *p) { return leaf_shared_address(p); }
DEV_FN void __syncwarp(emu_place at = emu_place::here()) { dev_wave_sync(at); }
DEV_FN void __syncthreads() { dev_barrier(); }
DEV_FN int __syncthreads_or(int x) { return emu_barrier_or(x); }
DEV_FN uint32_t __ballot_sync(uint32_t, bool x, emu_place at = emu_place::here()) {
    uint32_t bits = (uint32_t)x << dev_lane();
    for (int mask = 1; mask < DEV_WAVE; mask *= 2) bits |= dev_shuffle_xor(bits, mask, at);
    return bits;
}
DEV_FN int __clz(int x) { return x ? __builtin_clz((uint32_t)x) : 32; }
DEV_FN int __popc(uint32_t x) { return __builtin_popcount(x); }
DEV_FN int __ffs(int x) { return __builtin_ffs(x); }
DEV_FN void __stcs(uint4 *to, uint4 x) { *to = x; }
DEV_FN bool __any_sync(uint32_t lanes, bool x, emu_place at = emu_place::here()) {
    return __ballot_sync(lanes, x, at) != 0;
}

DEV_FN uint32_t __byte_perm(uint32_t x, uint32_t y, uint32_t which) {
    const uint64_t all = (uint64_t)y << 32 | x;
    uint32_t to = 0;
    for (int i = 0; i < 4; ++i) to |= (uint32_t)(all >> (which >> 4 * i & 7) * 8 & 0xFF) << 8 * i;
    return to;
}

DEV_FN int sm90_thread_anew() { return (int)dev_thread(); }
DEV_FN int sm90_lane_anew() { return (int)dev_lane(); }
DEV_FN uint32_t sm90_append_kept(uint32_t x, uint32_t word, uint32_t negative) {
    return 2 * x + (uint32_t)(((uint64_t)word + negative) >> 32);
}
DEV_FN uint32_t sm90_signs(uint32_t x, uint32_t which) {
    uint32_t to = 0;
    for (int i = 0; i < 4; ++i) to |= (x >> (which >> 4 * i & 3) * 8 & 0x80 ? 0xFFu : 0u) << 8 * i;
    return to;
}
DEV_FN bool sm90_elect(emu_place at = emu_place::here()) {
    dev_wave_sync(at);
    return dev_lane() == 0;
}

struct sm90_mbarrier {
    uint32_t at;

    DEV_METHOD void init(int arrivals) const { emu_mbarrier_init(at, arrivals); }
    DEV_METHOD void arrive() const { emu_mbarrier_add(at, 1, 0); }
    DEV_METHOD void expect(uint32_t bytes) const { emu_mbarrier_add(at, 1, (int)bytes); }
    DEV_METHOD void wait(uint32_t parity) const { emu_mbarrier_wait(at, parity); }
};
DEV_FN void sm90_fence_mbarrier_init() {}

DEV_FN void sm90_tma_load_panels(uint32_t to, const stw_tensor_map *map, int row, int head, int batch,
                                 sm90_mbarrier barrier) {
    const int from[5] = {0, row, 0, head, batch};
    emu_tensor_load(to, map, 5, from, barrier.at);
}
DEV_FN void sm90_tma_load_panel(uint32_t to, const stw_tensor_map *map, int col, int row, int head, int batch,
                                sm90_mbarrier barrier) {
    const int from[4] = {col, row, head, batch};
    emu_tensor_load(to, map, 4, from, barrier.at);
}
DEV_FN void sm90_bulk_load(uint32_t to, const void *from, uint32_t bytes, sm90_mbarrier barrier) {
    emu_bulk_load(to, from, bytes, barrier.at);
}
DEV_FN void sm90_bulk_add(float *to, uint32_t from, uint32_t bytes) { emu_bulk_add(to, from, bytes); }
DEV_FN void sm90_bulk_wait_read() { emu_bulk_wait_read(); }
DEV_FN void sm90_bulk_wait() { emu_bulk_wait(); }
DEV_FN void sm90_fence_async_shared() {}

/* stmatrix: the other way round of ldmatrix. */
template <bool TURNED, int MATRICES = 4> struct emu_stmatrix {
    uint32_t at;
    const uint32_t *w;
    static void run(uint32_t at, const uint32_t *w) {
        emu_stmatrix mine = {at, w};
        emu_meet(&mine, emu_place::here(), [](void *const *lanes) {
            for (int m = 0; m < MATRICES; ++m)
                for (int r = 0; r < 8; ++r) {
                    uint16_t row[8];
                    for (int c = 0; c < 8; ++c) {
                        int lane = TURNED ? c * 4 + r / 2 : r * 4 + c / 2, half = TURNED ? r % 2 : c % 2;
                        row[c] = (uint16_t)(((emu_stmatrix *)lanes[lane])->w[m] >> (16 * half));
                    }
                    memcpy(emu_aligned(dev_shared + ((emu_stmatrix *)lanes[8 * m + r])->at, 16), row, 16);
                }
        });
    }
};
DEV_FN void sm90_stmatrix(uint32_t to, const uint32_t w[4]) { emu_stmatrix<false>::run(to, w); }
DEV_FN void sm90_stmatrix_trans(uint32_t to, const uint32_t w[4]) { emu_stmatrix<true>::run(to, w); }
DEV_FN void sm90_stmatrix_trans_two(uint32_t to, const uint32_t *w) { emu_stmatrix<true, 2>::run(to, w); }
DEV_FN void sm90_ldmatrix_trans(uint32_t w[4], uint32_t from) {
    struct place {
        uint32_t from, *w;
    } mine = {from, w};
    emu_meet(&mine, emu_place::here(), [](void *const *lanes) {
        for (int m = 0; m < 4; ++m)
            for (int r = 0; r < 8; ++r) {
                uint16_t row[8];
                memcpy(row, emu_aligned(dev_shared + ((place *)lanes[8 * m + r])->from, 16), 16);
                for (int c = 0; c < 8; ++c) {
                    uint32_t &word = ((place *)lanes[c * 4 + r / 2])->w[m];
                    const int shift = 16 * (r % 2);
                    word = (word & ~(0xFFFFu << shift)) | (uint32_t)row[c] << shift;
                }
            }
    });
}
DEV_FN void sm90_copy_bytes(uint32_t to, const void *from, int bytes) {
    if (emu_self->copies == EMU_COPIES) emu_fail("too many copies under way");
    emu_copy &copy = emu_self->copy[emu_self->copies++];
    copy = {emu_aligned(dev_shared + to, 16), emu_self->copy_group, {}};
    if (bytes) memcpy(copy.data, emu_aligned((const char *)from, 16), (size_t)bytes);
    memset(copy.to, 0xFF, 16); /* no number until it is awaited */
}
DEV_FN uint4 sm90_load_shared_vector(uint32_t at) {
    uint4 x;
    memcpy(&x, emu_aligned(dev_shared + at, 16), 16);
    return x;
}
DEV_FN void sm90_store_shared_vector(uint32_t at, uint4 x) { memcpy(emu_aligned(dev_shared + at, 16), &x, 16); }
DEV_FN void sm90_store_shared_four(uint32_t to, const float *x) { memcpy(emu_aligned(dev_shared + to, 16), x, 16); }
DEV_FN uint2 sm90_load_shared_words(uint32_t at) {
    uint2 x;
    memcpy(&x, emu_aligned(dev_shared + at, 8), 8);
    return x;
}
DEV_FN uint32_t sm90_load_shared_word(uint32_t at) {
    uint32_t x;
    memcpy(&x, emu_aligned(dev_shared + at, 4), 4);
    return x;
}
DEV_FN void sm90_store_shared_word(uint32_t at, uint32_t x) { memcpy(emu_aligned(dev_shared + at, 4), &x, 4); }

DEV_FN void sm90_fence_gpu() {}
DEV_FN void sm90_store_relaxed(uint32_t *to, uint32_t x) { *to = x; }
DEV_FN uint32_t sm90_load_relaxed(const uint32_t *from) { return *from; }
DEV_FN void sm90_global_max(uint32_t *to, uint32_t x) { *to = max(*to, x); }
DEV_FN uint32_t sm90_multiprocessors() { return 16; } /* more than there are: some work tiles are long then */
DEV_FN void sm90_add_four(float *to, const float *x) {
    emu_aligned(to, 16);
    for (int i = 0; i < 4; ++i) dev_add(to + i, x[i]);
}
DEV_FN void sm90_add_four_if(bool live, float *to, const float *x) {
    if (live) sm90_add_four(to, x);
}
DEV_FN void sm90_prefetch(const void *) {}
DEV_FN void sm90_add_two_if(bool live, float *to, const float *x) {
    if (live)
        DEV_UNROLL_FOR (int i = 0; i < 2; ++i) dev_add(to + i, x[i]);
}
DEV_FN void sm90_store_four(float *to, const float *x) { memcpy(emu_aligned(to, 16), x, 16); }
DEV_FN void sm90_add_exact(float *to, float x) { dev_add_exact(to, x); }
DEV_FN void sm90_zero_vector_if(bool live, uint32_t to) {
    if (live) memset(emu_aligned(dev_shared + to, 16), 0, 16);
}

/* bar.sync and products take all lanes of a warp together. */
template <int THREADS = 256> DEV_FN void sm90_cta_sync(emu_place at = emu_place::here()) {
    dev_wave_sync(at);
    emu_named_barrier(1, THREADS);
}
DEV_FN void sm90_warpgroup_sync(int group, emu_place at = emu_place::here()) {
    dev_wave_sync(at);
    emu_named_barrier(2 + group, 128);
}
template <int COUNT> DEV_FN void sm90_give_registers() {}
template <int COUNT> DEV_FN void sm90_take_registers() {}

DEV_FN float sm90_reciprocal(float x) { return emu_flushed(1.0f / emu_flushed(x)); }

DEV_FN void sm90_mma_fence() {}
DEV_FN void sm90_mma_commit(emu_place at = emu_place::here()) {
    dev_wave_sync(at);
    emu_wgmma_commit();
}
template <int LEFT> DEV_FN void sm90_mma_wait(emu_place at = emu_place::here()) {
    dev_wave_sync(at);
    emu_wgmma_wait(LEFT);
}
template <int N> DEV_FN void sm90_pin(float (&x)[N]) {}
DEV_FN void sm90_hold(const void *) {}

template <class T> struct sm90_mma {
    template <int ROWS_B, int ROWS_A = 0, int COUNT>
    DEV_FN void ss(float (&x)[COUNT], uint64_t a, uint64_t b, bool adds) {
        emu_wgmma_begin({x, a, b, {}, COUNT, 0, dev_is_f16<T>::yes, adds, ROWS_A, ROWS_B, false});
    }
    /* A's rows lie in the registers of four lanes. */
    template <int COUNT> DEV_FN void rs(float (&x)[COUNT], const uint32_t *w, uint64_t b) {
        emu_wgmma p = {x, 0, b, {}, COUNT, 0, dev_is_f16<T>::yes, true, false, true, true};
        memcpy(p.w[dev_lane() % 4], w, 16);
        emu_meet(&p, emu_place::here(), [](void *const *lanes) {
            for (int lane = 0; lane < EMU_LANES; ++lane)
                for (int i = 0; i < 4; ++i)
                    memcpy(((emu_wgmma *)lanes[lane])->w[i], ((emu_wgmma *)lanes[lane / 4 * 4 + i])->w[i], 16);
        });
        emu_wgmma_begin(p);
    }
};

#endif
