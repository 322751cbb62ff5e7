"""Small images in folders and Parquet files, a classifier of them, and calls that end their process."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from convswap.evaluation.parts import Part
from PIL import Image
from swap_models import text_model, weights


def classifier(*, outputs: str = "float[n, 7] y") -> onnx.ModelProto:
    """Return a classifier of images [n, 3, 16, 16] with seven classes, and other outputs if asked for."""
    return text_model(
        "a = Conv (x, w) p = GlobalAveragePool (a) y = Flatten (p) z = Relu (a)",
        weights("w", 7, 3, 3, 3),
        inputs="float[n, 3, 16, 16] x",
        outputs=outputs,
    )


def write_images(folder: Path, count: int = 30, classes: int = 5) -> Path:
    """Write random images of several sizes into a folder for each class; return `folder`."""
    random = np.random.default_rng(8)
    for index in range(count):
        path = folder / f"class {index % classes}" / f"{index:03}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        # Coarse pixels, which resizing does not average away.
        coarse = Image.fromarray(random.integers(0, 256, (4, 4, 3), np.uint8))
        coarse.resize(tuple(random.integers(17, 40, 2)), Image.Resampling.NEAREST).save(path)
    return folder


def write_parquet(path: Path, files: list[Path], as_struct: bool, rows: int) -> Path:
    """Write images and the labels of their folders, as bytes or as structs, in groups of `rows`."""
    import pyarrow
    from pyarrow import parquet

    images: list[Any] = [file.read_bytes() for file in files]
    if as_struct:
        images = [{"bytes": content, "path": "a.png"} for content in images]
    labels = [int(file.parent.name.split()[1]) for file in files]
    parquet.write_table(pyarrow.table({"image": images, "label": labels}), path, row_group_size=rows)
    return path


@dataclass(frozen=True)
class EndsProcess:
    """A part that kills the first `times` processes that decode it, counted by files in `folder`."""

    part: Part
    folder: Path
    times: int

    def decode(self) -> Any:
        """Return the samples of the part."""
        end_process(self.folder, self.times)
        return self.part.decode()


@dataclass(frozen=True)
class EndsWorker:
    """A function that kills the first process that calls it, as `EndsProcess` does."""

    function: Callable[..., Any]
    folder: Path

    def __call__(self, *arguments: Any) -> Any:
        """Return the result of the function."""
        end_process(self.folder, 1)
        return self.function(*arguments)


def end_process(folder: Path, times: int) -> None:
    """Kill this process, unless `folder` says that `times` processes ended."""
    ended = len(list(folder.iterdir()))
    if ended < times:
        (folder / str(ended)).touch()
        os.kill(os.getpid(), signal.SIGKILL)
