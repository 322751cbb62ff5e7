"""Models of a Conv and its followers, and checks that hold for every fused model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from convswap.graph.swap import SwapResult, swap
from convswap.reference.evaluation import evaluate
from fused_conv_reference import expand
from onnx import TensorProto, helper, numpy_helper
from op_sessions import onnx_outputs

FILTERS = 4
X_SHAPE = (2, 3, 9, 8)
# Relative L2 difference of outputs in float64, in units of rounding of the model's type: one for folded
# weights, which are rounded once, and three for the constants of decomposed activations.
UNITS = 4
# In a float64 model the evaluation itself rounds two dozen sums and products for each output.
UNITS_OF_FLOAT64 = 64
UNIT = {
    TensorProto.DOUBLE: 2.0**-53,
    TensorProto.FLOAT: 2.0**-24,
    TensorProto.FLOAT16: 2.0**-11,
    TensorProto.BFLOAT16: 2.0**-8,
}


def array(name: str, *shape: int, low: float = -1.0, high: float = 1.0) -> np.ndarray:
    """Return float64 values that depend only on name and shape."""
    seed = sum(name.encode()) + sum(shape)
    return np.random.default_rng(seed).uniform(low, high, size=shape)


def tensor(name: str, values: Any, element_type: int = TensorProto.FLOAT) -> onnx.TensorProto:
    """Return `values` as an initializer."""
    dtype = helper.tensor_dtype_to_np_dtype(element_type)
    return numpy_helper.from_array(np.asarray(values).astype(dtype), name)


def declare(
    name: str, shape: Sequence[int | str | None], element_type: int = TensorProto.FLOAT
) -> onnx.ValueInfoProto:
    """Return the declaration of a tensor."""
    return helper.make_tensor_value_info(name, element_type, shape)


def node(op: str, inputs: str, outputs: str, name: str | None = None, **attributes: Any) -> onnx.NodeProto:
    """Return a node; inputs and outputs are separated by blanks, "-" is an omitted input."""
    domain, _, op_type = op.rpartition(".")
    return helper.make_node(
        op_type,
        [value.replace("-", "") for value in inputs.split()],
        outputs.split(),
        name=name or f"{op_type.lower()}_{outputs.split()[0]}",
        domain=domain or None,
        **attributes,
    )


def conv(output: str = "c", inputs: str = "x w", name: str = "conv", **attributes: Any) -> onnx.NodeProto:
    """Return a Conv; with 3x3 filters, it keeps height and width unless `attributes` change that."""
    pads = {} if "auto_pad" in attributes else {"pads": [1, 1, 1, 1]}
    return node("Conv", inputs, output, name, **(pads | attributes))


def model(
    nodes: Sequence[onnx.NodeProto],
    constants: Mapping[str, Any] | None = None,
    *,
    opset: int = 20,
    element_type: int = TensorProto.FLOAT,
    inputs: Sequence[onnx.ValueInfoProto] | None = None,
    outputs: Sequence[str] = ("y",),
    x_shape: Sequence[int | str | None] = X_SHAPE,
    ir_version: int = 9,
    functions: Sequence[onnx.FunctionProto] = (),
    domains: Sequence[str] = (),
    tensors: Sequence[onnx.TensorProto] = (),
    y_shape: Sequence[int | str | None] | None = None,
) -> onnx.ModelProto:
    """Return a model from `x` to `y`; `w` is constant unless it is an input.

    `constants` get `element_type`; `tensors` keep their types. `y_shape` declares the output of ops that
    shape inference does not know.
    """
    values = dict(constants or {})
    declared = [declare("x", x_shape, element_type)] if inputs is None else list(inputs)
    if not any(value.name == "w" for value in declared):
        values = {"w": array("w", FILTERS, 3, 3, 3)} | values
    graph = helper.make_graph(
        list(nodes),
        "net",
        declared,
        [declare(name, y_shape, element_type) for name in outputs],
        [*(tensor(name, value, element_type) for name, value in values.items()), *tensors],
    )
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    proto = helper.make_model(graph, opset_imports=opsets, ir_version=ir_version, functions=list(functions))
    # Exporters do not write outputs of unknown rank.
    inferred = onnx.shape_inference.infer_shapes(proto)
    del proto.graph.output[:]
    proto.graph.output.extend(inferred.graph.output)
    return proto


def feeds_of(proto: onnx.ModelProto) -> dict[str, np.ndarray]:
    """Return random values for the inputs of `proto`; symbolic extents are 2, flags true."""
    constants = {value.name for value in proto.graph.initializer}
    feeds = {}
    for value in proto.graph.input:
        if value.name in constants:
            continue
        kind = value.type.tensor_type
        shape = [dimension.dim_value or 2 for dimension in kind.shape.dim]
        if kind.elem_type == TensorProto.BOOL:
            feeds[value.name] = np.ones(shape, bool)
        else:
            dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type)
            feeds[value.name] = array(value.name, *shape, low=-2, high=2).astype(dtype)
    return feeds


def fuse(original: onnx.ModelProto, *, units: float = UNITS, **options: Any) -> SwapResult:
    """Fuse `original`, assert that it computes the same, and return the result of `swap`."""
    before = original.SerializeToString()
    result = swap(original, fuse=True, **options)
    assert original.SerializeToString() == before
    assert_same(original, result.to_proto(), units)
    return result


def assert_same(original: onnx.ModelProto, fused: onnx.ModelProto, units: float = UNITS) -> None:
    """Assert that `fused`, expanded, is valid and has the outputs of `original`, to `units` of rounding."""
    expanded = expand(fused)
    onnx.checker.check_model(expanded, full_check=True)
    assert_same_declarations(original, fused, expanded)
    feeds = feeds_of(original)
    element_type = original.graph.input[0].type.tensor_type.elem_type
    if element_type == TensorProto.DOUBLE:
        units = max(units, UNITS_OF_FLOAT64)
    tolerance = units * UNIT[element_type]
    for before, after in zip(outputs_of(original, feeds), outputs_of(expanded, feeds), strict=True):
        assert before.shape == after.shape
        assert np.linalg.norm(before - after) <= tolerance * np.linalg.norm(before), "in float64"
    # ONNX Runtime has no Conv for the other types.
    if element_type in (TensorProto.FLOAT, TensorProto.FLOAT16):
        assert_same_in_onnx_runtime(original, expanded, feeds, 8 * UNIT[element_type])


def outputs_of(proto: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Return the outputs in float64."""
    return evaluate(proto, feeds).outputs


