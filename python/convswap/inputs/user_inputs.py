"""What a user gives a model as its inputs: arrays by name, an .npz file, or a folder of arrays or images."""

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

# What a comparison calls them, in the place of a data set's name.
GIVEN = "given"
# An array, the elements of a sequence, or None for an optional that is absent.
Value = npt.ArrayLike | Sequence[npt.ArrayLike] | None
# What exporters write for a dimension that they know nothing of.
_NO_NAMES = ("", "?")


@dataclass(frozen=True)
class GivenInputs:
    """Where the values of a model's inputs are, and how images among them become numbers.

    `values` maps the names of inputs to arrays, to lists of them for sequences, and to None for an optional
    that is absent, or is the path of an .npz file with arrays of these names, of
    a folder with a file NAME.npy for each, or, for a model with one input [n, channels, height, width], of a
    folder of images. A pixel p of 0..255 becomes (scale p - mean) / std; `mean` and `std` have a number for
    all channels or one for each. `scale` is by default 1/255, for an input of whole numbers 1. In a file the
    elements of a sequence are arrays NAME.0, NAME.1, and so on, and an optional that is not there is absent.
    """

    values: str | os.PathLike[str] | Mapping[str, Value]
    mean: Numbers = 0.0
    std: Numbers = 1.0
    scale: float | None = None


UserInputs = GivenInputs | str | os.PathLike[str] | Mapping[str, Value]


def user_input_feeds(given: UserInputs, inputs: Sequence[Input]) -> Feeds:
    """Return a value of its declared element type and shape for each of `inputs`.

    Numbers may change their type where that changes none of them by more than rounding. Where the model is
    fixed to a batch, there may be several times as many samples.

    Raises:
        ConvswapError: something cannot be read, an input is missing or not known, or a value does not fit.
    """
    arrays = _arrays(given if isinstance(given, GivenInputs) else GivenInputs(given), inputs)
    names = [one.name for one in inputs]
    for name in arrays:
        if name not in names:
            raise unknown_name("input", name, names) if names else _no_inputs(name)
    missing = [str(one) for one in inputs if one.name not in arrays]
    if missing:
        raise ConvswapError(
            f"values were given for {', '.join(arrays) or 'no input'}, but the model also needs "
            f"{', '.join(missing)}; give all of them"
        )
    fixed = fixed_batch(inputs)
    for one in inputs:
        check_shape(arrays[one.name].shape, one, fixed)
    return {one.name: _in_type(arrays[one.name], one) for one in inputs}


def _no_inputs(name: str) -> ConvswapError:
    return ConvswapError(f"values were given for {name}, but the model has no inputs; leave them out")


def _arrays(asked: GivenInputs, inputs: Sequence[Input]) -> Feeds:
    values = values_by_name(asked, [one.name for one in inputs])
    if values is None:
        images = image_files(_path(asked))
        pixels = image_batch(images, inputs, asked.mean, asked.std, asked.scale)
        return {inputs[0].name: pixels}
    return {name: as_array(name, value) for name, value in values.items()}


def values_by_name(given: UserInputs, inputs: Sequence[str]) -> Mapping[str, Value] | None:
    """Return what was given for each input, of a model with those called `inputs`; None where it is images.

    Raises:
        ConvswapError: something cannot be read, or was given in another way than it can be.
    """
    asked = given if isinstance(given, GivenInputs) else GivenInputs(given)
    if isinstance(asked.values, Mapping):
        _refuse_pixel_options(asked, "arrays were given")
        return {str(name): value for name, value in asked.values.items()}
    path = _path(asked)
    if image_files(path):
        return None
    arrays = read_arrays(path, inputs)
    _refuse_pixel_options(asked, f"'{path}' has arrays")
    return arrays


def _path(asked: GivenInputs) -> Path:
    if isinstance(asked.values, (str, os.PathLike)):
        return Path(asked.values)
    raise ConvswapError(
        f"inputs were given as a {type(asked.values).__name__}; expected arrays by the names of the model's "
        "inputs, or the path of a file or folder with them"
    )


def _refuse_pixel_options(asked: GivenInputs, what: str) -> None:
    usual = GivenInputs(asked.values)
    for name in ("mean", "std", "scale"):
        if not np.array_equal(getattr(asked, name), getattr(usual, name)):
            raise ConvswapError(
                f"{name} is of images, but {what}, which are fed as they are; leave it out, or "
                "give a folder of images"
            )


