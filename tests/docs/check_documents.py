#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs what documents print.

commands DOCUMENT --tool T   the ```sh blocks, line by line, in an empty folder, with the command under test as `sternway`
figures FOLDER               make_figures.py draws the pictures that are committed
decisions DOCUMENT           an entry has a date, a title and at most eight lines of 120 characters
texts FOLDER                 the texts of the troubleshooting tables are texts of the sources
"""
import argparse
import os
import pathlib
import re
import subprocess
import sys
import tempfile


def run(command, folder, environment):
    done = subprocess.run(command, cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True, check=False,
                          timeout=250)
    if done.returncode:
        sys.exit(f"{command}: exit status {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout + done.stderr


def blocks(document, language):
    found = re.findall(rf"^```{language}\n(.*?)^```", document.read_text(), re.M | re.S)
    if not found:
        sys.exit(f"{document} has no block of {language}")
    return found


def commands(options):
    with tempfile.TemporaryDirectory(prefix="sternway-docs-") as folder:
        (pathlib.Path(folder) / "bin").mkdir()
        (pathlib.Path(folder) / "bin/sternway").symlink_to(options.tool)
        path = {"PATH": f"{folder}/bin:{os.environ['PATH']}"}
        for line in "".join(blocks(options.path, "sh")).splitlines():
            words = run(["sh", "-ec", line], folder, path)
            print(f"$ {line}\n{words[:400]}")
            if options.expect and "explain" in line and options.expect not in words:
                sys.exit(f"{line}: no {options.expect!r} in what it says:\n{words}")


def figures(options):
    with tempfile.TemporaryDirectory(prefix="sternway-docs-") as folder:
        run([sys.executable, "-B", str(options.path / "make_figures.py"), folder], folder, {})
        made = {path.name: path.read_text() for path in pathlib.Path(folder).glob("*.svg")}
    kept = {path.name: path.read_text() for path in options.path.glob("*.svg")}
    if not made or made != kept:
        sys.exit(f"docs/figures: drawn {sorted(made)}, kept {sorted(kept)}; other: "
                 f"{sorted(name for name in made if made[name] != kept.get(name))}")


def decisions(options):
    entries = options.path.read_text().strip().split("\n\n")[1:]
    wrong = [entry[:80] for entry in entries
             if not re.match(r"\*\*20\d\d-\d\d-\d\d, [^*]+\.\*\*\s", entry) or len(entry.splitlines()) > 8 or
             max(map(len, entry.splitlines())) > 120]
    if wrong or len(entries) < 60:
        sys.exit(f"{options.path}: {len(entries)} entries; no date and title, or more than 8 lines of 120 characters:\n" + "\n".join(wrong))


def texts(options):
    root, fragments = options.path.parents[1], {"CUDA_ERROR_NO_DEVICE", ": cannot open shared object file"}  # the drivers', the linker's
    for folder in ("include", "common", "dispatch", "backends", "python"):
        for path in (path for path in (root / folder).rglob("*") if path.suffix in (".c", ".h", ".py")):
            source = re.sub(r'"\s*\n\s*f?"', "", path.read_text())  # one literal over several lines
            fragments.update(re.findall(r"\bSTW_E_\w+", source))
            for literal in re.findall(r'"((?:[^"\\\n]|\\.)*)"', source):
                literal = literal.replace('\\"', '"')
                gaps = r"\{[^}]*\}" if path.suffix == ".py" else r"%[-.*\d]*[a-z]+"
                fragments.update(part for part in re.split(gaps, literal) if len(part.strip()) >= 7)
    seen, missing = 0, []
    for document in sorted(options.path.glob("*.md")):
        rows = document.read_text().split("## Troubleshooting")[1]
        for text in re.findall(r"^\| .*?`([^`]+)`", rows, re.M):
            seen += 1
            if text.startswith("sternway info") or text.startswith("variant: cpu_"):
                continue
            said = [any(text in part for part in fragments)] * len(text)  # characters that come from the sources
            for part in fragments:
                for place in re.finditer(re.escape(part), text):
                    said[place.start():place.end()] = [True] * len(part)
            if sum(said) < 0.55 * len(text):
                missing.append(f"{document}: nothing in the sources says {text!r}")
    if missing or seen < 15:
        sys.exit("\n".join(missing) or f"only {seen} texts were found")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    checks = {"commands": commands, "decisions": decisions, "figures": figures, "texts": texts}
    parser.add_argument("check", choices=sorted(checks))
    parser.add_argument("path", type=pathlib.Path)
    parser.add_argument("--tool", type=pathlib.Path)
    parser.add_argument("--expect", help="what every `explain` of the document must say")
    options = parser.parse_args()
    checks[options.check](options)


if __name__ == "__main__":
    main()
