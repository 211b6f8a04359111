/* SPDX-License-Identifier: MIT
 *
 * The `sternway` command: picks the subcommand. Each of them parses its own options. */
#include "tools/base/tool.h"
#include "tools/problem/problem.h"
#include "common/status.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    int (*main)(int argc, char **argv);
    const char *help;
} commands[] = {
    {"info", stw_tool_info, "version, archs, images, devices, environment in force"},
    {"explain", stw_tool_explain, "for a PROBLEM, every backend: chosen, or why not"},
    {"run", stw_tool_run, "gradients of safetensors files, compared with references"},
    {"conform", stw_tool_conform, "the conformance suite: every feature against the float64 reference"},
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
        fprintf(to, "  %-9s %s\n", commands[i].name, commands[i].help);
    fputs("\n`sternway COMMAND --help` tells the rest, `sternway help problem` how a PROBLEM\n"
          "is written; every command takes --json.\n"
          "Exit status: 0 all went well, 1 what was checked failed or the machine did,\n"
          "2 the command line or an input is wrong.\n",
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

int main(int argc, char **argv) {
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
        int status = commands[i].main(argc - 1, argv + 1);
        if (fflush(stdout) || ferror(stdout)) {
            stw_tool_error(name, NULL, "standard output cannot be written");
            return status ? status : STW_EXIT_FAILED;
        }
        return status;
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
