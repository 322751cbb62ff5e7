"""Reads the arrays in a `.npy` file that holds a pickled dict: layer name to a list of arrays.

Unpickling calls the functions that the file names, so a file can run any program. This module reads only the
pickle operations of NumPy's arrays. It builds only text, numbers, lists, dicts and arrays, and calls nothing
that the file names: it interprets the arguments of NumPy's functions instead. Files of Python 2 (protocol 2)
and of every NumPy since are read. Python's `pickletools` decodes the operations.

An array is `_reconstruct(ndarray, (0,), b"b")`, followed by its state (version, shape, type, Fortran order or
not, content). A type is `dtype("f4", ...)`, followed by its state (version, byte order, ...).
"""

from __future__ import annotations

import io
import math
import os
import pickletools
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from convswap.errors import ConvswapError
from convswap.export.byte_reader import read_checkpoint_file
from numpy.typing import NDArray

# AlexNet's 61 million weights take 244 MB, as float64 twice that.
LARGEST_FILE = 1 << 30
# A layer takes about 60 operations.
MOST_OPERATIONS = 20_000
MOST_DIMENSIONS = 32
LARGEST_SIZE = 1 << 31
_ELEMENTS = ("f2", "f4", "f8")
_OBJECTS = ("O8", "O4", "O")
_BYTE_ORDERS = {"<": "<", ">": ">", "=": "<", "|": "<"}
_ALLOWED = {
    f"{module}.{name}": name
    for module, name in (
        ("numpy.core.multiarray", "_reconstruct"),
        ("numpy._core.multiarray", "_reconstruct"),
        ("numpy", "ndarray"),
        ("numpy", "dtype"),
    )
}

Arrays = dict[str, list[NDArray[np.float32]]]


def read_pickled_arrays(path: str | os.PathLike[str], expected: str) -> Arrays:
    """Return the arrays of each layer in the file at `path`, converted to float32.

    `expected` describes the file for messages. Raises ConvswapError if the file cannot be read, is damaged,
    or has anything but a dict of lists of floating-point arrays.
    """
    content = read_checkpoint_file(path, expected, LARGEST_FILE)
    stream = io.BytesIO(content)
    try:
        version = np.lib.format.read_magic(stream)
        read_header = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }[version]
        with warnings.catch_warnings():
            # NumPy warns of headers that Python 2 wrote, which the original file may have.
            warnings.simplefilter("ignore")
            shape, _, kind = read_header(stream)
    except Exception as error:  # A damaged header can raise any error of Python's parser.
        raise ConvswapError(
            f"{str(path)!r} is not a .npy file that NumPy reads; expected {expected}"
        ) from error
    if kind != np.dtype(object) or shape != ():
        raise ConvswapError(
            f"{str(path)!r} holds an array of {kind!s:.60} with {len(shape)} dimensions; expected {expected}"
        )
    reader = _Reader(str(path))
    value = reader.read(stream)
    if not isinstance(value, _Array) or value.shape != () or not isinstance(value.content, list):
        raise reader.wrong("its pickle holds no array of one object")
    layers = value.content[0]
    if not isinstance(layers, dict):
        raise reader.wrong(f"its object is {_type_name(layers)}, not a dict of layers")
    return {name: reader.floats(name, arrays) for name, arrays in layers.items()}


@dataclass
class _Global:
    """A name in a module, which is not imported."""

    name: str


@dataclass
class _Type:
    """An element type: its code, such as "f4", and the order of its bytes."""

    code: str
    order: str = "<"


@dataclass
class _Array:
    """An array. Its content is a list for objects, else bytes, and None until its state is read."""

    shape: tuple[int, ...] = ()
    type: _Type | None = None
    fortran: bool = False
    content: list[Any] | bytes | None = None


_MARK = object()


