"""Checks a kernel on the card: two runs, with fences around every tensor and NaN in unwritten memory."""

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
from convswap.tutorial.lab.kernel import ALGORITHM, LabKernel
from convswap.tutorial.lab.result import Fault
from convswap.tutorial.lab.targets import TargetLayer

FENCE_BYTES = 1 << 16
_FLOAT_BYTES = 4
# Limits the images that are compared of a layer that is timed. There are enough for every block of a launch
# to have neighbours, and few enough to copy the outputs to the host quickly.
_MAX_OUTPUTS = 1 << 22


class CardCase(Case):
    """A convolution too large for the CPU: the algorithm `naive` computes its reference on the card.

    `naive` accumulates in float32. The library's own tests check it against float64.
    """

    @cached_property
    def reference(self) -> np.ndarray:
        """The convolution, with float32 accumulators."""
        return _naive_conv(self, *self.arrays)

    @cached_property
    def magnitude(self) -> np.ndarray:
        """The sum of the absolute values of the terms of each output."""
        x, w, bias = self.arrays
        return _naive_conv(self, np.abs(x), np.abs(w), None if bias is None else np.abs(bias))


def layer_case(conv: TargetLayer) -> CardCase:
    """Return the case for a layer that is timed, with as many of its images as are compared."""
    problem = conv.problem
    per_image = math.prod(problem.output_shape[1:])
    arrays = conv.layer.arrays({name: np.empty(shape, np.float32) for name, shape in conv.shapes.items()})
    images = max(1, min(len(arrays.x), _MAX_OUTPUTS // max(per_image, 1)))
    attributes = {
        name: value for name, value in conv.layer.attributes.items() if not _is_default(name, value)
    }
    return CardCase((images, *arrays.x.shape[1:]), arrays.w.shape, arrays.bias is not None, attributes)


def _is_default(name: str, value: Any) -> bool:
    """Return whether an attribute has its default value, or follows from the weights."""
    defaults = {"strides": 1, "dilations": 1, "pads": 0}
    if name in defaults:
        return all(each == defaults[name] for each in value)
    return name == "kernel_shape" or (name, value) in (("group", 1), ("auto_pad", "NOTSET"))


def check_on_card(kernel: LabKernel, path: str, case: Case) -> tuple[Fault | None, float]:
    """Run `kernel`, whose file is `path`, for `case` on the card, twice.

    Return the fault, or None, and the relative L2 error of the outputs. After a fault of the kind "crash" the
    process cannot use the card any more.
    """
    x, w, b = case.arrays
    arrays = _Arrays(_fenced(x), _fenced(w), None if b is None else _fenced(b))
    y = _native.DeviceArray(case.problem.output_shape, fence=FENCE_BYTES)
    arrays_by_name = {"y": y, "x": arrays.x, "w": arrays.w, "b": arrays.b}
    try:
        _native.fill_shared_memory()
        first = _run(path, case, arrays, y)
        # Shared memory still holds the data of the first run.
        second = _run(path, case, arrays, y)
    except ConvswapError as error:
        return Fault("launch", f"{error}.", {"case": str(case)}), math.nan
    except RuntimeError as error:
        return crash_of(kernel.name, str(case), str(error)), math.nan
    outcome = Outcome(first, second, _overwritten_fences(arrays_by_name), dict(_changed_inputs(case, arrays)))
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


def _naive_conv(case: Case, x: np.ndarray, w: np.ndarray, bias: np.ndarray | None) -> np.ndarray:
    y = _native.DeviceArray(case.problem.output_shape)
    on_card = _native.DeviceArray.from_numpy
    b = None if bias is None else on_card(bias)
    _native.conv_device(on_card(x), on_card(w), b, y, algorithm="naive", precision="ieee", **case.attributes)
    return y.to_numpy().astype(np.float64)


def _overwritten_fences(arrays_by_name: Mapping[str, _native.DeviceArray | None]) -> dict[str, int]:
    offsets = {name: None if array is None else array.damage() for name, array in arrays_by_name.items()}
    return {name: offset // _FLOAT_BYTES for name, offset in offsets.items() if offset is not None}


def _changed_inputs(case: Case, arrays: _Arrays) -> Iterator[tuple[str, int]]:
    for name, original, array in zip("xwb", case.arrays, arrays, strict=True):
        if original is None or array is None:
            continue
        differs = np.ravel(array.to_numpy()).view(np.uint32) != np.ravel(original).view(np.uint32)
        if differs.any():
            yield name, int(np.argmax(differs))


# Words of the driver's error after it stopped a kernel, and the explanation for the kernel's author.
_DRIVER_ERRORS = {
    "illegal memory access": "it reads or writes at an address that belongs to no tensor, or beyond the "
    "shared memory of its block. Check every index that is computed, first those of threads at the end of a "
    "row",
    "misaligned address": "it reads or writes several floats at once, as float4, at an address that is not a "
    "multiple of their size. A row begins at such an address only if the image's width is a multiple, too",
    "device-side assert": "an assert() does not hold",
    "illegal instruction": "it stops itself by __trap(), or jumps to where no instruction is",
    "hardware stack": "functions call themselves more often than a thread has memory for",
    "unspecified launch failure": "a thread needs more local memory for its arrays and calls than it has, or "
    "uses an invalid address",
    "too many resources": "a block of this size needs more registers than a multiprocessor has: start fewer "
    "threads, or put __launch_bounds__(THREADS) before `forward`",
    "invalid argument": "the card rejects the launch: check grid, block and shared in the launch line",
    "launch timed out": "it runs longer than the driver allows on a card with a display",
    "out of memory": "the card's memory does not suffice",
}


def crash_of(name: str, case: str, message: str) -> Fault:
    """Return the fault of a kernel that the driver stopped with the error `message`."""
    for words, meaning in _DRIVER_ERRORS.items():
        if words in message:
            return Fault(
                "crash",
                f"{name} was stopped by the card: for {case}, {meaning}. The driver: {message}.",
                {"case": case},
            )
    return Fault(
        "crash", f"{name} was stopped by the card: for {case}. The driver: {message}.", {"case": case}
    )
