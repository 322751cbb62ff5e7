"""Read inputs of a model from files: an .npz file, a folder of .npy files, or a folder of images."""

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
# Pillow's formats of these files. For others, such as EPS, Pillow runs a program, whatever the file's name.
_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP")
# First bytes of an .npy file.
_MAGIC = b"\x93NUMPY"

# Pillow's modes by the extent of the input's channel axis: grey and colour.
_MODES = {1: "L", 3: "RGB"}
# Pillow's modes with at most 8 bits per channel. Pillow converts only these to grey and colour.
_EIGHT_BITS = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "LAB", "HSV", "La", "RGBa")
_FLOAT_SCALE = 1 / 255

Numbers = float | Sequence[float]


def image_files(path: Path) -> list[Path]:
    """Return the image files in the folder `path`, sorted by name; none if it is no folder or has arrays.

    Raises:
        ConvswapError: the folder has images and arrays, or cannot be read.
    """
    files = _list_files(path) if path.is_dir() else []
    arrays, images = ([file for file in files if file.suffix.lower() in kind] for kind in (_ARRAYS, _IMAGES))
    if arrays and images:
        raise ConvswapError(
            f"folder '{path}' has arrays, such as {arrays[0].name}, and images, such as {images[0].name}; "
            "give a folder with one kind of them"
        )
    return images


def read_arrays(path: Path, inputs: Sequence[str]) -> Feeds:
    """Return the arrays of an .npz file or a folder by name; an .npy file has the array of the only input.

    `inputs` are the names of the model's inputs.

    Raises:
        ConvswapError: there is no such file or folder, or it cannot be read or has no arrays.
    """
    if path.is_dir():
        arrays = [file for file in _list_files(path) if file.suffix == ".npy"]
        if not arrays:
            raise ConvswapError(
                f"folder '{path}' has neither .npy files nor images; expected NAME.npy for each input of the "
                f"model, or {', '.join(_IMAGES)}"
            )
        return {file.stem: _read_array(file) for file in arrays}
    if path.suffix.lower() in _IMAGES and path.is_file():
        raise ConvswapError(f"'{path}' is an image; give the folder that it is in")
    if _starts_with(path, _MAGIC):
        if len(inputs) != 1:
            names = ", ".join(inputs) or "none"
            raise ConvswapError(
                f"'{path}' holds one array without a name, and the inputs are {names}; give an .npz file"
            )
        return {inputs[0]: _read_array(path)}
    return _read_archive(path)


def unreadable(path: Path, error: Exception, expected: str) -> ConvswapError:
    """Return the error for a file of inputs that cannot be read; `expected` says what it should be."""
    reason = getattr(error, "strerror", None) or " ".join(str(error).split()) or type(error).__name__
    return ConvswapError(f"cannot read the inputs '{path}': {reason}; expected {expected}")


def _list_files(folder: Path) -> list[Path]:
    """Return the files in a folder, sorted by name, without hidden files such as macOS's metadata files."""
    try:
        return sorted(file for file in folder.iterdir() if not file.name.startswith("."))
    except OSError as error:
        raise unreadable(folder, error, "a folder of arrays or images") from error


def _starts_with(path: Path, magic: bytes) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(magic)) == magic
    except OSError as error:
        raise unreadable(path, error, "an .npz file with an array for each input, or a folder") from error


def _read_array(path: Path) -> np.ndarray:
    return _as_array(path, _load(path, "an array as numpy.save writes it"))


def _read_archive(path: Path) -> Feeds:
    expected = "an .npz file with an array for each input"
    if not zipfile.is_zipfile(path):
        raise ConvswapError(f"cannot read the inputs '{path}': it is no .npz file; expected {expected}")
    archive = _load(path, expected)
    with archive:
        arrays: dict[str, Any] = {}
        for name in archive.files:
            try:
                arrays[name] = archive[name]
            except MemoryError:
                raise
            except Exception as error:  # The archive, its compression or the array may be damaged.
                raise unreadable(path, error, expected) from error
            if not isinstance(arrays[name], np.ndarray):
                raise ConvswapError(
                    f"cannot read the inputs '{path}': its {name!r} is no array; expected {expected}"
                )
    return arrays


