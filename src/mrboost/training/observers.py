"""Who watches a training: functions that receive records of it, and never steer it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping

Record = dict[str, int | float]
Observer = Callable[[Record], object]
Tell = Callable[[Mapping[str, int | float]], None]


def teller(name: str, observers: Mapping[str, Observer | None]) -> Tell:
    """Hands the observer of that name, if there is one, a copy of each record. What it raises
    becomes a warning: the training of hours does not end with the connection to a logger, and
    several processes stay in step."""
    observer = observers.get(name)

    def tell(record: Mapping[str, int | float]) -> None:
        if observer is None:
            return
        try:
            observer(dict(record))
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
            problem = f"{name} failed after round {record['round']}, epoch {record['epoch']}"
            warnings.warn(f"{problem} ({said}); the training goes on", RuntimeWarning, stacklevel=2)

    return tell
