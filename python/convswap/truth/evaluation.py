"""The truth that both sides are measured against: a float64 copy of the model.

Every floating-point weight, constant, type and Cast target becomes float64; then ONNX's reference evaluator
computes the model, with the operators of `truth/operators.py` in place of its slow or inexact ones. An
operator that has no NumPy implementation at all (com.microsoft's, say) or only one that loops over pixels in
Python is run alone by the CPU provider in float32, and named in the result: its error is about 1e-7, far
below TF32's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun, RuntimeContextError

from convswap.errors import ConvswapError
from convswap.graph.domain import op_name
from convswap.truth.operators import OPERATORS

_NARROW = {TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16}
# Attributes that hold an element type and decide that of the result.
_TYPE_ATTRIBUTES = {"to", "dtype", "output_dtype"}
# The evaluator has these, but as Python loops over every pixel or time step.
_LEFT_TO_THE_CPU_PROVIDER = {
    "ConvTranspose",
    "DeformConv",
    "GridSample",
    "GRU",
    "LSTM",
    "MaxRoiPool",
    "MaxUnpool",
    "RNN",
    "Resize",
    "RoiAlign",
    "Upsample",
}


@dataclass(frozen=True)
class Truth:
    """The outputs of a model in float64, and the operators that were computed in float32 after all."""

    outputs: list[Any]
    in_float32: tuple[str, ...]


def evaluate(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> Truth:
    """Return the outputs of `model` for `feeds`, in float64.

    `model` holds its weights itself, not in external files; it is not changed.

    Raises:
        ConvswapError: an operator can be evaluated neither in NumPy nor by the CPU provider.
    """
    in_float32: set[str] = set()
    inputs = {name: _widen_array(values) for name, values in feeds.items()}
    try:
        evaluator = _evaluator_class(in_float32)(widen(model))
        outputs: Any = evaluator.run(None, inputs)
    except ConvswapError:
        raise
    except Exception as error:  # The evaluator passes on whatever its operators raise.
        reason = str(error).strip().splitlines()
        raise ConvswapError(
            f"cannot evaluate the model in float64: {reason[0] if reason else type(error).__name__}; "
            "check the model with onnx.checker"
        ) from error
    return Truth(outputs, tuple(sorted(in_float32)))


def widen(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of `model` in which every float16, bfloat16 and float32 is a float64."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for opset in copy.opset_import:
        if opset.domain == "ai.onnx":
            opset.domain = ""
    _widen_graph(copy.graph)
    for function in copy.functions:
        del function.value_info[:]
        for node in function.node:
            _widen_node(node)
    return copy


def _widen_graph(graph: onnx.GraphProto) -> None:
    del graph.value_info[:]
    for value in (*graph.input, *graph.output):
        _widen_type(value.type)
    for tensor in graph.initializer:
        _widen_tensor(tensor)
    for sparse in graph.sparse_initializer:
        _widen_tensor(sparse.values)
    for node in graph.node:
        _widen_node(node)


def _widen_type(type_proto: onnx.TypeProto) -> None:
    kind = type_proto.WhichOneof("value")
    if kind in ("tensor_type", "sparse_tensor_type"):
        tensor = getattr(type_proto, kind)
        if tensor.elem_type in _NARROW:
            tensor.elem_type = TensorProto.DOUBLE
    elif kind in ("sequence_type", "optional_type"):
        _widen_type(getattr(type_proto, kind).elem_type)


def _widen_tensor(tensor: TensorProto) -> None:
    if tensor.data_type in _NARROW:
        values = numpy_helper.to_array(tensor).astype(np.float64)
        tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))


def _widen_node(node: onnx.NodeProto) -> None:
    if node.domain == "ai.onnx":
        node.domain = ""
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.TENSOR:
            _widen_tensor(attribute.t)
        elif attribute.type == onnx.AttributeProto.SPARSE_TENSOR:
            _widen_tensor(attribute.sparse_tensor.values)
        elif attribute.type == onnx.AttributeProto.GRAPH:
            _widen_graph(attribute.g)
        elif attribute.name in _TYPE_ATTRIBUTES and attribute.i in _NARROW:
            attribute.i = TensorProto.DOUBLE
    if node.domain == "" and node.op_type == "Constant":
        _widen_constant(node)
    elif node.domain == "" and node.op_type == "ConstantOfShape" and not node.attribute:
        node.attribute.append(helper.make_attribute("value", numpy_helper.from_array(np.zeros(1))))


def _widen_constant(node: onnx.NodeProto) -> None:
    """Turn value_float and value_floats, which the evaluator makes float32, into a float64 tensor."""
    for attribute in list(node.attribute):
        if attribute.name in ("value_float", "value_floats") and not attribute.ref_attr_name:
            values = np.array(helper.get_attribute_value(attribute), dtype=np.float64)
            node.attribute.remove(attribute)
            node.attribute.append(helper.make_attribute("value", numpy_helper.from_array(values)))


def _widen_array(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float64) if np.issubdtype(values.dtype, np.floating) else values


def _evaluator_class(in_float32: set[str]) -> type[ReferenceEvaluator]:
    """Return an evaluator with our operators, in functions too; it notes in `in_float32` what it lacks."""

    class Float64Evaluator(ReferenceEvaluator):
        def __init__(self, proto: Any, *arguments: Any, **options: Any) -> None:
            options["new_ops"] = list(OPERATORS)
            super().__init__(proto, *arguments, **options)

        def _load_impl(self, node: onnx.NodeProto, *arguments: Any) -> Any:
            if node.domain == "" and node.op_type in _LEFT_TO_THE_CPU_PROVIDER:
                return self._by_the_cpu_provider(node)
            try:
                return super()._load_impl(node, *arguments)
            except RuntimeContextError:
                # Not a lack: the evaluator asks again, with the types of the inputs.
                raise
            except RuntimeError:  # NotImplementedError too, which is one.
                return self._by_the_cpu_provider(node)

        def _by_the_cpu_provider(self, node: onnx.NodeProto) -> type[OpRun]:
            in_float32.add(op_name(node))
            return _provider_operator(node, self.opsets)

    return Float64Evaluator


def _provider_operator(node: onnx.NodeProto, opsets: Mapping[str, int]) -> type[OpRun]:
    """Return an operator that runs `node` alone on the CPU provider in float32, and widens what comes out."""

    class ProviderOperator(OpRun):
        op_domain = node.domain

        def _run(self, *inputs: np.ndarray | None, **attributes: Any) -> tuple[Any, ...]:
            feeds = {
                f"input_{index}": values.astype(np.float32) if values.dtype == np.float64 else values
                for index, values in enumerate(inputs)
                if values is not None
            }
            session = onnxruntime.InferenceSession(
                _one_node_model(node, inputs, feeds, opsets), providers=["CPUExecutionProvider"]
            )
            return tuple(_widen_array(values) for values in session.run(None, feeds))

    return ProviderOperator


def _one_node_model(
    node: onnx.NodeProto,
    inputs: tuple[np.ndarray | None, ...],
    feeds: Mapping[str, np.ndarray],
    opsets: Mapping[str, int],
) -> bytes:
    alone = onnx.NodeProto()
    alone.CopyFrom(node)
    del alone.input[:], alone.output[:]
    alone.input.extend("" if values is None else f"input_{index}" for index, values in enumerate(inputs))
    outputs = [f"output_{index}" if name else "" for index, name in enumerate(node.output)]
    alone.output.extend(outputs)
    graph = helper.make_graph(
        [alone],
        "one_node",
        [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(values.dtype), list(values.shape)
            )
            for name, values in feeds.items()
        ],
        [onnx.ValueInfoProto(name=name) for name in outputs if name],
    )
    imports = [helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    if node.domain not in opsets:
        imports.append(helper.make_opsetid(node.domain, 1))
    model = helper.make_model(graph, opset_imports=imports)
    # The newest IR that every supported ONNX Runtime reads.
    model.ir_version = 9
    return model.SerializeToString()
