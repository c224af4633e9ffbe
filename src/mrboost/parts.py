"""What an evaluation has finished so far, in files, so that an interrupted one can go on."""

from __future__ import annotations

import hashlib
import re
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import FunctionType

import torch
from torch import Tensor, nn

from .errors import InputError
from .storage import State, read_tensors, write_tensors

_NAMES = re.compile(r"\d+-\d+(-unfinished)?\.safetensors")


class Parts:
    """One file for each finished part. A part counts only for the same model, images and attack: ``of`` says which."""

    def __init__(self, folder: Path | None, *, resume: bool = False) -> None:
        self._folder = folder
        if folder is not None and folder.is_dir() and not resume:
            for path in folder.iterdir():
                if _NAMES.fullmatch(path.name):  # ours, and nothing else
                    path.unlink()

    def get(self, name: str, of: str) -> State | None:
        if self._folder is None or not (path := self._path(name)).is_file():
            return None
        try:
            tensors, facts = read_tensors(path)
        except InputError:
            return None  # damaged: made again
        return tensors if facts.get("of") == of else None

    def put(self, name: str, of: str, tensors: State) -> None:
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            write_tensors(self._path(name), tensors, {"of": of})

    def drop(self, name: str) -> None:
        if self._folder is not None:
            self._path(name).unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        assert self._folder is not None
        return self._folder / f"{name}.safetensors"


def digest(*values: object) -> str:
    return hashlib.blake2b("\n".join(map(fingerprint, values)).encode(), digest_size=16).hexdigest()


def fingerprint(value: object) -> str:
    """A text that is the same for equal things in another process: tensors, models, attacks, functions."""
    if isinstance(value, Tensor):
        content = value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
        return f"{value.dtype}{tuple(value.shape)}{hashlib.blake2b(content, digest_size=16).hexdigest()}"
    if isinstance(value, nn.Module):
        state = "".join(f"{name}{fingerprint(entry)}" for name, entry in value.state_dict().items())
        return f"{value!r}{hashlib.blake2b(state.encode(), digest_size=16).hexdigest()}"
    if is_dataclass(value) and not isinstance(value, type):
        inside = ", ".join(f"{f.name}={fingerprint(getattr(value, f.name))}" for f in fields(value))
        return f"{type(value).__qualname__}({inside})"
    if isinstance(value, FunctionType):
        code = value.__code__
        return f"{value.__module__}.{value.__qualname__} {code.co_code.hex()} {code.co_consts!r}"
    if callable(value) and getattr(value, "__dict__", None):
        inside = ", ".join(f"{name}={fingerprint(entry)}" for name, entry in vars(value).items())
        return f"{type(value).__qualname__}({inside})"
    return repr(value)
