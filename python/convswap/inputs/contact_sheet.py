"""Draws images in rows, each with the class that a model names and the one that its label gives."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from convswap.errors import ConvswapError
from convswap.inputs.predictions import Predictions
from convswap.output.drawing import new_figure
from convswap.truth.closeness import NO_CLASS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = 10
# 50 rows are 7,540 pixels; more would be a picture that few programs show.
MOST_IMAGES = 500

# In inches: an image with its two lines of text, and the title.
_CELL_WIDTH = 1.2
_CELL_HEIGHT = 1.5
_IMAGE_SIDE = 1.05
_TITLE_HEIGHT = 0.4
_PIXELS_PER_INCH = 100
_TEXT: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 7.5}


def draw(predictions: Predictions) -> Figure:
    """Return the sheet: a title, then the images, ten in a row.

    Under each stand the predicted class, with a mark and colour that tell right from wrong, and the true one.

    Raises:
        ConvswapError: there are more than `MOST_IMAGES`, or matplotlib is not installed.
    """
    count = len(predictions.images)
    check_count(count)
    columns = min(COLUMNS, count)
    # Never so narrow that the title does not fit.
    width = _CELL_WIDTH * max(columns, COLUMNS // 2)
    height = _CELL_HEIGHT * -(-count // COLUMNS) + _TITLE_HEIGHT
    figure = new_figure(figsize=(width, height), dpi=_PIXELS_PER_INCH)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    title = (
        f"{predictions.dataset} by {Path(predictions.model).name}: {predictions.right} of {count} named right"
    )
    # A dollar sign in a name is no formula.
    axes.text(0.1, _TITLE_HEIGHT / 2, title, va="center", parse_math=False)
    for index, image in enumerate(predictions.images):
        row, column = divmod(index, COLUMNS)
        left = column * _CELL_WIDTH + (_CELL_WIDTH - _IMAGE_SIDE) / 2
        top = row * _CELL_HEIGHT + _TITLE_HEIGHT
        extent = (left, left + _IMAGE_SIDE, top + _IMAGE_SIDE, top)
        axes.imshow(image, cmap="gray", vmin=0, vmax=255, extent=extent, aspect="auto")
        named = predictions.predicted[index]
        predicted = "no class" if named == NO_CLASS else predictions.class_names[named]
        true = predictions.class_names[predictions.labels[index]]
        mark, colour = ("✓", "green") if predicted == true else ("✗", "red")
        middle, below = left + _IMAGE_SIDE / 2, top + _IMAGE_SIDE
        axes.text(middle, below + 0.12, f"{mark} {predicted}", color=colour, **_TEXT)
        axes.text(middle, below + 0.28, f"true: {true}", **_TEXT)
    # The unit is an inch, from the upper left corner. Last, because images set limits of their own.
    axes.set(xlim=(0, width), ylim=(height, 0))
    return figure


def check_count(images: int) -> None:
    """Raise ConvswapError where a sheet cannot show so many images."""
    if images > MOST_IMAGES:
        raise ConvswapError(
            f"{images} images were asked for; a contact sheet shows at most {MOST_IMAGES}, so ask for fewer"
        )


def png(figure: Figure) -> bytes:
    """Return `figure` as the content of a PNG file."""
    content = io.BytesIO()
    figure.savefig(content, format="png")
    return content.getvalue()
