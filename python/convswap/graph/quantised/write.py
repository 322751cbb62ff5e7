"""Write QuantConv nodes in place of quantised convolutions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir

from convswap.graph.constants import ConstantWriter, remove_if_unused
from convswap.graph.domain import DOMAIN, QUANT_OP
from convswap.graph.epilogue import NO_ACTIVATION, Activation
from convswap.graph.plain_model import CONV_ATTRIBUTES
from convswap.graph.quantised.accumulators import MEANS, Accumulator
from convswap.graph.quantised.computed_constants import is_constant_arithmetic
from convswap.graph.quantised.epilogues import Epilogue
from convswap.graph.quantised.qlinear import become
from convswap.graph.quantised.quantisation import is_dequantize, is_quantize

# From so many weights on, whole tiles of the tensor cores gain more than a Slice costs.
_MIN_PADDED_WEIGHTS = 2**16


class QuantConvWriter:
    """Turns the last node of each chain into a QuantConv, and removes the others."""

    def __init__(self, model: ir.Model, names: Mapping[ir.Node, str]) -> None:
        self._names, self._constants = names, ConstantWriter(model)

    def write(self, accumulator: Accumulator, epilogue: Epilogue) -> dict[ir.Value, ir.Value]:
        """Write one QuantConv; return a result of two axes, by a Flatten, with its images of one pixel."""
        conv, nodes = accumulator.conv, [*accumulator.nodes, *epilogue.nodes]
        channels, is_rows = len(accumulator.factor), len(epilogue.result.shape or ()) == 2
        node, graph = conv if is_rows else nodes[-1], conv.graph
        assert isinstance(graph, ir.Graph)
        padding = 0
        if conv.op_type in MEANS:
            conv.attributes["group"] = ir.AttrInt64("group", channels)
        elif is_rows and accumulator.weights.codes.size >= _MIN_PADDED_WEIGHTS:
            padding = -channels % 16
            accumulator = _padded(accumulator, padding)
        old_inputs = [value for old in nodes for value in old.inputs]
        attributes = [attribute for name, attribute in conv.attributes.items() if name in CONV_ATTRIBUTES]
        inputs = self._inputs(accumulator, epilogue)
        if accumulator.codes.dtype is None:
            # Shape inference knows no type behind some operators of ONNX Runtime.
            accumulator.codes.type = ir.TensorType(accumulator.x.dtype)

        node.resize_outputs(1)
        node.resize_inputs(len(inputs))
        for index, value in enumerate(inputs):
            node.replace_input_with(index, value)
        node.domain, node.op_type, node.overload, node.version = DOMAIN, QUANT_OP, "", None
        node.name, node.doc_string = self._names[conv], conv.doc_string
        properties = dict(conv.metadata_props)
        node.metadata_props.clear()
        node.metadata_props.update(properties)
        node.attributes.clear()
        for attribute in (*attributes, *_attributes(accumulator, epilogue)):
            node.attributes[attribute.name] = attribute
        if is_rows:
            nodes[-1].resize_inputs(0)
        graph.remove(nodes[1:-1] if is_rows else nodes[:-1], safe=True)
        remove_unused(old_inputs)
        return {epilogue.result: self._write_rows(node, nodes[-1], channels, padding)} if is_rows else {}

    def _write_rows(self, node: ir.Node, flatten: ir.Node, channels: int, padding: int) -> ir.Value:
        """Make `flatten` a Flatten of the result of `node`, behind a Slice that removes the padding."""
        rows, graph = flatten.outputs[0], node.graph
        assert rows.shape is not None and isinstance(graph, ir.Graph)
        # The types of the original model are those of its values, so the images are new ones.
        node.resize_outputs(0)
        node.resize_outputs(1)
        images = [node.outputs[0]]
        if padding:
            bounds = [
                self._constants.add(node, f"{node.name}/{role}", ir.Tensor(np.array([number])))
                for role, number in (("start", 0), ("end", channels), ("axis", 1))
            ]
            name = self._constants.node_names.make_unique(f"{node.name}/Slice")
            graph.insert_before(flatten, cut := ir.node("Slice", [*images, *bounds], name=name))
            images += cut.outputs
        for value, extent in zip(images, (channels + padding, channels), strict=False):
            value.name = self._constants.names.make_unique(f"{rows.name}/images")
            value.type, value.shape = rows.type, ir.Shape([rows.shape[0], extent, 1, 1])
        become(flatten, "Flatten", images[-1:])
        return images[-1]

    def _inputs(self, accumulator: Accumulator, epilogue: Epilogue) -> list[ir.Value | None]:
        """Return the inputs of the QuantConv.

        Absent inputs before present ones become zeros, and an absent residual an empty tensor, so that every
        input has a name.
        """
        conv, weights = accumulator.conv, accumulator.weights
        channels = weights.codes.shape[0]

        def constant(role: str, array: np.ndarray) -> ir.Value:
            return self._constants.add(conv, f"{self._names[conv]}/{role}", ir.Tensor(array))

        unit = _unit(epilogue)
        offset, sum_values = accumulator.offset, epilogue.sum_values
        has_last_inputs = epilogue.residual is not None or sum_values is not None
        zero_type = accumulator.float_type if epilogue.y is None else epilogue.y.dtype
        zero_point = 0 if epilogue.y is None else epilogue.y.only_zero_point
        inputs: list[ir.Value | None] = [
            accumulator.codes,
            constant("weight", weights.codes) if weights.value is None else weights.value,
            constant("scale", accumulator.factor.astype(np.float32) / unit),
            constant("y_zero_point", np.array(zero_point, zero_type.numpy())),
        ]
        if accumulator.bias is not None or offset is not None or has_last_inputs:
            bias = np.zeros(channels, np.int32) if accumulator.bias is None else accumulator.bias
            inputs.append(constant("bias", bias.astype(np.int32)))
        if offset is not None or has_last_inputs:
            offset = np.zeros(channels, np.float32) if offset is None else offset / unit
            inputs.append(constant("offset", offset.astype(np.float32)))
        if epilogue.residual is not None:
            inputs.append(epilogue.residual)
        elif sum_values is not None:
            inputs.append(constant("no_residual", np.zeros(0, accumulator.x.dtype.numpy())))
        if sum_values is not None:
            # The scale of the result is in the values, so that the codes are those of QuantizeLinear.
            with np.errstate(over="ignore"):
                inputs.append(constant("sum_values", sum_values / _result_unit(epilogue)))
        return inputs


def _padded(accumulator: Accumulator, padding: int) -> Accumulator:
    """Return the accumulator with `padding` more filters, of zeros."""

    def padded(array: np.ndarray | None) -> Any:
        return None if array is None else np.pad(array, [(0, padding), *[(0, 0)] * (array.ndim - 1)])

    weights = replace(accumulator.weights, codes=padded(accumulator.weights.codes))
    arrays = {name: padded(getattr(accumulator, name)) for name in ("factor", "bias", "offset")}
    return replace(accumulator, weights=weights, **arrays)


def _unit(epilogue: Epilogue) -> np.float32:
    """Return the scale by which the factors of the sums are divided: that of the first rounding, if any.

    Activations other than clamps, and residuals, are computed in the units of the model.
    """
    if epilogue.rounded is not None:
        return epilogue.rounded.only_scale
    return _result_unit(epilogue)


def _result_unit(epilogue: Epilogue) -> np.float32:
    """Return the scale of the result if activation and pooling are computed in steps of its codes, else 1."""
    return epilogue.y.only_scale if epilogue.y is not None and _is_scaled(epilogue) else np.float32(1)


def _is_scaled(epilogue: Epilogue) -> bool:
    """Return whether activation and pooling are computed in steps of the result's codes."""
    clamps = epilogue.activation.name in ("None", "Relu", "Clip")
    is_dequantised = epilogue.rounded is not None and epilogue.sum_values is None
    return epilogue.y is not None and not is_dequantised and epilogue.residual is None and clamps


