/* SPDX-License-Identifier: MIT
 *
 * Modes of CDNA's own 16-bit main loop: what a kernel knows besides causal masks and windows (`bias`: dropout, ALiBi
 * and masks in memory, too), and the head dims for which there is one, with one or two waves a SIMD. All but gfx950's
 * have kernels `plain` and `ordered` (deterministic mode) besides, and `every`, of one wave: a softcap with anything,
 * and dBias that is added to what is there. gfx950 (loop `cdna_few`) has `plain`, `ordered`, `bias` and `every` alone.
 * A kernel of one wave also has registers for the turns of deterministic mode and takes them where a call asks for it,
 * except gfx90a's `every`, which has `every_ordered` beside it; `hidden_ordered` always. Where the matrix unit takes
 * subnormal operands for zero (gfx90a), a kernel that never takes turns has one after it, NAME_exact, for the work
 * tiles that it leaves alone; not f16's `every`.
 *
 * attn_bwd_cdna.hip makes the kernels, attn_cdna.c looks here for the one of a problem. The second column is the
 * device's name (attn_bwd_cdna_features.h). */
#ifndef STW_HIP_ATTN_CDNA_MODES_H
#define STW_HIP_ATTN_CDNA_MODES_H

/* clang-format off */
#define STW_CDNA_MODES(MODE, ...)                                                                                      \
    /*                                          head dim  32    64    96    128   192   256               */          \
    MODE(alibi,          CDNA_ALIBI,          /*       */ two,  two,  one,  one,  none, none, __VA_ARGS__)             \
    MODE(softcap,        CDNA_SOFTCAP,        /*       */ two,  two,  one,  one,  none, none, __VA_ARGS__)             \
    MODE(dropout,        CDNA_DROPOUT,        /*       */ one,  one,  one,  one,  one,  one,  __VA_ARGS__)             \
    MODE(bias,           CDNA_BIAS,           /*       */ one,  one,  one,  one,  one,  one,  __VA_ARGS__)             \
    MODE(bytes,          CDNA_BYTES,          /*       */ none, one,  none, one,  none, none, __VA_ARGS__)             \
    MODE(hidden,         CDNA_HIDDEN,         /*       */ two,  two,  one,  one,  one,  one,  __VA_ARGS__)             \
    MODE(hidden_ordered, CDNA_HIDDEN_ORDERED, /*       */ one,  one,  none, none, none, none, __VA_ARGS__)
/* clang-format on */

#endif
