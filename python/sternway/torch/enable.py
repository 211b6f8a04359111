# SPDX-License-Identifier: MIT
"""enable() and disable(): PyTorch's own backward operators run through the library.

A model is not touched: autograd, torch.compile and CUDA graphs call the operators that they always called, and
PyTorch's dispatcher finds the library's implementation (_takeover.py). Forwards stay PyTorch's."""
from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from types import TracebackType

from . import _takeover, attention_ops, nested_ops  # noqa: F401 (the last two register their operators)
from ._takeover import reset_stats, stats

__all__ = ["enable", "disable", "stats", "reset_stats", "Enabled"]

_lock = threading.RLock()
_stack: list[Enabled] = []  # the last one is in force; one that no `with` entered gives way to the next


def _after_fork() -> None:
    global _lock
    _lock = threading.RLock()  # as in _takeover.py


os.register_at_fork(after_in_child=_after_fork)


def _apply() -> None:
    _takeover.activate(_stack[-1].switches if _stack else {})


class Enabled:
    """What enable() returns: in force at once, and as a context manager until the block ends. Its `operators` are the
    names of those taken over."""

    def __init__(self, switches: dict[str, bool]) -> None:
        self.switches = switches
        self.entered = False
        self.previous: Enabled | None = None  # what it replaced, until it is entered
        self.thread = threading.get_ident()

    @property
    def operators(self) -> tuple[str, ...]:
        return tuple(self.switches)

    def __repr__(self) -> str:
        state = "in force" if _stack and _stack[-1] is self else "not in force"
        return f"<sternway.torch.enable: {len(self.switches)} operators, {state}>"

    def __enter__(self) -> Enabled:
        with _lock:
            if self.entered:
                raise RuntimeError("sternway: this enable() has been entered already; call enable() again")
            self.entered = True
            if self not in _stack:  # another thread's enable() came in between
                _stack.append(self)
            previous, self.previous = self.previous, None
            if previous is not None and not previous.entered and previous not in _stack:
                _stack.insert(_stack.index(self), previous)  # it comes back when the block ends
            _apply()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        with _lock:
            if self in _stack:
                _stack.remove(self)
            _apply()


def enable(only: str | Iterable[str] | None = None, strict: bool = False) -> Enabled:
    """Takes over PyTorch's backward operators with the library's, in the whole process: autograd runs backwards in
    threads of its own, so there is no setting of one thread. Calling it again replaces the setting.

        sternway.torch.enable()                          # from here on
        with sternway.torch.enable(only="attention"):    # in the block; then what was before
            loss.backward()

    only: names of operators ("_scaled_dot_product_flash_attention_backward") or of the groups "attention" and
    "nested"; None: all. Operators that this PyTorch lacks are left out.
    strict: what the library refuses raises UnsupportedError with the reason. Otherwise PyTorch's own kernel runs, which
    stats() counts and the logger "sternway.torch" says once for each reason, as a warning. A call that is wrong in
    itself raises InvalidError in both cases.

    Raises ValueError for a name in `only` that is none, UnsupportedError where an operator of this PyTorch has
    another schema than those known here: nothing is taken over then."""
    with _lock:
        setting = Enabled(dict.fromkeys(_takeover.select(only), bool(strict)))
        if _stack and not _stack[-1].entered:
            setting.previous = _stack.pop()
            if setting.previous.thread == setting.thread:  # else its thread may be about to enter it
                setting.previous.previous = None
        _stack.append(setting)
        _apply()
    return setting


def disable() -> None:
    """Gives every operator back to PyTorch, inside `with enable()` too."""
    with _lock:
        for setting in _stack:
            setting.previous = None
        _stack.clear()
        _apply()
