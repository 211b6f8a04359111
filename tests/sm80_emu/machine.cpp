/* SPDX-License-Identifier: MIT
 *
 * Fibers, warps, CTAs and launches. A launch runs its CTAs one after the other, so that work tiles that wait for
 * earlier ones (deterministic mode) find them done. Shared memory starts as NaN in every CTA. */
#include "machine.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <mutex>

enum { STACK = 64 * 1024, ARGUMENT = 1280 };
struct argument {
    char bytes[ARGUMENT]; /* read by a kernel as its own, smaller parameter */
};
typedef void (*kernel)(argument);
typedef void (*kernel_with_maps)(const void *launch, const void *maps); /* of sm90: main loops, but those of few rows */

emu_thread *emu_self;
emu_warp emu_warps[EMU_WARPS];
emu_grid emu_now;
alignas(1024) char dev_shared[EMU_SHARED];
static emu_thread threads[EMU_THREADS];
static void *scheduler;
static int at_barrier, alive;
static kernel running;
static argument given;
static const void *maps_given;

void emu_fail(const char *why) {
    fprintf(stderr, "sm80_emu: %s\n", why);
    abort();
}

void emu_fail_at(emu_place place, const char *why) {
    fprintf(stderr, "sm80_emu: %s, at %s:%d\n", why, place.file, place.line);
    abort();
}

void emu_fail_apart(emu_place first, emu_place other) {
    fprintf(stderr, "sm80_emu: lanes of a warp meet apart, at %s:%d and %s:%d\n", first.file, first.line, other.file,
            other.line);
    abort();
}

/* Saves what a call must preserve, changes stacks, takes up what was saved there. */
extern "C" void emu_switch(void **from, void *to);
asm(".globl emu_switch\nemu_switch:\n"
    "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
    "movq %rsp, (%rdi)\nmovq %rsi, %rsp\n"
    "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\nret\n");

void emu_yield() { emu_switch(&emu_self->stack_pointer, scheduler); }

void emu_wait(emu_state state) {
    emu_self->state = state;
    emu_yield();
}

void emu_release_warp(int warp) {
    for (int i = 0; i < EMU_LANES; ++i)
        if (threads[warp * EMU_LANES + i].state == EMU_AT_WARP) threads[warp * EMU_LANES + i].state = EMU_READY;
}

static void release_block() {
    at_barrier = 0;
    for (uint32_t i = 0; i < emu_now.threads; ++i)
        if (threads[i].state == EMU_AT_BLOCK) threads[i].state = EMU_READY;
}

void emu_barrier() {
    if (++at_barrier < alive) emu_wait(EMU_AT_BLOCK);
    else release_block();
}

static void thread_main() {
    if (maps_given) ((kernel_with_maps)(void *)running)(&given, maps_given);
    else running(given);
    emu_warp &warp = emu_warps[emu_self->number / EMU_LANES];
    if (warp.here) emu_fail("a lane ends while others wait for it");
    --warp.alive;
    if (--alive && at_barrier == alive) release_block();
    emu_wait(EMU_DONE);
    emu_fail("a thread goes on after its end");
}

static void prepare(emu_thread *thread, uint32_t number) {
    if (!thread->stack) {
        thread->stack = (char *)aligned_alloc(64, STACK);
        thread->copy = (emu_copy *)malloc(EMU_COPIES * sizeof(emu_copy));
        if (!thread->stack || !thread->copy) emu_fail("no memory");
    }
    void **top = (void **)(void *)(thread->stack + STACK - 64);
    *--top = nullptr; /* thread_main's caller; the stack is aligned as behind a call */
    *--top = (void *)thread_main;
    for (int i = 0; i < 6; ++i) *--top = nullptr;
    *thread = {top, thread->stack, EMU_READY, number, 0, 0, thread->copy};
}

/* Each warp runs a few rounds before the next one does: so warps get apart, as on hardware. */
static void run_block() {
    while (alive) {
        bool ran = false;
        for (uint32_t w = 0; w < emu_now.threads / EMU_LANES; ++w)
            for (int round = 0; round < 4; ++round)
                for (int i = 0; i < EMU_LANES; ++i) {
                    emu_self = &threads[w * EMU_LANES + (uint32_t)i];
                    if (emu_self->state != EMU_READY) continue;
                    emu_switch(&scheduler, emu_self->stack_pointer);
                    ran = true;
                }
        if (!ran) emu_fail("no thread can go on");
    }
}

/* Called by the fake driver (tests/loader/fakes/cuda_calls.c). */
extern "C" __attribute__((visibility("default"))) int fake_launch(const char *name, unsigned grid_x, unsigned grid_y,
                                                                  unsigned block, unsigned smem,
                                                                  void *const *parameters);
extern "C" int fake_launch(const char *name, unsigned grid_x, unsigned grid_y, unsigned block, unsigned smem,
                           void *const *parameters) {
    static std::mutex one_launch; /* ranks are threads */
    std::lock_guard<std::mutex> guard(one_launch);
    Dl_info here;
    void *self = dladdr((void *)thread_main, &here) ? dlopen(here.dli_fname, RTLD_NOW | RTLD_NOLOAD) : nullptr;
    running = (kernel)dlsym(self, name);
    if (!running) return 500;
    memcpy(&given, parameters[0], sizeof given);
    const bool main_loop = strstr(name, "_bwd_sm90_") && !strstr(name, "_sm90_few");
    maps_given = main_loop ? parameters[1] : nullptr;
    for (uint32_t y = 0; y < grid_y; ++y)
        for (uint32_t x = 0; x < grid_x; ++x) {
            emu_now = {grid_x, grid_y, x, y, block};
            memset(dev_shared, 0xFF, smem);
            emu_sm90_begin();
            at_barrier = 0;
            alive = (int)block;
            for (uint32_t w = 0; w < block / EMU_LANES; ++w) emu_warps[w] = {{}, {}, 0, EMU_LANES};
            for (uint32_t i = 0; i < block; ++i) prepare(&threads[i], i);
            run_block();
            if (emu_copies_under_way()) emu_fail("a CTA ends before its copies have arrived");
        }
    return 0;
}