def _load(path: Path, expected: str) -> Any:
    try:
        return np.load(path, allow_pickle=False)
    except MemoryError:
        raise
    except Exception as error:  # A damaged file causes errors of many classes.
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
    """Return the images in `files` as the value of a model's only input, in its element type.

    Images are rotated by their EXIF orientation, as viewers show them. An alpha channel is dropped, and the
    colours stay as stored. Images are scaled to the height and width of the input; if one of these is open,
    the aspect ratio is kept. A pixel p of 0..255 becomes (scale p - mean) / std. `scale` is by default 1/255.
    For an integer input it is 1, and results are rounded.

    Raises:
        ConvswapError: the model takes no images, an image cannot be read, images have several sizes although
            the input has an open size, or a result is out of range for the input's type.
    """
    if len(inputs) != 1 or len(inputs[0].shape) != 4 or inputs[0].shape[1] not in _MODES:
        listed = ", ".join(str(input_) for input_ in inputs) or "none"
        raise ConvswapError(
            f"a folder of images suits a model with one input [n, 1 or 3, height, width], but its inputs are "
            f"{listed}; give an .npz file"
        )
    input_ = inputs[0]
    images = [_read_image(file, input_) for file in files]
    _check_same_size(files, images, input_)
    default_scale = 1.0 if input_.is_integer else _FLOAT_SCALE
    factor = _per_channel_numbers("scale", default_scale if scale is None else scale, 1)
    channels = images[0].shape[0]
    divisor = _per_channel_numbers("std", std, channels)
    if not divisor.all():
        raise ConvswapError("std has a 0, by which nothing can be divided; give numbers other than 0")
    values = (
        np.stack(images).astype(np.float64) * factor - _per_channel_numbers("mean", mean, channels)
    ) / divisor
    return _in_type(values, input_)


def _in_type(values: npt.NDArray[np.float64], input_: Input) -> npt.NDArray[np.generic]:
    if not input_.is_integer:
        with np.errstate(over="ignore"):
            return values.astype(input_.dtype)
    # NumPy's iinfo lacks the types of 4 bits.
    limits = ml_dtypes.iinfo(input_.dtype)
    rounded = np.rint(values)
    if rounded.min() < limits.min or rounded.max() > limits.max:
        raise ConvswapError(
            f"input {input_} takes {input_.dtype.name}, but pixels become {rounded.min():g} to "
            f"{rounded.max():g}; give another mean, std or scale"
        )
    return rounded.astype(input_.dtype)


def _check_same_size(files: Sequence[Path], images: Sequence[npt.NDArray[np.uint8]], input_: Input) -> None:
    first = images[0].shape[1:]
    for file, image in zip(files, images, strict=True):
        if image.shape[1:] != first:
            size, other_size = ("x".join(map(str, size)) for size in (first, image.shape[1:]))
            raise ConvswapError(
                f"the images have several sizes: '{files[0].name}' is {size} and '{file.name}' {other_size}, "
                f"and input {input_} leaves its own open; give images of one size, or --input-shape"
            )


def _read_image(file: Path, input_: Input) -> npt.NDArray[np.uint8]:
    """Return an image as (channels, height, width), rotated by its EXIF orientation and without alpha."""
    try:
        from PIL import Image, ImageOps
    except ModuleNotFoundError:
        raise ConvswapError("images are read by Pillow, which is missing: pip install pillow") from None
    try:
        with Image.open(file, formats=_FORMATS) as opened_image:
            if opened_image.mode not in _EIGHT_BITS:
                raise ConvswapError(
                    f"image '{file}' has pixels of mode {opened_image.mode}; give images of 8 bits a "
                    "channel, or an .npz file"
                )
            image = ImageOps.exif_transpose(opened_image).convert(_MODES[int(input_.shape[1] or 0)])
    except (ConvswapError, MemoryError):
        raise
    except Exception as error:  # Pillow's decoders raise errors of many classes.
        raise unreadable(file, error, "an image") from error
    size = _target_size(image, input_)
    if image.size != size:
        image = image.resize(size, Image.Resampling.BILINEAR)
    pixels = np.asarray(image)
    return pixels[np.newaxis] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def _target_size(image: Image, input_: Input) -> tuple[int, int]:
    """Return the width and height of an image after scaling to the input's size."""
    height, width = input_.shape[2:]
    if width is None and height is not None:
        width = max(1, round(image.width * height / image.height))
    elif height is None and width is not None:
        height = max(1, round(image.height * width / image.width))
    return width or image.width, height or image.height


def _per_channel_numbers(name: str, value: Numbers, channels: int) -> npt.NDArray[np.float64]:
    """Return `value`, a number for all channels or one each, to broadcast with (channels, height, width)."""
    try:
        numbers = np.atleast_1d(np.array(value, np.float64))
    except (TypeError, ValueError):
        numbers = np.array([np.nan])
    if numbers.ndim != 1 or not np.isfinite(numbers).all():
        raise ConvswapError(f"{name} was given as {value!r}; expected numbers, as in 0.485")
    if len(numbers) not in (1, channels):
        expected = "1" if channels == 1 else f"1 or {channels}"
        images = "" if name == "scale" else f" for images of {channels} channels"
        raise ConvswapError(f"{name} has {len(numbers)} numbers{images}; give {expected}")
    return numbers[:, np.newaxis, np.newaxis]
