"""What a user gives a model as its inputs: arrays by name, an .npz file, or a folder of arrays or images."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from convswap.errors import ConvswapError, require_count, unknown_name
from convswap.inputs.feeds import Feeds, Input, fixed_batch

# What a comparison calls them, in the place of a data set's name.
GIVEN = "given"
_IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")
# Of the declared shape's axis 1: grey and colour, as Pillow calls them.
_MODES = {1: "L", 3: "RGB"}


@dataclass(frozen=True)
class GivenInputs:
    """Where the values of a model's inputs are, and how images among them become numbers.

    `values` maps the names of inputs to arrays, or is the path of an .npz file with arrays of these names, of
    a folder with a file NAME.npy for each, or, for a model with one input [n, channels, height, width], of a
    folder of images. A pixel p of 0..255 becomes (scale p - mean) / std; `mean` and `std` have a number for
    all channels or one for each.
    """

    values: str | os.PathLike[str] | Mapping[str, npt.ArrayLike]
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    scale: float = 1 / 255


Given = GivenInputs | str | os.PathLike[str] | Mapping[str, npt.ArrayLike]


def given_feeds(given: Given, inputs: Sequence[Input]) -> Feeds:
    """Return a value of its declared element type and shape for each of `inputs`.

    Raises:
        ConvswapError: something cannot be read, an input is missing or not known, or a value does not fit.
    """
    asked = given if isinstance(given, GivenInputs) else GivenInputs(given)
    values = asked.values
    if isinstance(values, Mapping):
        arrays = {str(name): np.asarray(value) for name, value in values.items()}
    else:
        arrays = _read(Path(values), asked, inputs)
    names = [one.name for one in inputs]
    for name in arrays:
        if name not in names:
            raise unknown_name("input", name, names)
    missing = [name for name in names if name not in arrays]
    if missing:
        raise ConvswapError(
            f"values were given for {', '.join(arrays) or 'no input'}, but the model also needs "
            f"{', '.join(missing)}; give all of them"
        )
    return {one.name: _fitting(arrays[one.name], one) for one in inputs}


def _fitting(array: np.ndarray, one: Input) -> np.ndarray:
    """Return `array` in the element type of the input `one`, whose shape it must have."""
    # Numbers may change their width, and whole numbers become fractions, but not the other way round.
    if not np.can_cast(array.dtype, one.dtype, casting="same_kind") or array.dtype.hasobject:
        raise ConvswapError(f"input {one} takes {one.dtype.name}, but {array.dtype.name} was given")
    sizes = zip(one.shape, array.shape, strict=False)
    fits = not one.has_rank or (
        len(one.shape) == array.ndim
        and all(size in (None, own) for size, own in list(sizes)[1:])
        and (not array.ndim or _is_multiple(array.shape[0], one.shape[0]))
    )
    if not fits:
        raise ConvswapError(f"input {one} was given an array of shape {list(array.shape)}")
    return np.ascontiguousarray(array, dtype=one.dtype).reshape(array.shape)


def _is_multiple(extent: int, of: int | None) -> bool:
    # Several samples for a model of a fixed batch: they run one batch after the other.
    return of is None or extent == of or (of > 0 and extent > 0 and extent % of == 0)


def _read(path: Path, asked: GivenInputs, inputs: Sequence[Input]) -> dict[str, np.ndarray]:
    if path.is_dir():
        arrays = sorted(path.glob("*.npy"))
        if arrays:
            return {file.stem: _array(file) for file in arrays}
        images = sorted(file for file in path.iterdir() if file.suffix.lower() in _IMAGES)
        if images:
            return _images(images, asked, inputs)
        raise ConvswapError(
            f"folder '{path}' has neither .npy files nor images; expected NAME.npy for each input of the "
            f"model, or {', '.join(_IMAGES)}"
        )
    if path.suffix.lower() == ".npy" and len(inputs) == 1:
        return {inputs[0].name: _array(path)}
    try:
        with np.load(path, allow_pickle=False) as archive:
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise ConvswapError(f"'{path}' holds one array without a name; expected an .npz file")
            return {name: archive[name] for name in archive.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise _unreadable(path, error, "an .npz file with an array for each input") from error


def _array(path: Path) -> np.ndarray:
    try:
        return np.asarray(np.load(path, allow_pickle=False))
    except (OSError, ValueError, EOFError) as error:
        raise _unreadable(path, error, "an array as numpy.save writes it") from error


def _unreadable(path: Path, error: Exception, expected: str) -> ConvswapError:
    why = getattr(error, "strerror", None) or " ".join(str(error).split()) or type(error).__name__
    return ConvswapError(f"cannot read the inputs '{path}': {why}; expected {expected}")


def _images(files: Sequence[Path], asked: GivenInputs, inputs: Sequence[Input]) -> dict[str, np.ndarray]:
    """Return the images as the one input of a model that takes them."""
    if len(inputs) != 1 or len(inputs[0].shape) != 4 or inputs[0].shape[1] not in _MODES:
        listed = ", ".join(str(one) for one in inputs)
        raise ConvswapError(
            f"a folder of images suits a model with one input [n, 1 or 3, height, width], but its inputs are "
            f"{listed}; give an .npz file"
        )
    one = inputs[0]
    planes = [_pixels(file, one) for file in files]
    sizes = {image.shape for image in planes}
    if len(sizes) > 1:
        raise ConvswapError(
            f"the images have {len(sizes)} sizes, and input {one} leaves its size open; give images of one "
            "size, or --input-shape"
        )
    values = np.stack(planes).astype(np.float64) * asked.scale
    mean, std = (_for_channels(name, getattr(asked, name), values.shape[1]) for name in ("mean", "std"))
    if not std.all():
        raise ConvswapError("std has a 0, by which nothing can be divided; give numbers other than 0")
    return {one.name: ((values - mean) / std).astype(one.dtype)}


def _pixels(file: Path, one: Input) -> np.ndarray:
    """Return an image as (channels, height, width), scaled to the size that the input is fixed to."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ModuleNotFoundError:
        raise ConvswapError("images are read by Pillow, which is missing: pip install pillow") from None
    try:
        with Image.open(file) as opened:
            image = opened.convert(_MODES[int(one.shape[1] or 0)])
    except (OSError, ValueError, UnidentifiedImageError) as error:
        raise _unreadable(file, error, "an image") from error
    height, width = one.shape[2] or image.height, one.shape[3] or image.width
    if image.size != (width, height):
        image = image.resize((width, height), Image.Resampling.BILINEAR)
    pixels = np.asarray(image)
    return pixels[np.newaxis] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def _for_channels(name: str, numbers: Sequence[float], channels: int) -> np.ndarray:
    if len(numbers) not in (1, channels):
        raise ConvswapError(
            f"{name} has {len(numbers)} numbers, and the images {channels} channels; give 1 or {channels}"
        )
    return np.array(numbers, np.float64)[:, np.newaxis, np.newaxis]