def as_array(name: str, value: Any) -> np.ndarray:
    """Return what was given for the input `name` as an array; raise ConvswapError where it is none."""
    try:
        return np.asarray(value)
    except MemoryError:
        raise
    except Exception as error:  # Tensors of other packages refuse as they like.
        why = " ".join(str(error).split()) or type(error).__name__
        raise ConvswapError(
            f"input {name!r} was given as a {type(value).__name__} that is no array: {why}; give one of NumPy"
        ) from error


def _in_type(array: np.ndarray, one: Input) -> np.ndarray:
    """Return `array` in the element type of the input `one`."""
    if one.is_text:
        return _strings(array, one)
    if array.dtype.kind == "V" and not one.is_numpys and array.dtype.itemsize == one.dtype.itemsize:
        # A file has no name for such a type, and holds the elements without one.
        array = array.view(one.dtype)
    wide = widened(array)
    # Numbers may change their width, and whole numbers become fractions, but not the other way round.
    if wide.dtype.kind not in "biuf" or (wide.dtype.kind == "f" and not one.is_fraction):
        raise ConvswapError(
            f"input {one} takes {one.dtype.name}, but {array.dtype} was given; convert it to {one.dtype.name}"
        )
    with np.errstate(over="ignore", invalid="ignore"):
        values = np.asarray(array, dtype=one.dtype, order="C")
    held = widened(values)
    changed = np.isfinite(held) != np.isfinite(wide) if one.is_fraction else held != wide
    if changed.any():
        first = array[changed].ravel()[0]
        raise ConvswapError(
            f"input {one} takes {one.dtype.name}, which has no {first}; give numbers that it can hold"
        )
    return values


def _strings(array: np.ndarray, one: Input) -> np.ndarray:
    """Return `array` as one of strings, given as such, or as objects or bytes as NumPy may hold them."""
    try:
        if array.dtype.kind == "S":
            array = np.char.decode(array, "utf-8")
    except UnicodeDecodeError as error:
        raise ConvswapError(f"input {one} takes strings, but bytes that are no UTF-8 were given") from error
    if array.dtype.kind == "U" or (array.dtype.kind == "O" and all(isinstance(x, str) for x in array.flat)):
        return np.asarray(array, dtype=str, order="C")
    raise ConvswapError(f"input {one} takes strings, but {array.dtype} was given; give an array of strings")


def check_shape(shape: tuple[int, ...], one: Input, fixed: int | None) -> None:
    """Refuse what the input `one`, of a model that is `fixed` to a batch, does not take."""
    if not one.has_rank:
        return
    # Several samples for a model of a fixed batch: they run one batch after the other.
    is_batched = bool(one.shape) and bool(fixed) and one.shape[0] == fixed
    leading, *rest = shape or (None,)
    fits = len(one.shape) == len(shape) and all(
        size in (None, own) for size, own in zip(one.shape[1:], rest, strict=True)
    )
    if fits and one.shape and one.shape[0] not in (None, leading):
        fits = is_batched and bool(leading) and int(leading or 0) % int(fixed or 1) == 0
    if not fits:
        several = f", or of several batches of {fixed}" if is_batched else ""
        raise ConvswapError(
            f"input {one} was given an array of shape {list(shape)}; give one of the input's shape{several}"
        )


@dataclass(frozen=True)
class UserInputSource:
    """Values that a user gave, as the `Source` of a run; make one with `user_input_source`.

    `sliced` names the inputs whose leading axis goes through the samples; the others are fed as they are.
    `takes_any_batch` tells whether a run may have another number of samples than `batch`.
    """

    inputs: tuple[Input, ...]
    feeds: Feeds
    images: int
    batch: int
    sliced: tuple[str, ...]
    takes_any_batch: bool
    labels: np.ndarray | None = None

    def batches(self) -> Iterator[tuple[Feeds, int]]:
        """Yield the samples in order, the last batch filled up with the first samples; see `Source`."""
        for start in range(0, self.images, self.batch):
            yield self._part(start, self.batch), min(self.batch, self.images - start)

    def first(self, images: int) -> Feeds:
        """Return feeds of `images` samples, repeated where there are not so many; see `Source`."""
        return self._part(0, images if self.takes_any_batch else self.batch)

    def _part(self, start: int, count: int) -> Feeds:
        held = min((len(self.feeds[name]) for name in self.sliced), default=1)
        places = np.arange(start, start + count) % max(min(self.images, held), 1)
        return {
            name: np.ascontiguousarray(values[places]) if name in self.sliced else values
            for name, values in self.feeds.items()
        }


