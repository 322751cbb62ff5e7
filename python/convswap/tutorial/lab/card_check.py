"""Checks a kernel on the card: with fences around every tensor, NaN where nothing was written, and twice."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from convswap import _native
from convswap.errors import ConvswapError
from convswap.reference.metrics import relative_l2_error
from convswap.tutorial.lab.checks import Case, Outcome, fault_of
from convswap.tutorial.lab.kernel import ALGORITHM, Kernel
from convswap.tutorial.lab.result import Fault
from convswap.tutorial.lab.targets import TargetLayer

FENCE_BYTES = 1 << 16
_FLOAT_BYTES = 4
# Of the layers that are timed: enough images for every block of a launch to have neighbours, and few enough
# for the answers to be copied in no time.
_MOST_OUTPUTS = 1 << 22


class CardCase(Case):
    """A convolution too large for the processor; `naive` computes its reference on the card, in float32.

    That kernel is checked against float64 by the library's own tests.
    """

    @cached_property
    def reference(self) -> np.ndarray:
        """The convolution, in float32 sums."""
        return _computed(self, *self.arrays)

    @cached_property
    def magnitude(self) -> np.ndarray:
        """For each output the sum of the absolute values of its terms."""
        x, w, bias = self.arrays
        return _computed(self, np.abs(x), np.abs(w), None if bias is None else np.abs(bias))


def layer_case(one: TargetLayer) -> CardCase:
    """Return the layer that is timed, with as many of its images as are compared."""
    problem = one.problem
    per_image = math.prod(problem.output_shape[1:])
    arrays = one.layer.arrays({name: np.empty(shape, np.float32) for name, shape in one.shapes.items()})
    images = max(1, min(len(arrays.x), _MOST_OUTPUTS // max(per_image, 1)))
    given = {name: value for name, value in one.layer.attributes.items() if not _says_nothing(name, value)}
    return CardCase((images, *arrays.x.shape[1:]), arrays.w.shape, arrays.bias is not None, given)


def _says_nothing(name: str, value: Any) -> bool:
    """Return whether an attribute is what it would be if it were left out."""
    usual = {"strides": 1, "dilations": 1, "pads": 0}
    if name in usual:
        return all(each == usual[name] for each in value)
    return name == "kernel_shape" or (name, value) in (("group", 1), ("auto_pad", "NOTSET"))


def check_on_card(kernel: Kernel, path: str, case: Case) -> tuple[Fault | None, float]:
    """Run `kernel`, whose file is `path`, for `case` on the card, twice.

    Returns the fault, or None, and the relative L2 error of what it computed. After a fault of the kind
    "crash" the process can do nothing more on the card.
    """
    x, w, b = case.arrays
    arrays = _Arrays(_fenced(x), _fenced(w), None if b is None else _fenced(b))
    y = _native.DeviceArray(case.problem.output_shape, fence=FENCE_BYTES)
    named = {"y": y, "x": arrays.x, "w": arrays.w, "b": arrays.b}
    try:
        _native.fill_shared_memory()
        first = _run(path, case, arrays, y)
        # What the first run left in shared memory is still there.
        second = _run(path, case, arrays, y)
    except ConvswapError as error:
        return Fault("launch", f"{error}.", {"case": str(case)}), math.nan
    except RuntimeError as error:
        return crash_of(kernel.name, str(case), str(error)), math.nan
    outcome = Outcome(first, second, _damage(named), dict(_changes(case, arrays)))
    fault = fault_of(kernel.name, case, outcome)
    return fault, math.nan if fault else relative_l2_error(first, case.reference)


class _Arrays(NamedTuple):
    x: _native.DeviceArray
    w: _native.DeviceArray
    b: _native.DeviceArray | None


def _fenced(array: np.ndarray) -> _native.DeviceArray:
    return _native.DeviceArray.from_numpy(array, fence=FENCE_BYTES)


def _run(path: str, case: Case, arrays: _Arrays, y: _native.DeviceArray) -> np.ndarray:
    y.poison()
    x, w, b = arrays
    _native.conv_device(
        x, w, b, y, algorithm=ALGORITHM, precision="ieee", files={"convswap.lab": path}, **case.attributes
    )
    return y.to_numpy()


def _computed(case: Case, x: np.ndarray, w: np.ndarray, bias: np.ndarray | None) -> np.ndarray:
    y = _native.DeviceArray(case.problem.output_shape)
    on_card = _native.DeviceArray.from_numpy
    b = None if bias is None else on_card(bias)
    _native.conv_device(on_card(x), on_card(w), b, y, algorithm="naive", precision="ieee", **case.attributes)
    return y.to_numpy().astype(np.float64)


def _damage(named: Mapping[str, _native.DeviceArray | None]) -> dict[str, int]:
    found = {name: None if array is None else array.damage() for name, array in named.items()}
    return {name: place // _FLOAT_BYTES for name, place in found.items() if place is not None}


def _changes(case: Case, arrays: _Arrays) -> Iterator[tuple[str, int]]:
    for name, given, array in zip("xwb", case.arrays, arrays, strict=True):
        if given is None or array is None:
            continue
        differs = np.ravel(array.to_numpy()).view(np.uint32) != np.ravel(given).view(np.uint32)
        if differs.any():
            yield name, int(np.argmax(differs))


# What the driver says of a kernel that it stopped, in its words, and what that means for the author.
_STOPPED = {
    "illegal memory access": "it reads or writes at an address that belongs to no tensor, or beyond the "
    "shared memory of its block. See every index that is computed, first those of threads at the end of a "
    "row",
    "misaligned address": "it reads or writes several floats at once, as float4, at an address that is no "
    "multiple of their size. A row begins at such an address only where its width is one",
    "device-side assert": "an assert() does not hold",
    "illegal instruction": "it stops itself by __trap(), or jumps to where no instruction is",
    "hardware stack": "functions call themselves more often than a thread has memory for",
    "unspecified launch failure": "the card gave up: a thread needs more memory for its own arrays and calls "
    "than it has, or uses an address that is none",
    "too many resources": "a block of so many threads takes more registers than there are: fewer threads, or "
    "__launch_bounds__(THREADS) before `forward`",
    "invalid argument": "the card does not take the launch: see grid, block and shared in the launch line",
    "launch timed out": "it runs longer than the display's card may",
    "out of memory": "the card's memory does not suffice",
}


def crash_of(name: str, case: str, said: str) -> Fault:
    """Return the fault of a kernel that the driver stopped with the words `said`."""
    for words, meaning in _STOPPED.items():
        if words in said:
            return Fault(
                "crash",
                f"{name} was stopped by the card: for {case}, {meaning}. The driver: {said}.",
                {"case": case},
            )
    return Fault("crash", f"{name} was stopped by the card: for {case}. The driver: {said}.", {"case": case})
