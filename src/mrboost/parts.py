"""What an evaluation has finished so far, in files, so that an interrupted one can go on."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

from torch import Tensor, nn

from .errors import InputError
from .storage import State, read_tensors, write_tensors


class Parts:
    """One file for each finished part. A part counts only for the same model, images and attack: ``of`` says which."""

    def __init__(self, folder: Path | None, *, resume: bool = False) -> None:
        self._folder = folder
        if folder is not None and not resume:
            shutil.rmtree(folder, ignore_errors=True)

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


def identity(model: object) -> str:
    """A digest of a model's weights; of a plain function nothing can be said."""
    digest = hashlib.blake2b(digest_size=16)
    if isinstance(model, nn.Module):
        for name, tensor in model.state_dict().items():
            digest.update(name.encode() + content(tensor))
    return digest.hexdigest()


def content(tensor: Tensor) -> bytes:
    return repr((tensor.dtype, tuple(tensor.shape))).encode() + hashlib.blake2b(
        tensor.detach().cpu().contiguous().flatten().view(-1).numpy().tobytes()
        if tensor.dtype.is_floating_point and tensor.dtype.itemsize >= 4
        else tensor.detach().cpu().double().contiguous().numpy().tobytes()
    ).digest()  # fmt: skip
