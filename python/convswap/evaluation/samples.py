"""Data sets of an evaluation: folders of images, Parquet files and the named data sets.

Files are read block by block, so memory holds the names and labels of all samples, but few samples.
"""

from __future__ import annotations

import csv
import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from convswap.data import datasets
from convswap.data.pictures import PICTURE_SUFFIXES
from convswap.errors import ConvswapError, unreadable
from convswap.evaluation.parts import EncodedImages, Framing, Part, ReadyRuns
from convswap.inputs.feeds import ImageSource, Source, fixed_batch, random_feeds

_PARQUET, _IMAGE_COLUMN, _LABEL_COLUMN = ".parquet", "image", "label"
# Rows of a Parquet file that are in memory beside the blocks.
_ROWS = 64


class Block(NamedTuple):
    """A run of consecutive samples, whose results are one record."""

    number: int
    start: int
    stop: int


@dataclass(frozen=True, eq=False)
class Samples:
    """A data set: a name of each sample, what distinguishes it from others, and labels (n,) if it has some.

    `parts` yields the part of each of some blocks, which are in order. `has_images` is false for random ones.
    """

    title: str
    names: Sequence[str | int]
    identity: str
    parts: Callable[[Iterable[Block]], Iterator[Part]]
    labels: np.ndarray | None = None
    class_names: Sequence[str] | None = None
    has_images: bool = True

    def first(self, count: int | None) -> Samples:
        """Return the first `count` samples; all for None."""
        if count is not None and count > len(self.names):
            raise ConvswapError(
                f"{count} images were asked for, but '{self.title}' has {len(self.names)}; ask for less"
            )
        labels = None if self.labels is None else self.labels[:count]
        return replace(self, names=self.names[:count], labels=labels)


