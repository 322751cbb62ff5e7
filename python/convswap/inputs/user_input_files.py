"""Inputs of a model in files: an .npz file, a folder of .npy files, or one of images."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from convswap.errors import ConvswapError
from convswap.inputs.feeds import Feeds, Input

if TYPE_CHECKING:
    from PIL.Image import Image

_ARRAYS = (".npy", ".npz")
_IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")
# What a file of NumPy's own format begins with.
_MAGIC = b"\x93NUMPY"

# Of the declared shape's axis 1: grey and colour, as Pillow calls them.
_MODES = {1: "L", 3: "RGB"}
# Of pixels with 8 bits a channel or less, which alone Pillow converts to these.
_EIGHT_BITS = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "LAB", "HSV", "La", "RGBa")
_FLOAT_SCALE = 1 / 255

Numbers = float | Sequence[float]


def image_files(path: Path) -> list[Path]:
    """Return the images in the folder `path`, by name; none where it is no folder or has arrays.

    Raises:
        ConvswapError: the folder has images and arrays, or cannot be read.
    """
    files = _files(path) if path.is_dir() else []
    arrays, images = ([file for file in files if file.suffix.lower() in kind] for kind in (_ARRAYS, _IMAGES))
    if arrays and images:
        raise ConvswapError(
            f"folder '{path}' has arrays, such as {arrays[0].name}, and images, such as {images[0].name}; "
            "give a folder with one kind of them"
        )
    return images


def read_arrays(path: Path, inputs: Sequence[str]) -> Feeds:
    """Return the arrays by name in an .npz file or a folder; those of one .npy file are the only input's.

    `inputs` are the names of the model's.

    Raises:
        ConvswapError: there is no such file or folder, or it cannot be read or has no arrays.
    """
    if path.is_dir():
        arrays = [file for file in _files(path) if file.suffix == ".npy"]
        if not arrays:
            raise ConvswapError(
                f"folder '{path}' has neither .npy files nor images; expected NAME.npy for each input of the "
                f"model, or {', '.join(_IMAGES)}"
            )
        return {file.stem: _array(file) for file in arrays}
    if path.suffix.lower() in _IMAGES and path.is_file():
        raise ConvswapError(f"'{path}' is an image; give the folder that it is in")
    if _begins_with(path, _MAGIC):
        if len(inputs) != 1:
            names = ", ".join(inputs) or "none"
            raise ConvswapError(
                f"'{path}' holds one array without a name, and the inputs are {names}; give an .npz file"
            )
        return {inputs[0]: _array(path)}
    return _archive(path)


def unreadable(path: Path, error: Exception, expected: str) -> ConvswapError:
    """Return the error for a file of inputs that could not be read as what was `expected`."""
    why = getattr(error, "strerror", None) or " ".join(str(error).split()) or type(error).__name__
    return ConvswapError(f"cannot read the inputs '{path}': {why}; expected {expected}")


def _files(folder: Path) -> list[Path]:
    """Return what is in a folder, by name, but nothing hidden, such as what macOS writes beside files."""
    try:
        return sorted(file for file in folder.iterdir() if not file.name.startswith("."))
    except OSError as error:
        raise unreadable(folder, error, "a folder of arrays or images") from error


def _begins_with(path: Path, magic: bytes) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(magic)) == magic
    except OSError as error:
        raise unreadable(path, error, "an .npz file with an array for each input, or a folder") from error


def _array(path: Path) -> np.ndarray:
    return _as_array(path, _loaded(path, "an array as numpy.save writes it"))


def _archive(path: Path) -> Feeds:
    expected = "an .npz file with an array for each input"
    if not zipfile.is_zipfile(path):
        raise ConvswapError(f"cannot read the inputs '{path}': it is no .npz file; expected {expected}")
    archive = _loaded(path, expected)
    with archive:
        found: dict[str, Any] = {}
        for name in archive.files:
            try:
                found[name] = archive[name]
            except MemoryError:
                raise
            except Exception as error:  # Damage shows in the archive, in its compression or in the array.
                raise unreadable(path, error, expected) from error
            if not isinstance(found[name], np.ndarray):
                raise ConvswapError(
                    f"cannot read the inputs '{path}': its {name!r} is no array; expected {expected}"
                )
    return found


def _loaded(path: Path, expected: str) -> Any:
    try:
        return np.load(path, allow_pickle=False)
    except MemoryError:
        raise
    except Exception as error:  # As many kinds as there are ways for a file to be damaged.
        raise unreadable(path, error, expected) from error


def _as_array(path: Path, loaded: Any) -> np.ndarray:
    if not isinstance(loaded, np.ndarray):
        raise ConvswapError(
            f"cannot read the inputs '{path}': it is an archive; expected an array as numpy.save writes it"
        )
    return loaded


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
