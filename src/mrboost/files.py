"""Files that are whole or not there: JSON and safetensors, written beside, flushed to
the disk, then renamed.

``digest`` stands for values: it is the same for equal ones in another process.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import fields, is_dataclass
from functools import partial
from pathlib import Path
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType
from typing import Any

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from .errors import InputError
from .networks import used_globals

State = dict[str, Tensor]
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


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


def fingerprint(value: object, above: tuple[object, ...] = ()) -> str:
    """A text that is the same for equal things in another process: tensors,
    models, attacks, functions.

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
    named = (
        f"{value.__module__}.{value.__qualname__}"
        if isinstance(value, FunctionType)
        else type(value).__qualname__
    )
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
            yield (
                part.code
                if isinstance(part, torch.jit.ScriptModule)
                else getattr(type(part).forward, "__code__", "")
            )
            yield {
                k: v
                for k, v in vars(part).items()
                if not k.startswith("_") and k != "training" and _is_plain(v)
            }
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
