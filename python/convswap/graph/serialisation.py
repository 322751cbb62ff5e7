"""Convert ONNX models to onnx-ir and back, also types that it lacks: maps, opaque values, sparse tensors."""

from __future__ import annotations

import contextlib
import logging
import math
import warnings
from base64 import b64decode, b64encode
from collections.abc import Iterator
from typing import TypeVar

import numpy as np
import onnx
import onnx_ir as ir
from onnx import numpy_helper

from convswap.errors import ConvswapError
from convswap.graph.domain import ONNX_DOMAINS

# Metadata key of values whose type onnx-ir does not know; the entry is the serialised type. onnx-ir preserves
# metadata wherever it moves a value.
_TYPE_KEY = "convswap.type"
_Message = TypeVar("_Message", onnx.ModelProto, onnx.NodeProto, onnx.TensorProto, onnx.FunctionProto)

# protobuf rejects messages of this size or more, so a dense tensor has to be smaller.
_MAX_MESSAGE_BYTES = 2**31


def from_proto(proto: onnx.ModelProto) -> ir.Model:
    """Return `proto` as an `onnx_ir.Model` that shares its tensors.

    Types that onnx-ir does not know become metadata, which `to_proto` turns back. A model with such types is
    copied, including its tensors.
    """
    unknown = [value for value in _value_infos(proto) if not _is_known(value.type)]
    if unknown:
        proto = copy_of(proto)
    for value in _value_infos(proto) if unknown else ():
        if not _is_known(value.type):
            value.metadata_props.add(key=_TYPE_KEY, value=b64encode(value.type.SerializeToString()).decode())
            value.ClearField("type")
    with quiet_onnx_ir():
        return ir.from_proto(proto)


def to_proto(model: ir.Model) -> onnx.ModelProto:
    """Return `model` as a protobuf message, with the types that `from_proto` has turned into metadata."""
    with quiet_onnx_ir():
        proto = ir.to_proto(model)
    for value in _value_infos(proto):
        _restore_type(value)
    return proto


def value_to_proto(value: ir.Value) -> onnx.ValueInfoProto:
    """Return the declaration of `value` with its type, as in `to_proto`."""
    proto = ir.serde.serialize_value(value)
    _restore_type(proto)
    return proto


def _restore_type(value: onnx.ValueInfoProto) -> None:
    for index in reversed(range(len(value.metadata_props))):
        if value.metadata_props[index].key == _TYPE_KEY:
            value.type.ParseFromString(b64decode(value.metadata_props[index].value))
            del value.metadata_props[index]


@contextlib.contextmanager
def quiet_onnx_ir() -> Iterator[None]:
    """Silence onnx-ir's log messages about invalid models; convswap raises its own one-line errors."""
    logger = logging.getLogger("onnx_ir")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            # Unknown keys of external data are errors, except those of weights that ONNX Runtime prepacked.
            unknown_key = "Ignoring unknown external data key"
            warnings.filterwarnings("error", message=unknown_key)
            warnings.filterwarnings("ignore", message=rf"{unknown_key}\(s\) \['prepacked")
            yield
    finally:
        logger.setLevel(level)


def copy_of(message: _Message) -> _Message:
    """Return a copy of a protobuf message."""
    copy = type(message)()
    copy.CopyFrom(message)
    return copy


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Yield the graphs among the attributes of `node`."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def graphs_of_proto(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield `graph` and the graphs in its nodes, at any depth."""
    yield graph
    for node in graph.node:
        for inner in subgraphs(node):
            yield from graphs_of_proto(inner)


def graphs_of_model(model: onnx.ModelProto) -> Iterator[onnx.GraphProto]:
    """Yield the main graph of `model` and the graphs in its nodes and in those of its functions."""
    yield from graphs_of_proto(model.graph)
    for function in model.functions:
        for node in function.node:
            for inner in subgraphs(node):
                yield from graphs_of_proto(inner)


