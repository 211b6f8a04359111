# SPDX-License-Identifier: MIT
"""`python -m sternway COMMAND ...` runs the `sternway` command with the same arguments: the one in the package, else
that of the build tree the package is in, else the one on PATH."""
from __future__ import annotations

import os
import pathlib
import shutil
import sys


def command() -> str | None:
    """The path of the command, or None."""
    package = pathlib.Path(__file__).resolve().parent
    here = pathlib.Path(__file__).absolute().parent  # a build tree may hold links to the sources
    for path in (package / "bin/sternway", here / "bin/sternway", here.parents[1] / "bin/sternway"):
        if path.is_file() and os.access(path, os.X_OK):
            return str(path)
    return shutil.which("sternway")


def main() -> int:
    """Replaces this process by the command; 2 where there is none."""
    path = command()
    if path is None:
        print("sternway: the command is not there: neither in the package (bin/sternway) nor on PATH", file=sys.stderr)
        return 2
    sys.stdout.flush()
    os.execv(path, [path, *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
