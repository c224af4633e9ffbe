"""How far a long computation is: a bar on a terminal, lines in a log."""

from __future__ import annotations

import io
import math
import sys
import textwrap
import time
from typing import Self

from tqdm import tqdm

EVERY = 60.0  # seconds between two lines in a log
# What a line says, in the words of tqdm's ``bar_format``
_SHARE = "{percentage:.0f}%, {remaining} left"
COLUMNS = 80  # of a terminal as wide as one can count on


def note(line: str) -> None:
    """A line on standard error, above a bar if there is one."""
    tqdm.write(line, file=sys.stderr)


def folded(text: str, indent: int = 0) -> str:
    """A text on lines that fit a terminal, all but the first indented; what has no spaces, a path
    say, stays whole."""
    return textwrap.fill(
        text,
        COLUMNS,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


class Meter:
    """A bar on a terminal; elsewhere a line for what is finished, and one a minute in between.

    Called with a number of evaluations (or of another unit), it counts them.

    Args:
        shown: whether anything is shown.
        name: what lines begin with.
        unit: what is counted.
    """

    last_step = time.monotonic()
    """When this process last counted something."""

    def __init__(self, shown: bool, name: str = "evaluate", unit: str = "evaluation") -> None:
        self._name = name
        self._lines = shown and not sys.stderr.isatty()
        # Without a terminal the bar only counts, and is written nowhere.
        where = {"file": io.StringIO(), "mininterval": math.inf} if self._lines else {}
        how = {"unit": unit, "unit_scale": True, "dynamic_ncols": True, "smoothing": 0}
        self._bar = tqdm(disable=not shown, **how, **where)
        self._began = self._last_line = time.monotonic()
        self._doing = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.close()

    def begin(self, total: int | None, done: int = 0) -> None:
        """So many are to come in all, if it is known, and so many were done before."""
        self._bar.total = total
        self._bar.n = done
        self.skip(0)

    def doing(self, what: str) -> None:
        self._doing = what
        self._bar.set_description(what)

    def __call__(self, count: int) -> None:
        Meter.last_step = time.monotonic()
        self._bar.update(count)
        if time.monotonic() - self._last_line >= EVERY:
            self.say(self._doing)

    def skip(self, count: int) -> None:
        """Count what was done before; up to here nothing is known of the pace."""
        self._bar.update(count)
        self._bar.initial = self._bar.last_print_n = self._bar.n
        self._bar.start_t = self._bar.last_print_t = time.time()

    def tell(self, line: str) -> None:
        """A line of its own, whether there is a bar or not."""
        self._last_line = time.monotonic()
        note(line)

    def say(self, what: str) -> None:
        """A line with the time that passed and the time left, where there is no bar."""
        self._last_line = now = time.monotonic()
        if not self._lines:
            return
        passed = tqdm.format_interval(now - self._began)
        if self._bar.total:
            facts = self._bar.format_dict | {"bar_format": _SHARE, "ncols": None, "prefix": ""}
            passed = f"{tqdm.format_meter(**facts)}, {passed} so far"
        print(f"{self._name}: {what} ({passed})", file=sys.stderr, flush=True)
