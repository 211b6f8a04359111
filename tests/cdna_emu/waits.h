/* SPDX-License-Identifier: MIT
 *
 * Loads that are pending, wave by wave (waits.cpp). Used by schedule.cpp where Launch.waits asks for it. */
#ifndef CDNA_WAITS_H
#define CDNA_WAITS_H

#include "machine.h"

namespace cdna {

/* What each instruction of a kernel names, fills and waits for. */
std::shared_ptr<const Guards> guards_of(const Program &program);

Pending *pending_new();
void pending_free(Pending *pending);
void pending_clear(Pending &pending);

/* Before instruction `number` of the kernel runs: throws Fault where it touches what is not there yet. */
void watch_waits(Wave &w, const Instruction &in, int number);

} // namespace cdna

#endif
