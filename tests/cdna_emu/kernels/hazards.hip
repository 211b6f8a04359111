/* SPDX-License-Identifier: MIT
 *
 * A kernel for each row of hazards.def: with `fine` all wait states between its two instructions, without one fewer. */
#include <stdint.h>

#define KERNEL extern "C" __attribute__((global)) __attribute__((amdgpu_flat_work_group_size(1, 256))) void
#define ONES                                                                                                           \
    ".irp r,40,41,42,43,44,45,48,49,50,51,52,53,54,55,56,57,58,59,60,61,62,63,64,65,66,67,68,69,70,71\n\t"             \
    "v_mov_b32 v\\r, 1\n\t.endr\n\t"
#define START ONES "s_mov_b64 s[42:43], %1\n\tv_mov_b32 v46, s42\n\tv_mov_b32 v47, 0\n\ts_nop 7\n\t"
#define END   "\n\ts_waitcnt vmcnt(0) lgkmcnt(0)\n\ts_nop 15\n\ts_nop 15"
#define CHANGED                                                                                                        \
    "memory", "vcc", "a0", "s42", "s43", "s44", "s45", "v40", "v41", "v42", "v43", "v44", "v45", "v46", "v47", "v48",  \
        "v49", "v50", "v51", "v52", "v53", "v54", "v55", "v56", "v57", "v58", "v59", "v60", "v61", "v62", "v63",       \
        "v64", "v65", "v66", "v67", "v68", "v69", "v70", "v71"
#define TEXT(x) #x
#define PAIR(first, states, fewer, second)                                                                             \
    asm volatile(START first "\n\t.if " TEXT(states) " > " TEXT(fewer) "\n\t.rept " TEXT(states) " - " TEXT(           \
                     fewer) "\n\ts_nop 0\n\t.endr\n\t.endif\n\t" second END                                            \
                 :                                                                                                     \
                 : "v"(at), "s"(result)                                                                                \
                 : CHANGED)

#if defined(__gfx90a__)
#define HAZARD(name, gfx90a, gfx942, gfx950, first, second, words) HAZARD_OF(name, gfx90a, first, second)
#elif defined(__gfx950__)
#define HAZARD(name, gfx90a, gfx942, gfx950, first, second, words) HAZARD_OF(name, gfx950, first, second)
#else
#define HAZARD(name, gfx90a, gfx942, gfx950, first, second, words) HAZARD_OF(name, gfx942, first, second)
#endif
#define HAZARD_OF(name, states, first, second)                                                                         \
    KERNEL hazard_##name(uint32_t *result, uint32_t fine) {                                                            \
        __attribute__((shared)) static volatile uint32_t lds[64];                                                      \
        uint32_t *at = result + 4 * __builtin_amdgcn_workitem_id_x();                                                  \
        lds[0] = fine;                                                                                                 \
        if (fine) PAIR(first, states, 0, second);                                                                      \
        else PAIR(first, states, 1, second);                                                                           \
    }
#include "hazards.def"

/* The branch leaves out what would have been enough. */
KERNEL hazard_behind_branch(uint32_t *result) {
    uint32_t *at = result;
    PAIR(MFMA_F16 "\n\ts_branch 3\n\ts_nop 15\n\ts_nop 15\n\ts_nop 15", 0, 0, "v_add_f32 v40, v51, v41");
}

/* Without lanes the store has no data that could be overwritten. */
KERNEL hazard_no_lanes(uint32_t *result) {
    uint32_t *at = result;
    PAIR("s_mov_b64 exec, 0\n\tglobal_store_dwordx4 %0, v[40:43], off\n\ts_cbranch_execz 1\n\ts_nop 15", 0, 0,
         "v_mov_b32 v43, 1\n\ts_mov_b64 exec, -1");
}

/* Nor does a vector instruction write a product's sums before EXEC is set again: then it does, too soon. */
KERNEL hazard_no_lanes_write(uint32_t *result) {
    uint32_t *at = result;
    PAIR("s_mov_b64 exec, 0\n\t" MFMA_F16 "\n\ts_cbranch_execz 1\n\ts_nop 15", 0, 0,
         "v_mov_b32 v51, 1\n\ts_nop 15\n\ts_mov_b64 exec, -1");
}
KERNEL hazard_lanes_again(uint32_t *result) {
    uint32_t *at = result;
    PAIR("s_mov_b64 exec, 0\n\t" MFMA_F16 "\n\ts_cbranch_execz 1\n\ts_nop 15\n\ts_mov_b64 exec, -1", 0, 0,
         "v_mov_b32 v51, 1");
}
KERNEL hazard_no_lanes_lane(uint32_t *result) {
    uint32_t *at = result;
    PAIR("s_mov_b64 exec, 0\n\t" MFMA_F16 "\n\ts_cbranch_execz 1\n\ts_nop 15", 0, 0,
         "v_writelane_b32 v51, 1, 0\n\ts_mov_b64 exec, -1");
}