def nodes_of_model(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of all graphs and functions of `model`."""
    for body in (*graphs_of_model(model), *model.functions):
        yield from body.node


def _value_infos(proto: onnx.ModelProto) -> Iterator[onnx.ValueInfoProto]:
    """Yield the declarations of values in every graph and function of `proto`."""
    for function in proto.functions:
        yield from function.value_info
    for graph in graphs_of_model(proto):
        yield from graph.input
        yield from graph.output
        yield from graph.value_info


def _is_known(value_type: onnx.TypeProto, *, may_be_missing: bool = True) -> bool:
    kind = value_type.WhichOneof("value")
    if kind in ("sequence_type", "optional_type"):
        return _is_known(getattr(value_type, kind).elem_type, may_be_missing=False)
    return kind in ("tensor_type", "sparse_tensor_type") or (kind is None and may_be_missing)


def with_dense_tensors(model: onnx.ModelProto, name: str) -> onnx.ModelProto:
    """Return `model` with sparse initializers and constants made dense, also in subgraphs and functions.

    ONNX Runtime makes them dense, too, when it loads a model. The result is `model` itself if it has no
    sparse tensors, else a copy. `name` is the model's name in messages.

    Raises:
        ConvswapError: a sparse tensor is in an external file, or would take 2 GiB or more as a dense tensor.
        ValueError: a sparse tensor is inconsistent.
    """
    if not any(graph.sparse_initializer for graph in graphs_of_model(model)) and not any(
        _sparse_constants(model)
    ):
        return model
    copy = copy_of(model)
    for graph in graphs_of_model(copy):
        graph.initializer.extend(_dense(sparse, name) for sparse in graph.sparse_initializer)
        graph.ClearField("sparse_initializer")
    for attribute in _sparse_constants(copy):
        dense = _dense(attribute.sparse_tensor, name)
        attribute.Clear()
        attribute.name, attribute.type = "value", onnx.AttributeProto.TENSOR
        attribute.t.CopyFrom(dense)
    return copy


def _sparse_constants(model: onnx.ModelProto) -> Iterator[onnx.AttributeProto]:
    for node in nodes_of_model(model):
        if node.op_type == "Constant" and node.domain in ONNX_DOMAINS:
            yield from (attribute for attribute in node.attribute if attribute.HasField("sparse_tensor"))


def _dense(sparse: onnx.SparseTensorProto, name: str) -> onnx.TensorProto:
    """Return `sparse` as a dense tensor.

    Its indices are linear indices of shape (elements,), or coordinates of shape (elements, rank).
    """
    label = f"{name} has the sparse tensor {sparse.values.name!r}"
    if any(part.data_location == onnx.TensorProto.EXTERNAL for part in (sparse.values, sparse.indices)):
        raise ConvswapError(f"{label}, whose values are in a file of their own; store them in the model")
    shape = tuple(sparse.dims)
    if any(extent < 0 for extent in shape):
        raise ValueError(f"the shape of sparse tensor {sparse.values.name!r} is {list(shape)}")
    size = math.prod(shape) * ir.DataType(sparse.values.data_type).itemsize
    if size >= _MAX_MESSAGE_BYTES:
        raise ConvswapError(
            f"{label} of shape {list(shape)}, which is {size / 2**30:,.1f} GiB as a dense one, and only less "
            "than 2 GiB can be made dense; store it as a dense tensor in a file beside the model"
        )
    return numpy_helper.from_array(_array(sparse, shape), sparse.values.name)


def _array(sparse: onnx.SparseTensorProto, shape: tuple[int, ...]) -> np.ndarray:
    values, indices = (numpy_helper.to_array(part) for part in (sparse.values, sparse.indices))
    dense = np.zeros(math.prod(shape), values.dtype)
    if indices.ndim == 2:
        # Raises ValueError for indices outside of the shape.
        indices = np.ravel_multi_index(tuple(indices.T), shape) if indices.size else indices[:, 0]
    if values.ndim != 1 or indices.shape != values.shape:
        raise ValueError(
            f"sparse tensor {sparse.values.name!r} has indices of shape {list(indices.shape)} for values of "
            f"shape {list(values.shape)}"
        )
    if indices.size and not 0 <= indices.min() <= indices.max() < dense.size:
        raise ValueError(f"sparse tensor {sparse.values.name!r} has indices outside of its shape")
    dense[indices] = values
    return dense.reshape(shape)
