"""Trainings of an example at the same time."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from threading import Thread


@contextmanager
def side_by_side(jobs: int) -> Iterator[ProcessPoolExecutor]:
    """So many processes for trainings at the same time, which end with this
    one, however it ends."""
    # A new interpreter for each: CUDA does not survive a fork.
    with ProcessPoolExecutor(
        jobs, multiprocessing.get_context("spawn"), initializer=_end_with_parent
    ) as pool:
        try:
            yield pool
        except KeyboardInterrupt:
            for process in multiprocessing.active_children():
                process.terminate()
            raise


def _end_with_parent() -> None:
    # Ctrl-C reaches all processes: one traceback is enough
    signal.signal(signal.SIGINT, signal.SIG_DFL)

    def watch() -> None:
        if (parent := multiprocessing.parent_process()) is not None:
            parent.join()
            os._exit(1)

    Thread(target=watch, daemon=True).start()
