/* SPDX-License-Identifier: MIT
 *
 * Whether an address lies in a mapped file. hipModuleLoadData looks the same up in /proc/self/maps, and opens what it
 * finds by name; the fake and the emulated runtime refuse instead. */
#ifndef STW_TESTS_LOADER_FILE_BEHIND_H
#define STW_TESTS_LOADER_FILE_BEHIND_H

#include <stdint.h>
#include <stdio.h>

static inline int file_behind(const void *address) {
    char line[4352];
    int found = 0;
    FILE *maps = fopen("/proc/self/maps", "re");
    while (maps && fgets(line, sizeof line, maps)) {
        unsigned long low, high, inode = 0;
        if (sscanf(line, "%lx-%lx %*s %*s %*s %lu", &low, &high, &inode) != 3) continue;
        if ((uintptr_t)address >= low && (uintptr_t)address < high) found = inode != 0;
    }
    if (maps) fclose(maps);
    return found;
}

#endif