def named_samples(name: str, source: Source) -> Samples:
    """Return the samples of `source`, which come from the named data set."""
    fixed = fixed_batch(source.inputs)

    def parts(blocks: Iterable[Block]) -> Iterator[Part]:
        for block in blocks:
            if isinstance(source, ImageSource):
                images = replace(source, data=source.data[block.start : block.stop])
                yield ReadyRuns(list(images.batches()))
                continue
            counts = [(i, min(source.batch, block.stop - i)) for i in range(*block[1:], source.batch)]
            yield ReadyRuns(
                [(random_feeds(source.inputs, fixed or n, i // source.batch), n) for i, n in counts]
            )

    class_names, has_images = datasets.CLASS_NAMES.get(name), isinstance(source, ImageSource)
    return Samples(name, range(source.images), name, parts, source.labels, class_names, has_images)


def file_samples(path: Path, labels: str | None, framing: Framing) -> Samples:
    """Return the samples of a folder of images, of a Parquet file or of a folder of Parquet files.

    `labels` is the path of a file or the name of a column.

    Raises:
        ConvswapError: there are no samples, or the labels do not fit them.
    """
    if path.is_dir():
        tables = sorted(path.glob(f"*{_PARQUET}"))
        return _parquet(path, tables, labels, framing) if tables else _folder(path, labels, framing)
    if path.suffix.lower() == _PARQUET and path.exists():
        return _parquet(path, [path], labels, framing)
    problem = f"'{path}' is no Parquet file" if path.exists() else f"there is no data '{path}'"
    raise ConvswapError(
        f"{problem}; give a folder of images, a Parquet file (*{_PARQUET}), "
        f"{', '.join(datasets.NAMES)} or random"
    )


def _folder(path: Path, labels: str | None, framing: Framing) -> Samples:
    sizes = dict(sorted(_pictures(path)))
    files = list(sizes)
    if not files:
        raise ConvswapError(
            f"folder '{path}' has no images; expected files {', '.join(PICTURE_SUFFIXES)}, in the folder or "
            "in a folder for each class"
        )
    class_names = None
    classes = None if labels is None else _labels_of_file(Path(labels), files)
    folders = [name.rpartition("/")[0].partition("/")[0] for name in files]
    if labels is None and any(folders):
        if not all(folders):
            raise ConvswapError(
                f"folder '{path}' has images in folders and beside them, such as {files[folders.index('')]}; "
                "move all into a folder for each class, or give --labels"
            )
        class_names = sorted(set(folders))
        classes = np.searchsorted(class_names, folders)

    def parts(blocks: Iterable[Block]) -> Iterator[Part]:
        for block in blocks:
            yield EncodedImages(files[block.start : block.stop], framing, str(path))

    identity = _hash(f"{name}:{size}" for name, size in sizes.items())
    return Samples(str(path), files, identity, parts, classes, class_names)


def _pictures(folder: Path, inside: str = "") -> Iterator[tuple[str, int]]:
    """Yield path and size of each image in `folder`, at any depth; hidden files and folders are skipped."""
    try:
        entries = [entry for entry in os.scandir(folder / inside) if not entry.name.startswith(".")]
    except OSError as error:
        raise unreadable(folder / inside, error, "a folder of images") from error
    for entry in entries:
        if entry.is_dir():
            yield from _pictures(folder, f"{inside}{entry.name}/")
        elif entry.name.lower().endswith(PICTURE_SUFFIXES):
            yield f"{inside}{entry.name}", entry.stat().st_size


def _labels_of_file(path: Path, files: Sequence[str]) -> np.ndarray:
    """Return the labels in a file that has one in each line, or lines `name,label`."""
    expected = "an integer in each line, in the order of the sorted file names, or lines name,label"
    try:
        with path.open(encoding="utf-8", newline="") as stream:
            rows = [[cell.strip() for cell in row] for row in csv.reader(stream) if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise unreadable(path, error, expected) from error
    for number, row in enumerate(rows, start=1):
        if len(row) > 2 or len(row) != len(rows[0]) or not row[-1].isdecimal():
            raise ConvswapError(f"labels '{path}': line {number} is {','.join(row)!r}; expected {expected}")
    labels = [int(row[-1]) for row in rows]
    if rows and len(rows[0]) == 2:
        by_name = {row[0]: label for row, label in zip(rows, labels, strict=True)}
        missing = [name for name in files if name not in by_name]
        if missing:
            raise ConvswapError(
                f"labels '{path}' have no line for {len(missing)} of {len(files)} images, such as "
                f"{missing[0]}; give a line name,label for each"
            )
        labels = [by_name[name] for name in files]
    if len(labels) != len(files):
        raise ConvswapError(
            f"labels '{path}' are {len(labels)}, but there are {len(files)} images; give one for each"
        )
    return np.array(labels)


def _parquet(path: Path, files: Sequence[Path], labels: str | None, framing: Framing) -> Samples:
    tables = [_opened(file) for file in files]
    schema, counts = tables[0].schema_arrow, [table.metadata.num_rows for table in tables]
    if not sum(counts):
        raise ConvswapError(f"'{path}' has no rows; give a Parquet file of images")
    column = _image_column(path, schema)
    if labels is None and _LABEL_COLUMN in schema.names:
        labels = _LABEL_COLUMN
    classes = None if labels is None else _labels_of_column(path, tables, labels)

    def parts(blocks: Iterable[Block]) -> Iterator[Part]:
        rows, position = _rows(files, column), 0
        for block in blocks:
            # Rows of blocks that an earlier run computed are read over.
            values = islice(rows, block.start - position, block.stop - position)
            position = block.stop
            contents = [_content(value.as_py(), path) for value in values]
            yield EncodedImages([f"row {i}" for i in range(*block[1:])], framing, str(path), contents)

    identity = _hash(f"{file.name}:{file.stat().st_size}:{n}" for file, n in zip(files, counts, strict=True))
    return Samples(str(path), range(sum(counts)), identity, parts, classes)


def _opened(file: Path) -> Any:
    try:
        from pyarrow import parquet
    except ImportError:
        raise ConvswapError(
            "Parquet files are read by pyarrow, which is missing: pip install pyarrow"
        ) from None
    try:
        # Pages are read as rows are asked for, so a large row group is never in memory as a whole.
        return parquet.ParquetFile(file, buffer_size=1 << 20, pre_buffer=False)
    except (OSError, ValueError) as error:  # pyarrow's errors are ValueErrors.
        raise unreadable(file, error, "a Parquet file") from error


def _content(value: Any, path: Path) -> bytes:
    content = value.get("bytes") if isinstance(value, dict) else value
    if not isinstance(content, bytes):
        raise ConvswapError(f"'{path}' has a row without the content of an image; embed all in the file")
    return content


def _image_column(path: Path, schema: Any) -> str:
    # A type's text is such as "large_binary" or "struct<bytes: binary, path: string>".
    columns = [field.name for field in schema if re.match("(large_)?binary|struct.*bytes:", str(field.type))]
    if len(columns) != 1 and _IMAGE_COLUMN not in columns:
        raise ConvswapError(
            f"'{path}' has the columns {', '.join(schema.names)}; expected a column {_IMAGE_COLUMN} of image "
            "files, as bytes or as struct {bytes, path}, or only one such column"
        )
    return _IMAGE_COLUMN if _IMAGE_COLUMN in columns else columns[0]


def _labels_of_column(path: Path, tables: Sequence[Any], column: str) -> np.ndarray:
    columns = {field.name: str(field.type) for field in tables[0].schema_arrow}
    values = []
    if "int" in columns.get(column, ""):
        values = [value for table in tables for value in table.read([column]).column(0).to_pylist()]
    if not values or None in values:
        listed = ", ".join(f"{name} ({kind})" for name, kind in columns.items())
        raise ConvswapError(
            f"'{path}' has no column {column!r} with an integer in each row, but {listed}; give --labels"
        )
    return np.array(values)


def _rows(files: Sequence[Path], column: str) -> Iterator[Any]:
    """Yield the values of a column, in order, since one row group may have all rows of a file."""
    for file in files:
        try:
            for batch in _opened(file).iter_batches(_ROWS, columns=[column]):
                yield from batch.column(0)
        except (OSError, ValueError) as error:
            raise unreadable(file, error, "a Parquet file") from error


def _hash(lines: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for line in lines:
        digest.update(line.encode(errors="surrogateescape") + b"\n")
    return digest.hexdigest()
