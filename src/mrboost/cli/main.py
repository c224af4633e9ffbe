"""The command ``mrboost``: reads the command line, runs the command, and reports every mistake of
the user in one line on standard error with exit status 2."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Sequence

from mrboost.errors import InputError, LostProcessError, printable

from .arguments import parse
from .signals import saying_stops

_SAME = "; what is finished is kept: the same command with --resume goes on"
_AFTER_A_STOP = {
    "train": f"{_SAME} after the last whole epoch",
    "evaluate": f"{_SAME} where it was saved last",
    "study": "; the study again goes on after the last whole epoch",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the exit status is 0, 2 for the user's mistakes, 130 after Ctrl-C."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # for terminals that know ASCII alone
    arguments = sys.argv[1:] if arguments is None else arguments
    advice = _AFTER_A_STOP.get(arguments[0], "") if arguments else ""
    with saying_stops(advice):
        return _exit_status(arguments, advice)


def _exit_status(arguments: Sequence[str], go_on: str) -> int:
    """Run a command; ``go_on`` says how to go on with it after a stop."""
    advice = ""
    try:
        options = parse(arguments)
        from .commands import run  # loads torch, which --help does not need

        advice = go_on
        run(options)
    except BrokenPipeError:  # the reader, head say, has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except InputError as error:
        _report(str(error), alone=isinstance(error, LostProcessError))
        return 2
    except OSError as error:
        _report(f"{error}{_remedy(error)}{advice}")
        return 2
    except KeyboardInterrupt:
        print(f"\nmrboost: interrupted{advice}", file=sys.stderr)
        return 130
    return 0


def _remedy(error: OSError) -> str:
    """What to do about an error of the system."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return ": make room there, and start the command again"
    return ": check the path and its permissions"


def _report(message: str, *, alone: bool = False) -> None:
    """The one line of a mistake, once if several of torchrun's processes make it; ``alone`` if
    none of them has reported anything."""
    line = f"mrboost: error: {printable(' '.join(message.split()))}"
    if "TORCHELASTIC_RUN_ID" in os.environ:
        from mrboost.devices import say_once

        say_once(line, alone=alone)
    else:
        print(line, file=sys.stderr)
