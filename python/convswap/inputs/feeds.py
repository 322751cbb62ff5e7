"""Inputs of a model: declared inputs, seeded random values for them, and batches of a data set."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import onnx
import onnx_ir as ir

from convswap.errors import ConvswapError, require_count
from convswap.graph.serialisation import value_to_proto
from convswap.runtime.values import is_numpys

Feeds = dict[str, np.ndarray]

_FLOATS = {"float16", "float32", "float64"}
_OTHER_FLOATS = {"bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"}
_INTEGERS = {"int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "int4", "uint4"}
# Height and width of images if the model leaves them symbolic: the size that most image networks are made
# for.
DEFAULT_IMAGE_SIZE = 224
# Extents of the last dimension that mean channels (NHWC), not width: grey, colour, and colour with alpha.
_IMAGE_CHANNELS = (1, 3, 4)
# More elements than fit into any memory; their size in bytes still fits into 63 bits.
_MAX_ELEMENTS = 1 << 56


@dataclass(frozen=True)
class Input:
    """A declared input of a model: its NumPy element type, and its shape with None for a symbolic dimension.

    `symbols` has the names of the symbolic dimensions, "" for a dimension that is fixed or has no name. If
    the model does not declare a rank, `has_rank` is false and `shape` is empty. `is_from_user` tells whether
    the user supplied values for the input; otherwise they are random.
    """

    name: str
    dtype: np.dtype
    shape: tuple[int | None, ...]
    symbols: tuple[str, ...]
    has_rank: bool = True
    is_from_user: bool = False

    @property
    def is_numpys(self) -> bool:
        """Whether the element type is NumPy's, not from an extension such as ml_dtypes."""
        return is_numpys(self.dtype)

    @property
    def is_text(self) -> bool:
        """Whether its elements are strings."""
        return self.dtype.kind == "U"

    @property
    def is_floating(self) -> bool:
        """Whether its elements are floating-point numbers."""
        return self.dtype.name in _FLOATS | _OTHER_FLOATS

    @property
    def is_integer(self) -> bool:
        """Whether its elements are integers, which may mean sizes, indices or rates."""
        return self.dtype.name in _INTEGERS

    def __str__(self) -> str:
        if not self.has_rank:
            return f"{self.name!r} [...]"
        sizes = (
            symbol or "?" if size is None else str(size)
            for size, symbol in zip(self.shape, self.symbols, strict=True)
        )
        return f"{self.name!r} [{', '.join(sizes)}]"


def declared_inputs(model: ir.Model) -> tuple[Input, ...]:
    """Return the inputs that every run of `model` needs; inputs with an initializer are left out.

    Raises:
        ConvswapError: an input is no tensor, or has an element type that cannot be passed to ONNX Runtime.
    """
    defaults, inputs = model.graph.initializers, model.graph.inputs
    return tuple(declared_input(value_to_proto(value)) for value in inputs if value.name not in defaults)


def declared_input(value: onnx.ValueInfoProto) -> Input:
    """Return the input that `value` declares; see `declared_inputs`."""
    kind = value.type.WhichOneof("value")
    if kind in ("sequence_type", "optional_type"):
        kind_name = "a sequence" if kind == "sequence_type" else "an optional"
        raise ConvswapError(
            f"input {value.name!r} is {kind_name}, for which nothing is made up: give values with --inputs, "
            "or inputs= in Python"
        )
    if kind != "tensor_type":
        raise ConvswapError(
            f"input {value.name!r} is a {kind or 'value without a type'}, and only tensors, sequences and "
            "optionals of them can be fed: give a model whose inputs are such"
        )
    tensor = value.type.tensor_type
    dtype = _dtype(tensor.elem_type)
    if dtype is None:
        name = onnx.TensorProto.DataType.Name(tensor.elem_type).lower()
        raise ConvswapError(
            f"input {value.name!r} has elements of type {name}, which ONNX Runtime cannot be fed: give a "
            "model whose input is of another type, such as float, and that casts it"
        )
    fixed = [dimension.HasField("dim_value") and dimension.dim_value >= 0 for dimension in tensor.shape.dim]
    return Input(
        name=value.name,
        dtype=dtype,
        shape=tuple(
            dimension.dim_value if is_fixed else None
            for dimension, is_fixed in zip(tensor.shape.dim, fixed, strict=True)
        ),
        symbols=tuple(dimension.dim_param for dimension in tensor.shape.dim),
        has_rank=tensor.HasField("shape"),
    )


