"""Data sets of labelled images: `fashion-mnist`, and `synthetic`, which needs no files."""

from __future__ import annotations

import io
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from convswap.data import synthetic
from convswap.data.fetch import CacheNotWritable, PinnedFile, fetch, sha256_of
from convswap.data.images import read_idx, resize_as_the_course
from convswap.errors import ConvswapError, unknown_name
from convswap.progress import note

FASHION_MNIST_URL = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
FASHION_MNIST_CLASSES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
CLASS_NAMES = {"fashion-mnist": FASHION_MNIST_CLASSES, "synthetic": synthetic.CLASS_NAMES}
NAMES = tuple(CLASS_NAMES)
SPLITS = ("test", "train")
LARGEST_IMAGE_SIZE = 4096


@dataclass(frozen=True)
class FashionMnistSplit:
    """A split of Fashion-MNIST: its two files and their number of images."""

    pixels: PinnedFile
    labels: PinnedFile
    images: int


FASHION_MNIST = {
    "test": FashionMnistSplit(
        PinnedFile(
            "t10k-images-idx3-ubyte.gz",
            4_422_102,
            "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        ),
        PinnedFile(
            "t10k-labels-idx1-ubyte.gz",
            5_148,
            "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        ),
        10_000,
    ),
    "train": FashionMnistSplit(
        PinnedFile(
            "train-images-idx3-ubyte.gz",
            26_421_880,
            "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        ),
        PinnedFile(
            "train-labels-idx1-ubyte.gz",
            29_515,
            "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        ),
        60_000,
    ),
}


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images and their labels.

    `images` is float32 (n, 1, S, S) with pixel values 0..255, not normalised. `labels` is int64 (n,), indices
    into `class_names`, or None if there are no labels.
    """

    name: str
    images: np.ndarray
    labels: np.ndarray | None
    class_names: tuple[str, ...]


def load(
    name: str,
    *,
    split: str = "test",
    images: int | None = None,
    image_size: int = 28,
    base_url: str = FASHION_MNIST_URL,
) -> Dataset:
    """Load the first `images` images of a split (all if None), resized to `image_size` pixels a side.

    Files are looked for in $CONVSWAP_DATA/<name>/, then in the user's cache folder. Missing files are
    downloaded from `base_url` to the cache folder, with a progress bar on standard error if that is a
    terminal. `base_url` may be a mirror; its files must have the same hashes.

    Raises ConvswapError if the data set or split is unknown, a number is out of range, a file in
    $CONVSWAP_DATA is not the original, or a download fails.
    """
    _require_known(name, split)
    available_images = FASHION_MNIST[split].images if name == "fashion-mnist" else synthetic.IMAGES_PER_SPLIT
    count = available_images if images is None else images
    if not 1 <= count <= available_images:
        raise ConvswapError(
            f"{count} images were asked for; the {split} split of {name} has {available_images}, so ask "
            f"for 1 to {available_images}"
        )
    if not 1 <= image_size <= LARGEST_IMAGE_SIZE:
        raise ConvswapError(
            f"image size {image_size} is out of range; choose 1 to {LARGEST_IMAGE_SIZE} pixels"
        )
    if name == "fashion-mnist":
        originals, labels = _fashion_mnist_originals(FASHION_MNIST[split], base_url)
    else:
        originals, labels = synthetic.originals(split, count)
    try:
        resized = resize_as_the_course(originals[:count], image_size)
    except MemoryError:
        gigabytes = 4e-9 * count * image_size**2
        raise ConvswapError(
            f"{count} images of {image_size}x{image_size} do not fit in memory ({gigabytes:.1f} GB); "
            "ask for fewer or smaller ones"
        ) from None
    return Dataset(name, resized[:, np.newaxis], labels[:count].astype(np.int64), CLASS_NAMES[name])


def available(name: str, split: str = "test") -> bool:
    """Return whether `load` would not need the network.

    A damaged file in $CONVSWAP_DATA counts as available, since `load` raises an error for it instead of
    downloading. A damaged file in the cache does not count. Raises ConvswapError if the data set or split is
    unknown.
    """
    _require_known(name, split)
    if name == "synthetic":
        return True
    files = (FASHION_MNIST[split].pixels, FASHION_MNIST[split].labels)
    return all(_path_in_data_folder(file) or _content_in_cache(file) is not None for file in files)


def _require_known(name: str, split: str) -> None:
    if name not in NAMES:
        raise unknown_name("data set", name, NAMES)
    if split not in SPLITS:
        raise unknown_name("split", split, SPLITS)


def _fashion_mnist_originals(split: FashionMnistSplit, base_url: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the uint8 pixels (n, 28, 28) and the uint8 labels (n,) of a split."""
    pixels = _content(split.pixels, base_url)
    labels = _content(split.labels, base_url)
    return (
        read_idx(io.BytesIO(pixels), split.pixels.name, (split.images, 28, 28)),
        read_idx(io.BytesIO(labels), split.labels.name, (split.images,)),
    )


def _content(file: PinnedFile, base_url: str) -> bytes:
    path = _path_in_data_folder(file)
    if path is not None:
        return _content_of_data_folder(file, path)
    content = _content_in_cache(file)
    return _download(file, base_url) if content is None else content


def _download(file: PinnedFile, base_url: str) -> bytes:
    """Download a file and return its content; store the file in the user's cache if possible."""
    try:
        folder = _cache_folder()
        fetch(file, base_url, folder)
        return _read(folder / file.name, file.size)
    except CacheNotWritable as error:
        note(f"{error}; for now it is downloaded each time")
    with tempfile.TemporaryDirectory(prefix="convswap-") as temporary:
        fetch(file, base_url, Path(temporary), manual_folder=Path("$CONVSWAP_DATA/fashion-mnist"))
        return _read(Path(temporary) / file.name, file.size)


def _path_in_data_folder(file: PinnedFile) -> Path | None:
    data_folder = os.environ.get("CONVSWAP_DATA")
    if not data_folder:
        return None
    path = Path(data_folder) / "fashion-mnist" / file.name
    try:
        return path if path.exists() else None
    except OSError as error:
        raise _cannot_read(path, error) from None


def _content_of_data_folder(file: PinnedFile, path: Path) -> bytes:
    content = _read(path, file.size + 1)
    if not file.matches(content):
        raise ConvswapError(
            f"{path} is truncated or altered: its SHA-256 is {sha256_of(path)}, expected {file.sha256}; "
            "replace it with the original, or unset CONVSWAP_DATA to have it downloaded"
        )
    return content


def _content_in_cache(file: PinnedFile) -> bytes | None:
    try:
        content = _read(_cache_folder() / file.name, file.size + 1)
    except ConvswapError:  # missing or not readable
        return None
    return content if file.matches(content) else None


def _cache_folder() -> Path:
    """Return Fashion-MNIST's folder in the user's cache, by the XDG Base Directory Specification."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not base.is_absolute():
        try:
            base = Path.home() / ".cache"
        except RuntimeError:
            raise CacheNotWritable(
                "there is no home folder to keep data in; set XDG_CACHE_HOME or CONVSWAP_DATA to a folder"
            ) from None
    return base / "convswap" / "fashion-mnist"


def _read(path: Path, limit: int) -> bytes:
    try:
        with path.open("rb") as stream:
            return stream.read(limit)
    except OSError as error:
        raise _cannot_read(path, error) from None


def _cannot_read(path: Path, error: OSError) -> ConvswapError:
    return ConvswapError(f"cannot read {path}: {error.strerror}; make it a file that you may read")
