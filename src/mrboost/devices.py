"""Which devices compute, in which precision and how many processes, and what is done where their
memory runs out: half as many images are tried."""

from __future__ import annotations

import inspect
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import chain
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from .errors import InputError, LostProcessError
from .progress import Meter, note

if TYPE_CHECKING:
    from lightning_fabric import Fabric  # it takes a second to load: not before somebody needs one

T = TypeVar("T")

GO_ON = "start the same command again with --resume"
# How long processes wait for each other: shares of an evaluation can take unequal time
_PATIENCE = timedelta(hours=12)
_QUIET = 300.0  # seconds without a step, until it is said
_PROMPT = timedelta(seconds=10)  # for what takes a moment; torchrun kills after 30


def under_torchrun() -> bool:
    return "TORCHELASTIC_RUN_ID" in os.environ


def is_first_process() -> bool:
    """Whether this process is the one that speaks and writes: the only one, or torchrun's first."""
    return not under_torchrun() or os.environ.get("RANK") == "0"


def make_fabric(device: str = "auto", precision: str = "auto", *, together: bool = False) -> Fabric:
    """Lightning's Fabric on a device.

    Args:
        device: ``auto``, ``cpu``, ``mps``, ``cuda``, or one of several: ``cuda:1``.
        precision: ``32-true`` or ``bf16-mixed``; ``auto`` is mixed where the device has it.
        together: if torchrun started this process, it joins the others, and each has a device of
            its own.
    """
    from lightning_fabric import Fabric

    kind, index = _checked_device(device)
    if precision == "auto":
        precision = "bf16-mixed" if kind == "cuda" and torch.cuda.is_bf16_supported() else "32-true"
    if not (together and under_torchrun()):
        if under_torchrun() and os.environ["WORLD_SIZE"] != "1":
            raise InputError("this command runs in one process: start it without torchrun")
        devices: Any = 1 if index is None else [index]
        return Fabric(accelerator=kind, devices=devices, precision=precision)  # type: ignore[arg-type]
    if index is not None:
        raise InputError(f"torchrun gives each process its own device, not {device}: use {kind}")
    fabric = Fabric(accelerator=kind, precision=precision, **_of_processes(kind))  # type: ignore[arg-type]
    fabric.launch()
    return fabric


def _checked_device(device: str) -> tuple[str, int | None]:
    """The kind of a device and its number, if it has one; refused where it is not available."""
    kind, _, index = device.partition(":")
    counts = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": torch.mps.device_count()}
    if kind == "auto":
        kind = "cuda" if counts["cuda"] else "cpu"
    numbered = kind == "cuda" and index.isdecimal() and int(index) < counts["cuda"]
    if not counts.get(kind) or (index and not numbered):
        usable = " or ".join(name for name, count in counts.items() if count)
        raise InputError(f"device {device!r} is not available here: use auto or {usable}")
    return kind, int(index) if index else None