def _dtype(element_type: int) -> np.dtype | None:
    """Return the NumPy type for ONNX's `element_type`; None if ONNX Runtime does not accept it as input."""
    if element_type == onnx.TensorProto.STRING:
        return np.dtype(str)
    try:
        dtype = np.dtype(ir.DataType(element_type).numpy())
    except (TypeError, ValueError):
        return None
    return dtype if dtype.name in {"bool"} | _FLOATS | _OTHER_FLOATS | _INTEGERS else None


def fixed_batch(inputs: Sequence[Input]) -> int | None:
    """Return the batch size that a model is fixed to; None if a leading dimension is symbolic.

    If all leading dimensions are fixed, the batch size is the first of them that is not 0.
    """
    leading = [input_.shape[0] for input_ in inputs if input_.shape]
    if not leading:
        return 1
    return None if None in leading else next((extent for extent in leading if extent), 0)


def checked_batch(inputs: Sequence[Input], batch: int | None) -> int | None:
    """Return the batch size that a model with these inputs is fixed to, or None.

    Raises:
        ConvswapError: `batch` is out of range, or differs from the fixed batch size.
    """
    require_count("batch", batch)
    fixed = fixed_batch(inputs)
    if fixed is not None and batch not in (None, fixed):
        fixed_input = next((input_ for input_ in inputs if input_.shape and input_.shape[0] == fixed), "")
        raise ConvswapError(
            f"the model takes batches of {fixed}, by its input {fixed_input}, but batch "
            f"{batch} was given; leave it out, or export the model with a symbolic batch"
        )
    return fixed


def batch_symbols(inputs: Sequence[Input]) -> set[str]:
    """Return the names of the symbolic leading dimensions."""
    return {input_.symbols[0] for input_ in inputs if input_.shape and input_.shape[0] is None} - {""}


