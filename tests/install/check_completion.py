#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A shell's completion offers every command, every long option of every command, and the archs of `sternway info`.

check_completion.py SHELL SCRIPT TOOL: the script is run by that shell itself, as its completion would run it; what it
offers is compared with --help as this file reads it. Skipped by name (77) where the shell is not installed.
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

from consumer import run

BASH = """source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}
_sternway; printf '%s\\n' "${COMPREPLY[@]}"
"""
# The two functions of zsh that show what is offered, replaced by ones that print it.
ZSH = """_describe() { print -rl -- "${(@P)${@[-1]}}"; }
_arguments() { print -rl -- "$@"; }
script=$1; shift
words=("$@"); CURRENT=$#
source $script
"""
# And once as at a terminal: the key completes an option of a command.
ZSH_TERMINAL = """zmodload zsh/zpty
zpty z zsh -f -i
zpty -w z "PS1='<rea''dy>'; fpath=($1 \\$fpath); autoload -U compinit; compinit -D -u"
zpty -r z seen '*<ready>*'
zpty -w -n z $'sternway conform --so\\t'
zpty -r z seen '*--so*ak*=*'
"""
FISH = 'source $argv[1]; complete -C "$argv[2]"'


def offered(shell, script, words):
    if shell == "bash":
        done = subprocess.run(["bash", "--norc", "-c", BASH, "bash", script, *words], capture_output=True, text=True, check=False)
        names = done.stdout.split()
    elif shell == "zsh":
        done = subprocess.run(["zsh", "-f", "-c", ZSH, "zsh", script, *words], capture_output=True, text=True, check=False)
        names = re.findall(r"^([^:[\n]+)", done.stdout, re.M)
    else:
        done = subprocess.run(["fish", "--no-config", "-c", FISH, script, " ".join(words)], capture_output=True, text=True,
                              check=False)
        names = [line.split("\t")[0] for line in done.stdout.splitlines()]
    if done.stderr:
        sys.exit(f"{shell}, {words}: {done.stderr}")
    return {name.rstrip("=") for name in names}


def archs_offered(shell, script):
    if shell != "zsh":
        return offered(shell, script, ["sternway", "run", "--arch", ""])
    done = subprocess.run(["zsh", "-f", "-c", ZSH, "zsh", script, "sternway", "run", ""], capture_output=True, text=True, check=False)
    return set(re.search(r"^--arch=.*:arch:\((.*)\)$", done.stdout, re.M).group(1).split())


def main():
    shell, script, tool = sys.argv[1:]
    if not shutil.which(shell):
        print(f"{shell} is not here")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as name: # a shell completes a command by the name it was called by
        os.symlink(tool, pathlib.Path(name, "sternway"))
        os.environ["PATH"] = f"{name}:{os.environ['PATH']}"
        os.environ["LC_ALL"] = "C.UTF-8"  # bash complains of a locale that is not installed
        commands = set(re.findall(r"^  ([a-z]+)  *\S", run(tool, "--help").split("Commands:")[1], re.M))
        problems = [] if commands else ["sternway --help lists no command"]
        if commands - offered(shell, script, ["sternway", ""]):
            problems.append(f"commands that are not offered: {commands - offered(shell, script, ['sternway', ''])}")
        for command in sorted(commands):
            wanted = set(re.findall(r"^  .{0,4}(--[a-z][a-z-]*)", run(tool, command, "--help"), re.M))
            got = {word for word in offered(shell, script, ["sternway", command, "--"]) if word.startswith("--")}
            if not {"--help", "--json"} <= wanted or got != wanted:
                problems.append(f"{command}: --help has {sorted(wanted)}, {shell} offers {sorted(got)}")
        if shell == "zsh":
            try:
                subprocess.run(["zsh", "-f", "-c", ZSH_TERMINAL, "zsh", pathlib.Path(script).parent], timeout=60, check=True)
            except (subprocess.TimeoutExpired, subprocess.CalledProcessError) as error:
                problems.append(f"at a terminal --so does not become --soak=: {error}")
        archs = set(re.findall(r"^  (\w+) +(?:cpu|cuda|hip)\b", run(tool, "info").split("device images:")[0], re.M))
        if not archs or archs_offered(shell, script) != archs:
            problems.append(f"archs {sorted(archs)}, {shell} offers {sorted(archs_offered(shell, script))}")
    if problems:
        sys.exit("\n".join(problems))


if __name__ == "__main__":
    main()
