"""Open the model that a user names, select data for it, and provide the inputs of its runs."""

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
from convswap.graph.external_weights import lift_large_constants, split_model
from convswap.graph.model_file import (
    load_model,
    model_from_message,
    model_from_proto,
    model_path,
    path_exists,
)
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
from convswap.inputs.sample_shapes import InputShape, shape_notes, shape_notes_on_error, with_sample_shapes
from convswap.inputs.tensor_inputs import with_tensor_inputs
from convswap.inputs.user_inputs import USER_DATASET, UserInputs, UserInputSource, user_input_source
from convswap.models.networks import ALL_NETWORKS, NETWORKS, RANDOM
from convswap.runtime.device import Device

# A network's name, the path of an ONNX file, or a model that contains all its weights.
UserModel = str | os.PathLike[str] | onnx.ModelProto

DATA = ("fashion-mnist", "synthetic", RANDOM)
CLASSES = 10
# The data set that the course's networks are made for.
_PREFERRED_DATASET = "fashion-mnist"
_DEFAULT_IMAGES = {"fashion-mnist": 10_000, "synthetic": 2_000}
# Default batch sizes. On the CPU, the largest tensor of the ECE 408 networks then takes about 20 MB.
_DEFAULT_BATCH = {"cuda": 10_000, "cpu": 100}
# Default batch sizes for models made for random images, which are large. Other models with random inputs get
# 1.
_DEFAULT_RANDOM_IMAGES = {"cuda": 256, "cpu": 8}


@dataclass(frozen=True)
class ModelWithData:
    """A model and its data. See `open_model` for the model's weights.

    Attributes:
        title: the model's name for users.
        model: the model as the user gave it, for the convswap side.
        plain: the model with ONNX's Convs only, for the default side; same as `model` if none was swapped.
        dataset: the name of the data set, "random", or "given" for inputs of the user.
        missing_dataset: the data set that the model was made for, if it would have to be downloaded first.
        swapped_before: the number of Convs in `model` that had been swapped before.
        input_shape: the shape of a sample that the user asked for; see `with_sample_shapes`.
        user_inputs: the user's values for the inputs, if `dataset` is "given".
    """

    title: str
    model: ir.Model
    plain: ir.Model
    dataset: str
    missing_dataset: str | None = None
    swapped_before: int = 0
    input_shape: InputShape | None = None
    user_inputs: UserInputs | None = None


def open_model_with_data(
    model: UserModel,
    data: str | None,
    input_shape: InputShape | None = None,
    user_inputs: UserInputs | None = None,
) -> ModelWithData:
    """Return the model `model` with the data set `data`, or with a default data set for the model.

    The name of a network has the network exported; any other text is the path of an ONNX file. Convs that
    were swapped before stay swapped in `ModelWithData.model`. In `ModelWithData.plain` they are ONNX's Conv
    again, so that the default provider can run them. `input_shape` fixes the open dimensions of a sample,
    which may make the model suitable for a data set.

    `user_inputs` replaces a data set. If it has values for sequences, optionals or inputs with a default, the
    model is changed to take them as tensors, and must not be saved; see `with_tensor_inputs`.

    Raises:
        ConvswapError: there is no such network, file or data set, or the data do not fit the model.
    """
    if user_inputs is not None and data is not None:
        raise ConvswapError(f"data set {data} and inputs were both given; leave one of them out")
    if data is not None and data not in DATA:
        raise unknown_name("data set", data, DATA)
    labelled = None
    if isinstance(model, str) and model in NETWORKS and user_inputs is None:
        labelled = data if data in _DEFAULT_IMAGES else _default_labelled_dataset()
    title, opened = open_model(model, labelled)
    missing_dataset: str | None = None
    if user_inputs is not None:
        opened, user_inputs = with_tensor_inputs(opened, user_inputs)
        data = USER_DATASET
    elif labelled is not None:
        missing_dataset = _PREFERRED_DATASET if data is None and labelled != _PREFERRED_DATASET else None
        data = data or labelled
    elif isinstance(model, str) and model in ALL_NETWORKS:
        data = data or RANDOM
    elif data is None:
        inputs = with_sample_shapes(declared_inputs(opened), input_shape)
        data, missing_dataset = _default_dataset(opened, inputs)
    swapped_before = count_swapped(opened)
    plain = plain_model(opened) if swapped_before else opened
    return ModelWithData(
        title, opened, plain, data, missing_dataset, swapped_before, input_shape, user_inputs
    )


def open_model(model: UserModel, data: str | None = None) -> tuple[str, ir.Model]:
    """Return a title for the model `model`, and the model.

    Large weights in an external file are mapped into memory; all others are in memory once. A network has the
    package's weights, trained on the data set `data` if one is named.

    Raises:
        ConvswapError: there is no such network or file.
    """
    if isinstance(model, onnx.ModelProto):
        title, loaded = model.graph.name or "the model", model_from_message(model)
    elif isinstance(model, str) and model in ALL_NETWORKS:
        title, loaded = model, model_from_proto(export_network(model, data=data))
    else:
        title, loaded = str(model), _file_model(model)
    lift_large_constants(loaded)
    split = split_model(loaded)
    del loaded
    if not isinstance(model, onnx.ModelProto):
        # The loaded model has reference cycles and refers to the message that it was read from, with all
        # weights. Without a collection both would stay in memory.
        gc.collect()
    return title, split.to_model()


