#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs one file of tests of the Python package under CTest: run.py PACKAGES tests|gpu|all|script FILE

PACKAGES is the folder that holds the package `sternway` (build/release/python). `tests` runs what is not marked gpu,
`gpu` what is, `all` both, `script` a program that needs a GPU. Exits with 77 (skipped), and a line that says why, where
the package, pytest, numpy or a GPU is absent and where every test was skipped. Settings of the caller's (STERNWAY_...)
are not the tests'."""
from __future__ import annotations

import importlib.util
import os
import pathlib
import runpy
import sys


def skipped(reason: str) -> None:
    print(f"skipped: {reason}")
    sys.exit(77)


def settle(packages: pathlib.Path) -> None:
    """The environment of this process and of those that tests start."""
    for name in list(os.environ):
        if name.startswith("STERNWAY_"):
            del os.environ[name]
    os.environ["PYTHONPATH"] = str(packages)
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(packages))


class Counter:
    """How many tests ran to their end."""

    def __init__(self) -> None:
        self.ran = 0

    def pytest_runtest_logreport(self, report) -> None:
        self.ran += report.when == "call" and not report.skipped


def run_tests(file: pathlib.Path, kind: str) -> int:
    import pytest

    counter = Counter()
    marks = {"tests": ["-m", "not gpu"], "gpu": ["-m", "gpu"], "all": []}[kind]
    status = int(pytest.main(["-q", "-rs", "-p", "no:cacheprovider", *marks, f"--rootdir={file.parent}", str(file)],
                             plugins=[counter]))
    if status in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED) and not counter.ran:
        skipped("no test of this file ran here")
    return status


def run_script(file: pathlib.Path) -> None:
    if importlib.util.find_spec("torch") is None:
        skipped("no PyTorch")
    import torch

    if not torch.cuda.is_available():
        skipped("needs a GPU that PyTorch sees")
    sys.path.insert(0, str(file.parent))
    sys.argv = [str(file)]
    runpy.run_path(str(file), run_name="__main__")


def main() -> int:
    packages, kind, file = pathlib.Path(sys.argv[1]).absolute(), sys.argv[2], pathlib.Path(sys.argv[3]).absolute()
    if sys.version_info < (3, 10):
        skipped(f"Python {sys.version.split()[0]}: the package needs 3.10")
    if not (packages / "sternway/_native.abi3.so").exists():
        skipped(f"no sternway in {packages}: Python's headers (python3-dev) were not there when it was built")
    for module in ("numpy",) if kind == "script" else ("pytest", "numpy"):
        if importlib.util.find_spec(module) is None:
            skipped(f"no {module} for {sys.executable}")
    settle(packages)
    if kind == "script":
        run_script(file)
        return 0
    return run_tests(file, kind)


if __name__ == "__main__":
    sys.exit(main())
