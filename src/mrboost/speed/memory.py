"""When memory runs out: how that is told from other errors, and half as many tried next."""

from __future__ import annotations

import torch


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

    Example::

        while position < len(x):
            try:
                logits.append(model(x[position : position + size]))
            except torch.OutOfMemoryError as error:
                size = halved(size, error)
                continue
            position += size
    """
    if fixed or size <= 1:
        raise error
    return size // 2