def _file_model(model: str | os.PathLike[str]) -> ir.Model:
    path = model_path(model)
    if not path_exists(path) and path.suffix == "" and path.name == str(model):
        raise unknown_name("network", str(model), ALL_NETWORKS)
    return load_model(model)


def batch_of(model: ir.Model, inputs: tuple[Input, ...], batch: int | None, device: Device) -> int:
    """Return the batch size of a run of `model`: `batch`, or the default of `compare`.

    `inputs` are the model's inputs with the shapes of the samples.

    Raises:
        ConvswapError: `batch` is out of range, or the model is fixed to another batch size.
    """
    fixed = checked_batch(inputs, batch)
    dataset, missing_dataset = _default_dataset(model, inputs)
    random = dataset == RANDOM and missing_dataset is None
    default = _default_random_images(model, device) if random else _DEFAULT_BATCH[device.name]
    return fixed or batch or default


def source_of(tested: ModelWithData, images: int | None, batch: int | None, device: Device) -> Source:
    """Return the source of inputs for `tested`: `images` samples in batches of `batch`; None means a default.

    Raises:
        ConvswapError: a number is out of range, the model is fixed to another batch or shape, or the data do
            not fit.
    """
    require_count("images", images)
    inputs = with_sample_shapes(declared_inputs(tested.model), tested.input_shape)
    if tested.user_inputs is not None:
        return user_input_source(tested.user_inputs, inputs, batch, images)
    fixed = checked_batch(inputs, batch)
    if tested.dataset == RANDOM:
        samples = fixed or batch or _default_random_images(tested.model, device)
        count = images or samples
        return RandomSource(inputs, count, fixed or min(samples, count))
    if not _takes_images(inputs):
        listed = ", ".join(map(str, inputs))
        raise ConvswapError(
            f"data set {tested.dataset} needs a model with one floating-point input [batch, 1, S, S], "
            f"but its inputs are {listed}; use --data random"
            + (", or --input-shape 1,28,28" if any(None in input_.shape[1:] for input_ in inputs) else "")
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


def no_labels_error(dataset: str) -> ConvswapError:
    """Return the error for a data set without labels in a command that needs labels."""
    return ConvswapError(
        f"labelled images are needed, but data set {dataset} has no labels; use --data "
        + " or --data ".join(datasets.NAMES)
    )


def _default_labelled_dataset() -> str:
    return _PREFERRED_DATASET if datasets.available(_PREFERRED_DATASET) else "synthetic"


def _default_random_images(model: ir.Model, device: Device) -> int:
    return _DEFAULT_RANDOM_IMAGES[device.name] if _made_for(model) == RANDOM else 1


def _made_for(model: ir.Model) -> str | None:
    """Return the data set that the model's metadata name, or None."""
    return model.metadata_props.get("convswap.dataset")


def _default_dataset(model: ir.Model, inputs: tuple[Input, ...]) -> tuple[str, str | None]:
    """Return the default data set for `model`, and the one it was made for if that is not downloaded yet."""
    dataset = _made_for(model)
    if dataset not in _DEFAULT_IMAGES or not _takes_images(inputs):
        return RANDOM, None
    if not datasets.available(dataset):
        return RANDOM, dataset
    return dataset, None


def _takes_images(inputs: tuple[Input, ...]) -> bool:
    if len(inputs) != 1 or inputs[0].dtype.kind != "f" or len(inputs[0].shape) != 4:
        return False
    _, channels, height, width = inputs[0].shape
    return channels == 1 and height is not None and height == width and height > 0


@dataclass(frozen=True)
class RunInputs:
    """The inputs of a run of `batch` samples.

    `declared` has the inputs as the model declares them, `inputs` the same inputs with the shapes of the run.
    `source` has the user's values; it is None for random values.
    """

    declared: tuple[Input, ...]
    inputs: tuple[Input, ...]
    batch: int
    source: UserInputSource | None = None

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The shapes of the inputs in the run."""
        if self.source is not None:
            return {name: values.shape for name, values in self.feeds().items()}
        return input_shapes(self.inputs, self.batch)

    def feeds(self) -> Feeds:
        """Return the user's values, or seeded random values."""
        if self.source is not None:
            return self.source.first(self.batch)
        return random_feeds(self.inputs, self.batch, seed=0)

    def notes(self) -> list[str]:
        """Return notes for the user about the inputs' shapes; see `shape_notes`."""
        return shape_notes(self.declared, self.inputs, self.batch)

    def notes_on_error(self) -> AbstractContextManager[None]:
        """Append the notes to the message of a ConvswapError; see `shape_notes_on_error`."""
        return shape_notes_on_error(self.declared, self.inputs, self.batch)


def run_inputs(
    model: ir.Model,
    *,
    batch: int | None,
    device: Device,
    input_shape: InputShape | None = None,
    user_inputs: UserInputs | None = None,
) -> RunInputs:
    """Return the inputs of a run of `model` on `device`.

    The batch size is `batch`. Its default is the number of samples in `user_inputs`, or else the default of
    `compare`. `input_shape` fixes the open dimensions of a sample.

    Raises:
        ConvswapError: `batch` or `input_shape` is out of range or does not fit the model, or `user_inputs`
            does not; see `user_input_source`.
    """
    declared = declared_inputs(model)
    shaped_inputs = with_sample_shapes(declared, input_shape)
    if user_inputs is None:
        return RunInputs(declared, shaped_inputs, batch_of(model, shaped_inputs, batch, device))
    source = user_input_source(user_inputs, shaped_inputs, batch)
    return RunInputs(declared, source.inputs, source.batch, source)
