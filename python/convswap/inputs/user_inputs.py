"""A user's values for a model's inputs: arrays by name, an .npz file, or a folder of arrays or images."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from convswap.errors import ConvswapError, require_count, unknown_name
from convswap.inputs.feeds import Feeds, Input, batch_symbols, checked_batch, fixed_batch
from convswap.inputs.user_input_files import Numbers, image_batch, image_files, read_arrays
from convswap.runtime.values import widened

# Name of the data set in results that use the user's inputs.
USER_DATASET = "given"
# An array, the elements of a sequence, or None for an optional that is absent.
Value = npt.ArrayLike | Sequence[npt.ArrayLike] | None
# Names that exporters give to unknown dimensions.
_UNKNOWN_NAMES = ("", "?")


@dataclass(frozen=True)
class InputData:
    """Values for a model's inputs, and the normalisation of images.

    `values` is one of

    - a mapping from input names to arrays, to lists of arrays for sequences, or to None for an absent
      optional;
    - the path of an .npz file with arrays of these names, or of a folder with a file NAME.npy per input. The
      elements of a sequence are arrays NAME.0, NAME.1, and so on; an absent optional has no array;
    - the path of a folder of images, for a model with one input [n, channels, height, width].

    A pixel p of 0..255 becomes (scale p - mean) / std. `mean` and `std` are a number for all channels or one
    number per channel. `scale` is by default 1/255, and 1 for an integer input.
    """

    values: str | os.PathLike[str] | Mapping[str, Value]
    mean: Numbers = 0.0
    std: Numbers = 1.0
    scale: float | None = None


UserInputs = InputData | str | os.PathLike[str] | Mapping[str, Value]


def user_input_feeds(user_inputs: UserInputs, inputs: Sequence[Input]) -> Feeds:
    """Return a value of the declared element type and shape for each of `inputs`.

    Numbers are converted if the conversion changes them only by rounding. If the model is fixed to a batch
    size, there may be several batches of samples.

    Raises:
        ConvswapError: a file cannot be read, an input is missing or unknown, or a value does not fit its
            input.
    """
    arrays = _read_values(
        user_inputs if isinstance(user_inputs, InputData) else InputData(user_inputs), inputs
    )
    names = [input_.name for input_ in inputs]
    for name in arrays:
        if name not in names:
            raise unknown_name("input", name, names) if names else _no_inputs(name)
    missing = [str(input_) for input_ in inputs if input_.name not in arrays]
    if missing:
        raise ConvswapError(
            f"values were given for {', '.join(arrays) or 'no input'}, but the model also needs "
            f"{', '.join(missing)}; give all of them"
        )
    fixed = fixed_batch(inputs)
    for input_ in inputs:
        check_shape(arrays[input_.name].shape, input_, fixed)
    return {input_.name: _as_type(arrays[input_.name], input_) for input_ in inputs}


def _no_inputs(name: str) -> ConvswapError:
    return ConvswapError(f"values were given for {name}, but the model has no inputs; leave them out")


def _read_values(input_data: InputData, inputs: Sequence[Input]) -> Feeds:
    values = values_by_name(input_data, [input_.name for input_ in inputs])
    if values is None:
        images = image_files(_values_path(input_data))
        pixels = image_batch(images, inputs, input_data.mean, input_data.std, input_data.scale)
        return {inputs[0].name: pixels}
    return {name: as_array(name, value) for name, value in values.items()}


def values_by_name(user_inputs: UserInputs, inputs: Sequence[str]) -> Mapping[str, Value] | None:
    """Return the values by input name, for a model with inputs called `inputs`; None for a folder of images.

    Raises:
        ConvswapError: a file cannot be read, the values have a wrong type, or options for images were given
            with arrays.
    """
    input_data = user_inputs if isinstance(user_inputs, InputData) else InputData(user_inputs)
    if isinstance(input_data.values, Mapping):
        _check_no_pixel_options(input_data, "arrays were given")
        return {str(name): value for name, value in input_data.values.items()}
    path = _values_path(input_data)
    if image_files(path):
        return None
    arrays = read_arrays(path, inputs)
    _check_no_pixel_options(input_data, f"'{path}' has arrays")
    return arrays


def _values_path(input_data: InputData) -> Path:
    if isinstance(input_data.values, (str, os.PathLike)):
        return Path(input_data.values)
    raise ConvswapError(
        f"inputs were given as a {type(input_data.values).__name__}; expected arrays by the names of the "
        "model's inputs, or the path of a file or folder with them"
    )


def _check_no_pixel_options(input_data: InputData, source: str) -> None:
    defaults = InputData(input_data.values)
    for name in ("mean", "std", "scale"):
        if not np.array_equal(getattr(input_data, name), getattr(defaults, name)):
            raise ConvswapError(
                f"{name} is of images, but {source}, which are fed as they are; leave it out, or "
                "give a folder of images"
            )


def as_array(name: str, value: Any) -> np.ndarray:
    """Return `value`, given for the input `name`, as an array; raise ConvswapError if it is none."""
    try:
        return np.asarray(value)
    except MemoryError:
        raise
    except Exception as error:  # Tensors of other packages raise errors of many classes.
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ConvswapError(
            f"input {name!r} was given as a {type(value).__name__} that is no array: {reason}; "
            "give one of NumPy"
        ) from error


def _as_type(array: np.ndarray, input_: Input) -> np.ndarray:
    """Return `array` in the element type of the input `input_`."""
    if input_.is_text:
        return _strings(array, input_)
    if array.dtype.kind == "V" and not input_.is_numpys and array.dtype.itemsize == input_.dtype.itemsize:
        # .npy files have no name for such a type, so the elements are stored as raw bytes.
        array = array.view(input_.dtype)
    widened_array = widened(array)
    # Conversions between widths are allowed, and from integers to floating point, but not vice versa.
    if widened_array.dtype.kind not in "biuf" or (widened_array.dtype.kind == "f" and not input_.is_floating):
        raise ConvswapError(
            f"input {input_} takes {input_.dtype.name}, but {array.dtype} was given; convert it to "
            f"{input_.dtype.name}"
        )
    with np.errstate(over="ignore", invalid="ignore"):
        values = np.asarray(array, dtype=input_.dtype, order="C")
    converted = widened(values)
    if input_.is_floating:
        is_changed = np.isfinite(converted) != np.isfinite(widened_array)
    else:
        is_changed = converted != widened_array
    if is_changed.any():
        first = array[is_changed].ravel()[0]
        raise ConvswapError(
            f"input {input_} takes {input_.dtype.name}, which has no {first}; give numbers that it can hold"
        )
    return values


def _strings(array: np.ndarray, input_: Input) -> np.ndarray:
    """Return `array`, which has strings, bytes in UTF-8 or string objects, as an array of strings."""
    try:
        if array.dtype.kind == "S":
            array = np.char.decode(array, "utf-8")
    except UnicodeDecodeError as error:
        raise ConvswapError(
            f"input {input_} takes strings, but bytes that are no UTF-8 were given"
        ) from error
    if array.dtype.kind == "U" or (array.dtype.kind == "O" and all(isinstance(x, str) for x in array.flat)):
        return np.asarray(array, dtype=str, order="C")
    raise ConvswapError(
        f"input {input_} takes strings, but {array.dtype} was given; give an array of strings"
    )


def check_shape(shape: tuple[int, ...], input_: Input, fixed: int | None) -> None:
    """Raise ConvswapError if `input_` does not accept an array of `shape`.

    `fixed` is the batch size that the model is fixed to, or None.
    """
    if not input_.has_rank:
        return
    # An array may have several batches for a model of fixed batch size; they run one after the other.
    is_batched = bool(input_.shape) and bool(fixed) and input_.shape[0] == fixed
    leading, *sample_shape = shape or (None,)
    fits = len(input_.shape) == len(shape) and all(
        size in (None, extent) for size, extent in zip(input_.shape[1:], sample_shape, strict=True)
    )
    if fits and input_.shape and input_.shape[0] not in (None, leading):
        fits = is_batched and bool(leading) and int(leading or 0) % int(fixed or 1) == 0
    if not fits:
        batches_text = f", or of several batches of {fixed}" if is_batched else ""
        raise ConvswapError(
            f"input {input_} was given an array of shape {list(shape)}; give one of the input's shape"
            f"{batches_text}"
        )


@dataclass(frozen=True)
class UserInputSource:
    """A `Source` with a user's values, created by `user_input_source`.

    `batched` names the inputs whose leading axis is the samples; all other inputs have the same value in
    every run. `takes_any_batch` tells whether a run may have a number of samples other than `batch`.
    """

    inputs: tuple[Input, ...]
    feeds: Feeds
    images: int
    batch: int
    batched: tuple[str, ...]
    takes_any_batch: bool
    labels: np.ndarray | None = None

    def batches(self) -> Iterator[tuple[Feeds, int]]:
        """Yield the samples in order, the last batch padded with the first samples; see `Source`."""
        for start in range(0, self.images, self.batch):
            yield self._slice(start, self.batch), min(self.batch, self.images - start)

    def first(self, images: int) -> Feeds:
        """Return feeds of `images` samples, repeated if there are fewer; see `Source`."""
        return self._slice(0, images if self.takes_any_batch else self.batch)

    def _slice(self, start: int, count: int) -> Feeds:
        available = min((len(self.feeds[name]) for name in self.batched), default=1)
        indices = np.arange(start, start + count) % max(min(self.images, available), 1)
        return {
            name: np.ascontiguousarray(values[indices]) if name in self.batched else values
            for name, values in self.feeds.items()
        }


def user_input_source(
    user_inputs: UserInputs, inputs: Sequence[Input], batch: int | None, images: int | None = None
) -> UserInputSource:
    """Return a source of `user_inputs`: the first `images` samples, in batches of `batch`.

    The defaults are all samples in one batch, or in batches of the model's fixed size. The leading axis of an
    input is the samples if the model leaves it open. For a model of fixed batch size, some inputs may have
    several batches and others one batch, which is then used in every run.

    Raises:
        ConvswapError: see `user_input_feeds`; there are fewer samples than `images`; or the values cannot be
            split into batches of `batch`.
    """
    require_count("images", images)
    feeds = user_input_feeds(user_inputs, inputs)
    ranked_inputs = [_with_rank(input_, feeds[input_.name].ndim) for input_ in inputs]
    fixed = checked_batch(ranked_inputs, batch)
    if fixed is None:
        samples, batched = _open_samples(ranked_inputs, feeds)
        batch_dependent = _batch_dependent_input(ranked_inputs, feeds, batched, samples)
    else:
        samples, batched, batch_dependent = *_fixed_samples(ranked_inputs, feeds, fixed), None
    if samples == 0:
        raise ConvswapError("the values given are of no sample at all; give those of one at least")
    if images is not None and images > samples:
        raise ConvswapError(
            f"{images} images were asked for, but the values given are of {samples}; ask for less"
        )
    if batch_dependent is not None:
        for kind, count in (("batches", batch), ("runs", images)):
            if count not in (None, samples):
                raise ConvswapError(
                    f"{kind} of {count} were asked for, but the values given are of {samples}, and input "
                    f"{batch_dependent} cannot be taken apart into samples; leave the number out"
                )
    shaped_inputs = tuple(_with_run_shape(input_, feeds[input_.name], samples) for input_ in ranked_inputs)
    if batch_dependent is not None:
        return UserInputSource(shaped_inputs, feeds, samples, samples, (), takes_any_batch=False)
    count = images or samples
    return UserInputSource(
        shaped_inputs, feeds, count, fixed or batch or count, batched, takes_any_batch=fixed is None
    )


def _with_rank(input_: Input, rank: int) -> Input:
    """Return the input, with `rank` open dimensions if the model does not declare its rank."""
    return (
        input_
        if input_.has_rank
        else replace(input_, shape=(None,) * rank, symbols=("",) * rank, has_rank=True)
    )


def _open_samples(inputs: Sequence[Input], feeds: Feeds) -> tuple[int, tuple[str, ...]]:
    """Return the number of samples, and the names of the inputs whose leading axis is the samples."""
    leading = {
        input_.name: feeds[input_.name].shape[0]
        for input_ in inputs
        if input_.shape and input_.shape[0] is None
    }
    samples = next((extent for extent in leading.values() if extent), 0)
    return samples, tuple(name for name, extent in leading.items() if extent == samples)


def _batch_dependent_input(
    inputs: Sequence[Input], feeds: Feeds, batched: Sequence[str], samples: int
) -> Input | None:
    """Return the first input that depends on the batch size but cannot be split into samples, or None.

    Such an input has another leading extent, or has the batch on another axis, like a state [2, batch, 128].
    """
    batch = batch_symbols(inputs)
    for input_ in inputs:
        if input_.name in batched:
            continue
        axes = zip(input_.shape, input_.symbols, feeds[input_.name].shape, strict=True)
        for axis, (size, symbol, extent) in enumerate(axes):
            is_batch = symbol in batch or (symbol in _UNKNOWN_NAMES and extent == samples)
            if size is None and (axis == 0 or is_batch):
                return input_
    return None


def _fixed_samples(inputs: Sequence[Input], feeds: Feeds, fixed: int) -> tuple[int, tuple[str, ...]]:
    """Return the number of samples for a model of batch size `fixed`, and the inputs that have all."""
    extents = {
        input_.name: feeds[input_.name].shape[0]
        for input_ in inputs
        if input_.shape and input_.shape[0] == fixed
    }
    samples = max(extents.values(), default=fixed)
    for name, extent in extents.items():
        if extent not in (fixed, samples):
            largest = next(other for other, other_extent in extents.items() if other_extent == samples)
            raise ConvswapError(
                f"input {name!r} was given {extent} samples, but input {largest!r} {samples}; give as many, "
                f"or {fixed} for all batches"
            )
    if samples == fixed:
        return samples, ()
    return samples, tuple(name for name, extent in extents.items() if extent == samples)


def _with_run_shape(input_: Input, array: np.ndarray, samples: int) -> Input:
    """Return the input with the shape of its value; an open batch dimension stays open."""
    shape: tuple[int | None, ...] = array.shape
    if input_.shape and input_.shape[0] is None and shape[0] == samples:
        shape = (None, *array.shape[1:])
    elif input_.shape and input_.shape[0] is not None:
        shape = (input_.shape[0], *array.shape[1:])
    return replace(input_, shape=shape, is_from_user=True)
