/* SPDX-License-Identifier: MIT
 *
 * Functions of one thread, compiled for the host and for the emulated GPU, whose results must be the same bits:
 * FUNCTION(name, body) with the words a, b, c of the thread's input in scope, giving a 64-bit result. */
#ifndef CDNA_FUNCTIONS_H
#define CDNA_FUNCTIONS_H

#include <stdint.h>

#ifdef __HIP__
#define FUNCTION_DEVICE __attribute__((device)) __attribute__((always_inline))
#else
#define FUNCTION_DEVICE
#endif

FUNCTION_DEVICE static inline float function_float(uint32_t x) { return __builtin_bit_cast(float, x); }
FUNCTION_DEVICE static inline uint32_t function_bits(float x) {
    return x != x ? 0x7fc00000u : __builtin_bit_cast(uint32_t, x); /* any NaN is as good */
}
FUNCTION_DEVICE static inline double function_double(uint32_t low, uint32_t high) {
    return __builtin_bit_cast(double, (uint64_t)high << 32 | low);
}
FUNCTION_DEVICE static inline uint64_t function_bits64(double x) {
    return x != x ? 0x7ff8000000000000ull : __builtin_bit_cast(uint64_t, x);
}
FUNCTION_DEVICE static inline _Float16 function_half(uint32_t x) { return __builtin_bit_cast(_Float16, (uint16_t)x); }
FUNCTION_DEVICE static inline uint32_t function_bits16(_Float16 x) {
    return x != x ? 0x7e00u : __builtin_bit_cast(uint16_t, x);
}
FUNCTION_DEVICE static inline uint32_t function_reversed(uint32_t x) {
#ifdef __HIP__
    return __builtin_bitreverse32(x); /* an instruction; gcc has no such builtin */
#else
    uint32_t r = 0;
    for (int i = 0; i < 32; ++i) r |= (x >> i & 1u) << (31 - i);
    return r;
#endif
}
/* Both halves of the words; as an instruction, since no compiler makes it of this. */
FUNCTION_DEVICE static inline uint32_t function_halves(uint32_t a, uint32_t b, uint32_t c) {
#ifdef __HIP__
    uint32_t x, y;
    asm("v_pk_mad_u16 %0, %1, %2, %3" : "=v"(x) : "v"(a), "v"(b), "v"(c));
    asm("v_pk_mad_u16 %0, %1, 2, -1 op_sel_hi:[1,0,0]" : "=v"(y) : "v"(c));
    return x ^ y;
#else
    uint32_t low = (a & 0xffffu) * (b & 0xffffu) + c, high = (a >> 16) * (b >> 16) + (c >> 16);
    uint32_t least = (c * 2 - 1) & 0xffffu, most = (c >> 16) * 2 - 1;
    return ((low & 0xffffu) | high << 16) ^ (least | most << 16);
#endif
}
#define A64 ((uint64_t)b << 32 | a)
#define B64 ((uint64_t)a << 32 | c)
#define FA  function_float(a)
#define FB  function_float(b)
#define FC  function_float(c)
#define DA  function_double(b, a)
#define DB  function_double(a, c)
#define HA  function_half(a)
#define HB  function_half(b)

