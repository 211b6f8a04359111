#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A manual page exists for the command and each of its commands, holds every option of --help, and groff has no complaint."""
import argparse
import gzip
import pathlib
import re
import shutil
import subprocess
import sys

from consumer import run


def commands_of(text):
    return re.findall(r"^  ([a-z]+)  *\S", text.split("Commands:")[1], re.M)


def plain(page):
    """A page's words: hyphens as such, without the marks of fonts."""
    text = re.sub(r"\\f[A-Z]|\\/|\\,", "", page)
    return text.replace("\\-", "-").replace("\\&", "")


def check_page(path, tool, command, groff):
    if not path.is_file():
        return [f"{path.name} is not made"]
    page = gzip.decompress(path.read_bytes()).decode()
    problems = []
    words = plain(page)
    for option in sorted(set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", run(tool, *command, "--help")))):
        if not re.search(re.escape(option) + r"(?![a-z-])", words):
            problems.append(f"{path.name} lacks {option}")
    name = "-".join(["sternway", *command])
    if not re.search(rf"\.SH NAME\n{name} - \S", words):
        problems.append(f"{path.name}: its NAME is not {name}")
    done = subprocess.run([groff, "-man", "-ww", "-z", "-Tutf8"], input=page, capture_output=True, text=True, check=False)
    if done.returncode or done.stderr:
        problems.append(f"{path.name}: {done.stderr}")
    return problems


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tool", required=True)
    parser.add_argument("--pages", type=pathlib.Path, required=True)
    options = parser.parse_args()
    groff = shutil.which("groff")
    if not groff or not any(options.pages.glob("*.1.gz")):
        print("groff is not here, or help2man was not when this was built")
        sys.exit(77)
    commands = commands_of(run(options.tool, "--help"))
    problems = [] if commands else ["sternway --help lists no command"]
    for command in [[], *([name] for name in commands)]:
        problems += check_page(options.pages / ("-".join(["sternway", *command]) + ".1.gz"), options.tool, command, groff)
    if problems:
        sys.exit("\n".join(problems))


if __name__ == "__main__":
    main()