def assert_same_declarations(
    original: onnx.ModelProto, fused: onnx.ModelProto, expanded: onnx.ModelProto
) -> None:
    """Assert that inputs and outputs stay, and that all common values have the same types and shapes."""
    assert list(fused.graph.input) == list(original.graph.input)
    assert list(fused.graph.output) == list(original.graph.output)
    before, after = (_inferred(proto) for proto in (original, expanded))
    common = before.keys() & after.keys()
    our_nodes = [node_ for node_ in fused.graph.node if node_.domain == "convswap"]
    assert {output for node_ in our_nodes for output in node_.output} <= common
    assert {name: after[name] for name in common} == {name: before[name] for name in common}
    # Shape inference does not know our op, so the outputs of its nodes are declared.
    declared = {value.name: value for value in (*fused.graph.value_info, *fused.graph.output)}
    for node_ in our_nodes:
        if node_.op_type == "FusedConv" and before[node_.output[0]][0]:
            kind = declared[node_.output[0]].type.tensor_type
            assert kind.elem_type == before[node_.output[0]][0]
            assert len(kind.shape.dim) == len(before[node_.output[0]][1])


def _inferred(proto: onnx.ModelProto) -> dict[str, tuple[int, list[int | str]]]:
    graph = onnx.shape_inference.infer_shapes(proto, strict_mode=True).graph
    return {
        value.name: (
            value.type.tensor_type.elem_type,
            [
                dimension.dim_value or dimension.dim_param * (not dimension.dim_param.startswith("unk__"))
                for dimension in value.type.tensor_type.shape.dim
            ],
        )
        for value in (*graph.input, *graph.value_info, *graph.output)
    }


def assert_same_in_onnx_runtime(
    original: onnx.ModelProto,
    expanded: onnx.ModelProto,
    feeds: Mapping[str, np.ndarray],
    tolerance: float,
) -> None:
    """Assert that both models, unoptimised, have the same outputs on the CPU provider in their own type."""
    results = [onnx_outputs(proto, feeds, optimised=False) for proto in (original, expanded)]
    for before, after in zip(*results, strict=True):
        assert (before.dtype, before.shape) == (after.dtype, after.shape)
        wide, other = before.astype(np.float64), after.astype(np.float64)
        assert np.linalg.norm(wide - other) <= tolerance * np.linalg.norm(wide), "in ONNX Runtime"


def taken(result: SwapResult) -> dict[str, list[str]]:
    """Return, for each fused Conv, its new op and the ops that were fused into it."""
    return {fused.node: [fused.op, *(op for op, _ in fused.fused_nodes)] for fused in result.fused}


def reasons(result: SwapResult) -> dict[str, str]:
    """Return the reason for each follower that was not fused."""
    return {each.follower: each.reason for each in result.not_fused}
