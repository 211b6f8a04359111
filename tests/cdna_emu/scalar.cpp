/* SPDX-License-Identifier: MIT
 *
 * Scalar instructions: arithmetic and logic on scalar registers, branches, barriers, constant loads. */
#include "machine.h"

namespace cdna {

/* name, result of a and b, then SCC from a, b and the result r. */
#define SCALAR2(name, expression, condition)                                                                           \
    {#name, [](Wave &w, const Instruction &in) {                                                                       \
         u32 a = scalar32(w, in.op[1]), b = scalar32(w, in.op[2]), r = expression;                                     \
         (void)a, (void)b;                                                                                             \
         set_scalar32(w, in.op[0], r);                                                                                 \
         condition;                                                                                                    \
     }}
#define SCALAR64(name, expression)                                                                                     \
    {#name, [](Wave &w, const Instruction &in) {                                                                       \
         u64 a = scalar64(w, in.op[1]), b = scalar64(w, in.op[2]), r = expression;                                     \
         set_scalar64(w, in.op[0], r);                                                                                 \
         w.scc = r != 0;                                                                                               \
     }}
#define SHIFT64(name, expression)                                                                                      \
    {#name, [](Wave &w, const Instruction &in) {                                                                       \
         u64 a = scalar64(w, in.op[1]), r;                                                                             \
         u32 b = scalar32(w, in.op[2]);                                                                                \
         r = expression;                                                                                               \
         set_scalar64(w, in.op[0], r);                                                                                 \
         w.scc = r != 0;                                                                                               \
     }}
#define SCALAR1(name, expression, condition)                                                                           \
    {#name, [](Wave &w, const Instruction &in) {                                                                       \
         u32 a = scalar32(w, in.op[1]), r = expression;                                                                \
         set_scalar32(w, in.op[0], r);                                                                                 \
         condition;                                                                                                    \
     }}
#define SCALAR1_64(name, expression, condition)                                                                        \
    {#name, [](Wave &w, const Instruction &in) {                                                                       \
         u64 a = scalar64(w, in.op[1]), r = expression;                                                                \
         set_scalar64(w, in.op[0], r);                                                                                 \
         condition;                                                                                                    \
     }}
#define SAVE_EXEC(name, expression)                                                                                    \
    {#name, [](Wave &w, const Instruction &in) {                                                                       \
         u64 a = scalar64(w, in.op[1]), x = w.exec(), r = expression;                                                  \
         set_scalar64(w, in.op[0], x);                                                                                 \
         w.set_exec(r);                                                                                                \
         w.scc = r != 0;                                                                                               \
     }}
#define COMPARE(name, expression)                                                                                      \
    {#name, [](Wave &w, const Instruction &in) {                                                                       \
         u32 a = scalar32(w, in.op[0]), b = scalar32(w, in.op[1]);                                                     \
         w.scc = expression;                                                                                           \
     }}
#define COMPARE_K(name, type, expression)                                                                              \
    {#name, [](Wave &w, const Instruction &in) {                                                                       \
         i32 a = (i32)scalar32(w, in.op[0]);                                                                           \
         type b = (type)(in.op[1].bits32 & 0xffffu);                                                                   \
         w.scc = expression;                                                                                           \
     }}
#define BRANCH(name, condition)                                                                                        \
    {#name, [](Wave &w, const Instruction &in) {                                                                       \
         if (condition) w.pc = in.target;                                                                              \
     }}
#define NOT_ZERO w.scc = r != 0

static u32 bit_field(u32 a, u32 where) {
    u32 from = where & 31, bits = where >> 16 & 0x7f;
    if (!bits) return 0;
    return bits >= 32 ? a >> from : a >> from & ((1u << bits) - 1);
}
static u32 bit_field_signed(u32 a, u32 where) {
    u32 bits = where >> 16 & 0x7f, x = bit_field(a, where);
    if (!bits) return 0;
    return bits >= 32 ? (u32)((i32)a >> (where & 31)) : (u32)((i32)(x << (32 - bits)) >> (32 - bits));
}
static u64 bit_field64(u64 a, u32 where, bool sign) {
    int from = where & 63, bits = where >> 16 & 127;
    if (!bits) return 0;
    if (bits >= 64) return sign ? (u64)((i64)a >> from) : a >> from;
    u64 x = a >> from << (64 - bits);
    return sign ? (u64)((i64)x >> (64 - bits)) : x >> (64 - bits);
}

