"""Which device computes, and in which precision."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from lightning_fabric import Fabric

from .errors import InputError


def make_fabric(device: str = "auto", precision: str = "auto") -> Fabric:
    """Fabric on ``auto``, ``cpu``, ``mps``, ``cuda`` or ``cuda:1``; mixed bf16 where the device has it, unless told."""
    kind, _, index = device.partition(":")
    if kind == "auto":
        kind = "cuda" if torch.cuda.is_available() else "cpu"
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not available.get(kind, False) or (index and not (kind == "cuda" and index.isdecimal())):
        usable = [name for name, there in available.items() if there]
        raise InputError(f"device {device!r} is not available here: use auto or {' or '.join(usable)}")
    if kind == "cuda" and index and int(index) >= torch.cuda.device_count():
        raise InputError(f"device {device!r} does not exist: there are {torch.cuda.device_count()} CUDA devices")
    if precision == "auto":
        precision = "bf16-mixed" if kind == "cuda" and torch.cuda.is_bf16_supported() else "32-true"
    devices: list[int] | int = [int(index)] if kind == "cuda" and index else 1
    return Fabric(accelerator=kind, devices=devices, precision=precision)  # type: ignore[arg-type]


def place(model: torch.nn.Module, device: torch.device) -> torch.nn.Module:
    """Move a model to a device, in the memory layout that convolutions are fastest in there."""
    model.to(device)
    if device.type == "cuda":
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model


@contextmanager
def exact_float32() -> Iterator[None]:
    """Within it, convolutions in float32 are that on CUDA devices too, where they are TF32 by default."""
    convolutions = torch.backends.cudnn.conv  # type: ignore[attr-defined]
    before, convolutions.fp32_precision = convolutions.fp32_precision, "ieee"
    try:
        yield
    finally:
        convolutions.fp32_precision = before


def device_of(model: object) -> torch.device:
    """Where a model's first weight lies; the CPU for a function or a model without weights."""
    if isinstance(model, torch.nn.Module):
        for tensor in (*model.parameters(), *model.buffers()):
            return tensor.device
    return torch.device("cpu")


def dtype_of(model: object, otherwise: torch.dtype) -> torch.dtype:
    """The floating-point type that a model computes in, by its first weight."""
    if isinstance(model, torch.nn.Module):
        for parameter in model.parameters():
            if parameter.is_floating_point():
                return parameter.dtype
    return otherwise
