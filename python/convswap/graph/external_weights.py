"""Split a model into a small message and its large weights, which are in memory once or mapped from a file.

A protobuf message is copied as a whole, and again when it is parsed. A model that is rewritten, cut and run
many times should not copy its weights each time.
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

# Smaller weights stay in the message, where code that looks for a shape or an axis finds them.
_LARGE_BYTES = 1 << 20
_MAX_ELEMENT_BYTES = 8
# Alignment of ONNX Runtime's own allocations.
_ALIGNMENT = 64
# File name of the split weights in the message. There is no such file: the weights are passed separately.
_PLACEHOLDER_FILE = "convswap-weights-apart"


class SplitModel(NamedTuple):
    """A model as a message without its large weights, and the weights by name.

    `weights` may have further entries, to which the message does not refer.
    """

    message: onnx.ModelProto
    weights: Weights = MappingProxyType({})

    def to_model(self) -> ir.Model:
        """Return message and weights as one model, which shares the weights.

        Raises:
            ConvswapError: the model is not valid.
        """
        model = model_from_proto(self.message)
        for name, values in self.referenced_weights().items():
            model.graph.initializers[name].const_value = ir.Tensor(values, name=name)
        return model

    def referenced_weights(self) -> dict[str, np.ndarray]:
        """Return the weights to which the message refers."""
        names = (tensor.name for tensor in self.message.graph.initializer if is_external_weight(tensor))
        return {name: self.weights[name] for name in names}


# An `onnx.ModelProto` contains all its weights; it is used for small models.
AnyModel = ir.Model | SplitModel | onnx.ModelProto


def as_split(model: AnyModel) -> SplitModel:
    """Return `model` in the form that sessions and the float64 evaluation take; see `split_model`."""
    if isinstance(model, ir.Model):
        return split_model(model)
    return model if isinstance(model, SplitModel) else SplitModel(model)


def split_model(model: ir.Model) -> SplitModel:
    """Return `model` split into a message and the large weights of its main graph; `model` does not change.

    In the message the weights are external data in a file that does not exist. Weights in a file are mapped
    into memory; others are copied at most once. Weights that are also graph inputs, which a run may override,
    or graph outputs stay in the message.

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
        with _with_placeholders(model, weights):
            return SplitModel(to_proto(model), weights)
    except (OSError, ValueError, RuntimeError, TypeError) as error:
        raise ConvswapError(f"the weights of the model cannot be read: {root_cause(error)}") from error


def split_model_in_place(model: ir.Model) -> SplitModel:
    """Return the same as `split_model`, and remove the large weights from `model`.

    A model has reference cycles, so its weights would otherwise stay in memory until Python's garbage
    collector runs.
    """
    split = split_model(model)
    for name in split.weights:
        model.graph.initializers[name].const_value = None
    return split


def lift_large_constants(model: ir.Model) -> None:
    """Turn large tensors of Constant nodes into initializers, in place, so that `split_model` finds them."""
    # In older IR versions an initializer must also be a graph input, which would change the model's
    # interface.
    if not Constants(model).inputs_may_be_constant:
        LiftConstantsToInitializersPass(size_limit=_LARGE_BYTES // _MAX_ELEMENT_BYTES)(model)


def is_external_weight(tensor: onnx.TensorProto) -> bool:
    """Return whether the values of `tensor` are in `SplitModel.weights` and not in the message."""
    return tensor.data_location == onnx.TensorProto.EXTERNAL and any(
        entry.key == "location" and entry.value == _PLACEHOLDER_FILE for entry in tensor.external_data
    )


@contextmanager
def _with_placeholders(model: ir.Model, weights: Weights) -> Iterator[None]:
    """Within the context, let `model` refer to its `weights` by name and have all other tensors in memory."""
    values = [value for graph in model.graphs() for value in graph.initializers.values()]
    tensors = {value: value.const_value for value in values}
    try:
        for value, tensor in tensors.items():
            name = value.name
            if value.graph is model.graph and name is not None and name in weights and tensor is not None:
                value.const_value = ir.ExternalTensor(
                    _PLACEHOLDER_FILE,
                    0,
                    tensor.nbytes,
                    tensor.dtype,
                    shape=ir.Shape(tensor.shape.numpy()),
                    name=name,
                )
            elif isinstance(tensor, ir.ExternalTensor):
                (value.const_value,) = ir.external_data.convert_tensors_from_external([tensor])
        yield
    finally:
        for value, tensor in tensors.items():
            value.const_value = tensor


def _aligned(values: np.ndarray) -> np.ndarray:
    values = np.asarray(values, order="C")
    if values.ctypes.data % _ALIGNMENT == 0:
        return values
    copy = aligned_empty(values.shape, values.dtype)
    copy[...] = values
    return copy


def aligned_empty(shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """Return the same as `np.empty`, but aligned so that a session can use the array as a weight."""
    size = math.prod(shape) * dtype.itemsize
    buffer = np.empty(size + _ALIGNMENT, np.uint8)
    start = -buffer.ctypes.data % _ALIGNMENT
    return buffer[start : start + size].view(dtype).reshape(shape)
