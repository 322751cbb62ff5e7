"""ONNX models to onnx-ir and back, with the types of values that onnx-ir does not know: maps, opaque ones."""

from __future__ import annotations

import contextlib
import logging
import warnings
from base64 import b64decode, b64encode
from collections.abc import Iterator

import onnx
import onnx_ir as ir

# Of the metadata of values: its type, as onnx writes it. Metadata are what onnx-ir keeps wherever it takes a
# value.
_TYPE_KEY = "convswap.type"


def from_proto(proto: onnx.ModelProto) -> ir.Model:
    """Return `proto` as an `onnx_ir.Model` that shares its tensors.

    Types that onnx-ir does not know become metadata, which `to_proto` turns back; a model that has some is
    copied for it, tensors too.
    """
    unknown = [value for value in _values(proto) if not _is_known(value.type)]
    if unknown:
        own = onnx.ModelProto()
        own.CopyFrom(proto)
        proto = own
    for value in _values(proto) if unknown else ():
        if not _is_known(value.type):
            value.metadata_props.add(key=_TYPE_KEY, value=b64encode(value.type.SerializeToString()).decode())
            value.ClearField("type")
    with quiet_onnx_ir():
        return ir.from_proto(proto)


def to_proto(model: ir.Model) -> onnx.ModelProto:
    """Return `model` as a protobuf message, with the types that `from_proto` has set aside."""
    with quiet_onnx_ir():
        proto = ir.to_proto(model)
    for value in _values(proto):
        for index in reversed(range(len(value.metadata_props))):
            if value.metadata_props[index].key == _TYPE_KEY:
                value.type.ParseFromString(b64decode(value.metadata_props[index].value))
                del value.metadata_props[index]
    return proto


@contextlib.contextmanager
def quiet_onnx_ir() -> Iterator[None]:
    """Silence what onnx-ir logs about unsound models: those that matter are refused with one line."""
    logger = logging.getLogger("onnx_ir")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            # Of unknown keys only those of weights that ONNX Runtime packed in advance may be dropped.
            unknown_key = "Ignoring unknown external data key"
            warnings.filterwarnings("error", message=unknown_key)
            warnings.filterwarnings("ignore", message=rf"{unknown_key}\(s\) \['prepacked")
            yield
    finally:
        logger.setLevel(level)


def graphs_of_proto(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield `graph` and the graphs in its nodes, at any depth."""
    yield graph
    for node in graph.node:
        yield from _graphs_in(node)


def _graphs_in(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    for attribute in node.attribute:
        for inner in ([attribute.g] if attribute.HasField("g") else []) + list(attribute.graphs):
            yield from graphs_of_proto(inner)


def _values(proto: onnx.ModelProto) -> Iterator[onnx.ValueInfoProto]:
    """Yield what `proto` tells of its values, in every graph and function."""
    graphs = list(graphs_of_proto(proto.graph))
    for function in proto.functions:
        yield from function.value_info
        for node in function.node:
            graphs += _graphs_in(node)
    for graph in graphs:
        yield from graph.input
        yield from graph.output
        yield from graph.value_info


def _is_known(value_type: onnx.TypeProto, *, may_be_missing: bool = True) -> bool:
    kind = value_type.WhichOneof("value")
    if kind in ("sequence_type", "optional_type"):
        return _is_known(getattr(value_type, kind).elem_type, may_be_missing=False)
    return kind in ("tensor_type", "sparse_tensor_type") or (kind is None and may_be_missing)
