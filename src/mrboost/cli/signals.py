"""What a process that torchrun started says when it is stopped from outside.

torchrun ends all processes by SIGTERM when one of them dies, and hands Ctrl-C on to them. A process
that waits for another one, for its gradients on a GPU say, does not come back to Python, where
signals are usually handled: so a thread hears of them.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

_WHY = {
    signal.SIGINT: "interrupted",
    signal.SIGTERM: "stopped, since another process has died or the job was ended (torchrun says "
    "which)",
}


@contextmanager
def saying_stops(advice: str) -> Iterator[None]:
    """Within it, if torchrun's processes are stopped, one of them says so in a line that ends with
    ``advice``; without torchrun, nothing is changed."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        yield
        return
    heard, told = socket.socketpair()
    told.setblocking(False)
    handlers = {number: signal.signal(number, lambda *_: None) for number in _WHY}
    before = signal.set_wakeup_fd(told.fileno())
    Thread(target=_end_when_stopped, args=(heard, advice), daemon=True).start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        told.close()


def _end_when_stopped(heard: socket.socket, advice: str) -> None:
    """Wait for a signal, say so, and end the process: all files are written so that it may end at
    any moment."""
    with heard:
        while number := heard.recv(1):
            if number[0] in _WHY:
                from mrboost.devices import say_once

                say_once(f"\nmrboost: {_WHY[signal.Signals(number[0])]}{advice}", alone=True)
                sys.stdout.flush()
                os._exit(128 + number[0])
