/* SPDX-License-Identifier: MIT
 *
 * Stands in for libFuzzer where it is not built: runs every file of the folders given through the target
 * once, so that the seeds (and every crash that was added to them) are tried in every build. */
#include "fuzz.h"

#include <dirent.h>

static int run_file(const char *path) {
    FILE *file = fopen(path, "rb");
    if (!file) return 0;
    static uint8_t data[1 << 20];
    const size_t size = fread(data, 1, sizeof data, file);
    fclose(file);
    uint8_t *exact = malloc(size ? size : 1); /* so that a sanitizer sees a read beyond its end */
    if (!exact) abort();
    memcpy(exact, data, size);
    LLVMFuzzerTestOneInput(exact, size);
    free(exact);
    return 1;
}

int main(int argc, char **argv) {
    int ran = 0;
    for (int i = 1; i < argc; ++i) {
        DIR *folder = opendir(argv[i]);
        if (!folder) continue;
        for (const struct dirent *entry; (entry = readdir(folder));) {
            char path[4096];
            if (entry->d_name[0] == '.') continue;
            snprintf(path, sizeof path, "%s/%s", argv[i], entry->d_name);
            ran += run_file(path);
        }
        closedir(folder);
    }
    printf("%d inputs\n", ran);
    return ran ? 0 : 1; /* no corpus: nothing was tested */
}
