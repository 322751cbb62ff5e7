"""The model that a user named, the data that suit it, and what its runs are fed."""

from __future__ import annotations

import gc
import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

import onnx
import onnx_ir as ir

from convswap.data import datasets
from convswap.errors import ConvswapError, require_count, unknown_name
from convswap.export import export_network
from convswap.graph.external_weights import lift_large_constants, taken_apart
from convswap.graph.model_file import is_there, load_model, model_from_proto, model_path
from convswap.graph.plain_model import count_swapped, plain_model
from convswap.inputs.feeds import (
    Feeds,
    ImageSource,
    Input,
    RandomSource,
    Source,
    checked_batch,
    declared_inputs,
    input_shapes,
    random_feeds,
)
from convswap.inputs.sample_shapes import InputShape, shape_notes, telling_shapes, with_sample_shapes
from convswap.inputs.tensor_inputs import with_tensor_inputs
from convswap.inputs.user_inputs import GIVEN, UserInputs, UserInputSource, user_input_source
from convswap.models.networks import ALL_NETWORKS, NETWORKS, RANDOM
from convswap.runtime.device import Device

# A network's name, the path of an ONNX file, or a model that holds its weights itself.
UserModel = str | os.PathLike[str] | onnx.ModelProto

DATA = ("fashion-mnist", "synthetic", RANDOM)
CLASSES = 10
# What the course's networks are for.
_BEST = "fashion-mnist"
_DEFAULT_IMAGES = {"fashion-mnist": 10_000, "synthetic": 2_000}
# A batch that keeps the largest tensor of the course's networks near 20 MB on the CPU.
_DEFAULT_BATCH = {"cuda": 10_000, "cpu": 100}
# For models made for random images, which are large; for all others that get random values it is 1.
_DEFAULT_RANDOM_IMAGES = {"cuda": 256, "cpu": 8}


@dataclass(frozen=True)
class ModelWithData:
    """A model and the name of its data; see `open_model` for its weights.

    `model` is as given, for our side; `plain` has every Conv as ONNX has it, for the default side, and is the
    same object where `swapped_before`, the number of Convs that were swapped in `model` already, is 0.
    `missing` names the data set that the model was made for, where it would have to be downloaded first.
    `input_shape` is that of a sample, as it was asked for; see `with_sample_shapes`. `given` has the
    values that the user gave for the inputs, where `dataset` is "given".
    """

    title: str
    model: ir.Model
    plain: ir.Model
    dataset: str
    missing: str | None = None
    swapped_before: int = 0
    input_shape: InputShape | None = None
    given: UserInputs | None = None


def open_model_with_data(
    model: UserModel, data: str | None, input_shape: InputShape | None = None, given: UserInputs | None = None
) -> ModelWithData:
    """Return the model called or stored as `model`, and `data` or what suits it.

    A network's name has it exported; anything else is the path of an ONNX file. Convs that were swapped
    before stay so in `ModelWithData.model`. In `ModelWithData.plain` they are ONNX's Conv again, so that the
    default side can run them. A sample of `input_shape` may suit data that an open one does not. The values
    in `given` take the place of a data set. Where they are for sequences, optionals or inputs with a default,
    the model is changed to take them and cannot be written any more, see `with_tensor_inputs`.

    Raises:
        ConvswapError: there is no such network or file, or no such data set, or what was given does not suit
            the model.
    """
    if given is not None and data is not None:
        raise ConvswapError(f"data set {data} and inputs were both given; leave one of them out")
    if data is not None and data not in DATA:
        raise unknown_name("data set", data, DATA)
    labelled = None
    if isinstance(model, str) and model in NETWORKS and given is None:
        labelled = data if data in _DEFAULT_IMAGES else _best_available()
    title, opened = open_model(model, labelled)
    missing: str | None = None
    if given is not None:
        opened, given = with_tensor_inputs(opened, given)
        data = GIVEN
    elif labelled is not None:
        missing = _BEST if data is None and labelled != _BEST else None
        data = data or labelled
    elif isinstance(model, str) and model in ALL_NETWORKS:
        data = data or RANDOM
    elif data is None:
        data, missing = _suiting_data(opened, with_sample_shapes(declared_inputs(opened), input_shape))
    before = count_swapped(opened)
    plain = plain_model(opened) if before else opened
    return ModelWithData(title, opened, plain, data, missing, before, input_shape, given)


def open_model(model: UserModel, data: str | None = None) -> tuple[str, ir.Model]:
    """Return a title for the model called or stored as `model`, and the model.

    Large weights are mapped where they are in a file of their own, all others are in memory once. A network
    comes with the weights that the package has, trained on `data` if that is given.

    Raises:
        ConvswapError: there is no such network or file.
    """
    if isinstance(model, onnx.ModelProto):
        title, read = model.graph.name or "the model", model_from_proto(model)
    elif isinstance(model, str) and model in ALL_NETWORKS:
        title, read = model, model_from_proto(export_network(model, data=data))
    else:
        title, read = str(model), _file_model(model)
    lift_large_constants(read)
    split = taken_apart(read)
    del read
    if not isinstance(model, onnx.ModelProto):
        # What was read has the message that it was read from, with all weights, and refers to itself: it
        # would stay until Python looks for such things.
        gc.collect()
    return title, split.whole()