def _attributes(accumulator: Accumulator, epilogue: Epilogue) -> list[ir.Attr]:
    attributes = []

    def add_int(name: str, number: int) -> None:
        if number:
            attributes.append(ir.AttrInt64(name, number))

    def add_float(name: str, number: np.float32) -> None:
        attributes.append(ir.AttrFloat32(name, float(number)))

    add_int("x_zero_point", accumulator.x.only_zero_point)
    if epilogue.rounded is not None:
        attributes.append(ir.AttrInt64("sum_zero_point", epilogue.rounded.only_zero_point))
        if epilogue.sum_values is None:
            add_float("sum_scale", epilogue.rounded.only_scale)
    if epilogue.z is not None:
        add_int("z_zero_point", epilogue.z.only_zero_point)
        add_float("z_scale", epilogue.z.only_scale)
    activation = epilogue.activation
    if epilogue.y is not None and _is_scaled(epilogue):
        activation = _divided(activation, epilogue.y.only_scale)
    elif epilogue.y is not None:
        add_float("y_scale", epilogue.y.only_scale)
    if activation != NO_ACTIVATION:
        attributes += activation.attributes()
    if epilogue.pool is not None:
        attributes += epilogue.pool.attributes()
    return attributes


def _divided(activation: Activation, unit: np.float32) -> Activation:
    """Return a Clip with its bounds divided by `unit`; any other activation as it is."""
    if activation.name != "Clip":
        return activation
    with np.errstate(over="ignore"):
        low, high = np.array([activation.alpha, activation.beta], np.float32) / unit
    return Activation("Clip", float(low), float(high))


def remove_unused(values: Iterable[ir.Value | None]) -> None:
    """Remove quantisations and arithmetic that nothing reads, and then constants that nothing reads."""
    pending = list(values)
    while pending:
        value = pending.pop()
        if value is None or value.uses() or value.is_graph_output():
            continue
        writer = value.producer()
        if writer is not None and (
            is_quantize(writer) or is_dequantize(writer) or is_constant_arithmetic(writer)
        ):
            pending += writer.inputs
            if isinstance(writer.graph, ir.Graph):
                writer.graph.remove(writer, safe=True)
        else:
            remove_if_unused(value)
