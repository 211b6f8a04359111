/* SPDX-License-Identifier: MIT
 *
 * The `sternway` command: picks the subcommand. Each of them parses its own options. */
#include "tools/base/tool.h"

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
    fputs("\n`sternway COMMAND --help` tells the rest; every command takes --json.\n"
          "Exit status: 0 all went well, 1 what was checked failed or the machine did,\n"
          "2 the command line or an input is wrong.\n",
          to);
}

int main(int argc, char **argv) {
    const char *name = argc > 1 ? argv[1] : NULL;
    if (!name) {
        print_help(stderr);
        return STW_EXIT_USAGE;
    }
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; ++i) {
        if (strcmp(name, commands[i].name)) continue;
        int status = commands[i].main(argc - 1, argv + 1);
        if (fflush(stdout) || ferror(stdout)) {
            stw_tool_error(name, NULL, "standard output cannot be written");
            return status ? status : STW_EXIT_FAILED;
        }
        return status;
    }
    if (!strcmp(name, "--help") || !strcmp(name, "-?") || !strcmp(name, "-h") || !strcmp(name, "help")) {
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
