# SPDX-License-Identifier: MIT
"""The registry of operators that are taken over, and the kernels that stand in PyTorch's dispatcher for them.

A kernel for dense tensors is registered with the dispatch key BackendSelect. Every call passes that key just before it
reaches the kernel of its device: autograd, autocast, functorch, functionalization and fake tensors are done by then.
The key set after BackendSelect still names PyTorch's own kernel, so a fallback is a redispatch with it: no kernel of
PyTorch's is replaced, other overrides of the same operator stay in force below ours, and no lock is needed. It works
alike in PyTorch 2.6 and later. A kernel for nested tensors alone is registered with their key, so that calls on dense
tensors do not pass Python; its fallback is the kernel from torch.library.get_kernel, and where PyTorch lacks that
(before 2.9) BackendSelect serves here too.

Kernels stay registered once they are: to take one out while another thread calls it is a race in the dispatcher. What
is not enabled passes through, which costs a few microseconds a call of these operators."""
from __future__ import annotations

import logging
import os
import threading
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch

from .. import _native

log = logging.getLogger("sternway.torch")

GROUPS = ("attention", "nested")
MAX_REASONS = 64  # reasons kept for each operator, so that texts with sizes in them cannot grow without bound
OTHER_REASONS = "(further reasons)"

_BELOW = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)
# Guards the registry, the switches and every counter. A signal handler or a finalizer may come in while its own thread
# holds it.
_lock = threading.RLock()
_passing = threading.local()  # .depth > 0 while PyTorch's own kernel runs after a fallback
_operators: dict[str, Operator] = {}
_active: dict[str, bool] = {}  # operator -> strict; replaced as a whole, so that kernels read it without the lock
_library: torch.library.Library | None = None


def _after_fork() -> None:
    global _lock
    _lock = threading.RLock()  # another thread of the parent may have held the old one, and is not in the child


os.register_at_fork(after_in_child=_after_fork)


class Fallback(Exception):
    """Raised by an implementation whose problem is not the library's to take; its text is the reason."""


_REFUSALS = (Fallback, _native.UnsupportedError, _native.NoDriverError, _native.NoDeviceError, _native.NoImageError)


class Operator:
    """An aten operator, its implementations by dispatch key, the schemas they were written for, and its counts."""

    def __init__(self, name: str, group: str) -> None:
        self.name = name
        self.group = group
        self.schemas: set[str] = set()
        self.implementations: dict[Any, Callable] = {}
        self.waiting: list[str] = []  # keys whose kernel is not in the dispatcher yet
        self.selects = False  # whether BackendSelect has one
        self.calls = 0
        self.reasons: dict[str, int] = {}
        self.logged: set[str] = set()

    @property
    def overload(self) -> torch._ops.OpOverload | None:
        """PyTorch's operator; None where this PyTorch lacks it."""
        packet, _, overload = self.name.partition(".")
        return getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)

    def check_schema(self) -> None:
        """Raises UnsupportedError where PyTorch's schema is none of those the implementations were written for."""
        schema = str(self.overload._schema)
        if schema not in self.schemas:
            raise _native.UnsupportedError(
                f"sternway: PyTorch {torch.__version__} has another schema of the operator {self.name} than those known"
                f" here, and it is not called: {schema}. Leave it out by enable(only=...)")

    def install(self) -> None:
        """Puts the kernels of the keys that wait into the dispatcher. The caller holds the lock."""
        global _library
        if _library is None:
            _library = torch.library.Library("aten", "IMPL")
        packet_name = self.overload._schema.name.split("::")[1]
        name = ".".join(filter(None, (packet_name, self.overload._schema.overload_name)))
        for key in self.waiting:
            if key.startswith("NestedTensor") and hasattr(torch.library, "get_kernel"):
                if torch._C._dispatch_has_kernel_for_dispatch_key(self.overload.name(), key):
                    kernel = torch.library.get_kernel(self.overload, key)
                    ours = _at_key(self, getattr(torch._C.DispatchKey, key), kernel)
                    with warnings.catch_warnings():  # PyTorch says once that a kernel is overridden, which is meant
                        warnings.filterwarnings("ignore", "Warning only once for all operators")
                        _library.impl(name, ours, key, with_keyset=True)
            elif not self.selects:
                self.selects = True
                _library.impl(name, _at_backend_select(self), "BackendSelect", with_keyset=True)
        self.waiting.clear()

    def refused(self, error: Exception, strict: bool) -> None:
        """Counts a fallback and logs its reason at its first time. Strict: raises it as UnsupportedError instead."""
        reason = str(error)
        if strict:
            if isinstance(error, _native.UnsupportedError):
                raise error
            raise _native.UnsupportedError(f"sternway: {self.name}: {reason}") from error
        with _lock:
            if reason not in self.reasons and len(self.reasons) >= MAX_REASONS:
                reason = OTHER_REASONS
            self.reasons[reason] = self.reasons.get(reason, 0) + 1
            first = reason not in self.logged
            self.logged.add(reason)
        if first:
            log.warning("sternway: %s runs PyTorch's own kernel: %s", self.name, reason)

    def attempt(self, implementation: Callable, strict: bool, args: tuple, kwargs: dict) -> tuple[bool, Any]:
        """(True, results) of the implementation, or (False, None) where PyTorch's own kernel has to run."""
        try:
            results = implementation(*args, **kwargs)
        except _REFUSALS as error:
            self.refused(error, strict)
            return False, None
        with _lock:
            self.calls += 1
        return True, results


