#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The API reference is complete: doxygen, with warnings as errors, says nothing about the headers. That it would say
something is shown on copies of the headers from which one piece of documentation was taken."""
import argparse
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

# header, what is taken out, what doxygen must then name
BROKEN = (
    ("attn_bwd.h", r"^ \* @param capacity .*\n", "capacity"),
    ("attn_bwd.h", r"^ \* @return bytes of workspace.*\n.*(?= \*/$)", "stw_plan_workspace_size"),
    ("attn_desc.h", r" /\*\*< Hk .*?\*/", "heads_kv"),
    ("base.h", r" /\*\*< an allocation failed .*?\*/", "STW_E_NO_MEMORY"),
    ("jagged_desc.h", r" /\*\*< dW, dGamma .*?\*/", "STW_JAGGED_DWEIGHT"),
    ("jagged_bwd.h", r" /\*\*< as other  .*?\*/", "dother"),
)


def undocumented_values(folder):
    """Values of enums without a word, of which doxygen before 1.10 says nothing."""
    words = ""
    for page in (folder / "xml").glob("*.xml"):
        for value in xml.etree.ElementTree.parse(page).iter("enumvalue"):
            texts = [value.find(f"{kind}description") for kind in ("brief", "detailed")]
            if not any("".join(text.itertext()).strip() for text in texts):
                words += f"{value.findtext('name')} is not documented\n"
    return words


def run_doxygen(options, source, folder):
    """What doxygen says of the headers under `source`; '' is praise."""
    text = pathlib.Path(options.doxyfile).read_text().replace(str(options.source), str(source))
    (folder / "Doxyfile").write_text(f"{text}\nOUTPUT_DIRECTORY = {folder}\nGENERATE_XML = YES\n")
    done = subprocess.run([options.doxygen, str(folder / "Doxyfile")], capture_output=True, text=True, check=False, timeout=100)
    words = done.stdout + done.stderr + undocumented_values(folder)
    return words or (f"exit status {done.returncode}" if done.returncode else "")


def main():
    parser = argparse.ArgumentParser()
    for name in ("doxygen", "doxyfile"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--source", required=True, type=pathlib.Path)
    options = parser.parse_args()
    if not options.doxygen or options.doxygen.endswith("NOTFOUND"):
        print("doxygen is not here")
        return 77
    problems = []
    with tempfile.TemporaryDirectory(prefix="sternway-docs-") as name:
        folder = pathlib.Path(name)
        words = run_doxygen(options, options.source, folder)
        if words:
            problems.append(words)
        pages = list((folder / "xml").glob("structstw__attn__desc.xml"))
        if not pages or "window_left" not in pages[0].read_text():
            problems.append("doxygen wrote no page of stw_attn_desc")
        for index, (header, taken, named) in enumerate(BROKEN):
            copy = folder / str(index)
            shutil.copytree(options.source / "include", copy / "include")
            (copy / "docs").mkdir()
            shutil.copy(options.source / "docs/api.md", copy / "docs/api.md")
            path = copy / "include/sternway" / header
            text, count = re.subn(taken, "", path.read_text(), count=1, flags=re.M)
            path.write_text(text)
            words = run_doxygen(options, copy, copy)
            if not count or named not in words:
                problems.append(f"{header} without the text of {named} ({count} taken): doxygen says {words[:600]!r}")
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
