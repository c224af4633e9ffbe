"""Files that are whole or not there: JSON and safetensors, written beside, flushed to
the disk, then renamed.

``digest`` stands for values: it is the same for equal ones in another process.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import safetensors
import safetensors.torch
import torch
from filelock import FileLock, Timeout
from torch import Tensor

from .errors import InputError

State = dict[str, Tensor]
MOST_TEXT = 2**27  # bytes of JSON; parsed, they take up to 25 times as much memory
MOST_NESTED = 50  # levels of a JSON value; our own files have a tenth of them


def write_tensors(path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Tensors and JSON facts in one safetensors file, replaced in one step."""
    # Cloned: safetensors refuses tensors that share memory, as tied weights do.
    own = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    replace_file(path, safetensors.torch.save(own, {"facts": json.dumps(facts)}))


def read_tensors(path: Path) -> tuple[State, dict[str, Any]]:
    """The tensors and the facts of such a file."""
    with _opened(path) as file:
        return {name: file.get_tensor(name) for name in file.keys()}, _facts(file, path)  # noqa: SIM118 — not a mapping


def read_facts(path: Path) -> dict[str, Any]:
    """The facts of such a file, without its tensors."""
    with _opened(path) as file:
        return _facts(file, path)


def checksum(tensors: Mapping[str, Tensor]) -> str:
    """A hash of tensors: of their names, types, shapes and values."""
    found = hashlib.blake2b(digest_size=16)
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
        found.update(tensor.flatten().view(torch.uint8).numpy().data)
    return found.hexdigest()


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    require_regular(path)
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            yield file
    except safetensors.SafetensorError as error:
        problem = f"{path} is not a whole safetensors file ({error})"
        raise InputError(f"{problem}: restore it from a copy") from None


def _facts(file: Any, path: Path) -> dict[str, Any]:
    facts = parse_json((file.metadata() or {}).get("facts", "{}"), path)
    return facts if isinstance(facts, dict) else {}


def write_json(path: Path, value: object) -> None:
    replace_file(path, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file, which may be damaged or a stranger's."""
    value = parse_json(read_bytes(path), path)
    if not isinstance(value, dict):
        raise InputError(f"{path} must hold a JSON object, it holds a {type(value).__name__}")
    return value


def read_bytes(path: Path) -> bytes:
    """The content of a file of text, which may be a stranger's: none is large."""
    require_regular(path)
    if (size := path.stat().st_size) > MOST_TEXT:
        raise InputError(f"{path} has {size:,} bytes, more than {MOST_TEXT:,}: move it away")
    return path.read_bytes()


def parse_json(text: str | bytes, path: Path) -> Any:
    """What a JSON text from ``path`` says; refuses what later steps could not follow: values
    nested too deep, and numbers of thousands of digits."""
    try:
        value = json.loads(text)
        if _depth(value) > MOST_NESTED:
            raise RecursionError
    except (RecursionError, ValueError) as error:
        problem = "nested too deep" if isinstance(error, RecursionError) else error
        raise InputError(f"{path} is not valid JSON ({problem}): restore it from a copy") from None
    return value


def _depth(value: object) -> int:
    """How many lists and objects lie in each other."""
    if isinstance(value, dict):
        value = list(value.values())
    return 1 + max(map(_depth, value), default=0) if isinstance(value, list) else 0


def require_regular(path: Path) -> None:
    """Refuse pipes, devices and folders: a reader could wait for them without end."""
    if path.exists() and not path.is_file():
        raise InputError(f"{path} is not a regular file: put a plain file in its place")


def require_inside(path: Path, folder: Path) -> None:
    """Refuse a link that would take what is written at ``path``, in a folder, out of it: a
    stranger's folder may hold links to files of the user's."""
    if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder)):
        raise InputError(f"{path} leads out of {folder}: put a folder in the place of the link")


@contextmanager
def locked(path: Path, busy: str = "") -> Iterator[None]:
    """Hold the lock that the file at ``path`` stands for; the system drops it when the process
    ends, however it ends.

    Args:
        path: made where it is missing; its content stays as it is, and a link is refused.
        busy: the error where another process holds the lock; without it, wait for the other.
    """
    if path.is_symlink():
        raise OSError(errno.ELOOP, "it is a link: remove it", str(path))
    lock = FileLock(path, is_singleton=False)
    try:
        lock.acquire(blocking=not busy)
    except Timeout:
        raise InputError(busy) from None
    try:
        yield
    finally:
        lock.release()


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Name the file in an error of the system, which that of a full disk does not."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename not in (None, str(path)):
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def replace_file(path: Path, content: bytes) -> None:
    """Put ``content`` at ``path`` in one step."""
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def write_texts(files: Mapping[Path, str | bytes]) -> None:
    """Pages and plots, where the user wants them."""
    for path, text in files.items():
        require_regular(path)  # to put a file in the place of /dev/null would harm all
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, text.encode() if isinstance(text, str) else text)
        except OSError as error:
            problem = f"cannot write {str(path)!r}: {error.strerror}"
            raise InputError(f"{problem}: choose another place") from None


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A file to write, which then takes the place of ``path``: a reader sees the old file or the
    new one, never a part."""
    # Others may write the same file just now
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        with naming(path):
            yield temporary
            with temporary.open("rb+") as file:
                os.fsync(file.fileno())
            temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if os.name != "nt":  # Windows opens no folders
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # the renaming itself
        finally:
            os.close(folder)


def remove_temporary(folder: Path, name: str = "*") -> None:
    """Remove what a killed process left of files that it was replacing, called ``name``; the
    caller holds the lock of those who write them."""
    for left in folder.glob(f".{name}.*.tmp"):
        left.unlink(missing_ok=True)


@runtime_checkable
class Fingerprinted(Protocol):
    """What stands for a tensor that is not in memory."""

    def fingerprint(self) -> str:
        """That of the tensor."""


def digest(*values: object) -> str:
    return _hash("\n".join(map(fingerprint, values)).encode())


def fingerprint(value: object) -> str:
    """A text that is the same for equal tensors, numbers and texts in another process."""
    if isinstance(value, Fingerprinted):
        return value.fingerprint()
    if not isinstance(value, Tensor):
        return repr(value)
    # Not .contiguous(): one element counts as that, whatever its stride.
    packed = value.detach().cpu().clone(memory_format=torch.contiguous_format)
    content = packed.flatten().view(torch.uint8).numpy().tobytes()
    return f"{value.dtype}{tuple(value.shape)}{_hash(content)}"


def _hash(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()
