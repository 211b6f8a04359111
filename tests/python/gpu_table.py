# SPDX-License-Identifier: MIT
"""The table that the GPU scripts print: one row a check, with the measured number and its bound."""
from __future__ import annotations

import time
import traceback
from collections.abc import Callable


class Table:
    """Rows of checks. ok() is False as soon as one row failed."""

    def __init__(self, title: str) -> None:
        self.failed = 0
        print(f"{title}\n{'check':<58} {'value':>11} {'bound':>11}  result", flush=True)

    def row(self, name: str, value: float, bound: float, *, least: bool = False) -> None:
        """value <= bound passes, with `least` value >= bound; NaN fails."""
        good = value >= bound if least else value <= bound
        self.failed += not good
        sign = ">=" if least else "<="
        print(f"{name:<58} {value:>11.3e} {sign}{bound:>9.2e}  {'ok' if good else 'FAILED'}", flush=True)

    def note(self, text: str) -> None:
        print(f"  {text}", flush=True)

    def run(self, name: str, check: Callable[[Table], None]) -> None:
        """Runs a check; an exception is a failed row with its trace."""
        begin = time.perf_counter()
        try:
            check(self)
        except Exception:
            self.failed += 1
            print(f"{name:<58} raised an exception: FAILED", flush=True)
            traceback.print_exc()
        self.note(f"({name}: {time.perf_counter() - begin:.1f} s)")

    def finish(self) -> int:
        """Exit status of the script: 1 when a row failed."""
        print(f"{self.failed} failed" if self.failed else "all passed", flush=True)
        return 1 if self.failed else 0
