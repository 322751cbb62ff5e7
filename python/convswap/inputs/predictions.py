"""What a model says of labelled images: the class it names for each."""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np
import onnx
import onnxruntime

from convswap.data import datasets
from convswap.errors import ConvswapError
from convswap.inputs.feeds import ImageSource, Source
from convswap.inputs.subject import CLASSES, no_labels, open_subject, source_of
from convswap.runtime.device import Device
from convswap.runtime.sessions import DEFAULT, make_session, run_named
from convswap.runtime.values import is_number
from convswap.truth.closeness import NO_CLASS, top1_classes

# Of a model that gives empty sequences only.
_NOTHING = np.zeros(0)


@dataclass(frozen=True, eq=False)
class Predictions:
    """Images with their class by a model and by their labels.

    `images` is (n, S, S) with pixel values 0..255; `predicted` and `labels` are (n,), indices into
    `class_names`, `predicted` also `NO_CLASS`. `model` and `dataset` are names.
    """

    model: str
    dataset: str
    images: np.ndarray
    predicted: np.ndarray
    labels: np.ndarray
    class_names: tuple[str, ...]

    @property
    def right(self) -> int:
        """How many images the model names as their labels do."""
        return int(np.sum(self.predicted == self.labels))


def predict(
    model: str | os.PathLike[str] | onnx.ModelProto, *, data: str | None = None, images: int
) -> Predictions:
    """Run `model`, a network's name or an ONNX file, on the first `images` test images of `data`.

    It runs on the CPU with ONNX Runtime's own provider. `data` is by default what the model was made for.

    Raises:
        ConvswapError: the model cannot be read or run, or there are no labelled images that it takes.
    """
    subject = open_subject(model, data)
    cpu = Device("cpu", "asked for")
    source = source_of(subject, images, None, cpu)
    if not isinstance(source, ImageSource) or source.labels is None:
        raise no_labels(subject.dataset)
    session = make_session(subject.plain, DEFAULT, cpu)
    return Predictions(
        model=subject.title,
        dataset=subject.dataset,
        images=source.data[:, 0],
        predicted=predicted_classes(session, source),
        labels=source.labels,
        class_names=datasets.CLASS_NAMES[subject.dataset],
    )


def predicted_classes(session: onnxruntime.InferenceSession, source: Source) -> np.ndarray:
    """Return the top-1 class (n,) of the first output with numbers for every image of `source`.

    It is `NO_CLASS` where the output is empty or its largest value is not finite. Of a model without such an
    output it is what the first one says of each, a string.

    Raises:
        ConvswapError: the run fails, or the data have labels and the output is not (n, 10).
    """
    found = []
    for feeds, counted in source.batches():
        arrays = list(run_named(session, feeds).values())
        output = next((values for values in arrays if is_number(values)), arrays[0] if arrays else _NOTHING)
        if source.labels is not None and (output.ndim != 2 or output.shape[1] != CLASSES):
            raise ConvswapError(
                f"the data have {CLASSES} classes, but the model's first output has shape "
                f"{list(output.shape)}; use --data random"
            )
        found.append(_classes(output)[:counted])
    return np.concatenate(found)


def _classes(output: np.ndarray) -> np.ndarray:
    if is_number(output):
        return top1_classes(output)
    samples = output.shape[0] if output.ndim else 1
    return output.reshape(samples, -1)[:, 0] if output.size else np.full(samples, NO_CLASS, dtype=object)
