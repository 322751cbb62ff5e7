"""Image files as the one input of a model that takes images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np
import numpy.typing as npt

from convswap.errors import ConvswapError
from convswap.inputs.feeds import Input
from convswap.inputs.given_files import unreadable

if TYPE_CHECKING:
    from PIL.Image import Image

# Of the declared shape's axis 1: grey and colour, as Pillow calls them.
_MODES = {1: "L", 3: "RGB"}
# Of pixels with 8 bits a channel or less, which alone Pillow converts to these.
_EIGHT_BITS = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "LAB", "HSV", "La", "RGBa")
_FLOAT_SCALE = 1 / 255

Numbers = float | Sequence[float]


def image_batch(
    files: Sequence[Path], inputs: Sequence[Input], mean: Numbers, std: Numbers, scale: float | None
) -> npt.NDArray[np.generic]:
    """Return the images in `files` as the one input of a model, of its element type.

    Each is turned upright by its EXIF orientation, as viewers show it. An alpha channel is left out: the
    colours stay as they are stored. They are scaled to the height and width that the input is fixed to, in
    proportion where it fixes one of them. A pixel p of 0..255 becomes (scale p - mean) / std; `scale` is by
    default 1/255, and 1 for an input of whole numbers, to which results are rounded.

    Raises:
        ConvswapError: the model takes no images, one cannot be read, they have several sizes where the input
            leaves its own open, or what the pixels are to become is no number of the input's.
    """
    if len(inputs) != 1 or len(inputs[0].shape) != 4 or inputs[0].shape[1] not in _MODES:
        listed = ", ".join(str(one) for one in inputs) or "none"
        raise ConvswapError(
            f"a folder of images suits a model with one input [n, 1 or 3, height, width], but its inputs are "
            f"{listed}; give an .npz file"
        )
    one = inputs[0]
    planes = [_pixels(file, one) for file in files]
    _refuse_several_sizes(files, planes, one)
    usual = 1.0 if one.is_whole_number else _FLOAT_SCALE
    factor = _numbers("scale", usual if scale is None else scale, 1)
    channels = planes[0].shape[0]
    divisor = _numbers("std", std, channels)
    if not divisor.all():
        raise ConvswapError("std has a 0, by which nothing can be divided; give numbers other than 0")
    values = (np.stack(planes).astype(np.float64) * factor - _numbers("mean", mean, channels)) / divisor
    return _in_type(values, one)


def _in_type(values: npt.NDArray[np.float64], one: Input) -> npt.NDArray[np.generic]:
    if not one.is_whole_number:
        with np.errstate(over="ignore"):
            return values.astype(one.dtype)
    # Which has those of 4 bits too.
    limits = ml_dtypes.iinfo(one.dtype)
    rounded = np.rint(values)
    if rounded.min() < limits.min or rounded.max() > limits.max:
        raise ConvswapError(
            f"input {one} takes {one.dtype.name}, but pixels become {rounded.min():g} to {rounded.max():g}; "
            "give another mean, std or scale"
        )
    return rounded.astype(one.dtype)


def _refuse_several_sizes(files: Sequence[Path], planes: Sequence[npt.NDArray[np.uint8]], one: Input) -> None:
    first = planes[0].shape[1:]
    for file, image in zip(files, planes, strict=True):
        if image.shape[1:] != first:
            own, other = ("x".join(map(str, size)) for size in (first, image.shape[1:]))
            raise ConvswapError(
                f"the images have several sizes: '{files[0].name}' is {own} and '{file.name}' {other}, and "
                f"input {one} leaves its own open; give images of one size, or --input-shape"
            )


def _pixels(file: Path, one: Input) -> npt.NDArray[np.uint8]:
    """Return an image as (channels, height, width): upright by its EXIF orientation, alpha left out."""
    try:
        from PIL import Image, ImageOps
    except ModuleNotFoundError:
        raise ConvswapError("images are read by Pillow, which is missing: pip install pillow") from None
    try:
        with Image.open(file) as opened:
            if opened.mode not in _EIGHT_BITS:
                raise ConvswapError(
                    f"image '{file}' has pixels of mode {opened.mode}; give images of 8 bits a channel, or "
                    "an .npz file"
                )
            image = ImageOps.exif_transpose(opened).convert(_MODES[int(one.shape[1] or 0)])
    except (ConvswapError, MemoryError):
        raise
    except Exception as error:  # Its decoders raise whatever they stumble over.
        raise unreadable(file, error, "an image") from error
    size = _size(image, one)
    if image.size != size:
        image = image.resize(size, Image.Resampling.BILINEAR)
    pixels = np.asarray(image)
    return pixels[np.newaxis] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def _size(image: Image, one: Input) -> tuple[int, int]:
    """Return the width and height that the input takes of an image."""
    height, width = one.shape[2:]
    if width is None and height is not None:
        width = max(1, round(image.width * height / image.height))
    elif height is None and width is not None:
        height = max(1, round(image.height * width / image.width))
    return width or image.width, height or image.height


def _numbers(name: str, given: Numbers, channels: int) -> npt.NDArray[np.float64]:
    """Return what was given for each channel, or all of them, to be set against (channels, height, width)."""
    try:
        numbers = np.atleast_1d(np.array(given, np.float64))
    except (TypeError, ValueError):
        numbers = np.array([np.nan])
    if numbers.ndim != 1 or not np.isfinite(numbers).all():
        raise ConvswapError(f"{name} was given as {given!r}; expected numbers, as in 0.485")
    if len(numbers) not in (1, channels):
        expected = "1" if channels == 1 else f"1 or {channels}"
        images = "" if name == "scale" else f" for images of {channels} channels"
        raise ConvswapError(f"{name} has {len(numbers)} numbers{images}; give {expected}")
    return numbers[:, np.newaxis, np.newaxis]
