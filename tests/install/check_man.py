#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A manual page exists for the command and each of its commands and holds every option of --help; where doxygen was found,
each exported function has one and its header's page describes it; groff has no complaint of any."""
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
    return problems + complaints(path, page, groff)


def complaints(path, page, groff):
    done = subprocess.run([groff, "-man", "-ww", "-z", "-Tutf8"], input=page, capture_output=True, text=True, check=False)
    return [f"{path.name}: {done.stderr}"] if done.returncode or done.stderr else []


def check_api(folder, functions, groff):
    """stw_attn_bwd.3 leads to sternway_attn_bwd.h.3, which has its prototype."""
    problems = [] if functions else ["no exported function is known"]
    pages = {path.name[:-len(".3.gz")]: gzip.decompress(path.read_bytes()).decode() for path in folder.glob("*.3.gz")}
    for name in functions:
        header = re.fullmatch(r"\.so man3/(sternway_\w+\.h)\.3\n", pages.get(name, ""))
        if not header:
            problems.append(f"{name}(3) is not made, or leads nowhere")
        elif not re.search(rf"\.SS \"[^\n]*\b{name} \(", pages.get(header.group(1), "")):
            problems.append(f"{header.group(1)}(3) does not describe {name}")
    for name, page in pages.items():
        target = re.match(r"\.so man3/(\S+)\.3\n", page)
        if target:
            problems += [] if target.group(1) in pages else [f"{name}(3) leads to no page"]
            continue
        if not page.startswith(f'.TH "{name}" 3 ') or f"\n.SH NAME\n{name} \\- " not in page or "Generated auto" in page:
            problems.append(f"{name}(3): title or NAME is not its own")
        problems += complaints(folder / name, page, groff)
    return problems


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tool", required=True)
    parser.add_argument("--pages", type=pathlib.Path, required=True)
    parser.add_argument("--exports", type=pathlib.Path, required=True)
    options = parser.parse_args()
    groff = shutil.which("groff")
    if not groff or not any(options.pages.glob("*.1.gz")):
        print("groff is not here, or help2man was not when this was built")
        sys.exit(77)
    commands = commands_of(run(options.tool, "--help"))
    problems = [] if commands else ["sternway --help lists no command"]
    for command in [[], *([name] for name in commands)]:
        problems += check_page(options.pages / ("-".join(["sternway", *command]) + ".1.gz"), options.tool, command, groff)
    if (options.pages / "man3").is_dir():
        problems += check_api(options.pages / "man3", re.findall(r"\b(stw_\w+);", options.exports.read_text()), groff)
    if problems:
        sys.exit("\n".join(problems))


if __name__ == "__main__":
    main()
