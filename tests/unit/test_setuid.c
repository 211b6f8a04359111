/* SPDX-License-Identifier: MIT
 *
 * A program that runs with another's rights reads no STERNWAY_ variable: a copy of this one, set-uid to nobody, opens a
 * context under variables of which each alone would refuse it, write a file or a line. The same copy without the bit is
 * refused. Skipped where none can be made: without root, on a file system that ignores the bit, under no_new_privs. */
#include "sternway/sternway.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#define NOBODY 65534
enum { OPENED, REFUSED, NOT_SECURE, SKIPPED = 77 };

/* What the copy does. */
static int open_context(const char *mode) {
    stw_context_opts opts = STW_INIT(stw_context_opts);
    stw_context *context = NULL;
    int secure = getauxval(AT_SECURE) != 0;
    if (!strcmp(mode, "secure") && !secure) return NOT_SECURE;
    opts.memory = STW_MEMORY_HOST;
    stw_status status = stw_context_create(&opts, &context);
    printf("%s, AT_SECURE %d: %s\n", mode, secure, status ? stw_last_error() : stw_context_arch(context));
    stw_context_destroy(context);
    return status ? REFUSED : OPENED;
}

static int copy_self(const char *path, mode_t mode, uid_t owner) {
    char bytes[65536];
    int from = open("/proc/self/exe", O_RDONLY | O_CLOEXEC), to = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0700);
    ssize_t more = from < 0 || to < 0 ? -1 : 1;
    while (more > 0) {
        more = read(from, bytes, sizeof bytes);
        if (more > 0 && write(to, bytes, (size_t)more) != more) more = -1;
    }
    int bad = more < 0 || fchown(to, owner, (gid_t)-1) || fchmod(to, mode);
    close(from);
    close(to);
    return !bad;
}

/* Exit status of the copy, with one variable in its environment; its standard error goes to `log`. */
static int run(const char *path, const char *mode, char *variable, const char *log) {
    pid_t pid = fork();
    int status = -1;
    if (pid == 0) {
        char *argv[] = {(char *)(uintptr_t)path, (char *)(uintptr_t)mode, NULL}, *environment[] = {variable, NULL};
        int to = open(log, O_WRONLY | O_CREAT | O_TRUNC, 0666);
        if (to < 0 || dup2(to, STDERR_FILENO) < 0) _exit(99);
        execve(path, argv, environment);
        _exit(98);
    }
    if (pid < 0 || waitpid(pid, &status, 0) != pid || !WIFEXITED(status)) return -1;
    return WEXITSTATUS(status);
}

static int failures;

static void check(int good, const char *variable, const char *what) {
    if (good) return;
    printf("FAIL %s: %s\n", variable, what);
    ++failures;
}

static long size_of(const char *path) {
    struct stat at;
    return stat(path, &at) ? -1 : (long)at.st_size;
}

int main(int argc, char **argv) {
    char folder[] = "/tmp/sternway-setuid-XXXXXX", plain[64], secure[64], log[64], file[64], log_file[96];
    struct statvfs mount;
    if (argc == 2) return open_context(argv[1]);
    if (geteuid() || !mkdtemp(folder)) {
        puts("skip: a copy of another owner needs root");
        return SKIPPED;
    }
    snprintf(plain, sizeof plain, "%s/plain", folder);
    snprintf(secure, sizeof secure, "%s/secure", folder);
    snprintf(log, sizeof log, "%s/log", folder);
    snprintf(file, sizeof file, "%s/file", folder);
    snprintf(log_file, sizeof log_file, "STERNWAY_LOG_FILE=%s", file);
    char variables[][96] = {"STERNWAY_BACKEND=nonsense", "STERNWAY_TUNING=/no/such/file",
                            "STERNWAY_CPU_THREADS=-1",   "STERNWAY_LOG=nonsense",
                            "STERNWAY_UNKNOWN=1",        ""};
    enum { COUNT = sizeof variables / sizeof variables[0], UNKNOWN = COUNT - 2, LOG_FILE = COUNT - 1 };
    memcpy(variables[LOG_FILE], log_file, sizeof log_file);
    int skipped = chmod(folder, 0777) || statvfs(folder, &mount) || (mount.f_flag & ST_NOSUID) ||
                  !copy_self(plain, 0755, 0) || !copy_self(secure, 04755, NOBODY) ||
                  run(secure, "secure", variables[0], log) == NOT_SECURE;
    for (int i = 0; i < COUNT && !skipped; ++i) {
        int refused = i < UNKNOWN;
        int status = run(plain, "plain", variables[i], log);
        check(status == (refused ? REFUSED : OPENED), variables[i], "the plain copy does not read it");
        if (i == UNKNOWN) check(size_of(log) > 0, variables[i], "the plain copy does not warn of it");
        if (i == LOG_FILE) check(size_of(file) >= 0, variables[i], "the plain copy does not open it");
        unlink(file);
        status = run(secure, "secure", variables[i], log);
        check(status == OPENED, variables[i], "the set-uid copy is refused");
        check(size_of(log) == 0, variables[i], "the set-uid copy writes to standard error");
        check(size_of(file) < 0, variables[i], "the set-uid copy writes a file");
    }
    unlink(plain);
    unlink(secure);
    unlink(log);
    unlink(file);
    rmdir(folder);
    puts(skipped ? "skip: no set-uid copy runs with other rights here" : failures ? "FAILED" : "ok");
    return skipped ? SKIPPED : failures != 0;
}
