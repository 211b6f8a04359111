/* SPDX-License-Identifier: MIT
 *
 * Loads that are pending, wave by wave (waits.cpp). Used by schedule.cpp where Launch.waits asks for it. */
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

} // namespace cdna

#endif
