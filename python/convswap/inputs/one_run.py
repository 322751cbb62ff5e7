"""What one run of a model is fed, for commands that need no data set: values of a user, or made up ones."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

import onnx

from convswap.inputs.feeds import Feeds, Input, declared_inputs, input_shapes, random_feeds
from convswap.inputs.given import Given, GivenSource, given_source
from convswap.inputs.sample_shapes import InputShape, shape_notes, telling_shapes, with_sample_shapes
from convswap.inputs.subject import batch_of
from convswap.runtime.device import Device


@dataclass(frozen=True)
class OneRun:
    """The inputs of a run of `batch` samples: as the model declares them, and with the shapes that are fed.

    `given` has the values that a user gave, None where they are made up.
    """

    declared: tuple[Input, ...]
    inputs: tuple[Input, ...]
    batch: int
    given: GivenSource | None = None

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The shapes that are fed."""
        if self.given is not None:
            return {name: values.shape for name, values in self.feeds().items()}
        return input_shapes(self.inputs, self.batch)

    def feeds(self) -> Feeds:
        """Return the values: those given, or seeded random ones."""
        if self.given is not None:
            return self.given.first(self.batch)
        return random_feeds(self.inputs, self.batch, seed=0)

    def notes(self) -> list[str]:
        """Return what a reader has to know of them; see `shape_notes`."""
        return shape_notes(self.declared, self.inputs, self.batch)

    def telling(self) -> AbstractContextManager[None]:
        """End what is refused with what was made up; see `telling_shapes`."""
        return telling_shapes(self.declared, self.inputs, self.batch)


def one_run(
    model: onnx.ModelProto,
    *,
    batch: int | None,
    device: Device,
    input_shape: InputShape | None = None,
    given: Given | None = None,
) -> OneRun:
    """Return what a run of `model` is fed on `device`.

    It has `batch` samples, by default those that were `given`, or what `compare` takes; `input_shape` is that
    of a sample where the model leaves it open.

    Raises:
        ConvswapError: `batch` or `input_shape` is out of range or not the model's, or what was given does not
            fit it; see `given_source`.
    """
    declared = declared_inputs(model)
    shaped = with_sample_shapes(declared, input_shape)
    if given is None:
        return OneRun(declared, shaped, batch_of(model, shaped, batch, device))
    source = given_source(given, shaped, batch)
    return OneRun(declared, source.inputs, source.batch, source)
