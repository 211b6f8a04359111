/* SPDX-License-Identifier: MIT
 *
 * `sternway tune` without an AMD GPU: on the emulator of tests/cdna_emu, which counts wave instructions,
 * variants are ranked by an estimate of SIMD cycles. It is no time and is never called one: caches, memory,
 * clocks and waiting are not in it. */
#include "tune.h"

#include <dlfcn.h>
#include <math.h>
#include <string.h>

/* Only a library that the process has loaded already: nothing is started here. */
void tune_estimate_open(tune_target *target) {
    void *library = dlopen("libamdhip64.so.7", RTLD_LAZY | RTLD_NOLOAD);
    void *symbol = library ? dlsym(library, "cdna_emu_counts") : NULL;
    memcpy(&target->counts, &symbol, sizeof symbol);
    if (library) dlclose(library);
    if (strcmp(target->named.backend, "hip")) target->counts = NULL;
}

/* Order of the emulator's counters. */
enum { SCALAR, VECTOR, TRANSCENDENTAL, MATRIX, LDS, MEMORY, CONSTANT, CONTROL, MATRIX_CYCLES };

/* A SIMD issues an instruction of a wave every 4 cycles, one of the transcendental functions every 16;
 * products run beside that for as long as the ISA documents say. With perfect overlap the longer of the two
 * remains; blocks that cannot fill a processor leave SIMDs idle. */
void tune_estimate(const uint64_t before[9], const uint64_t after[9], double fill, tune_timing *timing) {
    double count[9];
    for (int i = 0; i < 9; ++i) count[i] = (double)(after[i] - before[i]);
    timing->matrix = count[MATRIX_CYCLES] / fill;
    timing->issue = (4 * (count[SCALAR] + count[VECTOR] + count[MATRIX] + count[LDS] + count[MEMORY] +
                          count[CONSTANT] + count[CONTROL]) +
                     16 * count[TRANSCENDENTAL]) /
                    fill;
    timing->median = fmax(timing->matrix, timing->issue);
    timing->spread = 0;
    timing->runs = 1;
}
