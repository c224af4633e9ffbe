"""Hostile cases, drawn at random from a seed, through one door of the library after another.

A test file names its doors: functions of a random stream and an empty folder, which make a case and
try it. ``refuted`` runs them in a process of its own: each case must be answered, or refused in one
line, in little memory and time. MRBOOST_FUZZ=2000 tries as many cases in each file.
"""

from __future__ import annotations

import io
import os
import random
import re
import resource
import runpy
import shutil
import signal
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from mrboost.errors import InputError

Door = Callable[[random.Random, Path], object]

CASES = int(os.environ.get("MRBOOST_FUZZ", "60"))
MAX_MEMORY = 3 * 2**30
MAX_SECONDS = 300  # far more than any case takes, on a busy machine, too
MAX_LINE = 2500
CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f]")


class _TooLongError(BaseException):
    """A case that goes on and on; no ``except Exception`` hides it."""


def refuted(file: str, folder: Path) -> list[str]:
    """The cases of a test file's ``DOORS`` that ended otherwise than they should."""
    log = folder / "log"
    with log.open("w") as out:
        done = subprocess.run(
            [sys.executable, __file__, file, str(folder), str(CASES)],
            env={**os.environ, "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(folder / "cache")},
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    lines = log.read_text(errors="replace").splitlines()
    found = [line for line in lines if not line.startswith("case ")]
    if done.returncode != 0:
        found.append(f"the process ended with {done.returncode} in {[*lines, 'nothing'][-1]}")
    return found


def command(arguments: Iterable[object]) -> None:
    """A command in this process; it succeeds, or says in one line of no odd characters why not."""
    from mrboost.cli.main import main

    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            status: object = main([str(argument) for argument in arguments])
        except SystemExit as ended:  # --help, --version
            status = ended.code
    said = err.getvalue()
    errors = [line for line in said.splitlines() if line.startswith("mrboost: error: ")]
    assert status in (0, 2), f"status {status}: {said[-500:]}"
    assert len(errors) == (status == 2), f"status {status}: {said[-500:]}"
    for text in (said, out.getvalue()):
        assert not (odd := CONTROL.search(text)), f"{odd} in {text[:500]!r}"
    _check_line("".join(errors))


def _check_line(line: str) -> None:
    assert "\n" not in line
    assert len(line) < MAX_LINE, f"{len(line)} characters: {line[:500]}"
    assert not re.search("MemoryError|[Aa]llocate|out of memory", line), line[:500]


def _bound_memory() -> None:
    """Memory far beyond what is allowed is not to be had: the machine must not suffer."""
    if (pages := Path("/proc/self/statm")).exists():
        size = int(pages.read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + 2 * MAX_MEMORY,) * 2)


def _memory() -> int:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _too_long(*_: object) -> None:
    raise _TooLongError


def _try(door: Door, rng: random.Random, folder: Path) -> str:
    """What is wrong with the end of a case."""
    signal.alarm(MAX_SECONDS)
    try:
        door(rng, folder)
    except InputError as error:
        try:
            _check_line(str(error))
        except AssertionError as wrong:
            return f"{wrong}"
    except BaseException as error:
        raised = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__}: {error} ({raised.filename}:{raised.lineno})"
    finally:
        signal.alarm(0)
    return ""


def _main(file: str, folder: Path, cases: int) -> None:
    os.chdir(folder)
    doors: dict[str, Door] = runpy.run_path(file)["DOORS"]
    warnings.simplefilter("ignore")  # Pillow's, of many pixels
    signal.signal(signal.SIGALRM, _too_long)
    _bound_memory()
    before = _memory()
    for name, door in doors.items():
        for seed in range(-(-cases // len(doors))):
            print("case", name, seed, flush=True)
            place = folder / f"{name}-{seed}"
            place.mkdir()
            wrong = _try(door, random.Random(f"{name} {seed}"), place)
            if _memory() - before > MAX_MEMORY:
                wrong = f"{wrong} took {_memory() - before:,} bytes"
                before = _memory()
            if wrong:
                print(f"{name} {seed}: {' '.join(wrong.split())[:1000]}", flush=True)
            shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    _main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
