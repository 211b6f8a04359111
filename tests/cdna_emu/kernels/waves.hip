/* SPDX-License-Identifier: MIT
 *
 * Kernels over whole waves and groups: lane exchange, masks, LDS, barriers, atomics, matrix products; and one
 * kernel for each fault that the emulator must see. */
#include <stdint.h>

#define KERNEL extern "C" __attribute__((global)) __attribute__((amdgpu_flat_work_group_size(1, 256))) void
#define LDS    __attribute__((shared))
#define GLOBAL __attribute__((address_space(1)))
#define SHARED __attribute__((address_space(3)))
typedef float f4 __attribute__((ext_vector_type(4)));
typedef float f16 __attribute__((ext_vector_type(16)));
typedef uint32_t u4 __attribute__((ext_vector_type(4)));
typedef short s4 __attribute__((ext_vector_type(4)));
typedef _Float16 h4 __attribute__((ext_vector_type(4)));

static __attribute__((device)) inline uint32_t thread() { return __builtin_amdgcn_workitem_id_x(); }
static __attribute__((device)) inline void barrier() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}

KERNEL lanes(const uint32_t *input, uint32_t *result) {
    uint32_t t = thread(), x = input[t];
    result[t] = (uint32_t)__builtin_amdgcn_ds_bpermute((int)((t * 7 + 3) % 64 * 4), (int)x);
    result[64 + t] = __builtin_amdgcn_readfirstlane(x);
    result[128 + t] = __builtin_amdgcn_readlane(x, 37);
    uint64_t odd = __builtin_amdgcn_ballot_w64((x & 1) != 0);
    result[192 + t] = (uint32_t)odd ^ (uint32_t)(odd >> 32);
    uint32_t below = __builtin_amdgcn_mbcnt_lo((uint32_t)odd, 0);
    result[256 + t] = __builtin_amdgcn_mbcnt_hi((uint32_t)(odd >> 32), below);
    result[320 + t] = (uint32_t)__builtin_amdgcn_ds_permute((int)((t + 5) % 64 * 4), (int)x);
}

/* The words of 256 threads in reverse, through LDS. */
KERNEL reverse(const uint32_t *input, uint32_t *result) {
    LDS uint32_t words[256];
    words[thread()] = input[thread()];
    barrier();
    result[thread()] = words[255 - thread()];
}

/* 16 bytes of 16 rows, as operands of products are read; words, 16 of a row. No stride is 1. */
KERNEL banks_read(u4 *result, uint32_t stride) {
    LDS u4 rows[256];
    uint32_t t = thread();
    if (stride == 1) rows[t] = result[t];
    result[t] = rows[(t % 16 * stride + t / 16 * 16) / 16];
}
KERNEL banks_write(uint32_t *result, uint32_t stride) {
    LDS uint32_t words[1024];
    uint32_t t = thread();
    words[(t / 16 * stride + t % 16 * 4) / 4] = t;
    barrier();
    result[t] = words[t];
}

