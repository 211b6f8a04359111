/* SPDX-License-Identifier: MIT
 *
 * dlopen by bare soname and symbol tables. The rules are in dso.h. */
#include "common/dso.h"

#include <dlfcn.h>
#include <string.h>

/* An empty name would be the program itself, one with a '/' a path: neither is a system library. */
static int soname_is_bare(const char *soname) { return soname[0] && !strchr(soname, '/'); }

static int open_with(stw_dso *dso, const char *const *sonames, size_t count, int flags, stw_text *reason) {
    for (size_t i = 0; i < count; ++i) {
        if (!soname_is_bare(sonames[i])) {
            if (reason)
                stw_text_add(reason, "%s\"%s\" is not a bare library name", reason->length ? "; " : "", sonames[i]);
            continue;
        }
        dso->handle = dlopen(sonames[i], flags);
        if (dso->handle) {
            dso->soname = sonames[i];
            return 1;
        }
        const char *words = dlerror(); /* never NULL after a failure */
        if (reason) stw_text_add(reason, "%s%s", reason->length ? "; " : "", words);
    }
    return 0;
}

int stw_dso_open(stw_dso *dso, const char *const *sonames, size_t count, stw_text *reason) {
    *dso = (stw_dso){NULL, NULL};
    return open_with(dso, sonames, count, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD, NULL) ||
           open_with(dso, sonames, count, RTLD_NOW | RTLD_LOCAL, reason);
}

int stw_dso_bind(const stw_dso *dso, const stw_dso_row *rows, size_t count, void *table, stw_text *missing,
                 stw_text *absent) {
    int complete = 1;
    for (size_t i = 0; i < count; ++i) {
        void *symbol = dlsym(dso->handle, rows[i].name);
        memcpy((char *)table + rows[i].slot, &symbol, sizeof symbol); /* POSIX: object and function pointers agree */
        if (symbol) continue;
        stw_text *list = rows[i].required ? missing : absent;
        stw_text_add(list, "%s%s", list->length ? ", " : "", rows[i].name);
        if (rows[i].required) complete = 0;
    }
    return complete;
}

void stw_dso_close(stw_dso *dso) {
    if (dso->handle) dlclose(dso->handle);
    *dso = (stw_dso){NULL, NULL};
}
