/* SPDX-License-Identifier: MIT
 *
 * What CDNA's own main loop (attn_bwd_cdna.h) does for deterministic mode, ALiBi and softcap, each in kernels of its
 * own. C: attn_cdna, the shapes, with the mode. Lane l is (n, g) = (l % 16, l / 16). */
#ifndef STW_HIP_ATTN_BWD_CDNA_FEATURES_H
#define STW_HIP_ATTN_BWD_CDNA_FEATURES_H

#include "attn_bwd_cdna_loads.h"

/* What a kernel knows besides masks; CDNA_PLAIN ones have no code of the others. */
enum { CDNA_PLAIN, CDNA_ORDERED, CDNA_ALIBI, CDNA_SOFTCAP };

/* ---- deterministic mode ---- */

/* Key blocks add to a query block in descending order (STW_KEYS_DESCEND), so that under a causal mask nobody waits at
 * the diagonal; a semaphore of the query block holds the one that added last. Additions are made where every XCD sees
 * them (device scope), and so are the accesses to semaphores: once all waves have their additions acknowledged, one
 * wave may pass the turn on, and no cache is written back. The acknowledgement is awaited in the next step behind most
 * of its products. Other modes: nothing. */
template <class C, bool ORDERED = C::MODE == CDNA_ORDERED> struct attn_cdna_turn {
    DEV_METHOD void enter_work_tile(const attn_work_tile &, int) {}
    DEV_METHOD void enter_head(uint32_t *) {}
    DEV_METHOD void acknowledge() const {}
    DEV_METHOD void pass_on() const {}
    DEV_METHOD void look() {}
    DEV_METHOD void wait() const {}
    DEV_METHOD void next() {}
    DEV_METHOD void leave_head() const {}
};
template <class C> struct attn_cdna_turn<C, true> {
    typedef DEV_GLOBAL uint32_t semaphore;
    semaphore *at; /* of this step's query block */
    uint32_t mine, seen;
    bool keeps, due; /* wave 0 has the semaphores; it is to pass on the turn of the step before */

    DEV_METHOD void enter_work_tile(const attn_work_tile &u, int wave) {
        mine = (uint32_t)dev_uniform(u.block);
        keeps = wave == 0;
    }
    DEV_METHOD void enter_head(uint32_t *first) {
        at = cdna_opaque_scalar((semaphore *)first);
        due = false;
    }
    /* All additions of this wave have been made. */
    DEV_METHOD void acknowledge() const {
        cdna_wait_memory();
        asm volatile("" ::: "memory");
    }
    /* Behind a barrier behind that: all of the workgroup. */
    DEV_METHOD void pass_on() const {
        if (due) __hip_atomic_store(at - 1, mine, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
    }
    DEV_METHOD void look() { seen = __hip_atomic_load(at, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT); }
    /* Until it is this key block's turn. With wrong cu_seqlens there may be no order: status_out tells. */
    DEV_METHOD void wait() const {
        uint32_t last = (uint32_t)dev_uniform((int)seen);
        if (__builtin_expect(last != mine + 1, 0)) do {
                if (*cdna_launch_again()->unordered) break;
                __builtin_amdgcn_s_sleep(4);
                last = (uint32_t)dev_uniform((int)__hip_atomic_load(at, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT));
            } while (last != mine + 1);
        asm volatile("" ::: "memory");
    }
    DEV_METHOD void next() {
        due = keeps;
        ++at;
    }
    /* Behind the last step of a head. */
    DEV_METHOD void leave_head() const {
        acknowledge();
        cdna_barrier();
        pass_on();
    }
};

/* ---- features of single pairs ---- */

/* A number that all lanes share, in a scalar register where vector registers are few. */
template <class C> DEV_FN float cdna_shared(float x) {
    if constexpr (C::IN_AGPRS) return x;
    else return __builtin_bit_cast(float, dev_uniform(__builtin_bit_cast(int, x)));
}

/* What a feature knows of the problem: set() of a work tile, then lift() where Q and K are multiplied by powers of two,
 * enter_head() of a query head. */
template <class C, int MODE = C::MODE> struct attn_cdna_feature {
    DEV_METHOD void set(const attn_work_tile &, cdna_launch, int) {}
    DEV_METHOD void lift() {}
    DEV_METHOD void enter_head(const attn_work_tile &, cdna_launch, int) {}
};

/* ALiBi subtracts |key - query| slope log2(e) from the exponent. */
template <class C> struct attn_cdna_feature<C, CDNA_ALIBI> {
    int corner; /* less the lane's distance in the mask: its key of tile 0 less its first row of block 0 */
    float slope, two, sixteen; /* times log2(e); of so many keys */

    DEV_METHOD void set(const attn_work_tile &u, cdna_launch, int high) {
        corner = (int)(dev_uniform(u.j0) - dev_uniform(u.seq.band.shift)) + high;
    }
    DEV_METHOD void lift() {}
    DEV_METHOD void enter_head(const attn_work_tile &u, cdna_launch l, int h) {
        const float of_head = l->p.alibi_slopes[dev_uniform(u.b) * l->p.alibi_stride_batch + h] * DEV_LOG2E;
        slope = cdna_shared<C>(of_head), two = cdna_shared<C>(2.0f * of_head),
        sixteen = cdna_shared<C>(16.0f * of_head);
    }
};

/* What ALiBi subtracts, less its sign, of 16 queries and the wave's keys. */
template <class C, int MODE = C::MODE> struct attn_cdna_distances {
    DEV_METHOD void enter(const attn_cdna_feature<C> &, int, int, int) {}
};
template <class C> struct attn_cdna_distances<C, CDNA_ALIBI> {
    leaf_f2 of_tile_0[2]; /* queries 2 k and 2 k + 1 */

    /* `distance`: the lane's in the mask (attn_cdna_scoring). */
    DEV_METHOD void enter(const attn_cdna_feature<C> &alibi, int distance, int block, int half) {
        const float x = (float)(alibi.corner - (block * C::BM + 16 * half) - distance) * alibi.slope;
        of_tile_0[0] = leaf_f2{x, x - alibi.slope};
        of_tile_0[1] = of_tile_0[0] - alibi.two;
    }
    DEV_METHOD leaf_f2 subtract_from(leaf_f2 exponents, const attn_cdna_feature<C> &alibi, int k, int i) const {
        leaf_f2 x = of_tile_0[k];
        DEV_UNROLL_FOR (int tile = 0; tile < i; ++tile) x += alibi.sixteen;
        return leaf_f2{exponents.x - __builtin_fabsf(x.x), exponents.y - __builtin_fabsf(x.y)};
    }
};

/* Softcap: P = exp(cap tanh(x) - LSE) with x = scale S / cap, dS = P (1 - tanh(x)^2) (dP - delta). With u =
 * 2 / (1 + e^(2 x)) the tangent is 1 - u, and the derivative u (1 + tangent): it keeps its digits where u is small. */
template <class C> struct attn_cdna_feature<C, CDNA_SOFTCAP> {
    float doubled, cap; /* S to 2 x, tanh to a score, both times log2(e) */

    DEV_METHOD void set(const attn_work_tile &, cdna_launch l, int) {
        doubled = cdna_shared<C>(l->p.scale / l->p.softcap * (2.0f * DEV_LOG2E));
        cap = cdna_shared<C>(l->p.softcap * DEV_LOG2E);
    }
    /* S has the factors of Q and K (attn_bwd_cdna_lift.h). */
    DEV_METHOD void lift() { doubled = cdna_shared<C>(doubled * 0x1p-20f); }
    DEV_METHOD void enter_head(const attn_work_tile &, cdna_launch, int) {}
};

#endif