#define FUNCTIONS(FUNCTION)                                                                                            \
    FUNCTION(add, a + b)                                                                                               \
    FUNCTION(multiply_add16, (uint16_t)((uint16_t)a * (uint32_t)(uint16_t)b + (uint16_t)c))                            \
    FUNCTION(multiply_add_halves, function_halves(a, b, c))                                                            \
    FUNCTION(multiply_high, (uint64_t)a *b >> 32)                                                                      \
    FUNCTION(multiply_signed, (uint64_t)((int64_t)(int32_t)a * (int32_t)b))                                            \
    FUNCTION(divide, a / (b | 1u))                                                                                     \
    FUNCTION(remainder_signed, (uint64_t)((int32_t)a % (int32_t)(b >> 3 | 1u)))                                        \
    FUNCTION(divide64, A64 / (B64 | 1u))                                                                               \
    FUNCTION(remainder64_signed, (uint64_t)((int64_t)A64 % (int64_t)(B64 >> 7 | 1u)))                                  \
    FUNCTION(multiply64, A64 *B64)                                                                                     \
    FUNCTION(add64, A64 + B64)                                                                                         \
    FUNCTION(subtract64, A64 - B64)                                                                                    \
    FUNCTION(shift_left64, A64 << (c & 63))                                                                            \
    FUNCTION(shift_right64, A64 >> (c & 63))                                                                           \
    FUNCTION(shift_signed64, (uint64_t)((int64_t)A64 >> (c & 63)))                                                     \
    FUNCTION(shift_signed, (uint32_t)((int32_t)a >> (b & 31)))                                                         \
    FUNCTION(compare64, (uint64_t)((int64_t)A64 < (int64_t)B64) | (uint64_t)(A64 < B64) << 1)                          \
    FUNCTION(least_largest, (a < b ? a : b) ^ ((int32_t)a > (int32_t)c ? a : c))                                       \
    FUNCTION(bits,                                                                                                     \
             (uint64_t)(__builtin_popcount(a) + __builtin_clz(b | 1u) * 64 + __builtin_ctz(c | 1u << 31) * 4096))      \
    FUNCTION(reversed, function_reversed(a) ^ __builtin_bswap32(b))                                                    \
    FUNCTION(fields, (a >> 5 & 0x7fu) | (b & 0xff00u) << 8 | ((uint32_t)((int32_t)(c << 9) >> 21) & 0xfffu) << 20)     \
    FUNCTION(rotated, a << 11 | a >> 21)                                                                               \
    FUNCTION(branches, a % 3 == 0 ? b + 1 : a % 5 == 0 ? c * 3 : (a ^ b) - c)                                          \
    FUNCTION(loop, ({                                                                                                  \
                 uint32_t x = a;                                                                                       \
                 for (uint32_t i = 0; i < (b & 15); ++i) x = x * 33 + (x >> (i & 7) ^ c);                              \
                 x;                                                                                                    \
             }))                                                                                                       \
    FUNCTION(short_sum, (uint16_t)((uint16_t)a * (uint16_t)b + (uint16_t)c))                                           \
    FUNCTION(bytes, (uint8_t)a * 7u + (uint8_t)(b >> 8) * 11u + (uint32_t)(int8_t)(c >> 16))                           \
    FUNCTION(float_sum, function_bits(FA + FB))                                                                        \
    FUNCTION(float_product, function_bits(FA *FB))                                                                     \
    FUNCTION(float_fused, function_bits(__builtin_fmaf(FA, FB, FC)))                                                   \
    FUNCTION(float_quotient, function_bits(FA / FB))                                                                   \
    FUNCTION(float_rounded, function_bits(__builtin_rintf(FA)) ^ function_bits(__builtin_floorf(FB)))                  \
    FUNCTION(float_whole, function_bits(__builtin_truncf(FA)) ^ function_bits(__builtin_ceilf(FC)))                    \
    FUNCTION(float_larger, function_bits(FA > FB ? FA : FC) ^ (uint64_t)(FA <= FC))                                    \
    FUNCTION(float_unordered, (uint64_t)(FA != FA) | (uint64_t)(FB < FC) << 1 | (uint64_t)(FB != FC) << 2)             \
    FUNCTION(float_sign, function_bits(__builtin_copysignf(FA, FB)) ^ function_bits(__builtin_fabsf(FC)))              \
    FUNCTION(float_scaled, function_bits(__builtin_ldexpf(FA, (int)(b % 300) - 150)))                                  \
    FUNCTION(float_of_word, function_bits((float)a) ^ function_bits((float)(int32_t)b))                                \
    FUNCTION(word_of_float, (uint32_t)(int32_t)(function_float((a & 0x807fffffu) | 0x4d000000u)))                      \
    FUNCTION(half_of_float, function_bits16((_Float16)FA))                                                             \
    FUNCTION(float_of_half, function_bits((float)HA))                                                                  \
    FUNCTION(half_sum, function_bits16((_Float16)(HA + HB)))                                                           \
    FUNCTION(half_product, function_bits16((_Float16)(HA * HB)))                                                       \
    FUNCTION(double_sum, function_bits64(DA + DB))                                                                     \
    FUNCTION(double_product, function_bits64(DA *DB))                                                                  \
    FUNCTION(double_fused, function_bits64(__builtin_fma(DA, DB, function_double(c, b))))                              \
    FUNCTION(double_quotient, function_bits64(DA / DB))                                                                \
    FUNCTION(double_rounded, function_bits64(__builtin_rint(DA)) ^ function_bits64(__builtin_floor(DB)))               \
    FUNCTION(double_scaled, function_bits64(__builtin_ldexp(DA, (int)(c % 2200) - 1100)))                              \
    FUNCTION(double_of_float, function_bits64((double)FA))                                                             \
    FUNCTION(float_of_double, function_bits((float)DA))                                                                \
    FUNCTION(double_compare, (uint64_t)(DA < DB) | (uint64_t)(DA == DA) << 1 | (uint64_t)(DB >= 1.0) << 2)

enum {
    FUNCTION_COUNT = 0
#define FUNCTION_ONE(name, body) +1
    FUNCTIONS(FUNCTION_ONE)
#undef FUNCTION_ONE
};

#endif
