"""The part of Python's pickle format that CIFAR's files use, read without running anything.

A pickle is a program for a small stack machine that may call any function: ``pickle.load`` of a
stranger's file runs the stranger's code. Here the machine knows only the instructions that build a
dictionary of arrays, lists and strings, and no function: a call is recorded, not made. At the end
the record of an array is checked and becomes one.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mrboost.errors import InputError, reading

MAX_INSTRUCTIONS = 1_000_000  # the longest official file, CIFAR-100's train batch, has 200,362
MAX_INTEGER = 2**31

Entry = NDArray[Any] | list[int] | list[str] | str

_CLASSES = {"numpy.ndarray", "numpy.dtype"}
_ARRAYS = {f"numpy.{core}.multiarray._reconstruct" for core in ("core", "_core")}
_BUFFERS = {f"numpy.{core}.numeric._frombuffer" for core in ("core", "_core")}  # protocol 5
_BYTES = "_codecs.encode"  # how Python 3 writes bytes in protocol 2
_KNOWN = {*_CLASSES, *_ARRAYS, *_BUFFERS, _BYTES}
_NAMES = {ord(one.code): one.name for one in pickletools.opcodes}
_Unpickler: Any = pickle._Unpickler
_INSTRUCTIONS = set(
    """PROTO FRAME STOP MARK NONE NEWTRUE NEWFALSE INT BININT BININT1 BININT2 LONG1 STRING
    BINSTRING SHORT_BINSTRING UNICODE BINUNICODE SHORT_BINUNICODE BINBYTES SHORT_BINBYTES
    BYTEARRAY8 EMPTY_TUPLE TUPLE1 TUPLE2 TUPLE3 TUPLE EMPTY_LIST APPEND APPENDS EMPTY_DICT SETITEM
    SETITEMS GLOBAL STACK_GLOBAL REDUCE BUILD BINPUT LONG_BINPUT MEMOIZE BINGET
    LONG_BINGET""".split()  # noqa: SIM905
)


def read_pickle(content: bytes, where: str) -> dict[str, Entry]:
    """The dictionary in a pickle: text keys to arrays, lists of small integers, lists of strings,
    or strings. Raises InputError for everything else; ``where`` names the file in messages."""
    with reading(f"{where}: damaged pickle", "get the official archive again"):
        result = _Machine(content, where).load()
        if not isinstance(result, dict):
            raise InputError(f"{where}: holds a {type(result).__name__}: get it again")
        return {_text(key): _entry(_text(key), value, where) for key, value in result.items()}


def _entry(key: str, value: Any, where: str) -> Entry:
    if isinstance(value, _Call):
        return _array(value)
    if isinstance(value, str | bytes):
        return _text(value)
    if isinstance(value, list):
        if all(type(item) is int and abs(item) < MAX_INTEGER for item in value):
            return value
        if all(isinstance(item, str | bytes) for item in value):
            return [_text(item) for item in value]
    problem = f"{where}: {key[:40]!r} is neither an array, a list of numbers or strings, nor text"
    raise InputError(f"{problem}: get the official archive again")


def _text(value: str | bytes) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else value


def _array(call: _Call) -> NDArray[Any]:
    """The array that a recorded call would make; any error means a damaged file."""
    if call.name in _BUFFERS:
        raw, dtype, shape, order = call.arguments
    else:
        _, shape, dtype, is_fortran, raw = call.state
        order = "F" if is_fortran else "C"
    code = _text(dtype.state[1]) + _text(dtype.arguments[0])
    if isinstance(raw, str):
        raw = raw.encode("latin-1")
    if not re.fullmatch(r"[|<>=]?[iu][1248]", code) or not isinstance(raw, bytes):
        raise ValueError(f"damaged array of type {code[:20]!r}")
    if not all(type(size) is int and size >= 0 for size in shape):
        raise ValueError("damaged array: its shape is not made of whole numbers")
    if math.prod(shape) * np.dtype(code).itemsize != len(raw):
        raise ValueError(f"damaged array: {len(raw)} bytes for shape {shape} of type {code}")
    return np.frombuffer(raw, code).reshape(shape, order="F" if order == "F" else "C")


@dataclass
class _Call:
    """A call of a function, and the state that the result would be given."""

    name: str
    arguments: tuple[Any, ...]
    state: Any = ()

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Machine(_Unpickler):  # type: ignore[misc]
    """Python's own machine, the one that is written in Python: what it builds is no larger than the
    file. Nothing is hashed but text, since the hash of nested tuples could take for ever."""

    def __init__(self, content: bytes, where: str) -> None:
        super().__init__(io.BytesIO(content), encoding="latin-1")
        self.where = where
        self.left = MAX_INSTRUCTIONS

    @property
    def dispatch(self) -> _Machine:
        """Gives the function of an instruction, as ``self[code]``."""
        return self

    def __getitem__(self, code: int) -> Callable[[_Machine], None]:
        self.left -= 1
        if self.left < 0:
            raise ValueError(f"more than {MAX_INSTRUCTIONS:,} instructions")
        if (name := _NAMES[code]) not in _INSTRUCTIONS:
            raise self.refused(name)
        return _OWN.get(name, _Unpickler.dispatch[code])  # type: ignore[no-any-return]

    def refused(self, what: str) -> InputError:
        problem = f"{self.where}: the pickle asks for {what}, which no CIFAR file needs"
        return InputError(f"{problem}: refused, get the official archive")

    def find_class(self, module: str, name: str) -> Any:
        whole = f"{module}.{name}"
        if whole not in _KNOWN:
            raise self.refused(whole[:100])
        if whole == _BYTES:
            return lambda text, _: text
        return lambda *arguments: _Call(whole, arguments)

    def read_bytes(self) -> None:
        """Not into memory of any length that the file announces."""
        self.append(self.read(int.from_bytes(self.read(8), "little")))

    def update(self, items: list[Any]) -> None:
        if not all(isinstance(key, str | bytes) for key in items[::2]):
            raise self.refused("keys-that-are-no-text")
        self.stack[-1].update(zip(items[::2], items[1::2], strict=True))


_OWN: dict[str, Callable[[Any], None]] = {
    "BYTEARRAY8": _Machine.read_bytes,
    "SETITEM": lambda machine: machine.update([machine.stack.pop(-2), machine.stack.pop()]),
    "SETITEMS": lambda machine: machine.update(machine.pop_mark()),
}
