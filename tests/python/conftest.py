# SPDX-License-Identifier: MIT
"""What all tests of the Python package share: the marker `gpu`, seeds, the backend's name."""
from __future__ import annotations

import importlib.util
import random
import sys

import pytest


def _gpu() -> str | None:
    """The backend of PyTorch's GPU, or None."""
    if importlib.util.find_spec("torch") is None:
        return None
    import torch

    if not torch.cuda.is_available():
        return None
    return "hip" if torch.version.hip else "cuda"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "gpu: needs a GPU that PyTorch sees; skipped by name elsewhere")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked and _gpu() is None:
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs a GPU that PyTorch sees"))


@pytest.fixture(autouse=True)
def seeds() -> None:
    """The same random numbers for a test whether it runs alone or with others; only libraries that are loaded."""
    random.seed(20)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(20)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(20)


@pytest.fixture
def backend_name(request: pytest.FixtureRequest) -> str:
    """The backend that serves the test's tensors: "cpu", for a test marked gpu "cuda" or "hip"."""
    return (_gpu() or "cpu") if request.node.get_closest_marker("gpu") else "cpu"
