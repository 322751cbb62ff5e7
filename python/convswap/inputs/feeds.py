"""What a model is fed: its declared inputs, seeded random values for them, and batches of a data set."""

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
_WHOLE_NUMBERS = {"int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "int4", "uint4"}
# The height and width of an image that a model leaves open: those that most networks for images are made for.
OPEN_IMAGE = 224
# Of the last dimension, where that is not the width: grey, colour, and colour with opacity.
_IMAGE_CHANNELS = (1, 3, 4)
# No memory holds so many, and their bytes can still be counted in 63 bits.
_MOST_ELEMENTS = 1 << 56


@dataclass(frozen=True)
class Input:
    """A declared input: its NumPy element type, and its shape with None for a symbolic dimension.

    `symbols` names the symbolic dimensions; it is "" where a dimension is fixed or has no name. Without
    `has_rank` the model does not say how many dimensions there are, and `shape` is that of a single number.
    With `is_given` its values are a user's; all others are made up.
    """

    name: str
    dtype: np.dtype
    shape: tuple[int | None, ...]
    symbols: tuple[str, ...]
    has_rank: bool = True
    is_given: bool = False

    @property
    def is_numpys(self) -> bool:
        """Whether NumPy has the element type itself, and not from a package of its own."""
        return is_numpys(self.dtype)

    @property
    def is_text(self) -> bool:
        """Whether its elements are strings."""
        return self.dtype.kind == "U"

    @property
    def is_fraction(self) -> bool:
        """Whether its elements are floating-point numbers."""
        return self.dtype.name in _FLOATS | _OTHER_FLOATS

    @property
    def is_whole_number(self) -> bool:
        """Whether its elements are whole numbers, which may stand for sizes, places or rates."""
        return self.dtype.name in _WHOLE_NUMBERS

    def __str__(self) -> str:
        if not self.has_rank:
            return f"{self.name!r} [...]"
        sizes = (
            symbol or "?" if size is None else str(size)
            for size, symbol in zip(self.shape, self.symbols, strict=True)
        )
        return f"{self.name!r} [{', '.join(sizes)}]"


def declared_inputs(model: ir.Model) -> tuple[Input, ...]:
    """Return the inputs that a run of `model` must be given; those with an initializer are left out.

    Raises:
        ConvswapError: an input is no tensor, or has an element type that none can be fed of.
    """
    defaults, inputs = model.graph.initializers, model.graph.inputs
    return tuple(declared_input(value_to_proto(value)) for value in inputs if value.name not in defaults)


def declared_input(value: onnx.ValueInfoProto) -> Input:
    """Return the input that `value` declares; see `declared_inputs`."""
    kind = value.type.WhichOneof("value")
    if kind in ("sequence_type", "optional_type"):
        what = "a sequence" if kind == "sequence_type" else "an optional"
        raise ConvswapError(
            f"input {value.name!r} is {what}, for which nothing is made up: give values with --inputs, or "
            "inputs= in Python"
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
    """Return NumPy's type for ONNX's, that of strings for text, None for what cannot be fed."""
    if element_type == onnx.TensorProto.STRING:
        return np.dtype(str)
    try:
        dtype = np.dtype(ir.DataType(element_type).numpy())
    except (TypeError, ValueError):
        return None
    return dtype if dtype.name in {"bool"} | _FLOATS | _OTHER_FLOATS | _WHOLE_NUMBERS else None


def fixed_batch(inputs: Sequence[Input]) -> int | None:
    """Return the batch that a model is fixed to; None where a leading dimension is symbolic.

    A model whose inputs all have fixed leading dimensions runs at the first one's only, but for inputs that
    are always empty.
    """
    leading = [given.shape[0] for given in inputs if given.shape]
    if not leading:
        return 1
    return None if None in leading else next((extent for extent in leading if extent), 0)


def checked_batch(inputs: Sequence[Input], batch: int | None) -> int | None:
    """Return the batch that a model with these inputs is fixed to, None for none.

    Raises:
        ConvswapError: `batch` is out of range, or another than that.
    """
    require_count("batch", batch)
    fixed = fixed_batch(inputs)
    if fixed is not None and batch not in (None, fixed):
        own = next((given for given in inputs if given.shape and given.shape[0] == fixed), "")
        raise ConvswapError(
            f"the model takes batches of {fixed}, by its input {own}, but batch "
            f"{batch} was given; leave it out, or export the model with a symbolic batch"
        )
    return fixed


def batch_symbols(inputs: Sequence[Input]) -> set[str]:
    """Return the names of leading dimensions that are symbolic."""
    return {given.symbols[0] for given in inputs if given.shape and given.shape[0] is None} - {""}


def input_shapes(inputs: Sequence[Input], batch: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of `inputs` in a run of `batch` samples.

    A symbolic leading dimension is `batch`. The height and width of an image, which has four dimensions, are
    `OPEN_IMAGE` where they are symbolic. Any other symbolic dimension is what one of the same name is, the
    batch before an image, or 1.
    """
    known = dict.fromkeys(batch_symbols(inputs), batch)
    for given in inputs:
        for axis in _image_axes(given):
            if given.shape[axis] is None and given.symbols[axis]:
                known.setdefault(given.symbols[axis], OPEN_IMAGE)

    def extent(given: Input, axis: int) -> int:
        size = given.shape[axis]
        if size is not None:
            return size
        if axis == 0:
            return batch
        # Whatever its name: exporters also write "?" for all that they do not know.
        return OPEN_IMAGE if axis in _image_axes(given) else known.get(given.symbols[axis], 1)

    return {given.name: tuple(extent(given, axis) for axis in range(len(given.shape))) for given in inputs}


def _image_axes(given: Input) -> tuple[int, ...]:
    """Return the axes of height and width, none where there are not four."""
    if len(given.shape) != 4:
        return ()
    return (1, 2) if given.shape[1] is None and given.shape[3] in _IMAGE_CHANNELS else (2, 3)


def random_feeds(inputs: Sequence[Input], batch: int, seed: int) -> Feeds:
    """Return seeded values for `inputs`, of the declared types and the shapes of `input_shapes`.

    Floating-point values are standard normal; whole numbers are 0 or 1, which is
    within range wherever they stand for an index, a token or a flag.

    Raises:
        ConvswapError: one is of strings, which cannot be made up.
    """
    generator = np.random.default_rng(seed)
    shapes = input_shapes(inputs, batch)
    feeds = {}
    for given in inputs:
        shape = shapes[given.name]
        if math.prod(shape) > _MOST_ELEMENTS:
            # NumPy would say that its dimensions are wrong.
            raise MemoryError(f"input {given} of shape {list(shape)}")
        if given.is_text:
            raise ConvswapError(
                f"input {given} takes strings, which cannot be made up: give them with --inputs, or inputs= "
                "in Python"
            )
        if given.is_fraction:
            feeds[given.name] = np.asarray(generator.standard_normal(shape)).astype(given.dtype)
        else:
            feeds[given.name] = np.asarray(generator.integers(0, 2, shape)).astype(given.dtype)
    return feeds


class Source(Protocol):
    """Where the feeds of a comparison come from."""

    @property
    def images(self) -> int:
        """How many samples there are in all."""

    @property
    def batch(self) -> int:
        """How many samples a run takes."""

    @property
    def labels(self) -> np.ndarray | None:
        """The class of every sample, None where nothing is known."""

    @property
    def inputs(self) -> Sequence[Input]:
        """The inputs that are fed."""

    def batches(self) -> Iterator[tuple[Feeds, int]]:
        """Yield the feeds of every batch, with how many of its leading samples are to be counted."""

    def first(self, images: int) -> Feeds:
        """Return feeds of `images` samples from the beginning, or of one batch where the batch is fixed."""


@dataclass(frozen=True)
class RandomSource:
    """Seeded random values: batch number i is made from seed i."""

    inputs: tuple[Input, ...]
    images: int
    batch: int
    labels: np.ndarray | None = None

    def batches(self) -> Iterator[tuple[Feeds, int]]:
        """Yield batches until `images` samples are through; see `Source`."""
        fixed = fixed_batch(self.inputs)
        for number, start in enumerate(range(0, self.images, self.batch)):
            counted = min(self.batch, self.images - start)
            yield random_feeds(self.inputs, fixed or counted, seed=number), counted

    def first(self, images: int) -> Feeds:
        """Return the feeds of a first batch of `images`; see `Source`."""
        return random_feeds(self.inputs, fixed_batch(self.inputs) or images, seed=0)


@dataclass(frozen=True)
class ImageSource:
    """The images (n, 1, s, s) of a labelled data set, for a model with one input."""

    given: Input
    data: np.ndarray
    labels: np.ndarray | None
    batch: int

    @property
    def images(self) -> int:
        """How many images there are."""
        return len(self.data)

    @property
    def inputs(self) -> tuple[Input, ...]:
        """The one input; see `Source`."""
        return (self.given,)

    def batches(self) -> Iterator[tuple[Feeds, int]]:
        """Yield all images in order; see `Source`. A model of fixed batch gets its last batch filled up."""
        for start in range(0, len(self.data), self.batch):
            images = self.data[start : start + self.batch]
            yield self._feeds(images), len(images)

    def first(self, images: int) -> Feeds:
        """Return the first `images` of the set; see `Source`."""
        return self._feeds(self.data[: fixed_batch([self.given]) or images])

    def _feeds(self, images: np.ndarray) -> Feeds:
        fixed = fixed_batch([self.given])
        if fixed is not None and len(images) < fixed:
            images = np.concatenate([images, np.repeat(images[-1:], fixed - len(images), axis=0)])
        return {self.given.name: np.ascontiguousarray(images, dtype=self.given.dtype)}
