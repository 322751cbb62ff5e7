"""Predictions of a model on labelled images, and a drawing of them (a contact sheet)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime

from convswap.data import datasets
from convswap.errors import ConvswapError
from convswap.inputs.feeds import ImageSource, Source
from convswap.inputs.model_with_data import (
    CLASSES,
    UserModel,
    no_labels_error,
    open_model_with_data,
    source_of,
)
from convswap.output.drawing import new_figure
from convswap.reference.metrics import NO_CLASS, top1_classes
from convswap.runtime.device import Device
from convswap.runtime.sessions import DEFAULT, make_session, run_named
from convswap.runtime.values import is_number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Stands for the output of a model whose outputs are all empty sequences.
_NO_OUTPUT = np.zeros(0)

COLUMNS = 10
# 50 rows are 7,540 pixels high; few programs show larger pictures.
MAX_SHEET_IMAGES = 500

# Sizes in inches of a cell, which is an image with lines of text below, and of the title.
_CELL_WIDTH = 1.2
_IMAGE_SIDE = 1.05
_FIRST_LINE, _LINE_HEIGHT, _MARGIN = 0.12, 0.16, 0.13
_TITLE_HEIGHT = 0.4
_PIXELS_PER_INCH = 100
_TEXT: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 7.5}

# The lines of text below an image, each with its colour.
Caption = Sequence[tuple[str, str]]


@dataclass(frozen=True, eq=False)
class Predictions:
    """Images with predicted classes and labels.

    `images` is (n, S, S) with pixel values 0..255. `predicted` and `labels` are (n,), indices into
    `class_names`; `predicted` may also be `NO_CLASS`. `model` and `dataset` are names.
    """

    model: str
    dataset: str
    images: np.ndarray
    predicted: np.ndarray
    labels: np.ndarray
    class_names: tuple[str, ...]

    @property
    def correct(self) -> int:
        """Number of images whose predicted class is the label."""
        return int(np.sum(self.predicted == self.labels))


def predict(model: UserModel, *, data: str | None = None, images: int) -> Predictions:
    """Run `model`, a network's name or an ONNX file, on the first `images` test images of `data`.

    The model runs on the CPU by ONNX Runtime's own provider. `data` is by default the data set that the model
    was made for.

    Raises:
        ConvswapError: the model cannot be read or run, or there are no labelled images that fit it.
    """
    tested = open_model_with_data(model, data)
    cpu = Device("cpu", "asked for")
    source = source_of(tested, images, None, cpu)
    if not isinstance(source, ImageSource) or source.labels is None:
        raise no_labels_error(tested.dataset)
    session = make_session(tested.plain, DEFAULT, cpu)
    return Predictions(
        model=tested.title,
        dataset=tested.dataset,
        images=source.data[:, 0],
        predicted=predicted_classes(session, source),
        labels=source.labels,
        class_names=datasets.CLASS_NAMES[tested.dataset],
    )


def predicted_classes(session: onnxruntime.InferenceSession, source: Source) -> np.ndarray:
    """Return the top-1 class (n,) of every image of `source` by the first numeric output of the model.

    The class is `NO_CLASS` if the output is empty or its largest value is not finite. For a model without a
    numeric output, the classes are the strings of the first output.

    Raises:
        ConvswapError: the run fails, or the data have labels and the output is not (n, 10).
    """
    classes = []
    for feeds, samples in source.batches():
        arrays = list(run_named(session, feeds).values())
        output = next((values for values in arrays if is_number(values)), arrays[0] if arrays else _NO_OUTPUT)
        if source.labels is not None and (output.ndim != 2 or output.shape[1] != CLASSES):
            raise ConvswapError(
                f"the data have {CLASSES} classes, but the model's first output has shape "
                f"{list(output.shape)}; use --data random"
            )
        classes.append(_classes(output)[:samples])
    return np.concatenate(classes)


def _classes(output: np.ndarray) -> np.ndarray:
    if is_number(output):
        return top1_classes(output)
    samples = output.shape[0] if output.ndim else 1
    return output.reshape(samples, -1)[:, 0] if output.size else np.full(samples, NO_CLASS, dtype=object)


def draw(predictions: Predictions) -> Figure:
    """Return the contact sheet of predictions.

    Below each image are the predicted class, with a mark and colour for right or wrong, and the true class.

    Raises:
        ConvswapError: there are more images than `MAX_SHEET_IMAGES`, or matplotlib is not installed.
    """
    count, name = len(predictions.images), Path(predictions.model).name
    captions = []
    for class_index, label in zip(predictions.predicted, predictions.labels, strict=True):
        predicted = "no class" if class_index == NO_CLASS else predictions.class_names[class_index]
        true = predictions.class_names[label]
        mark, colour = ("✓", "green") if predicted == true else ("✗", "red")
        captions.append([(f"{mark} {predicted}", colour), (f"true: {true}", "black")])
    title = f"{predictions.dataset} by {name}: {predictions.correct} of {count} named right"
    return contact_sheet(title, list(predictions.images), captions)


def contact_sheet(title: str, images: Sequence[np.ndarray], captions: Sequence[Caption]) -> Figure:
    """Return a title and `images`, ten in a row, each with the lines of its caption below.

    Images are grey, (height, width) with values 0..255, or colour, (height, width, 3) of type uint8.

    Raises:
        ConvswapError: there are more images than `MAX_SHEET_IMAGES`, or matplotlib is not installed.
    """
    count = len(images)
    check_image_count(count)
    columns = min(COLUMNS, count)
    cell_height = _IMAGE_SIDE + _MARGIN + _LINE_HEIGHT * max(map(len, captions))
    # At least wide enough for the title.
    width = _CELL_WIDTH * max(columns, COLUMNS // 2)
    height = cell_height * -(-count // COLUMNS) + _TITLE_HEIGHT
    figure = new_figure(figsize=(width, height), dpi=_PIXELS_PER_INCH)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    # parse_math would take a dollar sign in a name for the start of a formula.
    axes.text(0.1, _TITLE_HEIGHT / 2, title, va="center", parse_math=False)
    for index, (image, caption) in enumerate(zip(images, captions, strict=True)):
        row, column = divmod(index, COLUMNS)
        left = column * _CELL_WIDTH + (_CELL_WIDTH - _IMAGE_SIDE) / 2
        top = row * cell_height + _TITLE_HEIGHT
        extent = (left, left + _IMAGE_SIDE, top + _IMAGE_SIDE, top)
        axes.imshow(image, cmap="gray", vmin=0, vmax=255, extent=extent, aspect="auto")
        for line, (text, colour) in enumerate(caption):
            position = top + _IMAGE_SIDE + _FIRST_LINE + line * _LINE_HEIGHT
            axes.text(left + _IMAGE_SIDE / 2, position, text, color=colour, parse_math=False, **_TEXT)
    # Coordinates are in inches from the upper left corner. `imshow` changes the limits, so they are set last.
    axes.set(xlim=(0, width), ylim=(height, 0))
    return figure


def check_image_count(images: int) -> None:
    """Raise ConvswapError if a contact sheet cannot show so many images."""
    if images > MAX_SHEET_IMAGES:
        raise ConvswapError(
            f"{images} images were asked for; a contact sheet shows at most {MAX_SHEET_IMAGES}, so "
            "ask for fewer"
        )
