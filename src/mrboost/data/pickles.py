"""The part of Python's pickle format that CIFAR's files use, read without running anything.

A pickle is a program for a small stack machine that may call any function: ``pickle.load`` of a
stranger's file runs the stranger's code. Here ``pickletools`` splits the program into instructions,
and only those that build a dictionary of arrays, lists and strings are carried out. A call is
recorded, not made; at the end the record of an array is checked and becomes one.
"""

from __future__ import annotations

import math
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
MAX_TUPLE = 16  # the longest official one, the state of a dtype, has 8 items

Entry = NDArray[Any] | list[int] | list[str] | str

_CLASSES = {"numpy ndarray", "numpy dtype"}
_ARRAYS = {f"numpy.{core}.multiarray _reconstruct" for core in ("core", "_core")}
_BUFFERS = {f"numpy.{core}.numeric _frombuffer" for core in ("core", "_core")}  # protocol 5
_BYTES = "_codecs encode"  # how Python 3 writes bytes in protocol 2
_KNOWN = {*_CLASSES, *_ARRAYS, *_BUFFERS, _BYTES}


def read_pickle(content: bytes, where: str) -> dict[str, Entry]:
    """The dictionary in a pickle: text keys to arrays, lists of small integers, lists of strings,
    or strings. Raises InputError for everything else; ``where`` names the file in messages."""
    with reading(f"{where}: damaged pickle", "get the official archive again"):
        result = _Machine(where).run(content)
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
    if not re.fullmatch(r"[|<>=]?[iu][1248]", code) or not isinstance(raw, bytes | bytearray):
        raise ValueError(f"damaged array of type {code[:20]!r}")
    if not all(type(size) is int and size >= 0 for size in shape):
        raise ValueError("damaged array: its shape is not made of whole numbers")
    if math.prod(shape) * np.dtype(code).itemsize != len(raw):
        raise ValueError(f"damaged array: {len(raw)} bytes for shape {shape} of type {code}")
    return np.frombuffer(raw, code).reshape(shape, order="F" if order == "F" else "C")


class _Name(str):
    """The name of a function."""


@dataclass
class _Call:
    """A call of a function, and the state that the result would be given."""

    name: str
    arguments: tuple[Any, ...]
    state: tuple[Any, ...] = ()


class _Machine:
    """The stack machine. Lists hold numbers and strings only, dictionaries have text keys, and
    tuples are at most two deep, so that no value is larger than the file or deeply nested."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def run(self, content: bytes) -> Any:
        for count, (opcode, argument, _) in enumerate(pickletools.genops(content)):
            name = opcode.name
            if count >= MAX_INSTRUCTIONS:
                raise ValueError(f"more than {MAX_INSTRUCTIONS:,} instructions")
            if name in _VALUES:
                self.stack.append(argument)
            elif name in _STEPS:
                _STEPS[name](self, argument)
            elif name not in ("PROTO", "FRAME", "STOP"):
                raise self.refused(name)
        return self.stack.pop()

    def refused(self, what: str) -> InputError:
        problem = f"{self.where}: the pickle asks for {what}, which no CIFAR file needs"
        return InputError(f"{problem}: refused, get the official archive")

    def pop(self, count: int) -> list[Any]:
        if not 0 <= count <= len(self.stack):
            raise ValueError("too few values")
        return [self.stack.pop() for _ in range(count)][::-1]

    def pop_to_mark(self) -> list[Any]:
        return self.pop(len(self.stack) - self.marks.pop())

    def push_tuple(self, items: list[Any]) -> None:
        if len(items) > MAX_TUPLE:
            raise self.refused("a-long-tuple")
        if any(isinstance(part, tuple) for item in items if type(item) is tuple for part in item):
            raise self.refused("tuples-in-tuples-in-tuples")
        self.stack.append(tuple(items))

    def extend_list(self, items: list[Any]) -> None:
        if not all(type(item) in (int, str, bytes) for item in items):
            raise self.refused("lists-of-objects")
        if not isinstance(self.stack[-1], list):
            raise ValueError("items without a list")
        self.stack[-1].extend(items)

    def update_dict(self, items: list[Any]) -> None:
        if not all(isinstance(key, str | bytes) for key in items[::2]):
            raise self.refused("keys-that-are-no-text")
        self.stack[-1].update(zip(items[::2], items[1::2], strict=True))

    def push_name(self, name: str) -> None:
        if name not in _KNOWN:
            raise self.refused(name.replace(" ", ".")[:100])
        self.stack.append(_Name(name))

    def call(self) -> None:
        name, arguments = self.pop(2)
        if not isinstance(name, _Name) or not isinstance(arguments, tuple):
            raise ValueError("a call without a function")
        self.stack.append(arguments[0] if name == _BYTES else _Call(name, arguments))

    def set_state(self) -> None:
        target, state = self.pop(2)
        if not isinstance(target, _Call) or not isinstance(state, tuple):
            raise ValueError("a state without an object")
        target.state = state
        self.stack.append(target)

    def memoize(self, number: int | None) -> None:
        self.memo[len(self.memo) if number is None else number] = self.stack[-1]


_VALUES = set(
    """INT BININT BININT1 BININT2 LONG1 STRING BINSTRING SHORT_BINSTRING UNICODE BINUNICODE
    SHORT_BINUNICODE BINBYTES SHORT_BINBYTES BYTEARRAY8""".split()  # noqa: SIM905
)
_STEPS: dict[str, Callable[[_Machine, Any], None]] = {
    "NONE": lambda m, _: m.stack.append(None),
    "NEWTRUE": lambda m, _: m.stack.append(True),
    "NEWFALSE": lambda m, _: m.stack.append(False),
    "MARK": lambda m, _: m.marks.append(len(m.stack)),
    "EMPTY_TUPLE": lambda m, _: m.push_tuple([]),
    "TUPLE1": lambda m, _: m.push_tuple(m.pop(1)),
    "TUPLE2": lambda m, _: m.push_tuple(m.pop(2)),
    "TUPLE3": lambda m, _: m.push_tuple(m.pop(3)),
    "TUPLE": lambda m, _: m.push_tuple(m.pop_to_mark()),
    "EMPTY_LIST": lambda m, _: m.stack.append([]),
    "APPEND": lambda m, _: m.extend_list(m.pop(1)),
    "APPENDS": lambda m, _: m.extend_list(m.pop_to_mark()),
    "EMPTY_DICT": lambda m, _: m.stack.append({}),
    "SETITEM": lambda m, _: m.update_dict(m.pop(2)),
    "SETITEMS": lambda m, _: m.update_dict(m.pop_to_mark()),
    "GLOBAL": lambda m, name: m.push_name(name),
    "STACK_GLOBAL": lambda m, _: m.push_name(" ".join(m.pop(2))),
    "REDUCE": lambda m, _: m.call(),
    "BUILD": lambda m, _: m.set_state(),
    "BINPUT": _Machine.memoize,
    "LONG_BINPUT": _Machine.memoize,
    "MEMOIZE": _Machine.memoize,
    "BINGET": lambda m, number: m.stack.append(m.memo[number]),
    "LONG_BINGET": lambda m, number: m.stack.append(m.memo[number]),
}
