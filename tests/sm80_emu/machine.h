/* SPDX-License-Identifier: MIT
 *
 * A CTA on one host thread: each CUDA thread is a fiber, which runs until it waits for its warp or its CTA.
 * machine.cpp has the fibers and the launch, matrix.cpp the matrix unit; leaf.h gives kernels their vocabulary. */
#ifndef STW_TESTS_SM80_EMU_MACHINE_H
#define STW_TESTS_SM80_EMU_MACHINE_H

#include <cstddef>
#include <cstdint>

enum {
    EMU_LANES = 32,
    EMU_WARPS = 32,
    EMU_THREADS = EMU_LANES * EMU_WARPS,
    EMU_SHARED = 256 * 1024,
    EMU_COPIES = 4096
};
enum emu_state { EMU_READY, EMU_AT_WARP, EMU_AT_BLOCK, EMU_DONE };

struct emu_copy { /* cp.async under way: it arrives at the wait, so that a missing one shows */
    void *to;
    int group;
    char data[16];
};

struct emu_thread {
    void *stack_pointer;
    char *stack;
    emu_state state;
    uint32_t number;
    int copies, copy_group;
    emu_copy *copy;
};

struct emu_place { /* of a call in the kernels' source */
    const char *file;
    int line;
    static constexpr emu_place here(const char *file = __builtin_FILE(), int line = __builtin_LINE()) {
        return {file, line};
    }
};

struct emu_warp {
    const void *given[EMU_LANES]; /* what each lane brings to a meeting */
    emu_place place;              /* of the first lane to come          */
    int here, alive;
};

struct emu_grid {
    uint32_t x, y, block_x, block_y, threads;
};

extern emu_thread *emu_self;
extern emu_warp emu_warps[EMU_WARPS];
extern emu_grid emu_now;
extern char dev_shared[];

void emu_wait(emu_state state);
void emu_yield();
void emu_release_warp(int warp);
void emu_barrier();
[[noreturn]] void emu_fail(const char *why);
[[noreturn]] void emu_fail_at(emu_place place, const char *why);
[[noreturn]] void emu_fail_apart(emu_place first, emu_place other);

/* All lanes of a warp meet, in one place of the source: a GPU waits forever for lanes that are elsewhere. The last one
 * to come does what `all` says with what they brought. */
template <class All> static inline void emu_meet(const void *mine, emu_place place, All all) {
    int warp = (int)emu_self->number / EMU_LANES;
    emu_warp &w = emu_warps[warp];
    w.given[emu_self->number % EMU_LANES] = mine;
    if (!w.here) w.place = place;
    else if (place.file != w.place.file || place.line != w.place.line) emu_fail_apart(w.place, place);
    if (++w.here < w.alive) return emu_wait(EMU_AT_WARP);
    w.here = 0;
    all((void *const *)w.given);
    emu_release_warp(warp);
}

enum emu_format { EMU_F16, EMU_BF16 };

/* Hopper's part (sm90.cpp). Asynchronous copies: destroyed places at once, the bytes when somebody waits for them. */
bool emu_copies_under_way();
void emu_sm90_begin();
void emu_tensor_load(uint32_t to, const void *map, int rank, const int *from, uint32_t mbarrier);
void emu_bulk_load(uint32_t to, const void *from, uint32_t bytes, uint32_t mbarrier);
void emu_bulk_add(float *to, uint32_t from, uint32_t bytes);
/* For the additions of this thread: until they have read shared memory; until all is done. */
void emu_bulk_wait_read();
void emu_bulk_wait();
void emu_mbarrier_init(uint32_t at, int arrivals);
void emu_mbarrier_add(uint32_t at, int arrivals, int bytes_announced);
void emu_mbarrier_wait(uint32_t at, uint32_t parity);
void emu_named_barrier(int id, int threads);
int emu_barrier_or(int x);
void emu_spin(const void *where);

/* One thread's part of a wgmma m64nNk16: its accumulators, descriptors, or A from the registers of four lanes. It
 * happens in the wait, as late as it may. */
struct emu_wgmma {
    float *x;
    uint64_t a, b;
    uint32_t w[4][4];
    int count, group;
    bool f16, adds, a_rows, b_rows, from_registers;
};
void emu_wgmma_begin(const emu_wgmma &product);
void emu_wgmma_commit();
void emu_wgmma_wait(int left);

/* mma.sync m16n8k16 with f32 accumulators: fragments of the 32 lanes. */
void emu_matrix_product(emu_format format, float *const *c, const uint32_t *const *a, const uint32_t *const *b);

#endif
