"""Files that are whole or not there: JSON and safetensors, written beside, flushed to
the disk, then renamed.

``digest`` stands for values: it is the same for equal ones in another process.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from .errors import InputError

State = dict[str, Tensor]


def write_tensors(path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Tensors and JSON facts in one safetensors file, replaced in one step."""
    # Cloned: safetensors refuses tensors that share memory, as tied weights do.
    contiguous = {
        name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()
    }
    replace_file(path, safetensors.torch.save(contiguous, {"facts": json.dumps(facts)}))


def read_tensors(path: Path) -> tuple[State, dict[str, Any]]:
    with _opened(path) as file:
        return {name: file.get_tensor(name) for name in file.keys()}, _facts(file)  # noqa: SIM118 — not a mapping


def read_facts(path: Path) -> dict[str, Any]:
    """The facts of such a file, without its tensors."""
    with _opened(path) as file:
        return _facts(file)


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            yield file
    except (safetensors.SafetensorError, json.JSONDecodeError) as error:
        raise InputError(
            f"{path} is not a whole safetensors file ({error}): restore it from a copy"
        ) from None


def _facts(file: Any) -> dict[str, Any]:
    facts = json.loads((file.metadata() or {}).get("facts", "{}"))
    return facts if isinstance(facts, dict) else {}


def write_json(path: Path, value: object) -> None:
    replace_file(path, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())


def read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not valid JSON ({error}): restore it from a copy") from None
    if not isinstance(value, dict):
        raise InputError(f"{path} must hold a JSON object, it holds a {type(value).__name__}")
    return value


def replace_file(path: Path, content: bytes) -> None:
    """Put ``content`` at ``path`` in one step."""
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def write_texts(files: Mapping[Path, str]) -> None:
    """Pages and plots, where the user wants them."""
    for path, text in files.items():
        if path.is_dir():
            raise InputError(f"cannot write {str(path)!r}: it is a folder: name a file")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, text.encode())
        except OSError as error:
            raise InputError(
                f"cannot write {str(path)!r}: {error.strerror}: choose another place"
            ) from None


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A file to write, which then takes the place of ``path``: a reader sees the old file or the
    new one, never a part."""
    # Others may write the same file just now
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the renaming itself
    finally:
        os.close(folder)


def digest(*values: object) -> str:
    return _hash("\n".join(map(fingerprint, values)).encode())


def fingerprint(value: object) -> str:
    """A text that is the same for equal tensors, numbers and texts in another process."""
    if not isinstance(value, Tensor):
        return repr(value)
    # Not .contiguous(): one element counts as that, whatever its stride.
    packed = value.detach().cpu().clone(memory_format=torch.contiguous_format)
    content = packed.flatten().view(torch.uint8).numpy().tobytes()
    return f"{value.dtype}{tuple(value.shape)}{_hash(content)}"


def _hash(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()
