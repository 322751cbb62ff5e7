"""Sparse tensors of a model, which ONNX Runtime too makes dense when it loads one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np
import onnx
import onnx_ir as ir
from onnx import numpy_helper

from convswap.errors import ConvswapError
from convswap.graph.serialisation import graphs_of_proto

# protobuf refuses messages from there on, so that a dense tensor has to be smaller.
_MOST_BYTES = 2**31


def with_dense_tensors(model: onnx.ModelProto, name: str) -> onnx.ModelProto:
    """Return `model` with sparse initializers and constants made dense, in its subgraphs and functions too.

    It is `model` itself where there are none, else a copy. `name` stands for the model in messages.

    Raises:
        ConvswapError: one is in a file of its own, or would be of 2 GiB or more.
        ValueError: one is inconsistent.
    """
    if not has_sparse_tensors(model):
        return model
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for graph in _graphs(copy):
        graph.initializer.extend(_dense(sparse, name) for sparse in graph.sparse_initializer)
        graph.ClearField("sparse_initializer")
    for attribute in _sparse_constants(copy):
        dense = _dense(attribute.sparse_tensor, name)
        attribute.Clear()
        attribute.name, attribute.type = "value", onnx.AttributeProto.TENSOR
        attribute.t.CopyFrom(dense)
    return copy


def has_sparse_tensors(model: onnx.ModelProto) -> bool:
    """Return whether `model` has sparse initializers or constants, in its main graph or elsewhere."""
    return any(graph.sparse_initializer for graph in _graphs(model)) or any(_sparse_constants(model))


def _sparse_constants(model: onnx.ModelProto) -> Iterator[onnx.AttributeProto]:
    for nodes in _nodes(model):
        for node in nodes:
            if node.op_type == "Constant" and node.domain in ("", "ai.onnx"):
                yield from (one for one in node.attribute if one.HasField("sparse_tensor"))


def _nodes(model: onnx.ModelProto) -> Iterator[Iterable[onnx.NodeProto]]:
    yield from (graph.node for graph in _graphs(model))
    yield from (function.node for function in model.functions)


def _graphs(model: onnx.ModelProto) -> Iterator[onnx.GraphProto]:
    yield from graphs_of_proto(model.graph)
    for function in model.functions:
        for node in function.node:
            for attribute in node.attribute:
                for graph in [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]:
                    yield from graphs_of_proto(graph)


def _dense(sparse: onnx.SparseTensorProto, name: str) -> onnx.TensorProto:
    """Return `sparse` as a dense tensor; its indices are places in memory order, or have a row for each."""
    what = f"{name} has the sparse tensor {sparse.values.name!r}"
    if any(part.data_location == onnx.TensorProto.EXTERNAL for part in (sparse.values, sparse.indices)):
        raise ConvswapError(f"{what}, whose values are in a file of their own; store them in the model")
    shape = tuple(sparse.dims)
    if any(extent < 0 for extent in shape):
        raise ValueError(f"the shape of sparse tensor {sparse.values.name!r} is {list(shape)}")
    size = math.prod(shape) * ir.DataType(sparse.values.data_type).itemsize
    if size >= _MOST_BYTES:
        raise ConvswapError(
            f"{what} of shape {list(shape)}, which is {size / 2**30:,.1f} GiB as a dense one, and only less "
            "than 2 GiB can be made dense; store it as a dense tensor in a file beside the model"
        )
    return numpy_helper.from_array(_array(sparse, shape), sparse.values.name)


def _array(sparse: onnx.SparseTensorProto, shape: tuple[int, ...]) -> np.ndarray:
    values, indices = (numpy_helper.to_array(part) for part in (sparse.values, sparse.indices))
    dense = np.zeros(math.prod(shape), values.dtype)
    if indices.ndim == 2:
        # Refuses what is outside.
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
