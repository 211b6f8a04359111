/* SPDX-License-Identifier: MIT
 *
 * Drivers as run-time libraries: finds one of a list of sonames and fills a struct of function pointers
 * from rows (name, required, slot). Called by backends/gpu/driver.c and dispatch/probe_nvml.c. Nothing here
 * takes a path: the system's search order decides, and a library already in the process wins. */
#ifndef STW_COMMON_DSO_H
#define STW_COMMON_DSO_H

#include "common/status.h"

typedef struct stw_dso {
    void *handle;       /* NULL: not open               */
    const char *soname; /* which of the list it became  */
} stw_dso;

/* One function of a library. The X-macro files (backends/cuda/driver.def, ...) make these rows. */
typedef struct stw_dso_row {
    const char *name;
    int required;
    size_t slot; /* offset of its function pointer in the table */
} stw_dso_row;

/* Opens the first of `sonames` that is already in the process, else the first that loads. 1, or 0 with
 * the loader's words for every name added to `reason`. A name with a '/' is never tried. */
int stw_dso_open(stw_dso *dso, const char *const *sonames, size_t count, stw_text *reason);

/* Fills `table`. 1, or 0 when a required symbol is missing: all of those are listed in `missing`. Absent
 * optional symbols leave NULL and are listed in `absent`. Lists are separated by ", ". */
int stw_dso_bind(const stw_dso *dso, const stw_dso_row *rows, size_t count, void *table, stw_text *missing,
                 stw_text *absent);

/* Only for a library none of whose functions was called: drivers do not survive being unloaded. */
void stw_dso_close(stw_dso *dso);

#endif
