"""How far a long computation is."""

from __future__ import annotations

import os
import sys
import time
from typing import Self

from tqdm import tqdm

EVERY = 60.0
"""Seconds between two lines in a log."""
SHORT = 10.0
"""Seconds since the last line that are too few to tell the pace."""
SOON = 5.0
"""Seconds from the beginning that are too few to tell it, unless they took a twentieth of all."""


def note(line: str) -> None:
    """A line on standard error, above a bar if there is one."""
    tqdm.write(line, file=sys.stderr)


def _room() -> bool:
    """Whether standard error is a terminal, and has columns for a bar."""
    if not sys.stderr.isatty():
        return False
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns > 0
    except (OSError, ValueError):  # it does not tell
        return True


class Meter:
    """A bar on a terminal; elsewhere, in a log say, a line for what is finished and at most one
    a minute in between.

    Called with a number of evaluations (or of another ``unit``), it counts them. Lines
    begin with ``name``.
    """

    def __init__(self, shown: bool, name: str = "evaluate", unit: str = "evaluation") -> None:
        self._name = name
        self._bar = tqdm(
            unit=unit,
            unit_scale=True,
            dynamic_ncols=True,
            smoothing=0,
            disable=not (shown and _room()),
        )
        self._lines = shown and self._bar.disable
        self._began = self._said = time.monotonic()
        self._count, self._total, self._doing = 0, 0, ""
        self._first = self._last = (self._began, 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.close()

    def begin(self, total: int | None, done: int = 0) -> None:
        self._bar.total, self._total = total, total or 0
        self._bar.initial = self._bar.n = self._count = done
        self._first = self._last = (time.monotonic(), done)

    def doing(self, what: str) -> None:
        self._doing = what
        self._bar.set_description(what)

    def __call__(self, evaluations: int) -> None:
        self._bar.update(evaluations)
        self._count += evaluations
        if time.monotonic() - self._said >= EVERY:
            self.say(self._doing)

    def skip(self, evaluations: int) -> None:
        """Count what was done before, which says nothing of the pace."""
        self(evaluations)
        self.settle()

    def settle(self) -> None:
        """What was done so far says nothing of the pace."""
        self._first = self._last = (time.monotonic(), self._count)
        self._bar.initial = self._bar.last_print_n = self._bar.n
        self._bar.start_t = self._bar.last_print_t = time.time()

    def tell(self, line: str) -> None:
        """A line of its own, whether there is a bar or not."""
        self._said = time.monotonic()
        note(line)

    def say(self, what: str) -> None:
        """A line, where there is no bar."""
        self._said = now = time.monotonic()
        if self._lines:
            share = f"{min(1.0, self._count / self._total):.0%} of all, " if self._total else ""
            line = f"{self._name}: {what} ({share}{now - self._began:.0f} s{self._left(now)})"
            print(line, file=sys.stderr, flush=True)
        self._last = (now, self._count)

    def _left(self, now: float) -> str:
        """What the rest takes at the pace since the last line, or since the beginning if
        that was a moment ago."""
        then, count = self._last if now - self._last[0] >= SHORT else self._first
        if not count < self._count < self._total:
            return ""
        if now - then < SOON and self._count - count < 0.05 * self._total:
            return ""
        seconds = max(1.0, (now - then) * (self._total - self._count) / (self._count - count))
        size, unit = (1, "s") if seconds < 100 else (60, "min") if seconds < 6000 else (3600, "h")
        return f", about {seconds / size:.0f} {unit} left"