def _of_processes(kind: str) -> dict[str, Any]:
    """What Fabric has to know of the processes that torchrun started."""
    from lightning_fabric.strategies.ddp import DDPStrategy

    world, local = (int(os.environ[name]) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    count = torch.cuda.device_count()
    if kind == "cuda" and local > count:
        raise InputError(f"{local} processes, {count} CUDA devices: use --nproc-per-node {count}")
    # Buffers are BatchNorm's statistics: ``training`` keeps them equal itself, once an epoch.
    known = inspect.signature(DistributedDataParallel).parameters
    buffers = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
    strategy = DDPStrategy(timeout=_PATIENCE, **{buffers: False})  # type: ignore[arg-type]
    return {"devices": local, "num_nodes": world // local, "strategy": strategy}


def over_processes(fabric: Fabric, values: Tensor, how: str = "mean") -> Tensor:
    """The mean, ``sum`` or ``max`` of what all processes have here; with one
    process, the values."""
    together = fabric.all_reduce(values.clone(), reduce_op=how)
    assert isinstance(together, Tensor)
    return together


def from_all(fabric: Fabric, value: T) -> list[T]:
    """What each process has here, in their order."""
    values: list[T] = [value] * fabric.world_size
    torch.distributed.all_gather_object(values, value)
    return values


def _are_together() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _place() -> tuple[int, int]:
    """Which of the processes that compute together this is, and of how many."""
    if not _are_together():
        return 0, 1
    return torch.distributed.get_rank(), torch.distributed.get_world_size()


@contextmanager
def _saying_waits() -> Iterator[None]:
    """While this one of several processes makes no step, say so: it waits for another, which may be
    stopped, without a word and for ``_PATIENCE``."""
    rank, world = _place()
    if world == 1:
        yield
        return
    done = Event()

    def watch() -> None:
        while not done.wait(_QUIET):
            idle = time.monotonic() - Meter.last_step
            if idle >= _QUIET:
                waits = f"has waited {idle / 60:.0f} minutes for another, which may be stopped"
                note(f"note: process {rank} of {world} {waits}")

    Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        done.set()


@contextmanager
def lost_processes(remedy: str) -> Iterator[None]:
    """Report in one line that several processes cannot go on together, and now and then that they
    do not.

    When one of them ends, what the others see is whatever their library raises: of several
    processes, every ``RuntimeError`` but that of a full memory is reported so.
    """
    try:
        with _saying_waits():
            yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        if _place()[1] == 1:
            raise
        first = (str(error).splitlines() or ["unknown"])[0]
        reason = first.partition("] ")[2] if first.startswith("[/") else first  # its place in C++
        reason = reason.partition(". ")[0][:200]
        problem = f"another process has ended, or cannot be reached ({reason})"
        raise LostProcessError(f"{problem}: {remedy}") from error


def end_processes() -> None:
    """An orderly end of what processes shared: none ends before the first has written
    everything."""
    if _are_together():
        with lost_processes(GO_ON):
            torch.distributed.barrier()
        torch.distributed.destroy_process_group()


def say_once(line: str, *, alone: bool = False) -> None:
    """A line on standard error, once if several of torchrun's processes have the same to say.

    With ``alone`` it is left out if one of them has said anything else.
    """
    if not under_torchrun() or "MASTER_ADDR" not in os.environ:
        print(line, file=sys.stderr)
        return
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    every = f"mrboost {os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}"
    own = f"{every} {line}"
    try:
        store = TCPStore(address, port, is_master=False, timeout=_PROMPT)
        earlier = {key: store.add(f"count {key}", 1) - 1 for key in (every, own)}
        key = every if alone else own
        if earlier[key]:
            store.wait([f"said {key}"], _PROMPT)  # the first to end ends them all
            return
    except torch.distributed.DistError:  # nobody to agree with: rather twice than never
        store = None
    print(line, file=sys.stderr, flush=True)
    if store is not None:
        for key in (every, own):
            store.set(f"said {key}", "")


def move_model(model: torch.nn.Module, device: torch.device) -> torch.nn.Module:
    """Move a model to a device, in the memory layout that convolutions are fastest in there."""
    model.to(device)
    if device.type == "cuda":
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model


@contextmanager
def exact_float32() -> Iterator[None]:
    """Within it, convolutions in float32 are that on CUDA devices too, where they
    are TF32 by default."""
    convolutions = torch.backends.cudnn.conv  # type: ignore[attr-defined]
    before, convolutions.fp32_precision = convolutions.fp32_precision, "ieee"
    try:
        yield
    finally:
        convolutions.fp32_precision = before


def device_name(device: torch.device) -> str:
    """The name of the GPU, or the kind of processor and its cores."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()} {device.type}, {os.cpu_count()} cores"


def device_of(model: object, otherwise: torch.device = torch.device("cpu")) -> torch.device:  # noqa: B008 — a constant
    """Where a model's first weight lies; ``otherwise`` for a function or a
    model without weights."""
    if not isinstance(model, torch.nn.Module):
        return otherwise
    return next((tensor.device for tensor in chain(model.parameters(), model.buffers())), otherwise)


def dtype_of(model: object, otherwise: torch.dtype) -> torch.dtype:
    """The floating-point type that a model computes in, by its first weight."""
    weights = model.parameters() if isinstance(model, torch.nn.Module) else ()
    return next((weight.dtype for weight in weights if weight.is_floating_point()), otherwise)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory was not to be had: that of a device, or the computer's own."""
    # Of its own memory torch says so in the message alone
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or (
        "DefaultCPUAllocator" in str(error)
    )


def halved(size: int, error: torch.OutOfMemoryError, *, fixed: bool = False) -> int:
    """The batch size to try after one that did not fit in memory.

    Args:
        size: of the batch that did not fit.
        error: what it ended with; it is raised again where nothing smaller can be tried.
        fixed: the user chose the size, so it is not changed.

    Returns:
        Half the size.
    """
    if fixed or size <= 1:
        raise error
    return size // 2


def in_batches(
    answer: Callable[[slice], T], count: int, size: int, *, fixed: bool = False
) -> Iterator[T]:
    """What a function answers for one batch of rows after the other.

    Args:
        answer: gets ``size`` rows as a slice, which may go beyond the last; asked again for half as
            many, and no more from then on, where memory runs out.
        count: how many rows there are.
        size: of a batch.
        fixed: the user chose the size, so it is not changed.

    Example:
        >>> x = torch.arange(5.0)
        >>> list(in_batches(lambda rows: x[rows].sum().item(), len(x), 2))
        [1.0, 5.0, 4.0]
    """
    position = 0
    while position < count:
        try:
            found = answer(slice(position, position + size))
        except torch.OutOfMemoryError as error:
            size = halved(size, error, fixed=fixed)
            continue
        yield found
        position += size
