"""Arrays by the names of a model's inputs, read from files: an .npz file, or a folder of .npy files."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from convswap.errors import ConvswapError
from convswap.inputs.feeds import Feeds

_ARRAYS = (".npy", ".npz")
_IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")
# What a file of NumPy's own format begins with.
_MAGIC = b"\x93NUMPY"


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
