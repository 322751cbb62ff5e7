"""Parts of a data set, which decoding processes turn into samples.

A decoding process imports this module, so ONNX and ONNX Runtime are not imported here.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Protocol

import numpy as np

from convswap.data.pictures import as_pixels, centre_of_resized, read_picture, resized

# The feeds of a run, and its number of samples that count; the others are padding.
Runs = Sequence[tuple[dict[str, np.ndarray], int]]
# Pixels (n, channels, height, width) of type uint8, or runs that are ready.
Decoded = np.ndarray | Runs

# Shorter side of an image of ImageNet before the crop, over the side of the crop.
_IMAGENET_RATIO = 256 / 224


class Part(Protocol):
    """The samples of a block before decoding, for another process."""

    def decode(self) -> Decoded:
        """Return the samples."""


def decode(part: Part, path: str | None = None) -> tuple[Decoded | str, float]:
    """Return the samples of `part`, or `path` with pixels in that file, and the seconds that it took."""
    start = time.perf_counter()
    decoded: Decoded | str = part.decode()
    if path is not None and isinstance(decoded, np.ndarray):
        with Path(path).open("r+b") as file:
            np.save(file, decoded)
        decoded = path
    return decoded, time.perf_counter() - start


def start_process(receiver: Connection) -> None:
    """Make a decoding process end at Ctrl-C, and when the other end of `receiver` is closed."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)

    def wait_for_end() -> None:
        with contextlib.suppress(EOFError, OSError):
            receiver.recv()
        os._exit(1)

    threading.Thread(target=wait_for_end, daemon=True).start()


@dataclass(frozen=True)
class Framing:
    """The size and mode ("L" or "RGB") of pixels, and whether images are framed as for ImageNet.

    Other images are resized to the size, whatever their aspect ratio.
    """

    mode: str
    height: int
    width: int
    is_imagenets: bool

    def pixels(self, source: str | bytes, name: str) -> np.ndarray:
        """Return an image as (channels, height, width); raise ConvswapError if it cannot be read."""
        # torchvision, with which published accuracies were measured, does not rotate images by EXIF.
        image = read_picture(source, name, self.mode, rotates=not self.is_imagenets)
        if not self.is_imagenets:
            return as_pixels(resized(image, (self.width, self.height)))
        shorter = round(max(self.height, self.width) * _IMAGENET_RATIO)
        return as_pixels(centre_of_resized(image, shorter, self.width, self.height))


@dataclass(frozen=True)
class EncodedImages:
    """Images, by the contents of their files or by their `names` in `folder`."""

    names: Sequence[str]
    framing: Framing
    folder: str
    contents: Sequence[bytes] = ()

    def decode(self) -> np.ndarray:
        """Return the pixels; raise ConvswapError for an image that cannot be read."""
        paths = [str(Path(self.folder) / name) for name in self.names]
        pixels = np.empty(0, np.uint8)
        for index, path in enumerate(paths):
            image = self.framing.pixels(self.contents[index] if self.contents else path, path)
            if index == 0:
                pixels = np.empty((len(paths), *image.shape), np.uint8)
            pixels[index] = image
        return pixels


@dataclass(frozen=True)
class ReadyRuns:
    """Runs of a named data set."""

    runs: Runs

    def decode(self) -> Runs:
        """Return the runs."""
        return self.runs