class _Reader:
    """Builds the value of a pickle on a stack."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def wrong(self, what: str) -> ConvswapError:
        return ConvswapError(
            f"{self._path!r}: {what}; only a dict of NumPy arrays is read: check where the file is from"
        )

    def read(self, stream: io.BytesIO) -> Any:
        """Return the value of the pickle at the current position of `stream`."""
        try:
            for count, (operation, argument, _) in enumerate(pickletools.genops(stream)):
                if count >= MOST_OPERATIONS:
                    raise self.wrong(f"it has more than {MOST_OPERATIONS} pickle operations")
                if operation.name == "STOP":
                    return self._pop()
                self._execute(operation.name, argument)
        except ConvswapError:
            raise
        except MemoryError as error:
            raise ConvswapError(f"{self._path!r} does not fit in memory") from error
        except Exception as error:  # the errors of pickletools have no common class
            raise ConvswapError(f"{self._path!r} is cut off or damaged; get it again") from error
        raise ConvswapError(f"{self._path!r} is cut off: its pickle has no end; get it again")

    def floats(self, name: str, arrays: Any) -> list[NDArray[np.float32]]:
        """Return `arrays`, a list of floating-point arrays of the layer `name`, in float32."""
        if not isinstance(arrays, list | tuple) or not all(isinstance(array, _Array) for array in arrays):
            raise self.wrong(f"layer {name!r:.60} is {_type_name(arrays)}, not a list of arrays")
        return [self._float32(name, array) for array in arrays]

    def _float32(self, name: str, array: _Array) -> NDArray[np.float32]:
        if array.type is None or not isinstance(array.content, bytes):
            raise self.wrong(f"layer {name!r:.60} has an array that is not of floating-point numbers")
        kind = np.dtype(array.type.order + array.type.code)
        order: Any = "F" if array.fortran else "C"
        try:
            with np.errstate(over="raise", invalid="ignore"):
                values = np.frombuffer(array.content, kind).astype(np.float32)
        except FloatingPointError as error:
            raise self.wrong(f"layer {name!r:.60} has values beyond the range of float32") from error
        return values.reshape(array.shape, order=order)

    def _execute(self, operation: str, argument: Any) -> None:
        if operation in _IGNORED:
            return
        if operation in _CONSTANTS:
            self._stack.append(_CONSTANTS[operation])
        elif operation in _LITERALS:
            self._stack.append(argument)
        elif operation in _ACTIONS:
            _ACTIONS[operation](self, argument)
        else:
            raise self.wrong(f"its pickle uses {operation}, which arrays do not need")

    def _pop(self) -> Any:
        if not self._stack or self._stack[-1] is _MARK:
            raise ValueError("the stack is empty")
        return self._stack.pop()

    def _pop_to_mark(self) -> list[Any]:
        index = next(index for index in reversed(range(len(self._stack))) if self._stack[index] is _MARK)
        values = self._stack[index + 1 :]
        del self._stack[index:]
        return values

    def _mark(self, _: Any) -> None:
        self._stack.append(_MARK)

    def _empty_list(self, _: Any) -> None:
        self._stack.append([])

    def _empty_dict(self, _: Any) -> None:
        self._stack.append({})

    def _tuple(self, _: Any) -> None:
        self._stack.append(tuple(self._pop_to_mark()))

    def _tuple_of(self, count: int) -> None:
        values = [self._pop() for _ in range(count)]
        self._stack.append(tuple(reversed(values)))

    def _append(self, _: Any) -> None:
        self._extend([self._pop()])

    def _appends(self, _: Any) -> None:
        self._extend(self._pop_to_mark())

    def _extend(self, values: list[Any]) -> None:
        target = self._stack[-1]
        if not isinstance(target, list):
            raise self.wrong(f"its pickle appends to {_type_name(target)}")
        target.extend(values)

    def _set_item(self, _: Any) -> None:
        value, key = self._pop(), self._pop()
        self._update([key, value])

    def _set_items(self, _: Any) -> None:
        self._update(self._pop_to_mark())

    def _update(self, values: list[Any]) -> None:
        target = self._stack[-1]
        if not isinstance(target, dict):
            raise self.wrong(f"its pickle sets items of {_type_name(target)}")
        for key, value in zip(values[::2], values[1::2], strict=True):
            if not isinstance(key, str):
                raise self.wrong(f"it has {_type_name(key)} as the name of a layer")
            target[key] = value

    def _put(self, index: int) -> None:
        self._memo[index] = self._stack[-1]

    def _memoize(self, _: Any) -> None:
        self._memo[len(self._memo)] = self._stack[-1]

    def _get(self, index: int) -> None:
        self._stack.append(self._memo[index])

    def _global(self, argument: str) -> None:
        self._stack.append(self._allowed(argument.replace(" ", ".", 1)))

    def _stack_global(self, _: Any) -> None:
        name, module = self._pop(), self._pop()
        if not isinstance(name, str) or not isinstance(module, str):
            raise ValueError("a global is named by text")
        self._stack.append(self._allowed(f"{module}.{name}"))

    def _allowed(self, name: str) -> _Global:
        if name not in _ALLOWED:
            raise self.wrong(f"it asks for {name!r:.80}, which could run a program, and was not obeyed")
        return _Global(_ALLOWED[name])

    def _reduce(self, _: Any) -> None:
        arguments, function = self._pop(), self._pop()
        match function, arguments:
            case _Global("_reconstruct"), (_Global("ndarray"), (0,), b"b" | "b"):
                self._stack.append(_Array())
            case _Global("dtype"), (str() as code, *_) if code in _ELEMENTS + _OBJECTS:
                self._stack.append(_Type(code))
            case _Global("dtype"), (str() as code, *_):
                raise self.wrong(f"it has an array of type {code!r:.20}, expected {', '.join(_ELEMENTS)}")
            case _:
                raise self.wrong("its pickle calls something other than NumPy's arrays are made with")

    def _build(self, _: Any) -> None:
        state, target = self._pop(), self._stack[-1]
        match target, state:
            case _Type(), (int(), str() as order, *_) if order in _BYTE_ORDERS:
                target.order = _BYTE_ORDERS[order]
            case _Array(content=None), (
                1,
                tuple() as shape,
                _Type() as kind,
                bool() | 0 | 1 as fortran,
                data,
            ):
                self._fill(target, shape, kind, bool(fortran), data)
            case _:
                raise self.wrong("its pickle has an array or type with a state that NumPy does not write")

    def _fill(self, array: _Array, shape: tuple[Any, ...], kind: _Type, fortran: bool, data: Any) -> None:
        if len(shape) > MOST_DIMENSIONS or not all(
            type(size) is int and 0 <= size < LARGEST_SIZE for size in shape
        ):
            raise self.wrong("it has an array whose shape is not a few sizes")
        count = math.prod(shape)
        if kind.code in _OBJECTS:
            if not isinstance(data, list) or len(data) != count:
                raise self.wrong("it has an array of objects without as many objects")
            array.content = data
        else:
            # Python 2 wrote bytes as text.
            content = data.encode("latin-1") if isinstance(data, str) else data
            needed = count * int(kind.code[1:])
            if not isinstance(content, bytes) or len(content) != needed:
                found = f"{len(content)} bytes" if isinstance(content, bytes) else _type_name(data)
                raise self.wrong(f"it has an array of {needed} bytes by its shape, and {found} are there")
            array.content = content
        array.shape, array.type, array.fortran = shape, kind, fortran


def _type_name(value: Any) -> str:
    """Return a description of a value's type, for messages."""
    return {_Array: "an array", _Global: "a name", _Type: "a type", int: "an int"}.get(
        type(value), f"a {type(value).__name__}"
    )


