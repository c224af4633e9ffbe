"""What an evaluation has finished so far, in files, so that an interrupted one can go on."""

from __future__ import annotations

import errno
import hashlib
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import partial
from pathlib import Path
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType

import numpy as np
import torch
from torch import Tensor, nn

from .behind import used_globals
from .errors import InputError
from .meter import note
from .storage import State, read_tensors, write_tensors

_NAMES = re.compile(r"\.?\d+-\d+(-unfinished)?\.safetensors(\..+\.tmp)?")
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


class Parts:
    """One file for each finished part. A part counts only for the same model, images and attack: ``of`` says which."""

    def __init__(self, folder: Path | None, *, resume: bool = False) -> None:
        self._folder, self._full = folder, False
        if folder is not None and not resume:
            for path in folder.glob("*"):
                if _NAMES.fullmatch(path.name):  # ours, and nothing else
                    path.unlink(missing_ok=True)

    def get(self, name: str, of: str) -> State | None:
        if self._folder is None or not (path := self._path(name)).is_file():
            return None
        try:
            tensors, facts = read_tensors(path)
        except (InputError, OSError):
            return None  # damaged, or just removed: made again
        return tensors if facts.get("of") == of else None

    def put(self, name: str, of: str, tensors: State) -> None:
        if self._folder is None:
            return
        for attempt in range(5):
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
                write_tensors(self._path(name), tensors, {"of": of})
                return
            except (FileNotFoundError, FileExistsError):  # another process has just removed the folder
                if attempt == 4:
                    raise
            except OSError as error:  # the figures can be had all the same
                if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS):
                    raise
                if not self._full:
                    note(f"note: {self._folder} does not take what is finished ({error.strerror}): it goes on unsaved")
                self._full = True
                return

    def drop(self, name: str) -> None:
        if self._folder is not None:
            self._path(name).unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        assert self._folder is not None
        return self._folder / f"{name}.safetensors"


def digest(*values: object) -> str:
    return _hash("\n".join(map(fingerprint, values)).encode())


def fingerprint(value: object, above: tuple[object, ...] = ()) -> str:
    """A text that is the same for equal things in another process: tensors, models, attacks, functions.

    Of what is none of these and cannot be called, it is the ``repr`` without addresses.
    """
    for depth, one in enumerate(above):
        if one is value:  # a function that calls itself, say
            return f"above {depth}"
    if isinstance(value, Tensor):
        # Not .contiguous(): one element counts as that, whatever its stride.
        packed = value.detach().cpu().clone(memory_format=torch.contiguous_format)
        content = packed.flatten().view(torch.uint8).numpy().tobytes()
        return f"{value.dtype}{tuple(value.shape)}{_hash(content)}"
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{value.shape}{_hash(value.tobytes())}"
    if isinstance(value, type):
        return f"{value.__module__}.{value.__qualname__}"
    parts = [fingerprint(part, (*above, value)) for part in _inside(value)]
    if isinstance(value, set | frozenset):
        parts.sort()
    if isinstance(value, nn.Module):
        return f"{_ADDRESS.sub('', repr(value))}{_hash(''.join(parts).encode())}"
    named = f"{value.__module__}.{value.__qualname__}" if isinstance(value, FunctionType) else type(value).__qualname__
    return f"{named}({', '.join(parts)})" if parts else _ADDRESS.sub("", repr(value))


def _hash(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _is_plain(value: object) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    kinds = bool | int | float | str | torch.dtype | FunctionType | BuiltinFunctionType
    return value is None or isinstance(value, kinds)


def _inside(value: object) -> Iterator[object]:
    """What a thing consists of."""
    if isinstance(value, nn.Module):
        yield from value.state_dict().items()
        for part in value.modules():
            yield part.code if isinstance(part, torch.jit.ScriptModule) else getattr(type(part).forward, "__code__", "")
            yield {k: v for k, v in vars(part).items() if not k.startswith("_") and k != "training" and _is_plain(v)}
    elif isinstance(value, FunctionType):
        yield from (value.__code__, value.__closure__, value.__defaults__, value.__kwdefaults__)
        for name, found in used_globals(value).items():
            if isinstance(found, FunctionType) and found.__module__ == value.__module__:
                yield name, found.__code__
            elif _is_plain(found) or isinstance(found, nn.Module) or type(found) is Tensor:
                yield name, found
    elif isinstance(value, CodeType):
        yield from (value.co_code, value.co_names, value.co_consts)
    elif isinstance(value, CellType):
        with suppress(ValueError):  # it is empty
            yield value.cell_contents
    elif isinstance(value, partial):
        yield from (value.func, value.args, value.keywords)
    elif isinstance(value, MethodType):
        yield from (value.__func__, value.__self__)
    elif isinstance(value, dict):
        yield from value.items()
    elif isinstance(value, list | tuple | set | frozenset):
        yield from value
    elif is_dataclass(value):
        yield from ((field.name, getattr(value, field.name)) for field in fields(value))
    elif callable(value):
        yield from () if (state := object.__getstate__(value)) is None else (state,)
