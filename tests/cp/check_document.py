#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Builds and runs the C program of docs/context-parallel.md: check_document.py DOCUMENT MPICC MPIRUN INCLUDE LIBRARY"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile


def main(document, mpicc, mpirun, include, library):
    programs = re.findall(r"^```c\n(.*?)^```", pathlib.Path(document).read_text(), re.M | re.S)
    if len(programs) != 1:
        sys.exit(f"{document} has {len(programs)} C programs, one is expected")
    folder = os.path.dirname(library)
    first = []
    with tempfile.TemporaryDirectory(prefix="sternway-cp-") as work:
        source = pathlib.Path(work) / "program.c"
        source.write_text(programs[0])
        subprocess.run([mpicc, "-std=c11", "-Wall", "-Wextra", "-Werror", f"-I{include}", str(source), "-o", f"{work}/program", library,
                        f"-Wl,-rpath,{folder}"], check=True)
        for ranks in (1, 2, 3):
            done = subprocess.run([mpirun, "--oversubscribe", "-n", str(ranks), f"{work}/program"], capture_output=True, text=True,
                                  timeout=120, check=False)
            print(done.stdout[:600], done.stderr[:600])
            if done.returncode or f"over {ranks} ranks" not in done.stdout:
                sys.exit(f"{ranks} ranks: exit status {done.returncode}")
            first.append(float(re.search(r"dk\[0\] (\S+)", done.stdout)[1]))
    if not first[0] or max(first) - min(first) > 1e-5 * abs(first[0]):
        sys.exit(f"dk[0] depends on the number of ranks: {first}")


if __name__ == "__main__":
    main(*sys.argv[1:])
