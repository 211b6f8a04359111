/* SPDX-License-Identifier: MIT
 *
 * What CDNA's own main loop (attn_bwd_cdna.h) and row kernels (attn_bwd_cdna_rows.h) need beyond the device
 * vocabulary: accesses to LDS by width, buffers that bound every access, matrix operands made of pairs of f32, the
 * means to hold the compiler to the order of instructions that is written, and products with work between them.
 * Included by them alone. */
#ifndef STW_HIP_CDNA_H
#define STW_HIP_CDNA_H

#include "common/device/device.h"

typedef unsigned short leaf_us2 __attribute__((ext_vector_type(2)));
typedef float leaf_f2 __attribute__((ext_vector_type(2)));
typedef DEV_SHARED unsigned char cdna_lds;
typedef __amdgpu_buffer_rsrc_t cdna_buffer;
typedef const __attribute__((address_space(4))) stw_attn_launch *cdna_launch;
typedef const __attribute__((address_space(4))) stw_tensor_param cdna_tensor;

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
/* Waits for all loads and additions. */
DEV_FN void cdna_wait_memory() { __builtin_amdgcn_s_waitcnt(0x0f70); }
/* The same value, of which the compiler knows nothing: in a vector register, in scalar ones. */
template <class X> DEV_FN X cdna_opaque(X x) {
    asm volatile("" : "+v"(x));
    return x;
}
template <class X> DEV_FN X cdna_opaque_scalar(X x) {
    asm volatile("" : "+s"(x));
    return x;
}
/* The lane's number, made anew: no register holds it, or what is made of it, between two uses. */
DEV_FN int cdna_lane_anew() {
    const uint32_t all = cdna_opaque(~0u);
    return (int)__builtin_amdgcn_mbcnt_hi(all, __builtin_amdgcn_mbcnt_lo(all, 0));
}
/* Holds an accumulator where it is (ACC: in the AGPRs) up to this point: the compiler would copy it out, and wait for
 * it, where it is made. */
template <bool ACC> DEV_FN void cdna_keep(leaf_f4 &x) {
    if constexpr (ACC) asm volatile("" : "+a"(x));
    else asm volatile("" : "+v"(x));
}
/* 11 wait states, which gfx90a needs between the last f32 product of a chain and a vector instruction that reads its
 * sums. clang 19 counts them along one path alone where several meet (docs/conformance/gfx9.md). */
DEV_FN void cdna_settle() {
    if (LEAF_FLUSHES) asm volatile("s_nop 7\n\ts_nop 2");
}
#if LEAF_K32
/* 8 wait states, which gfx950 needs between products and a reader of their sums: clang 22 counts 7 where branches meet
 * between them. */
DEV_FN void cdna_settle_sums() { asm volatile("s_nop 7"); }
#endif
/* What the first reader of scores lacks of the wait states after a product (leaf_mma_16_here). */
template <bool HERE> DEV_FN void cdna_settle_scores() {
    if constexpr (HERE) asm volatile("s_nop %0" ::"n"(LEAF_FLUSHES ? 5 : 1));
}
/* No register of x is used for anything else before this. */
DEV_FN void cdna_hold(const leaf_f4 &x) { asm volatile("" ::"v"(x)); }
/* One wait for both. */
DEV_FN void cdna_arrived(leaf_u4 &x, leaf_u4 &y) { asm volatile("" : "+v"(x), "+v"(y)); }
/* The kernel's argument, read again from here on: it occupies no scalar registers through the loops. */
DEV_FN cdna_launch cdna_launch_again() {
    return cdna_opaque_scalar((cdna_launch)__builtin_amdgcn_kernarg_segment_ptr());
}

/* Branches that the compiler does not see: at one that it does, where nearly all registers hold operands and sums,
 * clang 19 spills some hundred. Accesses to words of global memory are seen by all of the device. */