_IGNORED = {"PROTO", "FRAME"}
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_LITERALS = {
    "BININT", "BININT1", "BININT2", "LONG1", "BINUNICODE", "SHORT_BINUNICODE", "BINSTRING", "SHORT_BINSTRING",
    "BINBYTES", "SHORT_BINBYTES", "BINBYTES8",
}  # fmt: skip
_ACTIONS: dict[str, Callable[[_Reader, Any], None]] = {
    "MARK": _Reader._mark,
    "EMPTY_LIST": _Reader._empty_list,
    "EMPTY_DICT": _Reader._empty_dict,
    "TUPLE": _Reader._tuple,
    "TUPLE1": lambda reader, _: reader._tuple_of(1),
    "TUPLE2": lambda reader, _: reader._tuple_of(2),
    "TUPLE3": lambda reader, _: reader._tuple_of(3),
    "APPEND": _Reader._append,
    "APPENDS": _Reader._appends,
    "SETITEM": _Reader._set_item,
    "SETITEMS": _Reader._set_items,
    "BINPUT": _Reader._put,
    "LONG_BINPUT": _Reader._put,
    "MEMOIZE": _Reader._memoize,
    "BINGET": _Reader._get,
    "LONG_BINGET": _Reader._get,
    "GLOBAL": _Reader._global,
    "STACK_GLOBAL": _Reader._stack_global,
    "REDUCE": _Reader._reduce,
    "BUILD": _Reader._build,
}