KERNEL atomics(const float *input, float *sum, uint32_t *words) {
    LDS uint32_t most;
    uint32_t t = thread(), i = __builtin_amdgcn_workgroup_id_x() * 256 + t;
    __hip_atomic_fetch_add((GLOBAL float *)sum + t % 8, input[i], __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
    uint32_t place = __hip_atomic_fetch_add((GLOBAL uint32_t *)words, 1u, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
    words[1 + place] = i;
    if (t == 0) most = 0;
    barrier();
    __hip_atomic_fetch_max(&most, i * 3, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP);
    barrier();
    if (t == 0) words[1 + 1024 + __builtin_amdgcn_workgroup_id_x()] = most;
}

/* Operand and result layouts are the test's to know: a and b are what the lanes hold. */
KERNEL matrix_16_f16(const h4 *a, const h4 *b, f4 *c) {
    c[thread()] = __builtin_amdgcn_mfma_f32_16x16x16f16(a[thread()], b[thread()], c[thread()], 0, 0, 0);
}
KERNEL matrix_16_bf16(const s4 *a, const s4 *b, f4 *c) {
    c[thread()] = __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(a[thread()], b[thread()], c[thread()], 0, 0, 0);
}
KERNEL matrix_16_f32(const float *a, const float *b, f4 *c) {
    c[thread()] = __builtin_amdgcn_mfma_f32_16x16x4f32(a[thread()], b[thread()], c[thread()], 0, 0, 0);
}
KERNEL matrix_32_f16(const h4 *a, const h4 *b, f16 *c) {
    c[thread()] = __builtin_amdgcn_mfma_f32_32x32x8f16(a[thread()], b[thread()], c[thread()], 0, 0, 0);
}

#if defined(__gfx950__)
typedef __bf16 b2 __attribute__((ext_vector_type(2)));
typedef __bf16 b8 __attribute__((ext_vector_type(8)));
typedef _Float16 h2 __attribute__((ext_vector_type(2)));
typedef _Float16 h8 __attribute__((ext_vector_type(8)));
typedef uint32_t u2 __attribute__((ext_vector_type(2)));
KERNEL matrix_16_f16_k32(const h8 *a, const h8 *b, f4 *c) {
    c[thread()] = __builtin_amdgcn_mfma_f32_16x16x32_f16(a[thread()], b[thread()], c[thread()], 0, 0, 0);
}
KERNEL matrix_16_bf16_k32(const b8 *a, const b8 *b, f4 *c) {
    c[thread()] = __builtin_amdgcn_mfma_f32_16x16x32_bf16(a[thread()], b[thread()], c[thread()], 0, 0, 0);
}
KERNEL matrix_32_f16_k16(const h8 *a, const h8 *b, f16 *c) {
    c[thread()] = __builtin_amdgcn_mfma_f32_32x32x16_f16(a[thread()], b[thread()], c[thread()], 0, 0, 0);
}
KERNEL swaps(const uint32_t *input, uint32_t *result) {
    uint32_t t = thread(), x = input[t], y = input[64 + t];
    u2 rows = __builtin_amdgcn_permlane16_swap(x, y, false, false);
    u2 halves = __builtin_amdgcn_permlane32_swap(x, y, false, false);
    result[t] = rows.x, result[64 + t] = rows.y;
    result[128 + t] = halves.x, result[192 + t] = halves.y;
}
KERNEL conversions(const float *input, uint32_t *result) {
    uint32_t t = thread(), bits, a = ((const uint32_t *)input)[t], b = ((const uint32_t *)input)[256 + t];
    b2 pair = {(__bf16)input[t], (__bf16)input[256 + t]};
    h2 halves = {(_Float16)input[t], (_Float16)input[256 + t]};
    asm("v_bitop3_b32 %0, %1, %2, %3 bitop3:0xb8" : "=v"(bits) : "v"(a), "v"(b), "v"(((const uint32_t *)input)[t ^ 1]));
    result[256 + t] = bits;
    asm("v_bitop3_b16 %0, %1, %2, %3 bitop3:0xb8" : "=v"(bits) : "v"(a), "v"(b), "v"(((const uint32_t *)input)[t ^ 1]));
    result[t] = __builtin_bit_cast(uint32_t, pair);
    result[768 + t] = bits & 0xffffu;
    result[512 + t] = __builtin_bit_cast(uint32_t, halves);
}
#endif

/* ---- faults ---- */
KERNEL outside_global(uint32_t *result, uint32_t at) { result[at + thread()] = 1; }
KERNEL outside_lds(uint32_t *result, uint32_t at) {
    LDS uint32_t words[64];
    words[thread()] = at;
    barrier();
    *(volatile uint32_t *)(words + at + thread()) = 5;
    result[thread()] = words[thread()];
}
KERNEL race_read(uint32_t *result) {
    LDS uint32_t words[256];
    words[thread()] = thread();
    result[thread()] = ((volatile uint32_t *)words)[thread() ^ 64];
}
KERNEL race_write(uint32_t *result) {
    LDS uint32_t words[256];
    ((volatile uint32_t *)words)[thread() & 63] = thread();
    barrier();
    result[thread()] = words[thread() & 63];
}
KERNEL unset_lds(uint32_t *result, uint32_t count) { /* the last `count` threads write nothing */
    LDS uint32_t words[64];
    if (thread() + count < 64) words[thread()] = thread();
    barrier();
    result[thread()] = ((volatile uint32_t *)words)[63 - thread()];
}
KERNEL unknown_instruction(float *result) { result[thread()] = __builtin_amdgcn_sinf(result[thread()]); }
KERNEL order(uint32_t *result) { /* which wave writes last */ *(volatile uint32_t *)result = thread() / 64; }

/* Waits that the compiler did not write: `wait` 0 has too few, 1 has what is needed. */
#define WAITS(name, code, fine, broken)                                                                                \
    KERNEL name(uint32_t *result, uint32_t wait) {                                                                     \
        uint32_t x = 0, y = 0, *at = result + thread(), place = thread() * 8;                                          \
        LDS uint32_t words[512];                                                                                       \
        words[place / 4] = words[place / 4 + 1] = thread();                                                            \
        barrier();                                                                                                     \
        if (wait) asm volatile(code fine : "=&v"(x), "=&v"(y) : "v"(at), "v"(place), "s"(result) : "memory", "s40");   \
        else asm volatile(code broken : "=&v"(x), "=&v"(y) : "v"(at), "v"(place), "s"(result) : "memory", "s40");      \
        asm volatile("s_waitcnt vmcnt(0) lgkmcnt(0)");                                                                 \
        result[thread()] = x + y + words[place / 4];                                                                   \
    }
#define ADD(x) "v_add_u32 " x ", 1, " x "\n\t"
WAITS(waits_vector, "global_load_dword %0, %2, off\n\tglobal_load_dword %1, %2, off\n\ts_waitcnt vmcnt(1)\n\t",
      ADD("%0"), ADD("%1"))
WAITS(waits_lds, "ds_read_b32 %0, %3\n\tds_read_b32 %1, %3 offset:4\n\ts_waitcnt lgkmcnt(1)\n\t", ADD("%0"), ADD("%1"))
WAITS(waits_constant, "s_load_dword s40, %4, 0x0\n\t", "s_waitcnt lgkmcnt(0)\n\tv_mov_b32 %0, s40\n\t",
      "v_mov_b32 %0, s40\n\t")
WAITS(waits_mixed, "ds_read_b32 %0, %3\n\ts_load_dword s40, %4, 0x0\n\t", "s_waitcnt lgkmcnt(0)\n\t" ADD("%0"),
      "s_waitcnt lgkmcnt(1)\n\t" ADD("%0"))
WAITS(waits_overwritten, "global_load_dword %0, %2, off\n\t", "s_waitcnt vmcnt(0)\n\tv_mov_b32 %0, 1\n\t",
      "v_mov_b32 %0, 1\n\ts_waitcnt vmcnt(0)\n\t")

/* The same for what other waves see: of 256 threads, each wave comes to the barrier while its first access may be under
 * way, and the second is another wave's. */
#define WAITS_BARRIER(name, first, second)                                                                             \
    KERNEL name(uint32_t *result, uint32_t wait) {                                                                     \
        LDS uint32_t words[256];                                                                                       \
        uint32_t x = 0, place = (uint32_t)(uintptr_t)(SHARED uint32_t *)(words + thread());                            \
        uint32_t other = (uint32_t)(uintptr_t)(SHARED uint32_t *)(words + 255 - thread());                             \
        words[thread()] = thread();                                                                                    \
        barrier();                                                                                                     \
        if (wait) asm volatile(first "s_waitcnt lgkmcnt(0)\n\ts_barrier" : "+v"(x) : "v"(place) : "memory");           \
        else asm volatile(first "s_barrier" : "+v"(x) : "v"(place) : "memory");                                        \
        asm volatile(second "s_waitcnt lgkmcnt(0)" : "+v"(x) : "v"(other) : "memory");                                 \
        result[thread()] = x;                                                                                          \
    }
#define READ  "ds_read_b32 %0, %1\n\t"
#define WRITE "ds_write_b32 %1, %1\n\t"
WAITS_BARRIER(waits_read, WRITE, READ)
WAITS_BARRIER(waits_write, READ, WRITE)

/* All waves add, and after a barrier wave 0 passes a semaphore on. */
KERNEL waits_semaphore(uint32_t *result, uint32_t wait) {
    GLOBAL uint32_t *semaphore = (GLOBAL uint32_t *)result, *sum = semaphore + 1 + thread();
    const uint32_t seen = __hip_atomic_load(semaphore, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
    asm volatile("global_atomic_add %0, %1, off" ::"v"(sum), "v"(seen) : "memory");
    if (wait) asm volatile("s_waitcnt vmcnt(0)" ::: "memory");
    asm volatile("s_barrier" ::: "memory");
    if (thread() < 64) __hip_atomic_store(semaphore, seen + 1, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