static void run_load(Wave &w, const Instruction &in) {
    u64 address = scalar64(w, in.op[1]) + (i64)in.offset;
    if (in.count > 2)
        address += in.op[2].place == Place::constant ? (u64)(i64)(i32)in.op[2].bits32 : scalar32(w, in.op[2]);
    address &= ~3ull;
    check_global(w, in, address, in.access.bytes, -1);
    memcpy(&w.s[in.op[0].index], (const void *)address, (size_t)in.access.bytes);
}

static void run_jump(Wave &w, const Instruction &in, u64 to) {
    auto found = w.run->program->at.find((u32)(to - w.run->code_base));
    if (found == w.run->program->at.end()) fault(w, in, "jumps out of the kernel");
    w.pc = found->second;
}

static const Entry arithmetic[] = {
    SCALAR2(s_add_u32, a + b, w.scc = r < a),
    SCALAR2(s_sub_u32, a - b, w.scc = a < b),
    SCALAR2(s_add_i32, a + b, w.scc = (~(a ^ b) & (a ^ r)) >> 31),
    SCALAR2(s_sub_i32, a - b, w.scc = ((a ^ b) & (a ^ r)) >> 31),
    SCALAR2(s_addc_u32, a + b + w.scc, w.scc = ((u64)a + b + w.scc) >> 32 != 0),
    SCALAR2(s_subb_u32, a - b - w.scc, w.scc = (u64)b + w.scc > a),
    SCALAR2(s_min_i32, (i32)a < (i32)b ? a : b, w.scc = (i32)a < (i32)b),
    SCALAR2(s_min_u32, a < b ? a : b, w.scc = a < b),
    SCALAR2(s_max_i32, (i32)a > (i32)b ? a : b, w.scc = (i32)a > (i32)b),
    SCALAR2(s_max_u32, a > b ? a : b, w.scc = a > b),
    SCALAR2(s_cselect_b32, w.scc ? a : b, ),
    SCALAR2(s_and_b32, a & b, NOT_ZERO),
    SCALAR2(s_or_b32, a | b, NOT_ZERO),
    SCALAR2(s_xor_b32, a ^ b, NOT_ZERO),
    SCALAR2(s_andn2_b32, a & ~b, NOT_ZERO),
    SCALAR2(s_orn2_b32, a | ~b, NOT_ZERO),
    SCALAR2(s_lshl_b32, a << (b & 31), NOT_ZERO),
    SCALAR2(s_lshr_b32, a >> (b & 31), NOT_ZERO),
    SCALAR2(s_ashr_i32, (u32)((i32)a >> (b & 31)), NOT_ZERO),
    SCALAR2(s_mul_i32, a * b, ),
    SCALAR2(s_mul_hi_u32, (u32)((u64)a * b >> 32), ),
    SCALAR2(s_mul_hi_i32, (u32)((i64)(i32)a * (i32)b >> 32), ),
    SCALAR2(s_bfm_b32, ((1u << (a & 31)) - 1) << (b & 31), ),
    SCALAR2(s_bfe_u32, bit_field(a, b), NOT_ZERO),
    SCALAR2(s_bfe_i32, bit_field_signed(a, b), NOT_ZERO),
    SCALAR2(s_lshl1_add_u32, (a << 1) + b, w.scc = (((u64)a << 1) + b) >> 32 != 0),
    SCALAR2(s_lshl2_add_u32, (a << 2) + b, w.scc = (((u64)a << 2) + b) >> 32 != 0),
    SCALAR2(s_lshl3_add_u32, (a << 3) + b, w.scc = (((u64)a << 3) + b) >> 32 != 0),
    SCALAR2(s_lshl4_add_u32, (a << 4) + b, w.scc = (((u64)a << 4) + b) >> 32 != 0),
    SCALAR2(s_pack_ll_b32_b16, (a & 0xffffu) | b << 16, ),
    SCALAR2(s_pack_lh_b32_b16, (a & 0xffffu) | (b & 0xffff0000u), ),
    SCALAR2(s_pack_hh_b32_b16, a >> 16 | (b & 0xffff0000u), ),
    SCALAR2(s_absdiff_i32, (i32)a > (i32)b ? a - b : b - a, NOT_ZERO),
    SCALAR64(s_and_b64, a & b),
    SCALAR64(s_or_b64, a | b),
    SCALAR64(s_xor_b64, a ^ b),
    SCALAR64(s_andn2_b64, a & ~b),
    SCALAR64(s_orn2_b64, a | ~b),
    SCALAR64(s_nand_b64, ~(a & b)),
    SCALAR64(s_nor_b64, ~(a | b)),
    SCALAR64(s_xnor_b64, ~(a ^ b)),
    SHIFT64(s_lshl_b64, a << (b & 63)),
    SHIFT64(s_lshr_b64, a >> (b & 63)),
    SHIFT64(s_ashr_i64, (u64)((i64)a >> (b & 63))),
    SHIFT64(s_bfe_u64, bit_field64(a, b, false)),
    SHIFT64(s_bfe_i64, bit_field64(a, b, true)),
    {"s_cselect_b64",
     [](Wave &w, const Instruction &in) { set_scalar64(w, in.op[0], scalar64(w, in.op[w.scc ? 1 : 2])); }},
    SCALAR1(s_mov_b32, a, ),
    SCALAR1(s_not_b32, ~a, NOT_ZERO),
    SCALAR1(s_abs_i32, (i32)a < 0 ? 0 - a : a, NOT_ZERO),
    SCALAR1(s_brev_b32, reversed(a), ),
    SCALAR1(s_bcnt1_i32_b32, (u32)__builtin_popcount(a), NOT_ZERO),
    SCALAR1(s_ff1_i32_b32, a ? (u32)__builtin_ctz(a) : ~0u, ),
    SCALAR1(s_flbit_i32_b32, a ? (u32)__builtin_clz(a) : ~0u, ),
    SCALAR1(s_flbit_i32, leading_signs(a), ),
    SCALAR1(s_sext_i32_i8, (u32)(i32)(int8_t)a, ),
    SCALAR1(s_sext_i32_i16, (u32)(i32)(int16_t)a, ),
    SCALAR1(s_movk_i32, (u32)(i32)(int16_t)a, ),
    SCALAR1_64(s_mov_b64, a, ),
    SCALAR1_64(s_not_b64, ~a, NOT_ZERO),
    {"s_bcnt1_i32_b64",
     [](Wave &w, const Instruction &in) {
         u32 r = (u32)__builtin_popcountll(scalar64(w, in.op[1]));
         set_scalar32(w, in.op[0], r);
         NOT_ZERO;
     }},
    {"s_ff1_i32_b64",
     [](Wave &w, const Instruction &in) {
         u64 a = scalar64(w, in.op[1]);
         set_scalar32(w, in.op[0], a ? (u32)__builtin_ctzll(a) : ~0u);
     }},
    {"s_flbit_i32_b64",
     [](Wave &w, const Instruction &in) {
         u64 a = scalar64(w, in.op[1]);
         set_scalar32(w, in.op[0], a ? (u32)__builtin_clzll(a) : ~0u);
     }},
    {"s_cmov_b32",
     [](Wave &w, const Instruction &in) {
         if (w.scc) set_scalar32(w, in.op[0], scalar32(w, in.op[1]));
     }},
    {"s_addk_i32",
     [](Wave &w, const Instruction &in) {
         u32 a = scalar32(w, in.op[0]), b = (u32)(i32)(int16_t)in.op[1].bits32, r = a + b;
         set_scalar32(w, in.op[0], r);
         w.scc = (~(a ^ b) & (a ^ r)) >> 31;
     }},
    {"s_mulk_i32",
     [](Wave &w, const Instruction &in) {
         set_scalar32(w, in.op[0], scalar32(w, in.op[0]) * (u32)(i32)(int16_t)in.op[1].bits32);
     }},
    {"s_bitset1_b32",
     [](Wave &w, const Instruction &in) { w.s[in.op[0].index] |= 1u << (scalar32(w, in.op[1]) & 31); }},
    {"s_bitset0_b32",
     [](Wave &w, const Instruction &in) { w.s[in.op[0].index] &= ~(1u << (scalar32(w, in.op[1]) & 31)); }},
    SAVE_EXEC(s_and_saveexec_b64, a & x),
    SAVE_EXEC(s_or_saveexec_b64, a | x),
    SAVE_EXEC(s_xor_saveexec_b64, a ^ x),
    SAVE_EXEC(s_andn2_saveexec_b64, a & ~x),
    SAVE_EXEC(s_orn2_saveexec_b64, a | ~x),
    {"s_getreg_b32", [](Wave &w, const Instruction &in) { set_scalar32(w, in.op[0], 0); }},
    {"s_movrels_b32",
     [](Wave &w, const Instruction &in) {
         u32 from = (u32)in.op[1].index + w.s[M0];
         if (w.s[M0] >= FLAT_SCRATCH || from >= FLAT_SCRATCH) fault(w, in, "M0 leads to no register");
         set_scalar32(w, in.op[0], w.s[from]);
     }},
    {"s_memtime", [](Wave &w, const Instruction &in) { set_scalar64(w, in.op[0], w.executed); }},
    {"s_load", run_load},
};