def _file_model(model: str | os.PathLike[str]) -> ir.Model:
    path = model_path(model)
    if not is_there(path) and path.suffix == "" and path.name == str(model):
        raise unknown_name("network", str(model), ALL_NETWORKS)
    return load_model(model)


def batch_of(model: ir.Model, inputs: tuple[Input, ...], batch: int | None, device: Device) -> int:
    """Return how many samples a run of `model` takes: `batch`, or what `compare` would take by itself.

    `inputs` are those of the model, with the shapes that samples have.

    Raises:
        ConvswapError: `batch` is out of range, or the model is fixed to another.
    """
    fixed = checked_batch(inputs, batch)
    named, missing = _suiting_data(model, inputs)
    random = named == RANDOM and missing is None
    usual = _usual_random_images(model, device) if random else _DEFAULT_BATCH[device.name]
    return fixed or batch or usual


def source_of(tested: ModelWithData, images: int | None, batch: int | None, device: Device) -> Source:
    """Return the feeds for `tested`: `images` samples in batches of `batch`, by default as the data suggest.

    Raises:
        ConvswapError: a number is out of range, the model is fixed to another batch or shape, or the data do
            not fit.
    """
    require_count("images", images)
    inputs = with_sample_shapes(declared_inputs(tested.model), tested.input_shape)
    if tested.given is not None:
        return user_input_source(tested.given, inputs, batch, images)
    fixed = checked_batch(inputs, batch)
    if tested.dataset == RANDOM:
        samples = fixed or batch or _usual_random_images(tested.model, device)
        count = images or samples
        return RandomSource(inputs, count, fixed or min(samples, count))
    if not _takes_images(inputs):
        listed = ", ".join(str(given) for given in inputs)
        raise ConvswapError(
            f"data set {tested.dataset} needs a model with one floating-point input [batch, 1, S, S], "
            f"but its inputs are {listed}; use --data random"
            + (", or --input-shape 1,28,28" if any(None in given.shape[1:] for given in inputs) else "")
        )
    dataset = datasets.load(
        tested.dataset,
        images=images or _DEFAULT_IMAGES[tested.dataset],
        image_size=int(inputs[0].shape[2] or 0),
    )
    count = len(dataset.images)
    return ImageSource(
        inputs[0], dataset.images, dataset.labels, fixed or min(batch or _DEFAULT_BATCH[device.name], count)
    )


def no_labels(dataset: str) -> ConvswapError:
    """Return the error for a data set without labels where they are needed."""
    return ConvswapError(
        f"labelled images are needed, but data set {dataset} has no labels; use --data "
        + " or --data ".join(datasets.NAMES)
    )


def _best_available() -> str:
    return _BEST if datasets.available(_BEST) else "synthetic"


def _usual_random_images(model: ir.Model, device: Device) -> int:
    return _DEFAULT_RANDOM_IMAGES[device.name] if _made_for(model) == RANDOM else 1


def _made_for(model: ir.Model) -> str | None:
    """Return the data that the model's properties name."""
    return model.metadata_props.get("convswap.dataset")


def _suiting_data(model: ir.Model, inputs: tuple[Input, ...]) -> tuple[str, str | None]:
    """Return the data set for `model`, and the one it was made for where that would have to be downloaded."""
    named = _made_for(model)
    if named not in _DEFAULT_IMAGES or not _takes_images(inputs):
        return RANDOM, None
    if not datasets.available(named):
        return RANDOM, named
    return named, None


def _takes_images(inputs: tuple[Input, ...]) -> bool:
    if len(inputs) != 1 or inputs[0].dtype.kind != "f" or len(inputs[0].shape) != 4:
        return False
    _, channels, height, width = inputs[0].shape
    return channels == 1 and height is not None and height == width and height > 0


@dataclass(frozen=True)
class OneRun:
    """The inputs of a run of `batch` samples: as the model declares them, and with the shapes that are fed.

    `given` has the values that a user gave, None where they are made up.
    """

    declared: tuple[Input, ...]
    inputs: tuple[Input, ...]
    batch: int
    given: UserInputSource | None = None

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
    model: ir.Model,
    *,
    batch: int | None,
    device: Device,
    input_shape: InputShape | None = None,
    given: UserInputs | None = None,
) -> OneRun:
    """Return what a run of `model` is fed on `device`.

    It has `batch` samples, by default those that were `given`, or what `compare` takes; `input_shape` is that
    of a sample where the model leaves it open.

    Raises:
        ConvswapError: `batch` or `input_shape` is out of range or not the model's, or what was given does not
            fit it; see `user_input_source`.
    """
    declared = declared_inputs(model)
    shaped = with_sample_shapes(declared, input_shape)
    if given is None:
        return OneRun(declared, shaped, batch_of(model, shaped, batch, device))
    source = user_input_source(given, shaped, batch)
    return OneRun(declared, source.inputs, source.batch, source)
