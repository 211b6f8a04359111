/* SPDX-License-Identifier: MIT
 *
 * The `sternway` command: picks the subcommand. Each of them parses its own options. */
#include "tools/base/stop.h"
#include "tools/base/tool.h"
#include "tools/problem/problem.h"
#include "common/status.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct {
    const char *name;
    int (*main)(int argc, char **argv);
    const char *help;
} commands[] = {
    {"info", stw_tool_info, "version, archs, images, devices, environment in force"},
    {"explain", stw_tool_explain, "for a PROBLEM, every backend: chosen, or why not"},
    {"run", stw_tool_run, "gradients of safetensors files, compared with references"},
    {"conform", stw_tool_conform, "the conformance suite: every feature against the float64 reference"},
    {"cp-conform", stw_tool_cp_conform, "attention over ranks, against the float64 reference of the whole"},
    {"bench", stw_tool_bench, "time PROBLEMs, verified first"},
    {"tune", stw_tool_tune, "time every variant on PROBLEMs; rules for the tuning tables"},
    {"doctor", stw_tool_doctor, "one report for an issue: build, machine, choice, a short test"},
};

static void print_version(FILE *to) {
    uint32_t v = stw_version();
    fprintf(to, "sternway %u.%u.%u\n", v / 10000, v / 100 % 100, v % 100);
}

static void print_help(FILE *to) {
    fputs("Usage: sternway COMMAND [OPTION...] [ARGUMENT...]\n"
          "The backward pass of attention on NVIDIA and AMD GPUs and on the CPU.\n\nCommands:\n",
          to);
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; ++i)
        fprintf(to, "  %-10s %s\n", commands[i].name, commands[i].help);
    fputs("\n`sternway COMMAND --help` tells the rest, `sternway help problem` how a PROBLEM\n"
          "is written; every command takes --json.\n"
          "Exit status: 0 all went well, 1 what was checked failed or the machine did,\n"
          "2 the command line or an input is wrong, 128 + its number where a signal ended\n"
          "the command early: what had finished is reported, marked as partial.\n",
          to);
}

static void print_problem_help(void) {
    char line[2048];
    puts("A PROBLEM is one line, words between colons:\n"
         "  attn_bwd:bf16:b4h32k8s4096d128:causal_br:dropout0.1\n"
         "first the operation (attn_bwd, attn_fwd or jagged_*), then the type (f16, bf16,\n"
         "f32, f64) and the sizes b<B>h<Hq>[k<Hk>]s<Sq>[x<Sk>]d<D>[x<Dv>], then options:");
    stw_text options = stw_text_in(line, sizeof line);
    stw_problem_options(&options);
    stw_tool_fold(stdout, line + 1, printf("  "), 2, 80);
    puts("causal_tl and causal_br: causal, the diagonal at the top left or bottom right;\n"
         "wl, wr: a window's keys left and right of it. tests/problem/README.md of the\n"
         "sources explains every word, those of jagged_* too.");
}

/* A pipe or a file that we open must not become a standard stream that the caller has closed. Using one fails as it
 * would have. */
static void keep_closed_streams(void) {
    for (int fd = 0; fd <= STDERR_FILENO; ++fd)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd ? O_RDONLY : O_WRONLY) != fd) _exit(STW_EXIT_FAILED);
}

/* A reader who has gone is told nothing. */
static int is_output_lost(const char *name) {
    if (!fflush(stdout) && !ferror(stdout)) return 0;
    if (!stw_tool_stopped()) stw_tool_error(name, NULL, "standard output cannot be written");
    return 1;
}

static const char *running = "help"; /* NULL: the command has ended and its output was looked at */

/* Of a process that ends elsewhere: argp does behind --help. */
static void check_output(void) {
    if (running && is_output_lost(running)) _exit(STW_EXIT_FAILED);
}

static int run_command(int (*command)(int, char **), int argc, char **argv) {
    running = argv[0];
    int status = command(argc, argv);
    int lost = is_output_lost(running);
    if (!stw_tool_json_is_whole()) {
        stw_tool_error(running, NULL, "out of memory");
        lost = 1;
    }
    running = NULL;
    return stw_tool_stop_end(lost && !status ? STW_EXIT_FAILED : status);
}

int main(int argc, char **argv) {
    keep_closed_streams();
    atexit(check_output);
    stw_tool_json_watch();
    const char *name = argc > 1 ? argv[1] : NULL;
    if (!name) {
        print_help(stderr);
        return STW_EXIT_USAGE;
    }
    if (!strcmp(name, "help") && argc == 3 && strcmp(argv[2], "problem")) { /* help run: run --help */
        static char option[] = "--help";
        name = argv[1] = argv[2];
        argv[2] = option;
    }
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; ++i) {
        if (strcmp(name, commands[i].name)) continue;
        stw_tool_fold_log();
        return run_command(commands[i].main, argc - 1, argv + 1);
    }
    if (!strcmp(name, "help") && argc == 3 && !strcmp(argv[2], "problem")) {
        print_problem_help();
    } else if (!strcmp(name, "--help") || !strcmp(name, "-?") || !strcmp(name, "-h") || !strcmp(name, "help")) {
        print_help(stdout);
    } else if (!strcmp(name, "--version") || !strcmp(name, "-V")) {
        print_version(stdout);
    } else {
        fprintf(stderr, "sternway: '%.40s' is not a command\n", name);
        print_help(stderr);
        return STW_EXIT_USAGE;
    }
    return STW_EXIT_OK;
}
