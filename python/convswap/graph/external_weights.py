"""A model and its large weights apart: nodes in a small message, weights once in memory or in their file.

A protobuf message is copied whole, and once more to be parsed. A model that is changed, cut and run in many
ways should not take its weights along each time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import onnx
import onnx_ir as ir
from onnx_ir.passes.common import LiftConstantsToInitializersPass

from convswap.errors import ConvswapError, root_cause
from convswap.graph.constants import Constants
from convswap.graph.model_file import model_from_proto
from convswap.graph.serialisation import to_proto

Weights = Mapping[str, np.ndarray]

# Smaller ones are no burden, and are in the message where whoever looks for a shape or an axis reads them.
_LARGE_BYTES = 1 << 20
_WIDEST_BYTES = 8
# Where arrays begin that ONNX Runtime allocates itself.
_ALIGNMENT = 64
# Stands for a file in the message. Nobody opens it: whoever needs the weights is given them.
_NOWHERE = "convswap-weights-apart"


class SplitModel(NamedTuple):
    """A model as a message without its large weights, and these by name, among which may be others."""

    message: onnx.ModelProto
    weights: Weights = MappingProxyType({})

    def whole(self) -> ir.Model:
        """Return both as one model, which shares the weights.

        Raises:
            ConvswapError: the model is not valid.
        """
        model = model_from_proto(self.message)
        for name, values in self.own_weights().items():
            model.graph.initializers[name].const_value = ir.Tensor(values, name=name)
        return model

    def own_weights(self) -> dict[str, np.ndarray]:
        """Return the weights that the message is without."""
        names = (tensor.name for tensor in self.message.graph.initializer if is_apart(tensor))
        return {name: self.weights[name] for name in names}


# A message holds its weights itself: small models are made as such.
AnyModel = ir.Model | SplitModel | onnx.ModelProto


def as_split(model: AnyModel) -> SplitModel:
    """Return `model` as a session takes it and the float64 evaluation; see `taken_apart`."""
    if isinstance(model, ir.Model):
        return taken_apart(model)
    return model if isinstance(model, SplitModel) else SplitModel(model)


def taken_apart(model: ir.Model) -> SplitModel:
    """Return `model` without the large weights of its main graph, and those; `model` stays as it is.

    In the message they are external data of a file that does not exist. Weights in a file are mapped into
    memory, others copied once. Those that a run may be given instead stay in the message.

    Raises:
        ConvswapError: the weights cannot be read.
    """
    weights = {}
    try:
        for name, value in model.graph.initializers.items():
            tensor = value.const_value
            if tensor is None or value.is_graph_input() or value.is_graph_output():
                continue
            if tensor.nbytes >= _LARGE_BYTES and tensor.dtype.numpy().kind in "biuf":
                weights[name] = _aligned(tensor.numpy())
        with _rest_in_the_message(model, weights):
            return SplitModel(to_proto(model), weights)
    except (OSError, ValueError, RuntimeError, TypeError) as error:
        raise ConvswapError(f"the weights of the model cannot be read: {root_cause(error)}") from error


def moved_apart(model: ir.Model) -> SplitModel:
    """Return what `taken_apart` does, and leave `model` without these weights.

    A model refers to itself, and would keep them until Python looks for such things.
    """
    split = taken_apart(model)
    for name in split.weights:
        model.graph.initializers[name].const_value = None
    return split


def lift_large_constants(model: ir.Model) -> None:
    """Turn large tensors of Constant nodes into initializers, in place, so that they can be taken apart."""
    # Before, an initializer had to be an input of the graph, and so part of what users see.
    if not Constants(model).inputs_may_be_constant:
        LiftConstantsToInitializersPass(size_limit=_LARGE_BYTES // _WIDEST_BYTES)(model)


def is_apart(tensor: onnx.TensorProto) -> bool:
    """Return whether the values of `tensor` are not in its message, but beside the model."""
    return tensor.data_location == onnx.TensorProto.EXTERNAL and any(
        entry.key == "location" and entry.value == _NOWHERE for entry in tensor.external_data
    )


@contextmanager
def _rest_in_the_message(model: ir.Model, weights: Weights) -> Iterator[None]:
    """Have `model` name its `weights` only, and hold all others itself, for a while."""
    values = [value for graph in model.graphs() for value in graph.initializers.values()]
    own = {value: value.const_value for value in values}
    try:
        for value, tensor in own.items():
            name = value.name
            if value.graph is model.graph and name is not None and name in weights and tensor is not None:
                value.const_value = ir.ExternalTensor(
                    _NOWHERE, 0, tensor.nbytes, tensor.dtype, shape=ir.Shape(tensor.shape.numpy()), name=name
                )
            elif isinstance(tensor, ir.ExternalTensor):
                (value.const_value,) = ir.external_data.convert_tensors_from_external([tensor])
        yield
    finally:
        for value, tensor in own.items():
            value.const_value = tensor


def _aligned(values: np.ndarray) -> np.ndarray:
    values = np.asarray(values, order="C")
    if values.ctypes.data % _ALIGNMENT == 0:
        return values
    copy = aligned_empty(values.shape, values.dtype)
    copy[...] = values
    return copy


def aligned_empty(shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """Return an array as `np.empty` does, which begins where a session can use it as a weight."""
    size = math.prod(shape) * dtype.itemsize
    room = np.empty(size + _ALIGNMENT, np.uint8)
    start = -room.ctypes.data % _ALIGNMENT
    return room[start : start + size].view(dtype).reshape(shape)