def input_shapes(inputs: Sequence[Input], batch: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of `inputs` in a run of `batch` samples.

    A symbolic leading dimension is `batch`. Symbolic heights and widths of images, which have four
    dimensions, are `DEFAULT_IMAGE_SIZE`. Any other symbolic dimension has the size of a dimension of the same
    name: the batch size first, then the image size. If there is none, the dimension is 1.
    """
    symbol_sizes = dict.fromkeys(batch_symbols(inputs), batch)
    for input_ in inputs:
        for axis in _image_axes(input_):
            if input_.shape[axis] is None and input_.symbols[axis]:
                symbol_sizes.setdefault(input_.symbols[axis], DEFAULT_IMAGE_SIZE)

    def extent(input_: Input, axis: int) -> int:
        size = input_.shape[axis]
        if size is not None:
            return size
        if axis == 0:
            return batch
        # Image axes come before names: exporters also write "?" as the name of every unknown dimension.
        return (
            DEFAULT_IMAGE_SIZE if axis in _image_axes(input_) else symbol_sizes.get(input_.symbols[axis], 1)
        )

    return {
        input_.name: tuple(extent(input_, axis) for axis in range(len(input_.shape))) for input_ in inputs
    }


def _image_axes(input_: Input) -> tuple[int, ...]:
    """Return the axes of height and width; no axes if the input does not have four dimensions."""
    if len(input_.shape) != 4:
        return ()
    return (1, 2) if input_.shape[1] is None and input_.shape[3] in _IMAGE_CHANNELS else (2, 3)


def random_feeds(inputs: Sequence[Input], batch: int, seed: int) -> Feeds:
    """Return seeded random values for `inputs`, of the declared types and the shapes of `input_shapes`.

    Floating-point values are standard normal. Integers are 0 or 1, which is in range for indices, tokens and
    flags.

    Raises:
        ConvswapError: an input takes strings.
    """
    generator = np.random.default_rng(seed)
    shapes = input_shapes(inputs, batch)
    feeds = {}
    for input_ in inputs:
        shape = shapes[input_.name]
        if math.prod(shape) > _MAX_ELEMENTS:
            # NumPy would raise an error about invalid dimensions instead.
            raise MemoryError(f"input {input_} of shape {list(shape)}")
        if input_.is_text:
            raise ConvswapError(
                f"input {input_} takes strings, which cannot be made up: give them with --inputs, or inputs= "
                "in Python"
            )
        if input_.is_floating:
            feeds[input_.name] = np.asarray(generator.standard_normal(shape)).astype(input_.dtype)
        else:
            feeds[input_.name] = np.asarray(generator.integers(0, 2, shape)).astype(input_.dtype)
    return feeds


class Source(Protocol):
    """A source of feeds for the runs of a model."""

    @property
    def images(self) -> int:
        """Total number of samples."""

    @property
    def batch(self) -> int:
        """Number of samples per run."""

    @property
    def labels(self) -> np.ndarray | None:
        """The class of every sample; None if there are no labels."""

    @property
    def inputs(self) -> Sequence[Input]:
        """The inputs for which the source has values."""

    def batches(self) -> Iterator[tuple[Feeds, int]]:
        """Yield the feeds of every batch and its number of valid samples; samples after these are padding."""

    def first(self, images: int) -> Feeds:
        """Return feeds of the first `images` samples, or of one batch if the model's batch size is fixed."""


@dataclass(frozen=True)
class RandomSource:
    """Seeded random values: batch i has seed i."""

    inputs: tuple[Input, ...]
    images: int
    batch: int
    labels: np.ndarray | None = None

    def batches(self) -> Iterator[tuple[Feeds, int]]:
        """Yield batches of `images` samples in total; see `Source`."""
        fixed = fixed_batch(self.inputs)
        for number, start in enumerate(range(0, self.images, self.batch)):
            samples = min(self.batch, self.images - start)
            yield random_feeds(self.inputs, fixed or samples, seed=number), samples

    def first(self, images: int) -> Feeds:
        """Return the feeds of a first batch of `images`; see `Source`."""
        return random_feeds(self.inputs, fixed_batch(self.inputs) or images, seed=0)


@dataclass(frozen=True)
class ImageSource:
    """The images (n, 1, s, s) of a labelled data set, for a model with one input."""

    input_: Input
    data: np.ndarray
    labels: np.ndarray | None
    batch: int

    @property
    def images(self) -> int:
        """Number of images."""
        return len(self.data)

    @property
    def inputs(self) -> tuple[Input, ...]:
        """The input as a sequence; see `Source`."""
        return (self.input_,)

    def batches(self) -> Iterator[tuple[Feeds, int]]:
        """Yield all images in order; see `Source`. For a fixed batch size, the last batch is padded."""
        for start in range(0, len(self.data), self.batch):
            images = self.data[start : start + self.batch]
            yield self._feeds(images), len(images)

    def first(self, images: int) -> Feeds:
        """Return the first `images` of the set; see `Source`."""
        return self._feeds(self.data[: fixed_batch([self.input_]) or images])

    def _feeds(self, images: np.ndarray) -> Feeds:
        fixed = fixed_batch([self.input_])
        if fixed is not None and len(images) < fixed:
            images = np.concatenate([images, np.repeat(images[-1:], fixed - len(images), axis=0)])
        return {self.input_.name: np.ascontiguousarray(images, dtype=self.input_.dtype)}
