/* SPDX-License-Identifier: MIT
 *
 * backends/cuda/jagged_leaf.h for the emulator. */
#ifndef STW_TESTS_SM80_EMU_JAGGED_LEAF_H
#define STW_TESTS_SM80_EMU_JAGGED_LEAF_H

DEV_FN float dev_reciprocal_fast(float x) { return emu_flushed(1.0f / emu_flushed(x)); }

#endif
