/* SPDX-License-Identifier: MIT
 *
 * Wait states that software must leave between two instructions, wave by wave (hazards.cpp). Used by schedule.cpp where
 * Launch.hazards asks for it. */
#ifndef CDNA_HAZARDS_H
#define CDNA_HAZARDS_H

#include "machine.h"

namespace cdna {

/* What each instruction of a kernel leaves behind and meets, as far as the arch's rules are concerned. */
std::shared_ptr<const Hazards> hazards_of(const Program &program, Arch arch);

Issued *issued_new();
void issued_free(Issued *issued);
void issued_clear(Issued &issued);

/* Before instruction `number` of the kernel runs: throws Fault where it comes too soon behind another. */
void watch_hazards(Wave &w, const Instruction &in, int number);

/* What watch_hazards may find, whichever way branches go. */
std::vector<std::string> hazards_on_all_paths(const Program &program, Arch arch);

} // namespace cdna

#endif
