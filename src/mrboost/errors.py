"""``InputError``, the exception for mistakes that the user can fix, and its kinds.

Its message says what was wrong, with which value, and what to do, in one line; the command line
prints that line and exits with status 2. Any other exception that escapes is a bug of the library
and keeps its traceback. Checks of names, and of parts of one's own, stand beside it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")
UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_LONGEST = 2000  # characters of a message


class InputError(ValueError):
    """A mistake in what the user gave: a name, a value, a file."""

    def __init__(self, message: str) -> None:
        if len(message) > _LONGEST:  # it quotes a stranger's file
            half = _LONGEST // 2
            message = f"{message[:half]} … {message[-half:]}"
        super().__init__(message)


class NanLogitsError(InputError):
    """The model's logits for an image are NaN."""

    def __init__(self, image: int, attack: str = "") -> None:
        self.image = image
        self.attack = attack
        of = f"image {image} under {attack}" if attack else f"image {image}"
        super().__init__(f"the model's logits for {of} are NaN: are weights and image finite?")


class UnfitError(InputError):
    """The model does not take images of this shape; ``fault`` is what it raised."""

    def __init__(self, message: str, fault: Exception) -> None:
        super().__init__(message)
        self.fault = fault


class LostProcessError(InputError):
    """Another of the processes that share a command has ended."""


@contextmanager
def reading(problem: str, remedy: str = "get it again") -> Iterator[None]:
    """Turn any error raised inside into an InputError: parsers of damaged files raise nearly
    anything."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{problem} ({reason(error)}): {remedy}") from error


def reason(error: Exception) -> str:
    """What a library's exception says, in one line."""
    return " ".join(str(error).split())[:300] or type(error).__name__


def printable(text: str) -> str:
    """A text, which may be a stranger's, for a terminal: control characters by their codes."""
    return UNPRINTABLE.sub(lambda found: repr(found[0])[1:-1], text)


def look_up(kind: str, name: str, known: Mapping[str, T], hint: str = "") -> T:
    """``known[name]``; refuses an unknown name.

    Args:
        kind: what a name stands for, as "recipe".
        name: what the user wrote.
        known: all names and what they stand for.
        hint: a further remedy for the message.
    """
    if name not in known:
        raise unknown_name(kind, name, known, hint)
    return known[name]


def unknown_name(kind: str, name: str, known: Iterable[str], hint: str = "") -> InputError:
    """The error for an unknown name: it lists the close matches, or all known names if there are
    none."""
    options = sorted(known)
    by_lower = {option.lower(): option for option in options}
    matches = difflib.get_close_matches(name.lower(), by_lower, n=3, cutoff=0.6)
    remedy = f"known: {', '.join(options)}"
    if matches:
        remedy = f"did you mean {' or '.join(by_lower[match] for match in matches)}?"
    if hint:
        remedy += f" ({hint})"
    return InputError(f"unknown {kind} {name!r}: {remedy}")


def check_new_name(kind: str, name: str, known: Iterable[str]) -> None:
    """Refuse a name under which nothing can be registered: one that is taken, or that commands and
    folders could not bear."""
    if name in known:
        raise InputError(f"a {kind} called {name!r} is registered already: choose another name")
    if not re.fullmatch(r"\w[\w.+-]*", name):
        raise InputError(f"a {kind} cannot be called {name!r}: take letters, digits, - and _")


def check_part(what: str, part: object, *needed: str) -> None:
    """Refuse a part of a recipe of which config.json could not tell what it is, or without an
    attribute that training asks for.

    Args:
        what: how messages call it, as "sampler of recipe 'at'".
        part: a value of the part's class, which is a frozen dataclass with ``__call__``.
        needed: names of attributes.
    """
    if isinstance(part, type):
        raise InputError(f"{what} is a class: give a value of it, {part.__name__}()")
    settings = getattr(part, "__dataclass_params__", None)
    if settings is None or not settings.frozen:
        kind = type(part).__name__
        problem = f"{what} is no frozen dataclass, and a run folder could not say how it is set"
        raise InputError(f"{problem}: put @dataclass(frozen=True) above the class of this {kind}")
    for name in ("__call__", *needed):
        if not hasattr(part, name):
            raise InputError(f"{what} has no attribute {name!r}: give it one")