@dataclass(frozen=True)
class GivenSource:
    """Values that a user gave, as the `Source` of a run; make one with `given_source`.

    `sliced` names the inputs whose leading axis goes through the samples; the others are fed as they are.
    """

    inputs: tuple[Input, ...]
    feeds: Feeds
    images: int
    batch: int
    sliced: tuple[str, ...]
    labels: np.ndarray | None = None

    def batches(self) -> Iterator[tuple[Feeds, int]]:
        """Yield the samples in order, the last batch filled up with its last sample; see `Source`."""
        for start in range(0, self.images, self.batch):
            yield self._part(start, self.batch), min(self.batch, self.images - start)

    def first(self, images: int) -> Feeds:
        """Return feeds of `images` samples, repeated where there are not so many; see `Source`."""
        return self._part(0, fixed_batch(self.inputs) or images if self.sliced else self.batch)

    def _part(self, start: int, count: int) -> Feeds:
        held = min((len(self.feeds[name]) for name in self.sliced), default=1)
        places = np.arange(start, start + count) % max(min(self.images, held), 1)
        return {
            name: np.ascontiguousarray(values[places]) if name in self.sliced else values
            for name, values in self.feeds.items()
        }


def given_source(given: Given, inputs: Sequence[Input], batch: int | None) -> GivenSource:
    """Return the source of what was given for `inputs`, in batches of `batch`, by default all at once.

    The leading axis goes through the samples, where all symbolic dimensions are other ones than the batch's.

    Raises:
        ConvswapError: see `given_feeds`; or the values cannot be taken apart into batches of `batch`.
    """
    require_count("batch", batch)
    feeds = given_feeds(given, inputs)
    leading = [one for one in inputs if feeds[one.name].ndim]
    samples = feeds[leading[0].name].shape[0] if leading else 1
    fixed = fixed_batch(inputs)
    sliced = tuple(one.name for one in leading if feeds[one.name].shape[0] == samples)
    # A state [2, batch, 128] is tied to the batch by another axis than the leading one.
    tied = [one for one in leading if one.name not in sliced and None in one.shape]
    if tied and batch not in (None, samples):
        raise ConvswapError(
            f"batches of {batch} were asked for, but the values given are of {samples}, and input {tied[0]} "
            f"cannot be taken apart; leave the batch out"
        )
    known = tuple(_filled(one, feeds[one.name]) for one in inputs)
    if tied:
        return GivenSource(known, feeds, samples, samples, ())
    return GivenSource(known, feeds, samples, fixed or batch or samples, sliced)


def _filled(one: Input, array: np.ndarray) -> Input:
    """Return the input with the shape of what it is given, but for a batch that the model leaves open."""
    leading = one.shape[:1] if one.has_rank else (None,) * min(array.ndim, 1)
    symbols = one.symbols if one.has_rank else ("",) * array.ndim
    return replace(one, shape=(*leading, *array.shape[1:]), symbols=symbols, has_rank=True)
