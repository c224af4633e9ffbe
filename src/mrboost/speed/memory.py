"""When memory runs out: how that is told from other errors, and half as many tried next."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

import torch

T = TypeVar("T")


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