#if defined(__gfx90a__)
#define CDNA_LOAD_DEVICE  " glc"
#define CDNA_STORE_DEVICE ""
#else
#define CDNA_LOAD_DEVICE  " sc1"
#define CDNA_STORE_DEVICE " sc1"
#endif
/* *to = x, if `stores`. Five wait states must stand between a VALU's write of `to` and the store: the compiler does not
 * see the store. */
DEV_FN void cdna_store_unseen(DEV_GLOBAL uint32_t *to, uint32_t x, bool stores) {
    asm volatile("s_nop 2\n\t"
                 "s_cmp_eq_u32 %0, 0\n\t"
                 "s_cbranch_scc1 .Lstored%=\n\t"
                 "global_store_dword %1, %2, %3" CDNA_STORE_DEVICE "\n"
                 ".Lstored%=:" ::"s"(dev_uniform((int)stores)),
                 "v"(0), "v"(x), "s"(to)
                 : "scc", "memory");
}
/* Waits until *from is x, or the launch's *unordered is not 0. `seen` is an earlier value of *from. Wait states: as in
 * cdna_store_unseen. */
DEV_FN void cdna_wait_unseen(DEV_GLOBAL uint32_t *from, uint32_t seen, uint32_t x) {
    uint64_t flag;
    uint32_t now;
    asm volatile("s_nop 1\n\t"
                 "s_cmp_eq_u32 %[seen], %[x]\n\t"
                 "s_cbranch_scc1 .Lturn%=\n"
                 ".Lwait%=:\n\t"
                 "s_load_dwordx2 %[flag], %[launch], %[unordered]\n\t"
                 "global_load_dword %[now], %[zero], %[from]" CDNA_LOAD_DEVICE "\n\t"
                 "s_waitcnt lgkmcnt(0)\n\t"
                 "s_load_dword %[seen], %[flag], 0x0\n\t"
                 "s_sleep 4\n\t"
                 "s_waitcnt vmcnt(0) lgkmcnt(0)\n\t"
                 "s_cmp_lg_u32 %[seen], 0\n\t"
                 "s_cbranch_scc1 .Lturn%=\n\t"
                 "v_readfirstlane_b32 %[seen], %[now]\n\t"
                 "s_cmp_lg_u32 %[seen], %[x]\n\t"
                 "s_cbranch_scc1 .Lwait%=\n"
                 ".Lturn%=:"
                 : [seen] "+&s"(seen), [now] "=&v"(now), [flag] "=&s"(flag)
                 : [x] "s"(dev_uniform((int)x)), [zero] "v"(0), [from] "s"(from), [launch] "s"(cdna_launch_again()),
                   [unordered] "n"(__builtin_offsetof(stw_attn_launch, unordered))
                 : "scc", "memory");
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
/* Columns of a row that may be read: whole vectors of 16 bytes, with zeros behind the last (STW_FEAT_PADDED). */
template <class T> DEV_FN int cdna_cols(uint32_t dim) {
    enum { VECTOR = 16 / sizeof(T) };
    return (int)((dim + (VECTOR - 1)) / VECTOR * VECTOR);
}
/* First element of a row, in elements from the tensor's. Numbers of 32 bits take half the multiplications. */
template <class Tensor> DEV_FN int64_t cdna_row(const Tensor &t, uint32_t b, uint32_t h, int64_t row) {
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
    DEV_METHOD void add(uint32_t word) {
        leaf_us2 y;
        asm("v_pk_mad_u16 %0, %1, 2, -1 op_sel_hi:[1,0,0]" : "=v"(y) : "v"(word));
        x = __builtin_elementwise_min(x, y);
    }
    /* Over the lanes. */
    DEV_METHOD bool flushed() const {
        const unsigned short end = 2 * ATTN_FLUSHED - 1;
        return __builtin_amdgcn_ballot_w64(x.x < end || x.y < end) != 0;
    }
};

/* The largest size among many f16, by halves of the words. */
struct cdna_most {
    leaf_us2 x;
    DEV_METHOD void add(uint32_t word) {
        x = __builtin_elementwise_max(x, __builtin_bit_cast(leaf_us2, word & 0x7fff7fffu));
    }
    /* Over the lanes: 2^6 or more, or no number (attn_bwd_subnormal.h). */
    DEV_METHOD bool large() const {
        return __builtin_amdgcn_ballot_w64(x.x >= ATTN_LIFT_END || x.y >= ATTN_LIFT_END) != 0;
    }
};

/* f16 below 2^6 times 2^10: exact, and no result is subnormal (attn_bwd_cdna_lift.h). */
DEV_FN leaf_u2 cdna_lift(leaf_u2 x) {
    const leaf_h2 by = {(_Float16)1024.0f, (_Float16)1024.0f};
    DEV_UNROLL_FOR (int e = 0; e < 2; ++e) {
        const uint32_t word = x[e];
        x[e] = __builtin_bit_cast(uint32_t, __builtin_bit_cast(leaf_h2, word) * by);
    }
    return x;
}

/* P and dS as operands, and results. bf16: to nearest, ties away from zero, which gfx942 adds to both numbers in one
 * instruction (NaNs with low bits would overflow: none come, see dev_usual_nan). */
#define CDNA_HALVES UINT64_C(0x0000800000008000)
#if LEAF_K32 /* gfx950: to nearest even, where two numbers are joined */
DEV_FN leaf_f2 cdna_rounded(dev_bf16, leaf_f2 x, uint64_t = 0) { return x; }
#elif defined(__gfx90a__)
DEV_FN leaf_f2 cdna_rounded(dev_bf16, leaf_f2 x, uint64_t = CDNA_HALVES) {
    return __builtin_bit_cast(leaf_f2, __builtin_bit_cast(leaf_u2, x) + 0x8000u);
}
#else
DEV_FN leaf_f2 cdna_rounded(dev_bf16, leaf_f2 x, uint64_t halves = CDNA_HALVES) {
    return __builtin_bit_cast(leaf_f2, __builtin_bit_cast(uint64_t, x) + halves);
}
#endif
DEV_FN leaf_f2 cdna_rounded(dev_f16, leaf_f2 x, uint64_t = 0) { return x; }
/* Two numbers, each from a pair that is rounded. */
DEV_FN uint32_t cdna_joined(dev_bf16, float x, float y) {
#if LEAF_K32
    return dev_pack_bf16(x, y);
#else
    return cdna_highs(__builtin_bit_cast(uint32_t, x), __builtin_bit_cast(uint32_t, y));
#endif
}
DEV_FN uint32_t cdna_joined(dev_f16, float x, float y) { return dev_pack_f16(x, y); }
template <class T> DEV_FN uint32_t cdna_operand(T, leaf_f2 x, uint64_t halves = CDNA_HALVES) {
    x = cdna_rounded(T(), x, halves);
    return cdna_joined(T(), x.x, x.y);
}
DEV_FN leaf_f2 cdna_pair(dev_bf16, uint32_t x) {
    return leaf_f2{__builtin_bit_cast(float, x << 16), __builtin_bit_cast(float, x & 0xffff0000u)};
}
DEV_FN leaf_f2 cdna_pair(dev_f16, uint32_t x) {
    return leaf_f2{dev_from_f16((uint16_t)x), dev_from_f16((uint16_t)(x >> 16))};
}

/* A number that the front end knows. */
template <int N> struct cdna_number {
    DEV_METHOD constexpr operator int() const { return N; }
};

/* ---- Products. C: shapes; EXACT: no subnormal operand is taken for zero, slowly. ---- */

/* a b + c of one instruction's shape, 16 x 16 x 16. */
template <bool EXACT, class T> DEV_FN leaf_f4 cdna_mma(T, leaf_u2 a, leaf_u2 b, leaf_f4 c) {
    if constexpr (EXACT) {
        c = leaf_mma_16_unflushed(T(), a, b, c);
        CDNA_FENCE();
        return c;
    } else return leaf_mma_16(T(), a, b, c);
}

#if LEAF_K32
DEV_FN leaf_u4 cdna_whole(leaf_u2 low, leaf_u2 high) { return leaf_u4{low.x, low.y, high.x, high.y}; }
#endif

/* What runs beside products: nothing; a piece of work after each of them, in this order and no other; a piece after
 * those of each fragment, among which the compiler may mix it. LATE: work after the first product of a row of them
 * comes after the second. HELD: else clang 19 might make the products after all of the work (all sums but those of
 * scores are in the AGPRs). */
struct cdna_nothing {
    enum { ORDERED = 0, LATE = 0, HELD = 0 };
    DEV_METHOD void step(int) {}
};
template <bool ORDERED_, bool LATE_, bool HELD_, class Work> struct cdna_overlap {
    enum { ORDERED = ORDERED_, LATE = LATE_, HELD = HELD_ };
    Work work;
    DEV_METHOD void step(int i) { work(i); }
};
template <bool LATE = false, bool HELD = false, class Work>
DEV_FN cdna_overlap<true, LATE, HELD, Work> cdna_behind_product(Work work) {
    return {work};
}
template <class Work> DEV_FN cdna_overlap<false, false, false, Work> cdna_behind_fragment(Work work) { return {work}; }

/* Fragments of 16 bytes a lane on their way from LDS to products: AHEAD are multiplied while the next so many are read.
 * Source: read(lds, k) of COUNT fragments, and of LATE more that are read at once after the last, for later. */
template <class Source> struct cdna_stream {
    enum { COUNT = Source::COUNT, LATE = Source::LATE, AHEAD = Source::AHEAD, RING = 2 * AHEAD };
    leaf_u4 ring[RING], late[LATE ? (int)LATE : 1];

    template <class Places> DEV_METHOD explicit cdna_stream(const Places &lds) {
        DEV_UNROLL_FOR (int i = 0; i < AHEAD; ++i) ring[i] = Source::read(lds, i);
        CDNA_FENCE();
    }
    /* Fragment k is wanted now. */
    template <class Places> DEV_METHOD void want(const Places &lds, int k) {
        if (k % AHEAD) return;
        if (k + AHEAD < COUNT)
            DEV_UNROLL_FOR (int i = k + AHEAD; i < k + RING; ++i) ring[i % RING] = Source::read(lds, i);
        CDNA_FENCE();
        DEV_UNROLL_FOR (int i = k + AHEAD - 2; i >= k; i -= 2) /* the last come last: one wait */
            cdna_arrived(ring[i % RING], ring[(i + 1) % RING]);
        if (k + 2 >= COUNT)
            DEV_UNROLL_FOR (int i = 0; i < LATE; ++i) late[i] = Source::read(lds, k + 2 + i);
    }
};

/* 16 bytes a lane, which feed two products; of gfx950 also one. */
struct cdna_fragment {
    leaf_u2 high, low;
    DEV_METHOD leaf_u2 half(int h) const { return h ? high : low; }
#if LEAF_K32
    DEV_METHOD leaf_u4 whole() const { return cdna_whole(low, high); }
#endif
};
struct cdna_arrived_fragment {
    const leaf_u4 &x;
    DEV_METHOD leaf_u2 half(int h) const { return h ? x.zw : x.xy; }
#if LEAF_K32
    DEV_METHOD leaf_u4 whole() const { return x; }
#endif
};

/* An operand: fragments `first` and following of a stream, or registers that have arrived. */
template <class Stream, class Places> struct cdna_streamed {
    Stream &stream;
    const Places &lds; /* not held by the stream, whose array keeps it in memory: clang would optimize less */
    int first;
    DEV_METHOD void want(int j) const {
        stream.want(lds, first + j);
        CDNA_FENCE();
    }
    DEV_METHOD cdna_fragment at(int j) const {
        const leaf_u4 &x = stream.ring[(first + j) % Stream::RING];
        return {x.zw, x.xy};
    }
};
struct cdna_arrived_operand {
    const leaf_u4 *fragments;
    DEV_METHOD void want(int) const {}
    DEV_METHOD cdna_arrived_fragment at(int j) const { return {fragments[j]}; }
};

/* Of so many pieces of work, those after product i of PRODUCTS. */
template <int WORK, int PRODUCTS, bool LATE = false, class Overlap> DEV_FN void cdna_share(Overlap &overlap, int i) {
    const int first = LATE && i == 1 ? 0 : (WORK * i + PRODUCTS - 1) / PRODUCTS;
    const int end = LATE && i == 0 ? 0 : (WORK * (i + 1) + PRODUCTS - 1) / PRODUCTS;
    DEV_UNROLL_FOR (int e = 0; e < (1 + LATE) * ((WORK + PRODUCTS - 1) / PRODUCTS); ++e)
        if (first + e < end) overlap.step(first + e);
}

/* acc[i] = A B[i]^T + start (none: 0), i: tiles of 16 keys. A: 16 queries x HD; B: registers. */
template <bool EXACT, class C, bool HERE = !EXACT && C::SCORES_HERE, int PIECES, class Operand, class Overlap,
          class... Start>
DEV_FN void mma_ABt(leaf_f4 (&acc)[C::TILES], const Operand &a, const leaf_u2 (&b)[C::TILES][PIECES][2],
                    Overlap overlap, const Start &...start) {
#if LEAF_K32
    typedef typename C::T T;
    static_assert(!HERE && !EXACT, "products of 32 have their sums where the compiler puts them");
    DEV_UNROLL_FOR (int j = 0; j < PIECES; ++j) {
        a.want(j);
        const auto x = a.at(j);
        DEV_UNROLL_FOR (int i = 0; i < C::TILES; ++i) {
            if (!j) acc[i] = leaf_f4{start...};
            acc[i] = leaf_mma_32(T(), x.whole(), cdna_whole(b[i][j][0], b[i][j][1]), acc[i]);
            if constexpr (Overlap::HELD) cdna_keep<true>(acc[i]);
            if constexpr (Overlap::ORDERED) {
                CDNA_FENCE();
                cdna_share<8 * C::TILES, C::TILES * PIECES, Overlap::LATE>(overlap, C::TILES * j + i);
                CDNA_FENCE();
            }
        }
        if constexpr (!Overlap::ORDERED) {
            overlap.step(j);
            CDNA_FENCE();
        }
    }
#else
    enum { PRODUCTS = 2 * C::TILES * PIECES };
    typedef typename C::T T;
    DEV_UNROLL_FOR (int j = 0; j < PIECES; ++j) {
        a.want(j);
        const auto x = a.at(j);
        DEV_UNROLL_FOR (int h = 0; h < 2; ++h) {
            DEV_UNROLL_FOR (int i = 0; i < C::TILES; ++i) {
                if constexpr (HERE) {
                    if (j + h) leaf_mma_16_here(T(), acc[i], x.half(h), b[i][j][h]);
                    else leaf_mma_16_here_first(T(), acc[i], x.half(h), b[i][j][h], start...);
                } else {
                    if (!(j + h)) acc[i] = leaf_f4{start...};
                    acc[i] = cdna_mma<EXACT>(T(), x.half(h), b[i][j][h], acc[i]);
                }
                if constexpr (Overlap::HELD) cdna_keep<!HERE>(acc[i]);
                if constexpr (Overlap::ORDERED) {
                    CDNA_FENCE();
                    cdna_share<8 * C::TILES, PRODUCTS, Overlap::LATE>(overlap, C::TILES * (2 * j + h) + i);
                    CDNA_FENCE();
                }
            }
        }
        if constexpr (HERE) /* no vector instruction writes there while products may read it */
            if (j == (C::TILES > 1 ? 1 : 3)) (cdna_hold(start), ...);
        if constexpr (!Overlap::ORDERED) {
            overlap.step(j);
            CDNA_FENCE();
        }
    }
#endif
}

/* acc[i] += A[i]^T B, i: tiles of 16 keys. A: 16 queries, registers; B: 16 queries x HD. */
template <bool EXACT, class C, int COLUMNS, class Operand, class Overlap>
DEV_FN void mma_AtB(leaf_f4 (&acc)[C::TILES][COLUMNS], const leaf_u2 (&a)[C::TILES], const Operand &b,
                    Overlap overlap) {
    enum { PRODUCTS = C::TILES * COLUMNS };
    DEV_UNROLL_FOR (int j = 0; j < COLUMNS / 2; ++j) {
        b.want(j);
        const auto x = b.at(j);
        DEV_UNROLL_FOR (int h = 0; h < 2; ++h) {
            DEV_UNROLL_FOR (int i = 0; i < C::TILES; ++i) {
                leaf_f4 &to = acc[i][2 * j + h];
                to = cdna_mma<EXACT>(typename C::T(), a[i], x.half(h), to);
                if constexpr (Overlap::HELD) cdna_keep<true>(to);
                if constexpr (Overlap::ORDERED) {
                    CDNA_FENCE();
                    cdna_share<8 * C::TILES, PRODUCTS, false>(overlap, C::TILES * (2 * j + h) + i);
                    CDNA_FENCE();
                }
            }
        }
        if constexpr (!Overlap::ORDERED) {
            overlap.step(j);
            CDNA_FENCE();
        }
    }
}

/* acc[half][c] = A[half] B[c], c: the wave's 16-column tiles. A: HALVES times 16 queries, all keys; B: registers.
 * `more` runs after each product, too. */
template <bool EXACT, class C, int HALVES, int FRAGMENTS, class Operand, class Overlap, class More>
DEV_FN void mma_AB(leaf_f4 (&acc)[HALVES][C::COLUMNS], const Operand &a, const leaf_u2 (&b)[FRAGMENTS][2][C::COLUMNS],
                   Overlap overlap, More more) {
    DEV_UNROLL_FOR (int k = 0; k < HALVES * FRAGMENTS; ++k) {
        const int half = k / FRAGMENTS, p = k % FRAGMENTS;
        a.want(k);
        const auto x = a.at(k);
#if LEAF_K32
        DEV_UNROLL_FOR (int c = 0; c < C::COLUMNS; ++c) {
            leaf_f4 &to = acc[half][c];
            to = leaf_mma_32(typename C::T(), x.whole(), cdna_whole(b[p][0][c], b[p][1][c]),
                             p ? to : leaf_f4{0, 0, 0, 0});
            if constexpr (More::ORDERED) {
                CDNA_FENCE();
                DEV_UNROLL_FOR (int h = 0; h < 2; ++h) more.step(2 * (k * C::COLUMNS + c) + h);
                CDNA_FENCE();
            }
        }
#else
        DEV_UNROLL_FOR (int h = 0; h < 2; ++h) {
            DEV_UNROLL_FOR (int c = 0; c < C::COLUMNS; ++c) {
                leaf_f4 &to = acc[half][c];
                to = cdna_mma<EXACT>(typename C::T(), x.half(h), b[p][h][c], p + h ? to : leaf_f4{0, 0, 0, 0});
                if constexpr (More::ORDERED) {
                    CDNA_FENCE();
                    more.step((2 * k + h) * C::COLUMNS + c);
                    CDNA_FENCE();
                }
            }
        }
#endif
        CDNA_FENCE();
        overlap.step(k);
    }
}

#endif