def user_input_source(
    given: UserInputs, inputs: Sequence[Input], batch: int | None, images: int | None = None
) -> UserInputSource:
    """Return the source of what was given for `inputs`: its first `images` samples, in batches of `batch`.

    By default these are all samples, at once, or in batches of what the model is fixed to. The leading axis
    of an input goes through the samples where the model leaves it open. A model that is fixed to a batch may
    be given several batches of some inputs and one of the others, which all of them get.

    Raises:
        ConvswapError: see `user_input_feeds`; there are fewer samples than `images`; or the values cannot be
            split into batches of `batch`.
    """
    require_count("images", images)
    feeds = user_input_feeds(given, inputs)
    ranked = [_ranked(one, feeds[one.name].ndim) for one in inputs]
    fixed = checked_batch(ranked, batch)
    if fixed is None:
        samples, sliced = _open_samples(ranked, feeds)
        tied = _tied_to_batch(ranked, feeds, sliced, samples)
    else:
        samples, sliced, tied = *_fixed_samples(ranked, feeds, fixed), None
    if samples == 0:
        raise ConvswapError("the values given are of no sample at all; give those of one at least")
    if images is not None and images > samples:
        raise ConvswapError(
            f"{images} images were asked for, but the values given are of {samples}; ask for less"
        )
    if tied is not None:
        for what, count in (("batches", batch), ("runs", images)):
            if count not in (None, samples):
                raise ConvswapError(
                    f"{what} of {count} were asked for, but the values given are of {samples}, and input "
                    f"{tied} cannot be taken apart into samples; leave the number out"
                )
    known = tuple(_filled(one, feeds[one.name], samples) for one in ranked)
    if tied is not None:
        return UserInputSource(known, feeds, samples, samples, (), takes_any_batch=False)
    count = images or samples
    return UserInputSource(
        known, feeds, count, fixed or batch or count, sliced, takes_any_batch=fixed is None
    )


def _ranked(one: Input, rank: int) -> Input:
    """Return the input with as many open dimensions as it is given, where the model does not say how many."""
    return one if one.has_rank else replace(one, shape=(None,) * rank, symbols=("",) * rank, has_rank=True)


def _open_samples(inputs: Sequence[Input], feeds: Feeds) -> tuple[int, tuple[str, ...]]:
    """Return how many samples there are, and the inputs whose leading axis goes through them."""
    leading = {one.name: feeds[one.name].shape[0] for one in inputs if one.shape and one.shape[0] is None}
    samples = next((extent for extent in leading.values() if extent), 0)
    return samples, tuple(name for name, extent in leading.items() if extent == samples)


def _tied_to_batch(
    inputs: Sequence[Input], feeds: Feeds, sliced: Sequence[str], samples: int
) -> Input | None:
    """Return the first input that cannot be taken apart into samples though it depends on how many there are.

    That is one with another leading extent, and a state [2, batch, 128], which has them on another axis.
    """
    batch = batch_symbols(inputs)
    for one in inputs:
        if one.name in sliced:
            continue
        axes = zip(one.shape, one.symbols, feeds[one.name].shape, strict=True)
        for axis, (size, symbol, extent) in enumerate(axes):
            is_batch = symbol in batch or (symbol in _NO_NAMES and extent == samples)
            if size is None and (axis == 0 or is_batch):
                return one
    return None


def _fixed_samples(inputs: Sequence[Input], feeds: Feeds, fixed: int) -> tuple[int, tuple[str, ...]]:
    """Return how many samples there are for a model of a `fixed` batch, and the inputs with as many."""
    extents = {one.name: feeds[one.name].shape[0] for one in inputs if one.shape and one.shape[0] == fixed}
    samples = max(extents.values(), default=fixed)
    for name, extent in extents.items():
        if extent not in (fixed, samples):
            most = next(other for other, own in extents.items() if own == samples)
            raise ConvswapError(
                f"input {name!r} was given {extent} samples, but input {most!r} {samples}; give as many, or "
                f"{fixed} for all batches"
            )
    if samples == fixed:
        return samples, ()
    return samples, tuple(name for name, extent in extents.items() if extent == samples)


def _filled(one: Input, array: np.ndarray, samples: int) -> Input:
    """Return the input with the shape of what it is given, but for a batch that the model leaves open."""
    shape: tuple[int | None, ...] = array.shape
    if one.shape and one.shape[0] is None and shape[0] == samples:
        shape = (None, *array.shape[1:])
    elif one.shape and one.shape[0] is not None:
        shape = (one.shape[0], *array.shape[1:])
    return replace(one, shape=shape, is_given=True)
