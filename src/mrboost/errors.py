"""The one exception that means "the user can fix this".

It says what was wrong, with which value, and what to do, in one line; the command line prints that
line and exits with status 2. Anything else that escapes is a bug of ours and keeps its traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import TypeVar

T = TypeVar("T")


class InputError(ValueError):
    """A mistake in what the user gave us: a name, a value, a file."""


class NanLogitsError(InputError):
    """The model's logits for an image are NaN."""

    def __init__(self, image: int, attack: str = "") -> None:
        self.image, self.attack = image, attack
        under = f" under {attack}" if attack else ""
        super().__init__(
            f"the model's logits for image {image}{under} are NaN: its weights or the image "
            "are not finite"
        )


class UnfitError(InputError):
    """The model does not take images of this shape; ``fault`` is what it raised."""

    def __init__(self, message: str, fault: Exception) -> None:
        super().__init__(message)
        self.fault = fault


class LostProcessError(InputError):
    """Another of the processes that share a command has ended."""


def look_up(kind: str, name: str, known: Mapping[str, T], hint: str = "") -> T:
    """What is known by this name; a mistyped one is refused."""
    if name not in known:
        raise unknown_name(kind, name, known, hint)
    return known[name]


def unknown_name(kind: str, name: str, known: Iterable[str], hint: str = "") -> InputError:
    """The error for a mistyped name: the close matches if there are any,
    otherwise all that is known."""
    options = sorted(known)
    by_lower = {option.lower(): option for option in options}
    close = [
        by_lower[match]
        for match in difflib.get_close_matches(name.lower(), by_lower, n=3, cutoff=0.6)
    ]
    remedy = f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(options)}"
    return InputError(f"unknown {kind} {name!r}: {remedy}{f' ({hint})' if hint else ''}")
