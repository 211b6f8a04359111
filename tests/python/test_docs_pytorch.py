# SPDX-License-Identifier: MIT
"""The Python programs and commands that documents print, run as they stand.

```python blocks run each in names of its own, ```python gpu and ```python jax blocks where there is a GPU, or JAX;
```sh blocks of getting-started/pytorch.md line by line in the source tree, with this Python as `python`."""
from __future__ import annotations

import importlib.util
import os
import pathlib
import re
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
sternway = pytest.importorskip("sternway")

ROOT = pathlib.Path(__file__).resolve().parents[2]
README, START, MIGRATION = ROOT / "README.md", ROOT / "docs/getting-started/pytorch.md", ROOT / "docs/migration.md"
MASKS = ROOT / "docs/masks.md"
EXPECTED = {README: 1, START: 9, MIGRATION: 2, MASKS: 8}  # programs, so that a fence that is written otherwise is not lost


def programs(document: pathlib.Path) -> list:
    """The blocks of a document, named by the heading above them."""
    text = document.read_text(encoding="utf-8")
    found = []
    for match in re.finditer(r"^```python( gpu| jax)?\n(.*?)^```", text, re.M | re.S):
        heading = re.findall(r"^#+ (.*)$", text[:match.start()], re.M)[-1]
        no_jax = pytest.mark.skipif(not importlib.util.find_spec("jax"), reason="no JAX")
        marks = {" gpu": [pytest.mark.gpu], " jax": [no_jax], None: []}[match.group(1)]
        name = f"{document.name}: {heading}"
        found.append(pytest.param(match.group(2), name, marks=marks, id=name))
    return found


@pytest.fixture(autouse=True)
def nothing_enabled():
    """Each program begins with PyTorch as it is and with counts of 0."""
    import sternway.torch
    sternway.torch.reset_stats()
    torch.manual_seed(20)
    yield
    sternway.torch.disable()


@pytest.mark.parametrize("source, name", [program for document in EXPECTED for program in programs(document)])
def test_program(source: str, name: str, capsys: pytest.CaptureFixture) -> None:
    exec(compile(source, name, "exec"), {"__name__": "__main__"})
    printed = capsys.readouterr().out
    assert "nan" not in printed.lower()
    assert printed or "print(" not in source


@pytest.mark.parametrize("document", EXPECTED, ids=lambda path: path.stem)
def test_no_program_is_lost(document: pathlib.Path) -> None:
    assert len(programs(document)) == EXPECTED[document]
    fences = re.findall(r"^```(?!(?:python(?: gpu| jax)?|sh|c)\n)\S", document.read_text(encoding="utf-8"), re.M)
    assert not fences, "a block of another language, which nothing runs"


def lines() -> list[str]:
    blocks = re.findall(r"^```sh\n(.*?)^```", START.read_text(encoding="utf-8"), re.M | re.S)
    return "".join(blocks).splitlines()


@pytest.mark.parametrize("line", lines())
def test_command(line: str, tmp_path: pathlib.Path) -> None:
    (tmp_path / "python").symlink_to(sys.executable)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "STERNWAY_BACKEND": "cpu",
                   "OMP_NUM_THREADS": "1"}
    # found where this test found it: a link to a venv's Python would not find the venv
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run(["sh", "-ec", line], cwd=ROOT, env=environment, check=False, capture_output=True, text=True,
                          timeout=120)
    print(done.stdout, done.stderr)
    assert not done.returncode
    if "explain" in line:
        assert "cpu: chosen" in done.stdout
