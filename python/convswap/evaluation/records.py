"""Results of blocks, which merge: counts and the largest differences; and a folder that keeps them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from convswap.errors import ConvswapError
from convswap.evaluation.samples import Block
from convswap.output.files import write_text
from convswap.reference.metrics import NO_CLASS, top1_classes

SIDES, TOPS = ("default", "convswap"), (1, 5)
# The number of samples that are kept of those on which the sides differ most.
LARGEST = 20


class Difference(NamedTuple):
    """The largest absolute difference between both sides' scores of a sample, its label, and both classes.

    It is infinite if a score is finite on one side only.
    """

    sample: int
    difference: float
    label: int | None
    default: int
    convswap: int


@dataclass(frozen=True)
class Record:
    """The results of one block or of several.

    `counts` has `samples`, `agreeing`, `without_class` and, with labels, `SIDE_top1` and `SIDE_top5`.
    `run` has what may differ between runs: the seconds of `decoding`, of each side and of `waiting`, and
    the `repeated_blocks`.
    """

    counts: Mapping[str, int]
    run: Mapping[str, float]
    largest: tuple[Difference, ...]


def merged(records: Iterable[Record]) -> Record:
    """Return one record of the samples of all `records`; their order and grouping affect `run` only."""
    counts: dict[str, int] = {}
    run: dict[str, float] = {}
    largest: tuple[Difference, ...] = ()
    for record in records:
        counts = {name: counts.get(name, 0) + count for name, count in record.counts.items()}
        run = {name: run.get(name, 0.0) + value for name, value in record.run.items()}
        largest = _largest((*largest, *record.largest))
    return Record(counts, run, largest)


def _largest(differences: Iterable[Difference]) -> tuple[Difference, ...]:
    """Return the first differences: samples with two classes first, then the largest differences."""
    ordered = sorted(
        differences, key=lambda item: (item.default == item.convswap, -item.difference, item.sample)
    )
    return tuple(ordered[:LARGEST])


def record_of(
    block: Block, scores: Mapping[str, np.ndarray], labels: np.ndarray | None, run: Mapping[str, float]
) -> Record:
    """Return the record of a block, given the scores (n, classes) of each side and the labels (n,).

    Raises:
        ConvswapError: the model has no such class as a label.
    """
    default, convswap = both = [scores[side].astype(np.float64) for side in SIDES]
    classes = [top1_classes(values) for values in both]
    with np.errstate(invalid="ignore"):
        differences = np.abs(convswap - default)
    differences[(convswap == default) | (np.isnan(convswap) & np.isnan(default))] = 0.0
    differences[np.isnan(differences)] = np.inf
    has_class = (classes[0] != NO_CLASS) | (classes[1] != NO_CLASS)
    counts = {
        "samples": len(default),
        "without_class": int(np.sum(~has_class)),
        "agreeing": int(np.sum(has_class & (classes[0] == classes[1]))),
    }
    if labels is not None:
        for side, values, side_classes in zip(SIDES, both, classes, strict=True):
            ranks = np.where(side_classes == NO_CLASS, values.shape[1], _ranks(block, values, labels))
            counts |= {f"{side}_top{top}": int(np.sum(ranks < top)) for top in TOPS}
    largest = differences.max(axis=1)
    # In the order of `_largest`, without a tuple of every sample.
    first = np.lexsort((-largest, classes[0] == classes[1]))[:LARGEST]
    label_of = np.full(len(default), None) if labels is None else labels
    columns = (np.arange(*block[1:]), largest, label_of, *classes)
    return Record(counts, run, tuple(map(Difference, *(column[first].tolist() for column in columns))))


def _ranks(block: Block, scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return how many classes come before each label; of equal scores the first class comes first."""
    classes = scores.shape[1]
    wrong = np.flatnonzero((labels < 0) | (labels >= classes))
    if wrong.size:
        raise ConvswapError(
            f"sample {block.start + wrong[0]} has label {labels[wrong[0]]}, but the model has {classes} "
            f"classes; expected labels from 0 to {classes - 1}"
        )
    of_labels = np.take_along_axis(scores, labels[:, np.newaxis], axis=1)
    is_earlier = np.arange(classes) < labels[:, np.newaxis]
    ranks: np.ndarray = np.sum((scores > of_labels) | ((scores == of_labels) & is_earlier), axis=1)
    return ranks


class KeptRecords:
    """Records in a folder, a file for each block; a folder with another `key` is refused.

    `key` is what the records depend on, such as the model and the batch.
    """

    def __init__(self, folder: Path, key: Mapping[str, Any]) -> None:
        """Create the folder if there is none; raise ConvswapError if it cannot be used."""
        self._folder, path = folder, folder / "evaluation.json"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if all(file.name.startswith(".") for file in folder.iterdir()):
                write_text(path, json.dumps(key, indent=1))
            kept = dict(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, TypeError, ValueError) as error:
            raise ConvswapError(
                f"cannot keep results in '{folder}': {getattr(error, 'strerror', None) or error}; give "
                "--resume a new folder, or one of an evaluation"
            ) from error
        for name, value in json.loads(json.dumps(key)).items():
            if kept.get(name) != value:
                raise ConvswapError(
                    f"folder '{folder}' has results of another evaluation: {name} "
                    f"{kept.get(name)!s:.40}, now {value!s:.40}; give another folder to --resume"
                )

    def load(self, blocks: Iterable[Block]) -> dict[Block, Record]:
        """Return the records of `blocks` that are in the folder."""
        records = {}
        for block in blocks:
            try:
                values = json.loads(self._path(block).read_text(encoding="utf-8"))
                largest = tuple(Difference(*item) for item in values.pop("largest"))
                records[block] = Record(**values, largest=largest)
            except (OSError, AttributeError, KeyError, TypeError, ValueError):  # The block is computed again.
                continue
        return records

    def save(self, block: Block, record: Record) -> None:
        """Keep the record of `block`, completely or not at all."""
        write_text(self._path(block), json.dumps(asdict(record)))

    def _path(self, block: Block) -> Path:
        return self._folder / f"block-{block.number:06}.json"