static const Entry comparisons[] = {
    COMPARE(s_cmp_eq_u32, a == b),
    COMPARE(s_cmp_lg_u32, a != b),
    COMPARE(s_cmp_gt_u32, a > b),
    COMPARE(s_cmp_ge_u32, a >= b),
    COMPARE(s_cmp_lt_u32, a < b),
    COMPARE(s_cmp_le_u32, a <= b),
    COMPARE(s_cmp_eq_i32, a == b),
    COMPARE(s_cmp_lg_i32, a != b),
    COMPARE(s_cmp_gt_i32, (i32)a > (i32)b),
    COMPARE(s_cmp_ge_i32, (i32)a >= (i32)b),
    COMPARE(s_cmp_lt_i32, (i32)a < (i32)b),
    COMPARE(s_cmp_le_i32, (i32)a <= (i32)b),
    COMPARE(s_bitcmp1_b32, a >> (b & 31) & 1),
    COMPARE(s_bitcmp0_b32, !(a >> (b & 31) & 1)),
    COMPARE_K(s_cmpk_eq_i32, int16_t, a == b),
    COMPARE_K(s_cmpk_lg_i32, int16_t, a != b),
    COMPARE_K(s_cmpk_gt_i32, int16_t, a > b),
    COMPARE_K(s_cmpk_ge_i32, int16_t, a >= b),
    COMPARE_K(s_cmpk_lt_i32, int16_t, a < b),
    COMPARE_K(s_cmpk_le_i32, int16_t, a <= b),
    COMPARE_K(s_cmpk_eq_u32, u32, (u32)a == b),
    COMPARE_K(s_cmpk_lg_u32, u32, (u32)a != b),
    COMPARE_K(s_cmpk_gt_u32, u32, (u32)a > b),
    COMPARE_K(s_cmpk_ge_u32, u32, (u32)a >= b),
    COMPARE_K(s_cmpk_lt_u32, u32, (u32)a < b),
    COMPARE_K(s_cmpk_le_u32, u32, (u32)a <= b),
    {"s_cmp_eq_u64", [](Wave &w, const Instruction &in) { w.scc = scalar64(w, in.op[0]) == scalar64(w, in.op[1]); }},
    {"s_cmp_lg_u64", [](Wave &w, const Instruction &in) { w.scc = scalar64(w, in.op[0]) != scalar64(w, in.op[1]); }},
    BRANCH(s_branch, true),
    BRANCH(s_cbranch_scc0, !w.scc),
    BRANCH(s_cbranch_scc1, w.scc),
    BRANCH(s_cbranch_vccz, !w.vcc()),
    BRANCH(s_cbranch_vccnz, w.vcc()),
    BRANCH(s_cbranch_execz, !w.exec()),
    BRANCH(s_cbranch_execnz, w.exec()),
    {"s_endpgm", [](Wave &w, const Instruction &) { w.done = true; }},
    {"s_barrier", [](Wave &w, const Instruction &) { w.waiting = true; }},
    {"s_getpc_b64",
     [](Wave &w, const Instruction &in) { set_scalar64(w, in.op[0], w.run->code_base + in.address + 4); }},
    {"s_setpc_b64", [](Wave &w, const Instruction &in) { run_jump(w, in, scalar64(w, in.op[0])); }},
};

void add_scalar(Handlers &to) {
    for (const Entry &e : arithmetic) to[e.name] = e.run;
    for (const Entry &e : comparisons) to[e.name] = e.run;
}

} // namespace cdna