def _pass(kernel: Callable, keyset: Any, args: tuple, kwargs: dict) -> Any:
    """PyTorch's own kernel after a fallback: operators that it calls in its turn are not ours to take a second time."""
    _passing.depth = getattr(_passing, "depth", 0) + 1
    try:
        return kernel(keyset, *args, **kwargs)
    finally:
        _passing.depth -= 1


def _at_backend_select(operator: Operator) -> Callable:
    name, implementations, redispatch = operator.name, operator.implementations, operator.overload.redispatch

    def kernel(keyset, *args, **kwargs):
        below = keyset & _BELOW
        strict = _active.get(name)
        if strict is not None:
            implementation = implementations.get(below.highestPriorityTypeId())
            if implementation is not None and not getattr(_passing, "depth", 0):
                taken, results = operator.attempt(implementation, strict, args, kwargs)
                return results if taken else _pass(redispatch, below, args, kwargs)
        return redispatch(below, *args, **kwargs)

    return kernel


def _at_key(operator: Operator, key: Any, theirs: Any) -> Callable:
    name, implementations, call = operator.name, operator.implementations, theirs.call_boxed

    def kernel(keyset, *args, **kwargs):
        strict = _active.get(name)
        if strict is not None and not getattr(_passing, "depth", 0):
            taken, results = operator.attempt(implementations[key], strict, args, kwargs)
            return results if taken else _pass(call, keyset, args, kwargs)
        return call(keyset, *args, **kwargs)

    return kernel


def register(operator: str, keys: tuple[str, ...], implementation: Callable, schema: str | tuple[str, ...],
             group: str | None = None) -> None:
    """Registers an implementation; it is called when enable() names the operator or its group.

    operator: name in aten, "name" or "name.overload". keys: dispatch keys of the tensors it takes, of "CPU", "CUDA",
    "NestedTensorCPU", "NestedTensorCUDA". schema: str(op._schema) of every PyTorch whose calls it understands.
    group: "attention" or "nested"; from the name where absent. Registering several times adds keys and schemas.

    implementation(*args, **kwargs) gets the operator's arguments as the dispatcher boxes them: keyword-only ones by
    name, trailing ones that equal their default left out (so the implementation has PyTorch's defaults), undefined
    tensors as None. It returns the operator's results, None for an undefined tensor. Raising Fallback(reason) or
    UnsupportedError hands the call to PyTorch's own kernel; any other exception goes to the user."""
    group = group or ("attention" if "attention" in operator else "nested")
    if group not in GROUPS:
        raise ValueError(f"sternway: no group {group!r} (there are {', '.join(GROUPS)})")
    with _lock:
        entry = _operators.setdefault(operator, Operator(operator, group))
        entry.schemas.update((schema,) if isinstance(schema, str) else schema)
        for key in keys:
            if getattr(torch._C.DispatchKey, key) not in entry.implementations:
                entry.waiting.append(key)
            entry.implementations[getattr(torch._C.DispatchKey, key)] = implementation


def select(only: str | Iterable[str] | None) -> list[str]:
    """Names of the registered operators that `only` means: names of operators or of groups; None: all of them.
    Those that this PyTorch lacks are left out. ValueError for a name that is none."""
    names = (only,) if isinstance(only, str) else GROUPS if only is None else tuple(only)
    chosen = {}
    for name in names:
        short = name.removeprefix("aten::").removesuffix(".default")
        found = [op for op in _operators.values() if short in (op.name, op.group)]
        if not found and short not in GROUPS:
            raise ValueError(f"sternway: enable(only={name!r}): no such operator or group; there are the groups "
                             f"{', '.join(GROUPS)} and the operators {', '.join(sorted(_operators))}")
        chosen.update((op.name, op) for op in found if op.overload is not None)
    for op in chosen.values():
        op.check_schema()
    return list(chosen)


def activate(switches: dict[str, bool]) -> None:
    """Makes operator -> strict the operators that are taken over, everywhere in the process."""
    global _active
    with _lock:
        for name in switches:
            _operators[name].install()
        _active = dict(switches)


def stats() -> dict[str, dict]:
    """Counts of each operator that was called: {"taken": n, "fallback": n, "reasons": {text: n}}."""
    with _lock:
        return {op.name: {"taken": op.calls, "fallback": sum(op.reasons.values()), "reasons": dict(op.reasons)}
                for op in _operators.values() if op.calls or op.reasons}


def reset_stats() -> None:
    """Sets every count to 0. Reasons that were logged are not logged again."""
    with _lock:
        for op in _operators.values():
            op.calls = 0
            op.reasons.clear()
