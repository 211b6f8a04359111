/* SPDX-License-Identifier: MIT
 *
 * What is pending, wave by wave (waits.cpp). Used by schedule.cpp, lds.cpp and memory.cpp where Launch.waits asks for
 * it. */
#ifndef CDNA_WAITS_H
#define CDNA_WAITS_H

#include "machine.h"

namespace cdna {

enum { SCALARS_FIRST = VGPRS, REGISTERS = VGPRS + SGPRS }; /* numbers of all registers: vectors, scalars */
struct Registers {
    u16 first, last;
};

/* The registers that an instruction's text names, in order. */
std::vector<Registers> registers_in(const std::string &text);
/* Whether the first of them is filled from memory or LDS. */
bool fills_register(const Instruction &in);

/* What each instruction of a kernel names, fills and waits for. */
std::shared_ptr<const Guards> guards_of(const Program &program);

Pending *pending_new();
void pending_free(Pending *pending);
void pending_clear(Pending &pending);

/* Before instruction `number` of the kernel runs: throws Fault where it touches what is not there yet. */
void watch_waits(Wave &w, const Instruction &in, int number);
/* Bytes of LDS that the instruction just watched touches: they stay touched until it is waited for. */
void note_lds(Wave &w, u32 offset, int bytes, Touch touch);
/* The wave is at a barrier that all have reached, and the next interval has begun. */
void cross_barrier(Wave &w);
/* Throws Fault where a store passes on a semaphore, a word that waves look at, before the workgroup's additions and
 * stores are acknowledged. `at`: the lanes' dwords in global memory. */
void watch_semaphores(Wave &w, const Instruction &in, u8 *const *at, u64 lanes);

std::shared_ptr<Semaphores> semaphores_new();

} // namespace cdna

#endif
